//! `masu llc simulate` on a scenario of `bench/scenarios`, and its output.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sim::cache::report::Report as Simulated;

use crate::report::repository;
use crate::session::Session;

/// A scenario may take this long.
const PATIENCE: Duration = Duration::from_secs(3600);

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

/// A report with one point for each size, for tests.
#[cfg(test)]
pub(super) fn simulated(points: Vec<(Option<units::Bytes>, Vec<sim::cache::report::OfCondition>)>) -> Simulated {
    let point = |(array_bytes, conditions)| sim::cache::report::Point { array_bytes, conditions };
    Simulated {
        title: "t".to_owned(),
        model: "m".to_owned(),
        seed: 1,
        cache_bytes: units::Bytes::mib(8),
        cache_ways: 16,
        complete: true,
        points: points.into_iter().map(point).collect(),
    }
}

/// A condition without programs, for tests.
#[cfg(test)]
pub(super) fn condition(name: &str) -> sim::cache::report::OfCondition {
    sim::cache::report::OfCondition {
        name: name.to_owned(),
        metrics: None,
        access_time_ratio: 1.0,
        programs: Vec::new(),
        regions: Vec::new(),
        plan_changes: 0,
        passes_until_even: None,
    }
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
