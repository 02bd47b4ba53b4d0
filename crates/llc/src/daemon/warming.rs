//! Pace of warming a shared partition, and plans without miss curves.
//!
//! Pure: time comes in as an argument. A line that was flushed and touched is in the partition until it is evicted,
//! so most checks find nothing to do, and checks become rarer. The CPU time is bounded: a refill that took a
//! hundredth of a second is followed, at a duty of one percent, by a second of rest.
//!
//! | here        | unit                                        | source |
//! |-------------|---------------------------------------------|--------|
//! | `duty`      | CPU time per wall time, one thread, 0 to 1  | configuration; 0.01 |
//! | `allowance` | CPU time to spend now; below 0 after a long piece | `duty` · time, at most that of [`SAVED`] |
//! | `missing`   | bytes of the group outside the partition | the group, less `llc_occupancy`; or by sampled loads |

use std::time::Duration;

use units::cast::saturated;
use units::{Bytes, Fraction, WayMask, Ways};

use crate::policy::{Cache, Curve, Plan, Program, Region, Situation, equal};

/// Greatest time over which unused allowance accumulates.
pub const SAVED: Duration = Duration::from_secs(10);
/// The first rest after a check that found nothing to do; each further one is twice as long, up to the last.
pub const REST_MIN: Duration = Duration::from_millis(50);
/// The longest rest.
pub const REST_MAX: Duration = Duration::from_secs(2);
/// Fraction of a sharing group that may be missing without a refill: occupancy is counted in pieces, and samples
/// scatter.
const TOLERATED: f64 = 1.0 / 32.0;

/// Longest rest to pay off an overdraft.
const DEBT_MAX_S: f64 = 3600.0;

/// Knowledge about the part of a sharing group in its partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Held {
    /// Occupancy of the partition's monitoring group.
    Measured(Bytes),
    /// Fraction of loaded and timed lines that came from a cache.
    Sampled(Fraction),
    /// No measurement.
    Unknown,
}

/// Next action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// Rest for this time.
    Rest(Duration),
    /// Flush and touch, up to this number of bytes or this CPU time, whichever is first.
    Refill {
        /// Missing bytes.
        bytes: Bytes,
        /// CPU time that may be spent.
        time: Duration,
    },
}

/// Rate limiter of one thread.
#[derive(Clone, Debug)]
pub struct Pace {
    duty: f64,
    /// In seconds; below 0 after an overdraft.
    allowance_s: f64,
    looked: Duration,
    /// Number of checks in a row that found nothing to do.
    quiet: u32,
}

impl Pace {
    /// Rate limiter that begins at `now`.
    pub fn new(duty: Fraction, now: Duration) -> Pace {
        Pace { duty: duty.get(), allowance_s: 0.0, looked: now, quiet: 0 }
    }

    /// Next action at `now`, with `held` of `wanted` in the partition. `new` bytes are known to be missing: they were
    /// never placed.
    pub fn turn(&mut self, now: Duration, held: Held, wanted: Bytes, new: Bytes) -> Phase {
        self.earn(now);
        let missing = missing(held, wanted).max(new);
        if missing == Bytes(0) {
            let rest = REST_MIN.saturating_mul(1 << self.quiet.min(16)).min(REST_MAX);
            self.quiet += 1;
            return Phase::Rest(rest);
        }
        self.quiet = 0;
        if self.allowance_s <= 0.0 || self.duty <= 0.0 {
            let wait = if self.duty > 0.0 { -self.allowance_s / self.duty } else { f64::INFINITY };
            return Phase::Rest(Duration::from_secs_f64(wait.min(DEBT_MAX_S)).max(REST_MIN));
        }
        Phase::Refill { bytes: missing, time: Duration::from_secs_f64(self.allowance_s) }
    }

    /// Charges CPU time, of checks and refills.
    pub fn spent(&mut self, cpu: Duration) {
        self.allowance_s -= cpu.as_secs_f64();
    }

    /// Notes a known change: the next check is soon again.
    pub fn changed(&mut self) {
        self.quiet = 0;
    }

    /// Rest until the spent time is earned, for checks and refills.
    pub fn debt(&self) -> Duration {
        let owed = (-self.allowance_s / self.duty).clamp(0.0, DEBT_MAX_S);
        Duration::from_secs_f64(if owed.is_nan() { 0.0 } else { owed })
    }

    /// Adds the allowance of the time that has passed.
    pub fn earn(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.looked);
        self.looked = self.looked.max(now);
        self.allowance_s = (self.allowance_s + self.duty * passed.as_secs_f64()).min(self.duty * SAVED.as_secs_f64());
    }
}

