//! Writes in order, and handling of refusals.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tempfile::TempDir;

use super::machines::{broadwell, epyc, with_cdp};
use super::ruled::Ruled;
use super::*;
use crate::journal::HostSettings;

/// Adds our own `stat`, which the journal reads, and makes a directory for the journal.
pub(super) fn journal(kernel: &FakeKernel) -> (TempDir, PathBuf) {
    let pid = Pid::own();
    kernel.add(&pid.file("stat"), &format!("{pid} (masu) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n"));
    let run = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let directory = run.path().join("masu");
    (run, directory)
}

/// Writes so far, without the mount point.
pub(super) fn sent(kernel: &FakeKernel) -> Vec<String> {
    let writes = kernel.writes().into_iter().filter(|write| write.contains(ROOT));
    writes.map(|write| write.replace(&format!("{ROOT}/"), "").trim_end().to_owned()).collect()
}

#[test]
fn a_partition_is_made_in_the_order_that_leaves_no_way_unguarded_and_undone_in_reverse() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    changes.write(&Group::DEFAULT, &masks(Resource::L3, &[(0, 0xffff0), (1, 0xffff0)])).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    changes.write(&web, &masks(Resource::L3, &[(0, 0xf), (1, 0xf)])).unwrap();
    changes.set_mode(&web, Mode::Exclusive).unwrap();
    changes.move_thread(Pid(41), &web).unwrap();
    drop(changes);
    settings.restore().unwrap();
    let expected = [
        "schemata <- L3:0=ffff0;1=ffff0",
        "mkdir sys/fs/resctrl/masu-web",
        "masu-web/schemata <- L3:0=f;1=f",
        "masu-web/mode <- exclusive",
        "masu-web/tasks <- 41",
        "rmdir sys/fs/resctrl/masu-web",
        "schemata <- L3:0=fffff;1=fffff",
    ];
    assert_eq!(sent(&kernel), expected.map(|line| line.replace("sys/fs/resctrl/", "")));
    assert!(kernel.writes().iter().filter(|write| write.contains(" <- ")).all(|write| write.ends_with('\n')));
}

#[test]
fn of_the_default_group_only_the_lines_that_were_changed_are_put_back() {
    let kernel = epyc().file(&format!("{ROOT}/mode"), "shareable\n");
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    changes.write(&Group::DEFAULT, &masks(Resource::L3, &[(0, 0xff00)])).unwrap();
    // Output of the kernel at that time; another program has changed the bandwidth, and one complex is offline.
    kernel.add(&format!("{ROOT}/schemata"), "MB:0=100;1=16;2=2048\nL3:0=ff00;1=ffff;2=ffff\n");
    changes.write(&Group::DEFAULT, &masks(Resource::L3, &[(0, 0xf000)])).unwrap();
    changes.set_mode(&Group::DEFAULT, Mode::Exclusive).unwrap();
    kernel.add(&format!("{ROOT}/schemata"), "MB:0=100;1=16;2=2048\nL3:0=f000;1=ffff;2=ffff\n");
    drop(changes);
    settings.restore().unwrap();
    let expected = [
        "schemata <- L3:0=ff00",
        "schemata <- L3:0=f000",
        "mode <- exclusive",
        "mode <- shareable",
        "schemata <- L3:0=ffff",
    ];
    assert_eq!(sent(&kernel), expected);
}

#[test]
fn code_and_data_are_put_back_apart() {
    let kernel = Ruled::new(with_cdp());
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let mut both = masks(Resource::L3Code, &[(0, 0xff)]);
    both.0.extend(masks(Resource::L3Data, &[(1, 0xf00)]).0);
    changes.write(&Group::DEFAULT, &both).unwrap();
    drop(changes);
    drop(settings);
    let writes: Vec<String> = kernel.kernel.writes().into_iter().filter(|write| write.contains("schemata")).collect();
    let expected = ["L3CODE:0=ff\nL3DATA:1=f00\n", "L3DATA:1=ff\n", "L3CODE:0=f\n"];
    assert_eq!(writes, expected.map(|command| format!("{ROOT}/schemata <- {command}")));
}

#[test]
fn what_the_kernel_has_made_of_a_mask_is_the_answer() {
    let mut kernel = Ruled::new(broadwell());
    kernel.pairs = true;
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    let asked = masks(Resource::L3, &[(0, 0x400)]);
    let found = changes.write(&web, &asked).unwrap();
    assert_eq!(found, masks(Resource::L3, &[(0, 0x600), (1, 0xf_ffff)]));
    assert_eq!(asked.differences(&found).len(), 1);
}

