//! Shared partitions by size, and plans without miss curves. Pure.

use units::cast::saturated;
use units::{Bytes, WayMask, Ways};

use crate::policy::{Cache, Curve, Plan, Program, SharedPartition, Situation, equal};

/// Shared partitions by size: for each group the ways that hold it, at most `ways_max`, and half of the ways for all.
/// From the top down; the largest group first. For groups with unknown misses.
pub fn partitions_by_size(cache: Cache, sets: &[Bytes], ways_max: Option<Ways>) -> Vec<SharedPartition> {
    let mut left = Ways(cache.usable.ways().0 / 2);
    // At least one class is for the programs.
    let mut classes = cache.classes_max.saturating_sub(1);
    let Some(first) = cache.usable.first() else { return Vec::new() };
    let mut end = first + cache.usable.ways().0;
    let mut order: Vec<usize> = (0..sets.len()).filter(|set| sets[*set] > Bytes(0)).collect();
    order.sort_by_key(|set| std::cmp::Reverse(sets[*set]));
    let mut partitions = Vec::new();
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
        partitions.push(SharedPartition { mask: WayMask::run(end, ways), group: set });
    }
    partitions
}

/// The rest of a cache beside some shared partitions at its top.
pub fn beside(cache: Cache, partitions: &[SharedPartition]) -> Cache {
    let taken = partitions.iter().fold(WayMask::NONE, |all, partition| all.or(partition.mask));
    Cache {
        usable: cache.usable.without(taken).first_run(),
        classes_max: cache.classes_max.saturating_sub(partitions.len()).max(1),
        ..cache
    }
}

/// Equal ways for each, beside shared partitions by size: the plan without miss curves.
pub fn without_curves(cache: Cache, programs: usize, sets: &[Bytes], ways_max: Option<Ways>) -> Plan {
    let partitions = partitions_by_size(cache, sets, ways_max);
    let flat = Curve::new(vec![0.0]);
    let unknown = Program {
        misses: flat.clone(),
        private_misses: flat,
        base_cycles: 1.0,
        miss_cycles: 0.0,
        stalled_fraction: 0.0,
    };
    let situation =
        Situation { cache: beside(cache, &partitions), programs: vec![unknown; programs], shared: Vec::new() };
    Plan { partitions, ..equal::equal(&situation) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SET: Bytes = Bytes::mib(8);

    fn cache(ways: u32, classes_max: usize) -> Cache {
        Cache { usable: WayMask::run(1, Ways(ways)), ways_min: Ways(1), classes_max, way_bytes: Bytes::mib(1) }
    }

    #[test]
    fn a_shared_partition_holds_its_set_and_all_of_them_have_at_most_half() {
        // 18 ways of 1 MiB from way 1 on: 2.5 MiB want three, the rest of nine goes to 20 MiB.
        let partitions = partitions_by_size(cache(18, 8), &[Bytes::kib(2560), Bytes::mib(20)], None);
        assert_eq!(partitions, [SharedPartition { mask: WayMask::run(10, Ways(9)), group: 1 }]);
        let partitions = partitions_by_size(cache(18, 8), &[Bytes::kib(2560), Bytes::mib(20)], Some(Ways(4)));
        let expected = [(15, 4, 1), (12, 3, 0)];
        let expected =
            expected.map(|(first, ways, set)| SharedPartition { mask: WayMask::run(first, Ways(ways)), group: set });
        assert_eq!(partitions, expected);
        assert_eq!(partitions_by_size(cache(18, 1), &[SET], None), [], "the only class is for the programs");
    }

    #[test]
    fn without_curves_programs_have_as_much_each_beside_the_shared_partition() {
        let plan = without_curves(cache(10, 8), 2, &[Bytes::mib(2)], None);
        assert_eq!(plan.partitions, [SharedPartition { mask: WayMask::run(9, Ways(2)), group: 0 }]);
        let masks: Vec<WayMask> = plan.classes.iter().map(|class| class.mask).collect();
        assert_eq!(masks, [WayMask::run(1, Ways(4)), WayMask::run(5, Ways(4))]);
    }

    proptest! {
        #[test]
        fn shared_partitions_and_classes_overlap_nothing(
            ways in 1u32..30, classes in 1usize..16, programs in 1usize..8, sets in prop::collection::vec(0u64..64, 0..4),
        ) {
            let sets: Vec<Bytes> = sets.into_iter().map(Bytes::mib).collect();
            let cache = cache(ways, classes);
            let plan = without_curves(cache, programs, &sets, None);
            prop_assert!(plan.classes.len() + plan.partitions.len() <= classes);
            let masks: Vec<WayMask> =
                plan.classes.iter().map(|class| class.mask).chain(plan.partitions.iter().map(|partition| partition.mask)).collect();
            for (nth, mask) in masks.iter().enumerate() {
                prop_assert!(mask.is_contiguous() && !mask.is_empty() && cache.usable.covers(*mask));
                prop_assert!(masks[..nth].iter().all(|other| !other.overlaps(*mask)));
            }
            let all: Vec<usize> = plan.classes.iter().flat_map(|class| class.programs.clone()).collect();
            prop_assert_eq!(all, (0..programs).collect::<Vec<_>>());
        }
    }
}
