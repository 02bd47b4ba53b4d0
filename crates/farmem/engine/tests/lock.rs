//! The lock in all orders in which a few threads can meet at it, within the memory model (loom): one thread holds it at
//! a time and sees its predecessor's writes, no thread sleeps on while it is free, and a starving thread gets its turn.
//!
//! loom runs the code itself. The kernel's futex is replaced by a model: looking at the word and going to sleep are one
//! step, and so is waking. No wait ends by itself here unless a test asks for it; a thread that sleeps for ever is a
//! deadlock, which loom reports.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex as Plain};

use farmem_engine::lock::{Lock, Word};
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::Relaxed};
use loom::sync::{Condvar, Mutex};
use loom::thread::{self, ThreadId};

/// Word, and its sleeping threads.
struct Modelled {
    value: AtomicU32,
    /// Numbers of the sleeping threads, in their order, and the next number.
    asleep: Mutex<(Vec<u32>, u32)>,
    woken: Condvar,
    /// Number of waits that end by themselves, at once.
    misses: std::sync::atomic::AtomicU32,
    loads: Loads,
    log: Arc<Log>,
    name: &'static str,
}

/// Events, in their order: the test's bookkeeping, hidden from loom.
#[derive(Default)]
struct Log(Plain<Vec<(ThreadId, &'static str)>>);

impl Log {
    fn note(&self, what: &'static str) {
        self.0.lock().expect("nobody panicked").push((thread::current().id(), what));
    }
}

/// Values that a relaxed load sees.
#[derive(Clone, Copy)]
enum Loads {
    /// Any value that the memory model allows, also an old one.
    Old,
    /// The current value: so it is on x86-64 once a thread has made an exchange, as releasing the lock is one.
    New,
}

impl Modelled {
    fn new(name: &'static str, log: &Arc<Log>, misses: u32, loads: Loads) -> Modelled {
        Modelled {
            value: AtomicU32::new(0),
            asleep: Mutex::new((Vec::new(), 0)),
            woken: Condvar::new(),
            misses: misses.into(),
            loads,
            log: log.clone(),
            name,
        }
    }
}

impl Word for Modelled {
    fn load(&self) -> u32 {
        match self.loads {
            Loads::Old => self.value.load(Relaxed),
            Loads::New => self.value.fetch_add(0, Relaxed),
        }
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.value.swap(value, order)
    }

    fn replace(&self, from: u32, to: u32, order: Ordering) -> bool {
        self.value.compare_exchange(from, to, order, Relaxed).is_ok()
    }

    fn add_one(&self) {
        self.value.fetch_add(1, Relaxed);
        self.log.note(self.name);
    }

    fn take_one(&self) {
        let _ = self.value.fetch_update(Relaxed, Relaxed, |value| value.checked_sub(1));
    }

    fn wait(&self, value: u32, _: i64) -> bool {
        let mut asleep = self.asleep.lock().expect("nobody panicked");
        // The kernel sees the current value.
        if self.value.fetch_add(0, Relaxed) != value {
            return false;
        }
        if self.misses.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            drop(asleep);
            thread::yield_now();
            return true;
        }
        let own = asleep.1;
        asleep.1 += 1;
        asleep.0.push(own);
        while asleep.0.contains(&own) {
            asleep = self.woken.wait(asleep).expect("nobody panicked");
        }
        false
    }

    fn wake(&self, most: i32) {
        let mut asleep = self.asleep.lock().expect("nobody panicked");
        let woken = asleep.0.len().min(usize::try_from(most).unwrap_or(0));
        asleep.0.drain(..woken);
        drop(asleep);
        if woken > 0 {
            self.woken.notify_all();
        }
    }
}

const STARVES: &str = "starves";
const HOLDS: &str = "holds";

struct World {
    lock: Lock<Modelled>,
    /// Read and written back by the holder of the lock, in two steps without an order of their own: if two threads do
    /// so at a time, or one may miss the other's write, a count is lost.
    count: AtomicU32,
    log: Arc<Log>,
}

/// Runs all orders: the number of turns of each thread, and the limit of preemptions. `in_vain` waits, for the lock and
/// for starving threads, end by themselves. Returns the number of orders with a starving thread.
fn in_all_orders((turns, preemptions): Meeting, misses: [u32; 2], loads: Loads) -> u64 {
    let starved = Arc::new(AtomicU64::new(0));
    let counted = starved.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let log = Arc::new(Log::default());
        let (state, starving) =
            (Modelled::new("", &log, misses[0], loads), Modelled::new(STARVES, &log, misses[1], loads));
        let world = loom::sync::Arc::new(World { lock: Lock::over(state, starving), count: AtomicU32::new(0), log });
        let others: Vec<_> = turns[1..]
            .iter()
            .map(|turns| {
                let world = world.clone();
                thread::spawn(move || take(&world, *turns))
            })
            .collect();
        take(&world, turns[0]);
        others.into_iter().for_each(|other| other.join().expect("it came to its end"));
        assert_eq!(world.count.load(Relaxed), turns.iter().sum::<u32>());
        let log = world.log.0.lock().expect("nobody panicked");
        counted.fetch_add(u64::from(log.iter().any(|entry| entry.1 == STARVES)), SeqCst);
        if matches!((misses, loads), ([0, 0], Loads::New)) {
            who_starves_has_his_turn(&log);
        }
    });
    starved.load(SeqCst)
}

fn take(world: &World, turns: u32) {
    for _ in 0..turns {
        let guard = world.lock.lock();
        world.log.note(HOLDS);
        let count = world.count.load(Relaxed);
        world.count.store(count + 1, Relaxed);
        drop(guard);
    }
}

/// Between a thread's declaration of starving and its turn, every other thread holds the lock at most once: if it was
/// on its way.
fn who_starves_has_his_turn(log: &[(ThreadId, &'static str)]) {
    for (at, (who, _)) in log.iter().enumerate().filter(|(_, entry)| entry.1 == STARVES) {
        let until = log[at..].iter().take_while(|entry| **entry != (*who, HOLDS));
        let before: Vec<_> = until.filter(|entry| entry.1 == HOLDS).map(|entry| entry.0).collect();
        let others: HashSet<_> = before.iter().collect();
        assert_eq!(others.len(), before.len(), "{log:?}");
    }
}

/// For each thread, its number of turns; and the limit of preemptions.
type Meeting = (&'static [u32], usize);

/// All of them take a second or two. In each of them a thread starves in some orders.
const MEETINGS: [Meeting; 5] = [(&[2, 2], 5), (&[4, 2], 4), (&[1, 1, 1], 3), (&[2, 1, 1], 3), (&[3, 2, 1], 2)];

#[test]
fn one_holds_it_at_a_time_and_none_sleeps_on() {
    for meeting in MEETINGS {
        assert!(in_all_orders(meeting, [0, 0], Loads::Old) > 0, "{meeting:?}: nobody starved in any order");
    }
}

#[test]
fn who_starves_has_his_turn_before_others_have_two() {
    for meeting in MEETINGS {
        assert!(in_all_orders(meeting, [0, 0], Loads::New) > 0, "{meeting:?}: nobody starved in any order");
    }
}

/// A wait has a limit, and a starving thread may be killed: then it never clears its declaration.
#[test]
fn nobody_depends_on_being_woken_in_time() {
    for misses in [[0, 1], [1, 0], [2, 1]] {
        for (turns, preemptions) in MEETINGS {
            in_all_orders((turns, preemptions.min(2)), misses, Loads::Old);
        }
    }
}
