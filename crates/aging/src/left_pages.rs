//! Pages of streams that are left in the page cache, with reason and owner; and the reasons that a process is no stream.
//!
//! No I/O, no clock, no randomness.

use std::fmt;

use linux::Untrusted;
use serde::{Deserialize, Serialize};
use units::Bytes;

/// Reason that a process is no stream any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It inserts pages for the third time.
    ReadsAgain,
    /// Its insertions are not in order.
    Scattered,
}

/// Reason that pages of a stream are left in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A process maps them, or holds them in another way.
    Mapped,
    /// The stream maps them itself.
    MappedByStream,
    /// They could not be written to their disk in time.
    Unwritten,
    /// Their file cannot be opened, or its file system keeps them.
    Unreachable,
    /// They belong to a block device itself, which cannot be opened.
    BlockDevice,
    /// They hold inodes, directories and maps of a file system.
    Metadata,
    /// The process reads them again and again.
    ReadAgain,
    /// Inserted faster than masu read the insertions.
    Missed,
}

/// Pages of streams left in the page cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Left {
    /// Reason.
    pub why: Reason,
    /// Amount.
    pub bytes: Bytes,
    /// Process that maps or reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Its command name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Untrusted>,
    /// Device of their files: `8:1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Left { why, bytes, pid, name, device } = self;
        let whose = match (pid, name) {
            (Some(pid), Some(name)) => format!("process {pid} ({name})"),
            (Some(pid), None) => format!("process {pid}"),
            (None, _) => "other processes".to_owned(),
        };
        let device = device.as_ref().map(|device| format!(" of device {device}")).unwrap_or_default();
        match why {
            Reason::Mapped => write!(f, "{bytes} mapped or in use by {whose}"),
            Reason::MappedByStream => write!(f, "{bytes} that the stream itself maps: {whose}"),
            Reason::Unwritten => write!(f, "{bytes} not yet written to disk"),
            Reason::Unreachable => {
                write!(f, "{bytes} in files{device} that masu cannot open or drop (deleted ones included)")
            }
            Reason::BlockDevice => write!(f, "{bytes} of the block device itself{device}"),
            Reason::Metadata => write!(f, "{bytes} of file-system metadata{device}"),
            Reason::ReadAgain => write!(f, "{bytes} that {whose} reads again and again"),
            Reason::Missed => write!(f, "{bytes} inserted faster than masu read the insertions"),
        }
    }
}
