//! Lines of `masu serve`: one per event, for people or as JSON.

use std::collections::VecDeque;
use std::io::Write;
use std::time::Instant;

use linux::untrusted::visible;
use linux::{Pid, Untrusted};
use serde_json::{Value, json};
use serve::snapshot::OfEvent;

use crate::Done;
use crate::terminal::print;
use crate::terminal::unwritten::Unwritten;

/// Most events that are remembered.
const LATEST: usize = 200;

/// Printer of events.
pub struct Events {
    start: Instant,
    json: bool,
    unwritten: Unwritten,
    latest: VecDeque<OfEvent>,
}

impl Events {
    pub fn new(json: bool) -> Events {
        Events { start: Instant::now(), json, unwritten: Unwritten::of("masu serve"), latest: VecDeque::new() }
    }

    /// An event of masu itself.
    pub fn say(&mut self, event: &str, text: &str, fields: Value) {
        self.write(event, None, text, fields);
    }

    /// An event of a process.
    pub fn say_of(&mut self, event: &str, pid: Pid, name: &Untrusted, text: &str, fields: Value) {
        self.write(event, Some((pid, name)), text, fields);
    }

    fn write(&mut self, event: &str, of: Option<(Pid, &Untrusted)>, text: &str, mut fields: Value) {
        let at = self.start.elapsed().as_secs_f64();
        let text = visible(text);
        if self.latest.len() == LATEST {
            self.latest.pop_front();
        }
        let process = of.map(|(pid, name)| (pid, name.to_string()));
        self.latest.push_back(OfEvent { at_s: at, event: event.to_owned(), of: process, text: text.to_string() });
        if self.unwritten.is_lost() {
            return;
        }
        let line = if self.json {
            fields["event"] = json!(event);
            fields["at_s"] = json!(at);
            if let Some((pid, name)) = of {
                fields["pid"] = json!(pid);
                fields["name"] = json!(name);
            }
            fields.to_string()
        } else {
            match of {
                Some((pid, name)) => format!("{at:>8.1} s  {pid:>8}  {name}: {text}"),
                None => format!("{at:>8.1} s  {:>8}  {text}", ""),
            }
        };
        let mut out = print::out();
        self.unwritten.take(writeln!(out, "{line}").and_then(|()| out.flush()));
    }

    /// Latest events, the oldest first.
    pub fn latest(&self) -> Vec<OfEvent> {
        self.latest.iter().cloned().collect()
    }

    pub fn done(&self) -> Done {
        self.unwritten.done()
    }
}
