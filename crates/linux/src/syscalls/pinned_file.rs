//! mlock2(2) on a mapping of our own: locks pages of a file in memory for all processes ("lock by proxy").
//!
//! A page that one process has locked stays for all. So a process that maps a file and locks its resident pages keeps
//! them in memory for the programs that use it, and touches none of them.
//!
//! Nothing is read in. The mapping is locked by `MLOCK_ONFAULT`, which skips pages outside our page tables. Resident
//! pages are found by `page_cache.rs` and mapped by `MADV_POPULATE_READ`, which answers with an error where a touch
//! would mean SIGBUS. The kernel also maps resident pages around them (64 KiB, or a whole large folio). So a little
//! more is pinned than was asked for, until the mapping is dropped.
//!
//! Cost, measured on Linux 6.18: pinning takes 3 ms per GiB in large folios, 170 ms in small ones. It takes three times
//! that if the range was locked before the pages were mapped, as for pages that come later.
//! Side effects: pinned pages are on none of the kernel's LRU lists and count as unevictable, charged to their cgroup;
//! with too many of them the kernel kills programs. Unpinned pages return to the inactive list, as referenced. Without
//! `MADV_RANDOM`, mapping pages would read ahead, and unmapping would make all of them active. The file system cannot
//! be unmounted, and a deleted file keeps its space.
//!
//! Since: `mlock2` Linux 4.4, `MADV_POPULATE_READ` 5.14, `MADV_DONTNEED_LOCKED` 5.18. Needs CAP_IPC_LOCK, or
//! RLIMIT_MEMLOCK.
//!
//! Truth: mlock(2), madvise(2); Documentation/mm/unevictable-lru.rst.

use std::ffi::c_void;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, munmap};
use units::{AddressRange, Pages, cast};

use crate::kpageflags::FrameTable;
use crate::pagemap::Pagemap;
use crate::{At, Error, Pid, page_cache};

const PAGE: u64 = 4096;

/// Drops page-table entries of locked memory, too.
const MADV_DONTNEED_LOCKED: i32 = 24;

/// A file mapped by us, with some pages possibly pinned. Dropping it unpins all of them.
///
/// # Safety
/// `memory` is one whole mapping of the `pages` of the file, read-only and shared, made here and owned by this value
/// alone. It is never accessed: any process may truncate the file.
#[derive(Debug)]
pub struct PinnedFile {
    file: Arc<File>,
    memory: *mut c_void,
    pages: Range<u64>,
    is_locked: bool,
}

// SAFETY: no part of the mapping belongs to a thread, and every change takes `&mut self`.
unsafe impl Send for PinnedFile {}

impl PinnedFile {
    /// Maps these pages of a file, which stays open. Nothing is pinned yet.
    ///
    /// # Errors
    /// `Other` with ENOMEM when there is no address space, or too many mappings (`vm.max_map_count`).
    pub fn map(file: &File, pages: Range<u64>) -> Result<PinnedFile, Error> {
        let length = bytes(pages.end.saturating_sub(pages.start)).map_err(failed("map"))?;
        let offset = pages.start.checked_mul(PAGE).ok_or_else(|| failed("map")(Errno::OVERFLOW))?;
        let ours = file.try_clone().map_err(|error| failed("map")(crate::error::errno(error)))?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory =
            unsafe { mmap(null_mut(), length, ProtFlags::READ, MapFlags::SHARED | MapFlags::NORESERVE, file, offset) };
        let memory = memory.map_err(failed("map"))?;
        let mapped = PinnedFile { file: Arc::new(ours), memory, pages, is_locked: false };
        if length > 0 {
            // Otherwise mapping a page would read ahead, and unmapping it would count as a use.
            // SAFETY: our own mapping; the advice changes nothing that it holds.
            unsafe { madvise(memory, length, Advice::Random) }.map_err(failed("map"))?;
        }
        Ok(mapped)
    }

    /// Range of mapped pages.
    pub fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    /// The file, to be read by other threads during pinning.
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Runs of `pages` that are in memory.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn resident(&self, pages: Range<u64>) -> Result<Vec<Range<u64>>, Error> {
        page_cache::resident(&self.file, self.within(&pages))
    }

