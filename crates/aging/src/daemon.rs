//! The control loop: scan, decide, act, measure, report.
//!
//! The caller steps a [`Daemon`], and waits between steps for [`Daemon::wait`]. The expensive scan of all mappings runs
//! rarely enough to take less than a hundredth of the time. A separate thread monitors the headroom of mlocked pages
//! ([`crate::headroom_monitor`]), however long a step takes.

mod duty_cycle;
mod level_control;
mod mlock_loop;
mod shortfall;

use std::time::{Duration, Instant};

use access::backend::Unavailable;
use access::insertions::Membership;
use linux::journal::HostSettings;
use linux::{Error, KernelFiles, Pid};
use units::{Bytes, Fraction};

use crate::class::Class;
use crate::levels::Preferences;
use crate::report::{Event, Running, Summary, UnlockReason};
use crate::scope::{Members, Scope};
use crate::streams::Streams;
use crate::swap::Swap;
use level_control::LevelControl;
use mlock_loop::MlockLoop;

/// Settings of the control loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Scope.
    pub scope: Scope,
    /// Bounds of the level of each class.
    pub preferences: Preferences,
    /// Upper limit of mlocked bytes.
    pub budget: Bytes,
    /// Data has a level only because all mapped classes have one: where it has no effect, that is reported, and the
    /// rest continues.
    pub data_with_the_rest: bool,
}

/// Failure that makes further steps useless, by the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonError {
    /// A kernel interface of the host: mostly a missing privilege.
    Host(Error),
    /// The BPF program of the page-cache insertions refuses its maps; the remedy comes with it.
    Insertions(Unavailable),
}

impl From<Error> for DaemonError {
    fn from(error: Error) -> DaemonError {
        DaemonError::Host(error)
    }
}

impl From<Unavailable> for DaemonError {
    fn from(why: Unavailable) -> DaemonError {
        DaemonError::Insertions(why)
    }
}

/// Ages pages by class until it is dropped or finished; then the previous state is restored.
#[derive(Debug)]
pub struct Daemon<F: KernelFiles + Sync + 'static> {
    files: &'static F,
    members: Members,
    control: LevelControl,
    mlocks: Option<MlockLoop>,
    swap: Option<Swap>,
    streams: Option<Streams>,
    host_settings: HostSettings<'static, F>,
}

/// Time between steps.
const STEP: Duration = Duration::from_millis(500);

/// Delay of the next scan after a transient error, and the shortest interval of scans.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Smallest change that is reported in a line.
const REPORTED_MIN: Bytes = Bytes::mib(1);

