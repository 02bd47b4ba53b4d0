//! Assigns warm-up threads to shared partitions, and reports their counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use linux::Pid;
use linux::resctrl::PREFIX;
use units::cast::index;
use units::{Bytes, Pages, WayMask};

use super::super::act::name_of;
use super::super::host_ops::{HostOps, Key, Region};
use super::super::layout::Purpose;
use super::super::report::{Event, Reading};
use super::super::steps::{Standing, Step};
use super::{Daemon, REPORT_EVERY, STALE, Trouble, half, share};

impl<W: HostOps> Daemon<W> {
    /// Partitions to keep warm now.
    fn wanted_regions(&self) -> BTreeMap<Key, Region> {
        let mut regions = BTreeMap::new();
        let mut add = |label: &str, cache, set: usize, room: Bytes, mask: WayMask| {
            let most = index(room.0 / Pages(1).bytes().0);
            let all = &self.sets.sets[set].pages;
            let pages: Vec<_> = all.iter().copied().take(most).collect();
            let (label_of, left_out, duty) = (label.to_owned(), all.len() - pages.len(), self.config.duty);
            let region = Region { label: label_of, cache, pages, left_out, room, mask, duty };
            regions.insert((label.to_owned(), cache), region);
        };
        match (&self.hardware, &self.wanted) {
            (Some(hardware), Some(wanted)) => {
                for group in &wanted.groups {
                    let Purpose::Region(set) = group.purpose else { continue };
                    for cache in &group.refilled {
                        let mask = group.masks[cache];
                        let room = Bytes(hardware.way_bytes.0 * u64::from(mask.ways().0));
                        add(&group.label, *cache, set, room, mask);
                    }
                }
            }
            (None, _) => {
                for (cache, size) in self.world.caches() {
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
        let threads = regions.len();
        for region in regions.values_mut() {
            region.duty = share(self.config.duty, threads);
        }
        regions
    }

    /// Ends threads of obsolete partitions before their groups are removed, and threads that were moved out of their
    /// group: in another they would fill its ways. A failed thread stays as a mark, and is not tried again.
    pub(super) fn end_refills(&mut self, standing: &Standing) {
        let groups = self.wanted.iter().flat_map(|wanted| &wanted.groups);
        let wanted: BTreeSet<Key> =
            groups.flat_map(|group| group.refilled.iter().map(|cache| (group.label.clone(), *cache))).collect();
        let filled = self.world.filled();
        let stays = |key: &Key, thread: &Pid| {
            if self.regions.get(key).is_some_and(|region| self.is_seen_by_others(region)) {
                return false;
            }
            let inside = standing.get(&key.0).is_some_and(|group| group.threads.contains(thread));
            wanted.contains(key) && (inside || filled.get(key).is_some_and(|filled| filled.failure.is_some()))
        };
        let refilling = self.world.refilling().into_iter();
        let keys: BTreeSet<Key> = refilling.filter(|(key, thread)| stays(key, thread)).map(|(key, _)| key).collect();
        self.keep_refills(&keys);
    }

    /// Ends the threads of all other partitions, after their counts are added.
    pub(super) fn keep_refills(&mut self, keys: &BTreeSet<Key>) {
        self.count_refills();
        self.world.keep_only(keys);
        self.regions.retain(|key, _| keys.contains(key));
        self.counted.retain(|key, _| keys.contains(key));
        self.told.retain(|key, _| keys.contains(key));
    }

    /// Whether one of its pages is now shared by processes that do not trust each other.
    fn is_seen_by_others(&self, region: &Region) -> bool {
        let crossing = &self.sets.crossing_pages;
        !crossing.is_empty() && region.pages.iter().any(|page| crossing.contains(page))
    }

    /// Starts a thread for each desired partition, in its group, and for no others.
    pub(super) fn refill(&mut self, events: &mut Vec<Event>) -> Result<(), Trouble> {
        let mut wanted = if self.settled || self.hardware.is_none() { self.wanted_regions() } else { BTreeMap::new() };
        let there = self.world.caches();
        if !wanted.is_empty()
            && let Err(why) = self.world.merging()
        {
            self.say_without("filled regions", &why, events);
            wanted.clear();
        }
        for cache in wanted.keys().map(|(_, cache)| *cache).collect::<BTreeSet<_>>() {
            if !there.contains_key(&cache) {
                let why = "no CPU of this host uses it".to_owned();
                self.say_without(&format!("filled regions in cache {}", cache.0), &why, events);
            }
        }
        wanted.retain(|(_, cache), region| there.contains_key(cache) && !region.pages.is_empty());
        self.keep_refills(&wanted.keys().cloned().collect());
        for (key, region) in wanted {
            if self.regions.get(&key).is_some_and(|known| is_as_good(known, &region) && !self.is_seen_by_others(known))
            {
                continue;
            }
            // Another thread counts from zero.
            self.counted.remove(&key);
            self.told.remove(&key);
            let thread = match self.world.refill(&region) {
                Ok(thread) => thread,
                Err(error) => {
                    self.say_without(&format!("a filled region in cache {}", key.1.0), &error.to_string(), events);
                    self.regions.remove(&key);
                    continue;
                }
            };
            if !region.mask.is_empty() {
                let step = Step::Thread(key.0.clone(), thread);
                match self.world.carry_out(&step) {
                    Ok(done) if done.threads == 0 => {
                        self.say_not_done(&step.to_string(), "the group is gone", events);
                        continue;
                    }
                    Ok(done) => {
                        let what = Step::Refilling(key.0.clone(), key.1).to_string();
                        events.push(Event::Done { what, threads: done.threads, ended: done.ended });
                    }
                    // Outside of its group it would fill the ways of others.
                    Err(failed) if self.steps > 0 => {
                        self.say_not_done(&step.to_string(), &failed.to_string(), events);
                        continue;
                    }
                    Err(failed) => return Err(Trouble::step(step, failed)),
                }
            }
            self.world.begin(&key);
            if region.left_out > 0 {
                let group = if region.mask.is_empty() { key.0.clone() } else { name_of(&key.0) };
                let (pages, all) = (region.pages.len(), region.pages.len() + region.left_out);
                let what = format!("a part of what is shared in {group}");
                self.say_without(&what, &format!("it has room for {pages} of {all} pages"), events);
            }
            self.regions.insert(key, region);
        }
        Ok(())
    }

    /// Adds the counts of the threads to the summary, before they may end.
    pub(super) fn count_refills(&mut self) {
        for (key, filled) in self.world.filled() {
            let known = self.counted.get(&key).cloned().unwrap_or_default();
            // A replacing thread counts from zero.
            let more = |now: u64, before: u64| if now >= before { now - before } else { now };
            self.summary.refilled_bytes.0 += more(filled.refilled_bytes.0, known.refilled_bytes.0);
            self.summary.refill_cpu_us += more(filled.cpu_us, known.cpu_us);
            self.summary.unmerged_pages += more(filled.unmerged_pages, known.unmerged_pages);
            self.counted.insert(key, filled);
        }
    }

    pub(super) fn report(&mut self, now: Duration, events: &mut Vec<Event>) {
        let due = now >= self.next_report;
        for (key, filled) in self.world.filled() {
            let old = self.told.get(&key);
            let changed = old.is_none_or(|old| {
                (old.merged_pages, old.placed_pages, old.parted_pages, old.unmerged_pages, &old.failure)
                    != (
                        filled.merged_pages,
                        filled.placed_pages,
                        filled.parted_pages,
                        filled.unmerged_pages,
                        &filled.failure,
                    )
            });
            if changed || due {
                let group = if self.hardware.is_some() { name_of(&key.0) } else { key.0.clone() };
                events.push(Event::Filled { group, cache: key.1.0, filled: filled.clone() });
                self.told.insert(key, filled);
            }
        }
        if due && self.hardware.is_some() {
            let groups: Vec<Reading> = self
                .world
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
fn is_as_good(known: &Region, wanted: &Region) -> bool {
    if (known.room, known.mask, known.duty) != (wanted.room, wanted.mask, wanted.duty) {
        return false;
    }
    let old: BTreeSet<_> = known.pages.iter().collect();
    let new = wanted.pages.iter().filter(|page| !old.contains(page)).count();
    let gone = (known.pages.len() + new).saturating_sub(wanted.pages.len());
    (new + gone) * STALE <= wanted.pages.len()
}
