use units::WayMask;

use super::*;

fn config(text: &str) -> Config {
    let programs = "[[program]]\nname = \"a\"\npids = [1]\n[[program]]\nname = \"b\"\npids = [2]\n";
    Config::parse("f", &format!("{text}\n{programs}")).unwrap()
}

fn allocatable_ways() -> AllocatableWays {
    let usable = WayMask::lowest(Ways(16));
    let cache = Cache { usable, ways_min: Ways(1), classes_max: 8, way_bytes: Bytes::mib(1) };
    AllocatableWays { default_ways: WayMask(0x3_0000), cache, beside: Vec::new() }
}

/// Misses fall up to this number of ways.
fn figures(until: u32) -> Option<Figures> {
    let misses = (0..=16u32).map(|ways| 40.0 * f64::from(until.saturating_sub(ways)) / f64::from(until));
    Some(Figures {
        misses: Curve::new(misses.collect()),
        private_misses: None,
        shared_misses: None,
        base_cycles: 500.0,
        miss_cycles: 200.0,
        stalled_fraction: None,
        configured: true,
    })
}

const CACHES: [CacheId; 2] = [CacheId(0), CacheId(1)];

fn seen<'s>(figures: &'s [Option<Figures>], sets: &'s [GroupSize]) -> Seen<'s> {
    Seen { caches: &CACHES, running: &[true, true], figures, sets }
}

fn shared(mib: u64) -> GroupSize {
    GroupSize { sharers: [0, 1].into(), bytes: Bytes::mib(mib) }
}

fn masks(plan: &Plan) -> (Vec<u64>, Vec<u64>) {
    (
        plan.classes.iter().map(|class| class.mask.0).collect(),
        plan.partitions.iter().map(|partition| partition.mask.0).collect(),
    )
}

#[test]
fn without_curves_the_ways_are_equal_and_the_shared_partition_is_as_large_as_what_is_shared() {
    let decision =
        decide(&config("policy = \"sharing\""), &allocatable_ways(), &seen(&[None, None], &[shared(4)]), &[]);
    assert_eq!(decision.planned.len(), 1, "both caches have the same programs");
    assert_eq!(masks(&decision.planned[0].plan), (vec![0x3f, 0xfc0], vec![0xf000]));
    assert_eq!((decision.basis, decision.partitions_by_size, decision.slowdowns.len()), (Basis::NoCurve(0), true, 0));
    let limited = config("policy = \"sharing\"\n[region]\nways_max = 2");
    let decision = decide(&limited, &allocatable_ways(), &seen(&[None, None], &[shared(4)]), &[]);
    assert_eq!(masks(&decision.planned[0].plan).1, [0xc000]);
    let off = config("policy = \"sharing\"\n[region]\non = false");
    let decision = decide(&off, &allocatable_ways(), &seen(&[None, None], &[shared(4)]), &[]);
    assert_eq!(masks(&decision.planned[0].plan), (vec![0xff, 0xff00], vec![]));
}

#[test]
fn with_curves_who_gains_more_has_more_and_slowdowns_are_expected() {
    let decision =
        decide(&config("policy = \"ucp\""), &allocatable_ways(), &seen(&[figures(12), figures(2)], &[]), &[]);
    let plan = &decision.planned[0].plan;
    assert!(plan.classes[0].mask.ways() > plan.classes[1].mask.ways(), "{plan:?}");
    assert_eq!(decision.basis, Basis::Configured);
    assert!(decision.slowdowns[&0] >= 1.0 && decision.slowdowns.len() == 2);
    let learned = Figures { configured: false, ..figures(2).unwrap() };
    let decision =
        decide(&config("policy = \"ucp\""), &allocatable_ways(), &seen(&[figures(12), Some(learned)], &[]), &[]);
    assert_eq!(decision.basis, Basis::Learned);
    let decision = decide(&config("policy = \"equal\""), &allocatable_ways(), &seen(&[None, None], &[shared(4)]), &[]);
    assert_eq!((decision.basis, masks(&decision.planned[0].plan)), (Basis::Nothing, (vec![0xff, 0xff00], vec![])));
}