#[test]
fn numbers_in_limbo_are_waited_for_as_long_as_the_caller_has_patience() {
    let kernel = Ruled::new(broadwell());
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let mut waits = Vec::new();
    kernel.limbo.set(9);
    let made = changes.make(&own("web"), &mut |wait: Duration| {
        waits.push(wait.as_millis());
        true
    });
    let web = made.unwrap();
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    kernel.limbo.set(9);
    let failed = changes.make(&own("db"), &mut impatient()).unwrap_err();
    assert_eq!(failed.why, Why::Busy);
    assert_eq!(failed.to_string(), "cannot make /sys/fs/resctrl/masu-db: device or resource busy (EBUSY)");
    changes.remove(web).unwrap();
}

#[test]
fn while_one_waits_for_a_number_others_may_change_something() {
    let kernel = Ruled::new(broadwell());
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    kernel.limbo.set(2);
    let mut others = 0;
    let web = changes.make(&own("web"), &mut |_: Duration| {
        others += usize::from(resctrl.lock(Lock::Exclusive).is_ok());
        true
    });
    let web = web.unwrap();
    assert_eq!(others, 2);
    assert_eq!(resctrl.lock(Lock::Exclusive).unwrap_err().why, Why::Locked, "it is ours again");
    // Another process keeps the lock, and nothing is changed without it.
    kernel.limbo.set(1);
    let mut other = None;
    let failed = changes.make(&own("db"), &mut |_: Duration| {
        let _ = other.get_or_insert_with(|| resctrl.lock(Lock::Exclusive).unwrap());
        false
    });
    assert_eq!(failed.unwrap_err().why, Why::Locked);
    let answers = [
        changes.write(&web, &masks(Resource::L3, &[(0, 1)])).map(drop),
        changes.move_thread(Pid(1), &web),
        changes.collect().map(drop),
        changes.remove(web),
    ];
    assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(|failed| failed.why == Why::Locked)), "{answers:?}");
}

#[test]
fn whoever_looks_whether_a_group_is_left_behind_does_not_keep_it_from_being_made() {
    let kernel = Ruled::new(broadwell());
    let (_run, directory) = journal(&kernel.kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    kernel.looked_at.set(true);
    let failed = changes.make(&own("web"), &mut impatient()).unwrap_err();
    assert_eq!(failed.why, Why::Locked);
    assert_eq!(resctrl.groups().unwrap(), [], "without a maker it would be left behind");
    let made = changes.make(&own("web"), &mut |_: Duration| {
        drop(kernel.looker.take());
        true
    });
    let made = made.unwrap();
    assert_eq!(kernel.lock(&resctrl.directory(&made), Lock::Exclusive).unwrap_err(), Errno::AGAIN);
}

#[test]
fn what_is_to_be_put_back_is_read_when_nobody_can_put_it_back() {
    let mut kernel = Ruled::new(broadwell());
    let (_run, directory) = journal(&kernel.kernel);
    let (reads, lock) = (Rc::new(RefCell::new(Vec::new())), directory.join("private/lock"));
    let seen = Rc::clone(&reads);
    kernel.before_read = Some(Box::new(move |path| {
        let held =
            std::fs::File::open(&lock).is_ok_and(|file| flock(file, FlockOperation::NonBlockingLockShared).is_err());
        if let Some(name) = path.strip_prefix(&format!("{ROOT}/")) {
            seen.borrow_mut().push((name.to_owned(), held));
        }
    }));
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    changes.write(&Group::DEFAULT, &masks(Resource::L3, &[(0, 0xff)])).unwrap();
    changes.set_mode(&Group::DEFAULT, Mode::Shareable).unwrap();
    // Files of the undos in order, and whether each has something to undo.
    let expected = [("schemata", false), ("schemata", true), ("schemata", false), ("mode", true)];
    assert_eq!(*reads.borrow(), expected.map(|(name, held)| (name.to_owned(), held)));
}

#[test]
fn undoing_waits_for_those_who_change_something() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    drop(changes);
    let other = resctrl.lock(Lock::Exclusive).unwrap();
    std::thread::scope(|scope| {
        let undoing = scope.spawn(|| settings.restore());
        std::thread::sleep(Duration::from_millis(50));
        assert!(resctrl.exists(&web));
        drop(other);
        undoing.join().unwrap().unwrap();
    });
    assert!(!resctrl.exists(&web));
}

#[test]
fn a_refusal_comes_with_what_the_kernel_says_and_leaves_no_promise() {
    let kernel = broadwell()
        .refusing(&format!("{ROOT}/masu-web"), Errno::NOSPC)
        .file(&format!("{ROOT}/info/last_cmd_status"), "Out of CLOSIDs\n");
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut |_: Duration| panic!("nothing to wait for")).unwrap();
    let failed = changes.make(&own("web"), &mut |_: Duration| panic!("nothing to wait for")).unwrap_err();
    assert_eq!(failed.why, Why::Full);
    let expected =
        "cannot make /sys/fs/resctrl/masu-web: no space left on device (ENOSPC); the kernel says: Out of CLOSIDs";
    assert_eq!(failed.to_string(), expected);
    drop(changes);
    settings.restore().unwrap();
    assert_eq!(sent(&kernel), [""; 0]);
}

