//! State of the service at one moment: JSON for `masu status`, and the metrics of OpenMetrics.

use std::sync::atomic::AtomicU64;

use linux::Pid;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde::{Deserialize, Serialize};
use units::Bytes;

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

type Labels = Vec<(&'static str, String)>;
type Real = Gauge<f64, AtomicU64>;

impl Snapshot {
    /// The metrics in the text format of OpenMetrics. No label has a value that a process chooses.
    pub fn metrics(&self) -> String {
        let mut registry = Registry::with_prefix("masu");
        let rules = Gauge::<u64, AtomicU64>::default();
        rules.set(self.rules.len() as u64);
        registry.register("rules_loaded", "Rules in force", rules);
        let failed = Gauge::<i64>::default();
        failed.set(i64::from(self.reload_failed.is_some()));
        registry.register("reload_failed", "1 while the rules that were read last have a fault", failed);
        let cpu = Counter::<f64, AtomicU64>::default();
        cpu.inc_by(self.cpu_s);
        registry.register_with_unit("cpu", "Processor time of the service", Unit::Seconds, cpu);
        let dropped = Counter::<u64>::default();
        dropped.inc_by(self.cache_dropped_bytes.0);
        registry.register_with_unit("cache_dropped", "Page cache dropped behind streams", Unit::Bytes, dropped);

        let windows = Family::<Labels, Counter>::default();
        for rule in &self.rules {
            let Windows { promoted, demoted, refused } = rule.windows;
            for (result, number) in [("promoted", promoted), ("demoted", demoted), ("refused", refused)] {
                let labels = vec![("rule", rule.name.clone()), ("result", result.to_owned())];
                windows.get_or_create(&labels).inc_by(number);
            }
        }
        registry.register("windows", "Windows of 2 MiB, by what became of them", windows);
        let (members, extra) = (Family::<Labels, Gauge>::default(), Family::<Labels, Real>::default());
        for process in &self.processes {
            let of = |key, value: &str| (key, value.to_owned());
            let rule = of("rule", &process.rule);
            let labels = vec![rule.clone(), of("feature", process.feature.name()), of("state", process.state.name())];
            members.get_or_create(&labels).inc();
            if process.feature == Feature::Huge {
                #[expect(clippy::cast_precision_loss, reason = "exact up to 8 PiB")]
                extra.get_or_create(&vec![rule]).inc_by(process.extra_rss_bytes.0 as f64);
            }
        }
        registry.register("members", "Processes under a rule", members);
        registry.register_with_unit("extra_rss", "Memory that promotions added", Unit::Bytes, extra);
        let mut text = String::new();
        // A String takes all.
        let _ = encode(&mut text, &registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn snapshot() -> Snapshot {
        let process = |pid, feature, state| OfProcess {
            pid: Pid(pid),
            name: "redis\"\n".to_owned(),
            feature,
            rule: "redis".to_owned(),
            state,
            why: None,
            windows: Windows { promoted: 2, ..Windows::default() },
            extra_rss_bytes: Bytes(4096),
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
        }
    }

    #[test]
    fn metrics_are_sums_by_rule_without_names_of_processes() {
        let text = snapshot().metrics();
        for line in [
            "masu_rules_loaded 1",
            "masu_reload_failed 0",
            "masu_cpu_seconds_total 0.5",
            "masu_cache_dropped_bytes_total 1048576",
            "masu_windows_total{rule=\"redis\",result=\"promoted\"} 7",
            "masu_members{rule=\"redis\",feature=\"huge\",state=\"settled\"} 2",
            "masu_members{rule=\"redis\",feature=\"cache\",state=\"served\"} 1",
            "masu_extra_rss_bytes{rule=\"redis\"} 8192.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("redis\\\""), "{text}");
    }

    /// `docs/guide/serve.md` has each metric, and no other.
    #[test]
    fn the_guide_lists_the_metrics() {
        let guide = include_str!("../../../docs/guide/serve.md");
        let listed: BTreeSet<&str> = guide
            .lines()
            .filter_map(|line| line.strip_prefix("| `masu_"))
            .filter_map(|rest| rest.split(['`', '{']).next())
            .collect();
        let text = snapshot().metrics();
        let served: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("masu_"))
            .filter_map(|rest| rest.split([' ', '{']).next())
            .collect();
        assert_eq!(listed, served);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = serde_json::to_string(&snapshot()).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot());
    }
}
