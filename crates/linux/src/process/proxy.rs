//! `fork(2)` and `unix(7)`: calls that may wait for the mmap lock of another process, made by a proxy process until a
//! deadline.
//!
//! A process can hold its own mmap lock in the kernel for an unlimited time: a second process reads its memory
//! through `/proc/PID/mem`, at a mapped file of a silent FUSE server. Reading its maps, clearing its accessed bits,
//! advising it and copying its memory then wait, some of them also against SIGKILL. A thread of masu in such a call
//! could not even end. A proxy can be left behind.
//!
//! The proxy has one descriptor, a socket, and memory shared with masu. A request names a function of masu's own
//! code, which the fork has at the same address. Files are passed with the messages. A call about masu itself is made
//! without a proxy. A proxy runs at the nice value of the calling thread, and its processor time counts as that
//! thread's (`cpu_time.rs`).
//!
//! Cost: about 10 µs a call. Memory: 2 MiB, where it is touched, for each thread that calls at the same time. Side
//! effect: a proxy that waits in the kernel stays until the kernel lets it end.
//!
//! Since: close_range Linux 5.9. Truth: fork(2), cmsg(3); `mmap_read_lock` in fs/proc/task_mmu.c, mm/madvise.c,
//! mm/process_vm_access.c.

mod waits;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{getpriority_process, setpriority_process};
use units::cast;

use crate::forked::Forked;
use crate::{Pid, cpu_time};
use waits::Waits;

/// Maximum bytes of arguments and results: a window of 2 MiB, and 1024 addresses.
pub(crate) const BYTES: usize = (2 << 20) + 1024 * 8;
/// Duration below which the progress of a call is not checked.
const USUAL: Duration = Duration::from_millis(100);
/// Time without progress after which a proxy is left.
const STALLED: Duration = Duration::from_secs(3);
/// Maximum time for a call that makes progress.
const LONGEST: Duration = Duration::from_secs(60);

/// Function that makes the call.
pub(crate) type Step = fn(&mut Call<'_>) -> Result<u64, Errno>;

/// One request, as passed to the step.
pub(crate) struct Call<'c> {
    /// Arguments of the caller.
    pub numbers: [u64; 4],
    /// File of the caller.
    pub file: Option<BorrowedFd<'c>>,
    /// Memory shared with the caller.
    pub bytes: &'c mut [u8],
    /// File for the caller.
    pub opened: Option<OwnedFd>,
}

/// Answer of a step.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Value that the step returned.
    pub value: u64,
    /// File that the step opened.
    pub opened: Option<OwnedFd>,
}

/// Makes calls for one thread at a time.
#[derive(Debug)]
pub(crate) struct Proxy {
    memory: Memory,
    /// `None` makes the calls in this process.
    child: Option<(Forked, OwnedFd)>,
    /// Process that started it. A fork of this process has the same socket, and must not use it.
    starter: Pid,
    /// Time that the calls waited, without their processor time.
    waited: Duration,
    /// Left, and not known to have ended.
    stalled: bool,
}

/// Idle proxies, for other processes and for masu itself.
static IDLE: Mutex<[Vec<Proxy>; 2]> = Mutex::new([Vec::new(), Vec::new()]);
static WAITS: Mutex<Waits> = Mutex::new(Waits::new());
/// Proxies that were left, each with the owner of its target process.
static LEFT: Mutex<Vec<(Option<u32>, Proxy)>> = Mutex::new(Vec::new());

/// Runs `work`, which makes calls about `pid`.
///
/// # Errors
/// Errors of `work`; TIMEDOUT if a call makes no progress, or is skipped because earlier ones made none; the kernel's
/// answer if there is no process or descriptor left.
pub(crate) fn about<T>(pid: Pid, work: impl FnOnce(&mut Proxy) -> Result<T, Errno>) -> Result<T, Errno> {
    let own = Pid::own();
    let is_own = pid == own;
    let now = Instant::now();
    let mut owner = None;
    if !is_own && (left_behind(|_| true) > 0 || !lock(&WAITS).is_empty(now)) {
        owner = owner_of(pid);
        let left = left_behind(|of| of == owner);
        if !lock(&WAITS).admits(pid, owner, left, now) {
            return Err(Errno::TIMEDOUT);
        }
    }
    let mut proxy = Proxy::idle(is_own, own).map_or_else(|| Proxy::start(is_own, own), Ok)?;
    proxy.waited = Duration::ZERO;
    let done = work(&mut proxy);
    if proxy.stalled || proxy.waited > waits::UNNOTICED {
        owner = owner.or_else(|| owner_of(pid));
        lock(&WAITS).note(pid, owner, proxy.waited, proxy.stalled, Instant::now());
    }
    if proxy.stalled {
        lock(&LEFT).push((owner, proxy));
    } else {
        lock(&IDLE)[usize::from(is_own)].push(proxy);
    }
    done
}

