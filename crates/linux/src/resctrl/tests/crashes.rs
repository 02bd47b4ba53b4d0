//! Replay of a killed process's journal at the next start.

use rustix::io::Errno;
use std::path::Path;

use super::changing::{journal, sent};
use super::machines::broadwell;
use super::*;
use crate::journal::{HostSettings, Restored, Undone};
use crate::resctrl::undo::Undo;

fn replay(kernel: &FakeKernel, directory: &Path) -> Result<Vec<Restored>, Error> {
    crate::journal::replay(kernel, directory, &[UNDO]).map(|replay| replay.restored)
}

/// A process shrinks the default group, makes a group, and is killed.
fn killed_at_work(kernel: &FakeKernel, directory: &Path, mounted_at: &str) {
    let resctrl = Resctrl::at(kernel, mounted_at).unwrap();
    let mut settings = HostSettings::open(kernel, directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    changes.write(&Group::DEFAULT, &masks(Resource::L3, &[(0, 0xff)])).unwrap();
    let _alive = changes.make(&own("web"), &mut impatient()).unwrap();
    drop(changes);
    crate::journal::tests::abandon(settings);
    // The process id goes to another process.
    kernel.add(&Pid::own().file("stat"), "1 (y) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 999 0 0\n");
}

fn what(restored: &[Restored]) -> Vec<(&str, Undone, bool)> {
    restored.iter().map(|one| (one.path.as_str(), one.undone, one.failure.is_none())).collect()
}

#[test]
fn the_journal_holds_tag_and_data_in_the_form_of_all_versions() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    killed_at_work(&kernel, &directory, "/sys/fs/resctrl");
    let journal = directory.join("private").join(format!("{}-100.journal", Pid::own()));
    let text = std::fs::read_to_string(journal).unwrap();
    let expected = [
        r#"{"boot":"this-boot"}"#,
        r#"{"turned":{"path":"sys/fs/resctrl/schemata","old":"L3:0=fffff;1=fffff","part":"L3","resctrl":{"mount":"sys/fs/resctrl","how":"line"}}}"#,
        r#"{"turned":{"path":"sys/fs/resctrl/masu-web","old":"","resctrl":{"mount":"sys/fs/resctrl","how":"remove"}}}"#,
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_next_start_removes_the_group_and_gives_the_default_group_its_ways_back() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    killed_at_work(&kernel, &directory, "/sys/fs/resctrl");
    let restored = replay(&kernel, &directory).unwrap();
    let (group, schemata) = (format!("{ROOT}/masu-web"), format!("{ROOT}/schemata"));
    assert_eq!(what(&restored), [(group.as_str(), Undone::Removed, true), (schemata.as_str(), Undone::Written, true)]);
    // The fake's file has only the last write: domain 1 is missing.
    assert_eq!(sent(&kernel)[2..], ["rmdir masu-web", "schemata <- L3:0=fffff"]);
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
}

#[test]
fn mounted_at_another_place_it_is_the_same() {
    let kernel = broadwell();
    kernel.add("proc/mounts", "e /tmp/emulated fuse.resctrl rw 0 0\n");
    kernel.add("tmp/emulated/schemata", "L3:0=fffff\n");
    let (_run, directory) = journal(&kernel);
    killed_at_work(&kernel, &directory, "/tmp/emulated");
    let restored = replay(&kernel, &directory).unwrap();
    assert_eq!(restored.iter().filter(|one| one.failure.is_none()).count(), 2);
    assert_eq!(kernel.read("tmp/emulated/schemata").unwrap(), "L3:0=fffff\n");
    assert!(kernel.list("tmp/emulated/masu-web").is_err());
}

#[test]
fn where_it_is_not_mounted_any_more_nothing_is_done_and_nothing_said() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    killed_at_work(&kernel, &directory, "/sys/fs/resctrl");
    let before = kernel.writes();
    kernel.add("proc/mounts", "proc /proc proc rw 0 0\n");
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(kernel.writes(), before);
    kernel.add("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n");
    assert_eq!(replay(&kernel, &directory).unwrap(), [], "the journal is done with");
}

#[test]
fn a_file_system_that_was_mounted_anew_has_nothing_to_undo() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    killed_at_work(&kernel, &directory, "/sys/fs/resctrl");
    kernel.remove(&format!("{ROOT}/masu-web"));
    // Code and data are separate this time.
    kernel.add(&format!("{ROOT}/schemata"), "L3DATA:0=fffff;1=fffff\nL3CODE:0=fffff;1=fffff\n");
    let before = kernel.writes();
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert_eq!(kernel.writes(), before);
}

