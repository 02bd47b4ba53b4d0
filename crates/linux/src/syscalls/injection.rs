//! `ptrace(2)`: one system call in the name of another process, `prctl(PR_SET_THP_DISABLE)`, and nothing else.
//!
//! A flag of a process's memory decides if it may have huge pages at all, and only the process itself can set it. So
//! one of its threads is stopped, makes the call, and is restored: registers, signal mask, interrupted system call.
//! Everything else is done from outside without a stop (`process_madvise.rs`). The result is in `status.rs`
//! (`THP_enabled:`).
//!
//! The thread is left as it was found:
//! * It is stopped by PTRACE_INTERRUPT, in the kernel, on its way to user mode. An interrupted system call has answered
//!   "to be restarted" and restarts after the restore: the registers with `orig_rax` name it, and the kernel keeps the
//!   remaining time. Our call carries `orig_rax` −1 so that nothing is restarted before.
//! * Its signals are blocked and stay pending meanwhile. A stop signal, which cannot be blocked, is deferred and
//!   sent again.
//! * The call uses an existing instruction: in the vdso, else the one of the thread's own last call. Neither code nor
//!   stack is written, and no memory of a file is read.
//! * It is restored at a stop of the same kind as the first, so no instruction of its own runs in between.
//! * A thread in a restartable sequence (rseq) runs on until it has left it.
//! * A process stopped by job control (Ctrl-Z) runs for the one call and stops again.
//! * A thread in a transfer that a stop would end in part (`write` to a pipe) is not stopped: another one is, or the
//!   transfer's end is awaited. The call of a thread that runs is not visible: it is stopped if it does not wait at all
//!   for some milliseconds.
//! * Waiting calls that the kernel does not restart by itself (`epoll_wait`, `semop` and others that signal(7) lists)
//!   are made again, unless a pending signal must make them answer EINTR.
//!
//! A hostile process gains nothing and blocks nobody: after an exec nothing is written, a foreign call never runs
//! (`tracee.rs`), every wait of masu has a deadline, and the tracer is a process of its own that outlives masu
//! (`tracer.rs`). A process in a frozen control group is refused before it is touched (`cgroup/freezer.rs`).
//!
//! A seccomp filter that would not let the call pass keeps it from being made (`seccomp_filter.rs`): the filters are run
//! over the call before the thread is changed, and again at the entry of the call.
//!
//! Cost: one fork and some 100 µs, during which one thread is stopped. Side effects: the timeout of a call that is made
//! again starts anew; rare ones (`io_uring_enter`, `connect` with a timeout) answer EINTR, as after SIGSTOP and
//! SIGCONT.
//!
//! Since: PTRACE_SEIZE Linux 3.4, signal masks 3.11, PTRACE_GET_SYSCALL_INFO 5.3, the address of rseq 5.13;
//! PR_SET_THP_DISABLE 3.15. x86-64 only. Needs ptrace access (PTRACE_MODE_ATTACH): the same user, or CAP_SYS_PTRACE.
//!
//! Truth: ptrace(2), prctl(2), signal(7), rseq(2), vdso(7); kernel/ptrace.c, `get_signal` in kernel/signal.c,
//! `arch_do_signal_or_restart` in arch/x86/kernel/signal.c, `de_thread` in fs/exec.c.

mod tracee;
mod tracer;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use self::tracee::{Call, Failed};
use self::tracer::NoAnswer;
use crate::cgroup::freezer;
use crate::seccomp_filter::Action;
use crate::status::{self, Seccomp};
use crate::system_call::system_call;
use crate::{Error, KernelFiles, Pid, maps, stat};

/// Kernel numbers that libc lacks, or that are needed by value.
pub mod numbers {
    /// prctl: the process may have no huge pages, or may again.
    pub const PR_SET_THP_DISABLE: u64 = libc::PR_SET_THP_DISABLE as u64;
    /// ptrace: the blocked signals of a thread.
    pub const PTRACE_GETSIGMASK: u32 = 0x420a;
    /// ptrace: sets them.
    pub const PTRACE_SETSIGMASK: u32 = 0x420b;
    /// ptrace: the system call at whose entry or exit a thread is stopped.
    pub const PTRACE_GET_SYSCALL_INFO: u32 = 0x420e;
    /// ptrace: the address of the thread's rseq area.
    pub const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
    /// ptrace: a requested stop, or a group stop.
    pub const PTRACE_EVENT_STOP: u32 = 128;
    /// ptrace: stopped at the entry of a system call.
    pub const PTRACE_SYSCALL_INFO_ENTRY: u8 = 1;
    /// ptrace: stopped at its exit.
    pub const PTRACE_SYSCALL_INFO_EXIT: u8 = 2;
    /// audit: a system call by the 64-bit convention of x86.
    pub const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
}

