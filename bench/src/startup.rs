//! `masu-bench startup`: cost of `masu run` for a program that does nothing, and cost of its hooks for a program that
//! only allocates and frees memory.
//!
//! The first is a difference in time, since a ratio to `true` would be meaningless. The second compares three copies of
//! `workloads/churn.rs`, in turns: started directly, by `masu run`, and by `masu run` with MASU_DISABLE=1, where each
//! call should go straight through.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::children::{OwnChild, describe};
use crate::masu::Masu;
use crate::pairs::{Better, order_of_round};
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
    let times = start_often(session, options, &masu, starts)?;
    let rates = churn(session, options, &masu, hooks)?;
    for nth in 1..starts {
        let versus = Versus { baseline: STARTS[0].0, this: STARTS[nth].0 };
        report.differ("start to end", Unit::Milliseconds, versus, (&times[0], &times[nth]));
        if nth == 1 {
            report.target(Target::AtMost(5.0));
        }
    }
    for nth in 1..hooks {
        let versus = Versus { baseline: HOOKS[0], this: HOOKS[nth] };
        for (call, (_, what)) in CALLS.iter().enumerate() {
            report.compare(what, Unit::PerSecond, Better::More, versus, (&rates[0][call], &rates[nth][call]));
        }
    }
    if !known {
        report.note("skipped: touch: this masu does not know the command `run`");
    }
    report.sample("starts_ms", &times);
    report.sample("calls_per_s", &rates);
    report.finish(session.save)
}

/// Milliseconds from start to end, in turns, for the first `conditions` of [`STARTS`].
fn start_often(session: &Session, options: &Options, masu: &Masu, conditions: usize) -> Result<Vec<Vec<f64>>> {
    session.progress("starting `true`");
    let program = tools::on_path("true").context("there is no `true` on the PATH")?;
    let mut times = vec![Vec::new(); conditions];
    for round in 0..options.starts {
        session.stop.check()?;
        for nth in order_of_round(round, conditions) {
            let (name, arguments) = STARTS[nth];
            let mut command = if nth == 0 {
                Command::new(&program)
            } else {
                let mut command = masu.run(arguments, None);
                command.arg(&program);
                command
            };
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let begun = Instant::now();
            let status = command.status().with_context(|| format!("cannot start {name}"))?;
            times[nth].push(begun.elapsed().as_secs_f64() * 1e3);
            ensure!(status.success(), "{name} {}", describe(status));
        }
    }
    Ok(times)
}

/// Calls per second, for the first `conditions` of [`HOOKS`], by [`CALLS`] and round.
fn churn(session: &Session, options: &Options, masu: &Masu, conditions: usize) -> Result<Vec<Vec<Vec<f64>>>> {
    let path = std::env::current_exe()?.with_file_name("workload-churn");
    ensure!(path.exists(), "{} is not built. Run `cargo build --release -p bench` first.", path.display());
    let start = |nth: usize| -> Result<Workload> {
        let mut command = if nth == 0 {
            Command::new(&path)
        } else {
            let mut command = masu.run(STARTS[1].1, None);
            command.arg(&path);
            command
        };
        command.env_remove("MASU_DISABLE");
        if nth == 2 {
            command.env("MASU_DISABLE", "1");
        }
        // Never do two of them run at a time; on one processor, none is measured on a faster one.
        let child = OwnChild::start(command, &session.processors, Place::Only(0))?;
        Workload::greet(child, "workload-churn", &session.stop)
    };
    let mut programs: Vec<Workload> = (0..conditions).map(start).collect::<Result<_>>()?;
    let mut rates = vec![vec![Vec::new(); CALLS.len()]; conditions];
    let limit = std::time::Duration::from_secs(60);
    for round in 0..options.pairs {
        session.progress(&format!("asking for memory, round {} of {}", round + 1, options.pairs));
        for (call, (words, _)) in CALLS.iter().enumerate() {
            for nth in order_of_round(round, conditions) {
                let reply = programs[nth].ask(&format!("{words} {}", options.segment_ms), limit, &session.stop)?;
                rates[nth][call].push(reply.number("rate")?);
            }
        }
    }
    Ok(rates)
}
