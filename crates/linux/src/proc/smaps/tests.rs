use procfs::process::Process;
use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::Rooted;
use crate::fake::FakeKernel;
use crate::quiet_process::QuietProcess;

const RECORDED: &str = include_str!("../../../tests/recorded/6.18/smaps");
const RECORDED_ROLLUP: &str = include_str!("../../../tests/recorded/6.18/smaps_rollup");

/// `smaps`, `maps` and `smaps_rollup` of one process, per kernel.
const KERNELS: [[&str; 3]; 3] = [
    [
        include_str!("../../../tests/recorded/6.1/smaps"),
        include_str!("../../../tests/recorded/6.1/maps"),
        include_str!("../../../tests/recorded/6.1/smaps_rollup"),
    ],
    [
        include_str!("../../../tests/recorded/6.12/smaps"),
        include_str!("../../../tests/recorded/6.12/maps"),
        include_str!("../../../tests/recorded/6.12/smaps_rollup"),
    ],
    [RECORDED, include_str!("../../../tests/recorded/6.18/maps"), RECORDED_ROLLUP],
];

/// One mapping with the lines that every kernel prints.
const ONE: &str = "1000-2000 rw-p 00000000 00:00 0 \nSize: 4 kB\nRss: 4 kB\nAnonymous: 4 kB\nAnonHugePages: 0 kB\n\
    Swap: 8 kB\nLocked: 0 kB\n";

fn recorded() -> Vec<Detail> {
    parse_details(RECORDED, "x").unwrap()
}

#[test]
fn the_recorded_mappings_are_those_of_maps() {
    for [smaps, maps, _] in KERNELS {
        let kernel = FakeKernel::new().file("proc/42/smaps", smaps).file("proc/42/maps", maps);
        let details: Vec<_> = details(&kernel, Pid(42)).unwrap().into_iter().map(|detail| detail.mapping).collect();
        assert_eq!(details, crate::maps::maps(&kernel, Pid(42)).unwrap());
    }
}

#[test]
fn the_recorded_sums_are_the_sums_of_the_recorded_mappings() {
    for [smaps, _, rollup] in KERNELS {
        let details = parse_details(smaps, "x").unwrap();
        let rollup = parse_rollup(rollup, "x").unwrap();
        let sum = |of: fn(&Detail) -> Bytes| details.iter().map(of).sum::<Bytes>();
        assert_eq!(rollup.anonymous, sum(|detail| detail.anonymous));
        assert_eq!(rollup.anon_huge_pages, sum(|detail| detail.anon_huge_pages));
        assert!(rollup.anon_huge_pages >= Bytes::mib(2));
        assert_eq!(rollup.swap, sum(|detail| detail.swap));
        assert_eq!((rollup.locked, rollup.locked), (sum(|detail| detail.locked), Bytes::kib(4)));
        assert_eq!(rollup.ksm, smaps.contains("\nKSM:").then_some(Bytes(0)));
        assert!(rollup.pss <= rollup.rss && rollup.referenced <= rollup.rss);
    }
}

#[test]
fn soft_dirty_marks_are_read_where_the_kernel_keeps_them() {
    let marked =
        |smaps| parse_details(smaps, "x").unwrap().iter().any(|detail| detail.flags.contains(VmFlag::SoftDirty));
    assert_eq!(KERNELS.map(|[smaps, _, _]| marked(smaps)), [true, true, false]);
}

#[test]
fn the_recorded_marks_are_those_that_the_recorder_set() {
    let with = |flag| recorded().into_iter().filter(|d| d.flags.contains(flag)).collect::<Vec<_>>();
    let huge = with(VmFlag::HugePage);
    assert_eq!(huge.len(), 1);
    assert_eq!(
        (huge[0].rss, huge[0].anon_huge_pages, huge[0].thp_eligible),
        (Bytes::mib(8), Bytes::mib(8), Some(true))
    );
    let locked = with(VmFlag::Locked);
    assert_eq!((locked.len(), locked[0].mapping.range.bytes()), (1, Bytes::kib(4)));
    let plain =
        with(VmFlag::NoHugePage).into_iter().find(|detail| detail.mapping.range.bytes() == Bytes::mib(1)).unwrap();
    assert!(plain.flags.contains(VmFlag::DontDump));
    assert_eq!((plain.rss, plain.thp_eligible), (Bytes::kib(4), Some(false)));
    assert_eq!(with(VmFlag::GrowsDown)[0].mapping.path, "[stack]");
    assert!(with(VmFlag::Shared).iter().all(|d| d.mapping.permissions.shared));
    assert!(with(VmFlag::HugeTlb).is_empty());
}

#[test]
fn every_mark_has_its_code_and_its_own_bit() {
    let codes = ["sh", "lo", "ht", "nh", "hg", "mg", "io", "pf", "um", "uw", "ui", "gd", "mt", "sd", "dd"];
    for code in codes {
        let flags = VmFlags::of(code);
        let found: Vec<_> = codes.iter().filter(|other| flags.contains(VmFlag::of(other).unwrap())).collect();
        assert_eq!(found, [&code]);
    }
}

