//! `process_madvise(2)`: advice about another process's memory, given from outside.
//!
//! The call itself is in `advice.rs`, and is made by a proxy.
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

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use units::{AddressRange, Bytes, cast};

pub use crate::advice::Advice;
use crate::advice::{advise_directly, vector};
use crate::proxy::{self, Call};
use crate::{Pid, preallocated_page};

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

fn step(call: &mut Call<'_>) -> Result<u64, Errno> {
    let pidfd = call.file.ok_or(Errno::BADF)?;
    let [count, advice, ..] = call.numbers.map(cast::index);
    let words = call.bytes.as_chunks::<8>().0.as_chunks::<2>().0;
    let ranges = words[..count].iter().map(|words| words.map(u64::from_ne_bytes));
    let vectors: Vec<libc::iovec> = ranges.map(|[start, length]| vector(start, length)).collect();
    if advice == Advice::Collapse as usize {
        preallocated_page::free(); // the page freed last is allocated first
    }
    advise_directly(pidfd, &vectors, advice)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn advice_on_memory_that_is_not_there_is_refused_with_enomem() {
        let own = Pid::own().open().unwrap();
        let nowhere = AddressRange::new(4096, 8192).unwrap();
        assert_eq!(advise(Pid::own(), own.as_fd(), &[nowhere], Advice::Cold), Err(Errno::NOMEM));
    }
}
