//! The host's settings for transparent huge pages, changed temporarily (`setting.rs`).

use std::path::Path;

use anyhow::{Context, Result};

use crate::setting::{Setting, chosen, read};

/// Folder of the kernel's settings for transparent huge pages.
pub const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// A setting of `enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No huge pages, whatever a program asks for.
    Never,
    /// Huge pages for every mapping.
    Always,
    /// Huge pages only where a program asks for them.
    Madvise,
}

impl Mode {
    const fn word(self) -> &'static str {
        match self {
            Mode::Never => "never",
            Mode::Always => "always",
            Mode::Madvise => "madvise",
        }
    }
}

/// `enabled`, changed until dropped.
#[derive(Debug)]
pub struct Guard {
    _setting: Setting,
}

impl Guard {
    /// Sets `enabled` to `mode`.
    ///
    /// # Errors
    /// When the kernel has no such setting, or we may not change it.
    pub fn turn(mode: Mode) -> Result<Guard> {
        Ok(Guard { _setting: Setting::choose(&Path::new(FOLDER).join("enabled"), mode.word())? })
    }
}

/// khugepaged at full speed, until dropped. At its usual settings it collapses 16 MiB in ten seconds; here the same
/// pages are collapsed at once. Its choice of pages is unchanged.
#[derive(Debug)]
pub struct Hurry {
    _settings: [Setting; 2],
}

impl Hurry {
    /// Changes the number of pages scanned in one go, and the sleep between scans.
    ///
    /// # Errors
    /// When the kernel has no khugepaged, or we may not change its settings.
    pub fn begin() -> Result<Hurry> {
        let set = |name: &str, value| Setting::set(&Path::new(FOLDER).join("khugepaged").join(name), value);
        Ok(Hurry { _settings: [set("pages_to_scan", "65536")?, set("scan_sleep_millisecs", "10")?] })
    }

    /// Number of khugepaged's full scans since the host started.
    ///
    /// # Errors
    /// When it does not count.
    pub fn full_scans() -> Result<u64> {
        let file = Path::new(FOLDER).join("khugepaged/full_scans");
        read(&file)?.trim().parse().with_context(|| format!("{} is not a number", file.display()))
    }
}

/// The setting now in force, for example `enabled` or `defrag`.
///
/// # Errors
/// When it cannot be read, or none is marked.
pub fn setting(name: &str) -> Result<String> {
    let file = Path::new(FOLDER).join(name);
    chosen(&read(&file)?).map(str::to_owned).with_context(|| format!("{}: no setting is marked", file.display()))
}
