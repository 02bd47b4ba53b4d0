//! Programs that cannot run: frozen, stopped, or stopped by a tracer. Each command says so at once, and judges nothing by
//! accesses that could not be.

use std::io::BufRead as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use linux::halted::{Halted, halted};
use linux::{Pid, stat};
use rustix::process::Signal;

use super::aging::Aging;
use super::command::{json, masu, said};
use super::programs::{Running, TIME_LIMIT, python};
use super::run::Folder;
use super::run_local::{Talking, memory_checker, paged};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    halted requires [Root, MasuCommand];
    each_cause_is_found_and_none_where_there_is_none;
    attach_says_it_judges_nothing_and_goes_on_later [PageFrames, RemoteAdvice, HugePageModes];
    pages_and_stat_say_it [PageFrames, HugePageModes];
    census_and_aging_say_it [PageFrames, PageTableWalk];
    a_program_under_run_that_is_stopped_is_named [Python];
    a_paged_program_that_is_halted_goes_on_and_loses_nothing [PagerLibrary, UserFaults, CPrograms];
    a_paged_program_that_is_halted_ends_by_a_signal_once_it_runs [PagerLibrary, UserFaults, CPrograms];
};

fn signal(pid: Pid, signal: Signal) -> Outcome {
    let pid = rustix::process::Pid::from_raw(pid.0).ok_or("no process")?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

fn until_state(host: &Host, pid: Pid, states: &[char]) -> Outcome {
    let deadline = Instant::now() + TIME_LIMIT;
    while !states.contains(&stat::stat(host.files(), pid)?.state) {
        assert!(Instant::now() < deadline, "it is not in {states:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Each from outside, and in any order; a tracer that only watches is none.
fn each_cause_is_found_and_none_where_there_is_none(host: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let pid = process.pid();
    assert_eq!(halted(host.files(), pid), None);
    let freezer = Freezer::of(pid)?;
    assert!(matches!(halted(host.files(), pid), Some(Halted::Frozen { .. })), "{:?}", halted(host.files(), pid));
    drop(freezer);
    assert_eq!(halted(host.files(), pid), None);
    signal(pid, Signal::STOP)?;
    until_state(host, pid, &['T'])?;
    assert_eq!(halted(host.files(), pid), Some(Halted::Stopped));
    let freezer = Freezer::of(pid)?;
    assert!(matches!(halted(host.files(), pid), Some(Halted::Frozen { .. })));
    drop(freezer);
    signal(pid, Signal::CONT)?;
    until_state(host, pid, &['S'])?;
    assert_eq!(halted(host.files(), pid), None);
    // SAFETY: SEIZE and INTERRUPT take numbers alone; the target process is a child of ours.
    let (seized, interrupted) = unsafe {
        let seized = libc::ptrace(libc::PTRACE_SEIZE, pid.0, 0, 0);
        let watching = halted(host.files(), pid);
        assert_eq!(watching, None);
        (seized, libc::ptrace(libc::PTRACE_INTERRUPT, pid.0, 0, 0))
    };
    assert_eq!((seized, interrupted), (0, 0));
    until_state(host, pid, &['t'])?;
    match halted(host.files(), pid) {
        Some(Halted::Traced { tracer: Some(_), tracer_name: Some(_) }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// Frozen before the start: said within two seconds, no verdict; thawed, it is served.
fn attach_says_it_judges_nothing_and_goes_on_later(_: &Host) -> Outcome {
    const WINDOWS: u64 = 4;
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, WINDOWS)?;
    process.write(heap.all(), 7)?;
    process.spin(heap.all(), 1, true)?;
    let pid = process.pid();
    let freezer = Freezer::of(pid)?;
    let said = said(&["attach", &pid.to_string(), "--for", "3s", "--json"])?;
    assert!(said.code() == 1 && said.first_line().contains("is frozen"), "{said:?}");
    let still: serde_json::Value = serde_json::from_str(&said.out)?;
    assert_eq!((&still["settled"], &still["windows_promoted"]), (&false.into(), &0.into()), "{still}");
    assert_eq!(still["halted"]["cause"], "frozen", "{still}");

    let mut command = masu()?;
    command.args(["attach", &pid.to_string(), "--until-settled", "--json"]);
    let mut attach = Running(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    let mut lines = std::io::BufReader::new(attach.0.stderr.take().ok_or("no pipe")?).lines();
    let begun = Instant::now();
    let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("is frozen"))).ok_or("not said")??;
    assert!(begun.elapsed() < TIME_LIMIT && line.contains(&format!("process {pid} (")), "{line}");
    std::thread::sleep(Duration::from_millis(2500));
    assert!(attach.0.try_wait()?.is_none(), "it settled on a frozen program");
    drop(freezer);
    let went_on = lines.any(|line| line.is_ok_and(|line| line.contains("runs again")));
    assert!(went_on, "not said");
    let after = attach.said()?;
    let report: serde_json::Value = serde_json::from_str(&after.out)?;
    assert_eq!((after.code(), &report["settled"], &report["halted"]), (0, &true.into(), &serde_json::Value::Null));
    assert_eq!(report["windows_promoted"], WINDOWS, "{report}");
    process.rest()?;
    Ok(())
}

/// Idle memory of a stopped process says nothing of its use, and the process brings nothing in.
fn census_and_aging_say_it(host: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let pid = process.pid();
    let freezer = Freezer::of(pid)?;
    let number = pid.to_string();
    let text = said(&["census", &number])?;
    assert!(text.code() == 0 && text.out.contains(&format!("process {number} (")), "{text:?}");
    assert!(text.out.contains(") is frozen (control group /") && text.out.contains("Thaw the group"), "{text:?}");
    let report = json(&["census", &number, "--json"])?;
    assert_eq!((&report["halted"][0]["pid"], &report["halted"][0]["cause"]), (&pid.0.into(), &"frozen".into()));
    let of_groups = json(&["census", "--cgroups", "--json"])?;
    let halted = of_groups["halted"].as_array().into_iter().flatten();
    assert!(halted.map(|one| &one["pid"]).any(|halted| *halted == pid.0), "{of_groups}");
    let text = said(&["census", "--cgroups"])?;
    assert!(text.code() == 0 && text.out.contains("until it runs, no access is no sign of idle memory"), "{text:?}");
    let aging = Aging::start(&["--cache", "0", "--pid", &number])?;
    let line = aging.wait_for(|line| line["event"] == "halted")?;
    assert_eq!(line["processes"][0]["pid"], pid.0, "{line}");
    aging.end()?;
    drop(freezer);
    signal(pid, Signal::STOP)?;
    until_state(host, pid, &['T'])?;
    let report = json(&["census", &number, "--json"])?;
    assert_eq!(report["halted"][0]["cause"], "stopped", "{report}");
    signal(pid, Signal::CONT)?;
    until_state(host, pid, &['S'])?;
    assert_eq!(json(&["census", &number, "--json"])?["halted"], serde_json::json!([]));
    Ok(())
}

fn pages_and_stat_say_it(host: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.all(), 7)?;
    let pid = process.pid();
    signal(pid, Signal::STOP)?;
    until_state(host, pid, &['T'])?;
    let name = pid.to_string();
    let pages = said(&["pages", &name, "--for", "200ms"])?;
    assert_eq!(pages.code(), 1, "{pages:?}");
    assert!(pages.err.contains("is stopped by a signal") && pages.err.contains("kill -CONT"), "{}", pages.err);
    assert!(pages.out.contains("it was stopped by a signal"), "{}", pages.out);
    let stat = said(&["stat", &name])?;
    assert!(stat.out.contains("is stopped by a signal"), "{}", stat.out);
    assert_eq!(json(&["stat", &name, "--json"])?["halted"]["cause"], "stopped");
    signal(pid, Signal::CONT)?;
    process.check(heap.all(), 7)?;
    Ok(())
}

/// The program alone is stopped; masu names it, passes the end on, and has its status.
fn a_program_under_run_that_is_stopped_is_named(_: &Host) -> Outcome {
    let python = python().ok_or("no python")?;
    let mut command = masu()?;
    command.arg("run").arg("--").arg(python).args(["-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]);
    let mut run = Running::start(&mut command)?;
    let mut lines = std::io::BufReader::new(run.0.stderr.take().ok_or("no pipe")?).lines();
    let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("is stopped by a signal")));
    let line = line.ok_or("not said")??;
    let pid = line.split_ascii_whitespace().nth(2).ok_or("no process")?;
    signal(pid.parse()?, Signal::CONT)?;
    assert_eq!(run.said()?.code(), 0);
    Ok(())
}

/// A paged program that works for `seconds` on eight times its local memory.
fn working(folder: &Folder, seconds: &str) -> Result<Talking, libtest_mimic::Failed> {
    let mut talking = Talking::start(paged(&["--local", "2MiB"], &[&memory_checker(folder)?, "16", seconds])?)?;
    talking.hears("rest")?;
    talking.says()?;
    talking.hears("full")?;
    talking.says()?;
    std::thread::sleep(Duration::from_millis(100));
    Ok(talking)
}

/// In the middle of faults and of I/O: the program alone, its masu alone, both by their terminal, and by the freezer.
fn a_paged_program_that_is_halted_goes_on_and_loses_nothing(host: &Host) -> Outcome {
    let folder = Folder::make("halted-paged")?;
    let talking = working(&folder, "4")?;
    let (program, server) = (Pid(talking.program), Pid(talking.masu()));
    for round in 0..8 {
        let (halted, stop) = [(program, Signal::STOP), (server, Signal::STOP)][round % 2];
        signal(halted, stop)?;
        until_state(host, halted, &['T'])?;
        std::thread::sleep(Duration::from_millis(if round == 0 { 1500 } else { 50 }));
        signal(halted, Signal::CONT)?;
        std::thread::sleep(Duration::from_millis(17));
    }
    // Below the first process every group is orphaned, and SIGTSTP has no effect.
    if std::process::id() != 1 {
        super::run_local::signal(-server.0, libc::SIGTSTP)?;
        until_state(host, program, &['T'])?;
        until_state(host, server, &['T'])?;
        super::run_local::signal(-server.0, libc::SIGCONT)?;
    }
    for halted in [program, server] {
        let freezer = Freezer::of(halted)?;
        std::thread::sleep(Duration::from_millis(100));
        drop(freezer);
    }
    let said = talking.ends()?;
    assert_eq!((said.code(), said.out.as_str()), (0, "right\n"), "{said:?}");
    assert!(said.err.contains("is stopped by a signal") && said.err.contains("kill -CONT"), "{said:?}");
    Ok(())
}

/// SIGTERM to masu. It waits in the kernel for a program that is stopped or frozen, as without masu.
fn a_paged_program_that_is_halted_ends_by_a_signal_once_it_runs(host: &Host) -> Outcome {
    let folder = Folder::make("halted-paged-end")?;
    for is_frozen in [false, true] {
        let mut talking = working(&folder, "60")?;
        let (program, server) = (Pid(talking.program), Pid(talking.masu()));
        let freezer = if is_frozen {
            Some(Freezer::of(program)?)
        } else {
            signal(program, Signal::STOP)?;
            until_state(host, program, &['T'])?;
            None
        };
        signal(server, Signal::TERM)?;
        std::thread::sleep(Duration::from_millis(300));
        assert!(talking.masu.try_wait()?.is_none(), "masu ended before its program");
        drop(freezer);
        if !is_frozen {
            signal(program, Signal::CONT)?;
        }
        let said = talking.ends()?;
        assert_eq!(said.status.signal(), Some(libc::SIGTERM), "frozen {is_frozen}: {said:?}");
    }
    Ok(())
}

/// A group with one process, frozen until this is dropped.
pub(crate) struct Freezer {
    mount: std::path::PathBuf,
    group: std::path::PathBuf,
    /// File and value that thaw it.
    thaw: (&'static str, &'static str),
}

impl Freezer {
    /// Freezer in a mount of its own of version 1, or in version 2.
    pub(crate) fn of(pid: Pid) -> Result<Freezer, libtest_mimic::Failed> {
        let mount = std::env::temp_dir().join(format!("masu-live-freezer-{pid}"));
        std::fs::create_dir(&mount)?;
        let none = rustix::mount::MountFlags::empty();
        let v1 = rustix::mount::mount("none", &mount, "cgroup", none, Some(c"freezer"));
        if v1.is_err() {
            rustix::mount::mount("none", &mount, "cgroup2", none, None)?;
        }
        let (file, frozen, thawed) =
            if v1.is_ok() { ("freezer.state", "FROZEN", "THAWED") } else { ("cgroup.freeze", "1", "0") };
        let freezer = Freezer { group: mount.join(format!("masu-live-{pid}")), mount, thaw: (file, thawed) };
        std::fs::create_dir(&freezer.group)?;
        std::fs::write(freezer.group.join("cgroup.procs"), pid.to_string())?;
        std::fs::write(freezer.group.join(file), frozen)?;
        let state = if v1.is_ok() { file } else { "cgroup.events" };
        let deadline = Instant::now() + TIME_LIMIT;
        loop {
            let now = std::fs::read_to_string(freezer.group.join(state))?;
            if now.contains("FROZEN") || now.contains("frozen 1") {
                return Ok(freezer);
            }
            assert!(Instant::now() < deadline, "it is not frozen: {now}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.group.join(self.thaw.0), self.thaw.1);
        if let Ok(members) = std::fs::read_to_string(self.group.join("cgroup.procs")) {
            for member in members.lines() {
                let _ = std::fs::write(self.mount.join("cgroup.procs"), member);
            }
        }
        let _ = std::fs::remove_dir(&self.group);
        let _ = rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::DETACH);
        let _ = std::fs::remove_dir(&self.mount);
    }
}
