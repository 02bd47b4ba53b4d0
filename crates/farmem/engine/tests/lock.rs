//! The lock in all orders in which a few threads can meet at it, within the memory model (loom): one holds it at a time and
//! sees what the one before did, nobody sleeps on while it is free, and who starves has his turn.
//!
//! loom runs the code itself. Of the kernel's futex it has a model: to look at the word and to go to sleep are one step, and so
//! is to wake. No wait ends by itself here unless a test says so; a thread that sleeps for ever is a deadlock, which loom reports.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex as Plain};

use farmem_engine::lock::{Lock, Word};
use loom::sync::atomic::{AtomicU32, Ordering, Ordering::Relaxed};
use loom::sync::{Condvar, Mutex};
use loom::thread::{self, ThreadId};

/// A word, and who sleeps on it.
struct Modelled {
    value: AtomicU32,
    /// Numbers of those who sleep, in their order, and the next number.
    asleep: Mutex<(Vec<u32>, u32)>,
    woken: Condvar,
    /// So many waits end by themselves, at once.
    in_vain: std::sync::atomic::AtomicU32,
    loads: Loads,
    log: Arc<Log>,
    name: &'static str,
}

/// What happened, in its order: of the test's bookkeeping, so loom knows nothing of it.
#[derive(Default)]
struct Log(Plain<Vec<(ThreadId, &'static str)>>);

impl Log {
    fn note(&self, what: &'static str) {
        self.0.lock().expect("nobody panicked").push((thread::current().id(), what));
    }
}

/// What a relaxed load sees.
#[derive(Clone, Copy)]
enum Loads {
    /// Anything that the memory model allows, also what was there before.
    Old,
    /// What is there at this moment: so it is on x86-64 once a thread has made an exchange, as letting the lock go is one.
    New,
}

impl Modelled {
    fn new(name: &'static str, log: &Arc<Log>, in_vain: u32, loads: Loads) -> Modelled {
        Modelled {
            value: AtomicU32::new(0),
            asleep: Mutex::new((Vec::new(), 0)),
            woken: Condvar::new(),
            in_vain: in_vain.into(),
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
        // The kernel sees what is there at this moment.
        if self.value.fetch_add(0, Relaxed) != value {
            return false;
        }
        if self.in_vain.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
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
    /// Read and written back by who holds the lock, in two steps without an order of their own: where two do so at a time, or
    /// one need not see what the other did, something is lost.
    count: AtomicU32,
    log: Arc<Log>,
}

/// Each thread takes the lock so often, and so many times at most one is interrupted that could go on. So many waits, for the
/// lock and for who starves, end by themselves. Says in how many orders somebody starved.
fn in_all_orders((turns, preemptions): Meeting, in_vain: [u32; 2], loads: Loads) -> u64 {
    let starved = Arc::new(AtomicU64::new(0));
    let counted = starved.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let log = Arc::new(Log::default());
        let (state, starving) =
            (Modelled::new("", &log, in_vain[0], loads), Modelled::new(STARVES, &log, in_vain[1], loads));
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
        if matches!((in_vain, loads), ([0, 0], Loads::New)) {
            who_starves_has_his_turn(&log);
        }
    });
    starved.load(SeqCst)
}

fn take(world: &World, turns: u32) {
    for _ in 0..turns {
        let held = world.lock.hold();
        world.log.note(HOLDS);
        let count = world.count.load(Relaxed);
        world.count.store(count + 1, Relaxed);
        drop(held);
    }
}

/// From when a thread says that it starves until it holds the lock, every other one holds it once at most: who was on its way.
fn who_starves_has_his_turn(log: &[(ThreadId, &'static str)]) {
    for (at, (who, _)) in log.iter().enumerate().filter(|(_, entry)| entry.1 == STARVES) {
        let until = log[at..].iter().take_while(|entry| **entry != (*who, HOLDS));
        let before: Vec<_> = until.filter(|entry| entry.1 == HOLDS).map(|entry| entry.0).collect();
        let others: HashSet<_> = before.iter().collect();
        assert_eq!(others.len(), before.len(), "{log:?}");
    }
}

/// For each thread, how often it takes the lock; and how many times one is interrupted.
type Meeting = (&'static [u32], usize);

/// All of them take a second or two. In each of them somebody starves in some orders.
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

/// A wait has a limit, and a thread that starves may be killed: then nobody says any more that it had its turn.
#[test]
fn nobody_depends_on_being_woken_in_time() {
    for in_vain in [[0, 1], [1, 0], [2, 1]] {
        for (turns, preemptions) in MEETINGS {
            in_all_orders((turns, preemptions.min(2)), in_vain, Loads::Old);
        }
    }
}
