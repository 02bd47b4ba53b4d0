//! A private anonymous mapping, aligned to 2 MiB and fenced on both sides, so that it is one mapping in
//! `/proc/PID/maps`, never merged with a neighbour.

use std::ffi::c_void;
use std::io;
use std::ptr;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Words of eight bytes in a page of 4 KiB.
pub const WORDS_PER_PAGE: usize = 512;

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// Bytes in a window, the memory of one huge page.
pub const WINDOW_BYTES: usize = 2 << 20;

/// Private, zeroed, readable and writable memory. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    whole: *mut c_void,
    whole_bytes: usize,
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, which hands out references only through itself, and any thread may
// unmap it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `bytes` (rounded up to whole pages), starting at a multiple of 2 MiB, with at least 2 MiB of forbidden
    /// addresses before and after it.
    ///
    /// # Errors
    /// When the kernel refuses, for example for want of address space.
    pub fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let whole_bytes = bytes + 3 * WINDOW_BYTES;
        // SAFETY: no address is asked for, so the kernel picks one that nothing else uses.
        let whole =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), whole_bytes, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let before = whole.addr().next_multiple_of(WINDOW_BYTES) + WINDOW_BYTES - whole.addr();
        let start = whole.wrapping_byte_add(before);
        let mapping = Mapping { whole, whole_bytes, start, bytes };
        // SAFETY: `before` is at most 4 MiB − 1 page and the mapping has 6 MiB more than `bytes`, so the range lies in it.
        unsafe { rustix::mm::mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        Ok(mapping)
    }

    /// Tells the kernel to use huge pages for it, or not to.
    ///
    /// # Errors
    /// When the kernel was built without transparent huge pages.
    pub fn want_huge_pages(&mut self, wanted: bool) -> io::Result<()> {
        let advice = if wanted { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is this mapping; the advice changes its backing, not its contents.
        Ok(unsafe { rustix::mm::madvise(self.start, self.bytes, advice) }?)
    }

    /// First address.
    pub fn address(&self) -> usize {
        self.start.addr()
    }

    /// Length in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// First address, for code that must work with the mapping itself.
    pub const fn start(&self) -> *mut c_void {
        self.start
    }

    /// The memory as words.
    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: the range is mapped readable and writable, page-aligned and zeroed by the kernel, for as long as `self`
        // lives; `&mut self` makes the slice the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast::<u64>(), self.bytes / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapped range, and no slice of it outlives `self`. A refusal would only keep the memory.
        let _ = unsafe { rustix::mm::munmap(self.whole, self.whole_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_zeroed_writable_and_a_mapping_of_its_own() {
        let mut mapping = Mapping::anonymous(WINDOW_BYTES + 1).unwrap();
        assert_eq!(mapping.address() % WINDOW_BYTES, 0);
        assert_eq!(mapping.bytes(), WINDOW_BYTES + PAGE_BYTES);
        assert!(mapping.words().iter().all(|word| *word == 0));
        mapping.words().fill(7);
        let (start, end) = (mapping.address(), mapping.address() + mapping.bytes());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let wanted = format!("{start:x}-{end:x} rw-p");
        assert!(maps.lines().any(|line| line.starts_with(&wanted)), "{wanted} is not in\n{maps}");
    }
}
