//! Several ways of getting huge pages, compared with two baselines: no huge pages, and the kernel's own setting.

use crate::harness::{Choice as _, Row, Runs, median_of, or_dash};
use crate::launch::{Policy, Run};
use crate::pairs::{Better, Comparison, Verdict, median};
use crate::report::Unit;
use crate::table::Table;
use units::spread::Random;

/// Baselines of all other ways, where they were measured.
pub const BASELINES: [Policy; 2] = [Policy::Small, Policy::Always];

/// Huge pages that may come and go elsewhere on a host while a program runs.
const FEW: u64 = 8;

/// One figure of each run.
fn samples(runs: &[Run], figure: impl Fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(figure).collect()
}

/// A comparison of paired samples, the same each time.
pub fn compare(baseline: &[f64], this: &[f64]) -> Option<Comparison> {
    Comparison::of(baseline, this, &mut Random::seeded(1))
}

/// `0.643 (0.630 … 0.655)`, or a dash.
pub fn ratio_with_interval(found: Option<Comparison>) -> String {
    let print = |found: Comparison| format!("{:.3} ({:.3} … {:.3})", found.ratio, found.ratio_low, found.ratio_high);
    found.map_or_else(|| "–".into(), print)
}

/// One line for each way of running `subject`: its run time against both baselines, its cost, and the cause of a loss.
pub fn table(all: &Runs<Policy, Run>, subject: &str) -> Table {
    let mut table = Table::new([
        "",
        "run time",
        "ratio to 4k (95 % interval)",
        "ratio to always (95 % interval)",
        "peak memory",
        "huge pages",
        "refused",
        "page faults",
        "where it loses",
    ]);
    for Row { way: policy, samples: runs, .. } in all.rows().iter().filter(|row| row.subject == subject) {
        let middle = |unit, figure: &dyn Fn(&Run) -> f64| or_dash(unit, median_of(runs, figure));
        let times = samples(runs, |run| run.run_s);
        let against = |baseline: Policy| {
            let base = if baseline == *policy { &[] } else { all.of(subject, baseline) };
            compare(&samples(base, |run| run.run_s), &times)
        };
        let [over_small, over_always] = BASELINES.map(against);
        let is_worse =
            |found: Option<Comparison>| found.is_some_and(|found| found.verdict(Better::Less) == Verdict::Worse);
        let losing = [over_small, over_always].into_iter().zip(BASELINES).filter(|(found, _)| is_worse(*found));
        let mut loses: Vec<String> = losing.map(|(_, baseline)| format!("slower than {baseline}")).collect();
        if !loses.is_empty() {
            loses.push(cause(*policy, runs));
        }
        table.row([
            policy.name().to_owned(),
            middle(Unit::Seconds, &|run| run.run_s),
            ratio_with_interval(over_small),
            ratio_with_interval(over_always),
            middle(Unit::Bytes, &|run| run.usage.rss_peak_bytes as f64),
            range(&samples(runs, |run| run.huge_pages_peak as f64)),
            refused_share(runs).map_or_else(|| "–".into(), |share| format!("{:.0} %", share * 100.0)),
            middle(Unit::Count, &|run| (run.usage.minor_faults + run.usage.major_faults) as f64),
            loses.join("; "),
        ]);
    }
    table
}

/// The middle of some counts, or from where to where they go when they are far apart.
fn range(counts: &[f64]) -> String {
    let (low, high) = counts.iter().fold((f64::INFINITY, 0.0f64), |(l, h), count| (l.min(*count), h.max(*count)));
    if high > 2.0 * low + 2.0 * FEW as f64 {
        format!("{low:.0} … {high:.0}")
    } else {
        or_dash(Unit::Count, median(counts))
    }
}

/// Part of the huge-page faults that got a small page: the kernel had no free huge block.
fn refused_share(runs: &[Run]) -> Option<f64> {
    let refused: u64 = runs.iter().map(|run| run.huge_faults_refused).sum();
    let wanted = refused + runs.iter().map(|run| run.huge_faults).sum::<u64>();
    (wanted > FEW).then(|| refused as f64 / wanted as f64)
}

