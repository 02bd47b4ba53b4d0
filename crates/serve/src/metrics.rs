//! Metrics of the service, as text of OpenMetrics.
//!
//! Series are bounded: beyond [`SERIES`] the smallest groups are summed as `other`. Strangers choose the names of groups,
//! so label values are escaped. No label has a process number or a command name.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use units::Bytes;

use crate::groups::OfGroup;
use crate::snapshot::{Feature, Snapshot, Windows};

/// Most series of one answer.
pub const SERIES: usize = 5000;
/// Series of one group.
const OF_GROUP: usize = 16;

type Labels = Vec<(&'static str, String)>;
type Real = Gauge<f64, AtomicU64>;
type Reals = Family<Labels, Real>;
type Seconds = Family<Labels, Counter<f64, AtomicU64>>;

/// The metrics of a snapshot, with `series` series at most.
pub fn metrics(snapshot: &Snapshot, series: usize) -> String {
    let mut registry = Registry::with_prefix("masu");
    of_service(snapshot, &mut registry);
    of_rules(snapshot, &mut registry);
    of_groups(snapshot, series, &mut registry);
    let mut text = String::new();
    // A String takes all.
    let _ = encode(&mut text, &registry);
    text
}

fn of_service(snapshot: &Snapshot, registry: &mut Registry) {
    let rules = Gauge::<u64, AtomicU64>::default();
    rules.set(snapshot.rules.len() as u64);
    registry.register("rules_loaded", "Rules in force", rules);
    let failed = Gauge::<i64>::default();
    failed.set(i64::from(snapshot.reload_failed.is_some()));
    registry.register("reload_failed", "1 while the rules that were read last have a fault", failed);
    let cpu = Counter::<f64, AtomicU64>::default();
    cpu.inc_by(snapshot.cpu_s);
    registry.register_with_unit("cpu", "Processor time of the service", Unit::Seconds, cpu);
    let dropped = Counter::<u64>::default();
    dropped.inc_by(snapshot.cache_dropped_bytes.0);
    registry.register_with_unit("cache_dropped", "Page cache dropped behind streams", Unit::Bytes, dropped);
}

fn of_rules(snapshot: &Snapshot, registry: &mut Registry) {
    let windows = Family::<Labels, Counter>::default();
    for rule in &snapshot.rules {
        let Windows { promoted, demoted, refused } = rule.windows;
        for (result, number) in [("promoted", promoted), ("demoted", demoted), ("refused", refused)] {
            windows.get_or_create(&labels([("rule", &rule.name), ("result", result)])).inc_by(number);
        }
    }
    registry.register("windows", "Windows of 2 MiB, by what became of them", windows);
    let (members, extra) = (Family::<Labels, Gauge>::default(), Reals::default());
    for process in &snapshot.processes {
        let of = [("rule", &*process.rule), ("feature", process.feature.name()), ("state", process.state.name())];
        members.get_or_create(&labels(of)).inc();
        if process.feature == Feature::Huge {
            extra.get_or_create(&labels([("rule", &process.rule)])).inc_by(real(process.extra_rss_bytes));
        }
    }
    registry.register("members", "Processes under a rule", members);
    registry.register_with_unit("extra_rss", "Memory that promotions added", Unit::Bytes, extra);
}

fn of_groups(snapshot: &Snapshot, series: usize, registry: &mut Registry) {
    let groups = &snapshot.groups;
    let (kept, other) = groups.largest(series / OF_GROUP);
    let summed = Gauge::<u64, AtomicU64>::default();
    summed.set(other.as_ref().map_or(0, |(_, number)| *number));
    registry.register("groups_summed", "Control groups without series of their own: their sum is `other`", summed);
    let left_out = Gauge::<u64, AtomicU64>::default();
    left_out.set(groups.left_out);
    registry.register("groups_left_out", "Control groups that were not read", left_out);
    let scan = Real::default();
    scan.set(groups.took_s);
    registry.register_with_unit("groups_scan", "Duration of the last measurement of groups", Unit::Seconds, scan);

    let families = OfGroups::default();
    kept.iter().chain(other.iter().map(|(sum, _)| sum)).for_each(|group| families.add(group));
    families.register(registry);
}

/// Families with the label `group`.
#[derive(Default)]
struct OfGroups {
    processes: Family<Labels, Gauge<u64, AtomicU64>>,
    usage: Reals,
    limit: Reals,
    working_set: Reals,
    memory: Reals,
    huge: Reals,
    unmapped: Reals,
    refaults: Family<Labels, Counter>,
    pressure: Seconds,
}

impl OfGroups {
    fn add(&self, of: &OfGroup) {
        let (charges, name) = (&of.charges, of.group.to_string());
        let own = || labels([("group", &name)]);
        let set = |family: &Reals, value: Option<Bytes>| {
            if let Some(bytes) = value {
                family.get_or_create(&own()).set(real(bytes));
            }
        };
        self.processes.get_or_create(&own()).set(of.processes);
        set(&self.usage, Some(charges.usage_bytes));
        set(&self.limit, charges.limit_bytes);
        set(&self.working_set, Some(charges.working_set_bytes));
        set(&self.huge, charges.huge_bytes);
        set(&self.unmapped, of.unmapped_bytes);
        let classes = [
            ("anonymous", Some(charges.anonymous_bytes)),
            ("file", Some(charges.file_bytes)),
            ("inactive_file", Some(charges.inactive_file_bytes)),
            ("shared", Some(charges.shared_bytes)),
            ("kernel", charges.kernel_bytes),
            ("swap", charges.swap_bytes),
        ];
        for (class, bytes) in classes {
            if let Some(bytes) = bytes {
                self.memory.get_or_create(&labels([("group", &name), ("class", class)])).set(real(bytes));
            }
        }
        for (class, number) in [("file", charges.file_refaults), ("anonymous", charges.anonymous_refaults)] {
            if let Some(number) = number {
                self.refaults.get_or_create(&labels([("group", &name), ("class", class)])).inc_by(number);
            }
        }
        for (kind, seconds) in ["some", "full"].into_iter().zip(of.pressure_s.into_iter().flatten()) {
            self.pressure.get_or_create(&labels([("group", &name), ("kind", kind)])).inc_by(seconds);
        }
    }

    fn register(self, registry: &mut Registry) {
        let mut bytes = |name, help, family| registry.register_with_unit(name, help, Unit::Bytes, family);
        bytes("group_usage", "Memory charged to a control group, descendants included", self.usage);
        bytes("group_limit", "Limit of a control group", self.limit);
        bytes(
            "group_kubelet_working_set",
            "Usage less the inactive page cache, as kubelet counts it",
            self.working_set,
        );
        bytes("group_memory", "Memory of a control group by class", self.memory);
        bytes("group_huge", "Anonymous memory of a control group on huge pages", self.huge);
        bytes("group_unmapped", "Charged memory of torn huge pages that no process maps", self.unmapped);
        registry.register("group_processes", "Processes of a control group", self.processes);
        registry.register("group_refaults", "Pages that came back after they were reclaimed", self.refaults);
        let help = "Time in which some or all tasks of a control group waited for memory";
        registry.register_with_unit("group_pressure", help, Unit::Seconds, self.pressure);
    }
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(key, value)| (key, escaped(value))).collect()
}

