//! `masu stat` and `masu set` as users run them.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use linux::status::{HugePages, status};
use serde_json::Value;

use super::command::{json, masu, said, start};
use super::programs::Running;
use super::{Outcome, huge_bytes, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::task;
use crate::target_process::{Backing, Mapping, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    command_stat requires [Root, MasuCommand];
    stat_of_a_process_says_what_became_of_its_windows [PageFrames, HugePageModes];
    stat_of_the_host_names_its_counters_its_free_blocks_and_the_processes [PageFrames, HugePageModes];
    watching_ends_with_the_process [PageFrames, HugePageModes];
    without_privileges_the_reason_is_not_known [PagemapScan, HugePageModes];
    set_switches_huge_pages_off_and_on [PageFrames, RemoteAdvice, HugePageModes];
    set_names_full_windows_that_stay_small [RemoteAdvice, RemoteCollapse, HugePageModes];
    set_does_half_under_a_tracer_and_all_under_a_filter_that_allows_it;
    set_names_the_word_that_it_does_not_understand;
};

/// User id of nobody, which owns nothing.
const NOBODY_UID: u32 = 65534;

const WINDOW_FIELDS: [&str; 7] = [
    "reserved_windows",
    "allocated_windows",
    "failed_windows",
    "downgraded_windows",
    "not_huge_windows",
    "swapped_windows",
    "untouched_windows",
];

/// Two huge windows, one of them hardly used, and one untouched; one that was touched too early.
fn process() -> Result<(TargetProcess, Mapping), libtest_mimic::Failed> {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 4)?;
    process.write(heap.window(3).every(8), 7)?;
    process.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    process.write(heap.window(0), 7)?;
    process.write(heap.window(1).every(8), 7)?;
    Ok((process, heap))
}

/// By kind, in all, and with the unit in every name.
fn stat_of_a_process_says_what_became_of_its_windows(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (process, _heap) = process()?;
    let pid = process.pid().to_string();
    let report = json(&["stat", &pid, "--json"])?;
    let numbers = |of: &Value| WINDOW_FIELDS.map(|field| of[field].as_u64());
    assert_eq!(numbers(&report["total"]), [4, 2, 1, 0, 1, 0, 1].map(Some));
    assert_eq!((&report["pid"], &report["forbidden"]), (&process.pid().0.into(), &false.into()));
    assert!(report["rss_bytes"].as_u64().is_some_and(|bytes| bytes > 4 << 20));
    let kinds = report["by_kind"].as_array().ok_or("no kinds")?;
    let names: Vec<_> = kinds.iter().filter_map(|kind| kind["kind"].as_str()).collect();
    assert_eq!(names, ["heap", "mmap", "bss", "stack", "code"]);
    assert_eq!(numbers(&kinds[1]), numbers(&report["total"]));
    let text = said(&["stat", &pid])?;
    assert_eq!((text.code(), text.err.as_str()), (0, ""));
    let all = text.out.lines().find(|line| line.starts_with("all ")).ok_or("no sum")?;
    let words: Vec<&str> = all.split_whitespace().collect();
    assert_eq!(words, ["all", "4", "2", "1", "0", "0", "1", "4.0", "MiB"], "{}", text.out);
    Ok(())
}

/// The paper's two files, and the processes with huge pages.
fn stat_of_the_host_names_its_counters_its_free_blocks_and_the_processes(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (process, _heap) = process()?;
    let report = json(&["stat", "--json"])?;
    assert_eq!(report["thp"]["enabled"], "madvise");
    assert!(report["events"]["thp_fault_alloc"].as_u64().is_some_and(|times| times >= 2));
    let zones = report["free"].as_array().ok_or("no zones")?;
    assert!(zones.iter().all(|zone| zone["free_blocks"].as_array().is_some_and(|blocks| blocks.len() > 9)));
    assert!(report["free_windows"].as_u64().is_some());
    let processes = report["processes"].as_array().ok_or("no processes")?;
    let ours = processes.iter().find(|other| other["pid"] == process.pid().0).ok_or("the target process is missing")?;
    assert_eq!(ours["allocated_windows"], 2);
    let sorted =
        processes.windows(2).all(|two| two[0]["allocated_windows"].as_u64() >= two[1]["allocated_windows"].as_u64());
    assert!(sorted, "most first");
    let text = said(&["stat"])?;
    assert_eq!((text.code(), text.err.as_str()), (0, ""));
    for part in ["free windows of 2 MiB: ", "thp_fault_fallback", &process.pid().to_string()] {
        assert!(text.out.contains(part), "{part} is missing: {}", text.out);
    }
    Ok(())
}

