//! Learned miss curve of a program, from measurements at few numbers of ways.
//!
//! Pure. A program is measured under one allocation at a time, so its curve is learned by visiting some: first equal
//! ways for all, and then most of the cache for each in turn. The curve is the nearest one to the measurements that
//! does not rise (isotonic regression by pooling adjacent violators; Barlow et al., Statistical Inference under Order
//! Restrictions, 1972), straight in between and flat beyond. Points for only one number of ways give no curve: a flat
//! one would say that ways are of no use.
//!
//! Cycles are fitted by a straight line over misses, cycles = `base` + `miss` · misses, both per thousand
//! instructions, by least squares.

use std::collections::BTreeMap;

use units::{WayMask, Ways};

use crate::policy::{Cache, Class, Curve, Plan};

/// Measurement of a program under one allocation, per thousand instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Misses.
    pub misses: f64,
    /// Cycles.
    pub cycles: f64,
}

/// All points of one program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    by_ways: BTreeMap<u32, Point>,
}

/// Weight of the newest measurement in the mean of an allocation.
const NEW: f64 = 0.25;

impl Learned {
    /// Adds a measurement.
    pub fn see(&mut self, ways: Ways, point: Point) {
        if !(point.misses >= 0.0 && point.cycles > 0.0 && point.misses.is_finite() && point.cycles.is_finite()) {
            return;
        }
        let known = self.by_ways.entry(ways.0).or_insert(point);
        known.misses += NEW * (point.misses - known.misses);
        known.cycles += NEW * (point.cycles - known.cycles);
    }

    /// Misses by ways, from 0 to `all`; `None` before two allocations were measured.
    pub fn misses(&self, all: Ways) -> Option<Curve> {
        if self.by_ways.len() < 2 {
            return None;
        }
        let ways: Vec<f64> = self.by_ways.keys().map(|ways| f64::from(*ways)).collect();
        let values = falling(&self.by_ways.values().map(|point| point.misses).collect::<Vec<_>>());
        Some(Curve::new((0..=all.0).map(|at| between(&ways, &values, f64::from(at))).collect()))
    }

    /// Cycles without a miss, and cycles per miss; `None` before two allocations were measured. If misses do not
    /// differ, or more of them took less time, a miss is taken to cost nothing.
    pub fn cycles(&self) -> Option<(f64, f64)> {
        if self.by_ways.len() < 2 {
            return None;
        }
        let points: Vec<Point> = self.by_ways.values().copied().collect();
        #[expect(clippy::cast_precision_loss, reason = "a handful of points")]
        let count = points.len() as f64;
        let mean_misses = points.iter().map(|point| point.misses).sum::<f64>() / count;
        let mean_cycles = points.iter().map(|point| point.cycles).sum::<f64>() / count;
        let along = |of: &Point| of.misses - mean_misses;
        let spread: f64 = points.iter().map(|point| along(point) * along(point)).sum();
        let both: f64 = points.iter().map(|point| along(point) * (point.cycles - mean_cycles)).sum();
        let miss = if spread > 1e-9 { (both / spread).max(0.0) } else { 0.0 };
        // A program that mostly waits still executes something in between.
        let base = (mean_cycles - miss * mean_misses).max(mean_cycles * 0.01);
        Some((base, miss))
    }
}

/// The nearest values, by squares, that do not rise.
fn falling(values: &[f64]) -> Vec<f64> {
    // Blocks of neighbours with one value: their sum and number.
    let mut blocks: Vec<(f64, u32)> = Vec::new();
    let mean = |(sum, count): (f64, u32)| sum / f64::from(count);
    for value in values {
        let mut block = (*value, 1);
        while let Some(last) = blocks.pop_if(|last| mean(*last) < mean(block)) {
            block = (block.0 + last.0, block.1 + last.1);
        }
        blocks.push(block);
    }
    blocks.into_iter().flat_map(|block| std::iter::repeat_n(mean(block), block.1 as usize)).collect()
}

/// The value at `at` on straight lines through the points; flat beyond them.
fn between(ways: &[f64], values: &[f64], at: f64) -> f64 {
    let after = ways.partition_point(|known| *known < at);
    match (after.checked_sub(1), ways.get(after)) {
        (Some(before), Some(next)) => {
            let part = (at - ways[before]) / (next - ways[before]);
            values[before] + part * (values[after] - values[before])
        }
        (Some(before), None) => values[before],
        (None, _) => values.first().copied().unwrap_or(0.0),
    }
}

