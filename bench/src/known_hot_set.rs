//! `masu-bench known-hot-set`: precision and delay of `masu pages` in finding a program's hot pages.
//!
//! The program visits a random set of pages known to both sides (`hot_pages.rs`). A page counts as found when masu saw
//! it accessed in at least one reading. Precision is the part of the found pages that are hot, recall the part of the
//! hot pages that were found. Residency alone is the baseline: it takes every page in memory for hot.

use std::time::{Duration, Instant};

use ::masu::reports::PagesReport;
use anyhow::{Result, ensure};
use serde::Serialize;
use units::cast::fits;

use crate::harness::{Column, Runs};
use crate::hot_pages::{PAGES_PER_WINDOW, hot_pages};
use crate::masu::Masu;
use crate::place::Place;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::thp::{Guard, Mode};
use crate::workload::Workload;

/// Arguments of `masu-bench known-hot-set`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory of the program, in MiB, all of it resident on 4 KiB pages
    #[arg(long, default_value_t = 1024)]
    pub mib: u32,
    /// Time of observation by masu, in milliseconds
    #[arg(long, default_value_t = 3000)]
    pub watch_ms: u64,
    /// Sets of each size, each at another place
    #[arg(long, default_value_t = 3)]
    pub sets: u64,
}

/// Hot pages in each window of 512: 1/16, 1/8, 1/4, 1/2 and all.
const SIZES: [u32; 5] = [32, 64, 128, 256, 512];

/// Score from which a reading counts as a detection.
const GOOD: f64 = 0.99;

/// Observation time of masu in the measurement of the delay after a move.
const GLANCE: Duration = Duration::from_millis(250);

/// A detection that takes longer than this is given up.
const PATIENCE: Duration = Duration::from_secs(15);

/// Comparison of masu's findings with the truth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Score {
    hot: usize,
    found: usize,
    right: usize,
}

impl Score {
    fn precision(self) -> f64 {
        if self.found == 0 { 1.0 } else { self.right as f64 / self.found as f64 }
    }

    fn recall(self) -> f64 {
        if self.hot == 0 { 1.0 } else { self.right as f64 / self.hot as f64 }
    }

    fn is_good(self) -> bool {
        self.precision() >= GOOD && self.recall() >= GOOD
    }
}

#[derive(Debug, Serialize)]
struct Sample {
    hot_per_window: u32,
    epoch: u64,
    score: Score,
    observed_s: f64,
    /// Time from the moment that only this set was visited to the end of the first short reading that found it.
    detection_s: Option<f64>,
}

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.mib >= 2 && options.sets > 0, "expected --mib 2 or more and --sets 1 or more");
    let masu = session.masu()?;
    session.warm_up()?;
    let _guard = Guard::turn(Mode::Madvise)?;
    let (mut runs, mut backend) = (Runs::default(), String::new());
    for hot_per_window in SIZES {
        session.progress(&format!("{hot_per_window} of {PAGES_PER_WINDOW} pages hot"));
        let samples;
        (samples, backend) = one_size(session, &masu, options, hot_per_window)?;
        runs.push(format!("{hot_per_window} of {PAGES_PER_WINDOW} pages hot"), "masu pages", samples);
    }
    let title = format!("known-hot-set: pages found by `masu pages` in {} MiB; backend: {backend}", options.mib);
    let mut report = Report::new("known-hot-set", title, &session.host);
    runs.table(&mut report, "Medians over the sets:", &columns());
    let samples = || runs.rows().iter().flat_map(|row| &row.samples);
    let worst = |part: fn(Score) -> f64| samples().map(|sample| part(sample.score)).reduce(f64::min);
    report.figure("precision, worst set", Unit::Fraction, worst(Score::precision), Some(Target::AtLeast(GOOD)));
    report.figure("recall, worst set", Unit::Fraction, worst(Score::recall), Some(Target::AtLeast(GOOD)));
    let slowest: Option<Vec<f64>> = samples().filter(|s| s.epoch > 0).map(|sample| sample.detection_s).collect();
    let slowest = slowest.and_then(|times| times.into_iter().reduce(f64::max));
    report.figure("a moved set found after, slowest", Unit::Seconds, slowest, None);
    report.note(format!(
        "A moved set counts as found at the end of the first run of `masu pages --for {} s` with precision and recall of \
         {GOOD} or more; the delay includes starting masu.",
        GLANCE.as_secs_f64()
    ));
    runs.finish(report, session)
}

