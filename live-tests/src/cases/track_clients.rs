//! The tracker and its clients, of every kind.

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Instant;

use contract::track::terms::{Terms, USUAL};
use contract::track::wire::{Answer, MOST_BYTES, Refused, Request, SHORT_BYTES};
use linux::message_socket::Connection;
use rustix::process::Signal;

use super::Outcome;
use super::programs::TIME_LIMIT;
use super::run::{Folder, Result};
use super::track::Tracker;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    track_clients requires [Root, MasuCommand, Shell, PageTableWalk, RemoteCollapse];
    garbage_closes_its_own_connection_only;
    what_cannot_be_served_is_refused_with_the_reason;
    a_thousand_clients_are_served;
    a_client_that_reads_no_answers_is_cut_off;
    a_tracker_that_cannot_listen_says_why;
};

fn connected(tracker: &Tracker) -> Result<Connection> {
    Ok(Connection::at(&tracker.socket())?)
}

fn ask(connection: &Connection, request: &Request<'_>) -> Result<Answer> {
    let mut message = [0; MOST_BYTES];
    let bytes = request.write(&mut message);
    connection.send(&message[..bytes], &[])?;
    let mut answer = [0; SHORT_BYTES];
    let (bytes, _) = connection.receive(&mut answer, TIME_LIMIT)?.ok_or("it was cut off")?;
    Answer::read(&answer[..bytes]).map_err(|_| "an answer that is none".into())
}

/// This process, watched by the tracker: another client is served.
fn is_served(tracker: &Tracker) -> Outcome {
    let mut other = Command::new("sleep").arg("60").spawn()?;
    let pid = i32::try_from(other.id())?;
    let connection = connected(tracker)?;
    let answer = ask(&connection, &Request::Register(Terms { pid, ..USUAL }));
    other.kill()?;
    other.wait()?;
    assert_eq!(answer?, Answer::Welcome);
    Ok(())
}

/// An invalid message closes its own connection, and no other.
fn garbage_closes_its_own_connection_only(_: &Host) -> Outcome {
    let mut tracker = Tracker::start(&[])?;
    let good = connected(&tracker)?;
    let mut other = Command::new("sleep").arg("60").spawn()?;
    let terms = Terms { pid: i32::try_from(other.id())?, ..USUAL };
    assert_eq!(ask(&good, &Request::Register(terms))?, Answer::Welcome);
    let mut space = [0; MOST_BYTES];
    let bytes = Request::Verdicts { generation: 9, first: 0, verdicts: &[2; 100] }.write(&mut space);
    let long = vec![7; MOST_BYTES + 1];
    let garbage: [&[u8]; 6] = [b"GET / HTTP/1.1\r\n\r\n", &[0], &[0xff; 64], &space[..bytes], &space[..5], &long];
    for message in garbage {
        let bad = connected(&tracker)?;
        bad.send(message, &[])?;
        assert!(bad.is_over_within(TIME_LIMIT), "{message:?} was taken");
    }
    // A descriptor that comes with it is closed.
    let bad = connected(&tracker)?;
    let folder = Folder::make("garbage")?;
    let file = std::fs::File::create(folder.0.join("file"))?;
    bad.send(b"hello", &[file.as_fd()])?;
    assert!(bad.is_over_within(TIME_LIMIT));
    assert!(matches!(ask(&good, &Request::Progress)?, Answer::Progress(_)));
    assert_eq!(ask(&good, &Request::Unregister)?, Answer::Bye);
    assert_eq!(ask(&good, &Request::Fetch)?, Answer::Refused(Refused::Unregistered));
    other.kill()?;
    other.wait()?;
    is_served(&tracker)?;
    let events = tracker.events()?;
    // Seven events are below the rate limit of one second.
    assert_eq!(events.iter().filter(|event| event["event"] == "cut-off").count(), 7, "{events:?}");
    Ok(())
}

