//! Pages that a stream itself maps: paged out of its mapping once the stream has passed them, dropped when it unmaps them.
//!
//! The kernel drops no mapped page (`POSIX_FADV_DONTNEED`). `MADV_PAGEOUT` removes a page from one process's mapping and
//! reclaims it, if no other process maps it. It loses no data: dirty pages stay, and private copies are left out here. A
//! program that comes back to such a page reads it from the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use access::insertions::FileId;
use linux::maps::maps;
use linux::pagemap::Pagemap;
use linux::process_madvise::{Advice, RANGES_MAX, advise};
use linux::{KernelFiles, Pid, status};
use units::{Address, AddressRange, Pages};

use super::due::Due;
use super::tally::Owner;

/// Mappings of a process are read again after this time; those of the process that inserted a page in each step, since
/// it may have mapped the file a moment before.
const VALID: Duration = Duration::from_millis(250);

/// The same for a process with many mappings of files, whose reading takes long.
const VALID_OF_MANY: Duration = Duration::from_secs(2);

/// Number of mappings that are many: they are read in about a millisecond.
const MANY: usize = 1024;

/// Many mappings are read for at most this part of the time.
const READING_PART: u32 = 20;

/// Held pages are checked again after this time.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Processes of the streams that are looked at for one file.
const PROCESSES_MOST: usize = 64;

/// Ranges held; more are given up like pages that others map.
const HELD_MOST: usize = 1 << 18;

const PAGE: u64 = Pages(1).bytes().0;

/// Mappings of the streams' processes, and the pages that wait for their end.
#[derive(Debug, Default)]
pub struct OwnMappings {
    /// Processes of the streams, beside the one that inserted a page.
    processes: BTreeSet<Pid>,
    /// Mappings of files by process, as last read.
    read: BTreeMap<Pid, Read>,
    /// Pages of files that a process with many mappings may have mapped since they were read, with the time.
    undecided: Vec<(Duration, Due)>,
    held: BTreeMap<FileId, Vec<Due>>,
    held_ranges: usize,
    held_pages: u64,
    checked_at: Duration,
}

/// Mappings of files of one process.
#[derive(Debug)]
struct Read {
    at: Duration,
    /// Time that the reading took.
    cost: Duration,
    mappings: Vec<FileMapping>,
}

impl Read {
    fn of(files: &impl KernelFiles, pid: Pid, now: Duration) -> Read {
        let begun = Instant::now();
        let mappings = mappings_of(files, pid);
        Read { at: now, cost: begun.elapsed(), mappings }
    }

    fn has(&self, file: FileId) -> bool {
        self.mappings.iter().any(|of| (of.device, of.inode) == (file.device, file.inode))
    }

    /// Whether it tells at `now` of the mappings of a file. `inserts`: the process inserts pages of it.
    fn is_valid(&self, now: Duration, file: FileId, inserts: bool) -> bool {
        let valid = match self.mappings.len() > MANY {
            true if self.has(file) => VALID_OF_MANY,
            // The file may have been mapped since: read again, for a part of the time.
            true => self.cost * READING_PART,
            false if inserts => Duration::ZERO,
            false => VALID,
        };
        now == self.at || now < self.at + valid
    }
}

/// Mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileMapping {
    device: (u32, u32),
    inode: u64,
    /// Pages of the file.
    pages: Range<u64>,
    start: Address,
    is_code: bool,
}

impl OwnMappings {
    /// Sets the processes of the streams; those that inserted a page are looked at in any case.
    pub fn set_processes(&mut self, processes: BTreeSet<Pid>) {
        self.processes = processes;
    }

    /// True for a process of the streams.
    pub fn is_of_stream(&self, pid: Pid) -> bool {
        self.processes.contains(&pid) || self.read.contains_key(&pid)
    }

    /// Held pages.
    pub fn held(&self) -> Pages {
        Pages(self.held_pages)
    }

    /// True if a process of the stream maps some of these pages.
    pub fn is_mapped(&mut self, files: &impl KernelFiles, due: &Due, pages: &Range<u64>, now: Duration) -> bool {
        !self.through(files, due, pages, now).is_empty()
    }

