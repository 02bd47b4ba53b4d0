//! A lock that knows its owner: who has it and asks again, from a callback or a signal handler, is told so and never waits.

use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The thread that has it; 0 for nobody.
pub struct Lock {
    owner: AtomicI32,
    waiting: AtomicI32,
}

/// It is this thread's already.
pub struct Owned;

impl Lock {
    pub const fn new() -> Lock {
        Lock { owner: AtomicI32::new(0), waiting: AtomicI32::new(0) }
    }

    /// Waits for it.
    pub fn take(&self) -> Result<(), Owned> {
        let own = own_thread();
        loop {
            match self.owner.compare_exchange(0, own, Acquire, Relaxed) {
                Ok(_) => return Ok(()),
                Err(owner) if owner == own => return Err(Owned),
                Err(owner) => {
                    self.waiting.fetch_add(1, SeqCst);
                    futex(&self.owner, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, owner);
                    self.waiting.fetch_sub(1, SeqCst);
                }
            }
        }
    }

    /// Takes it if nobody has it: for signal handlers.
    pub fn try_take(&self) -> bool {
        self.owner.compare_exchange(0, own_thread(), Acquire, Relaxed).is_ok()
    }

    /// Gives it back.
    pub fn give(&self) {
        self.owner.store(0, Release);
        // Between the two a waiter may come and sleep: it sleeps only while the owner is who it saw, and that has changed.
        core::sync::atomic::fence(SeqCst);
        if self.waiting.load(Relaxed) > 0 {
            futex(&self.owner, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        }
    }
}

/// This thread, as the kernel numbers it.
pub fn own_thread() -> i32 {
    // SAFETY: asks.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

fn futex(word: &AtomicI32, operation: i32, value: i32) {
    // SAFETY: the word lives as long as the call; without a timeout the other arguments are not read. It may come back
    // early, which is looked into by whoever called.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, core::ptr::null::<u8>()) };
}
