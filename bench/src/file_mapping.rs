//! A file mapped for reading, and its residency in the page cache (`mincore`).
//!
//! The check maps the file for a moment and touches no page of it. It does not use masu's own census: a benchmark that
//! measured with the code under test could not find its mistakes.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use units::cast::index;

use crate::mapping::PAGE_BYTES;

/// A whole file, shared, read only. Unmapped when dropped.
#[derive(Debug)]
pub struct FileMapping {
    start: *mut c_void,
    bytes: usize,
}

impl FileMapping {
    /// Maps all of `file`.
    ///
    /// # Errors
    /// When the kernel refuses; an empty file cannot be mapped.
    pub fn of(file: &File) -> io::Result<FileMapping> {
        let bytes = index(file.metadata()?.len());
        // SAFETY: no address is asked for, so the kernel picks one that nothing else uses.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        Ok(FileMapping { start, bytes })
    }

    /// Number of pages; the last one may be partial.
    pub const fn pages(&self) -> usize {
        self.bytes.div_ceil(PAGE_BYTES)
    }

    /// Tells the kernel that pages are read in no order, so that none is read ahead.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn expect_random(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping; the advice changes read-ahead, not contents.
        Ok(unsafe { rustix::mm::madvise(self.start, self.bytes, Advice::Random) }?)
    }

    /// Reads the first byte of a page, so that the page is in memory.
    ///
    /// # Panics
    /// When the file has no such page.
    pub fn touch(&self, page: usize) -> u8 {
        assert!(page < self.pages(), "page {page} of {}", self.pages());
        let at = self.start.wrapping_byte_add(page * PAGE_BYTES).cast::<u8>();
        // SAFETY: the byte lies in the mapping, which is readable as long as `self` lives. It is read as a volatile
        // one, since the file may change. No process truncates our files while they are mapped; that would end this one
        // with SIGBUS.
        unsafe { ptr::read_volatile(at) }
    }

    /// Residency of each page in the page cache.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resident(&self) -> io::Result<Vec<bool>> {
        let mut pages = vec![0u8; self.pages()];
        // SAFETY: the range is this mapping, and `pages` has a byte for each page of it.
        if unsafe { libc::mincore(self.start, self.bytes, pages.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(pages.iter().map(|page| page & 1 == 1).collect())
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapped range. A refusal would only keep the addresses.
        let _ = unsafe { rustix::mm::munmap(self.start, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn pages_that_were_touched_are_resident_and_the_last_one_may_be_short() {
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&[7; 3 * PAGE_BYTES + 1]).unwrap();
        let mapping = FileMapping::of(&file).unwrap();
        mapping.expect_random().unwrap();
        assert_eq!((mapping.pages(), mapping.touch(3)), (4, 7));
        assert_eq!(mapping.resident().unwrap(), [true; 4]);
        assert!(FileMapping::of(&tempfile::tempfile().unwrap()).is_err());
    }
}