/// Another version, values out of bounds, processes that are not there.
fn what_cannot_be_served_is_refused_with_the_reason(_: &Host) -> Outcome {
    let mut tracker = Tracker::start(&[])?;
    let connection = connected(&tracker)?;
    let refused = |terms: Terms| ask(&connection, &Request::Register(terms));
    assert_eq!(refused(Terms { period_ms: 1, ..USUAL })?, Answer::Refused(Refused::Terms));
    assert_eq!(refused(Terms { hot_rate: f64::NAN, ..USUAL })?, Answer::Refused(Refused::Terms));
    let mut ended = Command::new("true").spawn()?;
    ended.wait()?;
    assert_eq!(refused(Terms { pid: i32::try_from(ended.id())?, ..USUAL })?, Answer::Refused(Refused::Unfit));
    assert_eq!(refused(Terms { pid: 2, ..USUAL })?, Answer::Refused(Refused::Unfit));
    let mut space = [0; MOST_BYTES];
    let bytes = Request::Register(USUAL).write(&mut space);
    space[8..16].copy_from_slice(b"masu-t99");
    connection.send(&space[..bytes], &[])?;
    let mut answer = [0; SHORT_BYTES];
    let (bytes, _) = connection.receive(&mut answer, TIME_LIMIT)?.ok_or("cut off")?;
    assert_eq!(Answer::read(&answer[..bytes]), Ok(Answer::Refused(Refused::Version)));
    let said = tracker.end(Signal::INT)?;
    assert!(said.code() == 0 && said.err.contains("masu: cannot attach to process"), "{said:?}");
    Ok(())
}

/// They are accepted and answered, and cost nothing when they have gone.
fn a_thousand_clients_are_served(host: &Host) -> Outcome {
    let count = if host.has(crate::requirement::Requirement::RealProcessor) { 1000 } else { 100 };
    linux::open_files::raise();
    let mut tracker = Tracker::start(&["--max-programs", "10"])?;
    let clients = (0..count).map(|_| connected(&tracker)).collect::<Result<Vec<_>>>()?;
    for client in &clients {
        assert_eq!(ask(client, &Request::Fetch)?, Answer::Refused(Refused::Unregistered));
    }
    is_served(&tracker)?;
    drop(clients);
    let mut programs: Vec<_> =
        (0..12).map(|_| Command::new("sleep").arg("60").spawn()).collect::<std::io::Result<_>>()?;
    let mut answers = Vec::new();
    let mut held = Vec::new();
    for program in &programs {
        let client = connected(&tracker)?;
        answers.push(ask(&client, &Request::Register(Terms { pid: i32::try_from(program.id())?, ..USUAL })));
        held.push(client);
    }
    // A program that ends is forgotten, and leaves its place to another.
    programs[0].kill()?;
    programs[0].wait()?;
    assert!(held[0].is_over_within(TIME_LIMIT), "an ended program was not forgotten");
    let pid = i32::try_from(programs[11].id())?;
    answers.push(ask(&held[11], &Request::Register(Terms { pid, ..USUAL })));
    for program in &mut programs {
        program.kill()?;
        program.wait()?;
    }
    let answers = answers.into_iter().collect::<Result<Vec<_>>>()?;
    assert_eq!(answers[..10], [Answer::Welcome; 10]);
    assert_eq!(answers[10..12], [Answer::Refused(Refused::TooMany); 2]);
    assert_eq!(answers[12], Answer::Welcome);
    drop(held);
    tracker.end(Signal::INT)?;
    Ok(())
}

/// It is cut off; others do not wait for it.
fn a_client_that_reads_no_answers_is_cut_off(_: &Host) -> Outcome {
    let mut tracker = Tracker::start(&[])?;
    let deaf = connected(&tracker)?;
    let mut message = [0; MOST_BYTES];
    let bytes = Request::Progress.write(&mut message);
    let end = Instant::now() + TIME_LIMIT;
    while deaf.send_at_once(&message[..bytes], &[]) != Err(rustix::io::Errno::PIPE) {
        assert!(Instant::now() < end, "it is served still");
    }
    is_served(&tracker)?;
    tracker.end(Signal::INT)?;
    Ok(())
}

/// One line each, with the remedy.
fn a_tracker_that_cannot_listen_says_why(_: &Host) -> Outcome {
    let mut tracker = Tracker::start(&[])?;
    let socket = tracker.socket();
    let second = |path: &std::path::Path| -> Result<String> {
        let said = super::run::said(super::command::masu()?.args(["track", "--socket"]).arg(path))?;
        assert_eq!(said.code(), 2, "{said:?}");
        assert_eq!(said.err.lines().count(), 2, "{said:?}");
        Ok(said.err)
    };
    assert!(second(&socket)?.contains("another process listens there"));
    assert!(second(std::path::Path::new("/no/such/folder/track.sock"))?.contains("no such file or directory (ENOENT)"));
    assert!(tracker.running()?.pid() > 0);
    is_served(&tracker)?;
    tracker.end(Signal::INT)?;
    assert!(!socket.exists());
    Ok(())
}
