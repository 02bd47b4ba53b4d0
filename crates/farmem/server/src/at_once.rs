//! Programs that run at the same time, each with local memory of its own: their sum.

use std::collections::BTreeMap;

use linux::cgroup::{self, Limit};
use linux::meminfo::meminfo;
use linux::{Pid, Rooted};
use serde::{Deserialize, Serialize};
use units::Bytes;

use crate::copies::Held;
use crate::unpaged;

/// Programs at the same time.
#[derive(Debug, Default)]
pub struct AtOnce {
    /// Programs by their layer.
    now: BTreeMap<u32, One>,
    peak: Peak,
    is_said: bool,
    is_crowd_said: bool,
}

/// One program.
#[derive(Clone, Copy, Debug)]
pub struct One {
    /// Process, if masu sees it.
    pub process: Option<Pid>,
    /// Local memory that it may have.
    pub local: Bytes,
    /// Memory that it has.
    pub resident: Bytes,
}

/// Peaks of the sums over all programs that run at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Peak {
    /// Number of programs.
    pub programs: u64,
    /// Local memory that they might have together.
    pub local_bytes: Bytes,
    /// Paged memory that they had together in RAM, by readings ten times a second.
    pub resident_bytes: Bytes,
    /// Forked copies, which are not paged until they call exec.
    #[serde(default)]
    pub copies: u64,
    /// Private memory that they had together in RAM.
    #[serde(default)]
    pub copies_bytes: Bytes,
}

/// Reason for a line while the programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// Several programs, for the first time.
    Several(Peak),
    /// More local memory together than there is memory for them.
    TooMuch(Peak),
}

/// Memory that the programs may have together: the limit of masu's group, or the machine's memory.
pub fn room() -> Option<Bytes> {
    let total = meminfo(&Rooted::host()).ok().map(|memory| memory.total);
    let group = cgroup::memory(&Rooted::host(), Pid::own()).ok().flatten();
    let limit = group.and_then(|group| match group.limit {
        Limit::Bytes(limit) => Some(limit),
        Limit::Unlimited => None,
    });
    total.into_iter().chain(limit).min_by_key(|bytes| bytes.0)
}

impl Peak {
    /// Line about the forked copies; `None` if they had little memory.
    pub fn text_of_copies(self) -> Option<String> {
        (self.copies_bytes >= unpaged::PRIVATE_MIN).then(|| {
            format!(
                "a forked copy is not paged, and not limited by --local, until it calls exec: at most {} at once, with at \
                 most {} in memory",
                self.copies, self.copies_bytes
            )
        })
    }
}

impl Crowd {
    /// The line.
    pub fn text(self) -> String {
        let (Crowd::Several(peak) | Crowd::TooMuch(peak)) = self;
        let Peak { programs, local_bytes, .. } = peak;
        let line = format!("{programs} programs at once may have {local_bytes}: --local holds for each of them");
        match self {
            Crowd::Several(_) => line,
            Crowd::TooMuch(_) => {
                format!("{line}, and there is not as much memory for all; less --local, or fewer at a time")
            }
        }
    }
}

impl AtOnce {
    /// Takes the figures of a program; `room` is the memory that all may have. Returns what is to be said, once each.
    ///
    /// A program's end is noticed late, when the next one may run already: `has_ended` tells, asked when one begins.
    pub fn is(&mut self, layer: u32, one: One, room: Option<Bytes>, has_ended: impl Fn(Pid) -> bool) -> Option<Crowd> {
        if self.now.insert(layer, one).is_none() {
            self.now.retain(|known, other| *known == layer || !other.process.is_some_and(&has_ended));
        }
        let sum =
            |of: fn(&One) -> Bytes| Bytes(self.now.values().map(of).fold(0, |sum, bytes| bytes.0.saturating_add(sum)));
        let now = Peak {
            programs: self.now.len() as u64,
            local_bytes: sum(|one| one.local),
            resident_bytes: sum(|one| one.resident),
            ..Peak::default()
        };
        let peak = &mut self.peak;
        peak.programs = peak.programs.max(now.programs);
        peak.local_bytes = peak.local_bytes.max(now.local_bytes);
        peak.resident_bytes = peak.resident_bytes.max(now.resident_bytes);
        if now.programs < 2 {
            return None;
        }
        if room.is_some_and(|room| now.local_bytes > room) {
            self.is_said = true;
            return (!std::mem::replace(&mut self.is_crowd_said, true)).then_some(Crowd::TooMuch(now));
        }
        (!std::mem::replace(&mut self.is_said, true)).then_some(Crowd::Several(now))
    }

    /// Takes a reading of the forked copies of all programs.
    pub fn copies(&mut self, held: Held) {
        self.peak.copies = self.peak.copies.max(held.copies);
        self.peak.copies_bytes = self.peak.copies_bytes.max(held.bytes);
    }

    /// Removes a program that has ended.
    pub fn ended(&mut self, layer: u32) {
        self.now.remove(&layer);
    }

    /// Peaks so far.
    pub fn peak(&self) -> Peak {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_programs_at_the_same_time_is_said_once() {
        let (mib, mut all) = (Bytes::mib, AtOnce::default());
        let mut is = |layer, resident| {
            let one = One { process: Some(Pid(1)), local: mib(200), resident: mib(resident) };
            all.is(layer, one, Some(mib(600)), |_| false)
        };
        assert_eq!(is(0, 1), None);
        let two = Peak { programs: 2, local_bytes: mib(400), resident_bytes: mib(151), ..Peak::default() };
        assert_eq!(is(1, 150), Some(Crowd::Several(two)));
        assert_eq!(is(2, 150), None);
        let four = Peak { programs: 4, local_bytes: mib(800), resident_bytes: mib(451), ..Peak::default() };
        assert_eq!(is(3, 150), Some(Crowd::TooMuch(four)));
        assert_eq!(is(3, 199), None);
        (1..4).for_each(|layer| all.ended(layer));
        let last = One { process: None, local: mib(200), resident: mib(1) };
        assert_eq!(all.is(4, last, Some(mib(600)), |_| false), None);
        all.copies(Held { copies: 3, bytes: mib(900) });
        all.copies(Held { copies: 2, bytes: mib(1) });
        let (copies, copies_bytes) = (3, mib(900));
        let peak = Peak { programs: 4, local_bytes: mib(800), resident_bytes: mib(500), copies, copies_bytes };
        assert_eq!(all.peak(), peak);
        assert!(
            peak.text_of_copies()
                .is_some_and(|text| text.ends_with(": at most 3 at once, with at most 900.0 MiB in memory"))
        );
        assert_eq!(Peak { copies_bytes: mib(8), ..peak }.text_of_copies(), None);
    }

    #[test]
    fn programs_one_after_the_other_are_not_at_once() {
        let mut all = AtOnce::default();
        for layer in 1..20_u32 {
            let one = One { process: Some(Pid(layer.cast_signed())), local: Bytes::gib(1), resident: Bytes(0) };
            assert_eq!(all.is(layer, one, Some(Bytes::gib(2)), |pid| pid.0 < layer.cast_signed()), None);
        }
        assert_eq!(all.peak().programs, 1);
    }
}
