//! Memory need of a program, seen from outside while it runs with all of it.
//!
//! | part | contents |
//! |---|---|
//! | paged | memory that `masu run --local` pages: static arrays (.bss), the heap, anonymous mappings |
//! | rest | other charges, not droppable at once: .data, stacks, kernel memory such as page tables, mapped files |
//!
//! A budget is a part of the first. Under the kernel's swapping the cgroup's limit is the budget and the rest, so both
//! have the same memory for data.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use units::Bytes;

use super::cell::{Printed, Ran, run_to_end};
use super::task::Ready;
use crate::cgroup::MemoryCgroup;
use crate::host::amount;
use crate::session::Session;

/// Memory need of one program, and its result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Need {
    /// The most that it had of memory that can be paged.
    pub paged_bytes: Bytes,
    /// The most that it had of other memory.
    pub rest_bytes: Bytes,
    /// Checksum of its result, in all runs.
    pub checksum: String,
    /// Time of one watched run.
    pub run_s: f64,
}

const EVERY: Duration = Duration::from_millis(10);

/// Runs the program once, in a cgroup without a limit, and watches it.
///
/// # Errors
/// When it fails or takes longer than `limit`, or we are interrupted.
pub fn measure(session: &Session, ready: &Ready, limit: Duration) -> Result<Need> {
    let cgroup = MemoryCgroup::make()?;
    let mut watched = Watched::default();
    let ran = run_to_end(session, cgroup.start(&ready.program), limit, EVERY, || {
        let before = paged_by(&cgroup);
        let charged = cgroup.charged()?;
        watched.see(before, charged.usage.saturating_sub(charged.unmapped_files), paged_by(&cgroup));
        Ok(())
    })?;
    let Ran { ended, run_s } = ran.with_context(|| format!("it did not end within {} s", limit.as_secs()))?;
    ended.succeeded()?;
    ensure!(watched.paged > Bytes(0), "it ended before its memory was seen");
    let Printed { checksum, .. } = Printed::of(&ended.lines, ready.result)?;
    Ok(Need { paged_bytes: watched.paged, rest_bytes: watched.rest(), checksum, run_s })
}

/// Observations of a program up to now.
#[derive(Debug, Default)]
struct Watched {
    paged: Bytes,
    /// Memory that can be paged and all other, whenever the first stood still while the second was read.
    seen: Vec<(Bytes, Bytes)>,
}

impl Watched {
    /// `charged` was read between `before` and `after`. The lower of the two counts: a mapping that moves while it is read is seen
    /// twice.
    fn see(&mut self, before: Bytes, charged: Bytes, after: Bytes) {
        let (low, high) = (before.min(after), before.max(after));
        self.paged = self.paged.max(low);
        if low.0 >= high.scaled(0.999).0 && low > Bytes(0) {
            self.seen.push((low, charged.saturating_sub(low)));
        }
    }

    /// Peak of the other memory while the program had most of its own. At its start and at its end, data pages not yet
    /// or no longer there would be taken for other memory.
    fn rest(&self) -> Bytes {
        let full = self.paged.scaled(0.9);
        self.seen.iter().filter(|(paged, _)| *paged >= full).map(|(_, rest)| *rest).max().unwrap_or_default()
    }
}

/// Memory that can be paged, of all programs in the cgroup.
fn paged_by(cgroup: &MemoryCgroup) -> Bytes {
    let mut processes = cgroup.processes().unwrap_or_default();
    processes.sort_unstable(); // version 1 may name one more than once
    processes.dedup();
    // A process that has ended in between has none.
    let of = |pid: u32| paged_of(&fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default());
    processes.into_iter().map(of).sum()
}

/// Reads the text of `smaps`: private memory of mappings that have no file and are no stack.
fn paged_of(smaps: &str) -> Bytes {
    let mut sum = Bytes(0);
    let mut counts = false;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            // `start-end permissions offset device inode path`
            let mut words = line.split_whitespace().skip(4);
            let inode = words.next();
            let path = words.next().unwrap_or_default();
            counts = inode == Some("0") && (path.is_empty() || path == "[heap]" || path.starts_with("[anon"));
        } else if counts && first == "Anonymous:" {
            sum += amount(line, "Anonymous").unwrap_or_default();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_paged_is_counted() {
        let mapping =
            |head: &str, kib: u32| format!("{head}\nSize: 9 kB\nRss: 7 kB\nAnonymous: {kib} kB\nVmFlags: rd\n");
        let smaps = [
            mapping("55d0-55d1 r-xp 00001000 fd:00 42                       /usr/bin/a b", 1),
            mapping("55d1-55d2 rw-p 00002000 fd:00 42                       /usr/bin/a b", 2),
            mapping("55d2-56d2 rw-p 00000000 00:00 0 ", 4),
            mapping("56d2-57d2 rw-p 00000000 00:00 0                        [heap]", 8),
            mapping("7f00-7f01 rw-p 00000000 00:00 0                        [anon: numpy]", 16),
            mapping("7ffd-7ffe rw-p 00000000 00:00 0                        [stack]", 32),
            mapping("7fff-8000 r-xp 00000000 00:00 0                        [vdso]", 64),
        ];
        assert_eq!(paged_of(&smaps.concat()), Bytes::kib(4 + 8 + 16));
        assert_eq!(paged_of(""), Bytes(0));
    }

    #[test]
    fn a_program_that_grows_or_goes_meanwhile_is_not_taken_for_other_memory() {
        let mut watched = Watched::default();
        watched.see(Bytes::mib(10), Bytes::mib(30), Bytes::mib(30)); // it grew
        watched.see(Bytes::mib(50), Bytes::mib(55), Bytes::mib(50)); // half-way
        watched.see(Bytes::mib(100), Bytes::mib(102), Bytes::mib(100));
        watched.see(Bytes::mib(100), Bytes::mib(103), Bytes::mib(100));
        watched.see(Bytes::mib(100), Bytes::mib(101), Bytes(0)); // it ended
        watched.see(Bytes::mib(190), Bytes::mib(103), Bytes::mib(100)); // a mapping moved, and was seen twice
        assert_eq!((watched.paged, watched.rest()), (Bytes::mib(100), Bytes::mib(3)));
    }
}
