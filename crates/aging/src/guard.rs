//! The thread that looks whether there is room for what is pinned, and lets go when there is not.
//!
//! It does nothing else and waits for nobody but the time: a file server that does not answer, a terminal that takes no more
//! lines hold up the rest of masu, and not this. Whoever pins does so under [`Guard::lock`], a part at a time, some 30 ms at most, and
//! neither opens files nor looks what is in memory meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use linux::cgroup::limited::Limited;
use linux::{Error, KernelFiles};
use rustix::io::Errno;
use units::{Bytes, Fraction};

use crate::pins::Pins;
use crate::policy;
use crate::report::{Because, Event};
use crate::room::{self, Named, Stall};

/// What is pinned, and the thread that looks after it. Dropping it lets all go.
#[derive(Debug)]
pub struct Guard {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    kept: Mutex<Kept>,
    changed: Condvar,
}

/// What is pinned, and what is known of the room for it.
#[derive(Debug)]
pub struct Kept {
    /// What is pinned.
    pub pins: Pins,
    /// The groups that may have limits.
    pub limits: Vec<Limited>,
    /// What is left in the room that has least.
    pub tightest: Bytes,
    stall: Stall,
    /// Rooms that were scarce.
    holds: BTreeMap<String, Hold>,
    releases: u64,
    events: Vec<Event>,
    failed: Option<Error>,
    is_over: bool,
}

/// New pins that are charged to a room wait.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Instant,
    length: Duration,
}

impl Guard {
    /// Begins to look after these pins.
    ///
    /// # Errors
    /// `Other` when no thread can be started.
    pub fn begin<F: KernelFiles + Sync>(files: &'static F, pins: Pins, stall: Stall) -> Result<Guard, Error> {
        let kept = Kept {
            pins,
            limits: Vec::new(),
            tightest: Bytes(0),
            stall,
            holds: BTreeMap::new(),
            releases: 0,
            events: Vec::new(),
            failed: None,
            is_over: false,
        };
        let shared = Arc::new(Shared { kept: Mutex::new(kept), changed: Condvar::new() });
        let ours = Arc::clone(&shared);
        let thread = Builder::new().name("masu-guard".to_owned()).spawn(move || {
            // Whoever lets memory go must be able to when others take all of it and all of the processors. Without the
            // privilege it goes on as it is.
            let _ = rustix::process::nice(-10);
            ours.look_after(files);
        });
        let thread = thread.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error);
            Error::of_host("start", "a thread", errno)
        })?;
        Ok(Guard { shared, thread: Some(thread) })
    }

    /// What is pinned, for whoever changes it. The thread looks at the rooms as soon as it is given back.
    pub fn lock(&self) -> Locked<'_> {
        Locked { kept: self.shared.lock(), changed: &self.shared.changed }
    }

    /// What was let go since the last call, and how often that was for want of room; or why nothing could be looked after, so
    /// that nothing is pinned.
    ///
    /// # Errors
    /// What the thread met.
    pub fn news(&self) -> Result<(Vec<Event>, u64), Error> {
        let mut kept = self.shared.lock();
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            // It panicked, and that was printed. Nothing stays pinned that nobody looks after.
            kept.pins.forget();
            return Err(Error::of_host("look after", "what is pinned", Errno::CANCELED));
        }
        let news = (std::mem::take(&mut kept.events), std::mem::take(&mut kept.releases));
        kept.failed.take().map_or(Ok(news), Err)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // If it panicked, that was printed; the pins go all the same.
        }
    }
}

/// What is pinned, held.
#[derive(Debug)]
pub struct Locked<'a> {
    kept: MutexGuard<'a, Kept>,
    changed: &'a Condvar,
}

impl std::ops::Deref for Locked<'_> {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.kept
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Kept {
        &mut self.kept
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing that panics leaves the pins half changed in a way that letting them go would mind.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_after(&self, files: &impl KernelFiles) {
        let begun = Instant::now();
        let mut kept = self.lock();
        while !kept.is_over {
            if kept.pins.asked() == Bytes(0) {
                kept = self.changed.wait(kept).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Err(error) = kept.look(files, begun.elapsed()) {
                kept.give_up(error);
                continue;
            }
            let wait = policy::look_again_after(kept.tightest);
            kept = self.changed.wait_timeout(kept, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Kept {
    /// True while nothing new is to be pinned that is charged to this room; the host's is that of all.
    pub fn is_on_hold(&self, room: &str) -> bool {
        self.holds.get(room).is_some_and(|hold| Instant::now() < hold.until)
    }

    /// Nothing new is to be pinned that is charged to this room for a while.
    pub fn hold_on(&mut self, room: &str) {
        let now = Instant::now();
        let since = |until: Instant| now.saturating_duration_since(until);
        let length = policy::hold_for(self.holds.get(room).map(|hold| (hold.length, since(hold.until))));
        // Those that are over for so long that the next one is as the first; groups come and go.
        self.holds.retain(|_, hold| policy::hold_for(Some((hold.length, since(hold.until)))) > policy::hold_for(None));
        self.holds.insert(room.to_owned(), Hold { until: now + length, length });
    }

    /// Lets all go.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn let_all_go(&mut self) -> Result<Bytes, Error> {
        self.pins.let_go(Bytes(u64::MAX), None)
    }

    /// The rooms that bound what is pinned; lets go when one of them is nearly used up.
    fn look(&mut self, files: &impl KernelFiles, now: Duration) -> Result<(), Error> {
        let stalled = self.stall.tick(files, now)?;
        let rooms = room::rooms(files, &self.limits, &self.pins.charged())?;
        self.tightest = room::tightest(&rooms);
        rooms.iter().try_for_each(|room| self.look_at(room, stalled))
    }

    fn look_at(&mut self, Named { name, groups, room }: &Named, stalled: Fraction) -> Result<(), Error> {
        if !policy::must_let_go(*room, stalled) || self.pins.asked() == Bytes(0) {
            return Ok(());
        }
        let margin = policy::margin(room.limit);
        // Enough that it is not at once so again; the rest may be what keeps others from reading it all again.
        let bytes = self.pins.let_go(margin.scaled(3.0).saturating_sub(room.left), groups.as_ref())?;
        if bytes == Bytes(0) {
            return Ok(());
        }
        self.hold_on(name);
        self.releases += 1;
        let (room, left_bytes) = (name.clone(), room.left);
        let because = if left_bytes < margin {
            Because::Room { room, left_bytes, margin_bytes: margin }
        } else {
            Because::Stalled { stalled, room, left_bytes }
        };
        self.events.push(Event::LetGo { bytes, because });
        Ok(())
    }

    /// Nothing stays pinned that nobody can look after.
    fn give_up(&mut self, error: Error) {
        self.hold_on(room::THE_HOST);
        // What cannot be let go page by page goes with its mapping.
        if self.let_all_go().is_err() {
            self.pins.forget();
        }
        self.failed = Some(error);
    }
}
