use rustix::io::Errno;

use crate::fake::Rig;
use crate::hardware::{Hardware, MONITORING, Monitoring, amd_16, broadwell_20};

fn rig(classes: u32, rmids: u32) -> Rig {
    let monitoring = Some(Monitoring { rmids, ..MONITORING });
    Rig::new(Hardware { classes, monitoring, ..broadwell_20() })
}

#[test]
fn groups_are_made_in_the_root_and_in_mon_groups_and_nowhere_else() {
    let mut rig = rig(4, 8);
    for good in ["web", "web/mon_groups/vm", "mon_groups/all"] {
        assert!(rig.mkdir(good).is_ok(), "{good}");
    }
    let refusals = [
        ("web", Errno::EXIST),
        ("info", Errno::EXIST),
        ("tasks", Errno::EXIST),
        ("a\nb", Errno::INVAL),
        ("web/mon_groups/a\nb", Errno::INVAL),
        ("web/vm", Errno::PERM),
        ("info/vm", Errno::NODEV),
        ("info/L3/vm", Errno::NODEV),
        ("web/mon_data/vm", Errno::PERM),
        ("mon_groups/all/vm", Errno::PERM),
        ("web/mon_groups/mon_groups", Errno::PERM),
        ("none/vm", Errno::NOENT),
        ("web/tasks/vm", Errno::NOTDIR),
    ];
    for (path, errno) in refusals {
        rig.write("mode", "nonsense\n").unwrap_err();
        assert_eq!(rig.mkdir(path), Err(errno), "{path:?}");
        // A change inside a group counts as a command before it is refused.
        assert_eq!(rig.status() == "ok\n", errno == Errno::PERM, "{path:?}");
    }
    let mut blind = Rig::new(Hardware { monitoring: None, ..broadwell_20() });
    blind.mkdir("web").unwrap();
    for path in ["info/vm", "web/vm"] {
        blind.write("mode", "nonsense\n").unwrap_err();
        assert_eq!(blind.mkdir(path), Err(Errno::PERM), "{path:?}");
        assert_eq!(blind.status(), "Unknown or unsupported mode\n");
    }
    let names = |rig: &mut Rig, path: &str| {
        let node = rig.machine.find(path).unwrap();
        rig.machine.list(node).unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let of_control = ["cpus", "cpus_list", "mode", "schemata", "size", "tasks", "mon_data", "mon_groups"];
    assert_eq!(names(&mut rig, "web"), of_control);
    assert_eq!(names(&mut rig, "web/mon_groups/vm"), ["cpus", "cpus_list", "tasks", "mon_data"]);
}

#[test]
fn classes_are_used_up_and_come_back() {
    let mut rig = rig(3, 8);
    rig.mkdir("a").unwrap();
    rig.mkdir("b").unwrap();
    assert_eq!((rig.mkdir("c"), rig.status().as_str()), (Err(Errno::NOSPC), "Out of CLOSIDs\n"));
    rig.rmdir("a").unwrap();
    assert!(rig.mkdir("c").is_ok());
    assert_eq!(rig.status(), "ok\n");
}

#[test]
fn counters_are_used_up_and_come_back_after_their_time_in_limbo() {
    let mut rig = rig(16, 3);
    rig.mkdir("a").unwrap();
    rig.mkdir("a/mon_groups/m").unwrap();
    for full in ["b", "a/mon_groups/n"] {
        assert_eq!((rig.mkdir(full), rig.status().as_str()), (Err(Errno::NOSPC), "Out of RMIDs\n"));
    }
    rig.rmdir("a/mon_groups/m").unwrap();
    assert_eq!((rig.mkdir("b"), rig.status().as_str()), (Err(Errno::BUSY), "Out of RMIDs\n"));
    rig.machine.pass_time(999);
    assert_eq!(rig.mkdir("b"), Err(Errno::BUSY));
    // Nothing was in the cache for it: the kernel's next check, after a second, frees it.
    rig.machine.pass_time(1000);
    assert!(rig.mkdir("b").is_ok());
    rig.check().unwrap();
}

#[test]
fn lines_in_the_cache_keep_a_counter_in_limbo_unless_the_threshold_is_above_them() {
    for (threshold, is_free) in [("983040\n", false), ("1048576\n", false), ("1114112\n", true)] {
        let mut rig = rig(16, 2);
        rig.mkdir("a").unwrap();
        rig.machine.tell("occupancy a 0 1048576").unwrap();
        rig.rmdir("a").unwrap();
        rig.write("info/L3_MON/max_threshold_occupancy", threshold).unwrap();
        rig.machine.pass_time(1000);
        assert_eq!(rig.mkdir("b").is_ok(), is_free, "{threshold}");
        rig.machine.pass_time(5000);
        assert_eq!(rig.mkdir("c").is_ok(), !is_free, "then the lines are gone");
    }
    // Occupancy does not fall below 0.
    let mut rig = rig(16, 2);
    rig.mkdir("a").unwrap();
    rig.rmdir("a").unwrap();
    rig.write("info/L3_MON/max_threshold_occupancy", "0\n").unwrap();
    rig.machine.pass_time(u64::MAX);
    assert_eq!(rig.mkdir("b"), Err(Errno::BUSY));
    rig.machine.tell("settle").unwrap();
    rig.mkdir("b").unwrap();
    // A time beyond all numbers is no reason to end.
    rig.rmdir("b").unwrap();
    assert_eq!(rig.mkdir("b"), Err(Errno::BUSY));
}

#[test]
fn a_new_group_begins_with_what_is_shared_and_unused_up_to_the_first_hole() {
    let mut rig = rig(16, 32);
    rig.write("schemata", "L3:0=ff000\n").unwrap();
    rig.mkdir("alone").unwrap();
    rig.write("alone/schemata", "L3:0=f0\n").unwrap();
    rig.write("alone/mode", "exclusive\n").unwrap();
    rig.mkdir("new").unwrap();
    // Unused are f and f00, shared ff000, devices use c0000: the first contiguous run of these is f.
    assert_eq!(rig.read("new/schemata").as_deref(), Ok("    L3:0=f\n"));
    rig.write("new/schemata", "L3:0=1\n").unwrap();
    rig.write("new/mode", "exclusive\n").unwrap();
    rig.mkdir("newer").unwrap();
    assert_eq!(rig.read("newer/schemata").as_deref(), Ok("    L3:0=e\n"));
    rig.check().unwrap();
}

#[test]
fn when_groups_that_share_with_none_leave_nothing_there_is_no_space() {
    let mut rig = Rig::new(Hardware {
        shareable: units::WayMask::NONE,
        monitoring: None,
        min_ways: units::Ways(2),
        ..broadwell_20()
    });
    rig.write("mode", "exclusive\n").unwrap();
    assert_eq!((rig.mkdir("web"), rig.status().as_str()), (Err(Errno::NOSPC), "No space on L3:0\n"));
    rig.write("schemata", "L3:0=ffffe\n").unwrap();
    assert_eq!(rig.mkdir("web"), Err(Errno::NOSPC), "one way is not two");
    rig.write("schemata", "L3:0=ffffc\n").unwrap();
    assert!(rig.mkdir("web").is_ok());
    rig.check().unwrap();
    // If the hardware permits a class without ways, it gets none.
    let mut rig = Rig::new(amd_16());
    rig.write("mode", "exclusive\n").unwrap();
    rig.mkdir("web").unwrap();
    assert_eq!(rig.read("web/schemata").as_deref(), Ok("    L3:0=0\n"));
}

#[test]
fn what_was_in_a_removed_group_is_in_the_default_group_or_in_the_one_above() {
    let mut rig = rig(16, 32);
    for path in ["web", "web/mon_groups/vm"] {
        rig.mkdir(path).unwrap();
    }
    rig.write("web/cpus_list", "1\n").unwrap();
    rig.write("web/mon_groups/vm/cpus_list", "1\n").unwrap();
    rig.write("web/tasks", "100,101\n").unwrap();
    rig.write("web/mon_groups/vm/tasks", "101\n").unwrap();
    assert_eq!(rig.read("web/tasks").as_deref(), Ok("100\n101\n"), "those of its monitoring groups, too");
    let vm = rig.machine.find("web/mon_groups/vm/tasks").unwrap();
    rig.rmdir("web/mon_groups/vm").unwrap();
    assert_eq!(rig.machine.read(vm), Err(Errno::NODEV), "a file that is still open");
    assert_eq!(rig.read("web/tasks").as_deref(), Ok("100\n101\n"));
    rig.mkdir("web/mon_groups/vm").unwrap();
    rig.rmdir("web").unwrap();
    assert_eq!(rig.read("web/mon_groups/vm/tasks"), Err(Errno::NOENT));
    assert_eq!(rig.read("tasks").as_deref(), Ok("1\n100\n101\n200\n"));
    assert_eq!(rig.read("cpus_list").as_deref(), Ok("0-1\n"));
    rig.check().unwrap();
}

#[test]
fn only_groups_can_be_removed() {
    let mut rig = rig(16, 32);
    rig.mkdir("web").unwrap();
    for (path, errno) in [
        ("info", Errno::PERM),
        ("mon_groups", Errno::PERM),
        ("mon_data", Errno::PERM),
        ("web/mon_data/mon_L3_00", Errno::PERM),
        ("info/L3", Errno::PERM),
        ("web/tasks", Errno::NOTDIR),
        ("none", Errno::NOENT),
    ] {
        assert_eq!(rig.rmdir(path), Err(errno), "{path}");
    }
}

#[test]
fn a_monitoring_group_moves_with_its_threads_and_its_counts() {
    let mut rig = rig(16, 32);
    for path in ["web", "db", "web/mon_groups/vm", "web/mon_groups/other"] {
        rig.mkdir(path).unwrap();
    }
    rig.write("web/tasks", "100\n").unwrap();
    rig.write("web/mon_groups/vm/tasks", "100\n").unwrap();
    rig.machine.tell("total web/mon_groups/vm 0 77").unwrap();
    rig.rename("web/mon_groups/vm", "db/mon_groups/vm2").unwrap();
    assert_eq!(rig.read("db/tasks").as_deref(), Ok("100\n"));
    assert_eq!(rig.read("web/tasks").as_deref(), Ok(""));
    assert_eq!(rig.read("db/mon_groups/vm2/mon_data/mon_L3_00/mbm_total_bytes").as_deref(), Ok("77\n"));
    let refusals = [
        ("web", "web2", Errno::PERM, "Source must be a MON group\n"),
        ("web", "db/mon_groups/web", Errno::PERM, "Source must be a MON group\n"),
        ("db/mon_groups/vm2", "vm2", Errno::PERM, "Destination must be a mon_groups subdirectory\n"),
        (
            "db/mon_groups/vm2",
            "web/mon_groups/mon_groups",
            Errno::PERM,
            "Destination must be a mon_groups subdirectory\n",
        ),
        ("web/tasks", "web/tasks2", Errno::PERM, "Source and destination must be directories"),
        ("db/mon_groups/vm2", "web/mon_groups/other", Errno::EXIST, "ok\n"),
    ];
    for (from, to, errno, status) in refusals {
        assert_eq!((rig.rename(from, to), rig.status().as_str()), (Err(errno), status), "{from} to {to}");
    }
    assert_eq!(rig.rename("info", "info2"), Err(Errno::NOENT));
    // Only mkdir checks the characters of a name.
    assert_eq!(rig.rename("db/mon_groups/vm2", "db/mon_groups/a\nb"), Ok(()));
    assert_eq!(rig.rename("db/mon_groups/a\nb", "db/mon_groups/vm2"), Ok(()));
    rig.write("db/cpus_list", "0\n").unwrap();
    rig.write("db/mon_groups/vm2/cpus_list", "0\n").unwrap();
    assert_eq!(rig.rename("db/mon_groups/vm2", "web/mon_groups/vm"), Err(Errno::PERM));
    assert_eq!(rig.status(), "Cannot move a MON group that monitors CPUs\n");
    assert_eq!(rig.rename("db/mon_groups/vm2", "db/mon_groups/vm"), Ok(()), "within the same group");
}
