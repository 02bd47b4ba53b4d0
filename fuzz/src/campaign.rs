//! Runs targets in turn, each in a process of its own, several at a time, and collects the outcomes.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::corpus::Corpus;
use crate::worker::{Job, Progress, keep};
use crate::{Target, mutate};

/// Interval of progress lines in long runs.
const PROGRESS: Duration = Duration::from_secs(30);

/// An input that broke a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file with the input.
    pub file: PathBuf,
    /// Description of the failure.
    pub why: String,
}

/// Outcome of a target.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The target.
    pub target: Target,
    /// Inputs that were run.
    pub progress: Progress,
    /// Number of seeds.
    pub seeds: usize,
    /// At most one: a target stops at its first finding.
    pub finding: Option<Finding>,
}

/// Runs jobs, `at_once` of them at a time. `each` is called with each outcome when its target is done.
///
/// # Errors
/// A worker cannot be started, or has ended for a reason that could not be found.
pub fn run(
    jobs: &[Job],
    at_once: usize,
    stop: &Arc<AtomicBool>,
    each: impl Fn(&Outcome) + Sync,
) -> Result<Vec<Outcome>> {
    let (left, outcomes) = (Mutex::new(jobs.iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let turns: Vec<_> = (0..at_once.max(1))
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    loop {
                        let job = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(job) = job.filter(|_| !stop.load(Relaxed)) else { return Ok(()) };
                        let outcome = run_one(job, stop).with_context(|| format!("cannot run {}", job.target.name))?;
                        each(&outcome);
                        outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                    }
                })
            })
            .collect();
        turns.into_iter().try_for_each(|turn| turn.join().unwrap_or_else(|_| bail!("the driver panicked")))
    })?;
    Ok(outcomes.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn start(job: &Job) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg("worker").arg(job.target.name);
    for (name, number) in [
        ("--run", job.run),
        ("--from", job.from),
        ("--executions", job.executions),
        ("--seconds", job.within.as_secs()),
        ("--time-limit", job.time_limit.as_secs()),
    ] {
        command.arg(name).arg(number.to_string());
    }
    command.arg("--findings").arg(&job.findings);
    if job.careful {
        command.arg("--careful");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a worker")
}

/// Output of a worker until its end.
#[derive(Default)]
struct Said {
    progress: Progress,
    next: Option<u64>,
    finding: Option<Finding>,
    done: bool,
}

fn hear(job: &Job, stop: &AtomicBool) -> Result<(Said, ExitStatus)> {
    let mut worker = start(job)?;
    let mut said = Said { progress: Progress { next: job.from, ..Progress::default() }, ..Said::default() };
    let mut shown = Instant::now();
    let stdout = worker.stdout.take().context("a worker has no output")?;
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read what a worker says")?;
        match line.split_once(' ') {
            Some(("next", number)) => said.next = number.parse().ok(),
            Some((word @ ("at" | "done"), numbers)) => {
                said.progress = Progress::parse(numbers).with_context(|| format!("a worker says {line}"))?;
                said.done = word == "done";
            }
            Some(("found", rest)) => {
                let (file, why) = rest.split_once(' ').unwrap_or((rest, ""));
                said.finding = Some(Finding { file: file.into(), why: why.to_owned() });
            }
            _ => bail!("a worker says {line}"),
        }
        if stop.load(Relaxed) {
            // The worker may have had the signal itself; a second one does no harm.
            let _ = kill_process(Pid::from_child(&worker), Signal::TERM);
        }
        if shown.elapsed() > PROGRESS {
            eprintln!("{}: {} executions so far", job.target.name, said.progress.executions);
            shown = Instant::now();
        }
    }
    let status = worker.wait().context("cannot wait for a worker")?;
    Ok((said, status))
}

fn run_one(job: &Job, stop: &AtomicBool) -> Result<Outcome> {
    let corpus = Corpus::of(&job.target)?;
    let (mut said, status) = hear(job, stop)?;
    if !said.done && said.finding.is_none() {
        let Some(signal) = status.signal() else { bail!("a worker ended, {status}, and said nothing") };
        said.finding = Some(crashed(job, said.progress.next, signal, &corpus, stop)?);
    }
    Ok(Outcome { target: job.target, progress: said.progress, seeds: corpus.seeds.len(), finding: said.finding })
}

/// Finds the input that ended a worker, among those after its last report: runs them again, announcing each.
fn crashed(job: &Job, from: u64, signal: i32, corpus: &Corpus, stop: &AtomicBool) -> Result<Finding> {
    let (said, status) = hear(&Job { from, careful: true, ..job.clone() }, stop)?;
    let Some(number) = said.next.filter(|_| status.signal().is_some()) else {
        bail!("a worker was ended by signal {signal} at input {from} or after it, and another one was not")
    };
    let mut input = Vec::new();
    mutate::input(corpus, job.target.bytes_max, job.run, number, &mut input);
    let file = keep(&job.findings, &job.target, job.run, number, &input)?;
    Ok(Finding { file, why: format!("signal {signal} ended it") })
}
