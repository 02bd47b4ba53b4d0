//! `masu-bench llc-mixes`: programs of all kinds beside each other, with and without shared pages, under every policy.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use llc::policy::metrics::Metrics;
use sim::cache::report::{OfCondition as Condition, Report as Simulated};

use super::scenario;
use crate::pairs::median;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::table::Table;

/// Arguments of `masu-bench llc-mixes`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Scenarios of bench/scenarios [default: all mix-*]
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Number of seeds, from 1 on: each with other pages in memory and other accesses
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub seeds: u64,
}

/// masu's own policy.
const OURS: &str = "sharing";
/// The same where the processor counts nothing: it plans once, from curves.
const OURS_BY_CURVES: &str = "sharing, by curves alone";
/// Suffix of scenario names with shared memory.
const SHARED: &str = "-shared";

/// Results of one scenario, one for each seed.
struct Mix {
    name: String,
    runs: Vec<Simulated>,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    let names = if options.only.is_empty() { scenario::beginning_with("mix-")? } else { options.only.clone() };
    let title = "llc-mixes: mixes of programs under every policy (simulated)";
    let mut report = Report::new("llc-mixes", title, &session.host);
    let folder = tempfile::tempdir().context("cannot make a directory")?;
    let mut mixes = Vec::new();
    for name in names {
        let mut runs = Vec::new();
        for seed in 1..=options.seeds {
            session.progress(&format!("{name}, seed {seed}"));
            let file = scenario::with_seed(&scenario::path(&name)?, seed, folder.path())?;
            runs.push(scenario::simulate(session, &file, None)?.0);
        }
        report.sample(&name, &runs);
        mixes.push(Mix { name, runs });
    }
    let medians = if options.seeds > 1 { ", medians over seeds" } else { "" };
    let each =
        format!("Every mix and policy{medians}; unfairness and ANTT: less is better, STP and Jain: more is better:");
    report.table(&each, each_policy(&mixes));
    report.table("Geometric means over mixes; STP as a part of the programs:", means(&mixes));
    for ours in [OURS, OURS_BY_CURVES] {
        let heading = format!("Unfairness of {ours}, over the best of the others, seed by seed:");
        report.table(&heading, ratios(&mixes, ours));
    }
    for (mix, ours) in mixes.iter().flat_map(|mix| [OURS, OURS_BY_CURVES].map(|ours| (mix, ours))) {
        let what = format!("{}: unfairness of {ours}, of the best of the others", mix.name);
        // A thousandth is no difference, in either direction.
        let target = if mix.is_shared() { 0.999 } else { 1.001 };
        report.figure(&what, Unit::Fraction, median(&mix.over_best(ours)), Some(Target::AtMost(target)));
    }
    if let Some(said) = mixes.first().and_then(|mix| mix.runs.first()) {
        report.note(format!("The model: {}.", said.model));
    }
    report.finish(session.save)
}

fn judged(said: &Simulated) -> impl Iterator<Item = (&Condition, Metrics)> {
    let conditions = said.points.iter().flat_map(|point| &point.conditions);
    conditions.filter_map(|condition| Some((condition, condition.metrics?)))
}

/// Ratio of our policy to the best of the others, and that policy's name.
fn over_best<'s>(said: &'s Simulated, ours: &str) -> Option<(f64, &'s str)> {
    let ours = judged(said).find(|(condition, _)| condition.name == ours)?.1.unfairness;
    let others = judged(said).filter(|(condition, _)| ![OURS, OURS_BY_CURVES].contains(&condition.name.as_str()));
    let best = others.min_by(|(_, one), (_, other)| one.unfairness.total_cmp(&other.unfairness))?;
    Some((ours / best.1.unfairness, &best.0.name))
}

impl Mix {
    fn is_shared(&self) -> bool {
        self.name.ends_with(SHARED)
    }

    fn over_best(&self, ours: &str) -> Vec<f64> {
        self.runs.iter().filter_map(|said| Some(over_best(said, ours)?.0)).collect()
    }

    /// Policies in the order of the scenario.
    fn policies(&self) -> Vec<&str> {
        self.runs.first().map(|said| judged(said).map(|(of, _)| of.name.as_str()).collect()).unwrap_or_default()
    }

    /// The median of a figure over seeds.
    fn median(&self, policy: &str, figure: impl Fn(&Metrics) -> f64) -> Option<f64> {
        let of =
            |said| judged(said).find(|(condition, _)| condition.name == policy).map(|(_, metrics)| figure(&metrics));
        median(&self.runs.iter().filter_map(of).collect::<Vec<f64>>())
    }

    fn programs(&self) -> usize {
        self.runs.first().and_then(|said| judged(said).next()).map_or(0, |(condition, _)| condition.programs.len())
    }
}

fn print(figure: Option<f64>) -> String {
    figure.map_or_else(|| "–".to_owned(), |figure| format!("{figure:.3}"))
}

