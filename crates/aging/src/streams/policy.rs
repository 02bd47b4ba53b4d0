//! Queue of pages inserted by streams, and the time of their drop.
//!
//! Pages are dropped behind a stream, in order of insertion, after the reader or writer has passed them. The position
//! of a reader is unknown, but the kernel's readahead is bounded. Pages therefore count as passed when enough of the
//! same file, and enough in all, was inserted after them; or after some time, as at the end of a file.
//!
//! Dirty pages are retried, soon at first, for as long as disks need. Pages that others map are given up after some
//! attempts, because they have found another use; those that the stream maps wait elsewhere ([`super::mapped`]). Pages cached before the stream never enter the queue.
//!
//! No I/O, no clock, no randomness: times and insertions are inputs, ranges to drop are outputs.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use access::insertions::{FileId, Insertion};
use units::Pages;

use super::due::{Due, Process};
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
    /// Process that writes the file: it has no readahead there. Others may read the file meanwhile.
    writer: Option<Process>,
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
    /// All readers have closed the file.
    is_closed: bool,
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
        inserted.behind = self.settings.behind_in_file.0.max(ahead(read_ahead).0);
        self.of_all += count;
        self.waiting_pages += count;
        // A range that continues the last one of its file joins it: a stream of one file becomes a few long ranges.
        if let Some(last) = self.waiting.back_mut()
            && last.due.file == insertion.file
            && last.due.pages.end == insertion.pages.start
            && last.due.process == insertion.process
            && last.again.is_none()
            && !last.is_closed
            && last.due.pages.end - last.due.pages.start < self.settings.behind_in_file.0
        {
            last.due.pages.end = insertion.pages.end;
            (last.file_mark, last.all_mark, last.since) = (inserted.pages, self.of_all, now);
            inserted.waiting -= 1;
            return;
        }
        self.waiting.push_back(Waiting {
            due: Due::first(insertion.file, insertion.pages.clone(), insertion.process),
            file_mark: inserted.pages,
            all_mark: self.of_all,
            since: now,
            again: None,
            is_closed: false,
        });
    }

    /// Counts pages inserted so far as passed if no reader has their file open: `is_open` tells.
    pub fn close(&mut self, is_open: impl Fn(&Due) -> bool) {
        self.waiting.iter_mut().for_each(|entry| entry.is_closed |= !is_open(&entry.due));
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
                left_pages += entry.due.count();
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
            inserted.writer = Some(due.process);
        }
        let after = match (early, unwritten) {
            (Some(at), _) => at - now,
            (None, true) => self.settings.write_wait(due.writes),
            (None, false) => again_after,
        };
        self.waiting_pages += pages.end.saturating_sub(pages.start);
        // To the front: it is older than all pages without an attempt.
        self.waiting.push_front(Waiting {
            due: Due { attempts, writes, ..Due::first(due.file, pages, due.process) },
            file_mark: inserted.pages,
            all_mark: self.of_all,
            since: now,
            again: Some(after),
            is_closed: false,
        });
        true
    }

    fn is_passed(&self, entry: &Waiting, now: Duration) -> bool {
        let of_file = self.of_file.get(&entry.due.file);
        let is_writer = |inserted: &Inserted| inserted.writer == Some(entry.due.process);
        let behind_of =
            |inserted: &Inserted| if is_writer(inserted) { self.settings.behind_in_file.0 } else { inserted.behind };
        let (pages, behind) = of_file.map_or((0, 0), |inserted| (inserted.pages, behind_of(inserted)));
        if entry.again.is_some() {
            return entry.is_due_again(now);
        }
        let by_amount = pages.saturating_sub(entry.file_mark) >= behind
            && self.of_all - entry.all_mark >= self.settings.behind_in_all.0;
        let after = if pages <= self.settings.little.0 { self.settings.after_little } else { self.settings.after };
        by_amount || entry.is_closed || now >= entry.since + after
    }

    /// Removes one entry from the counts.
    fn forget(&mut self, due: &Due) {
        self.waiting_pages -= due.count();
        if let Some(inserted) = self.of_file.get_mut(&due.file) {
            inserted.waiting -= 1;
            if inserted.waiting == 0 {
                self.of_file.remove(&due.file);
            }
        }
    }
}

#[cfg(test)]
mod tests;
