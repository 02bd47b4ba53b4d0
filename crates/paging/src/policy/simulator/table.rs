//! The table: estimated slowdown by program, budget and way of choosing units. It is returned by failing, which is how a
//! test says something to who asked for it.

use super::{Outcome, Units, programs, run};

const BUDGETS_PERCENT: [u32; 4] = [5, 10, 25, 50];

#[test]
#[ignore = "takes half a minute, and is for reading"]
fn slowdown_of_every_program_at_every_budget() {
    let mut table = String::new();
    let mut columns: Vec<Units> = (0..=8).map(Units::Fixed).collect();
    columns.extend([Units::Marked, Units::AutoAlone, Units::Auto]);
    table += &format!("{:<26}{:>6}", "run time / computing time", "local");
    for column in &columns {
        let name = match column {
            Units::Fixed(log2) => format!("{} KiB", 4 << log2),
            Units::Marked => "marked".into(),
            Units::AutoAlone => "alone".into(),
            Units::Auto => "auto".into(),
        };
        table += &format!("{name:>10}");
    }
    table += &format!("{:>8}\n", "ratio");
    for program in &programs::all() {
        for percent in BUDGETS_PERCENT {
            let budget = program.pages * percent / 100;
            let outcomes: Vec<Outcome> = columns.iter().map(|units| run(program, budget, *units)).collect();
            table += &format!("{:<26}{:>5}%", program.name, percent);
            for outcome in &outcomes {
                table += &format!("{:>10.2}", outcome.slowdown());
            }
            let best = outcomes[..9].iter().map(Outcome::slowdown).fold(f64::INFINITY, f64::min);
            let ratio = outcomes[11].slowdown() / best;
            table += &format!("{ratio:>8.2}{}\n", if ratio > 1.0 { "  <" } else { "" });
        }
    }
    panic!("{table}");
}

#[test]
fn what_if_is_right_within_a_sixth_for_random_updates_and_for_sweeps_with_a_fixed_unit() {
    for name in ["GUPS", "merge sort"] {
        let programs = programs::all();
        let program = programs.iter().find(|program| program.name == name).unwrap();
        let budget = program.pages / 4;
        let [half, now, double] = [budget / 2, budget, budget * 2].map(|budget| run(program, budget, Units::Fixed(2)));
        let near = |said: u64, counted: u64| said.abs_diff(counted) <= counted / 6;
        assert!(near(now.faults_at_half, half.faults_home), "{name}: {} and {half:?}", now.faults_at_half);
        assert!(near(now.faults_at_double, double.faults_home), "{name}: {} and {double:?}", now.faults_at_double);
    }
}

#[test]
fn no_budget_makes_single_pages_better_than_what_sites_learn() {
    for name in ["ADI, one site a sweep", "FFT 3-D", "sparse matrix"] {
        let programs = programs::all();
        let program = programs.iter().find(|program| program.name == name).unwrap();
        for percent in [5, 25] {
            let budget = program.pages * percent / 100;
            let [auto, single] = [Units::Auto, Units::Fixed(0)].map(|units| run(program, budget, units).slowdown());
            assert!(auto < single, "{name} at {percent} %: {auto} and {single}");
        }
    }
}

#[test]
#[ignore = "takes a while, and is for reading"]
fn what_if_foretells_the_faults_at_half_and_at_double_the_budget() {
    let mut table = format!(
        "{:<26}{:>6}{:>9}{:>10}{:>10}{:>10}{:>10}\n",
        "faults", "local", "", "half", "counted", "double", "counted"
    );
    for program in &programs::all() {
        for units in [Units::Auto, Units::Fixed(2)] {
            for percent in [10, 25] {
                let budget = program.pages * percent / 100;
                let [half, now, double] = [budget / 2, budget, budget * 2].map(|budget| run(program, budget, units));
                let (at_half, at_double) = (now.faults_at_half, now.faults_at_double);
                table += &format!("{:<26}{:>5}%{:>9}", program.name, percent, now.faults_home);
                table +=
                    &format!("{:>10}{:>10}{:>10}{:>10}\n", at_half, half.faults_home, at_double, double.faults_home);
            }
        }
    }
    panic!("{table}");
}
