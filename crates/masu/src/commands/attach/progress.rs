//! Callbacks of the attach loop, with progress on standard error.

use std::collections::BTreeMap;
use std::time::Duration;

use hugepages::attach::{Control, Doing};
use hugepages::target::Target;
use indicatif::{ProgressBar, ProgressStyle};
use linux::halted::Halted;
use linux::{Pid, cpu_time};
use units::Bytes;

use crate::open::halted_failure;
use crate::priority::Priority;
use crate::terminal::clock::Clock;
use crate::terminal::print;

/// Callbacks of the attach loop. Progress is shown if standard error is a terminal.
pub struct Progress {
    pub clock: Clock,
    bar: ProgressBar,
    priority: Priority,
    /// Programs that were said to be unable to run, with the cause.
    halted: BTreeMap<Pid, Halted>,
}

impl Progress {
    /// `halted`: programs that were said to be unable to run already.
    pub fn new(clock: Clock, halted: BTreeMap<Pid, Halted>) -> Progress {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise}  {msg}") {
            bar.set_style(style);
        }
        Progress { clock, bar, priority: Priority::default(), halted }
    }

    /// Removes the progress line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Control for Progress {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn wait(&mut self, time: Duration) {
        self.clock.wait(time);
    }

    fn stop(&self) -> bool {
        self.clock.is_stopped()
    }

    fn cpu_time(&self) -> Duration {
        cpu_time::of_process()
    }

    fn halted(&mut self, target: &Target) {
        let before = match target.halted() {
            Some(now) => self.halted.insert(target.pid, now.clone()),
            None => self.halted.remove(&target.pid),
        };
        if before.as_ref() == target.halted() {
            return;
        }
        self.bar.suspend(|| match target.halted() {
            Some(now) => print::failure(&halted_failure(target.pid, &target.name, now)),
            None => {
                print::note(format_args!("process {} ({}) runs again, and the work goes on", target.pid, target.name))
            }
        });
    }

    fn set_urgent(&mut self, urgent: bool) {
        self.priority.set(urgent);
    }

    fn progress(&mut self, doing: Doing, targets: &[Target]) {
        if self.bar.is_hidden() {
            return;
        }
        let seen: u64 = targets.iter().map(|target| target.verdicts().scanned).sum();
        let hot: u64 = targets.iter().map(|target| target.verdicts().hot).sum();
        let promoted: u64 = targets.iter().map(|target| target.totals.promoted).sum();
        let demoted: u64 = targets.iter().map(|target| target.totals.demoted).sum();
        let extra: Bytes = targets.iter().map(Target::extra_rss).sum();
        let doing = match doing {
            Doing::Scanning { age } => format!("scanning, {:.1} s of accesses", age.as_secs_f64()),
            Doing::Promoting { done, planned } => format!("promoting {done} of {planned}"),
            Doing::Watching => "settled, watching".to_owned(),
        };
        self.bar.set_message(format!(
            "{doing}   windows {seen}   hot {hot}   promoted {promoted}   demoted {demoted}   extra {extra}"
        ));
        self.bar.tick();
    }
}
