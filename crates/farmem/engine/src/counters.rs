//! Counters of a paged program, at the beginning of the shared segment; the library and masu both read and write them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::calls::Refusal;

/// Counters, and values that masu sets: words of 64 bits at the beginning of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Set by masu: frames that this program may have.
    BudgetFrames = 0,
    /// Set by masu: local part of the program's memory, in parts of 65,536; zero when the budget is a number.
    BudgetShare = 1,
    /// Number of pages in the program.
    ResidentPages = 2,
    /// Largest number of frames in use at a time.
    PeakFrames = 3,
    /// Touches of untouched pages.
    FaultsFirst = 4,
    /// Touches of pages in the victim queue.
    FaultsVictim = 5,
    /// Touches of pages that were in the store only, or held zeros when they left.
    FaultsStored = 6,
    /// Pages read from the store.
    PagesIn = 7,
    /// Pages written to the store.
    PagesOut = 8,
    /// Position in the search for units that no queue knows.
    Hand = 9,
    /// Time that threads waited for pages, in ticks of the time stamp counter.
    StallTicks = 10,
    /// Number of pages in the store only.
    StoredPages = 11,
    /// Refused forks, because not all pages were in memory.
    ForksRefused = 12,
    /// Mappings that the kernel refused to register.
    NotRegistered = 14,
    /// Pages that were touched, and not released since.
    TouchedPages = 15,
    /// Peak of `TouchedPages`.
    TouchedPagesPeak = 16,
    /// Ticks and nanoseconds at two moments, early and late: they calibrate the tick.
    EarlyTicks = 17,
    /// See [`Counter::EarlyTicks`].
    EarlyNs = 18,
    /// See [`Counter::EarlyTicks`].
    LateTicks = 19,
    /// See [`Counter::EarlyTicks`].
    LateNs = 20,
    /// Frames taken beyond the budget, because all others were pinned.
    FramesBeyond = 21,
    /// Touches of pages in flight.
    FaultsInFlight = 22,
    /// Touches of prefetched pages that were left unmapped.
    FaultsOnMarkers = 23,
    /// Pages fetched in the background.
    PagesAhead = 24,
    /// Prefetched pages left unmapped that were evicted untouched.
    MarkerMisses = 25,
    /// Pages written to the store in the background.
    PagesBehind = 26,
    /// Frames that pages take in addition while they are in two places: these frames are reserved
    /// ([`crate::backend::Backend::doubled_pages`]).
    FramesAside = 27,
    /// Touched pages that held zeros when they left: nothing of their content is kept.
    ZeroPages = 28,
    /// Position in the search for pages of zeros.
    ZeroHand = 29,
    /// Number of pages examined in that search.
    ZeroLooks = 30,
}

/// Number of counter words. The last of them count refusals.
pub const COUNTER_WORDS: usize = 64;
const REFUSALS: usize = COUNTER_WORDS - Refusal::ALL.len();
const _: () = assert!((Counter::ZeroLooks as usize) < REFUSALS);

/// Counters in the shared segment.
#[derive(Clone, Copy, Debug)]
pub struct Counters<'a>(pub &'a [AtomicU64; COUNTER_WORDS]);

impl Counters<'_> {
    /// Value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// Sets a counter.
    pub fn set(&self, counter: Counter, value: u64) {
        self.0[counter as usize].store(value, Relaxed);
    }

    /// Adds to a counter.
    pub fn add(&self, counter: Counter, more: u64) {
        self.0[counter as usize].fetch_add(more, Relaxed);
    }

    /// Subtracts from a counter.
    pub fn sub(&self, counter: Counter, less: u64) {
        self.0[counter as usize].fetch_sub(less, Relaxed);
    }

    /// Number of refusals for this reason.
    pub fn refusals(&self, refusal: Refusal) -> u64 {
        self.0[REFUSALS + refusal as usize].load(Relaxed)
    }

    /// Counts one more refusal.
    pub fn refuse(&self, refusal: Refusal) {
        self.0[REFUSALS + refusal as usize].fetch_add(1, Relaxed);
    }

    /// Raises a counter to `value`, if it is lower.
    pub fn raise(&self, counter: Counter, value: u64) {
        self.0[counter as usize].fetch_max(value, Relaxed);
    }
}
