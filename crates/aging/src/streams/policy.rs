//! Queue of pages inserted by streams, and the time of their drop.
//!
//! Pages are dropped behind a stream, in order of insertion, after the reader or writer has passed them. The position
//! of a reader is unknown, but the kernel's readahead is bounded. Pages therefore count as passed when enough of the
//! same file, and enough in all, was inserted after them; or after some time, as at the end of a file.
//!
//! Dirty pages are retried, soon at first, for as long as disks need. Mapped pages are given up after some attempts,
//! because they have found another use. Pages cached before the stream never enter the queue.
//!
//! No I/O, no clock, no randomness: times and insertions are inputs, ranges to drop are outputs.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use access::insertions::{FileId, Insertion};
use units::Pages;

use crate::ranges::Ranges;

/// Conditions for passed pages, and limits of retries.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Pages of the same file inserted after them, or more with larger readahead.
    pub behind_in_file: Pages,
    /// Pages of all files inserted after them.
    pub behind_in_all: Pages,
    /// Alternative: this time has passed, for a file with at most `little` inserted pages.
    pub after_little: Duration,
    /// Number of pages that counts as little.
    pub little: Pages,
    /// The same time for other files, whose readahead may be large.
    pub after: Duration,
    /// Delay of the retry for clean pages that were not dropped.
    pub again_after: Duration,
    /// Number of retries for clean pages.
    pub attempts: u32,
    /// First delay of the retry for dirty pages, doubled each time,
    pub write_after: Duration,
    /// up to this delay,
    pub write_after_most: Duration,
    /// and this number of retries: a mapped file under constant writes stays dirty for ever.
    pub write_attempts: u32,
    /// Amount that may stay, the newest pages; 0 drops all passed pages.
    pub keep: Pages,
}

/// Settings for readers of 16 MiB/s or faster. A slower reader may have to read a stretch twice.
pub const SETTINGS: Settings = Settings {
    behind_in_file: Pages(1024),
    behind_in_all: Pages(2048),
    after_little: Duration::from_millis(500),
    little: Pages(512),
    after: Duration::from_secs(2),
    again_after: Duration::from_secs(1),
    attempts: 20,
    write_after: Duration::from_millis(100),
    write_after_most: Duration::from_secs(10),
    write_attempts: 40,
    keep: Pages(0),
};

/// Pages of a file that may lie before its reader at this readahead: doubled by a hint of sequential reading, doubled
/// again because the next window starts early; and one run that is not reported yet.
pub fn ahead(read_ahead: Pages) -> Pages {
    Pages(read_ahead.0.saturating_mul(4).saturating_add(512))
}

impl Settings {
    /// Delay after this number of retries of dirty pages.
    fn write_wait(&self, writes: u32) -> Duration {
        self.write_after.saturating_mul(1 << writes.min(20)).min(self.write_after_most)
    }
}

/// Pages to drop now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// File.
    pub file: FileId,
    /// Pages of the file.
    pub pages: Range<u64>,
    /// Number of earlier attempts.
    pub attempts: u32,
    /// Number of attempts that found them dirty.
    pub writes: u32,
    /// Time of their own retry, if they are requested early because of neighbours. A failure of an early request does
    /// not count.
    pub early: Option<Duration>,
}

/// Largest folio of a file; a folio is dropped only as a whole.
const FOLIO_MOST: u64 = 512;

/// Inserted pages that are still cached, oldest first.
#[derive(Debug)]
pub struct Queue {
    settings: Settings,
    waiting: VecDeque<Waiting>,
    /// Total pages ever inserted, of each file in the queue, and of all files.
    of_file: BTreeMap<FileId, Inserted>,
    of_all: u64,
    waiting_pages: u64,
}

#[derive(Debug, Default)]
struct Inserted {
    pages: u64,
    waiting: usize,
    behind: u64,
    /// The file is being written: no readahead.
    is_written: bool,
}

#[derive(Debug)]
struct Waiting {
    due: Due,
    /// Pages inserted of its file, and in all, at the time of its insertion.
    file_mark: u64,
    all_mark: u64,
    /// Time of insertion, or of the last attempt.
    since: Duration,
    /// After an earlier attempt: delay of the retry after `since`.
    again: Option<Duration>,
}

impl Waiting {
    fn is_due_again(&self, now: Duration) -> bool {
        self.again.is_some_and(|after| now >= self.since + after)
    }
}

