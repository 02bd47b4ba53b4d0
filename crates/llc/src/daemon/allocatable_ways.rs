//! Allocatable ways: the ways and classes of the hardware, without those of the default group, of exclusive unmanaged
//! groups, and of fixed masks in the configuration.
//!
//! Pure. Ways that hardware besides the CPUs uses (`shareable_bits`, such as those filled by network cards) go to the
//! default group first, since no group with one of them can be exclusive.

use linux::resctrl::CacheId;
use units::{Bytes, WayMask, Ways};

use super::config::{BadConfig, Config};
use crate::policy::Cache;

/// The hardware as the file system describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// All ways.
    pub all: WayMask,
    /// Fewest ways of a mask; 0 on AMD.
    pub ways_min: Ways,
    /// Number of classes, including that of the default group.
    pub classes: usize,
    /// Ways that hardware besides the CPUs may use as well.
    pub shareable: WayMask,
    /// Capacity of one way, in each cache.
    pub way_bytes: Bytes,
    /// Ids of the caches.
    pub caches: Vec<CacheId>,
}

/// Unmanaged group, made by another tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnmanagedGroup {
    /// Name of the group.
    pub name: String,
    /// Its ways, in any of the caches.
    pub mask: WayMask,
    /// No other group may allocate in them.
    pub exclusive: bool,
}

/// Allocatable ways and classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatableWays {
    /// Ways of the default group.
    pub default_ways: WayMask,
    /// Ways left to the policy; none if all programs have fixed ways.
    pub cache: Cache,
    /// Unmanaged groups whose ways overlap masu's.
    pub beside: Vec<UnmanagedGroup>,
}

/// Reason why no ways are allocatable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The configuration needs more than this hardware has.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// No classes are left.
    #[error(
        "cannot make groups: {classes} classes of service, the default group has one, other groups {unmanaged}, needed: {wanted}"
    )]
    Classes {
        /// All classes.
        classes: usize,
        /// Classes of unmanaged groups.
        unmanaged: usize,
        /// Fewest classes needed.
        wanted: usize,
    },
    /// No ways are left.
    #[error("cannot partition the cache: {taken} of its {all} ways are taken, needed in a row: {wanted}")]
    Ways {
        /// All ways.
        all: Ways,
        /// Ways of the default group, of fixed masks and of exclusive groups.
        taken: Ways,
        /// Fewest ways needed.
        wanted: Ways,
    },
}

/// Allocatable ways under `config` on `hardware`, beside unmanaged groups.
///
/// # Errors
/// When the configuration needs more than there is, or nothing is left.
pub fn allocatable_ways(
    config: &Config,
    hardware: &Hardware,
    unmanaged: &[UnmanagedGroup],
) -> Result<AllocatableWays, Unfit> {
    check(config, hardware)?;
    let closed = union(unmanaged.iter().filter(|group| group.exclusive).map(|group| group.mask));
    for program in &config.programs {
        let Some(fixed) = program.fixed else { continue };
        let holder =
            unmanaged.iter().find(|group| group.mask.overlaps(fixed.mask) && (group.exclusive || fixed.exclusive));
        if let Some(holder) = holder {
            let of = if holder.exclusive { "exclusive group" } else { "group" };
            let what =
                format!("mask = {}: overlaps the {of} {}, whose mask is {}", fixed.mask, holder.name, holder.mask);
            return Err(config.bad(program.line, what).into());
        }
    }
    let fixed = union(config.programs.iter().filter_map(|program| program.fixed).map(|fixed| fixed.mask));
    let open = hardware.all.without(closed).without(fixed);
    let rest_ways = config.rest_ways.unwrap_or_else(|| usual_default(hardware));
    let default_ways = place_default(open, rest_ways, hardware.shareable).ok_or_else(|| Unfit::Ways {
        all: hardware.all.ways(),
        taken: closed.or(fixed).ways(),
        wanted: rest_ways,
    })?;
    let usable = longest_run(open.without(default_ways));
    let ways_min = Ways(hardware.ways_min.0.max(1));
    let own: Vec<_> = config.programs.iter().filter_map(|program| program.fixed).collect();
    let decided = config.programs.len() - own.len();
    let left = hardware.classes.saturating_sub(1 + unmanaged.len());
    let wanted = own.len() + usize::from(decided > 0);
    if left < wanted {
        return Err(Unfit::Classes { classes: hardware.classes, unmanaged: unmanaged.len(), wanted });
    }
    if decided > 0 && usable.ways() < ways_min {
        let taken = closed.or(fixed).or(default_ways).ways();
        return Err(Unfit::Ways { all: hardware.all.ways(), taken, wanted: ways_min });
    }
    let cache = Cache { usable, ways_min, classes_max: left - own.len(), way_bytes: hardware.way_bytes };
    let beside = unmanaged.iter().filter(|group| !group.exclusive && group.mask.overlaps(usable.or(fixed))).cloned();
    Ok(AllocatableWays { default_ways, cache, beside: beside.collect() })
}

