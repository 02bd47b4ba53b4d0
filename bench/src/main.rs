//! `masu-bench`: every published claim as a command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bench::session::Session;
use bench::{demo, idle_cost, known_hot_set, paper, redis, scan, sparse, torture};
use clap::{Parser, Subcommand};

/// Every published claim as a command, side by side with its baseline.
///
/// Needs root: it turns the host's setting for transparent huge pages (and puts it back), and watches other programs.
#[derive(Parser)]
#[command(name = "masu-bench", version)]
struct Arguments {
    /// The masu to measure [default: the one beside this program]
    #[arg(long, global = true, value_name = "PATH")]
    masu: Option<PathBuf>,
    /// Save raw samples, host and commit to docs/results/NAME/
    #[arg(long, global = true)]
    save: bool,
    /// Do not touch most free memory once before measuring
    #[arg(long, global = true)]
    no_warm_up: bool,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Redis GET: throughput, memory, latency and time to settle
    Redis(redis::Options),
    /// The HPS paper's micro-benchmark, over rounds
    Paper(paper::Options),
    /// A heap of mostly empty, cold windows
    Sparse(sparse::Options),
    /// Precision and recall against known hot pages
    KnownHotSet(known_hot_set::Options),
    /// Cost of reading and clearing the accessed bits
    Scan(scan::Options),
    /// Cost of a masu that has settled
    IdleCost(idle_cost::Options),
    /// A program that checks its own memory meanwhile
    Torture(torture::Options),
    /// Two minutes with Redis, in one table
    Demo(demo::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("masu-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let session = Session::begin(arguments.masu.clone(), arguments.save, !arguments.no_warm_up)?;
    match &arguments.bench {
        Bench::Redis(options) => redis::run(&session, options),
        Bench::Paper(options) => paper::run(&session, options),
        Bench::Sparse(options) => sparse::run(&session, options),
        Bench::KnownHotSet(options) => known_hot_set::run(&session, options),
        Bench::Scan(options) => scan::run(&session, options),
        Bench::IdleCost(options) => idle_cost::run(&session, options),
        Bench::Torture(options) => torture::run(&session, options),
        Bench::Demo(options) => demo::run(&session, options),
    }
}
