//! A process that runs the inputs of one target, and reports its progress on standard output.
//!
//! | line | when |
//! |---|---|
//! | `at NUMBER EXECUTIONS UNDERSTOOD MILLISECONDS` | about every second; NUMBER is the next input |
//! | `found FILE WHY` | a panic, or an input that takes too long, which ends it |
//! | `done NUMBER EXECUTIONS UNDERSTOOD MILLISECONDS` | at the end, and after a signal |
//! | `next NUMBER` | before each input, in careful mode |
//!
//! An abort and a stack overflow leave no line: the parent sees the status.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Target;
use crate::corpus::Corpus;
use crate::mutate;

/// Memory limit of a worker: code that asks for more is a finding, and no danger to the machine.
const MEMORY_BYTES_MAX: u64 = 2 << 30;

/// Approximate interval between two checks of the stop flag and the clock.
const LOOK: Duration = Duration::from_millis(2);

/// Interval of progress lines.
const REPORT: Duration = Duration::from_secs(1);

/// Task of a worker.
#[derive(Clone, Debug)]
pub struct Job {
    /// The target.
    pub target: Target,
    /// The run's number: inputs are a function of it.
    pub run: u64,
    /// The first input.
    pub from: u64,
    /// Most inputs.
    pub executions: u64,
    /// Most time.
    pub within: Duration,
    /// Most time for a single input.
    pub time_limit: Duration,
    /// Folder for the findings.
    pub findings: PathBuf,
    /// Whether each input is announced.
    pub careful: bool,
}

/// Progress of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The next input.
    pub next: u64,
    /// Inputs that were run.
    pub executions: u64,
    /// Inputs that were understood.
    pub understood: u64,
    /// Elapsed time.
    pub elapsed: Duration,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.next, self.executions, self.understood, self.elapsed.as_millis())
    }
}

impl Progress {
    /// Reads a printed progress.
    pub fn parse(text: &str) -> Option<Progress> {
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [next, executions, understood, elapsed_ms] = numbers[..] else { return None };
        Some(Progress { next, executions, understood, elapsed: Duration::from_millis(elapsed_ms) })
    }
}

/// Writes an input to the folder for findings, and returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn keep(findings: &Path, target: &Target, run: u64, number: u64, input: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(findings).with_context(|| format!("cannot create {}", findings.display()))?;
    let file = findings.join(format!("{}-{run}-{number}", target.name));
    fs::write(&file, input).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Does the job. True without a finding.
///
/// # Errors
/// No seeds, or no folder for findings.
pub fn work(job: &Job) -> Result<bool> {
    let corpus = Arc::new(Corpus::of(&job.target)?);
    limit_memory();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let said = catch_panics();
    let at = Arc::new(AtomicU64::new(job.from));
    watch(job.clone(), Arc::clone(&corpus), Arc::clone(&at));
    let (begun, mut reported) = (Instant::now(), Instant::now());
    let mut progress = Progress { next: job.from, ..Progress::default() };
    let (mut input, mut look_at, mut pause) = (Vec::new(), 0, 1);
    while progress.executions < job.executions {
        // Reading the clock before each input would cost as much as some targets.
        if progress.executions >= look_at {
            let before = progress.elapsed;
            progress.elapsed = begun.elapsed();
            pause = if progress.elapsed - before < LOOK { (pause * 2).min(1024) } else { (pause / 2).max(1) };
            look_at = progress.executions + pause;
            if stop.load(Relaxed) || progress.elapsed > job.within {
                break;
            }
            if reported.elapsed() > REPORT {
                say(format_args!("at {progress}"));
                reported = Instant::now();
            }
        }
        mutate::input(&corpus, job.target.bytes_max, job.run, progress.next, &mut input);
        at.store(progress.next, Relaxed);
        if job.careful {
            say(format_args!("next {}", progress.next));
        }
        match panic::catch_unwind(AssertUnwindSafe(|| (job.target.run)(&input))) {
            Ok(understood) => progress.understood += u64::from(understood),
            Err(_) => {
                let file = keep(&job.findings, &job.target, job.run, progress.next, &input)?;
                let why = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
                progress.elapsed = begun.elapsed();
                say(format_args!("at {progress}"));
                say(format_args!("found {} {why}", file.display()));
                return Ok(false);
            }
        }
        progress.next += 1;
        progress.executions += 1;
    }
    progress.elapsed = begun.elapsed();
    say(format_args!("done {progress}"));
    Ok(true)
}

fn limit_memory() {
    let limit = Rlimit { current: Some(MEMORY_BYTES_MAX), maximum: getrlimit(Resource::As).maximum };
    // A lower limit that is already in force stays.
    let _ = setrlimit(Resource::As, limit);
}

/// Collects panics as one line each, for the caller to print.
fn catch_panics() -> Arc<Mutex<String>> {
    let said = Arc::new(Mutex::new(String::new()));
    let here = Arc::clone(&said);
    panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(|place| format!("{}:{}: ", place.file(), place.line())).unwrap_or_default();
        let payload = panic.payload();
        let words = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let words = words.unwrap_or("a panic without words");
        let line: String =
            format!("{place}{words}").chars().map(|c| if c.is_control() { ' ' } else { c }).take(600).collect();
        *here.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }));
    said
}

/// Ends the process when one input takes too long.
fn watch(job: Job, corpus: Arc<Corpus>, at: Arc<AtomicU64>) {
    thread::spawn(move || {
        let (mut last, mut since) = (at.load(Relaxed), Instant::now());
        loop {
            thread::sleep(job.time_limit / 16);
            let now = at.load(Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > job.time_limit {
                let mut input = Vec::new();
                mutate::input(&corpus, job.target.bytes_max, job.run, now, &mut input);
                match keep(&job.findings, &job.target, job.run, now, &input) {
                    Ok(file) => say(format_args!("found {} it takes longer than {:?}", file.display(), job.time_limit)),
                    Err(error) => eprintln!("{error:#}"),
                }
                process::exit(1);
            }
        }
    });
}

/// A failed write means that the reader has left.
fn say(line: fmt::Arguments<'_>) {
    if writeln!(io::stdout(), "{line}").is_err() {
        process::exit(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_as_it_was_printed() {
        let progress = Progress { next: 9, executions: 7, understood: 3, elapsed: Duration::from_millis(1500) };
        assert_eq!(Progress::parse(&progress.to_string()), Some(progress));
        assert_eq!(Progress::parse("1 2 3"), None);
        assert_eq!(Progress::parse("1 2 3 x"), None);
    }
}