/// Ways of the default group without a setting: those that other hardware uses, unless that is more than half of all;
/// else the fewest that a mask may have.
fn usual_default(hardware: &Hardware) -> Ways {
    let (all, shareable) = (hardware.all.ways().0, hardware.shareable);
    let used = if shareable.is_contiguous() && shareable.ways().0 <= all / 2 { shareable.ways().0 } else { 0 };
    Ways(used.max(hardware.ways_min.0).max(1))
}

/// Checks the configuration against the hardware.
fn check(config: &Config, hardware: &Hardware) -> Result<(), BadConfig> {
    let all = hardware.all.ways();
    if let Some(rest) = config.rest_ways.filter(|rest| *rest >= all) {
        let what = format!("rest_ways = {rest}: expected fewer than the {all} ways of this cache");
        return Err(config.bad(config.rest_line, what));
    }
    if let Some(rest) = config.rest_ways.filter(|rest| *rest < hardware.ways_min) {
        let what = format!("rest_ways = {rest}: expected {} or more, as this processor wants", hardware.ways_min);
        return Err(config.bad(config.rest_line, what));
    }
    if let Some(most) = config.partitions.ways_max.filter(|most| *most > all || *most < hardware.ways_min) {
        let what = format!("ways_max = {most}: expected {} to {all}", hardware.ways_min.max(Ways(1)));
        return Err(config.bad(config.partitions.line, what));
    }
    for program in &config.programs {
        if let Some(fixed) = program.fixed {
            if !hardware.all.covers(fixed.mask) {
                let what =
                    format!("mask = {}: expected ways of {}, of which this cache has {all}", fixed.mask, hardware.all);
                return Err(config.bad(program.line, what));
            }
            if fixed.mask.ways() < hardware.ways_min {
                let what = format!("mask = {}: expected {} ways or more", fixed.mask, hardware.ways_min);
                return Err(config.bad(program.line, what));
            }
            if fixed.exclusive && fixed.mask.overlaps(hardware.shareable) {
                let what = format!(
                    "mask = {}: cannot be exclusive, since other hardware may use ways {}",
                    fixed.mask, hardware.shareable
                );
                return Err(config.bad(program.line, what));
            }
        }
        if let Some(measured) = &program.measured {
            let most = all.0 as usize + 1;
            for (name, curve) in [
                ("mpki", Some(&measured.misses)),
                ("private_mpki", measured.private_misses.as_ref()),
                ("shared_mpki", measured.shared_misses.as_ref()),
            ] {
                if let Some(curve) = curve.filter(|curve| curve.len() > most) {
                    let what = format!("{name} has {} values: expected up to {most}, for 0 to {all} ways", curve.len());
                    return Err(config.bad(program.line, what));
                }
            }
        }
        if let Some(cache) = program.l3.iter().flatten().find(|cache| !hardware.caches.contains(&CacheId(**cache))) {
            let there: Vec<String> = hardware.caches.iter().map(|cache| cache.0.to_string()).collect();
            let what = format!("l3 = {cache}: expected a cache of this host: {}", there.join(", "));
            return Err(config.bad(program.line, what));
        }
    }
    Ok(())
}

fn union(masks: impl Iterator<Item = WayMask>) -> WayMask {
    masks.fold(WayMask::NONE, WayMask::or)
}

