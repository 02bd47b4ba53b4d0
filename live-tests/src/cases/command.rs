//! The command as users run it: its effects, its output, and its end.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use linux::{Pid, Rooted, smaps};
use rustix::process::Signal;
use serde_json::Value;

use super::programs::{self, Running, Said, TIME_LIMIT};
use super::scripted_driver::use_parts;
use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, Part, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    command requires [Root, MasuCommand, PageTableWalk];
    attach_promotes_and_reports_in_the_promised_words [RemoteCollapse, HugePageModes];
    undo_leaves_no_huge_window [RemoteCollapse, RemoteAdvice, HugePageModes];
    undo_splits_what_the_program_moved [RemoteCollapse, RemoteAdvice, HugePageModes];
    a_dry_run_touches_nothing [RemoteCollapse, HugePageModes];
    pages_reports_in_the_promised_words [HugePageModes];
    idle_locked_memory_is_named_and_attach_ends [RemoteCollapse, HugePageModes];
    lazily_freed_memory_is_not_promoted_for_free [RemoteCollapse, HugePageModes];
    what_a_program_tears_is_counted_and_given_back [RemoteCollapse, HugePageModes];
    set_huge_off_splits_what_a_program_tore [RemoteCollapse, RemoteAdvice, HugePageModes];
    ctrl_c_and_sigterm_end_with_the_report;
    a_broken_pipe_is_a_normal_end;
    a_program_that_ends_half_way_is_reported_with_status_1;
};

const HUGE: u64 = 2 << 20;

/// The built command.
pub(super) fn masu() -> Result<Command, libtest_mimic::Failed> {
    let path: PathBuf = programs::masu().ok_or("the command is not built")?;
    Ok(Command::new(path))
}

/// Starts the command with these arguments.
pub(super) fn start(arguments: &[&str]) -> Result<Running, libtest_mimic::Failed> {
    Ok(Running::start(masu()?.args(arguments))?)
}

/// Runs the command with these arguments to its end.
pub(super) fn said(arguments: &[&str]) -> Result<Said, libtest_mimic::Failed> {
    Ok(start(arguments)?.said()?)
}

/// The one JSON object that the command prints with these arguments.
pub(super) fn json(arguments: &[&str]) -> Result<Value, libtest_mimic::Failed> {
    let said = said(arguments)?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{arguments:?}");
    Ok(serde_json::from_str(&said.out)?)
}

/// Runs the command while the target process uses these parts of its memory.
fn run_on(process: &mut TargetProcess, hot: &[Part], arguments: &[&str]) -> Result<Said, libtest_mimic::Failed> {
    Ok(start(arguments)?.said_while(|| use_parts(process, hot).map_err(io::Error::other))?)
}

/// Two dense windows, hot; two dense ones, cold; two with 64 pages, hot.
fn process_with_heap() -> Result<(TargetProcess, Mapping, Vec<Part>), libtest_mimic::Failed> {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 6)?;
    let thin = [heap.window(4).first(64), heap.window(5).first(64)];
    for part in [heap.pages(0, 2048), thin[0], thin[1]] {
        process.write(part, 7)?;
    }
    Ok((process, heap, vec![heap.pages(0, 1024), thin[0], thin[1]]))
}

fn check(process: &mut TargetProcess, heap: Mapping) -> Outcome {
    for part in [heap.pages(0, 2048), heap.window(4).first(64), heap.window(5).first(64)] {
        process.check(part, 7)?;
    }
    Ok(())
}

