//! Decides a plan for each cache, and names its basis.
//!
//! Pure. The policies need a miss curve of each program. If one program has none, neither configured nor learned,
//! none is made up: then all programs have equal ways, and a sharing group has the ways that hold it. The use of a
//! sharing group by each program is known only if the configuration has `shared_mpki` or `private_mpki`; without them
//! a group's partition is sized by its bytes as well, and the policy divides the rest. From `private_mpki` alone a
//! straight line is assumed for a group's curve: all of the program's other misses without a shared partition, none
//! with one that holds the group.
//!
//! Shared partitions belong to the policy `sharing`. Others have them, by size, if the configuration says `[region]
//! on = true`.

use std::collections::{BTreeMap, BTreeSet};

use linux::resctrl::CacheId;
use units::{Bytes, Ways};

use super::allocatable_ways::AllocatableWays;
use super::by_size::{beside, partitions_by_size, without_curves};
use super::config::Config;
use super::layout::Planned;
use crate::policy::predict::predict;
use crate::policy::{Cache, Curve, Plan, Policy, Program, SharedPartition, Sharer, SharingGroup, Situation};

/// Figures of one program.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// MPKI by ways.
    pub misses: Curve,
    /// MPKI on private pages only; `None` if unknown.
    pub private_misses: Option<Curve>,
    /// MPKI on shared pages, by the ways of a shared partition; `None` if unknown.
    pub shared_misses: Option<Curve>,
    /// Cycles per kilo-instruction without a miss.
    pub base_cycles: f64,
    /// Cycles that each miss adds.
    pub miss_cycles: f64,
    /// Fraction of its cycles stalled on memory, if counted.
    pub stalled_fraction: Option<f64>,
    /// From the configuration, not from counters.
    pub configured: bool,
}

/// A sharing group, as input of the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSize {
    /// Sharers, by indices in the configuration.
    pub sharers: BTreeSet<usize>,
    /// Size of the group.
    pub bytes: Bytes,
}

/// Observations for the decision.
#[derive(Clone, Debug)]
pub struct Seen<'s> {
    /// All caches.
    pub caches: &'s [CacheId],
    /// For each program, whether it has a process.
    pub running: &'s [bool],
    /// For each program, its figures.
    pub figures: &'s [Option<Figures>],
    /// Sharing groups.
    pub sets: &'s [GroupSize],
}

/// Basis of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// No figures were needed.
    Nothing,
    /// Curves of the configuration.
    Configured,
    /// Curves learned on this host, of some programs at least.
    Learned,
    /// No curves: this program has none.
    NoCurve(usize),
}

/// The decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Plans by caches on which the same programs run.
    pub planned: Vec<Planned>,
    /// Basis of the plans; the weakest of all caches.
    pub basis: Basis,
    /// Shared partitions are sized by their content, not by their benefit.
    pub partitions_by_size: bool,
    /// Predicted slowdowns by indices in the configuration, if available; of several caches the worst.
    pub slowdowns: BTreeMap<usize, f64>,
}

/// Decides for all caches; `before` is the current decision.
pub fn decide(config: &Config, allocatable: &AllocatableWays, seen: &Seen<'_>, before: &[Planned]) -> Decision {
    let mut decision =
        Decision { planned: Vec::new(), basis: Basis::Nothing, partitions_by_size: false, slowdowns: BTreeMap::new() };
    let mut by_programs: BTreeMap<Vec<usize>, BTreeSet<CacheId>> = BTreeMap::new();
    for cache in seen.caches {
        by_programs.entry(programs_on(config, seen, *cache)).or_default().insert(*cache);
    }
    for (programs, caches) in by_programs {
        let sets = (0..seen.sets.len()).filter(|set| shared_by(&seen.sets[*set], &programs).len() >= 2).collect();
        let mut planned =
            Planned { caches, programs, sets, plan: Plan { classes: Vec::new(), partitions: Vec::new() } };
        let same = |other: &&Planned| {
            (&other.caches, &other.programs, &other.sets) == (&planned.caches, &planned.programs, &planned.sets)
        };
        let before = before.iter().find(same).map(|other| other.plan.clone());
        planned.plan = plan(config, allocatable, seen, &planned, before.as_ref(), &mut decision);
        decision.planned.push(planned);
    }
    decision
}

