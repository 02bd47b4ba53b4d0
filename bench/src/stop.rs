//! Ctrl-C and SIGTERM as a flag: every waiting loop checks it and returns early, and the host's settings are restored
//! on the way out.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Flag: a request to end has arrived.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

/// The error with which a benchmark ends when it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted; what was changed on this host is restored")
    }
}

impl std::error::Error for Interrupted {}

impl Stop {
    /// A flag raised by SIGINT, SIGTERM and SIGHUP.
    ///
    /// # Errors
    /// When the kernel refuses a handler.
    pub fn on_signals() -> io::Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Goes on, or ends.
    ///
    /// # Errors
    /// [`Interrupted`] once a signal has come.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Sleeps, but not on when a signal comes.
    ///
    /// # Errors
    /// [`Interrupted`] once a signal has come.
    pub fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_flag_cuts_a_sleep_short() {
        let stop = Stop::default();
        assert_eq!(stop.sleep(Duration::from_millis(1)), Ok(()));
        stop.0.store(true, Ordering::Relaxed);
        assert_eq!(stop.sleep(Duration::from_secs(3600)), Err(Interrupted));
    }
}
