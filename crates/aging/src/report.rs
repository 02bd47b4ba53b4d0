//! What is said of each decision: what was measured, what was decided, what was done.

use std::fmt;

use linux::{Pid, Untrusted};
use serde::Serialize;
use units::{Bytes, Fraction};

use crate::class::Class;
use crate::controller::Why;
use crate::dials::Dial;
use crate::left_out::LeftOut;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Pages were pinned.
    Pinned {
        /// Newly.
        bytes: Bytes,
        /// In all, as measured at the frames.
        pinned_bytes: Bytes,
        /// By class.
        classes: Vec<OfClass>,
        /// Files of which something is pinned.
        files: usize,
        /// Wanted, and not pinned for want of room.
        without_bytes: Bytes,
        /// The most that may be pinned.
        budget_bytes: Bytes,
        /// What is left of the tightest room.
        left_bytes: Bytes,
    },
    /// Pages were let go.
    LetGo {
        /// How much.
        bytes: Bytes,
        /// Why.
        #[serde(flatten)]
        because: Because,
    },
    /// A class comes on the kernel's lists, or off them, because of its dial.
    Turn {
        /// Which.
        class: Class,
        /// Where its dial stands.
        dial: Dial,
        /// Off the lists.
        protected: bool,
    },
    /// What streams brought in has gone.
    Dropped {
        /// Since the last such line.
        bytes: Bytes,
        /// In all.
        dropped_bytes: Bytes,
        /// What waits: newest, or to be written first.
        waiting_bytes: Bytes,
        /// Left where it is: it is mapped, or its file is not to be reached.
        left_bytes: Bytes,
    },
    /// More came than could be taken down: it stays in the page cache.
    Missed {
        /// How much, in all.
        bytes: Bytes,
    },
    /// A process was found to be a stream.
    Stream {
        /// Which.
        pid: Pid,
        /// Its command.
        name: Untrusted,
    },
    /// A knob of the kernel was turned.
    Turned {
        /// Which.
        path: String,
        /// To what.
        value: String,
        /// For which class.
        class: Class,
    },
    /// Nothing is done for a class, which is as it should be.
    Nothing {
        /// Which.
        class: Class,
        /// Why.
        why: String,
    },
    /// A dial was moved.
    Moved {
        /// Of which class.
        class: Class,
        /// From where.
        from: Dial,
        /// To where.
        to: Dial,
        /// Why.
        #[serde(flatten)]
        why: Why,
    },
    /// Some of what is mapped is not pinned, and the rest is.
    LeftOut(LeftOut),
    /// Something cannot be done, and the rest goes on.
    Without {
        /// What: a file, a class.
        what: String,
        /// Why.
        why: String,
    },
}

/// What is pinned of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OfClass {
    /// Which.
    pub class: Class,
    /// How much, as measured.
    pub pinned_bytes: Bytes,
}

/// Why pages were let go.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Because {
    /// A room is nearly used up.
    Room {
        /// Which.
        room: String,
        /// What is left of it.
        left_bytes: Bytes,
        /// What must be left.
        margin_bytes: Bytes,
    },
    /// Whoever looks after it stands still, as Ctrl-Z asks for.
    Paused,
    /// Everybody stands still for want of memory.
    Stalled {
        /// For which share of the time.
        stalled: Fraction,
        /// Where.
        room: String,
        /// What is left of it.
        left_bytes: Bytes,
    },
    /// Nobody maps it any more, or its class is on the kernel's lists for a while.
    Unwanted,
}

/// What was done in all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// How long it ran.
    pub run_us: u64,
    /// Processor time of masu.
    pub cpu_us: u64,
    /// The most that was pinned at a time, as measured.
    pub pinned_bytes_max: Bytes,
    /// What streams brought in and was dropped.
    pub dropped_bytes: Bytes,
    /// What was left of that: mapped, or not to be reached.
    pub left_bytes: Bytes,
    /// How often pins were let go because a room was nearly used up, or everybody stood still.
    pub releases: u64,
    /// Pages that had gone and came back, by class.
    pub refaults: Vec<Refaults>,
}

