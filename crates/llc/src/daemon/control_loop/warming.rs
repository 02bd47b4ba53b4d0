//! Assigns warm-up threads to shared partitions, and reports their counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linux::Pid;
use linux::resctrl::PREFIX;
use units::cast::index;
use units::{Bytes, Pages, WayMask};

use super::super::act::name_of;
use super::super::host_ops::{HostOps, Key, WarmPartition};
use super::super::layout::Purpose;
use super::super::report::{Event, Reading};
use super::super::steps::{Observed, Step};
use super::{Daemon, LoopError, REPORT_EVERY, STALE, half, share};

impl<W: HostOps> Daemon<W> {
    /// Partitions to keep warm now.
    fn desired_partitions(&self) -> BTreeMap<Key, WarmPartition> {
        let mut partitions = BTreeMap::new();
        let mut add = |label: &str, cache, set: usize, capacity: Bytes, mask: WayMask| {
            let most = index(capacity.0 / Pages(1).bytes().0);
            let all = &self.sets.sets[set].pages;
            let pages: Vec<_> = all.iter().copied().take(most).collect();
            let (label_of, left_out, duty) = (label.to_owned(), all.len() - pages.len(), self.config.duty);
            let partition = WarmPartition { label: label_of, cache, pages, left_out, capacity, mask, duty };
            partitions.insert((label.to_owned(), cache), partition);
        };
        match (&self.hardware, &self.desired) {
            (Some(hardware), Some(desired)) => {
                for group in &desired.groups {
                    let Purpose::SharedPartition(set) = group.purpose else { continue };
                    for cache in &group.warmed {
                        let mask = group.masks[cache];
                        let capacity = Bytes(hardware.way_bytes.0 * u64::from(mask.ways().0));
                        add(&group.label, *cache, set, capacity, mask);
                    }
                }
            }
            (None, _) => {
                for (cache, size) in self.host.caches() {
                    for (set, of) in self.sets.sets.iter().enumerate() {
                        // A label may equal the name of a control group.
                        let twin = self.sets.sets[..set].iter().any(|other| other.domain == of.domain);
                        let label = if twin { format!("{}#{set}", of.domain) } else { of.domain.to_string() };
                        add(&label, cache, set, half(size), WayMask::NONE);
                    }
                }
            }
            (Some(_), None) => {}
        }
        let threads = partitions.len();
        for partition in partitions.values_mut() {
            partition.duty = share(self.config.duty, threads);
        }
        partitions
    }

    /// Ends threads of obsolete partitions before their groups are removed, and threads that were moved out of their
    /// group: in another they would fill its ways. A failed thread stays as a mark, and is not tried again.
    pub(super) fn stop_warm_ups(&mut self, observed: &Observed) {
        let groups = self.desired.iter().flat_map(|desired| &desired.groups);
        let wanted: BTreeSet<Key> =
            groups.flat_map(|group| group.warmed.iter().map(|cache| (group.label.clone(), *cache))).collect();
        let state = self.host.state();
        let stays = |key: &Key, thread: &Pid| {
            if self.partitions.get(key).is_some_and(|partition| self.is_seen_by_others(partition)) {
                return false;
            }
            let inside = observed.get(&key.0).is_some_and(|group| group.threads.contains(thread));
            wanted.contains(key) && (inside || state.get(key).is_some_and(|state| state.failure.is_some()))
        };
        let warming = self.host.warming().into_iter();
        let keys: BTreeSet<Key> = warming.filter(|(key, thread)| stays(key, thread)).map(|(key, _)| key).collect();
        self.keep_warm_ups(&keys);
    }

    /// Ends the threads of all other partitions, after their counts are added.
    pub(super) fn keep_warm_ups(&mut self, keys: &BTreeSet<Key>) {
        self.count_warm_ups();
        self.host.keep_only(keys);
        self.partitions.retain(|key, _| keys.contains(key));
        self.counted.retain(|key, _| keys.contains(key));
        self.last_reported.retain(|key, _| keys.contains(key));
    }

    /// Whether one of its pages is now shared by processes that do not trust each other.
    fn is_seen_by_others(&self, partition: &WarmPartition) -> bool {
        let crossing = &self.sets.crossing_pages;
        !crossing.is_empty() && partition.pages.iter().any(|page| crossing.contains(page))
    }

