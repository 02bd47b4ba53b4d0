//! Mapped files that are not mlocked, with cause, amount and largest owner.
//!
//! An attacker controls the number of files and their fate. Therefore a cause has one line for all files, and the line
//! is repeated only after a minute, then after twice that, up to an hour.
//!
//! No I/O, no clock, no randomness.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rustix::io::Errno;
use serde::Serialize;
use units::Bytes;

use crate::shares::{Name, Owner, Owners};

/// Cause that something is not mlocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its file system may depend on a server that does not answer.
    Served,
    /// Its mount is in no table that was read.
    Unknown,
    /// Its owners have all files that masu can hold for them.
    Files,
    /// Its owners have their share of the budget, or of the memory that may be mlocked.
    Memory,
    /// Its process has more mappings than masu reads for its owner in one pass.
    Mappings,
    /// The kernel did not return the mappings of its process in time.
    Unanswered,
    /// The kernel's error number.
    Kernel(i32),
    /// Other errors.
    Other,
}

impl Cause {
    /// Cause of a kernel error.
    pub fn of(error: &linux::Error) -> Cause {
        error.errno().map_or(Cause::Other, |errno| Cause::Kernel(errno.raw_os_error()))
    }

    /// Can the next try succeed?
    pub fn may_pass(self) -> bool {
        match self {
            Cause::Served => false,
            Cause::Kernel(errno) => !matches!(Errno::from_raw_os_error(errno), Errno::PERM | Errno::ACCESS),
            Cause::Unknown | Cause::Files | Cause::Memory | Cause::Mappings | Cause::Unanswered | Cause::Other => true,
        }
    }

    /// Is a resource missing that all files need (descriptors)?
    pub fn is_of_all(self) -> bool {
        let is_one = |errno| matches!(Errno::from_raw_os_error(errno), Errno::MFILE | Errno::NFILE);
        matches!(self, Cause::Kernel(errno) if is_one(errno))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Served => f.write_str("passed over, on a file system whose server may not answer"),
            Cause::Unknown => f.write_str("its mount is in no mount table that masu can read; retried"),
            Cause::Files => f.write_str("its share of the files that masu can hold is used up"),
            Cause::Memory => f.write_str("its share of the memory that may be mlocked is used up"),
            Cause::Mappings => f.write_str("its share of the mappings that masu reads in one pass is used up"),
            Cause::Unanswered => f.write_str("the kernel did not return the mappings of its process in time; retried"),
            Cause::Kernel(errno) => {
                write!(f, "the kernel refused: {}", linux::describe(Errno::from_raw_os_error(*errno)))?;
                if self.may_pass() { f.write_str("; retried") } else { Ok(()) }
            }
            Cause::Other => f.write_str("unknown error; retried"),
        }
    }
}

/// Files left out for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Cause, for people.
    pub why: String,
    /// Number of files, or of processes whose mappings were not read.
    pub count: u64,
    /// Bytes of them that are mapped. With memory as the cause: bytes in memory and not mlocked.
    pub bytes: Bytes,
    /// Owner of the largest part.
    pub owner: Name,
    /// Part of `count` that belongs to `owner`.
    pub owner_count: u64,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOut { why, count, bytes, owner, owner_count } = self;
        write!(f, "left out {count}, {bytes} mapped, {owner_count} of {owner}: {why}")
    }
}

/// Everything left out in one pass.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<Cause, BTreeMap<Owner, (u64, Bytes)>>);

impl Tally {
    /// Adds a file, or a process, of this owner.
    pub fn add(&mut self, cause: Cause, owner: Owner, bytes: Bytes) {
        let (count, all) = self.0.entry(cause).or_default().entry(owner).or_default();
        (*count, *all) = (*count + 1, *all + bytes);
    }

    /// Adds another tally.
    pub fn add_all(&mut self, other: Tally) {
        for (cause, owners) in other.0 {
            let ours = self.0.entry(cause).or_default();
            for (owner, (count, bytes)) in owners {
                let (all, sum) = ours.entry(owner).or_default();
                (*all, *sum) = (*all + count, *sum + bytes);
            }
        }
    }

