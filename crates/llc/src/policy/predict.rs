//! Predicts the slowdown of each program under a plan.
//!
//! Programs that fill the same ways divide them by the model of `contend`; a slowed program misses more slowly, so
//! the result is iterated over a few rounds. Lines of a sharing group are one stream, kept young by all readers. The
//! part of a group that a shared partition holds is always in the cache; of the rest each class with sharers holds a
//! part, in proportion to their access rate, 1/k each for equal sharers. Where only one class is known (a search
//! tries thousands), the rest of a group is assumed to fare the same elsewhere.
//!
//! The misses of a program on a sharing group whose lines are replaced like all others are not in the situation: a
//! sharer's curve is that of a shared partition, which is kept warm. `apart` derives them from the other curves.
//!
//! Proportional parts are right on average and for random access. In loops that run in step the first to arrive pays
//! for all, in either class: then a plan without a shared partition is less fair than predicted.

use units::{Bytes, WayMask, Ways};

use super::shared_occupancy::{Feed, Stream, held};
use super::{Cache, Curve, Plan, SharingGroup, Situation};

mod private_misses;

/// Rounds of adjusting the speeds.
const ROUNDS: usize = 3;

/// Slowdown of each program under this plan, relative to all of the cache for itself; 1 is no loss. Less than 1 is
/// possible: lines that others read into a shared partition are a gain. A program in no class is predicted to find
/// nothing in the cache.
pub fn predict(situation: &Situation, plan: &Plan) -> Vec<f64> {
    let classes: Vec<(WayMask, &[usize])> =
        plan.classes.iter().map(|class| (class.mask, class.programs.as_slice())).collect();
    let mut ways = vec![Ways(0); situation.shared.len()];
    for partition in &plan.partitions {
        if let Some(ways) = ways.get_mut(partition.group) {
            *ways = partition.mask.ways();
        }
    }
    let model = Model::new(situation);
    let outcome = model.outcome(&classes, &model.outside(&ways));
    let misses = model.misses(&outcome);
    situation.programs.iter().zip(misses).map(|(program, misses)| program.slowdown(misses)).collect()
}

/// Fraction of a sharing group that a shared partition with `ways` ways holds, 0 to 1: for callers without the
/// physical addresses that still need a curve for [`Sharer::misses`](super::Sharer::misses).
///
/// Pages are scattered over physical memory, so the sets of a cache with λ lines each on average have a Poisson
/// distribution of lines. A partition of w ways holds min(w, X) of the X lines of each. A group of 4 ways' worth of
/// data: 4 ways hold 80 %, 6 ways 95 %, 8 ways 99 %.
pub fn part_in_partition(set: &SharingGroup, ways: Ways, cache: &Cache) -> f64 {
    if ways.0 == 0 {
        return 0.0;
    }
    let lambda = lines_per_set(set.bytes, cache.way_bytes);
    if lambda <= 0.0 {
        return 1.0;
    }
    // E min(w, X) = Σ over j from 1 to w of P(X ≥ j).
    let (mut chance, mut below, mut expected) = ((-lambda).exp(), 0.0, 0.0);
    for j in 1..=ways.0 {
        below += chance;
        chance *= lambda / f64::from(j);
        expected += (1.0 - below).max(0.0);
    }
    (expected / lambda).clamp(0.0, 1.0)
}

fn lines_per_set(bytes: Bytes, way: Bytes) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio of sizes")]
    let ratio = bytes.0 as f64 / way.0.max(1) as f64;
    ratio
}

/// Part of a sharing group, in one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// Index of the group.
    pub set: usize,
    /// Fraction of the group, 0 to 1.
    pub part: f64,
    /// Ways that the whole group would have, if it fared the same everywhere.
    pub ways: f64,
}

/// Content of some classes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// For each of their programs: its misses on private pages, MPKI.
    pub private: Vec<(usize, f64)>,
    /// Parts of sharing groups.
    pub pieces: Vec<Piece>,
}

/// A situation, with derived values for repeated predictions.
pub struct Model<'a> {
    situation: &'a Situation,
    /// By group: fraction of all accesses to it that each of its sharers makes, when each runs alone.
    weights: Vec<Vec<f64>>,
    /// By group: misses of each sharer on it without a shared partition, by the ways that its lines have.
    curves: Vec<Vec<Curve>>,
}

