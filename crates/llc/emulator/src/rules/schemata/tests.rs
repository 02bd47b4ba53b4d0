use rustix::io::Errno;

use crate::fake::Rig;
use crate::hardware::{Bandwidth, Hardware, amd_16, broadwell_20, haswell_20, skylake_11};

/// A machine with the group `web`.
fn rig(hardware: Hardware) -> Rig {
    let mut rig = Rig::new(hardware);
    rig.mkdir("web").unwrap();
    rig
}

/// Writes to `web/schemata`, and their results.
fn refused(rig: &mut Rig, cases: &[(&str, &str)]) {
    let before = rig.everything();
    for (text, status) in cases {
        assert_eq!(rig.write("web/schemata", text), Err(Errno::INVAL), "{text:?}");
        assert_eq!(rig.status(), *status, "{text:?}");
        assert_eq!(rig.everything(), before, "{text:?}");
    }
}

#[test]
fn names_are_as_wide_as_with_code_and_data_apart() {
    let mut rig = rig(skylake_11());
    assert_eq!(rig.read("schemata").as_deref(), Ok("    MB:0=100\n    L3:0=7ff\n"));
    assert_eq!(rig.read("size").as_deref(), Ok("    MB:0=100\n    L3:0=11534336\n"));
    let mut rig = self::rig(haswell_20());
    assert_eq!(rig.read("schemata").as_deref(), Ok("L3:0=fffff\n"));
}

#[test]
fn any_part_can_be_written_and_the_rest_stays() {
    let mut rig = rig(Hardware { cache_ids: vec![0, 2], ..broadwell_20() });
    for text in ["L3:2=f0\n", "L3:2=0xf0;\n", "L3:2= f0 \n", " L3 :2=f0\n", "L3:2=f0\0;nonsense\n"] {
        rig.write("web/schemata", "L3:2=1\n").unwrap();
        assert_eq!(rig.write("web/schemata", text), Ok(()), "{text:?}");
        assert_eq!(rig.read("web/schemata").as_deref(), Ok("    L3:0=fffff;2=f0\n"), "{text:?}");
        assert_eq!(rig.status(), "ok\n");
    }
    // A way is 1 MiB.
    assert_eq!(rig.read("web/size").as_deref(), Ok("    L3:0=20971520;2=4194304\n"));
}

#[test]
fn a_command_ends_in_a_newline_or_nothing_is_said() {
    let mut rig = rig(broadwell_20());
    rig.write("web/schemata", "L3:0=f0f\n").unwrap_err();
    let said = rig.status();
    assert_eq!(rig.write("web/schemata", "L3:0=ff"), Err(Errno::INVAL));
    assert_eq!(rig.status(), said, "the status is that of the command before");
}

#[test]
fn what_is_not_understood_is_named() {
    let mut rig = rig(broadwell_20());
    refused(
        &mut rig,
        &[
            ("\n", "Missing ':'\n"),
            ("L3\n", "Missing ':'\n"),
            ("L3:0=f\n\n", "Missing ':'\n"),
            ("L3:\n", "Missing 'L3' value\n"),
            ("L2:0=f\n", "Unknown or unsupported resource name 'L2'\n"),
            ("MB:0=50\n", "Unknown or unsupported resource name 'MB'\n"),
            ("L3CODE:0=f\n", "Unknown or unsupported resource name 'L3CODE'\n"),
            ("L3:0\n", "Missing '=' or non-numeric domain\n"),
            ("L3:;\n", "Missing '=' or non-numeric domain\n"),
            ("L3: 0=f\n", "Missing '=' or non-numeric domain\n"),
            ("L3:x=f\n", "Missing '=' or non-numeric domain\n"),
            ("L3:0=f;0=f\n", "Duplicate domain 0\n"),
            ("L3:0=f\nL3:0=f\n", "Duplicate domain 0\n"),
            ("L3:0=g\n", "Non-hex character in the mask g\n"),
            ("L3:0=\n", "Non-hex character in the mask \n"),
        ],
    );
}

#[test]
fn an_unknown_cache_is_refused_without_a_word() {
    let mut rig = rig(broadwell_20());
    refused(&mut rig, &[("L3:7=f\n", "ok\n"), ("L3:0=f;1=f\n", "ok\n")]);
}

#[test]
fn masks_are_within_all_ways_in_a_row_and_long_enough() {
    let mut rig = rig(broadwell_20());
    refused(
        &mut rig,
        &[
            ("L3:0=0\n", "Mask out of range\n"),
            ("L3:0=100000\n", "Mask out of range\n"),
            ("L3:0=5\n", "The mask 5 has non-consecutive 1-bits\n"),
        ],
    );
    let mut rig = self::rig(haswell_20());
    refused(&mut rig, &[("L3:0=1\n", "Need at least 2 bits in the mask\n")]);
    assert_eq!(rig.write("web/schemata", "L3:0=3\n"), Ok(()));
}

