//! Capabilities of a running command, and of a program that it starts.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use linux::capabilities::Capabilities;
use linux::capabilities::Capability::{
    self, Bpf, DacOverride, DacReadSearch, Fowner, IpcLock, Kill, Perfmon, SysAdmin, SysNice, SysPtrace,
};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};

use super::Outcome;
use super::command::masu;
use super::llc_run::{Daemon, Place, by_pid, config};
use super::programs::{self, Running, Said, TIME_LIMIT};
use super::run::{Result, own, said};
use super::track::Tracker;
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::requirement::Requirement;
use crate::target_process::TargetProcess;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    privileges requires [];
    each_command_holds_the_capabilities_of_its_table_and_no_other [Root, PageTableWalk, PageFrames, RemoteCollapse, MasuCommand];
    each_capability_of_a_set_is_needed [Root, PagemapScan, PageTableWalk, PageFrames, RemoteCollapse, RemoteAdvice, MasuCommand];
    a_divided_cache_takes_three_capabilities [Root, Fuse, ResctrlEmulator, MasuCommand];
    a_program_has_the_capabilities_that_it_has_without_masu [Root, PageTableWalk, UserFaults, PagerLibrary, PreloadLibrary, Shell, MasuCommand];
    a_program_that_changes_its_user_is_started_and_signalled [Root, Shell, MasuCommand];
    a_delegated_groups_settings_are_changed_and_restored [Root, PageFrames, MemoryGroups, MasuCommand];
    the_services_are_confined [SystemdAnalyze];
};

const LINES: [&str; 6] = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:"];

/// The lines of a status that are about privileges.
fn privileges(status: &str) -> Vec<(String, u64)> {
    let line = |name: &&str| {
        let value = status.lines().find_map(|line| line.strip_prefix(*name))?;
        Some(((*name).to_owned(), u64::from_str_radix(value.trim(), 16).ok()?))
    };
    LINES.iter().filter_map(line).collect()
}

fn of(pid: i32) -> Result<Vec<(String, u64)>> {
    Ok(privileges(&fs::read_to_string(format!("/proc/{pid}/status"))?))
}

