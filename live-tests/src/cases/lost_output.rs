//! Output that cannot be written, and readers that go away: the program's status stays, and nothing stops without a word.
//!
//! | command | full disk | reader has gone |
//! |---|---|---|
//! | starts a program (`run`, `aging -- COMMAND`) | the program's status | the program's status |
//! | only reports | status 2, and the reason | a normal end, status 0 |
//! | works, and reports at its end (`attach`, `set`) | status 1, and the reason | a normal end, status 0 |
//! | works (`aging`, `llc run`, `track`) | goes on; status 1, and the reason | the same |

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::Outcome;
use super::command::masu;
use super::programs::{Running, Said};
use super::redis::wait_until;
use super::run::{Folder, Result, run};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    lost_output requires [Root, MasuCommand];
    the_status_of_a_program_stays_whatever_becomes_of_the_report [PreloadLibrary, HugePageModes, Shell];
    the_status_of_a_command_beside_aging_stays [PageTableWalk, DiskFiles, Shell];
    a_command_that_only_reports_ends_with_its_reader [PageFrames, PageTableWalk, RemoteCollapse, RemoteAdvice];
    work_is_done_in_part_without_its_report [PageTableWalk, RemoteCollapse, RemoteAdvice];
    aging_goes_on_without_its_reader [PageFrames];
    tracking_goes_on_without_its_reader [PageTableWalk, RemoteCollapse, RemoteAdvice, HugePageModes];
};

const FULL: &str = "no space left on device (ENOSPC)";
const GONE: &str = "broken pipe (EPIPE)";

/// A destination of output that takes nothing, and the kernel's answer.
fn destinations() -> Result<[(OwnedFd, &'static str); 2]> {
    let full = File::options().write(true).open("/dev/full")?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    drop(reader);
    Ok([(full.into(), FULL), (writer, GONE)])
}

fn start(command: &mut Command, out: OwnedFd) -> Result<Running> {
    Ok(Running(command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).spawn()?))
}

/// With each kind of report and each way of serving; also if its folder is removed meanwhile.
fn the_status_of_a_program_stays_whatever_becomes_of_the_report(_: &Host) -> Outcome {
    const PROGRAM: [&str; 3] = ["/bin/sh", "-c", "exit 7"];
    for how in ["touch", "off", "hot"] {
        for json in [&[][..], &["--json"]] {
            let file = [&["--huge", how, "--report", "/dev/full"][..], json].concat();
            let said = Running::start(&mut run(&file, &PROGRAM)?)?.said()?;
            assert_eq!((said.code(), said.out.as_str()), (7, ""), "{how} {json:?}");
            assert!(
                said.err.contains(&format!("masu: cannot write the report: {FULL}\n")),
                "{how} {json:?}: {}",
                said.err
            );
            for (to, why) in destinations()? {
                let mut command = run(&[&["--huge", how, "--report", "-"][..], json].concat(), &PROGRAM)?;
                let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(to).status()?;
                assert_eq!(status.code(), Some(7), "{how} {json:?} {why}");
            }
        }
    }
    let folder = Folder::make("lost-output")?;
    let (report, gone) = (folder.0.join("gone/report"), folder.0.join("gone"));
    std::fs::create_dir(&gone)?;
    let remove = format!("rm -r '{}'; exit 7", gone.display());
    let report = report.display().to_string();
    let said = Running::start(&mut run(&["--report", &report], &["/bin/sh", "-c", &remove])?)?.said()?;
    assert_eq!((said.code(), said.out.as_str()), (7, ""), "{said:?}");
    assert!(!gone.exists(), "masu makes no folder");
    Ok(())
}

