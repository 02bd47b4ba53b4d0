//! Shared partitions that fit: as many ways as hold a given part of the shared set, and the same part of the rest for
//! each program. Pure.
//!
//! Not a policy for a real machine, since it ignores the value of the ways; it shows the potential of a shared
//! partition. Lines that do not fit are fetched by the first sharer, and found by the following ones. If the programs
//! run in step, the first one is always the same. The ratio of their access times therefore depends almost only on the
//! part that does not fit.

use units::cast::fits;
use units::{Fraction, WayMask, Ways};

use llc::policy::{Cache, Plan, SharedPartition, Situation, equal};

/// Plan that holds this `part` of each set.
pub fn plan(situation: &Situation, part: Fraction) -> Plan {
    let cache = situation.cache;
    let classes: u32 = fits(situation.programs.len());
    let (all, least) = (cache.usable.ways().0, cache.ways_min.0.max(1));
    let mut wide: Vec<u32> = (0..situation.shared.len()).map(|set| ways_for(situation, set, part)).collect();
    // Every program keeps the least number of ways of a class, if there are enough ways.
    let room = all.saturating_sub(classes.saturating_mul(least)).max(all / 2);
    while wide.iter().sum::<u32>() > room {
        let Some(widest) = wide.iter_mut().max_by_key(|wide| **wide).filter(|wide| **wide > least) else { break };
        *widest -= 1;
    }
    // Ways that cannot be divided evenly go to a shared partition: one more way for one program is the kind of
    // unfairness to avoid.
    let left = all.saturating_sub(wide.iter().sum());
    if let Some(last) = wide.last_mut().filter(|_| classes > 0 && left > classes) {
        *last += left % classes;
    }
    let first = cache.usable.first().unwrap_or(0);
    let mut end = first + all;
    let mut regions = Vec::new();
    for (set, wide) in wide.into_iter().enumerate() {
        if end.saturating_sub(wide) > first {
            end -= wide;
            regions.push(SharedPartition { mask: WayMask::run(end, Ways(wide)), group: set });
        }
    }
    let rest = Cache {
        usable: WayMask::run(first, Ways(end - first)),
        classes_max: cache.classes_max.saturating_sub(regions.len()).max(1),
        ..cache
    };
    Plan { partitions: regions, ..equal::equal(&Situation { cache: rest, ..situation.clone() }) }
}

/// Fewest ways with at most the remaining part of the accesses to this set as misses.
fn ways_for(situation: &Situation, set: usize, part: Fraction) -> u32 {
    let misses =
        |ways: u32| situation.shared[set].sharers.iter().map(|sharer| sharer.misses.at(Ways(ways))).sum::<f64>();
    let bearable = misses(0) * (1.0 - part.get());
    let (least, all) = (situation.cache.ways_min.0.max(1), situation.cache.usable.ways().0);
    (least..=all).find(|ways| misses(*ways) <= bearable).unwrap_or(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llc::policy::examples::{self, cache, program, random, set};

    /// Two programs that share a set; each way holds a `1 / fits` part of it.
    fn situation(ways: u32, fits: u32) -> Situation {
        let shared = vec![set(&[0, 1], &random(1.0, fits, ways))];
        Situation { shared, ..examples::situation(cache(ways, 16), vec![program(&[1.0]); 2]) }
    }

    fn masks(plan: &Plan) -> (Vec<u64>, Vec<u64>) {
        let regions = plan.partitions.iter().map(|region| region.mask.0);
        (plan.classes.iter().map(|class| class.mask.0).collect(), regions.collect())
    }

    #[test]
    fn a_region_is_as_wide_as_its_set_and_the_rest_is_shared_evenly() {
        assert_eq!(masks(&plan(&situation(20, 8), Fraction::clamped(1.0))), (vec![0x3f, 0xfc0], vec![0xf_f000]));
        // Half of it fits in half of the ways.
        assert_eq!(masks(&plan(&situation(20, 8), Fraction::clamped(0.5))), (vec![0xff, 0xff00], vec![0xf_0000]));
    }

    #[test]
    fn a_way_that_cannot_be_divided_goes_to_the_region() {
        assert_eq!(masks(&plan(&situation(20, 7), Fraction::clamped(1.0))), (vec![0x3f, 0xfc0], vec![0xf_f000]));
    }

    #[test]
    fn a_set_that_is_too_large_leaves_each_program_a_way() {
        assert_eq!(masks(&plan(&situation(8, 20), Fraction::clamped(1.0))), (vec![0x1, 0x2], vec![0xfc]));
    }

    #[test]
    fn a_cache_of_one_way_has_no_region() {
        assert_eq!(masks(&plan(&situation(1, 20), Fraction::clamped(1.0))), (vec![0x1], vec![]));
    }
}
