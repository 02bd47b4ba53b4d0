//! `process_madvise(2)`, made by the calling process: kinds of advice, and the call.
//!
//! Callers are the proxy of `process_madvise.rs`, where costs and side effects are described, and `preallocated_page.rs`.
//!
//! Since: Linux 5.10. Truth: process_madvise(2); include/uapi/asm-generic/mman-common.h.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use units::cast;

use crate::error;

/// Advice that the kernel accepts for another process. The discriminant is the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// `MADV_COLD`: not used soon; clears accessed bits; splits a huge page if the range covers only a part of it.
    Cold = 20,
    /// `MADV_PAGEOUT`: reclaim the memory now, to swap or file.
    PageOut = 21,
    /// `MADV_COLLAPSE`: make whole windows huge now, regardless of the system-wide THP mode.
    Collapse = 25,
}

/// Gives `advice` by this process itself, and returns the number of bytes that the kernel accepted. Waits for the mmap
/// lock without a limit.
pub(crate) fn advise_directly(pidfd: BorrowedFd<'_>, vectors: &[libc::iovec], advice: usize) -> Result<u64, Errno> {
    // SAFETY: `vectors` outlives the call and holds `len` initialised records; the addresses in them belong to the
    // process behind `pidfd`, are only read by the kernel there, and are never turned into a reference here.
    let answer = unsafe {
        libc::syscall(libc::SYS_process_madvise, pidfd.as_raw_fd(), vectors.as_ptr(), vectors.len(), advice, 0u32)
    };
    u64::try_from(answer).map_err(|_| error::errno(std::io::Error::last_os_error()))
}

/// The kernel's record of a range.
pub(crate) fn vector(start: u64, length: u64) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::without_provenance_mut(cast::index(start)), iov_len: cast::index(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_headers() {
        assert_eq!(Advice::Cold as i32, libc::MADV_COLD);
        assert_eq!(Advice::PageOut as i32, libc::MADV_PAGEOUT);
        assert_eq!(Advice::Collapse as u32, linux_raw_sys::general::MADV_COLLAPSE);
    }
}
