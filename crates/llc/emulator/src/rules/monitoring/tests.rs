use rustix::io::Errno;

use crate::fake::Rig;
use crate::hardware::{Hardware, Monitoring, broadwell_20, haswell_20};

fn with_vm() -> Rig {
    let mut rig = Rig::new(broadwell_20());
    rig.mkdir("web").unwrap();
    rig.mkdir("web/mon_groups/vm").unwrap();
    rig
}

const OF_WEB: &str = "web/mon_data/mon_L3_00/llc_occupancy";

#[test]
fn a_control_group_counts_itself_and_its_monitoring_groups() {
    let mut rig = with_vm();
    assert_eq!(rig.read(OF_WEB).as_deref(), Ok("0\n"));
    rig.machine.tell("occupancy web 0 100").unwrap();
    rig.machine.tell("occupancy web/mon_groups/vm 0 11").unwrap();
    assert_eq!(rig.read(OF_WEB).as_deref(), Ok("111\n"));
    assert_eq!(rig.read("web/mon_groups/vm/mon_data/mon_L3_00/llc_occupancy").as_deref(), Ok("11\n"));
    assert_eq!(rig.read("mon_data/mon_L3_00/llc_occupancy").as_deref(), Ok("0\n"), "the default group is none above");
}

#[test]
fn a_word_in_place_of_a_number_hides_no_number() {
    let mut rig = with_vm();
    for word in ["Error", "Unavailable", "Unassigned"] {
        rig.machine.tell(&format!("occupancy web 0 {word}")).unwrap();
        rig.machine.tell("occupancy web/mon_groups/vm 0 11").unwrap();
        assert_eq!(rig.read(OF_WEB).as_deref(), Ok("11\n"));
        rig.machine.tell(&format!("occupancy web/mon_groups/vm 0 {word}")).unwrap();
        assert_eq!(rig.read(OF_WEB), Ok(format!("{word}\n")));
    }
    rig.machine.tell("occupancy web 0 Error").unwrap();
    assert_eq!(rig.read(OF_WEB).as_deref(), Ok("Unassigned\n"), "of several words the last one read");
}

#[test]
fn programs_have_in_the_cache_what_they_want_or_what_their_ways_hold() {
    let mut rig = with_vm();
    rig.write("web/schemata", "L3:0=3\n").unwrap();
    for (wanted, occupied) in [(1_000_000, 1_000_000), (9_000_000, 2 << 20)] {
        rig.machine.tell(&format!("want web/mon_groups/vm {wanted}")).unwrap();
        assert_eq!(rig.read(OF_WEB), Ok(format!("{occupied}\n")));
    }
}

#[test]
fn nodes_of_a_cache_count_apart_and_together() {
    let two_nodes = Monitoring { nodes_per_cache: 2, ..crate::hardware::MONITORING };
    let mut rig = Rig::new(Hardware { cache_ids: vec![0, 1], monitoring: Some(two_nodes), ..broadwell_20() });
    rig.machine.tell("total . 1/0 5").unwrap();
    rig.machine.tell("total . 1/1 7").unwrap();
    let folder = "mon_data/mon_L3_01";
    let names: Vec<String> =
        rig.machine.list(rig.machine.find(folder).unwrap()).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[3..], ["mon_sub_L3_02", "mon_sub_L3_03"]);
    let counted = ["mbm_total_bytes", "mon_sub_L3_02/mbm_total_bytes", "mon_sub_L3_03/mbm_total_bytes"]
        .map(|file| rig.read(&format!("{folder}/{file}")).unwrap());
    assert_eq!(counted, ["12\n", "5\n", "7\n"]);
    // A node's part of the ways is smaller, and yet the kernel shows the ways of the whole cache.
    assert_eq!(rig.read("size").as_deref(), Ok("    L3:0=20971520;1=20971520\n"));
    rig.machine.tell("want . 100000000").unwrap();
    let occupied = ["llc_occupancy", "mon_sub_L3_02/llc_occupancy"].map(|file| rig.read(&format!("{folder}/{file}")));
    assert_eq!(occupied, [Ok("20971520\n".to_owned()), Ok("10485760\n".to_owned())]);
}

#[test]
fn a_node_without_a_number_is_left_out_of_the_sum() {
    let two_nodes = Monitoring { nodes_per_cache: 2, ..crate::hardware::MONITORING };
    let mut rig = Rig::new(Hardware { monitoring: Some(two_nodes), ..broadwell_20() });
    rig.machine.tell("total . 0/0 Error").unwrap();
    rig.machine.tell("total . 0/1 7").unwrap();
    assert_eq!(rig.read("mon_data/mon_L3_00/mbm_total_bytes").as_deref(), Ok("7\n"));
    rig.machine.tell("total . 0/1 Error").unwrap();
    assert_eq!(rig.read("mon_data/mon_L3_00/mbm_total_bytes").as_deref(), Ok("Unavailable\n"), "for whatever reason");
    assert_eq!(rig.read("mon_data/mon_L3_00/mon_sub_L3_01/mbm_total_bytes").as_deref(), Ok("Error\n"));
}

#[test]
fn there_is_a_file_for_each_event_of_the_machine() {
    let mut rig = Rig::new(haswell_20());
    assert_eq!(rig.read("info/L3_MON/mon_features").as_deref(), Ok("llc_occupancy\n"));
    assert_eq!(rig.read("mon_data/mon_L3_00/mbm_total_bytes"), Err(Errno::NOENT));
    let mut rig = Rig::new(Hardware { monitoring: None, ..haswell_20() });
    for path in ["info/L3_MON/num_rmids", "mon_data", "mon_groups"] {
        assert_eq!(rig.read(path), Err(Errno::NOENT), "{path}");
    }
}

#[test]
fn the_threshold_is_whole_units_and_less_than_a_cache() {
    let mut rig = Rig::new(broadwell_20());
    let path = "info/L3_MON/max_threshold_occupancy";
    // 20 MiB / 176 counters = 119156 bytes, in units of 64 KiB.
    assert_eq!(rig.read(path).as_deref(), Ok("65536\n"));
    rig.write(path, "0x30001\n").unwrap();
    assert_eq!(rig.read(path).as_deref(), Ok("196608\n"));
    for bad in ["", "-1\n", "20971521\n", "x\n"] {
        assert_eq!(rig.write(path, bad), Err(Errno::INVAL), "{bad:?}");
    }
    assert_eq!(rig.write(path, "4294967296\n"), Err(Errno::RANGE));
}

#[test]
fn what_is_said_of_nothing_is_refused() {
    let mut rig = with_vm();
    for line in
        ["", "want", "want none 1", "want web x", "occupancy web 7 1", "occupancy web 0/1 1", "total web 0 many"]
    {
        assert!(rig.machine.tell(line).is_err(), "{line}");
    }
}
