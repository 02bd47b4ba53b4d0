//! Location of every page, and its moves: the pager as a state machine over a [`Machine`] that carries the moves out.
//!
//! ```text
//!              first touch                    free_frames                   frames
//!  Untouched ─────────────► Resident ───────────────────► Victim ─────────────────────► Stored
//!                              ▲ ▲                          │     (written if changed)     │
//!                              │ └──────────────────────────┘ touched again                │
//!                              └────────────────────────────────────────────── touched ────┘
//! ```
//!
//! A page with nothing but zeros when it leaves the victim queue (`Victim`) is untouched again: nothing is written,
//! nothing read back.
//!
//! The budget is a number of frames. Every frame is in the program or in the victim queue, a ring of slots: evicted
//! pages enter at its head, its oldest pages are written back to the store (`Stored`), and the frames that become free
//! are filled with fetched pages. So frames are recycled. None is given to the kernel or requested from the kernel once
//! the budget is used up, except in the search for pages of zeros (`zeros.rs`).
//!
//! A changed page is recognised by its checksum when it is written back. The checksum is needed anyway, to verify the
//! store's answers, and costs less than tracking writes in the kernel.
//!
//! masu may fetch and write in the background meanwhile (`batch.rs`).
//!
//! Serial: every caller holds the pager's lock. The atomics are there because masu reads from outside at the same time.

mod batch;
mod evict;
mod fault_in_all;
mod victim_queue;
mod zeros;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::budget::Budget;
use crate::cast::{fits, low, saturated};
use crate::counters::{Counter, Counters};
use crate::entry::{Entry, Place};
use crate::policy::replacement::Arrival;
use crate::policy::site::{FetchPlan, Kind};
use crate::policy::{self, NO_PAGE};
use crate::space::{CHUNK_PAGES, Page, Space};
use crate::units::{Asked, Units};
use crate::{MAX_UNIT_PAGES, PAGE_BYTES};

pub use batch::{BATCH_PAGES, BATCHES_PAGES, BATCHES_WORDS, BatchWorker, Batches};
pub use victim_queue::{Run, Slot, VictimQueue};
pub use zeros::LOOKED_AT;

/// Operations that move pages. All runs are contiguous on both sides, within existing slots and pages, and at most
/// [`MAX_UNIT_PAGES`] long.
pub trait Machine {
    /// Permanent failure of the store: the program cannot go on.
    type Fatal;

    /// Moves frames from slots to the program's addresses. Returns the number moved, from the first on; fewer when the
    /// program has no memory there, or another page is there already.
    fn move_in(&mut self, slot: u32, address: u64, pages: u32) -> u32;

    /// Moves frames from the program's addresses to empty slots. From then on the program cannot change them. Returns
    /// the number moved, from the first on; fewer when the kernel holds a frame, or a page is not present.
    fn move_out(&mut self, address: u64, slot: u32, pages: u32) -> u32;

    /// Maps new frames with zeros at the program's addresses. Returns the number mapped, as [`Machine::move_in`].
    fn map_zeros(&mut self, address: u64, pages: u32) -> u32;

    /// Fills slots with zeros. Empty slots get frames.
    fn clear(&mut self, slot: u32, pages: u32);

    /// Checksum of a slot's page.
    fn checksum(&mut self, slot: u32) -> Checksum;

    /// Whether a slot holds nothing but zeros, compared byte by byte.
    fn is_zeros(&mut self, slot: u32) -> bool;

    /// Candidates among these pages of the program, at most [`LOOKED_AT`], that may hold nothing but zeros: a bit for
    /// each. They need a closer look.
    fn seem_zeros(&mut self, addresses: &[u64]) -> u32;

    /// Returns a slot's frame to the kernel.
    fn drop_frame(&mut self, slot: u32);

    /// Fills slots with these pages of the store. Empty slots get frames.
    ///
    /// # Errors
    /// When the store has failed for good.
    fn read_store(&mut self, page: Page, slot: u32, pages: u32) -> Result<(), Self::Fatal>;

    /// Writes slots to the store.
    ///
    /// # Errors
    /// When the store has failed for good.
    fn write_store(&mut self, page: Page, slot: u32, pages: u32) -> Result<(), Self::Fatal>;

    /// Fills slots from the batches' memory, from page `buffer` on. Empty slots get frames.
    fn unload(&mut self, buffer: u32, slot: u32, pages: u32);

    /// Copies slots to the batches' memory, from page `buffer` on.
    fn load(&mut self, slot: u32, buffer: u32, pages: u32);

