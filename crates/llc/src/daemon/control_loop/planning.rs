//! Plans from observations: when a new plan is due, and its basis.

use std::collections::BTreeSet;
use std::time::Duration;

use units::Ways;

use super::super::act::Mount;
use super::super::allocatable_ways::{AllocatableWays, Hardware, Unfit, UnmanagedGroup, allocatable_ways};
use super::super::config::Measured;
use super::super::curve;
use super::super::decide::{Decision, Figures, GroupSize, Seen, decide};
use super::super::host_ops::HostOps;
use super::super::layout::{self, Member, Planned, Purpose, Surroundings};
use super::super::others::{SharedClasses, together};
use super::super::report::Event;
use super::super::sharing_groups::SharedFrames;
use super::super::steps::Observed;
use super::{Daemon, LoopError, SHARED_PARTITIONS};
use crate::policy::{Curve, Plan, Policy};

/// Input of a plan: a change causes another plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlanInputs {
    running: Vec<bool>,
    known: Vec<bool>,
    /// By domain: the sharers, and the number of ways that the group fills.
    sets: Vec<(String, BTreeSet<usize>, u64)>,
    allocatable: Option<AllocatableWays>,
    visit: Option<usize>,
    /// Round of learned curves, which change all the time.
    round: u64,
}

/// Steps between plans from learned curves.
const ROUND: u64 = 10;
/// Steps of a visit to an allocation.
const VISIT: u32 = 3;

impl<W: HostOps> Daemon<W> {
    /// Ways that a program has to itself now.
    pub(super) fn ways_of(&self, program: usize) -> Option<Ways> {
        let desired = self.desired.as_ref().filter(|_| self.settled)?;
        let alone = desired.groups.iter().find(|group| group.purpose == Purpose::Programs(vec![program]))?;
        let (_, mask) = alone.masks.first_key_value()?;
        Some(mask.ways())
    }

    fn figures(&self, all: Ways) -> Vec<Option<Figures>> {
        let each = self.config.programs.iter().enumerate().map(|(nth, program)| {
            let stalled_fraction = self.stalled[nth];
            if let Some(Measured { misses, private_misses, shared_misses, base_cycles, miss_cycles }) =
                &program.measured
            {
                return Some(Figures {
                    misses: Curve::new(misses.clone()),
                    private_misses: private_misses.clone().map(Curve::new),
                    shared_misses: shared_misses.clone().map(Curve::new),
                    base_cycles: *base_cycles,
                    miss_cycles: *miss_cycles,
                    stalled_fraction,
                    configured: true,
                });
            }
            if !self.visited {
                return None;
            }
            let (base_cycles, miss_cycles) = self.learned[nth].cycles()?;
            Some(Figures {
                misses: self.learned[nth].misses(all)?,
                private_misses: None,
                shared_misses: None,
                base_cycles,
                miss_cycles,
                stalled_fraction,
                configured: false,
            })
        });
        each.collect()
    }

