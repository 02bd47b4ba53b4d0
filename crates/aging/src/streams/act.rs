//! Drops pages of streams, and verifies the result.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use access::insertions::FileId;
use linux::block_device;
use linux::cachestat::{CacheStat, cachestat};
use linux::file_systems::{FileSystems, Numbers};
use linux::{Error, KernelFiles, Pid, page_cache};
use units::Pages;

use super::due::Due;
use super::mapped::OwnMappings;
use super::policy::Queue;
use crate::left_pages::Reason;

/// Pages of a drop, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropResult {
    /// No longer in the page cache.
    pub dropped: Pages,
    /// Still present, and retried later: dirty, or in use.
    pub later: Pages,
    /// Given up, by reason and file.
    pub left: BTreeMap<(Reason, FileId), Pages>,
}

impl DropResult {
    /// Adds another result.
    pub fn add(&mut self, other: DropResult) {
        self.dropped.0 += other.dropped.0;
        self.later.0 += other.later.0;
        other.left.into_iter().for_each(|((reason, file), pages)| self.leave(reason, file, pages.0));
    }

    fn leave(&mut self, reason: Reason, file: FileId, pages: u64) {
        self.left.entry((reason, file)).or_default().0 += pages;
    }
}

/// Opens files by their kernel numbers (device and inode).
#[derive(Debug)]
pub struct Dropper {
    file_systems: FileSystems,
    /// Processes that inserted pages of a device's files lately, the latest last.
    readers: BTreeMap<(u32, u32), Vec<Pid>>,
    /// First reason, by device, that files could not be opened.
    unreachable: BTreeMap<(u32, u32), String>,
    /// Time of the last look at the mounts.
    refreshed_at: Duration,
}

/// Any user may mount file systems of its own (FUSE): unreachable files are reported for at most this many devices.
const DEVICES_REPORTED: usize = 256;

/// First inode of a file on btrfs.
const BTRFS_FIRST_FILE: u64 = 256;

/// Number of readers of a device that are remembered.
const READERS_MOST: usize = 4;

/// Shortest time between two looks at the mounts of all namespaces for files that could not be opened.
const REFRESH_AFTER: Duration = Duration::from_secs(1);

impl Dropper {
    /// Reads the mounted file systems.
    ///
    /// # Errors
    /// Error of the kernel for `/proc/self/mountinfo`.
    pub fn new(files: &impl KernelFiles) -> Result<Dropper, Error> {
        let (readers, unreachable) = (BTreeMap::new(), BTreeMap::new());
        let file_systems = FileSystems::read(files)?;
        Ok(Dropper { file_systems, readers, unreachable, refreshed_at: Duration::ZERO })
    }

    /// The mounted file systems.
    pub fn file_systems(&self) -> &FileSystems {
        &self.file_systems
    }

    /// Mounted file systems, to look for more of them.
    pub fn file_systems_mut(&mut self) -> &mut FileSystems {
        &mut self.file_systems
    }

    /// Notes the process that inserted pages of a file.
    pub fn note_reader(&mut self, device: (u32, u32), reader: Pid) {
        if self.readers.len() >= DEVICES_REPORTED && !self.readers.contains_key(&device) {
            return;
        }
        let readers = self.readers.entry(device).or_default();
        if readers.last() != Some(&reader) {
            readers.retain(|known| *known != reader);
            readers.push(reader);
            let many = readers.len().saturating_sub(READERS_MOST);
            readers.drain(..many);
        }
    }

    /// True if the file system of this device is gone: there is nothing to say about its files.
    pub fn is_gone(&mut self, files: &impl KernelFiles, device: (u32, u32)) -> bool {
        let is_gone = self.file_systems.is_gone(files, device);
        if is_gone {
            self.unreachable.remove(&device);
        }
        is_gone
    }

    /// Reasons that files of some devices cannot be opened.
    pub fn unreachable(&self) -> impl Iterator<Item = (&(u32, u32), &String)> {
        self.unreachable.iter()
    }

