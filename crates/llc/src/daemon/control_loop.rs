//! The control loop: observe, decide, act, measure again, report.
//!
//! A [`Daemon`] is stepped by its caller, who also waits in between, and reaches the host through [`HostOps`] alone.
//! The ways are divided anew after a relevant change: the running programs, their shared memory by a whole way or
//! more, the known curves, unmanaged groups. New threads are put into their groups at every step.
//!
//! Until everything is in place for the first time, a failure ends the loop, so that no caller takes the cache for
//! divided when it is not. After that a failure is reported, and tried again at the next step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linux::probe::Known;
use linux::resctrl::{Failed, PREFIX, Why};
use linux::{Error, Pid};
use units::{Bytes, Fraction};

use super::allocatable_ways::{Hardware, Unfit};
use super::config::{Config, Whom};
use super::curve::Learned;
use super::decide::Decision;
use super::host_ops::{HostOps, Key, NotMerging, WarmPartition};
use super::layout::{Desired, Masks, TooMany};
use super::members::Members;
use super::others::OtherGroup;
use super::report::{Event, OfCache, Summary, shown};
use super::sharing_groups::SharingGroups;
use super::steps::{Observed, Step, diff, undo};
use super::warm_up::WarmState;

/// Error that ends the loop.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoopError {
    /// The configuration needs more than the host has, or nothing is left to assign.
    #[error("{0}")]
    Unfit(Unfit),
    /// More groups than classes.
    #[error("{0}")]
    TooMany(TooMany),
    /// Either of them, where other tools' groups have classes.
    #[error("{0}")]
    Classes(Box<LoopError>, Vec<OtherGroup>),
    /// A refused step.
    #[error("{}", .0.failed)]
    Step(Box<Refused>),
    /// The file system cannot be read.
    #[error(transparent)]
    Unread(#[from] Failed),
    /// Processes or frames cannot be read.
    #[error(transparent)]
    Unseen(#[from] Error),
    /// Nothing can be done on this host.
    #[error("{0}")]
    Nothing(NotMerging),
}

/// A refused step.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The step.
    pub step: Step,
    /// The kernel's answer.
    pub failed: Failed,
}

impl LoopError {
    fn step(step: Step, failed: Failed) -> LoopError {
        LoopError::Step(Box::new(Refused { step, failed }))
    }
}

/// Divides the cache until `finish` restores the former state.
#[derive(Debug)]
pub struct Daemon<W: HostOps> {
    host: W,
    config: Config,
    hardware: Option<Hardware>,
    members: Members,
    sets: SharingGroups,
    learned: Vec<Learned>,
    /// The allocation visited to learn curves, and the time of its begin.
    visit: Option<(usize, Duration)>,
    visited: bool,
    /// Reason why nothing is counted.
    uncounted: Option<String>,
    stalled: Vec<Option<f64>>,
    inputs: Option<PlanInputs>,
    decision: Option<Decision>,
    desired: Option<Desired>,
    /// The closed loop over measurements, if enabled.
    refining: Option<Refining>,
    /// Programs that ran when the last measurement without partitions began.
    measured_without: Option<Vec<bool>>,
    /// There is time to measure: a plan alone has none.
    refines: bool,
    /// Masks of the default group at the begin.
    before: Option<Masks>,
    /// Reason why no shared partition can be kept warm.
    not_warmed: Option<NotMerging>,
    /// Something was changed, or tried.
    touched: bool,
    /// Everything was in place once.
    settled: bool,
    /// Masks changed by the kernel: by group the requested and the actual ones.
    adjusted: BTreeMap<String, (Masks, Masks)>,
    /// Masks and exclusiveness of the groups as masu left them.
    as_left: BTreeMap<String, (Masks, bool)>,
    /// Differences from that at the last scan, in words, by group. Each is reported with the step that undoes it.
    changed_by_others: BTreeMap<String, String>,
    partitions: BTreeMap<Key, WarmPartition>,
    reported: BTreeSet<String>,
    /// Threads that masu has moved, to tell those that another tool moved away.
    placed: BTreeSet<Pid>,
    /// Groups of other tools from which masu has moved threads.
    origins: BTreeSet<String>,
    /// Unmanaged threads in masu groups at the last scan.
    unmanaged_threads: BTreeSet<Pid>,
    /// Counts of the threads when last added to the summary, and when reported.
    counted: BTreeMap<Key, WarmState>,
    last_reported: BTreeMap<Key, WarmState>,
    steps: u64,
    next_report: Duration,
    /// Totals so far.
    pub summary: Summary,
}

