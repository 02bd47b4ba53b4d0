//! The memory that masu and the program share: counters and the pager's tables, one behind the other.
//!
//! It is made by the library in the program, as large as masu says, and all of it is zeros at first. Most of it is never
//! touched, and takes no memory.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::calls::Refusal;
use crate::pager::{Budget, FLIGHT_WORDS, FLIGHTS_PAGES, Flights, Pager, Ring};
use crate::policy::site::{SEED_WORDS, SITES};
use crate::space::{CHUNK_PAGES, DIRECTORY_WORDS, Page, Space};
use crate::units::Learned;
use crate::{MAX_UNIT_PAGES, PAGE_BYTES};

/// What is counted, and what masu says: words of 64 bits at the beginning of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// masu says: frames that this program may have.
    BudgetFrames = 0,
    /// masu says: the part of its memory that a program may have, in parts of 65,536; zero when the budget is a number.
    BudgetShare = 1,
    /// Pages in the program.
    ResidentPages = 2,
    /// The most frames that were in use at a time.
    PeakFrames = 3,
    /// Touches of pages that nobody had touched.
    FaultsFirst = 4,
    /// Touches of pages that were in the staging.
    FaultsStaged = 5,
    /// Touches of pages that were home, or held zeros when they left.
    FaultsHome = 6,
    /// Pages that came from the store.
    PagesIn = 7,
    /// Pages that went to the store.
    PagesOut = 8,
    /// Where units are looked for that no queue knows.
    Hand = 9,
    /// Time that threads waited for pages, in ticks of the time stamp counter.
    StallTicks = 10,
    /// Pages that are in the store alone.
    HomePages = 11,
    /// forks that were refused, because not all was in memory.
    ForksRefused = 12,
    /// Mappings that the kernel did not let be paged.
    NotRegistered = 14,
    /// Pages that were touched, and not given up since.
    TouchedPages = 15,
    /// The most that there were.
    TouchedPagesPeak = 16,
    /// Ticks and nanoseconds at the same moment, early and late: what a tick is.
    EarlyTicks = 17,
    /// See [`Counter::EarlyTicks`].
    EarlyNs = 18,
    /// See [`Counter::EarlyTicks`].
    LateTicks = 19,
    /// See [`Counter::EarlyTicks`].
    LateNs = 20,
    /// Frames that were taken beyond the budget, because all others were pinned.
    FramesBeyond = 21,
    /// Touches of pages that were on their way in the background.
    FaultsArriving = 22,
    /// Touches of pages that had come in advance and were held back.
    FaultsHeld = 23,
    /// Pages that came in the background.
    PagesAhead = 24,
    /// Pages that were held back after they had come in advance, and left without being touched.
    HeldInVain = 25,
    /// Pages that were written home in the background.
    PagesBehind = 26,
    /// Frames that pages take besides while they are in two places: nobody else gets them
    /// ([`crate::backend::Backend::doubled_pages`]).
    FramesAside = 27,
    /// Of the pages that were touched, those that held zeros when they left: nowhere is anything kept of them.
    ZeroPages = 28,
    /// Where pages of zeros are looked for next.
    ZeroHand = 29,
    /// How many pages were looked at for that.
    ZeroLooks = 30,
}

/// Pages of a chunk, bytes of a page and of the largest unit, as sizes of memory.
const CHUNK: usize = 1 << 13;
const PAGE: usize = 4096;
const UNIT_BYTES: usize = 256 * PAGE;
const _: () = assert!(CHUNK as u64 == CHUNK_PAGES && PAGE as u64 == PAGE_BYTES);
// Known sites are said there, too.
const _: () = assert!(SITES * SEED_WORDS * size_of::<u64>() <= UNIT_BYTES);
const _: () = assert!(UNIT_BYTES as u64 == MAX_UNIT_PAGES as u64 * PAGE_BYTES);