    /// Takes pages of a process with many mappings that may have mapped the file since they were read, until they are
    /// read again. Returns false for other pages.
    pub fn take_undecided(&mut self, due: &Due, now: Duration) -> bool {
        let is_old = |read: &Read| read.mappings.len() > MANY && read.at < now && !read.has(due.file);
        let takes =
            !due.has_waited && self.undecided.len() < HELD_MOST && self.read.get(&due.process).is_some_and(is_old);
        if takes {
            self.held_pages += due.count();
            self.undecided.push((now, Due { has_waited: true, ..due.clone() }));
        }
        takes
    }

    /// Pages whose process's mappings were read since.
    pub fn decided(&mut self, files: &impl KernelFiles, now: Duration) -> Vec<Due> {
        let processes: BTreeSet<Pid> = self.undecided.iter().map(|(_, due)| due.process).collect();
        for pid in processes {
            if self.read.get(&pid).is_none_or(|read| now >= read.at + read.cost * READING_PART) {
                self.read.insert(pid, Read::of(files, pid, now));
            }
        }
        let is_decided = |since: &Duration, due: &Due| self.read.get(&due.process).is_none_or(|read| read.at > *since);
        let (decided, left) =
            std::mem::take(&mut self.undecided).into_iter().partition(|(since, due)| is_decided(since, due));
        self.undecided = left;
        let decided: Vec<(Duration, Due)> = decided;
        self.held_pages -= decided.iter().map(|(_, due)| due.count()).sum::<u64>();
        decided.into_iter().map(|(_, due)| due).collect()
    }

    /// Removes these pages of `due` from the mappings of the stream's processes, if it has passed them. Returns false if
    /// nothing was tried.
    pub fn page_out(&mut self, files: &impl KernelFiles, due: &Due, pages: &Range<u64>, now: Duration) -> bool {
        if !due.may_page_out {
            return false;
        }
        let through = self.through(files, due, pages, now);
        // Code is used for as long as it is mapped, though it is read in order at first.
        if through.is_empty() || through.iter().any(|(_, mapping)| mapping.is_code) {
            return false;
        }
        for (pid, mapping) in through {
            page_out(pid, &mapping, pages);
        }
        true
    }

    /// Takes pages that a process of the stream maps, until it unmaps them. Returns false for other pages.
    pub fn hold(&mut self, files: &impl KernelFiles, due: &Due, pages: &Range<u64>, now: Duration) -> bool {
        self.is_mapped(files, due, pages, now) && self.hold_mapped(due, pages)
    }

    /// The same for pages that are known to be mapped. Returns false when too many are held.
    pub fn hold_mapped(&mut self, due: &Due, pages: &Range<u64>) -> bool {
        if self.held_ranges >= HELD_MOST {
            return false;
        }
        self.held_ranges += 1;
        self.held_pages += pages.end - pages.start;
        let held = Due { may_page_out: due.may_page_out, ..Due::first(due.file, pages.clone(), due.process) };
        self.held.entry(due.file).or_default().push(held);
        true
    }

    /// Held pages to try again: those that no process of the stream maps any more, and those that it has passed since.
    pub fn due(&mut self, files: &impl KernelFiles, now: Duration, is_passed: impl Fn(&Due) -> bool) -> Vec<Due> {
        if now < self.checked_at + CHECK_EVERY {
            return Vec::new();
        }
        self.checked_at = now;
        let (mut due, mut held) = (Vec::new(), BTreeMap::<FileId, Vec<Due>>::new());
        for (file, ranges) in std::mem::take(&mut self.held) {
            for range in ranges {
                // Once paged out and mapped again, or shared with others: there is nothing more to try before its end.
                let passes = !range.may_page_out && is_passed(&range);
                if passes || !self.is_mapped(files, &range, &range.pages.clone(), now) {
                    due.push(Due { may_page_out: passes, ..range });
                } else {
                    held.entry(file).or_default().push(range);
                }
            }
        }
        self.held = held;
        self.held_ranges -= due.len();
        self.held_pages -= due.iter().map(Due::count).sum::<u64>();
        self.read.retain(|_, read| now < read.at + VALID_OF_MANY);
        due
    }

    /// All held pages, at the end.
    pub fn rest(&mut self) -> Vec<Due> {
        (self.held_ranges, self.held_pages) = (0, 0);
        let undecided = std::mem::take(&mut self.undecided).into_iter().map(|(_, due)| due);
        std::mem::take(&mut self.held).into_values().flatten().chain(undecided).collect()
    }

