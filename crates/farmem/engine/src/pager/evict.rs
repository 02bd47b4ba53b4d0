//! Eviction to free frames, and memory that the program itself releases or moves.
//!
//! `policy/replacement.rs` chooses the units to evict. Its choice is a hint: pages that are not in the program any more are
//! skipped, and if it knows none, a hand scans the table.

use super::victim_queue::Slot;
use super::{Machine, Pager};
use crate::PAGE_BYTES;
use crate::cast::fits;
use crate::counters::Counter;
use crate::entry::{Entry, Place};
use crate::policy::Run;
use crate::policy::replacement::{Arrival, Memory};
use crate::space::{CHUNK_PAGES, DIRECTORY_WORDS, Page};
use crate::units::Units;

/// Length of the pieces in which units enter the queues, so that a large unit is not evicted as a whole for a small
/// one.
const PIECE_PAGES: u32 = 16;

/// Least number of pages in the victim queue, once it has any.
const MIN_VICTIMS: u32 = 64;

/// Pages that the hand examines to find one in the program.
const LOOKS: u64 = 1 << 20;

impl Pager<'_> {
    fn queues(&self) -> Memory<'_> {
        Memory { main: self.queues[0], probation: self.queues[1] }
    }

    /// Enters pages that came into the queues.
    pub(super) fn enqueue(&self, units: &mut Units<'_>, first: Page, pages: u32, arrival: Arrival) {
        let start = self.space.address(first) / PAGE_BYTES;
        let mut next = 0;
        while next < pages {
            let piece = Run { first_page: start + u64::from(next), pages: (pages - next).min(PIECE_PAGES) };
            let replacement = &mut units.learned.replacement;
            if !replacement.enter(self.queues(), piece, arrival) {
                // Full of pages that are not there any more. If the oldest is there still, the hand finds it.
                let _ = replacement.next_victim(self.queues(), 0);
                let _ = replacement.enter(self.queues(), piece, arrival);
            }
            next += piece.pages;
        }
    }

    /// Evicts units to the victim queue until `pages` more pages fit into the program, of which `fresh` are touched for
    /// the first time.
    ///
    /// Nothing is evicted while frames are free; then the victim queue grows gradually to its share. So a program that
    /// fits in its budget never uses the victim queue.
    pub(super) fn free_frames<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, pages: u32, fresh: u32) {
        let budget = self.budget_with(fresh);
        let fits = || self.frames_in_use().saturating_add(pages) <= budget.frames;
        if fits() {
            return;
        }
        self.release_zero_pages(machine, units, pages, budget);
        if fits() {
            return;
        }
        let step = pages.saturating_mul(2).max(MIN_VICTIMS);
        let most = (budget.frames - budget.aside).max(self.resident_pages().saturating_sub(step));
        // Pages that are pinned, or held by the kernel, stay, and come up again.
        let mut looks = self.resident_pages().saturating_mul(2).saturating_add(64);
        while self.resident_pages() > 0 && self.resident_pages().saturating_add(pages) > most && looks > 0 {
            looks -= 1;
            let next = units.learned.replacement.next_victim(self.queues(), budget.aside);
            let Some(run) = next.or_else(|| self.next_unqueued()) else { break };
            if let Some(first) = self.space.page(run.first_page.wrapping_mul(PAGE_BYTES)) {
                self.evict_run(machine, units, first, run.pages);
            }
        }
    }

    /// Finds a page in the program, from the hand's last position in the table on.
    fn next_unqueued(&self) -> Option<Run> {
        let all = self.space.pages();
        let from = self.counters.get(Counter::Hand);
        let looked = (0..all.min(LOOKS)).map(|more| (from + more) % all);
        let mut numbers = looked.map(|page| Page(fits(page)));
        let found = numbers.find(|page| {
            let entry = self.entry(*page);
            entry.place() == Place::Resident && entry.pins() == 0
        })?;
        self.counters.set(Counter::Hand, u64::from(found.0) + 1);
        Some(Run { first_page: self.space.address(found) / PAGE_BYTES, pages: 1 })
    }

    /// Moves a unit's pages to the victim queue, or to the end of their queue if that fails.
    fn evict_run<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, first: Page, pages: u32) {
        let may_go = |page: Page| {
            let entry = self.entry(page);
            entry.place() == Place::Resident && entry.pins() == 0
        };
        let mut next = 0;
        while next < pages {
            let page = first.plus(next);
            let mut run = 0;
            while next + run < pages && may_go(first.plus(next + run)) {
                run += 1;
            }
            let gone = if run > 0 { self.evict(machine, page, run) } else { 0 };
            next += gone;
            if gone < run || run == 0 {
                let stays = first.plus(next);
                if self.entry(stays).place() == Place::Resident {
                    self.enqueue(units, stays, 1, Arrival::New);
                }
                next += 1;
            }
        }
    }

    /// Forgets memory that the program released. The kernel takes the frames in the program.
    ///
    /// The caller has completed all I/O batches before the release ([`Pager::settle`]).
    pub fn forget(&self, start: u64, bytes: u64) {
        // A call in progress may still have pins here, and removes them later.
        self.reset(start, bytes, Entry::only_pins);
    }

    /// Forgets the content of memory that the program emptied, as [`Pager::forget`]: guard pages stay.
    pub fn empty(&self, start: u64, bytes: u64) {
        self.reset(start, bytes, Entry::emptied);
    }

    /// Records guard pages, whose content is lost, as [`Pager::forget`]. Their chunks have pages
    /// ([`Pager::number_chunks`]).
    pub fn guard(&self, start: u64, bytes: u64) {
        self.reset(start, bytes, |entry| entry.only_pins().guard(true));
    }

    /// Records that memory has no guard pages any more: they are untouched.
    pub fn unguard(&self, start: u64, bytes: u64) {
        self.reset(start, bytes, |entry| entry.guard(false));
    }

    /// Whether a range has a guard page.
    pub fn has_guard(&self, start: u64, bytes: u64) -> bool {
        let mut has_guard = false;
        self.space.each_run(start, bytes, |first, pages| {
            has_guard |= (0..pages).any(|more| self.entry(first.plus(more)).is_guard());
        });
        has_guard
    }

    fn reset(&self, start: u64, bytes: u64, state: impl Fn(Entry) -> Entry) {
        self.space.each_run(start, bytes, |first, pages| {
            for page in (0..pages).map(|more| first.plus(more)) {
                let entry = self.entry(page);
                let new = state(entry);
                if new == entry {
                    continue;
                }
                match entry.place() {
                    Place::Resident => self.counters.sub(Counter::ResidentPages, 1),
                    Place::Victim => self.victims.spare(entry.slot()),
                    Place::Untouched | Place::Stored => {}
                }
                self.set(page, new);
            }
        });
    }

    /// Gives pages to all paged chunks of a range. False when the page numbers are used up.
    pub fn number_chunks(&self, start: u64, bytes: u64) -> bool {
        let end = start.saturating_add(bytes).min((DIRECTORY_WORDS as u64) * CHUNK_PAGES * PAGE_BYTES);
        let mut address = start;
        while address < end {
            let has_entry = |page: Page| (page.0 as usize) < self.entries.len();
            if self.space.may_be_paged(address) && !self.space.page_at_last(address).is_some_and(has_entry) {
                return false;
            }
            address = (address | (CHUNK_PAGES * PAGE_BYTES - 1)) + 1;
        }
        true
    }

    /// Records a page that is in the program already when paging begins.
    pub fn adopt(&self, units: &mut Units<'_>, address: u64) {
        if let Some(page) = self.space.page_at_last(address)
            && self.entry(page).place() == Place::Untouched
        {
            self.set(page, self.entry(page).at(Place::Resident).with_copy(false));
            self.mapped_in(units, page, 1, Arrival::New);
        }
    }

    /// Pins a page in the program. False when it is not there, or has too many pins.
    pub fn pin(&self, address: u64) -> bool {
        let Some(page) = self.space.page(address) else { return false };
        let entry = self.entry(page);
        match entry.pinned().filter(|_| entry.place() == Place::Resident) {
            Some(pinned) => {
                self.set(page, pinned);
                true
            }
            None => false,
        }
    }

    /// Removes a pin.
    pub fn unpin(&self, address: u64) {
        if let Some(page) = self.space.page(address) {
            self.set(page, self.entry(page).unpinned());
        }
    }

    /// Writes all pages of a range back to the store, or forgets them if they hold zeros, except pages that are pinned
    /// or held by the kernel. Returns the number of these.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn write_back_range<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        start: u64,
        bytes: u64,
    ) -> Result<u32, M::Fatal> {
        self.settle(machine, units)?;
        let (mut stay, mut failed) = (0, None);
        self.space.each_run(start, bytes, |first, pages| {
            for page in (0..pages).map(|more| first.plus(more)) {
                if failed.is_some() {
                    return;
                }
                match self.write_back_one(machine, units, page) {
                    Ok(true) => {}
                    Ok(false) => stay += 1,
                    Err(fatal) => failed = Some(fatal),
                }
            }
        });
        failed.map_or(Ok(stay), Err)
    }

    fn write_back_one<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, page: Page) -> Result<bool, M::Fatal> {
        let entry = self.entry(page);
        if entry.place() == Place::Resident && (entry.pins() > 0 || self.evict(machine, page, 1) == 0) {
            return Ok(false);
        }
        let entry = self.entry(page);
        if entry.place() == Place::Victim
            && self.victims.slot(entry.slot()) == Slot::Holds(page)
            && !self.ends_as_zeros(machine, units, page, entry.slot())
        {
            let sum = machine.checksum(entry.slot());
            if !(entry.has_copy() && self.checksum(page) == sum) {
                self.set_checksum(page, sum);
                machine.write_store(page, entry.slot(), 1)?;
                self.counters.add(Counter::PagesOut, 1);
            }
            self.victims.spare(entry.slot());
            self.counters.add(Counter::MarkerMisses, u64::from(entry.is_marker() && entry.is_requested()));
            self.set(page, entry.at(Place::Stored).with_copy(true).marker(false).requested(false));
            units.evicted(self.space.address(page) / PAGE_BYTES, self.budget());
        }
        Ok(true)
    }

    /// Writes the victim-queue pages of a range back to the store, or forgets them if they hold zeros.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn write_back_victims<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        start: u64,
        bytes: u64,
    ) -> Result<(), M::Fatal> {
        self.settle(machine, units)?;
        let mut failed = None;
        self.space.each_run(start, bytes, |first, pages| {
            for page in (0..pages).map(|more| first.plus(more)) {
                if failed.is_none() && self.entry(page).place() == Place::Victim {
                    failed = self.write_back_one(machine, units, page).err();
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Relocates memory, as after mremap(2): pages in the program moved along, and stored pages get a page of the store
    /// for their new address, to which `copy` copies them. None of the memory is in the victim queue. False when the
    /// page numbers are used up: then not all of the memory is tracked any more.
    ///
    /// The caller has completed all I/O batches ([`Pager::settle`]).
    pub fn relocate(
        &self,
        units: &mut Units<'_>,
        from: u64,
        to: u64,
        bytes: u64,
        mut copy: impl FnMut(Page, Page),
    ) -> bool {
        let mut at = 0;
        while at < bytes {
            let here = self.space.page(from + at).map(|page| (page, self.entry(page)));
            let page = here.filter(|(_, entry)| entry.is_touched() || entry.is_guard());
            if let Some((page, entry)) = page {
                let there = self.space.page_at_last(to + at);
                let Some(there) = there.filter(|there| (there.0 as usize) < self.entries.len()) else { return false };
                match entry.place() {
                    Place::Resident => {
                        self.set(there, self.entry(there).only_pins().at(Place::Resident));
                        self.enqueue(units, there, 1, Arrival::New);
                    }
                    Place::Stored => {
                        copy(page, there);
                        self.set_checksum(there, self.checksum(page));
                        self.set(there, self.entry(there).only_pins().at(Place::Stored).with_copy(true));
                    }
                    Place::Untouched if entry.is_guard() => self.set(there, self.entry(there).only_pins().guard(true)),
                    Place::Untouched => self.set(there, self.entry(there).of_zeros()),
                    Place::Victim => {}
                }
                self.set(page, entry.only_pins());
            }
            at += PAGE_BYTES;
        }
        true
    }
}
