//! Bad input: each kind has its own line and exit status.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::command::{masu, start};
use super::programs::{Running, TIME_LIMIT};
use super::{Outcome, elf32};
use crate::host::{Host, LiveTest, tests};
use crate::requirement::Requirement;
use crate::target_process::{Backing, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    command_refusals requires [MasuCommand];
    a_process_that_does_not_exist;
    a_thread_of_the_kernel [KernelThreads];
    a_thread_of_a_program;
    a_program_that_has_ended_but_was_not_waited_for;
    somebody_elses_program_and_no_privilege [Root];
    a_user_namespaces_own_root_has_no_right_over_the_host [Root, Shell];
    a_32_bit_program [Root, Programs32];
    a_program_that_forbids_huge_pages [Root];
    a_program_that_another_masu_is_attached_to [Root, PageTableWalk];
    fractions_out_of_range;
    the_name_alone_shows_the_help;
    one_bad_process_of_two_is_done_in_part [Root, PageTableWalk];
};

/// Larger than any process id can be.
const NOBODY: i32 = 4_194_304;

/// User id of nobody, which owns nothing.
const NOBODY_UID: u32 = 65534;

/// The command is refused with this line, and prints nothing else but the remedy.
fn refused(arguments: &[&str], line: &str) -> Outcome {
    refused_by(masu()?.args(arguments), line)
}

fn refused_by(command: &mut Command, line: &str) -> Outcome {
    let said = Running::start(command)?.said()?;
    assert_eq!((said.first_line(), said.code()), (line, 2), "{said:?}");
    assert_eq!(said.out, "");
    let rest: Vec<&str> = said.err.lines().skip(1).collect();
    assert!(rest.len() <= 1 && rest.iter().all(|line| line.starts_with("    ")), "{}", said.err);
    Ok(())
}

/// All commands on a process that none takes.
fn refused_by_all(pid: i32, why: &str) -> Outcome {
    let number = pid.to_string();
    refused(&["attach", &number], &format!("masu: cannot attach to process {pid}: {why}"))?;
    refused(&["set", &number, "huge=off"], &format!("masu: cannot change process {pid}: {why}"))?;
    refused(&["stat", &number], &format!("masu: cannot look at process {pid}: {why}"))?;
    refused(&["pages", &number], &format!("masu: cannot look at process {pid}: {why}"))
}

/// Never was, and gone: the same.
fn a_process_that_does_not_exist(_: &Host) -> Outcome {
    refused_by_all(NOBODY, "no such process (ESRCH)")
}

/// Process 2 starts all the others.
fn a_thread_of_the_kernel(_: &Host) -> Outcome {
    refused_by_all(2, "it is a kernel thread")
}

/// The number that `top -H` shows.
fn a_thread_of_a_program(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.spin(heap.page(0), 1, true)?;
    let leader = process.pid().0;
    let threads = fs::read_dir(format!("/proc/{leader}/task"))?;
    let threads: Vec<i32> = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    let thread = threads.into_iter().find(|thread| *thread != leader).ok_or("no second thread")?;
    refused_by_all(thread, &format!("it is a thread of process {leader}"))?;
    process.rest()?;
    Ok(())
}

/// Its parent, the test, has not waited for it.
fn a_program_that_has_ended_but_was_not_waited_for(_: &Host) -> Outcome {
    let mut child = Command::new("/proc/self/exe");
    child.arg(crate::target_process::FLAG).stdin(Stdio::null()).stdout(Stdio::null());
    let child = Running(child.spawn()?);
    let deadline = Instant::now() + TIME_LIMIT;
    while !fs::read_to_string(format!("/proc/{}/stat", child.pid()))?.contains(") Z ") {
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
    refused_by_all(child.pid(), "it has ended and waits for its parent (zombie)")
}

/// It has CAP_SYS_NICE, and not the host's. `attach`, `set` and `run` say so at once, and `facts`.
fn a_user_namespaces_own_root_has_no_right_over_the_host(_: &Host) -> Outcome {
    let masu = super::programs::masu().ok_or("no masu")?.display().to_string();
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", script, &masu]).stdin(Stdio::null());
        Running::start(&mut command)?.said()
    };
    let why = "advice to another process needs CAP_SYS_NICE of the host";
    for command in ["attach $! --for 1s", "set $! huge=off"] {
        let said = inside(&format!("sleep 60 & \"$0\" {command}; status=$?; kill $!; exit $status"))?;
        assert!(said.code() == 2 && said.first_line().contains(why), "{command}: {said:?}");
    }
    let said = inside("exec \"$0\" run --huge hot -- true")?;
    assert!(said.code() == 125 && said.first_line().contains(why), "{said:?}");
    let facts = inside("exec \"$0\" facts")?;
    assert!(facts.code() == 0 && facts.out.contains(why), "{facts:?}");
    Ok(())
}

fn as_nobody(mut command: Command) -> Command {
    command.uid(NOBODY_UID).gid(NOBODY_UID);
    command
}

