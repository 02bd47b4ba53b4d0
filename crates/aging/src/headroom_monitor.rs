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

use crate::headroom::{self, Domain, Stall};
use crate::mlocks::Mlocks;
use crate::policy;
use crate::report::{Event, UnlockReason};

/// Mlocked pages and their headroom monitor. Dropping it unlocks all pages.
#[derive(Debug)]
pub struct HeadroomMonitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Mlocked pages and the known headroom for them.
#[derive(Debug)]
pub struct State {
    /// Mlocked pages.
    pub mlocks: Mlocks,
    /// Control groups that may have limits.
    pub limits: Vec<Limited>,
    /// Smallest headroom of all domains.
    pub headroom: Bytes,
    stall: Stall,
    /// Delays of new mlocks, by domain.
    delays: BTreeMap<String, Delay>,
    releases: u64,
    events: Vec<Event>,
    failed: Option<Error>,
    is_over: bool,
}

/// Delay of new mlocks that are charged to a domain.
#[derive(Clone, Copy, Debug)]
struct Delay {
    until: Instant,
    length: Duration,
}

impl HeadroomMonitor {
    /// Starts the monitor of these pages.
    ///
    /// # Errors
    /// `Other` when no thread can be started.
    pub fn begin<F: KernelFiles + Sync>(
        files: &'static F,
        mlocks: Mlocks,
        stall: Stall,
    ) -> Result<HeadroomMonitor, Error> {
        let state = State {
            mlocks,
            limits: Vec::new(),
            headroom: Bytes(0),
            stall,
            delays: BTreeMap::new(),
            releases: 0,
            events: Vec::new(),
            failed: None,
            is_over: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let ours = Arc::clone(&shared);
        let thread = Builder::new().name("masu-headroom".to_owned()).spawn(move || {
            // The thread must be able to unlock memory while other programs use all memory and all processors. Without
            // the privilege it keeps its priority.
            let _ = rustix::process::nice(-10);
            ours.monitor(files);
        });
        let thread = thread.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error);
            Error::of_host("start", "a thread", errno)
        })?;
        Ok(HeadroomMonitor { shared, thread: Some(thread) })
    }

    /// Locks the state for a change. The thread checks the headroom as soon as the lock is released.
    pub fn lock(&self) -> Locked<'_> {
        Locked { state: self.shared.lock(), changed: &self.shared.changed }
    }

    /// Bytes unlocked since the last call and the number of unlocks for lack of headroom, or the error that stopped
    /// the monitor; after such an error nothing stays mlocked.
    ///
    /// # Errors
    /// Error of the thread.
    pub fn take_events(&self) -> Result<(Vec<Event>, u64), Error> {
        let mut state = self.shared.lock();
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            // The thread panicked and printed that. Nothing stays mlocked without a monitor.
            state.mlocks.forget();
            return Err(Error::of_host("monitor", "the headroom of mlocked pages", Errno::CANCELED));
        }
        let taken = (std::mem::take(&mut state.events), std::mem::take(&mut state.releases));
        state.failed.take().map_or(Ok(taken), Err)
    }
}

impl Drop for HeadroomMonitor {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // A panic was printed; the pages are unlocked all the same.
        }
    }
}

/// Lock guard of the state.
#[derive(Debug)]
pub struct Locked<'a> {
    state: MutexGuard<'a, State>,
    changed: &'a Condvar,
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave the pages in a state that unlocking could not handle.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn monitor(&self, files: &impl KernelFiles) {
        let begun = Instant::now();
        let mut state = self.lock();
        while !state.is_over {
            if state.mlocks.asked() == Bytes(0) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if let Err(error) = state.check(files, begun.elapsed()) {
                state.give_up(error);
                continue;
            }
            let wait = policy::check_after(state.headroom);
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// True while new mlocks charged to this domain wait. A wait of the host applies to all.
    pub fn is_delayed(&self, domain: &str) -> bool {
        self.delays.get(domain).is_some_and(|delay| Instant::now() < delay.until)
    }

    /// Delays new mlocks that are charged to this domain.
    pub fn delay(&mut self, domain: &str) {
        let now = Instant::now();
        let since = |until: Instant| now.saturating_duration_since(until);
        let length = policy::delay_after(self.delays.get(domain).map(|delay| (delay.length, since(delay.until))));
        // Drops entries that expired long enough ago to have no effect on the next wait; groups come and go.
        self.delays.retain(|_, delay| {
            policy::delay_after(Some((delay.length, since(delay.until)))) > policy::delay_after(None)
        });
        self.delays.insert(domain.to_owned(), Delay { until: now + length, length });
    }

    /// Unlocks all pages.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn unlock_all(&mut self) -> Result<Bytes, Error> {
        self.mlocks.unlock(Bytes(u64::MAX), None)
    }

    /// Reads the headroom of the domains that bound the mlocked pages; unlocks pages when one domain is nearly used up.
    fn check(&mut self, files: &impl KernelFiles, now: Duration) -> Result<(), Error> {
        let stalled = self.stall.tick(files, now)?;
        let domains = headroom::domains(files, &self.limits, &self.mlocks.charged())?;
        self.headroom = headroom::minimum(&domains);
        domains.iter().try_for_each(|domain| self.check_domain(domain, stalled))
    }

    fn check_domain(&mut self, Domain { name, groups, headroom }: &Domain, stalled: Fraction) -> Result<(), Error> {
        if !policy::must_unlock(*headroom, stalled) || self.mlocks.asked() == Bytes(0) {
            return Ok(());
        }
        let low_watermark = policy::low_watermark(headroom.limit);
        // Enough that the next check finds headroom. The remaining pages may still save other programs from re-reading
        // everything.
        let bytes = self.mlocks.unlock(low_watermark.scaled(3.0).saturating_sub(headroom.left), groups.as_ref())?;
        if bytes == Bytes(0) {
            return Ok(());
        }
        self.delay(name);
        self.releases += 1;
        let (domain, headroom_bytes) = (name.clone(), headroom.left);
        let reason = if headroom_bytes < low_watermark {
            UnlockReason::Headroom { domain, headroom_bytes, low_watermark_bytes: low_watermark }
        } else {
            UnlockReason::Stalled { stalled, domain, headroom_bytes }
        };
        self.events.push(Event::Unlocked { bytes, reason });
        Ok(())
    }

    /// Unlocks everything: nothing stays mlocked without a monitor.
    fn give_up(&mut self, error: Error) {
        self.delay(headroom::THE_HOST);
        // Pages that cannot be unlocked one by one go with their mapping.
        if self.unlock_all().is_err() {
            self.mlocks.forget();
        }
        self.failed = Some(error);
    }
}
