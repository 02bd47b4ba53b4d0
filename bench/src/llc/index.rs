//! `masu-bench llc-index`: cost of finding the sharers of every merged page, compared with reading smaps of the same
//! processes and with a query for each single page.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use llc::shared;

use super::ksm::{self, Merging};
use crate::masu::Masu;
use crate::pairs::{Better, median, order_of_round};
use crate::place::Place;
use crate::report::{Report, Target, Unit, Versus};
use crate::scan::thread_time;
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

/// Nanoseconds per page of the programs' memory, and for masu's scans also per page-table entry.
#[derive(Default, serde::Serialize)]
struct Costs {
    first: Vec<f64>,
    again: Vec<f64>,
    smaps: Vec<f64>,
    one_by_one: Vec<f64>,
    first_per_entry: Vec<f64>,
    again_per_entry: Vec<f64>,
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
    let arguments = [
        "--common-mib".to_owned(),
        options.common_mib.to_string(),
        "--own-mib".to_owned(),
        options.own_mib.to_string(),
    ];
    let mut programs = Vec::new();
    for _ in 0..options.programs {
        programs.push(Workload::start(
            "workload-mergeable",
            &arguments,
            &session.processors,
            Place::Anywhere,
            &session.stop,
        )?);
    }
    session.progress("waiting for KSM");
    let expected = options.common_mib * 256 * options.programs as u64;
    let merging = Merging::start()?;
    let merged = || Ok(masu.shared(1, &session.processors, &session.stop)?.merged_pages >= expected);
    let waited = ksm::until("all memory in common merged", &session.stop, merged)?;
    drop(merging);
    let mut costs = Costs::default();
    let mut asked = 0;
    for round in 0..options.pairs {
        session.progress(&format!("round {} of {}", round + 1, options.pairs));
        for nth in order_of_round(round, 3) {
            match nth {
                0 => costs.smaps.push(by_smaps(&programs)?),
                1 => costs.one_by_one.push(one_by_one(&programs, expected)?),
                _ => asked = by_masu(session, &masu, &mut costs, pages_of(&programs)?, expected)?,
            }
        }
    }
    report(session, options, &costs, (waited, expected, asked))
}

/// All pages of the programs' memory.
fn pages_of(programs: &[Workload]) -> Result<f64> {
    programs.iter().map(|program| Ok(program.ready().number("bytes")? / PAGE as f64)).sum()
}

/// A first scan, and another one right after it. Returns the number of flags that the second one asked for.
fn by_masu(session: &Session, masu: &Masu, costs: &mut Costs, pages: f64, expected: u64) -> Result<u64> {
    let first = masu.shared(1, &session.processors, &session.stop)?;
    let again = masu.shared(2, &session.processors, &session.stop)?;
    for (look, per_page, per_entry) in
        [(&first, &mut costs.first, &mut costs.first_per_entry), (&again, &mut costs.again, &mut costs.again_per_entry)]
    {
        ensure!(look.merged_pages == expected, "masu found {} merged pages of {expected}", look.merged_pages);
        per_page.push(ns_per(look, pages));
        per_entry.push(ns_per(look, look.scan.pages_read.0 as f64));
    }
    Ok(again.scan.frames_asked)
}

/// Processor time of a scan for each of `number` things, in ns. More entries are read than there are pages, and of
/// other processes too.
pub(super) fn ns_per(of: &shared::report::Report, number: f64) -> f64 {
    of.scan.cpu_us as f64 * 1e3 / number
}

/// Kernel's sums for each mapping, `KSM:` among them.
fn by_smaps(programs: &[Workload]) -> Result<f64> {
    let begun = thread_time();
    for program in programs {
        let text = fs::read_to_string(format!("/proc/{}/smaps", program.pid()))?;
        ensure!(text.contains("KSM:"), "smaps has no line `KSM:`");
    }
    Ok(thread_time().saturating_sub(begun).as_secs_f64() * 1e9 / pages_of(programs)?)
}

/// Two calls for each page.
fn one_by_one(programs: &[Workload], expected: u64) -> Result<f64> {
    let flags = File::open("/proc/kpageflags").context("cannot read flags of frames (this needs root)")?;
    let begun = thread_time();
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
    let took = thread_time().saturating_sub(begun);
    ensure!(merged == expected, "page by page {merged} of {expected} are merged");
    Ok(took.as_secs_f64() * 1e9 / pages_of(programs)?)
}

fn report(
    session: &Session,
    options: &Options,
    costs: &Costs,
    (waited, merged, asked): (Duration, u64, u64),
) -> Result<()> {
    let title = format!(
        "llc-index: who shares which merged page, of {} programs with {} MiB in common and {} MiB of their own each",
        options.programs, options.common_mib, options.own_mib
    );
    let mut report = Report::new("llc-index", title, &session.host);
    let versus = Versus { baseline: "page by page", this: "masu" };
    let per_page = Unit::Nanoseconds;
    report.compare("a first look, per page", per_page, Better::Less, versus, (&costs.one_by_one, &costs.first));
    report.compare("the next look, per page", per_page, Better::Less, versus, (&costs.one_by_one, &costs.again));
    let versus = Versus { baseline: "smaps", this: "masu" };
    report.compare("a first look, per page", per_page, Better::Less, versus, (&costs.smaps, &costs.first));
    report.compare("the next look, per page", per_page, Better::Less, versus, (&costs.smaps, &costs.again));
    report.figure("a first look, per entry read", per_page, median(&costs.first_per_entry), None);
    report.figure("the next look, per entry read", per_page, median(&costs.again_per_entry), None);
    let per_gib = |costs: &[f64]| median(costs).map(|ns| ns * 262_144.0 / 1e6);
    report.figure("a first look, per page", per_page, median(&costs.first), Some(Target::AtMost(200.0)));
    report.figure("the next look, per page", per_page, median(&costs.again), Some(Target::AtMost(200.0)));
    report.figure("a first look, per GiB", Unit::Milliseconds, per_gib(&costs.first), None);
    report.figure("the next look, per GiB", Unit::Milliseconds, per_gib(&costs.again), None);
    report.figure("flags asked by the next look", Unit::Count, Some(asked as f64), None);
    report.figure("merged pages found", Unit::Count, Some(merged as f64), None);
    report.figure("KSM took to merge them", Unit::Seconds, Some(waited.as_secs_f64()), None);
    report.note("Pages are those of the programs' memory for all ways. Entries are words of page tables: masu reads those of all processes that may have something merged.");
    report.note("Processor time. A look is all of it: which processes there are, what they offered, page tables, flags of frames, and the index from frames to sharers.");
    report.note("smaps tells how much of each mapping is merged, and with whom not. Page by page: a call for the frame and one for its flags, and no index.");
    report.sample("ns_per_page", costs);
    report.finish(session.save)
}