    fn causes(self, owners: &Owners) -> impl Iterator<Item = (Cause, LeftOut)> + '_ {
        self.0.into_iter().filter_map(|(cause, of)| {
            let (owner, (owner_count, _)) = of.iter().max_by_key(|(_, (count, bytes))| (*count, *bytes))?;
            let (count, bytes) =
                (of.values().map(|(count, _)| count).sum(), of.values().map(|(_, bytes)| *bytes).sum());
            let (owner, owner_count) = (owners.name(*owner), *owner_count);
            Some((cause, LeftOut { why: cause.to_string(), count, bytes, owner, owner_count }))
        })
    }
}

/// Reported causes, each with the time of its last line.
#[derive(Debug, Default)]
pub struct Reports(BTreeMap<Cause, (Duration, Duration)>);

impl Reports {
    /// Lines about this pass.
    pub fn of(&mut self, tally: Tally, owners: &Owners, now: Duration) -> Vec<LeftOut> {
        const FIRST: Duration = Duration::from_secs(60);
        const LAST: Duration = Duration::from_secs(3600);
        // A cause that comes and goes keeps its delay for the length of the delay.
        self.0.retain(|_, (at, wait)| now < *at + *wait + LAST);
        let mut lines = Vec::new();
        for (cause, left_out) in tally.causes(owners) {
            let before = self.0.get(&cause).copied();
            if before.is_some_and(|(at, wait)| now < at + wait) {
                continue;
            }
            let wait = before.map_or(FIRST, |(_, wait)| (wait * 2).min(LAST));
            self.0.insert(cause, (now, wait));
            lines.push(left_out);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn tally(owners: &mut Owners, files: &[(u32, u64)]) -> Tally {
        let mut tally = Tally::default();
        for (user, bytes) in files {
            tally.add(Cause::Files, owners.of("/", *user), Bytes(*bytes));
        }
        tally
    }

    #[test]
    fn a_cause_is_reported_with_its_largest_owner() {
        let mut owners = Owners::default();
        let tally = tally(&mut owners, &[(4001, 4096), (4001, 4096), (4002, 1 << 20)]);
        let lines = Reports::default().of(tally, &owners, Duration::ZERO);
        assert_eq!(
            lines[0].to_string(),
            "left out 3, 1.0 MiB mapped, 2 of user 4001 in control group /: its share of the files that masu can hold is used up"
        );
    }

    #[test]
    fn a_cause_is_reported_at_first_then_after_a_minute_and_then_ever_more_rarely() {
        let (mut owners, mut lines) = (Owners::default(), Reports::default());
        let minutes: Vec<u32> = (0..600)
            .filter(|minute| {
                // The cause comes and goes.
                let files: &[(u32, u64)] = if minute % 2 == 0 { &[(1, 1)] } else { &[] };
                !lines.of(tally(&mut owners, files), &owners, MINUTE * *minute).is_empty()
            })
            .collect();
        assert_eq!(minutes[..4], [0, 2, 4, 8]);
        assert!(minutes.len() <= 6 + 10, "{minutes:?}");
        assert!(minutes.windows(2).skip(8).all(|pair| pair[1] - pair[0] == 60), "{minutes:?}");
    }

    #[test]
    fn a_passing_cause_is_retried_and_a_lasting_one_is_not() {
        let of = |errno: Errno| Cause::Kernel(errno.raw_os_error());
        assert!(of(Errno::MFILE).is_of_all() && of(Errno::NFILE).is_of_all());
        assert!(!of(Errno::NOMEM).is_of_all(), "a large file may meet a limit that others do not");
        assert!([Errno::NOMEM, Errno::AGAIN, Errno::MFILE].into_iter().all(|errno| of(errno).may_pass()));
        assert!(of(Errno::FAULT).may_pass(), "a file that was cut short grows again");
        assert!(Cause::Unknown.may_pass(), "the process may have been in a chroot, and the next one is not");
        assert!(!of(Errno::PERM).may_pass() && !Cause::Served.may_pass());
        assert_eq!(of(Errno::MFILE).to_string(), "the kernel refused: too many open files (EMFILE); retried");
    }
}
