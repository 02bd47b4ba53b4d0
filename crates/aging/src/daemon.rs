//! The control loop: scan, decide, act, measure, report.
//!
//! The caller steps a [`Daemon`], and waits between steps for [`Daemon::wait`]. The expensive scan of all mappings runs
//! rarely enough to take less than a hundredth of the time. A separate thread in `guard` monitors the headroom of
//! mlocked pages, however long a step takes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use access::insertions::Membership;
use access::observer::Stopwatch;
use linux::journal::HostSettings;
use linux::{Error, KernelFiles, Pid, processes, stat};
use units::Bytes;

use crate::class::Class;
use crate::controller;
use crate::headroom::{self, Clock, Named, Stall};
use crate::headroom_monitor::HeadroomMonitor;
use crate::left_out::{Said, Tally};
use crate::levels::{ByClass, Levels, Preferences};
use crate::mapped;
use crate::mlocks::{self, MlockBounds, MlockHeadroom, Mlocks};
use crate::policy;
use crate::report::{Because, Event, OfClass, Refaults, Summary};
use crate::scan::{RefaultSamples, Scan};
use crate::scope::{Scope, find};
use crate::streams::Streams;
use crate::swap::Swap;

/// Settings of the control loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Scope.
    pub scope: Scope,
    /// Bounds of the level of each class.
    pub wishes: Preferences,
    /// Upper limit of mlocked bytes.
    pub budget: Bytes,
    /// Data has a level only because all mapped classes have one: where it has no effect, that is reported, and the
    /// rest continues.
    pub data_with_the_rest: bool,
}

/// Ages pages by class until it is dropped or finished; then the previous state is restored.
#[derive(Debug)]
pub struct Daemon<F: KernelFiles + Sync + 'static> {
    files: &'static F,
    settings: Settings,
    dials: Levels,
    protected: ByClass<bool>,
    pins: Option<HeadroomMonitor>,
    budget: Bytes,
    clock: Clock,
    stall: Stall,
    pressed: Duration,
    next_refresh: Duration,
    /// Bytes mlocked in parts and not reported yet, and whether more can be mlocked at once.
    in_parts: Bytes,
    /// Scan result, while its pages are mlocked in parts.
    look: Option<Scan>,
    sightings: RefaultSamples,
    /// Files left out by the last scan, and the lines about them.
    left_out: Tally,
    said: Said,
    /// "Nothing can be mlocked" was reported: for all, and for some domains.
    said_no_room: bool,
    said_full: BTreeSet<String>,
    /// Start time of each named process: pids are reused.
    begun: BTreeMap<Pid, u64>,
    swap: Option<Swap>,
    streams: Option<Streams>,
    knobs: HostSettings<'static, F>,
    control: ByClass<Control>,
    control_next: Duration,
    summary: Summary,
}

/// Controller state of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Control {
    /// Refaults since the last check, and in all.
    refaults: u64,
    all_refaults: u64,
    /// The pressure clock at the last refault, or at the last move.
    quiet_since: Duration,
}

/// Time between steps; limits of the mapping scan: its shortest interval, and its largest part of a processor.
const STEP: Duration = Duration::from_millis(500);
const REFRESH_EVERY: Duration = Duration::from_secs(1);
const REFRESH_PART: u32 = 320;
const REFRESH_LATEST: Duration = Duration::from_secs(60);
/// Bytes to mlock at most before the headroom is read again: some 10 ms, and as long again to measure them.
const PART: Bytes = Bytes::mib(64);
/// Smallest change that is reported in a line.
const WORTH_A_LINE: Bytes = Bytes::mib(1);

