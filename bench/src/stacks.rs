//! `masu-bench stacks`: memory at rest of a program with many threads, each of which has touched a little of its stack.
//!
//! A stack of 8 MiB holds whole windows, so huge pages on stacks may cost 2 MiB for a thread that needs 16 KiB. A host
//! runs out of memory that way long before the last thread. The workload then starts fewer, and memory is scaled up to
//! the number wanted, with a note.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use crate::launch::{Launcher, Policy, Program};
use crate::pairs::{Better, median, order_of_round};
use crate::process::{Resident, resident};
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::side_by_side::of;
use crate::table::Table;
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
    /// Sources of huge pages
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

#[derive(Debug, Serialize)]
struct Measured {
    name: &'static str,
    rests: Vec<(Policy, Vec<Rest>)>,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing, a program fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.threads > 0 && options.pairs > 0, "expected --threads and --pairs of 1 or more");
    let launcher = Launcher::offering(session, &options.policies)?;
    let count = options.threads.to_string();
    let arguments = ["--threads".to_owned(), count.clone(), "--stack".into(), options.stack.0.to_string()];
    let native = Program::workload("workload-stacks", arguments)?;
    let folder = tempfile::tempdir().context("cannot make a folder for programs")?;
    let source = include_str!("../workloads/jvm/ManyThreads.java");
    let mut all = vec![one(session, options, &launcher, "native threads", &native)?];
    let mut skipped = Vec::new();
    match if options.no_jvm { None } else { Some(tools::compile_java(folder.path(), "ManyThreads", source)?) } {
        Some(Ok(java)) => {
            let arguments = ["-cp".to_owned(), folder.path().display().to_string(), "ManyThreads".into(), count];
            all.push(one(session, options, &launcher, "Java threads", &Program::at(java, arguments))?);
        }
        Some(Err(missing)) => skipped.push(format!("skipped: Java threads: {missing}")),
        None => {}
    }
    report(session, options, &launcher, &all, skipped).finish(session.save)
}

fn one(
    session: &Session,
    options: &Options,
    launcher: &Launcher,
    name: &'static str,
    program: &Program,
) -> Result<Measured> {
    let policies = launcher.offered();
    let mut rests: Vec<(Policy, Vec<Rest>)> = policies.iter().map(|policy| (*policy, Vec::new())).collect();
    for round in 0..options.pairs {
        for nth in order_of_round(round, policies.len()) {
            let policy = policies[nth];
            session.progress(&format!("{name}, round {} of {}: {policy}", round + 1, options.pairs));
            rests[nth].1.push(at_rest(session, options, launcher, policy, program)?);
        }
    }
    Ok(Measured { name, rests })
}

fn at_rest(
    session: &Session,
    options: &Options,
    launcher: &Launcher,
    policy: Policy,
    program: &Program,
) -> Result<Rest> {
    let launched = launcher.start(session, policy, program)?;
    let (child, held) = launched.split();
    let workload = Workload::greet(child, &program.path.display().to_string(), &session.stop)?;
    session.stop.sleep(Duration::from_millis(options.rest_ms))?;
    // Under `masu run` our child is masu; the program prints its own process id.
    let pid = u32::try_from(workload.ready().whole("pid")?)?;
    let rest = Rest { threads: workload.ready().whole("threads")?, resident: resident(pid)? };
    workload.end(LIMIT, &session.stop)?;
    drop(held);
    Ok(rest)
}

fn report(session: &Session, options: &Options, launcher: &Launcher, all: &[Measured], skipped: Vec<String>) -> Report {
    let title = format!("stacks: memory at rest of {} threads with stacks of {}", options.threads, options.stack);
    let mut report = Report::new("stacks", title, &session.host);
    for this in [Policy::Always, Policy::Touch, Policy::TouchStack] {
        let versus = Versus { baseline: Policy::Small.name(), this: this.name() };
        for Measured { name, rests } in all {
            let (Some(base), Some(at)) = (of(rests, Policy::Small), of(rests, this)) else { continue };
            let memory =
                |rests: &[Rest]| -> Vec<f64> { rests.iter().map(|rest| rest.scaled_to(options.threads)).collect() };
            report.compare(name, Unit::Bytes, Better::Less, versus, (&memory(base), &memory(at)));
            if this == Policy::Touch {
                report.target(Target::AtMost(1.10));
            }
        }
    }
    report.table("Each program at rest (medians):", at_rest_table(all));
    let started = all.iter().flat_map(|measured| measured.rests.iter().flat_map(|(_, rests)| rests));
    if started.into_iter().any(|rest| rest.threads < u64::from(options.threads)) {
        report.note(
            "Memory ran short before the last thread somewhere: its memory is scaled up from those that were started.",
        );
    }
    for note in launcher.skipped().iter().cloned().chain(skipped) {
        report.note(note);
    }
    report.sample("at_rest", all);
    report
}

fn at_rest_table(all: &[Measured]) -> Table {
    let mut table = Table::new(["", "", "threads", "resident memory", "per thread", "on huge pages"]);
    for Measured { name, rests } in all {
        for (nth, (policy, rests)) in rests.iter().enumerate() {
            let middle = |figure: &dyn Fn(&Rest) -> f64| {
                median(&rests.iter().map(figure).collect::<Vec<_>>()).unwrap_or(f64::NAN)
            };
            table.row([
                if nth == 0 { (*name).to_owned() } else { String::new() },
                policy.name().to_owned(),
                Unit::Count.print(middle(&|rest| rest.threads as f64)),
                Unit::Bytes.print(middle(&|rest| rest.resident.rss_bytes.0 as f64)),
                format!("{:.1} KiB", middle(&|rest| rest.scaled_to(1)) / 1024.0),
                Unit::Bytes.print(middle(&|rest| rest.resident.anon_huge_bytes.0 as f64)),
            ]);
        }
    }
    table
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
    fn the_table_names_a_program_once() {
        let rests = vec![(Policy::Small, vec![rest(10, 1)]), (Policy::Touch, vec![rest(10, 2)])];
        let text = at_rest_table(&[Measured { name: "native threads", rests }]).to_string();
        assert_eq!(text.matches("native threads").count(), 1);
        assert!(text.contains("102.4 KiB") && text.contains("204.8 KiB"), "{text}");
    }
}
