//! The interface that every backend serves.

use std::time::Duration;

use linux::{Error, cpu_time};
use units::Bytes;

use crate::{AccessMap, Backend};

/// What observing has cost so far, in processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Spent in looks, and the memory that they covered, each look anew.
    pub scan: Spent,
    /// The same of clears.
    pub clear: Spent,
}

/// Processor time over memory: the paper (6.2.1) measures its tracker so, and what others do meanwhile is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Processor time.
    pub time: Duration,
    /// Memory covered.
    pub covered: Bytes,
}

/// Measures the processor time of this thread.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// From now on.
    pub fn start() -> Stopwatch {
        Stopwatch(cpu_time::of_thread())
    }

    /// Used since.
    pub fn elapsed(self) -> Duration {
        cpu_time::of_thread().saturating_sub(self.0)
    }
}

impl Spent {
    /// Adds one pass.
    pub fn add(&mut self, time: Duration, covered: Bytes) {
        self.time += time;
        self.covered += covered;
    }

    /// Microseconds per GiB; `None` when nothing was covered.
    pub fn us_per_gib(&self) -> Option<f64> {
        (self.covered.0 > 0).then(|| self.time.as_secs_f64() * 1e6 / self.covered.as_gib())
    }
}

/// An observer of one process.
///
/// `begin`, then `look` any number of times at growing ages, then read the `map`; `begin` starts over.
pub trait Source {
    /// Which backend this is.
    fn backend(&self) -> Backend;

    /// Forgets what was touched and starts a new observation.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    fn begin(&mut self) -> Result<(), Error>;

    /// Sees what was touched since `begin` and adds it to the map.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    fn look(&mut self) -> Result<(), Error>;

    /// How long ago this observation began.
    fn age(&self) -> Duration;

    /// What was seen since `begin`.
    fn map(&self) -> &AccessMap;

    /// What observing has cost since the source was made.
    fn cost(&self) -> Cost;

    /// True when, since `begin`, the process replaced its address space (exec): the map is void then.
    fn address_space_changed(&self) -> bool;
}
