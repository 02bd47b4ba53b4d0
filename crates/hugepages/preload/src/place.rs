//! Finding a place for a mapping at a multiple of a superpage, without anybody else's memory in danger.
//!
//! A larger piece of address space is reserved (no memory, no commitment), its head and tail are given back, and the rest
//! becomes the mapping. Whatever fails on the way, for want of address space (RLIMIT_AS, RLIMIT_DATA, strict
//! overcommit) or of mappings (vm.max_map_count), the program's call is made as it stands.
//!
//! Nothing is ever mapped over a reservation: kernels before Linux 6.12 take away what lies there before they find that
//! there is no memory for what comes, and what another thread maps in the hole would then be unmapped with the reservation.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use contract::policy::{self, Size};

use crate::kernel;
use crate::state::STATE;

/// A mapping that lies at a multiple of `size` if that makes a page more of it. `None` when it cannot be had, for whatever
/// reason: then the program's own call is made, and its answer is the program's.
///
/// It has no right at first, so that nothing is committed to it or locked into memory before it lies where it will lie. And
/// it is never moved: to move a mapping makes page tables at the new place, also for one that is empty, and where there is
/// a page table of small pages the kernel puts no huge page.
pub fn map(bytes: usize, size: Size, protection: c_int, flags: c_int) -> Option<usize> {
    // SAFETY: a new mapping at a place that the kernel chooses; `flags` do not say where.
    let first = kernel::mapped(unsafe { kernel::mmap(0, bytes, libc::PROT_NONE, flags, -1, 0) })?;
    let place = if policy::gains_by_alignment(first, bytes, size) {
        // SAFETY: mapped just now, empty, and known to nobody.
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

/// Address space for `bytes`, `phase` bytes behind a multiple of `size`, mapped with `flags` and without any right. It holds
/// nothing and costs nothing but its addresses: what cannot be written is not committed either.
pub fn reserve(bytes: usize, size: Size, phase: usize, flags: c_int) -> Option<usize> {
    let bytes = bytes.checked_next_multiple_of(Size::SMALL.bytes())?;
    let wide = bytes.checked_add(size.bytes() - Size::SMALL.bytes())?;
    // SAFETY: a new mapping at a place that the kernel chooses; `flags` do not say where.
    let start = kernel::mapped(unsafe { kernel::mmap(0, wide, libc::PROT_NONE, flags, -1, 0) })?;
    let place = start + (phase.wrapping_sub(start) & (size.bytes() - 1));
    let (head, tail) = (place - start, start + wide - (place + bytes));
    if head > 0 {
        // SAFETY: the part of our reservation before `place`.
        unsafe { kernel::munmap(start, head) };
    }
    if tail > 0 {
        // SAFETY: the part of our reservation after what is kept.
        unsafe { kernel::munmap(place + bytes, tail) };
    }
    Some(place)
}

/// Flags of memory that is nothing but memory.
pub const PLAIN: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Reservations that were left behind: addresses, and no memory.
static LEFT_BEHIND: AtomicU32 = AtomicU32::new(0);

/// So many at most.
const LEFT_BEHIND_MAX: u32 = 16;

/// Whether a mapping may still be moved to a place of ours.
pub fn may_place() -> bool {
    LEFT_BEHIND.load(Relaxed) < LEFT_BEHIND_MAX
}

/// Gives a reservation back that a failed mremap may have taken away already. If it has, others may have mapped something
/// there since, which cannot be told from the reservation: then it is left as it is.
pub fn give_back(place: usize, bytes: usize) {
    let flags = PLAIN | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: with this flag nothing is replaced.
    let answer = unsafe { kernel::mmap(place, bytes, libc::PROT_NONE, flags, -1, 0) };
    if let Some(at) = kernel::mapped(answer) {
        // SAFETY: mapped just now, known to nobody. (Before Linux 4.17 it may be elsewhere.)
        unsafe { kernel::munmap(at, bytes) };
    } else {
        LEFT_BEHIND.fetch_add(1, Relaxed);
    }
}
