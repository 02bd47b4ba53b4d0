//! Pages that must not stay in a shared partition.

use super::*;

/// The sharing group of 2 MiB; its first page is now shared across domains.
fn crossing() -> SharingGroups {
    let mut sets = shares(2);
    let page = sets.sets[0].pages.remove(0);
    sets.crossing = Pages(1);
    sets.crossing_pages.insert(page);
    sets
}

#[test]
fn a_page_that_others_come_to_see_leaves_its_shared_partition_at_once() {
    for partitions in [true, false] {
        let model = Model::new(2);
        model.0.borrow_mut().partitions = partitions;
        let mut daemon = daemon(&model, SHARING);
        daemon.step(at(0)).unwrap();
        let thread = || model.0.borrow().threads.values().next().map(|(thread, ..)| *thread);
        assert_eq!(thread(), Some(Pid(901)));
        // One page of 512 less is no reason to copy all anew, except for this.
        model.0.borrow_mut().sets = crossing();
        daemon.step(at(1)).unwrap();
        assert_eq!(thread(), Some(Pid(902)));
        daemon.step(at(2)).unwrap();
        assert_eq!(thread(), Some(Pid(902)), "the page is not in this one");
    }
}

#[test]
fn where_somebody_cannot_be_looked_at_nothing_is_in_a_shared_partition_and_the_reason_is_said() {
    let model = Model::new(2);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    model.0.borrow_mut().sets =
        SharingGroups { unread: Some("process 7 cannot be looked at".to_owned()), ..SharingGroups::default() };
    let reported = lines(&daemon.step(at(1)).unwrap());
    assert!(reported.iter().any(|line| line.contains("process 7 cannot be looked at")), "{reported:?}");
    assert!(model.0.borrow().threads.is_empty());
}

#[test]
fn a_process_that_gives_no_answer_is_named_and_the_others_keep_their_shared_partitions() {
    let model = Model::new(2);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    let passed_over = Some("process 7: no answer in time".to_owned());
    model.0.borrow_mut().sets = SharingGroups { passed_over, ..shares(2) };
    let reported = lines(&daemon.step(at(1)).unwrap());
    assert!(reported.iter().any(|line| line.contains("process 7: no answer in time")), "{reported:?}");
    assert_eq!(model.threads_in("shared.shop"), [901]);
}

#[test]
fn where_a_step_is_refused_nobody_refills_what_may_be_the_ways_of_others() {
    let model = Model::new(0);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    model.0.borrow_mut().sets = shares(2);
    model.0.borrow_mut().refuses = Some("shared.shop");
    daemon.step(at(1)).unwrap();
    assert!(model.0.borrow().threads.is_empty());
    model.0.borrow_mut().refuses = None;
    daemon.step(at(2)).unwrap();
    assert_eq!(model.threads_in("shared.shop"), [901]);
}
