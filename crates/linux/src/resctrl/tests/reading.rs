//! Detection, and reading of groups, modes and counters.

use super::machines::{broadwell, skylake};
use super::*;

fn host(filesystems: &str, cpuinfo: &str) -> FakeKernel {
    FakeKernel::new()
        .file("proc/mounts", "proc /proc proc rw 0 0\n")
        .file("proc/filesystems", filesystems)
        .file("proc/cpuinfo", cpuinfo)
}

#[test]
fn why_there_is_none_is_told_apart() {
    let absent = |kernel: &FakeKernel| Resctrl::find(kernel).unwrap_err();
    let plain = "processor : 0\nflags\t\t: fpu sse2\n";
    let able = "processor : 0\nflags\t\t: fpu cat_l3 sse2\n";
    assert_eq!(absent(&host("nodev\tproc\n\text4\n", plain)), Absent::NotInKernel { processors_could: false });
    assert_eq!(absent(&host("nodev\tproc\n", able)), Absent::NotInKernel { processors_could: true });
    assert_eq!(absent(&host("nodev\tproc\nnodev\tresctrl\n", able)), Absent::NotMounted);
    assert!(matches!(absent(&FakeKernel::new()), Absent::Unknown(Error::Unsupported(_))));
    let expected = "cannot use resctrl: it is not mounted";
    assert_eq!(absent(&host("nodev resctrl\n", able)).to_string(), expected);
}

#[test]
fn it_is_found_where_it_is_mounted_with_its_options() {
    let mounts =
        "emulator /tmp/a\\040b fuse.resctrl rw 0 0\nresctrl /mnt/r resctrl rw,relatime,cdp,cdpl2,mba_MBps,debug 0 0\n";
    let kernel = FakeKernel::new().file("proc/mounts", mounts);
    let found = Resctrl::find(&kernel).unwrap();
    let all = Mount { directory: "mnt/r".into(), cdp: true, cdpl2: true, mba_mbps: true, debug: true, emulated: false };
    assert_eq!(found.mount(), &all);
    assert_eq!(found.file(&Group::DEFAULT, "tasks"), "mnt/r/tasks");
    assert_eq!(found.file(&own("web"), "tasks"), "mnt/r/masu-web/tasks");
    let emulated = Resctrl::at(&kernel, "/tmp/a b/").unwrap();
    assert!(emulated.mount().emulated && !emulated.mount().cdp);
    let error = Resctrl::at(&kernel, "/tmp").unwrap_err();
    assert_eq!(error.to_string(), "cannot use /tmp: no resctrl file system is mounted there");
}

#[test]
fn an_emulator_is_never_found_by_itself() {
    let kernel = host("nodev\tresctrl\n", "").file("proc/mounts", "e /tmp/e fuse.resctrl rw 0 0\n");
    assert_eq!(Resctrl::find(&kernel).unwrap_err(), Absent::NotMounted);
}

#[test]
fn groups_are_directories_that_are_not_the_kernels_own() {
    let kernel = broadwell()
        .file(&format!("{ROOT}/batch/tasks"), "7\n")
        .file(&format!("{ROOT}/batch/mon_groups/m/tasks"), "7\n")
        .file(&format!("{ROOT}/masu-web/tasks"), "")
        .file(&format!("{ROOT}/mon_groups/masu-x/tasks"), "");
    let resctrl = Resctrl::find(&kernel).unwrap();
    let names = |groups: Vec<Group>| groups.iter().map(Group::to_string).collect::<Vec<_>>();
    assert_eq!(names(resctrl.groups().unwrap()), ["batch", "masu-web"]);
    let all = ["the default group", "mon_groups/masu-x", "batch", "batch/mon_groups/m", "masu-web"];
    assert_eq!(names(resctrl.all_groups().unwrap()), all);
    let ours: Vec<Group> = resctrl.all_groups().unwrap().into_iter().filter(Group::is_ours).collect();
    assert_eq!(names(ours), ["mon_groups/masu-x", "masu-web"]);
    assert!(resctrl.monitors(&Group::of_class("gone")).unwrap_err().is_gone());
}

#[test]
fn modes_are_words() {
    let kernel =
        broadwell().file(&format!("{ROOT}/a/mode"), "pseudo-locked\n").file(&format!("{ROOT}/b/mode"), "odd\n");
    let resctrl = Resctrl::find(&kernel).unwrap();
    assert_eq!(resctrl.mode(&Group::DEFAULT).unwrap(), Mode::Shareable);
    assert_eq!(resctrl.mode(&Group::of_class("a")).unwrap(), Mode::PseudoLocked);
    let error = resctrl.mode(&Group::of_class("b")).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot understand /sys/fs/resctrl/b/mode: \"odd\", expected one of shareable, exclusive, pseudo-locksetup, pseudo-locked"
    );
    assert!(resctrl.mode(&Group::of_class("c")).unwrap_err().is_gone());
}

