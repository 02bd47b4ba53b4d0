//! Pages to drop, with their history. Pure.
//!
//! No I/O, no clock, no randomness.

use std::ops::Range;
use std::time::Duration;

use access::insertions::FileId;
use linux::Pid;

/// Process that inserts pages.
pub type Process = Pid;

/// Pages to drop now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// File.
    pub file: FileId,
    /// Pages of the file.
    pub pages: Range<u64>,
    /// Process that has inserted them.
    pub process: Process,
    /// The process has read them in order and passed them: they may leave its mapping, too.
    pub may_page_out: bool,
    /// It has waited for a list of the process's mappings that is newer than it.
    pub has_waited: bool,
    /// Number of earlier attempts.
    pub attempts: u32,
    /// Number of attempts that found them dirty.
    pub writes: u32,
    /// Time of their own retry, if they are requested early because of neighbours. A failure of an early request does
    /// not count.
    pub early: Option<Duration>,
}

impl Due {
    /// Pages without an earlier attempt.
    pub fn first(file: FileId, pages: Range<u64>, process: Process) -> Due {
        Due { file, pages, process, may_page_out: false, has_waited: false, attempts: 0, writes: 0, early: None }
    }

    /// Number of pages.
    pub fn count(&self) -> u64 {
        self.pages.end.saturating_sub(self.pages.start)
    }
}