    /// Pins the pages among `pages` that are in memory. Pages that come later need another call.
    ///
    /// # Errors
    /// `Unsupported` without `MADV_POPULATE_READ`; `Denied` beyond RLIMIT_MEMLOCK; `Other` with EFAULT for a file that
    /// was truncated meanwhile.
    pub fn pin(&mut self, pages: Range<u64>) -> Result<(), Error> {
        let pages = self.within(&pages);
        for run in self.resident(pages)? {
            let (at, length) = (self.address(run.start), bytes(run.end - run.start).map_err(failed("pin"))?);
            // SAFETY: part of our own mapping; we never access the mapped pages.
            retried(|| unsafe { madvise(at, length, Advice::LinuxPopulateRead) }).map_err(failed("pin"))?;
        }
        if !self.is_locked && !self.pages.is_empty() {
            let length = self.length().map_err(failed("lock"))?;
            // Once for the whole range, and only for pages in our page tables: a lock per run would make each a
            // mapping. After the first run is mapped, because locking is faster then.
            // SAFETY: our own mapping; locking changes nothing that it holds.
            retried(|| unsafe { mlock_with(self.memory, length, MlockFlags::ONFAULT) }).map_err(failed("lock"))?;
            self.is_locked = true;
        }
        Ok(())
    }

    /// Unpins `pages`: they return to the kernel's LRU lists.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn unpin(&mut self, pages: Range<u64>) -> Result<(), Error> {
        let pages = self.within(&pages);
        if pages.is_empty() {
            return Ok(());
        }
        let (at, length) = (self.address(pages.start), bytes(pages.end - pages.start).map_err(failed("unpin"))?);
        // SAFETY: part of our own mapping, which is never accessed; only page-table entries are dropped.
        match unsafe { libc::madvise(at, length, MADV_DONTNEED_LOCKED) } {
            0 => Ok(()),
            _ => Err(failed("unpin")(last_errno())),
        }
    }

    /// Number of unevictable pages among `pages`, read from the frames' flags.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn locked(&self, table: &FrameTable, pages: Range<u64>) -> Result<Pages, Error> {
        let mut locked = Pages(0);
        self.frames(pages, |frame| {
            if table.flags(frame)?.is_locked() {
                locked.0 += 1;
            }
            Ok(())
        })?;
        Ok(locked)
    }

    /// Calls `see` with the frame of each of `pages` that we have mapped.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN, and errors of `see`.
    pub fn frames(&self, pages: Range<u64>, mut see: impl FnMut(u64) -> Result<(), Error>) -> Result<(), Error> {
        /// Entries fetched at a time.
        const MOST: u64 = 1 << 16;
        let pages = self.within(&pages);
        let pagemap = Pagemap::open(Pid::own())?;
        let mut first = pages.start;
        while first < pages.end {
            let end = pages.end.min(first + MOST);
            let (from, to) = (self.address(first).addr() as u64, self.address(end).addr() as u64);
            let range = AddressRange::new(from, to).map_err(|_| failed("read")(Errno::FAULT))?;
            for frame in pagemap.entries(range)?.into_iter().filter_map(|entry| entry.frame()) {
                see(frame)?;
            }
            first = end;
        }
        Ok(())
    }

    /// Frame of a page, if we have it mapped; `pagemap` is our own.
    ///
    /// # Errors
    /// `Gone` when the page is not mapped and that process has ended.
    pub fn frame(&self, pagemap: &Pagemap, page: u64) -> Result<Option<u64>, Error> {
        if !self.pages.contains(&page) {
            return Ok(None);
        }
        let (from, to) = (self.address(page).addr() as u64, self.address(page + 1).addr() as u64);
        let range = AddressRange::new(from, to).map_err(|_| failed("read")(Errno::FAULT))?;
        Ok(pagemap.entries(range)?.first().and_then(|entry| entry.frame()))
    }

    fn within(&self, pages: &Range<u64>) -> Range<u64> {
        let start = pages.start.clamp(self.pages.start, self.pages.end);
        start..pages.end.clamp(start, self.pages.end)
    }

    fn length(&self) -> Result<usize, Errno> {
        bytes(self.pages.end - self.pages.start)
    }

    /// Address of a page up to the end; the end itself is the address after the mapping.
    fn address(&self, page: u64) -> *mut c_void {
        let offset = cast::index((page - self.pages.start) * PAGE);
        self.memory.cast::<u8>().wrapping_add(offset).cast()
    }
}

