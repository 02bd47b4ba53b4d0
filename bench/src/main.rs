//! `masu-bench`: every published claim as a command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use bench::aging::{backup, idle_service, served, writers};
use bench::session::Session;
use bench::{
    census, demo, field, idle_cost, known_hot_set, llc, memcached, paper, redis, remote, scan, service, soak, sparse,
    stacks, startup, superpages, torture, track, transpose,
};
use clap::{Parser, Subcommand};

/// Measure each published claim, side by side with its baseline.
///
/// Needs root: it changes the host's setting for transparent huge pages, restores it, and observes other programs.
#[derive(Parser)]
#[command(name = "masu-bench", version)]
struct Arguments {
    /// Path of the masu to measure [default: beside this program]
    #[arg(long, global = true, value_name = "PATH")]
    masu: Option<PathBuf>,
    /// Save raw samples, host and commit to docs/results/NAME/
    #[arg(long, global = true)]
    save: bool,
    /// Do not touch most of the free memory once before measuring
    #[arg(long, global = true)]
    no_warm_up: bool,
    #[command(subcommand)]
    bench: Bench,
}

/// Declares the subcommands, each with the module that runs it.
macro_rules! benches {
    ($($(#[$help:meta])* $Name:ident: $($module:ident)::+;)*) => {
        #[derive(Subcommand)]
        enum Bench {
            $($(#[$help])* $Name($($module)::+::Options),)*
            /// All except demo, field, soak and llc-guests, one after the other, as published
            All,
        }

        fn one(session: &Session, bench: &Bench) -> Result<()> {
            match bench {
                $(Bench::$Name(options) => $($module)::+::run(session, options),)*
                Bench::All => all(session),
            }
        }
    };
}

benches! {
    /// Redis GET: throughput, memory, latency and time to settle
    Redis: redis;
    /// The HPS paper's micro-benchmark, over rounds
    Paper: paper;
    /// A heap of mostly empty, cold windows
    Sparse: sparse;
    /// Precision and recall against known hot pages
    KnownHotSet: known_hot_set;
    /// Cost of reading and clearing the accessed bits
    Scan: scan;
    /// Cost of a settled masu
    IdleCost: idle_cost;
    /// Cost of `masu serve` beside many processes, and its delay at the start of one
    Service: service;
    /// Containers of real programs that come and go under `masu serve`
    Soak: soak;
    /// A program that checks its own memory under masu
    Torture: torture;
    /// The Super Page paper's matrix transposition, over dimensions
    Transpose: transpose;
    /// Programs with much memory, on huge pages of several sources
    Superpages: superpages;
    /// Cost of `masu run`: per start and per call
    Startup: startup;
    /// Memory of a program with many threads
    Stacks: stacks;
    /// Far memory: programs with less memory than data
    Remote: remote;
    /// Far memory: cost of one page fault
    RemoteFault: remote::fault;
    /// Far memory: a program that checks each byte, with a twentieth of its memory and new seeds until the time is over
    RemoteTorture: remote::torture;
    /// memcached that moves hot items together: throughput, memory, latency
    Memcached: memcached;
    /// Cooperating programs: delay of a notification, cost of observing, cost without a tracker
    Track: track;
    /// Cost and error of the census
    Census: census;
    /// Cost of finding the sharers of merged pages
    LlcIndex: llc::index;
    /// Cost of bringing the lines of merged pages into the last-level cache, and its effect on the loads of others
    LlcRefill: llc::refill;
    /// Mixes of programs under every policy for the last-level cache, simulated
    LlcMixes: llc::mixes;
    /// Virtual machines of one kernel: merged pages found by masu, beside the kernel's count
    LlcGuests: llc::guests;
    /// The CAT-and-KSM paper's figure, simulated: two programs with a partition each and half of their array shared
    LlcFigure: llc::figure;
    /// Speed of the cache simulator, beside pycachesim
    LlcSpeed: llc::speed;
    /// Pages of an idle service in memory after a stream
    IdleService: idle_service;
    /// Page cache after tar and rsync
    Backup: backup;
    /// Latency of nginx and PostgreSQL during the copy of a large file
    Served: served;
    /// The LRU-split paper's many writers, as their memory grows
    Writers: writers;
    /// Third-party programs under every feature, their output compared with a run alone
    Field: field;
    /// Two minutes with Redis, in one table
    Demo: demo;
}

/// Benchmarks of `all`: hours on a small machine, most of them the paper's 400 rounds.
const ALL: [&[&str]; 32] = [
    &["scan"],
    &["known-hot-set"],
    &["sparse"],
    &["redis", "--dist", "zipfian"],
    &["redis", "--dist", "uniform"],
    &["redis", "--dist", "uniform", "--gib", "4"],
    &["idle-cost"],
    &["service", "--processes", "2000", "--starts", "1000"],
    &["torture"],
    &["startup"],
    &["stacks"],
    &["transpose"],
    &["superpages"],
    &["remote-fault"],
    &["remote-torture"],
    &["remote"],
    &["track"],
    &["census"],
    &["llc-index"],
    &["llc-refill"],
    &["llc-figure"],
    &["llc-speed"],
    &["llc-mixes", "--seeds", "3"],
    &["idle-service"],
    &["backup"],
    &["served"],
    &["writers"],
    &["memcached"],
    &["memcached", "--memory-gib", "8", "--runs", "3"],
    &["memcached", "--workload", "scattered"],
    &["paper", "--rounds", "80"],
    &["paper", "--rounds", "400"],
];

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            let text = error.to_string();
            let mut lines = text.lines();
            let line = lines.next().unwrap_or_default();
            let values = lines.next().filter(|line| line.trim().starts_with("[possible values")).map_or("", str::trim);
            eprintln!("masu-bench: {}", format!("{} {values}", line.strip_prefix("error: ").unwrap_or(line)).trim());
            eprintln!("    `masu-bench --help` and `masu-bench NAME --help` explain every option.");
            return ExitCode::from(2);
        }
    };
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
    one(&session, &arguments.bench)
}

/// Runs all, also when one fails, and names the failed ones at the end.
fn all(session: &Session) -> Result<()> {
    session.masu()?;
    let mut failed = Vec::new();
    for words in ALL {
        session.stop.check()?;
        println!("$ masu-bench {}", words.join(" "));
        let bench = Arguments::try_parse_from(["masu-bench"].iter().chain(words))?.bench;
        if let Err(error) = one(session, &bench) {
            eprintln!("masu-bench {}: {error:#}", words.join(" "));
            failed.push(words.join(" "));
        }
        println!();
    }
    session.stop.check()?;
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound_and_every_published_run_is_understood() {
        Arguments::command().debug_assert();
        for words in ALL {
            assert!(Arguments::try_parse_from(["masu-bench"].iter().chain(words)).is_ok(), "{words:?}");
        }
    }
}
