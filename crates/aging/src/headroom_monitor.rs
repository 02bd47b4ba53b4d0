//! Headroom monitor: the thread that watches the memory left beside mlocked pages, and unlocks pages when it runs
//! short.
//!
//! The thread has no other task and waits for time only. A file server that does not answer, or a terminal that accepts
//! no output, delays the rest of masu but not this thread. All mlock calls run under [`HeadroomMonitor::lock`], in parts of at
//! most some 30 ms each. No caller opens files or scans memory under that lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use linux::cgroup::limited::Limited;
use linux::{Error, KernelFiles};
use rustix::io::Errno;
use units::{Bytes, Fraction};

use crate::headroom::{self, Named, Stall};
use crate::mlocks::Mlocks;
use crate::policy;
use crate::report::{Because, Event};

/// Mlocked pages and their headroom monitor. Dropping it unlocks all pages.
#[derive(Debug)]
pub struct HeadroomMonitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    kept: Mutex<Kept>,
    changed: Condvar,
}

/// Mlocked pages and the known headroom for them.
#[derive(Debug)]
pub struct Kept {
    /// Mlocked pages.
    pub pins: Mlocks,
    /// Control groups that may have limits.
    pub limits: Vec<Limited>,
    /// Smallest headroom of all domains.
    pub tightest: Bytes,
    stall: Stall,
    /// Domains that ran short.
    holds: BTreeMap<String, Hold>,
    releases: u64,
    events: Vec<Event>,
    failed: Option<Error>,
    is_over: bool,
}

/// Delay of new mlocks that are charged to a domain.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Instant,
    length: Duration,
}

impl HeadroomMonitor {
    /// Starts the monitor for these pins.
    ///
    /// # Errors
    /// `Other` when no thread can be started.
    pub fn begin<F: KernelFiles + Sync>(
        files: &'static F,
        pins: Mlocks,
        stall: Stall,
    ) -> Result<HeadroomMonitor, Error> {
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
            // The thread must be able to unlock memory while other programs use all memory and all processors. Without
            // the privilege it keeps its priority.
            let _ = rustix::process::nice(-10);
            ours.look_after(files);
        });
        let thread = thread.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error);
            Error::of_host("start", "a thread", errno)
        })?;
        Ok(HeadroomMonitor { shared, thread: Some(thread) })
    }

    /// Locks the pins for a change. The thread checks the headroom as soon as the lock is released.
    pub fn lock(&self) -> Locked<'_> {
        Locked { kept: self.shared.lock(), changed: &self.shared.changed }
    }

    /// Bytes unlocked since the last call and the number of releases for lack of headroom, or the error that stopped
    /// the monitor; after such an error nothing stays mlocked.
    ///
    /// # Errors
    /// Error of the thread.
    pub fn news(&self) -> Result<(Vec<Event>, u64), Error> {
        let mut kept = self.shared.lock();
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            // The thread panicked and printed that. Nothing stays mlocked without a monitor.
            kept.pins.forget();
            return Err(Error::of_host("look after", "what is pinned", Errno::CANCELED));
        }
        let news = (std::mem::take(&mut kept.events), std::mem::take(&mut kept.releases));
        kept.failed.take().map_or(Ok(news), Err)
    }
}

impl Drop for HeadroomMonitor {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // A panic was printed; the pins go all the same.
        }
    }
}

/// Lock guard of the pins.
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
        // A panic cannot leave the pins in a state that unlocking could not handle.
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
    /// True while new mlocks charged to this domain wait. A wait of the host applies to all.
    pub fn is_on_hold(&self, room: &str) -> bool {
        self.holds.get(room).is_some_and(|hold| Instant::now() < hold.until)
    }

    /// Delays new mlocks that are charged to this domain.
    pub fn hold_on(&mut self, room: &str) {
        let now = Instant::now();
        let since = |until: Instant| now.saturating_duration_since(until);
        let length = policy::hold_for(self.holds.get(room).map(|hold| (hold.length, since(hold.until))));
        // Drops entries that expired long enough ago to have no effect on the next wait; groups come and go.
        self.holds.retain(|_, hold| policy::hold_for(Some((hold.length, since(hold.until)))) > policy::hold_for(None));
        self.holds.insert(room.to_owned(), Hold { until: now + length, length });
    }

    /// Unlocks all pages.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn let_all_go(&mut self) -> Result<Bytes, Error> {
        self.pins.let_go(Bytes(u64::MAX), None)
    }

    /// Reads the headroom of the domains that bound the pins; unlocks pages when one domain is nearly used up.
    fn look(&mut self, files: &impl KernelFiles, now: Duration) -> Result<(), Error> {
        let stalled = self.stall.tick(files, now)?;
        let rooms = headroom::rooms(files, &self.limits, &self.pins.charged())?;
        self.tightest = headroom::tightest(&rooms);
        rooms.iter().try_for_each(|room| self.look_at(room, stalled))
    }

    fn look_at(&mut self, Named { name, groups, room }: &Named, stalled: Fraction) -> Result<(), Error> {
        if !policy::must_let_go(*room, stalled) || self.pins.asked() == Bytes(0) {
            return Ok(());
        }
        let margin = policy::margin(room.limit);
        // Enough that the next check finds headroom. The remaining pins may still save other programs from re-reading
        // everything.
        let bytes = self.pins.let_go(margin.scaled(3.0).saturating_sub(room.left), groups.as_ref())?;
        if bytes == Bytes(0) {
            return Ok(());
        }
        self.hold_on(name);
        self.releases += 1;
        let (room, left_bytes) = (name.clone(), room.left);
        let because = if left_bytes < margin {
            Because::Headroom { room, left_bytes, margin_bytes: margin }
        } else {
            Because::Stalled { stalled, room, left_bytes }
        };
        self.events.push(Event::LetGo { bytes, because });
        Ok(())
    }

    /// Unlocks everything: without a monitor nothing may stay mlocked.
    fn give_up(&mut self, error: Error) {
        self.hold_on(headroom::THE_HOST);
        // Pages that cannot be unlocked one by one go with their mapping.
        if self.let_all_go().is_err() {
            self.pins.forget();
        }
        self.failed = Some(error);
    }
}
