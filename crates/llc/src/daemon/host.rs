//! The real host, for the control loop.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use linux::journal::HostSettings;
use linux::ksm::{self, Run};
use linux::probe::Known;
use linux::resctrl::{CacheId, Cpus, Failed};
use linux::{Error, KernelFiles, Pid, caches};
use units::Bytes;
use units::cast::fits;

use super::act::{Done, Mount, group};
use super::allocatable_ways::Hardware;
use super::config::{Config, DomainBy};
use super::host_ops::{HostOps, Key, NotMerging, WarmPartition};
use super::members::{BadProgram, Finder, Members, running};
use super::observe::{Counted, Counting, OfGroup};
use super::others::{OtherGroup, other_groups};
use super::sharing_groups::{Identities, SharingGroups, sets};
use super::steps::{Observed, Step};
use super::warm_up::{Job, WarmState, Warmer};
use crate::shared::domain::By;
use crate::shared::observe::Observer;

/// Divisor of the time that scans for shared memory may take.
const LOOK_PART: u32 = 100;
/// Timeout for other tools that change something, and for a free counter.
const PATIENCE: Duration = Duration::from_secs(10);

/// The running kernel.
pub struct Host<F: KernelFiles + Sync + 'static> {
    files: &'static F,
    finder: Finder,
    labels: Vec<Option<String>>,
    by: By,
    interval: Duration,
    observer: Option<Observer>,
    next_sets: Duration,
    mount: Option<Mount<'static, F>>,
    host_settings: HostSettings<'static, F>,
    counting: Counting,
    caches: BTreeMap<CacheId, (Cpus, Bytes)>,
    warmers: BTreeMap<Key, Warmer>,
    read: BTreeMap<String, (OfGroup, Duration)>,
    /// Returns true when asked to end: then every wait stops.
    is_over: Box<dyn Fn() -> bool + Send>,
}

impl<F: KernelFiles + Sync + 'static> Host<F> {
    /// The host for this configuration; `mount` is the resctrl file system, if partitions are made.
    ///
    /// # Errors
    /// As [`Finder::new`].
    pub fn new(
        files: &'static F,
        config: &Config,
        mount: Option<Mount<'static, F>>,
        host_settings: HostSettings<'static, F>,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> Result<Host<F>, BadProgram> {
        let known = caches::of_level(files, 3).unwrap_or_default();
        let caches = known.into_iter().enumerate().map(|(nth, cache)| {
            // A kernel without numbers has hardly more than one cache.
            let id = cache.id.unwrap_or(CacheId(fits(nth)));
            (id, (cache.cpus, cache.size.unwrap_or(Bytes::mib(2))))
        });
        Ok(Host {
            files,
            finder: Finder::new(files, &config.programs)?,
            labels: config.programs.iter().map(|program| program.domain.clone()).collect(),
            by: match config.domain_by {
                DomainBy::Cgroup => By::Cgroup,
                DomainBy::Uid => By::Uid,
            },
            interval: config.interval,
            observer: None,
            next_sets: Duration::ZERO,
            mount,
            host_settings,
            counting: Counting::default(),
            caches: caches.collect(),
            warmers: BTreeMap::new(),
            read: BTreeMap::new(),
            is_over: Box::new(is_over),
        })
    }

    /// The resctrl file system.
    pub fn mount(&self) -> Option<&Mount<'static, F>> {
        self.mount.as_ref()
    }
}

impl<F: KernelFiles + Sync + 'static> std::fmt::Debug for Host<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("labels", &self.labels).finish_non_exhaustive()
    }
}

/// Waits until the timeout, or until asked to end.
fn patient<'p>(is_over: &'p (dyn Fn() -> bool + Send)) -> impl FnMut(Duration) -> bool + use<'p> {
    let begun = Instant::now();
    move |wait| {
        if is_over() || begun.elapsed() + wait > PATIENCE {
            return false;
        }
        std::thread::sleep(wait);
        true
    }
}