#[test]
fn a_count_is_a_number_or_one_of_four_reasons() {
    let kernel = broadwell();
    let resctrl = Resctrl::find(&kernel).unwrap();
    let readings = resctrl.readings(&Group::DEFAULT).unwrap();
    let [first, second] = readings.as_slice() else { panic!("{readings:?}") };
    let value = |bytes| Reading::Value(Bytes(bytes));
    assert_eq!([first.llc_occupancy, first.mbm_total_bytes], [value(16_234_000), value(99_000_000)]);
    assert_eq!(first.mbm_local_bytes, Reading::Unavailable);
    assert_eq!([second.llc_occupancy, second.mbm_total_bytes], [Reading::Error, Reading::Unassigned]);
    assert_eq!(second.mbm_local_bytes, Reading::Unsupported);
    let json = serde_json::to_value(second).unwrap();
    let expected = r#"{"domain":1,"node":null,"llc_occupancy_bytes":"Error","mbm_total_bytes":"Unassigned","mbm_local_bytes":"Unsupported"}"#;
    assert_eq!(json, serde_json::from_str::<serde_json::Value>(expected).unwrap());
    assert_eq!(resctrl.llc_occupancy(&Group::DEFAULT, CacheId(0)), Ok(value(16_234_000)));
    assert_eq!(resctrl.llc_occupancy(&Group::DEFAULT, CacheId(9)), Ok(Reading::Unsupported));
    assert!(resctrl.llc_occupancy(&own("gone"), CacheId(0)).unwrap_err().is_gone());
}

#[test]
fn where_nothing_is_counted_there_are_no_readings_and_odd_text_is_named() {
    let kernel = skylake();
    assert_eq!(Resctrl::find(&kernel).unwrap().readings(&Group::DEFAULT), Ok(vec![]));
    let odd = broadwell().file(&format!("{ROOT}/mon_data/mon_L3_00/llc_occupancy"), "much\n");
    let error = Resctrl::find(&odd).unwrap().readings(&Group::DEFAULT).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot understand /sys/fs/resctrl/mon_data/mon_L3_00/llc_occupancy: \"much\", expected a number of bytes"
    );
}

#[test]
fn a_kernel_without_a_file_has_its_value_none_and_one_with_odd_text_is_refused() {
    let old = FakeKernel::new()
        .file("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n")
        .file(&format!("{ROOT}/info/L3/num_closids"), "4\n")
        .file(&format!("{ROOT}/info/L3/cbm_mask"), "fffff\n")
        .file(&format!("{ROOT}/info/L3/min_cbm_bits"), "2\n");
    let info = Resctrl::find(&old).unwrap().info().unwrap();
    let l3 = info.l3().unwrap();
    assert!(l3.usage.is_empty() && l3.shareable.is_empty() && !l3.rules.sparse);
    let odd = old.file(&format!("{ROOT}/info/L3/cbm_mask"), "all\n");
    let error = Resctrl::find(&odd).unwrap().info().unwrap_err().to_string();
    assert_eq!(error, "cannot understand /sys/fs/resctrl/info/L3/cbm_mask: \"all\", expected a mask such as fffff");
}

#[test]
fn the_group_of_a_process_is_read_from_its_own_file_or_from_all_groups() {
    let kernel = broadwell()
        .file("proc/7/cpu_resctrl_groups", "res:batch\nmon:m\n")
        .file("proc/8/stat", "8 (x) S 1\n")
        .file("proc/9/stat", "9 (x) S 1\n")
        .file(&format!("{ROOT}/batch/tasks"), "9\n")
        .file(&format!("{ROOT}/batch/mon_groups/m/tasks"), "9\n");
    let resctrl = Resctrl::find(&kernel).unwrap();
    let batch = Group::of_class("batch");
    assert_eq!(resctrl.group_of(Pid(7)), Ok(batch.with_monitor("m")));
    assert_eq!(resctrl.group_of(Pid(8)), Ok(Group::DEFAULT));
    assert_eq!(resctrl.group_of(Pid(9)), Ok(batch.with_monitor("m")));
    assert!(resctrl.group_of(Pid(10)).unwrap_err().is_gone());
}

#[test]
fn who_reads_keeps_out_who_changes_and_not_others_who_read() {
    let kernel = broadwell();
    let resctrl = Resctrl::find(&kernel).unwrap();
    let one = resctrl.lock_for_reading().unwrap();
    let _two = resctrl.lock_for_reading().unwrap();
    assert_eq!(resctrl.lock(Lock::Exclusive).unwrap_err().why, Why::Locked);
    drop(one);
    drop(_two);
    let _alone = resctrl.lock(Lock::Exclusive).unwrap();
    assert_eq!(resctrl.lock_for_reading().unwrap_err().why, Why::Locked);
}

#[test]
fn what_a_host_has_of_it_is_a_fact_in_each_case() {
    let json = |kernel: &FakeKernel| serde_json::to_value(state(kernel).unwrap()).unwrap();
    let without = json(&host("nodev\tproc\n", "flags : cat_l3\n"));
    assert_eq!(without.to_string(), r#"{"processors_could":true,"state":"not_in_kernel"}"#);
    assert_eq!(json(&host("nodev\tresctrl\n", "")).to_string(), r#"{"state":"not_mounted"}"#);
    let mounted = json(&broadwell());
    let l3 = &mounted["caches"]["L3"];
    let expected = ("mounted", "/sys/fs/resctrl", "fffff", 16, "c0000", false);
    let found = (
        mounted["state"].as_str().unwrap(),
        mounted["directory"].as_str().unwrap(),
        l3["ways"].as_str().unwrap(),
        mounted["classes_max"].as_i64().unwrap(),
        l3["shareable"].as_str().unwrap(),
        mounted["cdp"].as_bool().unwrap(),
    );
    assert_eq!(found, expected, "{mounted}");
    assert_eq!(l3["usage"]["0"], "XXSSSSSSSSSSSSSSSSSS");
    assert!(state(&FakeKernel::new()).is_err());
}
