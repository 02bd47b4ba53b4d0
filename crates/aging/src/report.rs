//! Events: each decision, with its measurements and its effect.

use std::fmt;

use linux::halted::HaltedProcess;
use linux::journal::LeftAlone;
use linux::{Pid, Untrusted};
use serde::{Deserialize, Serialize};
use units::{Bytes, Fraction};

use crate::class::Class;
use crate::controller::Why;
use crate::left_out::LeftOut;
use crate::left_pages::{Ended, Left};
use crate::levels::Level;

/// Event of one line. `event` and `why` have the words of 0.1.0 in JSON for one release more.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Pages were mlocked.
    #[serde(rename = "pinned")]
    Mlocked {
        /// Newly mlocked.
        bytes: Bytes,
        /// Mlocked in all, as measured at the frames.
        #[serde(flatten, with = "units::renamed::mlocked_bytes")]
        mlocked_bytes: Bytes,
        /// Mlocked by class.
        classes: Vec<OfClass>,
        /// Files with mlocked pages.
        files: usize,
        /// Wanted, and not mlocked for lack of headroom.
        without_bytes: Bytes,
        /// Upper limit of mlocked bytes.
        budget_bytes: Bytes,
        /// Smallest headroom of all domains.
        #[serde(flatten, with = "units::renamed::headroom_bytes")]
        headroom_bytes: Bytes,
    },
    /// Pages were unlocked.
    #[serde(rename = "let_go")]
    Unlocked {
        /// Amount.
        bytes: Bytes,
        /// Reason.
        #[serde(flatten)]
        reason: UnlockReason,
    },
    /// Duty cycle: a class enters its protected or its exposed phase.
    #[serde(rename = "turn")]
    Phase {
        /// Class.
        class: Class,
        /// Protection level.
        #[serde(flatten, with = "units::renamed::level")]
        level: Level,
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
        /// Kept while memory is free: the command, or the process, may come back to them.
        kept_bytes: Bytes,
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
    /// A process is no stream any more.
    NoStream {
        /// Pid.
        pid: Pid,
        /// Command name.
        name: Untrusted,
        /// Reason.
        why: Ended,
    },
    /// A process reads again what it has read: its pages stay for a time.
    Keeping {
        /// Pid.
        pid: Pid,
        /// Command name.
        name: Untrusted,
    },
    /// The command, or the named processes, ended, and processes that they started still run.
    Outlived {
        /// Processes that still run.
        processes: Vec<Running>,
        /// masu waits for their end.
        followed: bool,
    },
    /// A process that is not followed, and is connected to those of the streams, has inserted much meanwhile.
    Others {
        /// Pid.
        pid: Pid,
        /// Command name.
        name: Untrusted,
        /// Amount.
        bytes: Bytes,
        /// True for a kernel thread.
        of_kernel: bool,
        /// Process to name in `--pid`: the first one of its server.
        #[serde(skip_serializing_if = "Option::is_none")]
        include_pid: Option<Pid>,
    },
    /// Processes without a connection to the streams have inserted much on their devices meanwhile.
    Unconnected {
        /// Amount.
        bytes: Bytes,
        /// Processes among them that ended before their connections could be looked at.
        unseen_processes: usize,
    },
    /// Processes of the group, or named ones, that are frozen or stopped.
    Halted {
        /// The processes.
        processes: Vec<HaltedProcess>,
    },
    /// A kernel setting was written.
    #[serde(rename = "turned")]
    Written {
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
    #[serde(rename = "without")]
    Skipped {
        /// Object: a file, a class.
        what: String,
        /// Reason.
        why: String,
    },
}

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Running {
    /// Pid.
    pub pid: Pid,
    /// Command name.
    pub name: Untrusted,
}

/// Mlocked amount of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OfClass {
    /// Class.
    pub class: Class,
    /// Mlocked bytes, as measured.
    #[serde(flatten, with = "units::renamed::mlocked_bytes")]
    pub mlocked_bytes: Bytes,
}

