//! Waiting, stopping and progress: the callbacks of the loop in `hugepages`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugepages::attach::{Control, Doing};
use hugepages::target::Target;
use indicatif::{ProgressBar, ProgressStyle};
use linux::{cpu_time, signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use units::Bytes;

use crate::HOST;

/// Stop flag, set by Ctrl-C and SIGTERM; a second signal ends the process at once.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn on_signals() -> std::io::Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(signal, 2, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Stop(flag))
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Pause flag, set by Ctrl-Z: masu releases memory that others may need before it stops.
#[derive(Clone, Debug)]
pub struct Pause(Arc<AtomicBool>);

impl Pause {
    /// The flag; never set where the parent process ignores Ctrl-Z.
    pub fn on_signal() -> std::io::Result<Pause> {
        let flag = Arc::new(AtomicBool::new(false));
        if !signals::ignored(&*HOST).is_ok_and(|ignored| ignored.contains(signal_hook::consts::SIGTSTP)) {
            signal_hook::flag::register(signal_hook::consts::SIGTSTP, Arc::clone(&flag))?;
        }
        Ok(Pause(flag))
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Stops this process until `fg` or `bg` continues it; does nothing where no shell could.
    pub fn stand_still(&self) {
        self.0.store(false, Ordering::Relaxed);
        signals::stop_as_the_terminal_asks();
    }
}

/// The loop's callbacks on a real host.
pub struct Terminal {
    start: Instant,
    stop: Stop,
    programs: Vec<OwnedFd>,
    bar: ProgressBar,
    in_haste: bool,
}

/// Longest wait between two checks of the stop flag: a signal between the check and the wait is noticed then.
const SLICE: Duration = Duration::from_millis(250);

impl Terminal {
    /// Callbacks with progress on standard error, if that is a terminal.
    pub fn new(stop: Stop, programs: Vec<OwnedFd>) -> Terminal {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise}  {msg}") {
            bar.set_style(style);
        }
        Terminal { start: Instant::now(), stop, programs, bar, in_haste: false }
    }

    /// Removes the progress line.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Terminal {
    /// Waits up to `time` for a program to end, and stops watching the programs that have ended.
    fn some_ended(&mut self, time: Duration) -> bool {
        let mut running: Vec<PollFd<'_>> = self.programs.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // An interrupted wait is left to the caller; any other failure shortens the wait, which does no harm.
        if !poll(&mut running, Timespec::try_from(time).ok().as_ref()).is_ok_and(|ended| ended > 0) {
            return false;
        }
        let mut ended = running.iter().map(|program| !program.revents().is_empty()).collect::<Vec<_>>().into_iter();
        self.programs.retain(|_| !ended.next().unwrap_or(false));
        true
    }
}

impl Control for Terminal {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(SLICE);
            if left.is_zero() || self.stop.is_set() || self.some_ended(left) {
                return;
            }
        }
    }

    fn stop(&self) -> bool {
        self.stop.is_set()
    }

    fn cpu_time(&self) -> Duration {
        cpu_time::of_process()
    }

    fn in_haste(&mut self, haste: bool) {
        change_haste(&mut self.in_haste, haste);
    }

    fn progress(&mut self, doing: Doing, targets: &[Target]) {
        if self.bar.is_hidden() {
            return;
        }
        let seen: u64 = targets.iter().map(|target| target.plan.verdicts.seen).sum();
        let hot: u64 = targets.iter().map(|target| target.plan.verdicts.hot).sum();
        let promoted: u64 = targets.iter().map(|target| target.promoted).sum();
        let demoted: u64 = targets.iter().map(|target| target.demoted).sum();
        let extra: Bytes = targets.iter().map(Target::extra_rss).sum();
        let doing = match doing {
            Doing::Looking { age } => format!("looking, {:.1} s of accesses", age.as_secs_f64()),
            Doing::Promoting { done, planned } => format!("promoting {done} of {planned}"),
            Doing::Watching => "settled, watching".to_owned(),
        };
        self.bar.set_message(format!(
            "{doing}   windows {seen}   hot {hot}   promoted {promoted}   demoted {demoted}   extra {extra}"
        ));
        self.bar.tick();
    }
}

/// Raises or restores the priority of this thread. While a window is promoted the program may wait for masu, and masu
/// should not wait for others: those calls are short, with pauses of more than half of the time between them. Scans and
/// clears take longer and keep the usual priority.
pub fn change_haste(now: &mut bool, haste: bool) {
    const STEP: i32 = 10;
    // Without the privilege the priority stays.
    if haste && !*now {
        *now = rustix::process::nice(-STEP).is_ok();
    } else if !haste && *now {
        *now = rustix::process::nice(STEP).is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ended_ends_one_wait_and_no_other() {
        let mut short = std::process::Command::new("true").spawn().unwrap();
        let mut long = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = |child: &std::process::Child| linux::Pid(i32::try_from(child.id()).unwrap()).open().unwrap();
        let stop = Stop(Arc::new(AtomicBool::new(false)));
        let mut terminal = Terminal::new(stop, vec![pidfd(&short), pidfd(&long)]);
        terminal.wait(Duration::from_secs(60));
        assert_eq!(terminal.programs.len(), 1, "the wait ended because the short program did");
        let begun = Instant::now();
        terminal.wait(Duration::from_millis(300));
        assert!(begun.elapsed() >= Duration::from_millis(300), "the next wait is a whole one");
        long.kill().unwrap();
        long.wait().unwrap();
        short.wait().unwrap();
    }
}