/// Waits until every thread of the command has exactly these capabilities, out of those of the tests, and the thread
/// that starts programs none.
fn keeps(name: &str, pid: i32, kept: Capabilities) -> Outcome {
    let own =
        of(std::process::id().cast_signed())?.into_iter().find(|(name, _)| name == "CapPrm:").ok_or("no CapPrm")?;
    let held = kept.0 & own.1;
    let expected: Vec<_> = LINES.iter().map(|name| (*name).to_owned()).zip([0, held, held, held, 0, 1]).collect();
    let none: Vec<_> = LINES.iter().map(|name| (*name).to_owned()).zip([0, 0, 0, 0, 0, 1]).collect();
    let end = Instant::now() + TIME_LIMIT;
    loop {
        let mut found = Vec::new();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let status = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
            let wanted = if status.contains("Name:\tmasu-start\n") { &none } else { &expected };
            found.push((privileges(&status) == *wanted, status));
        }
        if found.iter().all(|(right, _)| *right) {
            return Ok(());
        }
        assert!(Instant::now() < end, "{name}: expected {expected:x?}, found {found:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Long-running commands are inspected while they run; the table of each command is tested beside it.
fn each_command_holds_the_capabilities_of_its_table_and_no_other(host: &Host) -> Outcome {
    let frames = if host.has(Requirement::PagemapScan) { vec![] } else { vec![SysAdmin] };
    let set = |list: &[_]| Capabilities::of(list).and(Capabilities::of(&frames));
    let process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    let attach = [DacOverride, SysPtrace, SysNice, Perfmon, Bpf];
    let aging = [DacOverride, DacReadSearch, Fowner, IpcLock, SysPtrace, SysAdmin, SysNice];
    let cases: [(&[&str], Capabilities); 6] = [
        (&["pages", &pid, "--for", "60s"], set(&[DacOverride, SysPtrace, Perfmon, Bpf])),
        (&["attach", &pid], set(&attach)),
        (&["stat", &pid, "--watch", "1s"], set(&[DacReadSearch, SysPtrace, SysAdmin])),
        (&["census", &pid, "--watch", "1s"], set(&[DacReadSearch, SysPtrace, SysAdmin])),
        (&["llc", "shared", "--watch", "1s"], set(&[DacReadSearch, SysPtrace, SysAdmin])),
        (&["aging", "--code", "100", "--pid", &pid], Capabilities::of(&aging)),
    ];
    for (arguments, kept) in cases {
        let running = Running::start(masu()?.args(arguments))?;
        keeps(&arguments.join(" "), running.pid(), kept)?;
        running.signal(Signal::KILL)?;
        running.said()?;
    }
    let mut tracker = Tracker::start(&[])?;
    let of_track = set(&[DacOverride, Kill, SysPtrace, SysNice, Perfmon, Bpf]);
    keeps("track", tracker.running()?.pid(), of_track)?;
    tracker.end(Signal::INT)?;
    Ok(())
}

/// Runs the command as user 0 without this capability, from a thread that gives it up.
fn without(capability: Capability, arguments: &[&str]) -> Result<Said> {
    let lost = CapabilitySet::from_bits_retain(1 << capability as u32);
    let mut command = masu()?;
    command.args(arguments);
    let thread = std::thread::spawn(move || {
        remove_capability_from_bounding_set(lost)?;
        // Inherited capabilities are not limited by the bounds.
        let mut own = capabilities(None)?;
        own.inheritable -= lost;
        set_capabilities(None, own)?;
        Running::start(&mut command)?.said()
    });
    Ok(thread.join().map_err(|_| "a thread without a capability panicked")??)
}

/// Without any one of its set a command refuses, or reports a worse source of observation. Before `PAGEMAP_SCAN` the
/// sets have CAP_SYS_ADMIN, which stands in for most others.
fn each_capability_of_a_set_is_needed(_: &Host) -> Outcome {
    let mut command = Command::new(own()?);
    command.uid(4001).gid(4001);
    let process = TargetProcess::start_by(command)?;
    let pid = process.pid().to_string();
    let cases: [(&[&str], &[Capability]); 5] = [
        // Linux 6.18 allows reading /proc/PID with CAP_PERFMON and CAP_SYS_ADMIN, where 6.1 requires CAP_SYS_PTRACE,
        // and 6.1 walks without CAP_PERFMON: so these two are not checked here where another may stand in.
        (&["pages", &pid, "--for", "100ms", "--json"], &[DacOverride, Bpf]),
        (&["attach", &pid, "--for", "100ms", "--json"], &[DacOverride, SysNice, Bpf]),
        // CAP_KILL is needed only where a signal comes during the call.
        (&["set", &pid, "huge=on"], &[DacReadSearch, SysPtrace, SysNice]),
        (&["census", &pid, "--json"], &[DacReadSearch, SysAdmin]),
        (&["llc", "shared", "--pid", &pid, "--json"], &[DacReadSearch, SysAdmin]),
    ];
    for (arguments, kept) in cases {
        let whole = said(masu()?.args(arguments))?;
        assert_eq!((whole.code(), whole.err.as_str()), (0, ""), "{arguments:?}");
        for capability in kept {
            let less = without(*capability, arguments)?;
            let is_less = less.code() != 0 || !less.err.is_empty();
            assert!(is_less, "{arguments:?} does all of its work without {capability}: {less:?}");
        }
    }
    Ok(())
}

/// Groups are made in a folder to which not even its owner may write.
fn a_divided_cache_takes_three_capabilities(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let place = Place::make(&[])?;
    let arguments = place.with(&config(&[("one", by_pid(&process))]))?;
    let mut daemon = Daemon::start(&arguments)?;
    daemon.until_event("ready")?;
    keeps("llc run", daemon.pid()?.0, Capabilities::of(&[DacOverride, SysPtrace, SysAdmin]))?;
    daemon.end(Some(Signal::INT))?;
    Ok(())
}

/// A program's credentials are the same as without masu, in every way of serving it; masu beside it has its own.
fn a_program_has_the_capabilities_that_it_has_without_masu(_: &Host) -> Outcome {
    let show = ["sh", "-c", "grep -E '^(Cap|NoNewPrivs|Uid|Gid|Groups)' /proc/self/status"];
    let alone = said(Command::new(show[0]).args(&show[1..]))?.out;
    let starts: [&[&str]; 5] = [
        &["run", "--quiet"],
        &["run", "--quiet", "--huge", "off"],
        &["run", "--quiet", "--huge", "hot"],
        &["run", "--quiet", "--local", "64MiB"],
        &["aging", "--cache", "0"],
    ];
    for options in starts {
        let beside = said(masu()?.args(options).arg("--").args(show))?;
        assert_eq!((beside.code(), &beside.out), (0, &alone), "{options:?}: {}", beside.err);
    }
    let local = Running::start(masu()?.args(["run", "--quiet", "--local", "64MiB", "--", "sleep", "60"]))?;
    keeps("run --local", local.pid(), Capabilities::of(&[DacReadSearch, Kill, SysPtrace]))?;
    local.signal(Signal::TERM)?;
    local.said()?;
    Ok(())
}

/// A program of root's that becomes another user's is signalled, and a set-uid program becomes root.
fn a_program_that_changes_its_user_is_started_and_signalled(_: &Host) -> Outcome {
    let setpriv = ["setpriv", "--reuid", "4001", "--regid", "4001", "--clear-groups", "sleep", "60"];
    let running = Running::start(masu()?.args(["run", "--quiet", "--huge", "off", "--"]).args(setpriv))?;
    let children = format!("/proc/{0}/task/{0}/children", running.pid());
    let end = Instant::now() + TIME_LIMIT;
    let is_asleep = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let names = lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        names.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok()).any(|name| name == "sleep\n")
    };
    while !is_asleep() {
        assert!(Instant::now() < end, "{children}: no sleep");
        std::thread::sleep(Duration::from_millis(10));
    }
    running.signal(Signal::TERM)?;
    assert_eq!(running.said()?.code(), 128 + 15);
    // su is set-uid: it could not become root with no_new_privs.
    let mut set_uid = masu()?;
    set_uid.args(["run", "--quiet", "--huge", "off", "--", "su", "--version"]).uid(4001).gid(4001);
    assert_eq!(said(&mut set_uid)?.code(), 0);
    Ok(())
}

