//! `masu-bench idle-cost`: masu's cost after it has settled: its own processor time, and the speed of the watched
//! program.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;

use crate::harness::{Metric, Runs};
use crate::place::Place;
use crate::process::{by_name, processor_time};
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::thp::{Guard, Mode};
use crate::workload::Workload;

/// Arguments of `masu-bench idle-cost`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Memory of the observed program, in MiB
    #[arg(long, default_value_t = 4096)]
    pub mib: u64,
    /// Time for masu to settle, in seconds
    #[arg(long, default_value_t = 30)]
    pub settle: u64,
    /// Time over which the processor time of masu is counted, in seconds
    #[arg(long, default_value_t = 60)]
    pub watch: u64,
    /// Measurements of the program with masu at work, and with masu stopped
    #[arg(long, default_value_t = 10)]
    pub pairs: usize,
}

const LIMIT: Duration = Duration::from_secs(60);

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.mib > 0 && options.watch > 0, "--mib and --watch: expected at least 1");
    let masu = session.masu()?;
    session.warm_up()?;
    let _guard = Guard::turn(Mode::Madvise)?;
    let arguments = ["--mib".to_owned(), options.mib.to_string()];
    let mut dense = Workload::start("workload-dense", &arguments, &session.processors, Place::Only(0), &session.stop)?;
    let mut attached = masu.attach(dense.pid(), &[], &session.processors)?;
    session.progress("letting masu settle");
    run_for(&mut dense, session, Duration::from_secs(options.settle))?;
    let settled_by = attached.age();
    session.progress("counting masu's processor time");
    let kernel_thread = by_name("khugepaged");
    let khugepaged = || kernel_thread.map_or(Ok(Duration::ZERO), processor_time);
    let (before, kernel_before, begun) = (processor_time(attached.pid())?, khugepaged()?, Instant::now());
    run_for(&mut dense, session, Duration::from_secs(options.watch))?;
    let over = begun.elapsed().as_secs_f64();
    ensure!(attached.is_running(), "masu ended before it was asked to");
    let used = processor_time(attached.pid())?.saturating_sub(before);
    let kernel_used = khugepaged()?.saturating_sub(kernel_before);
    let mut runs = Runs::default();
    let ways = ["masu stopped", "masu at work"];
    runs.measure(session, options.pairs, "", &ways, |turn| {
        attached.signal([Signal::STOP, Signal::CONT][turn.nth]);
        dense.ask("run 2000", LIMIT, &session.stop)?.number("rate")
    })?;
    attached.signal(Signal::CONT);
    let end = attached.interrupt(&session.stop)?;

    let title = format!("idle-cost: masu attached to a program with {} MiB, random access, settled", options.mib);
    let mut report = Report::new("idle-cost", title, &session.host);
    let rate = Metric::more("random access", Unit::PerSecond, |rate: &f64| *rate);
    runs.compare(&mut report, &[(ways[0], ways[1])], &[rate]);
    let share = Some(used.as_secs_f64() / over);
    report.figure(
        &format!("masu's share of one core over {over:.0} s"),
        Unit::Fraction,
        share,
        Some(Target::AtMost(0.01)),
    );
    report.figure("khugepaged's, in the same time", Unit::Fraction, Some(kernel_used.as_secs_f64() / over), None);
    report.figure("settled after attach", Unit::Seconds, end.settled_s.filter(|_| end.settled), None);
    if !end.settled_s.is_some_and(|at| end.settled && at <= settled_by.as_secs_f64()) {
        report.note(
            "masu had not settled when the counting began: the share is not that of a settled masu. Try --settle.",
        );
    }
    report.sample("attach", &end);
    report.sample("processor_time_s", used.as_secs_f64());
    runs.finish(report, session)
}

/// Runs the program for `time`, in pieces, so that a signal is noticed.
fn run_for(dense: &mut Workload, session: &Session, time: Duration) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        let piece = time.saturating_sub(begun.elapsed()).min(Duration::from_secs(1)).as_millis().max(1);
        dense.ask(&format!("run {piece}"), LIMIT, &session.stop)?;
    }
    Ok(())
}