/// Another user's program, and the user's own without the privilege for the advice.
fn somebody_elses_program_and_no_privilege(host: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    let why = "it belongs to somebody else: permission denied (EACCES)";
    refused_by(as_nobody(masu()?).args(["attach", &pid]), &format!("masu: cannot attach to process {pid}: {why}"))?;
    refused_by(as_nobody(masu()?).args(["pages", &pid]), &format!("masu: cannot look at process {pid}: {why}"))?;

    let own = TargetProcess::start_by(as_nobody(Command::new("/proc/self/exe")))?;
    let pid = own.pid().to_string();
    let why = "advice to another process needs CAP_SYS_NICE: operation not permitted (EPERM)";
    refused_by(as_nobody(masu()?).args(["attach", &pid]), &format!("masu: cannot attach to process {pid}: {why}"))?;
    // Scanning a program of one's own takes no privilege where the kernel has the scan, but accesses are not seen then,
    // and that is reported.
    let said = Running::start(as_nobody(masu()?).args(["pages", &pid, "--for", "20ms"]))?.said()?;
    let (code, line) = match host.has(Requirement::PagemapScan) {
        true => (0, "masu: observing by residency"),
        false => (2, "masu: cannot observe any process: bpf-walk: "),
    };
    assert_eq!(said.code(), code, "{}", said.err);
    assert!(said.first_line().starts_with(line), "{}", said.err);
    // A backend that was asked for is not replaced.
    let asked = Running::start(as_nobody(masu()?).args(["pages", &pid, "--backend", "bpf-walk"]))?.said()?;
    assert_eq!(asked.code(), 2);
    assert!(asked.first_line().starts_with("masu: cannot observe by bpf-walk: "), "{}", asked.err);
    assert!(asked.first_line().ends_with("operation not permitted (EPERM)"), "{}", asked.err);
    Ok(())
}

/// Two calls long, without a library.
fn a_32_bit_program(_: &Host) -> Outcome {
    let child = Running(elf32::run(elf32::PAUSE)?);
    refused_by_all(child.pid(), "it is a 32-bit program")
}

/// The program itself forbids them; scanning it is allowed.
fn a_program_that_forbids_huge_pages(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    process.forbid_huge_pages()?;
    let pid = process.pid().to_string();
    let name = fs::read_to_string(format!("/proc/{pid}/comm"))?;
    let why = format!(
        "{} forbids huge pages for itself, or `masu set` did (prctl PR_SET_THP_DISABLE; THP_enabled: 0)",
        name.trim()
    );
    refused(&["attach", &pid], &format!("masu: cannot attach to process {pid}: {why}"))?;
    let looked = start(&["pages", &pid, "--for", "20ms"])?.said()?;
    assert_eq!(looked.code(), 0, "{}", looked.err);
    Ok(())
}

/// Two would clear each other's marks.
fn a_program_that_another_masu_is_attached_to(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    let first = start(&["attach", &pid])?;
    // A second one that came too early would be the first.
    let held = format!(" {pid} {pid}");
    let deadline = Instant::now() + TIME_LIMIT;
    while !fs::read_to_string("/proc/locks")?.lines().any(|line| line.contains("OFDLCK") && line.ends_with(&held)) {
        assert!(Instant::now() < deadline, "it does not attach");
        std::thread::sleep(Duration::from_millis(2));
    }
    let line = format!("masu: cannot attach to process {pid}: another masu is at work on it");
    refused(&["attach", &pid, "--dry-run"], &line)?;
    drop(first);
    let said = start(&["attach", &pid, "--dry-run"])?.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "a killed masu holds nothing");
    Ok(())
}

/// Not fractions, fractions of nothing, times of nothing.
fn fractions_out_of_range(_: &Host) -> Outcome {
    let above_zero = "expected a fraction above 0 and up to 1, such as 0.25, 25% or 1/4";
    for bad in ["0", "2", "x"] {
        let line = format!("masu: invalid value '{bad}' for '--hot-fraction <F>': {bad}: {above_zero}");
        refused(&["attach", "1", "--hot-fraction", bad], &line)?;
    }
    let any = "expected a fraction from 0 to 1, such as 0.01, 1% or 1/4";
    let line = format!("masu: invalid value '101%' for '--max-extra-rss <P>': 101%: {any}");
    refused(&["attach", "1", "--max-extra-rss", "101%"], &line)?;
    let line = "masu: invalid value '0s' for '--for <TIME>': 0s: expected a time above zero, such as 500ms, 5s or 1m";
    refused(&["attach", "1", "--for", "0s"], line)?;
    let line = "masu: invalid value 'x' for '<PID>...': x: expected a process id, a whole number above 0";
    refused(&["attach", "x"], line)
}

/// A user who types only the name wants an overview.
fn the_name_alone_shows_the_help(_: &Host) -> Outcome {
    let said = start(&[])?.said()?;
    assert_eq!((said.code(), said.out.as_str()), (2, ""));
    assert!(said.err.contains("Usage: masu [OPTIONS] <COMMAND>") && said.err.contains("attach"), "{}", said.err);
    Ok(())
}

/// The good one is served, the bad one named, and the status shows that not all was done.
fn one_bad_process_of_two_is_done_in_part(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let (good, bad) = (process.pid().to_string(), NOBODY.to_string());
    let said = start(&["attach", &bad, &good, "--dry-run", "--json"])?.said()?;
    assert_eq!(said.code(), 1);
    assert_eq!(said.first_line(), format!("masu: cannot attach to process {bad}: no such process (ESRCH)"));
    let report: serde_json::Value = serde_json::from_str(&said.out)?;
    assert_eq!(report["pid"], process.pid().0);
    Ok(())
}
