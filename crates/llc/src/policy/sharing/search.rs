//! Local search for a fair division: from several starts, to the best neighbour, until no neighbour is better.
//!
//! A division is a list of groups with their ways, and the ways of shared partitions; groups do not overlap, so each
//! is judged alone and the result is cached. Only the slowest and the fastest program decide the unfairness, so a
//! step concerns one of them: the group of the slowest gains ways or that of the fastest loses them; one of the two,
//! or a program in its group, moves to another group or to a new one; two groups are merged, and the gained ways go
//! to the slowest; a shared partition gains or loses ways.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use units::cast::fits;
use units::{WayMask, Ways};

use super::{Expected, score};
use crate::policy::Plan;
use crate::policy::masks::{partitions_max, side_by_side, ways_least};
use crate::policy::predict::{Model, Outcome};

/// Fraction of a sharing group in its partition, if the partition is to hold most of it.
const MOST: f64 = 0.97;
/// Number of bits in a division.
pub const PROGRAMS_MAX: usize = 64;
/// Greatest number of ways moved in one step.
const STEP_MAX: u32 = 4;

/// Division of the ways.
#[derive(Clone, Debug)]
pub struct Division {
    /// Programs, as bits, and their ways.
    groups: Vec<(u64, u32)>,
    /// Ways of the shared partition of each group; 0 is none. Shorter if the rest has none.
    partitions: Vec<u32>,
}

impl Division {
    /// Division of a plan; `None` for overlapping classes, or too many programs.
    pub fn of(plan: &Plan) -> Option<Division> {
        let mut taken = WayMask::NONE;
        let mut groups = Vec::new();
        for class in &plan.classes {
            if class.mask.overlaps(taken) {
                return None;
            }
            taken = taken.or(class.mask);
            let mut members = 0u64;
            for program in &class.programs {
                members |= 1u64.checked_shl(u32::try_from(*program).ok()?)?;
            }
            groups.push((members, class.mask.ways().0));
        }
        let mut partitions = Vec::new();
        for partition in &plan.partitions {
            partitions.resize(partitions.len().max(partition.group + 1), 0);
            partitions[partition.group] = partition.mask.ways().0;
        }
        Some(Division { groups, partitions })
    }
}

/// Equality of the groups, in any order.
impl PartialEq for Division {
    fn eq(&self, other: &Division) -> bool {
        let partition = |of: &Division, set: usize| of.partitions.get(set).copied().unwrap_or(0);
        self.groups.len() == other.groups.len()
            && self.groups.iter().all(|group| other.groups.contains(group))
            && (0..self.partitions.len().max(other.partitions.len()))
                .all(|set| partition(self, set) == partition(other, set))
    }
}

fn members(group: u64) -> Vec<usize> {
    (0..64).filter(|program| group >> program & 1 == 1).collect()
}

/// A division and its prediction.
struct Judged {
    division: Division,
    score: f64,
    slowdowns: Vec<f64>,
}

/// State of the search.
pub struct Search<'a> {
    expected: Expected<'a>,
    model: Model<'a>,
    /// Divisions to skip.
    tried: &'a [Division],
    plans_max: usize,
    /// Content of groups, by programs, ways, and the ways of shared partitions (their index in `partitions`).
    known: HashMap<(u64, u32, u32), Outcome, BuildHasherDefault<DefaultHasher>>,
    partitions: Vec<(Vec<u32>, Vec<f64>)>,
    /// Programs with shared data, as bits.
    sharing: u64,
    looked_at: usize,
}

