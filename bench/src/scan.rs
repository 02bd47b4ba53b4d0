//! `masu-bench scan`: cost of reading and clearing the accessed bits of a large process, per GiB of 4 KiB pages, beside
//! the kernel's own way: `Referenced:` in smaps after a write to clear_refs.

use std::fs;
use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use linux::cpu_time;

use crate::harness::{Metric, Runs};
use crate::masu::Masu;
use crate::place::Place;
use crate::process::resident;
use crate::report::{Report, Target, Unit};
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

/// Processor time per GiB.
#[derive(serde::Serialize)]
struct Cost {
    scan_us: f64,
    clear_us: f64,
}

const SMAPS: &str = "smaps, clear_refs";
const MASU: &str = "masu";

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
    let mut backend = String::new();
    let mut runs = Runs::default();
    runs.measure(session, options.pairs, "", &[SMAPS, MASU], |turn| {
        if turn.way == SMAPS {
            return by_smaps(dense.pid(), gib);
        }
        let cost;
        (cost, backend) = by_masu(session, &masu, dense.pid(), options)?;
        Ok(cost)
    })?;
    let title = format!("scan: accessed bits of a program with {gib:.2} GiB on 4 KiB pages; masu's backend: {backend}");
    let mut report = Report::new("scan", title, &session.host);
    let metrics = [
        Metric::less("reading, per GiB", Unit::Microseconds, |cost: &Cost| cost.scan_us),
        Metric::less("clearing, per GiB", Unit::Microseconds, |cost: &Cost| cost.clear_us),
    ];
    runs.compare(&mut report, &[(SMAPS, MASU)], &metrics);
    let figures = [
        Metric::less("reading, per GiB", Unit::Milliseconds, |cost: &Cost| cost.scan_us / 1e3)
            .target(MASU, Target::AtMost(0.5)),
        Metric::less("clearing, per GiB", Unit::Milliseconds, |cost: &Cost| cost.clear_us / 1e3)
            .target(MASU, Target::AtMost(15.0)),
    ];
    runs.figures(&mut report, &figures);
    report.note("Processor time. smaps tells how much of a mapping was accessed; masu's reading tells which pages.");
    runs.finish(report, session)
}

fn by_smaps(pid: u32, gib: f64) -> Result<Cost> {
    let per_gib = |begun: Duration| cpu_time::of_thread().saturating_sub(begun).as_secs_f64() * 1e6 / gib;
    let begun = cpu_time::of_thread();
    fs::write(format!("/proc/{pid}/clear_refs"), "1").context("cannot clear the accessed bits (this needs root)")?;
    let clear_us = per_gib(begun);
    let begun = cpu_time::of_thread();
    let mut text = String::new();
    fs::File::open(format!("/proc/{pid}/smaps"))?.read_to_string(&mut text)?;
    let scan_us = per_gib(begun);
    ensure!(text.contains("Referenced:"), "/proc/{pid}/smaps has no line `Referenced:`");
    Ok(Cost { scan_us, clear_us })
}

fn by_masu(session: &Session, masu: &Masu, pid: u32, options: &Options) -> Result<(Cost, String)> {
    let watch = format!("{}s", options.watch_s);
    let attached = masu.attach(pid, &["--dry-run", "--for", &watch], &session.processors)?;
    let report = attached.finish(Duration::from_secs(options.watch_s + 60), &session.stop)?;
    let cost = Cost {
        scan_us: report.scan_us_per_gib.context("masu reports no scan_us_per_gib")?,
        clear_us: report.clear_us_per_gib.context("masu reports no clear_us_per_gib")?,
    };
    Ok((cost, report.backend.to_string()))
}