/// Reason of an unlock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum UnlockReason {
    /// The headroom of a domain is below its low watermark.
    #[serde(rename = "room")]
    Headroom {
        /// Name of the domain.
        #[serde(flatten, with = "units::renamed::domain")]
        domain: String,
        /// Headroom.
        #[serde(flatten, with = "units::renamed::headroom_bytes")]
        headroom_bytes: Bytes,
        /// Low watermark.
        #[serde(flatten, with = "units::renamed::low_watermark_bytes")]
        low_watermark_bytes: Bytes,
    },
    /// The process that monitors the headroom stops, as on Ctrl-Z.
    Paused,
    /// All tasks stall on memory.
    Stalled {
        /// Share of time.
        stalled: Fraction,
        /// Name of the domain.
        #[serde(flatten, with = "units::renamed::domain")]
        domain: String,
        /// Headroom.
        #[serde(flatten, with = "units::renamed::headroom_bytes")]
        headroom_bytes: Bytes,
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
    #[serde(flatten, with = "units::renamed::mlocked_bytes_max")]
    pub mlocked_bytes_max: Bytes,
    /// Bytes that streams brought into the page cache: those dropped, and those left.
    #[serde(default)]
    pub brought_in_bytes: Bytes,
    /// Dropped bytes of streams.
    pub dropped_bytes: Bytes,
    /// Bytes of streams not dropped.
    pub left_bytes: Bytes,
    /// The same, by reason and owner.
    #[serde(default)]
    pub left: Vec<Left>,
    /// Number of unlocks for lack of headroom, or because all tasks stalled.
    pub releases: u64,
    /// Refaults by class.
    pub refaults: Vec<Refaults>,
    /// Settings that are not as before, since another program has changed them meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings_left: Vec<LeftAlone>,
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
            Event::Mlocked { bytes, mlocked_bytes, classes, files, without_bytes, budget_bytes, headroom_bytes } => {
                write!(f, "mlocked {bytes}: now {mlocked_bytes} of {files} files")?;
                let parts: Vec<String> = classes
                    .iter()
                    .filter(|of| of.mlocked_bytes > Bytes(0))
                    .map(|of| format!("{} {}", of.class.name(), of.mlocked_bytes))
                    .collect();
                write!(f, " ({}); at most {budget_bytes}; headroom {headroom_bytes}", parts.join(", "))?;
                if *without_bytes > Bytes(0) {
                    write!(f, "; {without_bytes} more wanted")?;
                }
                Ok(())
            }
            Event::Unlocked { bytes, reason } => write!(f, "unlocked {bytes}: {reason}"),
            Event::Phase { class, level, protected: true } => {
                write!(f, "{}: protected phase (level {level}), off the kernel's lists", class.name())
            }
            Event::Phase { class, level, protected: false } => {
                write!(
                    f,
                    "{}: exposed phase (level {level}), on the kernel's lists for a minute of reclaim",
                    class.name()
                )
            }
            Event::Dropped { bytes, dropped_bytes, waiting_bytes, kept_bytes, left_bytes } => {
                write!(f, "dropped {bytes} behind streams, {dropped_bytes} in all; {waiting_bytes} waiting")?;
                if *kept_bytes > Bytes(0) {
                    write!(f, "; {kept_bytes} kept while memory is free")?;
                }
                if *left_bytes > Bytes(0) {
                    write!(f, "; {left_bytes} left")?;
                }
                Ok(())
            }
            Event::Missed { bytes } => {
                write!(f, "{bytes} inserted faster than masu reads the insertions: they stay in the page cache")
            }
            Event::Stream { pid, name } => {
                write!(f, "process {pid} ({name}) is a stream: its insertions are dropped")
            }
            Event::NoStream { pid, name, why: Ended::ReadsAgain } => {
                write!(f, "process {pid} ({name}) is no stream any more: it reads what it has read twice, which stays")
            }
            Event::NoStream { pid, name, why: Ended::Scattered } => {
                write!(f, "process {pid} ({name}) is no stream any more: it reads at random, and its pages stay")
            }
            Event::Keeping { pid, name } => {
                write!(
                    f,
                    "process {pid} ({name}) reads again what it has read: this stays while memory is free, until it ends"
                )
            }
            Event::Outlived { processes, followed } => {
                /// Processes that are named.
                const NAMED: usize = 8;
                let names = processes.iter().take(NAMED).map(|Running { pid, name }| format!("{pid} ({name})"));
                let names = names.collect::<Vec<_>>().join(", ");
                let more = processes.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                if *followed {
                    write!(
                        f,
                        "the first process has ended; still running and followed to the end: {names}{more}; Ctrl-C ends masu"
                    )
                } else {
                    write!(f, "still running, and followed no longer: {names}{more}")
                }
            }
            Event::Others { pid, name, bytes, of_kernel: true, .. } => {
                write!(
                    f,
                    "kernel thread {pid} ({name}) brought {bytes} into the page cache meanwhile; it is not followed"
                )
            }
            Event::Others { pid, name, bytes, include_pid, .. } => {
                write!(
                    f,
                    "process {pid} ({name}) is connected to the streams and brought {bytes} into the page cache "
                )?;
                let include = include_pid.unwrap_or(*pid);
                write!(
                    f,
                    "meanwhile; it is not followed. If it reads or writes for them, `--pid {include}` includes it"
                )
            }
            Event::Unconnected { bytes, unseen_processes } => {
                write!(f, "others on the same devices brought {bytes} into the page cache meanwhile; ")?;
                f.write_str("masu sees no connection of theirs to the streams")?;
                match unseen_processes {
                    0 => Ok(()),
                    1 => f.write_str("; one of their processes ended before masu could look"),
                    count => write!(f, "; {count} of their processes ended before masu could look"),
                }
            }
            Event::Halted { processes } => {
                let Some(HaltedProcess { pid, name, why }) = processes.first() else { return Ok(()) };
                let more = match processes.len() {
                    0 | 1 => String::new(),
                    count => format!("{count} processes cannot run; "),
                };
                write!(
                    f,
                    "{more}process {pid} ({name}) is {why}: until it runs, it brings nothing in, and its pages age like "
                )?;
                write!(f, "unused ones. {}", why.remedy(*pid))
            }
            Event::Written { path, value, class } => write!(f, "{path} <- {value} ({})", class.name()),
            Event::Nothing { class, why } => write!(f, "{}: nothing to do: {why}", class.name()),
            Event::Moved { class, from, to, why } => write!(f, "{}: level {from} -> {to}: {why}", class.name()),
            Event::LeftOut(left_out) => left_out.fmt(f),
            Event::Skipped { what, why } => write!(f, "skipped {what}: {why}"),
        }
    }
}