#[test]
fn a_policy_without_shared_partitions_has_them_by_size_where_that_is_asked_for() {
    let decision = decide(
        &config("policy = \"ucp\"\n[region]\non = true"),
        &allocatable_ways(),
        &seen(&[figures(8), figures(8)], &[shared(2)]),
        &[],
    );
    let plan = &decision.planned[0].plan;
    assert_eq!(plan.partitions, [SharedPartition { mask: WayMask(0xc000), group: 0 }]);
    assert!(plan.classes.iter().all(|class| WayMask(0x3fff).covers(class.mask)));
    assert!(decision.partitions_by_size);
}

#[test]
fn a_set_of_known_use_is_the_policys_and_one_of_unknown_use_is_by_size() {
    let private = |of: Option<Figures>| {
        let figures = of.unwrap();
        let half = figures.misses.values().iter().map(|misses| misses / 2.0).collect();
        Some(Figures { private_misses: Some(Curve::new(half)), ..figures })
    };
    let known = [private(figures(12)), private(figures(12))];
    let free = config("policy = \"sharing\"");
    let decision = decide(&free, &allocatable_ways(), &seen(&known, &[shared(6)]), &[]);
    assert!(!decision.partitions_by_size && decision.slowdowns.len() == 2, "{decision:?}");
    let limited = config("policy = \"sharing\"\n[region]\nways_max = 3");
    // The policy may find that a shared partition does not pay; it gets no larger one than allowed.
    let decision = decide(&limited, &allocatable_ways(), &seen(&known, &[shared(6)]), &[]);
    assert!(
        decision.planned[0].plan.partitions.iter().all(|partition| partition.mask.ways() <= Ways(3)),
        "{decision:?}"
    );
    let half_known = [figures(12), private(figures(12))];
    let decision = decide(&limited, &allocatable_ways(), &seen(&half_known, &[shared(6)]), &[]);
    assert!(decision.partitions_by_size, "{decision:?}");
    assert_eq!(decision.planned[0].plan.partitions[0].mask.ways(), Ways(3));
}

#[test]
fn a_set_is_a_straight_line_where_only_private_misses_are_known() {
    let half = figures(8).map(|figures| Figures { private_misses: Some(Curve::new(vec![10.0])), ..figures }).unwrap();
    let curve = straight(&half, Bytes::mib(4), &allocatable_ways().cache).unwrap();
    assert_eq!(curve.values()[..6], [30.0, 22.5, 15.0, 7.5, 0.0, 0.0]);
    assert_eq!(straight(&figures(8).unwrap(), Bytes::mib(4), &allocatable_ways().cache), None);
}

#[test]
fn caches_with_other_programs_have_other_plans_and_who_does_not_run_is_in_none() {
    let text =
        "policy = \"equal\"\n[[program]]\nname = \"a\"\npids = [1]\nl3 = [0]\n[[program]]\nname = \"b\"\npids = [2]\n";
    let config = Config::parse("f", text).unwrap();
    let decision = decide(&config, &allocatable_ways(), &seen(&[None, None], &[]), &[]);
    let by_caches: Vec<(usize, usize)> =
        decision.planned.iter().map(|planned| (planned.caches.len(), planned.programs.len())).collect();
    assert_eq!(by_caches, [(1, 2), (1, 1)]);
    let gone = Seen { running: &[false, true], ..seen(&[None, None], &[]) };
    let decision = decide(&config, &allocatable_ways(), &gone, &[]);
    assert_eq!(decision.planned.len(), 1);
    assert_eq!(masks(&decision.planned[0].plan).0, [0xffff]);
    let nobody = Seen { running: &[false, false], ..seen(&[None, None], &[]) };
    assert_eq!(masks(&decide(&config, &allocatable_ways(), &nobody, &[]).planned[0].plan), (vec![], vec![]));
}