impl<F: KernelFiles + Sync + 'static> HostOps for Host<F> {
    fn members(&mut self) -> Result<Members, Error> {
        self.finder.look(self.files)
    }

    fn running(&self, pids: &BTreeSet<Pid>) -> BTreeSet<Pid> {
        running(self.files, pids.iter())
    }

    fn sets(&mut self, now: Duration, members: &Members) -> Result<Option<SharingGroups>, Error> {
        if now < self.next_sets {
            return Ok(None);
        }
        if ksm::host(self.files).is_err() {
            return Ok(Some(SharingGroups::default())); // a kernel without KSM: nothing is shared
        }
        if self.observer.is_none() {
            self.observer = Some(Observer::new(self.by, BTreeSet::from([Pid::own()]))?);
        }
        let Some(observer) = &mut self.observer else { return Ok(None) };
        self.next_sets = now + self.interval; // also when the scan fails
        let look = observer.scan(self.files)?;
        self.next_sets = now + self.interval.max(look.took * LOOK_PART);
        // A process whose reads go unanswered must not keep all others from their partitions; its last known sharing
        // still counts.
        if let Some((pid, why)) = look.not_read.iter().find(|(_, why)| !why.is_unanswered()) {
            let unread = Some(format!("process {pid} may share and cannot be looked at: {why}"));
            return Ok(Some(SharingGroups { unread, ..SharingGroups::default() }));
        }
        let labels = self.labels.iter().map(Option::as_deref).collect();
        let sets = sets(observer.index(), &Identities::new(&members.programs, labels, observer.members()));
        let passed_over = look.not_read.first().map(|(pid, why)| format!("process {pid}: {why}"));
        Ok(Some(SharingGroups { passed_over, ..sets }))
    }

    fn merging(&mut self) -> Result<(), NotMerging> {
        match ksm::host(self.files) {
            Ok(host) if host.run == Run::Merging => Ok(()),
            Ok(_) => Err(NotMerging::Stopped),
            Err(error) => Err(NotMerging::Absent(error)),
        }
    }

    fn counted(&mut self, members: &Members) -> Known<Vec<Counted>> {
        self.counting.look(&members.programs)
    }

    fn readings(&mut self, now: Duration) -> BTreeMap<String, OfGroup> {
        let Some(mount) = &self.mount else { return BTreeMap::new() };
        let mut found = BTreeMap::new();
        for label in mount.own() {
            // A removed group has no readings.
            let Ok(readings) = mount.resctrl().readings(&group(label)) else { continue };
            let before = self.read.get(label).map(|(before, at)| (*before, now.saturating_sub(*at)));
            found.insert(label.to_owned(), OfGroup::of(&readings, before));
        }
        self.read = found.iter().map(|(label, of)| (label.clone(), (*of, now))).collect();
        found
    }

    fn hardware(&mut self) -> Result<Option<Hardware>, Failed> {
        self.mount.as_ref().map(Mount::hardware).transpose()
    }

    fn observed(&mut self) -> Result<(Observed, Vec<String>), Failed> {
        self.mount.as_ref().map_or_else(|| Ok(Default::default()), Mount::observed)
    }

    fn other_groups(&self, names: &[String]) -> Vec<OtherGroup> {
        self.mount.as_ref().map_or(Vec::new(), |mount| other_groups(self.files, mount.resctrl(), names))
    }

    fn collect(&mut self) -> Result<Vec<String>, Failed> {
        let Some(mount) = &mut self.mount else { return Ok(Vec::new()) };
        mount.collect(&mut self.host_settings, &mut patient(&*self.is_over))
    }

    fn apply(&mut self, step: &Step) -> Result<Done, Failed> {
        let Some(mount) = &mut self.mount else { return Ok(Done::default()) };
        mount.apply(step, &mut self.host_settings, &mut patient(&*self.is_over))
    }

    fn caches(&self) -> BTreeMap<CacheId, Bytes> {
        self.caches.iter().map(|(id, (_, size))| (*id, *size)).collect()
    }

    fn warm_up(&mut self, partition: &WarmPartition) -> Result<Pid, Error> {
        let key = (partition.label.clone(), partition.cache);
        // The old one goes first: two would have twice the duty.
        self.warmers.remove(&key);
        let order = Job {
            pages: partition.pages.clone(),
            cpus: self.caches.get(&partition.cache).map(|(cpus, _)| cpus.0.clone()).unwrap_or_default(),
            partitioned: !partition.mask.is_empty(),
            capacity: partition.capacity,
            duty: partition.duty,
        };
        let resctrl = self.mount.as_ref().filter(|_| !partition.mask.is_empty()).map(|mount| mount.resctrl().clone());
        let (of, cache) = (group(&partition.label), partition.cache);
        let occupancy = move || resctrl.as_ref()?.llc_occupancy(&of, cache).ok()?.value();
        let warmer = Warmer::start(&order, occupancy)?;
        let thread = warmer.thread();
        self.warmers.insert(key, warmer);
        Ok(thread)
    }

    fn begin(&mut self, key: &Key) {
        if let Some(warmer) = self.warmers.get(key) {
            warmer.begin();
        }
    }

    fn keep_only(&mut self, keys: &BTreeSet<Key>) {
        self.warmers.retain(|key, _| keys.contains(key));
    }

    fn warming(&self) -> BTreeMap<Key, Pid> {
        self.warmers.iter().map(|(key, warmer)| (key.clone(), warmer.thread())).collect()
    }

    fn state(&self) -> BTreeMap<Key, WarmState> {
        self.warmers.iter().map(|(key, warmer)| (key.clone(), warmer.state())).collect()
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.host_settings.restore()
    }
}
