//! The account in the report of `masu run`: its columns add up, whatever was served, from inside, from outside or not.

use std::path::Path;

use serde_json::Value;

use super::programs;
use super::run::{Folder, Report, Result, run, said};
use super::run_hard::compile;
use super::run_processes::{HUGE, SANDBOX};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    run_account requires [Root, MasuCommand, PreloadLibrary, HugePageModes];
    windows_that_a_fork_split_are_downgraded_and_not_failed [Python, PageFrames];
    windows_made_huge_from_outside_are_in_the_counts [Python, RemoteCollapse, PageTableWalk];
    a_short_program_from_outside_is_told_why_it_got_nothing [Shell, RemoteCollapse, PageTableWalk];
    programs_are_those_served_and_those_left_out [CCompiler, Shell];
};

/// Touches 32 windows, and forks at once: each child sleeps while its parent writes all of them.
const FORKS: &str = "
import mmap, os, time
n = 33 << 21
m = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(0, n, 4096): m[i] = 1
for turn in range(3):
    child = os.fork()
    if child == 0:
        time.sleep(0.5)
        os._exit(0)
    for i in range(0, n, 4096): m[i] = 2 + turn
    os.waitpid(child, 0)
print({m[i] for i in range(0, n, 4096)})
os._exit(0)
";

/// Touches 32 windows for the given time.
const TOUCHES: &str = "
import mmap, sys, time
n = 33 << 21
m = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for i in range(0, n, 4096): m[i] = 1
";

const COLUMNS: [&str; 4] = ["reserved_windows", "allocated_windows", "failed_windows", "downgraded_windows"];

/// Sums over the kinds; each column but the first is a part of that.
fn sums(counted: &Value) -> Result<[u64; 4]> {
    let mut sums = [0; 4];
    for (kind, counted) in counted.as_object().ok_or("no counts")? {
        let mut row = [0; 4];
        for (number, column) in row.iter_mut().zip(COLUMNS) {
            *number = counted[column].as_u64().ok_or_else(|| format!("no {column} in {counted}"))?;
        }
        assert!(row[1] + row[2] + row[3] <= row[0], "{kind}: {counted}");
        sums.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
    }
    Ok(sums)
}

fn number(report: &Value, name: &str) -> Result<u64> {
    report[name].as_u64().ok_or_else(|| format!("no {name} in {report}").into())
}

fn reported(options: &[&str], command: &[&str]) -> Result<(programs::Said, Value)> {
    let report = Report::new("account");
    let options = [&["--report", report.path(), "--json"][..], options].concat();
    let said = said(&mut run(&options, command)?)?;
    Ok((said, report.read()?))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| "a path that is no text".into())
}

/// The copied pages lie anywhere: only an earlier count, or the child's, tells that the windows were huge.
fn windows_that_a_fork_split_are_downgraded_and_not_failed(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let python = programs::python().ok_or("no python3")?;
    let (said, report) = reported(&[], &[text(&python)?, "-c", FORKS])?;
    assert_eq!((said.code(), said.out.as_str()), (0, "{4}\n"), "{said:?}");
    // The fullest count of a process may come before the child's first one.
    let [reserved, allocated, ..] = sums(&report["superpages"])?;
    assert!(reserved >= 3 * 32 && allocated >= 32, "{report}");
    let [_, _, failed, downgraded] = sums(&report["superpages_at_end"])?;
    assert!(failed <= 2 && downgraded >= 32, "but for the edges of mappings: {report}");
    Ok(())
}

/// However the end falls between two counts: the table has what the lines below it have.
fn windows_made_huge_from_outside_are_in_the_counts(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let python = programs::python().ok_or("no python3")?;
    let (said, report) = reported(&["--huge", "hot"], &[text(&python)?, "-c", TOUCHES, "3"])?;
    assert_eq!(said.code(), 0, "{said:?}");
    let promoted = number(&report, "promoted_windows")?;
    let still = number(&report, "promoted_still_huge_windows")?;
    let uncounted = number(&report, "promoted_uncounted_windows")?;
    assert!(promoted > 0, "{report}");
    assert_eq!(promoted, still + uncounted, "{report}");
    assert!(sums(&report["superpages"])?[1] >= still, "{report}");
    assert!(sums(&report["superpages_at_end"])?[1] >= still, "{report}");
    let looked_at = &report["looked_at"];
    let refused: u64 = looked_at["windows_refused"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, windows)| windows.as_u64())
        .sum();
    let mut columns = refused;
    for column in ["windows_huge", "windows_cold", "windows_compactable", "windows_waiting"] {
        columns += number(looked_at, column)?;
    }
    assert_eq!(number(looked_at, "windows_seen")?, columns, "{report}");
    assert_eq!((number(&report, "programs")?, number(&report, "programs_served")?), (1, 1), "{report}");
    Ok(())
}

/// A program from outside reserves nothing, and may end before a second look.
fn a_short_program_from_outside_is_told_why_it_got_nothing(_: &Host) -> Outcome {
    let short = said(&mut run(&["--huge", "hot", "--report", "-"], &["true"])?)?;
    assert_eq!(short.code(), 0, "{short:?}");
    assert!(short.err.contains("  no process was looked at: none had 8.0 MiB at a look, once a second\n"), "{short:?}");
    let (slept, report) = reported(&["--huge", "hot"], &["sh", "-c", "sleep 1.5; exit 3"])?;
    assert_eq!(slept.code(), 3, "{slept:?}");
    let left_out = number(&report["left_out"], "with less than 8 MiB at each look")?;
    assert_eq!((left_out, number(&report, "programs")?, number(&report, "programs_served")?), (2, 2, 0), "{report}");
    Ok(())
}

/// A shell with children: one served, one static, one that enters a sandbox and starts another there, one within a limit.
fn programs_are_those_served_and_those_left_out(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let folder = Folder::make("account")?;
    let served = compile(&folder, "cc", "served", HUGE, &[])?;
    let fixed = compile(&folder, "cc", "fixed", HUGE, &["-static"])?;
    let sandbox = compile(&folder, "cc", "sandbox", SANDBOX, &[])?;
    let script = format!("{served} && {fixed} && {sandbox} seccomp true && (ulimit -v 1000000; {served}) && echo well");
    let (said, report) = reported(&[], &["/bin/sh", "-c", &script])?;
    assert_eq!((said.code(), said.out.lines().last()), (0, Some("well")), "{said:?}");
    let left_out = report["left_out"].as_object().ok_or("none left out")?;
    let each: Vec<u64> = left_out.values().filter_map(Value::as_u64).collect();
    assert_eq!(each, [1, 1, 1, 1], "static, own sandbox, its child, within a limit: {report}");
    assert_eq!((number(&report, "programs")?, number(&report, "programs_served")?), (6, 2), "{report}");
    let [reserved, allocated, ..] = sums(&report["superpages"])?;
    assert!(reserved >= 32 && allocated >= 32, "{report}");
    Ok(())
}
