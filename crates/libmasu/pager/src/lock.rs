//! The pager's lock. Whoever holds it has all signals blocked, touches no paged memory, and waits for nobody but the store.
//!
//! Who comes first takes it, even before those who were woken, since a switch of threads for each page would cost more than
//! the page. A thread that was woken in vain says that it is starving: then those who come wait until it had its turn.

use core::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::kernel::{self, call};
use crate::process;

/// So often a thread is woken in vain.
const PATIENCE: u32 = 2;

pub struct Lock {
    /// 0: free; 1: held; 2: held, and somebody waits.
    state: AtomicU32,
    /// How many are starving.
    starving: AtomicU32,
}

pub struct Held<'a>(&'a Lock);

impl Lock {
    pub const fn new() -> Lock {
        Lock { state: AtomicU32::new(0), starving: AtomicU32::new(0) }
    }

    pub fn hold(&self) -> Held<'_> {
        if self.starving.load(Relaxed) != 0 || self.state.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.hold_in_turn();
        }
        Held(self)
    }

    #[cold]
    fn hold_in_turn(&self) {
        let starving = self.starving.load(Relaxed);
        if starving != 0 {
            // Once, and not for long: who starves is let in, but nobody depends on it. Whoever says so for longer is no more.
            if wait(&self.starving, starving, 1_000_000) {
                let _ = self.starving.compare_exchange(starving, 0, Relaxed, Relaxed);
            }
        }
        let mut woken = 0;
        while self.state.swap(2, Acquire) != 0 {
            wait(&self.state, 2, 1_000_000_000);
            woken += 1;
            if woken == PATIENCE {
                self.starving.fetch_add(1, Relaxed);
            }
        }
        if woken >= PATIENCE {
            let _ = self.starving.fetch_update(Relaxed, Relaxed, |starving| starving.checked_sub(1));
            wake(&self.starving, i32::MAX);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.state.swap(0, Release) == 2 {
            wake(&self.0.state, 1);
        }
    }
}

/// Waits while the word has this value, or until so much time has passed: says whether it has.
fn wait(word: &AtomicU32, value: u32, most_ns: i64) -> bool {
    let most = libc::timespec { tv_sec: most_ns / 1_000_000_000, tv_nsec: most_ns % 1_000_000_000 };
    let most = (&raw const most).expose_provenance();
    // SAFETY: waits on our own word, and reads our own memory.
    let answer = unsafe {
        call!(libc::SYS_futex, word.as_ptr().addr(), libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, value, most)
    };
    let in_vain = answer == -i64::from(libc::ETIMEDOUT);
    if in_vain && process::is_left_behind() {
        // The child of a vfork, whose parent was killed, maybe with the lock: nobody will give it back.
        kernel::end(128 + libc::SIGKILL);
    }
    in_vain
}

fn wake(word: &AtomicU32, most: i32) {
    // SAFETY: wakes those who wait on our own word.
    unsafe { call!(libc::SYS_futex, word.as_ptr().addr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, most) };
}