/// The words for counters. The last of them count what was refused.
pub const COUNTER_WORDS: usize = 64;
const REFUSALS: usize = COUNTER_WORDS - Refusal::ALL.len();
const _: () = assert!((Counter::ZeroLooks as usize) < REFUSALS);

/// The counters.
#[derive(Clone, Copy, Debug)]
pub struct Counters<'a>(pub &'a [AtomicU64; COUNTER_WORDS]);

impl Counters<'_> {
    /// What a counter says.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// Sets it.
    pub fn set(&self, counter: Counter, value: u64) {
        self.0[counter as usize].store(value, Relaxed);
    }

    /// Counts.
    pub fn add(&self, counter: Counter, more: u64) {
        self.0[counter as usize].fetch_add(more, Relaxed);
    }

    /// Counts back.
    pub fn sub(&self, counter: Counter, less: u64) {
        self.0[counter as usize].fetch_sub(less, Relaxed);
    }

    /// How often it was refused.
    pub fn refusals(&self, refusal: Refusal) -> u64 {
        self.0[REFUSALS + refusal as usize].load(Relaxed)
    }

    /// It is refused once more.
    pub fn refuse(&self, refusal: Refusal) {
        self.0[REFUSALS + refusal as usize].fetch_add(1, Relaxed);
    }

    /// The larger of what it says and this.
    pub fn raise(&self, counter: Counter, value: u64) {
        self.0[counter as usize].fetch_max(value, Relaxed);
    }
}

/// Where what lies in the field, in bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The directory.
    pub directory: usize,
    /// The chunks' addresses.
    pub bases: usize,
    /// A chunk's pages are as many as this says in all.
    pub pages: usize,
    /// The pages' words.
    pub entries: usize,
    /// The pages' sums.
    pub sums: usize,
    /// The staging's slots.
    pub ring: usize,
    /// How many.
    pub slots: usize,
    /// The queues of units in the program: those that stay, and those that pass.
    pub queues: [usize; 2],
    /// How many units each holds.
    pub units: usize,
    /// Pages on their way between the program and masu; before the first of them, sites that are known.
    pub data: usize,
    /// The flights, and what is ordered.
    pub flights: usize,
    /// The pages of flights.
    pub flown: usize,
    /// What is learned of the program ([`Learned`]).
    pub learned: usize,
    /// Pages that went home, and when.
    pub ghosts: usize,
    /// How many are remembered.
    pub ghost_words: usize,
    /// The end of it all.
    pub bytes: usize,
}

impl Layout {
    /// For a program of at most `pages` pages, rounded up to chunks, of which at most `frames` are local.
    pub const fn new(pages: usize, frames: usize) -> Layout {
        const WORD: usize = size_of::<u64>();
        let pages = pages.next_multiple_of(CHUNK);
        let least = Budget::LEAST_FRAMES as usize;
        let frames = if frames < least { least } else { frames };
        // Holes of what was taken back may lie between what is staged.
        let slots = (frames / 2 + 4096).next_power_of_two();
        let units = (frames * 2).next_power_of_two();
        let directory = PAGE;
        let bases = directory + DIRECTORY_WORDS * 4;
        let entries = page_up(bases + (1 + pages / CHUNK) * WORD);
        let sums = page_up(entries + pages * WORD);
        let ring = page_up(sums + pages * 2 * WORD);
        let queue = page_up(ring + slots * WORD);
        let queues = [queue, queue + units * WORD];
        let data = page_up(queue + 2 * units * WORD);
        let flown = data + UNIT_BYTES;
        let flights = flown + FLIGHTS_PAGES as usize * PAGE;
        let learned = page_up(flights + FLIGHT_WORDS * WORD);
        let ghosts = page_up(learned + size_of::<Learned>());
        let ghost_words = frames * 2;
        let bytes = page_up(ghosts + ghost_words * WORD);
        Layout {
            directory,
            bases,
            pages,
            entries,
            sums,
            ring,
            slots,
            queues,
            units,
            data,
            flights,
            flown,
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

/// Where the ring's ends stand, in bytes.
pub const ENDS: usize = COUNTER_WORDS * size_of::<u64>();

/// Where what is asked of masu stands, in words of 32 bits.
pub const ERRAND: usize = 1024 / size_of::<u32>();

/// Where the words stand by which the program and masu wake each other for flights, in words of 32 bits.
pub const BELL: usize = 1152 / size_of::<u32>();

/// The words by which the program and masu wake each other for flights.
#[derive(Clone, Copy, Debug)]
pub struct Bell<'a>(pub &'a [AtomicU32; 4]);

impl<'a> Bell<'a> {
    /// Changes when a flight takes off while masu sleeps.
    pub fn departures(&self) -> &'a AtomicU32 {
        &self.0[0]
    }

    /// Not zero while masu sleeps on it.
    pub fn masu_sleeps(&self) -> &'a AtomicU32 {
        &self.0[1]
    }

