//! Tables of the estimates, by program, budget and choice of transfer size. Each line is written as soon as it is
//! known.

use std::io::{self, Write};

use crate::programs::Program;
use crate::simulator::{Units, fewest_pages_in, run};

const BUDGETS_PERCENT: [u32; 4] = [5, 10, 25, 50];

/// Run time over computing time. `ratio` is `auto` over the best fixed unit; `<` marks a better fixed unit.
pub(super) fn slowdowns(programs: &[Program], out: &mut impl Write) -> io::Result<()> {
    let fixed: Vec<Units> = (0..=8).map(Units::Fixed).collect();
    write!(out, "{:<26}{:>6}", "run time / computing time", "local")?;
    for log2 in 0..fixed.len() {
        write!(out, "{:>10}", format!("{} KiB", 4 << log2))?;
    }
    writeln!(out, "{:>10}{:>10}{:>10}{:>8}", "marked", "alone", "auto", "ratio")?;
    for program in programs {
        for percent in BUDGETS_PERCENT {
            let budget = program.pages * percent / 100;
            let slowdown = |units: Units| run(program, budget, units).slowdown();
            write!(out, "{:<26}{:>5}%", program.name, percent)?;
            let mut best = f64::INFINITY;
            for units in &fixed {
                let slowdown = slowdown(*units);
                best = best.min(slowdown);
                write!(out, "{slowdown:>10.2}")?;
            }
            let [marked, alone, auto] = [Units::Marked, Units::AutoAlone, Units::Auto].map(slowdown);
            let ratio = auto / best;
            let worse = if ratio > 1.0 { "  <" } else { "" };
            writeln!(out, "{marked:>10.2}{alone:>10.2}{auto:>10.2}{ratio:>8.2}{worse}")?;
        }
    }
    Ok(())
}

/// Faults now, and at half and at double the budget: the prediction of `what_if`, and the simulated count.
pub(super) fn foretold(programs: &[Program], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<26}{:>6}{:>8}{:>9}{:>10}{:>10}{:>10}{:>10}",
        "faults", "local", "units", "now", "half", "counted", "double", "counted"
    )?;
    for program in programs {
        for (name, units) in [("auto", Units::Auto), ("16 KiB", Units::Fixed(2))] {
            for percent in [10, 25] {
                let budget = program.pages * percent / 100;
                let [half, now, double] = [budget / 2, budget, budget * 2].map(|budget| run(program, budget, units));
                write!(out, "{:<26}{:>5}%{:>8}{:>9}", program.name, percent, name, now.faults_stored)?;
                write!(out, "{:>10}{:>10}", now.faults_at_half, half.faults_stored)?;
                writeln!(out, "{:>10}{:>10}", now.faults_at_double, double.faults_stored)?;
            }
        }
    }
    Ok(())
}

/// Pages fetched from the backing store, and their ratio to the minimum with perfect knowledge of the future.
pub(super) fn traffic(programs: &[Program], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<26}{:>6}{:>10}{:>10}{:>8}{:>10}{:>8}{:>10}{:>8}",
        "pages brought", "local", "fewest", "16 KiB", "ratio", "alone", "ratio", "auto", "ratio"
    )?;
    for program in programs {
        for percent in [5, 10, 25, 50, 75, 90] {
            let budget = program.pages * percent / 100;
            let fewest = fewest_pages_in(program, budget);
            write!(out, "{:<26}{:>5}%{:>10}", program.name, percent, fewest)?;
            for units in [Units::Fixed(2), Units::AutoAlone, Units::Auto] {
                let brought = run(program, budget, units).pages_in;
                write!(out, "{brought:>10}{:>8.2}", brought as f64 / fewest as f64)?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}
