//! The loop: look, decide, do, measure again, say so.
//!
//! A [`Keeper`] is stepped by whoever runs it, who also waits in between, and reaches the host through [`World`] alone. The ways are
//! divided anew when something that matters has changed: who runs, what they share by a whole way or more, what is known of them, what
//! others have. Threads that come are put into their groups at every step.
//!
//! Until all is in place for the first time, a failure ends it: nobody is to believe that the cache is divided when it is not. After that
//! it is said, and tried again at the next step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linux::probe::Known;
use linux::resctrl::{Failed, PREFIX, Why};
use linux::{Error, Pid};
use units::{Bytes, Fraction};

use super::arrange::{Masks, TooMany, Wanted};
use super::config::{Config, Whom};
use super::curve::Learned;
use super::decide::Decision;
use super::members::Members;
use super::refill::Filled;
use super::report::{Event, Summary};
use super::room::{Hardware, Unfit};
use super::sets::Sets;
use super::steps::{Standing, Step, steps, undo};
use super::world::{Key, Region, World};

/// What ends it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Trouble {
    /// The configuration asks for what is not there, or nothing is left to give away.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// More groups than classes.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// A step was refused.
    #[error("{}", .0.failed)]
    Step(Box<Refused>),
    /// The file system cannot be read.
    #[error(transparent)]
    Unread(#[from] Failed),
    /// Processes or frames cannot be seen.
    #[error(transparent)]
    Unseen(#[from] Error),
    /// There is nothing that could be done here.
    #[error("{0}")]
    Nothing(String),
}

/// A step that was refused.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Which.
    pub step: Step,
    /// The kernel's answer.
    pub failed: Failed,
}

impl Trouble {
    fn step(step: Step, failed: Failed) -> Trouble {
        Trouble::Step(Box::new(Refused { step, failed }))
    }
}

/// Divides the cache until it is finished; then all is as it was.
#[derive(Debug)]
pub struct Keeper<W: World> {
    world: W,
    config: Config,
    hardware: Option<Hardware>,
    members: Members,
    sets: Sets,
    learned: Vec<Learned>,
    /// The allocation that is visited to learn curves, and since when.
    visit: Option<(usize, Duration)>,
    visited: bool,
    counts: Result<(), String>,
    stalled: Vec<Option<f64>>,
    grounds: Option<Grounds>,
    decision: Option<Decision>,
    wanted: Option<Wanted>,
    /// The loop that goes on by what is measured, where it is one.
    refining: Option<Refining>,
    /// Who ran when it was last begun to measure without partitions.
    measured_without: Option<Vec<bool>>,
    /// There is time to measure: a plan alone has none.
    refines: bool,
    /// What the default group had when it all began.
    before: Option<Masks>,
    /// Why no region can be kept filled.
    unfilled: Option<String>,
    /// Something was changed, or tried.
    touched: bool,
    /// All was in place once.
    settled: bool,
    /// Where the kernel made something else of a mask: by group what was asked for, and what there is.
    made_of: BTreeMap<String, (Masks, Masks)>,
    regions: BTreeMap<Key, Region>,
    said: BTreeSet<String>,
    /// Threads in our groups that were nobody's at the last look.
    strangers: BTreeSet<Pid>,
    /// What the threads had done when it was added to the summary, and when it was told.
    counted: BTreeMap<Key, Filled>,
    told: BTreeMap<Key, Filled>,
    steps: u64,
    next_report: Duration,
    /// What was done so far.
    pub summary: Summary,
}

/// What is counted is told every so often.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// When more than this part of a region's pages is another, its copy is made anew.
const STALE: usize = 20;

impl<W: World> Keeper<W> {
    /// A keeper that has done nothing yet.
    ///
    /// # Errors
    /// When the file system cannot be read; when there is nothing to do without it.
    pub fn new(mut world: W, config: Config) -> Result<Keeper<W>, Trouble> {
        let hardware = if config.partition { world.hardware()? } else { None };
        if hardware.is_none()
            && let Err(why) = world.merging()
        {
            return Err(Trouble::Nothing(why));
        }
        let count = config.programs.len();
        Ok(Keeper {
            world,
            config,
            hardware,
            members: Members::default(),
            sets: Sets::default(),
            learned: vec![Learned::default(); count],
            visit: None,
            visited: false,
            counts: Ok(()),
            stalled: vec![None; count],
            grounds: None,
            decision: None,
            wanted: None,
            refining: None,
            measured_without: None,
            refines: true,
            before: None,
            unfilled: None,
            touched: false,
            settled: false,
            made_of: BTreeMap::new(),
            regions: BTreeMap::new(),
            said: BTreeSet::new(),
            strangers: BTreeSet::new(),
            counted: BTreeMap::new(),
            told: BTreeMap::new(),
            steps: 0,
            next_report: Duration::ZERO,
            summary: Summary::default(),
        })
    }

