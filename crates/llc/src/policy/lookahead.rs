//! Look-ahead: assigns ways by the greatest saving, also over several ways at once.
//!
//! Qureshi and Patt, "Utility-Based Cache Partitioning: A Low-Overhead, High-Performance, Runtime Mechanism to
//! Partition Shared Caches", MICRO 2006, algorithm 2:
//!
//! ```text
//! MU(a, b) = (misses with a blocks − misses with b blocks) / (b − a)
//! ```
//!
//! and, while there are ways left, the partition with the greatest MU over any number of further ways gets that
//! number.
//!
//! | paper            | here                  | unit                            |
//! |------------------|-----------------------|---------------------------------|
//! | `miss[i]`        | `curves`              | any figure that is to be small  |
//! | `N` ways         | `ways`                | ways                            |
//! | `allocations[i]` | the answer            | ways; each begins with 1        |
//! | `blocks_req`     | further ways, fewest first | ways                       |
//!
//! We differ: each begins with `least` ways, as hardware may require 2; of equals the first wins; when no saving is
//! left, the rest is assigned one by one, so that all ways are used.

use units::Ways;
use units::cast::fits;

use super::Curve;

/// Ways for each curve, `ways` in all; each has at least `least`, and `ways` must suffice for that.
pub fn lookahead(curves: &[Curve], ways: Ways, least: Ways) -> Vec<Ways> {
    let count: u32 = fits(curves.len());
    let mut given = vec![least; curves.len()];
    let mut left = ways.0.saturating_sub(count.saturating_mul(least.0));
    while left > 0 && !curves.is_empty() {
        let mut best: Option<(f64, usize, u32)> = None;
        for (nth, curve) in curves.iter().enumerate() {
            let (saved, more) = utility(curve, given[nth], left);
            if saved > best.map_or(0.0, |(saved, _, _)| saved) {
                best = Some((saved, nth, more));
            }
        }
        let Some((_, nth, more)) = best else { break };
        given[nth].0 += more;
        left -= more;
    }
    for (nth, ways) in (0..count).zip(&mut given) {
        ways.0 += left / count + u32::from(nth < left % count);
    }
    given
}

/// Greatest saving per way over any number of further ways, and the fewest ways that reach it.
fn utility(curve: &Curve, given: Ways, left: u32) -> (f64, u32) {
    let now = curve.at(given);
    let mut best = (0.0, 0);
    for more in 1..=left {
        let saved = (now - curve.at(Ways(given.0 + more))) / f64::from(more);
        if saved > best.0 {
            best = (saved, more);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::examples::{cyclic, random};

    fn of(curves: &[Vec<f64>], ways: u32, least: u32) -> Vec<u32> {
        let curves: Vec<Curve> = curves.iter().map(|values| Curve::new(values.clone())).collect();
        lookahead(&curves, Ways(ways), Ways(least)).into_iter().map(|ways| ways.0).collect()
    }

    #[test]
    fn a_loop_gets_all_that_it_needs_or_nothing() {
        // From 1 way to 5 the loop saves 20 in 4 ways, 5 each; random access 2 a way. Then it has 8 − 5 = 3.
        assert_eq!(of(&[cyclic(20.0, 5, 8), random(20.0, 10, 8)], 8, 1), [5, 3]);
        // 9 ways do not exist: random access gets all but the first.
        assert_eq!(of(&[cyclic(20.0, 9, 8), random(20.0, 10, 8)], 8, 1), [1, 7]);
    }

    #[test]
    fn what_saves_nothing_is_dealt_out() {
        assert_eq!(of(&[vec![3.0; 12], vec![5.0; 12]], 11, 1), [6, 5]);
        assert_eq!(of(&[vec![3.0; 12], vec![5.0; 12]], 11, 2), [6, 5]);
        assert_eq!(of(&[], 11, 1), [] as [u32; 0]);
    }

    proptest! {
        #[test]
        fn all_ways_are_given_and_each_has_its_least(
            values in prop::collection::vec(prop::collection::vec(0.0f64..50.0, 1..24), 1..8), least in 1u32..3, more in 0u32..12,
        ) {
            let ways = u32::try_from(values.len()).unwrap() * least + more;
            let given = of(&values, ways, least);
            prop_assert_eq!(given.iter().sum::<u32>(), ways);
            prop_assert!(given.iter().all(|ways| *ways >= least));
        }

        #[test]
        fn where_each_way_saves_less_than_the_one_before_it_is_the_best_there_is(
            falls in prop::collection::vec(0.0f64..10.0, 12), first in 0u32..=6,
        ) {
            // Two convex curves of 7 values; `first` is any other division of 8 ways.
            let convex = |falls: &[f64]| {
                let mut falls = falls.to_vec();
                falls.sort_by(|a, b| b.total_cmp(a));
                let mut left: f64 = falls.iter().sum();
                let mut values = vec![left];
                values.extend(falls.iter().map(|fall| { left -= fall; left }));
                values
            };
            let curves = [convex(&falls[..6]), convex(&falls[6..])];
            let misses = |a: u32, b: u32| curves[0][a.min(6) as usize] + curves[1][b.min(6) as usize];
            let given = of(&curves, 8, 1);
            prop_assert!(misses(given[0], given[1]) <= misses(first + 1, 7 - first) + 1e-9);
        }
    }
}
