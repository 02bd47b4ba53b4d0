//! The tracing process: a fork of masu (`forked.rs`).
//!
//! SIGTERM, Ctrl-C and SIGKILL end masu at once, and a thread that has our registers is restored all the same. masu
//! waits for the answer until a deadline. A tracer that has changed nothing by then is killed: the kernel detaches it.
//! A tracer that has is left to finish, and masu reports it: its call waits in the kernel, and ending it would leave
//! the thread with our registers.
//!
//! Side effect: SIGKILL to the tracer itself (`masu-tracer`), as when a whole control group is killed, leaves the
//! thread with our registers.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use units::{Address, cast};

use super::tracee::{Call, Failed, INSTRUCTION_BYTES, Stopped, Tracee};
use crate::Pid;
use crate::forked::Forked;
use crate::maps::{self, Mapping};
use crate::seccomp_filter::Action;
use crate::untrusted;

/// Time for one of the threads to stop. A thread that waits for a disk, or for the child of a vfork, does not.
pub(super) const STOP_WITHIN: Duration = Duration::from_millis(1800);

/// Time for the stopped thread to reach the call.
const CALL_WITHIN: Duration = Duration::from_secs(1);

/// Time that masu allows the tracer beyond its own deadlines, on a busy machine.
const SLACK: Duration = Duration::from_millis(700);

/// Maximum number of bytes of the vdso searched.
const VDSO_BYTES_MAX: u64 = 64 << 10;

/// Message of the tracer: a kind and a value, written in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The thread has our registers from now on.
    Changing,
    /// The kernel's answer to the call.
    Answer(i64),
    /// The call was not made.
    Failed(Failed),
}

impl Message {
    pub(super) fn to_bytes(self) -> [u8; 16] {
        let (kind, value) = match self {
            Message::Changing => (1, 0),
            Message::Answer(answer) => (2, answer),
            Message::Failed(Failed::NoStop) => (3, 0),
            Message::Failed(Failed::Exec) => (4, 0),
            Message::Failed(Failed::Foreign) => (5, 0),
            Message::Failed(Failed::NoCall) => (6, 0),
            Message::Failed(Failed::NoInstruction) => (7, 0),
            Message::Failed(Failed::Ended) => (8, 0),
            Message::Failed(Failed::Filtered(Ok(action))) => (10, action as i64),
            Message::Failed(Failed::Filtered(Err(errno))) => (11, i64::from(errno.raw_os_error())),
            Message::Failed(Failed::Kernel(errno)) => (9, i64::from(errno.raw_os_error())),
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&i64::to_ne_bytes(kind));
        bytes[8..].copy_from_slice(&value.to_ne_bytes());
        bytes
    }

    pub(super) fn of_bytes(bytes: [u8; 16]) -> Option<Message> {
        let words = bytes.as_chunks::<8>().0;
        let [kind, value] = [0, 1].map(|nth| i64::from_ne_bytes(words[nth]));
        Some(match kind {
            1 => Message::Changing,
            2 => Message::Answer(value),
            3 => Message::Failed(Failed::NoStop),
            4 => Message::Failed(Failed::Exec),
            5 => Message::Failed(Failed::Foreign),
            6 => Message::Failed(Failed::NoCall),
            7 => Message::Failed(Failed::NoInstruction),
            8 => Message::Failed(Failed::Ended),
            9 => Message::Failed(Failed::Kernel(Errno::from_raw_os_error(i32::try_from(value).ok()?))),
            10 => Message::Failed(Failed::Filtered(Ok(*Action::ALL.get(usize::try_from(value).ok()?)?))),
            11 => Message::Failed(Failed::Filtered(Err(Errno::from_raw_os_error(i32::try_from(value).ok()?)))),
            _ => return None,
        })
    }
}

/// Reason why masu has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The call was not made.
    Failed(Failed),
    /// This tracer has not yet restored the thread.
    Unfinished(Pid),
    /// The tracer ended by itself, or could not be started.
    Tracer(Errno),
}

/// Has one of `threads` of `process` make `call`. Returns the kernel's answer.
pub(super) fn inject(process: Pid, threads: &[Pid], pidfd: BorrowedFd<'_>, call: Call) -> Result<i64, NoAnswer> {
    let mut tracer = Forked::start(c"masu-tracer", pidfd, |pidfd, send| {
        let made = in_any_of(process, threads, pidfd, call, &|| send(&Message::Changing.to_bytes()));
        send(&made.map_or_else(Message::Failed, Message::Answer).to_bytes());
    })
    .map_err(NoAnswer::Tracer)?;
    let mut next = |within| {
        let mut bytes = [0; 16];
        let read = tracer.read(&mut bytes, Instant::now() + within);
        read.and_then(|()| Message::of_bytes(bytes).ok_or(Errno::IO))
    };
    let mut answer = next(STOP_WITHIN + SLACK);
    let changing = answer == Ok(Message::Changing);
    if changing {
        answer = next(CALL_WITHIN + SLACK);
    }
    match answer {
        Ok(Message::Answer(answer)) => Ok(answer),
        Ok(Message::Failed(failed)) => Err(NoAnswer::Failed(failed)),
        Err(Errno::TIMEDOUT) if changing => {
            let pid = tracer.pid();
            tracer.abandon();
            Err(NoAnswer::Unfinished(pid))
        }
        Err(Errno::TIMEDOUT) => {
            tracer.kill();
            Err(NoAnswer::Failed(Failed::NoStop))
        }
        Ok(Message::Changing) => Err(NoAnswer::Tracer(Errno::IO)),
        Err(errno) => Err(NoAnswer::Tracer(errno)),
    }
}

