//! `masu-bench llc-speed`: speed of the simulator. First beside pycachesim, which has neither masks nor classes, on one
//! program's trace and the same caches; then at its own work: eight programs, partitions and a shared partition.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use linux::cpu_time;
use serde::Deserialize;
use sim::cache::files;
use sim::cache::machine::{Build, Found, Level, Machine};
use sim::cache::run;
use sim::cache::scenario::{Amount, Running, Scenario};
use sim::cache::set_associative::{Filler, Line, Replacement, Shape};
use units::{Bytes, WayMask, Ways};

use super::scenario;
use crate::harness::{Metric, Runs};
use crate::report::{Report, Target, Unit};
use crate::session::Session;

/// Arguments of `masu-bench llc-speed`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Accesses of a pair, in thousands
    #[arg(long, default_value_t = 4000)]
    pub thousands: usize,
    /// Measurements of each way
    #[arg(long, default_value_t = 10)]
    pub pairs: usize,
    /// Accesses of the whole scenario, in millions; 0 for none
    #[arg(long, default_value_t = 1000)]
    pub whole_millions: u64,
    /// Programs of the traces [default: objects, loop and small]
    #[arg(long, value_delimiter = ',', default_value = "objects,loop,small")]
    pub programs: Vec<String>,
    /// Python interpreter with pycachesim
    #[arg(long, default_value = "python3")]
    pub python: PathBuf,
}

const SCRIPT: &str = include_str!("speed.py");

const PYCACHESIM: &str = "pycachesim";
const MASU: &str = "masu";

/// Processor time of a simulator for a trace, and hits of each level.
#[derive(Debug, Deserialize)]
struct Output {
    seconds: f64,
    hits: [u64; 3],
}

#[derive(serde::Serialize)]
struct Played {
    ns_per_access: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// When the scenario cannot be read, the simulators do not agree, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.thousands > 0 && options.pairs > 0, "expected at least 1 of everything");
    let scenario = files::scenario(&scenario::path("speed")?)?;
    let title = "llc-speed: accesses that the simulator makes in a second of one processor";
    let mut report = Report::new("llc-speed", title, &session.host);
    let mut runs = Runs::default();
    if has_pycachesim(&options.python) {
        for program in &options.programs {
            beside_pycachesim(session, options, &scenario, program, &mut runs)?;
        }
        let access = Metric::less("an access", Unit::Nanoseconds, |played: &Played| played.ns_per_access);
        runs.compare(&mut report, &[(PYCACHESIM, MASU)], &[access]);
        let speed = Metric::more("accesses", Unit::PerSecond, |played: &Played| 1e9 / played.ns_per_access);
        runs.figures(&mut report, &[speed]);
        report.note("pycachesim 0.3 reads addresses from a Python array, by its fastest call; both count the same hits in each level.");
    } else {
        let python = options.python.display();
        report.note(format!(
            "{python} has no pycachesim, so nothing is compared with it: python3 -m venv V, V/bin/pip install pycachesim, --python V/bin/python."
        ));
    }
    if options.whole_millions > 0 {
        whole(session, options, scenario, &mut report)?;
    }
    runs.finish(report, session)
}

fn has_pycachesim(python: &Path) -> bool {
    Command::new(python).args(["-c", "import cachesim"]).output().is_ok_and(|output| output.status.success())
}

/// The same trace of one program, the same caches.
fn beside_pycachesim(
    session: &Session,
    options: &Options,
    scenario: &Scenario,
    program: &str,
    runs: &mut Runs<&'static str, Played>,
) -> Result<()> {
    let trace = trace(scenario, program, options.thousands * 1000)?;
    let folder = tempfile::tempdir().context("cannot make a directory")?;
    let (file, script) = (folder.path().join("trace"), folder.path().join("speed.py"));
    std::fs::write(&script, SCRIPT).context("cannot write the script")?;
    let mut out = BufWriter::new(File::create(&file).context("cannot write the trace")?);
    trace.iter().try_for_each(|line| out.write_all(&(u64::from(line.0) * 64).to_ne_bytes()))?;
    out.flush()?;
    drop(out);
    let mut hits = None;
    runs.measure(session, options.pairs, program, &[PYCACHESIM, MASU], |turn| {
        let output = match turn.way {
            MASU => by_masu(&trace),
            _ => by_pycachesim(&options.python, &script, &file)?,
        };
        let wanted = *hits.get_or_insert(output.hits);
        ensure!(output.hits == wanted, "the simulators count different hits: {wanted:?} and {:?}", output.hits);
        Ok(Played { ns_per_access: output.seconds * 1e9 / trace.len() as f64 })
    })
}