#[test]
fn amd_takes_holes_and_nothing_at_all() {
    let mut rig = rig(amd_16());
    for mask in ["0", "a5a5", "8001"] {
        rig.write("web/schemata", &format!("L3:0={mask}\n")).unwrap();
        assert_eq!(rig.read("web/schemata"), Ok(format!("    L3:0={mask}\n")));
    }
    refused(&mut rig, &[("L3:0=10000\n", "Mask out of range\n")]);
    let sparse = Hardware { sparse_masks: true, min_ways: units::Ways(2), ..broadwell_20() };
    let mut rig = self::rig(sparse);
    refused(&mut rig, &[("L3:0=301\n", "Need at least 2 bits in the mask\n")]);
    assert_eq!(rig.write("web/schemata", "L3:0=103\n"), Ok(()), "the first run counts");
}

#[test]
fn several_lines_are_taken_together_or_not_at_all() {
    let mut rig = rig(skylake_11());
    refused(
        &mut rig,
        &[
            ("L3:0=f\nMB:0=5\n", "MB value 5 out of range [10,100]\n"),
            ("MB:0=50\nL3:0=5\n", "The mask 5 has non-consecutive 1-bits\n"),
            ("L3:0=f\nMB:0=x\n", "Invalid MB value x\n"),
        ],
    );
    rig.write("web/schemata", "L3:0=f\nMB:0=41\n").unwrap();
    assert_eq!(rig.read("web/schemata").as_deref(), Ok("    MB:0=50\n    L3:0=f\n"), "to the next step");
}

#[test]
fn in_mib_per_second_the_value_is_taken_as_it_is_and_at_once() {
    let in_mib = Bandwidth { min_percent: 10, step_percent: 10, in_mib: true };
    let mut rig = rig(Hardware { bandwidth: Some(in_mib), ..skylake_11() });
    assert_eq!(rig.read("web/schemata").as_deref(), Ok("    MB:0=4294967295\n    L3:0=7ff\n"));
    assert_eq!(rig.write("web/schemata", "MB:0=5\nL3:0=5\n"), Err(Errno::INVAL));
    assert_eq!(rig.read("web/schemata").as_deref(), Ok("    MB:0=5\n    L3:0=7ff\n"));
    assert_eq!(rig.read("web/mba_MBps_event").as_deref(), Ok("mbm_local_bytes\n"));
    assert_eq!(rig.write("web/mba_MBps_event", "mbm_total_bytes\n"), Ok(()));
    assert_eq!(rig.read("web/mba_MBps_event").as_deref(), Ok("mbm_total_bytes\n"));
    assert_eq!(rig.write("web/mba_MBps_event", "llc_occupancy\n"), Err(Errno::INVAL));
    assert_eq!(rig.status(), "Unsupported event id 'llc_occupancy'\n");
}

#[test]
fn ways_that_come_together_are_read_back_together() {
    let mut rig = rig(skylake_11());
    for (written, read) in [("400", "600"), ("200", "600"), ("1ff", "1ff"), ("3ff", "7ff")] {
        rig.write("web/schemata", &format!("L3:0={written}\n")).unwrap();
        assert_eq!(rig.read("web/schemata"), Ok(format!("    MB:0=100\n    L3:0={read}\n")));
    }
}

#[test]
fn code_and_data_have_masks_of_their_own_and_half_the_classes() {
    let mut rig = rig(Hardware { cdp: true, ..broadwell_20() });
    assert_eq!(rig.read("schemata").as_deref(), Ok("L3DATA:0=fffff\nL3CODE:0=fffff\n"));
    rig.write("web/schemata", "L3CODE:0=f\nL3DATA:0=f0\n").unwrap();
    assert_eq!(rig.read("web/schemata").as_deref(), Ok("L3DATA:0=f0\nL3CODE:0=f\n"));
    assert_eq!(rig.read("info/L3CODE/num_closids").as_deref(), Ok("8\n"));
    refused(&mut rig, &[("L3:0=f\n", "Unknown or unsupported resource name 'L3'\n")]);
    // Code and data may have no way of the other's mask of an exclusive group.
    rig.write("schemata", "L3CODE:0=fff00\nL3DATA:0=fff00\n").unwrap();
    rig.write("web/mode", "exclusive\n").unwrap();
    assert_eq!(rig.write("schemata", "L3CODE:0=10\n"), Err(Errno::INVAL));
    assert_eq!(rig.status(), "Overlaps with exclusive group\n");
}

#[test]
fn nobody_gets_ways_of_a_group_that_shares_with_none_nor_does_it_take_others() {
    let mut rig = rig(broadwell_20());
    rig.write("schemata", "L3:0=ffff0\n").unwrap();
    rig.write("web/schemata", "L3:0=f\n").unwrap();
    rig.write("web/mode", "exclusive\n").unwrap();
    assert_eq!(rig.write("schemata", "L3:0=ffff8\n"), Err(Errno::INVAL));
    assert_eq!(rig.status(), "Overlaps with exclusive group\n");
    refused(&mut rig, &[("L3:0=1f\n", "Overlaps with other group\n"), ("L3:0=c0000\n", "Overlaps with other group\n")]);
    assert_eq!(rig.write("web/schemata", "L3:0=7\n"), Ok(()));
}

#[test]
fn a_write_is_a_page_at_most() {
    let mut rig = rig(broadwell_20());
    let page = |bytes: usize| format!("{:>width$}", "L3:0=f\n", width = bytes);
    assert_eq!(rig.write("web/schemata", &page(4096)), Ok(()));
    assert_eq!(rig.write("web/schemata", &page(4097)), Err(Errno::TOOBIG));
}
