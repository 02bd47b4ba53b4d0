//! `masu aging`: mapped pages stay in memory while there is headroom.

use std::fs;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use linux::page_cache::{drop_clean, resident};
use rustix::fs::{FileType, Mode};
use rustix::process::Signal;
use serde_json::Value;
use units::{Bytes, Pages};

use super::Outcome;
use super::command::{json, masu, said, start};
use super::disk_file::{DiskFile, MappedFile};
use super::programs::{self, Running, TIME_LIMIT};
use super::redis::wait_until;
use super::run::Folder;
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::swap::Swap;
use crate::target_process::{Backing, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    aging requires [Root, MasuCommand];
    what_is_mapped_stays_while_a_stream_goes_by [PageFrames, MemoryGroups, DiskFiles, Shell];
    pins_go_before_a_group_runs_out_of_memory [PageFrames, MemoryGroups, DiskFiles, Shell];
    a_full_group_does_not_hold_up_the_others [PageFrames, MemoryGroups, DiskFiles, Shell];
    pins_go_before_masu_is_stopped [PageFrames, MemoryGroups, DiskFiles, Shell];
    masu_is_not_stopped_where_nobody_could_continue_it [PageFrames, MemoryGroups, DiskFiles, Shell];
    pins_go_though_nobody_takes_its_lines [PageFrames, MemoryGroups, DiskFiles, Shell];
    no_more_is_pinned_than_the_budget_has [PageFrames, MemoryGroups, DiskFiles, Shell];
    a_file_that_was_replaced_is_let_go [PageFrames, MemoryGroups, DiskFiles, Shell];
    aging_ends_with_its_processes [PageFrames];
    shared_memory_is_pinned_and_let_go [PageFrames];
    shared_memory_that_is_to_stay_is_not_swapped [PageFrames, MemoryGroups, Swap];
    the_weight_of_swapping_is_put_back [Swap];
    a_group_made_meanwhile_has_its_weight_in_the_end [Swap, MemoryGroups];
    what_cannot_be_aged_is_named [PageFrames, PageTableWalk];
};

const KEPT: Pages = Bytes::mib(48).pages();
const STREAM: Pages = Bytes::mib(256).pages();
const ALL: Range<u64> = 0..KEPT.0;
const LIMIT: u64 = 256 << 20;

/// A running `masu aging`, and its output.
pub(crate) struct Aging {
    running: Running,
    lines: PathBuf,
    _folder: Folder,
}

