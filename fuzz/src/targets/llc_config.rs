//! `llc.toml`, as text after a byte that selects the hardware, the groups beside masu's, and the sharing. It is read or
//! refused, also by the hardware. An accepted one has a plan with groups that keep the hardware's rules, and with steps
//! that lead there and back.

use std::collections::{BTreeMap, BTreeSet};

use linux::Pid;
use linux::resctrl::CacheId;
use llc::daemon::allocatable_ways::{Hardware, UnmanagedGroup, allocatable_ways};
use llc::daemon::config::{Config, Measured};
use llc::daemon::decide::{Figures, GroupSize, Seen, decide};
use llc::daemon::layout::{Desired, Member, Processes, Surroundings, desired};
use llc::daemon::steps::{Observed, ObservedGroup, Step, diff};
use llc::policy::Curve;
use units::{Bytes, WayMask, Ways};

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((which, text)) = bytes.split_first() else { return false };
    let Ok(config) = Config::parse("llc.toml", &String::from_utf8_lossy(text)) else { return false };
    assert!(!config.programs.is_empty() && config.duty.get() > 0.0);
    // The policies try thousands of plans: a few programs test as much.
    if config.programs.len() > 6 {
        return false;
    }
    let hardware = hardware(*which);
    let unmanaged = unmanaged(*which);
    let Ok(allocatable) = allocatable_ways(&config, &hardware, &unmanaged) else { return false };
    assert!(
        hardware.all.covers(allocatable.default_ways) && !allocatable.default_ways.overlaps(allocatable.cache.usable)
    );

    let count = config.programs.len();
    let running = vec![true; count];
    let figures: Vec<Option<Figures>> =
        config.programs.iter().map(|program| program.measured.as_ref().map(of_measured)).collect();
    let shared = GroupSize { sharers: (0..count).collect(), bytes: Bytes::mib(u64::from(which >> 5)) };
    let sets = if count > 1 && shared.bytes > Bytes(0) { vec![shared] } else { Vec::new() };
    let seen = Seen { caches: &hardware.caches, running: &running, figures: &figures, sets: &sets };
    let decision = decide(&config, &allocatable, &seen, &[]);

    let caches: BTreeSet<CacheId> = hardware.caches.iter().copied().collect();
    let members = config.programs.iter().zip(10..).map(|(program, pid)| Member {
        name: program.name.clone(),
        processes: Processes::from([(Pid(pid), [Pid(pid)].into())]),
        caches: program.l3.as_ref().map_or(caches.clone(), |own| own.iter().map(|cache| CacheId(*cache)).collect()),
        fixed: program.fixed.map(|fixed| (fixed.mask, fixed.exclusive)),
    });
    let members: Vec<Member> = members.collect();
    let around = Surroundings {
        before: caches.iter().map(|cache| (*cache, hardware.all)).collect(),
        caches,
        default_ways: allocatable.default_ways,
        shareable: hardware.shareable,
        unmanaged: unmanaged.clone(),
        groups_max: hardware.classes.saturating_sub(1 + unmanaged.len()),
    };
    let domains: Vec<String> = sets.iter().map(|_| "/a b".to_owned()).collect();
    let Ok(wanted) = desired(&decision.planned, &members, &domains, &around) else { return false };
    keeps_the_rules(&wanted, &hardware, &around);
    leads_there(&wanted, &hardware, &unmanaged);
    true
}

fn of_measured(of: &Measured) -> Figures {
    Figures {
        misses: Curve::new(of.misses.clone()),
        private_misses: of.private_misses.clone().map(Curve::new),
        shared_misses: of.shared_misses.clone().map(Curve::new),
        base_cycles: of.base_cycles,
        miss_cycles: of.miss_cycles,
        stalled_fraction: None,
        configured: true,
    }
}

/// Hardware of 20 or 11 ways, one, two or none of them required in a mask; one cache or two; few classes or many.
fn hardware(which: u8) -> Hardware {
    let all = WayMask::lowest(Ways(if which & 1 == 0 { 20 } else { 11 }));
    Hardware {
        all,
        ways_min: Ways(u32::from(which >> 1) % 3),
        classes: if which & 8 == 0 { 16 } else { 3 },
        shareable: if which & 1 == 0 { WayMask(0xc0000) } else { WayMask::NONE },
        way_bytes: Bytes::mib(1),
        caches: if which & 4 == 0 { vec![CacheId(0)] } else { vec![CacheId(0), CacheId(3)] },
    }
}