impl fmt::Display for UnlockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnlockReason::Headroom { domain, headroom_bytes, low_watermark_bytes } => {
                write!(
                    f,
                    "the headroom of {domain} is {headroom_bytes}, below the low watermark of {low_watermark_bytes}"
                )
            }
            UnlockReason::Stalled { stalled, domain, headroom_bytes } => {
                write!(
                    f,
                    "all tasks stall on memory for {:.0} % of the time, and the headroom of {domain} is {headroom_bytes}",
                    stalled.get() * 100.0
                )
            }
            UnlockReason::Paused => f.write_str("masu is stopped, and cannot monitor the headroom"),
            UnlockReason::Unwanted => f.write_str("no process maps it any more, or its class is in the exposed phase"),
        }
    }
}

#[cfg(test)]
mod tests {
    use linux::halted::Halted;

    use super::*;
    use crate::left_pages::Reason;

    fn mlocked() -> Event {
        let classes = vec![
            OfClass { class: Class::Code, mlocked_bytes: Bytes::mib(12) },
            OfClass { class: Class::ReadOnly, mlocked_bytes: Bytes::mib(400) },
            OfClass { class: Class::Shared, mlocked_bytes: Bytes(0) },
        ];
        Event::Mlocked {
            bytes: Bytes::mib(412),
            mlocked_bytes: Bytes::mib(412),
            classes,
            files: 3,
            without_bytes: Bytes::mib(1),
            budget_bytes: Bytes::gib(2),
            headroom_bytes: Bytes::mib(600),
        }
    }

    fn unlocked() -> Event {
        let reason = UnlockReason::Headroom {
            domain: "/a".to_owned(),
            headroom_bytes: Bytes::mib(60),
            low_watermark_bytes: Bytes::mib(64),
        };
        Event::Unlocked { bytes: Bytes::mib(412), reason }
    }

    #[test]
    fn a_line_has_measurement_decision_and_effect() {
        assert_eq!(
            mlocked().to_string(),
            "mlocked 412.0 MiB: now 412.0 MiB of 3 files (code 12.0 MiB, read-only data 400.0 MiB); at most 2.00 GiB; \
             headroom 600.0 MiB; 1.0 MiB more wanted"
        );
        assert_eq!(
            unlocked().to_string(),
            "unlocked 412.0 MiB: the headroom of /a is 60.0 MiB, below the low watermark of 64.0 MiB"
        );
    }

