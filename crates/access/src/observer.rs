//! Interface of all backends: the observation of one process.

use std::time::Duration;

use linux::{Error, cpu_time};
use units::{Bytes, Window};

use crate::{AccessMap, Backend, PageSet};

/// Cost of an observation, in processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Scans, with the memory that they covered, each scan anew.
    pub scan: Spent,
    /// Clears, likewise.
    pub clear: Spent,
}

/// Processor time over memory: the paper (6.2.1) measures its tracker this way, without the work of other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Processor time.
    pub time: Duration,
    /// Memory covered.
    pub covered: Bytes,
}

/// Stopwatch for the processor time of this thread.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    /// Starts it.
    pub fn start() -> Stopwatch {
        Stopwatch(cpu_time::of_thread())
    }

    /// Processor time since the start.
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

/// Observer of one process, by one [`Backend`].
///
/// `begin`, then `scan` any number of times at growing ages, then read the `map`; `begin` starts over.
pub trait Observer {
    /// Backend in use.
    fn backend(&self) -> Backend;

    /// Clears the accessed bits and starts a new observation.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    fn begin(&mut self) -> Result<(), Error>;

    /// Reads the accesses since `begin` and adds them to the map.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    fn scan(&mut self) -> Result<(), Error>;

    /// Age of this observation.
    fn age(&self) -> Duration;

    /// Accesses since `begin`.
    fn map(&self) -> &AccessMap;

    /// Cost since the observer was made.
    fn cost(&self) -> Cost;

    /// True when the process replaced its address space (exec) since `begin`: the map is void then.
    fn address_space_changed(&self) -> bool;

    /// Pages of a window that were written since they were mapped or freed lazily (MADV_FREE): their entries are dirty.
    /// A hint like a scan. `None` where the backend cannot tell.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    fn written(&self, window: Window) -> Result<Option<PageSet>, Error> {
        let _ = window;
        Ok(None)
    }
}