impl Queue {
    /// Empty queue.
    pub fn new(settings: Settings) -> Queue {
        Queue { settings, waiting: VecDeque::new(), of_file: BTreeMap::new(), of_all: 0, waiting_pages: 0 }
    }

    /// Amount in the queue.
    pub fn waiting(&self) -> Pages {
        Pages(self.waiting_pages)
    }

    /// Sets another allowance.
    pub fn set_keep(&mut self, keep: Pages) {
        self.settings.keep = keep;
    }

    /// Adds an insertion by a stream, with the readahead size for its file.
    pub fn insert(&mut self, now: Duration, insertion: &Insertion, read_ahead: Pages) {
        let count = insertion.pages.end.saturating_sub(insertion.pages.start);
        let inserted = self.of_file.entry(insertion.file).or_default();
        inserted.pages += count;
        inserted.waiting += 1;
        let far = self.settings.behind_in_file.0;
        inserted.behind = if inserted.is_written { far } else { far.max(ahead(read_ahead).0) };
        self.of_all += count;
        self.waiting_pages += count;
        // A range that continues the last one of its file joins it: a stream of one file becomes a few long ranges.
        if let Some(last) = self.waiting.back_mut()
            && last.due.file == insertion.file
            && last.due.pages.end == insertion.pages.start
            && last.again.is_none()
            && last.due.pages.end - last.due.pages.start < self.settings.behind_in_file.0
        {
            last.due.pages.end = insertion.pages.end;
            (last.file_mark, last.all_mark, last.since) = (inserted.pages, self.of_all, now);
            inserted.waiting -= 1;
            return;
        }
        self.waiting.push_back(Waiting {
            due: Due { file: insertion.file, pages: insertion.pages.clone(), attempts: 0, writes: 0, early: None },
            file_mark: inserted.pages,
            all_mark: self.of_all,
            since: now,
            again: None,
        });
    }

    /// Removes and returns passed pages beyond the allowance. Pages that remain cached come back through
    /// [`Queue::stayed`].
    ///
    /// Pages next to a retried range of the same file are requested with it: a large folio is dropped only as a whole,
    /// and its parts may have different times of retry.
    pub fn due(&mut self, now: Duration) -> Vec<Due> {
        if self.waiting_pages <= self.settings.keep.0 {
            return Vec::new();
        }
        // Retried pages are at the front.
        let asked_before = self.waiting.iter().take_while(|entry| entry.again.is_some());
        let mut around = BTreeMap::<FileId, Ranges>::new();
        for Waiting { due: Due { file, pages, .. }, .. } in asked_before.filter(|entry| entry.is_due_again(now)) {
            let folios = pages.start.saturating_sub(FOLIO_MOST)..pages.end.saturating_add(FOLIO_MOST);
            around.entry(*file).or_default().insert(folios);
        }
        let (mut due, mut left, mut left_pages) = (Vec::new(), Vec::new(), 0);
        // No further than necessary: most pages of a large allowance stay in place.
        while self.waiting_pages > self.settings.keep.0.saturating_add(left_pages)
            && let Some(mut entry) = self.waiting.pop_front()
        {
            let is_passed = self.is_passed(&entry, now);
            let with_others = around.get(&entry.due.file).is_some_and(|around| around.meets(&entry.due.pages));
            entry.due.early = entry.again.map(|after| entry.since + after).filter(|_| !is_passed);
            if is_passed || (with_others && entry.due.early.is_some()) {
                self.forget(&entry.due);
                due.push(entry.due);
            } else {
                left_pages += entry.due.pages.end.saturating_sub(entry.due.pages.start);
                left.push(entry);
            }
        }
        left.into_iter().rev().for_each(|entry| self.waiting.push_front(entry));
        due
    }

    /// Removes and returns all pages, at the end.
    pub fn rest(&mut self) -> Vec<Due> {
        self.of_file.clear();
        self.waiting_pages = 0;
        self.waiting.drain(..).map(|entry| entry.due).collect()
    }