/// Bytes to place; 0 if the difference may be an error of the measurement.
fn missing(held: Held, wanted: Bytes) -> Bytes {
    let missing = match held {
        Held::Measured(bytes) => Bytes(wanted.0.saturating_sub(bytes.0)),
        Held::Sampled(part) => wanted.scaled(1.0 - part.get()),
        Held::Unknown => wanted,
    };
    if missing <= wanted.scaled(TOLERATED) { Bytes(0) } else { missing }
}

/// Shared partitions by size: for each group the ways that hold it, at most `ways_max`, and half of the ways for all.
/// From the top down; the largest group first. For groups with unknown misses.
pub fn regions_by_size(cache: Cache, sets: &[Bytes], ways_max: Option<Ways>) -> Vec<Region> {
    let mut left = Ways(cache.usable.ways().0 / 2);
    // At least one class is for the programs.
    let mut classes = cache.classes_max.saturating_sub(1);
    let Some(first) = cache.usable.first() else { return Vec::new() };
    let mut end = first + cache.usable.ways().0;
    let mut order: Vec<usize> = (0..sets.len()).filter(|set| sets[*set] > Bytes(0)).collect();
    order.sort_by_key(|set| std::cmp::Reverse(sets[*set]));
    let mut regions = Vec::new();
    for set in order {
        let holds = sets[set].0.div_ceil(cache.way_bytes.0.max(1));
        let holds = Ways(saturated(holds)).min(ways_max.unwrap_or(Ways(u32::MAX)));
        let ways = holds.max(cache.ways_min).min(left);
        if classes == 0 || ways < cache.ways_min || ways == Ways(0) {
            continue;
        }
        end -= ways.0;
        left = Ways(left.0 - ways.0);
        classes -= 1;
        regions.push(Region { mask: WayMask::run(end, ways), set });
    }
    regions
}

/// The rest of a cache beside some shared partitions at its top.
pub fn beside(cache: Cache, regions: &[Region]) -> Cache {
    let taken = regions.iter().fold(WayMask::NONE, |all, region| all.or(region.mask));
    Cache {
        usable: cache.usable.without(taken).first_run(),
        classes_max: cache.classes_max.saturating_sub(regions.len()).max(1),
        ..cache
    }
}

