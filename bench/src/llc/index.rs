//! `masu-bench llc-index`: cost of finding the sharers of every merged page, compared with reading smaps of the same
//! processes and with a query for each single page.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use linux::cpu_time;
use llc::shared;

use super::ksm::{self, Merging};
use crate::harness::{Column, Metric, Runs};
use crate::masu::Masu;
use crate::place::Place;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::workload::Workload;

const PAGE: u64 = 4096;

/// Arguments of `masu-bench llc-index`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory common to all programs, in MiB
    #[arg(long, default_value_t = 512)]
    pub common_mib: u64,
    /// Memory of each program alone, in MiB
    #[arg(long, default_value_t = 512)]
    pub own_mib: u64,
    /// Number of programs
    #[arg(long, default_value_t = 2)]
    pub programs: usize,
    /// Measurements of each way
    #[arg(long, default_value_t = 10)]
    pub pairs: usize,
}

const SMAPS: &str = "smaps";
const PAGE_BY_PAGE: &str = "page by page";
const MASU: &str = "masu";

/// Processor time of two looks in a row; the baselines take one, which counts as both.
#[derive(serde::Serialize)]
struct Cost {
    first: Look,
    next: Look,
    /// Flags that masu's next look asked for.
    flags_asked: Option<u64>,
}

#[derive(Clone, Copy, serde::Serialize)]
struct Look {
    /// Per page of the programs' memory.
    ns_per_page: f64,
    /// Per page-table entry that masu read.
    ns_per_entry: Option<f64>,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, KSM does not merge, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.common_mib > 0 && options.pairs > 0, "expected at least 1 of everything");
    ensure!(options.programs > 1, "expected at least 2 programs");
    let masu = session.masu()?;
    session.warm_up()?;
    session.progress("filling memory");
    let (common, own) = (options.common_mib.to_string(), options.own_mib.to_string());
    let arguments = ["--common-mib".to_owned(), common, "--own-mib".to_owned(), own];
    let start =
        |_| Workload::start("workload-mergeable", &arguments, &session.processors, Place::Anywhere, &session.stop);
    let programs: Vec<Workload> = (0..options.programs).map(start).collect::<Result<_>>()?;
    session.progress("waiting for KSM");
    let expected = options.common_mib * 256 * options.programs as u64;
    let merging = Merging::start()?;
    let merged = || Ok(masu.shared(1, &session.processors, &session.stop)?.merged_pages >= expected);
    let waited = ksm::until("all memory in common merged", &session.stop, merged)?;
    drop(merging);
    let pages = pages_of(&programs)?;
    let mut runs = Runs::default();
    runs.measure(session, options.pairs, "", &[SMAPS, PAGE_BY_PAGE, MASU], |turn| match turn.way {
        SMAPS => by_smaps(&programs, pages),
        PAGE_BY_PAGE => one_by_one(&programs, pages, expected),
        _ => by_masu(session, &masu, pages, expected),
    })?;
    runs.finish(report(session, options, &runs, (waited, expected)), session)
}

/// All pages of the programs' memory.
fn pages_of(programs: &[Workload]) -> Result<f64> {
    programs.iter().map(|program| Ok(program.ready().number("bytes")? / PAGE as f64)).sum()
}

/// A first scan, and another one right after it.
fn by_masu(session: &Session, masu: &Masu, pages: f64, expected: u64) -> Result<Cost> {
    let first = masu.shared(1, &session.processors, &session.stop)?;
    let next = masu.shared(2, &session.processors, &session.stop)?;
    let look = |found: &shared::report::Report| {
        ensure!(found.merged_pages == expected, "masu found {} merged pages of {expected}", found.merged_pages);
        let ns_per_entry = Some(ns_per(found, found.scan.pages_read.0 as f64));
        Ok(Look { ns_per_page: ns_per(found, pages), ns_per_entry })
    };
    Ok(Cost { first: look(&first)?, next: look(&next)?, flags_asked: Some(next.scan.frames_asked) })
}

fn baseline(took: Duration, pages: f64) -> Cost {
    let look = Look { ns_per_page: took.as_secs_f64() * 1e9 / pages, ns_per_entry: None };
    Cost { first: look, next: look, flags_asked: None }
}

