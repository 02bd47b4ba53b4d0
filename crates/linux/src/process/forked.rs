//! `fork(2)`: a child process for a step that the kernel may never end, or that must go on when masu ends.
//!
//! A page fault on a file whose server does not answer cannot be interrupted, and neither can a wait for a thread
//! that does not stop, not even by SIGKILL. So such a step runs in a fork: in a session of its own, with all signals
//! blocked, and with no descriptor but its pipe and one more. masu waits for its answer until a deadline.
//!
//! Cost: some 100 µs, more for a masu with much memory. Side effect: the process stays while the kernel keeps it.
//!
//! Since: close_range Linux 5.9. Truth: fork(2), signal-safety(7), setsid(2).

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use units::cast;

use crate::Pid;

/// A running fork. Dropping it waits briefly for its end, and leaves one that does not end.
#[derive(Debug)]
pub(crate) struct Forked {
    pid: Pid,
    answers: File,
}

impl Forked {
    /// Forks. The child does `work` with its copy of `passed`, and sends bytes by the function; [`Forked::read`]
    /// receives them.
    pub(crate) fn start(
        name: &CStr,
        passed: BorrowedFd<'_>,
        work: impl FnOnce(BorrowedFd<'_>, &dyn Fn(&[u8])),
    ) -> Result<Forked, Errno> {
        let (answers, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the child has one thread. It allocates, which the C library allows after a fork (its allocator is
        // made ready in the child), and makes system calls; it takes no lock of ours, and ends by _exit.
        match unsafe { libc::fork() } {
            0 => child_main(name, pipe.as_raw_fd(), passed.as_raw_fd(), work),
            -1 => Err(last_errno()),
            pid => Ok(Forked { pid: Pid(pid), answers: File::from(answers) }),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Fills `into` with the next bytes of the child. ETIMEDOUT at the deadline, EIO if it ended without an answer.
    pub(crate) fn read(&mut self, into: &mut [u8], deadline: Instant) -> Result<(), Errno> {
        let mut filled = 0;
        while filled < into.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: cast::saturated(left.as_secs()), tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(Errno::TIMEDOUT),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
                Ok(_) => {}
            }
            match self.answers.read(&mut into[filled..]) {
                Ok(0) => return Err(Errno::IO),
                Ok(more) => filled += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(crate::error::errno(error)),
            }
        }
        Ok(())
    }

    /// Kills it, as far as the kernel allows.
    pub(crate) fn kill(&self) {
        // SAFETY: two numbers; it is our child and was not waited for.
        unsafe { libc::kill(self.pid.0, libc::SIGKILL) };
    }

    /// True if the kernel has let it end. It is still to be dropped.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(pid) = rustix::process::Pid::from_raw(self.pid.0) else { return true };
        let seen = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT);
        !matches!(seen, Ok(None))
    }

    /// Lets it finish, without a wait for it.
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        for _ in 0..200 {
            // SAFETY: a number, and no status is asked for.
            if unsafe { libc::waitpid(self.pid.0, std::ptr::null_mut(), libc::WNOHANG) } != 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Main function of the child.
fn child_main(name: &CStr, pipe: i32, passed: i32, work: impl FnOnce(BorrowedFd<'_>, &dyn Fn(&[u8]))) -> ! {
    // SAFETY: system calls with numbers and with data that outlives them. Descriptor 0 becomes the pipe, 1 the passed
    // one; everything else is closed, and nothing else of this copy of masu is used any more.
    let (pipe, passed) = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        // 0 to 2 are open in every Rust program, so neither of the two is among them.
        let moved = libc::dup2(pipe, 0) == 0 && libc::dup2(passed, 1) == 1;
        // Descriptor 2 is occupied, so that a panic message reaches no file opened later.
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
        let moved = moved && null >= 0 && libc::dup2(null, 2) == 2;
        if !moved || libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) != 0 {
            libc::_exit(1);
        }
        (BorrowedFd::borrow_raw(0), BorrowedFd::borrow_raw(1))
    };
    let send = |mut bytes: &[u8]| {
        // A masu that has ended needs no answer.
        while let Ok(written @ 1..) = rustix::io::write(pipe, bytes) {
            bytes = &bytes[written..];
        }
    };
    // A panic must not unwind into this copy of masu. Its message is discarded.
    let _ = catch_unwind(AssertUnwindSafe(|| work(passed, &send)));
    // SAFETY: ends this process.
    unsafe { libc::_exit(0) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn the_child_answers_and_its_silence_ends_at_the_deadline() {
        let mut child = Forked::start(c"test", null().as_fd(), |_, say| say(b"four")).unwrap();
        let mut answer = [0; 4];
        let soon = || Instant::now() + Duration::from_secs(20);
        assert_eq!((child.read(&mut answer, soon()), &answer), (Ok(()), b"four"));
        assert_eq!(child.read(&mut answer, soon()), Err(Errno::IO), "it ended");
        let mut silent =
            Forked::start(c"test", null().as_fd(), |_, _| std::thread::sleep(Duration::from_secs(600))).unwrap();
        assert_eq!(silent.read(&mut answer, Instant::now() + Duration::from_millis(10)), Err(Errno::TIMEDOUT));
        assert!(!silent.has_ended());
        silent.kill();
        assert_eq!(silent.read(&mut answer, soon()), Err(Errno::IO), "killed");
        let end = soon();
        while !silent.has_ended() {
            assert!(Instant::now() < end);
        }
    }

    #[test]
    fn a_child_that_panics_says_nothing() {
        let mut child = Forked::start(c"test", null().as_fd(), |_, _| panic!("test")).unwrap();
        assert_eq!(child.read(&mut [0], Instant::now() + Duration::from_secs(20)), Err(Errno::IO));
    }
}
