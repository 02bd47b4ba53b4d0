//! `pidfd_send_signal(2)` with a value: a queued real-time signal to a process, and to no later one with its number.
//!
//! `signals.rs` checks that the process would catch it: a real-time signal without a handler ends the process.
//!
//! Cost: one system call. Side effects: the signal. The kernel queues a limited number for the user of the receiving
//! process (RLIMIT_SIGPENDING), and says EAGAIN beyond that.
//!
//! Since: Linux 5.1. Needs the receiver's user, or CAP_KILL.
//!
//! Truth: pidfd_send_signal(2), sigqueue(3).

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// First fields of the kernel's siginfo_t, as sigqueue(3) fills them.
#[repr(C)]
struct Queued {
    signal: i32,
    errno: i32,
    code: i32,
    _hole: i32,
    pid: i32,
    uid: u32,
    value: u64,
}

/// Queues `signal` for the process behind `pidfd`, with `value` for its handler (`si_value.sival_ptr`).
///
/// # Errors
/// The kernel's answer: ESRCH when the process ended, EPERM for another user's process, EAGAIN when too many signals
/// are queued.
pub fn queue(pidfd: BorrowedFd<'_>, signal: i32, value: u64) -> Result<(), Errno> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let uid = rustix::process::getuid().as_raw();
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let queued = Queued { signal, errno: 0, code: libc::SI_QUEUE, _hole: 0, pid: own, uid, value };
    const { assert!(size_of::<Queued>() <= size_of::<libc::siginfo_t>()) };
    // SAFETY: siginfo_t is larger and at least as aligned, and its first fields are these (checked by a test with a
    // handler).
    unsafe { info.as_mut_ptr().cast::<Queued>().write(queued) };
    // SAFETY: the descriptor is open for the call, and the information outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info.as_ptr(), 0) };
    if done == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::Pid;

    #[test]
    fn the_value_arrives_with_the_signal() {
        let signal = libc::SIGRTMAX() - 3;
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: fills the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: as above.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        // SAFETY: as above; valid since it was filled.
        let set = unsafe { set.assume_init() };
        // Blocked in a process of its own: it would end other threads of this one.
        // SAFETY: the child makes system calls alone until it ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: the sets and the variable outlive the calls; the calls fill the variable.
            let status = unsafe {
                libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
                let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
                let own = BorrowedFd::borrow_raw(i32::try_from(own).unwrap_or(0));
                let sent = queue(own, signal, (7 << 32) + 9).is_ok();
                let got = libc::sigwaitinfo(&raw const set, info.as_mut_ptr()) == signal;
                let info = info.assume_init();
                let right = info.si_value().sival_ptr.addr() == (7 << 32) + 9 && info.si_pid() == libc::getpid();
                i32::from(!(sent && got && right && info.si_code == libc::SI_QUEUE))
            };
            // SAFETY: ends the child, and nothing of the parent's.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just forked.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }

    #[test]
    fn to_a_process_that_ended_nothing_is_sent() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pidfd = Pid(i32::try_from(child.id()).unwrap()).open().unwrap();
        child.wait().unwrap();
        assert_eq!(queue(pidfd.as_fd(), libc::SIGRTMAX(), 1), Err(Errno::SRCH));
    }
}