    /// Takes back `pages` of `due` that are still cached. Dirty pages are retried for longer, clean pages some more
    /// times. Returns false when they are given up.
    pub fn stayed(&mut self, now: Duration, due: &Due, pages: Range<u64>, unwritten: bool) -> bool {
        let Settings { attempts: most, write_attempts, again_after, .. } = self.settings;
        let early = due.early.filter(|at| *at > now);
        let (attempts, writes) = match (early, unwritten) {
            (Some(_), _) => (due.attempts, due.writes),
            (None, true) => (0, due.writes + 1),
            (None, false) => (due.attempts + 1, due.writes),
        };
        if attempts >= most || writes >= write_attempts {
            return false;
        }
        let inserted = self.of_file.entry(due.file).or_default();
        inserted.waiting += 1;
        if unwritten {
            inserted.is_written = true;
            inserted.behind = self.settings.behind_in_file.0;
        }
        let after = match (early, unwritten) {
            (Some(at), _) => at - now,
            (None, true) => self.settings.write_wait(due.writes),
            (None, false) => again_after,
        };
        self.waiting_pages += pages.end.saturating_sub(pages.start);
        // To the front: it is older than all pages without an attempt.
        self.waiting.push_front(Waiting {
            due: Due { file: due.file, pages, attempts, writes, early: None },
            file_mark: inserted.pages,
            all_mark: self.of_all,
            since: now,
            again: Some(after),
        });
        true
    }

    fn is_passed(&self, entry: &Waiting, now: Duration) -> bool {
        let of_file = self.of_file.get(&entry.due.file);
        let (pages, behind) = of_file.map_or((0, 0), |inserted| (inserted.pages, inserted.behind));
        if entry.again.is_some() {
            return entry.is_due_again(now);
        }
        let by_amount = pages.saturating_sub(entry.file_mark) >= behind
            && self.of_all - entry.all_mark >= self.settings.behind_in_all.0;
        let after = if pages <= self.settings.little.0 { self.settings.after_little } else { self.settings.after };
        by_amount || now >= entry.since + after
    }

