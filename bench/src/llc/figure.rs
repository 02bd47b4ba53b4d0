//! `masu-bench llc-figure`: the paper's figure. Two programs, 4 MiB of the cache each, half of the array shared; access
//! time of the first and of the second, over the size of the array.

use super::scenario;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::table::Table;
use anyhow::{Context, Result};
use sim::cache::report::{OfCondition as Condition, Report as Simulated};

/// Arguments of `masu-bench llc-figure`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Scenarios of bench/scenarios [default: all figure-*]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
}

/// The condition that the target is for.
const REGION: &str = "masu's region";

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    let names = if options.only.is_empty() { scenario::beginning_with("figure-")? } else { options.only.clone() };
    let title = "llc-figure: two programs with a partition each and half of their array shared (simulated)";
    let mut report = Report::new("llc-figure", title, &session.host);
    let folder = tempfile::tempdir().context("cannot make a directory")?;
    for name in &names {
        session.progress(name);
        let svg = folder.path().join("figure.svg");
        let (said, took) = scenario::simulate(session, &scenario::path(name)?, Some(&svg))?;
        report.table(
            &format!("{name}: {}; the time of an access, first / second program, cycles:", said.title),
            rows(&said),
        );
        let worst = worst(&said, REGION);
        report.figure(&format!("{name}, {REGION}: greatest ratio"), Unit::Times, worst, Some(Target::AtMost(1.05)));
        report.figure(&format!("{name}, shared under CAT: greatest ratio"), Unit::Times, worst_of_plain(&said), None);
        report.figure(&format!("{name}, {REGION}: greatest unfairness"), Unit::Times, unfairness(&said), None);
        report.figure(
            &format!("{name}, {REGION}: duty of the daemon"),
            Unit::Fraction,
            duty(&said),
            Some(Target::AtMost(0.01)),
        );
        report.figure(&format!("{name}, {REGION}: passes until it is even"), Unit::Count, passes(&said), None);
        report.figure(&format!("{name}: simulated in"), Unit::Seconds, Some(took.as_secs_f64()), None);
        report.note(format!("The model: {}.", said.model));
        let drawn = std::fs::read_to_string(&svg).with_context(|| format!("masu drew no {}", svg.display()))?;
        report.file(&format!("{name}.svg"), drawn);
        report.sample(name, &said);
    }
    report.note("A ratio is the longer time of an access over the shorter; unfairness is the same of slowdowns over each program alone.");
    report.note("Measured is the steady state, after the daemon has filled its region once; what that takes is told by the passes: those of the programs, from when the daemon begins until the ratio is 1.05 or less and stays so.");
    report.finish(session.save)
}

/// A row for each size, a column for each condition.
fn rows(said: &Simulated) -> Table {
    let conditions = said.points.first().map(|point| &point.conditions[..]).unwrap_or_default();
    let mut head = vec!["array".to_owned()];
    head.extend(conditions.iter().flat_map(|condition| [condition.name.clone(), "ratio".to_owned()]));
    let mut table = Table::new(head);
    for point in &said.points {
        let mut row = vec![point.array_bytes.unwrap_or_default().to_string()];
        for condition in &point.conditions {
            let times: Vec<String> =
                condition.programs.iter().map(|program| format!("{:.1}", program.access_cycles)).collect();
            row.extend([times.join(" / "), format!("{:.2}", condition.access_time_ratio)]);
        }
        table.row(row);
    }
    table
}

fn of<'s>(said: &'s Simulated, condition: &'s str) -> impl Iterator<Item = &'s Condition> {
    said.points.iter().flat_map(|point| &point.conditions).filter(move |of| of.name == condition)
}

fn worst(said: &Simulated, condition: &str) -> Option<f64> {
    of(said, condition).map(|of| of.access_time_ratio).reduce(f64::max)
}

/// `None` where it never became even at some size.
fn passes(said: &Simulated) -> Option<f64> {
    let all: Option<Vec<u64>> = of(said, REGION).map(|of| of.passes_until_even).collect();
    all?.into_iter().max().map(|most| most as f64)
}

fn unfairness(said: &Simulated) -> Option<f64> {
    of(said, REGION).filter_map(|of| of.metrics).map(|metrics| metrics.unfairness).reduce(f64::max)
}

/// Worst value in the condition with sharing, partitions, and no shared partition.
fn worst_of_plain(said: &Simulated) -> Option<f64> {
    worst(said, "shared, CAT")
}

fn duty(said: &Simulated) -> Option<f64> {
    of(said, REGION).flat_map(|of| &of.regions).map(|region| region.duty_fraction).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use sim::cache::report::{OfProgram, OfRegion};
    use units::{Bytes, WayMask};

    use super::*;

    fn program(name: &str, access_cycles: f64) -> OfProgram {
        OfProgram {
            name: name.to_owned(),
            mask: WayMask::NONE,
            slowdown: 1.0,
            access_cycles,
            accesses: 9,
            miss_fraction: 0.0,
            mpki: 0.0,
            free_ride_fraction: 0.0,
            region_hit_fraction: 0.0,
            stalled_fraction: 0.0,
            occupancy_bytes: Bytes(0),
            unmerged_pages: 0,
        }
    }

    fn said() -> Simulated {
        let region = |duty_fraction| OfRegion {
            set: "s".to_owned(),
            mask: WayMask::NONE,
            occupancy_bytes: Bytes(0),
            passes: 0,
            fetched_bytes: Bytes(0),
            busy_cycles: 0.0,
            duty_fraction,
        };
        let condition = |name: &str, ratio: f64, duty: f64| Condition {
            access_time_ratio: ratio,
            programs: vec![program("a", 40.0), program("b", 41.25)],
            regions: vec![region(duty)],
            passes_until_even: Some(3),
            ..scenario::condition(name)
        };
        let point = |size: Bytes, ratio: f64| {
            (Some(size), vec![condition("shared, CAT", 2.0 * ratio, 0.0), condition(REGION, ratio, ratio / 100.0)])
        };
        scenario::simulated(vec![point(Bytes::mib(1), 1.0), point(Bytes::mib(4), 1.5)])
    }

    #[test]
    fn the_greatest_ratio_is_that_of_the_condition_that_is_asked_for() {
        let said = said();
        assert_eq!((worst(&said, REGION), worst_of_plain(&said)), (Some(1.5), Some(3.0)));
        assert_eq!(worst(&said, "another"), None);
        assert_eq!((duty(&said), passes(&said), unfairness(&said)), (Some(0.015), Some(3.0), None));
    }

    #[test]
    fn each_size_has_a_row_with_both_programs_times() {
        let text = rows(&said()).to_string();
        assert!(text.lines().nth(2).unwrap().starts_with("4.0 MiB") && text.contains("40.0 / 41.2"), "{text}");
    }
}