#[test]
fn a_default_group_that_has_all_ways_since_is_not_given_fewer() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    // Another program has taken ways from the default group before us.
    kernel.add(&format!("{ROOT}/schemata"), "L3:0=ff;1=ff\n");
    killed_at_work(&kernel, &directory, "/sys/fs/resctrl");
    // No groups, and all ways of one cache, as after a remount; of the other cache the default group still has fewer.
    kernel.remove(&format!("{ROOT}/masu-web"));
    kernel.add(&format!("{ROOT}/schemata"), "L3:0=fffff;1=f0\n");
    let restored = replay(&kernel, &directory).unwrap();
    assert_eq!(what(&restored), [("sys/fs/resctrl/schemata", Undone::Written, true)]);
    assert_eq!(sent(&kernel).last().unwrap(), "schemata <- L3:1=ff");
}

#[test]
fn what_we_gave_to_the_default_group_is_taken_back_at_the_end() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    kernel.add(&format!("{ROOT}/schemata"), "L3:0=ff\n");
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    changes.write(&Group::DEFAULT, &masks(Resource::L3, &[(0, 0xf_ffff)])).unwrap();
    drop(changes);
    settings.restore().unwrap();
    assert_eq!(sent(&kernel), ["schemata <- L3:0=fffff", "schemata <- L3:0=ff"]);
}

#[test]
fn an_exclusive_group_of_somebody_else_in_the_way_is_told_and_tried_again() {
    let kernel = broadwell().refusing_value(&format!("{ROOT}/schemata"), "L3:0=fffff\n", Errno::INVAL);
    let (_run, directory) = journal(&kernel);
    killed_at_work(&kernel, &directory, "/sys/fs/resctrl");
    let restored = replay(&kernel, &directory).unwrap();
    let failure = restored[1].failure.as_ref().unwrap().to_string();
    assert_eq!(failure, "cannot write \"L3:0=fffff\" to /sys/fs/resctrl/schemata: invalid argument (EINVAL)");
    let again = replay(&kernel, &directory).unwrap();
    assert_eq!(what(&again), [("sys/fs/resctrl/schemata", Undone::Written, false)]);
}

#[test]
fn a_group_of_the_same_name_that_a_living_process_holds_stays() {
    let kernel = broadwell();
    let (_run, directory) = journal(&kernel);
    killed_at_work(&kernel, &directory, "/sys/fs/resctrl");
    // The next run removes the leftover group by itself, and starts before any replay.
    let own_stat = Pid::own().file("stat");
    let resctrl = Resctrl::find(&kernel).unwrap();
    let mut settings = HostSettings::open(&kernel, &directory).unwrap();
    let mut changes = resctrl.change(&mut settings, &mut impatient()).unwrap();
    assert_eq!(changes.collect().unwrap(), [own("web")]);
    kernel.add(&format!("{ROOT}/schemata"), "L3:0=ff;1=fffff\n");
    changes.write(&Group::DEFAULT, &masks(Resource::L3, &[(0, 0xf)])).unwrap();
    let _alive = changes.make(&own("web"), &mut impatient()).unwrap();
    drop(changes);
    assert!(kernel.read(&own_stat).unwrap().contains(" 999 "));
    assert_eq!(replay(&kernel, &directory).unwrap(), []);
    assert!(resctrl.exists(&own("web")));
    // The value restored is the one that the first run found, not the one that it left.
    settings.restore().unwrap();
    assert_eq!(sent(&kernel).last().unwrap(), "schemata <- L3:0=fffff");
}

#[test]
fn a_journal_removes_nothing_but_groups_of_ours_and_writes_nothing_but_what_is_ours_to_write() {
    let undo = |mount: &str, how| Undo { mount: mount.to_owned(), how };
    use crate::resctrl::undo::How::{Line, Remove, Tasks, Value};
    assert!(undo("tmp/e", Remove).is_sound("tmp/e/masu-web"));
    assert!(undo("tmp/e", Remove).is_sound("tmp/e/batch/mon_groups/masu-x"));
    assert!(undo("tmp/e", Line).is_sound("tmp/e/schemata"));
    assert!(undo("tmp/e", Tasks).is_sound("tmp/e/batch/tasks"));
    assert!(undo("tmp/e", Value).is_sound("tmp/e/mode"));
    for (mount, how, path) in [
        ("tmp/e", Remove, "tmp/e/batch"),
        ("tmp/e", Remove, "tmp/masu-web"),
        ("tmp/e", Remove, "tmp/e/../masu-web"),
        ("tmp/e", Remove, "tmp/e/masu-web/.."),
        ("tmp/../etc", Line, "tmp/../etc/schemata"),
        ("", Line, "/schemata"),
        ("etc", Line, "etc/passwd"),
        ("etc", Tasks, "etc/passwd"),
        ("tmp/e", Value, "tmp/e/schemata"),
        ("tmp/e", Line, "tmp/e2/schemata"),
    ] {
        assert!(!undo(mount, how).is_sound(path), "{mount} {path}");
    }
}