/// Number of proxies that were left and still exist, for these owners.
fn left_behind(of: impl Fn(Option<u32>) -> bool) -> usize {
    let mut left = lock(&LEFT);
    left.retain_mut(|(_, proxy)| {
        proxy.stalled = proxy.child.as_ref().is_some_and(|(child, _)| !child.has_ended());
        proxy.stalled
    });
    left.iter().filter(|(owner, _)| of(*owner)).count()
}

/// Ends all idle proxies. Later proxies get the rights and the memory that masu has then.
pub fn retire() {
    let idle = std::mem::take(&mut *lock(&IDLE));
    drop(idle);
}

/// Opens `path`, a file of `pid`.
///
/// # Errors
/// As [`about`].
pub(crate) fn open(pid: Pid, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    fn step(call: &mut Call<'_>) -> Result<u64, Errno> {
        call.opened = Some(opened(call)?);
        Ok(0)
    }
    about(pid, |proxy| {
        let numbers = proxy.name(path, flags)?;
        proxy.call(step, numbers, None)?.opened.ok_or(Errno::IO)
    })
}

/// Reads the whole of `path`, a file of `pid`.
///
/// # Errors
/// As [`about`].
pub(crate) fn read(pid: Pid, path: &str) -> Result<Vec<u8>, Errno> {
    fn fill(file: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<usize, Errno> {
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::io::read(file, &mut bytes[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(filled)
    }
    fn first(call: &mut Call<'_>) -> Result<u64, Errno> {
        let file = opened(call)?;
        let filled = fill(file.as_fd(), call.bytes)?;
        call.opened = (filled == BYTES).then_some(file);
        Ok(filled as u64)
    }
    fn next(call: &mut Call<'_>) -> Result<u64, Errno> {
        fill(call.file.ok_or(Errno::BADF)?, call.bytes).map(|filled| filled as u64)
    }
    about(pid, |proxy| {
        let numbers = proxy.name(path, OFlags::RDONLY)?;
        let Answer { value, opened } = proxy.call(first, numbers, None)?;
        let mut filled = cast::index(value);
        let mut whole = proxy.bytes()[..filled].to_vec();
        while let Some(file) = opened.as_ref().filter(|_| filled == BYTES) {
            let more = proxy.call(next, [0; 4], Some(file.as_fd()))?.value;
            filled = cast::index(more);
            whole.extend_from_slice(&proxy.bytes()[..filled]);
        }
        Ok(whole)
    })
}

/// Writes `value` to `path`, a file of `pid`, with one `write(2)`.
///
/// # Errors
/// As [`about`].
pub(crate) fn write(pid: Pid, path: &str, value: &str) -> Result<usize, Errno> {
    fn step(call: &mut Call<'_>) -> Result<u64, Errno> {
        let file = opened(call)?;
        let length = cast::index(call.numbers[2]);
        let value = call.bytes.get(NAME_MAX..NAME_MAX + length).ok_or(Errno::TOOBIG)?;
        rustix::io::write(file, value).map(|written| written as u64)
    }
    about(pid, |proxy| {
        let [name, flags, ..] = proxy.name(path, OFlags::WRONLY)?;
        let room = proxy.bytes().get_mut(NAME_MAX..NAME_MAX + value.len()).ok_or(Errno::TOOBIG)?;
        room.copy_from_slice(value.as_bytes());
        let answer = proxy.call(step, [name, flags, value.len() as u64, 0], None)?;
        Ok(cast::index(answer.value))
    })
}

/// Opens the file that [`Proxy::name`] put into the bytes.
pub(crate) fn opened(call: &Call<'_>) -> Result<OwnedFd, Errno> {
    let length = cast::index(call.numbers[0]);
    let name = call.bytes.get(..length.min(NAME_MAX)).unwrap_or_default();
    let flags = OFlags::from_bits_retain(cast::fits(call.numbers[1]));
    rustix::fs::open(std::path::Path::new(std::ffi::OsStr::from_bytes(name)), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Longest name that [`Proxy::name`] takes.
const NAME_MAX: usize = 4096;

impl Proxy {
    /// Puts the name of a file into the bytes, for [`opened`].
    pub(crate) fn name(&mut self, path: &str, flags: OFlags) -> Result<[u64; 4], Errno> {
        let room = self.bytes().get_mut(..path.len()).ok_or(Errno::NAMETOOLONG)?;
        room.copy_from_slice(path.as_bytes());
        Ok([path.len() as u64, u64::from(flags.bits()), 0, 0])
    }

    fn idle(is_own: bool, own: Pid) -> Option<Proxy> {
        let found = lock(&IDLE)[usize::from(is_own)].pop()?;
        if found.starter == own {
            return Some(found);
        }
        std::mem::forget(found); // belongs to the starter; its child is not ours
        None
    }

    fn start(is_own: bool, own: Pid) -> Result<Proxy, Errno> {
        let memory = Memory::map()?;
        let child = if is_own {
            None
        } else {
            let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            let start = memory.start;
            let child = Forked::start(c"masu-proxy", theirs.as_fd(), |socket, _| serve(socket, Memory { start }))?;
            Some((child, ours))
        };
        Ok(Proxy { memory, child, starter: own, waited: Duration::ZERO, stalled: false })
    }

    /// Bytes that both sides see.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // A proxy that was left may still write there.
        if self.stalled { &mut [] } else { self.memory.bytes() }
    }

    /// Runs `step` in the proxy.
    ///
    /// # Errors
    /// Errors of the step; TIMEDOUT if it makes no progress; IO if the proxy was killed.
    pub(crate) fn call(
        &mut self,
        step: Step,
        numbers: [u64; 4],
        file: Option<BorrowedFd<'_>>,
    ) -> Result<Answer, Errno> {
        if self.stalled {
            return Err(Errno::TIMEDOUT);
        }
        let Some((child, socket)) = &self.child else {
            let mut call = Call { numbers, file, bytes: self.memory.bytes(), opened: None };
            let value = step(&mut call)?;
            return Ok(Answer { value, opened: call.opened });
        };
        let begun = Instant::now();
        let nice = getpriority_process(None)?;
        // SAFETY: the header is in memory that stays mapped while `self` lives, aligned, and the proxy waits for the
        // message below.
        unsafe { self.memory.header().write(Request { step, numbers, nice }) };
        let answered = send(socket.as_fd(), &[0], file).and_then(|()| wait(child, socket.as_fd(), begun));
        let Ok(Reply { result, waited, ran, opened }) = answered else {
            self.stalled = true;
            child.kill();
            self.waited += begun.elapsed();
            return Err(answered.err().unwrap_or(Errno::IO));
        };
        self.waited += Duration::from_nanos(waited);
        cpu_time::add(ran);
        match u64::try_from(result) {
            Ok(value) => Ok(Answer { value, opened }),
            Err(_) => Err(Errno::from_raw_os_error(cast::fits(-result))),
        }
    }
}

#[derive(Clone, Copy)]
struct Request {
    step: Step,
    numbers: [u64; 4],
    nice: i32,
}

struct Reply {
    /// Value of the step, or a negative errno.
    result: i64,
    /// Nanoseconds during which the step did not run.
    waited: u64,
    /// Nanoseconds that the proxy ran since its last reply.
    ran: u64,
    opened: Option<OwnedFd>,
}

fn wait(child: &Forked, socket: BorrowedFd<'_>, begun: Instant) -> Result<Reply, Errno> {
    let mut before = None;
    let mut since = Instant::now();
    loop {
        let most = if before.is_none() { USUAL } else { STALLED };
        let left = Timespec::try_from(most.saturating_sub(since.elapsed())).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left)) {
            Ok(0) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
            Ok(_) => {
                let mut words = [0; 24];
                let (bytes, opened) = receive(socket, &mut words)?;
                if bytes != words.len() {
                    return Err(Errno::IO); // killed
                }
                let (words, _) = words.as_chunks::<8>();
                let [result, waited, ran] = [0, 1, 2].map(|nth| i64::from_ne_bytes(words[nth]));
                return Ok(Reply { result, waited: waited.unsigned_abs(), ran: ran.unsigned_abs(), opened });
            }
        }
        let now = progress(child.pid());
        if now.is_none() || now == before || begun.elapsed() > LONGEST {
            tracing::debug!(proxy = %child.pid(), "call left without an answer");
            return Err(Errno::TIMEDOUT);
        }
        (before, since) = (now, Instant::now());
    }
}

/// Processor time and time slices of the proxy; unchanged while it waits in the kernel. `None` if unreadable.
fn progress(proxy: Pid) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{proxy}/schedstat")).ok()
}

fn owner_of(pid: Pid) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|about| about.uid())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Main function of the proxy: it ends with the socket.
fn serve(socket: BorrowedFd<'_>, mut memory: Memory) {
    let nanoseconds = |time: Duration| cast::saturated::<_, i64>(time.as_nanos());
    let mut own_nice = getpriority_process(None).unwrap_or(0);
    let mut reported = cpu_time::of_process(); // includes time already counted by the starter
    loop {
        let Ok((1, file)) = receive(socket, &mut [0]) else { return };
        // SAFETY: masu wrote a whole request before its message and waits for the answer; the fork has the same
        // functions at the same addresses.
        let Request { step, numbers, nice } = unsafe { memory.header().read() };
        if nice != own_nice && setpriority_process(None, nice).is_ok() {
            own_nice = nice;
        }
        let (begun, before) = (Instant::now(), cpu_time::of_process());
        let mut call = Call { numbers, file: file.as_ref().map(AsFd::as_fd), bytes: memory.bytes(), opened: None };
        let result = match step(&mut call) {
            Ok(value) => cast::fits(value),
            Err(errno) => -i64::from(errno.raw_os_error()),
        };
        let opened = call.opened;
        let ran = cpu_time::of_process();
        let waited = begun.elapsed().saturating_sub(ran - before);
        let words = [result, nanoseconds(waited), nanoseconds(ran - reported)].map(i64::to_ne_bytes);
        reported = ran;
        if send(socket, words.as_flattened(), opened.as_ref().map(AsFd::as_fd)).is_err() {
            return;
        }
    }
}