/// Maximum number of threads tried, the first one first.
const THREADS_MAX: usize = 8;

/// Longest wait for a thread that is in no transfer.
const TRANSFERS_END_WITHIN: Duration = Duration::from_secs(2);

/// Time between two looks at the threads.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Looks after which a thread that ran at each, and did not wait in between, is stopped.
const LOOKS_AT_RUNNING: u32 = 4;

/// Reason why a process did not make the call. The process is unharmed in each case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCalled {
    /// The kernel's error: `Gone` if the process ended, `Denied` without ptrace access or when it is traced already.
    #[error(transparent)]
    Kernel(#[from] Error),
    /// Its control group, at this path, is frozen.
    #[error("cannot stop process {0}: its control group {1} is frozen")]
    Frozen(Pid, String),
    /// A seccomp filter does not let the call pass: its action, or the error of reading it.
    #[error("cannot change process {0}: {why}", why = filtered(.1))]
    Filtered(Pid, Result<Action, Errno>),
    /// No thread stopped in time: each waits for a disk, a server, or the child of a vfork.
    #[error("cannot stop process {0}: none of its threads came to a stop within 2 s")]
    NoStop(Pid),
    /// Each thread is in a transfer that a stop would end in part.
    #[error("cannot stop process {0}: each of its threads sends or receives, and a stop would end that call in part")]
    Transfer(Pid),
    /// It called exec while it was traced. Nothing was changed in the new program.
    #[error("cannot change process {0}: it became another program meanwhile (exec), in which nothing was changed")]
    Exec(Pid),
    /// Other code ran in place of the call, or none within a second. The thread was restored.
    #[error(
        "cannot change process {0}: its code changed under the call, which was not made; the thread goes on as it was"
    )]
    Foreign(Pid),
    /// No `syscall` instruction was found that needs no memory of a file.
    #[error("cannot change process {0}: it has no vdso, and no thread that waits in a system call")]
    NoInstruction(Pid),
    /// The call waits in the kernel, for the memory of the process. The second process restores the thread once it
    /// returns.
    #[error(
        "cannot wait any longer for process {0}: its call waits in the kernel; process {1} (masu-tracer) restores the thread when it returns"
    )]
    Unfinished(Pid, Pid),
}

impl NotCalled {
    /// True when the process ended meanwhile.
    pub fn is_gone(&self) -> bool {
        matches!(self, NotCalled::Kernel(error) if error.is_gone())
    }
}

/// Reason of [`NotCalled::Filtered`].
fn filtered(found: &Result<Action, Errno>) -> String {
    match *found {
        Ok(action) => format!("its seccomp filter {} prctl(PR_SET_THP_DISABLE)", action.word()),
        Err(errno) => format!("its seccomp filter cannot be read: {}", crate::describe(errno)),
    }
}

/// Forbids huge pages for `pid`, or allows them again, for memory touched from now on. Existing huge pages stay.
///
/// # Errors
/// The reason why the call was not made.
pub fn forbid_huge_pages(files: &impl KernelFiles, pid: Pid, forbid: bool) -> Result<(), NotCalled> {
    let pidfd =
        rustix::process::Pid::from_raw(pid.0).ok_or(Errno::SRCH).and_then(|p| pidfd_open(p, PidfdFlags::empty()));
    let pidfd = pidfd.map_err(|errno| failed("open", pid, errno))?;
    if let Some(group) = freezer::frozen_group(files, pid) {
        return Err(NotCalled::Frozen(pid, group));
    }
    let threads = outside_of_transfers(files, pid)?;
    let arguments = [numbers::PR_SET_THP_DISABLE, u64::from(forbid), 0, 0, 0];
    let call = Call { number: libc::SYS_prctl, arguments };
    let answer = match tracer::inject(pid, &threads, pidfd.as_fd(), call) {
        Ok(answer) => answer,
        Err(no_answer) => return Err(not_called(files, pid, no_answer)),
    };
    match answer {
        0 => Ok(()),
        answer => {
            let errno = i32::try_from(-answer).ok().filter(|number| (1..4096).contains(number));
            let errno = errno.map_or(Errno::IO, Errno::from_raw_os_error);
            Err(Error::of_process("call prctl(PR_SET_THP_DISABLE) in", object(pid), errno).into())
        }
    }
}