    fn through(
        &mut self,
        files: &impl KernelFiles,
        due: &Due,
        pages: &Range<u64>,
        now: Duration,
    ) -> Vec<(Pid, FileMapping)> {
        let others = self.processes.iter().copied().filter(|pid| *pid != due.process).take(PROCESSES_MOST);
        let processes: Vec<Pid> = std::iter::once(due.process).chain(others).collect();
        let mut found = Vec::new();
        for pid in processes {
            let is_read = self.read.get(&pid).is_some_and(|read| read.is_valid(now, due.file, pid == due.process));
            if !is_read {
                self.read.insert(pid, Read::of(files, pid, now));
            }
            let mappings = self.read.get(&pid).map_or(&[][..], |read| &read.mappings);
            let of_file = mappings.iter().filter(|of| (of.device, of.inode) == (due.file.device, due.file.inode));
            let of_pages = of_file.filter(|of| of.pages.start < pages.end && pages.start < of.pages.end);
            found.extend(of_pages.map(|of| (pid, of.clone())));
        }
        found
    }
}

/// Mappings of files; empty for a process that has ended, or belongs to another user.
fn mappings_of(files: &impl KernelFiles, pid: Pid) -> Vec<FileMapping> {
    let mappings = maps(files, pid).unwrap_or_default().into_iter().filter(|mapping| mapping.inode != 0);
    let of_file = mappings.map(|mapping| {
        let first = mapping.offset / PAGE;
        FileMapping {
            device: mapping.device,
            inode: mapping.inode,
            pages: first..first.saturating_add(mapping.range.pages().0),
            start: mapping.range.start(),
            is_code: mapping.permissions.execute,
        }
    });
    let mut mappings: Vec<FileMapping> = of_file.collect();
    // A file with code in one mapping has its constants in others.
    let code: BTreeSet<_> = mappings.iter().filter(|of| of.is_code).map(|of| (of.device, of.inode)).collect();
    mappings.iter_mut().for_each(|of| of.is_code = code.contains(&(of.device, of.inode)));
    mappings
}

/// Pages out what the process maps of these pages of the file. A failure leaves the pages mapped, which the caller sees.
fn page_out(pid: Pid, mapping: &FileMapping, pages: &Range<u64>) {
    let (first, end) = (pages.start.max(mapping.pages.start), pages.end.min(mapping.pages.end));
    let address = |page: u64| mapping.start.0 + (page - mapping.pages.start) * PAGE;
    let Ok(range) = AddressRange::new(address(first), address(end)) else { return };
    // Private copies of pages are the program's data: they are no pages of the file.
    let mut runs: Vec<Range<u64>> = Vec::new();
    let Ok(pagemap) = Pagemap::open(pid) else { return };
    let read = pagemap.each(range, |at, entry| {
        if entry.is_present() && entry.is_file() {
            match runs.last_mut() {
                Some(last) if last.end == at.0 => last.end = at.0 + PAGE,
                _ => runs.push(at.0..at.0 + PAGE),
            }
        }
    });
    let Ok(pidfd) = pid.open() else { return };
    let ranges: Vec<AddressRange> = runs.iter().filter_map(|run| AddressRange::new(run.start, run.end).ok()).collect();
    if read.is_ok() {
        for ranges in ranges.chunks(RANGES_MAX) {
            let _ = advise(pid, pidfd.as_fd(), ranges, Advice::PageOut);
        }
    }
}

