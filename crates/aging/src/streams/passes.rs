//! Passes of readers and writers over files: which inserted pages come for the first time, and which again. Pure.
//!
//! A page that is inserted a second time was dropped, or evicted, and is used again. The first use and the second one are
//! a stream's: a backup hashes all files and then copies them. Pages inserted a third time are in constant use.
//!
//! No I/O, no clock, no randomness.

use std::collections::BTreeMap;
use std::ops::Range;

use access::insertions::{FileId, Insertion};
use linux::Pid;
use units::Pages;

use crate::ranges::Ranges;

/// Number of readers in one file whose positions are remembered: a file may be read in parallel parts.
const POSITIONS: usize = 4;

/// Ranges of one file that are remembered; beyond that it is read at random, and bits are remembered instead.
const RANGES_MOST: usize = 4096;

/// Groups of 64 pages of one file read at random that are remembered, some 40 bytes each: at most 8 GiB of the file.
/// Beyond that its past is forgotten.
const GROUPS_MOST: u64 = 32768;

/// Least fraction of a file's insertions in order, for a file that is streamed.
pub const IN_ORDER: f64 = 0.9;

/// How often pages have been inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Time {
    /// Never before.
    First,
    /// Once before.
    Second,
    /// Twice or more before.
    Later,
}

/// An insertion, compared with those before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Begins at the file's first page, or where an earlier insertion ended.
    pub in_order: bool,
    /// Its pages, by the number of earlier insertions.
    pub parts: Vec<(Range<u64>, Time)>,
}

/// Pages that a reader inserts in other files before a file counts as left: 64 MiB.
pub const LEFT_AFTER: Pages = Pages(16384);

/// Processes whose insertions are counted; those beyond leave no file.
const PROCESSES_MOST: usize = 4096;

/// Files with their inserted pages.
#[derive(Debug, Default)]
pub struct Passes {
    files: BTreeMap<FileId, File>,
    /// Pages inserted by each process, in all files.
    inserted: BTreeMap<Pid, u64>,
}

#[derive(Debug)]
struct File {
    seen: Seen,
    /// The last process to insert pages here, and its insertions by then.
    reader: Pid,
    mark: u64,
    /// Ends of the last insertions, the latest first.
    ends: [u64; POSITIONS],
    all: u64,
    in_order: u64,
}

/// Pages inserted at least once, and at least twice.
#[derive(Debug)]
enum Seen {
    /// Of the first 64 pages, one bit a page.
    Small {
        once: u64,
        twice: u64,
    },
    Large(Box<Large>),
    /// One bit a page, by groups of 64 pages.
    Scattered(BTreeMap<u64, (u64, u64)>),
}

#[derive(Debug, Default)]
struct Large {
    once: Ranges,
    twice: Ranges,
}

impl Passes {
    /// Number of remembered files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Forgets all files: their next insertions count as the first ones.
    pub fn forget(&mut self) {
        self.files.clear();
        self.inserted.clear();
    }

    /// Compares an insertion with those before, and remembers it.
    pub fn note(&mut self, insertion: &Insertion) -> Noted {
        let Range { start, end } = insertion.pages;
        if start >= end {
            return Noted { in_order: true, parts: Vec::new() };
        }
        let reader = insertion.process;
        let mark = self.count(reader, end - start);
        let seen = Seen::Small { once: 0, twice: 0 };
        let new = || File { seen, reader, mark, ends: [0; POSITIONS], all: 0, in_order: 0 };
        let file = self.files.entry(insertion.file).or_insert_with(new);
        (file.reader, file.mark) = (reader, mark);
        let place = file.ends.iter().position(|known| *known == start);
        let in_order = place.is_some() || start == 0;
        file.ends[..=place.unwrap_or(POSITIONS - 1)].rotate_right(1);
        file.ends[0] = end;
        file.all += end - start;
        file.in_order += if in_order { end - start } else { 0 };
        Noted { in_order, parts: file.seen.note(start..end) }
    }

    /// Counts the insertions of a process. Returns their sum, or 0 if it is not counted.
    fn count(&mut self, process: Pid, pages: u64) -> u64 {
        if self.inserted.len() >= PROCESSES_MOST && !self.inserted.contains_key(&process) {
            return 0;
        }
        let sum = self.inserted.entry(process).or_default();
        *sum += pages;
        *sum
    }

    /// True if a stream's reader has passed these pages of a file: nearly all insertions of the file are in order, and
    /// the last one is at least `behind` further on, or the reader has left the file for others.
    pub fn is_passed(&self, file: FileId, pages: &Range<u64>, behind: Pages) -> bool {
        self.files.get(&file).is_some_and(|file| {
            let by_reader = self.inserted.get(&file.reader).map_or(0, |sum| sum.saturating_sub(file.mark));
            let is_left = by_reader >= LEFT_AFTER.0.max(behind.0);
            is_in_order(file.in_order, file.all) && (is_left || file.ends[0] >= pages.end.saturating_add(behind.0))
        })
    }
}

