//! `fuzz`: runs targets, repeats inputs, prints the results.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use fuzz::campaign::{self, Outcome};
use fuzz::record::{self, grouped};
use fuzz::worker::{self, Job};
use fuzz::{TARGETS, Target, corpus, named};
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Parser)]
#[command(name = "fuzz", about = "Run fuzz targets from their seeds, without coverage")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Run targets, by default all, each until its executions or its seconds are over
    Run(Run),
    /// Run a target on files, such as findings
    Repeat {
        #[arg(value_parser = target)]
        target: Target,
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// List the targets
    List,
    /// Print the table of recorded runs
    Table {
        #[arg(default_value = "docs/results/fuzz")]
        folder: PathBuf,
    },
    /// Run one target's inputs in this process
    #[command(hide = true)]
    Worker(Work),
}

#[derive(Args)]
struct Bounds {
    /// Number that determines the inputs, together with the seeds
    #[arg(long, default_value_t = 1)]
    run: u64,
    /// Limit on a single input, in seconds
    #[arg(long, default_value_t = 30)]
    time_limit: u64,
    /// Folder for findings
    #[arg(long, default_value_os_t = corpus::folder().join("findings"))]
    findings: PathBuf,
}

#[derive(Args)]
struct Run {
    #[arg(value_parser = target)]
    targets: Vec<Target>,
    /// Executions of each target [default: those of continuous integration, unless --seconds is given]
    #[arg(long)]
    executions: Option<u64>,
    /// Time of each target, in seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Targets at a time [default: the number of processors]
    #[arg(long)]
    at_once: Option<usize>,
    /// Add the runs to the samples in this folder
    #[arg(long)]
    save: Option<PathBuf>,
    #[command(flatten)]
    bounds: Bounds,
}

#[derive(Args)]
struct Work {
    #[arg(value_parser = target)]
    target: Target,
    #[arg(long)]
    from: u64,
    #[arg(long)]
    executions: u64,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    careful: bool,
    #[command(flatten)]
    bounds: Bounds,
}

fn target(name: &str) -> Result<Target> {
    named(name).context("no such target; `fuzz list` names them")
}

fn job(target: Target, executions: u64, seconds: u64, bounds: &Bounds) -> Job {
    Job {
        target,
        run: bounds.run,
        from: 0,
        executions,
        within: Duration::from_secs(seconds),
        time_limit: Duration::from_secs(bounds.time_limit.max(1)),
        findings: bounds.findings.clone(),
        careful: false,
    }
}

/// No limit in practice: ten years.
const FOR_EVER_S: u64 = 10 * 365 * 24 * 3600;

fn run(options: &Run) -> Result<bool> {
    let targets = if options.targets.is_empty() { &TARGETS[..] } else { &options.targets[..] };
    let executions = |target: &Target| match (options.executions, options.seconds) {
        (Some(executions), _) => executions,
        (None, Some(_)) => u64::MAX,
        (None, None) => target.executions,
    };
    let seconds = options.seconds.unwrap_or(FOR_EVER_S);
    let jobs: Vec<Job> =
        targets.iter().map(|target| job(*target, executions(target), seconds, &options.bounds)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let at_once = options.at_once.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let begun = Instant::now();
    let outcomes = campaign::run(&jobs, at_once, &stop, report)?;
    if let Some(folder) = &options.save {
        record::save(folder, options.bounds.run, &outcomes)?;
    }
    Ok(conclude(&outcomes, begun.elapsed()))
}

/// Reason why a target failed, or `None`.
fn trouble(of: &Outcome) -> Option<String> {
    match &of.finding {
        Some(finding) => Some(format!(
            "{}\ninput: {}\nrun it again: cargo run -p fuzz -- repeat {} {}",
            finding.why,
            finding.file.display(),
            of.target.name,
            finding.file.display(),
        )),
        None if of.progress.executions > 0 && of.progress.understood == 0 => {
            Some("not one input was understood: its seeds are of another time".to_owned())
        }
        None => None,
    }
}

/// A line as test runners print it.
fn report(of: &Outcome) {
    let (progress, name) = (&of.progress, of.target.name);
    let rate = progress.executions as f64 / progress.elapsed.as_secs_f64().max(0.001);
    let understood = progress.understood * 100 / progress.executions.max(1);
    let count = grouped(progress.executions);
    let verdict = if trouble(of).is_some() { "FAILED" } else { "ok" };
    println!(
        "test fuzz::{name}: {count} executions, {} a second, {understood} % understood ... {verdict}",
        grouped(rate as u64)
    );
}

fn conclude(outcomes: &[Outcome], elapsed: Duration) -> bool {
    let mut failed = 0;
    for of in outcomes {
        if let Some(why) = trouble(of) {
            println!("\n---- fuzz::{} ----\n{why}", of.target.name);
            failed += 1;
        }
    }
    let executions = outcomes.iter().map(|of| of.progress.executions).sum();
    let (passed, word) = (outcomes.len() - failed, if failed == 0 { "ok" } else { "FAILED" });
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; {} executions in {:.0} s",
        grouped(executions),
        elapsed.as_secs_f64()
    );
    failed == 0
}

fn repeat(target: Target, files: &[PathBuf]) -> Result<bool> {
    for file in files {
        let input = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let understood = (target.run)(&input);
        println!("{}: {}", file.display(), if understood { "understood" } else { "refused" });
    }
    Ok(true)
}

fn begin(what: What) -> Result<bool> {
    match what {
        What::Run(options) => run(&options),
        What::Repeat { target, files } => repeat(target, &files),
        What::List => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(true)
        }
        What::Table { folder } => {
            print!("{}", record::table(&record::read(&folder)?));
            Ok(true)
        }
        What::Worker(work) => {
            ensure!(work.executions > 0, "nothing to do");
            let job = job(work.target, work.executions, work.seconds, &work.bounds);
            worker::work(&Job { from: work.from, careful: work.careful, ..job })
        }
    }
}

fn main() -> ExitCode {
    match begin(Arguments::parse().what) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fuzz: {error:#}");
            ExitCode::from(2)
        }
    }
}
