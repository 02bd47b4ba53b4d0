//! KSM, switched on temporarily and at full speed: settings in `/sys/kernel/mm/ksm`, restored afterwards, also after a
//! kill (`linux::journal`).

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linux::Rooted;
use linux::journal::HostSettings;

use crate::stop::Stop;

static HOST: LazyLock<Rooted> = LazyLock::new(Rooted::host);

/// Folder of masu's undo records for settings.
const JOURNALS: &str = "/run/masu";

/// Time limit for KSM's merging.
const PATIENCE: Duration = Duration::from_secs(300);

/// Holds the changed settings until dropped; after a crash, the next masu restores them. Merged pages stay merged.
#[derive(Debug)]
pub struct Merging {
    _settings: HostSettings<'static, Rooted>,
}

impl Merging {
    /// Turns KSM on, as fast as it goes.
    ///
    /// # Errors
    /// When the kernel has no KSM, or we may not turn it.
    pub fn start() -> Result<Merging> {
        let mut settings = HostSettings::open(&*HOST, Path::new(JOURNALS))?;
        for (name, value) in [("sleep_millisecs", "1"), ("pages_to_scan", "20000"), ("run", "1")] {
            settings
                .set(&format!("{}/{name}", linux::ksm::ROOT), value)
                .context("cannot turn KSM on (this needs root)")?;
        }
        Ok(Merging { _settings: settings })
    }
}

/// Waits until `is_so`, and returns the time that this took.
///
/// # Errors
/// When KSM does not get there, or we are interrupted.
pub fn until(what: &str, stop: &Stop, mut is_so: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < PATIENCE, "KSM did not get there in {} s: {what}", PATIENCE.as_secs());
        stop.sleep(Duration::from_millis(10))?;
    }
    Ok(begun.elapsed())
}
