//! Events of the control loop: measurements, decisions, changes.

use std::fmt;

use linux::Untrusted;
use serde::Serialize;
use units::{Bytes, WayMask};

use super::layout::Masks;
use super::number::counted;
use super::others::SharedClasses;
use super::warm_up::WarmState;

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Processes of a program started or ended.
    Program {
        /// Name of the program.
        program: String,
        /// Number of its processes.
        processes: usize,
        /// Number of their threads.
        threads: usize,
        /// Processes started since the last scan.
        began: usize,
        /// Processes ended since the last scan.
        ended: usize,
        /// Processes that still run and are the program's no more: another control group, user or name.
        #[serde(skip_serializing_if = "is_zero")]
        left: usize,
    },
    /// The shared memory of the programs has changed.
    Shared {
        /// Sharing groups, by trust domain.
        sets: Vec<OfSet>,
        /// Frames shared across trust domains.
        cross_domain_frames: u64,
    },
    /// A new division of the ways.
    Decided {
        /// Name of the policy.
        policy: String,
        /// Basis of the plan.
        basis: String,
        /// Groups and their ways; the default group last.
        groups: Vec<OfGroup>,
        /// Predicted slowdowns.
        slowdowns: Vec<Slowdown>,
    },
    /// Something was changed.
    Done {
        /// Change, in words.
        what: String,
        /// Moved threads.
        #[serde(skip_serializing_if = "is_zero")]
        threads: usize,
        /// Threads that ended before the move.
        #[serde(skip_serializing_if = "is_zero")]
        ended: usize,
        /// Groups of other tools from which threads were moved.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        from: Vec<String>,
    },
    /// The kernel's state differs from the request.
    Differs {
        /// Name of the group.
        group: String,
        /// Requested value.
        asked: String,
        /// Actual value.
        found: String,
    },
    /// Counted occupancy and memory traffic of groups.
    Measured {
        /// Readings by group.
        groups: Vec<Reading>,
    },
    /// State of a shared partition.
    #[serde(rename = "filled")]
    Warmed {
        /// Name of the group, or of the kept data on hosts without groups.
        group: String,
        /// Id of the cache.
        cache: u32,
        /// Counts of the thread.
        #[serde(flatten)]
        state: WarmState,
    },
    /// A step was refused; it will be tried again.
    NotDone {
        /// Step, in words.
        what: String,
        /// The kernel's answer.
        why: String,
    },
    /// A feature is unavailable, and the rest goes on.
    Without {
        /// Name of the feature.
        what: String,
        /// The reason.
        why: String,
    },
    /// Programs share a class of service, since other tools' groups have the rest.
    SharedClasses(SharedClasses),
    /// The former state is restored.
    PutBack {
        /// Number of removed groups.
        groups: usize,
        /// Masks of the default group, if they are not as before: those before, and those found.
        #[serde(skip_serializing_if = "Option::is_none")]
        default_differs: Option<[String; 2]>,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Memory shared within a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfSet {
    /// Trust domain.
    pub domain: Untrusted,
    /// Programs that share it.
    pub programs: Vec<String>,
    /// Size in bytes.
    pub bytes: Bytes,
}

/// Group and its ways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfGroup {
    /// Name of the group.
    pub group: String,
    /// Its programs, or the domain of the pages that it holds.
    pub holds: Vec<String>,
    /// Ways by cache.
    pub masks: Vec<OfCache>,
    /// No other group may allocate there.
    pub exclusive: bool,
}

/// Ways of a group in one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OfCache {
    /// Id of the cache.
    pub cache: u32,
    /// Ways.
    pub mask: WayMask,
}

impl OfCache {
    /// Ways in all caches.
    pub fn all(masks: &Masks) -> Vec<OfCache> {
        masks.iter().map(|(cache, mask)| OfCache { cache: cache.0, mask: *mask }).collect()
    }
}

/// Prediction for a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// Name of the program.
    pub program: String,
    /// Slowdown relative to all of the cache for itself.
    pub slowdown: f64,
}

/// Counts of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Name of the group.
    pub group: String,
    /// Occupancy in the cache; null if not counted.
    pub llc_occupancy_bytes: Option<Bytes>,
    /// Bytes from and to memory per second; null if not counted, and at the first read.
    pub memory_bytes_per_s: Option<f64>,
}

