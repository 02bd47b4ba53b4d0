//! `masu-bench census`: cost of attributing memory to its users, from a sample and from every frame, and the error of
//! the sample.

use std::fs::File;
use std::io::Write as _;

use anyhow::{Context, Result, ensure};

use crate::masu::{CensusReport, ClassReport};
use crate::pairs::{Better, order_of_round};
use crate::place::Place;
use crate::report::{Report, Target, Unit, Versus};
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

/// Findings of both ways.
#[derive(Default, serde::Serialize)]
struct Ways {
    sampled: Vec<CensusReport>,
    exact: Vec<CensusReport>,
}

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
    let mut ways = Ways::default();
    for round in 0..options.pairs {
        session.progress(&format!("round {} of {}", round + 1, options.pairs));
        for nth in order_of_round(round, 2) {
            let (way, option): (_, &[&str]) =
                if nth == 0 { (&mut ways.exact, &["--exact"]) } else { (&mut ways.sampled, &[]) };
            way.push(masu.census(option, &session.processors, &session.stop)?);
        }
    }
    report(session, options, &ways)
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

fn report(session: &Session, options: &Options, ways: &Ways) -> Result<()> {
    let Options { mib, cached_mib, .. } = options;
    let title =
        format!("census: who uses memory for what, with {mib} MiB of a program and {cached_mib} MiB of page cache");
    let mut report = Report::new("census", title, &session.host);
    let costs = |way: &[CensusReport]| way.iter().map(|of| of.cost_us / 1e3).collect::<Vec<f64>>();
    let (exact, sampled) = (costs(&ways.exact), costs(&ways.sampled));
    let versus = Versus { baseline: "every frame", this: "sampled" };
    report.compare("looking", Unit::Milliseconds, Better::Less, versus, (&exact, &sampled));
    report.figure("sampled", Unit::Milliseconds, crate::pairs::median(&sampled), Some(Target::AtMost(30.0)));
    report.table("Sampled beside every frame, medians of the pairs:", by_class(ways));
    report.note(
        "Off by: the difference between a sample and the exact census of its pair. Beyond the bound: how many were off by more than the \
         sample said; one of twenty may be.",
    );
    report.sample("censuses", ways);
    report.finish(session.save)
}

fn by_class(ways: &Ways) -> Table {
    let mut table = Table::new(["class", "memory", "off by", "bound", "beyond the bound"]);
    let Some(first) = ways.exact.first() else { return table };
    for (nth, of) in first.classes.iter().enumerate() {
        let pairs: Vec<(&ClassReport, &ClassReport)> = ways
            .exact
            .iter()
            .zip(&ways.sampled)
            .filter_map(|(a, b)| Some((a.classes.get(nth)?, b.classes.get(nth)?)))
            .collect();
        let middle = |value: &dyn Fn(&ClassReport, &ClassReport) -> f64| {
            let values: Vec<f64> = pairs.iter().map(|(exact, sampled)| value(exact, sampled)).collect();
            format!("{:.1} MiB", crate::pairs::median(&values).unwrap_or(f64::NAN) / f64::from(1 << 20))
        };
        let off = |exact: &ClassReport, sampled: &ClassReport| (exact.bytes - sampled.bytes).abs();
        let beyond = pairs.iter().filter(|(exact, sampled)| off(exact, sampled) > sampled.error_bound_bytes).count();
        table.row([
            of.class.clone(),
            middle(&|exact, _| exact.bytes),
            middle(&off),
            middle(&|_, sampled| sampled.error_bound_bytes),
            format!("{beyond} of {}", pairs.len()),
        ]);
    }
    table
}