    /// Drops the due pages; remaining pages go back to the queue.
    pub fn drop_due(
        &mut self,
        files: &impl KernelFiles,
        places: &mut Places<'_>,
        due: Vec<Due>,
        now: Duration,
    ) -> DropResult {
        let mut of_file: BTreeMap<FileId, Vec<Due>> = BTreeMap::new();
        for due in due {
            of_file.entry(due.file).or_default().push(due);
        }
        let mut result = DropResult::default();
        for (id, mut due) in of_file {
            if self.is_metadata(id) {
                result.leave(Reason::Metadata, id, count(&due));
                continue;
            }
            due.sort_by_key(|due| due.pages.start);
            match self.open(files, id, now) {
                Ok(Some(file)) => {
                    let all = count(&due);
                    let rows = joined(due);
                    // Pages inserted twice had been evicted before.
                    result.dropped.0 += all - rows.iter().map(|row| row.pages.end - row.pages.start).sum::<u64>();
                    rows.iter().for_each(|row| result.add(drop_row(files, &file, places, row, now)));
                }
                // The pages of a deleted file are gone with it.
                Ok(None) => result.dropped.0 += count(&due),
                Err((device, why)) => {
                    if self.unreachable.len() < DEVICES_REPORTED {
                        self.unreachable.entry(device).or_insert(why);
                    }
                    let reason = if device == id.device { Reason::Unreachable } else { Reason::BlockDevice };
                    result.leave(reason, id, count(&due));
                }
            }
        }
        result
    }

    /// True for an inode of btrfs that holds no file.
    fn is_metadata(&self, id: FileId) -> bool {
        let is_btrfs = || self.file_systems.mount_of_device(id.device).is_some_and(|mount| mount.kind() == "btrfs");
        id.device.0 == 0 && id.inode < BTRFS_FIRST_FILE && is_btrfs()
    }

    /// True if the pages can be dropped later, too: they are clean, and the file can be opened when its readers have
    /// ended (of btrfs only a file that is open already).
    pub fn may_wait(&mut self, files: &impl KernelFiles, due: &Due) -> bool {
        let FileId { device, inode, generation } = due.file;
        let opened = match block_device::of_inode(files, device, inode) {
            Some(itself) => self.open_device(files, itself).ok(),
            None => self.file_systems.open(files, &[], Numbers { device, inode, generation }).ok().flatten(),
        };
        let is_clean = |of: CacheStat| of.dirty.0 + of.writeback.0 == 0;
        opened.is_some_and(|file| state_of(&file, &due.pages).is_ok_and(is_clean))
    }

    /// `None` for a deleted file. A refusal names the device.
    fn open(&mut self, files: &impl KernelFiles, id: FileId, now: Duration) -> Result<Option<File>, Refusal> {
        if let Some(device) = block_device::of_inode(files, id.device, id.inode) {
            return self.open_device(files, device).map(Some);
        }
        let of = Numbers { device: id.device, inode: id.inode, generation: id.generation };
        let readers = self.readers.get(&id.device).map_or(&[][..], Vec::as_slice);
        match self.file_systems.open(files, readers, of) {
            Ok(file) => Ok(file),
            Err(why) if self.unreachable.contains_key(&id.device) && now < self.refreshed_at + REFRESH_AFTER => {
                Err((id.device, why.to_string()))
            }
            Err(_) => {
                // The mounts may have changed.
                self.refreshed_at = now;
                let refreshed = self.file_systems.refresh(files).map_err(|error| (id.device, error.to_string()));
                refreshed.and_then(|()| {
                    self.file_systems.open(files, readers, of).map_err(|why| (id.device, why.to_string()))
                })
            }
        }
    }

    /// A device that nothing else has open loses its pages when it is closed again: there is nothing left to drop then.
    fn open_device(&mut self, files: &impl KernelFiles, device: (u32, u32)) -> Result<File, Refusal> {
        let readers = self.readers.get(&device).map_or(&[][..], Vec::as_slice);
        if let Some(why) = self.file_systems.server_below(files, readers, device) {
            return Err((device, why.to_string()));
        }
        block_device::open_device(files, device).map_err(|error| (device, error.to_string()))
    }
}

/// Device, and the reason that its files cannot be opened.
type Refusal = ((u32, u32), String);

/// Consecutive ranges of one file: a large folio is dropped only as a whole.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    pages: Range<u64>,
    /// Sorted; no page is in two parts.
    parts: Vec<Due>,
}