    /// Makes a plan, if there is reason for another one.
    pub(super) fn decide_on(
        &mut self,
        observed: &Observed,
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<(), LoopError> {
        let Some(hardware) = self.hardware.clone() else { return Ok(()) };
        let unmanaged = Mount::<linux::Rooted>::unmanaged(observed);
        if self.before.is_none() {
            self.before = observed.get("").map(|group| group.masks.clone());
        }
        // A partition that is not kept warm would only take ways from others.
        self.not_warmed = self.host.merging().err();
        if let Some(why) = self.not_warmed.clone().filter(|_| !self.sets.sets.is_empty()) {
            self.report_missing(SHARED_PARTITIONS, &why.to_string(), events);
        }
        let allocatable = allocatable_ways(&self.config, &hardware, &unmanaged)
            .map_err(|unfit| self.with_others(LoopError::Unfit(unfit), &unmanaged))?;
        self.visit_next(now, &allocatable, &self.figures(hardware.all.ways()));
        let figures = self.figures(hardware.all.ways());
        let way = hardware.way_bytes.0.max(1);
        let inputs = PlanInputs {
            running: self.members.programs.iter().map(|processes| !processes.is_empty()).collect(),
            known: figures.iter().map(Option::is_some).collect(),
            sets: self
                .sets_to_fill()
                .iter()
                .map(|set| (set.domain.to_string(), set.sharers.clone(), set.bytes().0.div_ceil(way)))
                .collect(),
            visit: self.visit.map(|(nth, _)| nth),
            round: match (&self.refining, &self.inputs) {
                // The closed loop continues from measurements.
                (Some(_), Some(before)) => before.round,
                _ if figures.iter().flatten().any(|of| !of.configured) => self.steps / ROUND,
                _ => 0,
            },
            allocatable: Some(allocatable.clone()),
        };
        let sets: Vec<GroupSize> = self
            .sets_to_fill()
            .iter()
            .map(|set| GroupSize { sharers: set.sharers.clone(), bytes: set.bytes() })
            .collect();
        let seen = Seen { caches: &hardware.caches, running: &inputs.running, figures: &figures, sets: &sets };
        if self.inputs.as_ref() == Some(&inputs) {
            let refined = self.refine(&allocatable, &seen);
            self.rearrange(&allocatable, &unmanaged, &hardware)?;
            if refined {
                self.summary.plans += 1;
                events.push(self.decided());
            }
            return Ok(());
        }
        // A plan in force only for a measurement was not the policy's choice.
        let chosen = self.refining.as_ref().is_none_or(|refining| !refining.is_first());
        let before = self.decision.as_ref().filter(|_| chosen).map(|decision| decision.planned.clone());
        let before = before.unwrap_or_default();
        let mut decision = decide(&self.config, &allocatable, &seen, &before);
        self.measure_first(&allocatable, &seen, &mut decision);
        if let Some((nth, _)) = self.visit {
            self.visited_plan(nth, &allocatable, &mut decision);
        }
        let same = self.decision.as_ref().is_some_and(|old| old.planned == decision.planned);
        let old = self.decision.replace(decision);
        if let Err(error) = self.rearrange(&allocatable, &unmanaged, &hardware) {
            self.decision = old;
            return Err(error);
        }
        self.inputs = Some(inputs);
        self.report_beside(&allocatable.beside, events);
        self.report_shared_classes(&allocatable, &hardware, &unmanaged, events);
        if !same {
            self.summary.plans += 1;
            events.push(self.decided());
        }
        Ok(())
    }

    /// The error with the groups of other tools, if these have the lacking classes.
    fn with_others(&self, error: LoopError, unmanaged: &[UnmanagedGroup]) -> LoopError {
        let classes = matches!(error, LoopError::Unfit(Unfit::Classes { .. }) | LoopError::TooMany(_));
        if !classes || unmanaged.is_empty() {
            return error;
        }
        LoopError::Classes(Box::new(error), self.host.other_groups(&names(unmanaged)))
    }

    /// One line for all groups of other tools that may allocate in masu's ways.
    fn report_beside(&mut self, beside: &[UnmanagedGroup], events: &mut Vec<Event>) {
        let why = match beside {
            [] => return,
            [only] => format!("group {} may allocate in ways {} as well", only.name, only.mask),
            all => {
                let each: Vec<String> = all.iter().map(|group| format!("{} ({})", group.name, group.mask)).collect();
                format!("{} groups of other tools may allocate in them as well: {}", all.len(), each.join(", "))
            }
        };
        self.report_missing("ways of our own", &why, events);
    }

    /// Programs that share a class because fewer are left than there are programs and sharing groups.
    fn report_shared_classes(
        &mut self,
        allocatable: &AllocatableWays,
        hardware: &Hardware,
        unmanaged: &[UnmanagedGroup],
        events: &mut Vec<Event>,
    ) {
        let (Some(desired), Some(decision)) = (&self.desired, &self.decision) else { return };
        let wanted = decision.planned.iter().map(|planned| planned.programs.len() + planned.sets.len()).max();
        // The policy `none` and the visits to learn curves have one class for all, however many there are.
        let meant = self.config.policy == Policy::None || self.visit.is_some();
        if meant || wanted.unwrap_or(0) <= allocatable.cache.classes_max {
            return;
        }
        let together = together(desired, |nth| self.config.programs[nth].name.clone());
        let names = names(unmanaged);
        if together.is_empty() || !self.reported.insert(format!("classes {together:?} {names:?}")) {
            return;
        }
        let others = self.host.other_groups(&names);
        events.push(Event::SharedClasses(SharedClasses { together, classes: hardware.classes, others }));
    }

    /// Sharing groups, if partitions for them can be kept warm.
    fn sets_to_fill(&self) -> &[SharedFrames] {
        if self.not_warmed.is_none() { &self.sets.sets } else { &[] }
    }

    /// Goes to the next allocation, when one has been visited long enough and curves are still to be learned.
    fn visit_next(&mut self, now: Duration, allocatable: &AllocatableWays, figures: &[Option<Figures>]) {
        let running: Vec<usize> = (0..figures.len()).filter(|nth| !self.members.programs[*nth].is_empty()).collect();
        let lacking = running.iter().any(|nth| figures[*nth].is_none());
        let wants = !matches!(self.config.policy, Policy::None | Policy::Equal);
        if self.uncounted.is_some() || !lacking || !wants {
            if self.uncounted.is_some() {
                self.visit = None;
            }
            return;
        }
        self.visit = match self.visit {
            None if !self.visited => Some((0, now)),
            Some((nth, since)) if now >= since + self.config.interval * VISIT => Some((nth + 1, now)),
            visit => visit,
        };
        let free = running.iter().filter(|nth| self.config.programs[**nth].fixed.is_none()).count();
        if self.visit.is_some_and(|(nth, _)| curve::visit(nth, allocatable.cache, free).is_none()) {
            (self.visit, self.visited) = (None, true);
        }
    }

    /// Plan of a visit, the same in all caches.
    fn visited_plan(&self, nth: usize, allocatable: &AllocatableWays, decision: &mut Decision) {
        for planned in &mut decision.planned {
            if let Some(Plan { classes, .. }) = curve::visit(nth, allocatable.cache, planned.programs.len()) {
                planned.plan = Plan { classes, partitions: Vec::new() };
            }
        }
        decision.slowdowns.clear();
    }

    /// Groups for the current plan and the current processes.
    fn rearrange(
        &mut self,
        allocatable: &AllocatableWays,
        unmanaged: &[UnmanagedGroup],
        hardware: &Hardware,
    ) -> Result<(), LoopError> {
        let Some(decision) = &self.decision else { return Ok(()) };
        let caches: BTreeSet<_> = hardware.caches.iter().copied().collect();
        let members: Vec<Member> = self
            .config
            .programs
            .iter()
            .zip(&self.members.programs)
            .map(|(program, processes)| Member {
                name: program.name.clone(),
                processes: processes.clone(),
                caches: match &program.l3 {
                    None => caches.clone(),
                    Some(own) => caches.iter().filter(|cache| own.contains(&cache.0)).copied().collect(),
                },
                fixed: program.fixed.map(|fixed| (fixed.mask, fixed.exclusive)),
            })
            .collect();
        let around = Surroundings {
            caches,
            default_ways: allocatable.default_ways,
            before: self.before.clone().unwrap_or_default(),
            shareable: hardware.shareable,
            unmanaged: unmanaged.to_vec(),
            groups_max: hardware.classes.saturating_sub(1 + unmanaged.len()),
        };
        let domains: Vec<String> = self.sets.sets.iter().map(|set| set.domain.to_string()).collect();
        let planned: Vec<Planned> = decision.planned.clone();
        let desired = layout::desired(&planned, &members, &domains, &around);
        self.desired = Some(desired.map_err(|many| self.with_others(LoopError::TooMany(many), unmanaged))?);
        Ok(())
    }
}

fn names(unmanaged: &[UnmanagedGroup]) -> Vec<String> {
    unmanaged.iter().map(|group| group.name.clone()).collect()
}
