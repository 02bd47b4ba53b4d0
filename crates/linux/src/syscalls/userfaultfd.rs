//! `userfaultfd(2)`: a program serves its own page faults. This file only probes the kernel's features.
//!
//! The pager inside a program (`farmem/agent`) uses it. The probe does not: the descriptor is closed, and no memory was
//! registered.
//!
//! Cost: three system calls, about 5 µs. Side effect: none.
//!
//! Since: Linux 4.3, needs CONFIG_USERFAULTFD; faults of user mode only, without privilege, 5.11; SIGBUS 4.14; write
//! protection 5.7, lifted by the kernel itself (`WP_ASYNC`) 6.7; moving frames 6.8. A seccomp filter may forbid it
//! (EPERM).
//!
//! Truth: userfaultfd(2), ioctl_userfaultfd(2); fs/userfaultfd.c.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general::{
    UFFD_API, UFFD_FEATURE_MOVE, UFFD_FEATURE_PAGEFAULT_FLAG_WP, UFFD_FEATURE_SIGBUS, UFFD_FEATURE_WP_ASYNC,
    UFFD_USER_MODE_ONLY, uffdio_api,
};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::Error;

/// The handshake: `_IOWR(0xaa, 0x3f, struct uffdio_api)`.
pub const HANDSHAKE: Opcode = opcode::read_write::<uffdio_api>(0xaa, 0x3f);

/// Features for a program's own faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Features {
    /// Available without privilege, for user-mode faults alone. Always true: the probe asks for nothing else.
    pub user_mode_only: bool,
    /// A fault is a signal in the faulting thread, and no second thread is needed.
    pub sigbus: bool,
    /// Frames can be moved within the address space instead of copied.
    pub moves: bool,
    /// Pages can be write-protected; a write to one is a fault.
    pub write_protect: bool,
    /// Writes to protected pages are recorded without a message.
    pub write_protect_async: bool,
}

impl Features {
    /// Names of the features, in the kernel's words without their `UFFD_` and `FEATURE_`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let words = [
            (self.user_mode_only, "USER_MODE_ONLY"),
            (self.sigbus, "SIGBUS"),
            (self.write_protect, "PAGEFAULT_FLAG_WP"),
            (self.write_protect_async, "WP_ASYNC"),
            (self.moves, "MOVE"),
        ];
        words.into_iter().filter(|(there, _)| *there).map(|(_, word)| word)
    }
}

/// Decodes a word of features; unknown bits are ignored.
pub const fn decode(word: u64) -> Features {
    Features {
        user_mode_only: true,
        sigbus: word & UFFD_FEATURE_SIGBUS as u64 != 0,
        moves: word & UFFD_FEATURE_MOVE as u64 != 0,
        write_protect: word & UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64 != 0,
        write_protect_async: word & UFFD_FEATURE_WP_ASYNC as u64 != 0,
    }
}

/// Features of this kernel for a program without privileges.
///
/// # Errors
/// `Unsupported` without userfaultfd, or without its user-mode-only form; `Denied` if it is forbidden.
pub fn features() -> Result<Features, Error> {
    let failed = |errno| Error::of_host("make", "a userfaultfd for user faults", errno);
    // SAFETY: a system call with numbers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::c_long::from(UFFD_USER_MODE_ONLY | FLAGS)) };
    let fd = match libc::c_int::try_from(fd) {
        // SAFETY: the call made it; it has no other owner.
        Ok(fd @ 0..) => unsafe { OwnedFd::from_raw_fd(fd) },
        _ => return Err(failed(last_errno())),
    };
    let mut api = uffdio_api { api: UFFD_API.into(), features: 0, ioctls: 0 };
    // SAFETY: the kernel reads and writes `api`, which outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(HANDSHAKE), &raw mut api) } {
        0 => Ok(decode(api.features)),
        _ => Err(failed(last_errno())),
    }
}

/// Not inherited by started programs: `O_CLOEXEC`.
const FLAGS: u32 = libc::O_CLOEXEC.cast_unsigned();

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_features_is_understood_also_with_newer_bits() {
        let none = Features {
            user_mode_only: true,
            sigbus: false,
            moves: false,
            write_protect: false,
            write_protect_async: false,
        };
        assert_eq!(decode(0), none);
        assert_eq!(decode(128), Features { sigbus: true, ..none });
        assert_eq!(decode(1), Features { write_protect: true, ..none });
        assert_eq!(decode(1 << 40 | 65536 | 32768), Features { moves: true, write_protect_async: true, ..none });
    }

    #[test]
    fn what_there_is_has_the_kernels_names() {
        let names = |word| decode(word).names().collect::<Vec<_>>().join(" ");
        assert_eq!(names(0x1_ffff), "USER_MODE_ONLY SIGBUS PAGEFAULT_FLAG_WP WP_ASYNC MOVE");
        assert_eq!(names(0x1fff), "USER_MODE_ONLY SIGBUS PAGEFAULT_FLAG_WP");
        assert_eq!(names(0), "USER_MODE_ONLY");
    }

    #[test]
    fn asking_leaves_nothing_behind() {
        let count = || std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
        // Other tests open files at the same time: many probes would show a leak.
        let before = count();
        for _ in 0..200 {
            let _ = features();
        }
        assert!(count() < before + 100);
    }
}