/// Value of a label: `prometheus_client` writes it as it is. Names are visible text, without newlines.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 8 PiB")]
fn real(bytes: Bytes) -> f64 {
    bytes.0 as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::snapshot::tests::snapshot;

    #[test]
    fn rules_have_sums_without_names_of_processes() {
        let text = metrics(&snapshot(), SERIES);
        for line in [
            "masu_rules_loaded 1",
            "masu_reload_failed 0",
            "masu_cpu_seconds_total 0.5",
            "masu_cache_dropped_bytes_total 1048576",
            "masu_windows_total{rule=\"redis\",result=\"promoted\"} 7",
            "masu_members{rule=\"redis\",feature=\"huge\",state=\"settled\"} 2",
            "masu_members{rule=\"redis\",feature=\"cache\",state=\"served\"} 1",
            "masu_extra_rss_bytes{rule=\"redis\"} 8192.0",
            "masu_groups_left_out 3",
            "masu_groups_summed 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("redis\\\""), "{text}");
    }

    #[test]
    fn groups_have_their_names_escaped() {
        let text = metrics(&snapshot(), SERIES);
        for line in [
            "masu_group_usage_bytes{group=\"/a\"} 8388608.0",
            "masu_group_huge_bytes{group=\"/a\"} 2097152.0",
            "masu_group_unmapped_bytes{group=\"/a\"} 1048576.0",
            "masu_group_memory_bytes{group=\"/a\",class=\"anonymous\"} 3145728.0",
            "masu_group_refaults_total{group=\"/a\",class=\"anonymous\"} 6",
            "masu_group_pressure_seconds_total{group=\"/a\",kind=\"full\"} 0.25",
            // The name is `/big"\<newline>`, shown as `/big"\\\x0a`.
            "masu_group_usage_bytes{group=\"/big\\\"\\\\\\\\\\\\x0a\"} 9437184.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn small_groups_share_the_series_of_others() {
        let text = metrics(&snapshot(), 2 * OF_GROUP);
        let other = "masu_group_usage_bytes{group=\"other\"} 8388608.0";
        assert!(text.lines().any(|line| line == other) && text.contains("\nmasu_groups_summed 1\n"), "{text}");
        assert!(!text.contains("group=\"/b\""), "{text}");
        let limit = "masu_group_limit_bytes{group=\"other\"}";
        assert!(!text.contains(limit), "limits have no sum: {text}");
    }

    /// Each group has at most the number of series by which they are bounded.
    #[test]
    fn a_group_has_a_bounded_number_of_series() {
        let text = metrics(&snapshot(), SERIES);
        let of_group = text.lines().filter(|line| line.contains("group=\"/a\"")).count();
        assert!(of_group <= OF_GROUP, "{of_group}");
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
        let text = metrics(&snapshot(), SERIES);
        let served: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("masu_"))
            .filter_map(|rest| rest.split([' ', '{']).next())
            .collect();
        assert_eq!(listed, served);
    }
}