/// Equal ways for each, beside shared partitions by size: the plan without miss curves.
pub fn without_curves(cache: Cache, programs: usize, sets: &[Bytes], ways_max: Option<Ways>) -> Plan {
    let regions = regions_by_size(cache, sets, ways_max);
    let flat = Curve::new(vec![0.0]);
    let unknown = Program {
        misses: flat.clone(),
        private_misses: flat,
        base_cycles: 1.0,
        miss_cycles: 0.0,
        stalled_fraction: 0.0,
    };
    let situation = Situation { cache: beside(cache, &regions), programs: vec![unknown; programs], shared: Vec::new() };
    Plan { regions, ..equal::equal(&situation) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SET: Bytes = Bytes::mib(8);
    const NONE: Bytes = Bytes(0);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn pace() -> Pace {
        Pace::new(Fraction::clamped(0.01), Duration::ZERO)
    }

    #[test]
    fn a_hundredth_of_a_second_of_work_is_followed_by_a_second_of_rest() {
        let mut pace = pace();
        let begun = pace.turn(at(1000), Held::Measured(Bytes(0)), SET, NONE);
        assert_eq!(begun, Phase::Refill { bytes: SET, time: at(10) });
        pace.spent(at(20));
        assert_eq!(pace.turn(at(1000), Held::Measured(Bytes::mib(4)), SET, NONE), Phase::Rest(at(1000)));
        assert!(
            matches!(pace.turn(at(2100), Held::Measured(Bytes::mib(4)), SET, NONE), Phase::Refill { bytes, .. } if bytes == Bytes::mib(4))
        );
    }

    #[test]
    fn a_full_region_is_looked_at_ever_more_rarely_until_something_is_lost() {
        let mut pace = pace();
        let rests: Vec<Phase> = (0..8).map(|n| pace.turn(at(5000 + n), Held::Measured(SET), SET, NONE)).collect();
        let expected = [50, 100, 200, 400, 800, 1600, 2000, 2000].map(|ms| Phase::Rest(at(ms)));
        assert_eq!(rests, expected);
        assert!(
            matches!(pace.turn(at(6000), Held::Sampled(Fraction::clamped(0.5)), SET, NONE), Phase::Refill { bytes, .. } if bytes == Bytes::mib(4))
        );
        assert_eq!(pace.turn(at(6001), Held::Measured(SET), SET, NONE), Phase::Rest(REST_MIN));
    }

    #[test]
    fn what_may_be_an_error_of_the_measurement_is_not_missing() {
        assert_eq!(missing(Held::Measured(Bytes(SET.0 - SET.0 / 32)), SET), Bytes(0));
        assert_eq!(missing(Held::Measured(Bytes(SET.0 - SET.0 / 31)), SET), Bytes(SET.0 / 31));
        assert_eq!(missing(Held::Measured(Bytes(SET.0 * 2)), SET), Bytes(0));
        assert_eq!(missing(Held::Unknown, SET), SET);
        // New bytes are placed.
        let mut pace = pace();
        let turn = pace.turn(at(1000), Held::Measured(SET), SET, Bytes::kib(4));
        assert_eq!(turn, Phase::Refill { bytes: Bytes::kib(4), time: at(10) });
    }

    fn cache(ways: u32, classes_max: usize) -> Cache {
        Cache { usable: WayMask::run(1, Ways(ways)), ways_min: Ways(1), classes_max, way_bytes: Bytes::mib(1) }
    }

    #[test]
    fn a_region_holds_its_set_and_all_of_them_have_at_most_half() {
        // 18 ways of 1 MiB from way 1 on: 2.5 MiB want three, the rest of nine goes to 20 MiB.
        let regions = regions_by_size(cache(18, 8), &[Bytes::kib(2560), Bytes::mib(20)], None);
        assert_eq!(regions, [Region { mask: WayMask::run(10, Ways(9)), set: 1 }]);
        let regions = regions_by_size(cache(18, 8), &[Bytes::kib(2560), Bytes::mib(20)], Some(Ways(4)));
        let expected = [(15, 4, 1), (12, 3, 0)];
        let expected = expected.map(|(first, ways, set)| Region { mask: WayMask::run(first, Ways(ways)), set });
        assert_eq!(regions, expected);
        assert_eq!(regions_by_size(cache(18, 1), &[SET], None), [], "the only class is for the programs");
    }

    #[test]
    fn without_curves_programs_have_as_much_each_beside_the_region() {
        let plan = without_curves(cache(10, 8), 2, &[Bytes::mib(2)], None);
        assert_eq!(plan.regions, [Region { mask: WayMask::run(9, Ways(2)), set: 0 }]);
        let masks: Vec<WayMask> = plan.classes.iter().map(|class| class.mask).collect();
        assert_eq!(masks, [WayMask::run(1, Ways(4)), WayMask::run(5, Ways(4))]);
    }

    proptest! {
        #[test]
        fn never_more_is_spent_than_the_duty_allows(
            looks in prop::collection::vec((0u64..5000, 0.0f64..1.0, 0.0f64..0.01), 1..200), duty in 0.001f64..1.0,
        ) {
            let (mut pace, mut now, mut spent) = (Pace::new(Fraction::clamped(duty), Duration::ZERO), Duration::ZERO, 0.0);
            let mut last_piece = 0.0;
            for (wait, part, beyond) in looks {
                now += at(wait);
                if let Phase::Refill { time, .. } = pace.turn(now, Held::Sampled(Fraction::clamped(part)), SET, NONE) {
                    // A piece that has begun is ended.
                    last_piece = beyond;
                    let cpu = time.as_secs_f64() + beyond;
                    pace.spent(Duration::from_secs_f64(cpu));
                    spent += cpu;
                }
                prop_assert!(spent <= duty * now.as_secs_f64() + last_piece + 1e-6, "{spent} s of {now:?}");
            }
        }

        #[test]
        fn regions_and_classes_overlap_nothing(
            ways in 1u32..30, classes in 1usize..16, programs in 1usize..8, sets in prop::collection::vec(0u64..64, 0..4),
        ) {
            let sets: Vec<Bytes> = sets.into_iter().map(Bytes::mib).collect();
            let cache = cache(ways, classes);
            let plan = without_curves(cache, programs, &sets, None);
            prop_assert!(plan.classes.len() + plan.regions.len() <= classes);
            let masks: Vec<WayMask> =
                plan.classes.iter().map(|class| class.mask).chain(plan.regions.iter().map(|region| region.mask)).collect();
            for (nth, mask) in masks.iter().enumerate() {
                prop_assert!(mask.is_contiguous() && !mask.is_empty() && cache.usable.covers(*mask));
                prop_assert!(masks[..nth].iter().all(|other| !other.overlaps(*mask)));
            }
            let all: Vec<usize> = plan.classes.iter().flat_map(|class| class.programs.clone()).collect();
            prop_assert_eq!(all, (0..programs).collect::<Vec<_>>());
        }
    }
}
