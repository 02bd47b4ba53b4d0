//! Shared segment of masu and the program: counters and the pager's tables, one behind the other.
//!
//! masu creates it, full of zeros, and the library in the program maps it. Most of it is never touched, and takes no
//! memory.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::budget::Budget;
use crate::counters::{COUNTER_WORDS, Counters};
use crate::pager::{BATCHES_PAGES, BATCHES_WORDS, Batches, Pager, VictimQueue};
use crate::policy::site::{INITIAL_PROFILE_WORDS, SITES};
use crate::space::{CHUNK_PAGES, DIRECTORY_WORDS, Page, Space};
use crate::units::Learned;
use crate::{MAX_UNIT_PAGES, PAGE_BYTES};

/// Pages of a chunk, bytes of a page and of the largest transfer, as sizes of memory.
const CHUNK: usize = 1 << 13;
const PAGE: usize = 4096;
const UNIT_BYTES: usize = 256 * PAGE;
const _: () = assert!(CHUNK as u64 == CHUNK_PAGES && PAGE as u64 == PAGE_BYTES);
// The initial profile is passed there, too.
const _: () = assert!(SITES * INITIAL_PROFILE_WORDS * size_of::<u64>() <= UNIT_BYTES);
const _: () = assert!(PLACES * size_of::<u64>() + Places::WORDS * size_of::<u64>() <= PAGE);
const _: () = assert!(DOORBELL * size_of::<u32>() + 16 <= PLACES * size_of::<u64>());
const _: () = assert!(UNIT_BYTES as u64 == MAX_UNIT_PAGES as u64 * PAGE_BYTES);

/// Offsets in the shared segment, in bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the directory.
    pub directory: usize,
    /// Offset of the chunks' addresses.
    pub bases: usize,
    /// Number of pages in all chunks.
    pub pages: usize,
    /// Offset of the pages' state words.
    pub entries: usize,
    /// Offset of the pages' checksums.
    pub checksums: usize,
    /// Offset of the victim queue's slots.
    pub victims: usize,
    /// Number of slots.
    pub slots: usize,
    /// Offsets of the queues of units in the program: main and probation.
    pub queues: [usize; 2],
    /// Capacity of each queue, in units.
    pub units: usize,
    /// Offset of the pages in transfer between the program and masu; before the first of them, the initial profile.
    pub data: usize,
    /// Offset of the I/O batches and requests.
    pub batches: usize,
    /// Offset of the batches' pages.
    pub batch_data: usize,
    /// Offset of the learned state ([`Learned`]).
    pub learned: usize,
    /// Offset of the evicted pages and their times.
    pub ghosts: usize,
    /// Number of remembered evictions.
    pub ghost_words: usize,
    /// Length of the segment, in bytes.
    pub bytes: usize,
}

impl Layout {
    /// Layout for at most `pages` pages, rounded up to chunks, with at most `frames` local.
    pub const fn new(pages: usize, frames: usize) -> Layout {
        const WORD: usize = size_of::<u64>();
        let pages = pages.next_multiple_of(CHUNK);
        let least = Budget::LEAST_FRAMES as usize;
        let frames = if frames < least { least } else { frames };
        // Holes of pages that were taken back may lie between the queue's pages.
        let slots = (frames / 2 + 4096).next_power_of_two();
        let units = (frames * 2).next_power_of_two();
        let directory = PAGE;
        let bases = directory + DIRECTORY_WORDS * 4;
        let entries = page_up(bases + (1 + pages / CHUNK) * WORD);
        let checksums = page_up(entries + pages * WORD);
        let victims = page_up(checksums + pages * 2 * WORD);
        let queue = page_up(victims + slots * WORD);
        let queues = [queue, queue + units * WORD];
        let data = page_up(queue + 2 * units * WORD);
        let batch_data = data + UNIT_BYTES;
        let batches = batch_data + BATCHES_PAGES as usize * PAGE;
        let learned = page_up(batches + BATCHES_WORDS * WORD);
        let ghosts = page_up(learned + size_of::<Learned>());
        let ghost_words = frames * 2;
        let bytes = page_up(ghosts + ghost_words * WORD);
        Layout {
            directory,
            bases,
            pages,
            entries,
            checksums,
            victims,
            slots,
            queues,
            units,
            data,
            batches,
            batch_data,
            learned,
            ghosts,
            ghost_words,
            bytes,
        }
    }
}

const fn page_up(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

/// Offset of the ends of the victim queue, in bytes.
pub const ENDS: usize = COUNTER_WORDS * size_of::<u64>();

/// Offset of the synchronous store request, in words of 32 bits.
pub const STORE_REQUEST: usize = 1024 / size_of::<u32>();

/// Offset of the doorbell words for I/O batches, in words of 32 bits.
pub const DOORBELL: usize = 1152 / size_of::<u32>();

/// Offset of the places of the tables and slots ([`Places`]), in words of 64 bits.
pub const PLACES: usize = 1280 / size_of::<u64>();

/// Where a program keeps its pages: for another paged program that reads its memory and finds pages missing there. The
/// program itself writes them, and can write anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Most pages of the layout.
    pub most_pages: u64,
    /// Local frames of the layout.
    pub frames: u64,
    /// Address of the victim queue's slots.
    pub slots: u64,
    /// Descriptor of the store's file; `None` when masu carries the pages.
    pub store: Option<u32>,
}