    /// Starts a thread for each desired partition, in its group, and for no others.
    pub(super) fn warm_up(&mut self, events: &mut Vec<Event>) -> Result<(), LoopError> {
        let mut wanted =
            if self.settled || self.hardware.is_none() { self.desired_partitions() } else { BTreeMap::new() };
        let there = self.host.caches();
        if !wanted.is_empty()
            && let Err(why) = self.host.merging()
        {
            self.report_missing("warm shared partitions", &why.to_string(), events);
            wanted.clear();
        }
        for cache in wanted.keys().map(|(_, cache)| *cache).collect::<BTreeSet<_>>() {
            if !there.contains_key(&cache) {
                let why = "no CPU of this host uses it".to_owned();
                self.report_missing(&format!("warm shared partitions in cache {}", cache.0), &why, events);
            }
        }
        wanted.retain(|(_, cache), partition| there.contains_key(cache) && !partition.pages.is_empty());
        self.keep_warm_ups(&wanted.keys().cloned().collect());
        for (key, partition) in wanted {
            if self
                .partitions
                .get(&key)
                .is_some_and(|known| is_as_good(known, &partition) && !self.is_seen_by_others(known))
            {
                continue;
            }
            // Another thread counts from zero.
            self.counted.remove(&key);
            self.last_reported.remove(&key);
            let thread = match self.host.warm_up(&partition) {
                Ok(thread) => thread,
                Err(error) => {
                    self.report_missing(
                        &format!("a warm shared partition in cache {}", key.1.0),
                        &error.to_string(),
                        events,
                    );
                    self.partitions.remove(&key);
                    continue;
                }
            };
            if !partition.mask.is_empty() {
                let step = Step::Thread(key.0.clone(), thread);
                match self.host.apply(&step) {
                    Ok(done) if done.threads == 0 => {
                        self.report_not_done(&step.to_string(), "the group is gone", events);
                        continue;
                    }
                    Ok(done) => {
                        let what = Step::WarmUp(key.0.clone(), key.1).to_string();
                        events.push(Event::Done { what, threads: done.threads, ended: done.ended, from: Vec::new() });
                    }
                    // Outside of its group it would fill the ways of others.
                    Err(failed) if self.steps > 0 => {
                        self.report_not_done(&step.to_string(), &failed.to_string(), events);
                        continue;
                    }
                    Err(failed) => return Err(LoopError::step(step, failed)),
                }
            }
            self.host.begin(&key);
            if partition.left_out > 0 {
                let group = if partition.mask.is_empty() { key.0.clone() } else { name_of(&key.0) };
                let (pages, all) = (partition.pages.len(), partition.pages.len() + partition.left_out);
                let what = format!("a part of what is shared in {group}");
                self.report_missing(&what, &format!("it holds {pages} of {all} pages"), events);
            }
            self.partitions.insert(key, partition);
        }
        Ok(())
    }

    /// Adds the counts of the threads to the summary, before they may end.
    pub(super) fn count_warm_ups(&mut self) {
        for (key, state) in self.host.state() {
            let known = self.counted.get(&key).cloned().unwrap_or_default();
            // A replacing thread counts from zero.
            let more = |now: u64, before: u64| if now >= before { now - before } else { now };
            self.summary.refilled_bytes.0 += more(state.refilled_bytes.0, known.refilled_bytes.0);
            self.summary.refill_cpu_us += more(state.cpu_us, known.cpu_us);
            self.summary.unmerged_pages += more(state.unmerged_pages, known.unmerged_pages);
            self.counted.insert(key, state);
        }
    }

    pub(super) fn report(&mut self, now: Duration, events: &mut Vec<Event>) {
        let due = now >= self.next_report;
        for (key, state) in self.host.state() {
            let old = self.last_reported.get(&key);
            let changed = old.is_none_or(|old| {
                (old.merged_pages, old.placed_pages, old.parted_pages, old.unmerged_pages, &old.failure)
                    != (
                        state.merged_pages,
                        state.placed_pages,
                        state.parted_pages,
                        state.unmerged_pages,
                        &state.failure,
                    )
            });
            if changed || due {
                let group = if self.hardware.is_some() { name_of(&key.0) } else { key.0.clone() };
                events.push(Event::Warmed { group, cache: key.1.0, state: state.clone() });
                self.last_reported.insert(key, state);
            }
        }
        if due && self.hardware.is_some() {
            let groups: Vec<Reading> = self
                .host
                .readings(now)
                .into_iter()
                .map(|(label, of)| Reading {
                    group: format!("{PREFIX}{label}"),
                    llc_occupancy_bytes: of.occupancy,
                    memory_bytes_per_s: of.bytes_per_s,
                })
                .collect();
            if groups.iter().any(|of| of.llc_occupancy_bytes.is_some() || of.memory_bytes_per_s.is_some()) {
                events.push(Event::Measured { groups });
            }
        }
        if due {
            self.next_report = now + REPORT_EVERY.max(self.config.interval);
        }
    }
}

/// Whether the partition has nearly the same pages: no reason to copy them anew.
fn is_as_good(known: &WarmPartition, wanted: &WarmPartition) -> bool {
    if (known.capacity, known.mask, known.duty) != (wanted.capacity, wanted.mask, wanted.duty) {
        return false;
    }
    let old: BTreeSet<_> = known.pages.iter().collect();
    let new = wanted.pages.iter().filter(|page| !old.contains(page)).count();
    let gone = (known.pages.len() + new).saturating_sub(wanted.pages.len());
    (new + gone) * STALE <= wanted.pages.len()
}
