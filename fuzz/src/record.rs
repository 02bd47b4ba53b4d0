//! Results of long runs, kept beside the other results: samples as JSON, and a table of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::campaign::Outcome;
use crate::corpus;

/// A target in one run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Sample {
    /// Name of the target.
    pub target: String,
    /// The tested commit, with `-modified` where files differed from it.
    pub commit: String,
    /// The run's number.
    pub run: u64,
    /// Inputs that were run.
    pub executions: u64,
    /// Inputs that were understood.
    pub understood: u64,
    /// Duration in seconds.
    pub elapsed_s: f64,
    /// Number of seeds.
    pub seeds: usize,
    /// The finding, if there was one.
    pub finding: Option<String>,
}

/// Adds outcomes to the samples in a folder, and prints the table anew.
///
/// # Errors
/// The files cannot be read or written.
pub fn save(folder: &Path, run: u64, outcomes: &[Outcome]) -> Result<()> {
    let file = folder.join("samples.json");
    let mut samples = if file.exists() { read(folder)? } else { Vec::new() };
    let commit = commit();
    samples.extend(outcomes.iter().map(|of| Sample {
        target: of.target.name.to_owned(),
        commit: commit.clone(),
        run,
        executions: of.progress.executions,
        understood: of.progress.understood,
        elapsed_s: of.progress.elapsed.as_secs_f64(),
        seeds: of.seeds,
        finding: of.finding.as_ref().map(|finding| finding.why.clone()),
    }));
    samples.sort_by(|a, b| (&a.target, a.run).cmp(&(&b.target, b.run)));
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let write = |name: &str, text: String| {
        let file = folder.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    write("samples.json", serde_json::to_string_pretty(&samples)? + "\n")?;
    write("table.txt", table(&samples))
}

/// The samples in a folder.
///
/// # Errors
/// The samples do not exist, or are malformed.
pub fn read(folder: &Path) -> Result<Vec<Sample>> {
    let file = folder.join("samples.json");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot understand {}", file.display()))
}

/// A line for each target, over all its runs, and one for all.
pub fn table(samples: &[Sample]) -> String {
    let mut targets: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    samples.iter().for_each(|sample| targets.entry(&sample.target).or_default().push(sample));
    let mut text = String::new();
    let mut line = |cells: [&str; 7]| {
        let [target, rest @ ..] = cells;
        let _ = write!(text, "{target:<18}");
        for (cell, width) in rest.iter().zip([14, 10, 12, 6, 9, 5]) {
            let _ = write!(text, "{cell:>width$}");
        }
        text.push('\n');
    };
    line(["target", "executions", "a second", "understood", "seeds", "findings", "runs"]);
    let row = |name: &str, samples: &[&Sample], line: &mut dyn FnMut([&str; 7])| {
        let sum = |of: &dyn Fn(&Sample) -> u64| samples.iter().map(|sample| of(sample)).sum::<u64>();
        let (executions, understood) = (sum(&|sample| sample.executions), sum(&|sample| sample.understood));
        let seconds = samples.iter().map(|sample| sample.elapsed_s).sum::<f64>();
        let rate = executions as f64 / seconds.max(0.001);
        let percent = understood as f64 * 100.0 / executions.max(1) as f64;
        let latest = samples.iter().map(|sample| (&sample.target, sample.seeds)).collect::<BTreeMap<_, _>>();
        let findings = samples.iter().filter(|sample| sample.finding.is_some()).count();
        line([
            name,
            &grouped(executions),
            &grouped(rate as u64),
            &format!("{percent:.1} %"),
            &latest.values().sum::<usize>().to_string(),
            &findings.to_string(),
            &samples.iter().map(|sample| sample.run).collect::<std::collections::BTreeSet<_>>().len().to_string(),
        ]);
    };
    targets.iter().for_each(|(name, samples)| row(name, samples, &mut line));
    row("all", &samples.iter().collect::<Vec<_>>(), &mut line);
    text
}

/// `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let grouped = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect::<Vec<_>>();
    grouped.join(",")
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(corpus::folder()).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let is_clean = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changed| changed.is_empty());
    if is_clean { commit } else { format!("{commit}-modified") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_sums_the_runs_of_a_target() {
        let sample = |target: &str, run, executions| Sample {
            target: target.to_owned(),
            commit: "c".to_owned(),
            run,
            executions,
            understood: executions / 2,
            elapsed_s: 2.0,
            seeds: 3,
            finding: None,
        };
        let table = table(&[sample("a", 1, 1000), sample("a", 2, 3000), sample("b", 1, 500)]);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["a", "4,000", "1,000", "50.0", "%", "3", "0", "2"]);
        assert_eq!(lines[3], ["all", "4,500", "750", "50.0", "%", "6", "0", "2"]);
    }
}
