//! mincore(2), sync_file_range(2), posix_fadvise(2): what of a file is in the page cache, and letting it go.
//!
//! Which pages came and when is told by BPF (`access::arrivals`); this says which are there.
//!
//! Cost: `resident` 3 to 10 ns a page; `let_go` some 0.1 µs for each page that goes.
//! Side effects: `let_go` starts to write what is dirty, waits for nothing, and drops what is clean. What is dirty, being written,
//! mapped, locked or in use otherwise stays, and the kernel's answer does not say so: look again with `resident`. A large folio
//! of which only a part is named is split or stays.
//!
//! Since: always.
//!
//! Truth: mincore(2), posix_fadvise(2); `generic_fadvise` in mm/fadvise.c, `mapping_try_invalidate` in mm/truncate.c.

use std::ffi::c_void;
use std::fs::File;
use std::ops::Range;
use std::ptr::null_mut;

use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;

const PAGE: u64 = 4096;

/// Looked at in one go: 1 GiB, which takes 256 KiB for the answer.
const PIECE_PAGES: u64 = 1 << 18;

/// The runs of `pages` that are in memory; pages beyond the file's end are not.
///
/// # Errors
/// `Other` when there is no address space for it (RLIMIT_AS), or the kernel's answer.
pub fn resident(file: &File, pages: Range<u64>) -> Result<Vec<Range<u64>>, Error> {
    let mut runs = Vec::new();
    let mut first = pages.start;
    while first < pages.end {
        let count = (pages.end - first).min(PIECE_PAGES);
        let there =
            in_memory(file, first, count).map_err(|errno| Error::of_host("look for pages of", "a file", errno))?;
        add_runs(&there, first, &mut runs);
        first += count;
    }
    Ok(runs)
}

/// Adds what `there` says of the pages from `first` on; a run that goes on from the last one joins it.
pub(crate) fn add_runs(there: &[u8], first: u64, runs: &mut Vec<Range<u64>>) {
    for (page, _) in (first..).zip(there).filter(|(_, state)| **state & 1 != 0) {
        match runs.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
}

fn in_memory(file: &File, first: u64, count: u64) -> Result<Vec<u8>, Errno> {
    let length = usize::try_from(count * PAGE).map_err(|_| Errno::NOMEM)?;
    // SAFETY: a new mapping at a place of the kernel's choice, which is never accessed.
    let memory = unsafe {
        mmap(null_mut(), length, ProtFlags::empty(), MapFlags::SHARED | MapFlags::NORESERVE, file, first * PAGE)?
    };
    let answer = residence(memory, count);
    // SAFETY: the mapping made above, unmapped once; nothing refers to it.
    let _ = unsafe { munmap(memory, length) };
    answer
}

/// mincore(2) of `count` pages of a mapping, one byte for each: bit 0 says that it is in memory.
pub(crate) fn residence(memory: *mut c_void, count: u64) -> Result<Vec<u8>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::NOMEM)?;
    let mut there = vec![0u8; count];
    // SAFETY: the kernel looks up the addresses, and an unmapped one is an error; it writes one byte for each page to `there`,
    // which has as many.
    let answer = unsafe { libc::mincore(memory, count * 4096, there.as_mut_ptr()) };
    if answer == 0 { Ok(there) } else { Err(last_errno()) }
}

/// Has the kernel write what is dirty of these pages, and drop what is clean and nobody's. It waits for nothing.
///
/// # Errors
/// The kernel's answer.
pub fn let_go(file: &File, pages: Range<u64>) -> Result<(), Error> {
    let length = (pages.end.saturating_sub(pages.start)).saturating_mul(PAGE);
    let Some(length) = std::num::NonZeroU64::new(length) else { return Ok(()) };
    fadvise(file, pages.start.saturating_mul(PAGE), Some(length), Advice::DontNeed)
        .map_err(|errno| Error::of_host("let go pages of", "a file", errno))
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one run is meant")]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn runs_are_what_has_bit_0_and_join_over_pieces() {
        let mut runs = Vec::new();
        add_runs(&[0, 1, 3, 0, 1], 10, &mut runs);
        add_runs(&[1, 0], 15, &mut runs);
        assert_eq!(runs, [11..13, 14..16]);
    }

    #[test]
    fn what_was_written_is_there_and_beyond_the_end_is_nothing() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5 * 4096]).unwrap();
        assert_eq!(resident(&file, 0..100).unwrap(), [0..5]);
        assert_eq!(resident(&file, 2..4).unwrap(), [2..4]);
        assert_eq!(resident(&file, 4..4).unwrap(), []);
        let_go(&file, 3..3).unwrap();
    }
}
