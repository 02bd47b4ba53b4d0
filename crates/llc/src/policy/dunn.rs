//! Dunn: programs with similar memory stalls form a cluster; the greater the stalls, the more ways they may use.
//!
//! Selfa, Sahuquillo, Eeckhout, Petit and Gómez, "Application Clustering Policies to Address System Fairness with
//! Intel's Cache Allocation Technology", PACT 2017. Clusters by k-means over stall cycles, their number by Dunn's
//! index; then, with x a cluster's stalls over those of the worst:
//!
//! ```text
//! ways(x) = exp(x · ln(W − w_min + 1)) + w_min − 1
//! ```
//!
//! | paper                       | here                                  | unit                     | paper's value |
//! |-----------------------------|---------------------------------------|--------------------------|---------------|
//! | stall cycles | [`Program::stalled_fraction`](super::Program::stalled_fraction) | part of its cycles | |
//! | W                           | all usable ways                       | ways                     | 20            |
//! | w_min                       | [`Settings::ways_min`]                | ways                     | 2             |
//! | masks                       | [`Settings::layout`]                  |                          | nested        |
//!
//! The masks overlap: the worst cluster has all ways, the others a part. The authors' program (vtselfa/manager) nests
//! all masks from one end; [`Layout::Spread`] begins every other one at the other end, as a later simulator of other
//! authors (PBBCache) does.
//!
//! We differ. The first centers are taken from the sorted values in even steps, and an empty cluster takes the value
//! farthest from its center: nothing here is random. Dunn's index is the least distance between clusters over the
//! greatest diameter, and *larger* is better; both programs keep the number of clusters with the *smallest* index,
//! and we follow the text. Two programs are clustered as well: the paper has eight or twelve.

use units::{WayMask, Ways};

use super::masks::{partitions_max, ways_least};
use super::{Class, Plan, Situation};

/// Position of the clusters' masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All from the lowest way.
    Nested,
    /// Alternately from the lowest and from the highest way.
    Spread,
}

/// Free parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Ways of a cluster without stalls.
    pub ways_min: Ways,
    /// Position of the masks.
    pub layout: Layout,
}

/// Values of the paper.
pub const PAPER: Settings = Settings { ways_min: Ways(2), layout: Layout::Nested };

/// Greatest number of k-means rounds.
const ROUNDS: usize = 100;

/// The plan.
pub fn plan(situation: &Situation, settings: Settings) -> Plan {
    let stalls: Vec<f64> = situation.programs.iter().map(|program| tidy(program.stalled_fraction)).collect();
    let clusters = clusters(&stalls, partitions_max(&situation.cache));
    let center = |cluster: &[usize]| mean(cluster.iter().map(|program| stalls[*program]));
    let most = clusters.iter().map(|cluster| center(cluster)).fold(0.0, f64::max);
    let usable = situation.cache.usable;
    let (first, all) = (usable.first().unwrap_or(0), usable.ways());
    let least = settings.ways_min.max(ways_least(&situation.cache)).min(all);
    let classes = clusters.into_iter().enumerate().map(|(nth, programs)| {
        // Without stalls no program needs isolation.
        let x = if most > 0.0 { center(&programs) / most } else { 1.0 };
        let ways = ways(x, all, least);
        let from_above = settings.layout == Layout::Spread && nth % 2 == 1;
        let mask = WayMask::run(if from_above { first + all.0 - ways.0 } else { first }, ways);
        Class { mask, programs }
    });
    Plan { classes: classes.collect(), partitions: Vec::new() }
}

fn tidy(stalled: f64) -> f64 {
    if stalled > 0.0 { stalled.min(1.0) } else { 0.0 }
}

/// Ways for a cluster with `x` times the stalls of the worst, 0 to 1: from `least` to `all`.
pub fn ways(x: f64, all: Ways, least: Ways) -> Ways {
    let span = f64::from(all.0.saturating_sub(least.0) + 1);
    let ways = (x.clamp(0.0, 1.0) * span.ln()).exp() + f64::from(least.0) - 1.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between `least` and `all`")]
    let ways = ways.round() as u32;
    Ways(ways.clamp(least.0.min(all.0), all.0))
}

/// Indices of `values` by cluster, at most `most` clusters, the least values first. The number of clusters is the one
/// with the greatest index; of equals the smallest. One cluster if all values are the same.
pub fn clusters(values: &[f64], most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let sorted: Vec<f64> = order.iter().map(|place| values[*place]).collect();
    let mut best: (f64, Vec<usize>) = (0.0, vec![0; sorted.len()]);
    for k in 2..=most.min((sorted.len().max(3)) - 1).min(sorted.len()) {
        let labels = k_means(&sorted, k);
        let index = dunn_index(&sorted, &labels);
        if index > best.0 {
            best = (index, labels);
        }
    }
    let mut clusters: Vec<Vec<usize>> = Vec::new();
    for (nth, place) in order.into_iter().enumerate() {
        // In order of their values, neighbours have the same label or begin another cluster.
        match clusters.last_mut() {
            Some(last) if best.1[nth] == best.1[nth - 1] => last.push(place),
            _ => clusters.push(vec![place]),
        }
    }
    clusters
}

