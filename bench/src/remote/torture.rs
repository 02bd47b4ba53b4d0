//! `masu-bench remote-torture`: a program that checks each byte of its memory (`workloads/remote/stress.c`), with a
//! twentieth of it local, repeated until the time is over, each time with another seed.
//!
//! Both kernel backends take turns, with the learned transfer size and with a small fixed one. A wrong byte, a wrong
//! answer of a system call, or a program that does not come to its end, ends the benchmark with the seed in its
//! message.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use units::Bytes;

use super::cell::run_to_end;
use super::task;
use crate::children::describe;
use crate::launch::Program;
use crate::masu::{Masu, local_report};
use crate::pairs::order_of_round;
use crate::report::Report;
use crate::session::Session;
use crate::table::Table;
use crate::torture::parse_time;

/// Arguments of `masu-bench remote-torture`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Time in all, such as 120s or 5m
    #[arg(long = "for", default_value = "2m", value_parser = parse_time)]
    pub time: Duration,
    /// Memory of the program, in MiB
    #[arg(long, default_value_t = 64)]
    pub mib: u64,
    /// Threads of the program
    #[arg(long, default_value_t = 4)]
    pub threads: u64,
    /// Seed of the first run; each further run has the next one
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Local part of the program's memory.
const LOCAL: &str = "5%";

/// Time of a run.
const EACH: Duration = Duration::from_secs(4);

/// Extra time limit: the program checks all of its memory once more.
const AT_MOST: Duration = Duration::from_secs(120);

/// Interval of the checks for the program's end.
const EVERY: Duration = Duration::from_millis(20);

const BACKENDS: [&str; 2] = ["move", "copy"];
const UNITS: [&str; 2] = ["auto", "16KiB"];

/// A way to page the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Way {
    backend: &'static str,
    unit: &'static str,
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
struct Ran {
    #[serde(flatten)]
    way: Way,
    seed: u64,
    checks: u64,
    steps: u64,
    bytes_in: u64,
    bytes_out: u64,
}

struct Bench<'a> {
    session: &'a Session,
    options: &'a Options,
    masu: Masu,
    stress: Program,
    folder: tempfile::TempDir,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or cannot page, the program cannot be built, it found something wrong, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    let masu = session.masu()?;
    ensure!(masu.knows_local()?, "this masu does not know `run --local`");
    let stress = task::stress(&task::folder()?)?;
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let bench = Bench { session, options, masu, stress, folder };
    let (backends, missing): (Vec<_>, Vec<_>) = BACKENDS.into_iter().partition(|backend| bench.has(backend));
    ensure!(!backends.is_empty(), "no program can be paged here; `masu facts` says why");
    let ways: Vec<Way> = backends.iter().flat_map(|&backend| UNITS.map(|unit| Way { backend, unit })).collect();
    let (runs, wrong) = bench.until_the_time_is_over(&ways)?;
    report(session, options, &runs, &missing, wrong.as_deref()).finish(session.save)?;
    ensure!(wrong.is_none(), "{}", wrong.unwrap_or_default());
    Ok(())
}

impl Bench<'_> {
    /// Whether this kernel has the backend: it is tried.
    fn has(&self, backend: &str) -> bool {
        let tried =
            self.masu.run(&["--local", "1MiB", "--no-profile", "--backend", backend], None).arg("/bin/true").output();
        tried.is_ok_and(|output| output.status.success())
    }

    /// All runs, and the error of the last one.
    fn until_the_time_is_over(&self, ways: &[Way]) -> Result<(Vec<Ran>, Option<String>)> {
        let (begun, mut runs) = (Instant::now(), Vec::new());
        for round in 0.. {
            for nth in order_of_round(round, ways.len()) {
                let left = self.options.time.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    return Ok((runs, None));
                }
                let (way, seed) = (ways[nth], self.options.seed + runs.len() as u64);
                self.session.progress(&format!("seed {seed}: {}", way.name()));
                match self.once(way, seed, left.min(EACH)) {
                    Ok(ran) => runs.push(ran),
                    Err(error) => {
                        self.session.stop.check()?;
                        return Ok((runs, Some(format!("seed {seed}, {}: {error:#}", way.name()))));
                    }
                }
            }
        }
        Ok((runs, None))
    }

    fn command(&self, way: Way, seed: u64, time: Duration, report: &Path) -> Command {
        let options = ["--local", LOCAL, "--no-profile", "--backend", way.backend, "--unit", way.unit];
        let mut command = self.stress.under(&self.masu, &options, Some(report));
        command.args(["--seconds", &time.as_secs_f64().to_string(), "--seed", &seed.to_string()]);
        command.args(["--threads", &self.options.threads.to_string(), "--mib", &self.options.mib.to_string()]);
        // The library's handlers have stacks of their own, and a twentieth holds no copy: forks must be refused in good order.
        command.args(["--fork", "--without", "altstack", "--verbose", "--folder"]).arg(self.folder.path());
        command
    }

    fn once(&self, way: Way, seed: u64, time: Duration) -> Result<Ran> {
        let file = tempfile::NamedTempFile::new().context("cannot make a file for masu's report")?;
        let command = self.command(way, seed, time, file.path());
        let limit = time + AT_MOST;
        let ran = run_to_end(self.session, command, limit, EVERY, || Ok(()))?;
        let ended = ran.with_context(|| format!("it did not end within {} s", limit.as_secs()))?.ended;
        ensure!(ended.status.success(), "it {}: {}", describe(ended.status), ended.errors.join("; "));
        let checks = ended.lines.iter().find_map(|line| checks_of(line));
        let report = local_report(file.path())?;
        Ok(Ran {
            way,
            seed,
            checks: checks.with_context(|| format!("it said {:?}", ended.lines))?,
            steps: ended.errors.iter().filter_map(|line| steps_of(line)).sum(),
            bytes_in: report.bytes_in.0,
            bytes_out: report.bytes_out.0,
        })
    }
}

