//! `process_madvise(2)`: advice about another process's memory, given from outside.
//!
//! The answer does not always report the effect: collapse may meet a page that cannot move, and cold skips pages mapped
//! twice, both without an error. Measure again afterwards (`pagemap.rs`).
//!
//! Cost: one system call for up to 1024 ranges; `Collapse` copies 2 MiB per window under the program's mmap lock and
//! may enter compaction; every call with `Collapse` first drains the per-CPU page lists (`lru_add_drain_all`).
//! Side effect: `Cold` also moves pages to the inactive list. On *part* of a huge page it splits the huge page.
//!
//! Since: Linux 5.10, `Collapse` 6.1. Needs PTRACE_MODE_READ on the process and CAP_SYS_NICE.
//!
//! Truth: process_madvise(2), madvise(2); `process_madvise_remote_valid` and `madvise_collapse` in mm/.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use units::{AddressRange, Bytes};

use crate::proxy::{self, Call};
use crate::{Pid, error, spare};

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

/// The most ranges in one call (`UIO_MAXIOV`).
pub const RANGES_MAX: usize = 1024;

/// Gives `advice` on `ranges` of the process `pid` behind `pidfd`, in order, and returns the number of bytes that the
/// kernel accepted.
///
/// Fewer bytes than asked for means that the range after them was refused; to learn the reason, call with that range
/// alone.
///
/// # Errors
/// The kernel's answer for the first range. `ESRCH` when the process ended; `TIMEDOUT` when its mmap lock was not free
/// in time: the advice may be applied later.
pub fn advise(pid: Pid, pidfd: BorrowedFd<'_>, ranges: &[AddressRange], advice: Advice) -> Result<Bytes, Errno> {
    debug_assert!(ranges.len() <= RANGES_MAX, "at most {RANGES_MAX} ranges a call");
    proxy::about(pid, |proxy| {
        let words = proxy.bytes().as_chunks_mut::<8>().0;
        for (into, range) in words.as_chunks_mut::<2>().0.iter_mut().zip(ranges) {
            *into = [range.start().0.to_ne_bytes(), range.bytes().0.to_ne_bytes()];
        }
        let answer = proxy.call(step, [ranges.len() as u64, advice as u64, 0, 0], Some(pidfd))?;
        Ok(Bytes(answer.value))
    })
}

/// [`advise`] by this process itself: it waits for the mmap lock without a limit.
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
    libc::iovec { iov_base: std::ptr::without_provenance_mut(usize_of(start)), iov_len: usize_of(length) }
}

fn step(call: &mut Call<'_>) -> Result<u64, Errno> {
    let pidfd = call.file.ok_or(Errno::BADF)?;
    let [count, advice, ..] = call.numbers.map(usize_of);
    let words = call.bytes.as_chunks::<8>().0.as_chunks::<2>().0;
    let ranges = words[..count].iter().map(|words| words.map(u64::from_ne_bytes));
    let vectors: Vec<libc::iovec> = ranges.map(|[start, length]| vector(start, length)).collect();
    if advice == Advice::Collapse as usize {
        spare::free(); // the page freed last is allocated first
    }
    advise_directly(pidfd, &vectors, advice)
}

#[expect(clippy::cast_possible_truncation, reason = "addresses are 64 bits wide on every machine masu runs on")]
const fn usize_of(number: u64) -> usize {
    const { assert!(usize::BITS == 64) };
    number as usize
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_headers() {
        assert_eq!(Advice::Cold as i32, libc::MADV_COLD);
        assert_eq!(Advice::PageOut as i32, libc::MADV_PAGEOUT);
        assert_eq!(Advice::Collapse as u32, linux_raw_sys::general::MADV_COLLAPSE);
    }

    #[test]
    fn advice_on_memory_that_is_not_there_is_refused_with_enomem() {
        let own = Pid::own().open().unwrap();
        let nowhere = AddressRange::new(4096, 8192).unwrap();
        assert_eq!(advise(Pid::own(), own.as_fd(), &[nowhere], Advice::Cold), Err(Errno::NOMEM));
    }
}