    /// The host.
    pub fn world(&self) -> &W {
        &self.world
    }

    /// What would be done, without doing it.
    ///
    /// # Errors
    /// As [`Keeper::step`].
    pub fn plan(&mut self, now: Duration) -> Result<(Vec<Event>, Vec<Step>), Trouble> {
        let mut events = Vec::new();
        self.refines = false;
        self.look(now, &mut events)?;
        let steps = if self.hardware.is_some() {
            let (standing, left_behind) = self.world.standing()?;
            let mut steps: Vec<Step> = left_behind.into_iter().map(without_prefix).map(Step::Remove).collect();
            self.decide_on(&standing, now, &mut events)?;
            self.tell_notes(&mut events);
            steps.extend(self.steps_from(&standing));
            steps
        } else {
            Vec::new()
        };
        Ok((events, steps))
    }

    /// One look at what is there, and what follows from it.
    ///
    /// # Errors
    /// What makes going on pointless.
    pub fn step(&mut self, now: Duration) -> Result<Vec<Event>, Trouble> {
        let mut events = Vec::new();
        if self.steps == 0 && self.hardware.is_some() {
            for group in self.world.collect()? {
                events.push(Event::Done {
                    what: format!("remove group {group}, in which nobody is and which no masu holds"),
                    threads: 0,
                    ended: 0,
                });
            }
        }
        self.look(now, &mut events)?;
        if self.hardware.is_some() {
            let (standing, _) = self.world.standing()?;
            match self.decide_on(&standing, now, &mut events) {
                // What there is stays as it is: it may be of other sets by now.
                Err(trouble) if self.settled => {
                    self.say_without("a new plan", &trouble.to_string(), &mut events);
                    self.end_refills(&standing);
                }
                answer => {
                    answer?;
                    if self.arrange(&standing, &mut events)? {
                        self.refill(&mut events)?;
                    }
                }
            }
        } else {
            self.refill(&mut events)?;
        }
        self.report(now, &mut events);
        self.steps += 1;
        Ok(events)
    }

    /// How long to wait for the next step.
    pub fn wait(&self) -> Duration {
        self.config.interval
    }

    /// All programs were named by their processes, and all of these have ended.
    pub fn is_over(&self) -> bool {
        let named = self.config.programs.iter().all(|program| matches!(program.whom, Whom::Pids(_)));
        named && self.steps > 0 && self.members.programs.iter().all(BTreeMap::is_empty)
    }

    /// Takes everything down.
    ///
    /// # Errors
    /// The first failure, after all the rest was tried.
    pub fn finish(mut self) -> (Summary, Vec<Event>, Result<(), Trouble>) {
        let mut events = Vec::new();
        self.count_refills();
        self.world.keep_only(&BTreeSet::new());
        let mut first: Result<(), Trouble> = Ok(());
        let (mut groups, mut unmounted) = (0, false);
        // What a step does not put back, the journal does: only if both fail something is left.
        if self.hardware.is_some() {
            match self.world.standing() {
                Ok((standing, _)) => {
                    let rest = standing.get("").map(|group| group.masks.clone()).unwrap_or_default();
                    for step in undo(&standing, &rest) {
                        groups += 1;
                        if let Err(failed) = self.world.carry_out(&step) {
                            first = first.and(Err(Trouble::step(step, failed)));
                        }
                    }
                }
                // With the file system all groups went, and what they had.
                Err(failed) if failed.is_gone() => unmounted = true,
                Err(failed) => first = Err(failed.into()),
            }
        }
        let first = match self.world.put_back() {
            Ok(()) => Ok(()),
            Err(error) => first.and(Err(error.into())),
        };
        if first.is_ok() && self.touched && !unmounted {
            events.push(Event::PutBack { groups });
        }
        (self.summary, events, first)
    }

