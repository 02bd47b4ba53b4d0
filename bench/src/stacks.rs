//! `masu-bench stacks`: memory at rest of a program with many threads, each of which has touched a little of its stack.
//!
//! A stack of 8 MiB holds whole windows, so huge pages on stacks may cost 2 MiB for a thread that needs 16 KiB. A host
//! runs out of memory that way long before the last thread. The workload then starts fewer, and memory is scaled up to
//! the number wanted, with a note.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use crate::harness::{Column, Metric, Runs, median_of};
use crate::launch::{Launcher, Policy, Program};
use crate::process::{Resident, resident};
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::tools;
use crate::workload::Workload;

/// Arguments of `masu-bench stacks`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Threads
    #[arg(long, default_value_t = 10_000)]
    pub threads: u32,
    /// Stack of each thread
    #[arg(long, default_value = "8MiB")]
    pub stack: Bytes,
    /// Starts of each program in each way
    #[arg(long, default_value_t = 6)]
    pub pairs: usize,
    /// Rest of the threads before memory is measured, in milliseconds
    #[arg(long, default_value_t = 2000)]
    pub rest_ms: u64,
    /// Sources of huge pages; those of masu are touch and touch-stack
    #[arg(long, value_delimiter = ',', default_values_t = POLICIES)]
    pub policies: Vec<Policy>,
    /// Leave out the Java program
    #[arg(long)]
    pub no_jvm: bool,
}

const POLICIES: [Policy; 4] = [Policy::Small, Policy::Always, Policy::Touch, Policy::TouchStack];

/// Time limit for a program's end after it was told to end.
const LIMIT: Duration = Duration::from_secs(60);

/// Memory of one program at rest.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rest {
    threads: u64,
    resident: Resident,
}

impl Rest {
    /// Memory of `threads` threads, if each takes as much as those that were started.
    fn scaled_to(self, threads: u32) -> f64 {
        self.resident.rss_bytes.0 as f64 * f64::from(threads) / (self.threads.max(1)) as f64
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, a program fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.threads > 0 && options.pairs > 0, "expected --threads and --pairs of 1 or more");
    let mut runs = Runs::default();
    let (launcher, policies) = Launcher::offering(session, &options.policies, &mut runs)?;
    let count = options.threads.to_string();
    let arguments = ["--threads".to_owned(), count.clone(), "--stack".into(), options.stack.0.to_string()];
    let mut programs = vec![("native threads", Program::workload("workload-stacks", arguments)?)];
    let folder = tempfile::tempdir().context("cannot make a folder for programs")?;
    if !options.no_jvm {
        let source = include_str!("../workloads/jvm/ManyThreads.java");
        let arguments = ["-cp".to_owned(), folder.path().display().to_string(), "ManyThreads".into(), count];
        match tools::compile_java(folder.path(), "ManyThreads", source)? {
            Ok(java) => programs.push(("Java threads", Program::at(java, arguments))),
            Err(missing) => runs.skip("Java threads", missing),
        }
    }
    for (name, program) in &programs {
        runs.measure(session, options.pairs, name, &policies, |turn| {
            at_rest(session, options, &launcher, turn.way, program)
        })?;
    }
    runs.finish(report(session, options, &runs), session)
}

fn at_rest(
    session: &Session,
    options: &Options,
    launcher: &Launcher,
    policy: Policy,
    program: &Program,
) -> Result<Rest> {
    let (child, _held) = launcher.start(session, policy, program)?.split();
    let workload = Workload::greet(child, &program.path.display().to_string(), &session.stop)?;
    session.stop.sleep(Duration::from_millis(options.rest_ms))?;
    // Under `masu run` our child is masu; the program prints its own process id.
    let pid = u32::try_from(workload.ready().whole("pid")?)?;
    let rest = Rest { threads: workload.ready().whole("threads")?, resident: resident(pid)? };
    workload.end(LIMIT, &session.stop)?;
    Ok(rest)
}

fn report(session: &Session, options: &Options, runs: &Runs<Policy, Rest>) -> Report {
    let title = format!("stacks: memory at rest of {} threads with stacks of {}", options.threads, options.stack);
    let mut report = Report::new("stacks", title, &session.host);
    let memory = Metric::less("", Unit::Bytes, |rest: &Rest| rest.scaled_to(options.threads));
    let pairs = [Policy::Always, Policy::Touch, Policy::TouchStack].map(|this| (Policy::Small, this));
    runs.compare(&mut report, &pairs, &[memory.target(Policy::Touch, Target::AtMost(1.10))]);
    runs.table(&mut report, "Each program at rest (medians):", &columns());
    let started = runs.rows().iter().flat_map(|row| &row.samples);
    if started.into_iter().any(|rest| rest.threads < u64::from(options.threads)) {
        report.note(
            "Memory ran short before the last thread somewhere: its memory is scaled up from those that were started.",
        );
    }
    report
}

fn columns() -> [Column<'static, Rest>; 4] {
    let per_thread = |rests: &[Rest]| median_of(rests, |rest| rest.scaled_to(1) / 1024.0);
    [
        Column::median("threads", Unit::Count, |rest: &Rest| rest.threads as f64),
        Column::median("resident memory", Unit::Bytes, |rest: &Rest| rest.resident.rss_bytes.0 as f64),
        Column::new("per thread", move |rests| {
            per_thread(rests).map_or_else(|| "–".into(), |kib| format!("{kib:.1} KiB"))
        }),
        Column::median("on huge pages", Unit::Bytes, |rest: &Rest| rest.resident.anon_huge_bytes.0 as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(threads: u64, mib: u64) -> Rest {
        Rest { threads, resident: Resident { rss_bytes: Bytes::mib(mib), anon_huge_bytes: Bytes(0) } }
    }

    #[test]
    fn memory_of_fewer_threads_is_scaled_up() {
        let wanted = 1000.0 * f64::from(1 << 20);
        assert!((rest(100, 100).scaled_to(1000) - wanted).abs() < 1.0);
        assert!((rest(1000, 1000).scaled_to(1000) - wanted).abs() < 1.0);
    }

    #[test]
    fn memory_is_shown_per_thread() {
        let mut runs = Runs::default();
        runs.push("native threads", Policy::Small, vec![rest(10, 1)]);
        runs.push("native threads", Policy::Touch, vec![rest(10, 2)]);
        let text = runs.as_table(&columns()).to_string();
        assert!(text.contains("102.4 KiB") && text.contains("204.8 KiB"), "{text}");
    }
}
