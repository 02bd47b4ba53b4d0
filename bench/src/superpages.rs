//! `masu-bench superpages`: programs with much memory, each with huge pages from several sources, side by side.
//!
//! Four are small programs of our own (random updates, a pointer chase, a hash join, a graph), four are real
//! applications: SQLite, NumPy, a Java and a Go program (`superpages/job.rs`). A run is a process from its start to its
//! end, including the first touch of its memory, since huge pages cost and save there too. "work" is the part after
//! that, where the program reports it. Each run prints a checksum, and all runs of a program must print the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum as _;
use units::Bytes;

use crate::harness::{Choice as _, Metric, Runs};
use crate::launch::{Launcher, Policy, Run};
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::side_by_side;
use crate::workload::Reply;

mod job;

use job::Job;

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
    /// Sources of huge pages; those of masu are touch and touch-stack
    #[arg(long, value_delimiter = ',', default_values_t = POLICIES)]
    pub policies: Vec<Policy>,
    /// Limit on one run, in seconds; a longer run is ended and the benchmark fails
    #[arg(long, default_value_t = 600)]
    pub run_limit: u64,
}

const POLICIES: [Policy; 5] = [Policy::Small, Policy::Always, Policy::Glibc, Policy::Jemalloc, Policy::Touch];

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, a program fails, its results differ between two ways, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.pairs > 0, "--pairs 0: expected 1 or more");
    ensure!(options.size >= Bytes::mib(8), "--size {}: expected 8MiB or more", options.size);
    let mut runs = Runs::default();
    let (launcher, policies) = Launcher::offering(session, &options.policies, &mut runs)?;
    let folder = tempfile::tempdir().context("cannot make a folder for programs")?;
    let limit = Duration::from_secs(options.run_limit);
    let mut checksums = Vec::new();
    for &job in &options.workloads {
        session.progress(&format!("{job}: making ready"));
        let ready = match job.prepare(options.size, folder.path())? {
            Ok(ready) => ready,
            Err(missing) => {
                runs.skip(job, missing);
                continue;
            }
        };
        let mut checksum = Checksum(None);
        runs.measure(session, options.pairs, job.name(), &policies, |turn| {
            session.keep_warm(ready.memory.scaled(1.25))?;
            let run = launcher.run(session, turn.way, &ready.program, limit)?;
            checksum.check(job, turn.way, result(&run)?.text("checksum")?)?;
            Ok(run)
        })?;
        checksums.extend(checksum.0.map(|(_, text)| (job, text)));
    }
    runs.finish(report(session, options, &runs, &checksums), session)
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

fn report(session: &Session, options: &Options, runs: &Runs<Policy, Run>, checksums: &[(Job, String)]) -> Report {
    let title = format!("superpages: programs of up to {}, from their start to their end", options.size);
    let mut report = Report::new("superpages", title, &session.host);
    let metrics = [
        Metric::less("run time", Unit::Seconds, |run: &Run| run.run_s).target_against(
            Policy::Always,
            Policy::Touch,
            Target::NotWorse,
        ),
        Metric::less("work", Unit::Seconds, |run: &Run| run.work_s),
        Metric::less("peak memory", Unit::Bytes, |run: &Run| run.usage.rss_peak_bytes as f64),
    ];
    runs.compare(&mut report, &[(Policy::Always, Policy::Touch), (Policy::Small, Policy::Touch)], &metrics);
    for (job, checksum) in checksums {
        let heading = format!("{job}: {}; the same checksum in all runs ({checksum})", job.title());
        report.table(&heading, side_by_side::table(runs, job.name()));
    }
    report.note("Huge pages and refused ones are counted on the whole host; page faults and memory are those of the program, and of masu where it watches over one.");
    report.sample("checksums", checksums);
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
