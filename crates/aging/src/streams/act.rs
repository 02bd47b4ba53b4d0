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
use quantities::Pages;

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
                Ok(Some(file)) => joined(due).for_each(|due| went.add(let_go_of(&file, queue, &due, now))),
                // A file that is gone took its pages with it.
                Ok(None) => went.dropped.0 += count(&due),
                Err(error) => {
                    self.unreachable.entry(id.device).or_insert_with(|| error.to_string());
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

/// Ranges of one file in order, those that follow each other made one: a large folio goes only as a whole.
fn joined(due: Vec<Due>) -> impl Iterator<Item = Due> {
    let mut all: Vec<Due> = Vec::with_capacity(due.len());
    for due in due {
        match all.last_mut() {
            Some(last) if last.pages.end >= due.pages.start => {
                last.pages.end = last.pages.end.max(due.pages.end);
                last.attempts = last.attempts.min(due.attempts);
                last.writes = last.writes.min(due.writes);
            }
            _ => all.push(due),
        }
    }
    all.into_iter()
}

fn let_go_of(file: &File, queue: &mut Queue, due: &Due, now: Duration) -> Went {
    let all = due.pages.end - due.pages.start;
    // Where all of it is still on its way to the disk, nothing can go.
    if due.writes > 0 && waits_for_the_disk(file, due) {
        let again = queue.stayed(now, due, due.pages.clone(), true);
        return if again {
            Went { later: Pages(all), ..Went::default() }
        } else {
            Went { left: Pages(all), ..Went::default() }
        };
    }
    let answer = page_cache::drop_clean(file, due.pages.clone()).and_then(|()| stayed(file, due));
    // A file system that refuses keeps its pages; there is nothing to be asked for again.
    let Ok((stayed, unwritten)) = answer else { return Went { left: Pages(all), ..Went::default() } };
    let mut went = Went { dropped: Pages(all), ..Went::default() };
    for run in stayed {
        let pages = run.end - run.start;
        went.dropped.0 -= pages;
        let again = queue.stayed(now, due, run, unwritten);
        *(if again { &mut went.later.0 } else { &mut went.left.0 }) += pages;
    }
    went
}

/// All that is there of it is being written.
fn waits_for_the_disk(file: &File, due: &Due) -> bool {
    let (start, length) = (Pages(due.pages.start).bytes(), Pages(due.pages.end - due.pages.start).bytes());
    cachestat(file.as_fd(), start, length)
        .is_ok_and(|of| of.dirty == Pages(0) && of.writeback == of.cached && of.cached.0 == length.0 / 4096)
}

/// What is still there, and whether something of it has to be written first.
fn stayed(file: &File, due: &Due) -> Result<(Vec<Range<u64>>, bool), Error> {
    let (start, length) = (Pages(due.pages.start).bytes(), Pages(due.pages.end - due.pages.start).bytes());
    match cachestat(file.as_fd(), start, length) {
        Ok(CacheStat { cached: Pages(0), .. }) => Ok((Vec::new(), false)),
        Ok(of) => Ok((page_cache::resident(file, due.pages.clone())?, of.dirty.0 + of.writeback.0 > 0)),
        // Before Linux 6.5 that is not told: pages have as many attempts as most disks need.
        Err(_) => Ok((page_cache::resident(file, due.pages.clone())?, false)),
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

    #[test]
    fn ranges_that_follow_each_other_are_asked_for_as_one() {
        let file = FileId { device: (8, 1), inode: 1, generation: 0 };
        let due = |pages, attempts| Due { file, pages, attempts, writes: 0 };
        let all: Vec<Due> = joined(vec![due(0..4, 0), due(4..8, 0), due(8..9, 1), due(12..13, 1)]).collect();
        assert_eq!(all, [due(0..9, 0), due(12..13, 1)]);
    }
}
