//! Results: one object per program, the same names in JSON and in the table.

use std::collections::BTreeMap;
use std::time::Duration;

use access::Backend;
use linux::halted::Halted;
use linux::{Pid, Untrusted};
use serde::{Deserialize, Serialize};
use units::{Address, Bytes, Pages, Window};

use crate::Refusal;
use crate::policy::Promotion;
use crate::target::{Phase, Target};

/// The report on one program.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Report {
    /// Process id.
    pub pid: Pid,
    /// Name, as the kernel keeps it.
    pub name: Untrusted,
    /// Backend of the observation.
    #[serde(flatten, with = "units::renamed::backend")]
    pub backend: Backend,
    /// Planned only, nothing changed.
    pub dry_run: bool,
    /// It ended before masu did.
    pub ended: bool,
    /// Cause for which the program cannot run, at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted: Option<Halted>,
    /// Nothing changed any more.
    pub settled: bool,
    /// Time of settling, after the start.
    pub settled_s: Option<f64>,
    /// Windows that could be huge or are, and hot ones that cannot be huge: `windows_huge`, `windows_compactable`,
    /// `windows_cold`, `windows_waiting` and `windows_refused` together.
    pub windows_seen: u64,
    /// Huge at the last look, by masu or not.
    #[serde(default)]
    pub windows_huge: u64,
    /// Without a hot page.
    #[serde(default)]
    pub windows_cold: u64,
    /// To be promoted, and not promoted yet; in a dry run, those that would be.
    #[serde(default)]
    pub windows_waiting: u64,
    /// Windows with enough hot pages, huge or not.
    pub windows_hot: u64,
    /// Windows with some hot pages, too few: the program could compact them.
    pub windows_compactable: u64,
    /// Windows that masu made huge, counted once per promotion: `windows_still_huge`, `windows_torn`,
    /// `windows_unmapped`, `windows_split_by_others`, and `windows_demoted` without `windows_demoted_found`. In a dry
    /// run, windows that it would make huge.
    pub windows_promoted: u64,
    /// Windows that masu split again.
    pub windows_demoted: u64,
    /// Part of these that masu found huge.
    #[serde(default)]
    pub windows_demoted_found: u64,
    /// Promoted, and given back in part by the program.
    #[serde(default)]
    pub windows_torn: u64,
    /// Promoted, and given back whole by the program, or gone with its exec.
    #[serde(default)]
    pub windows_unmapped: u64,
    /// Promoted, and small again with all of their pages: a fork, reclaim, a change of protection.
    #[serde(default)]
    pub windows_split_by_others: u64,
    /// Hot windows without a huge page, by reason.
    pub windows_refused: BTreeMap<Refusal, u64>,
    /// Memory resident in those, by reason.
    #[serde(default)]
    pub refused_resident_bytes: BTreeMap<Refusal, Bytes>,
    /// Idle huge windows that masu did not split, by reason.
    #[serde(default)]
    pub windows_not_split: BTreeMap<Refusal, u64>,
    /// Private anonymous mappings without an aligned 2 MiB window.
    #[serde(default)]
    pub small_mappings: u64,
    /// Memory in them.
    #[serde(default)]
    pub small_mapping_bytes: Bytes,
    /// Resident memory when masu came.
    pub rss_before_bytes: Bytes,
    /// Resident memory at the end, measured; includes the program's own growth. `None` once it ended, or where it
    /// cannot be read.
    pub rss_after_bytes: Option<Bytes>,
    /// Memory that promotion added, measured window by window; in a dry run, would add.
    pub extra_rss_bytes: Bytes,
    /// The same as a fraction of `rss_before_bytes`.
    pub extra_rss_fraction: f64,
    /// Memory that demotion returned.
    pub returned_bytes: Bytes,
    /// Torn huge pages that masu split: the program had given back a part of each.
    #[serde(default)]
    pub torn_windows: u64,
    /// Memory that these splits freed: charged to the memory cgroup, and not resident.
    #[serde(default)]
    pub torn_returned_bytes: Bytes,
    /// Torn huge pages that the kernel does not split: locked, in use, or mapped by another process, too.
    #[serde(default)]
    pub torn_left_windows: u64,
    /// Memory charged for them, and not resident.
    #[serde(default)]
    pub torn_left_bytes: Bytes,
    /// Without CAP_SYS_ADMIN instead: torn huge pages of the host that stay, of which some may be the program's.
    #[serde(default)]
    pub torn_on_host: u64,
    /// Windows that masu promoted and that are huge at the end.
    #[serde(default)]
    pub windows_still_huge: u64,
    /// Cost of one scan.
    pub scan_us_per_gib: Option<f64>,
    /// Cost of one clear.
    pub clear_us_per_gib: Option<f64>,
    /// Processor time of masu, all programs together.
    pub cpu_s: f64,
    /// Times that the program replaced its address space (exec) meanwhile.
    pub execs: u32,
    /// Promotions that a dry run would make, in order of address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Vec<PlannedRun>>,
    /// Results of other hot fractions.
    pub what_if: Vec<WhatIf>,
}

