//! Programs that choose their names: no name controls the terminal, forges a line or breaks the JSON of masu's output.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use contract::track::terms::{Terms, USUAL};
use contract::track::wire::{Answer, MOST_BYTES, Request, SHORT_BYTES};
use linux::message_socket::Connection;
use rustix::process::Signal;

use super::command::masu;
use super::llc_run::{Place, config};
use super::llc_shared::{Merging, until};
use super::programs::{Running, Said, TIME_LIMIT};
use super::run::{Folder, Result, own};
use super::{Outcome, no_automatic_huge_pages};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};
use crate::program;
use crate::program::names::CODE;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    hostile_names requires [Root, MasuCommand];
    no_name_of_a_process_or_a_file_reaches_the_terminal_as_it_is [PageFrames, PageTableWalk, RemoteCollapse, RemoteAdvice, HugePageModes];
    no_name_of_a_client_reaches_the_terminal_as_it_is [PageTableWalk, RemoteCollapse, RemoteAdvice];
    no_name_of_a_group_or_a_pinned_file_reaches_the_terminal_as_it_is [PageFrames, MemoryGroups, DiskFiles];
    no_name_of_a_sharer_reaches_the_terminal_as_it_is [PageFrames, Ksm, MemoryGroups, Fuse, ResctrlEmulator, HugePageModes];
};

/// Command names of the programs, as masu shows them.
const COMM_SHOWN: &str = r"\x1b]0;own\x07\x0aPID\xff\\";
/// File name that the programs are started by.
const PROGRAM: &[u8] = b"exe\x1b[2J\nforged\xff";

/// Two programs, in a group of such a name: the first runs all the time, the second sleeps most of it.
struct Hostile {
    programs: Vec<Running>,
    group: Option<Group>,
    folder: Folder,
}

