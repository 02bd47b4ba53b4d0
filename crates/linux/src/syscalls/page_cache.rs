//! `mincore(2)`, `sync_file_range(2)`, `posix_fadvise(2)`: finding the pages of a file that are in memory, writing them
//! out and dropping them.
//!
//! Counts alone are cheaper by `cachestat.rs`; keeping pages in memory is `pinned_file.rs`. The choice of pages to drop
//! is made elsewhere.
//!
//! Pages are numbered from the start of the file. A page cache is made of folios of one page up to 2 MiB each (large
//! ones in ext4 since Linux 6.16, in XFS since 5.18). A folio is read and dropped as a whole: see [`drop_clean`].
//!
//! Cost, measured on Linux 6.18: finding pages costs 15 ms per GiB in memory in large folios, 25 ms in small ones. A
//! GiB with nothing in memory costs 3 µs with `cachestat`, else 9 ms. It is done in steps of 1 GiB, under the mmap lock
//! of this process. Dropping costs 3 ms per GiB in large folios, 180 ms in small ones.
//! Side effect of finding: none. Nothing is read or touched, no accessed bit is set; so a file that is truncated
//! meanwhile does no harm (SIGBUS). Side effects of dropping: see [`drop_clean`].
//!
//! Since: always. Since Linux 5.2 (and in stable kernels since 2019), `mincore` reports every page as present for a
//! file that is neither ours nor open for writing. We first ask about a page far beyond the end, and return `Denied` if
//! that is reported as present too.
//!
//! Truth: mincore(2), sync_file_range(2), posix_fadvise(2); mm/mincore.c, mm/fadvise.c, `mapping_try_invalidate` in
//! mm/truncate.c.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use units::{Bytes, Pages, cast};

use crate::Error;
use crate::cachestat::cachestat;

const PAGE: u64 = 4096;
/// Pages per `mincore` call: 256 KiB of answers, and some milliseconds.
const STEP_PAGES: u64 = Bytes::gib(1).pages().0;
/// Distance beyond the end of the file that it does not grow by during a call.
const BEYOND: Bytes = Bytes::gib(1);

/// Runs of pages among `pages` that are in memory, by rising number. Pages beyond the file's end are left out.
///
/// If the file is truncated meanwhile, the answer ends earlier. Pages may come and go before the answer is read.
///
/// # Errors
/// `Denied` for a file that is neither ours nor open for writing: the kernel would report all pages. `Denied` too for a
/// file that is not open for reading; `Unsupported` for an object without pages.
pub fn resident(file: &File, pages: Range<u64>) -> Result<Vec<Range<u64>>, Error> {
    let length = length_in_pages(file)?;
    let mut runs = Runs::default();
    let pages = pages.start..pages.end.min(length.0);
    if pages.is_empty() {
        return Ok(runs.0);
    }
    let beyond = length.0 + BEYOND.pages().0;
    ask(file, beyond..beyond + 1, |_, is_there| if is_there { Err(Errno::PERM) } else { Ok(()) })?;
    let mut from = pages.start;
    while from < pages.end {
        let to = pages.end.min(from.saturating_add(STEP_PAGES));
        if !is_surely_empty(file, from..to) {
            ask(file, from..to, |page, is_there| {
                if is_there {
                    runs.add(page);
                }
                Ok(())
            })?;
        }
        from = to;
    }
    Ok(runs.0)
}

/// Runs of pages among `pages` that the page cache has, by rising number, as [`resident`], and beside these the pages
/// without valid content yet: those whose read is under way, and those of which only some blocks were written.
/// `mincore` calls them absent, and [`drop_clean`] leaves them while they are locked or dirty.
///
/// Before Linux 6.5 (`cachestat`) the answer is that of [`resident`].
///
/// # Errors
/// As [`resident`].
pub fn cached(file: &File, pages: Range<u64>) -> Result<Vec<Range<u64>>, Error> {
    let runs = resident(file, pages.clone())?;
    let count = |part: &Range<u64>| count_of(file, part);
    let known: u64 = runs.iter().map(|run| run.end - run.start).sum();
    let end = pages.end.min(length_in_pages(file)?.0);
    if pages.start >= end || count(&(pages.start..end)).is_none_or(|counted| counted <= known) {
        return Ok(runs);
    }
    Ok(with_gaps(pages.start..end, runs, count))
}

