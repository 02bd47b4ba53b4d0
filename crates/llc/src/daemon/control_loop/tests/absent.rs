//! Absent programs, file system, KSM, and ways.

use super::*;

#[test]
fn while_nobody_is_there_the_default_group_keeps_its_ways() {
    let model = Model::new(0);
    model.0.borrow_mut().programs = vec![Vec::new(), Vec::new()];
    let mut daemon = daemon(&model, SHARING);
    let reported = lines(&daemon.step(at(0)).unwrap());
    assert_eq!(
        reported.last().unwrap(),
        "decided by sharing, with no program to divide between: the default group fff"
    );
    assert_eq!((model.ways(""), model.0.borrow().steps.len()), (0xfff, 0));
    model.0.borrow_mut().programs[1] = vec![(20, vec![20])];
    daemon.step(at(1)).unwrap();
    assert_eq!((model.ways(""), model.ways("db")), (0xc00, 0x3ff));
}

#[test]
fn when_the_file_system_is_unmounted_it_ends_and_nothing_is_left_to_put_back() {
    let model = Model::new(2);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    model.0.borrow_mut().unmounted = true;
    let error = daemon.step(at(1)).unwrap_err();
    assert!(matches!(&error, LoopError::Unread(failed) if failed.is_gone()), "{error}");
    let (_, events, answer) = daemon.finish();
    answer.unwrap();
    assert_eq!(lines(&events), [""; 0]);
    assert!(model.0.borrow().threads.is_empty());
}

#[test]
fn without_ksm_there_is_no_shared_partition_and_with_it_there_is_one() {
    let model = Model::new(2);
    model.0.borrow_mut().merging = false;
    let mut daemon = daemon(&model, SHARING);
    let reported = lines(&daemon.step(at(0)).unwrap());
    assert!(
        reported.contains(
            &"without shared partitions: KSM is not running; `echo 1 > /sys/kernel/mm/ksm/run` starts it".to_owned()
        ),
        "{reported:?}"
    );
    assert_eq!(
        (model.labels(), model.ways("web"), model.ways("db")),
        (vec!["db".to_owned(), "web".to_owned()], 0x1f, 0x3e0)
    );
    model.0.borrow_mut().merging = true;
    daemon.step(at(1)).unwrap();
    assert_eq!((model.ways("web"), model.ways("shared.shop")), (0xf, 0x300));
    // KSM is switched off again: no thread would keep the partition warm.
    model.0.borrow_mut().merging = false;
    daemon.step(at(2)).unwrap();
    assert_eq!(model.labels(), ["db", "web"]);
    assert!(model.0.borrow().threads.is_empty());
}

#[test]
fn what_has_no_room_in_a_shared_partition_is_told() {
    let model = Model::new(5);
    let mut daemon = daemon(&model, &SHARING.replace("rest_ways = 2", "rest_ways = 2\n[region]\nways_max = 2"));
    let reported = lines(&daemon.step(at(0)).unwrap());
    let last_reported = "without a part of what is shared in masu-shared.shop: it holds 512 of 1280 pages";
    assert!(reported.contains(&last_reported.to_owned()), "{reported:#?}");
}

#[test]
fn ended_is_said_of_what_ended_and_left_of_what_runs_elsewhere() {
    let model = Model::new(0);
    model.0.borrow_mut().programs[0] = vec![(10, vec![10]), (12, vec![12]), (13, vec![13])];
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    model.0.borrow_mut().still.extend([Pid(12), Pid(20)]);
    model.0.borrow_mut().programs = vec![vec![(10, vec![10])], Vec::new()];
    let reported = lines(&daemon.step(at(1)).unwrap());
    assert_eq!(
        reported[..2],
        [
            "web: 1 process, 1 thread; 1 ended, 1 left it and still run",
            "db: no process any more; 1 left it and still run"
        ]
    );
}