/// A group that is delegated has settings that its user owns.
fn a_delegated_groups_settings_are_changed_and_restored(_: &Host) -> Outcome {
    let group = Group::make("delegated")?;
    let weight = group.procs().with_file_name("memory.swappiness");
    let Ok(before) = fs::read_to_string(&weight) else { return Ok(()) };
    std::os::unix::fs::chown(&weight, Some(4001), Some(4001))?;
    let name = group.name();
    let running = Running::start(masu()?.args(["aging", "--data", "100", "--cgroup", &name, "--for", "1s"]))?;
    let ended = running.said()?;
    assert_eq!(ended.code(), 0, "{ended:?}");
    assert_eq!(fs::read_to_string(&weight)?, before);
    Ok(())
}

/// systemd's assessment of the units, without running them.
fn the_services_are_confined(_: &Host) -> Outcome {
    const MOST: f64 = 4.0;
    let analyze = programs::installed("systemd-analyze").ok_or("no systemd-analyze")?;
    let units = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../integrations/systemd");
    let folder = super::run::Folder::make("unit")?;
    for name in ["masu.service", "masu-aging.service"] {
        let unit = folder.0.join(name);
        fs::write(&unit, fs::read_to_string(units.join(name))?.replace("@PREFIX@", "/usr"))?;
        let told = said(Command::new(&analyze).args(["security", "--no-pager", "--offline=true"]).arg(&unit))?;
        let line = told.out.lines().find(|line| line.contains("Overall exposure level")).ok_or(told.err.clone())?;
        let level = line.split_whitespace().find_map(|word| word.parse::<f64>().ok()).ok_or("no level")?;
        assert!(level <= MOST, "{name}: {line}");
    }
    Ok(())
}
