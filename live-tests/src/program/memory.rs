//! Memory as programs get it: by the functions of the C library.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use linux::smaps::VmFlag;
use linux::{Pid, Rooted};
use units::Window;
use units::cast::index;

use super::Wrong;

pub(super) const MIB: usize = 1 << 20;
pub(super) const HUGE: usize = 2 * MIB;
pub(super) const PAGE: usize = 4096;

/// Readable and writable.
pub(super) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The usual.
pub(super) const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Memory of this program: its start and its length. Reads and writes are atomic words, since huge pages come and go
/// and other threads may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) start: usize,
    pub(super) bytes: usize,
}

fn last_error(what: &str) -> Wrong {
    format!("{what}: {}", std::io::Error::last_os_error()).into()
}

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

impl Memory {
    /// mmap anywhere.
    pub(super) fn map(bytes: usize, protection: i32, flags: i32) -> Result<Memory, Wrong> {
        Memory::map_at(0, bytes, protection, flags)
    }

    /// mmap with an address. With MAP_FIXED the place must be the program's own reservation.
    pub(super) fn map_at(at: usize, bytes: usize, protection: i32, flags: i32) -> Result<Memory, Wrong> {
        // SAFETY: new memory; where `flags` replaces a mapping, the caller has reserved the address.
        let start = unsafe { libc::mmap(pointer(at), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(last_error("mmap"));
        }
        Ok(Memory { start: start.expose_provenance(), bytes })
    }

    /// malloc, without a free.
    pub(super) fn allocate(bytes: usize) -> Result<Memory, Wrong> {
        // SAFETY: a new allocation, which no other code has.
        let start = unsafe { libc::malloc(bytes) };
        if start.is_null() {
            return Err(last_error("malloc"));
        }
        Ok(Memory { start: start.expose_provenance(), bytes })
    }

    /// sbrk.
    pub(super) fn grow_heap(bytes: usize) -> Result<Memory, Wrong> {
        // SAFETY: the allocator finds out that the heap has grown without it.
        let start = unsafe { libc::sbrk(isize::try_from(bytes)?) };
        if start.addr() == usize::MAX {
            return Err(last_error("sbrk"));
        }
        Ok(Memory { start: start.expose_provenance(), bytes })
    }

    /// mremap that may move.
    pub(super) fn resize(self, bytes: usize) -> Result<Memory, Wrong> {
        // SAFETY: a mapping of ours; only the caller has an address in it, and gets the new one.
        let start = unsafe { libc::mremap(pointer(self.start), self.bytes, bytes, libc::MREMAP_MAYMOVE) };
        if start == libc::MAP_FAILED {
            return Err(last_error("mremap"));
        }
        Ok(Memory { start: start.expose_provenance(), bytes })
    }

    /// mprotect.
    pub(super) fn protect(self, protection: i32) -> Result<(), Wrong> {
        // SAFETY: ours; a caller that forbids access makes none.
        match unsafe { libc::mprotect(pointer(self.start), self.bytes, protection) } {
            0 => Ok(()),
            _ => Err(last_error("mprotect")),
        }
    }

    /// munmap.
    pub(super) fn unmap(self) -> Result<(), Wrong> {
        // SAFETY: ours, and not used any more.
        match unsafe { libc::munmap(pointer(self.start), self.bytes) } {
            0 => Ok(()),
            _ => Err(last_error("munmap")),
        }
    }

    /// A part of it.
    pub(super) fn part(self, from: usize, bytes: usize) -> Memory {
        assert!(from + bytes <= self.bytes, "outside");
        Memory { start: self.start + from, bytes }
    }

    /// Writes a word to every `step`th page, from the seed and the position.
    pub(super) fn fill(self, seed: u64, step: usize) {
        for at in (0..self.bytes / PAGE * PAGE).step_by(step * PAGE) {
            self.word(at).store(pattern(seed, at), Relaxed);
        }
    }

    /// Checks them.
    pub(super) fn check(self, seed: u64, step: usize) -> Result<(), Wrong> {
        for at in (0..self.bytes / PAGE * PAGE).step_by(step * PAGE) {
            let found = self.word(at).load(Relaxed);
            if found != pattern(seed, at) {
                return Err(format!("content: {found:#x} at {at:#x} of {self:x?} written with {seed}").into());
            }
        }
        Ok(())
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= self.bytes, "outside");
        let word = std::ptr::with_exposed_provenance::<AtomicU64>((self.start + at).next_multiple_of(8));
        // SAFETY: memory of this program with eight bytes here (and eight more, after those of the last page), mapped
        // as long as the caller has it.
        unsafe { &*word }
    }

    /// Number of whole windows that fit into this many bytes, at any address.
    pub(super) fn windows(self) -> usize {
        self.bytes / HUGE
    }

    /// Number of its huge windows.
    pub(super) fn huge_windows(self) -> Result<usize, Wrong> {
        let within = |window: &Window| {
            let start = index(window.start().0);
            start >= self.start && start + HUGE <= self.start + self.bytes
        };
        let all = hugepages::count::huge_windows(&Rooted::host(), Pid::own())?;
        Ok(all.iter().filter(|window| within(window)).count())
    }

    /// Whether it is marked as wanting huge pages.
    pub(super) fn is_advised(self) -> Result<bool, Wrong> {
        let all = linux::smaps::details(&Rooted::host(), Pid::own())?;
        let here = all.iter().find(|details| {
            let range = details.mapping.range;
            (range.start().0..range.end().0).contains(&(self.start as u64))
        });
        Ok(here.ok_or("it is not mapped")?.flags.contains(VmFlag::HugePage))
    }
}

fn pattern(seed: u64, at: usize) -> u64 {
    (seed << 40 ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}
