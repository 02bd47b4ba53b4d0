//! A lock with an owner: the owner that takes it again, from a callback or a signal handler, gets an error and never
//! waits.
//!
//! A lock that another thread holds at a fork is free in the child, since the fork does not copy that thread.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::kernel::own_process;

/// The lock.
pub struct Lock {
    /// Owner: the thread, and in the upper half its process; 0 when free.
    owner: AtomicU64,
    waiting: AtomicU32,
}

/// This thread owns it already.
pub struct Owned;

impl Lock {
    pub const fn new() -> Lock {
        Lock { owner: AtomicU64::new(0), waiting: AtomicU32::new(0) }
    }

    /// Waits for the lock.
    pub fn take(&self) -> Result<(), Owned> {
        let own = own();
        loop {
            let owner = match self.owner.compare_exchange(0, own, SeqCst, SeqCst) {
                Ok(_) => return Ok(()),
                Err(owner) => owner,
            };
            if owner == own {
                return Err(Owned);
            }
            if owner >> 32 != own >> 32 {
                // Its owner is a thread of the parent process, which never gives it back here. The first thread takes
                // it over.
                if self.owner.compare_exchange(owner, own, SeqCst, SeqCst).is_ok() {
                    return Ok(());
                }
                continue;
            }
            self.waiting.fetch_add(1, SeqCst);
            futex(&self.owner, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, lower_half(owner));
            self.waiting.fetch_sub(1, SeqCst);
        }
    }

    /// Takes it if it is free: for signal handlers.
    pub fn try_take(&self) -> bool {
        self.owner.compare_exchange(0, own(), SeqCst, SeqCst).is_ok()
    }

    /// Releases it.
    pub fn give(&self) {
        self.owner.store(0, SeqCst);
        // Between the two a waiter may come and sleep: it sleeps only while the owner is the one it saw, and that has
        // changed. In a forked child the number may be too high: then a wake-up is in vain.
        if self.waiting.load(SeqCst) > 0 {
            futex(&self.owner, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        }
    }
}

/// Thread id of this thread.
#[expect(clippy::cast_possible_truncation, reason = "the kernel's thread ids are ints")]
pub fn own_thread() -> i32 {
    // SAFETY: asks.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

fn own() -> u64 {
    u64::from(own_process().cast_unsigned()) << 32 | u64::from(own_thread().cast_unsigned())
}

/// The lower half of a word whose upper half is a process.
pub fn lower_half(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// Acts on the half with the thread.
fn futex(word: &AtomicU64, operation: i32, value: u32) {
    let half = if cfg!(target_endian = "little") { 0 } else { 1 };
    let thread = word.as_ptr().cast::<u32>().wrapping_add(half);
    // SAFETY: the word lives as long as the call; without a timeout the other arguments are not read. It may return
    // early, which the caller handles.
    unsafe { libc::syscall(libc::SYS_futex, thread, operation, value, core::ptr::null::<u8>()) };
}
