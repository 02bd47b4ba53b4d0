//! Closed loop on processors with counters: the programs' counts under a plan correct the model, and the corrected
//! model plans again.
//!
//! As in the simulation (`sim::cache::run`), by the same [`Refiner`]: the first measurement is without partitions,
//! the next under a plan of masu's own policy, and so on. A program's slowdown is its cycles per instruction over
//! those predicted by its curve with all ways to itself.

use super::super::allocatable_ways::AllocatableWays;
use super::super::config::Config;
use super::super::decide::{Basis, Decision, Seen, situation};
use super::super::host_ops::HostOps;
use super::super::observe::Counted;
use super::Daemon;
use crate::policy::sharing::{self, Refiner};
use crate::policy::{Policy, Situation, equal};

/// Steps of a period.
const PERIOD: u64 = 10;

/// Results of the plans tried so far, and the counts of this period.
#[derive(Clone, Debug)]
pub(super) struct Refining {
    /// For each cache, or caches on which the same programs run.
    loops: Vec<(Refiner, bool)>,
    counted: Vec<Counted>,
    looks: u64,
}

impl Refining {
    /// Whether the measurement without partitions is running.
    pub(super) fn is_first(&self) -> bool {
        self.loops.iter().any(|(_, first)| *first)
    }

    /// Adds the counts since the last step.
    pub(super) fn count(&mut self, counted: &[Counted]) {
        self.counted.resize(counted.len(), Counted::default());
        for (sum, more) in self.counted.iter_mut().zip(counted) {
            sum.instructions = sum.instructions.saturating_add(more.instructions);
            sum.cycles = sum.cycles.saturating_add(more.cycles);
        }
        self.looks += 1;
    }
}

/// Whether there is something to measure, and partitions are left to the policy.
fn applies(config: &Config, decision: &Decision) -> bool {
    let known = matches!(decision.basis, Basis::Configured | Basis::Learned) && !decision.partitions_by_size;
    let several = decision.planned.iter().any(|planned| planned.programs.len() > 1);
    config.policy == Policy::Sharing && config.partitions.ways_max.is_none() && known && several
}

impl<W: HostOps> Daemon<W> {
    /// Begins to measure, if the loop can continue from it: without partitions in place of the decision, once for
    /// these running programs. After other changes, such as of shared data, it continues from the decision.
    pub(super) fn measure_first(&mut self, allocatable: &AllocatableWays, seen: &Seen<'_>, decision: &mut Decision) {
        self.refining = None;
        if !self.refines || self.uncounted.is_some() || self.visit.is_some() || !applies(&self.config, decision) {
            return;
        }
        let once = self.measured_without.replace(seen.running.to_vec()).is_none_or(|before| before != seen.running);
        let mut loops = Vec::new();
        for planned in &mut decision.planned {
            let first = once && planned.programs.len() > 1;
            if let Some(situation) = situation(&self.config, allocatable, seen, planned).filter(|_| first) {
                planned.plan = equal::unpartitioned(&situation);
            }
            loops.push((Refiner::new(sharing::MEASURED), first));
        }
        if once {
            decision.slowdowns.clear();
        }
        self.refining = Some(Refining { loops, counted: Vec::new(), looks: 0 });
    }

    /// Makes another plan after each period, if the measurements justify it; true if it did.
    pub(super) fn refine(&mut self, allocatable: &AllocatableWays, seen: &Seen<'_>) -> bool {
        let (Some(refining), Some(decision)) = (&mut self.refining, &mut self.decision) else { return false };
        if refining.looks < PERIOD {
            return false;
        }
        refining.looks = 0;
        let counted = std::mem::take(&mut refining.counted);
        let mut changed = false;
        for (planned, (refiner, first)) in decision.planned.iter_mut().zip(&mut refining.loops) {
            let Some(situation) = situation(&self.config, allocatable, seen, planned) else { continue };
            let next = match slowdowns(&situation, &planned.programs, &counted) {
                Some(measured) if *first => refiner.first(&situation, &planned.plan, &measured),
                Some(measured) => refiner.next(&situation, &planned.plan, &measured),
                // A program did nothing: only the curves decide.
                None if *first => self.config.policy.plan(&situation, None),
                None => planned.plan.clone(),
            };
            *first = false;
            changed |= next != planned.plan;
            planned.plan = next;
        }
        changed
    }
}

/// Slowdown of each program, by its counts; `None` if one ran too little.
fn slowdowns(situation: &Situation, programs: &[usize], counted: &[Counted]) -> Option<Vec<f64>> {
    /// Least number of instructions: fewer are a program waking up, not at work.
    const ENOUGH: u64 = 1_000_000;
    let each = situation.programs.iter().zip(programs).map(|(program, nth)| {
        let of = counted.get(*nth).filter(|of| of.instructions >= ENOUGH)?;
        #[expect(clippy::cast_precision_loss, reason = "counts")]
        let per_kilo = of.cycles as f64 / of.instructions as f64 * 1000.0;
        let alone = program.cycles(program.misses.last());
        (alone > 0.0).then_some(per_kilo / alone)
    });
    each.collect()
}