fn each_policy(mixes: &[Mix]) -> Table {
    let mut table = Table::new(["mix", "policy", "unfairness", "STP", "ANTT", "Jain"]);
    for mix in mixes {
        for policy in mix.policies() {
            let figures: [fn(&Metrics) -> f64; 4] = [|of| of.unfairness, |of| of.stp, |of| of.antt, |of| of.jain];
            let figures = figures.map(|figure| print(mix.median(policy, figure)));
            table.row([vec![mix.name.clone(), policy.to_owned()], figures.to_vec()].concat());
        }
    }
    table
}

/// A row for each policy: with and without sharing.
fn means(mixes: &[Mix]) -> Table {
    let mut table = Table::new(["", "policy", "unfairness", "STP", "ANTT", "Jain"]);
    for (shared, what) in [(false, "nothing shared"), (true, "with sharing")] {
        let of: Vec<&Mix> = mixes.iter().filter(|mix| mix.is_shared() == shared).collect();
        for policy in of.first().map(|mix| mix.policies()).unwrap_or_default() {
            let mean = |figure: &dyn Fn(&Mix, &Metrics) -> f64| {
                geometric(of.iter().filter_map(|mix| mix.median(policy, |metrics| figure(mix, metrics))))
            };
            let row = [
                mean(&|_, metrics| metrics.unfairness),
                #[expect(clippy::cast_precision_loss, reason = "a number of programs")]
                mean(&|mix, metrics| metrics.stp / mix.programs() as f64),
                mean(&|_, metrics| metrics.antt),
                mean(&|_, metrics| metrics.jain),
            ];
            table.row([vec![what.to_owned(), policy.to_owned()], row.map(print).to_vec()].concat());
        }
    }
    table
}

fn geometric(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    (count > 0.0).then(|| f64::exp(sum / count))
}

/// One row for each mix: the median over seeds, the minimum and the maximum, and the number of times that each other
/// policy was best.
fn ratios(mixes: &[Mix], ours: &str) -> Table {
    let mut table = Table::new(["mix", "ratio", "least … greatest", "seeds", "best of the others"]);
    for mix in mixes {
        let found = mix.over_best(ours);
        let mut best: BTreeMap<&str, usize> = BTreeMap::new();
        mix.runs
            .iter()
            .filter_map(|said| over_best(said, ours))
            .for_each(|(_, name)| *best.entry(name).or_default() += 1);
        let range = [f64::min, f64::max].map(|pick| print(found.iter().copied().reduce(pick)));
        let best: Vec<String> = best.into_iter().map(|(name, times)| format!("{name} ({times})")).collect();
        table.row([
            mix.name.clone(),
            print(median(&found)),
            range.join(" … "),
            found.len().to_string(),
            best.join(", "),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(ours: f64) -> Simulated {
        let condition = |name: &str, unfairness: f64| Condition {
            metrics: Some(Metrics { unfairness, stp: 1.0, antt: 1.0, jain: 1.0 }),
            ..scenario::condition(name)
        };
        scenario::simulated(vec![(None, vec![condition("none", 2.0), condition(OURS, ours), condition("dunn", 1.5)])])
    }

    #[test]
    fn ours_is_held_against_the_fairest_of_the_others() {
        let (fairer, less_fair) = (said(1.2), said(1.8));
        let found = [over_best(&fairer, OURS), over_best(&less_fair, OURS)].map(Option::unwrap);
        assert!((found[0].0 - 0.8).abs() < 1e-12 && (found[1].0 - 1.2).abs() < 1e-12);
        assert_eq!(found[0].1, "dunn");
    }

    #[test]
    fn over_seeds_the_median_counts() {
        let mix = Mix { name: "m".to_owned(), runs: [1.2, 1.8, 1.35].map(said).to_vec() };
        assert!((median(&mix.over_best(OURS)).unwrap() - 0.9).abs() < 1e-12);
        let text = ratios(std::slice::from_ref(&mix), OURS).to_string();
        assert!(text.contains("0.900") && text.contains("0.800 … 1.200") && text.contains("dunn (3)"), "{text}");
        assert_eq!(each_policy(&[mix]).to_string().lines().count(), 4);
    }

    #[test]
    fn means_are_geometric_and_apart_by_sharing() {
        let mix = |name: &str, ours| Mix { name: name.to_owned(), runs: vec![said(ours)] };
        let text = means(&[mix("a", 1.0), mix("b", 4.0), mix("a-shared", 3.0)]).to_string();
        let policy =
            |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).nth(1).map(str::to_owned);
        let ours: Vec<&str> = text.lines().filter(|line| policy(line).as_deref() == Some(OURS)).collect();
        assert!(ours[0].contains("2.000") && ours[1].contains("3.000"), "{text}");
    }
}
