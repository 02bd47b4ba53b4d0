//! State of the service at one moment: JSON for `masu status` and the page. `metrics` makes OpenMetrics of it.

use linux::Pid;
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::groups::Groups;

/// State of the service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the start of the service, in seconds.
    pub run_s: f64,
    /// Processor time of the service, in seconds.
    pub cpu_s: f64,
    /// Fault of the rules that were read last; those in force are the ones before.
    pub reload_failed: Option<String>,
    /// Dropped behind streams since the start.
    pub cache_dropped_bytes: Bytes,
    /// Rules, in their order.
    pub rules: Vec<OfRule>,
    /// Processes with a rule, in the order of their numbers.
    pub processes: Vec<OfProcess>,
    /// Control groups, as measured last.
    #[serde(default)]
    pub groups: Groups,
    /// Latest events, the oldest first.
    #[serde(default)]
    pub events: Vec<OfEvent>,
}

/// An event of the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfEvent {
    /// Time since the start of the service, in seconds.
    pub at_s: f64,
    /// Kind: `admitted`, `settled`, …
    pub event: String,
    /// Process and its command name, made visible; `None` for an event of the service itself.
    pub of: Option<(Pid, String)>,
    /// The line, made visible.
    pub text: String,
}

/// State of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OfRule {
    /// Its name.
    pub name: String,
    /// Its selector.
    pub select: String,
    /// Its effects, in words.
    pub effects: Vec<String>,
    /// Windows of its processes, of those that have ended, too.
    pub windows: Windows,
}

/// Windows since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// Made huge.
    pub promoted: u64,
    /// Split.
    pub demoted: u64,
    /// Promotions that the kernel or the budget refused.
    pub refused: u64,
}

impl std::ops::AddAssign for Windows {
    fn add_assign(&mut self, other: Windows) {
        self.promoted += other.promoted;
        self.demoted += other.demoted;
        self.refused += other.refused;
    }
}

/// State of a process with a rule for a feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfProcess {
    /// Its number.
    pub pid: Pid,
    /// Its command name, made visible.
    pub name: String,
    /// Feature: `huge` or `cache`.
    pub feature: Feature,
    /// Rule in force.
    pub rule: String,
    /// Its state.
    pub state: State,
    /// Reason of the state, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
    /// Its windows.
    #[serde(flatten)]
    pub windows: Windows,
    /// Memory that promotions added.
    pub extra_rss_bytes: Bytes,
    /// Parts of its memory, in the order of addresses: fraction of the pages that are hot. Empty before the first scan.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub heat: Vec<f64>,
}

/// Feature of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Feature {
    /// Huge pages.
    Huge,
    /// Page cache.
    Cache,
}

/// State of a process under a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not served yet.
    Waiting,
    /// It cannot be served.
    Refused,
    /// It is served.
    Served,
    /// Nothing has changed for some rounds.
    Settled,
    /// Its rule asks for no change.
    Left,
}

impl Feature {
    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Huge => "huge",
            Feature::Cache => "cache",
        }
    }
}

impl State {
    /// Name in metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Refused => "refused",
            State::Served => "served",
            State::Settled => "settled",
            State::Left => "left",
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::groups::OfGroup;
    use linux::cgroup::charges::Charges;

    /// Two processes, a rule, and two groups.
    pub fn snapshot() -> Snapshot {
        let process = |pid, feature, state| OfProcess {
            pid: Pid(pid),
            name: "redis\"\n".to_owned(),
            feature,
            rule: "redis".to_owned(),
            state,
            why: None,
            windows: Windows { promoted: 2, ..Windows::default() },
            extra_rss_bytes: Bytes(4096),
            heat: vec![0.0, 0.5],
        };
        let group = |name: &str, usage_bytes| OfGroup {
            group: name.into(),
            processes: 2,
            charges: Charges {
                usage_bytes,
                anonymous_bytes: Bytes::mib(3),
                huge_bytes: Some(Bytes::mib(2)),
                limit_bytes: Some(Bytes::mib(64)),
                kernel_bytes: Some(Bytes(4096)),
                swap_bytes: Some(Bytes(8192)),
                file_refaults: Some(5),
                anonymous_refaults: Some(6),
                ..Charges::default()
            },
            unmapped_bytes: Some(Bytes::mib(1)),
            pressure_s: Some([0.5, 0.25]),
        };
        Snapshot {
            run_s: 60.0,
            cpu_s: 0.5,
            reload_failed: None,
            cache_dropped_bytes: Bytes::mib(1),
            rules: vec![OfRule {
                name: "redis".to_owned(),
                windows: Windows { promoted: 7, demoted: 2, refused: 1 },
                ..OfRule::default()
            }],
            processes: vec![
                process(7, Feature::Huge, State::Settled),
                process(8, Feature::Huge, State::Settled),
                process(8, Feature::Cache, State::Served),
            ],
            groups: Groups {
                groups: vec![
                    group("/big\"\\\n", Bytes::mib(9)),
                    group("/a", Bytes::mib(8)),
                    group("/b", Bytes::mib(8)),
                ],
                left_out: 3,
                took_s: 0.25,
                every_s: 50.0,
            },
            events: vec![OfEvent {
                at_s: 1.5,
                event: "settled".to_owned(),
                of: Some((Pid(7), "redis".to_owned())),
                text: "has settled".to_owned(),
            }],
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = serde_json::to_string(&snapshot()).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot());
    }
}