/// Accesses of one program of the scenario.
fn trace(scenario: &Scenario, program: &str, accesses: usize) -> Result<Vec<Line>> {
    let nth = scenario.programs.iter().position(|other| other.name == program);
    let nth = nth.with_context(|| format!("the scenario has no program {program}"))?;
    let mut setup = scenario.setup(Bytes(0), true, &files::trace)?;
    let Running::Synthetic(running, _) = &mut setup.programs[nth] else { bail!("{program} is a trace") };
    Ok((0..accesses).map(|_| running.next_line()).collect())
}

/// Build options, as in `speed.py`.
fn build() -> Build {
    let shape = |sets, ways| Shape { sets, ways: Ways(ways), slices: 1, replacement: Replacement::Lru };
    let levels = vec![Level { shape: shape(64, 8), cycles: 4 }, Level { shape: shape(512, 8), cycles: 12 }];
    Build { llc: shape(16_384, 20), inclusive: false, levels, llc_cycles: 40 }
}

fn by_masu(trace: &[Line]) -> Output {
    let mut machine = Machine::new(&build(), 1);
    let mut hits = [0; 3];
    let begun = cpu_time::of_thread();
    for line in trace {
        match machine.access(0, *line, WayMask(u64::MAX), Filler::default()) {
            Found::Private(level) => hits[level] += 1,
            Found::Shared(_) => hits[2] += 1,
            Found::Nowhere => {}
        }
    }
    Output { seconds: cpu_time::of_thread().saturating_sub(begun).as_secs_f64(), hits }
}

fn by_pycachesim(python: &Path, script: &Path, trace: &Path) -> Result<Output> {
    let output = Command::new(python).arg(script).arg(trace).output().context("cannot start Python")?;
    ensure!(output.status.success(), "pycachesim failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("pycachesim printed no result")
}

/// All programs of the scenario beside each other, by one thread.
fn whole(session: &Session, options: &Options, mut scenario: Scenario, report: &mut Report) -> Result<()> {
    session.progress("the whole scenario");
    let accesses = options.whole_millions * 1_000_000;
    scenario.warm_up = Amount::Accesses(accesses / 10);
    scenario.measured = Amount::Accesses(accesses - accesses / 10);
    let watch = |_| session.stop.check().is_ok();
    let begun = cpu_time::of_thread();
    run::beside_each_other(&scenario, Bytes(0), &scenario.conditions[0], None, &files::trace, &watch)?;
    let took = cpu_time::of_thread().saturating_sub(begun).as_secs_f64();
    let what = format!("eight programs, 20 MiB, 20 ways, {accesses} accesses");
    report.figure(&what, Unit::Seconds, Some(took), Some(Target::AtMost(300.0)));
    report.figure(
        "eight programs, accesses",
        Unit::PerSecond,
        Some(accesses as f64 / took),
        Some(Target::AtLeast(2e7)),
    );
    report.sample("whole_seconds", took);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_within_the_first_level_misses_once_for_each_line() {
        let trace: Vec<Line> = (0..10_000).map(|nth| Line(nth % 100)).collect();
        assert_eq!(by_masu(&trace).hits, [9900, 0, 0]);
    }

    #[test]
    fn what_the_script_prints_is_understood() {
        let output: Output = serde_json::from_str(r#"{"seconds": 0.03, "hits": [153765, 56697, 8663]}"#).unwrap();
        assert_eq!(output.hits, [153_765, 56_697, 8663]);
        assert!(!has_pycachesim(Path::new("/nonexistent/python")));
    }
}
