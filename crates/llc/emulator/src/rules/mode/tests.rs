use rustix::io::Errno;

use crate::fake::Rig;
use crate::hardware::{Hardware, MONITORING, Monitoring, amd_16, broadwell_20, haswell_20, skylake_11};

fn refused(rig: &mut Rig, path: &str, text: &str, errno: Errno, status: &str) {
    assert_eq!(rig.write(path, text), Err(errno), "{path} {text:?}");
    assert_eq!(rig.status(), status, "{path} {text:?}");
}

/// The upper half is the default group's, and the group `lock` exists and is empty.
fn with_lock() -> Rig {
    let mut rig = Rig::new(broadwell_20());
    rig.write("schemata", "L3:0=ffc00\n").unwrap();
    rig.mkdir("lock").unwrap();
    rig
}

#[test]
fn exclusive_is_for_ways_that_neither_groups_nor_devices_use() {
    let mut rig = Rig::new(broadwell_20());
    rig.mkdir("web").unwrap();
    refused(&mut rig, "web/mode", "exclusive\n", Errno::INVAL, "Schemata overlaps\n");
    rig.write("schemata", "L3:0=ff\n").unwrap();
    rig.write("web/schemata", "L3:0=fff00\n").unwrap();
    refused(&mut rig, "web/mode", "exclusive\n", Errno::INVAL, "Schemata overlaps\n");
    rig.write("web/schemata", "L3:0=3ff00\n").unwrap();
    assert_eq!(rig.write("web/mode", "exclusive\n"), Ok(()), "without the ways that devices use");
    assert_eq!(rig.read("web/mode").as_deref(), Ok("exclusive\n"));
    assert_eq!(rig.read("info/L3/bit_usage").as_deref(), Ok("0=HHEEEEEEEEEESSSSSSSS\n"));
    assert_eq!(rig.write("web/mode", "exclusive\n"), Ok(()), "again");
    assert_eq!(rig.write("web/mode", "shareable\n"), Ok(()));
}

#[test]
fn exclusive_is_for_all_caches_at_once() {
    let mut rig = Rig::new(Hardware { cache_ids: vec![0, 1], ..broadwell_20() });
    rig.mkdir("web").unwrap();
    rig.write("schemata", "L3:0=f\n").unwrap();
    rig.write("web/schemata", "L3:0=f0;1=f0\n").unwrap();
    refused(&mut rig, "web/mode", "exclusive\n", Errno::INVAL, "Schemata overlaps\n");
    rig.write("schemata", "L3:1=f\n").unwrap();
    assert_eq!(rig.write("web/mode", "exclusive\n"), Ok(()));
}

#[test]
fn other_words_are_no_modes() {
    let mut rig = Rig::new(broadwell_20());
    for text in ["pseudo-locked\n", "Exclusive\n", "\n", " shareable\n"] {
        refused(&mut rig, "mode", text, Errno::INVAL, "Unknown or unsupported mode\n");
    }
    assert_eq!(rig.write("mode", "shareable"), Err(Errno::INVAL));
}

#[test]
fn what_stands_in_the_way_of_locking_is_named() {
    let setup = "pseudo-locksetup\n";
    let mut rig = with_lock();
    refused(&mut rig, "mode", setup, Errno::INVAL, "Cannot pseudo-lock default group\n");
    rig.mkdir("lock/mon_groups/m").unwrap();
    refused(&mut rig, "lock/mode", setup, Errno::INVAL, "Monitoring in progress\n");
    rig.rmdir("lock/mon_groups/m").unwrap();
    rig.write("lock/tasks", "100\n").unwrap();
    refused(&mut rig, "lock/mode", setup, Errno::INVAL, "Tasks assigned to resource group\n");
    rig.write("tasks", "100\n").unwrap();
    rig.write("lock/cpus_list", "1\n").unwrap();
    refused(&mut rig, "lock/mode", setup, Errno::INVAL, "CPUs assigned to resource group\n");
    rig.write("lock/cpus_list", "\n").unwrap();
    assert_eq!(rig.write("lock/mode", setup), Ok(()));
    let unknown = [amd_16(), haswell_20(), skylake_11()].map(|hardware| (hardware, "Pseudo-locking not supported\n"));
    let divided = (Hardware { cdp: true, ..broadwell_20() }, "CDP enabled\n");
    for (hardware, why) in unknown.into_iter().chain([divided]) {
        let mut rig = Rig::new(hardware);
        rig.mkdir("lock").unwrap();
        refused(&mut rig, "lock/mode", setup, Errno::INVAL, why);
    }
}

