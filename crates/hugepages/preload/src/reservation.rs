//! Placement of a mapping at a multiple of a superpage, without danger to other mappings.
//!
//! A larger piece of address space is reserved (no memory, no commitment), its head and tail are unmapped, and the
//! rest becomes the mapping. After any failure, for lack of address space (RLIMIT_AS, RLIMIT_DATA, strict overcommit)
//! or of mappings (vm.max_map_count), the program's call is made unchanged.
//!
//! Nothing is ever mapped over a reservation. Kernels before Linux 6.12 unmap the target before they find that there
//! is no memory for the new mapping. Another thread's mapping in that hole would then be unmapped with the
//! reservation.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use contract::placement::{self, Size};

use crate::kernel;
use crate::state::STATE;

/// A mapping at a multiple of `size` if that gains a page. `None` after any failure: then the program's own call is
/// made, and its answer is the program's.
///
/// It has no right at first, so that nothing is committed to it or locked into memory before it has its final
/// address. And it is never moved: moving a mapping makes page tables at the new place, even for an empty one, and
/// over a page table of small pages the kernel puts no huge page.
pub fn map(bytes: usize, size: Size, protection: c_int, flags: c_int) -> Option<usize> {
    // SAFETY: a new mapping at an address of the kernel's choice; `flags` fix no address.
    let first = kernel::mapped(unsafe { kernel::mmap(0, bytes, libc::PROT_NONE, flags, -1, 0) })?;
    let place = if placement::gains_by_alignment(first, bytes, size) {
        // SAFETY: mapped just now, empty, and known only here.
        unsafe { kernel::munmap(first, bytes) };
        reserve(bytes, size, 0, flags)?
    } else {
        first
    };
    // SAFETY: our own empty reservation.
    if protection != libc::PROT_NONE && !unsafe { kernel::mprotect(place, bytes, protection) } {
        // SAFETY: as above; a failed mprotect leaves all of it mapped.
        unsafe { kernel::munmap(place, bytes) };
        return None;
    }
    if place != first {
        STATE.count_aligned();
    }
    Some(place)
}

/// Address space for `bytes`, `phase` bytes behind a multiple of `size`, mapped with `flags` and without any right.
/// It holds nothing and costs nothing but its addresses: memory that cannot be written is not committed either.
pub fn reserve(bytes: usize, size: Size, phase: usize, flags: c_int) -> Option<usize> {
    let bytes = bytes.checked_next_multiple_of(Size::SMALL.bytes())?;
    let wide = bytes.checked_add(size.bytes() - Size::SMALL.bytes())?;
    // SAFETY: a new mapping at an address of the kernel's choice; `flags` fix no address.
    let start = kernel::mapped(unsafe { kernel::mmap(0, wide, libc::PROT_NONE, flags, -1, 0) })?;
    let place = start + (phase.wrapping_sub(start) & (size.bytes() - 1));
    let (head, tail) = (place - start, start + wide - (place + bytes));
    if head > 0 {
        // SAFETY: the part of our reservation before `place`.
        unsafe { kernel::munmap(start, head) };
    }
    if tail > 0 {
        // SAFETY: the part of our reservation after the kept part.
        unsafe { kernel::munmap(place + bytes, tail) };
    }
    Some(place)
}

/// Flags of private anonymous memory.
pub const PLAIN: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Number of abandoned reservations: addresses, and no memory.
static LEFT_BEHIND: AtomicU32 = AtomicU32::new(0);

/// Upper bound.
const LEFT_BEHIND_MAX: u32 = 16;

/// Whether a mapping may still be moved to a place of ours.
pub fn may_place() -> bool {
    LEFT_BEHIND.load(Relaxed) < LEFT_BEHIND_MAX
}

/// Unmaps a reservation that a failed mremap may have unmapped already. If it has, other threads may have mapped
/// something there since, which cannot be told from the reservation: then it is left as it is.
pub fn release(place: usize, bytes: usize) {
    let flags = PLAIN | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: with this flag nothing is replaced.
    let answer = unsafe { kernel::mmap(place, bytes, libc::PROT_NONE, flags, -1, 0) };
    if let Some(at) = kernel::mapped(answer) {
        // SAFETY: mapped just now, known only here. (Before Linux 4.17 it may be elsewhere.)
        unsafe { kernel::munmap(at, bytes) };
    } else {
        LEFT_BEHIND.fetch_add(1, Relaxed);
    }
}
