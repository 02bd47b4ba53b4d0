//! Environment of the attach loop in tests: a target process that touches the pages of the test's choice before every
//! scan, so that hotness does not depend on speed.

use std::time::{Duration, Instant};

use access::walk::WalkSource;
use hugepages::attach::{Control, Doing, Settings, Until};
use hugepages::policy;
use hugepages::program::RunningProgram;
use hugepages::rate_limiter;
use hugepages::target::Target;
use linux::Rooted;
use units::Fraction;

use super::walker;
use crate::live::Live;
use crate::toy::{Part, ToyError, ToyProcess};

/// A run takes milliseconds; a run of this length has failed, and is stopped.
const PATIENCE: Duration = Duration::from_secs(150);

/// Context of a run. Before every scan `play` is called with the number of waits up to then; the run is stopped when
/// `until` returns true.
pub(super) struct Stage<P, U> {
    start: Instant,
    waits: u32,
    stopped: bool,
    failure: Option<ToyError>,
    play: P,
    until: U,
}

impl<P: FnMut(u32) -> Result<(), ToyError>, U: FnMut(&[Target]) -> bool> Stage<P, U> {
    pub(super) fn new(play: P, until: U) -> Stage<P, U> {
        Stage { start: Instant::now(), waits: 0, stopped: false, failure: None, play, until }
    }

    /// Runs the loop, and fails when the play failed or nothing came of it in time.
    pub(super) fn attach(mut self, targets: &mut Vec<Target>, s: Settings) -> Result<(), libtest_mimic::Failed> {
        hugepages::attach::attach(targets, s, &mut self);
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        if self.start.elapsed() >= PATIENCE {
            let verdicts: Vec<_> = targets.iter().map(|target| (target.plan.verdicts, target.refused())).collect();
            return Err(format!("not done within {} s: {verdicts:?}", PATIENCE.as_secs()).into());
        }
        Ok(())
    }
}

impl<P: FnMut(u32) -> Result<(), ToyError>, U: FnMut(&[Target]) -> bool> Control for Stage<P, U> {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&mut self, time: Duration) {
        self.waits += 1;
        if let Err(failure) = (self.play)(self.waits) {
            self.failure.get_or_insert(failure);
            self.stopped = true;
        }
        std::thread::sleep(time.min(Duration::from_millis(5)));
    }

    fn stop(&self) -> bool {
        self.stopped || self.start.elapsed() >= PATIENCE
    }

    fn cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    fn in_haste(&mut self, _: bool) {}

    fn progress(&mut self, _: Doing, targets: &[Target]) {
        self.stopped |= (self.until)(targets);
    }
}

/// Settings as the paper has them: no memory to be added, rounds short.
pub(super) fn settings(until: Until) -> Settings {
    let short = Duration::from_millis(20);
    Settings {
        policy: policy::PAPER,
        pace: rate_limiter::MEASURED,
        until,
        dry_run: false,
        round_min: (2 * short, short),
    }
}

/// The same with any amount of memory to be added.
pub(super) fn generous(until: Until) -> Settings {
    let s = settings(until);
    Settings { policy: policy::Settings { max_extra_rss: Fraction::clamped(1.0), ..s.policy }, ..s }
}

/// The target process as the loop sees it, observed by the walk.
pub(super) fn target(live: &Live, toy: &ToyProcess) -> Result<Target, libtest_mimic::Failed> {
    let files: Rooted = live.files().clone();
    let program = RunningProgram::open(files.clone(), toy.pid())?;
    let source = WalkSource::new(walker()?, files, toy.pid())?;
    Ok(Target::new(toy.pid(), "toy".to_owned(), Box::new(program), Box::new(source))?)
}

/// A program that uses these parts of its memory, and that the processor has not helped to remember where they are.
pub(super) fn use_parts(toy: &mut ToyProcess, parts: &[Part]) -> Result<(), ToyError> {
    toy.forget_translations()?;
    parts.iter().try_for_each(|part| toy.read(*part))
}
