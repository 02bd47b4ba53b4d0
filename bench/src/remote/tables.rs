//! Tables of slowdowns, with the floor, the faults and the traffic behind each; and the targets.

use super::cell::Run;
use super::figures;
use super::measured::{Cell, Measured, Row, best_fixed, times};
use super::task::Task;
use super::way::Way;
use crate::harness::{Choice as _, median_of, or_dash};
use crate::report::{Report, Target, Unit};
use crate::table::Table;

/// Adds tables and figures over all programs, and the targets.
pub fn summary(report: &mut Report, all: &[Measured], ways: &[Way]) {
    report.table("Programs, with all memory:", programs(all));
    report.table("Slowdown against all-local:", slowdowns(all, ways));
    targets(report, all);
    for (name, content) in figures::figures(all, ways) {
        report.file(name, content);
    }
}

/// One line for each program and budget, one column for each way.
fn slowdowns(all: &[Measured], ways: &[Way]) -> Table {
    let head = ["", "local"].map(str::to_owned).into_iter().chain(ways.iter().map(Way::to_string));
    let mut table = Table::new(head);
    for measured in all {
        for row in &measured.rows {
            let name = [measured.task.to_string(), percent(row.percent)];
            let cells = ways.iter().map(|way| row.cell(*way).short());
            table.row(name.into_iter().chain(cells));
        }
    }
    table
}

/// All that is known of one program's cells.
pub fn details(measured: &Measured, copy_bytes_per_s: f64) -> Table {
    let head = [
        "local",
        "",
        "slowdown",
        "range",
        "whole run",
        "its floor",
        "faults",
        "in",
        "out",
        "peak memory",
        "what went wrong",
    ];
    let mut table = Table::new(head);
    for row in &measured.rows {
        let floor = row.floor(copy_bytes_per_s).map_or_else(|| "–".into(), times);
        for (way, _) in &row.ways {
            let first = [format!("{} ({})", percent(row.percent), row.budget), way.to_string()];
            let cell = row.cell(*way);
            let rest = match &cell {
                Cell::Missing => continue,
                Cell::Beyond(_) => vec![cell.short()],
                Cell::Wrong(complaint) => {
                    [vec![cell.short()], vec![String::new(); 7], vec![complaint.clone()]].concat()
                }
                Cell::Slowdown(found) => vec![
                    cell.short(),
                    format!("{} … {}", times(found.main.ratio_low), times(found.main.ratio_high)),
                    times(found.whole.ratio),
                    floor.clone(),
                    Unit::Count.print(found.faults),
                    Unit::Bytes.print(found.bytes_in),
                    Unit::Bytes.print(found.bytes_out),
                    Unit::Bytes.print(found.peak_bytes),
                ],
            };
            table.row(first.into_iter().chain(rest));
        }
    }
    table
}

/// Description and memory need of each program.
fn programs(all: &[Measured]) -> Table {
    let mut table = Table::new(["", "all-local", "whole run", "paged memory", "other memory", "what it does"]);
    for Measured { task, need, rows } in all {
        let runs: Vec<&Run> = rows.iter().flat_map(|row| &row.all_local).collect();
        let seconds = |of: fn(&Run) -> f64| or_dash(Unit::Seconds, median_of(&runs, |run| of(run)));
        let [paged, rest] = [need.paged_bytes, need.rest_bytes].map(|bytes| Unit::Bytes.print(bytes.0 as f64));
        let times = [seconds(|run| run.main_s), seconds(|run| run.run_s)];
        table.row([task.name(), &times[0], &times[1], &paged, &rest, task.title()]);
    }
    table
}

/// Targets of `masu run --local`, for the cells that were measured.
fn targets(report: &mut Report, all: &[Measured]) {
    for measured in all {
        for row in &measured.rows {
            let Some(auto) = row.cell(Way::Auto).at_least() else { continue };
            let at = format!("{}, {} local", measured.task, percent(row.percent));
            if let Some(bound) = bound(measured.task, row) {
                report.figure(&format!("{at}: auto"), Unit::Times, Some(auto), Some(Target::AtMost(bound)));
            }
            if let Some((way, best)) = rival(row) {
                let what = format!("{at}: auto against the best fixed unit ({way})");
                report.figure(&what, Unit::Times, Some(auto / best), Some(Target::AtMost(1.0)));
            }
            if let Some(zram) = row.cell(Way::Zram).at_least().filter(|_| row.percent <= 10.0) {
                let what = format!("{at}: zram against auto");
                // Unknown where both took too long.
                let found = row.cell(Way::Auto).slowdown().map(|auto| zram / auto);
                report.figure(&what, Unit::Times, found, Some(Target::AtLeast(2.0)));
            }
        }
    }
}