impl<F: KernelFiles + Sync + 'static> Daemon<F> {
    /// Prepares the loop, and does the one-time work.
    ///
    /// # Errors
    /// `Unsupported` without such a group; `Denied` without the privileges.
    pub fn begin(
        files: &'static F,
        settings: Settings,
        streams: Option<Streams>,
        mut host_settings: HostSettings<'static, F>,
    ) -> Result<(Daemon<F>, Vec<Event>), Error> {
        let Settings { scope, preferences, budget, data_with_the_rest } = settings;
        let group = scope.group(files)?;
        let control = LevelControl::new(preferences, group.as_ref());
        let mlocks = MlockLoop::begin(files, control.levels(), budget, group.as_ref())?;
        let members = Members::of(files, scope);
        let mut events: Vec<Event> = control.stands_still(files).into_iter().collect();
        let swap = match Swap::begin(
            files,
            members.scope(),
            group.as_ref(),
            control.levels(),
            data_with_the_rest,
            &mut host_settings,
            &mut events,
        ) {
            Err(Error::Unsupported(at)) if data_with_the_rest => {
                events.push(Event::Skipped { what: Class::Data.name().to_owned(), why: format!("cannot {at}") });
                None
            }
            answer => answer?,
        };
        Ok((Daemon { files, members, control, mlocks, swap, streams, host_settings }, events))
    }

    /// Includes the streams of `pid` from now on.
    ///
    /// # Errors
    /// When too many processes are followed.
    pub fn follow(&self, pid: Pid, membership: Membership) -> Result<(), Unavailable> {
        self.streams.as_ref().map_or(Ok(()), |streams| streams.follow(pid, membership))
    }

    /// Ends the following of a process.
    pub fn unfollow(&self, pid: Pid) {
        if let Some(streams) = &self.streams {
            streams.dismiss(pid);
        }
    }

    /// Followed processes that still run: those that were named, and their descendants. Empty without streams.
    pub fn members(&self) -> Vec<Running> {
        let members = self.streams.as_ref().map_or(Vec::new(), |streams| streams.members(self.files));
        members.into_iter().map(|(pid, name)| Running { pid, name }).collect()
    }

    /// Scans first, and acts until all wanted pages are mlocked or `is_urgent` returns true: processes started
    /// after this find them protected.
    ///
    /// # Errors
    /// As [`Daemon::step`].
    pub fn settle(&mut self, is_urgent: &dyn Fn() -> bool) -> Result<Vec<Event>, DaemonError> {
        const MOST: Duration = Duration::from_secs(10);
        let begun = Instant::now();
        let mut events = self.step(Duration::ZERO)?;
        while self.has_more_to_mlock() && begun.elapsed() < MOST && !is_urgent() {
            events.extend(self.step(begun.elapsed())?);
        }
        Ok(events)
    }

    fn has_more_to_mlock(&self) -> bool {
        self.mlocks.as_ref().is_some_and(MlockLoop::is_unfinished)
    }

    /// Scans once and acts on the result.
    ///
    /// # Errors
    /// Errors that make further steps useless. A process, file or group that is gone is no error.
    pub fn step(&mut self, now: Duration) -> Result<Vec<Event>, DaemonError> {
        let mut events = Vec::new();
        match self.try_step(now, &mut events) {
            // Transient errors are retried; nothing stays mlocked without a monitor in between.
            Err(DaemonError::Host(error @ (Error::Other(_) | Error::Gone(_)))) => {
                let what = match &mut self.mlocks {
                    Some(mlocks) => {
                        mlocks.back_off(now)?;
                        "the rest of this step, and unlocked all pages"
                    }
                    None => "the rest of this step",
                };
                events.push(Event::Skipped { what: what.to_owned(), why: error.to_string() });
            }
            answer => answer?,
        }
        Ok(events)
    }

    fn try_step(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<(), DaemonError> {
        self.control.tick(self.files, now)?;
        if let Some(mlocks) = &mut self.mlocks {
            mlocks.step(self.files, &self.members, &mut self.control, now, events)?;
        }
        if let Some(streams) = &mut self.streams {
            streams.step(self.files, now, events)?;
        }
        if let Some(stalled) = self.control.round(self.files, now)? {
            self.move_levels(stalled, events)?;
        }
        Ok(())
    }

    /// Unlocks all pages, for a caller that stops stepping for a while. Later steps mlock them again.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn unlock_all(&mut self) -> Result<Option<Event>, Error> {
        let Some(mlocks) = &mut self.mlocks else { return Ok(None) };
        let bytes = mlocks.unlock_all()?;
        Ok((bytes > Bytes(0)).then_some(Event::Unlocked { bytes, reason: UnlockReason::Paused }))
    }

    /// Time to wait before the next step.
    pub fn wait(&self) -> Duration {
        if self.has_more_to_mlock() {
            return Duration::from_millis(1);
        }
        self.streams.as_ref().map_or(STEP, Streams::wait)
    }

    /// Unlocks all pages, restores all settings, and returns a summary. Pages written by streams are waited for, unless
    /// `is_urgent` returns true.
    ///
    /// # Errors
    /// A setting that could not be restored; its record stays in the journal.
    pub fn finish(mut self, now: Duration, is_urgent: &dyn Fn() -> bool) -> Result<(Summary, Vec<Event>), DaemonError> {
        let (mut events, mut summary) = (Vec::new(), Summary::default());
        // Unlocks first, because others may wait for that; dropping the pages of streams takes a moment.
        if let Some(mlocks) = self.mlocks.take() {
            (summary.mlocked_bytes_max, summary.releases) = mlocks.finish(&mut events);
        }
        let followed =
            self.swap.as_mut().map_or(Ok(()), |swap| swap.follow(self.files, &mut self.host_settings, &mut Vec::new()));
        let restored = self.host_settings.restore().and(followed);
        if let Some(streams) = &mut self.streams {
            streams.finish(self.files, now, is_urgent, &mut events)?;
            let tally = streams.tally();
            summary.brought_in_bytes = tally.all_brought_in().bytes();
            (summary.dropped_bytes, summary.left_bytes) = (tally.all_dropped().bytes(), tally.all_left().bytes());
            summary.left = tally.lines();
        }
        summary.refaults = self.control.refaults();
        restored?;
        summary.settings_left = self.host_settings.left_alone().to_vec();
        Ok((summary, events))
    }

    /// Moves the levels that have bounds to move in.
    fn move_levels(&mut self, stalled: Fraction, events: &mut Vec<Event>) -> Result<(), DaemonError> {
        self.follow_group_again()?;
        if let Some(swap) = &mut self.swap {
            swap.follow(self.files, &mut self.host_settings, events)?;
            self.control.add(Class::Data, swap.refaults(self.files)?);
        }
        for class in Class::ALL {
            let due = self.control.due_move(class, stalled);
            if let Some((from, to, why)) = due {
                let mut written = Vec::new();
                // A level moves together with its setting; after an error both keep their values.
                if let (Class::Data, Some(swap)) = (class, &mut self.swap) {
                    swap.write(to, &mut self.host_settings, &mut written)?;
                }
                if let (Class::Cache, Some(streams)) = (class, &mut self.streams) {
                    streams.set_level(to);
                }
                events.push(Event::Moved { class, from, to, why });
                events.append(&mut written);
            }
            self.control.end_round(class, due.map(|(_, to, _)| to));
        }
        Ok(())
    }

    /// Detects a group that was removed and created again, as for a restarted service: it has the same name but is
    /// another group.
    fn follow_group_again(&self) -> Result<(), Unavailable> {
        let (Some(streams), Some(group)) = (&self.streams, self.members.group(self.files)) else { return Ok(()) };
        let Ok(inode) = self.files.inode(group.path.trim_start_matches('/')) else { return Ok(()) };
        streams.follow_group(inode)
    }
}
