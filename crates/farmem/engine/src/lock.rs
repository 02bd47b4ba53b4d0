//! The pager's lock: one word that is free, held, or waited for, and one that counts starving threads.
//!
//! The first thread that asks takes the lock, even before woken threads, since a context switch for each page would
//! cost more than the page. A thread that was woken in vain declares itself starving: then new threads wait until it
//! had its turn.
//!
//! Waiting and waking are left to [`Word`]: the kernel's futex in `farmem/agent`, and a model of it in `tests/lock.rs`,
//! which explores all orders of the threads' steps.

use core::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// Vain wakeups before a thread is starving.
const PATIENCE: u32 = 2;

/// Longest time that new threads wait for a starving one, and time after which a waiting thread looks again.
const LET_IN_NS: i64 = 1_000_000;
const LOOK_NS: i64 = 1_000_000_000;

/// Atomic word on which threads can wait. Without an order in its name or arguments, an operation is relaxed.
pub trait Word {
    /// Reads the word.
    fn load(&self) -> u32;

    /// Sets the word. Returns its old value.
    fn swap(&self, value: u32, order: Ordering) -> u32;

    /// Sets the word to `to` if it is `from`: then with `order`. Returns whether it was.
    fn replace(&self, from: u32, to: u32, order: Ordering) -> bool;

    /// Adds one.
    fn add_one(&self);

    /// Subtracts one; zero stays.
    fn take_one(&self);

    /// Waits for a wakeup, if the word has this value; a waker sees both as one step. Returns whether `most_ns` has
    /// passed. It may return for no reason.
    fn wait(&self, value: u32, most_ns: i64) -> bool;

    /// Wakes at most `most` waiting threads.
    fn wake(&self, most: i32);
}

const FREE: u32 = 0;
const LOCKED: u32 = 1;
/// Held, and a thread waits.
const CONTENDED: u32 = 2;

/// Lock over two words.
#[derive(Debug)]
pub struct Lock<W: Word> {
    state: W,
    /// Number of starving threads.
    starving: W,
}

/// Guard: the lock is held as long as it lives.
#[derive(Debug)]
pub struct Guard<'a, W: Word>(&'a Lock<W>);

impl<W: Word> Lock<W> {
    /// Creates a free lock. Both words are zero.
    pub const fn over(state: W, starving: W) -> Lock<W> {
        Lock { state, starving }
    }

    /// Waits until the lock is free, and takes it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, W> {
        if self.starving.load() != 0 || !self.state.replace(FREE, LOCKED, Acquire) {
            self.lock_contended();
        }
        Guard(self)
    }

    #[cold]
    fn lock_contended(&self) {
        let starving = self.starving.load();
        if starving != 0 {
            // Once, and not for long: a starving thread gets its turn, but nothing depends on it. One that starves
            // longer has ended.
            if self.starving.wait(starving, LET_IN_NS) {
                let _ = self.starving.replace(starving, 0, Relaxed);
            }
        }
        let mut woken = 0;
        while self.state.swap(CONTENDED, Acquire) != FREE {
            self.state.wait(CONTENDED, LOOK_NS);
            woken += 1;
            if woken == PATIENCE {
                self.starving.add_one();
            }
        }
        if woken >= PATIENCE {
            self.starving.take_one();
            self.starving.wake(i32::MAX);
        }
    }
}

impl<W: Word> Drop for Guard<'_, W> {
    #[inline]
    fn drop(&mut self) {
        if self.0.state.swap(FREE, Release) == CONTENDED {
            self.0.state.wake(1);
        }
    }
}