/// Interval between reports of counts.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Divisor of a partition's pages: with more changed pages its copy is made anew.
const STALE: usize = 20;

impl<W: HostOps> Daemon<W> {
    /// A daemon that has done nothing yet.
    ///
    /// # Errors
    /// When the file system cannot be read; when there is nothing to do without it.
    pub fn new(mut host: W, config: Config) -> Result<Daemon<W>, LoopError> {
        let hardware = if config.partition { host.hardware()? } else { None };
        if hardware.is_none()
            && let Err(why) = host.merging()
        {
            return Err(LoopError::Nothing(why));
        }
        let count = config.programs.len();
        Ok(Daemon {
            host,
            config,
            hardware,
            members: Members::default(),
            sets: SharingGroups::default(),
            learned: vec![Learned::default(); count],
            visit: None,
            visited: false,
            uncounted: None,
            stalled: vec![None; count],
            inputs: None,
            decision: None,
            desired: None,
            refining: None,
            measured_without: None,
            refines: true,
            before: None,
            not_warmed: None,
            touched: false,
            settled: false,
            adjusted: BTreeMap::new(),
            as_left: BTreeMap::new(),
            changed_by_others: BTreeMap::new(),
            partitions: BTreeMap::new(),
            reported: BTreeSet::new(),
            placed: BTreeSet::new(),
            origins: BTreeSet::new(),
            unmanaged_threads: BTreeSet::new(),
            counted: BTreeMap::new(),
            last_reported: BTreeMap::new(),
            steps: 0,
            next_report: Duration::ZERO,
            summary: Summary::default(),
        })
    }

    /// The host.
    pub fn host(&self) -> &W {
        &self.host
    }

    /// Plans without applying.
    ///
    /// # Errors
    /// As [`Daemon::step`].
    pub fn plan(&mut self, now: Duration) -> Result<(Vec<Event>, Vec<Step>), LoopError> {
        let mut events = Vec::new();
        self.refines = false;
        self.look(now, &mut events)?;
        let steps = if self.hardware.is_some() {
            let (observed, left_behind) = self.host.observed()?;
            let mut steps: Vec<Step> = left_behind.into_iter().map(without_prefix).map(Step::Remove).collect();
            self.decide_on(&observed, now, &mut events)?;
            self.report_notes(&mut events);
            steps.extend(self.steps_from(&observed));
            steps
        } else {
            Vec::new()
        };
        Ok((events, steps))
    }

    /// Observes once, and acts on the result.
    ///
    /// # Errors
    /// An error that makes continuing pointless.
    pub fn step(&mut self, now: Duration) -> Result<Vec<Event>, LoopError> {
        let mut events = Vec::new();
        if self.steps == 0 && self.hardware.is_some() {
            for group in self.host.collect()? {
                events.push(Event::Done {
                    what: format!("remove group {group}, in which nobody is and which no masu holds"),
                    threads: 0,
                    ended: 0,
                    from: Vec::new(),
                });
            }
        }
        self.look(now, &mut events)?;
        if self.hardware.is_some() {
            let (observed, _) = self.host.observed()?;
            match self.decide_on(&observed, now, &mut events) {
                // The partitions stay unchanged: their sharing groups may have changed by now.
                Err(error) if self.settled => {
                    self.report_missing("a new plan", &error.to_string(), &mut events);
                    self.stop_warm_ups(&observed);
                }
                answer => {
                    answer?;
                    if self.arrange(&observed, &mut events)? {
                        self.warm_up(&mut events)?;
                    }
                }
            }
        } else {
            self.warm_up(&mut events)?;
        }
        self.report(now, &mut events);
        self.steps += 1;
        Ok(events)
    }