fn not_called(files: &impl KernelFiles, pid: Pid, why: NoAnswer) -> NotCalled {
    match why {
        NoAnswer::Unfinished(tracer) => NotCalled::Unfinished(pid, tracer),
        NoAnswer::Tracer(errno) => failed("trace", pid, errno).into(),
        NoAnswer::Failed(Failed::NoStop) => match freezer::frozen_group(files, pid) {
            Some(group) => NotCalled::Frozen(pid, group),
            None => NotCalled::NoStop(pid),
        },
        NoAnswer::Failed(Failed::Filtered(found)) => NotCalled::Filtered(pid, found),
        NoAnswer::Failed(Failed::Exec) => NotCalled::Exec(pid),
        NoAnswer::Failed(Failed::Foreign | Failed::NoCall) => NotCalled::Foreign(pid),
        NoAnswer::Failed(Failed::NoInstruction) => NotCalled::NoInstruction(pid),
        NoAnswer::Failed(Failed::Ended) => failed("trace", pid, Errno::SRCH).into(),
        // The kernel answers EPERM about an exiting process, too.
        NoAnswer::Failed(Failed::Kernel(Errno::PERM)) if has_ended(files, pid) => {
            failed("trace", pid, Errno::SRCH).into()
        }
        NoAnswer::Failed(Failed::Kernel(errno)) => failed("trace", pid, errno).into(),
    }
}

/// True for a process without memory.
fn has_ended(files: &impl KernelFiles, pid: Pid) -> bool {
    maps::maps(files, pid).is_ok_and(|mappings| mappings.is_empty()) || status::status(files, pid).is_err()
}

/// Threads to try, as soon as there is one outside of a transfer.
fn outside_of_transfers(files: &impl KernelFiles, pid: Pid) -> Result<Vec<Pid>, NotCalled> {
    let end = Instant::now() + TRANSFERS_END_WITHIN;
    let mut waits = BTreeMap::new();
    for look in 1.. {
        let (mut free, mut has_better) = (Vec::new(), false);
        for thread in threads_of(files, pid)? {
            match activity(files, thread) {
                Activity::Waits => free.push(thread),
                Activity::Runs => {
                    // It may be in a transfer, between two waits for the other end.
                    let waited = status::waits(files, thread).ok();
                    let has_run_on = *waits.entry(thread).or_insert(waited) == waited;
                    if has_run_on && look >= LOOKS_AT_RUNNING {
                        free.push(thread);
                    }
                    has_better |= has_run_on && free.is_empty();
                }
                Activity::Transfers => {}
            }
            if free.len() == THREADS_MAX {
                break;
            }
        }
        // A thread without a filter may come first, and be free at the next looks.
        if !free.is_empty() && (!has_better || look >= LOOKS_AT_RUNNING) {
            return Ok(free);
        }
        if Instant::now() > end {
            break;
        }
        std::thread::sleep(LOOK_AGAIN_AFTER);
    }
    Err(NotCalled::Transfer(pid))
}

/// State of a thread, as far as a stop is concerned.
enum Activity {
    /// In a call that goes on after a stop, or stopped.
    Waits,
    /// On a processor, or about to be.
    Runs,
    /// In a call that a stop would end in part.
    Transfers,
}

fn activity(files: &impl KernelFiles, thread: Pid) -> Activity {
    match stat::stat(files, thread).map(|stat| stat.state) {
        Ok('R') => Activity::Runs,
        Ok('S') => match system_call(files, thread) {
            Ok(Some(call)) if call.may_end_in_part() => Activity::Transfers,
            Ok(None) => Activity::Runs, // by now
            Ok(Some(_)) | Err(_) => Activity::Waits,
        },
        _ => Activity::Waits,
    }
}

/// Threads that a filter may let make a call: those without one first, and of these the first thread of the process.
fn threads_of(files: &impl KernelFiles, pid: Pid) -> Result<Vec<Pid>, NotCalled> {
    let path = pid.file("task");
    let names = files.list(&path).map_err(|errno| Error::of_process("list", format_args!("/{path}"), errno))?;
    let all = names.iter().filter_map(|name| name.parse::<Pid>().ok());
    let mut threads: Vec<(bool, Pid)> = all
        .filter_map(|thread| match status::status(files, thread).ok()?.seccomp {
            Seccomp::Off | Seccomp::NotReported => Some((false, thread)),
            Seccomp::Filtered => Some((true, thread)),
            Seccomp::Strict | Seccomp::Unknown => None,
        })
        .collect();
    threads.sort_by_key(|(is_filtered, thread)| (*is_filtered, *thread != pid, *thread));
    match threads.is_empty() {
        true if names.is_empty() => Err(failed("find a thread of", pid, Errno::SRCH).into()),
        true => Err(NotCalled::Filtered(pid, Ok(Action::KillThread))),
        false => Ok(threads.into_iter().map(|(_, thread)| thread).collect()),
    }
}

fn object(pid: Pid) -> String {
    format!("process {pid}")
}

fn failed(operation: &str, pid: Pid, errno: Errno) -> Error {
    Error::of_process(operation, object(pid), errno)
}

#[cfg(test)]
mod tests;
