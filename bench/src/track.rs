//! `masu-bench track`: cost of being watched, delay of notifications, and cost of libmasu in a program without a
//! tracker.
//!
//! All with a private `masu track` and programs in C that are compiled here (`workloads/track/`).

use anyhow::{Result, ensure};

use crate::report::Report;
use crate::session::Session;
use crate::thp::{Guard, Mode};

mod linked;
mod notification;
mod programs;
mod upkeep;

use programs::Programs;

/// Arguments of `masu-bench track`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Timed notifications for each period and each number of pages
    #[arg(long, default_value_t = 10)]
    pub notifications: usize,
    /// Periods of observation of the timed notifications, in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1280])]
    pub periods_ms: Vec<u64>,
    /// Touched memory of the timed notifications, and observed memory, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [32, 512, 4096])]
    pub memory_mib: Vec<u64>,
    /// Numbers of programs observed at a time
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 1000])]
    pub programs: Vec<usize>,
    /// Time over which the tracker's processor time is counted, in seconds
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// Pairs of runs with libmasu and without
    #[arg(long, default_value_t = 20)]
    pub pairs: usize,
    /// Run fewer and shorter measurements: a check that it works, not a result
    #[arg(long)]
    pub quick: bool,
}

impl Options {
    fn check(&self) -> Result<()> {
        ensure!(self.notifications > 0 && self.pairs > 0, "--notifications and --pairs: expected at least 1");
        ensure!(self.seconds > 0, "--seconds 0: expected at least 1");
        for period in &self.periods_ms {
            ensure!((10..=60_000).contains(period), "--periods-ms {period}: expected 10 to 60000");
        }
        for memory in &self.memory_mib {
            ensure!((16..=1 << 20).contains(memory), "--memory-mib {memory}: expected 16 to 1048576");
        }
        for programs in &self.programs {
            ensure!((1..=10_000).contains(programs), "--programs {programs}: expected 1 to 10000");
        }
        Ok(())
    }

    /// Options as given, or less of all for a quick run.
    fn effective(&self) -> Options {
        if !self.quick {
            return self.clone();
        }
        let least = |all: &[u64]| all.iter().copied().min().into_iter().collect();
        let programs = self.programs.iter().copied().filter(|count| *count <= 10).collect();
        let (periods_ms, memory_mib) = (least(&self.periods_ms), least(&self.memory_mib));
        Options { notifications: 3, periods_ms, memory_mib, programs, seconds: 3, pairs: 2, ..self.clone() }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// When masu, its library or gcc is missing, a program is not watched, or we are interrupted.
pub fn run(session: &Session, options: &Options) -> Result<()> {
    let options = &options.effective();
    options.check()?;
    let masu = session.masu()?;
    let programs = Programs::compile(&masu)?;
    session.warm_up()?;
    let _guard = Guard::turn(Mode::Madvise)?;
    let mut report = Report::new("track", "masu track: what it costs, and how soon it tells", &session.host);
    notification::measure(session, &masu, &programs, options)?.tell(&mut report);
    upkeep::measure(session, &masu, &programs, options)?.tell(&mut report);
    linked::measure(session, &programs, options)?.tell(&mut report);
    report.finish(session.save)
}
