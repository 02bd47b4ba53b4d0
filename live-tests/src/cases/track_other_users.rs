//! The tracker among users who do not trust each other.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use contract::track::wire::{Answer, Refused};
use rustix::process::Signal;

use super::Outcome;
use super::programs::{Running, TIME_LIMIT};
use super::run::{Folder, Result, own};
use super::track::Tracker;
use crate::host::{Host, LiveTest, tests};
use crate::program::FLAG;

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    track_other_users requires [Root, MasuCommand, PageTableWalk, RemoteCollapse];
    another_process_is_watched_for_whom_the_kernel_lets_inspect_it;
    a_program_that_became_privileged_is_not_watched_for_who_started_it;
    a_crowd_makes_way_for_who_has_nothing;
    connecting_and_leaving_all_the_time_keeps_nobody_out;
};

const A_USER: &str = "4001";
const ANOTHER: &str = "4002";

/// One of the programs of `program/other_users.rs`, and the first line that it printed. It ends with this value.
struct OtherProcess {
    running: Running,
    said: String,
}

impl OtherProcess {
    fn start(arguments: &[&str]) -> Result<OtherProcess> {
        let starting = OtherProcess::spawn(arguments)?;
        starting.first_line()
    }

    fn spawn(arguments: &[&str]) -> Result<Running> {
        let mut command = Command::new(own()?);
        command.arg(FLAG).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Running(command.spawn()?))
    }

    fn pid(&self) -> String {
        self.running.pid().to_string()
    }
}

trait Starting {
    fn first_line(self) -> Result<OtherProcess>;
}

impl Starting for Running {
    fn first_line(mut self) -> Result<OtherProcess> {
        let mut said = String::new();
        BufReader::new(self.0.stdout.take().ok_or("no output")?).read_line(&mut said)?;
        Ok(OtherProcess { running: self, said: said.trim().to_owned() })
    }
}

fn answered(answer: Answer) -> String {
    format!("answer={answer:?}")
}

const REFUSED: Answer = Answer::Refused(Refused::NotYours);

/// The kernel's permission to inspect a process decides on the right to have it watched.
fn another_process_is_watched_for_whom_the_kernel_lets_inspect_it(_: &Host) -> Outcome {
    let mut tracker = Tracker::start(&[])?;
    let socket = tracker.socket().display().to_string();
    let others = OtherProcess::start(&["target", ANOTHER, "open"])?;
    let own = OtherProcess::start(&["target", "root-without-capabilities", "open"])?;
    let closed = OtherProcess::start(&["target", "root-without-capabilities", "closed"])?;
    let cases = [
        ("root-without-capabilities", &others, REFUSED),
        ("root-without-capabilities", &closed, REFUSED),
        ("root-without-capabilities", &own, Answer::Welcome),
        ("root-of-a-namespace", &others, REFUSED),
        ("root-of-a-namespace", &closed, REFUSED),
        (A_USER, &others, REFUSED),
        (ANOTHER, &others, REFUSED),
        ("root-with-ptrace", &others, Answer::Welcome),
        ("root-with-ptrace", &closed, Answer::Welcome),
        ("root", &others, Answer::Welcome),
    ];
    for (who, target, expected) in cases {
        let mut asks = OtherProcess::start(&["register", who, &socket, &target.pid()])?;
        assert_eq!(asks.said, answered(expected), "{who}");
        drop(asks.running.0.stdin.take());
        asks.running.0.wait()?;
    }
    let said = tracker.end(Signal::INT)?;
    let line = format!("cannot attach to process {}: user 0, who asks for it, may not inspect it", others.pid());
    assert!(said.err.contains(&line), "{}", said.err);
    Ok(())
}

/// A connection that a privileged program inherits does not give its pages to the maker of the connection.
fn a_program_that_became_privileged_is_not_watched_for_who_started_it(_: &Host) -> Outcome {
    let mut tracker = Tracker::start(&[])?;
    let socket = tracker.socket().display().to_string();
    let folder = Folder::make("privileged")?;
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755))?;
    let privileged = folder.0.join("privileged");
    std::fs::copy(own()?, &privileged)?;
    std::fs::set_permissions(&privileged, std::fs::Permissions::from_mode(0o4755))?;
    let asks = OtherProcess::start(&["inherit", A_USER, &socket, &privileged.display().to_string()])?;
    assert_eq!(asks.said, format!("user=0 {}", answered(REFUSED)));
    tracker.end(Signal::INT)?;
    Ok(())
}

/// Eight users hold the maximum number of connections; a ninth, who has none, and root are served at once.
fn a_crowd_makes_way_for_who_has_nothing(host: &Host) -> Outcome {
    let count = if host.has(crate::requirement::Requirement::RealProcessor) { "1024" } else { "100" };
    linux::open_files::raise();
    let mut tracker = Tracker::start(&[])?;
    let socket = tracker.socket().display().to_string();
    let users: Vec<String> = (5000..5008).map(|user| user.to_string()).collect();
    let starting = users.iter().map(|user| OtherProcess::spawn(&["track-clients", user, &socket, count]));
    let starting = starting.collect::<Result<Vec<_>>>()?;
    let clients = starting.into_iter().map(Starting::first_line).collect::<Result<Vec<_>>>()?;
    assert!(
        clients.iter().all(|one| one.said == format!("connected={count}")),
        "{:?}",
        clients.first().map(|one| &one.said)
    );
    for who in [A_USER, "root", "root-without-capabilities"] {
        let asks = OtherProcess::start(&["register", who, &socket, "0"])?;
        assert_eq!(asks.said, answered(Answer::Welcome), "{who}");
    }
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", tracker.running()?.pid()))?.count();
    assert!(u64::try_from(descriptors)? < linux::open_files::limit(), "{descriptors}");
    drop(clients);
    assert_eq!(tracker.end(Signal::INT)?.code(), 0);
    Ok(())
}

/// Others' programs are served while one user connects and leaves as fast as it can.
fn connecting_and_leaving_all_the_time_keeps_nobody_out(_: &Host) -> Outcome {
    let mut tracker = Tracker::start(&[])?;
    let socket = tracker.socket();
    let over = std::sync::atomic::AtomicBool::new(false);
    let connect = || {
        while !over.load(std::sync::atomic::Ordering::Relaxed) {
            let _ = linux::message_socket::Connection::at(Path::new(&socket));
        }
    };
    std::thread::scope(|scope| -> Outcome {
        scope.spawn(connect);
        let begun = Instant::now();
        let asked = OtherProcess::start(&["register", A_USER, &socket.display().to_string(), "0"]);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(asked?.said, answered(Answer::Welcome));
        assert!(begun.elapsed() < TIME_LIMIT);
        Ok(())
    })?;
    assert_eq!(tracker.end(Signal::INT)?.code(), 0);
    Ok(())
}
