mod properties;

use rustix::io::Errno;

use crate::fake::Rig;
use crate::hardware::{Hardware, amd_16, broadwell_20, models, skylake_11};
use crate::members::Writer;

#[test]
fn a_fresh_mount_has_everything_in_the_default_group() {
    for (name, _, hardware) in models() {
        let mut rig = Rig::new(hardware);
        rig.check().unwrap();
        assert_eq!(rig.read("tasks").as_deref(), Ok("1\n100\n101\n200\n"), "{name}");
        assert_eq!(rig.read("cpus_list").as_deref(), Ok("0-1\n"), "{name}");
        assert_eq!(rig.read("cpus").as_deref(), Ok("3\n"), "{name}");
        assert_eq!(rig.read("mode").as_deref(), Ok("shareable\n"), "{name}");
        assert_eq!(rig.read("info/last_cmd_status").as_deref(), Ok("ok\n"), "{name}");
    }
}

#[test]
fn info_says_what_the_machine_has() {
    let folder = |hardware: Hardware, folder: &str, files: &[(&str, &str)]| {
        let mut rig = Rig::new(hardware);
        for (file, text) in files {
            assert_eq!(rig.read(&format!("info/{folder}/{file}")), Ok(format!("{text}\n")), "{file}");
        }
    };
    let intel = [
        ("num_closids", "16"),
        ("cbm_mask", "7ff"),
        ("min_cbm_bits", "1"),
        ("shareable_bits", "600"),
        ("sparse_masks", "0"),
        ("bit_usage", "0=XXSSSSSSSSS"),
    ];
    folder(skylake_11(), "L3", &intel);
    let bandwidth = [("num_closids", "16"), ("min_bandwidth", "10"), ("bandwidth_gran", "10"), ("delay_linear", "1")];
    folder(skylake_11(), "MB", &bandwidth);
    folder(amd_16(), "L3", &[("min_cbm_bits", "0"), ("shareable_bits", "0"), ("sparse_masks", "1")]);
    let monitoring = [("num_rmids", "176"), ("mon_features", "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes")];
    folder(broadwell_20(), "L3_MON", &monitoring);
}

#[test]
fn the_hardwares_numbers_are_shown_to_who_mounted_it_so() {
    let mut rig = Rig::new(Hardware { debug: true, ..broadwell_20() });
    rig.mkdir("web").unwrap();
    rig.mkdir("web/mon_groups/vm").unwrap();
    let numbers = ["ctrl_hw_id", "mon_hw_id", "web/ctrl_hw_id", "web/mon_hw_id", "web/mon_groups/vm/mon_hw_id"];
    assert_eq!(numbers.map(|path| rig.read(path).unwrap()), ["0\n", "0\n", "1\n", "1\n", "2\n"]);
}

#[test]
fn directories_and_files_are_not_taken_for_each_other() {
    let mut rig = Rig::new(broadwell_20());
    assert_eq!(rig.read("info"), Err(Errno::ISDIR));
    assert_eq!(rig.write("info", "x\n"), Err(Errno::ISDIR));
    assert_eq!(rig.write("info/L3/cbm_mask", "f\n"), Err(Errno::ACCESS));
    assert_eq!(rig.write("size", "f\n"), Err(Errno::ACCESS));
    assert_eq!(rig.read("tasks/x"), Err(Errno::NOTDIR));
}

#[test]
fn directories_have_the_rights_of_what_they_are_in() {
    let mut rig = Rig::new(broadwell_20());
    rig.mkdir("web").unwrap();
    for (path, rights) in [
        ("", 0o555),
        ("info", 0o555),
        ("info/L3", 0o555),
        ("mon_groups", 0o555),
        ("mon_data/mon_L3_00", 0o555),
        ("web", 0o755),
        ("web/mon_groups", 0o755),
        ("web/mon_data/mon_L3_00", 0o755),
    ] {
        assert_eq!(rig.machine.rights(rig.machine.find(path).unwrap()), rights, "{path:?}");
    }
}

#[test]
fn threads_move_one_by_one_and_lists_stop_at_the_first_that_cannot() {
    let mut rig = Rig::new(broadwell_20());
    rig.mkdir("web").unwrap();
    rig.write("web/tasks", "100\n").unwrap();
    assert_eq!(rig.read("web/tasks").as_deref(), Ok("100\n"), "its other thread stays");
    assert_eq!(rig.write("web/tasks", "101,7,200\n"), Err(Errno::SRCH));
    assert_eq!(rig.status(), "No task 7\nError while processing task 7\n");
    assert_eq!(rig.read("web/tasks").as_deref(), Ok("100\n101\n"), "what was done stays done");
    rig.write("web/tasks", "0").unwrap();
    assert_eq!(rig.read("web/tasks").as_deref(), Ok("1\n100\n101\n"), "0 is who writes");
    for (text, errno, status) in [
        ("x\n", Errno::INVAL, "Task list parsing error pid x\n"),
        (",200\n", Errno::INVAL, "Task list parsing error pid \n"),
        ("-5\n", Errno::INVAL, "Invalid pid -5\n"),
        ("99999999999\n", Errno::INVAL, "Task list parsing error pid 99999999999\n"),
    ] {
        let outcome = rig.write("web/tasks", text);
        assert_eq!((outcome, rig.status().as_str()), (Err(errno), status), "{text:?}");
    }
    for nothing in ["", "\n"] {
        assert_eq!(rig.write("web/tasks", nothing), Ok(()));
    }
    rig.write("tasks", " 0x64 , 200 \n").unwrap();
    assert_eq!(rig.read("web/tasks").as_deref(), Ok("1\n101\n"));
}

