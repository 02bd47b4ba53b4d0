//! Detection of streams among page-cache insertions, when no process was named. Pure.
//!
//! A stream reads or writes files in order, each page once: a backup, a copy, a search, a growing log. A program with
//! random lookups inserts scattered pages. A process counts as a stream after it has inserted much, nearly all of it in
//! order: each run begins at the end of the last run in its file, or at the file's first page.
//!
//! Insertions before the detection belong to the stream, too.
//!
//! A server with a cold cache also reads whole files, but returns to them. A process that inserts a file for the second
//! time reuses its data, and is no stream for as long as it does so. The same applies, as far as can be seen, to a
//! process that rewrites a file.
//!
//! No I/O, no clock, no randomness.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use access::insertions::{FileId, Insertion};
use linux::Pid;
use units::Pages;

/// Insertions in order after which a process is a stream: 64 MiB.
pub const MUCH: Pages = Pages(16384);

/// Least fraction of them in order.
pub const IN_ORDER: f64 = 0.9;

/// Number of files per process whose ends are remembered.
const FILES_MOST: usize = 256;

/// Number of files of all processes that are remembered as inserted, 4 bytes each.
const INSERTED_MOST: usize = 1 << 18;

/// Number of remembered processes with few insertions.
const PROCESSES_MOST: usize = 1024;

/// State of the processes with insertions.
#[derive(Debug, Default)]
pub struct Detector {
    processes: BTreeMap<Pid, Process>,
    /// Number of all files remembered as inserted.
    inserted: usize,
}

#[derive(Debug, Default)]
struct Process {
    all: u64,
    in_order: u64,
    ends: BTreeMap<FileId, End>,
    /// Files whose first page it has inserted, by a hash of their number.
    inserted: BTreeSet<u32>,
    /// Insertions before the decision.
    before: Vec<Insertion>,
    is_stream: bool,
}

/// Position of a process in a file.
#[derive(Clone, Copy, Debug)]
struct End {
    page: u64,
    /// Not the first pass over the file.
    is_again: bool,
}

impl Detector {
    /// Insertions of a stream: of this one, and of earlier ones by the same process.
    pub fn add(&mut self, insertion: Insertion) -> Vec<Insertion> {
        if !self.processes.contains_key(&insertion.process) {
            self.forget_small();
        }
        if self.inserted >= INSERTED_MOST
            && let Some(process) = self.processes.values_mut().max_by_key(|process| process.inserted.len())
        {
            self.inserted -= process.inserted.len();
            process.inserted.clear();
        }
        let process = self.processes.entry(insertion.process).or_default();
        let before = process.inserted.len();
        process.note(&insertion);
        self.inserted += process.inserted.len() - before;
        if process.is_stream {
            return vec![insertion];
        }
        process.before.push(insertion);
        if process.all >= MUCH.0 {
            process.is_stream = is_in_order(process.in_order, process.all);
            let before = std::mem::take(&mut process.before);
            if process.is_stream {
                return before;
            }
            // No stream now; the next insertions may be one.
            (process.all, process.in_order) = (0, 0);
        }
        Vec::new()
    }

    /// Forgets the half of the undecided processes with the fewest insertions when there are too many. Many short-lived
    /// readers therefore cannot hide other processes.
    fn forget_small(&mut self) {
        let undecided = self.processes.values().filter(|process| !process.is_stream);
        let mut amounts: Vec<u64> = undecided.map(|process| process.all).collect();
        if amounts.len() < PROCESSES_MOST {
            return;
        }
        amounts.sort_unstable();
        let little = amounts[amounts.len() / 2];
        self.processes.retain(|_, process| process.is_stream || process.all > little);
        self.inserted = self.processes.values().map(|process| process.inserted.len()).sum();
    }

    /// Processes that are streams.
    pub fn streams(&self) -> impl Iterator<Item = Pid> + '_ {
        self.processes.iter().filter(|(_, process)| process.is_stream).map(|(pid, _)| *pid)
    }

    /// Forgets processes that have ended.
    pub fn forget(&mut self, mut has_ended: impl FnMut(Pid) -> bool) {
        self.processes.retain(|pid, _| !has_ended(*pid));
        self.inserted = self.processes.values().map(|process| process.inserted.len()).sum();
    }
}

impl Process {
    fn note(&mut self, insertion: &Insertion) {
        let count = insertion.pages.end.saturating_sub(insertion.pages.start);
        let start = insertion.pages.start;
        self.all += count;
        let end = self.ends.get(&insertion.file).copied();
        let is_again =
            if start == 0 { !self.inserted.insert(short(insertion.file)) } else { end.is_some_and(|end| end.is_again) };
        if !is_again && (start == 0 || end.is_some_and(|end| end.page == start)) {
            self.in_order += count;
        }
        if self.ends.len() >= FILES_MOST && !self.ends.contains_key(&insertion.file) {
            self.ends.clear();
        }
        self.ends.insert(insertion.file, End { page: insertion.pages.end, is_again });
        // A process that changes to lookups is no stream any more.
        if self.is_stream && self.all >= 2 * MUCH.0 {
            self.is_stream = is_in_order(self.in_order, self.all);
            (self.all, self.in_order) = (0, 0);
        }
    }
}

/// Short hash: two files in a million collide.
fn short(file: FileId) -> u32 {
    let mut hasher = DefaultHasher::new();
    file.hash(&mut hasher);
    (hasher.finish() >> 32) as u32
}