    fn look(&mut self, now: Duration, events: &mut Vec<Event>) -> Result<(), Trouble> {
        let members = self.world.members()?;
        self.tell_members(&members, events);
        self.members = members;
        match self.world.sets(now, &self.members) {
            Ok(Some(sets)) => self.take_sets(sets, events),
            Ok(None) => {}
            // Without partitions there is nothing else to do.
            Err(error) if self.hardware.is_none() => return Err(error.into()),
            // Who shares what now, nobody knows: nothing stays in a region.
            Err(error) => {
                self.say_without(REGIONS, &error.to_string(), events);
                self.take_sets(Sets::default(), events);
            }
        }
        match self.world.counted(&self.members) {
            Known::Value(counted) => {
                self.counts = Ok(());
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
                self.counts = Err(why);
                // Without counts it is gone by curves alone, and from nothing: what was in force was there to be measured.
                if self.refining.take().is_some() {
                    (self.grounds, self.decision) = (None, None);
                }
            }
        }
        Ok(())
    }

    /// The steps from what is there to what is wanted.
    fn steps_from(&self, standing: &Standing) -> Vec<Step> {
        let (Some(wanted), Some(hardware)) = (&self.wanted, &self.hardware) else { return Vec::new() };
        let mut standing = standing.clone();
        for (label, (asked, found)) in &self.made_of {
            if let Some(group) = standing.get_mut(label).filter(|group| group.masks == *found) {
                group.masks = asked.clone();
            }
        }
        steps(&standing, wanted, &self.world.refilling(), hardware.ways_min)
    }

    /// True when all is as it is wanted.
    fn arrange(&mut self, standing: &Standing, events: &mut Vec<Event>) -> Result<bool, Trouble> {
        self.end_refills(standing);
        let mut steps = self.steps_from(standing);
        // While ways change hands a thread would fill those of others; and what lies in the old ones is to be placed anew.
        let moves = |label: &str| {
            steps.iter().any(|step| matches!(step, Step::Masks(of, _) | Step::Remove(of) if of.as_str() == label))
        };
        let stay: BTreeSet<Key> = self.world.refilling().into_keys().filter(|(label, _)| !moves(label)).collect();
        if stay.len() < self.world.refilling().len() {
            self.keep_refills(&stay);
            steps = self.steps_from(standing);
        }
        // A child that was born between the two looks is in our group already, and at home at the next look: so only who is a stranger
        // twice is sent away.
        let stranger = |step: &Step| match step {
            Step::Thread(label, thread) if label.is_empty() => Some(*thread),
            _ => None,
        };
        let strangers = steps.iter().filter_map(stranger).collect();
        let before = std::mem::replace(&mut self.strangers, strangers);
        steps.retain(|step| stranger(step).is_none_or(|thread| before.contains(&thread)));
        self.touched |= !steps.is_empty();
        let mut moved = MovedTo::default();
        let mut refused = None;
        for step in steps {
            match self.world.carry_out(&step) {
                Ok(done) => self.tell_done(&step, &done, &mut moved, events),
                Err(failed) => {
                    refused = Some(Refused { step, failed });
                    break;
                }
            }
        }
        moved.tell(events);
        if let Some(refused) = refused {
            if !self.settled || refused.failed.why == Why::Denied {
                return Err(Trouble::Step(Box::new(refused)));
            }
            self.summary.failures += 1;
            self.say_not_done(&refused.step.to_string(), &refused.failed.to_string(), events);
            self.grounds = None;
            self.keep_refills(&BTreeSet::new()); // a region may lie in ways of others
            return Ok(false); // the next step looks at what is there
        }
        self.settled = true;
        self.tell_notes(events);
        Ok(true)
    }

    fn tell_notes(&mut self, events: &mut Vec<Event>) {
        for note in self.wanted.iter().flat_map(|wanted| wanted.notes.clone()).collect::<Vec<_>>() {
            self.say_without("an exclusive group", &note, events);
        }
    }
}

/// What there is not, where nobody knows who shares what.
const REGIONS: &str = "regions for what is shared";

mod filling;
mod planning;
mod refining;
mod telling;

use planning::Grounds;
use refining::Refining;
use telling::MovedTo;

#[cfg(test)]
mod tests;

/// `masu-web`: `web`.
fn without_prefix(name: String) -> String {
    name.strip_prefix(PREFIX).map(str::to_owned).unwrap_or(name)
}

/// A part of the duty for each thread.
fn share(duty: Fraction, threads: usize) -> Fraction {
    #[expect(clippy::cast_precision_loss, reason = "a handful of threads")]
    let part = duty.get() / threads.max(1) as f64;
    Fraction::clamped(part)
}

/// Nothing bigger than half of a cache is kept in it where nobody divides it.
fn half(cache: Bytes) -> Bytes {
    Bytes(cache.0 / 2)
}