/// One object a line until the process ends, which ends the command.
fn watching_ends_with_the_process(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, _heap) = process()?;
    let pid = process.pid().to_string();
    let mut json = Watching::start(&["stat", &pid, "--watch", "50ms", "--json"])?;
    let mut text = Watching::start(&["stat", "--watch", "50ms", &pid])?;
    json.read_until(|said| said.lines().count() >= 3)?;
    text.read_until(|said| said.split("\n\n").count() >= 3)?;
    process.kill();
    let (json, text) = (json.into_all()?, text.into_all()?);
    let lines: Vec<Value> = json.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert!(lines.len() >= 3 && lines.iter().all(|line| line["total"]["allocated_windows"] == 2), "{json}");
    let blocks = text.split("\n\n").collect::<Vec<_>>();
    assert!(blocks.len() >= 3 && blocks.iter().all(|block| block.starts_with("process ")), "{text}");
    assert!(!text.contains('\x1b'), "a pipe gets no control characters");
    Ok(())
}

/// A command whose output is read as it comes.
struct Watching {
    running: Running,
    out: BufReader<ChildStdout>,
    said: String,
}

impl Watching {
    fn start(arguments: &[&str]) -> Result<Watching, libtest_mimic::Failed> {
        let mut running = start(arguments)?;
        let out = BufReader::new(running.0.stdout.take().ok_or("no output")?);
        Ok(Watching { running, out, said: String::new() })
    }

    fn read_until(&mut self, is_enough: impl Fn(&str) -> bool) -> Outcome {
        while !is_enough(&self.said) {
            if self.out.read_line(&mut self.said)? == 0 {
                return Err(format!("it ended: {}", self.said).into());
            }
        }
        Ok(())
    }

    /// All that it said, with status 0 and no error.
    fn into_all(mut self) -> Result<String, libtest_mimic::Failed> {
        self.out.read_to_string(&mut self.said)?;
        let end = self.running.said()?;
        assert_eq!((end.code(), end.err.as_str()), (0, ""));
        Ok(self.said)
    }
}

/// Values that only root can read are reported as not known, and not as zero.
fn without_privileges_the_reason_is_not_known(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut own = Command::new("/proc/self/exe");
    own.uid(NOBODY_UID).gid(NOBODY_UID);
    let mut process = TargetProcess::start_by(own)?;
    let heap = process.map(Backing::Anonymous, 2)?;
    process.write(heap.page(0), 7)?;
    process.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    let mut command = masu()?;
    command.uid(NOBODY_UID).gid(NOBODY_UID);
    let said = Running::start(command.args(["stat", &process.pid().to_string(), "--json"]))?.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&said.out)?;
    let total = &report["total"];
    assert_eq!((&total["reserved_windows"], &total["not_huge_windows"]), (&2.into(), &1.into()));
    for field in ["failed_windows", "downgraded_windows"] {
        assert!(total[field]["unknown"].as_str().is_some_and(|why| why.contains("CAP_SYS_ADMIN")), "{total}");
    }
    Ok(())
}

/// Memory that is there and memory to come, without a restart, and back again.
fn set_switches_huge_pages_off_and_on(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = process()?;
    let pid = process.pid().to_string();
    let report = json(&["set", &pid, "huge=off", "--json"])?;
    let field = |name: &str| report[name].as_u64().ok_or_else(|| format!("no {name}: {report}"));
    assert_eq!(report["huge_pages_allowed"], false);
    assert_eq!((field("windows_huge_before")?, field("windows_huge_after")?), (2, 0));
    assert_eq!((field("windows_split")?, field("windows_stayed_huge")?), (2, 0));
    // A kernel before 6.12 splits and returns nothing; then the program's own growth, a page or two, is all that there is.
    let returned = field("returned_bytes")?;
    assert!(returned == 0 || field("rss_before_bytes")? > field("rss_after_bytes")?, "{report}");
    assert_eq!(status(host.files(), process.pid())?.huge_pages, HugePages::Forbidden);
    // Memory to come.
    process.write(heap.window(2), 7)?;
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    process.check(heap.window(0), 7)?;
    process.check(heap.window(1).every(8), 7)?;
    // Twice is the same.
    let again = json(&["set", "huge=off", &pid, "--json"])?;
    assert_eq!((&again["huge_pages_allowed"], &again["windows_split"]), (&false.into(), &0.into()));

    let text = said(&["set", &pid, "huge=on"])?;
    assert_eq!((text.code(), text.err.as_str()), (0, ""));
    assert!(text.out.contains("huge pages allowed"), "{}", text.out);
    assert_eq!(status(host.files(), process.pid())?.huge_pages, HugePages::Allowed);
    let fresh = process.map(Backing::Anonymous, 1)?;
    process.advise(fresh.all(), libc::MADV_HUGEPAGE)?;
    process.write(fresh.all(), 9)?;
    assert_eq!(huge_bytes(host, &process, fresh)?, 2 << 20);
    process.check(heap.window(2), 7)?;
    Ok(())
}