    /// Waits until the oldest batch has completed.
    fn wait_for_completion(&mut self, pager: &Pager<'_>);

    /// An I/O batch failed; masu has reported the reason.
    fn batch_failed(&mut self) -> Self::Fatal;

    /// The store's page differs from the page that was written there.
    fn corrupt(&mut self, page: Page) -> Self::Fatal;
}

/// Checksum of a page: 128 bits, so that a change without a change of the checksum does not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(pub [u64; 2]);

impl From<u128> for Checksum {
    fn from(sum: u128) -> Checksum {
        Checksum([fits(sum & u128::from(u64::MAX)), fits(sum >> 64)])
    }
}

/// Arrival class of pages, and the marks kept with them.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    mark: u16,
    arrival: Arrival,
}

/// Source of pages to be read.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The store; the pages are verified.
    Store,
    /// The batches' memory from this page on; the pages were verified.
    Batch(u32),
}

/// Consecutive pages: the first, and their number.
type Unit = (Page, u32);

/// Touch of a page that is not present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The address, anywhere in the page.
    pub address: u64,
    /// Whether it was a write.
    pub write: bool,
    /// The instruction that touched the page.
    pub site: u64,
}

/// Result of a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The page is present now.
    Yes,
    /// Nothing was mapped: the page is present already, or the program has no memory there that takes it.
    Already,
    /// This memory is not paged.
    NotPaged,
}

/// Some pages of a unit, by their index in it.
#[derive(Clone, Copy, Debug, Default)]
struct OfUnit([u64; MAX_UNIT_PAGES as usize / 64]);

impl OfUnit {
    fn insert(&mut self, place: u32) {
        if let Some(word) = self.0.get_mut(place as usize / 64) {
            *word |= 1 << (place % 64);
        }
    }

    fn contains(&self, place: u32) -> bool {
        self.0.get(place as usize / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
    }

    fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// The pager's tables, in the shared segment.
#[derive(Clone, Copy, Debug)]
pub struct Pager<'a> {
    /// Addresses and pages.
    pub space: Space<'a>,
    /// State word of each page ([`Entry`]).
    pub entries: &'a [AtomicU64],
    /// Two words for each page: the checksum of the store's copy.
    pub checksums: &'a [AtomicU64],
    /// Victim queue.
    pub victims: VictimQueue<'a>,
    /// Units in the program, in the order of arrival: main and probation.
    pub queues: [&'a [AtomicU64]; 2],
    /// I/O batches in the background.
    pub batches: Batches<'a>,
    /// Counters.
    pub counters: Counters<'a>,
}

impl Pager<'_> {
    /// State word of a page.
    pub fn entry(&self, page: Page) -> Entry {
        self.entries.get(page.0 as usize).map_or(Entry::default(), |entry| Entry(entry.load(Relaxed)))
    }

    fn set(&self, page: Page, entry: Entry) {
        let Some(word) = self.entries.get(page.0 as usize) else { return };
        // The caller holds the lock, so that no other change intervenes.
        let before = Entry(word.load(Relaxed));
        word.store(entry.0, Relaxed);
        let goes = |counter, was: bool, is: bool| match (was, is) {
            (false, true) => self.counters.add(counter, 1),
            (true, false) => self.counters.sub(counter, 1),
            _ => {}
        };
        goes(Counter::StoredPages, before.place() == Place::Stored, entry.place() == Place::Stored);
        goes(Counter::ZeroPages, before.is_of_zeros(), entry.is_of_zeros());
        goes(Counter::TouchedPages, before.is_touched(), entry.is_touched());
        if entry.is_touched() && !before.is_touched() {
            self.counters.raise(Counter::TouchedPagesPeak, self.counters.get(Counter::TouchedPages));
        }
    }

    /// Division of the budget: masu changes the budget at any time.
    pub fn budget(&self) -> Budget {
        self.budget_with(0)
    }

    /// Budget once `fresh` more pages are touched for the first time: a share of the program's memory grows with them.
    fn budget_with(&self, fresh: u32) -> Budget {
        let frames = self.counters.get(Counter::BudgetFrames);
        let pages = self.counters.get(Counter::TouchedPages).saturating_add(fresh.into());
        let frames = match self.counters.get(Counter::BudgetShare) {
            0 => frames,
            share => frames.min(pages.saturating_mul(share).div_ceil(1 << 16)),
        };
        // Pages of zeros need no frame.
        let pages = pages.saturating_sub(self.counters.get(Counter::ZeroPages));
        Budget::new(saturated(frames), pages)
    }

    /// Serves a touch of a page that was not present.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn touch<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, touch: Touch) -> Result<Served, M::Fatal> {
        let Some(page) = self.space.page_at_last(touch.address) else { return Ok(Served::NotPaged) };
        if self.entries.len() <= page.0 as usize {
            return Ok(Served::NotPaged);
        }
        self.complete(machine, units)?;
        let served = self.serve(machine, units, touch, page)?;
        let budget = self.budget();
        while let Some(lost) = units.next_lost(budget) {
            if lost != touch.address / PAGE_BYTES {
                self.set_marker(machine, lost);
            }
        }
        if units.costs.ahead_page_ns > 0 {
            self.submit();
        }
        Ok(served)
    }