#[test]
fn only_root_and_their_owner_move_threads() {
    let mut rig = Rig::new(broadwell_20());
    rig.mkdir("web").unwrap();
    rig.writer = Writer { tid: 200, uid: 1000 };
    assert_eq!(rig.write("web/tasks", "100\n"), Err(Errno::PERM));
    assert_eq!(rig.status(), "No permission to move task 100\nError while processing task 100\n");
    assert_eq!(rig.write("web/tasks", "200\n"), Ok(()));
}

#[test]
fn a_monitoring_group_takes_what_its_control_group_has() {
    let mut rig = Rig::new(broadwell_20());
    for path in ["web", "web/mon_groups/vm", "web/mon_groups/other", "mon_groups/all"] {
        rig.mkdir(path).unwrap();
    }
    assert_eq!(rig.write("web/mon_groups/vm/tasks", "100\n"), Err(Errno::INVAL));
    let why = "Can't move task to different control group\nError while processing task 100\n";
    assert_eq!(rig.status(), why);
    rig.write("web/tasks", "100\n").unwrap();
    rig.write("web/mon_groups/vm/tasks", "100\n").unwrap();
    rig.write("web/mon_groups/other/tasks", "100\n").unwrap();
    let of = ["web/tasks", "web/mon_groups/vm/tasks", "web/mon_groups/other/tasks"];
    assert_eq!(of.map(|path| rig.read(path).unwrap()), ["100\n", "", "100\n"]);
    rig.write("mon_groups/all/tasks", "200\n").unwrap();
    assert_eq!(rig.read("tasks").as_deref(), Ok("1\n101\n200\n"));
}

#[test]
fn who_is_started_is_where_its_starter_is_and_who_ends_is_nowhere() {
    let mut rig = Rig::new(broadwell_20());
    rig.mkdir("web").unwrap();
    rig.write("web/tasks", "100\n").unwrap();
    rig.tasks.start(102, 100, 1, 0);
    rig.tasks.start(300, 300, 100, 0);
    assert_eq!(rig.read("web/tasks").as_deref(), Ok("100\n102\n300\n"));
    rig.tasks.end(100);
    rig.tasks.end(102);
    assert_eq!(rig.read("web/tasks").as_deref(), Ok("300\n"));
}

#[test]
fn cpus_are_of_one_group() {
    let mut rig = Rig::new(Hardware { online: crate::cpus::Cpus::first(40), ..broadwell_20() });
    for path in ["web", "db", "web/mon_groups/vm", "web/mon_groups/other"] {
        rig.mkdir(path).unwrap();
    }
    rig.write("web/cpus_list", "4-7,39\n").unwrap();
    assert_eq!(rig.read("web/cpus").as_deref(), Ok("80,000000f0\n"));
    assert_eq!(rig.read("cpus_list").as_deref(), Ok("0-3,8-38\n"));
    rig.write("web/mon_groups/vm/cpus", "f0").unwrap();
    rig.write("web/mon_groups/other/cpus", "30").unwrap();
    assert_eq!(rig.read("web/mon_groups/vm/cpus_list").as_deref(), Ok("6-7\n"), "siblings do not share");
    rig.write("db/cpus_list", "7-8").unwrap();
    assert_eq!(rig.read("web/cpus_list").as_deref(), Ok("4-6,39\n"));
    assert_eq!(rig.read("web/mon_groups/vm/cpus_list").as_deref(), Ok("6\n"));
    rig.write("web/cpus_list", "6,39").unwrap();
    assert_eq!(rig.read("web/mon_groups/vm/cpus_list").as_deref(), Ok("\n"), "also what was not taken from above it");
    assert_eq!(rig.read("cpus_list").as_deref(), Ok("0-5,9-38\n"));
    rig.write("web/mon_groups/vm/cpus_list", "6").unwrap();
    rig.write("web/cpus_list", "6,39").unwrap();
    assert_eq!(rig.read("web/mon_groups/vm/cpus_list").as_deref(), Ok("\n"), "also by the same once more");
    rig.write("web/cpus_list", "39").unwrap();
    for (path, text, errno, status) in [
        ("cpus_list", "0", Errno::INVAL, "Can't drop CPUs from default group\n"),
        ("web/cpus_list", "39-40", Errno::INVAL, "Can only assign online CPUs\n"),
        ("web/cpus_list", "x", Errno::INVAL, "Bad CPU list/mask\n"),
        ("web/cpus", "xyz", Errno::INVAL, "Bad CPU list/mask\n"),
        ("web/mon_groups/vm/cpus_list", "0", Errno::INVAL, "Can only add CPUs to mongroup that belong to parent\n"),
    ] {
        let outcome = rig.write(path, text);
        assert_eq!((outcome, rig.status().as_str()), (Err(errno), status), "{path} {text}");
    }
    rig.check().unwrap();
}
