//! Environment of the attach loop in tests: a target process that touches the pages of the test's choice before every
//! scan, so that hotness does not depend on speed.

use std::time::{Duration, Instant};

use access::walk::WalkObserver;
use hugepages::attach::{Control, Doing, Settings, Until};
use hugepages::policy;
use hugepages::program::RunningProgram;
use hugepages::rate_limiter;
use hugepages::target::Target;
use linux::Rooted;
use units::Fraction;

use super::walker;
use crate::host::Host;
use crate::target_process::{Part, TargetError, TargetProcess};

/// A run takes milliseconds; a run of this length has failed, and is stopped.
const TIME_LIMIT: Duration = Duration::from_secs(150);

/// Context of a run. Before every scan `script` is called with the number of waits up to then; the run is stopped when
/// `until` returns true.
pub(super) struct ScriptedDriver<P, U> {
    start: Instant,
    waits: u32,
    stopped: bool,
    failure: Option<TargetError>,
    script: P,
    until: U,
}

impl<P: FnMut(u32) -> Result<(), TargetError>, U: FnMut(&[Target]) -> bool> ScriptedDriver<P, U> {
    pub(super) fn new(script: P, until: U) -> ScriptedDriver<P, U> {
        ScriptedDriver { start: Instant::now(), waits: 0, stopped: false, failure: None, script, until }
    }

    /// Runs the loop, and fails when the script failed or nothing came of it in time.
    pub(super) fn attach(mut self, targets: &mut Vec<Target>, s: Settings) -> Result<(), libtest_mimic::Failed> {
        hugepages::attach::attach(targets, s, &mut self);
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        if self.start.elapsed() >= TIME_LIMIT {
            let verdicts: Vec<_> = targets.iter().map(|target| (target.verdicts(), target.refused())).collect();
            return Err(format!("not done within {} s: {verdicts:?}", TIME_LIMIT.as_secs()).into());
        }
        Ok(())
    }
}

impl<P: FnMut(u32) -> Result<(), TargetError>, U: FnMut(&[Target]) -> bool> Control for ScriptedDriver<P, U> {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&mut self, time: Duration) {
        self.waits += 1;
        if let Err(failure) = (self.script)(self.waits) {
            self.failure.get_or_insert(failure);
            self.stopped = true;
        }
        std::thread::sleep(time.min(Duration::from_millis(5)));
    }

    fn stop(&self) -> bool {
        self.stopped || self.start.elapsed() >= TIME_LIMIT
    }

    fn cpu_time(&self) -> Duration {
        Duration::ZERO
    }

    fn set_urgent(&mut self, _: bool) {}

    fn progress(&mut self, _: Doing, targets: &[Target]) {
        self.stopped |= (self.until)(targets);
    }
}

/// Settings as the paper has them: no memory to be added, rounds short.
pub(super) fn settings(until: Until) -> Settings {
    let short = Duration::from_millis(20);
    Settings { rate: rate_limiter::MEASURED, until, dry_run: false, round_min: (2 * short, short) }
}

/// The paper's policy with any amount of memory to be added.
pub(super) fn generous() -> policy::Settings {
    policy::Settings { max_extra_rss: Fraction::clamped(1.0), ..policy::PAPER }
}

/// The target process as the loop sees it, observed by the walk. No memory is to be added.
pub(super) fn target(host: &Host, process: &TargetProcess) -> Result<Target, libtest_mimic::Failed> {
    target_with(host, process, policy::PAPER)
}

/// The same with another policy.
pub(super) fn target_with(
    host: &Host,
    process: &TargetProcess,
    policy: policy::Settings,
) -> Result<Target, libtest_mimic::Failed> {
    let files: Rooted = host.files().clone();
    let program = RunningProgram::open(files.clone(), process.pid())?;
    let observer = WalkObserver::new(walker()?, files, process.pid())?;
    Ok(Target::new(process.pid(), "target".to_owned(), Box::new(program), Box::new(observer), policy)?)
}

/// A program that uses these parts of its memory, and that the processor has not helped to remember where they are.
pub(super) fn use_parts(process: &mut TargetProcess, parts: &[Part]) -> Result<(), TargetError> {
    process.forget_translations()?;
    parts.iter().try_for_each(|part| process.read(*part))
}
