//! `masu-bench superpages`: programs with much memory, each with huge pages from several sources, side by side.
//!
//! Four are small programs of our own (random updates, a pointer chase, a hash join, a graph), four are real
//! applications: SQLite, NumPy, a Java and a Go program (`superpages/job.rs`). A run is a process from its start to its
//! end, including the first touch of its memory, since huge pages cost and save there too. "work" is the part after
//! that, where the program reports it. Each run prints a checksum, and all runs of a program must print the same.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum as _;
use serde::Serialize;
use units::Bytes;

use crate::launch::{Launcher, Policy, Run};
use crate::pairs::{Better, order_of_round};
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::side_by_side::{self, Runs, of, samples};
use crate::workload::Reply;

mod job;

use job::{Job, Ready};

/// Arguments of `masu-bench superpages`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory of the largest programs; SQLite takes an eighth of it, Go a half, Java three quarters
    #[arg(long, default_value = "4GiB")]
    pub size: Bytes,
    /// Runs of each program in each way
    #[arg(long, default_value_t = 8)]
    pub pairs: usize,
    /// Programs
    #[arg(long, value_delimiter = ',', default_values_t = Job::value_variants().to_vec())]
    pub workloads: Vec<Job>,
    /// Sources of huge pages
    #[arg(long, value_delimiter = ',', default_values_t = POLICIES)]
    pub policies: Vec<Policy>,
    /// Limit on one run, in seconds; a longer run is ended and the benchmark fails
    #[arg(long, default_value_t = 600)]
    pub run_limit: u64,
}

const POLICIES: [Policy; 5] = [Policy::Small, Policy::Always, Policy::Glibc, Policy::Jemalloc, Policy::Touch];

/// All that was measured of one program.
#[derive(Debug, Serialize)]
struct Measured {
    job: Job,
    checksum: String,
    runs: Vec<Runs>,
    /// Time of the work alone, of the programs that report it.
    work_s: Vec<(Policy, Vec<f64>)>,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, a program fails, its results differ between two ways, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.pairs > 0, "--pairs 0: expected 1 or more");
    ensure!(options.size >= Bytes::mib(8), "--size {}: expected 8MiB or more", options.size);
    let launcher = Launcher::offering(session, &options.policies)?;
    let folder = tempfile::tempdir().context("cannot make a folder for programs")?;
    let (mut measured, mut skipped) = (Vec::new(), Vec::new());
    for &job in &options.workloads {
        session.progress(&format!("{job}: making ready"));
        match job.prepare(options.size, folder.path())? {
            Ok(ready) => measured.push(one(session, options, &launcher, job, &ready)?),
            Err(missing) => skipped.push(format!("skipped: {job}: {missing}")),
        }
    }
    report(session, options, &launcher, &measured, skipped).finish(session.save)
}

fn one(session: &Session, options: &Options, launcher: &Launcher, job: Job, ready: &Ready) -> Result<Measured> {
    let policies = launcher.offered();
    let mut runs: Vec<Runs> = policies.iter().map(|policy| (*policy, Vec::new())).collect();
    let mut work_s: Vec<(Policy, Vec<f64>)> = policies.iter().map(|policy| (*policy, Vec::new())).collect();
    let mut checksum = Checksum(None);
    for round in 0..options.pairs {
        for nth in order_of_round(round, policies.len()) {
            let policy = policies[nth];
            session.progress(&format!("{job}: round {} of {}: {policy}", round + 1, options.pairs));
            session.keep_warm(ready.memory.scaled(1.25))?;
            let run = launcher.run(session, policy, &ready.program, Duration::from_secs(options.run_limit))?;
            let reply = result(&run).with_context(|| format!("{job} ({policy})"))?;
            checksum.check(job, policy, reply.text("checksum")?)?;
            if let Ok(seconds) = reply.number("work_s") {
                work_s[nth].1.push(seconds);
            }
            runs[nth].1.push(run);
        }
    }
    let checksum = checksum.0.map(|(_, text)| text).unwrap_or_default();
    Ok(Measured { job, checksum, runs, work_s })
}

/// Line with a program's result.
fn result(run: &Run) -> Result<Reply> {
    let line = run.lines.iter().rfind(|line| line.starts_with("checksum="));
    line.map(|line| Reply::of(line)).context("it printed no checksum")
}

/// Output of the first run, and its way of getting memory.
struct Checksum(Option<(Policy, String)>);

impl Checksum {
    fn check(&mut self, job: Job, policy: Policy, found: &str) -> Result<()> {
        let (first, wanted) = self.0.get_or_insert_with(|| (policy, found.to_owned()));
        ensure!(
            found == wanted,
            "wrong result: {job} computed {found} under {policy} and {wanted} under {first}; nothing is reported"
        );
        Ok(())
    }
}

fn report(session: &Session, options: &Options, launcher: &Launcher, all: &[Measured], skipped: Vec<String>) -> Report {
    let title = format!("superpages: programs of up to {}, from their start to their end", options.size);
    let mut report = Report::new("superpages", title, &session.host);
    for (baseline, this) in [(Policy::Always, Policy::Touch), (Policy::Small, Policy::Touch)] {
        let versus = Versus { baseline: baseline.name(), this: this.name() };
        for Measured { job, runs, work_s, .. } in all {
            let (Some(base), Some(at)) = (of(runs, baseline), of(runs, this)) else { continue };
            let pair = |figure: &dyn Fn(&Run) -> f64| (samples(base, figure), samples(at, figure));
            let (base_s, at_s) = pair(&|run| run.run_s);
            report.compare(&format!("{job}, run time"), Unit::Seconds, Better::Less, versus, (&base_s, &at_s));
            if baseline == Policy::Always {
                report.target(Target::NotWorse);
            }
            if let (Some(base), Some(at)) = (of(work_s, baseline), of(work_s, this))
                && base.len() == options.pairs
            {
                report.compare(&format!("{job}, work"), Unit::Seconds, Better::Less, versus, (base, at));
            }
            let (base_bytes, at_bytes) = pair(&|run| run.usage.rss_peak_bytes as f64);
            let memory = (base_bytes.as_slice(), at_bytes.as_slice());
            report.compare(&format!("{job}, peak memory"), Unit::Bytes, Better::Less, versus, memory);
        }
    }
    for Measured { job, runs, checksum, .. } in all {
        let heading = format!("{job}: {}; the same checksum in all runs ({checksum})", job.what());
        report.table(&heading, side_by_side::table(runs));
    }
    for note in launcher.skipped().iter().cloned().chain(skipped) {
        report.note(note);
    }
    report.note("Huge pages and refused ones are counted on the whole host; page faults and memory are those of the program, and of masu where it watches over one.");
    let by_job: BTreeMap<String, &Measured> = all.iter().map(|measured| (measured.job.to_string(), measured)).collect();
    report.sample("workloads", by_job);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_differs_under_one_way_fails_loudly() {
        let mut checksum = Checksum(None);
        checksum.check(Job::Gups, Policy::Small, "12").unwrap();
        checksum.check(Job::Gups, Policy::Touch, "12").unwrap();
        let said = checksum.check(Job::Gups, Policy::Glibc, "13").unwrap_err().to_string();
        assert_eq!(said, "wrong result: gups computed 13 under glibc and 12 under 4k; nothing is reported");
    }
}
