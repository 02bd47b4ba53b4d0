//! Figures of the DLM paper (H. Midorikawa, J. Uchiyama, "Adaptive Page Size Control for Remote Page Swapping", 2012),
//! drawn from these measurements: run time relative to all-local, on a logarithmic axis.
//!
//! | paper | here |
//! |---|---|
//! | figure 1: programs over page sizes | `remote-units.svg`: a chart for each budget, a line for each program |
//! | figure 2: one program over page sizes | `remote-programs.svg`: a chart for each program, a line for each budget |
//! | figures 6, 7, 8: adaptive beside fixed | `remote-ways.svg`: a chart for each program at the small budgets, a bar for each way |

use super::measured::{Cell, Measured, Row};
use super::tables::percent;
use super::way::Way;
use sim::plot::{Point, Ratios, Shape, ratios};

/// Budgets that have bars of their own.
const SMALL_PERCENT: f64 = 10.0;

const Y_LABEL: &str = "run time, all-local = 1";

/// All figures: names of files, and their contents.
pub fn figures(all: &[Measured], ways: &[Way]) -> Vec<(&'static str, String)> {
    let fixed: Vec<Way> = ways.iter().copied().filter(|way| way.unit().is_some()).collect();
    let mut files = Vec::new();
    if !fixed.is_empty() {
        let title = "Run time over the page size, by local memory";
        files.push(("remote-units.svg", ratios(title, &by_budget(all, &fixed), 2)));
        let title = "Run time over the page size, by program";
        files.push(("remote-programs.svg", ratios(title, &by_program(all, &fixed), 2)));
    }
    let title = "Each way of living with less memory";
    files.push(("remote-ways.svg", ratios(title, &by_way(all, ways), 2)));
    files
}

fn points(row: &Row, ways: &[Way]) -> Vec<Option<Point>> {
    let point = |way: &Way| {
        let cell = row.cell(*way);
        Some(Point { ratio: cell.at_least()?, is_beyond: matches!(cell, Cell::Beyond(_)) })
    };
    ways.iter().map(point).collect()
}

fn over_units(title: String, fixed: &[Way], series: Vec<(String, Vec<Option<Point>>)>) -> Ratios {
    let places = fixed.iter().map(Way::to_string).collect();
    Ratios { title, x_label: "page size".into(), y_label: Y_LABEL.into(), places, series, shape: Shape::Lines }
}

fn by_budget(all: &[Measured], fixed: &[Way]) -> Vec<Ratios> {
    let mut percents: Vec<f64> = all.iter().flat_map(|measured| measured.rows.iter().map(|row| row.percent)).collect();
    percents.sort_unstable_by(f64::total_cmp);
    percents.dedup();
    let chart = |at: f64| {
        let rows = all.iter().filter_map(|measured| {
            let row = measured.rows.iter().find(|row| row.percent.total_cmp(&at).is_eq())?;
            Some((measured.task.to_string(), points(row, fixed)))
        });
        over_units(format!("{} local", percent(at)), fixed, rows.collect())
    };
    percents.into_iter().map(chart).collect()
}

fn by_program(all: &[Measured], fixed: &[Way]) -> Vec<Ratios> {
    let line = |row: &Row| (format!("{} local", percent(row.percent)), points(row, fixed));
    let chart =
        |measured: &Measured| over_units(measured.task.to_string(), fixed, measured.rows.iter().map(line).collect());
    all.iter().map(chart).collect()
}

fn by_way(all: &[Measured], ways: &[Way]) -> Vec<Ratios> {
    let small = all.iter().flat_map(|measured| {
        let rows = measured.rows.iter().filter(|row| row.percent <= SMALL_PERCENT);
        rows.map(move |row| (measured, row))
    });
    let chart = |(measured, row): (&Measured, &Row)| Ratios {
        title: format!("{}, {} local", measured.task, percent(row.percent)),
        x_label: "page size, or who decides".into(),
        y_label: Y_LABEL.into(),
        places: ways.iter().map(Way::to_string).collect(),
        series: vec![(measured.task.to_string(), points(row, ways))],
        shape: Shape::Bars,
    };
    small.map(chart).collect()
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::super::cell::End;
    use super::super::measured::tests::{row, run};
    use super::super::need::Need;
    use super::super::task::Task;
    use super::*;

    fn measured(task: Task) -> Measured {
        let need = Need { paged_bytes: Bytes::mib(160), rest_bytes: Bytes(0), checksum: "a".into(), run_s: 2.0 };
        let ways = vec![
            (Way::Fixed(4), vec![End::Well(Box::new(run(4.0, 1)))]),
            (Way::Fixed(64), vec![End::TooLong(60.0)]),
            (Way::Zram, vec![End::Well(Box::new(run(9.0, 1)))]),
        ];
        let large = Row { percent: 50.0, ..row(Vec::new()) };
        Measured { task, need, rows: vec![row(ways), large] }
    }

    #[test]
    fn lines_are_of_units_and_bars_of_all_ways_with_little_memory() {
        let all = [measured(Task::Adi), measured(Task::Himeno)];
        let ways = [Way::Fixed(4), Way::Fixed(64), Way::Zram];
        let names: Vec<&str> = figures(&all, &ways).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["remote-units.svg", "remote-programs.svg", "remote-ways.svg"]);
        let units = by_budget(&all, &ways[..2]);
        assert_eq!((units.len(), units[0].series.len(), units[0].places.len()), (2, 2, 2));
        assert_eq!(units[0].series[0].1[1], Some(Point { ratio: 60.0, is_beyond: true }));
        assert_eq!(units[1].series[0].1, [None, None]);
        let bars = by_way(&all, &ways);
        assert_eq!((bars.len(), bars[0].title.as_str()), (2, "adi, 5 % local"));
        assert_eq!(figures(&all, &[Way::Zram]).len(), 1);
    }
}