/// The slowdown that a program should not exceed with a budget.
fn bound(task: Task, row: &Row) -> Option<f64> {
    let is = |percent: f64| (row.percent - percent).abs() < 1e-9;
    match task {
        Task::Adi if is(5.0) => Some(5.0),
        Task::Adi if is(10.0) => Some(3.0),
        Task::Himeno if is(10.0) => Some(2.5),
        _ if is(100.0) => Some(1.01),
        _ => None,
    }
}

/// The best fixed transfer size. With all memory none is better than another, and the best of many would be chance.
fn rival(row: &Row) -> Option<(Way, f64)> {
    best_fixed(row).filter(|_| row.percent < 100.0)
}

/// `5 %`.
pub fn percent(value: f64) -> String {
    format!("{value} %")
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::super::cell::End;
    use super::super::measured::tests::{row, run};
    use super::super::need::Need;
    use super::*;

    fn measured() -> Measured {
        let need = Need { paged_bytes: Bytes::mib(160), rest_bytes: Bytes::mib(2), checksum: "a".into(), run_s: 2.0 };
        let ways = vec![
            (Way::Fixed(4), vec![End::Well(Box::new(run(4.0, 1 << 20)))]),
            (Way::Auto, vec![End::Well(Box::new(run(3.0, 2 << 20)))]),
            (Way::Zram, vec![End::TooLong(60.0)]),
            (Way::SwapFile, vec![End::Badly("it was ended by signal 9: no message".into())]),
        ];
        Measured { task: Task::Adi, need, rows: vec![row(ways)] }
    }

    #[test]
    fn slowdowns_stand_side_by_side() {
        let ways = [Way::Fixed(4), Way::Marked, Way::Auto, Way::Zram, Way::SwapFile];
        let wanted = "      local     4K   marked   auto   zram   swap-file\n\
                      adi     5 %   4.00        –   3.00    >60   failed\n";
        assert_eq!(slowdowns(&[measured()], &ways).to_string(), wanted);
    }

    #[test]
    fn each_cell_shows_its_floor_its_traffic_and_what_went_wrong() {
        let text = details(&measured(), 1e6).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(
            lines[1].contains("4.00 … 4.00") && lines[1].contains("2.50") && lines[1].contains("1.0 MiB"),
            "{text}"
        );
        // 2 s, and 1 MiB at 1 MB/s, for the way that moved 2 MiB as well.
        assert!(lines[1..3].iter().all(|line| line.split_whitespace().any(|word| word == "1.52")), "{text}");
        assert!(lines[4].ends_with("it was ended by signal 9: no message"), "{text}");
    }

    #[test]
    fn auto_has_a_rival_where_memory_is_short() {
        let ways = || vec![(Way::Fixed(4), vec![End::Well(Box::new(run(4.0, 0)))])];
        assert_eq!(rival(&row(ways())), Some((Way::Fixed(4), 4.0)));
        assert_eq!(rival(&Row { percent: 100.0, ..row(ways()) }), None);
    }

    #[test]
    fn of_two_that_took_too_long_neither_is_the_faster() {
        let zram_against = |auto: End| {
            let mut measured = measured();
            measured.rows[0].ways = vec![(Way::Auto, vec![auto]), (Way::Zram, vec![End::TooLong(60.0)])];
            let mut report = Report::new("x", "x", &crate::host::Host::here());
            targets(&mut report, &[measured]);
            let text = report.to_string();
            text.lines()
                .find(|line| line.contains("zram against auto"))
                .map(str::trim_end)
                .unwrap_or_default()
                .to_owned()
        };
        assert!(zram_against(End::TooLong(60.0)).ends_with("not measured"));
        assert!(zram_against(End::Well(Box::new(run(3.0, 0)))).contains("20.00x   target ≥ 2.00x: met"));
    }

    #[test]
    fn a_target_belongs_to_a_program_and_a_budget() {
        let measured = measured();
        assert_eq!(bound(Task::Adi, &measured.rows[0]), Some(5.0));
        assert_eq!(bound(Task::Gups, &measured.rows[0]), None);
        let all = Row { percent: 100.0, ..row(Vec::new()) };
        assert_eq!(bound(Task::Gups, &all), Some(1.01));
    }
}