/// Allocation of the `nth` visit: first equal ways for all, then for each in turn all ways but the fewest that the
/// others may have. `None` after the last, and without two classes.
pub fn visit(nth: usize, cache: Cache, programs: usize) -> Option<Plan> {
    let ways = cache.usable.ways().0;
    let count = u32::try_from(programs).ok()?;
    let few = cache.ways_min.0.max(1);
    let fits = programs >= 2 && programs <= cache.classes_max && few.checked_mul(count)? < ways;
    if !fits || nth > programs {
        return None;
    }
    let share = |program: usize| match nth.checked_sub(1) {
        None => ways / count,
        Some(most) if program == most => ways - few * (count - 1),
        Some(_) => few,
    };
    let mut first = cache.usable.first()?;
    let classes = (0..programs).map(|program| {
        let mask = WayMask::run(first, Ways(share(program)));
        first += share(program);
        Class { mask, programs: vec![program] }
    });
    Some(Plan { classes: classes.collect(), partitions: Vec::new() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use units::Bytes;

    use super::*;

    fn point(misses: f64, cycles: f64) -> Point {
        Point { misses, cycles }
    }

    #[test]
    fn between_points_the_curve_is_straight_and_beyond_them_flat() {
        let mut learned = Learned::default();
        learned.see(Ways(2), point(20.0, 3000.0));
        assert_eq!((learned.misses(Ways(8)), learned.cycles()), (None, None), "one allocation says nothing");
        learned.see(Ways(6), point(4.0, 1400.0));
        let curve = learned.misses(Ways(8)).unwrap();
        assert_eq!(curve.values(), [20.0, 20.0, 20.0, 16.0, 12.0, 8.0, 4.0, 4.0, 4.0]);
        // 1600 cycles for 16 misses: 100 each, and 1000 without.
        assert_eq!(learned.cycles(), Some((1000.0, 100.0)));
    }

    #[test]
    fn what_rises_is_pooled() {
        assert_eq!(falling(&[9.0, 3.0, 5.0, 1.0]), [9.0, 4.0, 4.0, 1.0]);
        assert_eq!(falling(&[1.0, 2.0, 3.0]), [2.0; 3]);
        assert_eq!(falling(&[]), [0.0; 0]);
    }

    #[test]
    fn a_program_that_changes_is_believed_after_a_while() {
        let mut learned = Learned::default();
        learned.see(Ways(2), point(20.0, 3000.0));
        learned.see(Ways(6), point(4.0, 1400.0));
        for _ in 0..20 {
            learned.see(Ways(6), point(12.0, 2200.0));
        }
        assert!((learned.misses(Ways(6)).unwrap().at(Ways(6)) - 12.0).abs() < 0.1);
        learned.see(Ways(6), point(f64::NAN, 1.0));
        assert!(learned.misses(Ways(6)).unwrap().at(Ways(6)).is_finite());
    }

    fn cache(ways: u32, classes_max: usize) -> Cache {
        Cache { usable: WayMask::lowest(Ways(ways)), ways_min: Ways(1), classes_max, way_bytes: Bytes::mib(1) }
    }

    #[test]
    fn each_has_most_of_the_cache_once() {
        let masks =
            |nth| visit(nth, cache(12, 8), 3).unwrap().classes.iter().map(|class| class.mask.0).collect::<Vec<_>>();
        assert_eq!(masks(0), [0xf, 0xf0, 0xf00]);
        assert_eq!(masks(1), [0x3ff, 0x400, 0x800]);
        assert_eq!(masks(3), [0x1, 0x2, 0xffc]);
        assert_eq!(visit(4, cache(12, 8), 3), None);
        assert_eq!(visit(0, cache(12, 2), 3), None, "too few classes");
        assert_eq!(visit(0, cache(3, 8), 3), None, "too few ways");
        assert_eq!(visit(0, cache(12, 8), 1), None, "nobody to give ways to");
    }

    proptest! {
        #[test]
        fn a_learned_curve_never_rises_and_stays_between_what_was_seen(
            seen in prop::collection::vec((0u32..20, 0.0f64..100.0), 2..30),
        ) {
            let mut learned = Learned::default();
            for (ways, misses) in &seen {
                learned.see(Ways(*ways), point(*misses, 1000.0 + misses));
            }
            if let Some(curve) = learned.misses(Ways(20)) {
                prop_assert_eq!(curve.values().len(), 21);
                prop_assert!(curve.values().windows(2).all(|pair| pair[1] <= pair[0] + 1e-9));
                let most = seen.iter().map(|(_, misses)| *misses).fold(0.0, f64::max);
                prop_assert!(curve.values().iter().all(|value| (0.0..=most + 1e-9).contains(value)));
                let (base, miss) = learned.cycles().unwrap();
                prop_assert!(base > 0.0 && miss >= 0.0);
            }
        }
    }
}