    /// Time until the next step.
    pub fn wait(&self) -> Duration {
        self.config.interval
    }

    /// All programs were named by their processes, and all of these have ended.
    pub fn is_over(&self) -> bool {
        let named = self.config.programs.iter().all(|program| matches!(program.whom, Whom::Pids(_)));
        named && self.steps > 0 && self.members.programs.iter().all(BTreeMap::is_empty)
    }

    /// Removes everything.
    ///
    /// # Errors
    /// The first failure, after all the rest was tried.
    pub fn finish(mut self) -> (Summary, Vec<Event>, Result<(), LoopError>) {
        let mut events = Vec::new();
        self.count_warm_ups();
        self.host.keep_only(&BTreeSet::new());
        let mut first: Result<(), LoopError> = Ok(());
        let (mut groups, mut unmounted) = (0, false);
        // The journal restores the rest after a failed step: only if both fail something is left.
        if self.hardware.is_some() {
            match self.host.observed() {
                Ok((observed, _)) => {
                    let rest = observed.get("").map(|group| group.masks.clone()).unwrap_or_default();
                    for step in undo(&observed, &rest) {
                        groups += 1;
                        if let Err(failed) = self.host.apply(&step) {
                            first = first.and(Err(LoopError::step(step, failed)));
                        }
                    }
                }
                // With the file system all groups and their masks are gone.
                Err(failed) if failed.is_gone() => unmounted = true,
                Err(failed) => first = Err(failed.into()),
            }
        }
        let first = match self.host.restore() {
            Ok(()) => Ok(()),
            Err(error) => first.and(Err(error.into())),
        };
        if first.is_ok() && self.touched && !unmounted {
            events.push(Event::PutBack { groups, default_differs: self.default_differs() });
            let observed = self.host.observed().map(|(observed, _)| observed).unwrap_or_default();
            let gone: Vec<&str> =
                self.origins.iter().filter(|name| !observed.contains_key(*name)).map(String::as_str).collect();
            if !observed.is_empty() && !gone.is_empty() {
                let why = format!("{} no longer exists: its threads are in the default group", gone.join(", "));
                events.push(Event::Without { what: "the former group of some threads".to_owned(), why });
            }
        }
        (self.summary, events, first)
    }

    /// Masks of the default group before masu and now, if they differ: another tool's exclusive group may have taken
    /// ways, or the processor moves some together.
    fn default_differs(&mut self) -> Option<[String; 2]> {
        let before = self.before.as_ref()?;
        let (observed, _) = self.host.observed().ok()?;
        let found = &observed.get("")?.masks;
        let text = |masks: &Masks| shown(&OfCache::all(masks));
        (found != before).then(|| [text(before), text(found)])
    }