/// Makes the call in the first thread that stops.
fn in_any_of(
    process: Pid,
    threads: &[Pid],
    pidfd: BorrowedFd<'_>,
    call: Call,
    changing: &dyn Fn(),
) -> Result<i64, Failed> {
    let end = Instant::now() + STOP_WITHIN;
    let mut last = Failed::Ended;
    for (tried, thread) in threads.iter().enumerate() {
        let left: u32 = cast::fits(threads.len() - tried);
        let deadline = Instant::now() + end.saturating_duration_since(Instant::now()) / left;
        let tracee = match Tracee::seize(process, *thread) {
            Ok(tracee) if belongs(process, *thread, pidfd) => tracee,
            // The number belongs to another process by now. The end of this process detaches the thread.
            Ok(_) => return Err(Failed::Ended),
            Err(Failed::Ended) => continue,
            Err(failed) => return Err(failed),
        };
        match tracee.stopped(deadline) {
            Ok(mut stopped) => {
                let Some(at) = instruction(process, &stopped) else {
                    stopped.release();
                    last = Failed::NoInstruction;
                    continue;
                };
                if let Err(failed) =
                    stopped.read_filters(is_filtered(process, *thread)).and_then(|()| stopped.judge(at, call))
                {
                    stopped.release();
                    last = failed;
                    continue;
                }
                // masu may have given up meanwhile.
                if Instant::now() > end {
                    stopped.release();
                    return Err(Failed::NoStop);
                }
                changing();
                return stopped.call(at, call, Instant::now() + CALL_WITHIN);
            }
            Err(failed @ (Failed::NoStop | Failed::Ended)) => last = failed,
            Err(failed) => return Err(failed),
        }
    }
    Err(last)
}

/// True if a seccomp filter would judge the call, or the filter state cannot be read.
pub(super) fn is_filtered(process: Pid, thread: Pid) -> bool {
    let status = std::fs::read(format!("/proc/{process}/task/{thread}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    // A kernel without filters has no such line.
    status.is_empty() || status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"))
}

/// True for a thread of the intended process: both numbers may have been reused since.
fn belongs(process: Pid, thread: Pid, pidfd: BorrowedFd<'_>) -> bool {
    let ended = poll(&mut [PollFd::new(&pidfd.as_fd(), PollFlags::IN)], Some(&Timespec::default()));
    ended == Ok(0) && std::fs::exists(format!("/proc/{process}/task/{thread}")).unwrap_or(false)
}

/// A `syscall` instruction for the call: in the vdso, which the kernel maps and no server provides; else the thread's
/// own instruction of its interrupted call. Memory of files is not read: its server may not answer.
fn instruction(process: Pid, stopped: &Stopped) -> Option<Address> {
    let maps = std::fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    vdso_in(maps).and_then(|vdso| in_vdso(&vdso, stopped)).or_else(|| stopped.own_instruction())
}

/// Finds the vdso in the bytes of a `maps` file; its file names may be no text and may end like the vdso's.
pub(super) fn vdso_in(maps: Vec<u8>) -> Option<Mapping> {
    let text = untrusted::text_of(maps);
    let lines = text.lines().filter(|line| line.ends_with("[vdso]"));
    lines.filter_map(|line| maps::parse(line, "maps").ok()?.pop()).find(is_vdso)
}

/// True for the kernel's own mapping, executable. A file of this name would have an inode.
fn is_vdso(mapping: &Mapping) -> bool {
    let rights = mapping.permissions;
    mapping.path == "[vdso]" && mapping.inode == 0 && rights.read && rights.execute && !rights.write && !rights.shared
}

fn in_vdso(vdso: &Mapping, stopped: &Stopped) -> Option<Address> {
    let length = (vdso.range.end().0 - vdso.range.start().0).min(VDSO_BYTES_MAX);
    let mut bytes = vec![0; cast::index(length)];
    stopped.read(vdso.range.start(), &mut bytes).ok()?;
    syscall_in(&bytes).map(|found| Address(vdso.range.start().0 + found as u64))
}

/// Offset of the first `syscall` instruction (0f 05) in these bytes, also in the middle of another: the processor
/// begins at any given address.
pub(super) fn syscall_in(bytes: &[u8]) -> Option<usize> {
    const { assert!(INSTRUCTION_BYTES == 2) };
    bytes.windows(2).position(|pair| pair == [0x0f, 0x05])
}