/// Number of pages in the page cache; `None` without `cachestat`.
fn count_of(file: &File, pages: &Range<u64>) -> Option<u64> {
    let (start, length) = (Pages(pages.start).bytes(), Pages(pages.end - pages.start).bytes());
    cachestat(file.as_fd(), start, length).ok().map(|counted| counted.cached.0)
}

/// `runs`, and what `count` finds between them: each gap is halved until a part has all of its pages or none.
fn with_gaps(pages: Range<u64>, runs: Vec<Range<u64>>, count: impl Fn(&Range<u64>) -> Option<u64>) -> Vec<Range<u64>> {
    /// Parts that are counted, some microseconds each; of the others all pages are taken for cached if one is.
    const PARTS_MAX: u32 = 1 << 14;
    let starts = std::iter::once(pages.start).chain(runs.iter().map(|run| run.end));
    let ends = runs.iter().map(|run| run.start).chain(std::iter::once(pages.end));
    let mut parts: Vec<Range<u64>> = starts.zip(ends).map(|(start, end)| start..end).collect();
    let (mut all, mut counted) = (runs, 0);
    while let Some(part) = parts.pop() {
        let found = if part.is_empty() { 0 } else { count(&part).unwrap_or(0) };
        counted += 1;
        let length = part.end.saturating_sub(part.start);
        if found == 0 {
            continue;
        }
        if found >= length || counted > PARTS_MAX {
            all.push(part);
        } else {
            let middle = part.start + length / 2;
            parts.extend([part.start..middle, middle..part.end]);
        }
    }
    all.sort_by_key(|run| run.start);
    all.dedup_by(|next, last| {
        let joins = last.end == next.start;
        if joins {
            last.end = next.end;
        }
        joins
    });
    all
}

/// True if `cachestat` finds nothing in memory, which is much faster than asking page by page.
fn is_surely_empty(file: &File, pages: Range<u64>) -> bool {
    count_of(file, &pages) == Some(0)
}

/// Length of the file in pages, a partial last page included.
pub(crate) fn length_in_pages(file: &File) -> Result<Pages, Error> {
    let about = rustix::fs::fstat(file).map_err(|errno| failed("ask for the length of", errno))?;
    let mut bytes = about.st_size.cast_unsigned();
    // The size of a block device is not in its inode. All our reads of it have an offset of their own.
    if FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice {
        bytes = rustix::fs::seek(file, SeekFrom::End(0)).map_err(|errno| failed("ask for the length of", errno))?;
    }
    Ok(Pages(bytes.div_ceil(PAGE)))
}

/// Maps the pages without any right to touch them, and passes on the answer of `mincore` for each.
fn ask(file: &File, pages: Range<u64>, mut take: impl FnMut(u64, bool) -> Result<(), Errno>) -> Result<(), Error> {
    const OPERATION: &str = "ask for resident";
    let count = pages.end - pages.start;
    let length = cast::index(count.checked_mul(PAGE).ok_or_else(|| failed(OPERATION, Errno::NOMEM))?);
    let offset = pages.start.checked_mul(PAGE).ok_or_else(|| failed(OPERATION, Errno::OVERFLOW))?;
    let mut answers = vec![0u8; cast::index(count)];
    // SAFETY: a new mapping at an address that the kernel chooses; its protection forbids every access.
    let start =
        unsafe { mmap(null_mut(), length, ProtFlags::empty(), MapFlags::SHARED | MapFlags::NORESERVE, file, offset) };
    let start = start.map_err(|errno| failed("map", errno))?;
    // SAFETY: the mapping just made, `length` long; `answers` has a byte for each of its pages and outlives the call.
    let answer = unsafe { libc::mincore(start, length, answers.as_mut_ptr()) };
    let errno = (answer != 0).then(|| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    // SAFETY: the mapping just made, to which nothing points.
    let unmapped = unsafe { munmap(start, length) };
    if let Some(errno) = errno.or(unmapped.err()) {
        return Err(failed(OPERATION, errno));
    }
    let mut pages = pages.zip(&answers);
    pages.try_for_each(|(page, answer)| take(page, answer & 1 != 0)).map_err(|errno| failed(OPERATION, errno))
}

/// Runs of pages, built from pages by rising number.
#[derive(Debug, Default)]
struct Runs(Vec<Range<u64>>);

impl Runs {
    fn add(&mut self, page: u64) {
        match self.0.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => self.0.push(page..page + 1),
        }
    }
}