    /// Removes one entry from the counts.
    fn forget(&mut self, due: &Due) {
        self.waiting_pages -= due.pages.end.saturating_sub(due.pages.start);
        if let Some(inserted) = self.of_file.get_mut(&due.file) {
            inserted.waiting -= 1;
            if inserted.waiting == 0 {
                self.of_file.remove(&due.file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use linux::Pid;
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const AHEAD: Pages = Pages(32);

    fn file(inode: u64) -> FileId {
        FileId { device: (254, 0), inode, generation: 0 }
    }

    fn insertion(inode: u64, pages: Range<u64>) -> Insertion {
        Insertion { file: file(inode), pages, process: Pid(1) }
    }

    impl Queue {
        fn is_empty_at(&self, now: Duration) -> bool {
            !self.waiting.iter().any(|entry| entry.is_due_again(now))
        }
    }

    fn pages(due: &[Due]) -> u64 {
        due.iter().map(|due| due.pages.end - due.pages.start).sum()
    }

    #[test]
    fn passed_pages_of_a_long_stream_are_due_and_readahead_is_not() {
        let mut queue = Queue::new(SETTINGS);
        for n in 0..64 {
            queue.insert(Duration::ZERO, &insertion(1, n * 128..(n + 1) * 128), AHEAD);
        }
        let due = queue.due(Duration::ZERO);
        let last = due.iter().map(|due| due.pages.end).max().unwrap();
        assert!((64 * 128 - last) >= SETTINGS.behind_in_all.0, "{last}");
        assert!(64 * 128 - last <= 3 * SETTINGS.behind_in_all.0, "and no more than that: {last}");
        assert_eq!(due[0].pages.start, 0, "the oldest first");
    }

    #[test]
    fn a_large_readahead_is_not_due_before_its_reader() {
        let far = Pages(2048);
        assert_eq!(ahead(far), Pages(8704), "34 MiB where the kernel reads 8 MiB ahead");
        let mut queue = Queue::new(SETTINGS);
        for n in 0..17 {
            queue.insert(Duration::ZERO, &insertion(1, n * 512..(n + 1) * 512), far);
        }
        assert_eq!(queue.due(Duration::ZERO), []);
        queue.insert(Duration::ZERO, &insertion(1, 8704..10000), far);
        assert!(pages(&queue.due(Duration::ZERO)) >= 512);
    }

    #[test]
    fn the_end_of_a_file_is_due_after_some_time() {
        let mut queue = Queue::new(SETTINGS);
        queue.insert(Duration::ZERO, &insertion(1, 0..4), AHEAD);
        assert_eq!(queue.due(SETTINGS.after_little - SECOND / 1000), []);
        assert_eq!(pages(&queue.due(SETTINGS.after_little)), 4);
        assert_eq!((queue.waiting(), queue.of_file.len()), (Pages(0), 0));
    }

    #[test]
    fn a_slow_reader_beside_a_fast_one_keeps_what_was_read_ahead_for_it() {
        let mut queue = Queue::new(SETTINGS);
        queue.insert(Duration::ZERO, &insertion(1, 0..32), AHEAD);
        for n in 0..100 {
            queue.insert(Duration::ZERO, &insertion(2, n * 512..(n + 1) * 512), AHEAD);
        }
        assert!(queue.due(SECOND / 4).iter().all(|due| due.file == file(2)));
    }

    #[test]
    fn dirty_pages_are_retried_with_backoff_and_mapped_pages_given_up() {
        let mut queue = Queue::new(SETTINGS);
        queue.insert(Duration::ZERO, &insertion(1, 0..4), AHEAD);
        let mut now = SECOND;
        let mut waits = Vec::new();
        for _ in 0..10 {
            let due = queue.due(now);
            assert!(queue.stayed(now, &due[0], 0..4, true));
            assert_eq!(queue.due(now), [], "not at once");
            let wait = (1..1000).map(|n| SECOND * n / 10).find(|wait| !queue.is_empty_at(now + *wait)).unwrap();
            waits.push(wait.as_millis());
            now += wait;
        }
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
        for _ in 1..SETTINGS.attempts {
            let due = queue.due(now);
            assert!(queue.stayed(now, &due[0], 0..2, false));
            now += SETTINGS.again_after;
        }
        let due = queue.due(now);
        assert!(!queue.stayed(now, &due[0], 0..2, false));
        assert_eq!(queue.due(now + SECOND * 100), []);
    }

    #[test]
    fn a_file_under_constant_writes_is_given_up() {
        let mut queue = Queue::new(SETTINGS);
        queue.insert(Duration::ZERO, &insertion(1, 0..4), AHEAD);
        let mut now = SECOND;
        let asked = (1..1000).find(|_| {
            let due = queue.due(now);
            let goes_on = queue.stayed(now, &due[0], 0..4, true);
            now += SETTINGS.write_after_most;
            !goes_on
        });
        assert_eq!(asked, Some(SETTINGS.write_attempts));
    }

    #[test]
    fn a_written_file_is_passed_without_its_readahead() {
        let far = Pages(2048);
        let mut queue = Queue::new(SETTINGS);
        let mut inserted = 0;
        let mut more = |queue: &mut Queue, pages: u64| {
            queue.insert(Duration::ZERO, &insertion(1, inserted..inserted + pages), far);
            inserted += pages;
        };
        (0..20).for_each(|_| more(&mut queue, 512));
        let first = queue.due(Duration::ZERO);
        assert!(pages(&first) <= 3 * 512, "{first:?}");
        assert!(queue.stayed(Duration::ZERO, &first[0], first[0].pages.clone(), true));
        more(&mut queue, 512);
        let left = queue.waiting().0 - pages(&queue.due(Duration::ZERO));
        assert!(left <= 2 * (SETTINGS.behind_in_all.0 + pages(&first)), "{left}");
    }

    #[test]
    fn parts_of_a_folio_are_retried_together_and_counted_apart() {
        let mut queue = Queue::new(SETTINGS);
        queue.insert(Duration::ZERO, &insertion(1, 0..8), AHEAD);
        let first = queue.due(SECOND).remove(0);
        queue.insert(SECOND, &insertion(1, 8..16), AHEAD);
        assert!(queue.stayed(SECOND, &first, 4..8, false));
        assert_eq!(queue.due(SECOND + SECOND / 4), [], "neither is due yet");
        let due = queue.due(SECOND * 2);
        assert_eq!(pages(&due), 12);
        let [a, b] = &due[..] else { panic!("two parts") };
        assert!(queue.stayed(SECOND * 2, a, a.pages.clone(), false));
        assert!(queue.stayed(SECOND * 5 / 2, b, b.pages.clone(), false));
        let due = queue.due(SECOND * 3);
        assert_eq!(pages(&due), 12, "as soon as one is");
        let early = |due: &Due| (due.pages.start, due.attempts, due.early);
        let mut found: Vec<_> = due.iter().map(early).collect();
        found.sort();
        assert_eq!(found, [(4, 2, None), (8, 1, Some(SECOND * 7 / 2))]);
        due.iter().for_each(|due| assert!(queue.stayed(SECOND * 3, due, due.pages.clone(), false)));
        let again: Vec<_> = queue.due(SECOND * 7 / 2).iter().map(early).collect();
        assert!(again.contains(&(8, 1, None)), "at its own time: {again:?}");
    }

    #[test]
    fn a_range_far_from_a_retried_one_waits_for_its_own_time() {
        let mut queue = Queue::new(SETTINGS);
        let due = |pages| Due { file: file(1), pages, attempts: 0, writes: 0, early: None };
        assert!(queue.stayed(Duration::ZERO, &due(0..8), 0..8, true));
        assert!(queue.stayed(Duration::ZERO, &due(519..600), 519..600, false));
        assert!(queue.stayed(Duration::ZERO, &due(600..700), 600..700, false));
        assert_eq!(pages(&queue.due(SECOND / 5)), 8 + 81);
    }

    #[test]
    fn an_allowance_keeps_the_newest() {
        let mut queue = Queue::new(Settings { keep: Pages(100), ..SETTINGS });
        queue.insert(Duration::ZERO, &insertion(1, 0..80), AHEAD);
        queue.insert(Duration::ZERO, &insertion(2, 0..80), AHEAD);
        assert_eq!(queue.due(SECOND * 10), [Due { file: file(1), pages: 0..80, attempts: 0, writes: 0, early: None }]);
        assert_eq!(queue.waiting(), Pages(80));
        queue.set_keep(Pages(0));
        assert_eq!(pages(&queue.due(SECOND * 10)), 80);
    }

    proptest! {
        #[test]
        fn every_inserted_page_is_due_once(
            insertions in prop::collection::vec((0u64..4, 0u64..100, 1u64..50, 0u64..400), 1..200), keep in 0u64..500,
        ) {
            let mut queue = Queue::new(Settings { keep: Pages(keep), ..SETTINGS });
            let (mut now, mut inserted, mut went) = (Duration::ZERO, 0, 0);
            for (inode, first, count, wait) in insertions {
                now += Duration::from_millis(wait);
                queue.insert(now, &insertion(inode, first..first + count), AHEAD);
                inserted += count;
                went += pages(&queue.due(now));
                prop_assert_eq!(queue.waiting().0, inserted - went);
            }
            went += pages(&queue.rest());
            prop_assert_eq!(inserted, went);
            prop_assert_eq!(queue.waiting(), Pages(0));
        }

        #[test]
        fn remaining_pages_are_due_in_their_own_time_and_no_page_is_lost(
            insertions in prop::collection::vec((0u64..3, 0u64..2000, 1u64..600, 0u64..300), 1..60),
            stays in prop::collection::vec((any::<bool>(), any::<bool>()), 1..40),
        ) {
            let mut queue = Queue::new(SETTINGS);
            let (mut now, mut inserted, mut went, mut left) = (Duration::ZERO, 0, 0, 0);
            let mut stays = stays.iter().cycle();
            let mut insertions = insertions.into_iter();
            for _ in 0..600 {
                if let Some((inode, first, count, wait)) = insertions.next() {
                    now += Duration::from_millis(wait);
                    queue.insert(now, &insertion(inode, first..first + count), AHEAD);
                    inserted += count;
                } else {
                    now += SECOND;
                }
                for due in queue.due(now) {
                    let (goes, unwritten) = *stays.next().unwrap();
                    let count = due.pages.end - due.pages.start;
                    let half = due.pages.start + if goes { count / 2 } else { 0 };
                    went += half - due.pages.start;
                    let (again, was) = (queue.stayed(now, &due, half..due.pages.end, unwritten), (due.attempts, due.writes));
                    let is_last = was.0 + 1 >= SETTINGS.attempts || was.1 + 1 >= SETTINGS.write_attempts;
                    prop_assert!(again || (is_last && due.early.is_none_or(|at| at <= now)), "given up early: {due:?}");
                    left += if again { 0 } else { due.pages.end - half };
                }
                prop_assert_eq!(queue.waiting().0, inserted - went - left);
                prop_assert_eq!(queue.due(now).iter().filter(|due| due.early.is_none()).count(), 0, "all that is due is told at once");
            }
        }

        #[test]
        fn more_time_never_makes_fewer_pages_due(counts in prop::collection::vec(1u64..600, 1..40), early in 0u64..3000, more in 0u64..3000) {
            let gone = |at: u64| {
                let mut queue = Queue::new(SETTINGS);
                let mut first = 0;
                for count in &counts {
                    queue.insert(Duration::ZERO, &insertion(1, first..first + count), AHEAD);
                    first += count;
                }
                pages(&queue.due(Duration::from_millis(at)))
            };
            prop_assert!(gone(early) <= gone(early + more));
        }
    }
}