    /// Changes when a flight arrives.
    pub fn arrivals(&self) -> &'a AtomicU32 {
        &self.0[2]
    }

    /// Not zero while a thread of the program sleeps on it.
    pub fn program_sleeps(&self) -> &'a AtomicU32 {
        &self.0[3]
    }
}

/// The pager's tables in the field, which both sides see as words. `None` when it is too small for its layout.
pub fn pager<'a>(words: &'a [AtomicU64], halves: &'a [AtomicU32], layout: &Layout) -> Option<Pager<'a>> {
    const WORD: usize = size_of::<u64>();
    let part = |offset: usize, count: usize| words.get(offset / WORD..offset / WORD + count);
    Some(Pager {
        space: Space::new(
            halves.get(layout.directory / 4..)?.get(..DIRECTORY_WORDS)?,
            part(layout.bases, 1 + layout.pages / CHUNK)?,
        ),
        entries: part(layout.entries, layout.pages)?,
        sums: part(layout.sums, layout.pages * 2)?,
        ring: Ring::new(part(layout.ring, layout.slots)?, part(ENDS, 3)?.first_chunk()?),
        queues: [part(layout.queues[0], layout.units)?, part(layout.queues[1], layout.units)?],
        flights: Flights(part(layout.flights, FLIGHT_WORDS)?.first_chunk()?),
        counters: Counters(part(0, COUNTER_WORDS)?.first_chunk()?),
    })
}

/// What the library asks of masu, one thing at a time: pages that it cannot read or write in the store itself.
#[derive(Clone, Copy, Debug)]
pub struct Errand<'a>(pub &'a [AtomicU32; 5]);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Pages of the store, to the field's data.
    Read = 1,
    /// Pages of the field's data, to the store.
    Write = 2,
    /// The home of one page is copied to another's, whose number stands in the place of how many.
    Copy = 3,
}

/// Nothing is asked.
const IDLE: u32 = 0;
/// Something is asked.
pub const ASKED: u32 = 1;
/// It is done, or has failed.
pub const ANSWERED: u32 = 2;

impl Errand<'_> {
    /// The word on which masu waits to be asked, and the program for the answer.
    pub fn state(&self) -> &AtomicU32 {
        &self.0[0]
    }

    /// The program asks.
    pub fn ask(&self, ask: Ask, page: Page, pages: u32) {
        self.0[1].store(ask as u32, Relaxed);
        self.0[2].store(page.0, Relaxed);
        self.0[3].store(pages, Relaxed);
        self.state().store(ASKED, Release);
    }

    /// masu looks what is asked; `None` when it is nothing, or nothing sensible.
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

    /// masu answers.
    pub fn answer(&self, done: bool) {
        self.0[4].store(u32::from(done), Relaxed);
        self.state().store(ANSWERED, Release);
    }

    /// The program takes the answer; `None` when there is none yet.
    pub fn answered(&self) -> Option<bool> {
        if self.state().load(Acquire) != ANSWERED {
            return None;
        }
        self.state().store(IDLE, Relaxed);
        Some(self.0[4].load(Relaxed) != 0)
    }
}