impl Places {
    const MAGIC: u64 = u64::from_le_bytes(*b"masuplc1");

    /// Number of words.
    pub const WORDS: usize = 5;

    /// Encodes the places.
    pub fn words(self) -> [u64; Places::WORDS] {
        let store = self.store.map_or(u64::MAX, u64::from);
        [Places::MAGIC, self.most_pages, self.frames, self.slots, store]
    }

    /// Decodes the places; `None` where there are none, or impossible ones.
    pub fn of(words: [u64; Places::WORDS]) -> Option<Places> {
        let [magic, most_pages, frames, slots, store] = words;
        let is_possible = magic == Places::MAGIC && most_pages <= 1 << 31 && frames <= 1 << 31 && slots < 1 << 47;
        let store = u32::try_from(store).ok();
        is_possible.then_some(Places { most_pages, frames, slots, store })
    }
}

/// Doorbells: the program and masu wake each other for I/O batches.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a>(pub &'a [AtomicU32; 4]);

impl<'a> Doorbell<'a> {
    /// Changes when a batch is submitted while masu sleeps.
    pub fn submissions(&self) -> &'a AtomicU32 {
        &self.0[0]
    }

    /// Not zero while masu sleeps on this word.
    pub fn masu_sleeps(&self) -> &'a AtomicU32 {
        &self.0[1]
    }

    /// Changes when a batch completes.
    pub fn completions(&self) -> &'a AtomicU32 {
        &self.0[2]
    }

    /// Not zero while a thread of the program sleeps on this word.
    pub fn program_sleeps(&self) -> &'a AtomicU32 {
        &self.0[3]
    }
}

/// The pager's tables in the segment, as words. `None` when the segment is too small for its layout.
pub fn pager<'a>(words: &'a [AtomicU64], halves: &'a [AtomicU32], layout: &Layout) -> Option<Pager<'a>> {
    const WORD: usize = size_of::<u64>();
    let part = |offset: usize, count: usize| words.get(offset / WORD..offset / WORD + count);
    Some(Pager {
        space: Space::new(
            halves.get(layout.directory / 4..)?.get(..DIRECTORY_WORDS)?,
            part(layout.bases, 1 + layout.pages / CHUNK)?,
        ),
        entries: part(layout.entries, layout.pages)?,
        checksums: part(layout.checksums, layout.pages * 2)?,
        victims: VictimQueue::new(part(layout.victims, layout.slots)?, part(ENDS, 3)?.first_chunk()?),
        queues: [part(layout.queues[0], layout.units)?, part(layout.queues[1], layout.units)?],
        batches: Batches(part(layout.batches, BATCHES_WORDS)?.first_chunk()?),
        counters: Counters(part(0, COUNTER_WORDS)?.first_chunk()?),
    })
}

/// Synchronous store request from the library to masu, one at a time: pages that the library cannot read or write in
/// the store itself.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a>(pub &'a [AtomicU32; 5]);

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Reads pages of the store to the segment's data.
    Read = 1,
    /// Writes pages of the segment's data to the store.
    Write = 2,
    /// Copies one page of the store to another; the page count carries the destination.
    Copy = 3,
}

const IDLE: u32 = 0;
/// A request is submitted.
pub const ASKED: u32 = 1;
/// The request succeeded or failed.
pub const ANSWERED: u32 = 2;

impl StoreRequest<'_> {
    /// State word: masu waits on it for a request, the program for the answer.
    pub fn state(&self) -> &AtomicU32 {
        &self.0[0]
    }

    /// Submits a request.
    pub fn ask(&self, ask: Ask, page: Page, pages: u32) {
        self.0[1].store(ask as u32, Relaxed);
        self.0[2].store(page.0, Relaxed);
        self.0[3].store(pages, Relaxed);
        self.state().store(ASKED, Release);
    }

    /// Reads the request; `None` when there is none, or an invalid one.
    pub fn asked(&self) -> Option<(Ask, Page, u32)> {
        if self.state().load(Acquire) != ASKED {
            return None;
        }
        let ask = match self.0[1].load(Relaxed) {
            1 => Ask::Read,
            2 => Ask::Write,
            3 => Ask::Copy,
            _ => return None,
        };
        let pages = self.0[3].load(Relaxed);
        let fits = ask == Ask::Copy || (1..=MAX_UNIT_PAGES).contains(&pages);
        fits.then_some((ask, Page(self.0[2].load(Relaxed)), pages))
    }

    /// Answers the request.
    pub fn answer(&self, done: bool) {
        self.0[4].store(u32::from(done), Relaxed);
        self.state().store(ANSWERED, Release);
    }

    /// Takes the answer; `None` when there is none yet.
    pub fn answered(&self) -> Option<bool> {
        if self.state().load(Acquire) != ANSWERED {
            return None;
        }
        self.state().store(IDLE, Relaxed);
        Some(self.0[4].load(Relaxed) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_decoded_as_they_were_encoded_and_zeros_are_none() {
        for store in [None, Some(60_001)] {
            let places = Places { most_pages: 1 << 24, frames: 4096, slots: 0x7f00_0000_0000, store };
            assert_eq!(Places::of(places.words()), Some(places));
        }
        assert_eq!(Places::of([0; Places::WORDS]), None);
        let impossible = Places { most_pages: u64::MAX, frames: 1, slots: 4096, store: None };
        assert_eq!(Places::of(impossible.words()), None);
    }
}
