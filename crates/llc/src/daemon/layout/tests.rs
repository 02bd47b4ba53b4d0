use super::*;
use crate::policy::{Class, SharedPartition};

fn around() -> Surroundings {
    Surroundings {
        caches: [CacheId(0), CacheId(1)].into(),
        default_ways: WayMask(0xc00),
        before: Masks::from([(CacheId(0), WayMask(0xfff)), (CacheId(1), WayMask(0x7ff))]),
        shareable: WayMask::NONE,
        unmanaged: Vec::new(),
        groups_max: 7,
    }
}

fn member(name: &str, threads: &[i32], caches: &[u32]) -> Member {
    Member {
        name: name.to_owned(),
        processes: threads.iter().map(|id| (Pid(*id), [Pid(*id)].into())).collect(),
        caches: caches.iter().map(|id| CacheId(*id)).collect(),
        fixed: None,
    }
}

fn plan(
    caches: &[u32],
    programs: &[usize],
    sets: &[usize],
    classes: &[(u64, &[usize])],
    partitions: &[(u64, usize)],
) -> Planned {
    let classes = classes.iter().map(|(mask, programs)| Class { mask: WayMask(*mask), programs: programs.to_vec() });
    let partitions = partitions.iter().map(|(mask, set)| SharedPartition { mask: WayMask(*mask), group: *set });
    Planned {
        caches: caches.iter().map(|id| CacheId(*id)).collect(),
        programs: programs.to_vec(),
        sets: sets.to_vec(),
        plan: Plan { classes: classes.collect(), partitions: partitions.collect() },
    }
}

fn masks(group: &Group) -> Vec<u64> {
    group.masks.values().map(|mask| mask.0).collect()
}

#[test]
fn each_class_is_a_group_and_a_shared_partition_is_exclusive() {
    let members = [member("web", &[7, 8], &[0, 1]), member("db", &[9], &[0, 1])];
    let plans = [plan(&[0, 1], &[0, 1], &[0], &[(0xf, &[0]), (0xf0, &[1])], &[(0x300, 0)])];
    let wanted = desired(&plans, &members, &["/shop".to_owned()], &around()).unwrap();
    let names: Vec<&str> = wanted.groups.iter().map(|group| group.label.as_str()).collect();
    assert_eq!(names, ["web", "db", "shared.shop"]);
    assert_eq!(wanted.groups.iter().map(masks).collect::<Vec<_>>(), [[0xf, 0xf], [0xf0, 0xf0], [0x300, 0x300]]);
    assert_eq!(wanted.groups.iter().map(|group| group.exclusive).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(wanted.groups[2].warmed, [CacheId(0), CacheId(1)].into());
    assert_eq!(wanted.groups[0].processes.keys().collect::<Vec<_>>(), [&Pid(7), &Pid(8)]);
    assert_eq!((wanted.default_masks[&CacheId(0)], wanted.notes.len()), (WayMask(0xc00), 0));
}

#[test]
fn where_no_program_runs_the_default_group_keeps_what_it_had() {
    let rest = |members: &[Member], around: &Surroundings| {
        desired(&[], members, &[], around).unwrap().default_masks.values().map(|mask| mask.0).collect::<Vec<_>>()
    };
    assert_eq!(rest(&[member("web", &[], &[0, 1])], &around()), [0xfff, 0x7ff]);
    assert_eq!(rest(&[member("web", &[7], &[0])], &around()), [0xc00, 0x7ff]);
    // Unless an unmanaged group has it exclusively by now.
    let theirs = UnmanagedGroup { name: "theirs".to_owned(), mask: WayMask(0x1), exclusive: true };
    let around = Surroundings { unmanaged: vec![theirs], ..around() };
    assert_eq!(rest(&[member("web", &[], &[0, 1])], &around), [0xc00, 0xc00]);
}

#[test]
fn who_does_not_run_on_a_cache_has_the_ways_of_the_rest_there() {
    let members = [member("web", &[7], &[0, 1]), member("db", &[9], &[1])];
    let plans =
        [plan(&[0], &[0], &[], &[(0xff, &[0])], &[]), plan(&[1], &[0, 1], &[], &[(0xf, &[0]), (0xf0, &[1])], &[])];
    let wanted = desired(&plans, &members, &[], &around()).unwrap();
    assert_eq!(wanted.groups.iter().map(masks).collect::<Vec<_>>(), [[0xff, 0xf], [0xc00, 0xf0]]);
}

#[test]
fn programs_with_the_same_ways_everywhere_share_a_group_and_fixed_ones_never() {
    let mut members = [member("a", &[1], &[0, 1]), member("b", &[2], &[0, 1]), member("c", &[3], &[0, 1])];
    let plans = [plan(&[0, 1], &[0, 1], &[], &[(0xff, &[0, 1])], &[])];
    members[2].fixed = Some((WayMask(0xff), false));
    let wanted = desired(&plans, &members, &[], &around()).unwrap();
    let programs: Vec<&Purpose> = wanted.groups.iter().map(|group| &group.purpose).collect();
    assert_eq!(programs, [&Purpose::Programs(vec![0, 1]), &Purpose::Programs(vec![2])]);
    assert_eq!(wanted.groups[0].processes.len(), 2);
}

#[test]
fn what_others_may_use_is_not_exclusive_and_that_is_said() {
    let members = [member("web", &[7], &[0, 1])];
    let plans = [plan(&[0, 1], &[0], &[0], &[(0xf, &[0])], &[(0x300, 0)])];
    let said = |around: &Surroundings| {
        let wanted = desired(&plans, &members, &["shop".to_owned()], around).unwrap();
        assert!(!wanted.groups[1].exclusive);
        wanted.notes.join("; ")
    };
    let hardware = said(&Surroundings { shareable: WayMask(0x600), ..around() });
    assert_eq!(hardware, "masu-shared.shop is not exclusive: other hardware (shareable_bits) may allocate in its ways");
    let unmanaged = vec![UnmanagedGroup { name: "old".to_owned(), mask: WayMask(0x100), exclusive: false }];
    assert!(said(&Surroundings { unmanaged, ..around() }).contains("group old may"));
    assert!(said(&Surroundings { default_ways: WayMask(0x200), ..around() }).contains("the default group may"));
}

#[test]
fn more_groups_than_classes_are_an_error() {
    let members = [member("web", &[7], &[0]), member("db", &[9], &[0])];
    let plans = [plan(&[0, 1], &[0, 1], &[], &[(0xf, &[0]), (0xf0, &[1])], &[])];
    let error = desired(&plans, &members, &[], &Surroundings { groups_max: 1, ..around() }).unwrap_err();
    assert_eq!(error, TooMany { wanted: 2, left: 1 });
}

#[test]
fn sets_of_one_domain_have_different_names_and_paths_become_names() {
    let members = [member("web", &[7], &[0, 1])];
    let plans = [plan(&[0, 1], &[0], &[0, 1, 2], &[(0xf, &[0])], &[(0x30, 0), (0xc0, 1), (0x300, 2)])];
    let domains = ["/system.slice/a b".to_owned(), "system.slice/a b".to_owned(), "/".to_owned()];
    let wanted = desired(&plans, &members, &domains, &around()).unwrap();
    let names: Vec<&str> = wanted.groups[1..].iter().map(|group| group.label.as_str()).collect();
    assert_eq!(names, ["shared.system.slice_a_b", "shared.system.slice_a_b.2", "shared.all"]);
}
