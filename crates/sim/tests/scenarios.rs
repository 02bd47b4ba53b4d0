//! Tests of scenarios: published ones are read, small ones give the result worked out by hand, and meaningless ones are
//! refused with their line.

#![expect(clippy::unwrap_used, reason = "test support")]

use std::path::Path;

use sim::cache::compare::{accesses, compare};
use sim::cache::files;
use sim::cache::report::{OfCondition, Report};
use sim::cache::scenario::Scenario;
use units::Bytes;

fn run(text: &str) -> Report {
    let scenario = Scenario::parse(Path::new("s.toml"), text).unwrap();
    compare(&scenario, 2, &files::trace, &|_| true).unwrap()
}

fn the<'r>(report: &'r Report, point: usize, name: &str) -> &'r OfCondition {
    report.points[point].conditions.iter().find(|condition| condition.name == name).unwrap()
}

/// Cycles per access of each program.
fn times(of: &OfCondition) -> Vec<f64> {
    of.programs.iter().map(|program| program.access_cycles).collect()
}

#[test]
fn every_published_scenario_is_read_and_its_conditions_have_different_names() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/scenarios");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let scenario = files::scenario(&file).unwrap_or_else(|error| panic!("{error}"));
        assert!(!scenario.title.is_empty() && accesses(&scenario) > 0, "{}", file.display());
        let mut names: Vec<&str> = scenario.conditions.iter().map(|condition| condition.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), scenario.conditions.len(), "{}", file.display());
        read += 1;
    }
    assert!(read >= 5, "{read}");
}

/// 64 KiB in 16 ways of a page each: a program that cycles over more pages than its ways never hits, over fewer it
/// always does.
const AROUND: &str = r#"
    passes = 4
    warm_up_passes = 4
    pages = "contiguous"
    cycles_per_instruction = 0
    cache = { size = "64 KiB", ways = 16, cycles = 40, memory_cycles = 200 }
    sweep = { array = ["28 KiB", "32 KiB", "36 KiB", "64 KiB", "68 KiB"] }
    [[program]]
    name = "a"
    private = "array"
    pattern = "cyclic"
    [[program]]
    name = "b"
    private = "array"
    pattern = "cyclic"
    [[condition]]
    name = "together"
    policy = "none"
    [[condition]]
    name = "halves"
    masks = { a = "ff", b = "ff00" }
"#;

#[test]
fn going_around_in_what_fits_always_hits_and_in_more_never() {
    let report = run(AROUND);
    assert!(report.complete);
    for (point, array_kib) in [28, 32, 36, 64, 68].into_iter().enumerate() {
        assert_eq!(report.points[point].array_bytes, Some(Bytes::kib(array_kib)));
        let expected = if array_kib <= 32 { 40.0 } else { 200.0 };
        for condition in ["together", "halves"] {
            assert_eq!(times(the(&report, point, condition)), [expected; 2], "{array_kib} KiB, {condition}");
        }
        // Alone, arrays up to the whole cache hit.
        let alone = if array_kib <= 64 { 40.0 } else { 200.0 };
        assert_eq!(the(&report, point, "halves").programs[0].slowdown, expected / alone, "{array_kib} KiB");
    }
}

/// The paper's scenario in small: in 16 ways of a page, 6 for each program and 4 for the shared partition; half of each
/// array is shared.
fn in_small(array_pages: u32, private_pages: u32) -> Report {
    run(&format!(
        r#"
        passes = 40
        warm_up_passes = 40
        pages = "contiguous"
        interleave = "turns"
        turn_accesses = 1
        cycles_per_instruction = 0
        cache = {{ size = "64 KiB", ways = 16, cycles = 40, memory_cycles = 200 }}
        shared = [{{ name = "half", size = "{} KiB" }}]
        [[program]]
        name = "first"
        private = "{} KiB"
        shared = ["half"]
        pattern = "cyclic"
        begin_fraction = 0.05
        [[program]]
        name = "second"
        private = "{} KiB"
        shared = ["half"]
        pattern = "cyclic"
        [[condition]]
        name = "not shared"
        sharing = false
        masks = {{ first = "3f", second = "fc0" }}
        [[condition]]
        name = "shared, CAT"
        masks = {{ first = "3f", second = "fc0" }}
        [[condition]]
        name = "region"
        masks = {{ first = "3f", second = "fc0" }}
        region = [{{ set = "half", mask = "f000" }}]
        "#,
        (array_pages - private_pages) * 4,
        private_pages * 4,
        private_pages * 4
    ))
}

