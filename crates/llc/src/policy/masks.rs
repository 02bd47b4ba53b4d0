//! Masks from numbers of ways, and the check of a plan.
//!
//! Intel's masks are contiguous (without `sparse_masks`), have at least `min_cbm_bits`, and the hardware limits the
//! number of classes: `info/L3/{cbm_mask,min_cbm_bits,num_closids}` in Documentation/filesystems/resctrl.rst. AMD
//! allows more; contiguous masks are valid there as well.

use units::cast::index;
use units::{WayMask, Ways};

use super::{Cache, Class, Plan, SharedPartition, Situation};

/// Fault of a plan that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// A program is in no class, or in several.
    #[error("program {program} is in {classes} classes, expected one")]
    Membership {
        /// Index in the situation.
        program: usize,
        /// Number of its classes.
        classes: usize,
    },
    /// A class names a program outside the situation.
    #[error("there is no program {0}")]
    NoSuchProgram(usize),
    /// A shared partition names a sharing group outside the situation, or one that already has a partition.
    #[error("sharing group {0} does not exist, or has a shared partition already")]
    NoSuchSet(usize),
    /// A class without a program: it would waste a class of service.
    #[error("a class with mask {0} has no program")]
    Unused(WayMask),
    /// A mask with holes.
    #[error("mask {0} has holes")]
    Holes(WayMask),
    /// A mask with ways that are not allocatable.
    #[error("mask {mask} is not within {usable}")]
    Outside {
        /// The mask.
        mask: WayMask,
        /// Allocatable ways.
        usable: WayMask,
    },
    /// A mask with too few ways.
    #[error("mask {mask} has fewer than {least} ways")]
    TooFew {
        /// The mask.
        mask: WayMask,
        /// Least number of ways.
        least: Ways,
    },
    /// A shared partition has ways of a class, or of another shared partition.
    #[error("partition {partition} overlaps {other}")]
    Overlap {
        /// Mask of the shared partition.
        partition: WayMask,
        /// The other mask.
        other: WayMask,
    },
    /// More classes of service than the hardware has.
    #[error("{wanted} classes, and there are {most}")]
    TooMany {
        /// Classes and shared partitions of the plan.
        wanted: usize,
        /// Limit of the hardware.
        most: usize,
    },
}

impl Plan {
    /// Checks that the plan can be applied.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self, situation: &Situation) -> Result<(), Unsound> {
        let cache = &situation.cache;
        let wanted = self.classes.len() + self.partitions.len();
        if wanted > cache.classes_max.max(1) {
            return Err(Unsound::TooMany { wanted, most: cache.classes_max.max(1) });
        }
        let mut classes = vec![0; situation.programs.len()];
        for class in &self.classes {
            sound(class.mask, cache)?;
            if class.programs.is_empty() {
                return Err(Unsound::Unused(class.mask));
            }
            for program in &class.programs {
                *classes.get_mut(*program).ok_or(Unsound::NoSuchProgram(*program))? += 1;
            }
        }
        if let Some((program, classes)) = classes.into_iter().enumerate().find(|(_, classes)| *classes != 1) {
            return Err(Unsound::Membership { program, classes });
        }
        for (nth, partition) in self.partitions.iter().enumerate() {
            sound(partition.mask, cache)?;
            let earlier = &self.partitions[..nth];
            if partition.group >= situation.shared.len() || earlier.iter().any(|other| other.group == partition.group) {
                return Err(Unsound::NoSuchSet(partition.group));
            }
            let others = self.classes.iter().map(|class| class.mask).chain(earlier.iter().map(|other| other.mask));
            if let Some(other) = others.into_iter().find(|other| other.overlaps(partition.mask)) {
                return Err(Unsound::Overlap { partition: partition.mask, other });
            }
        }
        Ok(())
    }
}

fn sound(mask: WayMask, cache: &Cache) -> Result<(), Unsound> {
    if !mask.is_contiguous() {
        return Err(Unsound::Holes(mask));
    }
    if !cache.usable.covers(mask) {
        return Err(Unsound::Outside { mask, usable: cache.usable });
    }
    let least = ways_least(cache);
    if mask.ways() < least || mask.is_empty() {
        return Err(Unsound::TooFew { mask, least });
    }
    Ok(())
}

/// Fewest ways of a class: `ways_min`, but at least 1, and at most all usable ways.
pub fn ways_least(cache: &Cache) -> Ways {
    Ways(cache.ways_min.0.min(cache.usable.ways().0).max(1))
}

/// Greatest number of partitions without overlap, by classes and by ways; at least 1.
pub fn partitions_max(cache: &Cache) -> usize {
    let room = cache.usable.ways().0 / ways_least(cache).0;
    cache.classes_max.min(index(room.into())).max(1)
}