/// Programs that run on the CPUs of a cache and have no fixed ways.
fn programs_on(config: &Config, seen: &Seen<'_>, cache: CacheId) -> Vec<usize> {
    let on = |l3: &Option<Vec<u32>>| l3.as_ref().is_none_or(|caches| caches.contains(&cache.0));
    let all = config.programs.iter().enumerate();
    all.filter(|(nth, program)| seen.running[*nth] && program.fixed.is_none() && on(&program.l3))
        .map(|(nth, _)| nth)
        .collect()
}

/// Indices among `programs` of the sharers of a group.
fn shared_by(set: &GroupSize, programs: &[usize]) -> Vec<usize> {
    programs.iter().enumerate().filter(|(_, program)| set.sharers.contains(program)).map(|(place, _)| place).collect()
}

/// The policy's situation for the programs in these caches, if it decides on shared partitions; `None` if a figure is
/// unknown.
pub fn situation(
    config: &Config,
    allocatable: &AllocatableWays,
    seen: &Seen<'_>,
    planned: &Planned,
) -> Option<Situation> {
    if planned.programs.iter().any(|program| seen.figures[*program].is_none()) {
        return None;
    }
    let shared = if config.policy == Policy::Sharing && config.partitions.on.unwrap_or(true) {
        shared_sets(seen, planned, &allocatable.cache)?
    } else {
        Vec::new()
    };
    Some(Situation { cache: allocatable.cache, programs: programs_of(seen, planned, &allocatable.cache), shared })
}

fn programs_of(seen: &Seen<'_>, planned: &Planned, cache: &Cache) -> Vec<Program> {
    planned.programs.iter().map(|program| program_of(seen.figures[*program].as_ref(), cache)).collect()
}

fn plan(
    config: &Config,
    allocatable: &AllocatableWays,
    seen: &Seen<'_>,
    planned: &Planned,
    before: Option<&Plan>,
    decision: &mut Decision,
) -> Plan {
    let Planned { programs, sets, .. } = planned;
    if programs.is_empty() {
        return Plan { classes: Vec::new(), partitions: Vec::new() };
    }
    let sizes: Vec<Bytes> = sets.iter().map(|set| seen.sets[*set].bytes).collect();
    let with_partitions = config.partitions.on.unwrap_or(config.policy == Policy::Sharing);
    let by_size = |cache: Cache| -> Vec<SharedPartition> {
        if with_partitions { partitions_by_size(cache, &sizes, config.partitions.ways_max) } else { Vec::new() }
    };
    let lacking = programs.iter().find(|program| seen.figures[**program].is_none());
    if let Some(lacking) = lacking.filter(|_| needs_curves(config.policy)) {
        decision.basis = Basis::NoCurve(*lacking);
        decision.partitions_by_size |= with_partitions && !sizes.is_empty();
        let sizes = if with_partitions { sizes } else { Vec::new() };
        return without_curves(allocatable.cache, programs.len(), &sizes, config.partitions.ways_max);
    }
    let shared = if with_partitions && config.policy == Policy::Sharing {
        shared_sets(seen, planned, &allocatable.cache)
    } else {
        None
    };
    let known = |cache: &Cache| programs_of(seen, planned, cache);
    // A plan with partitions by size is no plan of the policy's: the current one is passed on only if the policy made
    // it.
    let whole =
        shared.map(|shared| Situation { cache: allocatable.cache, programs: known(&allocatable.cache), shared });
    let whole = whole.map(|situation| (config.policy.plan(&situation, before), situation));
    let fits = |plan: &Plan| {
        plan.partitions.iter().all(|of| config.partitions.ways_max.is_none_or(|most| of.mask.ways() <= most))
    };
    let (plan, situation) = match whole.filter(|(plan, _)| fits(plan)) {
        Some(whole) => whole,
        None => {
            let partitions = by_size(allocatable.cache);
            decision.partitions_by_size |= !partitions.is_empty();
            let cache = if partitions.is_empty() { allocatable.cache } else { beside(allocatable.cache, &partitions) };
            let situation = Situation { cache, programs: known(&cache), shared: Vec::new() };
            let plan = config.policy.plan(&situation, before.filter(|_| partitions.is_empty()));
            let own = lacking.is_none().then(|| predict(&situation, &plan));
            add(own, programs, &mut decision.slowdowns);
            return decided(config, seen, programs, Plan { partitions, ..plan }, decision);
        }
    };
    add(lacking.is_none().then(|| predict(&situation, &plan)), programs, &mut decision.slowdowns);
    decided(config, seen, programs, plan, decision)
}

