//! Context of every benchmark: the host, the command under test, and a way to end early.

use std::path::PathBuf;

use anyhow::{Context, Result};
use units::Bytes;

use crate::host::Host;
use crate::masu::Masu;
use crate::place::Processors;
use crate::progress::Progress;
use crate::stop::Stop;
use crate::warm_up;

/// One call of `masu-bench`.
#[derive(Debug)]
pub struct Session {
    /// Raised by Ctrl-C and SIGTERM.
    pub stop: Stop,
    /// Host of the measurements.
    pub host: Host,
    /// The processors that are ours.
    pub processors: Processors,
    /// Whether samples are saved to `docs/results/`.
    pub save: bool,
    masu: Option<PathBuf>,
    warm_up: bool,
    progress: Progress,
}

impl Session {
    /// Reads the host's properties and takes over the signals.
    ///
    /// # Errors
    /// When the kernel refuses a signal handler or does not name our processors.
    pub fn begin(masu: Option<PathBuf>, save: bool, warm_up: bool) -> Result<Session> {
        Ok(Session {
            stop: Stop::on_signals().context("cannot catch signals")?,
            host: Host::here(),
            processors: Processors::ours().context("cannot ask for our processors")?,
            save,
            masu,
            warm_up,
            progress: Progress::start(),
        })
    }

    /// The command under test.
    ///
    /// # Errors
    /// When it is not built.
    pub fn masu(&self) -> Result<Masu> {
        Masu::locate(self.masu.as_deref())
    }

    /// Touches most free memory once, unless told not to (`warm_up.rs`).
    ///
    /// # Errors
    /// When interrupted.
    pub fn warm_up(&self) -> Result<()> {
        self.warm_up_to(Bytes(u64::MAX))
    }

    /// As [`Session::warm_up`], but touches no more than `limit`.
    ///
    /// # Errors
    /// When interrupted.
    pub fn warm_up_to(&self, limit: Bytes) -> Result<()> {
        if self.warm_up {
            self.progress("warming up: touching free memory once");
            let done = warm_up::run(limit, &self.stop)?;
            let (huge, small) = (done.huge.as_secs_f64(), done.small.as_secs_f64());
            self.progress(&format!("warmed up: {}, huge pages {huge:.1} s, 4 KiB pages {small:.1} s", done.bytes));
        }
        Ok(())
    }

    /// Touches `bytes` of free memory once more, right before they are needed: a host that backs memory lazily also
    /// takes free memory back. Does nothing without warm-up.
    ///
    /// # Errors
    /// When interrupted.
    pub fn keep_warm(&self, bytes: Bytes) -> Result<()> {
        if self.warm_up {
            warm_up::run(bytes, &self.stop)?;
        }
        Ok(())
    }

    /// Begins a step of the measurement.
    pub fn progress(&self, step: &str) {
        self.progress.at(step);
    }
}
