//! Waiting, stopping and progress: what the loop in `hugepages` leaves to whoever runs it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugepages::attach::{Control, Doing};
use hugepages::target::Target;
use indicatif::{ProgressBar, ProgressStyle};
use quantities::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Set by Ctrl-C and SIGTERM; a second one ends the process at once.
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

/// The loop's surroundings on a real host.
pub struct Terminal {
    start: Instant,
    stop: Stop,
    programs: Vec<OwnedFd>,
    bar: ProgressBar,
    in_haste: bool,
}

/// The longest time without a look at the stop flag: a signal that comes between the look and the wait is seen then.
const SLICE: Duration = Duration::from_millis(250);

impl Terminal {
    /// Progress goes to standard error, and only if that is a terminal.
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

impl Control for Terminal {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let mut running: Vec<PollFd<'_>> = self.programs.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(SLICE);
            if left.is_zero() || self.stop.is_set() {
                return;
            }
            let timeout = Timespec::try_from(left).ok();
            // An interrupted wait is looked into above; any other failure leaves a shorter wait, no harm.
            if let Ok(ended) = poll(&mut running, timeout.as_ref())
                && ended > 0
            {
                running.retain(|program| program.revents().is_empty());
                return;
            }
        }
    }

    fn stop(&self) -> bool {
        self.stop.is_set()
    }

    fn cpu_time(&self) -> Duration {
        own_cpu_time()
    }

    /// While a window is being promoted the program may wait for us, so we must not wait for others: those calls are
    /// short, and more than half of the time is pause. Looks and clears are longer and wait their turn.
    fn in_haste(&mut self, haste: bool) {
        const STEP: i32 = 10;
        // Without the privilege it goes on as it is.
        if haste && !self.in_haste {
            self.in_haste = rustix::process::nice(-STEP).is_ok();
        } else if !haste && self.in_haste {
            self.in_haste = rustix::process::nice(STEP).is_err();
        }
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

/// Processor time of this process.
pub fn own_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