impl<F: KernelFiles + Sync + 'static> Daemon<F> {
    /// Prepares the loop, and does the one-time work.
    ///
    /// # Errors
    /// `Unsupported` without such a group; `Denied` without the privileges.
    pub fn begin(
        files: &'static F,
        settings: Settings,
        streams: Option<Streams>,
        knobs: HostSettings<'static, F>,
    ) -> Result<(Daemon<F>, Vec<Event>), Error> {
        let group = find(files, &settings.scope)?;
        let dials = settings.wishes.at_first();
        let pins = mlocks::CLASSES
            .into_iter()
            .any(|class| dials.get(class).is_some())
            .then(|| Mlocks::new(files))
            .transpose()?;
        let pins = pins.map(|pins| HeadroomMonitor::begin(files, pins, Stall::of(group.as_ref()))).transpose()?;
        let mut events = Vec::new();
        let mut knobs = knobs;
        let begun = match &settings.scope {
            Scope::Processes(pids) => {
                pids.iter().filter_map(|pid| Some((*pid, stat::stat(files, *pid).ok()?.start_ticks))).collect()
            }
            Scope::Host | Scope::Group(_) => BTreeMap::new(),
        };
        let swap = match Swap::begin(
            files,
            &settings.scope,
            group.as_ref(),
            &dials,
            settings.data_with_the_rest,
            &mut knobs,
            &mut events,
        ) {
            Err(Error::Unsupported(at)) if settings.data_with_the_rest => {
                events.push(Event::Without { what: Class::Data.name().to_owned(), why: format!("cannot {at}") });
                None
            }
            answer => answer?,
        };
        let keeper = Daemon {
            files,
            dials,
            protected: ByClass::default(),
            pins,
            budget: settings.budget,
            clock: Clock::of(group.as_ref()),
            stall: Stall::of(group.as_ref()),
            pressed: Duration::ZERO,
            next_refresh: Duration::ZERO,
            in_parts: Bytes(0),
            look: None,
            sightings: RefaultSamples::default(),
            left_out: Tally::default(),
            said: Said::default(),
            said_no_room: false,
            said_full: BTreeSet::new(),
            begun,
            swap,
            streams,
            knobs,
            control: ByClass::default(),
            control_next: controller::EVERY,
            summary: Summary::default(),
            settings,
        };
        Ok((keeper, events))
    }

    /// Includes the streams of `pid` from now on.
    ///
    /// # Errors
    /// When too many processes are followed.
    pub fn follow(&self, pid: Pid, membership: Membership) -> Result<(), access::backend::Unavailable> {
        self.streams.as_ref().map_or(Ok(()), |streams| streams.follow(pid, membership))
    }

    /// Ends the following of a process.
    pub fn unfollow(&self, pid: Pid) {
        if let Some(streams) = &self.streams {
            streams.dismiss(pid);
        }
    }

    /// Scans first, and acts until all wanted pages are mlocked or `is_haste` returns true: processes started after
    /// this find them protected.
    ///
    /// # Errors
    /// As [`Daemon::step`].
    pub fn settle(&mut self, is_haste: &dyn Fn() -> bool) -> Result<Vec<Event>, Error> {
        const MOST: Duration = Duration::from_secs(10);
        let begun = Instant::now();
        let mut events = self.step(Duration::ZERO)?;
        while self.look.is_some() && begun.elapsed() < MOST && !is_haste() {
            events.extend(self.step(begun.elapsed())?);
        }
        Ok(events)
    }

    /// Scans once and acts on the result.
    ///
    /// # Errors
    /// Errors that make further steps useless: a missing privilege. A process, file or group that is gone is no error.
    pub fn step(&mut self, now: Duration) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        match self.try_step(now, &mut events) {
            // Transient errors are retried; nothing stays mlocked without a monitor in between.
            Err(error @ (Error::Other(_) | Error::Gone(_))) => {
                if let Some(guard) = &self.pins {
                    let mut kept = guard.lock();
                    kept.hold_on(headroom::THE_HOST);
                    kept.let_all_go()?;
                }
                self.next_refresh = now + REFRESH_EVERY;
                self.look = None;
                events.push(Event::Without { what: "pinned for now".to_owned(), why: error.to_string() });
            }
            answer => answer?,
        }
        Ok(events)
    }

    fn try_step(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<(), Error> {
        self.pressed = self.clock.tick(self.files, now)?;
        if let Some(guard) = &self.pins {
            let (news, releases) = guard.news()?;
            events.extend(news);
            self.summary.releases += releases;
            let turned = self.take_turns(events);
            if turned {
                self.look = None; // of classes that are exposed now
            }
            if turned || self.look.is_some() || now >= self.next_refresh {
                self.refresh(now, events)?;
            }
        }
        if let Some(streams) = &mut self.streams {
            streams.step(self.files, now, events)?;
        }
        if now >= self.control_next {
            self.control(now, events)?;
        }
        Ok(())
    }

    /// Unlocks all pages, for a caller that stops stepping for a while. Later steps mlock them again.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn let_all_go(&mut self) -> Result<Option<Event>, Error> {
        let Some(guard) = &self.pins else { return Ok(None) };
        self.look = None;
        let bytes = guard.lock().let_all_go()?;
        Ok((bytes > Bytes(0)).then_some(Event::LetGo { bytes, because: Because::Paused }))
    }

    /// Time to wait before the next step.
    pub fn wait(&self) -> Duration {
        if self.look.is_some() {
            return Duration::from_millis(1);
        }
        self.streams.as_ref().map_or(STEP, Streams::wait)
    }

    /// Unlocks all pages, restores all settings, and returns a summary. Pages written by streams are waited for, unless
    /// `is_haste` returns true.
    ///
    /// # Errors
    /// A setting that could not be restored; its record stays in the journal.
    pub fn finish(mut self, now: Duration, is_haste: &dyn Fn() -> bool) -> Result<(Summary, Vec<Event>), Error> {
        let mut events = Vec::new();
        // Unlocks first, because others may wait for that; dropping the pages of streams takes a moment.
        if let Some(guard) = self.pins.take()
            && let Ok((news, releases)) = guard.news()
        {
            events.extend(news);
            self.summary.releases += releases;
        }
        let followed =
            self.swap.as_mut().map_or(Ok(()), |swap| swap.follow(self.files, &mut self.knobs, &mut Vec::new()));
        let put_back = self.knobs.restore().and(followed);
        if let Some(streams) = &mut self.streams {
            streams.finish(self.files, now, is_haste, &mut events)?;
            (self.summary.dropped_bytes, self.summary.left_bytes) = streams.totals();
        }
        self.summary.refaults = self
            .control
            .iter()
            .filter(|(class, _)| self.dials.get(*class).is_some())
            .map(|(class, control)| Refaults { class, refaults: control.all_refaults })
            .collect();
        put_back?;
        Ok((self.summary.clone(), events))
    }

    /// Updates the duty cycles; returns true if a class changed its phase.
    fn take_turns(&mut self, events: &mut Vec<Event>) -> bool {
        let before = self.protected;
        for class in mlocks::CLASSES {
            let Some(dial) = self.dials.get(class) else { continue };
            let protected = policy::is_protected(dial, self.pressed);
            self.protected.set(class, protected);
            // The first phase is not reported.
            if protected != before.get(class) && self.next_refresh > Duration::ZERO {
                events.push(Event::Turn { class, dial, protected });
            }
        }
        before != self.protected
    }

    /// Scans the mappings, unless the previous result is not fully mlocked yet, and mlocks a part of it.
    fn refresh(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<(), Error> {
        let stopwatch = Stopwatch::start();
        let look = match self.look.take() {
            Some(look) => look,
            None => match self.look(now, events)? {
                Some(look) => look,
                None => return Ok(()),
            },
        };
        let goes_on = self.pin(&look, now, events)?;
        // Processor time stolen by others does not count as used: the scan matters most on a busy host.
        let pause = (stopwatch.elapsed() * REFRESH_PART).clamp(REFRESH_EVERY, REFRESH_LATEST);
        self.next_refresh = now + pause;
        self.look = goes_on.then_some(look);
        Ok(())
    }

    /// Scans the mappings. The pins are locked only while files are handed over.
    fn look(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<Option<Scan>, Error> {
        let pids = self.processes()?;
        let mut mapped = mapped::of(self.files, &pids);
        let limits = headroom::limits(self.files)?;
        let Some(guard) = &self.pins else { return Ok(None) };
        let mut admitted = guard.lock().pins.admit(&mut mapped, &self.dials, now);
        let opened = mlocks::open_all(self.files, &admitted.missing, &mapped);
        tracing::debug!(processes = pids.len(), new_files = admitted.missing.len(), unlocked = %admitted.let_go, "scan");
        let sources = {
            let mut kept = guard.lock();
            kept.limits = limits;
            admitted.left_out.add_all(kept.pins.take(opened, &mapped, now));
            kept.pins.sources()
        };
        if admitted.let_go >= WORTH_A_LINE {
            events.push(Event::LetGo { bytes: admitted.let_go, because: Because::Unwanted });
        }
        self.left_out = admitted.left_out;
        let look = Scan::at(mapped, &sources, &self.dials);
        for (class, refaults) in self.sightings.note(&look).iter() {
            self.note(class, refaults);
        }
        Ok(Some(look))
    }

    /// Mlocks a part of the scan result; returns true if there may be more.
    fn pin(&mut self, look: &Scan, now: Duration, events: &mut Vec<Event>) -> Result<bool, Error> {
        let group = find(self.files, &self.settings.scope).ok().flatten();
        let Some(guard) = &self.pins else { return Ok(false) };
        let mut kept = guard.lock();
        // The groups charged with a page are known only after the mlock; the groups of the processes are a good guess.
        let mut charged = kept.pins.known_groups();
        charged.extend(group.into_iter().flat_map(|group| group.inodes));
        let named = headroom::rooms(self.files, &kept.limits, &charged)?;
        let of_room = |of: &Named| {
            let more = policy::may_pin(of.room);
            let more = if kept.is_on_hold(&of.name) { Bytes(0) } else { more };
            MlockHeadroom { groups: of.groups.clone(), more: more.pages() }
        };
        let rooms: Vec<MlockHeadroom> = named.iter().map(of_room).collect();
        let bounds = MlockBounds { all: self.budget, more: PART, rooms: &rooms };
        let mut done = kept.pins.refresh(look, &self.dials, &self.protected, bounds, now)?;
        let goes_on = done.without > Bytes(0) && done.pinned > Bytes(0);
        if !goes_on {
            kept.pins.tidy();
        }
        self.left_out.add_all(std::mem::take(&mut done.refused));
        self.in_parts += done.pinned;
        // New pages are charged to a group: from now on that domain is monitored, as early as necessary.
        let tightest = headroom::tightest(&headroom::rooms(self.files, &kept.limits, &kept.pins.charged())?);
        kept.tightest = tightest;
        let pins = &kept.pins;
        let pinned_bytes = pins.bytes();
        self.summary.pinned_bytes_max = self.summary.pinned_bytes_max.max(pinned_bytes);
        if done.let_go >= WORTH_A_LINE {
            events.push(Event::LetGo { bytes: done.let_go, because: Because::Unwanted });
        }
        if self.in_parts >= WORTH_A_LINE && !goes_on {
            let of = |class| OfClass { class, pinned_bytes: pins.bytes_of(class) };
            events.push(Event::Pinned {
                bytes: std::mem::take(&mut self.in_parts),
                pinned_bytes,
                classes: mlocks::CLASSES.into_iter().map(of).collect(),
                files: pins.files(),
                without_bytes: done.without,
                budget_bytes: self.budget,
                left_bytes: tightest,
            });
        }
        let nothing_is = pins.asked() == Bytes(0);
        drop(kept);
        if !goes_on {
            self.tell_left_out(done.left_out, look, now, events);
        }
        if goes_on || done.without < WORTH_A_LINE {
            return Ok(goes_on);
        }
        // A domain without headroom delays only the pages charged to it.
        let full = named.iter().zip(&done.without_in).skip(1).filter(|(_, without)| **without >= WORTH_A_LINE);
        for (of, without) in full {
            if self.said_full.insert(of.name.clone()) {
                let margin = policy::margin(of.room.limit);
                let why = format!(
                    "it is charged to {}, of whose {} {} are left, and twice {margin} must be after it",
                    of.name, of.room.limit, of.room.left
                );
                events.push(Event::Without { what: format!("{without} of what is mapped"), why });
            }
        }
        if nothing_is && !self.said_no_room && self.said_full.is_empty() {
            self.said_no_room = true;
            let why = format!(
                "there is no room for it: at most {} may be pinned, and twice the margin must be left after it",
                self.budget
            );
            events.push(Event::Without { what: format!("{} of what is mapped", done.without), why });
        }
        Ok(false)
    }

    fn tell_left_out(&mut self, of_memory: Tally, look: &Scan, now: Duration, events: &mut Vec<Event>) {
        let mut left_out = std::mem::take(&mut self.left_out);
        left_out.add_all(of_memory);
        let said = self.said.of(left_out, &look.mapped.owners, now);
        events.extend(said.into_iter().map(Event::LeftOut));
    }

    fn processes(&self) -> Result<BTreeSet<Pid>, Error> {
        let mut pids = match &self.settings.scope {
            Scope::Host => processes::processes(self.files)?.into_iter().collect(),
            Scope::Group(_) => find(self.files, &self.settings.scope)
                .ok()
                .flatten()
                .map_or_else(BTreeSet::new, |group| group.processes),
            Scope::Processes(pids) => {
                let is_same = |pid: &&Pid| {
                    stat::stat(self.files, **pid).is_ok_and(|now| self.begun.get(*pid) == Some(&now.start_ticks))
                };
                pids.iter().filter(is_same).copied().collect()
            }
        };
        pids.remove(&Pid::own());
        Ok(pids)
    }

    /// Moves the levels that have bounds to move in.
    fn control(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<(), Error> {
        self.control_next = now + controller::EVERY;
        let stalled = self.stall.tick(self.files, now)?;
        self.follow_group_again()?;
        if let Some(swap) = &mut self.swap {
            swap.follow(self.files, &mut self.knobs, events)?;
            let came_back = swap.refaults(self.files)?;
            self.note(Class::Data, came_back);
        }
        for (class, wish) in self.settings.wishes.iter() {
            let (Some(bounds), Some(dial)) = (wish, self.dials.get(class)) else { continue };
            let mut control = self.control.get(class);
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let refaults_per_s = control.refaults as f64 / controller::EVERY.as_secs_f64();
            control.refaults = 0;
            let quiet = self.pressed.saturating_sub(control.quiet_since);
            let moved = controller::moved(dial, bounds, controller::Seen { refaults_per_s, quiet, stalled });
            if let Some((to, why)) = moved {
                control.quiet_since = self.pressed;
                self.dials.set(class, Some(to));
                events.push(Event::Moved { class, from: dial, to, why });
                if let (Class::Data, Some(swap)) = (class, &mut self.swap) {
                    swap.turn(to, &mut self.knobs, events)?;
                }
                if let (Class::Cache, Some(streams)) = (class, &mut self.streams) {
                    streams.set_dial(to);
                }
            }
            self.control.set(class, control);
        }
        Ok(())
    }

    /// Detects a group that was removed and created again, as for a restarted service: it has the same name but is
    /// another group.
    fn follow_group_again(&mut self) -> Result<(), Error> {
        let (Some(streams), Scope::Group(_)) = (&self.streams, &self.settings.scope) else { return Ok(()) };
        let Ok(Some(group)) = find(self.files, &self.settings.scope) else { return Ok(()) };
        let Ok(inode) = self.files.inode(group.path.trim_start_matches('/')) else { return Ok(()) };
        let told = streams.follow_group(inode);
        told.map_err(|why| Error::malformed("the control group that is watched", why.reason))
    }

    /// Adds refaults of a class.
    fn note(&mut self, class: Class, refaults: u64) {
        let mut control = self.control.get(class);
        control.refaults += refaults;
        control.all_refaults += refaults;
        if refaults > 0 {
            control.quiet_since = self.pressed;
        }
        self.control.set(class, control);
    }
}