impl<'a> Search<'a> {
    /// A search that leaves out the divisions `tried`, for at most [`PROGRAMS_MAX`] programs.
    pub fn new(expected: Expected<'a>, tried: &'a [Division]) -> Search<'a> {
        let sharers = expected.situation.shared.iter().flat_map(|set| &set.sharers);
        Search {
            expected,
            model: Model::new(expected.situation),
            tried,
            plans_max: expected.settings.plans_max,
            known: HashMap::default(),
            partitions: Vec::new(),
            sharing: sharers.fold(0, |all, sharer| all | 1 << sharer.program),
            looked_at: 0,
        }
    }

    /// Best plans found: one for each initial choice of shared partitions.
    pub fn best(mut self, starts: Vec<Division>) -> Vec<Plan> {
        let mut found = Vec::new();
        let plans_max = self.plans_max;
        let choices = self.choices();
        for (nth, partitions) in choices.iter().enumerate() {
            // An equal part of the budget for each choice; its unused part goes to the next ones.
            self.plans_max = plans_max * (nth + 1) / choices.len();
            let mut begun: Vec<Judged> = Vec::new();
            for start in self.own_starts(partitions).into_iter().chain(starts.clone()) {
                let Some(start) = self.with_partitions(start, partitions) else { continue };
                if begun.iter().all(|other| other.division != start) {
                    begun.push(self.judge(start));
                }
            }
            begun.sort_by(|one, other| one.score.total_cmp(&other.score));
            let improved = begun.into_iter().map(|start| self.improve(start));
            found.extend(improved.min_by(|one, other| one.score.total_cmp(&other.score)));
        }
        found.into_iter().map(|judged| self.plan(&judged.division)).collect()
    }

    /// Initial shared partitions: none, and for each number of sharing groups from the most wanted on, ways for most
    /// of the group or for half of it.
    fn choices(&self) -> Vec<Vec<u32>> {
        let sets = &self.expected.situation.shared;
        let cache = &self.expected.situation.cache;
        let least = ways_least(cache).0;
        let room = cache.usable.ways().0.saturating_sub(least);
        let mut order: Vec<usize> = (0..sets.len()).collect();
        // Misses without the partition, over its ways.
        let wanted = |set: &usize| {
            let misses: f64 = sets[*set].sharers.iter().map(|sharer| sharer.misses.at(Ways(0))).sum();
            misses / sets[*set].bytes.0.max(1) as f64
        };
        order.sort_by(|a, b| wanted(b).total_cmp(&wanted(a)));
        let mut choices = vec![vec![0; sets.len()]];
        for part in [1.0, 0.5] {
            let mut partitions = vec![0; sets.len()];
            for set in &order {
                let mut partitions_of_one = vec![Ways(0); sets.len()];
                let mut holds = |ways: &u32| {
                    partitions_of_one[*set] = Ways(*ways);
                    1.0 - self.model.outside(&partitions_of_one)[*set] >= part * MOST
                };
                let left = room.saturating_sub(partitions.iter().sum());
                let ways = (least..=left).find(&mut holds).unwrap_or(left);
                if ways >= least && partitions_max(cache) > partitions.iter().filter(|ways| **ways > 0).count() + 1 {
                    partitions[*set] = ways;
                    choices.push(partitions.clone());
                }
            }
        }
        choices.dedup();
        choices
    }

    /// Own initial divisions: each program alone, or the greatest possible number of groups, and ways one by one to
    /// the slowest.
    fn own_starts(&mut self, partitions: &[u32]) -> Vec<Division> {
        let cache = &self.expected.situation.cache;
        let least = ways_least(cache).0;
        let left = cache.usable.ways().0.saturating_sub(partitions.iter().sum());
        let used = partitions.iter().filter(|ways| **ways > 0).count();
        let most = (cache.classes_max.max(1).saturating_sub(used)).min((left / least) as usize);
        if most == 0 {
            return Vec::new();
        }
        // Merges the programs with the least gain from ways of their own.
        let programs = &self.expected.situation.programs;
        let mut order: Vec<usize> = (0..programs.len()).collect();
        let gain = |program: &usize| {
            let program = &programs[*program];
            program.slowdown(program.misses.at(Ways(least))) - 1.0
        };
        order.sort_by(|a, b| gain(b).total_cmp(&gain(a)));
        let mut groups: Vec<(u64, u32)> = Vec::new();
        for (nth, program) in order.into_iter().enumerate() {
            if nth < most {
                groups.push((1 << program, least));
            } else if let Some(last) = groups.last_mut() {
                last.0 |= 1 << program;
            }
        }
        let mut judged = self.judge(Division { groups, partitions: partitions.to_vec() });
        let mut spare = left - least * fits::<_, u32>(judged.division.groups.len());
        while spare > 0 {
            let worst = self.group_of(&judged, true);
            // Adds ways until there is a gain.
            let mut best: Option<(f64, u32, Judged)> = None;
            for ways in 1..=spare {
                let mut division = judged.division.clone();
                division.groups[worst].1 += ways;
                let next = self.judge(division);
                let gained = (judged.score - next.score) / f64::from(ways);
                if best.as_ref().is_none_or(|(most, ..)| gained > *most) {
                    best = Some((gained, ways, next));
                }
            }
            let Some((_, ways, next)) = best else { break };
            spare -= ways;
            judged = next;
        }
        vec![judged.division]
    }

    /// Division with these shared partitions: groups give ways, the widest first, and the narrowest are merged if
    /// there are too many. `None` without enough ways.
    fn with_partitions(&self, mut division: Division, partitions: &[u32]) -> Option<Division> {
        let cache = &self.expected.situation.cache;
        let least = ways_least(cache).0;
        let left = cache.usable.ways().0.checked_sub(partitions.iter().sum())?;
        let used = partitions.iter().filter(|ways| **ways > 0).count();
        let most = cache.classes_max.max(1).checked_sub(used)?.min((left / least) as usize);
        if most == 0 {
            return None;
        }
        let groups = &mut division.groups;
        while groups.len() > most {
            groups.sort_by_key(|(members, ways)| (std::cmp::Reverse(*ways), *members));
            let (members, ways) = groups.pop()?;
            let last = groups.last_mut()?;
            (last.0, last.1) = (last.0 | members, last.1 + ways);
        }
        let total = |groups: &[(u64, u32)]| groups.iter().map(|(_, ways)| ways).sum::<u32>();
        while total(groups) > left {
            groups.iter_mut().max_by_key(|(_, ways)| *ways)?.1 -= 1;
        }
        let spare = left - total(groups);
        groups.iter_mut().max_by_key(|(_, ways)| *ways)?.1 += spare;
        division.partitions = partitions.to_vec();
        Some(division)
    }

    fn judge(&mut self, division: Division) -> Judged {
        self.looked_at += 1;
        let partitions = self.partitions_of(&division.partitions);
        let mut all = Outcome::default();
        let mut sure = vec![false; self.expected.situation.programs.len()];
        for (group, ways) in &division.groups {
            let key = (*group, *ways, if group & self.sharing == 0 { 0 } else { partitions });
            if !self.known.contains_key(&key) {
                let outside = &self.partitions[partitions as usize].1;
                let outcome = self.model.outcome(&[(WayMask::lowest(Ways(*ways)), &members(*group))], outside);
                self.known.insert(key, outcome);
            }
            if let Some(outcome) = self.known.get(&key) {
                all.private.extend(&outcome.private);
                all.pieces.extend(&outcome.pieces);
            }
            if group.count_ones() == 1 {
                sure[group.trailing_zeros() as usize] = true;
            }
        }
        let misses = self.model.misses(&all);
        let programs = self.expected.situation.programs.iter().zip(misses);
        let predicted = programs.map(|(program, misses)| program.slowdown(misses)).collect();
        let slowdowns = self.expected.slowdowns_from(predicted, &sure);
        Judged { score: score(&slowdowns, &self.expected.settings), division, slowdowns }
    }

    /// Index of these shared partitions among the known ones.
    fn partitions_of(&mut self, partitions: &[u32]) -> u32 {
        let at = self.partitions.iter().position(|(other, _)| other == partitions).unwrap_or_else(|| {
            let ways: Vec<Ways> = partitions.iter().map(|ways| Ways(*ways)).collect();
            self.partitions.push((partitions.to_vec(), self.model.outside(&ways)));
            self.partitions.len() - 1
        });
        fits(at)
    }

    /// Group of the slowest program, or of the fastest.
    fn group_of(&self, judged: &Judged, slowest: bool) -> usize {
        let by = |one: &usize, other: &usize| judged.slowdowns[*one].total_cmp(&judged.slowdowns[*other]);
        let all = 0..judged.slowdowns.len();
        let program = if slowest { all.max_by(by) } else { all.min_by(by) }.unwrap_or(0);
        judged.division.groups.iter().position(|(members, _)| members >> program & 1 == 1).unwrap_or(0)
    }

    /// Best step of each kind in turn, while any kind helps.
    fn improve(&mut self, start: Judged) -> Judged {
        let mut best = start;
        let mut in_vain = 0;
        for kind in Step::ALL.into_iter().cycle() {
            if in_vain == Step::ALL.len() || self.looked_at >= self.plans_max {
                break;
            }
            let (worst, fastest) = (self.group_of(&best, true), self.group_of(&best, false));
            let neighbours = Neighbours { of: &best.division, cache: &self.expected.situation.cache, worst, fastest };
            let mut better: Option<Judged> = None;
            for division in neighbours.by(kind).into_iter().filter(|division| !self.tried.contains(division)) {
                let next = self.judge(division);
                if next.score < better.as_ref().map_or(best.score - 1e-6, |better| better.score) {
                    better = Some(next);
                }
            }
            in_vain = if better.is_some() { 0 } else { in_vain + 1 };
            best = better.unwrap_or(best);
        }
        best
    }

    fn plan(&self, division: &Division) -> Plan {
        let classes: Vec<_> = division.groups.iter().map(|(group, ways)| (Ways(*ways), members(*group))).collect();
        let partitions = division.partitions.iter().enumerate().filter(|(_, ways)| **ways > 0);
        let partitions: Vec<_> = partitions.map(|(set, ways)| (Ways(*ways), set)).collect();
        side_by_side(&self.expected.situation.cache, &classes, &partitions)
    }
}