/// `count` contiguous ways of the open ones: at those of other hardware, else at the top; at the other end if that
/// would cut the remainder in two.
fn place_default(open: WayMask, count: Ways, shareable: WayMask) -> Option<WayMask> {
    let places = (0..64).map(|first| WayMask::run(first, count)).filter(|run| run.ways() == count && open.covers(*run));
    // Most ways of other hardware, then the longest remaining run for masu, then the highest position.
    places.max_by_key(|run| (run.and(shareable).ways(), longest_run(open.without(*run)).ways(), run.0))
}

/// The longest run of contiguous ways; of equals the lowest.
fn longest_run(mask: WayMask) -> WayMask {
    let (mut best, mut left) = (WayMask::NONE, mask);
    while !left.is_empty() {
        let run = left.first_run();
        if run.ways() > best.ways() {
            best = run;
        }
        left = left.without(run);
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hardware(ways: u32) -> Hardware {
        let all = WayMask::lowest(Ways(ways));
        let (ways_min, shareable) = (Ways(1), WayMask::NONE);
        Hardware {
            all,
            ways_min,
            classes: 8,
            shareable,
            way_bytes: Bytes::mib(1),
            caches: vec![CacheId(0), CacheId(1)],
        }
    }

    fn config(text: &str) -> Config {
        Config::parse("llc.toml", &format!("policy = \"equal\"\n{text}")).unwrap()
    }

    const TWO: &str = "[[program]]\nname = \"a\"\npids = [1]\n[[program]]\nname = \"b\"\npids = [2]\n";

    fn group(name: &str, mask: u64, exclusive: bool) -> UnmanagedGroup {
        UnmanagedGroup { name: name.to_owned(), mask: WayMask(mask), exclusive }
    }

    #[test]
    fn the_rest_has_the_top_and_what_is_below_may_be_given() {
        let room = allocatable_ways(&config(&format!("rest_ways = 2\n{TWO}")), &hardware(20), &[]).unwrap();
        assert_eq!((room.default_ways, room.cache.usable), (WayMask(0xc_0000), WayMask(0x3_ffff)));
        assert_eq!(room.cache.classes_max, 7);
    }

    #[test]
    fn where_other_hardware_comes_in_the_rest_is() {
        let low = Hardware { shareable: WayMask(0x3), ..hardware(11) };
        let room = allocatable_ways(&config(&format!("rest_ways = 2\n{TWO}")), &low, &[]).unwrap();
        assert_eq!((room.default_ways, room.cache.usable), (WayMask(0x3), WayMask(0x7fc)));
    }

    #[test]
    fn where_nothing_is_said_the_rest_has_what_other_hardware_uses() {
        let hardware =
            |shareable, ways_min| Hardware { shareable: WayMask(shareable), ways_min: Ways(ways_min), ..hardware(20) };
        let rest = |shareable, ways_min| {
            allocatable_ways(&config(TWO), &hardware(shareable, ways_min), &[]).unwrap().default_ways.0
        };
        assert_eq!(rest(0xc_0000, 1), 0xc_0000); // as on Intel's
        assert_eq!((rest(0, 1), rest(0, 2), rest(0x8_0000, 2)), (0x8_0000, 0xc_0000, 0xc_0000));
        // In two pieces, or most of the cache: the fewest possible.
        assert_eq!((rest(0xc_0003, 1).count_ones(), rest(0x7_ffff, 1).count_ones()), (1, 1));
    }

    #[test]
    fn exclusive_groups_of_others_and_fixed_masks_are_left_out() {
        let text = format!("{TWO}[[program]]\nname = \"c\"\npids = [3]\nmask = \"3\"\nexclusive = true\n");
        let others = [group("db", 0xc00, true), group("old", 0x0f0, false)];
        let room = allocatable_ways(&config(&text), &hardware(12), &others).unwrap();
        assert_eq!((room.default_ways, room.cache.usable), (WayMask(0x200), WayMask(0x1fc)));
        assert_eq!(room.cache.classes_max, 8 - 1 - 2 - 1);
        assert_eq!(room.beside, [group("old", 0x0f0, false)]);
    }

    #[test]
    fn what_the_hardware_does_not_have_is_named_with_its_line() {
        let said = |text: &str, hardware: &Hardware, unmanaged: &[UnmanagedGroup]| {
            allocatable_ways(&config(&format!("{text}{TWO}")), hardware, unmanaged).unwrap_err().to_string()
        };
        let fixed =
            |mask: &str, more: &str| format!("[[program]]\nname = \"c\"\npids = [3]\nmask = \"{mask}\"\n{more}\n");
        let two_at_least = Hardware { ways_min: Ways(2), ..hardware(20) };
        let shared = Hardware { shareable: WayMask(0x600), ..hardware(11) };
        let cases = [
            (
                said("rest_ways = 11\n", &hardware(11), &[]),
                "llc.toml line 2: rest_ways = 11: expected fewer than the 11 ways",
            ),
            (said("rest_ways = 1\n", &two_at_least, &[]), "llc.toml line 2: rest_ways = 1: expected 2 or more"),
            (said("[region]\nways_max = 12\n", &hardware(11), &[]), "llc.toml line 3: ways_max = 12: expected 1 to 11"),
            (
                said(&fixed("1f", ""), &hardware(4), &[]),
                "llc.toml line 3: mask = 1f: expected ways of f, of which this cache has 4",
            ),
            (
                said(&format!("rest_ways = 2\n{}", fixed("1", "")), &two_at_least, &[]),
                "llc.toml line 4: mask = 1: expected 2 ways or more",
            ),
            (said(&fixed("600", "exclusive = true"), &shared, &[]), "llc.toml line 3: mask = 600: cannot be exclusive"),
            (
                said(&fixed("3", "l3 = [4]"), &hardware(11), &[]),
                "llc.toml line 3: l3 = 4: expected a cache of this host: 0, 1",
            ),
            (
                said(&fixed("3", "mpki = [1.0, 1.0, 1.0, 1.0]\nbase_cycles = 5\nmiss_cycles = 5"), &hardware(2), &[]),
                "llc.toml line 3: mpki has 4 values: expected up to 3, for 0 to 2 ways",
            ),
            (
                said(&fixed("3", ""), &hardware(11), &[group("db", 1, true)]),
                "llc.toml line 3: mask = 3: overlaps the exclusive group db, whose mask is 1",
            ),
        ];
        for (found, expected) in cases {
            assert!(found.starts_with(expected), "expected: {expected}\n   found: {found}");
        }
    }

    #[test]
    fn without_classes_or_ways_nothing_is_given_away() {
        let few = Hardware { classes: 3, ..hardware(11) };
        let others = [group("x", 1, false), group("y", 1, false)];
        let error = allocatable_ways(&config(TWO), &few, &others).unwrap_err();
        assert_eq!(error, Unfit::Classes { classes: 3, unmanaged: 2, wanted: 1 });
        let error = allocatable_ways(&config(TWO), &hardware(4), &[group("x", 0xe, true)]).unwrap_err();
        assert_eq!(error, Unfit::Ways { all: Ways(4), taken: Ways(4), wanted: Ways(1) });
    }

    proptest! {
        #[test]
        fn what_is_given_is_in_a_row_and_nobodys(
            ways in 2u32..32, rest in 1u32..4, shareable: u64, other: u64, exclusive: bool,
        ) {
            let all = WayMask::lowest(Ways(ways));
            let hardware = Hardware { shareable: WayMask(shareable).and(all).first_run(), ..hardware(ways) };
            let other = group("x", WayMask(other).and(all).first_run().0, exclusive);
            let config = config(&format!("rest_ways = {rest}\n{TWO}"));
            if let Ok(room) = allocatable_ways(&config, &hardware, std::slice::from_ref(&other)) {
                prop_assert!(room.cache.usable.is_contiguous() && !room.cache.usable.is_empty());
                prop_assert!(room.default_ways.is_contiguous() && room.default_ways.ways() == Ways(rest));
                prop_assert!(all.covers(room.default_ways.or(room.cache.usable)) && !room.default_ways.overlaps(room.cache.usable));
                prop_assert!(!exclusive || !other.mask.overlaps(room.default_ways.or(room.cache.usable)));
            }
        }
    }
}
