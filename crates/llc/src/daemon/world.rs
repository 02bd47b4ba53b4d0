//! What the loop reaches the host through, so that it runs in tests against a model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linux::merged_memory::PageOf;
use linux::probe::Known;
use linux::resctrl::{CacheId, Failed};
use linux::{Error, Pid};
use units::{Bytes, Fraction, WayMask};

use super::act::Done;
use super::members::Members;
use super::observe::{Counted, OfGroup};
use super::refill::Filled;
use super::room::Hardware;
use super::sets::Sets;
use super::steps::{Standing, Step};

/// One region to be kept filled in one cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Its group.
    pub label: String,
    /// Where.
    pub cache: CacheId,
    /// One page of each frame; what the region has no room for is left out.
    pub pages: Vec<PageOf>,
    /// So many that is.
    pub left_out: usize,
    /// What it can hold.
    pub room: Bytes,
    /// Its ways; none where the cache is not divided.
    pub mask: WayMask,
    /// The most of one CPU.
    pub duty: Fraction,
}

/// Which region, in which cache.
pub type Key = (String, CacheId);

/// The host, or a model of one.
pub trait World {
    /// The programs' processes now.
    ///
    /// # Errors
    /// When there is no list of processes.
    fn members(&mut self) -> Result<Members, Error>;

    /// What they share; `None` when it is not to be looked at yet, since that costs too much to do it often.
    ///
    /// # Errors
    /// `Denied`, or `Unsupported` where frames cannot be seen.
    fn sets(&mut self, now: Duration, members: &Members) -> Result<Option<Sets>, Error>;

    /// Does KSM merge, so that copies of ours become what they are copies of?
    ///
    /// # Errors
    /// Why not, with what to do.
    fn merging(&mut self) -> Result<(), String>;

    /// What the programs did since the last look.
    fn counted(&mut self, members: &Members) -> Known<Vec<Counted>>;

    /// What the counters of our groups say, by label.
    fn readings(&mut self, now: Duration) -> BTreeMap<String, OfGroup>;

    /// The ways and classes that there are; `None` where the cache is not to be divided.
    ///
    /// # Errors
    /// As of the calls.
    fn hardware(&mut self) -> Result<Option<Hardware>, Failed>;

    /// All groups that are there, and those called as ours are in which nobody is and which no masu holds.
    ///
    /// # Errors
    /// As of the calls.
    fn standing(&mut self) -> Result<(Standing, Vec<String>), Failed>;

    /// Removes those called as ours are in which nobody is and which no masu holds, and names them.
    ///
    /// # Errors
    /// As of the calls.
    fn collect(&mut self) -> Result<Vec<String>, Failed>;

    /// Does one step.
    ///
    /// # Errors
    /// The kernel's answer.
    fn carry_out(&mut self, step: &Step) -> Result<Done, Failed>;

    /// The caches of which a CPU of this host can be had, with what they hold; where a thread can refill.
    fn caches(&self) -> BTreeMap<CacheId, Bytes>;

    /// Starts the thread that refills a region, or one that takes its place; it waits for [`World::begin`].
    ///
    /// # Errors
    /// When nothing can be copied, or no thread started.
    fn refill(&mut self, region: &Region) -> Result<Pid, Error>;

    /// The thread is in its group: from now on it refills.
    fn begin(&mut self, key: &Key);

    /// Ends the threads of all other regions.
    fn keep_only(&mut self, keys: &BTreeSet<Key>);

    /// The threads that refill.
    fn refilling(&self) -> BTreeMap<Key, Pid>;

    /// What they have done.
    fn filled(&self) -> BTreeMap<Key, Filled>;

    /// Puts back what is left of what was changed.
    ///
    /// # Errors
    /// The first failure; the journal has the rest, for the next start.
    fn put_back(&mut self) -> Result<(), Error>;
}
