//! Closed loop over measurements.

use units::{WayMask, Ways};

use super::*;

/// Both have equal demand for ways.
const ALIKE: &str = "policy = \"sharing\"\nrest_ways = 2\n\
     [[program]]\nname = \"web\"\npids = [10]\nmpki = [20.0, 18.0, 16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0, 0.0]\n\
     base_cycles = 500.0\nmiss_cycles = 200.0\n\
     [[program]]\nname = \"db\"\npids = [20]\nmpki = [20.0, 18.0, 16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0, 0.0]\n\
     base_cycles = 500.0\nmiss_cycles = 200.0\n";

#[test]
fn what_is_measured_corrects_the_curves() {
    let model = Model::new(0);
    // web loses twice as much as its curve says, db half.
    fn misses(program: usize, ways: u32) -> u64 {
        let own = if ways == 10 { 5 } else { ways }; // without partitions each has half
        u64::from(10u32.saturating_sub(own)) * if program == 0 { 4 } else { 1 }
    }
    model.0.borrow_mut().misses = Some(misses);
    let mut daemon = daemon(&model, ALIKE);
    let (_, planned) = self::daemon(&model, ALIKE).plan(at(0)).unwrap();
    assert!(
        planned.iter().any(|step| step.to_string() == "make group masu-db"),
        "a plan is made from curves: {planned:?}"
    );
    let mut decided = Vec::new();
    for second in 0..100 {
        let reported = lines(&daemon.step(at(second)).unwrap());
        decided.extend(reported.into_iter().filter(|line| line.starts_with("decided")));
    }
    assert!(decided[0].contains("measuring without partitions first: masu-web 3ff"), "{decided:#?}");
    assert!(
        decided[1].contains("by curves of the configuration, and what was measured under other plans"),
        "{decided:#?}"
    );
    let (web, db) = (WayMask(model.ways("web")).ways(), WayMask(model.ways("db")).ways());
    let loses = |program: usize, ways: Ways| 500 + 200 * misses(program, ways.0);
    let unfairness = |web, db| {
        let (one, other) = (loses(0, web) as f64, loses(1, db) as f64);
        f64::max(one / other, other / one)
    };
    assert!(web > db && unfairness(web, db) < unfairness(Ways(5), Ways(5)), "{decided:#?}");
    let settled = decided.len();
    for second in 100..200 {
        let reported = lines(&daemon.step(at(second)).unwrap());
        assert!(!reported.iter().any(|line| line.starts_with("decided")), "{reported:?}");
    }
    assert!((2..20).contains(&settled));
    // Another program ends: a program alone has nothing to be measured against.
    model.0.borrow_mut().programs[1].clear();
    daemon.step(at(200)).unwrap();
    assert_eq!((model.labels(), model.ways("web")), (vec!["web".to_owned()], 0x3ff));
}

#[test]
fn where_it_cannot_be_refined_learned_curves_are_looked_at_anew() {
    let model = Model::new(0);
    fn needs(is_asked: bool, ways: u32) -> u64 {
        if is_asked { 5 * u64::from(7u32.saturating_sub(ways)) } else { 1 }
    }
    model.0.borrow_mut().misses = Some(|program, ways| needs(program == 0, ways));
    // A bound for partitions is for plans from curves alone.
    let mut daemon = daemon(&model, &SHARING.replace("rest_ways = 2", "rest_ways = 2\n[region]\nways_max = 2"));
    for second in 0..20 {
        daemon.step(at(second)).unwrap();
    }
    assert!(WayMask(model.ways("web")).ways() >= Ways(7) && WayMask(model.ways("db")).ways() < Ways(4));
    // The other one needs them now.
    model.0.borrow_mut().misses = Some(|program, ways| needs(program == 1, ways));
    for second in 20..60 {
        daemon.step(at(second)).unwrap();
    }
    // In a group of its own, or with web.
    let host = model.0.borrow();
    let of_db = host.kernel.groups.values().find(|group| group.threads.contains(&linux::Pid(20))).unwrap();
    assert!(of_db.masks[&CacheId(0)].ways() > Ways(3), "{:?}", host.kernel.groups);
}

#[test]
fn when_something_else_changes_it_is_not_measured_without_partitions_again() {
    let model = Model::new(0);
    model.0.borrow_mut().misses = Some(|program, _| if program == 0 { 10 } else { 1 });
    let mut daemon = daemon(&model, ALIKE);
    let mut decided = Vec::new();
    for second in 0..9 {
        if second == 5 {
            // An unmanaged group is made, before the first period has ended.
            let masks = [(CacheId(0), WayMask(1)), (CacheId(1), WayMask(1))].into();
            let theirs = super::super::super::steps::ObservedGroup { masks, ..Default::default() };
            model.0.borrow_mut().kernel.groups.insert("theirs".to_owned(), theirs);
        }
        let reported = lines(&daemon.step(at(second)).unwrap());
        decided.extend(reported.into_iter().filter(|line| line.starts_with("decided")));
    }
    assert_eq!(decided.len(), 2, "{decided:#?}");
    assert!(decided[0].contains("measuring without partitions first"), "{decided:#?}");
    assert!(decided[1].contains("and what was measured under other plans: masu-web 1f"), "{decided:#?}");
}

#[test]
fn without_counts_or_with_somebody_idle_curves_alone_decide() {
    let model = Model::new(0);
    let mut daemon = daemon(&model, ALIKE);
    let reported = lines(&daemon.step(at(0)).unwrap());
    assert!(
        reported.iter().any(|line| line.contains("by curves of the configuration: masu-web 1f, masu-db 3e0")),
        "{reported:?}"
    );
    // The counters appear, and disappear during the measurement.
    model.0.borrow_mut().misses = Some(|_, _| 1);
    model.0.borrow_mut().programs[0] = vec![(10, vec![10])];
    model.0.borrow_mut().programs[1].clear();
    daemon.step(at(1)).unwrap();
    model.0.borrow_mut().programs[1] = vec![(20, vec![20])];
    let reported = lines(&daemon.step(at(2)).unwrap());
    assert!(reported.iter().any(|line| line.contains("measuring without partitions first")), "{reported:?}");
    model.0.borrow_mut().misses = None;
    let reported = lines(&daemon.step(at(3)).unwrap());
    assert!(reported.iter().any(|line| line.contains("by curves of the configuration: masu-web")), "{reported:?}");
}
