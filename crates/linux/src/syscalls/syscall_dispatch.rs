//! Syscall User Dispatch, `prctl(PR_SET_SYSCALL_USER_DISPATCH)`: turns a thread's system calls into signals. This file
//! only probes for it.
//!
//! The pager inside a program (`farmem/agent`) uses it to see calls. The probe enables it on this thread with a
//! selector that lets all calls through, and disables it again.
//!
//! Cost: two system calls. Side effect: none; for the time between the two, calls of this thread take some ns more.
//!
//! Since: Linux 5.11, x86 (others 6.17 and later, with the generic entry code). No privilege. A seccomp filter may
//! forbid it.
//!
//! Truth: Documentation/admin-guide/syscall-user-dispatch.rst; kernel/entry/syscall_user_dispatch.c.

use rustix::io::Errno;

use crate::Error;

/// The numbers, from the kernel's headers (`cargo xtask header-check`).
pub mod numbers {
    /// The operation of prctl(2).
    pub const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
    /// Disables dispatch: calls are no longer signals.
    pub const PR_SYS_DISPATCH_OFF: u64 = 0;
    /// Turns all calls into signals, except from a range of text, as the selector says.
    pub const PR_SYS_DISPATCH_ON: u64 = 1;
}

/// Selector that the kernel reads at each call: 0 lets it through. Never changed.
static LET_THROUGH: u8 = 0;

/// True if this thread could use the dispatch.
///
/// # Errors
/// `Denied` if it is forbidden; the kernel's answer, except the one for an unknown operation.
pub fn is_there() -> Result<bool, Error> {
    let nothing: libc::c_ulong = 0;
    // SAFETY: the kernel reads one byte at an address that stays valid for ever, from here to the next call only; it
    // holds "let through", so no call of this thread becomes a signal. The second call has no address.
    let (on, errno) = unsafe {
        let selector = &raw const LET_THROUGH;
        let on =
            libc::prctl(numbers::PR_SET_SYSCALL_USER_DISPATCH, numbers::PR_SYS_DISPATCH_ON, nothing, nothing, selector);
        let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
        if on == 0 {
            libc::prctl(numbers::PR_SET_SYSCALL_USER_DISPATCH, numbers::PR_SYS_DISPATCH_OFF, nothing, nothing, nothing);
        }
        (on, errno)
    };
    match (on, errno) {
        (0, _) => Ok(true),
        (_, Errno::INVAL | Errno::NOSYS) => Ok(false),
        (_, errno) => Err(Error::of_host("switch on", "Syscall User Dispatch", errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_twice_gives_the_same_answer_and_calls_go_on() {
        let first = is_there().map_err(|error| error.to_string());
        assert_eq!(is_there().map_err(|error| error.to_string()), first);
        assert!(std::fs::read_dir("/proc/self/task").is_ok());
    }
}