/// Cluster of each of the sorted values.
fn k_means(sorted: &[f64], k: usize) -> Vec<usize> {
    let mut centers: Vec<f64> = (0..k).map(|nth| sorted[nth * sorted.len() / k]).collect();
    let mut labels = Vec::new();
    for _ in 0..ROUNDS {
        let next: Vec<usize> = sorted.iter().map(|value| nearest(&centers, *value)).collect();
        if next == labels {
            break;
        }
        labels = next;
        for (nth, center) in centers.iter_mut().enumerate() {
            let of = sorted.iter().zip(&labels).filter(|(_, label)| **label == nth).map(|(value, _)| *value);
            if labels.contains(&nth) {
                *center = mean(of);
            }
        }
        for nth in 0..k {
            if !labels.contains(&nth) {
                let distance = |at: usize| (sorted[at] - centers[labels[at]]).abs();
                let farthest = (0..sorted.len()).max_by(|a, b| distance(*a).total_cmp(&distance(*b)));
                centers[nth] = farthest.map_or(centers[nth], |at| sorted[at]);
            }
        }
    }
    labels
}

fn nearest(centers: &[f64], value: f64) -> usize {
    let distance = |nth: &usize| (centers[*nth] - value).abs();
    (0..centers.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}

/// The least gap between clusters over the greatest width of one; 0 for one cluster, or without a gap.
fn dunn_index(sorted: &[f64], labels: &[usize]) -> f64 {
    let (mut gap, mut width, mut from) = (f64::INFINITY, 0.0f64, 0);
    for at in 1..sorted.len() {
        if labels[at] == labels[at - 1] {
            width = width.max(sorted[at] - sorted[from]);
        } else {
            gap = gap.min(sorted[at] - sorted[at - 1]);
            from = at;
        }
    }
    if gap.is_infinite() || gap <= 0.0 { 0.0 } else { gap / width }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::examples::{any_situation, cache, program, situation};

    #[test]
    fn the_rule_goes_from_two_ways_to_all() {
        // exp(x · ln 19) + 1: 2, 3.09, 5.36, 10.10, 20.
        let at = |x: f64| ways(x, Ways(20), Ways(2)).0;
        assert_eq!([at(0.0), at(0.25), at(0.5), at(0.75), at(1.0)], [2, 3, 5, 10, 20]);
    }

    #[test]
    fn two_heaps_are_two_clusters() {
        // k = 2: gap 0.58 over width 0.02 is 29; k = 3 splits a heap and has a gap of 0.01.
        assert_eq!(clusters(&[0.71, 0.10, 0.12, 0.70, 0.11], 16), [vec![1, 4, 2], vec![3, 0]]);
        assert_eq!(clusters(&[0.3; 4], 16), [vec![0, 1, 2, 3]]);
        assert_eq!(clusters(&[0.1, 0.9], 16), [vec![0], vec![1]]);
        assert_eq!(clusters(&[0.1, 0.9], 1), [vec![0, 1]]);
    }

    #[test]
    fn who_waits_most_sees_all_ways_and_the_others_a_part_of_them() {
        let stalled = |stalled_fraction: f64| super::super::Program { stalled_fraction, ..program(&[9.0, 1.0]) };
        let four = situation(cache(20, 16), vec![stalled(0.8), stalled(0.2), stalled(0.21), stalled(0.79)]);
        let masks = |layout| {
            let plan = plan(&four, Settings { layout, ..PAPER });
            plan.classes.into_iter().map(|class| (class.mask.0, class.programs)).collect::<Vec<_>>()
        };
        // x = 0.205/0.795: exp(0.258 · ln 19) + 1 = 3.1.
        assert_eq!(masks(Layout::Nested), [(0x7, vec![1, 2]), (0xf_ffff, vec![3, 0])]);
        assert_eq!(masks(Layout::Spread), [(0x7, vec![1, 2]), (0xf_ffff, vec![3, 0])]);
    }

    proptest! {
        #[test]
        fn every_value_is_in_one_cluster_and_clusters_are_in_order(
            values in prop::collection::vec(0.0f64..1.0, 1..20), most in 1usize..17,
        ) {
            let found = clusters(&values, most);
            prop_assert!(found.len() <= most);
            let places: Vec<usize> = found.concat();
            prop_assert!(places.windows(2).all(|two| values[two[0]] <= values[two[1]]));
            let mut sorted = places;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..values.len()).collect::<Vec<_>>());
        }

        #[test]
        fn more_waiting_never_means_fewer_ways(a in 0.0f64..1.0, b in 0.0f64..1.0, all in 1u32..32, least in 1u32..4) {
            let (all, least) = (Ways(all.max(least)), Ways(least));
            prop_assert!(ways(a.min(b), all, least) <= ways(a.max(b), all, least));
            prop_assert!(ways(a, all, least) >= least && ways(a, all, least) <= all);
        }

        #[test]
        fn spread_masks_are_sound_too(situation in any_situation()) {
            if !situation.programs.is_empty() {
                let plan = plan(&situation, Settings { layout: Layout::Spread, ..PAPER });
                prop_assert_eq!(plan.check(&situation), Ok(()));
            }
        }
    }
}
