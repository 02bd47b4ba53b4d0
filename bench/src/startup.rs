//! `masu-bench startup`: cost of `masu run` for a program that does nothing, and cost of its hooks for a program that
//! only allocates and frees memory.
//!
//! The first is a difference in time, since a ratio to `true` would be meaningless. The second compares three copies of
//! `workloads/churn.rs`, in turns: started directly, by `masu run`, and by `masu run` with MASU_DISABLE=1, where each
//! call should go straight through.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::children::{OwnChild, describe};
use crate::harness::{Metric, Runs};
use crate::launch::Program;
use crate::masu::Masu;
use crate::place::Place;
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::thp::{Guard, Mode};
use crate::tools;
use crate::workload::Workload;

/// Arguments of `masu-bench startup`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Starts of each program
    #[arg(long, default_value_t = 200)]
    pub starts: usize,
    /// Measurements of each pair of calls
    #[arg(long, default_value_t = 20)]
    pub pairs: usize,
    /// Length of one measurement, in milliseconds
    #[arg(long, default_value_t = 100)]
    pub segment_ms: u64,
}

/// Programs that are started. Only the first needs no `masu run`.
const STARTS: [(&str, &[&str]); 3] =
    [("true", &[]), ("masu run", &["--huge", "touch"]), ("masu run --huge off", &["--huge", "off"])];

/// Ways of starting the allocating program.
const HOOKS: [&str; 3] = ["none", "masu run", "MASU_DISABLE=1"];

/// Pairs of calls: the workload's command, and the reader's label.
const CALLS: [(&str, &str); 5] = [
    ("mmap 4096", "mmap + munmap, 4 KiB"),
    ("mmap 65536", "mmap + munmap, 64 KiB"),
    ("mmap 4194304", "mmap + munmap, 4 MiB"),
    ("malloc 64", "malloc + free, 64 B"),
    ("malloc 65536", "malloc + free, 64 KiB"),
];

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.starts > 0 && options.pairs > 0, "expected --starts and --pairs of 1 or more");
    let masu = session.masu()?;
    let known = masu.knows_run()?;
    let mut report = Report::new("startup", "startup: what `masu run` adds to a start and to a call", &session.host);
    // Without the command the baselines are still measured, so that the rest of the benchmark is known to work.
    let [starts, hooks] = if known { [STARTS.len(), HOOKS.len()] } else { [1, 1] };
    let _guard = Guard::turn(Mode::Madvise)?;
    let times = start_often(session, options, &masu, &STARTS.map(|(name, _)| name)[..starts])?;
    let mut rates = churn(session, options, &masu, &HOOKS[..hooks])?;
    for (baseline, this) in times.against(STARTS[0].0) {
        let samples = (times.of("", baseline), times.of("", this));
        report.differ("start to end", Unit::Milliseconds, Versus { baseline, this }, samples);
        if this == STARTS[1].0 {
            report.target(Target::AtMost(5.0));
        }
    }
    rates.compare(&mut report, &rates.against(HOOKS[0]), &[Metric::more("", Unit::PerSecond, |rate: &f64| *rate)]);
    if !known {
        rates.skip("touch", "this masu does not know the command `run`");
    }
    report.sample("starts_ms", times.samples());
    rates.finish(report, session)
}

/// Milliseconds from start to end, for some of [`STARTS`].
fn start_often(
    session: &Session,
    options: &Options,
    masu: &Masu,
    names: &[&'static str],
) -> Result<Runs<&'static str, f64>> {
    let program = tools::on_path("true").context("there is no `true` on the PATH")?;
    let mut times = Runs::default();
    times.measure(session, options.starts, "", names, |turn| {
        let mut command = started(masu, STARTS[turn.nth].1, &program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let status = command.status().context("cannot start it")?;
        let took_ms = begun.elapsed().as_secs_f64() * 1e3;
        ensure!(status.success(), "it {}", describe(status));
        Ok(took_ms)
    })?;
    Ok(times)
}

/// Command that starts `program` by `masu run`, or directly where that has no arguments.
fn started(masu: &Masu, arguments: &[&str], program: &Path) -> Command {
    if arguments.is_empty() {
        return Command::new(program);
    }
    let mut command = masu.run(arguments, None);
    command.arg(program);
    command
}

/// Calls per second by [`CALLS`], for some of [`HOOKS`].
fn churn(session: &Session, options: &Options, masu: &Masu, hooks: &[&'static str]) -> Result<Runs<&'static str, f64>> {
    let program = Program::workload("workload-churn", [""; 0])?.path;
    let start = |hook: &&str| -> Result<Workload> {
        let mut command = started(masu, if *hook == HOOKS[0] { &[] } else { STARTS[1].1 }, &program);
        command.env_remove("MASU_DISABLE");
        if *hook == HOOKS[2] {
            command.env("MASU_DISABLE", "1");
        }
        // Never do two of them run at a time; on one processor, none is measured on a faster one.
        let child = OwnChild::start(command, &session.processors, Place::Only(0))?;
        Workload::greet(child, "workload-churn", &session.stop)
    };
    let mut programs: Vec<Workload> = hooks.iter().map(start).collect::<Result<_>>()?;
    let cells = CALLS.iter().flat_map(|(_, what)| hooks.iter().map(|hook| ((*what).to_owned(), *hook))).collect();
    let mut rates = Runs::default();
    rates.measure_cells(session, options.pairs, cells, |turn| {
        let (words, _) = CALLS[turn.nth / hooks.len()];
        let command = format!("{words} {}", options.segment_ms);
        programs[turn.nth % hooks.len()].ask(&command, Duration::from_secs(60), &session.stop)?.number("rate")
    })?;
    Ok(rates)
}