#[test]
fn an_unknown_domain_is_refused_while_the_kernel_says_ok() {
    let kernel = broadwell().refusing_value(&format!("{ROOT}/schemata"), "L3:7=f\n", Errno::INVAL);
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let failed = changes.write(&Group::DEFAULT, &masks(Resource::L3, &[(7, 0xf)])).unwrap_err();
    assert_eq!((failed.why, failed.status.clone()), (Why::Refused, None));
    assert_eq!(failed.to_string(), "cannot write \"L3:7=f\" to /sys/fs/resctrl/schemata: invalid argument (EINVAL)");
}

#[test]
fn a_group_that_is_there_is_not_taken_and_not_removed_in_the_end() {
    let kernel = broadwell().file(&format!("{ROOT}/masu-web/tasks"), "");
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let failed = changes.make(&own("web"), &mut impatient()).unwrap_err();
    assert_eq!(failed.why, Why::NameTaken);
    drop(changes);
    settings.restore().unwrap();
    assert_eq!(sent(&kernel), [""; 0]);
}

#[test]
fn groups_of_others_are_left_alone() {
    let kernel =
        broadwell().file(&format!("{ROOT}/batch/schemata"), "L3:0=f\n").file(&format!("{ROOT}/batch/tasks"), "");
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let batch = Group::of_class("batch");
    let answers = [
        changes.write(&batch, &masks(Resource::L3, &[(0, 1)])).map(drop),
        changes.set_mode(&batch, Mode::Exclusive),
        changes.move_thread(Pid(1), &batch),
        changes.move_process(Pid(1), &batch).map(drop),
        changes.make(&Group::of_class("x"), &mut impatient()).map(drop),
    ];
    assert!(
        answers.iter().all(|answer| answer.as_ref().is_err_and(|failed| failed.why == Why::NotOurs)),
        "{answers:?}"
    );
    let expected = "cannot write /sys/fs/resctrl/batch, which is not masu's: operation not permitted (EPERM)";
    assert_eq!(answers[0].as_ref().unwrap_err().to_string(), expected);
    assert_eq!(changes.collect().unwrap(), []);
    assert_eq!(sent(&kernel), [""; 0]);
}

#[test]
fn groups_that_nobody_holds_and_nobody_is_in_are_collected_and_those_of_the_living_stay() {
    let kernel = broadwell()
        .file(&format!("{ROOT}/masu-old/tasks"), "")
        .file(&format!("{ROOT}/masu-old/mon_groups/masu-in/tasks"), "")
        .file(&format!("{ROOT}/mon_groups/masu-x/tasks"), "")
        .file(&format!("{ROOT}/masu-mine/tasks"), "7\n")
        .file(&format!("{ROOT}/masu-cpus/tasks"), "")
        .file(&format!("{ROOT}/masu-cpus/cpus_list"), "1\n")
        .file(&format!("{ROOT}/masu-part/tasks"), "")
        .file(&format!("{ROOT}/masu-part/mon_groups/theirs/tasks"), "")
        .file(&format!("{ROOT}/mon_groups/theirs/tasks"), "");
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let web = changes.make(&own("web"), &mut impatient()).unwrap();
    let collected: Vec<String> = changes.collect().unwrap().iter().map(Group::to_string).collect();
    assert_eq!(collected, ["mon_groups/masu-x", "masu-old"]);
    let stay = || ["cpus", "mine", "part"].map(own);
    assert_eq!(resctrl.groups().unwrap(), [&stay()[..], &[own("web")]].concat());
    drop(web);
    assert_eq!(changes.collect().unwrap(), [own("web")]);
}

#[test]
fn a_removed_group_needs_no_undoing_and_may_be_gone_already() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    let (web, db) =
        (changes.make(&own("web"), &mut impatient()).unwrap(), changes.make(&own("db"), &mut impatient()).unwrap());
    kernel.remove(&format!("{ROOT}/masu-db"));
    changes.remove(web).unwrap();
    changes.remove(db).unwrap();
    drop(changes);
    settings.restore().unwrap();
    assert_eq!(
        sent(&kernel),
        ["mkdir sys/fs/resctrl/masu-web", "mkdir sys/fs/resctrl/masu-db", "rmdir sys/fs/resctrl/masu-web"]
            .map(|line| line.replace("sys/fs/resctrl/", ""))
    );
}

#[test]
fn while_another_changes_something_one_waits_or_gives_up() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut other = Some(resctrl.lock(Lock::Exclusive).unwrap());
    assert_eq!(resctrl.change(&mut settings, &mut impatient()).unwrap_err().why, Why::Locked);
    let waited = resctrl.change(&mut settings, &mut |_: Duration| {
        drop(other.take());
        true
    });
    assert!(waited.is_ok());
}