    fn look(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<(), LoopError> {
        let members = self.host.members()?;
        self.report_members(&members, events);
        self.members = members;
        let all: BTreeSet<Pid> = self.members.programs.iter().flat_map(|of| of.values().flatten()).copied().collect();
        self.placed.retain(|thread| all.contains(thread));
        match self.host.sets(now, &self.members) {
            Ok(Some(sets)) => self.take_sets(sets, events),
            Ok(None) => {}
            // Without partitions there is nothing else to do.
            Err(error) if self.hardware.is_none() => return Err(error.into()),
            // The sharers are unknown: nothing stays in a shared partition.
            Err(error) => {
                self.report_missing(SHARED_PARTITIONS, &error.to_string(), events);
                self.take_sets(SharingGroups::default(), events);
            }
        }
        match self.host.counted(&self.members) {
            Known::Value(counted) => {
                self.uncounted = None;
                if let Some(refining) = &mut self.refining {
                    refining.count(&counted);
                }
                for (program, counted) in counted.iter().enumerate() {
                    self.stalled[program] = counted.stalled_fraction();
                    if let (Some(ways), Some(point)) = (self.ways_of(program), counted.point()) {
                        self.learned[program].see(ways, point);
                    }
                }
            }
            Known::Unknown(why) => {
                self.uncounted = Some(why);
                // Without counts only curves decide, and from nothing: the current plan was in force only to be
                // measured.
                if self.refining.take().is_some() {
                    (self.inputs, self.decision) = (None, None);
                }
            }
        }
        Ok(())
    }

    /// Steps from the observed to the desired state.
    fn steps_from(&self, observed: &Observed) -> Vec<Step> {
        let (Some(desired), Some(hardware)) = (&self.desired, &self.hardware) else { return Vec::new() };
        let mut observed = observed.clone();
        for (label, (asked, found)) in &self.adjusted {
            if let Some(group) = observed.get_mut(label).filter(|group| group.masks == *found) {
                group.masks = asked.clone();
            }
        }
        diff(&observed, desired, &self.host.warming(), hardware.ways_min)
    }

    /// Applies the desired state; true if it is reached.
    fn arrange(&mut self, observed: &Observed, events: &mut Vec<Event>) -> Result<bool, LoopError> {
        self.stop_warm_ups(observed);
        let mut steps = self.steps_from(observed);
        // While ways move between groups a thread would fill other groups' ways; and lines in the old ones are to be
        // placed anew.
        let moves = |label: &str| {
            steps.iter().any(|step| matches!(step, Step::Masks(of, _) | Step::Remove(of) if of.as_str() == label))
        };
        let stay: BTreeSet<Key> = self.host.warming().into_keys().filter(|(label, _)| !moves(label)).collect();
        if stay.len() < self.host.warming().len() {
            self.keep_warm_ups(&stay);
            steps = self.steps_from(observed);
        }
        // A child created between the two scans is in a masu group already, and is known at the next scan: so only a
        // thread that is unmanaged twice is sent away.
        let unmanaged_thread = |step: &Step| match step {
            Step::Thread(label, thread) if label.is_empty() => Some(*thread),
            _ => None,
        };
        let unmanaged_threads = steps.iter().filter_map(unmanaged_thread).collect();
        let before = std::mem::replace(&mut self.unmanaged_threads, unmanaged_threads);
        steps.retain(|step| unmanaged_thread(step).is_none_or(|thread| before.contains(&thread)));
        self.touched |= !steps.is_empty();
        let mut moved = MovedTo::default();
        self.changed_by_others = self.changes_by_others(observed);
        let mut refused = None;
        for step in steps {
            match self.host.apply(&step) {
                Ok(done) => self.report_done(&step, &done, observed, &mut moved, events),
                Err(failed) => {
                    refused = Some(Refused { step, failed });
                    break;
                }
            }
        }
        moved.tell(events);
        if let Some(refused) = refused {
            if !self.settled || refused.failed.why == Why::Denied {
                return Err(LoopError::Step(Box::new(refused)));
            }
            self.summary.failures += 1;
            self.report_not_done(&refused.step.to_string(), &refused.failed.to_string(), events);
            self.inputs = None;
            self.keep_warm_ups(&BTreeSet::new()); // a partition may lie in ways of others
            return Ok(false); // the next step observes the state
        }
        self.settled = true;
        self.report_notes(events);
        Ok(true)
    }

    fn report_notes(&mut self, events: &mut Vec<Event>) {
        for note in self.desired.iter().flat_map(|desired| desired.notes.clone()).collect::<Vec<_>>() {
            self.report_missing("an exclusive group", &note, events);
        }
    }
}

/// Name of the missing feature if the sharers are unknown.
const SHARED_PARTITIONS: &str = "shared partitions";

mod planning;
mod refining;
mod reporting;
mod warming;

use planning::PlanInputs;
use refining::Refining;
use reporting::MovedTo;

#[cfg(test)]
mod tests;

/// `masu-web`: `web`.
fn without_prefix(name: String) -> String {
    name.strip_prefix(PREFIX).map(str::to_owned).unwrap_or(name)
}

/// Part of the duty for each thread.
fn share(duty: Fraction, threads: usize) -> Fraction {
    #[expect(clippy::cast_precision_loss, reason = "a handful of threads")]
    let part = duty.get() / threads.max(1) as f64;
    Fraction::clamped(part)
}

/// Half of a cache, the limit for kept data where it is not divided.
fn half(cache: Bytes) -> Bytes {
    Bytes(cache.0 / 2)
}