/// Pages of one class that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Refaults {
    /// Which.
    pub class: Class,
    /// How many.
    pub refaults: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Pinned { bytes, pinned_bytes, classes, files, without_bytes, budget_bytes, left_bytes } => {
                write!(f, "pinned {bytes}: now {pinned_bytes} of {files} files")?;
                let parts: Vec<String> = classes
                    .iter()
                    .filter(|of| of.pinned_bytes > Bytes(0))
                    .map(|of| format!("{} {}", of.class.name(), of.pinned_bytes))
                    .collect();
                write!(f, " ({}); at most {budget_bytes}; {left_bytes} left", parts.join(", "))?;
                if *without_bytes > Bytes(0) {
                    write!(f, "; {without_bytes} more would be worth it")?;
                }
                Ok(())
            }
            Event::LetGo { bytes, because } => write!(f, "let go {bytes}: {because}"),
            Event::Turn { class, dial, protected: true } => {
                write!(f, "{} is off the kernel's lists again (dial {dial})", class.name())
            }
            Event::Turn { class, dial, protected: false } => {
                write!(
                    f,
                    "{} is on the kernel's lists for a minute of pressure (dial {dial}): what is used stays",
                    class.name()
                )
            }
            Event::Dropped { bytes, dropped_bytes, waiting_bytes, left_bytes } => {
                write!(f, "dropped {bytes} behind streams, {dropped_bytes} in all; {waiting_bytes} waits")?;
                if *left_bytes > Bytes(0) {
                    write!(f, "; {left_bytes} left where it is: mapped, or not to be reached")?;
                }
                Ok(())
            }
            Event::Missed { bytes } => {
                write!(f, "{bytes} came faster than it could be taken down, and stays in the page cache")
            }
            Event::Stream { pid, name } => {
                write!(f, "process {pid} ({name}) is a stream: what it brings in goes again")
            }
            Event::Turned { path, value, class } => write!(f, "{path} <- {value} ({})", class.name()),
            Event::Nothing { class, why } => write!(f, "{}: nothing to do: {why}", class.name()),
            Event::Moved { class, from, to, why } => write!(f, "{}: dial {from} -> {to}: {why}", class.name()),
            Event::LeftOut(left_out) => left_out.fmt(f),
            Event::Without { what, why } => write!(f, "not {what}: {why}"),
        }
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Because::Room { room, left_bytes, margin_bytes } => {
                write!(f, "{room} has only {left_bytes} left, which is below {margin_bytes}")
            }
            Because::Stalled { stalled, room, left_bytes } => {
                write!(
                    f,
                    "everybody stands still for {:.0} % of the time, and {room} has only {left_bytes} left",
                    stalled.get() * 100.0
                )
            }
            Because::Paused => f.write_str("masu is stopped, and cannot look after it"),
            Because::Unwanted => {
                f.write_str("nobody maps it any more, or its class takes its turn on the kernel's lists")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_was_measured_decided_and_done() {
        let classes = vec![
            OfClass { class: Class::Code, pinned_bytes: Bytes::mib(12) },
            OfClass { class: Class::ReadOnly, pinned_bytes: Bytes::mib(400) },
            OfClass { class: Class::Shared, pinned_bytes: Bytes(0) },
        ];
        let pinned = Event::Pinned {
            bytes: Bytes::mib(412),
            pinned_bytes: Bytes::mib(412),
            classes,
            files: 3,
            without_bytes: Bytes::mib(1),
            budget_bytes: Bytes::gib(2),
            left_bytes: Bytes::mib(600),
        };
        assert_eq!(
            pinned.to_string(),
            "pinned 412.0 MiB: now 412.0 MiB of 3 files (code 12.0 MiB, read-only data 400.0 MiB); at most 2.00 GiB; 600.0 MiB left; \
             1.0 MiB more would be worth it"
        );
        let because = Because::Room { room: "/a".to_owned(), left_bytes: Bytes::mib(60), margin_bytes: Bytes::mib(64) };
        let let_go = Event::LetGo { bytes: Bytes::mib(412), because };
        assert_eq!(let_go.to_string(), "let go 412.0 MiB: /a has only 60.0 MiB left, which is below 64.0 MiB");
        let json = serde_json::to_value(&let_go).unwrap();
        assert_eq!((json["event"].as_str(), json["why"].as_str()), (Some("let_go"), Some("room")));
    }
}
