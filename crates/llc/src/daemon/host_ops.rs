//! Interface of the control loop to the host, so that tests run it against a model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linux::merged_memory::PageOf;
use linux::probe::Known;
use linux::resctrl::{CacheId, Failed};
use linux::{Error, Pid};
use units::{Bytes, Fraction, WayMask};

use super::act::Done;
use super::allocatable_ways::Hardware;
use super::members::Members;
use super::observe::{Counted, OfGroup};
use super::others::OtherGroup;
use super::sharing_groups::SharingGroups;
use super::steps::{Observed, Step};
use super::warm_up::WarmState;

/// A shared partition to keep warm in one cache.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmPartition {
    /// Label of its group.
    pub label: String,
    /// Id of the cache.
    pub cache: CacheId,
    /// One page of each frame; pages beyond the capacity are left out.
    pub pages: Vec<PageOf>,
    /// Number of pages left out.
    pub left_out: usize,
    /// Capacity in bytes.
    pub capacity: Bytes,
    /// Ways of the partition; none where the cache is not divided.
    pub mask: WayMask,
    /// Greatest part of one CPU.
    pub duty: Fraction,
}

/// Reason why KSM does not merge masu's copies with their originals.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMerging {
    /// KSM is off; root can turn it on.
    #[error("KSM is not running; `echo 1 > /sys/kernel/mm/ksm/run` starts it")]
    Stopped,
    /// This kernel has no KSM, or its state cannot be read.
    #[error("there is no KSM here: {0}")]
    Absent(Error),
}

/// Label of a shared partition, and its cache.
pub type Key = (String, CacheId);

/// The host, or a model of one.
pub trait HostOps {
    /// The programs' current processes.
    ///
    /// # Errors
    /// When there is no list of processes.
    fn members(&mut self) -> Result<Members, Error>;

    /// Keeps the processes that have not ended.
    fn running(&self, pids: &BTreeSet<Pid>) -> BTreeSet<Pid>;

    /// Shared memory of the programs; `None` if no scan is due yet, since scans are too expensive to repeat often.
    ///
    /// # Errors
    /// `Denied`, or `Unsupported` where frames cannot be seen.
    fn sets(&mut self, now: Duration, members: &Members) -> Result<Option<SharingGroups>, Error>;

    /// Checks that KSM merges, so that masu's copies are merged with their originals.
    ///
    /// # Errors
    /// `Stopped`, or `Absent`.
    fn merging(&mut self) -> Result<(), NotMerging>;

    /// Counts of the programs since the last read.
    fn counted(&mut self, members: &Members) -> Known<Vec<Counted>>;

    /// Readings of masu's groups, by label.
    fn readings(&mut self, now: Duration) -> BTreeMap<String, OfGroup>;

    /// Ways and classes of the hardware; `None` where the cache is not to be divided.
    ///
    /// # Errors
    /// As of the calls.
    fn hardware(&mut self) -> Result<Option<Hardware>, Failed>;

    /// All observed groups, and abandoned ones: named like masu's, without threads, and held by no masu.
    ///
    /// # Errors
    /// As of the calls.
    fn observed(&mut self) -> Result<(Observed, Vec<String>), Failed>;

    /// Groups of other tools with these names, and their processes.
    fn other_groups(&self, names: &[String]) -> Vec<OtherGroup>;

    /// Removes the abandoned groups, and names them.
    ///
    /// # Errors
    /// As of the calls.
    fn collect(&mut self) -> Result<Vec<String>, Failed>;

    /// Applies one step.
    ///
    /// # Errors
    /// The kernel's answer.
    fn apply(&mut self, step: &Step) -> Result<Done, Failed>;

    /// Caches with a usable CPU of this host, with their sizes; where a thread can refill.
    fn caches(&self) -> BTreeMap<CacheId, Bytes>;

    /// Starts the thread that keeps a partition warm, or one that replaces it; it waits for [`HostOps::begin`].
    ///
    /// # Errors
    /// When nothing can be copied, or no thread started.
    fn warm_up(&mut self, partition: &WarmPartition) -> Result<Pid, Error>;

    /// Tells the thread that it is in its group: from now on it refills.
    fn begin(&mut self, key: &Key);

    /// Ends the threads of all other partitions.
    fn keep_only(&mut self, keys: &BTreeSet<Key>);

    /// Warm-up threads.
    fn warming(&self) -> BTreeMap<Key, Pid>;

    /// Their counts.
    fn state(&self) -> BTreeMap<Key, WarmState>;

    /// Restores the rest of the changed state.
    ///
    /// # Errors
    /// The first failure; the journal has the rest, for the next start.
    fn restore(&mut self) -> Result<(), Error>;
}
