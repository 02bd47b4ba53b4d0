//! `masu-bench sparse`: a heap with mostly empty, cold windows. Huge pages everywhere waste memory; huge pages on the
//! remaining windows give the full speed.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::harness::{Metric, Runs};
use crate::place::Place;
use crate::process::resident;
use crate::report::{Report, Target, Unit};
use crate::session::Session;
use crate::thp::{Guard, Mode};
use crate::workload::Workload;

/// Arguments of `masu-bench sparse`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Windows of 2 MiB
    #[arg(long, default_value_t = 1024)]
    pub windows: u32,
    /// Measurements of each condition
    #[arg(long, default_value_t = 20)]
    pub pairs: usize,
    /// Length of one measurement, in milliseconds
    #[arg(long, default_value_t = 1000)]
    pub segment_ms: u64,
    /// Time after which an unsettled masu is asked to end, in seconds
    #[arg(long, default_value_t = 60)]
    pub settle_limit: u64,
}

#[derive(Serialize)]
struct Sample {
    accesses_per_s: f64,
    rss_bytes: f64,
}

const SMALL: &str = "4 KiB pages";
const ALWAYS: &str = "THP=always";
const MASU: &str = "masu";

const LIMIT: Duration = Duration::from_secs(120);

/// Runs the benchmark.
///
/// # Errors
/// When masu is missing or fails, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    ensure!(options.windows >= 5 && options.pairs > 0, "expected --windows 5 or more and --pairs 1 or more");
    let masu = session.masu()?;
    session.warm_up()?;
    session.progress("starting three sparse heaps");
    let start = || {
        let arguments = ["--windows".to_owned(), options.windows.to_string()];
        Workload::start("workload-sparse", &arguments, &session.processors, Place::Only(0), &session.stop)
    };
    let always = {
        let _guard = Guard::turn(Mode::Always)?;
        start()?
    };
    let _guard = Guard::turn(Mode::Madvise)?;
    let mut heaps = [start()?, always, start()?];
    let stop = &session.stop;
    session.progress("attaching masu");
    let limit = Duration::from_secs(options.settle_limit);
    let mut attached = masu.attach(heaps[2].pid(), &["--until-settled"], &session.processors)?;
    while attached.is_running() && attached.age() < limit {
        heaps[2].ask("run 200", LIMIT, stop)?;
    }
    let attach = attached.finish(Duration::ZERO, stop)?;
    let command = format!("run {}", options.segment_ms);
    let mut runs = Runs::default();
    runs.measure(session, options.pairs, "", &[SMALL, ALWAYS, MASU], |turn| {
        let accesses_per_s = heaps[turn.nth].ask(&command, LIMIT, stop)?.number("rate")?;
        Ok(Sample { accesses_per_s, rss_bytes: resident(heaps[turn.nth].pid())?.rss_bytes.0 as f64 })
    })?;
    let dense = heaps[2].ready().whole("dense_windows")?;
    let (windows, sparse) = (options.windows, u64::from(options.windows) - dense);
    let title =
        format!("sparse: {windows} windows, {sparse} touched on 64 of 512 pages and cold, {dense} dense and hot");
    let mut report = Report::new("sparse", title, &session.host);
    let metrics = [
        Metric::more("random access", Unit::PerSecond, |sample: &Sample| sample.accesses_per_s).target_against(
            ALWAYS,
            MASU,
            Target::AtLeast(0.99),
        ),
        Metric::less("resident memory", Unit::Bytes, |sample: &Sample| sample.rss_bytes).target_against(
            SMALL,
            MASU,
            Target::AtMost(1.02),
        ),
    ];
    runs.compare(&mut report, &[(ALWAYS, MASU), (SMALL, MASU), (SMALL, ALWAYS)], &metrics);
    let settled = attach.settled_s.filter(|_| attach.settled);
    report.figure("settled after attach", Unit::Seconds, settled, Some(Target::AtMost(10.0)));
    report.figure("windows promoted", Unit::Count, Some(attach.windows_promoted as f64), None);
    report.figure("windows dense and hot", Unit::Count, Some(dense as f64), None);
    report.figure("masu's processor time until settled", Unit::Seconds, Some(attach.cpu_s), None);
    report.sample("attach", attach);
    runs.finish(report, session)
}