/// Neighbouring windows that would be promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PlannedRun {
    /// Start of the first window.
    pub start: Address,
    /// Number of windows.
    pub windows: u64,
    /// Hot pages in them.
    pub hot_pages: Pages,
    /// Memory that promoting them would add.
    pub extra_rss_bytes: Bytes,
}

/// The windows of a plan as runs, in order of address.
fn runs(planned: &[Promotion]) -> Vec<PlannedRun> {
    let mut planned = planned.to_vec();
    planned.sort_by_key(|promotion| promotion.window);
    let mut runs: Vec<(Window, PlannedRun)> = Vec::new();
    for promotion in planned {
        match runs.last_mut().filter(|(last, _)| last.0 + 1 == promotion.window.0) {
            Some((last, run)) => {
                *last = promotion.window;
                run.windows += 1;
                run.hot_pages.0 += promotion.hot.0;
                run.extra_rss_bytes += promotion.cost;
            }
            None => {
                let start = promotion.window.start();
                let run = PlannedRun { start, windows: 1, hot_pages: promotion.hot, extra_rss_bytes: promotion.cost };
                runs.push((promotion.window, run));
            }
        }
    }
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Row of the what-if table.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct WhatIf {
    /// The hot fraction.
    pub hot_fraction: f64,
    /// Huge windows at that fraction.
    pub windows: u64,
    /// Memory that they would add, without a budget.
    pub extra_rss_bytes: Bytes,
}

impl Report {
    /// Report on `target` as it is now, when masu has used `cpu` of processor time.
    pub fn of(target: &Target, cpu: Duration, dry_run: bool) -> Report {
        let planned = &target.plan().promote;
        let extra = if dry_run { planned.iter().map(|p| p.cost).sum() } else { target.extra_rss() };
        let cost = target.source().cost();
        let what_if = target.what_if().map(|answer| WhatIf {
            hot_fraction: answer.hot_fraction.get(),
            windows: answer.windows,
            extra_rss_bytes: answer.extra_rss,
        });
        let (columns, ends) = (target.columns(), target.ends());
        let totals = target.totals;
        let rss_after = target.rss_now();
        Report {
            pid: target.pid,
            name: target.name.clone(),
            backend: target.backend(),
            dry_run,
            ended: target.failure.is_none() && (target.phase == Phase::Ended || rss_after.is_none()),
            halted: target.halted().cloned(),
            settled: totals.settled_at.is_some() && !target.was_halted() && target.phase != Phase::Watching,
            settled_s: totals.settled_at.map(|at| at.as_secs_f64()),
            windows_seen: columns.seen(),
            windows_huge: columns.huge,
            windows_cold: columns.cold,
            windows_waiting: columns.waiting,
            windows_hot: target.verdicts().hot,
            windows_compactable: columns.too_few,
            windows_promoted: if dry_run { columns.waiting } else { totals.promoted },
            windows_demoted: totals.demoted,
            windows_demoted_found: totals.demoted.saturating_sub(ends.demoted),
            windows_torn: ends.torn,
            windows_unmapped: ends.unmapped,
            windows_split_by_others: ends.split_by_others,
            windows_refused: columns.refused,
            refused_resident_bytes: columns.refused_resident,
            windows_not_split: target.kept(),
            small_mappings: target.pieces().mappings,
            small_mapping_bytes: target.pieces().resident,
            rss_before_bytes: totals.rss_before,
            rss_after_bytes: rss_after,
            extra_rss_bytes: extra,
            extra_rss_fraction: (totals.rss_before + extra).growth_over(totals.rss_before),
            returned_bytes: totals.returned,
            torn_windows: target.torn().0,
            torn_returned_bytes: target.torn().1,
            torn_left_windows: target.torn_left().0,
            torn_left_bytes: target.torn_left().1,
            torn_on_host: target.torn_maybe_left(),
            windows_still_huge: target.promoted_now(),
            scan_us_per_gib: cost.scan.us_per_gib(),
            clear_us_per_gib: cost.clear.us_per_gib(),
            cpu_s: cpu.as_secs_f64(),
            execs: totals.execs,
            plan: dry_run.then(|| runs(planned)),
            what_if: what_if.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Rate;

    use super::*;
    use crate::policy::cost;

    #[test]
    fn neighbouring_windows_are_one_run_whatever_the_order_of_the_plan() {
        let promotion = |number, hot, resident| Promotion {
            window: Window(number),
            cost: cost(Pages(resident)),
            walks: Rate::ZERO,
            hot: Pages(hot),
            resident: Pages(resident),
        };
        let plan = [promotion(9, 300, 512), promotion(4, 130, 510), promotion(8, 200, 511)];
        let run = |number, windows, hot, added| PlannedRun {
            start: Window(number).start(),
            windows,
            hot_pages: Pages(hot),
            extra_rss_bytes: Bytes::kib(added),
        };
        assert_eq!(runs(&plan), [run(4, 1, 130, 8), run(8, 2, 500, 4)]);
        assert_eq!(runs(&[]), []);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = Report {
            pid: Pid(7),
            name: Untrusted::new(*b"a\\b\xff\n"),
            backend: Backend::DamonVaddr,
            dry_run: true,
            ended: false,
            halted: Some(Halted::Stopped),
            settled: true,
            settled_s: Some(2.5),
            windows_seen: 9,
            windows_huge: 2,
            windows_cold: 1,
            windows_waiting: 1,
            windows_hot: 8,
            windows_compactable: 1,
            windows_promoted: 6,
            windows_demoted: 2,
            windows_demoted_found: 1,
            windows_torn: 1,
            windows_unmapped: 1,
            windows_split_by_others: 0,
            windows_refused: BTreeMap::from([(Refusal::NoHugePage, 1), (Refusal::NotHugeAfterwards, 3)]),
            refused_resident_bytes: BTreeMap::from([(Refusal::NoHugePage, Bytes::mib(2))]),
            windows_not_split: BTreeMap::from([(Refusal::Locked, 4)]),
            small_mappings: 2,
            small_mapping_bytes: Bytes::kib(512),
            rss_before_bytes: Bytes::mib(16),
            rss_after_bytes: Some(Bytes::mib(18)),
            extra_rss_bytes: Bytes::mib(2),
            extra_rss_fraction: 0.125,
            returned_bytes: Bytes::kib(4),
            torn_windows: 1,
            torn_returned_bytes: Bytes::mib(1),
            torn_left_windows: 0,
            torn_left_bytes: Bytes(0),
            torn_on_host: 0,
            windows_still_huge: 4,
            scan_us_per_gib: Some(300.5),
            clear_us_per_gib: None,
            cpu_s: 0.25,
            execs: 1,
            plan: Some(vec![PlannedRun {
                start: Window(9).start(),
                windows: 2,
                hot_pages: Pages(300),
                extra_rss_bytes: Bytes(0),
            }]),
            what_if: vec![WhatIf { hot_fraction: 0.25, windows: 3, extra_rss_bytes: Bytes(1) }],
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert!(text.contains(r#""backend":"damon-vaddr","rung":"damon-vaddr""#), "{text}");
        assert!(text.contains(&format!(r#""{}":3"#, Refusal::NotHugeAfterwards)), "{text}");
    }
}
