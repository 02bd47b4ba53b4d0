//! `masu-bench scan`: cost of reading and clearing the accessed bits of a large process, per GiB of 4 KiB pages, beside
//! the kernel's own way: `Referenced:` in smaps after a write to clear_refs.

use std::fs;
use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::masu::Masu;
use crate::pairs::{Better, order_of_round};
use crate::place::Place;
use crate::process::resident;
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::thp::{Guard, Mode};
use crate::workload::Workload;

/// Arguments of `masu-bench scan`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory of the observed program, in MiB, all of it on 4 KiB pages
    #[arg(long, default_value_t = 8192)]
    pub mib: u64,
    /// Measurements of each way
    #[arg(long, default_value_t = 10)]
    pub pairs: usize,
    /// Time of observation by masu in each, in seconds
    #[arg(long, default_value_t = 4)]
    pub watch_s: u64,
}

/// Costs in microseconds per GiB: reading, clearing.
#[derive(Default, serde::Serialize)]
struct Costs {
    scan: Vec<f64>,
    clear: Vec<f64>,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.mib > 0 && options.pairs > 0 && options.watch_s > 0, "expected at least 1 of everything");
    let masu = session.masu()?;
    session.warm_up()?;
    let _guard = Guard::turn(Mode::Madvise)?;
    session.progress("mapping and touching the memory to be watched");
    let arguments = ["--mib".to_owned(), options.mib.to_string()];
    let dense = Workload::start("workload-dense", &arguments, &session.processors, Place::Only(0), &session.stop)?;
    let gib = resident(dense.pid())?.rss_bytes.as_gib();
    let (mut stock, mut ours) = (Costs::default(), Costs::default());
    let mut backend = String::new();
    for round in 0..options.pairs {
        session.progress(&format!("round {} of {}", round + 1, options.pairs));
        for nth in order_of_round(round, 2) {
            if nth == 0 {
                by_smaps(dense.pid(), gib, &mut stock)?;
            } else {
                backend = by_masu(session, &masu, dense.pid(), options, &mut ours)?;
            }
        }
    }
    let title = format!("scan: accessed bits of a program with {gib:.2} GiB on 4 KiB pages; masu's backend: {backend}");
    let mut report = Report::new("scan", title, &session.host);
    let versus = Versus { baseline: "smaps, clear_refs", this: "masu" };
    report.compare("reading, per GiB", Unit::Microseconds, Better::Less, versus, (&stock.scan, &ours.scan));
    report.compare("clearing, per GiB", Unit::Microseconds, Better::Less, versus, (&stock.clear, &ours.clear));
    let middle = |values: &[f64]| crate::pairs::median(values).map(|us| us / 1e3);
    report.figure("masu, reading, per GiB", Unit::Milliseconds, middle(&ours.scan), Some(Target::AtMost(0.5)));
    report.figure("masu, clearing, per GiB", Unit::Milliseconds, middle(&ours.clear), Some(Target::AtMost(15.0)));
    report.note("Processor time. smaps tells how much of a mapping was accessed; masu's reading tells which pages.");
    report.sample("smaps", &stock);
    report.sample("masu", &ours);
    report.finish(session.save)
}

fn by_smaps(pid: u32, gib: f64, costs: &mut Costs) -> Result<()> {
    let per_gib = |time: Duration| time.as_secs_f64() * 1e6 / gib;
    let begun = thread_time();
    fs::write(format!("/proc/{pid}/clear_refs"), "1").context("cannot clear the accessed bits (this needs root)")?;
    costs.clear.push(per_gib(thread_time().saturating_sub(begun)));
    let begun = thread_time();
    let mut text = String::new();
    fs::File::open(format!("/proc/{pid}/smaps"))?.read_to_string(&mut text)?;
    costs.scan.push(per_gib(thread_time().saturating_sub(begun)));
    ensure!(text.contains("Referenced:"), "/proc/{pid}/smaps has no line `Referenced:`");
    Ok(())
}

fn by_masu(session: &Session, masu: &Masu, pid: u32, options: &Options, costs: &mut Costs) -> Result<String> {
    let watch = format!("{}s", options.watch_s);
    let attached = masu.attach(pid, &["--dry-run", "--for", &watch], &session.processors)?;
    let report = attached.finish(Duration::from_secs(options.watch_s + 60), &session.stop)?;
    costs.scan.push(report.scan_us_per_gib.context("masu reports no scan_us_per_gib")?);
    costs.clear.push(report.clear_us_per_gib.context("masu reports no clear_us_per_gib")?);
    Ok(report.backend)
}
/// Processor time of this thread; masu counts its costs in the same way.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