fn send(socket: BorrowedFd<'_>, message: &[u8], file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL).map(drop)
}

fn receive(socket: BorrowedFd<'_>, message: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(message)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((got.bytes, rights))
}

/// Memory of masu and one proxy: a page with the request, then the bytes.
///
/// # Safety
/// `start` is a shared mapping of a page and [`BYTES`], made by [`Memory::map`]. Only one side uses it at a time: the
/// proxy between a request and its answer, masu otherwise. It stays mapped in masu while a proxy that was left lives,
/// since that proxy may still write.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
}

// SAFETY: the memory belongs to the owner of the struct.
unsafe impl Send for Memory {}

const HEADER: usize = 4096;

impl Memory {
    fn map() -> Result<Memory, Errno> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: new memory, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(null_mut(), HEADER + BYTES, access, flags) }?;
        NonNull::new(start.cast()).map(|start| Memory { start }).ok_or(Errno::NOMEM)
    }

    fn header(&self) -> *mut Request {
        self.start.as_ptr().cast()
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: see the struct; the borrow of `self` excludes requests while the slice is used.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(HEADER), BYTES) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if self.stalled || self.starter != Pid::own() {
            return;
        }
        if let Some((child, socket)) = self.child.take() {
            drop(socket); // ends the proxy, which is waited for
            drop(child);
        }
        // SAFETY: the whole mapping; no proxy has it any more, and no slice is borrowed. A failure leaves it mapped.
        let _ = unsafe { munmap(self.memory.start.as_ptr().cast(), HEADER + BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::quiet_process::QuietProcess;

    fn twice(call: &mut Call<'_>) -> Result<u64, Errno> {
        call.bytes[..3].reverse();
        if call.numbers[1] == 1 {
            return Err(Errno::XDEV);
        }
        call.opened = call.file.map(|file| file.try_clone_to_owned()).transpose().map_err(crate::error::errno)?;
        Ok(call.numbers[0] * 2)
    }

    fn own_number(_: &mut Call<'_>) -> Result<u64, Errno> {
        Ok(u64::from(std::process::id()))
    }

    fn sleeps(_: &mut Call<'_>) -> Result<u64, Errno> {
        std::thread::sleep(Duration::from_secs(600));
        Ok(0)
    }

    fn works(call: &mut Call<'_>) -> Result<u64, Errno> {
        let end = Instant::now() + STALLED * 2;
        while Instant::now() < end {
            call.numbers[0] = call.numbers[0].wrapping_add(1);
        }
        Ok(5)
    }

    fn own_nice(_: &mut Call<'_>) -> Result<u64, Errno> {
        Ok(u64::try_from(getpriority_process(None)? + 20).unwrap())
    }

    #[test]
    fn a_call_runs_at_the_nice_value_of_its_caller_and_its_time_is_the_callers() {
        fn works(_: &mut Call<'_>) -> Result<u64, Errno> {
            let end = cpu_time::of_process() + Duration::from_millis(50);
            while cpu_time::of_process() < end {}
            Ok(0)
        }
        let quiet = QuietProcess::start();
        let nice = || about(quiet.pid(), |proxy| proxy.call(own_nice, [0; 4], None)).unwrap().value;
        std::thread::scope(|threads| {
            let at_14 = threads.spawn(|| {
                setpriority_process(None, 14).unwrap();
                let before = (cpu_time::of_thread(), cpu_time::of_process());
                about(quiet.pid(), |proxy| proxy.call(works, [0; 4], None)).unwrap();
                assert!(cpu_time::of_thread() - before.0 >= Duration::from_millis(50));
                assert!(cpu_time::of_process() - before.1 >= Duration::from_millis(50));
                nice()
            });
            assert_eq!(at_14.join().unwrap(), 34);
        });
        assert_eq!(nice(), u64::try_from(getpriority_process(None).unwrap() + 20).unwrap());
    }

    #[test]
    fn numbers_bytes_files_and_errors_come_and_go() {
        let quiet = QuietProcess::start();
        for pid in [quiet.pid(), Pid::own()] {
            about(pid, |proxy| {
                proxy.bytes()[..3].copy_from_slice(b"abc");
                let file = File::open("/dev/zero").unwrap();
                let answer = proxy.call(twice, [21, 0, 0, 0], Some(file.as_fd())).unwrap();
                assert_eq!((answer.value, &proxy.bytes()[..3]), (42, &b"cba"[..]));
                let mut word = [1; 4];
                assert_eq!(rustix::io::read(answer.opened.unwrap(), &mut word), Ok(4));
                assert_eq!(word, [0; 4]);
                assert_eq!(proxy.call(twice, [1, 1, 0, 0], None).unwrap_err(), Errno::XDEV);
                let maker = proxy.call(own_number, [0; 4], None).unwrap().value;
                assert_eq!(maker == u64::from(std::process::id()), pid == Pid::own());
                Ok(())
            })
            .unwrap();
        }
    }

    #[test]
    fn one_that_is_not_needed_ends() {
        let proxy = Proxy::start(false, Pid::own()).unwrap();
        let pid = proxy.child.as_ref().unwrap().0.pid();
        drop(proxy);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_call_that_stalls_is_left_and_one_that_works_is_waited_for() {
        let (quiet, other) = (QuietProcess::start(), QuietProcess::start());
        let stalled = about(quiet.pid(), |proxy| {
            let first = proxy.call(sleeps, [0; 4], None).unwrap_err();
            assert_eq!(proxy.call(own_number, [0; 4], None).unwrap_err(), Errno::TIMEDOUT, "left");
            assert!(proxy.bytes().is_empty());
            Err::<(), _>(first)
        });
        assert_eq!(stalled, Err(Errno::TIMEDOUT));
        assert_eq!(about(quiet.pid(), |_| Ok(())), Err(Errno::TIMEDOUT), "not asked again at once");
        let end = Instant::now() + Duration::from_secs(20);
        while left_behind(|_| true) > 0 {
            assert!(Instant::now() < end, "it was killed, and sleeps where the kernel lets it end");
        }
        let worked = about(other.pid(), |proxy| proxy.call(works, [0; 4], None));
        assert_eq!(worked.unwrap().value, 5);
    }
}
