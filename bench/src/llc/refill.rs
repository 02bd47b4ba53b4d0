//! `masu-bench llc-refill`: cost of bringing the lines of merged pages into the last-level cache through pages of our
//! own that KSM merged with a program's, and the program's load latency afterwards. Checks that no page is unmerged by
//! it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linux::Pid;
use linux::merged_memory::{MergedCopy, PageOf};
use units::Address;

use super::ksm::{self, Merging};
use crate::harness::{Column, Metric, Runs};
use crate::place::Place;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::workload::Workload;

/// Time limit of a workload for some hundred loads.
const ANSWER: Duration = Duration::from_secs(60);

/// Arguments of `masu-bench llc-refill`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Sizes of the memory to warm, in KiB, one after the other
    #[arg(long, value_delimiter = ',', default_value = "256,1024,4096,8192,16384")]
    pub kib: Vec<usize>,
    /// Measurements of each way
    #[arg(long, default_value_t = 12)]
    pub pairs: usize,
}

/// Actions before the program's loads.
const FLUSHED: &str = "flushed";
const LOADED: &str = "flushed, then one pass of loads";
const REFILLED: &str = "flushed, then touched (refill)";
const TOUCHED: &str = "touched again";

#[derive(serde::Serialize)]
struct Sample {
    /// Time of the action.
    ms_per_mib: f64,
    /// Clock ticks of one load of the program.
    ticks: f64,
}

/// Runs the benchmark.
///
/// # Errors
/// When KSM does not merge, the processor is none that can be asked, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    let most = options.kib.iter().copied().max().context("expected at least one size")?;
    ensure!(most >= 4 && options.pairs > 0, "expected at least 1 of everything");
    let mib = most.div_ceil(1024);
    let start = |place| {
        let arguments = ["--common-mib".to_owned(), mib.to_string()];
        Workload::start("workload-mergeable", &arguments, &session.processors, place, &session.stop)
    };
    // Ours is the first processor, theirs the second.
    let mut program = start(Place::Only(1))?;
    let _other = start(Place::Only(1))?;
    session.processors.bind_this_thread(Place::Only(0))?;
    session.progress("waiting for KSM");
    let merging = Merging::start()?;
    let pages = mib * 256;
    let pid = Pid(i32::try_from(program.pid())?);
    let first = program.ready().whole("start")?;
    let sources: Vec<PageOf> =
        (0..pages as u64).map(|page| PageOf { pid, address: Address(first + page * 4096) }).collect();
    let masu = session.masu()?;
    let both = || Ok(masu.shared(1, &session.processors, &session.stop)?.merged_pages >= 2 * pages as u64);
    ksm::until("the programs' memory merged", &session.stop, both)?;
    let frames = || Ok::<u64, anyhow::Error>(linux::ksm::host(&linux::Rooted::host())?.pages_shared.0);
    let frames_before = frames()?;
    let copy = MergedCopy::of(&sources)?;
    let took = ksm::until("our copy merged", &session.stop, || Ok(copy.merged_pages()?.0 == pages as u64))?;
    drop(merging);
    let frames_more = frames()? as f64 - frames_before as f64;
    let mut runs = Runs::default();
    for kib in &options.kib {
        let pages = kib.div_ceil(4);
        let ways = [FLUSHED, LOADED, REFILLED, TOUCHED];
        runs.measure(session, options.pairs, &format!("{kib} KiB"), &ways, |turn| {
            let ms_per_mib = act(&copy, turn.way, pages)?.as_secs_f64() * 1e3 / (pages as f64 / 256.0);
            let said = program.ask(&format!("loads {pages}"), ANSWER, &session.stop)?;
            Ok(Sample { ms_per_mib, ticks: said.number("ticks")? })
        })?;
    }
    let parted = pages as u64 - copy.merged_pages()?.0;
    runs.finish(report(session, options, &runs, (took, frames_more, parted)), session)
}

fn act(copy: &MergedCopy, way: &str, pages: usize) -> Result<Duration> {
    // The lines are in the cache, so the flush has lines to evict.
    copy.flush(0..pages)?;
    copy.touch(0..pages);
    let begun = Instant::now();
    if way != TOUCHED {
        copy.flush(0..pages)?;
    }
    match way {
        FLUSHED => {}
        LOADED => copy.load(0..pages),
        _ => copy.touch(0..pages),
    }
    Ok(begun.elapsed())
}

fn report(
    session: &Session,
    options: &Options,
    runs: &Runs<&'static str, Sample>,
    (took, frames_more, parted): (Duration, f64, u64),
) -> Report {
    let title = "llc-refill: lines of merged pages, thrown out and brought back by a thread on one processor, and loads of a program on another";
    let mut report = Report::new("llc-refill", title, &session.host);
    let load = Metric::less("a load, in ticks", Unit::Count, |sample: &Sample| sample.ticks);
    runs.compare(&mut report, &[(FLUSHED, REFILLED)], &[load]);
    let cost = Metric::less("cost, per MiB", Unit::Milliseconds, |sample: &Sample| sample.ms_per_mib);
    runs.compare(&mut report, &[(TOUCHED, REFILLED)], &[cost]);
    let columns = [
        Column::median("cost, per MiB", Unit::Milliseconds, |sample: &Sample| sample.ms_per_mib),
        Column::median("a load, in ticks", Unit::Count, |sample: &Sample| sample.ticks),
    ];
    runs.table(&mut report, "By size, medians:", &columns);
    report.figure("pages parted", Unit::Count, Some(parted as f64), Some(Target::AtMost(0.0)));
    report.figure("frames merged more with our copies", Unit::Count, Some(frames_more), Some(Target::AtMost(0.0)));
    report.figure("KSM took to merge our copies", Unit::Seconds, Some(took.as_secs_f64()), None);
    report.note(
        "Frames are counted by the kernel (pages_shared) before our copies are made and once all of them are merged.",
    );
    report.note("A tick is one of the processor's clock. To touch is to load each line twice and to hand it down (cldemote); refilled is flushed and then touched.");
    report.note(format!("{} pairs; KSM looks at 20,000 pages and sleeps for 1 ms.", options.pairs));
    report
}
