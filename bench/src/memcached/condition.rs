//! Conditions of a run: the memcached binary, the host's setting, and its helper (masu or none).

use serde::Serialize;

use crate::thp::Mode;

/// A condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// memcached on 4 KiB pages
    Default,
    /// THP=always, without waiting for khugepaged
    Always,
    /// THP=always, after khugepaged has scanned all of the memory
    Collapsed,
    /// memcached's own option for huge pages, -L, under THP=madvise
    LargePages,
    /// Promotion alone: masu attach
    Promote,
    /// memcached and masu together: promotion and compaction
    Hps,
}

impl Condition {
    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Condition::Default => "Default",
            Condition::Always => "THP=always",
            Condition::Collapsed => "THP=always, collapsed",
            Condition::LargePages => "memcached -L",
            Condition::Promote => "promotion alone",
            Condition::Hps => "HPS",
        }
    }

    /// The host's setting while it runs.
    pub const fn mode(self) -> Mode {
        match self {
            Condition::Always | Condition::Collapsed => Mode::Always,
            _ => Mode::Madvise,
        }
    }

    /// Whether this is the memcached that was built to cooperate.
    pub const fn is_patched(self) -> bool {
        matches!(self, Condition::Hps)
    }
}