/// Predicted slowdowns, of several caches the worst.
fn add(slowdowns: Option<Vec<f64>>, programs: &[usize], to: &mut BTreeMap<usize, f64>) {
    for (program, slowdown) in programs.iter().zip(slowdowns.into_iter().flatten()) {
        let worst = to.entry(*program).or_insert(slowdown);
        *worst = worst.max(slowdown);
    }
}

/// Notes the basis.
fn decided(config: &Config, seen: &Seen<'_>, programs: &[usize], plan: Plan, decision: &mut Decision) -> Plan {
    if !needs_curves(config.policy) || matches!(decision.basis, Basis::NoCurve(_)) {
        return plan;
    }
    let learned = |program: &usize| seen.figures[*program].as_ref().is_some_and(|figures| !figures.configured);
    if programs.iter().any(learned) {
        decision.basis = Basis::Learned;
    } else if decision.basis == Basis::Nothing {
        decision.basis = Basis::Configured;
    }
    plan
}

fn needs_curves(policy: Policy) -> bool {
    !matches!(policy, Policy::None | Policy::Equal)
}

fn program_of(figures: Option<&Figures>, cache: &Cache) -> Program {
    let Some(figures) = figures else {
        let flat = Curve::new(vec![0.0]);
        return Program {
            private_misses: flat.clone(),
            misses: flat,
            base_cycles: 1.0,
            miss_cycles: 0.0,
            stalled_fraction: 0.0,
        };
    };
    let misses = figures.misses.clone();
    let mut program = Program {
        private_misses: figures.private_misses.clone().unwrap_or_else(|| misses.clone()),
        misses,
        base_cycles: figures.base_cycles,
        miss_cycles: figures.miss_cycles,
        stalled_fraction: 0.0,
    };
    // A rate that was not counted is taken from the curve at half of the cache.
    let missed = program.misses.at(Ways(cache.usable.ways().0 / 2));
    let expected = 1.0 - program.base_cycles / program.cycles(missed);
    program.stalled_fraction = figures.stalled_fraction.unwrap_or(expected).clamp(0.0, 1.0);
    program
}

/// Sharing groups with their curves; `None` if one of a sharer is unknown.
fn shared_sets(seen: &Seen<'_>, planned: &Planned, cache: &Cache) -> Option<Vec<SharingGroup>> {
    let each = planned.sets.iter().map(|set| {
        let set = &seen.sets[*set];
        let sharers = shared_by(set, &planned.programs).into_iter().map(|place| {
            let figures = seen.figures[planned.programs[place]].as_ref()?;
            let curve = figures.shared_misses.clone().or_else(|| straight(figures, set.bytes, cache))?;
            Some(Sharer { program: place, misses: curve })
        });
        Some(SharingGroup { sharers: sharers.collect::<Option<_>>()?, bytes: set.bytes })
    });
    each.collect()
}

/// Without a shared partition all non-private accesses to the group miss; with one that holds the group none do.
fn straight(figures: &Figures, bytes: Bytes, cache: &Cache) -> Option<Curve> {
    let private = figures.private_misses.as_ref()?;
    let accesses = (figures.misses.at(Ways(0)) - private.at(Ways(0))).max(0.0);
    #[expect(clippy::cast_precision_loss, reason = "sizes of caches")]
    let holds = (bytes.0 as f64 / cache.way_bytes.0.max(1) as f64).max(1e-9);
    let missed = |ways: u32| accesses * (1.0 - f64::from(ways) / holds).max(0.0);
    Some(Curve::new((0..=cache.usable.ways().0).map(missed).collect()))
}

#[cfg(test)]
mod tests;
