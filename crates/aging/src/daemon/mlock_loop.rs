//! mlock of mapped pages: scan (observe), choose (diff), mlock in parts (apply).

use std::time::Duration;

use access::observer::Stopwatch;
use linux::cgroup::group::Group;
use linux::{Error, KernelFiles};
use units::Bytes;

use super::duty_cycle::DutyCycle;
use super::level_control::LevelControl;
use super::shortfall::Shortfall;
use super::{REPORTED_MIN, RETRY_AFTER};
use crate::headroom::{self, Domain, Stall};
use crate::headroom_monitor::{HeadroomMonitor, State};
use crate::levels::Levels;
use crate::mlocks::{self, MlockBounds, MlockHeadroom, Mlocks, Refreshed};
use crate::report::{Event, OfClass, UnlockReason};
use crate::scan::{RefaultSamples, Scan};
use crate::scope::Members;
use crate::{mapped, policy};

/// The mapping scan takes at most this part of a processor, and at most this time passes until the next one.
const SCAN_PART: u32 = 320;
const SCAN_EVERY_MAX: Duration = Duration::from_secs(60);

/// Bytes to mlock at most before the headroom is read again: some 10 ms, and as long again to measure them.
const PART: Bytes = Bytes::mib(64);

/// Keeps the pages of the protected classes mlocked.
#[derive(Debug)]
pub struct MlockLoop {
    monitor: HeadroomMonitor,
    budget: Bytes,
    duty_cycle: DutyCycle,
    samples: RefaultSamples,
    next_scan: Duration,
    /// Scan result, while its pages are mlocked in parts.
    scan: Option<Scan>,
    /// Bytes mlocked in parts and not reported yet.
    unreported: Bytes,
    shortfall: Shortfall,
    /// Totals for the summary.
    bytes_max: Bytes,
    releases: u64,
}

impl MlockLoop {
    /// Starts the headroom monitor, if a class with a level can be mlocked.
    ///
    /// # Errors
    /// `Denied` without the privilege to read the frames; `Other` when no thread can be started.
    pub fn begin<F: KernelFiles + Sync>(
        files: &'static F,
        levels: &Levels,
        budget: Bytes,
        group: Option<&Group>,
    ) -> Result<Option<MlockLoop>, Error> {
        if mlocks::CLASSES.into_iter().all(|class| levels.get(class).is_none()) {
            return Ok(None);
        }
        let monitor = HeadroomMonitor::begin(files, Mlocks::new(files)?, Stall::of(group))?;
        Ok(Some(MlockLoop {
            monitor,
            budget,
            duty_cycle: DutyCycle::default(),
            samples: RefaultSamples::default(),
            next_scan: Duration::ZERO,
            scan: None,
            unreported: Bytes(0),
            shortfall: Shortfall::default(),
            bytes_max: Bytes(0),
            releases: 0,
        }))
    }

    /// True while pages of the last scan wait to be mlocked.
    pub fn is_unfinished(&self) -> bool {
        self.scan.is_some()
    }

    /// Updates the duty cycle, then scans and mlocks if that is due. Refaults of the scan go to `control`.
    ///
    /// # Errors
    /// Error of the kernel, or of the headroom monitor.
    pub fn step(
        &mut self,
        files: &impl KernelFiles,
        members: &Members,
        control: &mut LevelControl,
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        self.take_events(events)?;
        let changed = self.duty_cycle.update(control.levels(), control.reclaim_time(), events);
        if changed {
            self.scan = None; // of classes that are exposed now
        }
        if !changed && self.scan.is_none() && now < self.next_scan {
            return Ok(());
        }
        let stopwatch = Stopwatch::start();
        let scan = match self.scan.take() {
            Some(scan) => scan,
            None => self.observe(files, members, control, now, events)?,
        };
        let has_more = self.apply(files, members, &scan, control.levels(), now, events)?;
        // Processor time stolen by others does not count as used: the scan matters most on a busy host.
        self.next_scan = now + (stopwatch.elapsed() * SCAN_PART).clamp(RETRY_AFTER, SCAN_EVERY_MAX);
        self.scan = has_more.then_some(scan);
        Ok(())
    }

