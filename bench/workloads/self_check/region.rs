//! Memory that is written, checked, given back, moved, protected and forked: every unsafe line of `self-check`.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bench::mapping::{Mapping, PAGE_BYTES, WORDS_PER_PAGE};
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use crate::model::Content;

/// Pages next to each other, always mapped readable and writable between two calls.
///
/// Words are read and written as atomics, so threads may share a region; which thread owns which page is up to the caller.
#[derive(Debug)]
pub struct Region {
    start: *mut c_void,
    pages: usize,
    _mapping: Mapping,
}

// SAFETY: the pointer is only used for whole-page system calls and atomic words; the mapping lives as long as the region.
unsafe impl Send for Region {}
// SAFETY: as above; no method hands out a plain reference to the memory.
unsafe impl Sync for Region {}

/// A page with unexpected contents.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// The page.
    pub page: usize,
    /// The word in it.
    pub word: usize,
    /// Word found.
    pub found: u64,
}

impl Region {
    /// A region of `pages` zeroed pages, fenced off from other memory.
    pub fn of(pages: usize) -> io::Result<Region> {
        let mapping = Mapping::anonymous(pages * PAGE_BYTES)?;
        Ok(Region { start: mapping.start(), pages, _mapping: mapping })
    }

    /// Number of pages.
    pub const fn pages(&self) -> usize {
        self.pages
    }

    fn range(&self, page: usize, count: usize) -> (*mut c_void, usize) {
        assert!(page + count <= self.pages, "pages {page}+{count} of {}", self.pages);
        (self.start.wrapping_byte_add(page * PAGE_BYTES), count * PAGE_BYTES)
    }

    fn word(&self, page: usize, nth: usize) -> &AtomicU64 {
        let (start, _) = self.range(page, 1);
        assert!(nth < WORDS_PER_PAGE);
        // SAFETY: in range (checked above), aligned to a page, mapped between two calls, and only ever accessed as atomics.
        unsafe { AtomicU64::from_ptr(start.cast::<u64>().add(nth)) }
    }

    /// Fills a page with the pattern of `number`.
    pub fn fill(&self, page: usize, number: u64) {
        for nth in 0..WORDS_PER_PAGE {
            self.word(page, nth).store(Content::pattern(number, nth), Ordering::Relaxed);
        }
    }

    /// The first word of a page that it must not hold. Allocates nothing: also called in a forked child.
    pub fn check(&self, page: usize, wanted: Content) -> Result<(), Difference> {
        for word in 0..WORDS_PER_PAGE {
            let found = self.word(page, word).load(Ordering::Relaxed);
            if !wanted.allows(word, found) {
                return Err(Difference { page, word, found });
            }
        }
        Ok(())
    }

    /// `madvise` on `count` pages. The caller's model knows its effect on their contents.
    pub fn advise(&self, page: usize, count: usize, advice: Advice) -> io::Result<()> {
        let (start, bytes) = self.range(page, count);
        // SAFETY: the range is mapped and ours; its words are only accessed as atomics, which may change at any time.
        Ok(unsafe { rustix::mm::madvise(start, bytes, advice) }?)
    }

    /// Makes a page read-only, checks it, and makes it writable again.
    pub fn check_while_read_only(&self, page: usize, wanted: Content) -> io::Result<Result<(), Difference>> {
        let (start, bytes) = self.range(page, 1);
        // SAFETY: the page is mapped and ours, and its owner, the caller, writes nothing meanwhile.
        unsafe { rustix::mm::mprotect(start, bytes, MprotectFlags::READ) }?;
        let found = self.check(page, wanted);
        // SAFETY: as above; this restores the protection that every other method relies on.
        unsafe { rustix::mm::mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        Ok(found)
    }

    /// Unmaps `count` pages and maps new, empty ones at the same place. Only the one owner of all these pages may call it.
    pub fn renew(&self, page: usize, count: usize) -> io::Result<()> {
        let (start, bytes) = self.range(page, count);
        // SAFETY: the range is ours and no thread accesses it until the next call has mapped it again.
        unsafe { rustix::mm::munmap(start, bytes) }?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: the address was ours a moment ago; should another mapping have taken it, the kernel refuses.
        unsafe { rustix::mm::mmap_anonymous(start, bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Ok(())
    }

    /// Moves `count` pages from `from` to `to` in the page table, without copying; empty pages stay behind. The two must not
    /// overlap, and only the one owner of all these pages may call it.
    pub fn relocate(&self, from: usize, to: usize, count: usize) -> io::Result<()> {
        assert!(from.abs_diff(to) >= count, "{from} and {to} overlap over {count} pages");
        let ((old, bytes), (new, _)) = (self.range(from, count), self.range(to, count));
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        // SAFETY: both ranges are ours, do not overlap, and stay mapped: the old one empty, the new one with its content.
        unsafe { rustix::mm::mremap_fixed(old, bytes, bytes, flags, new) }?;
        Ok(())
    }

    /// Forks; the child runs `child` and ends, with status 0 when it returned true. True when it did.
    ///
    /// `child` must not allocate, lock or panic: other threads of the parent may have held any lock.
    pub fn in_forked_child(child: impl FnOnce() -> bool) -> io::Result<bool> {
        // SAFETY: the child calls `child`, which by contract needs no lock, and `_exit`; it never returns to our caller.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let status = i32::from(!child());
            // SAFETY: ends the child at once, running no destructor of the parent's.
            unsafe { libc::_exit(status) };
        }
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut status = 0;
        loop {
            // SAFETY: `status` is ours and outlives the call; `pid` is our child, not yet waited for.
            if unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid {
                return Ok(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_moves_with_its_pages_and_empty_ones_stay_behind() {
        let region = Region::of(64).unwrap();
        (0..64).for_each(|page| region.fill(page, page as u64));
        region.relocate(3, 20, 7).unwrap();
        for nth in 0..7 {
            assert!(region.check(20 + nth, Content::Filled(3 + nth as u64)).is_ok());
            assert!(region.check(3 + nth, Content::Zero).is_ok());
        }
        assert!(region.check(10, Content::Filled(10)).is_ok() && region.check(27, Content::Filled(27)).is_ok());
    }

    #[test]
    fn renewed_and_forgotten_pages_are_empty_and_their_neighbours_are_not() {
        let region = Region::of(16).unwrap();
        (0..16).for_each(|page| region.fill(page, 9));
        region.renew(4, 2).unwrap();
        region.advise(8, 1, Advice::LinuxDontNeed).unwrap();
        for page in 0..16 {
            let wanted = if matches!(page, 4 | 5 | 8) { Content::Zero } else { Content::Filled(9) };
            assert!(region.check(page, wanted).is_ok(), "page {page}");
        }
    }

    #[test]
    fn one_flipped_bit_is_found_also_by_a_child_and_while_read_only() {
        let region = Region::of(4).unwrap();
        region.fill(2, 5);
        assert!(Region::in_forked_child(|| region.check(2, Content::Filled(5)).is_ok()).unwrap());
        region.word(2, 100).fetch_xor(1 << 40, Ordering::Relaxed);
        let found = region.check_while_read_only(2, Content::Filled(5)).unwrap().unwrap_err();
        assert_eq!((found.page, found.word), (2, 100));
        assert!(!Region::in_forked_child(|| region.check(2, Content::Filled(5)).is_ok()).unwrap());
    }
}