/// Joins ranges, sorted by their first pages.
fn joined(due: Vec<Due>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for mut due in due {
        match rows.last_mut() {
            Some(row) if row.pages.end >= due.pages.start => {
                // Pages inserted twice are requested only once.
                due.pages.start = row.pages.end.min(due.pages.end);
                row.pages.end = row.pages.end.max(due.pages.end);
                if !due.pages.is_empty() {
                    row.parts.push(due);
                }
            }
            _ => rows.push(Row { pages: due.pages.clone(), parts: vec![due] }),
        }
    }
    rows
}

impl Row {
    /// Parts of `run` with their origin; parts with the same history are merged from now on.
    fn parts_of(&self, run: &Range<u64>) -> Vec<(&Due, Range<u64>)> {
        let mut found: Vec<(&Due, Range<u64>)> = Vec::new();
        for part in &self.parts {
            let pages = part.pages.start.max(run.start)..part.pages.end.min(run.end);
            if pages.is_empty() {
                continue;
            }
            let past = |due: &Due| (due.attempts, due.writes, due.early, due.process, due.may_page_out);
            match found.last_mut() {
                Some((before, last)) if past(before) == past(part) && last.end == pages.start => last.end = pages.end,
                _ => found.push((part, pages)),
            }
        }
        found
    }
}

/// Places for pages that stay.
#[derive(Debug)]
pub struct Places<'a> {
    /// Pages that are retried.
    pub queue: &'a mut Queue,
    /// Pages that the stream maps.
    pub own: &'a mut OwnMappings,
}

fn drop_row(files: &impl KernelFiles, file: &File, places: &mut Places<'_>, row: &Row, now: Duration) -> DropResult {
    let all = row.pages.end - row.pages.start;
    let mut result = DropResult::default();
    // Pages under write-back cannot be dropped; if all are, there is nothing to do.
    let waits = row.parts.iter().all(|part| part.writes > 0) && waits_for_the_disk(file, &row.pages);
    let answer = if waits {
        Ok((vec![row.pages.clone()], true))
    } else {
        page_cache::drop_clean(file, row.pages.clone()).and_then(|()| stayed(file, &row.pages))
    };
    // A file system that refuses keeps its pages; there is nothing to retry.
    let Ok((mut runs, mut unwritten)) = answer else {
        row.parts.iter().for_each(|part| result.leave(Reason::Unreachable, part.file, part.count()));
        return result;
    };
    if !waits && page_out(files, places.own, row, &runs, now) {
        // A page that was dirty only in the mapping is so in the page cache now.
        (runs, unwritten) = stayed(file, &row.pages).unwrap_or((runs, unwritten));
    }
    result.dropped = Pages(all);
    for run in runs {
        // Some pages are dirty; the query tells whether these are.
        let unwritten = unwritten && (waits || is_unwritten(file, &run));
        for (part, pages) in row.parts_of(&run) {
            let count = pages.end - pages.start;
            result.dropped.0 -= count;
            let again = (!unwritten && places.own.hold(files, part, &pages, now))
                || places.queue.stayed(now, part, pages, unwritten);
            if again {
                result.later.0 += count;
            } else {
                let reason = if unwritten { Reason::Unwritten } else { Reason::Mapped };
                result.leave(reason, part.file, count);
            }
        }
    }
    result
}

/// Removes pages that stayed from the mappings of their stream. Returns false if nothing was tried.
fn page_out(files: &impl KernelFiles, own: &mut OwnMappings, row: &Row, runs: &[Range<u64>], now: Duration) -> bool {
    let parts = runs.iter().flat_map(|run| row.parts_of(run));
    parts.fold(false, |tried, (part, pages)| own.page_out(files, part, &pages, now) || tried)
}

fn state_of(file: &File, pages: &Range<u64>) -> Result<CacheStat, Error> {
    cachestat(file.as_fd(), Pages(pages.start).bytes(), Pages(pages.end - pages.start).bytes())
}

/// True if all pages are cached and under write-back.
fn waits_for_the_disk(file: &File, pages: &Range<u64>) -> bool {
    state_of(file, pages)
        .is_ok_and(|of| of.dirty == Pages(0) && of.writeback == of.cached && of.cached.0 == pages.end - pages.start)
}

