//! Classes of service that groups of other tools have used up.

use super::super::super::steps::ObservedGroup;
use super::*;

/// Adds groups of other tools; every third has a thread.
fn with_others(model: &Model, groups: usize) {
    let mut host = model.0.borrow_mut();
    for nth in 0..groups {
        let masks = [(CacheId(0), WayMask(0xfff)), (CacheId(1), WayMask(0xfff))].into();
        let threads = if nth % 3 == 0 { [Pid(500 + i32::try_from(nth).unwrap())].into() } else { BTreeSet::new() };
        let group = ObservedGroup { masks, exclusive: false, threads, ours: false };
        host.kernel.groups.insert(format!("o{nth}"), group);
    }
}

#[test]
fn programs_in_one_class_are_named_with_the_groups_that_have_the_others() {
    let model = Model::new(0);
    with_others(&model, 14);
    let reported = lines(&daemon(&model, &SHARING.replace("sharing", "equal")).plan(at(0)).unwrap().0);
    let of: Vec<&String> = reported.iter().filter(|line| line.contains("share a class")).collect();
    assert_eq!(
        of,
        ["web and db share a class of service: 16 classes, the default group has one, other groups 14; \
          empty (no thread, no CPU): o1, o10, o11, o13, o2, o4, o5, o7, o8; \
          `rmdir /r/o1 /r/o10 /r/o11 /r/o13 /r/o2 /r/o4 /r/o5 /r/o7 /r/o8` removes them; \
          in use: o0 (x 500), o12 (x 512), o3 (x 503), o6 (x 506), o9 (x 509)"]
    );
    let beside: Vec<&String> = reported.iter().filter(|line| line.starts_with("without ways of our own")).collect();
    assert_eq!(beside.len(), 1, "one line for all groups: {reported:#?}");
    assert!(beside[0].starts_with(
        "without ways of our own: 14 groups of other tools may allocate in them as well: o0 (fff), o1 (fff), o10 (fff)"
    ));
}

#[test]
fn the_line_is_said_before_the_change_and_once() {
    let model = Model::new(0);
    with_others(&model, 14);
    let mut daemon = daemon(&model, &SHARING.replace("sharing", "equal"));
    let reported = lines(&daemon.step(at(0)).unwrap());
    let place = |words: &str| reported.iter().position(|line| line.contains(words)).unwrap();
    assert!(place("share a class") < place("decided by"), "{reported:#?}");
    assert!(place("share a class") < place("did "), "{reported:#?}");
    let again = lines(&daemon.step(at(1)).unwrap());
    assert!(!again.iter().any(|line| line.contains("share a class")), "{again:?}");
}

#[test]
fn with_a_class_for_each_program_nothing_is_said() {
    let model = Model::new(0);
    with_others(&model, 13);
    let mut daemon = daemon(&model, &SHARING.replace("sharing", "equal"));
    let reported = lines(&daemon.step(at(0)).unwrap());
    assert!(!reported.iter().any(|line| line.contains("share a class")), "{reported:?}");
    assert_eq!(model.labels().iter().filter(|label| !label.starts_with('o')).count(), 2);
}

#[test]
fn without_any_class_the_groups_are_named_too() {
    let model = Model::new(0);
    with_others(&model, 15);
    let error = daemon(&model, &SHARING.replace("sharing", "equal")).step(at(0)).unwrap_err();
    let LoopError::Classes(error, others) = error else { panic!("{error}") };
    assert_eq!(others.len(), 15);
    assert!(error.to_string().starts_with("cannot make groups: 16 classes of service"), "{error}");
}