/// Kind of a step.
#[derive(Clone, Copy)]
enum Step {
    Ways,
    Members,
    Merged,
    Partitions,
}

impl Step {
    const ALL: [Step; 4] = [Step::Ways, Step::Members, Step::Merged, Step::Partitions];
}

/// Divisions one step away from this one.
struct Neighbours<'a> {
    of: &'a Division,
    cache: &'a crate::policy::Cache,
    worst: usize,
    fastest: usize,
}

impl Neighbours<'_> {
    fn by(&self, step: Step) -> Vec<Division> {
        let mut found = Vec::new();
        match step {
            Step::Ways => self.ways(&mut found),
            Step::Members => self.members(&mut found),
            Step::Merged => self.merged(&mut found),
            Step::Partitions => self.partitions(&mut found),
        }
        found
    }

    fn least(&self) -> u32 {
        ways_least(self.cache).0
    }

    fn has_class(&self) -> bool {
        let partitions = self.of.partitions.iter().filter(|ways| **ways > 0).count();
        self.of.groups.len() + partitions < self.cache.classes_max
    }

    /// Ways that a group may give.
    fn spare(&self, group: usize) -> u32 {
        (self.of.groups[group].1 - self.least()).min(STEP_MAX)
    }

    /// Ways to the slowest, or from the fastest.
    fn ways(&self, found: &mut Vec<Division>) {
        for other in 0..self.of.groups.len() {
            for (from, to) in [(other, self.worst), (self.fastest, other)] {
                for ways in (1..=self.spare(from)).filter(|_| from != to) {
                    let mut next = self.of.clone();
                    next.groups[from].1 -= ways;
                    next.groups[to].1 += ways;
                    found.push(next);
                }
            }
        }
    }

    /// Moves a member of the slowest's or the fastest's group to another group, or to a new one.
    fn members(&self, found: &mut Vec<Division>) {
        for group in [self.worst, self.fastest] {
            let (all, _) = self.of.groups[group];
            for program in members(all) {
                for other in (0..self.of.groups.len()).filter(|other| *other != group) {
                    found.push(self.moved(group, other, program));
                    for swapped in members(self.of.groups[other].0) {
                        let mut next = self.of.clone();
                        next.groups[group].0 ^= 1 << program | 1 << swapped;
                        next.groups[other].0 ^= 1 << program | 1 << swapped;
                        found.push(next);
                    }
                }
                if all.count_ones() < 2 || !self.has_class() {
                    continue;
                }
                for from in 0..self.of.groups.len() {
                    let most = self.of.groups[from].1 - self.least();
                    for ways in self.least()..=most.min(self.least() + STEP_MAX) {
                        let mut next = self.of.clone();
                        next.groups[group].0 ^= 1 << program;
                        next.groups[from].1 -= ways;
                        next.groups.push((1 << program, ways));
                        found.push(next);
                    }
                }
            }
        }
    }

    /// Moves `program` to another group; its old one, if empty, gives its ways to the slowest, or to the other if it
    /// was the slowest's.
    fn moved(&self, group: usize, other: usize, program: usize) -> Division {
        let mut next = self.of.clone();
        next.groups[group].0 ^= 1 << program;
        next.groups[other].0 |= 1 << program;
        if next.groups[group].0 == 0 {
            let ways = next.groups[group].1;
            next.groups[if group == self.worst { other } else { self.worst }].1 += ways;
            next.groups.remove(group);
        }
        next
    }

    /// Merges two groups; some of their ways go to the slowest.
    fn merged(&self, found: &mut Vec<Division>) {
        for b in 1..self.of.groups.len() {
            for a in 0..b {
                let (one, other) = (self.of.groups[a], self.of.groups[b]);
                let given = (one.1 + other.1 - self.least()).min(STEP_MAX);
                let concerned = [a, b].iter().any(|group| *group == self.worst || *group == self.fastest);
                let ways: &[u32] = if a == self.worst || b == self.worst { &[0] } else { &[1, 2, 3, 4] };
                for ways in ways.iter().filter(|ways| **ways <= given && (concerned || **ways > 0)) {
                    let mut next = self.of.clone();
                    next.groups[self.worst].1 += ways;
                    next.groups[a] = (one.0 | other.0, one.1 + other.1 - ways);
                    if a == self.worst {
                        next.groups[a].1 = one.1 + other.1;
                    }
                    next.groups.remove(b);
                    found.push(next);
                }
            }
        }
    }

    /// Ways from shared partitions to the slowest, or from the fastest or the widest to them; a partition without
    /// ways is removed.
    fn partitions(&self, found: &mut Vec<Division>) {
        let widest = (0..self.of.groups.len()).max_by_key(|group| self.of.groups[*group].1).unwrap_or(0);
        for (set, has) in self.of.partitions.iter().enumerate() {
            for ways in 1..=STEP_MAX.min(*has) {
                if has - ways >= self.least() || has == &ways {
                    let mut next = self.of.clone();
                    next.partitions[set] -= ways;
                    next.groups[self.worst].1 += ways;
                    found.push(next);
                }
            }
            for from in [self.fastest, widest] {
                for ways in 1..=self.spare(from) {
                    if has + ways >= self.least() && (*has > 0 || self.has_class()) {
                        let mut next = self.of.clone();
                        next.partitions[set] += ways;
                        next.groups[from].1 -= ways;
                        found.push(next);
                    }
                }
            }
        }
    }
}
