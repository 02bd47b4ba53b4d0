//! KPart: programs that do not hurt each other share a partition.
//!
//! El-Sayed, Mukkara, Tsai, Kasture, Ma and Sanchez, "KPart: A Hybrid Cache Partitioning-Sharing Technique for
//! Commodity Multicores", HPCA 2018:
//!
//! ```text
//! distance(P, Q) = Σ over sizes s of | combined(s) − partitioned(s) |
//! ```
//!
//! where partitioned(s) counts the misses of both if look-ahead divides s between them, and combined(s) their misses
//! if they share s ([`merged_curve`](super::merged_curve)). The closest two are merged repeatedly; the number of clusters with
//! the best estimated throughput is taken, its ways by look-ahead.
//!
//! | paper                   | here                                        | unit                      |
//! |-------------------------|---------------------------------------------|---------------------------|
//! | miss curves             | [`Program::misses`](super::Program::misses) | per thousand instructions |
//! | s                       | 1 to all usable ways                        | ways                      |
//! | weighted speedup        | Σ 1/slowdown                                | programs                  |
//! | K                       | classes that there may be                   |                           |
//!
//! We differ: progress comes from misses and their cost ([`Program::slowdown`](super::Program::slowdown)), not from
//! measured instructions per cycle by ways; distances are not scaled by time, since our curves are per instruction;
//! there is no profiling phase, curves are given. Of equals the first pair is merged, and the larger number of
//! clusters kept.

use units::Ways;

use super::lookahead::lookahead;
use super::masks::{partitions_max, side_by_side, ways_least};
use super::merged_curve::{Combined, combined};
use super::{Plan, Situation};

/// Ways and programs of each class.
type Divided = Vec<(Ways, Vec<usize>)>;

struct Cluster {
    programs: Vec<usize>,
    curve: Combined,
}

impl Cluster {
    fn of(situation: &Situation, mut programs: Vec<usize>) -> Cluster {
        programs.sort_unstable();
        Cluster { curve: combined(situation, &programs), programs }
    }
}

/// The plan.
pub fn plan(situation: &Situation) -> Plan {
    let cache = &situation.cache;
    let most = partitions_max(cache);
    let mut clusters: Vec<Cluster> =
        (0..situation.programs.len()).map(|program| Cluster::of(situation, vec![program])).collect();
    let mut distances: Vec<Vec<f64>> = (0..clusters.len()).map(|a| row(situation, &clusters, a)).collect();
    let mut best: Option<(f64, Divided)> = None;
    loop {
        if clusters.len() <= most {
            let (throughput, classes) = divided(situation, &clusters);
            if best.as_ref().is_none_or(|(most, _)| throughput > *most) {
                best = Some((throughput, classes));
            }
        }
        let Some((a, b)) = closest(&distances) else { break };
        let merged = [clusters[a].programs.as_slice(), &clusters[b].programs].concat();
        clusters.remove(b);
        clusters[a] = Cluster::of(situation, merged);
        distances.remove(b);
        for row in &mut distances[b..] {
            row.remove(b);
        }
        distances[a] = row(situation, &clusters, a);
        for later in a + 1..clusters.len() {
            distances[later][a] = distance(situation, &clusters[later], &clusters[a]);
        }
    }
    side_by_side(cache, &best.map(|(_, classes)| classes).unwrap_or_default(), &[])
}

/// Estimated throughput of these clusters, in programs, and their ways.
fn divided(situation: &Situation, clusters: &[Cluster]) -> (f64, Divided) {
    let curves: Vec<_> = clusters.iter().map(|cluster| cluster.curve.misses.clone()).collect();
    let ways = lookahead(&curves, situation.cache.usable.ways(), ways_least(&situation.cache));
    let each = clusters.iter().zip(&ways);
    let slowdowns = each.flat_map(|(cluster, ways)| cluster.curve.slowdowns(situation, &cluster.programs, *ways));
    let throughput = slowdowns.map(|slowdown| 1.0 / slowdown).sum();
    (throughput, ways.into_iter().zip(clusters.iter().map(|cluster| cluster.programs.clone())).collect())
}

/// Cost of sharing for these two, in MPKI, over all sizes.
fn distance(situation: &Situation, a: &Cluster, b: &Cluster) -> f64 {
    let both = Cluster::of(situation, [a.programs.as_slice(), &b.programs].concat()).curve.misses;
    let curves = [a.curve.misses.clone(), b.curve.misses.clone()];
    let at = |ways: u32| {
        let split = lookahead(&curves, Ways(ways), Ways(0));
        (both.at(Ways(ways)) - curves[0].at(split[0]) - curves[1].at(split[1])).abs()
    };
    (1..=situation.cache.usable.ways().0).map(at).sum()
}

/// Distances of cluster `a` from those before it.
fn row(situation: &Situation, clusters: &[Cluster], a: usize) -> Vec<f64> {
    (0..a).map(|b| distance(situation, &clusters[a], &clusters[b])).collect()
}

/// Closest pair, in ascending order; of equals the first.
fn closest(distances: &[Vec<f64>]) -> Option<(usize, usize)> {
    let pairs =
        distances.iter().enumerate().flat_map(|(b, row)| row.iter().enumerate().map(move |(a, far)| (*far, a, b)));
    pairs.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, a, b)| (a, b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::examples::{cache, cyclic, program, random, situation};

    #[test]
    fn streams_are_merged_and_the_loop_is_left_alone() {
        // Two streams miss the same with any number of ways: their distance is 0. So the loop has four ways, and no
        // loss at all.
        let stream = program(&[30.0; 6]);
        let programs = vec![stream.clone(), program(&cyclic(20.0, 4, 5)), stream];
        let plan = plan(&situation(cache(5, 16), programs));
        let classes: Vec<_> = plan.classes.iter().map(|class| (class.mask.0, class.programs.as_slice())).collect();
        assert_eq!(classes, [(0b1, [0, 2].as_slice()), (0b1_1110, [1].as_slice())]);
    }

    #[test]
    fn distance_is_what_sharing_costs() {
        let both = situation(cache(2, 16), vec![program(&[10.0; 3]), program(&random(10.0, 2, 2))]);
        let [a, b] = [0, 1].map(|program| Cluster::of(&both, vec![program]));
        // Partitioned: 15 with one way, 10 with two. Combined, in quarters of a way, the second has 0.43 of one way:
        // its miss rate with h ways is 10 − 5h, and of each quarter it gets (10 − 5h)/(20 − 5h).
        let mut has = 0.0f64;
        let mut cost = 0.0;
        for ways in [1.0, 2.0] {
            (0..4).for_each(|_| has += 0.25 * (10.0 - 5.0 * has) / (20.0 - 5.0 * has));
            cost += 20.0 - 5.0 * has - (20.0 - 5.0 * ways);
        }
        assert!((distance(&both, &a, &b) - cost).abs() < 1e-12 && cost > 0.0);
    }
}
