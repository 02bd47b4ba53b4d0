//! Two baselines without a paper: no partition, and equal partitions.

use units::cast::{fits, index};
use units::{WayMask, Ways};

use super::{Class, Plan, Situation};

/// One class with all ways: hardware without partitions.
pub fn unpartitioned(situation: &Situation) -> Plan {
    let programs: Vec<usize> = (0..situation.programs.len()).collect();
    let classes = if programs.is_empty() { Vec::new() } else { vec![Class { mask: situation.cache.usable, programs }] };
    Plan { classes, partitions: Vec::new() }
}

/// Equal ways for each program; the first ones have one more if there is a remainder. With fewer classes, or with too
/// few ways for the least number per class, neighbours share one.
pub fn equal(situation: &Situation) -> Plan {
    let cache = situation.cache;
    let ways = cache.usable.ways().0;
    let room = index((ways / cache.ways_min.0.max(1)).into());
    let count = situation.programs.len().min(cache.classes_max).min(room).max(1);
    let mut classes = Vec::with_capacity(count);
    let mut first = cache.usable.first().unwrap_or(0);
    for nth in 0..count {
        let share = |of: usize| of / count + usize::from(nth < of % count);
        let wide = fits(share(index(ways.into())));
        let before: usize = classes.iter().map(|class: &Class| class.programs.len()).sum();
        let programs: Vec<usize> = (before..before + share(situation.programs.len())).collect();
        if !programs.is_empty() {
            classes.push(Class { mask: WayMask::run(first, Ways(wide)), programs });
        }
        first += wide;
    }
    Plan { classes, partitions: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::examples::{self, cache, program};

    fn situation(programs: usize, ways: u32, classes_max: usize) -> Situation {
        examples::situation(cache(ways, classes_max), vec![program(&[1.0]); programs])
    }

    fn masks(plan: &Plan) -> Vec<u64> {
        plan.classes.iter().map(|class| class.mask.0).collect()
    }

    #[test]
    fn eleven_ways_for_four_programs() {
        assert_eq!(masks(&equal(&situation(4, 11, 16))), [0x7, 0x38, 0x1c0, 0x600]);
    }

    #[test]
    fn with_fewer_classes_neighbours_share_one() {
        let plan = equal(&situation(5, 8, 2));
        assert_eq!(masks(&plan), [0xf, 0xf0]);
        assert_eq!(plan.classes[0].programs, [0, 1, 2]);
        assert_eq!(plan.classes[1].programs, [3, 4]);
    }

    #[test]
    fn nobody_has_no_classes() {
        assert_eq!(equal(&situation(0, 8, 4)).classes, []);
        assert_eq!(unpartitioned(&situation(0, 8, 4)).classes, []);
    }
}
