//! `masu llc simulate` on a scenario of `bench/scenarios`, and its output.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::report::repository;
use crate::session::Session;

/// A scenario may take this long.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Output of `masu llc simulate --json`; names as in masu-llc-simulate(1).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulated {
    /// Title of the scenario.
    pub title: String,
    /// Kind of the model.
    pub model: String,
    /// All runs were made.
    pub complete: bool,
    /// Results for each size of the array; a single one if nothing is varied.
    pub points: Vec<Point>,
}

/// Results for one size of the array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Size of the array, where it is varied.
    pub array_bytes: Option<u64>,
    /// Results for each way to divide the cache.
    pub conditions: Vec<Condition>,
}

/// Results of one way to divide the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Condition {
    /// Name of the policy, or of the scenario.
    pub name: String,
    /// Metrics of the condition.
    pub metrics: Option<Metrics>,
    /// The longest mean time of an access over the shortest.
    pub access_time_ratio: f64,
    /// Each program.
    pub programs: Vec<Program>,
    /// Passes of the programs from the first plan on until the ratio was 1.05 or less and stayed so.
    #[serde(default)]
    pub passes_until_even: Option<u64>,
    /// Each region for shared pages.
    pub regions: Vec<Region>,
}

/// Fairness and throughput.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Metrics {
    /// Greatest over least slowdown.
    pub unfairness: f64,
    /// System throughput, in programs.
    pub stp: f64,
    /// The mean slowdown.
    pub antt: f64,
    /// Jain's index.
    pub jain: f64,
}

/// Results of one program under one condition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Program {
    /// Name of the program.
    pub name: String,
    /// Time beside the others over time alone.
    pub slowdown: f64,
    /// The mean time of an access.
    pub access_cycles: f64,
    /// Accesses that were made.
    pub accesses: u64,
}

/// Results of one shared partition under one condition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Region {
    /// The part of a CPU that filling it took.
    pub duty_fraction: f64,
}

/// A scenario by its name, in `bench/scenarios`.
///
/// # Errors
/// When we are not in the repository.
pub fn path(name: &str) -> Result<PathBuf> {
    Ok(repository()?.join("bench/scenarios").join(name).with_extension("toml"))
}

/// Names of scenarios with this prefix, in order.
///
/// # Errors
/// When we are not in the repository.
pub fn beginning_with(prefix: &str) -> Result<Vec<String>> {
    let folder = repository()?.join("bench/scenarios");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned))
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    ensure!(!names.is_empty(), "no scenario {prefix}* in {}", folder.display());
    Ok(names)
}

/// The same scenario with another seed, written to `folder`; its traces, if it has any, would not be found there.
///
/// # Errors
/// When it cannot be read or written, or names no seed.
pub fn with_seed(scenario: &Path, seed: u64, folder: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(scenario).with_context(|| format!("cannot read {}", scenario.display()))?;
    let other = reseeded(&text, seed).with_context(|| format!("no line `seed = …` in {}", scenario.display()))?;
    let file = folder.join(scenario.file_name().context("a scenario is a file")?);
    std::fs::write(&file, other).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn reseeded(text: &str, seed: u64) -> Option<String> {
    let is_seed = |line: &&str| line.starts_with("seed = ");
    text.lines().find(is_seed)?;
    Some(
        text.lines()
            .map(|line| if is_seed(&line) { format!("seed = {seed}\n") } else { format!("{line}\n") })
            .collect(),
    )
}

/// Simulates it; with `svg`, a figure is drawn there. Also returns its duration.
///
/// # Errors
/// When masu cannot be started, fails, or prints something else.
pub fn simulate(session: &Session, scenario: &Path, svg: Option<&Path>) -> Result<(Simulated, Duration)> {
    let begun = Instant::now();
    let said: Simulated = session.masu()?.simulate(scenario, svg, PATIENCE, &session.processors, &session.stop)?;
    ensure!(said.complete, "{} was not run to its end", scenario.display());
    Ok((said, begun.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_takes_the_place_of_the_one_that_is_there() {
        assert_eq!(
            reseeded("title = \"seed = 1\"\nseed = 1\npasses = 1\n", 7).unwrap(),
            "title = \"seed = 1\"\nseed = 7\npasses = 1\n"
        );
        assert_eq!(reseeded("passes = 1\n", 7), None);
    }
}