/// Totals at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Duration of the run in microseconds.
    pub run_us: u64,
    /// CPU time of the whole run in microseconds.
    pub cpu_us: u64,
    /// Number of plans.
    pub plans: u64,
    /// Bytes flushed and touched.
    pub refilled_bytes: Bytes,
    /// CPU time of warming in microseconds.
    pub refill_cpu_us: u64,
    /// Pages un-merged by masu. There must be none.
    pub unmerged_pages: u64,
    /// Number of failed steps.
    pub failures: u64,
}

/// `0=ff;1=f`, or `ff` if all caches have the same.
pub fn shown(masks: &[OfCache]) -> String {
    match masks.split_first() {
        None => "none".to_owned(),
        Some((first, others)) if others.iter().all(|other| other.mask == first.mask) => first.mask.to_string(),
        Some(_) => {
            let each: Vec<String> = masks.iter().map(|of| format!("{}={}", of.cache, of.mask)).collect();
            each.join(";")
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Program { program, processes, threads, began, ended, left } => {
                let changes = [(began, "began"), (ended, "ended"), (left, "left it and still run")];
                let changes = changes.iter().filter(|(count, _)| **count > 0);
                let changes: Vec<String> = changes.map(|(count, what)| format!("{count} {what}")).collect();
                match (*processes, *ended, *left) {
                    (0, _, 0) => write!(f, "{program}: no process any more"),
                    (0, ..) => write!(f, "{program}: no process any more; {}", changes.join(", ")),
                    (_, 0, 0) => write!(f, "{program}: {}", members(*processes, *threads)),
                    _ => write!(f, "{program}: {}; {}", members(*processes, *threads), changes.join(", ")),
                }
            }
            Event::Shared { sets, cross_domain_frames } => {
                if sets.is_empty() {
                    f.write_str("shared: nothing between programs that trust each other")?;
                }
                for (nth, set) in sets.iter().enumerate() {
                    let separator = if nth == 0 { "shared: " } else { "; " };
                    write!(f, "{separator}{} in {} by {}", set.bytes, set.domain, set.programs.join(", "))?;
                }
                if *cross_domain_frames > 0 {
                    let are =
                        if *cross_domain_frames == 1 { "frame across domains is" } else { "frames across domains are" };
                    write!(f, "; {cross_domain_frames} {are} left alone")?;
                }
                Ok(())
            }
            Event::Decided { policy, basis, groups, slowdowns } => {
                write!(f, "decided by {policy}, {basis}:")?;
                for (nth, group) in groups.iter().enumerate() {
                    let separator = if nth == 0 { " " } else { ", " };
                    let exclusive = if group.exclusive { " exclusive" } else { "" };
                    write!(f, "{separator}{} {}{exclusive}", group.group, shown(&group.masks))?;
                }
                for (nth, of) in slowdowns.iter().enumerate() {
                    let separator = if nth == 0 { "; expected slowdown " } else { ", " };
                    write!(f, "{separator}{} {:.2}", of.program, of.slowdown)?;
                }
                Ok(())
            }
            Event::Done { what, ended: 0, .. } => write!(f, "did {what}"),
            Event::Done { what, ended, .. } => write!(f, "did {what}; {} ended before", counted(*ended, "thread")),
            Event::NotDone { what, why } => write!(f, "did not {what}: {why}"),
            Event::Differs { group, asked, found } => {
                write!(f, "{group} was to have ways {asked} and has {found}: this processor moves some together")
            }
            Event::Measured { groups } => {
                f.write_str("measured:")?;
                for (nth, of) in groups.iter().enumerate() {
                    let separator = if nth == 0 { " " } else { ", " };
                    let has =
                        of.llc_occupancy_bytes.map_or("? in the cache".to_owned(), |has| format!("{has} in the cache"));
                    write!(f, "{separator}{} {has}", of.group)?;
                    if let Some(rate) = of.memory_bytes_per_s {
                        write!(f, " and {:.1} MB/s to memory", rate / 1e6)?;
                    }
                }
                Ok(())
            }
            Event::Warmed { group, cache, state } => filled_line(f, group, *cache, state),
            Event::Without { what, why } => write!(f, "without {what}: {why}"),
            Event::SharedClasses(shared) => shared.fmt(f),
            Event::PutBack { groups, default_differs } => {
                write!(f, "restored: {} removed, the default group has ", counted(*groups, "group"))?;
                match default_differs {
                    None => f.write_str("its ways"),
                    Some([before, found]) => write!(f, "ways {found}, and before masu it had {before}"),
                }
            }
        }
    }
}