fn has_fields(object: &Value, names: &[&str]) -> Outcome {
    let object = object.as_object().ok_or("not an object")?;
    let missing: Vec<_> = names.iter().filter(|name| !object.contains_key(**name)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    Ok(())
}

/// The fields that users were promised; more may come.
const ATTACH_FIELDS: [&str; 16] = [
    "pid",
    "backend",
    "settled",
    "settled_s",
    "windows_seen",
    "windows_hot",
    "windows_promoted",
    "windows_demoted",
    "windows_refused",
    "rss_before_bytes",
    "rss_after_bytes",
    "extra_rss_fraction",
    "scan_us_per_gib",
    "clear_us_per_gib",
    "cpu_s",
    "what_if",
];

/// Each window is in one column of a report, and each promotion has one end.
fn adds_up(report: &Value) -> Outcome {
    let of = |name: &str| report[name].as_u64().ok_or_else(|| format!("no {name}: {report}"));
    let sum = |names: &[&str]| names.iter().try_fold(0, |sum, name| of(name).map(|one| sum + one));
    let refused = report["windows_refused"].as_object().ok_or("no object")?.values().filter_map(Value::as_u64);
    let columns = ["windows_huge", "windows_compactable", "windows_cold", "windows_waiting"];
    assert_eq!(of("windows_seen")?, sum(&columns)? + refused.sum::<u64>(), "{report}");
    let ends = ["windows_still_huge", "windows_torn", "windows_unmapped", "windows_split_by_others", "windows_demoted"];
    assert_eq!(of("windows_promoted")? + of("windows_demoted_found")?, sum(&ends)?, "{report}");
    Ok(())
}

/// From the command line to huge pages in a running program.
fn attach_promotes_and_reports_in_the_promised_words(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, hot) = process_with_heap()?;
    let pid = process.pid().to_string();
    let said = run_on(&mut process, &hot, &["attach", &pid, "--until-settled", "--json"])?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    assert_eq!(said.out.lines().count(), 1, "one object: {}", said.out);
    let report: Value = serde_json::from_str(&said.out)?;
    has_fields(&report, &ATTACH_FIELDS)?;
    assert_eq!(report["pid"], process.pid().0);
    assert_eq!(report["backend"], "bpf-walk");
    assert_eq!(report["settled"], true);
    assert!(report["settled_s"].as_f64().is_some_and(|s| s > 0.0));
    assert_eq!(report["windows_promoted"], 2, "{report}");
    assert_eq!(report["windows_demoted"], 0);
    adds_up(&report)?;
    assert_eq!(report["extra_rss_fraction"], 0.0);
    assert!(report["windows_refused"].is_object());
    let fractions: Vec<f64> = report["what_if"]
        .as_array()
        .ok_or("no table")?
        .iter()
        .filter_map(|line| line["hot_fraction"].as_f64())
        .collect();
    assert_eq!(fractions, [0.125, 0.25, 0.5, 1.0]);
    has_fields(&report["what_if"][0], &["hot_fraction", "windows", "extra_rss_bytes"])?;
    assert_eq!(huge_bytes(host, &process, heap)?, 2 * HUGE, "huge pages stay when masu leaves");
    assert_eq!(present_pages(&process, heap)?.len(), 2048 + 128);
    check(&mut process, heap)
}

/// The kernel neither probes nor splits locked memory: masu says so, and ends.
fn idle_locked_memory_is_named_and_attach_ends(host: &Host) -> Outcome {
    const MADV_COLLAPSE: i32 = 25;
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 4)?;
    (0..4).try_for_each(|window| process.write(heap.window(window).first(20), 7))?;
    process.advise(heap.all(), MADV_COLLAPSE)?;
    process.lock(heap.all())?;
    let pid = process.pid().to_string();
    let said = said(&["attach", &pid, "--until-settled", "--json"])?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&said.out)?;
    assert_eq!(
        (&report["windows_not_split"]["locked"], &report["windows_demoted"]),
        (&4.into(), &0.into()),
        "{report}"
    );
    assert_eq!(huge_bytes(host, &process, heap)?, 4 * HUGE);
    (0..4).try_for_each(|window| process.check(heap.window(window).first(20), 7))?;
    Ok(())
}

/// The kernel may take lazily freed pages. A promotion would make them ordinary memory, beyond a budget of nothing.
fn lazily_freed_memory_is_not_promoted_for_free(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, WINDOWS)?;
    process.write(heap.all(), 7)?;
    let hot: Vec<Part> = (0..WINDOWS).map(|window| heap.window(window).first(200)).collect();
    (0..WINDOWS)
        .try_for_each(|window| process.advise(heap.pages(window * 512 + 200, window * 512 + 512), libc::MADV_FREE))?;
    let pid = process.pid().to_string();
    let freed = || -> Result<u64, libtest_mimic::Failed> {
        let freed = smaps::rollup(&Rooted::host(), Pid(pid.parse()?))?.lazy_free;
        Ok(freed.ok_or("no LazyFree")?.0)
    };
    let before = freed()?;
    assert!(before > HUGE * WINDOWS / 2, "{before} bytes freed lazily");
    // Pages wait in the processors' batches for their list, so the kernel's figure grows.
    let counted = json(&["stat", &pid, "--json"])?["lazily_freed_bytes"].as_u64().ok_or("no figure")?;
    assert!((before..=freed()?).contains(&counted), "{counted} counted, {before} before");
    let arguments = ["attach", &pid, "--until-settled", "--max-extra-rss", "0", "--json"];
    let said = run_on(&mut process, &hot, &arguments)?;
    let report: Value = serde_json::from_str(&said.out)?;
    assert_eq!((&report["windows_promoted"], &report["extra_rss_bytes"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["windows_refused"]["lazily-freed"], WINDOWS, "{report}");
    adds_up(&report)?;
    assert!(freed()? >= before, "{} of {before} bytes are still free", freed()?);
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    hot.into_iter().try_for_each(|part| process.check(part, 7))?;
    Ok(())
}

/// Windows of [`torn_process`].
const WINDOWS: u64 = 4;

/// A program that gave back three quarters of each of its huge pages.
fn torn_process() -> Result<(TargetProcess, Mapping), libtest_mimic::Failed> {
    const MADV_COLLAPSE: i32 = 25;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, WINDOWS)?;
    process.write(heap.all(), 7)?;
    process.advise(heap.all(), MADV_COLLAPSE)?;
    (0..WINDOWS).try_for_each(|window| {
        process.advise(heap.pages(window * 512 + 128, window * 512 + 512), libc::MADV_DONTNEED)
    })?;
    Ok((process, heap))
}

