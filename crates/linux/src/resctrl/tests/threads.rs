//! Processes whose threads start and end during a move.

use std::collections::BTreeSet;

use super::changing::journal;
use super::machines::broadwell;
use super::ruled::Ruled;
use super::*;
use crate::journal::HostSettings;
use crate::resctrl::Moved;

/// Moves process 40 to a group of ours; returns the result and the threads of that group.
fn moved(kernel: &Ruled) -> (Result<Moved, Failed>, BTreeSet<Pid>) {
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(kernel).unwrap();
    let mut settings = HostSettings::open(kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    let answer = changes.move_process(Pid(40), &web);
    let there = resctrl.tasks(&web).unwrap();
    (answer, there)
}

fn pids(pids: &[i32]) -> BTreeSet<Pid> {
    pids.iter().copied().map(Pid).collect()
}

#[test]
fn all_threads_are_moved_and_the_list_is_read_again() {
    let kernel = Ruled::new(broadwell()).process(40, &[40, 41, 42]);
    let (answer, there) = moved(&kernel);
    assert_eq!(answer, Ok(Moved { threads: 3, ended: 0, rounds: 2, settled: true }));
    assert_eq!(there, pids(&[40, 41, 42]));
}

#[test]
fn threads_made_meanwhile_are_moved_too_whoever_made_them() {
    let kernel = Ruled::new(broadwell())
        .process(40, &[40, 41])
        .when_moved(1, |threads| {
            threads.make(40, 40, 50); // by a thread that is moved already
            threads.make(40, 41, 51); // and by one that is not
        })
        .when_moved(3, |threads| threads.make(40, 51, 52));
    let (answer, there) = moved(&kernel);
    assert_eq!(there, pids(&[40, 41, 50, 51, 52]));
    assert!(answer.is_ok_and(|moved| moved.settled && moved.threads == 3));
}

#[test]
fn threads_that_end_meanwhile_are_counted_and_no_failure() {
    let kernel = Ruled::new(broadwell()).process(40, &[40, 41, 42]).when_moved(1, |threads| threads.end(40, 42));
    let (answer, there) = moved(&kernel);
    assert_eq!(answer, Ok(Moved { threads: 2, ended: 1, rounds: 2, settled: true }));
    assert_eq!(there, pids(&[40, 41]));
}

#[test]
fn a_process_that_ends_meanwhile_is_gone() {
    let kernel = Ruled::new(broadwell()).process(40, &[40]).when_moved(1, |threads| threads.end(40, 40));
    assert!(moved(&kernel).0.unwrap_err().is_gone());
    let (answer, _) = moved(&Ruled::new(broadwell()));
    let expected = "cannot list /proc/40/task: no such file or directory (ENOENT)";
    assert_eq!(answer.unwrap_err().to_string(), expected);
}

#[test]
fn one_that_makes_threads_faster_than_they_can_be_moved_is_reported() {
    let mut kernel = Ruled::new(broadwell()).process(40, &[40]);
    for moves in 1..200 {
        // A program that puts its new threads into the default group itself.
        kernel = kernel.when_moved(moves, move |threads| {
            let next = 1000 + i32::try_from(moves).unwrap();
            threads.of.get_mut(&40).unwrap().insert(next);
        });
    }
    let (answer, _) = moved(&kernel);
    assert!(answer.is_ok_and(|moved| !moved.settled && moved.rounds == 64));
}

#[test]
fn threads_from_groups_of_others_go_back_there_each_to_its_own() {
    let kernel = Ruled::new(
        broadwell()
            .file(&format!("{ROOT}/batch/tasks"), "")
            .file(&format!("{ROOT}/batch/mon_groups/m/tasks"), "")
            .file(&format!("{ROOT}/mon_groups/n/tasks"), ""),
    )
    .process(40, &[40, 41, 42, 43])
    .process(60, &[60])
    .in_group("batch", &[40, 60])
    .in_group("batch/mon_groups/m", &[41])
    .in_group("mon_groups/n", &[42]);
    let before = kernel.threads.borrow().group_of.clone();
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    assert_eq!(changes.move_process(Pid(40), &web).map(|moved| moved.threads), Ok(4));
    assert_eq!(resctrl.tasks(&web).unwrap(), pids(&[40, 41, 42, 43]));
    drop(changes);
    settings.restore().unwrap();
    // Thread 43 was in the default group, and is there again.
    assert_eq!(kernel.threads.borrow().group_of, before);
}

#[test]
fn threads_and_children_that_were_born_meanwhile_go_where_the_first_thread_was() {
    let kernel = Ruled::new(broadwell().file(&format!("{ROOT}/batch/tasks"), ""))
        .process(40, &[40, 43])
        .in_group("batch", &[40]);
    kernel.threads.borrow_mut().fork(43, 60, 700); // from the default group, where it stays
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    changes.move_process(Pid(40), &web).unwrap();
    changes.move_process(Pid(60), &web).unwrap();
    {
        let mut threads = kernel.threads.borrow_mut();
        threads.make(40, 40, 44);
        threads.born.insert(44, 900);
        threads.fork(40, 50, 900);
        threads.fork(50, 51, 950);
        threads.fork(60, 61, 950);
        // A daemon, whose parent is gone: its origin is unknown.
        threads.fork(40, 70, 900);
        threads.fork(70, 71, 950);
        threads.end(70, 70);
    }
    assert_eq!(changes.move_process(Pid(50), &web).map(|moved| moved.threads), Ok(0));
    assert_eq!(resctrl.tasks(&web).unwrap(), pids(&[40, 43, 44, 50, 51, 60, 61, 71]));
    drop(changes);
    settings.restore().unwrap();
    let batch = Group::of_class("batch");
    assert_eq!(resctrl.tasks(&batch).unwrap(), pids(&[40, 44, 50, 51]));
    assert_eq!(resctrl.tasks(&Group::DEFAULT).unwrap(), pids(&[43, 60, 61, 71]));
}

#[test]
fn promises_for_processes_that_have_ended_are_let_go() {
    let mut kernel = Ruled::new(broadwell().file(&format!("{ROOT}/batch/tasks"), ""));
    for pid in 1000..1500 {
        kernel = kernel.process(pid, &[pid]).in_group("batch", &[pid]);
    }
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    for pid in 1000..1500 {
        changes.move_process(Pid(pid), &web).unwrap();
        if pid != 1003 {
            kernel.threads.borrow_mut().end(pid, pid);
        }
    }
    drop(changes);
    let journals = || std::fs::read_dir(directory.join("private")).unwrap().map(|entry| entry.unwrap().path());
    let journal = journals().find(|path| path.extension().is_some_and(|of| of == "journal")).unwrap();
    let lines = std::fs::read_to_string(journal).unwrap().lines().count();
    assert!(lines < 200, "{lines}");
    settings.restore().unwrap();
    assert_eq!(resctrl.tasks(&Group::of_class("batch")).unwrap(), pids(&[1003]));
    assert_eq!(journals().map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>(), ["lock"]);
}

#[test]
fn of_processes_with_the_same_number_each_goes_where_it_was() {
    let kernel = broadwell().file(&format!("{ROOT}/batch/tasks"), "").file(&format!("{ROOT}/other/tasks"), "");
    let kernel = Ruled::new(kernel).process(40, &[40]).in_group("batch", &[40]);
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    changes.move_process(Pid(40), &web).unwrap();
    let another = |born, group: &str| {
        let mut threads = kernel.threads.borrow_mut();
        threads.end(40, 40);
        threads.make(40, 1, 40);
        threads.born.insert(40, born);
        threads.group_of.insert(40, format!("{ROOT}/{group}"));
    };
    another(700, "other");
    changes.move_process(Pid(40), &web).unwrap();
    drop(changes);
    settings.restore().unwrap();
    assert_eq!(kernel.threads.borrow().group_of.get(&40), Some(&format!("{ROOT}/other")));
    // The next process is in no group, and stays there.
    another(750, "batch");
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    changes.move_process(Pid(40), &web).unwrap();
    kernel.threads.borrow_mut().born.insert(40, 780);
    drop(changes);
    settings.restore().unwrap();
    assert_eq!(kernel.threads.borrow().group_of.get(&40), None);
}