#[test]
fn a_group_that_is_set_up_for_locking_takes_a_mask_and_nothing_else() {
    let mut rig = with_lock();
    rig.write("lock/mode", "pseudo-locksetup\n").unwrap();
    assert_eq!(rig.read("lock/schemata").as_deref(), Ok("L3:uninitialized\n"));
    assert_eq!(rig.read("lock/size").as_deref(), Ok("    L3:0=0\n"));
    refused(&mut rig, "lock/tasks", "100\n", Errno::INVAL, "Pseudo-locking in progress\n");
    refused(&mut rig, "lock/cpus", "1\n", Errno::INVAL, "Pseudo-locking in progress\n");
    assert_eq!(rig.mkdir("lock/mon_groups/m"), Err(Errno::INVAL));
    assert_eq!(rig.status(), "Pseudo-locking in progress\n");
    refused(&mut rig, "lock/schemata", "L3:0=c00\n", Errno::INVAL, "Overlaps with other group\n");
    for path in ["lock/tasks", "lock/cpus", "lock/mon_groups"] {
        let node = rig.machine.find(path).unwrap();
        assert_eq!(rig.machine.rights(node), 0, "{path}");
    }
    // 5 MiB exceed the kernel's greatest contiguous allocation.
    refused(&mut rig, "lock/schemata", "L3:0=1f\n", Errno::TOOBIG, "Requested region exceeds maximum size\n");
    assert_eq!(rig.read("lock/mode").as_deref(), Ok("pseudo-locksetup\n"));
    rig.write("lock/schemata", "L3:0=f\n").unwrap();
    assert_eq!(rig.read("lock/mode").as_deref(), Ok("pseudo-locked\n"));
    assert_eq!(rig.read("lock/schemata").as_deref(), Ok("L3:0=f\n"));
    assert_eq!(rig.read("lock/size").as_deref(), Ok("    L3:0=4194304\n"));
    assert_eq!(rig.read("info/L3/bit_usage").as_deref(), Ok("0=XXSSSSSSSS000000PPPP\n"));
    refused(&mut rig, "lock/mode", "shareable\n", Errno::INVAL, "Cannot change pseudo-locked group\n");
    refused(&mut rig, "lock/schemata", "L3:0=f0\n", Errno::INVAL, "Resource group is pseudo-locked\n");
    refused(&mut rig, "schemata", "L3:0=fffff\n", Errno::INVAL, "CBM overlaps with pseudo-locked region\n");
    rig.check().unwrap();
}

#[test]
fn a_cache_has_one_locked_region_at_most() {
    let mut rig = Rig::new(Hardware { cache_ids: vec![0, 1], ..broadwell_20() });
    rig.write("schemata", "L3:0=ffc00;1=ffc00\n").unwrap();
    for path in ["lock", "other"] {
        rig.mkdir(path).unwrap();
        rig.write(&format!("{path}/mode"), "pseudo-locksetup\n").unwrap();
    }
    rig.write("lock/schemata", "L3:0=3\n").unwrap();
    // Not even its mask is checked.
    for mask in ["f0", "3", "0", "xyz"] {
        let line = format!("L3:0={mask}\n");
        refused(&mut rig, "other/schemata", &line, Errno::INVAL, "Pseudo-locked region in hierarchy\n");
    }
    rig.write("other/schemata", "L3:1=3\n").unwrap();
    rig.check().unwrap();
    rig.rmdir("lock").unwrap();
    rig.mkdir("third").unwrap();
    rig.write("third/mode", "pseudo-locksetup\n").unwrap();
    assert_eq!(rig.write("third/schemata", "L3:0=f0\n"), Ok(()), "its ways are free again");
}

#[test]
fn a_locked_region_has_no_class_and_keeps_its_ways() {
    let mut rig = Rig::new(Hardware { classes: 2, ..broadwell_20() });
    rig.write("schemata", "L3:0=ffc00\n").unwrap();
    rig.mkdir("lock").unwrap();
    rig.write("lock/mode", "pseudo-locksetup\n").unwrap();
    assert_eq!(rig.mkdir("web"), Err(Errno::NOSPC));
    rig.write("lock/schemata", "L3:0=f\n").unwrap();
    rig.mkdir("web").unwrap();
    assert_eq!(rig.read("web/schemata").as_deref(), Ok("    L3:0=ffff0\n"));
    rig.rmdir("lock").unwrap();
    rig.write("web/schemata", "L3:0=f\n").unwrap();
    rig.check().unwrap();
}

#[test]
fn a_group_that_is_not_locked_after_all_gets_a_counter_again() {
    let monitoring = Some(Monitoring { rmids: 2, limbo_ms: 0, ..MONITORING });
    let mut rig = Rig::new(Hardware { monitoring, debug: true, ..broadwell_20() });
    rig.mkdir("lock").unwrap();
    assert_eq!(rig.read("lock/mon_hw_id").as_deref(), Ok("1\n"));
    rig.write("lock/mode", "pseudo-locksetup\n").unwrap();
    // Its counter is free, and taken by another.
    rig.mkdir("web").unwrap();
    refused(&mut rig, "lock/mode", "shareable\n", Errno::NOSPC, "Out of RMIDs\n");
    assert_eq!(rig.read("lock/mode").as_deref(), Ok("pseudo-locksetup\n"));
    rig.rmdir("web").unwrap();
    rig.write("lock/mode", "shareable\n").unwrap();
    assert_eq!(rig.read("lock/mon_hw_id").as_deref(), Ok("1\n"));
    assert_eq!(rig.read("lock/schemata").as_deref(), Ok("    L3:0=fffff\n"), "as it was");
    rig.check().unwrap();
}
