//! Lets go what streams have brought in, and looks what went.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use access::arrivals::FileId;
use linux::cachestat::{CacheStat, cachestat};
use linux::file_handle::FileSystems;
use linux::{Error, KernelFiles, page_cache};
use units::Pages;

use super::policy::{Due, Queue};

/// What became of what was asked to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Went {
    /// Not in the page cache any more.
    pub dropped: Pages,
    /// Still there, and asked for again later: it has to be written first, or is in use.
    pub later: Pages,
    /// Given up: somebody has mapped it, or it is in a file that we cannot reach.
    pub left: Pages,
}

impl Went {
    /// Adds what became of others.
    pub fn add(&mut self, other: Went) {
        self.dropped.0 += other.dropped.0;
        self.later.0 += other.later.0;
        self.left.0 += other.left.0;
    }
}

/// Reaches files by the numbers that the kernel has for them.
#[derive(Debug)]
pub struct Dropper {
    file_systems: FileSystems,
    /// Why files of a device could not be reached, the first time.
    unreachable: BTreeMap<(u32, u32), String>,
}

/// Any user may mount file systems of its own (FUSE): of no more devices than these it is said that they cannot be reached.
const DEVICES_TOLD: usize = 256;

impl Dropper {
    /// Looks what is mounted.
    ///
    /// # Errors
    /// The kernel's answer for `/proc/self/mountinfo`.
    pub fn new(files: &impl KernelFiles) -> Result<Dropper, Error> {
        Ok(Dropper { file_systems: FileSystems::read(files)?, unreachable: BTreeMap::new() })
    }

    /// Why files of some devices cannot be reached.
    pub fn unreachable(&self) -> impl Iterator<Item = (&(u32, u32), &String)> {
        self.unreachable.iter()
    }

    /// Lets go what is due; what stays goes back to the queue.
    pub fn let_go(&mut self, files: &impl KernelFiles, queue: &mut Queue, due: Vec<Due>, now: Duration) -> Went {
        let mut of_file: BTreeMap<FileId, Vec<Due>> = BTreeMap::new();
        for due in due {
            of_file.entry(due.file).or_default().push(due);
        }
        let mut went = Went::default();
        for (id, mut due) in of_file {
            due.sort_by_key(|due| due.pages.start);
            // The kernel's records of its file systems, and devices that are read as they are: not files that could be opened again.
            if is_of_block_device(files, id) {
                went.left.0 += count(&due);
                continue;
            }
            match self.open(files, id) {
                Ok(Some(file)) => joined(due).iter().for_each(|row| went.add(let_go_of(&file, queue, row, now))),
                // A file that is gone took its pages with it.
                Ok(None) => went.dropped.0 += count(&due),
                Err(error) => {
                    if self.unreachable.len() < DEVICES_TOLD {
                        self.unreachable.entry(id.device).or_insert_with(|| error.to_string());
                    }
                    went.left.0 += count(&due);
                }
            }
        }
        went
    }

    /// `None` for one that is gone.
    fn open(&mut self, files: &impl KernelFiles, id: FileId) -> Result<Option<File>, Error> {
        match self.file_systems.open(id.device, id.inode, id.generation) {
            Ok(file) => Ok(Some(file)),
            Err(Error::Gone(_)) => Ok(None),
            Err(error) if self.unreachable.contains_key(&id.device) => Err(error),
            Err(_) => {
                // Something may have been mounted since.
                self.file_systems = FileSystems::read(files)?;
                match self.file_systems.open(id.device, id.inode, id.generation) {
                    Err(Error::Gone(_)) => Ok(None),
                    answer => answer.map(Some),
                }
            }
        }
    }
}

/// A block device has a page cache of its own, in a file system that is mounted nowhere; its inode is the device's number.
fn is_of_block_device(files: &impl KernelFiles, id: FileId) -> bool {
    let (major, minor) = (id.inode >> 20, id.inode & 0xf_ffff);
    id.device.0 == 0 && files.read(&format!("sys/dev/block/{major}:{minor}/dev")).is_ok()
}

/// Ranges of one file that follow each other: a large folio goes only as a whole.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    pages: Range<u64>,
    /// In order; none has a page of another.
    parts: Vec<Due>,
}

