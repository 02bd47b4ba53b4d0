//! Limits of the program's process (getrlimit(2)): they are the program's, and the library takes as little of them as
//! possible.

use farmem_engine::handshake::Limits;

use crate::kernel::{call, int};
use crate::signals::{SET_BYTES, bit};

/// Descriptors of the library lie from this number on, where the limit is higher.
const HIGH: u64 = 60_000;

/// Numbers that the library needs at most.
const NEEDED: u64 = 8;

/// Limits that masu asks for.
pub fn own() -> Limits {
    let soft = |resource| get(resource).map_or(u64::MAX, |limit| limit.rlim_cur);
    Limits { address_space: soft(libc::RLIMIT_AS), data: soft(libc::RLIMIT_DATA), file_size: soft(libc::RLIMIT_FSIZE) }
}

fn get(resource: libc::__rlimit_resource_t) -> Option<libc::rlimit64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes our own memory.
    let answer = unsafe { call!(libc::SYS_prlimit64, 0, resource, 0, (&raw mut limit).expose_provenance()) };
    (answer == 0).then_some(limit)
}

fn set(resource: libc::__rlimit_resource_t, limit: libc::rlimit64) -> bool {
    // SAFETY: reads our own memory.
    unsafe { call!(libc::SYS_prlimit64, 0, resource, (&raw const limit).expose_provenance(), 0) == 0 }
}

/// Takes back the SIGXFSZ of a write beyond the limit of file sizes, which the kernel sent to this thread. All signals
/// are blocked.
pub fn drop_size_signal() {
    let (set, now) = (bit(libc::SIGXFSZ), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: reads our own set and time.
    unsafe { call!(libc::SYS_rt_sigtimedwait, (&raw const set).addr(), 0, (&raw const now).addr(), SET_BYTES) };
}

/// The limit of open files (RLIMIT_NOFILE), raised while the library makes its descriptors. Descriptors with numbers
/// from the program's limit on stay open when the limit is back, and do not count.
pub struct Files {
    before: libc::rlimit64,
    raised: bool,
}

impl Files {
    /// Raises the limit, where it is low and may be raised.
    pub fn raise() -> Files {
        let none = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
        let before = get(libc::RLIMIT_NOFILE).unwrap_or(none);
        if before.rlim_cur >= HIGH + NEEDED {
            return Files { before, raised: false };
        }
        let wanted = before.rlim_cur + NEEDED;
        // Beyond the hard limit: with CAP_SYS_RESOURCE only.
        let raised =
            set(libc::RLIMIT_NOFILE, libc::rlimit64 { rlim_cur: wanted, rlim_max: before.rlim_max.max(wanted) });
        Files { before, raised }
    }

    /// Moves a descriptor away from the numbers that programs use, and out of the program's limit where possible. A
    /// negative number is no descriptor.
    pub fn out_of_the_way(&self, fd: i32) -> i32 {
        if fd < 0 {
            return fd;
        }
        let limit = self.before.rlim_cur;
        let least = if self.raised { limit } else { HIGH.min(limit.saturating_sub(1)) };
        // Where the highest numbers are taken, the next below.
        for least in (least.saturating_sub(NEEDED)..=least).rev() {
            // SAFETY: makes a second descriptor.
            let high = unsafe { call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, least) };
            if high >= 0 {
                // SAFETY: our own.
                unsafe { call!(libc::SYS_close, fd) };
                return int(high.cast_unsigned());
            }
        }
        fd
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.raised {
            set(libc::RLIMIT_NOFILE, self.before);
        }
    }
}
