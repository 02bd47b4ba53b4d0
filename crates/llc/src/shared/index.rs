//! Frame → sharers, updated from the merged pages of one process after the other. Pure.
//!
//! Two sorted lists instead of maps: one by process and address, to find changes, and one by frame and process, to
//! find sharers. Building them takes one sort, changing them one pass over all entries; an entry takes 40 bytes in
//! both together.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use linux::Pid;
use linux::merged_memory::PageOf;
use units::{Address, Bytes, Pages};

/// Merged page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergedPage {
    /// Address where it is mapped.
    pub address: Address,
    /// Frame number.
    pub frame: u64,
}

/// Pages found in one process.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Merged: the entry is unchanged.
    pub(super) known: Vec<MergedPage>,
    /// Flags still to be read.
    pub(super) open: Vec<MergedPage>,
    pub(super) words: u64,
}

/// Sharer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    frame: u64,
    pid: Pid,
    address: Address,
}

/// Merged frame with all its sharers, by process and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'i> {
    entries: &'i [Entry],
}

impl<'i> Frame<'i> {
    /// Frame number.
    pub fn number(self) -> u64 {
        self.entries.first().map_or(0, |entry| entry.frame)
    }

    /// Sharers and their addresses; a process may have the frame at several addresses.
    pub fn sharers(self) -> impl ExactSizeIterator<Item = PageOf> + 'i {
        self.entries.iter().map(|entry| PageOf { pid: entry.pid, address: entry.address })
    }

    /// Processes that have the frame, each once, by rising id.
    pub fn processes(self) -> impl Iterator<Item = Pid> + 'i {
        self.entries.chunk_by(|one, other| one.pid == other.pid).filter_map(|of| of.first()).map(|entry| entry.pid)
    }

    /// Memory saved by the merge: the additional bytes that would be used without it.
    pub fn saved(self) -> Bytes {
        Pages(self.entries.len() as u64 - 1).bytes()
    }
}

/// All frames shared by the same processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramesBySharers {
    /// Sharers by rising id. A single process has its pages merged with each other, or with those of a process that
    /// masu does not see.
    pub processes: Vec<Pid>,
    /// Number of frames.
    pub frames: Pages,
    /// Number of mapped pages, over all sharers.
    pub mapped: Pages,
}

impl FramesBySharers {
    /// Memory saved by the merge.
    pub const fn saved(&self) -> Bytes {
        Pages(self.mapped.0 - self.frames.0).bytes()
    }
}

/// Changes made by an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Newly merged pages.
    pub added: u64,
    /// Pages no longer merged, or merged with others.
    pub removed: u64,
}

/// Index of merged frames and their sharers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    by_process: BTreeMap<Pid, Vec<MergedPage>>,
    by_frame: Vec<Entry>,
}

impl Index {
    /// Merged pages of a process, by address.
    pub fn of(&self, pid: Pid) -> &[MergedPage] {
        self.by_process.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Processes with merged pages.
    pub fn processes(&self) -> impl Iterator<Item = Pid> {
        self.by_process.keys().copied()
    }

    /// Applies a scan: the merged pages of every process that has any, in any order, each address once. A process
    /// missing from the scan has none any more.
    pub fn update(&mut self, look: impl IntoIterator<Item = (Pid, Vec<MergedPage>)>) -> Changed {
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        let mut before = std::mem::take(&mut self.by_process);
        for (pid, mut pages) in look {
            if !pages.is_sorted() {
                pages.sort_unstable();
            }
            let old = before.remove(&pid).unwrap_or_default();
            differences(pid, &old, &pages, &mut removed, &mut added);
            if !pages.is_empty() {
                self.by_process.insert(pid, pages);
            }
        }
        for (pid, old) in before {
            differences(pid, &old, &[], &mut removed, &mut added);
        }
        added.sort_unstable();
        removed.sort_unstable();
        let changed = Changed { added: added.len() as u64, removed: removed.len() as u64 };
        if !(added.is_empty() && removed.is_empty()) {
            self.by_frame = merged(std::mem::take(&mut self.by_frame), &removed, added);
        }
        changed
    }

    /// All frames, by number.
    pub fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        self.by_frame.chunk_by(|one, other| one.frame == other.frame).map(|entries| Frame { entries })
    }

    /// The frame with this number, if it is merged.
    pub fn frame(&self, number: u64) -> Option<Frame<'_>> {
        let first = self.by_frame.partition_point(|entry| entry.frame < number);
        let end = first + self.by_frame[first..].partition_point(|entry| entry.frame == number);
        (end > first).then(|| Frame { entries: &self.by_frame[first..end] })
    }

    /// Number of merged pages, each counted where it is mapped.
    pub fn mapped(&self) -> Pages {
        Pages(self.by_frame.len() as u64)
    }

    /// Frames grouped by their sharers, the largest saving first.
    pub fn sets(&self) -> Vec<FramesBySharers> {
        sets(self.frames())
    }
}

/// Groups the given frames by their sharers, the largest saving first; equal savings are ordered by sharers.
pub fn sets<'i>(frames: impl Iterator<Item = Frame<'i>>) -> Vec<FramesBySharers> {
    let mut by_who: HashMap<Vec<Pid>, (u64, u64)> = HashMap::new();
    let mut who = Vec::new();
    for frame in frames {
        who.clear();
        who.extend(frame.processes());
        let mapped = frame.entries.len() as u64;
        match by_who.get_mut(who.as_slice()) {
            Some((frames, all)) => (*frames, *all) = (*frames + 1, *all + mapped),
            None => drop(by_who.insert(who.clone(), (1, mapped))),
        }
    }
    let mut sets: Vec<FramesBySharers> = by_who
        .into_iter()
        .map(|(processes, (frames, mapped))| FramesBySharers {
            processes,
            frames: Pages(frames),
            mapped: Pages(mapped),
        })
        .collect();
    sets.sort_unstable_by(|one, other| {
        (other.saved(), other.frames).cmp(&(one.saved(), one.frames)).then_with(|| one.processes.cmp(&other.processes))
    });
    sets
}

/// Entries that are in only one of two sorted lists.
fn differences(pid: Pid, old: &[MergedPage], new: &[MergedPage], removed: &mut Vec<Entry>, added: &mut Vec<Entry>) {
    let entry = |page: &MergedPage| Entry { frame: page.frame, pid, address: page.address };
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(before), Some(now)) if before == now => {
                old.next();
                new.next();
            }
            (Some(before), now) if now.is_none_or(|now| before < now) => {
                removed.push(entry(before));
                old.next();
            }
            (_, Some(now)) => {
                added.push(entry(now));
                new.next();
            }
            (Some(_), None) => return, // covered above: nothing is greater than nothing
        }
    }
}

/// Removes some entries from a sorted list and adds others.
fn merged(all: Vec<Entry>, removed: &[Entry], added: Vec<Entry>) -> Vec<Entry> {
    if all.is_empty() {
        return added;
    }
    let mut result = Vec::with_capacity(all.len() + added.len() - removed.len().min(all.len()));
    let (mut removed, mut added) = (removed.iter().peekable(), added.into_iter().peekable());
    for entry in all {
        while removed.next_if(|removed| removed.cmp(&&entry) == Ordering::Less).is_some() {}
        if removed.next_if(|removed| **removed == entry).is_some() {
            continue;
        }
        while let Some(new) = added.next_if(|new| *new < entry) {
            result.push(new);
        }
        result.push(entry);
    }
    result.extend(added);
    result
}

#[cfg(test)]
mod tests;