/// `masu set huge=off` leaves no block that the kernel keeps for a part that the program gave back.
fn set_huge_off_splits_what_a_program_tore(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = torn_process()?;
    let pid = process.pid().to_string();
    let report = json(&["set", &pid, "huge=off", "--json"])?;
    let split = (&report["torn_windows"], &report["torn_returned_bytes"]);
    assert_eq!(split, (&WINDOWS.into(), &(WINDOWS * 384 * 4096).into()), "{report}");
    assert_eq!(json(&["stat", &pid, "--json"])?["total"]["torn_bytes"], 0);
    (0..WINDOWS).try_for_each(|window| process.check(heap.pages(window * 512, window * 512 + 128), 7))?;
    Ok(())
}

/// A program gives back three quarters of each huge page: stat counts what the kernel keeps, and attach frees it.
fn what_a_program_tears_is_counted_and_given_back(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = torn_process()?;
    let pid = process.pid().to_string();
    let torn = || -> Result<(Value, Value), libtest_mimic::Failed> {
        let total = json(&["stat", &pid, "--json"])?["total"].clone();
        Ok((total["downgraded_windows"].clone(), total["torn_bytes"].clone()))
    };
    assert_eq!(torn()?, (WINDOWS.into(), (WINDOWS * 384 * 4096).into()));
    let report = json(&["attach", &pid, "--until-settled", "--json"])?;
    let split = (&report["torn_windows"], &report["torn_returned_bytes"]);
    assert_eq!(split, (&WINDOWS.into(), &(WINDOWS * 384 * 4096).into()), "{report}");
    adds_up(&report)?;
    assert_eq!(torn()?.1, Value::from(0));
    (0..WINDOWS).try_for_each(|window| process.check(heap.pages(window * 512, window * 512 + 128), 7))?;
    Ok(())
}

/// Tried, and taken back.
fn undo_leaves_no_huge_window(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, hot) = process_with_heap()?;
    let pid = process.pid().to_string();
    let said = run_on(&mut process, &hot, &["attach", &pid, "--until-settled", "--undo", "--json"])?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&said.out)?;
    assert_eq!((&report["windows_promoted"], &report["windows_demoted"]), (&2.into(), &2.into()));
    adds_up(&report)?;
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    check(&mut process, heap)
}

/// masu holds no CAP_SYS_ADMIN where the kernel has `PAGEMAP_SCAN`, and sees no frames: windows that became huge at
/// other addresses are the moved ones.
fn undo_splits_what_the_program_moved(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let mut heap = process.map(Backing::Anonymous, 3)?;
    process.write(heap.all().every(2), 7)?;
    let pid = process.pid().to_string();
    let masu = start(&["attach", &pid, "--max-extra-rss", "100%", "--undo", "--json"])?;
    let deadline = Instant::now() + TIME_LIMIT;
    while huge_bytes(host, &process, heap)? < 3 * HUGE {
        assert!(Instant::now() < deadline, "nothing became huge in time");
        use_parts(&mut process, &[heap.all().every(2)])?;
    }
    std::thread::sleep(Duration::from_millis(500)); // masu measures after it promoted
    heap = process.move_away(heap.all())?;
    masu.signal(Signal::INT)?;
    let said = masu.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&said.out)?;
    assert_eq!((&report["windows_promoted"], &report["windows_demoted"]), (&3.into(), &3.into()), "{report}");
    assert_eq!(report["windows_unmapped"], 0, "{report}");
    adds_up(&report)?;
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    process.check(heap.all().every(2), 7)?;
    Ok(())
}

/// The plan, and nothing else.
fn a_dry_run_touches_nothing(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, hot) = process_with_heap()?;
    let pid = process.pid().to_string();
    let before = present_pages(&process, heap)?;
    let said = run_on(&mut process, &hot, &["attach", &pid, "--dry-run"])?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    assert!(said.out.contains("dry run: nothing was promoted or demoted"), "{}", said.out);
    let planned = said.out.lines().find(|line| line.contains("would be promoted")).ok_or("no plan")?;
    assert_eq!(planned.split_whitespace().last(), Some("2"));
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    assert_eq!(present_pages(&process, heap)?, before);
    check(&mut process, heap)
}