impl<'a> Model<'a> {
    /// Model of this situation.
    pub fn new(situation: &'a Situation) -> Model<'a> {
        let weights = situation.shared.iter().map(|set| {
            let rate = |sharer: &super::Sharer| {
                let program = situation.programs.get(sharer.program);
                program.map_or(0.0, |program| sharer.misses.at(Ways(0)) / program.cycles(program.misses.last()))
            };
            let rates: Vec<f64> = set.sharers.iter().map(rate).collect();
            let total: f64 = rates.iter().sum();
            rates.into_iter().map(|rate| if total > 0.0 { rate / total } else { 0.0 }).collect()
        });
        let curves = (0..situation.shared.len()).map(|set| private_misses::curves(situation, set));
        Model { situation, weights: weights.collect(), curves: curves.collect() }
    }

    /// Fraction of the accesses to each group that its shared partition does not serve, by the partition's ways.
    pub fn outside(&self, partitions: &[Ways]) -> Vec<f64> {
        let outside = |(set, ways): (usize, &Ways)| {
            let sharers = self.situation.shared[set].sharers.iter().zip(&self.weights[set]);
            let missed = sharers.map(|(sharer, weight)| {
                let all = sharer.misses.at(Ways(0));
                if all > 0.0 { weight * (sharer.misses.at(*ways) / all).min(1.0) } else { 0.0 }
            });
            missed.sum()
        };
        partitions
            .iter()
            .enumerate()
            .take(self.situation.shared.len())
            .map(|(set, ways)| outside((set, ways)))
            .collect()
    }

    /// Content of these classes; `outside` is the fraction of each group that is in no shared partition. Other
    /// classes do not matter to these, as long as they do not overlap.
    pub fn outcome(&self, classes: &[(WayMask, &[usize])], outside: &[f64]) -> Outcome {
        let programs = &self.situation.programs;
        let mut streams: Vec<Stream<'_>> = Vec::new();
        let mut who = Vec::new();
        for (mask, members) in classes {
            for program in members.iter().copied().filter(|program| *program < programs.len()) {
                let feeds = vec![Feed { program, curve: &programs[program].private_misses }];
                streams.push(Stream { mask: *mask, part: 1.0, feeds });
                who.push(program);
            }
        }
        let mut sets = Vec::new();
        for (set, shared) in self.situation.shared.iter().enumerate() {
            for (mask, members) in classes {
                let of_class = shared.sharers.iter().zip(&self.weights[set]);
                let weight: f64 =
                    of_class.filter(|(sharer, _)| members.contains(&sharer.program)).map(|(_, weight)| weight).sum();
                let part = weight * outside[set];
                // Less than a thousandth has no effect.
                if part > 1e-3 {
                    let known = shared.sharers.iter().zip(&self.curves[set]);
                    let known = known.filter(|(sharer, _)| sharer.program < programs.len());
                    let feeds = known.map(|(sharer, curve)| Feed { program: sharer.program, curve }).collect();
                    streams.push(Stream { mask: *mask, part, feeds });
                    sets.push(set);
                }
            }
        }
        let mut speeds: Vec<f64> = programs.iter().map(|program| 1.0 / program.cycles(program.misses.last())).collect();
        let mut outcome = Outcome::default();
        // A program alone in its ways has them at any speed.
        let rounds = if streams.len() > classes.len() { ROUNDS } else { 1 };
        for _ in 0..rounds {
            let held = held(&streams, &speeds);
            let (own, shared) = held.split_at(who.len());
            let private =
                |(program, ways): (&usize, &f64)| (*program, programs[*program].private_misses.between(*ways));
            outcome.private = who.iter().zip(own).map(private).collect();
            let piece = |(stream, (set, ways)): (&Stream<'_>, (&usize, &f64))| Piece {
                set: *set,
                part: stream.part,
                ways: ways / stream.part,
            };
            outcome.pieces = streams[who.len()..].iter().zip(sets.iter().zip(shared)).map(piece).collect();
            for (program, private) in &outcome.private {
                let misses = private + self.shared_misses(*program, &outcome.pieces, outside);
                // Halfway, so that alternating programs do not oscillate.
                speeds[*program] = 0.5 * (speeds[*program] + 1.0 / programs[*program].cycles(misses));
            }
        }
        outcome
    }

    /// MPKI of each program, from an outcome of all classes.
    pub fn misses(&self, outcome: &Outcome) -> Vec<f64> {
        let mut misses: Vec<f64> = self.situation.programs.iter().map(|program| program.misses.at(Ways(0))).collect();
        let nowhere = vec![0.0; self.situation.shared.len()];
        for (program, private) in &outcome.private {
            misses[*program] = private + self.shared_misses(*program, &outcome.pieces, &nowhere);
        }
        misses
    }

    /// MPKI of a program's accesses to sharing groups: those of the pieces, scaled to the fraction `outside`.
    fn shared_misses(&self, program: usize, pieces: &[Piece], outside: &[f64]) -> f64 {
        let mut misses = 0.0;
        for (set, shared) in self.situation.shared.iter().enumerate() {
            let sharers = shared.sharers.iter().zip(&self.curves[set]);
            for (_, curve) in sharers.filter(|(sharer, _)| sharer.program == program) {
                let (mut known, mut of_known) = (0.0, 0.0);
                for piece in pieces.iter().filter(|piece| piece.set == set) {
                    known += piece.part;
                    of_known += piece.part * curve.between(piece.ways);
                }
                misses += if known > 0.0 { of_known * (outside[set] / known).max(1.0) } else { 0.0 };
            }
        }
        misses
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::examples::{any_situation, cache, cyclic, program, random, set, situation};
    use crate::policy::{Class, Policy, Program, SharedPartition};

    #[test]
    fn with_ways_of_its_own_a_program_is_as_its_curve_says() {
        let two = situation(cache(8, 16), vec![program(&random(10.0, 8, 8)), program(&cyclic(20.0, 5, 8))]);
        let plan = Policy::Equal.plan(&two, None);
        // 5 misses with 4 ways, 1500 cycles for 1000; the loop misses 20 times, 3000 for 1000.
        assert_eq!(predict(&two, &plan), [1.5, 3.0]);
    }

    /// The paper's two programs: half of the data of each is shared. Arrays of 2·`half` ways.
    fn paper(ways: u32, half: u32) -> Situation {
        let reader = Program { misses: Curve::new(random(20.0, 2 * half, ways)), ..program(&random(10.0, half, ways)) };
        let shared = vec![set(&[0, 1], &random(10.0, half, ways))];
        Situation { shared, ..situation(cache(ways, 16), vec![reader; 2]) }
    }

    #[test]
    fn a_shared_partition_takes_the_shared_lines_out_of_the_classes() {
        let two = paper(20, 4);
        let class = |mask, program| Class { mask: WayMask(mask), programs: vec![program] };
        let partition = SharedPartition { mask: WayMask(0xff000), group: 0 };
        let plan = Plan { classes: vec![class(0x3f, 0), class(0xfc0, 1)], partitions: vec![partition] };
        assert_eq!(plan.check(&two), Ok(()));
        let found = predict(&two, &plan);
        assert!(found.iter().all(|slowdown| (slowdown - 1.0).abs() < 0.01), "{found:?}");
        // Without it each class holds a half of the group: 4 + 2 ways' worth, and 4 ways.
        let without = Plan { classes: vec![class(0xf, 0), class(0xf0, 1)], partitions: Vec::new() };
        let found = predict(&two, &without);
        assert!(found[0] > 1.3 && found[0] == found[1], "{found:?}");
    }

    #[test]
    fn a_shared_partition_as_large_as_the_set_holds_most_of_it() {
        let part = |mib, ways| {
            let set = SharingGroup { bytes: Bytes::mib(mib), ..set(&[0, 1], &[1.0]) };
            (part_in_partition(&set, Ways(ways), &cache(20, 16)) * 1000.0).round()
        };
        // λ = 4: P(X ≥ 1 … 4) = 0.9817, 0.9084, 0.7619, 0.5665, together 3.2185 of 4; then 0.3712, 0.2149, 0.1107,
        // 0.0511.
        assert_eq!([part(4, 0), part(4, 4), part(4, 6), part(4, 8)], [0.0, 805.0, 951.0, 992.0]);
    }

    proptest! {
        #[test]
        fn every_plan_of_every_policy_has_finite_expectations(situation in any_situation()) {
            for policy in Policy::ALL {
                let found = predict(&situation, &policy.plan(&situation, None));
                prop_assert_eq!(found.len(), situation.programs.len());
                prop_assert!(found.iter().all(|slowdown| slowdown.is_finite() && *slowdown > 0.0), "{:?}", found);
            }
        }

        #[test]
        fn a_larger_shared_partition_holds_no_less(mib in 1u64..64, ways in 1u32..64) {
            let set = SharingGroup { bytes: Bytes::mib(mib), ..set(&[0, 1], &[1.0]) };
            let part = |ways| part_in_partition(&set, Ways(ways), &cache(20, 16));
            prop_assert!(part(ways) >= part(ways - 1) && part(ways) <= 1.0);
        }
    }
}
