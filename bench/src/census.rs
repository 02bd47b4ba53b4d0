//! `masu-bench census`: cost of attributing memory to its users, from a sample and from every frame, and the error of
//! the sample.

use std::fs::File;
use std::io::Write as _;

use aging::census::{Census, OfClass};
use anyhow::{Context, Result, ensure};

use crate::harness::{Metric, Runs, median_of, or_dash};
use crate::place::Place;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::table::Table;
use crate::thp::{Guard, Mode};
use crate::workload::Workload;

/// Arguments of `masu-bench census`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory of a program, in MiB, all of it on 4 KiB pages
    #[arg(long, default_value_t = 8192)]
    pub mib: u64,
    /// Unmapped files in the page cache, in MiB
    #[arg(long, default_value_t = 2048)]
    pub cached_mib: u64,
    /// Measurements of each way
    #[arg(long, default_value_t = 20)]
    pub pairs: usize,
}

const EXACT: &str = "every frame";
const SAMPLED: &str = "sampled";

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.mib > 0 && options.pairs > 0, "expected at least 1 of everything");
    let masu = session.masu()?;
    session.warm_up()?;
    let _guard = Guard::turn(Mode::Madvise)?;
    session.progress("filling memory and the page cache");
    let arguments = ["--mib".to_owned(), options.mib.to_string()];
    let _dense = Workload::start("workload-dense", &arguments, &session.processors, Place::Only(0), &session.stop)?;
    let _cached = cached(options.cached_mib)?;
    let mut runs = Runs::default();
    runs.measure(session, options.pairs, "", &[EXACT, SAMPLED], |turn| {
        let option: &[&str] = if turn.way == EXACT { &["--exact"] } else { &[] };
        masu.census(option, &session.processors, &session.stop)
    })?;
    runs.finish(report(session, options, &runs), session)
}

/// An unnamed file of `mib` MiB, written and in the page cache.
fn cached(mib: u64) -> Result<File> {
    let mut file = tempfile::tempfile_in("/var/tmp").context("cannot make a file in /var/tmp")?;
    let some = vec![7; 1 << 20];
    for _ in 0..mib {
        file.write_all(&some)?;
    }
    file.sync_data()?;
    Ok(file)
}

fn report(session: &Session, options: &Options, runs: &Runs<&'static str, Census>) -> Report {
    let Options { mib, cached_mib, .. } = options;
    let title =
        format!("census: who uses memory for what, with {mib} MiB of a program and {cached_mib} MiB of page cache");
    let mut report = Report::new("census", title, &session.host);
    let cost = || Metric::less("looking", Unit::Milliseconds, |census: &Census| census.cost_us as f64 / 1e3);
    runs.compare(&mut report, &[(EXACT, SAMPLED)], &[cost()]);
    runs.figures(&mut report, &[cost().target(SAMPLED, Target::AtMost(30.0))]);
    report
        .table("Sampled beside every frame, medians of the pairs:", by_class(runs.of("", EXACT), runs.of("", SAMPLED)));
    report.note(
        "Off by: the difference between a sample and the exact census of its pair. Beyond the bound: how many were off by more than the \
         sample said; one of twenty may be.",
    );
    report
}

fn by_class(exact: &[Census], sampled: &[Census]) -> Table {
    let mut table = Table::new(["class", "memory", "off by", "bound", "beyond the bound"]);
    let Some(first) = exact.first() else { return table };
    for (nth, of) in first.classes.iter().enumerate() {
        let same_class = |(exact, sampled): (&'_ Census, &'_ Census)| {
            Some((exact.classes.get(nth)?.clone(), sampled.classes.get(nth)?.clone()))
        };
        let pairs: Vec<(OfClass, OfClass)> = exact.iter().zip(sampled).filter_map(same_class).collect();
        let middle = |value: &dyn Fn(&OfClass, &OfClass) -> f64| {
            or_dash(Unit::Bytes, median_of(&pairs, |(exact, sampled)| value(exact, sampled)))
        };
        let off = |exact: &OfClass, sampled: &OfClass| exact.bytes.0.abs_diff(sampled.bytes.0) as f64;
        let beyond =
            pairs.iter().filter(|(exact, sampled)| off(exact, sampled) > sampled.error_bound_bytes.0 as f64).count();
        table.row([
            of.class.name().to_owned(),
            middle(&|exact, _| exact.bytes.0 as f64),
            middle(&off),
            middle(&|_, sampled| sampled.error_bound_bytes.0 as f64),
            format!("{beyond} of {}", pairs.len()),
        ]);
    }
    table
}