/// Has the kernel start writeback of the dirty pages among `pages`, without waiting for it (except on a full disk
/// queue). A file is safe only after `fsync`: this writes no metadata.
///
/// # Errors
/// `Other`, with `ESPIPE` for an object that is no file.
pub fn start_write_out(file: &File, pages: Range<u64>) -> Result<(), Error> {
    let Some((offset, length)) = span("write out", &pages)? else { return Ok(()) };
    // SAFETY: a system call with numbers; the file is open while it is borrowed.
    let answer = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE) };
    if answer == 0 {
        return Ok(());
    }
    Err(failed("write out", Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)))
}

/// Drops the pages among `pages` that are clean and not mapped.
///
/// The answer does not report the dropped pages: check with [`cached`]. These stay without an error:
/// * dirty pages and pages under writeback (the call also starts their writeback, as [`start_write_out`]);
/// * mapped or locked pages;
/// * folios that lie partly outside of `pages`, at both ends, with all their pages. Measured on Linux 6.18, ext4, a
///   file read in order in folios of 2 MiB: dropping the pages 1001..2001 drops 1024..1536 alone. So ask for the whole
///   run of pages that came in together, or for whole windows of 2 MiB;
/// * pages just read that still wait on another processor to be put on a list. The kernel drains those lists and tries
///   again, which interrupts every processor.
///
/// Other programs that use the file pay for reading it again.
///
/// # Errors
/// `Other` with `ESPIPE` for an object that is no file.
pub fn drop_clean(file: &File, pages: Range<u64>) -> Result<(), Error> {
    let Some((offset, length)) = span("drop", &pages)? else { return Ok(()) };
    // SAFETY: a system call with numbers; the file is open while it is borrowed.
    let answer = unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, length, libc::POSIX_FADV_DONTNEED) };
    if answer == 0 { Ok(()) } else { Err(failed("drop", Errno::from_raw_os_error(answer))) }
}

/// Offset and length in bytes; `None` for no pages, since a length of 0 would mean the whole file.
fn span(operation: &str, pages: &Range<u64>) -> Result<Option<(i64, i64)>, Error> {
    if pages.is_empty() {
        return Ok(None);
    }
    let bytes = |pages: u64| pages.checked_mul(PAGE).and_then(|bytes| i64::try_from(bytes).ok());
    match (bytes(pages.start), bytes(pages.end)) {
        (Some(start), Some(end)) => Ok(Some((start, end - start))),
        // To the end of the file, whatever its length.
        (Some(start), None) => Ok(Some((start, i64::MAX - start))),
        _ => Err(failed(operation, Errno::OVERFLOW)),
    }
}