/// `1 process, 2 threads`
fn members(processes: usize, threads: usize) -> String {
    format!("{}, {}", counted(processes, "process"), counted(threads, "thread"))
}

fn filled_line(f: &mut fmt::Formatter<'_>, group: &str, cache: u32, state: &WarmState) -> fmt::Result {
    write!(f, "{group} in cache {cache}: {} of {} pages merged with ours", state.merged_pages, state.pages)?;
    if let Some(held) = state.held_fraction {
        let by = if state.by_occupancy { "by occupancy" } else { "by timed loads" };
        write!(f, ", {:.0} % in place {by}", held * 100.0)?;
    }
    write!(f, ", warmed {} in {:.1} ms", state.refilled_bytes, microseconds(state.cpu_us) / 1e3)?;
    write!(f, ", un-merged {}", state.unmerged_pages)?;
    match &state.failure {
        Some(failure) => write!(f, "; stopped: {failure}"),
        None => Ok(()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn microseconds(time: u64) -> f64 {
    time as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_cache(masks: &[(u32, u64)]) -> Vec<OfCache> {
        masks.iter().map(|(cache, mask)| OfCache { cache: *cache, mask: WayMask(*mask) }).collect()
    }

    #[test]
    fn each_event_is_one_line_and_one_object() {
        let group = OfGroup {
            group: "masu-web".to_owned(),
            holds: vec!["web".to_owned()],
            masks: of_cache(&[(0, 0xf), (1, 0xf)]),
            exclusive: true,
        };
        let cases = [
            (
                Event::Program { program: "web".to_owned(), processes: 2, threads: 9, began: 1, ended: 1, left: 0 },
                "web: 2 processes, 9 threads; 1 began, 1 ended",
                "program",
            ),
            (
                Event::Decided {
                    policy: "sharing".to_owned(),
                    basis: "by curves of the configuration".to_owned(),
                    groups: vec![group],
                    slowdowns: vec![Slowdown { program: "web".to_owned(), slowdown: 1.234 }],
                },
                "decided by sharing, by curves of the configuration: masu-web f exclusive; expected slowdown web 1.23",
                "decided",
            ),
            (
                Event::Shared {
                    sets: vec![OfSet {
                        domain: "shop".into(),
                        programs: vec!["web".to_owned(), "db".to_owned()],
                        bytes: Bytes::mib(3),
                    }],
                    cross_domain_frames: 2,
                },
                "shared: 3.0 MiB in shop by web, db; 2 frames across domains are left alone",
                "shared",
            ),
            (
                Event::Differs { group: "masu-web".to_owned(), asked: "400".to_owned(), found: "600".to_owned() },
                "masu-web was to have ways 400 and has 600: this processor moves some together",
                "differs",
            ),
        ];
        for (event, line, name) in cases {
            assert_eq!(event.to_string(), line);
            let object = serde_json::to_value(&event).unwrap();
            assert_eq!(object["event"], name);
        }
        assert_eq!(shown(&of_cache(&[(0, 0xf), (1, 0xff)])), "0=f;1=ff");
        assert_eq!(
            [counted(1, "process"), counted(2, "process"), counted(0, "group")],
            ["1 process", "2 processes", "0 groups"]
        );
    }

    #[test]
    fn how_full_a_shared_partition_is_stands_beside_what_it_took() {
        let state = WarmState {
            pages: 100,
            merged_pages: 90,
            held_fraction: Some(0.5),
            refilled_bytes: Bytes::mib(1),
            cpu_us: 1500,
            ..WarmState::default()
        };
        let event = Event::Warmed { group: "masu-shared.shop".to_owned(), cache: 0, state };
        assert_eq!(
            event.to_string(),
            "masu-shared.shop in cache 0: 90 of 100 pages merged with ours, 50 % in place by timed loads, warmed 1.0 MiB in \
             1.5 ms, un-merged 0"
        );
        let object = serde_json::to_value(&event).unwrap();
        assert_eq!((&object["merged_pages"], &object["cache"]), (&90.into(), &0.into()));
    }
}
