//! Counters: their ids (RMIDs), free or in limbo, and their configured values.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use units::Bytes;

use crate::group::GroupId;

/// Interval of the kernel's checks for counters that may leave limbo.
const CHECK_MS: u64 = 1000;

/// Unit of the hardware's counts; thresholds are whole units.
const UNIT: Bytes = Bytes::kib(64);

/// Counted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// Bytes in the cache whose lines were filled for the group.
    Occupancy,
    /// Bytes between the cache and all memory.
    Total,
    /// Bytes between the cache and the memory beside it.
    Local,
}

impl Event {
    /// All, in the order of `mon_features`.
    pub const ALL: [Event; 3] = [Event::Occupancy, Event::Total, Event::Local];

    /// Name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Event::Occupancy => "llc_occupancy",
            Event::Total => "mbm_total_bytes",
            Event::Local => "mbm_local_bytes",
        }
    }
}

/// Content of a file of `mon_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes.
    Count(u64),
    /// The hardware reports an invalid counter.
    Error,
    /// The hardware has no value at this time.
    Unavailable,
    /// No counter is assigned.
    Unassigned,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(bytes) => write!(f, "{bytes}"),
            Value::Error => f.write_str("Error"),
            Value::Unavailable => f.write_str("Unavailable"),
            Value::Unassigned => f.write_str("Unassigned"),
        }
    }
}

/// Key of a value: group, event, cache and its node, both by position.
pub type Place = (GroupId, Event, usize, u32);

/// Configured values of the counters, and the free counters.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Free RMIDs, the longest free one first.
    free: VecDeque<u32>,
    limbo: Vec<Waiting>,
    /// Configured values.
    pub(crate) said: BTreeMap<Place, Value>,
    /// Demand of a group's programs, in bytes of cache.
    pub(crate) wanted: BTreeMap<GroupId, Bytes>,
    /// `max_threshold_occupancy`.
    pub(crate) threshold: Bytes,
    now_ms: u64,
}

/// RMID with lines still in the cache.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    rmid: u32,
    occupancy: Bytes,
    checked_ms: u64,
    gone_ms: u64,
}

impl Counters {
    /// RMID 0 is the default group's.
    pub(crate) fn new(rmids: u32, threshold: Bytes) -> Counters {
        let mut counters = Counters { free: (1..rmids).collect(), ..Counters::default() };
        // With a threshold of 0 none would ever leave limbo.
        counters.set_threshold(threshold.max(UNIT));
        counters
    }

    /// Rounded down to the hardware's unit.
    pub(crate) fn set_threshold(&mut self, threshold: Bytes) {
        self.threshold = Bytes(threshold.0 / UNIT.0 * UNIT.0);
    }

    /// Takes a free RMID.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// Frees an RMID with this occupancy: to limbo, for at most `limbo_ms`.
    pub(crate) fn give_back(&mut self, rmid: u32, occupancy: Bytes, limbo_ms: u64) {
        if limbo_ms == 0 {
            self.free.push_back(rmid);
            return;
        }
        let now = self.now_ms;
        let (checked_ms, gone_ms) = (now.saturating_add(CHECK_MS), now.saturating_add(limbo_ms));
        self.limbo.push(Waiting { rmid, occupancy, checked_ms, gone_ms });
    }

    /// Whether some may come out of limbo.
    pub(crate) fn are_in_limbo(&self) -> bool {
        !self.limbo.is_empty()
    }

    /// Advances the time.
    pub(crate) fn pass(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        let (now, threshold) = (self.now_ms, self.threshold);
        let is_ready = |waiting: &Waiting| {
            let left = if now >= waiting.gone_ms { Bytes(0) } else { waiting.occupancy };
            now >= waiting.checked_ms.min(waiting.gone_ms) && left < threshold
        };
        self.free.extend(self.limbo.iter().filter(|waiting| is_ready(waiting)).map(|waiting| waiting.rmid));
        self.limbo.retain(|waiting| !is_ready(waiting));
    }

    /// Removes all lines of removed groups from the caches.
    pub(crate) fn settle(&mut self) {
        self.free.extend(self.limbo.drain(..).map(|waiting| waiting.rmid));
    }

    /// RMIDs that are free or in limbo.
    pub fn idle(&self) -> usize {
        self.free.len() + self.limbo.len()
    }
}