/// A process that maps each of these files, if one is found in the time of a scan.
pub fn mappers(files: &impl KernelFiles, wanted: &BTreeSet<FileId>) -> BTreeMap<FileId, Owner> {
    const MOST: Duration = Duration::from_millis(300);
    let begun = Instant::now();
    let mut found = BTreeMap::new();
    let mut left: BTreeMap<((u32, u32), u64), FileId> =
        wanted.iter().map(|file| ((file.device, file.inode), *file)).collect();
    for pid in linux::processes::processes(files).unwrap_or_default() {
        if left.is_empty() || begun.elapsed() >= MOST {
            break;
        }
        for mapping in mappings_of(files, pid) {
            if let Some(file) = left.remove(&(mapping.device, mapping.inode)) {
                let name = status::status(files, pid).map_or_else(|_| "ended".into(), |status| status.name);
                found.insert(file, Owner::Process(pid, name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    const FILE: FileId = FileId { device: (8, 1), inode: 12, generation: 3 };

    fn kernel() -> FakeKernel {
        FakeKernel::new()
            .file(
                "proc/7/maps",
                "7f0000000000-7f0000400000 r--s 00100000 08:01 12 /data\n\
                 7f1000000000-7f1000001000 r--p 00000000 08:01 13 /lib\n\
                 7f1000001000-7f1000002000 r-xp 00001000 08:01 13 /lib\n",
            )
            .file("proc/8/maps", "")
            .file("proc/8/status", "Name:\tother\n")
    }

    fn due(pages: Range<u64>) -> Due {
        Due::first(FILE, pages, Pid(7))
    }

    #[test]
    fn pages_are_held_while_the_stream_maps_them_and_no_longer() {
        let (kernel, mut own) = (kernel(), OwnMappings::default());
        assert!(own.hold(&kernel, &due(0..1024), &(256..1024), Duration::ZERO));
        assert!(!own.hold(&kernel, &due(0..1024), &(0..256), Duration::ZERO), "not these pages");
        assert_eq!(own.held(), Pages(768));
        let second = Duration::from_secs(1);
        assert_eq!(own.due(&kernel, second, |_| false), []);
        let unmapped = FakeKernel::new().file("proc/7/maps", "");
        assert_eq!(own.due(&unmapped, second, |_| false), [], "not so often");
        assert_eq!(own.due(&unmapped, second * 2, |_| false), [due(256..1024)]);
        assert_eq!((own.held(), own.rest()), (Pages(0), vec![]));
    }

    #[test]
    fn passed_pages_are_due_while_they_are_mapped_and_may_be_paged_out() {
        let (kernel, mut own) = (kernel(), OwnMappings::default());
        own.hold(&kernel, &due(256..512), &(256..512), Duration::ZERO);
        own.hold(&kernel, &due(512..1024), &(512..1024), Duration::ZERO);
        let passed = own.due(&kernel, Duration::from_secs(1), |due| due.pages.end <= 512);
        assert_eq!(passed, [Due { may_page_out: true, ..due(256..512) }]);
        assert_eq!(own.rest(), [due(512..1024)]);
    }

    #[test]
    fn pages_that_may_come_into_use_again_and_code_are_not_paged_out() {
        let (kernel, mut own) = (kernel(), OwnMappings::default());
        assert!(!own.page_out(&kernel, &due(256..512), &(256..512), Duration::ZERO), "not passed");
        let code = Due { may_page_out: true, ..Due::first(FileId { inode: 13, ..FILE }, 0..1, Pid(7)) };
        assert!(!own.page_out(&kernel, &code, &(0..1), Duration::ZERO), "the constants of a library");
    }

    #[test]
    fn of_many_mappings_those_of_a_file_mapped_since_are_found() {
        let mapping = |n: u64| format!("{:x}-{:x} r--s 00000000 08:01 {} /f\n", n << 20, (n << 20) + 4096, n + 100);
        let kernel = |count: u64| FakeKernel::new().file("proc/7/maps", &(1..=count).map(mapping).collect::<String>());
        let of = |n: u64| Due { file: FileId { inode: n + 100, ..FILE }, ..due(0..1) };
        let mut own = OwnMappings::default();
        let is_mapped = |own: &mut OwnMappings, count: u64, n: u64, seconds: u64| {
            own.is_mapped(&kernel(count), &of(n), &(0..1), Duration::from_secs(seconds))
        };
        assert!(is_mapped(&mut own, 2000, 2000, 10) && !is_mapped(&mut own, 2000, 3000, 10));
        assert!(is_mapped(&mut own, 1, 2000, 11), "a known one is looked up in the old list");
        assert!(is_mapped(&mut own, 3000, 3000, 11), "an unknown one is looked for");
        let later = Duration::from_secs(12);
        assert!(own.take_undecided(&of(3001), later) && !own.take_undecided(&of(3000), later));
        let decided = own.decided(&kernel(3001), later + Duration::from_secs(1));
        assert_eq!(decided, [Due { has_waited: true, ..of(3001) }]);
        assert!(is_mapped(&mut own, 1, 3001, 13) && !own.take_undecided(&decided[0], Duration::from_secs(14)));
        assert_eq!(own.held(), Pages(0));
    }

    #[test]
    fn another_process_of_the_command_counts_as_the_stream() {
        let (kernel, mut own) = (kernel(), OwnMappings::default());
        let of_other = Due { process: Pid(8), ..due(256..512) };
        assert!(!own.is_mapped(&kernel, &of_other, &(256..512), Duration::ZERO));
        own.set_processes([Pid(7)].into());
        assert!(own.is_mapped(&kernel, &of_other, &(256..512), Duration::ZERO));
    }
}