    #[test]
    fn a_server_that_is_not_followed_is_named_with_the_option_that_includes_it() {
        let of = |of_kernel| Event::Others {
            pid: Pid(42),
            name: "walsender".into(),
            bytes: Bytes::mib(512),
            of_kernel,
            include_pid: Some(Pid(7)),
        };
        let unconnected =
            |unseen_processes| Event::Unconnected { bytes: Bytes::mib(512), unseen_processes }.to_string();
        assert_eq!(
            of(false).to_string(),
            "process 42 (walsender) is connected to the streams and brought 512.0 MiB into the page cache meanwhile; it is \
             not followed. If it reads or writes for them, `--pid 7` includes it"
        );
        assert_eq!(
            unconnected(0),
            "others on the same devices brought 512.0 MiB into the page cache meanwhile; masu sees no connection of theirs \
             to the streams"
        );
        assert!(unconnected(9).ends_with("; 9 of their processes ended before masu could look"));
        assert!(unconnected(1).ends_with("; one of their processes ended before masu could look"));
        assert!(of(true).to_string().starts_with("kernel thread 42 (walsender) brought 512.0 MiB"));
        assert!(!of(true).to_string().contains("--pid"), "no option includes a kernel thread");
    }

    #[test]
    fn processes_that_cannot_run_are_named_with_cause_and_remedy() {
        let why = Halted::Frozen { group: "/sys/fs/cgroup/web".to_owned() };
        let of = |pid| HaltedProcess { pid: Pid(pid), name: "nginx".into(), why: why.clone() };
        let line = Event::Halted { processes: vec![of(7)] }.to_string();
        assert!(
            line.starts_with("process 7 (nginx) is frozen (control group /sys/fs/cgroup/web): until it runs"),
            "{line}"
        );
        assert!(line.contains("Thaw the group"), "{line}");
        let lines = Event::Halted { processes: vec![of(7), of(8)] };
        assert!(lines.to_string().starts_with("2 processes cannot run; process 7 (nginx)"));
        let json = serde_json::to_value(&lines).unwrap();
        assert_eq!((&json["event"], &json["processes"][1]["cause"]), (&"halted".into(), &"frozen".into()));
    }

    #[test]
    fn json_has_the_old_fields_beside_the_new_ones_and_the_old_events() {
        let json = |event: &Event| serde_json::to_value(event).unwrap();
        let phase = Event::Phase { class: Class::Code, level: Level::NEVER, protected: true };
        let summary = serde_json::to_value(Summary::default()).unwrap();
        let (mlocked, unlocked, phase) = (json(&mlocked()), json(&unlocked()), json(&phase));
        assert_eq!((&mlocked["event"], &unlocked["event"]), (&"pinned".into(), &"let_go".into()));
        assert_eq!((&unlocked["why"], &phase["event"]), (&"room".into(), &"turn".into()));
        for (json, new, old) in [
            (&mlocked, "mlocked_bytes", "pinned_bytes"),
            (&mlocked["classes"][0], "mlocked_bytes", "pinned_bytes"),
            (&mlocked, "headroom_bytes", "left_bytes"),
            (&unlocked, "domain", "room"),
            (&unlocked, "headroom_bytes", "left_bytes"),
            (&unlocked, "low_watermark_bytes", "margin_bytes"),
            (&phase, "level", "dial"),
            (&summary, "mlocked_bytes_max", "pinned_bytes_max"),
        ] {
            assert!(!json[new].is_null() && json[new] == json[old], "{new}, {old}: {json}");
        }
    }

    #[test]
    fn a_summary_is_read_back_as_it_was_written() {
        let report = Summary {
            run_us: 1,
            cpu_us: 2,
            mlocked_bytes_max: Bytes(3),
            dropped_bytes: Bytes(4),
            brought_in_bytes: Bytes(9),
            left_bytes: Bytes(5),
            left: vec![Left { why: Reason::Missed, bytes: Bytes(5), pid: None, name: None, device: None }],
            releases: 6,
            refaults: vec![Refaults { class: Class::ReadOnly, refaults: 7 }],
            settings_left: Vec::new(),
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), report);
    }
}