/// Output of the papers' /proc/PID/page_acs, page by page.
fn pages_reports_in_the_promised_words(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, hot) = process_with_heap()?;
    let pid = process.pid().to_string();
    let said = run_on(&mut process, &hot, &["pages", &pid, "--for", "700ms", "--json"])?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&said.out)?;
    has_fields(&report, &["pid", "backend", "observed_s", "mappings"])?;
    assert!(report["observed_s"].as_f64().is_some_and(|s| s >= 0.7));
    let start = format!("{:#x}", heap.range().start().0);
    let mappings = report["mappings"].as_array().ok_or("no mappings")?;
    let ours = mappings.iter().find(|mapping| mapping["start"] == start.as_str()).ok_or("the heap is missing")?;
    has_fields(ours, &["start", "end", "perms", "path", "runs"])?;
    assert_eq!(ours["end"], format!("{:#x}", heap.range().end().0));
    assert_eq!((&ours["perms"], &ours["path"]), (&"rw-p".into(), &"".into()));
    let mut touched = Vec::new();
    let mut seen = 0;
    for run in ours["runs"].as_array().ok_or("no runs")? {
        has_fields(run, &["start", "pages", "accessed_reads", "rate_per_s"])?;
        let at = run["start"].as_str().and_then(|text| text.strip_prefix("0x")).ok_or("not a hex string")?;
        let first = (u64::from_str_radix(at, 16)? - heap.range().start().0) / 4096;
        let pages = run["pages"].as_u64().ok_or("no count")?;
        seen += pages;
        let hot = run["accessed_reads"].as_u64().is_some_and(|reads| reads > 0);
        assert_eq!(run["rate_per_s"].as_f64().is_some_and(|rate| rate > 0.0), hot, "{run}");
        touched.extend((first..first + pages).filter(|_| hot));
    }
    assert_eq!(seen, 2048 + 128);
    let expected: Vec<u64> = (0..1024).chain(2048..2112).chain(2560..2624).collect();
    assert_eq!(touched, expected);
    Ok(())
}

/// Waits until the command has promoted a window; by then it listens to signals.
fn until_promoted(host: &Host, process: &mut TargetProcess, heap: Mapping, hot: &[Part]) -> Outcome {
    let deadline = Instant::now() + TIME_LIMIT;
    while huge_bytes(host, process, heap)? == 0 {
        assert!(Instant::now() < deadline, "nothing was promoted");
        use_parts(process, hot)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Stopping it is a normal end: the report comes, the status is 0.
fn ctrl_c_and_sigterm_end_with_the_report(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    for signal in [Signal::INT, Signal::TERM] {
        let (mut process, heap, hot) = process_with_heap()?;
        let running = start(&["attach", &process.pid().to_string(), "--json"])?;
        until_promoted(host, &mut process, heap, &hot)?;
        running.signal(signal)?;
        let said = running.said()?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""), "{signal:?}");
        let report: Value = serde_json::from_str(&said.out)?;
        assert!(report["windows_promoted"].as_u64().is_some_and(|windows| windows > 0), "{report}");
        assert_eq!(report["ended"], false);
        check(&mut process, heap)?;
    }
    Ok(())
}

/// `masu pages PID | head -1`.
fn a_broken_pipe_is_a_normal_end(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 4)?;
    process.write(heap.all().every(2), 7)?;
    let pid = process.pid().to_string();
    let tasks: [&[&str]; 5] = [
        &["pages", &pid, "--for", "50ms", "--runs"],
        &["pages", &pid, "--for", "50ms", "--json"],
        &["attach", &pid, "--dry-run"],
        &["facts"],
        &["--help"],
    ];
    for task in tasks {
        let mut running = start(task)?;
        drop(running.0.stdout.take());
        let said = running.said()?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""), "{task:?}");
    }
    Ok(())
}

/// Done in part, and that part is reported.
fn a_program_that_ends_half_way_is_reported_with_status_1(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, hot) = process_with_heap()?;
    let pid = process.pid();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
    let running = start(&["attach", &pid.to_string(), "--json"])?;
    until_promoted(host, &mut process, heap, &hot)?;
    process.kill();
    let said = running.said()?;
    assert_eq!(said.code(), 1, "{}", said.err);
    assert_eq!(said.first_line(), format!("masu: process {pid} ({}) ended meanwhile", name.trim()));
    let report: Value = serde_json::from_str(&said.out)?;
    assert_eq!(report["ended"], true);
    assert_eq!(report["rss_after_bytes"], Value::Null);
    Ok(())
}
