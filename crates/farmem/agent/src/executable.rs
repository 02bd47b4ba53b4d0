//! Memory that may be written and executed: the kernel moves a page only between memory of the same protection. Such a
//! page leaves over a page of the library's that has this protection, too, and is copied from there. The page is made
//! when the program asks for such memory, and empty but for the time of a copy, under the lock.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::Backend;

use crate::exchange;
use crate::kernel::{call, size};
use crate::program::Program;

/// Address of the page; 0: none.
static PAGE_BETWEEN: AtomicU64 = AtomicU64::new(0);

/// Makes the page, with the lock held. False if the kernel refuses, as a security module may.
pub fn make_page(program: &Program) -> bool {
    if program.uffd.backend == Backend::Copy || PAGE_BETWEEN.load(Relaxed) != 0 {
        return true;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: maps new memory of our own.
    let start = unsafe { call!(libc::SYS_mmap, 0, PAGE_BYTES, protection, flags, -1, 0) };
    if (-4095..0).contains(&start) {
        return false;
    }
    let start = start.cast_unsigned();
    // SAFETY: our own memory. It gets its page table by a write, and is empty again.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<u8>(size(start)).write_volatile(0);
        call!(libc::SYS_madvise, start, PAGE_BYTES, libc::MADV_DONTNEED);
        call!(libc::SYS_madvise, start, PAGE_BYTES, libc::MADV_DONTFORK);
        call!(libc::SYS_madvise, start, PAGE_BYTES, libc::MADV_DONTDUMP);
    }
    if !program.uffd.register_slots(start, PAGE_BYTES) {
        // SAFETY: our own memory, of which nobody knows.
        unsafe { call!(libc::SYS_munmap, start, PAGE_BYTES) };
        return false;
    }
    PAGE_BETWEEN.store(start, Relaxed);
    true
}

/// Moves one page of the program to an empty slot. Returns the number of bytes, and the reason for the end: EINVAL, and
/// no other, means that the page is in memory of another kind.
///
/// # Safety
/// As for [`exchange::evict`]: the slot is the victim queue's, and empty; the lock is held, and a thread that touches
/// the page waits for it.
pub unsafe fn take_out(program: &Program, address: u64, slot: u64) -> (u64, i64) {
    let between = PAGE_BETWEEN.load(Relaxed);
    if between == 0 {
        return (0, -i64::from(libc::EINVAL));
    }
    // SAFETY: the caller's; the page is empty, and nobody else uses it while the lock is held.
    let (moved, why) = unsafe { exchange::evict(program.uffd, address, between, PAGE_BYTES) };
    if moved < PAGE_BYTES {
        return (0, why);
    }
    let from = core::ptr::with_exposed_provenance::<u8>(size(between));
    let to = core::ptr::with_exposed_provenance_mut::<u8>(size(slot));
    // SAFETY: two pages of our own, of which the first is given back once the slot has its content.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, size(PAGE_BYTES));
        call!(libc::SYS_madvise, between, PAGE_BYTES, libc::MADV_DONTNEED);
    }
    (PAGE_BYTES, 0)
}