/// Rows of what is in order of its first pages.
fn joined(due: Vec<Due>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for mut due in due {
        match rows.last_mut() {
            Some(row) if row.pages.end >= due.pages.start => {
                // What has come twice was asked for already.
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
    /// What of `run` belongs to each part; parts with the same past are one from now on.
    fn parts_of(&self, run: &Range<u64>) -> Vec<(&Due, Range<u64>)> {
        let mut found: Vec<(&Due, Range<u64>)> = Vec::new();
        for part in &self.parts {
            let pages = part.pages.start.max(run.start)..part.pages.end.min(run.end);
            if pages.is_empty() {
                continue;
            }
            let past = |due: &Due| (due.attempts, due.writes, due.early);
            match found.last_mut() {
                Some((before, last)) if past(before) == past(part) && last.end == pages.start => last.end = pages.end,
                _ => found.push((part, pages)),
            }
        }
        found
    }
}

fn let_go_of(file: &File, queue: &mut Queue, row: &Row, now: Duration) -> Went {
    let all = row.pages.end - row.pages.start;
    let mut went = Went::default();
    // Where all of it is still on its way to the disk, nothing can go.
    let waits = row.parts.iter().all(|part| part.writes > 0) && waits_for_the_disk(file, &row.pages);
    let answer = if waits {
        Ok((vec![row.pages.clone()], true))
    } else {
        page_cache::drop_clean(file, row.pages.clone()).and_then(|()| stayed(file, &row.pages))
    };
    // A file system that refuses keeps its pages; there is nothing to be asked for again.
    let Ok((runs, unwritten)) = answer else { return Went { left: Pages(all), ..went } };
    went.dropped = Pages(all);
    for run in runs {
        // Some of it; which?
        let unwritten = unwritten && (waits || is_unwritten(file, &run));
        for (part, pages) in row.parts_of(&run) {
            let count = pages.end - pages.start;
            went.dropped.0 -= count;
            let again = queue.stayed(now, part, pages, unwritten);
            *(if again { &mut went.later.0 } else { &mut went.left.0 }) += count;
        }
    }
    went
}

fn state_of(file: &File, pages: &Range<u64>) -> Result<CacheStat, Error> {
    cachestat(file.as_fd(), Pages(pages.start).bytes(), Pages(pages.end - pages.start).bytes())
}

/// All that is there of it is being written.
fn waits_for_the_disk(file: &File, pages: &Range<u64>) -> bool {
    state_of(file, pages)
        .is_ok_and(|of| of.dirty == Pages(0) && of.writeback == of.cached && of.cached.0 == pages.end - pages.start)
}

/// Something of it has to be written first.
fn is_unwritten(file: &File, pages: &Range<u64>) -> bool {
    state_of(file, pages).is_ok_and(|of| of.dirty.0 + of.writeback.0 > 0)
}

/// What is still there, and whether something of it has to be written first.
fn stayed(file: &File, pages: &Range<u64>) -> Result<(Vec<Range<u64>>, bool), Error> {
    match state_of(file, pages) {
        Ok(CacheStat { cached: Pages(0), .. }) => Ok((Vec::new(), false)),
        Ok(of) => Ok((page_cache::resident(file, pages.clone())?, of.dirty.0 + of.writeback.0 > 0)),
        // Before Linux 6.5 that is not told: pages have as many attempts as most disks need.
        Err(_) => Ok((page_cache::resident(file, pages.clone())?, false)),
    }
}

fn count(due: &[Due]) -> u64 {
    due.iter().map(|due| due.pages.end - due.pages.start).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_system_reads_of_its_device_is_known_by_the_devices_number() {
        let kernel = linux::fake::FakeKernel::new().file("sys/dev/block/254:0/dev", "254:0\n");
        let id = |device, inode| FileId { device, inode, generation: 0 };
        assert!(is_of_block_device(&kernel, id((0, 3), 254 << 20)));
        assert!(!is_of_block_device(&kernel, id((0, 3), 254 << 20 | 1)), "no such device");
        assert!(!is_of_block_device(&kernel, id((254, 0), 254 << 20)), "a file on it");
    }

    const FILE: FileId = FileId { device: (8, 1), inode: 1, generation: 0 };

    fn due(pages: Range<u64>, attempts: u32) -> Due {
        Due { file: FILE, pages, attempts, writes: 0, early: None }
    }

    #[test]
    fn ranges_that_follow_each_other_are_asked_for_as_one_and_each_page_once() {
        let rows = joined(vec![due(0..4, 0), due(2..3, 5), due(3..8, 0), due(8..9, 1), due(12..13, 1)]);
        let parts = vec![due(0..4, 0), due(4..8, 0), due(8..9, 1)];
        assert_eq!(rows, [Row { pages: 0..9, parts }, Row { pages: 12..13, parts: vec![due(12..13, 1)] }]);
    }

    #[test]
    fn what_stays_of_a_row_keeps_its_past_and_what_has_the_same_is_one() {
        let row = joined(vec![due(0..4, 0), due(4..8, 0), due(8..16, 1)]).remove(0);
        let parts = |run: Range<u64>| {
            row.parts_of(&run).into_iter().map(|(due, pages)| (due.attempts, pages)).collect::<Vec<_>>()
        };
        assert_eq!(parts(2..12), [(0, 2..8), (1, 8..12)]);
        assert_eq!(parts(9..10), [(1, 9..10)]);
    }
}
