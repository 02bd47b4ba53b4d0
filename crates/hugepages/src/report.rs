//! What came of it: one object per program, the same names in JSON and in the table.

use std::collections::BTreeMap;
use std::time::Duration;

use access::Rung;
use linux::Pid;
use quantities::Bytes;
use serde::Serialize;

use crate::Refusal;
use crate::target::{Phase, Target};

/// The report on one program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Process id.
    pub pid: Pid,
    /// Its name, as the kernel keeps it.
    pub name: String,
    /// How it was observed.
    pub rung: Rung,
    /// Planned only, nothing touched.
    pub dry_run: bool,
    /// It ended before masu did.
    pub ended: bool,
    /// Nothing changed any more.
    pub settled: bool,
    /// When that was, after the start.
    pub settled_s: Option<f64>,
    /// Windows that could be huge, or are.
    pub windows_seen: u64,
    /// Windows with enough hot pages.
    pub windows_hot: u64,
    /// Windows with some hot pages, too few: the program could compact them.
    pub windows_compactable: u64,
    /// Windows that masu made huge; in a dry run, would make huge.
    pub windows_promoted: u64,
    /// Windows that masu split again.
    pub windows_demoted: u64,
    /// Hot windows without a huge page, by reason.
    pub windows_refused: BTreeMap<Refusal, u64>,
    /// Resident memory when masu came.
    pub rss_before_bytes: Bytes,
    /// Resident memory at the end, measured; the program's own growth is in it. `None` once it ended.
    pub rss_after_bytes: Option<Bytes>,
    /// What promotion added, measured window by window; in a dry run, would add.
    pub extra_rss_bytes: Bytes,
    /// The same as a part of `rss_before_bytes`.
    pub extra_rss_fraction: f64,
    /// What demotion returned.
    pub returned_bytes: Bytes,
    /// Cost of one look.
    pub scan_us_per_gib: Option<f64>,
    /// Cost of one clear.
    pub clear_us_per_gib: Option<f64>,
    /// Processor time of masu, all programs together.
    pub cpu_s: f64,
    /// Times that the program replaced its address space meanwhile.
    pub execs: u32,
    /// What other hot fractions would have done.
    pub what_if: Vec<WhatIf>,
}

/// One line of the what-if table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// The hot fraction.
    pub hot_fraction: f64,
    /// Huge windows that it would give.
    pub windows: u64,
    /// Memory that they would add, without a budget.
    pub extra_rss_bytes: Bytes,
}

impl Report {
    /// The report on `target` as it stands, when masu has used `cpu` of processor time.
    pub fn of(target: &Target, cpu: Duration, dry_run: bool) -> Report {
        let planned = &target.plan.promote;
        let extra = if dry_run { planned.iter().map(|p| p.cost).sum() } else { target.extra_rss() };
        let cost = target.source().cost();
        let what_if = target.what_if().map(|answer| WhatIf {
            hot_fraction: answer.hot_fraction.get(),
            windows: answer.windows,
            extra_rss_bytes: answer.extra_rss,
        });
        Report {
            pid: target.pid,
            name: target.name.clone(),
            rung: target.rung(),
            dry_run,
            ended: target.phase == Phase::Ended && target.failure.is_none(),
            settled: target.settled_at.is_some() && target.phase != Phase::Watching,
            settled_s: target.settled_at.map(|at| at.as_secs_f64()),
            windows_seen: target.plan.verdicts.seen,
            windows_hot: target.plan.verdicts.hot,
            windows_compactable: target.plan.verdicts.compact,
            windows_promoted: if dry_run { planned.len() as u64 } else { target.promoted },
            windows_demoted: target.demoted,
            windows_refused: target.refused(),
            rss_before_bytes: target.rss_before,
            rss_after_bytes: target.rss_now(),
            extra_rss_bytes: extra,
            extra_rss_fraction: (target.rss_before + extra).growth_over(target.rss_before),
            returned_bytes: target.returned,
            scan_us_per_gib: cost.scan.us_per_gib(),
            clear_us_per_gib: cost.clear.us_per_gib(),
            cpu_s: cpu.as_secs_f64(),
            execs: target.execs,
            what_if: what_if.to_vec(),
        }
    }
}