/// Parses `checks=12 wrong=0`.
fn checks_of(line: &str) -> Option<u64> {
    line.strip_prefix("checks=")?.strip_suffix(" wrong=0")?.parse().ok()
}

/// Parses `mremap 12`.
fn steps_of(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace();
    let (_, count, end) = (words.next()?, words.next()?, words.next());
    count.parse().ok().filter(|_| end.is_none())
}

impl Way {
    fn name(self) -> String {
        format!("backend {}, unit {}", self.backend, self.unit)
    }
}

fn report(session: &Session, options: &Options, runs: &[Ran], missing: &[&str], wrong: Option<&str>) -> Report {
    let title = format!(
        "remote-torture: {} threads with {} MiB, of which {LOCAL} are local, check each byte",
        options.threads, options.mib
    );
    let mut report = Report::new("remote-torture", title, &session.host);
    let mut by_way: BTreeMap<Way, Vec<&Ran>> = BTreeMap::new();
    runs.iter().for_each(|ran| by_way.entry(ran.way).or_default().push(ran));
    let mut table = Table::new(["", "runs", "steps", "checks", "MiB in", "MiB out"]);
    let row = |name: String, runs: &[&Ran]| {
        let sum = |of: fn(&Ran) -> u64| runs.iter().map(|ran| of(ran)).sum::<u64>();
        let mib = |of: fn(&Ran) -> u64| (sum(of) / Bytes::mib(1).0).to_string();
        let (steps, checks) = (sum(|ran| ran.steps).to_string(), sum(|ran| ran.checks).to_string());
        [name, runs.len().to_string(), steps, checks, mib(|ran| ran.bytes_in), mib(|ran| ran.bytes_out)]
    };
    by_way.iter().for_each(|(way, runs)| table.row(row(way.name(), runs)));
    table.row(row("all".to_owned(), &runs.iter().collect::<Vec<_>>()));
    report.table("Runs that ended well:", table);
    let last = options.seed + (runs.len() as u64).saturating_sub(1);
    report.note(match wrong {
        None => format!("Seeds {} to {last}: 0 bytes wrong.", options.seed),
        Some(wrong) => format!("WRONG: {wrong}"),
    });
    report.note("A step is a call or several: memory is made, moved, protected, dropped, checked, given to system calls; signals come.");
    for backend in missing {
        report.note(format!("skipped: this kernel does not have the backend {backend}"));
    }
    report.sample("runs", runs);
    report.sample("wrong", wrong);
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::on_path;

    #[test]
    fn what_the_program_says_is_understood() {
        assert_eq!(checks_of("checks=169268 wrong=0"), Some(169_268));
        assert_eq!(checks_of("checks=169268 wrong=1"), None);
        assert_eq!(steps_of("mremap       1202"), Some(1202));
        assert_eq!(steps_of("masu: 2.2 s"), None);
        assert_eq!(steps_of("wrong: thread 2"), None);
    }

    #[test]
    fn the_program_builds_and_finds_nothing_wrong_without_masu() {
        if on_path("gcc").is_none() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let stress = task::stress(folder.path()).unwrap();
        let mut command = stress.command();
        command.args(["--seconds", "0.1", "--mib", "8", "--verbose", "--folder"]).arg(folder.path());
        let output = command.output().unwrap();
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(out.lines().find_map(checks_of).is_some_and(|checks| checks > 0), "{out}{err}");
        assert!(err.lines().filter_map(steps_of).sum::<u64>() > 0, "{err}");
    }
}
