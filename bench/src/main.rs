//! `masu-bench`: every published claim as a command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use bench::aging::{backup, idle_service, served, writers};
use bench::session::Session;
use bench::{
    census, demo, idle_cost, known_hot_set, llc, memcached, paper, redis, remote, scan, sparse, stacks, startup,
    superpages, torture, track, transpose,
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
    /// Cost of a settled masu
    IdleCost(idle_cost::Options),
    /// A program that checks its own memory under masu
    Torture(torture::Options),
    /// The Super Page paper's matrix transposition, over dimensions
    Transpose(transpose::Options),
    /// Programs with much memory, on huge pages of several sources
    Superpages(superpages::Options),
    /// Cost of `masu run`: per start and per call
    Startup(startup::Options),
    /// Memory of a program with many threads
    Stacks(stacks::Options),
    /// Far memory: programs with less memory than data
    Remote(remote::Options),
    /// Far memory: cost of one page fault
    RemoteFault(remote::fault::Options),
    /// Far memory: a program that checks each byte, with a twentieth of its memory and new seeds until the time is over
    RemoteTorture(remote::torture::Options),
    /// memcached that moves hot items together: throughput, memory, latency
    Memcached(memcached::Options),
    /// Cooperating programs: delay of a notification, cost of observing, cost without a tracker
    Track(track::Options),
    /// Cost and error of the census
    Census(census::Options),
    /// Cost of finding the sharers of merged pages
    LlcIndex(llc::index::Options),
    /// Cost of bringing the lines of merged pages into the last-level cache, and its effect on the loads of others
    LlcRefill(llc::refill::Options),
    /// Mixes of programs under every policy for the last-level cache, simulated
    LlcMixes(llc::mixes::Options),
    /// Virtual machines of one kernel: merged pages found by masu, beside the kernel's count
    LlcGuests(llc::guests::Options),
    /// The CAT-and-KSM paper's figure, simulated: two programs with a partition each and half of their array shared
    LlcFigure(llc::figure::Options),
    /// Speed of the cache simulator, beside pycachesim
    LlcSpeed(llc::speed::Options),
    /// Pages of an idle service in memory after a stream
    IdleService(idle_service::Options),
    /// Page cache after tar and rsync
    Backup(backup::Options),
    /// Latency of nginx and PostgreSQL during the copy of a large file
    Served(served::Options),
    /// The LRU-split paper's many writers, as their memory grows
    Writers(writers::Options),
    /// Two minutes with Redis, in one table
    Demo(demo::Options),
    /// All except demo and llc-guests, one after the other, as published
    All,
}

/// Benchmarks of `all`: hours on a small machine, most of them the paper's 400 rounds.
const ALL: [&[&str]; 31] = [
    &["scan"],
    &["known-hot-set"],
    &["sparse"],
    &["redis", "--dist", "zipfian"],
    &["redis", "--dist", "uniform"],
    &["redis", "--dist", "uniform", "--gib", "4"],
    &["idle-cost"],
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

fn one(session: &Session, bench: &Bench) -> Result<()> {
    match bench {
        Bench::Redis(options) => redis::run(session, options),
        Bench::Paper(options) => paper::run(session, options),
        Bench::Sparse(options) => sparse::run(session, options),
        Bench::KnownHotSet(options) => known_hot_set::run(session, options),
        Bench::Scan(options) => scan::run(session, options),
        Bench::IdleCost(options) => idle_cost::run(session, options),
        Bench::Torture(options) => torture::run(session, options),
        Bench::Transpose(options) => transpose::run(session, options),
        Bench::Superpages(options) => superpages::run(session, options),
        Bench::Startup(options) => startup::run(session, options),
        Bench::Stacks(options) => stacks::run(session, options),
        Bench::Remote(options) => remote::run(session, options),
        Bench::RemoteFault(options) => remote::fault::run(session, options),
        Bench::RemoteTorture(options) => remote::torture::run(session, options),
        Bench::Census(options) => census::run(session, options),
        Bench::LlcIndex(options) => llc::index::run(session, options),
        Bench::LlcRefill(options) => llc::refill::run(session, options),
        Bench::LlcGuests(options) => llc::guests::run(session, options),
        Bench::LlcMixes(options) => llc::mixes::run(session, options),
        Bench::LlcFigure(options) => llc::figure::run(session, options),
        Bench::LlcSpeed(options) => llc::speed::run(session, options),
        Bench::IdleService(options) => idle_service::run(session, options),
        Bench::Backup(options) => backup::run(session, options),
        Bench::Served(options) => served::run(session, options),
        Bench::Writers(options) => writers::run(session, options),
        Bench::Memcached(options) => memcached::run(session, options),
        Bench::Track(options) => track::run(session, options),
        Bench::Demo(options) => demo::run(session, options),
        Bench::All => all(session),
    }
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
