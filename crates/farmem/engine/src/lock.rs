//! The pager's lock: one word that is free, held, or waited for, and one that says whether somebody waits for too long.
//!
//! Who comes first takes it, even before those who were woken, since a switch of threads for each page would cost more than
//! the page. A thread that was woken in vain says that it is starving: then those who come wait until it had its turn.
//!
//! What waits and wakes is whoever implements [`Word`]: the kernel's futex in `farmem/agent`, and a model of it in
//! `tests/lock.rs`, which goes through all orders in which threads can meet here.

use core::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// So often a thread is woken in vain.
const PATIENCE: u32 = 2;

/// Those who come wait at most so long for one who is starving, and whoever waits looks again after so long.
const LET_IN_NS: i64 = 1_000_000;
const LOOK_NS: i64 = 1_000_000_000;

/// An atomic word on which threads can wait. Without an order in its name or arguments, an operation is relaxed.
pub trait Word {
    /// What it says.
    fn load(&self) -> u32;

    /// Sets it. Says what was there.
    fn swap(&self, value: u32, order: Ordering) -> u32;

    /// Sets it, if this is there: then with `order`. Says whether it was.
    fn replace(&self, from: u32, to: u32, order: Ordering) -> bool;

    /// One more.
    fn add_one(&self);

    /// One less; zero stays.
    fn take_one(&self);

    /// Waits to be woken, if it has this value; both together are one step for whoever wakes. Says whether so much time has
    /// passed. It may come back for no reason.
    fn wait(&self, value: u32, most_ns: i64) -> bool;

    /// Wakes at most so many who wait.
    fn wake(&self, most: i32);
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody waits.
const WAITED_FOR: u32 = 2;

/// The lock.
#[derive(Debug)]
pub struct Lock<W: Word> {
    state: W,
    /// How many are starving.
    starving: W,
}

/// The lock is held as long as this lives.
#[derive(Debug)]
pub struct Held<'a, W: Word>(&'a Lock<W>);

impl<W: Word> Lock<W> {
    /// Free. Both words are zero.
    pub const fn over(state: W, starving: W) -> Lock<W> {
        Lock { state, starving }
    }

    /// Waits until it is free, and takes it.
    #[inline]
    pub fn hold(&self) -> Held<'_, W> {
        if self.starving.load() != 0 || !self.state.replace(FREE, HELD, Acquire) {
            self.hold_in_turn();
        }
        Held(self)
    }

    #[cold]
    fn hold_in_turn(&self) {
        let starving = self.starving.load();
        if starving != 0 {
            // Once, and not for long: who starves is let in, but nobody depends on it. Whoever says so for longer is no more.
            if self.starving.wait(starving, LET_IN_NS) {
                let _ = self.starving.replace(starving, 0, Relaxed);
            }
        }
        let mut woken = 0;
        while self.state.swap(WAITED_FOR, Acquire) != FREE {
            self.state.wait(WAITED_FOR, LOOK_NS);
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

impl<W: Word> Drop for Held<'_, W> {
    #[inline]
    fn drop(&mut self) {
        if self.0.state.swap(FREE, Release) == WAITED_FOR {
            self.0.state.wake(1);
        }
    }
}