/// Cause of a way's slowness, from the runs' own counters.
fn cause(policy: Policy, runs: &[Run]) -> String {
    let sum = |figure: &dyn Fn(&Run) -> u64| runs.iter().map(figure).sum::<u64>();
    let without = runs.iter().filter(|run| run.huge_pages_peak + run.huge_faults <= FEW).count();
    let said: Vec<&str> =
        runs.iter().filter_map(|run| run.report.as_ref()?.notes.first()).map(String::as_str).collect();
    let served_otherwise =
        runs.iter().filter_map(|run| run.report.as_ref()).find(|report| report.served != report.huge);
    if policy == Policy::Small {
        "each page of 4 KiB is faulted in and walked to by itself".into()
    } else if let Some(report) = served_otherwise {
        let why = said.first().map_or_else(String::new, |said| format!(": {said}"));
        format!("served {} instead of {}{why}", report.served, report.huge)
    } else if let Some(share) = refused_share(runs).filter(|share| *share > 0.05) {
        format!("the kernel refused {:.0} % of its huge pages", share * 100.0)
    } else if without == runs.len() {
        "it got no huge pages: the program does not ask in this way".into()
    } else if without > 0 {
        format!("it got no huge pages in {without} of {} runs", runs.len())
    } else if sum(&|run| run.usage.major_faults) > 100 * runs.len() as u64 {
        "it waited for a disk".into()
    } else {
        let system =
            runs.iter().map(|run| run.usage.system_s / run.run_s.max(1e-9)).sum::<f64>() / runs.len().max(1) as f64;
        format!("nothing refused; {:.0} % of the run in the kernel", system * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use units::Bytes;

    use super::*;
    use crate::children::Usage;
    use ::masu::reports::{Huge, RunReport};

    fn run(run_s: f64, huge_faults: u64, huge_faults_refused: u64) -> Run {
        let usage = Usage { user_s: 1.0, system_s: 0.5, rss_peak_bytes: 1 << 20, minor_faults: 9, major_faults: 0 };
        Run {
            run_s,
            usage,
            huge_pages_peak: huge_faults,
            huge_faults,
            huge_faults_refused,
            report: None,
            work_s: None,
            lines: Vec::new(),
        }
    }

    #[test]
    fn a_losing_way_stays_in_the_table_with_its_cause() {
        let mut all = Runs::default();
        all.push("x", Policy::Small, vec![run(2.0, 0, 0); 6]);
        all.push("x", Policy::Always, vec![run(1.0, 100, 0); 6]);
        all.push("x", Policy::Glibc, vec![run(2.5, 10, 90); 6]);
        let text = table(&all, "x").to_string();
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("always").contains("0.500 (0.500 … 0.500)") && !line("always").contains("slower"), "{text}");
        assert!(line("4k").contains("slower than always; each page"), "{text}");
        let wanted = "slower than 4k; slower than always; the kernel refused 90 % of its huge pages";
        assert!(line("glibc").ends_with(wanted), "{text}");
    }

    #[test]
    fn each_cause_has_its_sentence() {
        let report = RunReport {
            command: Vec::new(),
            huge: Huge::Touch,
            served: Huge::Hot,
            exit_status: Some(0),
            signal: None,
            run_s: 1.0,
            user_s: 1.0,
            system_s: 0.5,
            rss_peak_bytes: Bytes(0),
            minor_faults: 9,
            major_faults: 0,
            processes: 1,
            superpages: BTreeMap::new(),
            superpages_at_end: BTreeMap::new(),
            counted_processes: 1,
            small_sizes: BTreeMap::new(),
            pieces: Default::default(),
            reserved_ever_windows: 0,
            uncounted_windows: 0,
            aligned_mappings: 0,
            torn_left_windows: 0,
            torn_left_bytes: Bytes(0),
            shared_left_windows: 0,
            shared_left_bytes: Bytes(0),
            promoted_windows: 0,
            promoted_still_huge_windows: 0,
            promoted_uncounted_windows: 0,
            looked_at: None,
            demoted_windows: 0,
            returned_bytes: Bytes(0),
            torn_windows: 0,
            torn_returned_bytes: Bytes(0),
            hidden_processes: 0,
            forbidding_processes: 0,
            program_forbids: false,
            programs: 1,
            programs_served: 1,
            left_out: BTreeMap::new(),
            still_running: Vec::new(),
            notes: vec!["the program is static".into()],
        };
        let outside = Run { report: Some(report), ..run(1.0, 50, 0) };
        assert_eq!(cause(Policy::Touch, &[outside]), "served hot instead of touch: the program is static");
        let none = cause(Policy::Jemalloc, &[run(1.0, 0, 0)]);
        assert_eq!(none, "it got no huge pages: the program does not ask in this way");
        let some = cause(Policy::Glibc, &[run(1.0, 50, 0), run(1.0, 0, 0)]);
        assert_eq!(some, "it got no huge pages in 1 of 2 runs");
        assert_eq!(cause(Policy::Always, &[run(1.0, 50, 0)]), "nothing refused; 50 % of the run in the kernel");
    }

    #[test]
    fn a_share_of_next_to_nothing_is_not_shown() {
        assert_eq!(refused_share(&[run(1.0, 30, 10), run(1.0, 60, 0)]), Some(0.1));
        assert_eq!(refused_share(&[run(1.0, 1, 7)]), None);
    }

    #[test]
    fn counts_far_apart_are_shown_as_such() {
        assert_eq!(range(&[0.0, 124.0, 120.0]), "0 … 124");
        assert_eq!(range(&[120.0, 124.0, 122.0]), "122");
        assert_eq!(range(&[0.0, 3.0, 1.0]), "1");
    }

    #[test]
    fn few_rounds_accuse_nobody() {
        let mut all = Runs::default();
        all.push("", Policy::Small, vec![run(1.0, 0, 0); 2]);
        all.push("", Policy::Glibc, vec![run(9.0, 0, 0); 2]);
        assert!(!table(&all, "").to_string().contains("slower"));
    }
}
