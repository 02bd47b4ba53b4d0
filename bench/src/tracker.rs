//! A private `masu track` on its own socket, and its output while it runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tempfile::TempDir;
use units::cast::fits;

use crate::children::OwnChild;
use crate::masu::Masu;
use crate::process::processor_time_closely;
use crate::session::Session;
use crate::stop::Stop;

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Time of reading its line, by the monotonic clock.
    pub read_ns: u64,
    /// Time since the tracker's start, by its own clock.
    pub at_s: f64,
    /// All fields of the event.
    pub said: Value,
}

impl Event {
    /// Name of the event.
    pub fn name(&self) -> &str {
        self.said["event"].as_str().unwrap_or_default()
    }

    /// True when it is called `name` and is about the process `pid`.
    pub fn is(&self, name: &str, pid: u32) -> bool {
        self.name() == name && self.said["pid"] == pid
    }
}

/// A running tracker. It ends when dropped.
#[derive(Debug)]
pub struct Tracker {
    // Dropped in this order: the program ends before its folder goes.
    child: OwnChild,
    folder: TempDir,
    events: Arc<Mutex<Vec<Event>>>,
    reader: Option<JoinHandle<()>>,
}

/// Time limit for probing the host and for listening.
const START_LIMIT: Duration = Duration::from_secs(30);

impl Tracker {
    /// Starts one with further `options` of `masu track`, and waits until it listens.
    ///
    /// # Errors
    /// When it cannot be started or refuses its options.
    pub fn start(masu: &Masu, options: &[&str], session: &Session) -> Result<Tracker> {
        Tracker::start_in(Tracker::folder()?, masu, options, session)
    }

    /// A folder for one that is started later; [`socket_in`] returns its future socket.
    ///
    /// # Errors
    /// When there can be none.
    pub fn folder() -> Result<TempDir> {
        TempDir::with_prefix("masu-bench-track-").context("cannot create a folder for the tracker")
    }

    /// As [`Tracker::start`], with a folder that is there already.
    ///
    /// # Errors
    /// When it cannot be started or refuses its options.
    pub fn start_in(folder: TempDir, masu: &Masu, options: &[&str], session: &Session) -> Result<Tracker> {
        let mut child = masu.track(&socket_in(folder.path()), options, &session.processors)?;
        let line = child.line(START_LIMIT, &session.stop)?;
        let first: Value = serde_json::from_str(&line).with_context(|| format!("masu track said `{line}`"))?;
        if first["event"] != "listening" {
            bail!("masu track said `{line}` instead of that it listens");
        }
        let events = Arc::new(Mutex::new(Vec::new()));
        let (lines, kept) = (child.take_lines(), Arc::clone(&events));
        let reader = thread::spawn(move || {
            for line in lines {
                let read_ns = monotonic_ns();
                if let Ok(said) = serde_json::from_str::<Value>(&line) {
                    let at_s = said["at_s"].as_f64().unwrap_or(0.0);
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push(Event { read_ns, at_s, said });
                }
            }
        });
        Ok(Tracker { child, folder, events, reader: Some(reader) })
    }

    /// Path of its socket.
    pub fn socket(&self) -> PathBuf {
        socket_in(self.folder.path())
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Events up to now.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Time of the event that the process `pid` has settled, by the monotonic clock; `None` before.
    pub fn settled_ns(&self, pid: u32) -> Option<u64> {
        settled_ns(&self.events(), pid)
    }

    /// Processor time that it has used.
    ///
    /// # Errors
    /// When it has ended.
    pub fn processor_time(&self) -> Result<Duration> {
        processor_time_closely(self.pid()).context("masu track has ended")
    }

    /// Ends it, and returns all its events.
    ///
    /// # Errors
    /// When it failed, does not end, or we are interrupted.
    pub fn finish(self, stop: &Stop) -> Result<Vec<Event>> {
        let Tracker { mut child, folder: _folder, events, mut reader } = self;
        child.signal(Signal::INT);
        let ended = child.finish(Duration::from_secs(30), stop)?;
        // The tracker's end of the pipe is closed: the reader has come to the end.
        let _ = reader.take().map(JoinHandle::join);
        if !ended.status.success() {
            bail!("masu track failed: {}", ended.errors.last().map_or("no message", String::as_str));
        }
        let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(events)
    }
}

/// A program that settled and did not stay so counts from its last settling on.
fn settled_ns(events: &[Event], pid: u32) -> Option<u64> {
    let rounds = events.iter().rev().filter(|event| event.is("round", pid));
    rounds.take_while(|event| event.said["settled_s"].is_number()).last().map(|event| event.read_ns)
}

/// Socket of a tracker with this folder.
pub fn socket_in(folder: &Path) -> PathBuf {
    folder.join("track.sock")
}

/// The clock of `CLOCK_MONOTONIC`, which programs of ours stamp by, too.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    fits::<_, u64>(time.tv_sec) * 1_000_000_000 + fits::<_, u64>(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_known_by_its_name_and_its_process() {
        let event = Event { read_ns: 1, at_s: 0.5, said: json!({ "event": "round", "pid": 7, "at_s": 0.5 }) };
        assert!(event.is("round", 7) && !event.is("round", 8) && !event.is("notified", 7));
    }

    #[test]
    fn a_program_has_settled_when_it_stays_so() {
        let round = |read_ns, settled_s: Value| {
            let said = json!({ "event": "round", "pid": 7, "settled_s": settled_s });
            Event { read_ns, at_s: 0.0, said }
        };
        let other = Event { said: json!({ "event": "round", "pid": 8, "settled_s": null }), ..round(9, Value::Null) };
        let mut events =
            vec![round(1, json!(0.5)), round(2, Value::Null), round(3, json!(3.0)), other, round(4, json!(3.0))];
        assert_eq!(settled_ns(&events, 7), Some(3));
        events.push(round(5, Value::Null));
        assert_eq!((settled_ns(&events, 7), settled_ns(&[], 7)), (None, None));
    }

    #[test]
    fn the_clock_goes_on() {
        let before = monotonic_ns();
        thread::sleep(Duration::from_millis(1));
        assert!(monotonic_ns() >= before + 1_000_000);
    }
}
