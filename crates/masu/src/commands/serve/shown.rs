//! Processes under a rule, as `masu status`, the page and the lines show them.

use hugepages::policy::WindowView;
use hugepages::target::Target;
use linux::Pid;
use serde_json::{Value, json};
use serve::snapshot::{Feature, OfProcess, State, Windows};
use units::{Bytes, Pages, cast};

/// Parts of a program's memory whose heat is shown.
const HEAT_PARTS: usize = 64;

pub fn of_process(pid: Pid, name: &str, feature: Feature, rule: &str, state: State) -> OfProcess {
    let (name, rule) = (name.to_owned(), rule.to_owned());
    let (windows, extra_rss_bytes) = (Windows::default(), Bytes(0));
    OfProcess { pid, name, feature, rule, state, why: None, windows, extra_rss_bytes, heat: Vec::new() }
}

pub fn windows_of(target: &Target) -> Windows {
    let totals = &target.totals;
    Windows { promoted: totals.promoted, demoted: totals.demoted, refused: totals.refused }
}

/// Fraction of hot pages in [`HEAT_PARTS`] parts of a program's windows.
pub fn heat_of(target: &Target) -> Vec<f64> {
    let windows = target.windows();
    let parts = windows.chunks(windows.len().div_ceil(HEAT_PARTS).max(1));
    let of_part = |part: &[WindowView]| {
        let sum = |of: fn(&WindowView) -> Pages| part.iter().map(|view| of(view).0).sum::<u64>();
        let percent = sum(|view| view.hot) * 100 / sum(|view| view.resident).max(1);
        f64::from(cast::saturated::<u64, u32>(percent)) / 100.0
    };
    parts.map(of_part).collect()
}

pub fn totals_in_words(target: &Target) -> String {
    let totals = &target.totals;
    let extra = target.extra_rss();
    format!("promoted {}, split {}, refused {}; extra memory {extra}", totals.promoted, totals.demoted, totals.refused)
}

pub fn totals_json(target: &Target, rule: &str) -> Value {
    let totals = &target.totals;
    json!({
        "rule": rule, "windows_promoted": totals.promoted, "windows_demoted": totals.demoted,
        "promotions_refused": totals.refused, "extra_rss_bytes": target.extra_rss(),
    })
}