    /// Scans the mappings. The monitor's state is locked only while files are handed over.
    fn observe(
        &mut self,
        files: &impl KernelFiles,
        members: &Members,
        control: &mut LevelControl,
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<Scan, Error> {
        let pids = members.processes(files)?;
        let mut mapped = mapped::of(files, &pids);
        let limits = headroom::limits(files)?;
        let mut admitted = self.monitor.lock().mlocks.admit(&mut mapped, control.levels(), now);
        let opened = mlocks::open_all(files, &admitted.missing, &mapped);
        tracing::debug!(processes = pids.len(), new_files = admitted.missing.len(), unlocked = %admitted.unlocked, "scan");
        let sources = {
            let mut state = self.monitor.lock();
            state.limits = limits;
            admitted.left_out.add_all(state.mlocks.take(opened, &mapped, now));
            state.mlocks.sources()
        };
        report_unwanted(admitted.unlocked, events);
        self.shortfall.begin(admitted.left_out);
        let scan = Scan::at(mapped, &sources, control.levels());
        for (class, refaults) in self.samples.note(&scan).iter() {
            control.add(class, refaults);
        }
        Ok(scan)
    }

    /// Mlocks a part of the scan result; returns true if there may be more.
    fn apply(
        &mut self,
        files: &impl KernelFiles,
        members: &Members,
        scan: &Scan,
        levels: &Levels,
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<bool, Error> {
        let group = members.group(files);
        let mut state = self.monitor.lock();
        // The groups charged with a page are known only after the mlock; the groups of the processes are a good guess.
        let mut charged = state.mlocks.known_groups();
        charged.extend(group.into_iter().flat_map(|group| group.inodes));
        let domains = headroom::domains(files, &state.limits, &charged)?;
        let free: Vec<MlockHeadroom> = domains.iter().map(|domain| headroom_of(domain, &state)).collect();
        let bounds = MlockBounds { all: self.budget, more: PART, domains: &free };
        let mut done = state.mlocks.refresh(scan, levels, &self.duty_cycle.protected(), bounds, now)?;
        let has_more = done.without > Bytes(0) && done.mlocked > Bytes(0);
        if !has_more {
            state.mlocks.tidy();
        }
        self.shortfall.add(std::mem::take(&mut done.refused));
        self.unreported += done.mlocked;
        // New pages are charged to a group: from now on that domain is monitored, as early as necessary.
        state.headroom = headroom::minimum(&headroom::domains(files, &state.limits, &state.mlocks.charged())?);
        self.bytes_max = self.bytes_max.max(state.mlocks.bytes());
        report_unwanted(done.unlocked, events);
        if self.unreported >= REPORTED_MIN && !has_more {
            let bytes = std::mem::take(&mut self.unreported);
            events.push(mlocked(bytes, &state, done.without, self.budget));
        }
        let is_empty = state.mlocks.asked() == Bytes(0);
        drop(state);
        if !has_more {
            self.report_shortfall(done, scan, &domains, is_empty, now, events);
        }
        Ok(has_more)
    }

    fn report_shortfall(
        &mut self,
        done: Refreshed,
        scan: &Scan,
        domains: &[Domain],
        is_empty: bool,
        now: Duration,
        events: &mut Vec<Event>,
    ) {
        self.shortfall.report_causes(done.left_out, &scan.mapped.owners, now, events);
        if done.without < REPORTED_MIN {
            return;
        }
        self.shortfall.report_domains(domains, &done.without_in, events);
        if is_empty {
            self.shortfall.report_nothing(done.without, self.budget, events);
        }
    }

    /// Takes the events of the monitor.
    fn take_events(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let (taken, releases) = self.monitor.take_events()?;
        events.extend(taken);
        self.releases += releases;
        Ok(())
    }

    /// Unlocks all pages after a transient error: nothing stays mlocked between failed steps.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn back_off(&mut self, now: Duration) -> Result<(), Error> {
        let mut state = self.monitor.lock();
        state.delay(headroom::THE_HOST);
        state.unlock_all()?;
        self.next_scan = now + RETRY_AFTER;
        self.scan = None;
        Ok(())
    }

    /// Unlocks all pages; returns the amount. Later steps mlock them again.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn unlock_all(&mut self) -> Result<Bytes, Error> {
        self.scan = None;
        self.monitor.lock().unlock_all()
    }

    /// Unlocks all pages, and returns the maximum of mlocked bytes and the number of unlocks for lack of headroom.
    pub fn finish(mut self, events: &mut Vec<Event>) -> (Bytes, u64) {
        let _ = self.take_events(events); // All pages are unlocked now, whatever stopped the monitor.
        (self.bytes_max, self.releases)
    }
}

/// Pages that may be mlocked with charge to a domain.
fn headroom_of(domain: &Domain, state: &State) -> MlockHeadroom {
    let more = if state.is_delayed(&domain.name) { Bytes(0) } else { policy::may_mlock(domain.headroom) };
    MlockHeadroom { groups: domain.groups.clone(), more: more.pages() }
}

fn mlocked(bytes: Bytes, state: &State, without_bytes: Bytes, budget_bytes: Bytes) -> Event {
    let of = |class| OfClass { class, mlocked_bytes: state.mlocks.bytes_of(class) };
    Event::Mlocked {
        bytes,
        mlocked_bytes: state.mlocks.bytes(),
        classes: mlocks::CLASSES.into_iter().map(of).collect(),
        files: state.mlocks.files(),
        without_bytes,
        budget_bytes,
        headroom_bytes: state.headroom,
    }
}

fn report_unwanted(bytes: Bytes, events: &mut Vec<Event>) {
    if bytes >= REPORTED_MIN {
        events.push(Event::Unlocked { bytes, reason: UnlockReason::Unwanted });
    }
}