/// `huge=on` is done in part where full windows are not made huge.
fn set_names_full_windows_that_stay_small(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let (heap, pid) = (process.map(Backing::Anonymous, 3)?, process.pid().to_string());
    process.advise(heap.window(0), libc::MADV_NOHUGEPAGE)?;
    process.advise(heap.window(1), libc::MADV_NOHUGEPAGE)?;
    process.write(heap.all(), 7)?;
    let said = said(&["set", &pid, "huge=on", "--json"])?;
    let report: Value = serde_json::from_str(&said.out)?;
    let line =
        format!("masu: 2 full windows of process {pid} were not made huge: the program used MADV_NOHUGEPAGE there\n");
    assert_eq!((said.code(), said.err.as_str()), (1, line.as_str()), "{report}");
    assert_eq!(report["windows_refused"], serde_json::json!({ "forbidden": 2 }), "{report}");
    assert_eq!((&report["windows_made_huge"], huge_bytes(host, &process, heap)?), (&1.into(), 2 << 20), "{report}");
    process.check(heap.all(), 7)?;
    Ok(())
}

fn refused(arguments: &[&str], line: &str) -> Outcome {
    let said = said(arguments)?;
    assert_eq!((said.first_line(), said.code(), said.out.as_str()), (line, 2, ""), "{said:?}");
    assert_eq!(said.err.lines().count(), 2, "{}", said.err);
    Ok(())
}

/// With a debugger attached, only its huge pages are split. A filter that lets the call pass is no obstacle.
fn set_does_half_under_a_tracer_and_all_under_a_filter_that_allows_it(host: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let pid = process.pid();
    // SAFETY: SEIZE and DETACH take numbers alone; the target process is a child of ours, which goes on running.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid.0, 0, 0) };
    assert_eq!(seized, 0);
    let tracer = status(host.files(), pid)?.tracer.ok_or("not traced")?;
    let tracer_name = status(host.files(), tracer)?.name;
    let line = format!("masu: cannot change process {pid}: it is traced by process {tracer} ({tracer_name}) already");
    let half = said(&["set", &pid.to_string(), "huge=off"])?;
    assert_eq!((half.code(), half.err.lines().next()), (1, Some(line.as_str())), "{half:?}");
    let note = format!("masu: new memory of process {pid} may get huge pages as before; it had none\n");
    assert!(half.err.ends_with(&note), "{half:?}");
    drop(process);

    let mut command = Command::new("/proc/self/exe");
    command.args([task::FLAG, "filtered"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let filtered = Running(command.spawn()?);
    let pid = linux::Pid(filtered.pid());
    let deadline = std::time::Instant::now() + super::programs::TIME_LIMIT;
    while status(host.files(), pid)?.seccomp != linux::status::Seccomp::Filtered {
        assert!(std::time::Instant::now() < deadline, "it has no filter");
        std::thread::sleep(Duration::from_millis(1));
    }
    let passes = said(&["set", &pid.to_string(), "huge=off"])?;
    assert_eq!((passes.code(), status(host.files(), pid)?.huge_pages), (0, HugePages::Forbidden), "{passes:?}");
    Ok(())
}

/// Each message names the bad word and the expected ones.
fn set_names_the_word_that_it_does_not_understand(_: &Host) -> Outcome {
    let expected = "expected a process id, huge=on, huge=off, align=on or align=off";
    for bad in ["huge=maybe", "huge", "x", "0"] {
        let line = format!("masu: invalid value '{bad}' for '<PID|SETTING>...': {bad}: {expected}");
        refused(&["set", "1", bad], &line)?;
    }
    refused(&["set", "huge=off"], "masu: no process: expected at least one process id")?;
    refused(&["set", "1"], "masu: nothing to set: expected huge=on, huge=off, align=on or align=off")?;
    refused(&["set", "1", "huge=on", "huge=off"], "masu: huge=on and huge=off: expected one of the two")?;
    let process = TargetProcess::start()?;
    let pid = process.pid();
    let why = "align= is for programs started by masu run, and it was not";
    refused(&["set", &pid.to_string(), "align=on"], &format!("masu: cannot change process {pid}: {why}"))
}