fn unmanaged(which: u8) -> Vec<UnmanagedGroup> {
    let theirs = UnmanagedGroup { name: "theirs".to_owned(), mask: WayMask(0x70), exclusive: which & 32 == 0 };
    if which & 16 == 0 { Vec::new() } else { vec![theirs] }
}

fn keeps_the_rules(wanted: &Desired, hardware: &Hardware, around: &Surroundings) {
    assert!(wanted.groups.len() <= around.groups_max);
    let labels: BTreeSet<&str> = wanted.groups.iter().map(|group| group.label.as_str()).collect();
    assert_eq!(labels.len(), wanted.groups.len());
    for (nth, group) in wanted.groups.iter().enumerate() {
        assert!(linux::resctrl::Group::own(&group.label).is_ok(), "{}", group.label);
        for (cache, mask) in &group.masks {
            assert!(hardware.all.covers(*mask) && mask.is_contiguous() && !mask.is_empty(), "{mask}");
            assert!(mask.ways() >= hardware.ways_min, "{mask}");
            let closed = around.unmanaged.iter().filter(|unmanaged| unmanaged.exclusive);
            assert!(closed.into_iter().all(|unmanaged| !unmanaged.mask.overlaps(*mask)), "{mask}");
            if group.exclusive {
                assert!(!mask.overlaps(hardware.shareable) && !mask.overlaps(wanted.default_masks[cache]));
                let others = wanted.groups.iter().enumerate().filter(|(other, _)| *other != nth);
                assert!(others.into_iter().all(|(_, other)| !other.masks[cache].overlaps(*mask)));
            }
        }
    }
}

/// Checks that the kernel takes each step, and that nothing is left to do after the last.
fn leads_there(wanted: &Desired, hardware: &Hardware, unmanaged: &[UnmanagedGroup]) {
    let masks = |mask: WayMask| hardware.caches.iter().map(|cache| (*cache, mask)).collect::<BTreeMap<_, _>>();
    let open = unmanaged.iter().filter(|of| of.exclusive).fold(hardware.all, |open, of| open.without(of.mask));
    let mut there = Observed::from([(String::new(), ObservedGroup { masks: masks(open), ..ObservedGroup::default() })]);
    for of in unmanaged {
        let theirs = ObservedGroup { masks: masks(of.mask), exclusive: of.exclusive, ..ObservedGroup::default() };
        there.insert(of.name.clone(), theirs);
    }
    for step in diff(&there, wanted, &BTreeMap::new(), hardware.ways_min) {
        match step {
            Step::Make(label) => {
                let closed = there.values().filter(|group| group.exclusive).flat_map(|group| group.masks.values());
                let open = closed.fold(hardware.all, |open, mask| open.without(*mask)).first_run();
                let made = ObservedGroup { masks: masks(open), ours: true, ..ObservedGroup::default() };
                assert!(there.insert(label, made).is_none());
            }
            Step::Masks(label, masks) => {
                let closed = there.iter().filter(|(name, group)| **name != label && group.exclusive);
                for group in closed.map(|(_, group)| group) {
                    assert!(masks.iter().all(|(cache, mask)| !group.masks[cache].overlaps(*mask)), "{label}");
                }
                there.get_mut(&label).expect("a group that is there").masks = masks;
            }
            Step::Exclusive(label, exclusive) => {
                let own = there[&label].masks.clone();
                let others = there.iter().filter(|(name, _)| **name != label);
                for (other, group) in others.filter(|_| exclusive) {
                    assert!(own.iter().all(|(cache, mask)| !group.masks[cache].overlaps(*mask)), "{label} and {other}");
                }
                there.get_mut(&label).expect("a group that is there").exclusive = exclusive;
            }
            Step::Process(label, _, threads) => there.get_mut(&label).expect("a group").threads.extend(threads),
            Step::WarmUp(..) => {}
            Step::Thread(..) | Step::Remove(_) => panic!("nobody was there before"),
        }
    }
    let left = diff(&there, wanted, &BTreeMap::new(), hardware.ways_min);
    assert!(left.iter().all(|step| matches!(step, Step::WarmUp(..))), "{left:?}");
}
