//! Measurements of one program, and their summary.

use serde::{Deserialize, Serialize};
use units::Bytes;

use super::cell::{End, Run};
use super::floor::floor;
use super::need::Need;
use super::task::Task;
use super::way::Way;
use crate::harness::median_of;
use crate::pairs::Comparison;
use crate::side_by_side::compare;

/// All that was measured of one program.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    pub task: Task,
    pub need: Need,
    /// A row for each budget.
    pub rows: Vec<Row>,
}

/// Results of one program with one budget.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// Budget in percent of the pageable memory.
    pub percent: f64,
    pub budget: Bytes,
    /// Runs with all memory, one for each round.
    pub all_local: Vec<Run>,
    /// Each way's runs; one that failed or took too long is not repeated.
    pub ways: Vec<(Way, Vec<End>)>,
}

/// Summary of the runs of one cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// All went well: the main part's time against all-local.
    Slowdown(Box<Found>),
    /// More than this many times the time of an all-local run.
    Beyond(f64),
    /// A run failed, or its result was wrong.
    Wrong(String),
    /// Not measured.
    Missing,
}

/// The figures of a cell, medians over its runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Main part, against that of the all-local run in the same round.
    pub main: Comparison,
    /// Whole run, the same.
    pub whole: Comparison,
    pub faults: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    /// In and out.
    pub bytes_moved: f64,
    pub peak_bytes: f64,
}

impl Row {
    /// Summary of the runs in `way`.
    pub fn cell(&self, way: Way) -> Cell {
        let Some((_, ends)) = self.ways.iter().find(|(other, _)| *other == way) else { return Cell::Missing };
        let mut runs = Vec::new();
        for end in ends {
            match end {
                End::Well(run) => runs.push(&**run),
                End::TooLong(times) => return Cell::Beyond(*times),
                End::Badly(complaint) => return Cell::Wrong(complaint.clone()),
            }
        }
        found(&self.all_local, &runs).map_or(Cell::Missing, |found| Cell::Slowdown(Box::new(found)))
    }

    /// The floor of the whole run, for all ways.
    pub fn floor(&self, copy_bytes_per_s: f64) -> Option<f64> {
        let moved = |(way, _): &(Way, _)| {
            if let Cell::Slowdown(found) = self.cell(*way) { Some(found.bytes_moved) } else { None }
        };
        let fewest = self.ways.iter().filter_map(moved).min_by(f64::total_cmp)?;
        floor(fewest, copy_bytes_per_s, median_of(&self.all_local, |run| run.run_s)?)
    }
}

fn found(all_local: &[Run], runs: &[&Run]) -> Option<Found> {
    let base = &all_local[..runs.len().min(all_local.len())];
    let compared = |of: fn(&Run) -> f64| {
        let samples = [base.iter().map(of).collect::<Vec<_>>(), runs.iter().map(|run| of(run)).collect()];
        compare(&samples[0], &samples[1])
    };
    let middle = |of: fn(&Run) -> u64| median_of(runs, |run| of(run) as f64);
    Some(Found {
        main: compared(|run| run.main_s)?,
        whole: compared(|run| run.run_s)?,
        faults: middle(|run| run.faults)?,
        bytes_in: middle(|run| run.bytes_in)?,
        bytes_out: middle(|run| run.bytes_out)?,
        bytes_moved: middle(|run| run.bytes_in + run.bytes_out)?,
        peak_bytes: middle(|run| run.peak_bytes)?,
    })
}

impl Cell {
    /// The slowdown, where it is known.
    pub fn slowdown(&self) -> Option<f64> {
        if let Cell::Slowdown(found) = self { Some(found.main.ratio) } else { None }
    }

    /// Slowdown, or its lower bound.
    pub fn at_least(&self) -> Option<f64> {
        if let Cell::Beyond(times) = self { Some(*times) } else { self.slowdown() }
    }

    /// Short form for a table of slowdowns.
    pub fn short(&self) -> String {
        match self {
            Cell::Slowdown(found) => times(found.main.ratio),
            Cell::Beyond(times) => format!(">{times:.0}"),
            Cell::Wrong(_) => "failed".into(),
            Cell::Missing => "–".into(),
        }
    }
}

