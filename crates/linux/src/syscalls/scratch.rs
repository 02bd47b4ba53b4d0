//! `mmap(2)`: memory of our own for trials. It has no other references, and is unmapped when dropped.
//!
//! Cost: one or two system calls, and a page fault for each touched page. Side effects: none.
//!
//! Since: always; a fixed address without replacement (`MAP_FIXED_NOREPLACE`) Linux 4.17. Truth: mmap(2), madvise(2).

use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use units::{Address, AddressRange, Bytes, PageSize, cast};

/// A private anonymous mapping, and the part of it that may be touched.
///
/// # Safety
/// `mapped` and `length` describe one whole mapping, made here and owned by this value alone; no reference into it is
/// ever made; `range` lies inside it and is readable and writable.
#[derive(Debug)]
pub(crate) struct Scratch {
    mapped: *mut c_void,
    length: usize,
    range: AddressRange,
}

impl Scratch {
    /// Maps `size` bytes of untouched memory at any address.
    pub(crate) fn of(size: Bytes) -> Result<Scratch, Errno> {
        map(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }

    /// Maps one page at this address.
    pub(crate) fn at(address: u64) -> Result<Scratch, Errno> {
        let hint = without_provenance_mut(cast::index(address));
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        map(hint, PageSize::Small.bytes(), ProtFlags::READ | ProtFlags::WRITE, flags)
    }

    /// One whole window with only its first page touched. That page is small, even where the first touch of a window
    /// gets a huge page: only that page is accessible at the touch. Inaccessible memory lies on both sides of the
    /// window, so the kernel never joins it with a neighbouring mapping.
    pub(crate) fn window_with_one_touched_page() -> Result<Scratch, Errno> {
        let thrice = Bytes(3 * PageSize::Huge.bytes().0);
        let mut scratch = map(null_mut(), thrice, ProtFlags::empty(), MapFlags::PRIVATE)?;
        let (start, end) = (scratch.range.start(), scratch.range.end());
        let inner = |range: &AddressRange| range.start() > start && range.end() < end;
        let Some(window) = scratch.range.whole_windows().map(|window| window.range()).find(inner) else {
            return Err(Errno::NOMEM);
        };
        let page = AddressRange::new(window.start().0, window.start().0 + PageSize::Small.bytes().0);
        scratch.range = page.map_err(|_| Errno::NOMEM)?;
        scratch.allow_touching()?;
        scratch.touch_all();
        scratch.range = window;
        scratch.allow_touching()?;
        Ok(scratch)
    }

    /// One whole window with its first page touched, after asking the kernel for a huge page.
    pub(crate) fn window_wanted_huge() -> Result<Scratch, Errno> {
        let twice = Bytes(2 * PageSize::Huge.bytes().0);
        let mut scratch = map(null_mut(), twice, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?;
        let Some(window) = scratch.range.whole_windows().next().map(|window| window.range()) else {
            return Err(Errno::NOMEM);
        };
        scratch.range = window;
        let start = scratch.pointer_to(window.start());
        // SAFETY: whole pages inside the mapping; the advice changes their backing, not their content.
        unsafe { madvise(start, cast::index(window.bytes().0), Advice::LinuxHugepage)? };
        // SAFETY: the first byte of `range`, which is writable; no reference to it exists.
        unsafe { start.cast::<u8>().write_volatile(1) };
        Ok(scratch)
    }

    /// Range that may be touched.
    pub(crate) fn range(&self) -> AddressRange {
        self.range
    }

    /// Writes to every page of the range.
    pub(crate) fn touch_all(&mut self) {
        let step = PageSize::Small.bytes().0;
        for address in (self.range.start().0..self.range.end().0).step_by(cast::index(step)) {
            let pointer = self.pointer_to(Address(address)).cast::<u8>();
            // SAFETY: the first byte of a page of `range`, which is writable and inside the mapping; no reference to
            // it exists.
            unsafe { pointer.write_volatile(1) };
        }
    }

    fn allow_touching(&mut self) -> Result<(), Errno> {
        let pointer = self.pointer_to(self.range.start());
        let length = cast::index(self.range.bytes().0);
        // SAFETY: whole pages inside the mapping; only the right to read and write is added.
        unsafe { mprotect(pointer, length, MprotectFlags::READ | MprotectFlags::WRITE) }
    }

    /// A pointer into the mapping; `address` lies in it.
    fn pointer_to(&self, address: Address) -> *mut c_void {
        self.mapped.wrapping_byte_add(cast::index(address.0) - self.mapped.addr())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, made in `map` and owned by `self`; no reference into it exists.
        let unmapped = unsafe { munmap(self.mapped, self.length) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

fn map(hint: *mut c_void, size: Bytes, rights: ProtFlags, flags: MapFlags) -> Result<Scratch, Errno> {
    let length = cast::index(size.0);
    // SAFETY: a new anonymous mapping. With a hint it carries FIXED_NOREPLACE, so no existing mapping is replaced.
    let mapped = unsafe { mmap_anonymous(hint, length, rights, flags)? };
    let start = mapped.addr() as u64;
    match AddressRange::new(start, start + size.0) {
        Ok(range) if hint.is_null() || hint == mapped => Ok(Scratch { mapped, length, range }),
        // Before Linux 4.17 the flag was unknown and the hint not binding.
        _ => {
            // SAFETY: the mapping made above, to which nothing refers.
            unsafe { munmap(mapped, length)? };
            Err(Errno::NOMEM)
        }
    }
}