/// Classes side by side from the lowest usable way on, in the order given; classes without a program are left out.
/// Shared partitions follow. Remaining ways are added to the last class.
///
/// Each number must be at least [`ways_least`], and their sum at most all usable ways.
pub fn side_by_side(cache: &Cache, classes: &[(Ways, Vec<usize>)], partitions: &[(Ways, usize)]) -> Plan {
    let mut next = cache.usable.first().unwrap_or(0);
    let mut run = |ways: Ways| {
        let mask = WayMask::run(next, ways).and(cache.usable);
        next += ways.0;
        mask
    };
    let taken = |ways: u32, more: &Ways| ways.saturating_add(more.0);
    let used = classes.iter().filter(|(_, programs)| !programs.is_empty()).map(|(ways, _)| ways).fold(0, taken);
    let used = partitions.iter().map(|(ways, _)| ways).fold(used, taken);
    let spare = cache.usable.ways().0.saturating_sub(used);
    let last = classes.iter().rposition(|(_, programs)| !programs.is_empty());
    let mut plan = Plan { classes: Vec::new(), partitions: Vec::new() };
    for (nth, (ways, programs)) in classes.iter().enumerate().filter(|(_, (_, programs))| !programs.is_empty()) {
        let spare = if last == Some(nth) { spare } else { 0 };
        plan.classes.push(Class { mask: run(Ways(ways.0 + spare)), programs: programs.clone() });
    }
    plan.partitions = partitions.iter().map(|(ways, set)| SharedPartition { mask: run(*ways), group: *set }).collect();
    plan
}

/// Divides programs into this number of groups of neighbours: the fallback of a policy with more programs than
/// partitions. The first groups have one more if there is a remainder.
pub fn neighbours(programs: usize, groups: usize) -> Vec<Vec<usize>> {
    let groups = groups.clamp(1, programs.max(1));
    let mut next = 0;
    (0..groups)
        .map(|nth| {
            let from = next;
            next += programs / groups + usize::from(nth < programs % groups);
            (from..next).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::examples::{cache, program, situation};

    #[test]
    fn classes_lie_side_by_side_and_shared_partitions_above_them() {
        let plan = side_by_side(
            &cache(11, 16),
            &[(Ways(2), vec![1]), (Ways(4), vec![]), (Ways(3), vec![0, 2])],
            &[(Ways(4), 0)],
        );
        assert_eq!(plan.classes[0], Class { mask: WayMask(0b11), programs: vec![1] });
        // Two ways of the class without programs are spare: 3 + 2.
        assert_eq!(plan.classes[1], Class { mask: WayMask(0b111_1100), programs: vec![0, 2] });
        assert_eq!(plan.partitions, [SharedPartition { mask: WayMask(0x780), group: 0 }]);
    }

    #[test]
    fn neighbours_are_as_even_as_can_be() {
        assert_eq!(neighbours(5, 2), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(neighbours(2, 9), [vec![0], vec![1]]);
        assert_eq!(neighbours(0, 3), [Vec::<usize>::new()]);
    }

    #[test]
    fn each_thing_that_can_be_wrong_is_found() {
        let mut two = situation(cache(8, 2), vec![program(&[9.0, 1.0]); 2]);
        two.cache.usable = WayMask(0xfe);
        let plan = |masks: &[(u64, &[usize])], partitions: &[(u64, usize)]| Plan {
            classes: masks.iter().map(|(mask, who)| Class { mask: WayMask(*mask), programs: who.to_vec() }).collect(),
            partitions: partitions
                .iter()
                .map(|(mask, set)| SharedPartition { mask: WayMask(*mask), group: *set })
                .collect(),
        };
        assert_eq!(plan(&[(0x6, &[0]), (0x18, &[1])], &[]).check(&two), Ok(()));
        assert_eq!(plan(&[(0x6, &[0]), (0xe, &[1])], &[]).check(&two), Ok(()), "classes may overlap");
        let broken = |masks, partitions| plan(masks, partitions).check(&two).unwrap_err();
        assert_eq!(broken(&[(0x6, &[0])], &[]), Unsound::Membership { program: 1, classes: 0 });
        assert_eq!(broken(&[(0x6, &[0, 1]), (0x18, &[1])], &[]), Unsound::Membership { program: 1, classes: 2 });
        assert_eq!(broken(&[(0x6, &[0, 1, 2])], &[]), Unsound::NoSuchProgram(2));
        assert_eq!(broken(&[(0xa, &[0, 1])], &[]), Unsound::Holes(WayMask(0xa)));
        assert_eq!(broken(&[(0x3, &[0, 1])], &[]), Unsound::Outside { mask: WayMask(3), usable: WayMask(0xfe) });
        assert_eq!(broken(&[(0, &[0, 1])], &[]), Unsound::TooFew { mask: WayMask(0), least: Ways(1) });
        assert_eq!(broken(&[(0x6, &[0, 1]), (0x8, &[])], &[]), Unsound::Unused(WayMask(8)));
        assert_eq!(broken(&[(0x6, &[0]), (0x8, &[1])], &[(0x10, 0)]), Unsound::TooMany { wanted: 3, most: 2 });
        assert_eq!(broken(&[(0x6, &[0, 1])], &[(0x10, 0)]), Unsound::NoSuchSet(0));
    }

    #[test]
    fn a_shared_partition_has_ways_of_its_own() {
        let mut two = situation(cache(8, 4), vec![program(&[9.0, 1.0]); 2]);
        two.shared.push(super::super::examples::set(&[0, 1], &[5.0, 0.0]));
        let classes = vec![Class { mask: WayMask(0xf), programs: vec![0, 1] }];
        let partitions = vec![SharedPartition { mask: WayMask(0x18), group: 0 }];
        let overlap = Unsound::Overlap { partition: WayMask(0x18), other: WayMask(0xf) };
        assert_eq!(Plan { classes, partitions }.check(&two), Err(overlap));
    }
}