/// A ratio, in as many digits as it deserves.
pub fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 100.0 => format!("{r:.0}"),
        r if r >= 10.0 => format!("{r:.1}"),
        r if (r - 1.0).abs() < 0.095 => format!("{r:.3}"),
        r => format!("{r:.2}"),
    }
}

/// The best fixed transfer size of a row.
pub fn best_fixed(row: &Row) -> Option<(Way, f64)> {
    let fixed = row.ways.iter().map(|(way, _)| *way).filter(|way| way.unit().is_some());
    let known = fixed.filter_map(|way| Some((way, row.cell(way).slowdown()?)));
    known.min_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A run of `main_s` seconds.
    pub fn run(main_s: f64, bytes: u64) -> Run {
        Run {
            main_s,
            run_s: main_s + 1.0,
            faults: 3,
            bytes_in: bytes,
            bytes_out: 0,
            peak_bytes: 5,
            compressed_bytes: None,
            waits: 0,
            report: None,
        }
    }

    /// A row of one round, all-local in one second, with these ways.
    pub fn row(ways: Vec<(Way, Vec<End>)>) -> Row {
        Row { percent: 5.0, budget: Bytes::mib(8), all_local: vec![run(1.0, 0), run(1.0, 0)], ways }
    }

    fn well(main_s: f64) -> End {
        End::Well(Box::new(run(main_s, 2_000_000_000)))
    }

    #[test]
    fn a_slowdown_is_paired_with_the_runs_of_its_own_rounds() {
        let mut row = row(vec![(Way::Auto, vec![well(3.0), well(8.0)])]);
        row.all_local[1] = run(2.0, 0);
        let Cell::Slowdown(found) = row.cell(Way::Auto) else { panic!() };
        assert_eq!((found.main.ratio, found.faults, found.bytes_in), (3.5, 3.0, 2e9));
    }

    #[test]
    fn all_ways_have_the_floor_of_the_one_that_moved_least() {
        let moved = |bytes| vec![End::Well(Box::new(run(3.0, bytes)))];
        let wasteful = (Way::Fixed(1024), moved(9_000_000_000));
        let failed = (Way::Zram, vec![End::Badly("wrong result: 1 instead of 2".into())]);
        let row = row(vec![wasteful, (Way::Auto, moved(3_000_000_000)), failed]);
        // The whole run takes 2 s with all memory, and 3 s go to the bytes.
        assert_eq!(row.floor(1e9), Some(2.5));
        assert_eq!(Row { ways: Vec::new(), ..row }.floor(1e9), None);
    }

    #[test]
    fn one_run_that_fails_or_takes_too_long_decides() {
        let row = row(vec![
            (Way::Auto, vec![well(3.0), End::Badly("wrong result: 1 instead of 2".into())]),
            (Way::Zram, vec![End::TooLong(60.0)]),
            (Way::Fixed(4), Vec::new()),
        ]);
        let shorts = [Way::Auto, Way::Zram, Way::Fixed(4), Way::Marked].map(|way| row.cell(way).short());
        assert_eq!(shorts, ["failed", ">60", "–", "–"]);
        assert_eq!(row.cell(Way::Zram).at_least(), Some(60.0));
        assert_eq!(row.cell(Way::Zram).slowdown(), None);
    }

    #[test]
    fn the_best_fixed_unit_is_one_that_ended() {
        let row = row(vec![
            (Way::Fixed(4), vec![well(9.0)]),
            (Way::Fixed(64), vec![well(4.0)]),
            (Way::Fixed(1024), vec![End::TooLong(60.0)]),
            (Way::Auto, vec![well(2.0)]),
        ]);
        assert_eq!(best_fixed(&row), Some((Way::Fixed(64), 4.0)));
    }

    #[test]
    fn ratios_near_one_have_three_digits_behind_the_point() {
        assert_eq!([1.004, 3.2, 21.64, 868.4, 0.5].map(times), ["1.004", "3.20", "21.6", "868", "0.50"]);
    }
}