impl Drop for PinnedFile {
    fn drop(&mut self) {
        if let Ok(length) = self.length() {
            // SAFETY: the mapping made by `map`, unmapped once; nothing refers into it.
            let _ = unsafe { munmap(self.memory, length) };
        }
    }
}

/// Tries a lock on memory of our own: a file without a name (memfd), written here and mapped whole. Nobody else chose
/// the size of its folios, and each lies inside the mapping: a folio that reaches beyond it is not locked. True if the
/// frame of the first page is held then.
///
/// # Errors
/// As [`PinnedFile::pin`] and [`PinnedFile::locked`]; `Other` without memory for the file.
pub fn holds_own_memory(table: &FrameTable) -> Result<bool, Error> {
    const PAGES: u64 = 512;
    let file = memfd_create("masu-probe", MemfdFlags::CLOEXEC).map_err(failed("make"))?;
    let file = File::from(file);
    for page in 0..PAGES {
        file.write_all_at(&[1; 4096], page * PAGE).map_err(|error| failed("write")(crate::error::errno(error)))?;
    }
    let mut pinned = PinnedFile::map(&file, 0..PAGES)?;
    pinned.pin(0..PAGES)?;
    Ok(pinned.locked(table, 0..1)? == Pages(1))
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn bytes(pages: u64) -> Result<usize, Errno> {
    pages.checked_mul(PAGE).map(cast::index).ok_or(Errno::NOMEM)
}

fn failed(operation: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| match errno {
        Errno::AGAIN | Errno::NOMEM | Errno::PERM if operation == "lock" => {
            let object = "pages of a file beyond RLIMIT_MEMLOCK, without CAP_IPC_LOCK".to_owned();
            Error::Denied(At { operation: operation.to_owned(), object, errno })
        }
        // EINVAL is the kernel's answer to unknown advice.
        Errno::INVAL => Error::of_host(operation, "pages of a file", Errno::OPNOTSUPP),
        errno => Error::of_host(operation, "pages of a file", errno),
    }
}

/// Retries after a signal.
fn retried(mut call: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one run is meant")]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_in_memory_is_pinned_and_nothing_beyond_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5 * 4096]).unwrap();
        let mut pinned = PinnedFile::map(&file, 0..8).unwrap();
        assert_eq!(pinned.resident(0..100).unwrap(), [0..5]);
        pinned.pin(0..8).unwrap();
        pinned.unpin(0..8).unwrap();
        drop(pinned);
        assert_eq!(file.metadata().unwrap().len(), 5 * 4096);
    }

    #[test]
    fn a_file_that_is_cut_short_is_an_error_or_less_and_never_a_signal() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 64 * 4096]).unwrap();
        let mut pinned = PinnedFile::map(&file, 0..64).unwrap();
        file.set_len(4096).unwrap();
        // A large folio may stay in the cache with pages beyond the end.
        if let Err(error) = pinned.pin(0..64) {
            assert_eq!(error.errno(), Some(Errno::FAULT), "{error}");
        }
    }

    #[test]
    fn memory_of_our_own_is_held_where_frames_can_be_seen() {
        let Ok(table) = FrameTable::open() else { return println!("SKIP: /proc/kpageflags is not for us") };
        match holds_own_memory(&table) {
            Ok(held) => assert!(held),
            Err(Error::Denied(at)) => println!("SKIP: {at:?}"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn pages_that_are_not_mapped_are_left_out() {
        let file = tempfile::tempfile().unwrap();
        let mut pinned = PinnedFile::map(&file, 0..4).unwrap();
        pinned.pin(10..20).unwrap();
        pinned.unpin(4..9).unwrap();
        assert_eq!(pinned.resident(7..9).unwrap(), []);
        assert!(PinnedFile::map(&file, 0..u64::MAX).is_err());
        assert!(PinnedFile::map(&file, u64::MAX - 1..u64::MAX).is_err());
    }

    #[test]
    fn a_part_of_a_file_is_mapped_and_nothing_before_it() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 9 * 4096]).unwrap();
        let mut pinned = PinnedFile::map(&file, 4..8).unwrap();
        assert_eq!(pinned.resident(0..100).unwrap(), [4..8]);
        pinned.pin(0..6).unwrap();
        let pagemap = Pagemap::open(Pid::own()).unwrap();
        assert_eq!(pinned.frame(&pagemap, 3).unwrap(), None);
        pinned.unpin(0..9).unwrap();
    }
}
