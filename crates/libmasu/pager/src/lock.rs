//! The pager's lock. Whoever holds it has all signals blocked, touches no paged memory, and waits for nobody but the store.

use core::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::kernel::call;

/// 0: free; 1: held; 2: held, and somebody waits.
pub struct Lock(AtomicU32);

pub struct Held<'a>(&'a Lock);

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    pub fn hold(&self) -> Held<'_> {
        if self.0.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            while self.0.swap(2, Acquire) != 0 {
                let address = self.0.as_ptr().addr();
                // SAFETY: waits on our own word.
                unsafe { call!(libc::SYS_futex, address, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 2, 0) };
            }
        }
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(0, Release) == 2 {
            let address = self.0.0.as_ptr().addr();
            // SAFETY: wakes those who wait on our own word.
            unsafe { call!(libc::SYS_futex, address, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
        }
    }
}