/// True if some pages must be written first.
fn is_unwritten(file: &File, pages: &Range<u64>) -> bool {
    state_of(file, pages).is_ok_and(|of| of.dirty.0 + of.writeback.0 > 0)
}

/// Pages still present, and whether some of them must be written first.
fn stayed(file: &File, pages: &Range<u64>) -> Result<(Vec<Range<u64>>, bool), Error> {
    match state_of(file, pages) {
        Ok(CacheStat { cached: Pages(0), .. }) => Ok((Vec::new(), false)),
        // Pages whose read is under way stay, too.
        Ok(of) => Ok((page_cache::cached(file, pages.clone())?, of.dirty.0 + of.writeback.0 > 0)),
        // Before Linux 6.5 the kernel does not show dirty pages: all pages have as many attempts as most disks need.
        Err(_) => Ok((page_cache::resident(file, pages.clone())?, false)),
    }
}

fn count(due: &[Due]) -> u64 {
    due.iter().map(Due::count).sum()
}

#[cfg(test)]
mod tests {
    use linux::Pid;

    use super::*;

    #[test]
    fn the_first_inodes_of_btrfs_are_metadata_and_no_files() {
        let mounts = "44 27 0:39 / /mnt rw - btrfs /dev/sda1 rw\n45 27 0:40 / /run rw - tmpfs tmpfs rw\n";
        let kernel = linux::fake::FakeKernel::new().file("proc/self/mountinfo", mounts);
        let mut dropper = Dropper::new(&kernel).unwrap();
        let is_metadata = |device, inode| dropper.is_metadata(FileId { device, inode, generation: 0 });
        assert!(is_metadata((0, 39), 1) && !is_metadata((0, 39), 256));
        assert!(!is_metadata((0, 40), 1) && !is_metadata((8, 1), 1));
        let id = FileId { device: (0, 39), inode: 1, generation: 0 };
        let mut places =
            Places { queue: &mut Queue::new(super::super::policy::SETTINGS), own: &mut OwnMappings::default() };
        let result = dropper.drop_due(&kernel, &mut places, vec![Due::first(id, 0..9, Pid(7))], Duration::ZERO);
        assert_eq!(result.left, [((Reason::Metadata, id), Pages(9))].into());
        assert_eq!(dropper.unreachable().count(), 0);
    }

    #[test]
    fn the_latest_readers_of_a_device_are_remembered_once_each() {
        let kernel = linux::fake::FakeKernel::new().file("proc/self/mountinfo", "");
        let mut dropper = Dropper::new(&kernel).unwrap();
        for pid in [1, 2, 1, 3, 4, 5, 5] {
            dropper.note_reader((8, 1), Pid(pid));
        }
        assert_eq!(dropper.readers[&(8, 1)], [1, 3, 4, 5].map(Pid));
    }

    const FILE: FileId = FileId { device: (8, 1), inode: 1, generation: 0 };

    fn due(pages: Range<u64>, attempts: u32) -> Due {
        Due { attempts, ..Due::first(FILE, pages, Pid(7)) }
    }

    #[test]
    fn consecutive_ranges_are_dropped_as_one_and_each_page_once() {
        let rows = joined(vec![due(0..4, 0), due(2..3, 5), due(3..8, 0), due(8..9, 1), due(12..13, 1)]);
        let parts = vec![due(0..4, 0), due(4..8, 0), due(8..9, 1)];
        assert_eq!(rows, [Row { pages: 0..9, parts }, Row { pages: 12..13, parts: vec![due(12..13, 1)] }]);
    }

    #[test]
    fn remaining_parts_keep_their_history_and_equal_ones_merge() {
        let row = joined(vec![due(0..4, 0), due(4..8, 0), due(8..16, 1)]).remove(0);
        let parts = |run: Range<u64>| {
            row.parts_of(&run).into_iter().map(|(due, pages)| (due.attempts, pages)).collect::<Vec<_>>()
        };
        assert_eq!(parts(2..12), [(0, 2..8), (1, 8..12)]);
        assert_eq!(parts(9..10), [(1, 9..10)]);
    }
}