/// Processor time of a scan for each of `number` things, in ns. More entries are read than there are pages, and of
/// other processes too.
pub(super) fn ns_per(of: &shared::report::Report, number: f64) -> f64 {
    of.scan.cpu_us as f64 * 1e3 / number
}

/// Kernel's sums for each mapping, `KSM:` among them.
fn by_smaps(programs: &[Workload], pages: f64) -> Result<Cost> {
    let begun = cpu_time::of_thread();
    for program in programs {
        let text = fs::read_to_string(format!("/proc/{}/smaps", program.pid()))?;
        ensure!(text.contains("KSM:"), "smaps has no line `KSM:`");
    }
    Ok(baseline(cpu_time::of_thread().saturating_sub(begun), pages))
}

/// Two calls for each page.
fn one_by_one(programs: &[Workload], pages: f64, expected: u64) -> Result<Cost> {
    let flags = File::open("/proc/kpageflags").context("cannot read flags of frames (this needs root)")?;
    let begun = cpu_time::of_thread();
    let mut merged = 0u64;
    for program in programs {
        let words = File::open(format!("/proc/{}/pagemap", program.pid()))?;
        let (start, bytes) = (program.ready().whole("start")?, program.ready().whole("bytes")?);
        for address in (start..start + bytes).step_by(4096) {
            let mut word = [0; 8];
            words.read_exact_at(&mut word, address / PAGE * 8)?;
            let frame = u64::from_ne_bytes(word) & ((1 << 55) - 1);
            flags.read_exact_at(&mut word, frame * 8)?;
            merged += u64::from_ne_bytes(word) >> 21 & 1;
        }
    }
    let took = cpu_time::of_thread().saturating_sub(begun);
    ensure!(merged == expected, "page by page {merged} of {expected} are merged");
    Ok(baseline(took, pages))
}

fn report(
    session: &Session,
    options: &Options,
    runs: &Runs<&'static str, Cost>,
    (waited, merged): (Duration, u64),
) -> Report {
    let title = format!(
        "llc-index: who shares which merged page, of {} programs with {} MiB in common and {} MiB of their own each",
        options.programs, options.common_mib, options.own_mib
    );
    let mut report = Report::new("llc-index", title, &session.host);
    let per_page = Unit::Nanoseconds;
    let metrics = [
        Metric::less("a first look, per page", per_page, |cost: &Cost| cost.first.ns_per_page),
        Metric::less("the next look, per page", per_page, |cost: &Cost| cost.next.ns_per_page),
    ];
    runs.compare(&mut report, &[(PAGE_BY_PAGE, MASU), (SMAPS, MASU)], &metrics);
    let ms_per_gib = |look: &Look| look.ns_per_page * 262_144.0 / 1e6;
    let columns = [
        Column::median("a first look, per GiB", Unit::Milliseconds, |cost: &Cost| ms_per_gib(&cost.first)),
        Column::median("the next look, per GiB", Unit::Milliseconds, |cost: &Cost| ms_per_gib(&cost.next)),
        Column::median("a first look, per entry read", per_page, |cost: &Cost| cost.first.ns_per_entry),
        Column::median("the next look, per entry read", per_page, |cost: &Cost| cost.next.ns_per_entry),
        Column::median("flags asked by the next look", Unit::Count, |cost: &Cost| {
            cost.flags_asked.map(|flags| flags as f64)
        }),
    ];
    runs.table(&mut report, "Medians:", &columns);
    let limit = Some(Target::AtMost(200.0));
    let middle = |look: fn(&Cost) -> Look| runs.median("", MASU, |cost| look(cost).ns_per_page);
    report.figure("a first look, per page", per_page, middle(|cost| cost.first), limit);
    report.figure("the next look, per page", per_page, middle(|cost| cost.next), limit);
    report.figure("merged pages found", Unit::Count, Some(merged as f64), None);
    report.figure("KSM took to merge them", Unit::Seconds, Some(waited.as_secs_f64()), None);
    report.note("Pages are those of the programs' memory for all ways. Entries are words of page tables: masu reads those of all processes that may have something merged.");
    report.note("Processor time. A look is all of it: which processes there are, what they offered, page tables, flags of frames, and the index from frames to sharers.");
    report.note("smaps tells how much of each mapping is merged, and with whom not. Page by page: a call for the frame and one for its flags, and no index.");
    report
}