#[test]
fn threads_that_another_tool_moves_away_are_moved_back_with_the_names_of_its_groups() {
    let model = Model::new(0);
    let others = |threads: &[i32]| super::super::super::steps::ObservedGroup {
        masks: [(CacheId(0), WayMask(0xfff)), (CacheId(1), WayMask(0xfff))].into(),
        threads: threads.iter().map(|thread| Pid(*thread)).collect(),
        ..Default::default()
    };
    model.0.borrow_mut().kernel.groups.insert("pods".to_owned(), others(&[10]));
    let mut daemon = daemon(&model, SHARING);
    let reported = lines(&daemon.step(at(0)).unwrap());
    assert!(
        reported.contains(&"did put 1 process, 2 threads, into group masu-web, out of group pods".to_owned()),
        "{reported:#?}"
    );
    assert!(reported.contains(&"did put 1 process, 2 threads, into group masu-db".to_owned()), "{reported:#?}");
    model.0.borrow_mut().kernel.groups.get_mut("db").unwrap().threads.remove(&Pid(21));
    model.0.borrow_mut().kernel.groups.get_mut("pods").unwrap().threads.insert(Pid(21));
    let events = daemon.step(at(1)).unwrap();
    let back = "into group masu-db, back from group pods: another tool had moved them there";
    assert!(lines(&events).iter().any(|line| line.ends_with(back)), "{:#?}", lines(&events));
    assert!(events.iter().any(|event| matches!(event, Event::Done { from, .. } if *from == ["pods"])));
    assert!(!lines(&daemon.step(at(2)).unwrap()).iter().any(|line| line.starts_with("did ")));
    model.0.borrow_mut().kernel.groups.remove("pods");
    let (_, events, _) = daemon.finish();
    let gone = "without the former group of some threads: pods no longer exists: its threads are in the default group";
    assert_eq!(lines(&events)[1..], [gone]);
}

#[test]
fn changes_of_another_tool_to_groups_are_undone_and_named() {
    let model = Model::new(2);
    let mut daemon = daemon(&model, SHARING);
    daemon.step(at(0)).unwrap();
    let ways = |label: &str, mask| {
        let groups = &mut model.0.borrow_mut().kernel.groups;
        groups.get_mut(label).unwrap().masks.values_mut().for_each(|ways| *ways = WayMask(mask));
    };
    let did =
        |events: Vec<Event>| lines(&events).into_iter().filter(|line| line.starts_with("did ")).collect::<Vec<_>>();
    ways("", 0xf);
    ways("web", 0x3);
    let expected = [
        "did give the default group ways c00: another tool had set them to f",
        "did give group masu-web ways f: another tool had set them to 3",
    ];
    assert_eq!(did(daemon.step(at(1)).unwrap()), expected);
    model.0.borrow_mut().kernel.groups.get_mut("shared.shop").unwrap().exclusive = false;
    let expected = "did make the ways of group masu-shared.shop its own: another tool had changed its mode";
    assert_eq!(did(daemon.step(at(2)).unwrap()), [expected]);
    model.0.borrow_mut().kernel.groups.remove("db");
    let reported = did(daemon.step(at(3)).unwrap());
    assert_eq!(reported[0], "did make group masu-db: another tool had removed it");
    assert_eq!(reported[2], "did put 1 process, 2 threads, into group masu-db");
    assert!(did(daemon.step(at(4)).unwrap()).is_empty());
}

#[test]
fn the_default_group_has_its_ways_again_only_if_it_has() {
    for (to, words) in [(None, "its ways"), (Some(WayMask(0xff)), "ways ff, and before masu it had fff")] {
        let model = Model::new(0);
        let mut daemon = daemon(&model, SHARING);
        daemon.step(at(0)).unwrap();
        model.0.borrow_mut().restores_to = to;
        let (_, events, answer) = daemon.finish();
        answer.unwrap();
        assert_eq!(lines(&events), [format!("restored: 2 groups removed, the default group has {words}")]);
    }
}