/// All sets of one size; the name of masu's backend.
fn one_size(session: &Session, masu: &Masu, options: &Options, hot_per_window: u32) -> Result<(Vec<Sample>, String)> {
    let (windows, seed) = (options.mib / 2, u64::from(hot_per_window));
    let arguments = [("--windows", windows), ("--hot-per-window", hot_per_window), ("--seed", hot_per_window)];
    let arguments: Vec<String> =
        arguments.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]).collect();
    let mut program =
        Workload::start("workload-hot-set", &arguments, &session.processors, Place::Only(0), &session.stop)?;
    let start = program.ready().whole("start")?;
    let (pid, pages) = (program.pid(), windows * PAGES_PER_WINDOW);
    let look = |time: Duration, truth: &[u32]| -> Result<(Score, PagesReport)> {
        let seen = masu.pages(pid, time, &session.processors, &session.stop)?;
        Ok((score(&found_pages(&seen, start, pages), truth), seen))
    };
    program_once(&mut program, "where", session)?;
    let (mut samples, mut backend) = (Vec::new(), String::new());
    for epoch in 0..options.sets {
        let truth = hot_pages(seed, epoch, windows, hot_per_window);
        let mut detection_s = None;
        // The first set has been there since the start, so there is no moment of moving to count from.
        let moved = Instant::now();
        while epoch > 0 && detection_s.is_none() && moved.elapsed() < PATIENCE {
            detection_s = look(GLANCE, &truth)?.0.is_good().then(|| moved.elapsed().as_secs_f64());
        }
        let (score, seen) = look(Duration::from_millis(options.watch_ms), &truth)?;
        samples.push(Sample { hot_per_window, epoch, score, observed_s: seen.observed_s, detection_s });
        backend = seen.backend.to_string();
        if epoch + 1 < options.sets {
            program_once(&mut program, "move", session)?;
        }
    }
    Ok((samples, backend))
}

fn program_once(program: &mut Workload, command: &str, session: &Session) -> Result<()> {
    program.ask(command, Duration::from_secs(60), &session.stop).map(drop)
}

/// The pages, counted from address `start`, that masu saw accessed, in ascending order; those beyond `pages` are left out.
fn found_pages(seen: &PagesReport, start: u64, pages: u32) -> Vec<u32> {
    let end = start + u64::from(pages) * 4096;
    let mut found = Vec::new();
    for run in seen.mappings.iter().flat_map(|mapping| &mapping.runs).filter(|run| run.accessed_reads > 0) {
        let first = run.start.0;
        let past = first.saturating_add(run.pages.saturating_mul(4096));
        let (first, past) = (first.max(start), past.min(end));
        found.extend((first..past).step_by(4096).map(|address| fits::<u64, u32>((address - start) / 4096)));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Both lists ascending.
fn score(found: &[u32], truth: &[u32]) -> Score {
    let right = found.iter().filter(|page| truth.binary_search(page).is_ok()).count();
    Score { hot: truth.len(), found: found.len(), right }
}

fn columns() -> [Column<'static, Sample>; 4] {
    [
        Column::median("precision", Unit::Fraction, |sample: &Sample| sample.score.precision()),
        Column::median("recall", Unit::Fraction, |sample: &Sample| sample.score.recall()),
        Column::median("detection after a move", Unit::Seconds, |sample: &Sample| sample.detection_s),
        Column::median("precision by residency alone", Unit::Fraction, |sample: &Sample| {
            f64::from(sample.hot_per_window) / f64::from(PAGES_PER_WINDOW)
        }),
    ]
}

#[cfg(test)]
mod tests {
    use access::Backend;
    use linux::Pid;
    use proptest::prelude::*;
    use units::{Address, Rate};

    use super::*;
    use ::masu::reports::{MappingHeat, PagesRun};

    const START: u64 = 0x7f00_0000_0000;

    fn seen(runs: &[(u64, u64, u32)]) -> PagesReport {
        let run = |&(start, pages, accessed_reads): &(u64, u64, u32)| PagesRun {
            start: Address(start),
            pages,
            huge: false,
            accessed_reads,
            rate_per_s: Rate::ZERO,
        };
        let (perms, path) = ("rw-p".to_owned(), "".into());
        let runs = runs.iter().map(run).collect();
        let mapping = MappingHeat { start: Address(0), end: Address(0), perms, path, runs };
        PagesReport {
            pid: Pid(1),
            name: "x".into(),
            backend: Backend::BpfWalk,
            observed_s: 1.0,
            pieces: Default::default(),
            lazily_freed_bytes: None,
            mappings: vec![mapping],
            halted: None,
        }
    }

    #[test]
    fn runs_are_clipped_to_the_program_s_memory_and_untouched_ones_left_out() {
        let report = seen(&[(START - 4096, 3, 1), (START + 4 * 4096, 1, 0), (START + 6 * 4096, 9, 2)]);
        assert_eq!(found_pages(&report, START, 8), [0, 1, 6, 7]);
        assert!(found_pages(&seen(&[(0, 1, 1)]), START, 8).is_empty());
    }

    #[test]
    fn precision_and_recall_are_told_apart() {
        let half_found = score(&[1, 2], &[1, 2, 3, 4]);
        assert!((half_found.precision() - 1.0).abs() < 1e-12 && (half_found.recall() - 0.5).abs() < 1e-12);
        let too_much = score(&[1, 2, 3, 4], &[1]);
        assert!((too_much.precision() - 0.25).abs() < 1e-12 && (too_much.recall() - 1.0).abs() < 1e-12);
        assert!(!half_found.is_good() && !too_much.is_good() && score(&[5], &[5]).is_good());
    }

    proptest! {
        #[test]
        fn a_reading_that_is_the_truth_scores_one(pages in prop::collection::btree_set(0u32..4096, 1..200)) {
            let truth: Vec<u32> = pages.into_iter().collect();
            let runs: Vec<(u64, u64, u32)> = truth.iter().map(|page| (START + u64::from(*page) * 4096, 1, 1)).collect();
            let found = found_pages(&seen(&runs), START, 4096);
            prop_assert_eq!(score(&found, &truth), Score { hot: truth.len(), found: truth.len(), right: truth.len() });
        }
    }
}
