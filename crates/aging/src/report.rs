//! Events: each decision, with its measurements and its effect.

use std::fmt;

use linux::{Pid, Untrusted};
use serde::{Deserialize, Serialize};
use units::{Bytes, Fraction};

use crate::class::Class;
use crate::controller::Why;
use crate::left_out::LeftOut;
use crate::levels::Level;

/// Event of one line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Pages were mlocked.
    Pinned {
        /// Newly mlocked.
        bytes: Bytes,
        /// Mlocked in all, as measured at the frames.
        pinned_bytes: Bytes,
        /// Mlocked by class.
        classes: Vec<OfClass>,
        /// Files with mlocked pages.
        files: usize,
        /// Wanted, and not mlocked for lack of headroom.
        without_bytes: Bytes,
        /// Upper limit of mlocked bytes.
        budget_bytes: Bytes,
        /// Smallest headroom of all domains.
        left_bytes: Bytes,
    },
    /// Pages were unlocked.
    LetGo {
        /// Amount.
        bytes: Bytes,
        /// Reason.
        #[serde(flatten)]
        because: Because,
    },
    /// Duty cycle: a class enters its protected or its exposed phase.
    Turn {
        /// Class.
        class: Class,
        /// Protection level.
        dial: Level,
        /// In the protected phase.
        protected: bool,
    },
    /// Pages inserted by streams were dropped.
    Dropped {
        /// Since the last such line.
        bytes: Bytes,
        /// In all.
        dropped_bytes: Bytes,
        /// Waiting: newest pages, or dirty ones.
        waiting_bytes: Bytes,
        /// Not dropped: mapped, or in an unreachable file.
        left_bytes: Bytes,
    },
    /// Insertions were lost: they stay in the page cache.
    Missed {
        /// Lost bytes in all.
        bytes: Bytes,
    },
    /// A process was detected as a stream.
    Stream {
        /// Pid.
        pid: Pid,
        /// Command name.
        name: Untrusted,
    },
    /// A kernel setting was written.
    Turned {
        /// Path.
        path: String,
        /// New value.
        value: String,
        /// Class that it serves.
        class: Class,
    },
    /// A class needs no action, as intended.
    Nothing {
        /// Class.
        class: Class,
        /// Reason.
        why: String,
    },
    /// A level was moved.
    Moved {
        /// Class.
        class: Class,
        /// Old level.
        from: Level,
        /// New level.
        to: Level,
        /// Reason.
        #[serde(flatten)]
        why: Why,
    },
    /// A part of the mapped files is not mlocked; the other part is.
    LeftOut(LeftOut),
    /// An action is impossible; the others continue.
    Without {
        /// Object: a file, a class.
        what: String,
        /// Reason.
        why: String,
    },
}

/// Mlocked amount of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OfClass {
    /// Class.
    pub class: Class,
    /// Mlocked bytes, as measured.
    pub pinned_bytes: Bytes,
}

/// Reason of an unlock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Because {
    /// A domain is nearly used up.
    #[serde(rename = "room")]
    Headroom {
        /// Name of the domain.
        room: String,
        /// Headroom.
        left_bytes: Bytes,
        /// Low watermark.
        margin_bytes: Bytes,
    },
    /// The process that monitors the pins stops, as on Ctrl-Z.
    Paused,
    /// All tasks stall on memory.
    Stalled {
        /// Share of time.
        stalled: Fraction,
        /// Name of the domain.
        room: String,
        /// Headroom.
        left_bytes: Bytes,
    },
    /// No process maps the file any more, or its class is in the exposed phase.
    Unwanted,
}

/// Totals at the end.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Summary {
    /// Running time.
    pub run_us: u64,
    /// Processor time of masu.
    pub cpu_us: u64,
    /// Maximum of mlocked bytes, as measured.
    pub pinned_bytes_max: Bytes,
    /// Dropped bytes of streams.
    pub dropped_bytes: Bytes,
    /// Bytes of streams not dropped: mapped, or unreachable.
    pub left_bytes: Bytes,
    /// Number of releases for lack of headroom, or because all tasks stalled.
    pub releases: u64,
    /// Refaults by class.
    pub refaults: Vec<Refaults>,
}

/// Refaults of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Refaults {
    /// Class.
    pub class: Class,
    /// Number of pages.
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
            Because::Headroom { room, left_bytes, margin_bytes } => {
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
        let because =
            Because::Headroom { room: "/a".to_owned(), left_bytes: Bytes::mib(60), margin_bytes: Bytes::mib(64) };
        let let_go = Event::LetGo { bytes: Bytes::mib(412), because };
        assert_eq!(let_go.to_string(), "let go 412.0 MiB: /a has only 60.0 MiB left, which is below 64.0 MiB");
        let json = serde_json::to_value(&let_go).unwrap();
        assert_eq!((json["event"].as_str(), json["why"].as_str()), (Some("let_go"), Some("room")));
    }

    #[test]
    fn a_summary_is_read_back_as_it_was_written() {
        let report = Summary {
            run_us: 1,
            cpu_us: 2,
            pinned_bytes_max: Bytes(3),
            dropped_bytes: Bytes(4),
            left_bytes: Bytes(5),
            releases: 6,
            refaults: vec![Refaults { class: Class::ReadOnly, refaults: 7 }],
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), report);
    }
}