fn the_status_of_a_command_beside_aging_stays(_: &Host) -> Outcome {
    let tail = ["--", "/bin/sh", "-c", "exit 7"];
    let aging = |options: &[&str]| -> Result<Command> {
        let mut command = masu()?;
        command.args(["aging", "--cache", "0"]).args(options).args(tail);
        Ok(command)
    };
    let said = Running::start(&mut aging(&["--report", "/dev/full"])?)?.said()?;
    let line = format!("masu: cannot write the lines any more: {FULL}; aging goes on without them\n");
    assert_eq!((said.code(), said.err), (7, line));
    for options in [&["--json"][..], &["--report", "-"]] {
        for (to, why) in destinations()? {
            let status = aging(options)?.stdin(Stdio::null()).stdout(Stdio::null()).stderr(to).status()?;
            assert_eq!(status.code(), Some(7), "{options:?} {why}");
        }
    }
    Ok(())
}

fn a_command_that_only_reports_ends_with_its_reader(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 4)?;
    process.write(heap.all().every(2), 7)?;
    let pid = process.pid().to_string();
    let tasks: [&[&str]; 12] = [
        &["pages", &pid, "--for", "50ms"],
        &["pages", &pid, "--for", "50ms", "--json"],
        &["stat", &pid],
        &["stat", &pid, "--json"],
        &["attach", &pid, "--dry-run"],
        &["census", "--watch", "100ms"],
        &["census", "--watch", "100ms", "--json"],
        &["llc", "shared"],
        &["llc", "shared", "--watch", "100ms"],
        &["aging", "--mapped", "100", "--pid", &pid, "--dry-run"],
        &["aging", "--cache", "0", "--dry-run", "--", "/proc/self/exe"],
        &["facts"],
    ];
    for task in tasks {
        for (to, why) in destinations()? {
            let said = start(masu()?.args(task), to)?.said()?;
            let expected = match (why, task.contains(&"--")) {
                (GONE, _) => (0, String::new()),
                // The command was not started.
                (_, true) => (125, format!("masu: cannot write the output: {FULL}\n")),
                (_, false) => (2, format!("masu: cannot write the output: {FULL}\n")),
            };
            assert_eq!((said.code(), said.err), expected, "{task:?} {why}");
        }
    }
    Ok(())
}

fn work_is_done_in_part_without_its_report(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    for task in
        [&["attach", &pid, "--for", "200ms"][..], &["set", &pid, "huge=off"], &["set", &pid, "huge=on", "--json"]]
    {
        for (to, why) in destinations()? {
            let said = start(masu()?.args(task), to)?.said()?;
            let expected = match why {
                GONE => (0, String::new()),
                _ => (1, format!("masu: cannot write the report: {FULL}\n")),
            };
            assert_eq!((said.code(), said.err), expected, "{task:?} {why}");
        }
    }
    Ok(())
}

/// Work without its lines: one line on standard error, and status 1.
fn goes_on(said: &Said, work: &str, why: &str) {
    let line = format!("masu: cannot write the lines any more: {why}; {work} goes on without them\n");
    assert_eq!((said.code(), said.err.as_str()), (1, line.as_str()));
}

fn aging_goes_on_without_its_reader(_: &Host) -> Outcome {
    let process = TargetProcess::start()?;
    let pid = process.pid().to_string();
    for json in [&[][..], &["--json"]] {
        for (to, why) in destinations()? {
            let mut command = masu()?;
            command.args(["aging", "--code", "100", "--pid", &pid, "--for", "300ms"]).args(json);
            let begun = std::time::Instant::now();
            goes_on(&start(&mut command, to)?.said()?, "aging", why);
            assert!(begun.elapsed().as_millis() >= 300, "it ended early");
        }
    }
    Ok(())
}

fn tracking_goes_on_without_its_reader(_: &Host) -> Outcome {
    let folder = Folder::make("lost-output")?;
    for json in [&[][..], &["--json"]] {
        for (to, why) in destinations()? {
            let socket = folder.0.join("socket");
            let mut command = masu()?;
            command.arg("track").arg("--socket").arg(&socket).args(json);
            let mut running = start(&mut command, to)?;
            wait_until("the tracker listens", || socket.exists())?;
            // The first line is lost at the start.
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert!(running.0.try_wait()?.is_none(), "{why}: it ended");
            running.signal(Signal::TERM)?;
            goes_on(&running.said()?, "masu track", why);
        }
    }
    Ok(())
}