impl Hostile {
    fn start(name: &str, group: Option<Group>) -> Result<Hostile> {
        let folder = Folder::make(name)?;
        let program = folder.0.join(OsStr::from_bytes(PROGRAM));
        // The program's own file has the name then; where it cannot be linked, a copy has.
        let own = own()?;
        fs::hard_link(&own, &program).or_else(|_| fs::copy(&own, &program).map(drop))?;
        let mut hostile = Hostile { programs: Vec::new(), group, folder };
        for how in ["spin", "sleep"] {
            let mut command = Command::new(hostile.program());
            command.arg0(OsStr::from_bytes(PROGRAM)).args(hostile.words()).arg(how);
            let mut running = Running::start(&mut command)?;
            if let Some(group) = &hostile.group {
                group.take_in(linux::Pid(running.pid()))?;
            }
            let mut line = String::new();
            BufReader::new(running.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
            assert_eq!(line, "ready\n");
            hostile.programs.push(running);
        }
        Ok(hostile)
    }

    fn program(&self) -> PathBuf {
        self.folder.0.join(OsStr::from_bytes(PROGRAM))
    }

    fn words(&self) -> Vec<OsString> {
        vec![program::FLAG.into(), "names".into(), self.folder.0.clone().into(), OsStr::from_bytes(CODE).into()]
    }

    fn pid(&self) -> String {
        self.programs[0].pid().to_string()
    }

    /// Runs the command in text and in JSON, both checked; returns the text output.
    fn both(&self, arguments: &[&str]) -> Result<String> {
        let json = said(masu()?.args(arguments).arg("--json"))?;
        check_json(&json.out, &arguments)?;
        Ok(said(masu()?.args(arguments))?.out)
    }
}

/// Runs it to its end, with status 0.
fn said(command: &mut Command) -> Result<Said> {
    let said = Running::start(command)?.said()?;
    assert_eq!(said.code(), 0, "{command:?}: {said:?}");
    check(&said.out, command);
    check(&said.err, command);
    Ok(said)
}

/// Checks for control characters except the newline, invisible characters, bytes that are no text, and lines of the
/// program's making.
fn check(text: &str, of: &impl std::fmt::Debug) {
    let unseen = |letter: char| {
        (letter.is_control() && letter != '\n')
            || matches!(letter, '\u{fffd}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    assert!(!text.contains(unseen), "{of:?}: {text:?}");
    let forged = text.lines().find(|line| ["PID", "forged"].iter().any(|start| line.trim_start().starts_with(start)));
    assert_eq!(forged, None, "{of:?}: {text}");
}

fn check_json(text: &str, of: &impl std::fmt::Debug) -> Outcome {
    assert!(!text.is_empty(), "{of:?}");
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).map_err(|error| format!("{of:?}: {error}: {line}"))?;
    }
    Ok(())
}

fn has(text: &str, what: &str) {
    assert!(text.contains(what), "no {what} in {text}");
}

/// All commands that inspect a process, or change it.
fn no_name_of_a_process_or_a_file_reaches_the_terminal_as_it_is(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let hostile = Hostile::start("names", None)?;
    let pid = hostile.pid();
    hostile.both(&["facts"])?;
    let pages = hostile.both(&["pages", &pid, "--for", "100ms", "--all", "--runs"])?;
    has(&pages, COMM_SHOWN);
    // The kernel has escaped a newline, so there is a backslash.
    has(&pages, r"/lib\x1b]0;pwned\x07\x1b[31mRED\\012PID 1 root: forged line\x0d.so");
    has(&pages, r"/data\xff\xfe\xc2\x9b31m\xe2\x80\xae\x1b[2J\x7f.bin");
    has(&pages, r"/gone\x1b[2J\\012forged (deleted)");
    has(&pages, r"/memfd:mfd\x1b]0;pwned\x07\\012forged (deleted)");
    has(&pages, r"/exe\x1b[2J\\012forged\xff");
    has(&hostile.both(&["stat"])?, COMM_SHOWN);
    has(&hostile.both(&["stat", &pid])?, COMM_SHOWN);
    has(&hostile.both(&["census", &pid])?, COMM_SHOWN);
    // `huge=off` takes a call that the process makes, by the vdso's instruction. The program that runs has no other.
    for running in &hostile.programs {
        for how in ["huge=on", "huge=off", "huge=on"] {
            has(&hostile.both(&["set", &running.pid().to_string(), how])?, COMM_SHOWN);
        }
    }
    has(&hostile.both(&["attach", "--dry-run", &pid])?, COMM_SHOWN);
    has(&hostile.both(&["attach", "--for", "300ms", &pid])?, COMM_SHOWN);
    // As its parent sees it.
    let report = hostile.folder.0.join("report");
    for format in [&["--json"][..], &[]] {
        let mut command = masu()?;
        command.args(["run", "--huge", "off", "--report"]).arg(&report).args(format).arg("--").arg(hostile.program());
        said(command.args(hostile.words()).arg("once"))?;
        let text = fs::read_to_string(&report)?;
        check(&text, &command);
        if format.is_empty() { has(&text, "masu: ") } else { check_json(&text, &command)? }
    }
    Ok(())
}

/// A client of the tracker, in the tracker's output.
fn no_name_of_a_client_reaches_the_terminal_as_it_is(_: &Host) -> Outcome {
    let hostile = Hostile::start("names-track", None)?;
    let socket = hostile.folder.0.join("track.sock");
    for format in [&["--json"][..], &[]] {
        let running = Running::start(masu()?.args(["track", "--socket"]).arg(&socket).args(format))?;
        let deadline = Instant::now() + TIME_LIMIT;
        let connection = loop {
            match Connection::at(&socket) {
                Ok(connection) => break connection,
                Err(_) => assert!(Instant::now() < deadline, "the tracker does not listen"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut message = [0; MOST_BYTES];
        let bytes = Request::Register(Terms { pid: hostile.programs[0].pid(), ..USUAL }).write(&mut message);
        connection.send(&message[..bytes], &[])?;
        let mut answer = [0; SHORT_BYTES];
        let (bytes, _) = connection.receive(&mut answer, TIME_LIMIT)?.ok_or("it was cut off")?;
        assert_eq!(Answer::read(&answer[..bytes]), Ok(Answer::Welcome));
        running.signal(Signal::INT)?;
        let said = running.said()?;
        assert_eq!(said.code(), 0, "{said:?}");
        check(&said.out, &format);
        check(&said.err, &format);
        if format.is_empty() { has(&said.out, COMM_SHOWN) } else { check_json(&said.out, &format)? }
    }
    Ok(())
}

/// A group whose name would turn the direction of writing.
fn group() -> std::io::Result<Group> {
    Group::make("\u{1b}[2J\u{9b}31m\u{202e}\r\\")
}

const GROUP_SHOWN: &str = r"\x1b[2J\xc2\x9b31m\xe2\x80\xae\x0d\\";

/// Names of locked files, of plans, and of a cgroup's counts.
fn no_name_of_a_group_or_a_pinned_file_reaches_the_terminal_as_it_is(_: &Host) -> Outcome {
    let hostile = Hostile::start("names-aging", Some(group()?))?;
    let name = hostile.group.as_ref().ok_or("no group")?.name();
    hostile.both(&["census", "--cgroup", &name])?;
    hostile.both(&["aging", "--mapped", "100", "--cgroup", &name, "--dry-run"])?;
    hostile.both(&["aging", "--mapped", "100", "--cgroup", &name, "--budget", "64MiB", "--for", "500ms"])?;
    Ok(())
}

/// Names of sharing processes, of programs in the partitions, and of unmanaged groups.
fn no_name_of_a_sharer_reaches_the_terminal_as_it_is(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _merging = Merging::start()?;
    let hostile = Hostile::start("names-llc", Some(group()?))?;
    let pids: Vec<String> = hostile.programs.iter().map(|running| running.pid().to_string()).collect();
    until("pages merged", || {
        for pid in &pids {
            if fs::read_to_string(format!("/proc/{pid}/ksm_merging_pages"))?.trim() == "0" {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    let shared = hostile.both(&["llc", "shared", "--pid", &pids[0], "--pid", &pids[1]])?;
    has(&shared, COMM_SHOWN);
    has(&shared, GROUP_SHOWN);
    hostile.both(&["llc", "shared", "--domain", "uid"])?;
    let place = Place::make(&[])?;
    fs::create_dir(place.emulator.root().join("g\u{1b}[2J\u{9b}31m\u{202e}"))?;
    let programs = [("one", format!("pids = [{}]", pids[0])), ("two", format!("pids = [{}]", pids[1]))];
    let arguments = place.with(&config(&programs).replace("domain = \"live\"\n", ""))?;
    let with = |words: &[&'static str]| [words, &arguments.each_ref().map(String::as_str)].concat();
    hostile.both(&with(&["llc", "plan"]))?;
    hostile.both(&with(&["llc", "plan", "--dry-run"]))?;
    hostile.both(&with(&["llc", "run", "--for", "700ms"]))?;
    Ok(())
}
