//! Moves of pages between the program's addresses and the victim queue's slots, by the chosen backend.
//!
//! On `move` their frames move: a thread finds such a page on one side or on the other. On `copy` an evicted page is
//! protected against writes first. Threads go on reading it. A thread that writes gets SIGBUS and waits for the lock in
//! the handler; after that the page is gone, or may be written again. Then the page is copied to the slot and its frame
//! given to the kernel. Pages in two places at a time are one piece of [`Backend::doubled_pages`], under the lock.
//!
//! The kernel must have no write of its own in progress to an evicted page: it writes to the frame that it had found,
//! without another look. `move` is refused then, `copy` is not. So the targets of the program's calls are pinned, and
//! kernel writes for the library (`memory::write_words`) are made under the lock.

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::Backend;

use crate::kernel::call;
use crate::uffd::Uffd;

const POPULATE_WRITE: i32 = 23;
const EBUSY: i64 = -(libc::EBUSY as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);

/// Number of bytes in the next piece.
fn piece(backend: Backend, bytes: u64) -> u64 {
    bytes.min(u64::from(backend.doubled_pages()) * PAGE_BYTES)
}

/// Moves pages of slots to the program's addresses; the slots are empty then. Returns the number of bytes, from the
/// first on, and the reason for the end.
///
/// # Safety
/// The slots are the victim queue's, and have frames.
pub unsafe fn map_in(uffd: Uffd, slot: u64, address: u64, bytes: u64) -> (u64, i64) {
    match uffd.backend {
        // SAFETY: the caller's.
        Backend::Copy => unsafe { map_in_copy(uffd, slot, address, piece(uffd.backend, bytes)) },
        Backend::Move => {
            // SAFETY: the caller's: nobody reads the remains of a slot without a frame.
            let (moved, why) = unsafe { uffd.move_frames(address, slot, bytes) };
            if moved > 0 || why != EINVAL || bytes > PAGE_BYTES {
                return (moved, why);
            }
            // Memory that the program may only read.
            // SAFETY: the caller's.
            unsafe { map_in_copy(uffd, slot, address, bytes) }
        }
    }
}

/// # Safety
/// That of [`come`].
unsafe fn map_in_copy(uffd: Uffd, slot: u64, address: u64, bytes: u64) -> (u64, i64) {
    // SAFETY: the caller's; frames of slots whose content has come are given back.
    unsafe {
        let (copied, why) = uffd.copy(address, slot, bytes);
        if copied > 0 {
            call!(libc::SYS_madvise, slot, copied, libc::MADV_DONTNEED);
        }
        (copied, why)
    }
}

/// Moves pages of the program to empty slots. Returns the number of bytes, from the first on, and the reason for the
/// end.
///
/// # Safety
/// The slots are the victim queue's, and empty. The lock is held; a thread that touches an evicted page waits for it.
pub unsafe fn evict(uffd: Uffd, address: u64, slot: u64, bytes: u64) -> (u64, i64) {
    match uffd.backend {
        // SAFETY: the caller's.
        Backend::Copy => unsafe { evict_copy(uffd, address, slot, piece(uffd.backend, bytes)) },
        Backend::Move => {
            // SAFETY: the caller's.
            let out = || unsafe { uffd.move_frames(slot, address, bytes) };
            let (moved, why) = out();
            if moved > 0 || why != EBUSY {
                return (moved, why);
            }
            // A fork has shared it, and the kernel moves only pages of one program: as it is after a write.
            // SAFETY: changes no content.
            unsafe { call!(libc::SYS_madvise, address, bytes, POPULATE_WRITE) };
            out()
        }
    }
}

/// # Safety
/// That of [`leave`].
unsafe fn evict_copy(uffd: Uffd, address: u64, slot: u64, bytes: u64) -> (u64, i64) {
    // A range of several mappings may be protected in part before the kernel fails. Pages that stay may be written
    // again.
    let stays = |from: u64| {
        if from < bytes {
            uffd.write_protect(address + from, bytes - from, false);
        }
    };
    let answer = uffd.write_protect(address, bytes, true);
    if answer < 0 {
        stays(0);
        return (0, answer);
    }
    // The kernel reads memory that the program may read, and returns EFAULT for the rest, and for missing pages.
    // SAFETY: the caller's; the copied pages are protected, so they do not change. Their frames are not needed then.
    unsafe {
        let (copied, why) = uffd.copy(slot, address, bytes);
        let given = if copied > 0 { call!(libc::SYS_madvise, address, copied, libc::MADV_DONTNEED) } else { 0 };
        if given < 0 {
            call!(libc::SYS_madvise, slot, copied, libc::MADV_DONTNEED);
            stays(0);
            return (0, given);
        }
        stays(copied);
        (copied, why)
    }
}