impl Seen {
    fn note(&mut self, pages: Range<u64>) -> Vec<(Range<u64>, Time)> {
        if let Seen::Small { once, twice } = self {
            if pages.end <= 64 {
                return note_small(once, twice, pages);
            }
            let large = Large { once: ranges_of(*once), twice: ranges_of(*twice) };
            *self = Seen::Large(Box::new(large));
        }
        let large = match self {
            Seen::Scattered(groups) => return note_scattered(groups, pages),
            Seen::Large(large) => large,
            Seen::Small { .. } => return Vec::new(),
        };
        let parts = large.note(pages);
        if large.once.count() > RANGES_MOST || large.twice.count() > RANGES_MOST {
            *self = Seen::Scattered(large.groups());
        }
        parts
    }
}

fn groups_of(pages: &Range<u64>) -> Range<u64> {
    pages.start / 64..pages.end.div_ceil(64)
}

/// Pages of a group that are in `pages`, from its first page on.
fn within(group: u64, pages: &Range<u64>) -> Range<u64> {
    pages.start.saturating_sub(group * 64)..(pages.end - group * 64).min(64)
}

fn note_scattered(groups: &mut BTreeMap<u64, (u64, u64)>, pages: Range<u64>) -> Vec<(Range<u64>, Time)> {
    if groups.len() >= units::cast::index(GROUPS_MOST) {
        groups.clear();
    }
    let mut parts: Vec<(Range<u64>, Time)> = Vec::new();
    for group in groups_of(&pages) {
        let (once, twice) = groups.entry(group).or_default();
        for (part, time) in note_small(once, twice, within(group, &pages)) {
            let part = group * 64 + part.start..group * 64 + part.end;
            match parts.last_mut() {
                Some((last, before)) if *before == time && last.end == part.start => last.end = part.end,
                _ => parts.push((part, time)),
            }
        }
    }
    parts
}

fn note_small(once: &mut u64, twice: &mut u64, pages: Range<u64>) -> Vec<(Range<u64>, Time)> {
    let mut parts: Vec<(Range<u64>, Time)> = Vec::new();
    for page in pages {
        let bit = 1 << page;
        let time = match (*once & bit != 0, *twice & bit != 0) {
            (false, _) => Time::First,
            (true, false) => Time::Second,
            (true, true) => Time::Later,
        };
        *twice |= *once & bit;
        *once |= bit;
        match parts.last_mut() {
            Some((last, before)) if *before == time => last.end = page + 1,
            _ => parts.push((page..page + 1, time)),
        }
    }
    parts
}

fn ranges_of(bits: u64) -> Ranges {
    let mut ranges = Ranges::default();
    (0..64).filter(|page| bits & 1 << page != 0).for_each(|page| ranges.insert(page..page + 1));
    ranges
}

impl Large {
    fn note(&mut self, pages: Range<u64>) -> Vec<(Range<u64>, Time)> {
        if !self.once.meets(&pages) {
            self.once.insert(pages.clone());
            return vec![(pages, Time::First)];
        }
        let mut all = Ranges::default();
        all.insert(pages.clone());
        let again = self.once.and(&all);
        let later = self.twice.and(&again);
        let second = again.without(&later);
        let first = all.without(&again);
        second.iter().for_each(|range| self.twice.insert(range));
        self.once.insert(pages);
        let timed = |ranges: Ranges, time| ranges.iter().map(|range| (range, time)).collect::<Vec<_>>();
        let mut parts = [timed(first, Time::First), timed(second, Time::Second), timed(later, Time::Later)].concat();
        parts.sort_by_key(|(range, _)| range.start);
        parts
    }

    /// The same as bits; nothing if that is too much.
    fn groups(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut groups = BTreeMap::<u64, (u64, u64)>::new();
        let number: u64 = self
            .once
            .iter()
            .map(|range| {
                let groups = groups_of(&range);
                groups.end - groups.start
            })
            .sum();
        if number > GROUPS_MOST / 2 {
            return groups;
        }
        for range in self.once.iter() {
            for group in groups_of(&range) {
                within(group, &range).for_each(|page| groups.entry(group).or_default().0 |= 1 << page);
            }
        }
        for range in self.twice.iter() {
            for group in groups_of(&range) {
                within(group, &range).for_each(|page| groups.entry(group).or_default().1 |= 1 << page);
            }
        }
        groups
    }
}