impl Aging {
    /// Starts it, and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Result<Aging, libtest_mimic::Failed> {
        Aging::start_by(masu()?, arguments)
    }

    pub(crate) fn start_by(mut command: Command, arguments: &[&str]) -> Result<Aging, libtest_mimic::Failed> {
        let folder = Folder::make("aging-lines")?;
        let lines = folder.0.join("lines");
        command.arg("aging").args(arguments).args(["--json", "--report"]).arg(&lines);
        let aging = Aging { running: Running::start(&mut command)?, lines, _folder: folder };
        aging.wait_for(|line| line["ready"] == true)?;
        Ok(aging)
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.lines).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The first line that is meant, as soon as it is there.
    pub(crate) fn wait_for(&self, is_meant: impl Fn(&Value) -> bool) -> Result<Value, libtest_mimic::Failed> {
        let end = Instant::now() + TIME_LIMIT;
        loop {
            if let Some(line) = self.lines().into_iter().find(&is_meant) {
                return Ok(line);
            }
            if Instant::now() > end {
                return Err(format!("it never said so: {:?}", self.lines()).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it as Ctrl-C does, and returns its last line.
    pub(crate) fn end(self) -> Result<Value, libtest_mimic::Failed> {
        self.running.signal(Signal::INT)?;
        let said = self.running.said()?;
        assert_eq!((said.code(), said.err.as_str()), (0, ""));
        let text = fs::read_to_string(&self.lines)?;
        let last: Value = serde_json::from_str(text.lines().last().ok_or("it said nothing")?)?;
        assert_eq!(last["end"], true, "{last}");
        Ok(last)
    }

    fn kill(self) -> Outcome {
        self.running.signal(Signal::KILL)?;
        self.running.said()?;
        Ok(())
    }
}

fn pages(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// A file that a group was charged with, mapped by us and left alone, and another to be streamed through the group.
struct Setup {
    group: Group,
    kept: DiskFile,
    stream: DiskFile,
    _mapped: MappedFile,
}

impl Setup {
    fn make() -> Result<Setup, libtest_mimic::Failed> {
        let group = Group::make("aging")?;
        group.limit(LIMIT)?;
        let (kept, stream) = (DiskFile::make("aging-kept", KEPT)?, DiskFile::make("aging-stream", STREAM)?);
        kept.stream_through(&group, 1)?;
        let mapped = MappedFile::map(&kept.file, KEPT)?;
        assert_eq!(pages(&resident(&kept.file, ALL)?), KEPT.0);
        Ok(Setup { group, kept, stream, _mapped: mapped })
    }

    fn resident(&self) -> Result<u64, libtest_mimic::Failed> {
        Ok(pages(&resident(&self.kept.file, ALL)?))
    }
}

fn own_pid() -> String {
    std::process::id().to_string()
}

/// The kernel alone reclaims mapped idle pages; with a protection level of 100 all of them stay; after masu's end the
/// kernel's behaviour is unchanged.
fn what_is_mapped_stays_while_a_stream_goes_by(_: &Host) -> Outcome {
    let setup = Setup::make()?;
    let aging = Aging::start(&["--mapped", "100", "--pid", &own_pid()])?;
    let line = aging.wait_for(|line| line["event"] == "pinned")?;
    assert!(line["pinned_bytes"].as_u64() >= Some(KEPT.bytes().0), "{line}");
    setup.stream.stream_through(&setup.group, 4)?;
    assert_eq!(setup.resident()?, KEPT.0, "at 100 nothing goes");
    let end = aging.end()?;
    assert!(end["pinned_bytes_max"].as_u64() >= Some(KEPT.bytes().0), "{end}");
    setup.stream.stream_through(&setup.group, 6)?;
    let left = setup.resident()?;
    assert!(left < KEPT.0 / 2, "without masu the kernel takes it: {left} of {} pages are left", KEPT.0);
    Ok(())
}

/// Pages are unlocked before a program of the cgroup is killed for lack of memory.
fn pins_go_before_a_group_runs_out_of_memory(_: &Host) -> Outcome {
    let setup = Setup::make()?;
    let aging = Aging::start(&["--mapped", "100", "--pid", &own_pid()])?;
    aging.wait_for(|line| line["event"] == "pinned")?;
    let mut process = TargetProcess::start()?;
    setup.group.take_in(process.pid())?;
    // With the locked pages, more than the limit; without, less.
    let heap = process.map(Backing::Anonymous, (LIMIT - (24 << 20)) / (2 << 20))?;
    process.write(heap.all(), 7)?;
    process.check(heap.all(), 7)?;
    let line = aging.wait_for(|line| line["event"] == "let_go")?;
    assert!(line["why"] == "room" || line["why"] == "stalled", "{line}");
    assert_eq!(setup.group.killed()?, 0);
    let end = aging.end()?;
    assert!(end["releases"].as_u64() >= Some(1), "{end}");
    Ok(())
}

/// A full cgroup holds up its own charges, which is reported, and nothing else.
fn a_full_group_does_not_hold_up_the_others(_: &Host) -> Outcome {
    let (full, setup) = (Group::make("aging-full")?, Setup::make()?);
    full.limit(80 << 20)?;
    let others = DiskFile::make("aging-others", KEPT)?;
    others.stream_through(&full, 1)?;
    let _mapped = MappedFile::map(&others.file, KEPT)?;
    let aging = Aging::start(&["--rodata", "100", "--pid", &own_pid()])?;
    let line = aging.wait_for(|line| line["event"] == "pinned")?;
    assert!(line["pinned_bytes"].as_u64() >= Some(KEPT.bytes().0), "{line}");
    // Of the full cgroup only a few pages, which were read to find their owner.
    assert!(line["without_bytes"].as_u64() >= Some(KEPT.bytes().0 - (1 << 20)), "{line}");
    aging.wait_for(|line| {
        line["event"] == "without" && line["why"].as_str().is_some_and(|why| why.contains(&full.name()))
    })?;
    assert!(aging.lines().iter().all(|line| line["what"] != "anon_inode:bpf-map"), "nobody takes those");
    setup.stream.stream_through(&setup.group, 4)?;
    assert_eq!(setup.resident()?, KEPT.0);
    aging.end()?;
    Ok(())
}

/// The same while no reader takes its lines: the upkeep of locked pages waits for no terminal.
fn pins_go_though_nobody_takes_its_lines(_: &Host) -> Outcome {
    /// The first line fits, the next does not.
    const ROOM: usize = 200;
    let setup = Setup::make()?;
    let folder = Folder::make("aging-blocked")?;
    let lines = folder.0.join("lines");
    rustix::fs::mknodat(rustix::fs::CWD, &lines, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let mut fifo = fs::File::options().read(true).write(true).open(&lines)?;
    rustix::pipe::fcntl_setpipe_size(&fifo, 4096)?;
    fifo.write_all(&[b' '; 4096 - ROOM])?;
    let mut command = masu()?;
    command.args(["aging", "--rodata", "100", "--pid", &own_pid(), "--json", "--report"]).arg(&lines);
    let running = Running::start(&mut command)?;
    // It is blocked in write(2), which is system call 1.
    let is_writing =
        || fs::read_to_string(format!("/proc/{}/syscall", running.pid())).is_ok_and(|call| call.starts_with("1 "));
    let mut seen = 0;
    wait_until("it waits for a reader", || {
        seen = if is_writing() { seen + 1 } else { 0 };
        seen == 20
    })?;
    let mut process = TargetProcess::start()?;
    setup.group.take_in(process.pid())?;
    let heap = process.map(Backing::Anonymous, (LIMIT - (24 << 20)) / (2 << 20))?;
    process.write(heap.all(), 7)?;
    process.check(heap.all(), 7)?;
    assert!(is_writing());
    assert_eq!(setup.group.killed()?, 0);
    let reader = std::thread::spawn(move || {
        let (mut text, mut part) = (String::new(), [0; 4096]);
        while !text.contains("\"end\":true") {
            let Ok(length) = fifo.read(&mut part) else { break };
            text.push_str(&String::from_utf8_lossy(&part[..length]));
        }
        text
    });
    running.signal(Signal::INT)?;
    assert_eq!(running.said()?.code(), 0);
    let text = reader.join().map_err(|_| "the reader failed")?;
    assert!(text.contains("\"event\":\"let_go\""), "{text}");
    Ok(())
}

/// Ctrl-Z first unlocks all pages; after `fg` they are locked again.
fn pins_go_before_masu_is_stopped(_: &Host) -> Outcome {
    let _setup = Setup::make()?;
    let mut masu = masu()?;
    // A job of ours, as a shell would start it.
    masu.process_group(0);
    let aging = Aging::start_by(masu, &["--rodata", "100", "--pid", &own_pid()])?;
    aging.wait_for(|line| line["event"] == "pinned")?;
    aging.running.signal(Signal::TSTP)?;
    let line = aging.wait_for(|line| line["event"] == "let_go")?;
    assert!(line["why"] == "paused" && line["bytes"].as_u64() >= Some(KEPT.bytes().0), "{line}");
    wait_until("it stands still", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", aging.running.pid())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })?;
    aging.running.signal(Signal::CONT)?;
    wait_until("it pins again", || aging.lines().iter().filter(|line| line["event"] == "pinned").count() == 2)?;
    aging.end()?;
    Ok(())
}

/// Where no shell could continue it with `fg`, as with a command that ssh(1) starts on a terminal, Ctrl-Z stops
/// nothing: it locks pages again.
fn masu_is_not_stopped_where_nobody_could_continue_it(_: &Host) -> Outcome {
    let _setup = Setup::make()?;
    let mut masu = Command::new("setsid");
    masu.arg(programs::masu().ok_or("no masu")?);
    let aging = Aging::start_by(masu, &["--rodata", "100", "--pid", &own_pid()])?;
    aging.wait_for(|line| line["event"] == "pinned")?;
    for nth in 2..=3 {
        aging.running.signal(Signal::TSTP)?;
        wait_until("it pins again", || aging.lines().iter().filter(|line| line["event"] == "pinned").count() == nth)?;
    }
    aging.end()?;
    Ok(())
}

/// Locked memory never exceeds the budget, and a plan shows the amount beforehand.
fn no_more_is_pinned_than_the_budget_has(_: &Host) -> Outcome {
    let setup = Setup::make()?;
    let plan = json(&["aging", "--rodata", "100", "--pid", &own_pid(), "--budget", "16MiB", "--dry-run", "--json"])?;
    let wanted = plan["pins"][0]["pinned_bytes"].as_u64().ok_or("no amount")?;
    assert!(wanted >= KEPT.bytes().0 && plan["without_bytes"].as_u64() >= Some(wanted - (16 << 20)), "{plan}");
    let aging = Aging::start(&["--rodata", "100", "--pid", &own_pid(), "--budget", "16MiB"])?;
    let line = aging.wait_for(|line| line["event"] == "pinned")?;
    // `bytes` is the sum of all pages locked since the last line, including those that replaced unlocked ones.
    assert_eq!(line["pinned_bytes"].as_u64(), Some(16 << 20), "{line}");
    assert!(line["without_bytes"].as_u64() > Some(0), "{line}");
    drop(setup);
    aging.end()?;
    Ok(())
}

/// A file is unlocked when no process maps it any more because another file has taken its name.
fn a_file_that_was_replaced_is_let_go(_: &Host) -> Outcome {
    let setup = Setup::make()?;
    let aging = Aging::start(&["--mapped", "100", "--pid", &own_pid()])?;
    aging.wait_for(|line| line["event"] == "pinned")?;
    fs::remove_file(setup.kept.path())?;
    fs::write(setup.kept.path(), b"another")?;
    let Setup { kept, _mapped: mapped, .. } = setup;
    drop(mapped);
    let line = aging.wait_for(|line| line["event"] == "let_go")?;
    assert!(line["bytes"].as_u64() >= Some(KEPT.bytes().0), "{line}");
    // Without a lock of ours, clean pages without a user are dropped.
    let end = Instant::now() + TIME_LIMIT;
    while pages(&resident(&kept.file, ALL)?) > 0 && Instant::now() < end {
        drop_clean(&kept.file, ALL)?;
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(resident(&kept.file, ALL)?, []);
    aging.end()?;
    Ok(())
}

/// The run is over with the last of the named processes.
fn aging_ends_with_its_processes(_: &Host) -> Outcome {
    let mut owner = TargetProcess::start()?;
    let aging = Aging::start(&["--shared", "100", "--pid", &owner.pid().to_string()])?;
    owner.kill();
    let line = aging.wait_for(|line| line["end"] == true)?;
    assert!(line["run_us"].as_u64() > Some(0), "{line}");
    assert_eq!(aging.running.said()?.code(), 0);
    Ok(())
}

/// Shared memory is held as soon as it is there, by its frames; and when masu ends it is not.
fn shared_memory_is_pinned_and_let_go(_: &Host) -> Outcome {
    let mut owner = TargetProcess::start()?;
    let shared = owner.map(Backing::SharedAnonymous, 8)?;
    owner.write(shared.all(), 7)?;
    let pid = owner.pid().to_string();
    let locked = || -> Result<u64, libtest_mimic::Failed> {
        let report = json(&["census", "--exact", "--json", &pid])?;
        let classes = report["classes"].as_array().into_iter().flatten();
        let locked = classes.filter(|of| of["class"] == "shared").find_map(|of| of["locked_bytes"].as_u64());
        Ok(locked.ok_or("no shared memory")?)
    };
    let before = locked()?;
    let aging = Aging::start(&["--shared", "100", "--pid", &pid])?;
    let line = aging.wait_for(|line| line["event"] == "pinned")?;
    assert!(line["pinned_bytes"].as_u64() >= Some(16 << 20), "{line}");
    // Some frames wait a moment for the unevictable list.
    let now = locked()?;
    assert!(now >= before + (15 << 20), "{now} bytes are locked, {before} were");
    owner.check(shared.all(), 7)?;
    aging.end()?;
    let after = locked()?;
    assert!(after <= before + (1 << 20), "{after} bytes are locked, {before} were");
    Ok(())
}

/// Protected shared memory stays in memory while other memory of its cgroup is swapped.
fn shared_memory_that_is_to_stay_is_not_swapped(_: &Host) -> Outcome {
    let _swap = Swap::on(256 << 20)?;
    let group = Group::make("aging-shared")?;
    group.limit(LIMIT)?;
    let mut owner = TargetProcess::start()?;
    group.take_in(owner.pid())?;
    let shared = owner.map(Backing::SharedAnonymous, 16)?;
    owner.write(shared.all(), 7)?;
    let swapped = |pid: linux::Pid| -> Result<u64, libtest_mimic::Failed> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("SwapPss:")).ok_or("no SwapPss")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    let aging = Aging::start(&["--shared", "100", "--pid", &owner.pid().to_string()])?;
    aging.wait_for(|line| line["event"] == "pinned")?;
    let mut other = TargetProcess::start()?;
    group.take_in(other.pid())?;
    let heap = other.map(Backing::Anonymous, 136)?;
    other.write(heap.all(), 9)?;
    assert!(swapped(other.pid())? > 0, "there was no need to swap anything");
    assert_eq!(swapped(owner.pid())?, 0);
    owner.check(shared.all(), 7)?;
    aging.end()?;
    Ok(())
}

/// The protection level of data changes the weight of swapping (swappiness), which is restored at the end; after a
/// crash, at the next start.
fn the_weight_of_swapping_is_put_back(_: &Host) -> Outcome {
    let _swap = Swap::on(64 << 20)?;
    let setting = Path::new("/proc/sys/vm/swappiness");
    let read = || fs::read_to_string(setting).map(|text| text.trim().to_owned());
    let before = read()?;
    let aging = Aging::start(&["--data", "100"])?;
    let line = aging.wait_for(|line| line["event"] == "turned")?;
    assert_eq!((line["path"].as_str(), line["value"].as_str()), (Some("/proc/sys/vm/swappiness"), Some("0")));
    assert_eq!(read()?, "0");
    aging.end()?;
    assert_eq!(read()?, before);
    let aging = Aging::start(&["--data", "100"])?;
    aging.wait_for(|line| line["event"] == "turned")?;
    aging.kill()?;
    assert_eq!(read()?, "0");
    let next = said(&["facts", "--json"])?;
    assert!(next.err.contains(&format!("swappiness is {before} again")), "{}", next.err);
    assert_eq!(read()?, before);
    Ok(())
}

/// A group that is made meanwhile has the turned weight from the one above, until masu ends.
fn a_group_made_meanwhile_has_its_weight_in_the_end(_: &Host) -> Outcome {
    let _swap = Swap::on(64 << 20)?;
    let weight_of = |group: &Group| {
        let path = group.procs().with_file_name("memory.swappiness");
        path.exists().then(|| fs::read_to_string(path).map(|text| text.trim().to_owned())).transpose()
    };
    let before = Group::make("aging-before")?;
    let Some(normal) = weight_of(&before)? else {
        // Version 2 has no such weight: nothing is inherited.
        return Ok(());
    };
    let aging = Aging::start(&["--data", "100"])?;
    aging.wait_for(|line| line["event"] == "turned")?;
    let made = Group::make("aging-made")?;
    let turned = weight_of(&made)?;
    aging.end()?;
    assert_eq!((turned.as_deref(), weight_of(&made)?), (Some("0"), Some(normal.clone())));
    assert_eq!(weight_of(&before)?, Some(normal));
    Ok(())
}

/// An impossible request gets one line with the reason, and the remedy.
fn what_cannot_be_aged_is_named(_: &Host) -> Outcome {
    let cases: [(&[&str], i32, &str); 9] = [
        (&[], 2, "no level is given"),
        (&["--code", "101"], 2, "101: expected a number from 0"),
        (&["--code", "80-60"], 2, "80-60: expected a number from 0"),
        (&["--code", "100", "--cgroup", "no-such-group"], 2, "cannot find control group no-such-group"),
        (&["--code", "100", "--pid", "999999999"], 2, "999999999"),
        (&["--code", "100", "--budget", "9999GiB"], 2, "cannot mlock up to"),
        (&["--code", "100", "--budget", "10"], 2, "expected a part of the memory or a size"),
        (&["--cache", "0", "--", "no-such-command"], 127, "no such command"),
        (&["--cache", "0", "--cgroup", "a", "--pid", "1"], 2, "cannot be used with"),
    ];
    for (arguments, status, expected) in cases {
        let said = said(&[&["aging"], arguments].concat())?;
        assert_eq!(said.code(), status, "{arguments:?}: {}", said.err);
        assert!(said.first_line().contains(expected), "{arguments:?}: {}", said.err);
        assert!(said.err.lines().count() >= 2, "no way out is named: {}", said.err);
    }
    let first = Aging::start(&["--code", "100", "--pid", &own_pid()])?;
    let second = start(&["aging", "--code", "100"])?.said()?;
    assert_eq!(second.code(), 3, "another masu is at work");
    assert!(second.first_line().contains(&format!("(process {})", first.running.pid())), "{}", second.err);
    // A command that locks nothing may run beside it.
    let command = programs::masu().ok_or("the command is not built")?.display().to_string();
    let beside = said(&["aging", "--cache", "0", "--", &command, "--version"])?;
    assert_eq!((beside.code(), beside.err.as_str()), (0, ""));
    assert!(beside.out.starts_with("masu "), "{}", beside.out);
    first.end()?;
    Ok(())
}