#[expect(clippy::cast_precision_loss, reason = "numbers of pages, far below 2^52")]
fn is_in_order(in_order: u64, all: u64) -> bool {
    in_order as f64 >= all as f64 * IN_ORDER
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn insertion(inode: u64, pages: Range<u64>) -> Insertion {
        Insertion { file: FileId { device: (8, 1), inode, generation: 0 }, pages, process: Pid(7) }
    }

    fn pages(insertions: &[Insertion]) -> u64 {
        insertions.iter().map(|insertion| insertion.pages.end - insertion.pages.start).sum()
    }

    fn insertion_of(process: i32, inode: u64, pages: Range<u64>) -> Insertion {
        Insertion { process: Pid(process), ..insertion(inode, pages) }
    }

    #[test]
    fn many_small_readers_hide_no_stream() {
        let mut detector = Detector::default();
        for nth in 0..MUCH.0 / 128 {
            for other in 0..50 {
                let pid = i32::try_from(100 + nth * 50 + other).unwrap();
                detector.add(insertion_of(pid, 9, 0..1));
            }
            detector.add(insertion(1, nth * 128..(nth + 1) * 128));
        }
        assert_eq!(detector.streams().collect::<Vec<_>>(), [Pid(7)]);
        assert!(detector.processes.len() <= PROCESSES_MOST + 1);
    }

    #[test]
    fn a_process_that_reads_many_files_makes_masu_forget_its_own() {
        let mut detector = Detector::default();
        detector.add(insertion_of(7, 1, 0..4));
        for inode in 0..=INSERTED_MOST as u64 {
            detector.add(insertion_of(8, 10 + inode, 0..1));
        }
        assert_eq!(detector.processes[&Pid(7)].inserted.len(), 1);
        assert!(detector.processes[&Pid(8)].inserted.len() < INSERTED_MOST);
    }

    #[test]
    fn a_copy_is_a_stream_from_its_first_page_on() {
        let mut detector = Detector::default();
        let found: u64 = (0..300).map(|n| pages(&detector.add(insertion(1, n * 128..(n + 1) * 128)))).sum();
        assert_eq!(found, 300 * 128);
        assert_eq!(detector.streams().collect::<Vec<_>>(), [Pid(7)]);
    }

    #[test]
    fn a_backup_of_many_small_files_is_a_stream() {
        let mut detector = Detector::default();
        let found: u64 = (0..3000).map(|inode| pages(&detector.add(insertion(inode, 0..8)))).sum();
        assert_eq!(found, 3000 * 8);
    }

    #[test]
    fn a_database_with_random_lookups_is_no_stream() {
        let mut detector = Detector::default();
        let found: u64 = (0..20_000u64)
            .map(|n| pages(&detector.add(insertion(1, (n * 7919) % 100_000 + 1..(n * 7919) % 100_000 + 5))))
            .sum();
        assert_eq!((found, detector.streams().count()), (0, 0));
    }

    #[test]
    fn a_process_becomes_a_stream_after_lookups_and_stops_being_one() {
        let mut detector = Detector::default();
        for n in 0..5_000u64 {
            detector.add(insertion(1, (n * 7919) % 100_000 + 1..(n * 7919) % 100_000 + 5));
        }
        let found: u64 = (0..600).map(|n| pages(&detector.add(insertion(2, n * 128..(n + 1) * 128)))).sum();
        assert!(found >= 400 * 128, "{found}");
        for n in 0..20_000u64 {
            detector.add(insertion(1, (n * 7919) % 100_000 + 1..(n * 7919) % 100_000 + 5));
        }
        assert_eq!(detector.streams().count(), 0);
    }

    #[test]
    fn a_server_that_reads_its_files_again_is_no_stream_until_it_reads_others() {
        let mut detector = Detector::default();
        let site = |detector: &mut Detector, files: std::ops::Range<u64>| {
            files.map(|inode| pages(&detector.add(insertion(inode, 0..8)))).sum::<u64>()
        };
        assert_eq!(site(&mut detector, 0..4200), 4200 * 8, "a server that begins looks like a backup");
        site(&mut detector, 0..4200);
        assert_eq!(detector.streams().count(), 0);
        assert_eq!(site(&mut detector, 0..4200), 0, "now it has them, if there is room");
        site(&mut detector, 4200..12_000);
        assert_eq!(detector.streams().count(), 1);
    }

    #[test]
    fn a_repeated_reader_of_one_large_file_is_no_stream() {
        let mut detector = Detector::default();
        let pass = |detector: &mut Detector| {
            (0..300).map(|n| pages(&detector.add(insertion(1, n * 128..(n + 1) * 128)))).sum::<u64>()
        };
        pass(&mut detector);
        pass(&mut detector);
        assert_eq!((pass(&mut detector), detector.streams().count()), (0, 0));
    }

    #[test]
    fn the_memory_of_the_detector_is_bounded() {
        let mut detector = Detector::default();
        for pid in 0..5000 {
            detector.add(Insertion { process: Pid(pid), ..insertion(1, 1..2) });
        }
        assert!(detector.processes.len() <= PROCESSES_MOST);
        for inode in 0..2 * INSERTED_MOST as u64 {
            detector.add(insertion(inode, 0..1));
        }
        assert!(detector.processes.values().map(|of| of.inserted.len()).sum::<usize>() <= INSERTED_MOST);
        detector.forget(|_| true);
        assert!(detector.processes.is_empty());
    }
}