#[test]
fn who_comes_first_pays_for_what_is_shared_and_in_a_region_nobody_does() {
    // 4 + 4 pages: the first program's do not fit in its 6 ways, the second program's own do.
    let report = in_small(8, 4);
    assert_eq!(times(the(&report, 0, "not shared")), [200.0, 200.0]);
    // It is 25 of 512 lines ahead: the second program had fetched these before the first one reached them.
    assert_eq!(times(the(&report, 0, "shared, CAT")), [(25.0 * 40.0 + 487.0 * 200.0) / 512.0, 40.0]);
    assert_eq!(the(&report, 0, "shared, CAT").passes_until_even, None);
    let region = the(&report, 0, "region");
    assert_eq!((times(region), region.access_time_ratio), (vec![40.0, 40.0], 1.0));
    // Checked every 8 passes: over fewer accesses, times differ at random.
    assert!(region.passes_until_even.is_some_and(|passes| passes <= 8), "{:?}", region.passes_until_even);
    assert_eq!(
        (region.regions[0].passes, region.regions[0].duty_fraction),
        (1, 0.0),
        "filled once, and nothing is lost"
    );
    assert_eq!(region.regions[0].occupancy_bytes, Bytes::kib(16));
    assert_eq!(region.programs[0].region_hit_fraction, 0.5);
}

#[test]
fn a_region_that_is_too_small_leaves_what_is_left_over_to_the_first() {
    // 6 shared pages, 4 in the shared partition; 2 + 3 pages fit in 6 ways.
    let region = in_small(9, 3);
    assert_eq!(times(the(&region, 0, "region")), [40.0, 40.0]);
    // 2 + 5 do not.
    let region = in_small(11, 5);
    let times = times(the(&region, 0, "region"));
    assert!(times[0] > times[1] && times[1] < 200.0, "{times:?}");
}

#[test]
fn a_run_that_is_stopped_reports_what_it_has() {
    let scenario = Scenario::parse(Path::new("s.toml"), AROUND).unwrap();
    let report = compare(&scenario, 1, &files::trace, &|_| false).unwrap();
    assert!(!report.complete && report.points.iter().all(|point| point.conditions.is_empty()));
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_line() {
    const PROGRAM: &str = "[[program]]\nname = \"a\"\nprivate = \"1 MiB\"\npattern = \"cyclic\"\n";
    const CACHE: &str = "passes = 1\n[cache]\nsize = \"1 MiB\"\nways = 4\n";
    let whole = |top: &str, more: &str| format!("{top}\n{CACHE}{PROGRAM}{more}");
    let refused = |text: &str| Scenario::parse(Path::new("s.toml"), text).unwrap_err().to_string();
    assert!(
        Scenario::parse(Path::new("s.toml"), &whole("", "[[condition]]\nname = \"c\"\npolicy = \"none\"\n")).is_ok()
    );
    for (text, line, what) in [
        (String::new(), 1, "cache"),
        (CACHE.to_owned(), 1, "program"),
        (whole("speed = 3", ""), 1, "unknown field `speed`"),
        (whole("policies = [\"best\"]", ""), 1, "best"),
        (whole("warm_up_passes = -1", ""), 1, "passes"),
        (whole("", ""), 1, "a [[condition]]"),
        (whole("", "[[condition]]\nname = \"c\"\nmasks = { a = \"1f\" }\n"), 12, "ways"),
        (whole("", "[[condition]]\nname = \"c\"\nmasks = { b = \"1\" }\n"), 12, "b"),
        (whole("", "[[condition]]\nname = \"c\"\nregion = [{ set = \"x\", mask = \"1\" }]\n"), 10, "masks"),
        (whole("", "[[program]]\nname = \"a\"\npattern = \"stream\"\n"), 11, "such a program already"),
        (whole("", "[[program]]\nname = \"b\"\nprivate = \"much\"\npattern = \"cyclic\"\n"), 12, "much"),
        (whole("", "[[program]]\nname = \"b\"\nprivate = \"array\"\npattern = \"cyclic\"\n"), 12, "array"),
        (whole("", "[[level]]\nsize = \"1 MiB\"\nways = 65\ncycles = 4\n"), 12, "65"),
    ] {
        let message = refused(&text);
        assert!(message.starts_with(&format!("s.toml line {line}: ")) && message.contains(what), "{message}\n{text}");
    }
}