#[test]
fn an_older_kernel_without_the_newer_lines_does_not_say() {
    let details = parse_details(ONE, "x").unwrap();
    assert_eq!(details.len(), 1);
    assert_eq!((details[0].ksm, details[0].thp_eligible, details[0].flags), (None, None, VmFlags::default()));
    assert_eq!(details[0].swap, Bytes::kib(8));
}

#[test]
fn a_process_without_memory_has_no_details() {
    assert_eq!(parse_details("", "x"), Ok(vec![]));
}

#[test]
fn a_process_that_ended_is_gone_and_a_foreign_one_denied() {
    let kernel = FakeKernel::new()
        .refusing("proc/42/smaps_rollup", Errno::SRCH) // a zombie or a kernel thread
        .refusing("proc/43/smaps", Errno::ACCESS)
        .refusing("proc/43/smaps_rollup", Errno::ACCESS);
    assert!(rollup(&kernel, Pid(42)).unwrap_err().is_gone());
    assert!(details(&kernel, Pid(42)).unwrap_err().is_gone());
    assert!(matches!(rollup(&kernel, Pid(43)), Err(Error::Denied(_))));
    assert!(matches!(details(&kernel, Pid(43)), Err(Error::Denied(_))));
}

#[test]
fn a_malformed_line_is_named() {
    let error = parse_details(&ONE.replace("Swap: 8 kB", "Swap: 8 MB"), "/proc/42/smaps").unwrap_err();
    assert_eq!(error.to_string(), "cannot understand /proc/42/smaps, Swap: \"8 MB\", expected a number of kB");
    let error = parse_details("Rss: 4 kB", "/proc/42/smaps").unwrap_err();
    assert!(
        error.to_string().starts_with("cannot understand /proc/42/smaps line 1: \"Rss: 4 kB\", expected a mapping")
    );
    let error = parse_details(&format!("{ONE}{}", ONE.replace("Rss", "Rxx")), "/proc/42/smaps").unwrap_err();
    assert_eq!(error.to_string(), "cannot understand /proc/42/smaps: no line \"Rss\"");
    assert!(parse_details(&format!("{ONE}what is this"), "x").is_err());
    assert!(parse_rollup("", "x").is_err());
}

#[test]
fn lines_and_marks_of_a_newer_kernel_are_left_out() {
    let newer =
        RECORDED.replace("Swap: ", "NewLine:  12 pages\nNew words:  1\nSwap: ").replace("VmFlags: ", "VmFlags: zz ");
    assert_eq!(parse_details(&newer, "x"), Ok(recorded()));
    let newer = RECORDED_ROLLUP.replace("Swap: ", "NewLine:  12 pages\nSwap: ");
    assert_eq!(parse_rollup(&newer, "x"), parse_rollup(RECORDED_ROLLUP, "x"));
}

#[test]
fn procfs_sees_the_same_details() {
    let quiet = QuietProcess::start();
    let ours = details(&Rooted::host(), quiet.pid()).unwrap();
    let theirs = Process::new(quiet.pid().0).unwrap().smaps().unwrap();
    assert_eq!(ours.len(), theirs.0.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let amount = |key: &str| Bytes(theirs.extension.map[key]);
        assert_eq!((ours.mapping.range.start().0, ours.mapping.range.end().0), theirs.address);
        assert_eq!((ours.rss, ours.anonymous), (amount("Rss"), amount("Anonymous")));
        assert_eq!((ours.anon_huge_pages, ours.swap), (amount("AnonHugePages"), amount("Swap")));
        assert_eq!(ours.locked, amount("Locked"));
    }
}

#[test]
fn procfs_sees_the_same_sums() {
    let quiet = QuietProcess::start();
    let ours = rollup(&Rooted::host(), quiet.pid()).unwrap();
    let theirs = Process::new(quiet.pid().0).unwrap().smaps_rollup().unwrap();
    let amount = |key: &str| Bytes(theirs.memory_map_rollup.0[0].extension.map[key]);
    assert_eq!((ours.rss, ours.anonymous), (amount("Rss"), amount("Anonymous")));
    assert_eq!(
        (ours.anon_huge_pages, ours.swap, ours.locked),
        (amount("AnonHugePages"), amount("Swap"), amount("Locked"))
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "(?s).{0,200}") {
        let _ = parse_details(&text, "x");
        let _ = parse_rollup(&text, "x");
    }

    #[test]
    fn any_value_is_read_or_refused_without_a_panic(
        key in "Rss|Pss|Swap|KSM|THPeligible|VmFlags", value in ".{0,30}"
    ) {
        let _ = parse_details(&format!("{ONE}{key}: {value}\n"), "x");
        let _ = parse_rollup(&format!("{key}: {value}\n"), "x");
    }
}