    fn serve<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        touch: Touch,
        page: Page,
    ) -> Result<Served, M::Fatal> {
        let entry = self.entry(page);
        if entry.is_guard() {
            // The kernel refuses the touch, unless frames are mapped over its guard.
            return Ok(Served::Already);
        }
        let kind = match entry.place() {
            Place::Resident => return Ok(Served::Already),
            Place::Victim if entry.is_marker() => Kind::Marker,
            Place::Victim => Kind::Victim,
            Place::Stored if self.is_being_fetched(page) => Kind::InFlight,
            Place::Stored => Kind::Stored,
            // It left, and comes back, at less cost.
            Place::Untouched if entry.is_of_zeros() => Kind::Stored,
            Place::Untouched => Kind::FirstTouch,
        };
        let (plan, arrival) = self.plan(units, touch, page, entry, kind);
        if kind == Kind::InFlight {
            self.set(page, self.entry(page).marker(false));
            self.settle_while(machine, units, || self.is_being_fetched(page))?;
        } else if kind == Kind::Stored {
            // It may be on its way to the store.
            self.settle_while(machine, units, || self.is_in_flight(page))?;
        }
        let incoming = Incoming { mark: plan.mark, arrival };
        let unit = (self.of_number(page, touch.address / PAGE_BYTES, plan.fetch.first_page), plan.fetch.pages);
        let came = |page: Page| match self.entry(page).place() {
            Place::Resident => Served::Yes,
            _ => Served::Already,
        };
        let served = match kind {
            Kind::Marker | Kind::Victim => {
                self.counters.add(Counter::FaultsVictim, 1);
                self.counters.add(Counter::FaultsOnMarkers, u64::from(entry.is_marker() && entry.is_requested()));
                self.take_back(machine, units, page, unit);
                came(page)
            }
            Kind::InFlight => {
                self.counters.add(Counter::FaultsInFlight, 1);
                match self.entry(page).place() {
                    Place::Victim => self.take_back(machine, units, page, unit),
                    // The program's memory did not accept it: a cause in the mapping shows now. Or there was no frame
                    // for it.
                    Place::Stored => {
                        self.settle_while(machine, units, || self.is_in_flight(page))?;
                        self.fetch(machine, units, page, unit, incoming)?;
                    }
                    Place::Resident | Place::Untouched => {}
                }
                came(page)
            }
            Kind::Stored => {
                self.counters.add(Counter::FaultsStored, 1);
                self.fetch(machine, units, page, unit, incoming)?;
                came(page)
            }
            Kind::FirstTouch => self.first_touch(machine, units, page, unit)?,
        };
        if served == Served::NotPaged {
            // No counter has it: mostly the argument of a system call, in unpaged memory of the chunk.
            units.was_no_fault(plan.mark);
        }
        for marker in plan.markers.into_iter().filter(|marker| ![NO_PAGE, touch.address / PAGE_BYTES].contains(marker))
        {
            self.set_marker(machine, marker);
        }
        if plan.pages_ahead() > 0 {
            let number = touch.address / PAGE_BYTES;
            self.request_ahead(&plan, page, number, Self::area(number));
        }
        Ok(served)
    }

    /// Limit of a fetch plan: it stays in a page's chunk, whose pages have consecutive numbers.
    fn area(number: u64) -> policy::Run {
        policy::Run { first_page: number & !(CHUNK_PAGES - 1), pages: 1 << CHUNK_PAGES.ilog2() }
    }

    /// Asks the policy for the fetch plan: it does not leave the chunk.
    fn plan(&self, units: &mut Units<'_>, touch: Touch, page: Page, entry: Entry, kind: Kind) -> (FetchPlan, Arrival) {
        let number = touch.address / PAGE_BYTES;
        let area = Self::area(number);
        let asked = Asked { site: touch.site, page: number, area, kind, mark: entry.mark() };
        let here = |other: u64| {
            let entry = self.entry(self.of_number(page, number, other));
            matches!(entry.place(), Place::Resident | Place::Victim) || entry.is_requested()
        };
        let (plan, arrival) = units.plan(asked, self.budget(), self.batches.is_busy(), here);
        let fits = plan.fetch.contains(number) && plan.fetch.within(area) == plan.fetch;
        debug_assert!(fits, "{plan:?}");
        let fetch = if fits { plan.fetch } else { policy::Run { first_page: number, pages: 1 } };
        (FetchPlan { fetch, ..plan }, arrival)
    }

    /// Page with another number in the same chunk as `page`, whose number is `own`.
    fn of_number(&self, page: Page, own: u64, number: u64) -> Page {
        Page(page.0.wrapping_add(low(number.wrapping_sub(own))))
    }

    /// Unmaps a page and keeps it in memory, so that its next touch is seen.
    fn set_marker<M: Machine>(&self, machine: &mut M, number: u64) {
        if let Some(page) = self.space.page(number.wrapping_mul(PAGE_BYTES)) {
            self.set_marker_on(machine, page);
        }
    }

    fn set_marker_on<M: Machine>(&self, machine: &mut M, page: Page) {
        let entry = self.entry(page);
        if entry.place() == Place::Resident && entry.pins() == 0 && self.evict(machine, page, 1) == 1 {
            self.set(page, self.entry(page).marker(true));
        }
    }

    /// Longest run of pages around `page` within its unit for which `belongs` holds.
    fn run_around(page: Page, (first, pages): Unit, belongs: impl Fn(Page) -> bool) -> Unit {
        let (mut start, mut end) = (page.0, page.0 + 1);
        while start > first.0 && belongs(Page(start - 1)) {
            start -= 1;
        }
        while end < first.0 + pages && belongs(Page(end)) {
            end += 1;
        }
        (Page(start), end - start)
    }

    /// Serves the first touch of memory: zeros.
    fn first_touch<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        page: Page,
        unit: Unit,
    ) -> Result<Served, M::Fatal> {
        let is_untouched = |entry: Entry| entry.place() == Place::Untouched && !entry.is_guard();
        let (first, pages) = Self::run_around(page, unit, |page| is_untouched(self.entry(page)));
        self.free_frames(machine, units, pages, self.never_touched(first, pages));
        let before = page.0 - first.0;
        // The pages before or after may be no memory at all: then only this page, which is.
        let mut given = self.zeros(machine, units, (first, pages), Arrival::New)?;
        if given <= before {
            given += self.zeros(machine, units, (page, first.0 + pages - page.0), Arrival::New)?;
        }
        if self.entry(page).place() == Place::Resident {
            self.counters.add(Counter::FaultsFirst, 1);
            return Ok(Served::Yes);
        }
        debug_assert!(given == 0 || self.entry(page).place() == Place::Untouched);
        Ok(Served::NotPaged)
    }

    fn zeros<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        (first, pages): Unit,
        arrival: Arrival,
    ) -> Result<u32, M::Fatal> {
        debug_assert!(first.is_in_a_row(pages), "{first:?} and {pages} pages");
        let address = self.space.address(first);
        let mut given = 0;
        if self.frames_in_use() + pages <= self.budget_with(self.never_touched(first, pages)).frames {
            given = machine.map_zeros(address, pages);
        } else {
            let frames = self.frames(machine, units, pages)?;
            for run in frames.runs() {
                machine.clear(run.slot, run.pages);
                let moved = machine.move_in(run.slot, address + u64::from(given) * PAGE_BYTES, run.pages);
                self.victims.emptied(run.slot, moved);
                given += moved;
                if moved < run.pages {
                    break;
                }
            }
            self.give_back(&frames);
        }
        for page in (0..given).map(|more| first.plus(more)) {
            self.set(page, self.entry(page).at(Place::Resident).with_copy(false));
        }
        self.mapped_in(units, first, given, arrival);
        Ok(given)
    }

    /// Fetches a unit of the store: the pages of it that are only there. Pages of zeros come if the touched page is one
    /// of them, and then only they: most of them are not needed.
    fn fetch<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        page: Page,
        (first, pages): Unit,
        incoming: Incoming,
    ) -> Result<(), M::Fatal> {
        let is_of_zeros = self.entry(page).is_of_zeros();
        let comes = |page: Page| self.is_away(page) && self.entry(page).is_of_zeros() == is_of_zeros;
        // The pages in the store now: getting frames for them may write others of this unit back, for which there are
        // no frames.
        let mut wanted = OfUnit::default();
        (0..pages).filter(|more| comes(first.plus(*more))).for_each(|more| wanted.insert(more));
        self.free_frames(machine, units, wanted.len(), 0);
        let mut next = 0;
        while next < pages {
            let comes = |more: &u32| wanted.contains(*more) && comes(first.plus(*more));
            let run = (next..pages).take_while(comes).map(|_| 1).sum();
            if run > 0 {
                self.fetch_alike(machine, units, (first.plus(next), run), incoming)?;
            }
            next += run + 1;
        }
        if comes(page) {
            // The free frames lie in too many pieces: this page at least.
            self.fetch_alike(machine, units, (page, 1), incoming)?;
        }
        Ok(())
    }

    /// Fetches consecutive pages of the store. Returns the number of pages that got frames.
    fn fetch_run<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        (first, pages): Unit,
        incoming: Incoming,
        source: Source,
    ) -> Result<u32, M::Fatal> {
        debug_assert!(first.is_in_a_row(pages), "{first:?} and {pages} pages");
        let frames = self.frames(machine, units, pages)?;
        let mut next = first;
        for run in frames.runs() {
            match source {
                Source::Batch(buffer) => machine.unload(buffer + (next.0 - first.0), run.slot, run.pages),
                Source::Store => {
                    machine.read_store(next, run.slot, run.pages)?;
                    for more in 0..run.pages {
                        if machine.checksum(run.slot + more) != self.checksum(next.plus(more)) {
                            return Err(machine.corrupt(next.plus(more)));
                        }
                    }
                }
            }
            self.counters.add(Counter::PagesIn, run.pages.into());
            let moved = machine.move_in(run.slot, self.space.address(next), run.pages);
            self.victims.emptied(run.slot, moved);
            for page in (0..moved).map(|more| next.plus(more)) {
                let entry = self.entry(page).at(Place::Resident).with_copy(true).marked(incoming.mark);
                self.set(page, entry.requested(false).marker(false));
            }
            self.mapped_in(units, next, moved, incoming.arrival);
            let first_page = self.space.address(next) / PAGE_BYTES;
            units.fetched(policy::Run { first_page, pages: moved }, self.budget());
            next = next.plus(run.pages);
        }
        self.give_back(&frames);
        Ok(next.0 - first.0)
    }

    /// Takes back a page of the victim queue and the pages of its unit that follow it there.
    fn take_back<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, page: Page, unit: Unit) {
        let together = |of: Entry, with: Page, slot: u32| {
            let other = self.entry(with);
            of.place() == Place::Victim && other.place() == Place::Victim && other.slot() == slot
        };
        let run = || {
            let entry = self.entry(page);
            let slot = |other: Page| entry.slot().wrapping_add(other.0.wrapping_sub(page.0));
            Self::run_around(page, unit, |other| together(entry, other, slot(other)))
        };
        // It has its frame already; others are evicted so that the victim queue keeps its share, if the budget is
        // exceeded at all.
        if self.budget().beyond > 0 {
            self.free_frames(machine, units, run().1, 0);
        }
        let (first, pages) = run();
        let slot = self.entry(page).slot() - (page.0 - first.0);
        let moved = machine.move_in(slot, self.space.address(first), pages);
        self.victims.emptied(slot, moved);
        for page in (0..moved).map(|more| first.plus(more)) {
            self.set(page, self.entry(page).at(Place::Resident).marker(false).requested(false));
        }
        self.mapped_in(units, first, moved, Arrival::Reused);
    }

    /// Records pages that are in the program now.
    fn mapped_in(&self, units: &mut Units<'_>, first: Page, pages: u32, arrival: Arrival) {
        if pages > 0 {
            self.counters.add(Counter::ResidentPages, pages.into());
            self.enqueue(units, first, pages, arrival);
            self.counters.raise(Counter::PeakFrames, self.frames_in_use().into());
        }
    }

    /// Frames in the program and in the victim queue, and frames reserved for pages in transfer.
    pub fn frames_in_use(&self) -> u32 {
        let aside = saturated(self.counters.get(Counter::FramesAside));
        self.resident_pages().saturating_add(self.victims.frames()).saturating_add(aside)
    }

    fn resident_pages(&self) -> u32 {
        saturated(self.counters.get(Counter::ResidentPages))
    }

    fn checksum(&self, page: Page) -> Checksum {
        let word =
            |number: usize| self.checksums.get(page.0 as usize * 2 + number).map_or(0, |word| word.load(Relaxed));
        Checksum([word(0), word(1)])
    }

    fn set_checksum(&self, page: Page, sum: Checksum) {
        for (number, word) in sum.0.into_iter().enumerate() {
            if let Some(place) = self.checksums.get(page.0 as usize * 2 + number) {
                place.store(word, Relaxed);
            }
        }
    }
}

const _: () = assert!(CHUNK_PAGES.is_multiple_of(MAX_UNIT_PAGES as u64), "a unit never leaves its chunk");