fn failed(operation: &str, errno: Errno) -> Error {
    Error::of_host(operation, "pages of a file in the page cache", errno)
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "runs are ranges, and often there is one")]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn file_of(bytes: usize) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; bytes]).unwrap();
        file
    }

    #[test]
    fn what_was_just_written_is_in_memory_up_to_the_end_of_the_file() {
        let file = file_of(10 * 4096 + 1);
        assert_eq!(resident(&file, 0..u64::MAX).unwrap(), [0..11]);
        assert_eq!(resident(&file, 3..5).unwrap(), [3..5]);
        assert_eq!(resident(&file, 11..20).unwrap(), []);
        assert_eq!(resident(&file, 5..5).unwrap(), []);
        #[expect(clippy::reversed_empty_ranges, reason = "what a caller may get wrong")]
        let none = resident(&file, 5..3).unwrap();
        assert_eq!(none, []);
    }

    #[test]
    fn a_hole_is_not_in_memory() {
        let file = file_of(4096);
        file.set_len(3 << 30).unwrap();
        assert_eq!(resident(&file, 0..u64::MAX).unwrap(), [0..1]);
        rustix::io::pwrite(&file, b"x", 2 << 30).unwrap();
        assert_eq!(resident(&file, 1..u64::MAX).unwrap(), [1 << 19..(1 << 19) + 1]);
    }

    #[test]
    fn a_file_that_became_shorter_has_a_shorter_answer() {
        let file = file_of(100 * 4096);
        file.set_len(4096).unwrap();
        assert_eq!(resident(&file, 0..100).unwrap(), [0..1]);
        assert_eq!(resident(&file_of(0), 0..100).unwrap(), []);
    }

    #[test]
    fn what_cannot_be_mapped_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, [7; 4096]).unwrap();
        let unreadable = File::options().write(true).open(&path).unwrap();
        assert!(matches!(resident(&unreadable, 0..1), Err(Error::Denied(_))));
        let directory = File::open(folder.path()).unwrap();
        assert!(matches!(resident(&directory, 0..1), Err(Error::Unsupported(_))));
    }

    #[test]
    fn no_pages_are_not_all_of_the_file() {
        assert_eq!(span("x", &(3..3)), Ok(None));
        assert_eq!(span("x", &(0..0)), Ok(None));
        assert_eq!(span("x", &(3..5)), Ok(Some((12288, 8192))));
        assert_eq!(span("x", &(1..u64::MAX)), Ok(Some((4096, i64::MAX - 4096))));
        assert!(span("x", &(u64::MAX - 1..u64::MAX)).is_err());
        let file = file_of(4096);
        start_write_out(&file, 0..0).unwrap();
        drop_clean(&file, 1..1).unwrap();
        assert_eq!(resident(&file, 0..1).unwrap(), [0..1]);
    }

    #[test]
    fn a_pipe_has_no_pages_to_write_out_or_to_drop() {
        let pipe = File::from(rustix::pipe::pipe().unwrap().0);
        for refused in [start_write_out(&pipe, 0..1), drop_clean(&pipe, 0..1)] {
            assert_eq!(refused.unwrap_err().errno(), Some(Errno::SPIPE));
        }
        assert_eq!(resident(&pipe, 0..1), Ok(vec![]));
    }

    proptest! {
        #[test]
        fn pages_that_mincore_calls_absent_are_found_by_their_count(
            there in prop::collection::btree_set(0..300u64, 0..100), valid in prop::collection::vec(any::<bool>(), 100),
        ) {
            let mut runs = Runs::default();
            there.iter().zip(valid).filter(|(_, is_valid)| *is_valid).for_each(|(page, _)| runs.add(*page));
            let count = |part: &Range<u64>| Some(there.range(part.clone()).count() as u64);
            let all = with_gaps(0..300, runs.0, count);
            prop_assert!(all.windows(2).all(|two| two[0].end < two[1].start));
            prop_assert_eq!(all.into_iter().flatten().collect::<Vec<_>>(), there.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn runs_hold_the_pages_that_were_given_and_no_others(pages in prop::collection::btree_set(0..300u64, 0..100)) {
            let mut runs = Runs::default();
            pages.iter().for_each(|page| runs.add(*page));
            prop_assert!(runs.0.windows(2).all(|two| two[0].end < two[1].start));
            prop_assert_eq!(runs.0.into_iter().flatten().collect::<Vec<_>>(), pages.into_iter().collect::<Vec<_>>());
        }
    }
}
