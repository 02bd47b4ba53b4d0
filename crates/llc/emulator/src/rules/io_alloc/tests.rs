use rustix::io::Errno;

use crate::fake::Rig;
use crate::hardware::{Hardware, amd_16, broadwell_20};

const SWITCH: &str = "info/L3/io_alloc";
const MASKS: &str = "info/L3/io_alloc_cbm";

#[test]
fn devices_have_the_highest_class_while_they_have_a_mask() {
    let mut rig = Rig::new(Hardware { classes: 3, cache_ids: vec![0, 1], ..amd_16() });
    assert_eq!(rig.read(SWITCH).as_deref(), Ok("disabled\n"));
    assert_eq!((rig.read(MASKS), rig.status().as_str()), (Err(Errno::INVAL), "io_alloc is not enabled on L3\n"));
    assert_eq!(rig.write(MASKS, "0=ff\n"), Err(Errno::INVAL));
    rig.write(SWITCH, "1\n").unwrap();
    assert_eq!(rig.read(SWITCH).as_deref(), Ok("enabled\n"));
    assert_eq!(rig.read(MASKS).as_deref(), Ok("0=ffff;1=ffff\n"));
    rig.mkdir("web").unwrap();
    assert_eq!((rig.mkdir("db"), rig.status().as_str()), (Err(Errno::NOSPC), "Out of CLOSIDs\n"));
    rig.check().unwrap();
    rig.write(SWITCH, "0\n").unwrap();
    rig.mkdir("db").unwrap();
    let why = "CLOSID (ctrl_hw_id) 2 for io_alloc is used by db group\n";
    assert_eq!((rig.write(SWITCH, "1\n"), rig.status().as_str()), (Err(Errno::NOSPC), why));
    assert_eq!(rig.write(SWITCH, "perhaps\n"), Err(Errno::INVAL));
}

#[test]
fn their_mask_follows_the_rules_and_keeps_groups_from_being_alone() {
    let mut rig = Rig::new(amd_16());
    rig.write(SWITCH, "1\n").unwrap();
    rig.write(MASKS, "0=f000\n").unwrap();
    assert_eq!(rig.read(MASKS).as_deref(), Ok("0=f000\n"));
    rig.write("schemata", "L3:0=f\n").unwrap();
    assert_eq!(rig.read("info/L3/bit_usage").as_deref(), Ok("0=HHHH00000000SSSS\n"));
    rig.mkdir("web").unwrap();
    rig.write("web/schemata", "L3:0=8000\n").unwrap();
    assert_eq!(
        (rig.write("web/mode", "exclusive\n"), rig.status().as_str()),
        (Err(Errno::INVAL), "Schemata overlaps\n")
    );
    rig.write("web/schemata", "L3:0=f00\n").unwrap();
    rig.write("web/mode", "exclusive\n").unwrap();
    for (text, why) in [
        ("0=f00\n", "Overlaps with exclusive group\n"),
        ("0=f;0=f\n", "Duplicate domain 0\n"),
        ("0\n", "Missing '=' or non-numeric domain\n"),
        ("7=f\n", "ok\n"),
        ("0=1ffff\n", "Mask out of range\n"),
    ] {
        assert_eq!((rig.write(MASKS, text), rig.status().as_str()), (Err(Errno::INVAL), why), "{text:?}");
    }
    assert_eq!(rig.write(MASKS, "0=f"), Err(Errno::INVAL));
}

#[test]
fn other_machines_do_not_have_the_files() {
    let mut rig = Rig::new(broadwell_20());
    assert_eq!((rig.read(SWITCH), rig.read(MASKS)), (Err(Errno::NOENT), Err(Errno::NOENT)));
}
