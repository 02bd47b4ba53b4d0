//! `masu-bench llc-refill`: cost of bringing the lines of merged pages into the last-level cache through pages of our
//! own that KSM merged with a program's, and the program's load latency afterwards. Checks that no page is unmerged by
//! it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linux::Pid;
use linux::merged_memory::{MergedCopy, PageOf};
use units::Address;

use super::ksm::{self, Merging};
use crate::pairs::{Better, median, order_of_round};
use crate::place::Place;
use crate::report::{Report, Target, Unit, Versus};
use crate::session::Session;
use crate::table::Table;
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

/// Action before the program's loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Flush,
    FlushAndLoad,
    Refill,
    Touch,
}

impl Way {
    const ALL: [Way; 4] = [Way::Flush, Way::FlushAndLoad, Way::Refill, Way::Touch];

    const fn name(self) -> &'static str {
        match self {
            Way::Flush => "flushed",
            Way::FlushAndLoad => "flushed, then one pass of loads",
            Way::Refill => "flushed, then touched (refill)",
            Way::Touch => "touched again",
        }
    }
}

/// Samples of one size and way: milliseconds per MiB, and ticks of one load of the program.
#[derive(Clone, Debug, Default, serde::Serialize)]
struct Found {
    ms_per_mib: Vec<f64>,
    ticks: Vec<f64>,
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
    let mut all = Vec::new();
    for kib in &options.kib {
        session.progress(&format!("{kib} KiB"));
        all.push((*kib, of_size(session, options, &copy, &mut program, kib.div_ceil(4))?));
    }
    let parted = pages as u64 - copy.merged_pages()?.0;
    report(session, options, &all, (took, frames_more, parted))
}

fn of_size(
    session: &Session,
    options: &Options,
    copy: &MergedCopy,
    program: &mut Workload,
    pages: usize,
) -> Result<[Found; 4]> {
    let mut found: [Found; 4] = Default::default();
    for round in 0..options.pairs {
        session.stop.check()?;
        for nth in order_of_round(round, Way::ALL.len()) {
            // The lines are in the cache, so the flush has lines to evict.
            copy.flush(0..pages)?;
            copy.touch(0..pages);
            let begun = Instant::now();
            match Way::ALL[nth] {
                Way::Flush => copy.flush(0..pages)?,
                Way::FlushAndLoad => {
                    copy.flush(0..pages)?;
                    copy.load(0..pages);
                }
                Way::Refill => {
                    copy.flush(0..pages)?;
                    copy.touch(0..pages);
                }
                Way::Touch => copy.touch(0..pages),
            }
            found[nth].ms_per_mib.push(begun.elapsed().as_secs_f64() * 1e3 / (pages as f64 / 256.0));
            let said = program.ask(&format!("loads {pages}"), ANSWER, &session.stop)?;
            found[nth].ticks.push(said.number("ticks")?);
        }
    }
    Ok(found)
}

fn report(
    session: &Session,
    options: &Options,
    all: &[(usize, [Found; 4])],
    (took, frames_more, parted): (Duration, f64, u64),
) -> Result<()> {
    let title = "llc-refill: lines of merged pages, thrown out and brought back by a thread on one processor, and loads of a program on another";
    let mut report = Report::new("llc-refill", title, &session.host);
    let mut table = Table::new(["memory", "before the program's loads", "cost, per MiB", "a load, in ticks"]);
    for (kib, found) in all {
        for (way, of) in Way::ALL.iter().zip(found) {
            let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
            table.row([
                format!("{kib} KiB"),
                way.name().to_owned(),
                format!("{:.3} ms", middle(&of.ms_per_mib)),
                format!("{:.0}", middle(&of.ticks)),
            ]);
        }
    }
    let versus = Versus { baseline: "flushed", this: "refilled" };
    for (kib, [flushed, _, refilled, _]) in all {
        let what = format!("a load, {kib} KiB, in ticks");
        report.compare(&what, Unit::Count, Better::Less, versus, (&flushed.ticks, &refilled.ticks));
    }
    let versus = Versus { baseline: "touched again", this: "refilled" };
    for (kib, [_, _, refilled, touched]) in all {
        let what = format!("cost, {kib} KiB, per MiB");
        report.compare(&what, Unit::Milliseconds, Better::Less, versus, (&touched.ms_per_mib, &refilled.ms_per_mib));
    }
    report.table("By size, medians:", table);
    report.figure("pages parted", Unit::Count, Some(parted as f64), Some(Target::AtMost(0.0)));
    report.figure("frames merged more with our copies", Unit::Count, Some(frames_more), Some(Target::AtMost(0.0)));
    report.figure("KSM took to merge our copies", Unit::Seconds, Some(took.as_secs_f64()), None);
    report.note(
        "Frames are counted by the kernel (pages_shared) before our copies are made and once all of them are merged.",
    );
    report.note("A tick is one of the processor's clock. To touch is to load each line twice and to hand it down (cldemote); refilled is flushed and then touched.");
    report.note(format!("{} pairs; KSM looks at 20,000 pages and sleeps for 1 ms.", options.pairs));
    let samples: Vec<_> = all.iter().map(|(kib, found)| (kib, Way::ALL.map(Way::name), found)).collect();
    report.sample("by_size", samples);
    report.finish(session.save)
}
