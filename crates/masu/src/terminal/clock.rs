//! Clock of a command, and the signals that stop and pause it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linux::signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::HOST;

/// Stop flag, set by Ctrl-C and SIGTERM; a second signal ends the process at once.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn on_signals() -> std::io::Result<Stop> {
        Stop::on(&[signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP])
    }

    /// Without SIGHUP, which means to a service that its configuration has changed.
    pub fn on_signals_but_hangup() -> std::io::Result<Stop> {
        Stop::on(&[signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])
    }

    fn on(signals: &[i32]) -> std::io::Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        for &signal in signals {
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
    pub fn stop(&self) {
        self.0.store(false, Ordering::Relaxed);
        signals::stop_as_the_terminal_asks();
    }
}

/// Time since the start of a command, and waits that a signal or the end of a program cuts short.
pub struct Clock {
    start: Instant,
    stop: Stop,
    programs: Vec<OwnedFd>,
}

/// Longest wait between two checks of the stop flag: a signal between the check and the wait is noticed then.
const SLICE: Duration = Duration::from_millis(250);

impl Clock {
    /// A clock that starts now. A wait ends once for each of these programs.
    pub fn new(stop: Stop, programs: Vec<OwnedFd>) -> Clock {
        Clock { start: Instant::now(), stop, programs }
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// True once asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }

    /// Waits for `time`; returns early when asked to stop, and once for each program that ends.
    pub fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(SLICE);
            if left.is_zero() || self.is_stopped() || self.some_ended(left) {
                return;
            }
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ended_ends_one_wait_and_no_other() {
        let mut short = std::process::Command::new("true").spawn().unwrap();
        let mut long = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = |child: &std::process::Child| linux::Pid(i32::try_from(child.id()).unwrap()).open().unwrap();
        let stop = Stop(Arc::new(AtomicBool::new(false)));
        let mut clock = Clock::new(stop, vec![pidfd(&short), pidfd(&long)]);
        clock.wait(Duration::from_secs(60));
        assert_eq!(clock.programs.len(), 1, "the wait ended because the short program did");
        let begun = Instant::now();
        clock.wait(Duration::from_millis(300));
        assert!(begun.elapsed() >= Duration::from_millis(300), "the next wait is a whole one");
        long.kill().unwrap();
        long.wait().unwrap();
        short.wait().unwrap();
    }
}
