//! Detector of signals that came to the whole process group.
//!
//! A process between a program and its parent must pass on the signals that came to it alone. It must not pass on
//! signals to the group, since the program has them already; a second Ctrl-C means something else to many programs.
//! The kernel does not distinguish the two. A group member that is never signalled by itself gets only group signals,
//! and this process is such a member. It does nothing else, holds no file but a pipe, and dies with its parent.
//! Signals stay pending in it, visible in its `status`, and it consumes one on request. So a signal sent three times
//! before a read counts once, as in every process.
//!
//! Cost: one fork. Side effect: one more process in the group, called `masu-signals`.
//!
//! Since: always. Truth: kill(2), prctl(2) on PR_SET_PDEATHSIG, sigwaitinfo(2), signal-safety(7).

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::{Rooted, signals};

/// The process. Ends when it is dropped.
#[derive(Debug)]
pub struct SignalDetector {
    pid: Pid,
    /// Numbers of signals to consume.
    requests: OwnedFd,
}

/// Interval between two reads of its pending signals.
const STEP: Duration = Duration::from_micros(200);

impl SignalDetector {
    /// Starts a process that watches `signals` (their numbers).
    ///
    /// # Errors
    /// The kernel's answer if there can be no more processes or files.
    ///
    /// # Panics
    /// If this process has other threads: only a process with one can be forked and go on in ordinary code.
    pub fn start(signals: &[i32]) -> Result<SignalDetector, Errno> {
        let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        assert_eq!(threads, 1, "called before any thread is started");
        let (orders, requests) = pipe_with(PipeFlags::CLOEXEC)?;
        // Blocked before the fork, so that none ends the child before it has begun. The parent unblocks them again.
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: a variable of ours, which this call fills.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: filled by the call above.
        let mut set = unsafe { set.assume_init() };
        for signal in signals {
            // SAFETY: a filled set; a number that is no signal is refused and changes nothing.
            unsafe { libc::sigaddset(&raw mut set, *signal) };
        }
        let mut before = set;
        // SAFETY: two filled sets of ours.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
        let parent = rustix::process::getpid();
        // SAFETY: there is one thread; the child runs `watch`, which only makes system calls, and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            watch(orders.as_raw_fd(), parent);
        }
        let error = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
        // SAFETY: as above.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
        let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(error)?;
        Ok(SignalDetector { pid, requests })
    }

    /// True if `signal` came to the whole group just now. Waits at most `at_most`; a signal not seen by then came to
    /// us alone.
    pub fn saw(&self, signal: i32, at_most: Duration) -> bool {
        if !self.until(signal, true, at_most) {
            return false;
        }
        if let Ok(order) = u8::try_from(signal) {
            // It fails to consume the signal only if it has ended, and then the signal will not be seen again.
            let _ = rustix::io::write(&self.requests, &[order]);
        }
        self.until(signal, false, at_most);
        true
    }

    /// Waits until the signal is pending in it, or no longer pending.
    fn until(&self, signal: i32, waits: bool, at_most: Duration) -> bool {
        let pid = crate::Pid(self.pid.as_raw_nonzero().get());
        let end = Instant::now() + at_most;
        loop {
            match signals::pending(&Rooted::host(), pid) {
                Ok(pending) if pending.contains(signal) == waits => return true,
                Ok(_) if Instant::now() < end => std::thread::sleep(STEP),
                Ok(_) | Err(_) => return false,
            }
        }
    }
}

impl Drop for SignalDetector {
    fn drop(&mut self) {
        // It is our child and has not been waited for, so that the number is still its own.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

/// Main function of the child: system calls only, for ever.
fn watch(orders: i32, parent: Pid) -> ! {
    // SAFETY: system calls with numbers and with data that outlives them; `orders` is moved to 0 before all else is closed,
    // and nothing else of this copy of the process is used any more.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"masu-signals".as_ptr());
        libc::dup2(orders, 0);
        libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
        // System calls only. It needs no capability, and works with them as without.
        let _ = crate::capabilities::restrict_to(crate::capabilities::Capabilities(0));
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut order = 0u8;
        while libc::getppid() == parent.as_raw_nonzero().get() && libc::read(0, (&raw mut order).cast(), 1) == 1 {
            let mut one = std::mem::zeroed();
            libc::sigemptyset(&raw mut one);
            libc::sigaddset(&raw mut one, i32::from(order));
            libc::sigtimedwait(&raw const one, std::ptr::null_mut(), &raw const at_once);
        }
        libc::_exit(0)
    }
}
