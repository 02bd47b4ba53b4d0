//! Pages change sides, between the program's addresses and the staging's slots, in the way of the backend on which this stands.
//!
//! On `move` their frames do: whoever touches such a page finds it on one side or on the other. On `copy` a page that leaves
//! is protected against writes first. Threads go on reading it; one that writes gets SIGBUS and waits for the lock in the
//! handler, after which the page is gone, or may be written again. Then it is copied to the slot and its frame given to the
//! kernel. All that is in two places at a time is one piece of [`Backend::doubled_pages`], under the lock.
//!
//! The kernel must have nothing of its own to write to a page that leaves: it writes to the frame that it had found, without
//! another look. `move` is refused then, `copy` is not. So what calls of the program write to is pinned, and what the library
//! has the kernel write to (`memory::write_words`) is written under the lock.

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::Backend;

use crate::kernel::call;
use crate::uffd::Uffd;

const POPULATE_WRITE: i32 = 23;
const EBUSY: i64 = -(libc::EBUSY as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);

/// A piece of what is to be done.
fn piece(backend: Backend, bytes: u64) -> u64 {
    bytes.min(u64::from(backend.doubled_pages()) * PAGE_BYTES)
}

/// Pages of slots come to the program's addresses, and the slots are empty. Says how many bytes, from the first on, and why no more.
///
/// # Safety
/// The slots are the staging's, and have frames.
pub unsafe fn come(uffd: Uffd, slot: u64, address: u64, bytes: u64) -> (u64, i64) {
    match uffd.backend {
        // SAFETY: the caller's.
        Backend::Copy => unsafe { come_copied(uffd, slot, address, piece(uffd.backend, bytes)) },
        Backend::Move => {
            // SAFETY: the caller's: nobody reads what is left of a slot without a frame.
            let (moved, why) = unsafe { uffd.move_frames(address, slot, bytes) };
            if moved > 0 || why != EINVAL || bytes > PAGE_BYTES {
                return (moved, why);
            }
            // Memory that the program may only read.
            // SAFETY: the caller's.
            unsafe { come_copied(uffd, slot, address, bytes) }
        }
    }
}

/// # Safety
/// That of [`come`].
unsafe fn come_copied(uffd: Uffd, slot: u64, address: u64, bytes: u64) -> (u64, i64) {
    // SAFETY: the caller's; frames of slots whose content has come are given back.
    unsafe {
        let (copied, why) = uffd.copy(address, slot, bytes);
        if copied > 0 {
            call!(libc::SYS_madvise, slot, copied, libc::MADV_DONTNEED);
        }
        (copied, why)
    }
}

/// Pages of the program go to empty slots. Says how many bytes, from the first on, and why no more.
///
/// # Safety
/// The slots are the staging's, and empty; the lock is held, for which whoever touches what has left waits.
pub unsafe fn leave(uffd: Uffd, address: u64, slot: u64, bytes: u64) -> (u64, i64) {
    match uffd.backend {
        // SAFETY: the caller's.
        Backend::Copy => unsafe { leave_copied(uffd, address, slot, piece(uffd.backend, bytes)) },
        Backend::Move => {
            // SAFETY: the caller's.
            let out = || unsafe { uffd.move_frames(slot, address, bytes) };
            let (moved, why) = out();
            if moved > 0 || why != EBUSY {
                return (moved, why);
            }
            // A fork has shared it, and the kernel moves only what is one program's own: as it is after a write.
            // SAFETY: changes no content.
            unsafe { call!(libc::SYS_madvise, address, bytes, POPULATE_WRITE) };
            out()
        }
    }
}

/// # Safety
/// That of [`leave`].
unsafe fn leave_copied(uffd: Uffd, address: u64, slot: u64, bytes: u64) -> (u64, i64) {
    // A range of more mappings than one may be protected in part before the kernel says no. What stays may be written again.
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
    // The kernel reads what the program may read, and says EFAULT of the rest, and of pages that are not there.
    // SAFETY: the caller's; what is copied does not change, since it is protected, and its frames are not needed then.
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