/// True if nearly all of these pages are in order.
#[expect(clippy::cast_precision_loss, reason = "numbers of pages, far below 2^52")]
pub fn is_in_order(in_order: u64, all: u64) -> bool {
    in_order as f64 >= all as f64 * IN_ORDER
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: FileId = FileId { device: (8, 1), inode: 1, generation: 0 };

    fn insertion(pages: Range<u64>) -> Insertion {
        Insertion { file: FILE, pages, process: Pid(7) }
    }

    #[test]
    fn pages_are_told_apart_by_the_number_of_their_insertions() {
        for first in [0, 1000] {
            let mut passes = Passes::default();
            let mut note = |pages: Range<u64>| passes.note(&insertion(first + pages.start..first + pages.end)).parts;
            let at = |pages: Range<u64>| first + pages.start..first + pages.end;
            assert_eq!(note(0..8), [(at(0..8), Time::First)]);
            assert_eq!(note(4..12), [(at(4..8), Time::Second), (at(8..12), Time::First)]);
            let all = [(at(0..4), Time::Second), (at(4..8), Time::Later), (at(8..12), Time::Second)];
            assert_eq!(note(0..12), all);
            assert_eq!(note(0..12), [(at(0..12), Time::Later)]);
        }
    }

    #[test]
    fn a_file_read_in_parallel_parts_is_in_order_after_their_beginnings() {
        let mut passes = Passes::default();
        for step in 0..100 {
            for reader in 0..4 {
                let start = reader * 100_000 + step * 32;
                let noted = passes.note(&insertion(start..start + 32));
                assert_eq!(noted.in_order, step > 0 || reader == 0, "reader {reader} at step {step}");
            }
        }
    }

    #[test]
    fn pages_are_passed_by_a_reader_in_order_alone() {
        let mut passes = Passes::default();
        (0..100).for_each(|n| drop(passes.note(&insertion(n * 32..(n + 1) * 32))));
        assert!(passes.is_passed(FILE, &(0..1024), Pages(1024)));
        assert!(!passes.is_passed(FILE, &(0..2177), Pages(1024)), "it may read them yet");
        (0..50).for_each(|n| drop(passes.note(&insertion((n * 7919) % 3000..(n * 7919) % 3000 + 32))));
        assert!(!passes.is_passed(FILE, &(0..8), Pages(8)), "a reader at random may come back at any time");
    }

    #[test]
    fn a_file_is_passed_whole_when_its_reader_is_64_mib_further_in_others() {
        let mut passes = Passes::default();
        let other = FileId { inode: 2, ..FILE };
        let mut note = |file, process, pages| passes.note(&Insertion { file, pages, process: Pid(process) });
        note(FILE, 7, 0..512);
        note(other, 8, 0..40_000);
        note(other, 7, 0..LEFT_AFTER.0 - 1);
        let is_passed = |passes: &Passes| passes.is_passed(FILE, &(0..512), Pages(1024));
        assert!(!is_passed(&passes), "the insertions of another process do not count");
        passes.note(&Insertion { file: other, pages: 50_000..50_001, process: Pid(7) });
        assert!(is_passed(&passes));
        assert!(!passes.is_passed(FILE, &(0..512), Pages(20_000)), "as far as the readahead reaches");
        passes.note(&insertion(512..520));
        assert!(!is_passed(&passes), "the reader is back");
    }

    #[test]
    fn the_past_of_a_file_is_bounded() {
        let mut passes = Passes::default();
        for n in 0..u64::from(u16::MAX) {
            passes.note(&insertion(100 + n * 128..100 + n * 128 + 1));
            match &passes.files[&FILE].seen {
                Seen::Small { .. } => panic!("beyond 64 pages"),
                Seen::Large(large) => assert!(large.once.count() <= RANGES_MOST),
                Seen::Scattered(groups) => assert!(groups.len() <= units::cast::index(GROUPS_MOST) + 1),
            }
        }
        assert!(matches!(passes.files[&FILE].seen, Seen::Scattered(_)));
    }

    #[test]
    fn a_table_read_at_random_is_known_when_it_is_read_again() {
        let (mut passes, blocks) = (Passes::default(), 131_072);
        let read = |passes: &mut Passes, n: u64| {
            let block = (n * 7919) % blocks;
            passes.note(&insertion(block * 2..block * 2 + 2)).parts
        };
        for time in [Time::First, Time::Second, Time::Later] {
            for n in 0..20_000 {
                assert!(read(&mut passes, n).iter().all(|(_, found)| *found == time), "block {n}, {time:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_parts_of_an_insertion_are_its_pages_in_order(
            insertions in prop::collection::vec((0u64..120, 1u64..60), 1..40), scattered in any::<bool>(),
        ) {
            let (mut passes, mut counts) = (Passes::default(), [0u32; 200]);
            if scattered {
                passes.note(&insertion(1000..1001));
                passes.files.get_mut(&FILE).unwrap().seen = Seen::Scattered(BTreeMap::new());
            }
            for (start, count) in insertions {
                let parts = passes.note(&insertion(start..start + count)).parts;
                let pages: Vec<u64> = parts.iter().flat_map(|(range, _)| range.clone()).collect();
                prop_assert_eq!(pages, (start..start + count).collect::<Vec<_>>());
                for (page, time) in parts.iter().flat_map(|(range, time)| range.clone().map(move |page| (page, *time))) {
                    let before = &mut counts[units::cast::index(page)];
                    prop_assert_eq!(time, [Time::First, Time::Second, Time::Later][units::cast::index((*before).min(2).into())]);
                    *before += 1;
                }
            }
        }
    }
}
