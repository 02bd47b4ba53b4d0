//! Who leaves the program to make room, and memory that is given up or moved by the program itself.
//!
//! Who leaves is `policy/replace.rs`'s to say. What it says is a hint: pages that are not in the program any more are passed
//! over, and should it know of none, a hand goes round the table.

use super::ring::Slot;
use super::{Machine, Pager};
use crate::PAGE_BYTES;
use crate::entry::Place;
use crate::field::Counter;
use crate::policy::Run;
use crate::policy::replace::{Arrival, Memory};
use crate::space::Page;
use crate::units::Units;

/// Units enter the queues in pieces of so many pages, so that a large one does not leave as a whole for a small one.
const PIECE_PAGES: u32 = 16;

/// So many pages are staged at least, when some are.
const LEAST_STAGED: u32 = 64;

/// So many pages the hand looks at for one that is in the program.
const LOOKS: u64 = 1 << 20;

impl Pager<'_> {
    fn queues(&self) -> Memory<'_> {
        Memory { kept: self.queues[0], passing: self.queues[1], staging: &[] }
    }

    /// Pages came, and are to leave in their turn.
    pub(super) fn line_up(&self, units: &mut Units<'_>, first: Page, pages: u32, arrival: Arrival) {
        let start = self.space.address(first) / PAGE_BYTES;
        let mut next = 0;
        while next < pages {
            let piece = Run { first_page: start + u64::from(next), pages: (pages - next).min(PIECE_PAGES) };
            let replacement = &mut units.learned.replacement;
            if !replacement.arrived(self.queues(), piece, arrival) {
                // Full of what is not there any more. Should the oldest be there still, the hand finds it.
                let _ = replacement.next_to_stage(self.queues(), 0);
                let _ = replacement.arrived(self.queues(), piece, arrival);
            }
            next += piece.pages;
        }
    }

    /// Sends units to the staging until so many more pages fit into the program, of which `fresh` are touched for the first
    /// time.
    ///
    /// Nobody leaves while there are frames that nobody has, and then the staging grows by and by to its share: a program
    /// whose memory fits never meets it.
    pub(super) fn make_room<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, pages: u32, fresh: u32) {
        let budget = self.budget_with(fresh);
        let fits = || self.frames_in_use().saturating_add(pages) <= budget.frames;
        if fits() {
            return;
        }
        self.give_zeros_up(machine, units, pages, budget);
        if fits() {
            return;
        }
        let step = pages.saturating_mul(2).max(LEAST_STAGED);
        let most = (budget.frames - budget.aside).max(self.resident_pages().saturating_sub(step));
        // Those that are pinned, or held by the kernel, stay, and come up again.
        let mut looks = self.resident_pages().saturating_mul(2).saturating_add(64);
        while self.resident_pages() > 0 && self.resident_pages().saturating_add(pages) > most && looks > 0 {
            looks -= 1;
            let next = units.learned.replacement.next_to_stage(self.queues(), budget.aside);
            let Some(run) = next.or_else(|| self.one_that_no_queue_knows()) else { break };
            if let Some(first) = self.space.page(run.first_page.wrapping_mul(PAGE_BYTES)) {
                self.one_leaves(machine, units, first, run.pages);
            }
        }
    }

    /// A page in the program, found by going on in the table from where it was looked last.
    fn one_that_no_queue_knows(&self) -> Option<Run> {
        let all = self.space.pages();
        let from = self.counters.get(Counter::Hand);
        let looked = (0..all.min(LOOKS)).map(|more| (from + more) % all);
        let mut numbers = looked.map_while(|page| u32::try_from(page).ok().map(Page));
        let found = numbers.find(|page| {
            let entry = self.entry(*page);
            entry.place() == Place::Resident && entry.pins() == 0
        })?;
        self.counters.set(Counter::Hand, u64::from(found.0) + 1);
        Some(Run { first_page: self.space.address(found) / PAGE_BYTES, pages: 1 })
    }

    /// A unit's pages go to the staging, and to the end of the queue if they cannot.
    fn one_leaves<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, first: Page, pages: u32) {
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
            let gone = if run > 0 { self.stage(machine, page, run) } else { 0 };
            next += gone;
            if gone < run || run == 0 {
                let stays = first.plus(next);
                if self.entry(stays).place() == Place::Resident {
                    self.line_up(units, stays, 1, Arrival::New);
                }
                next += 1;
            }
        }
    }

    /// The program gave this memory up: what it held is of no use. The frames in the program are the kernel's to take.
    ///
    /// What is in the air has been waited for before they were ([`Pager::settle`]).
    pub fn forget(&self, start: u64, bytes: u64) {
        self.space.each_run(start, bytes, |first, pages| {
            for page in (0..pages).map(|more| first.plus(more)) {
                let entry = self.entry(page);
                match entry.place() {
                    Place::Resident => self.counters.sub(Counter::ResidentPages, 1),
                    Place::Staged => self.ring.spare(entry.slot()),
                    Place::Untouched | Place::Home => {}
                }
                if entry != entry.only_pins() {
                    // A call that is under way may have pins here still, and takes them off later.
                    self.set(page, entry.only_pins());
                }
            }
        });
    }

    /// What is in the program already when paging begins.
    pub fn adopt(&self, units: &mut Units<'_>, address: u64) {
        if let Some(page) = self.space.page_at_last(address)
            && self.entry(page).place() == Place::Untouched
        {
            self.set(page, self.entry(page).at(Place::Resident).kept(false));
            self.arrived(units, page, 1, Arrival::New);
        }
    }

    /// Pins a page that is in the program. False when it is not there, or pinned too often.
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

    /// Takes a pin off.
    pub fn unpin(&self, address: u64) {
        if let Some(page) = self.space.page(address) {
            self.set(page, self.entry(page).unpinned());
        }
    }

    /// All pages of a range are home after this, or nowhere if they hold zeros, but for those that are pinned or held by the kernel.
    /// Says how many of them stay.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn all_home<M: Machine>(
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
                match self.home_one(machine, units, page) {
                    Ok(true) => {}
                    Ok(false) => stay += 1,
                    Err(fatal) => failed = Some(fatal),
                }
            }
        });
        failed.map_or(Ok(stay), Err)
    }

    fn home_one<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, page: Page) -> Result<bool, M::Fatal> {
        let entry = self.entry(page);
        if entry.place() == Place::Resident && (entry.pins() > 0 || self.stage(machine, page, 1) == 0) {
            return Ok(false);
        }
        let entry = self.entry(page);
        if entry.place() == Place::Staged
            && self.ring.slot(entry.slot()) == Slot::Holds(page)
            && !self.ends_as_zeros(machine, units, page, entry.slot())
        {
            let sum = machine.sum(entry.slot());
            if !(entry.is_kept() && self.sum(page) == sum) {
                self.set_sum(page, sum);
                machine.write_home(page, entry.slot(), 1)?;
                self.counters.add(Counter::PagesOut, 1);
            }
            self.ring.spare(entry.slot());
            self.counters.add(Counter::HeldInVain, u64::from(entry.is_early() && entry.is_ordered()));
            self.set(page, entry.at(Place::Home).kept(true).early(false).ordered(false));
            units.left(self.space.address(page) / PAGE_BYTES);
        }
        Ok(true)
    }

    /// The pages of a range that are in the staging are home after this, or nowhere.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn staged_home<M: Machine>(
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
                if failed.is_none() && self.entry(page).place() == Place::Staged {
                    failed = self.home_one(machine, units, page).err();
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Memory moved to other addresses, as by mremap(2): what was in the program went along, and what was home gets a home
    /// of its own there, to which `copy` copies it. Nothing of it is staged. False when there are no numbers left for its
    /// pages there: then not all of it is known any more.
    ///
    /// What is in the air has been waited for ([`Pager::settle`]).
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
            let page = here.filter(|(_, entry)| entry.is_touched());
            if let Some((page, entry)) = page {
                let there = self.space.page_at_last(to + at);
                let Some(there) = there.filter(|there| (there.0 as usize) < self.entries.len()) else { return false };
                match entry.place() {
                    Place::Resident => {
                        self.set(there, self.entry(there).only_pins().at(Place::Resident));
                        self.line_up(units, there, 1, Arrival::New);
                    }
                    Place::Home => {
                        copy(page, there);
                        self.set_sum(there, self.sum(page));
                        self.set(there, self.entry(there).only_pins().at(Place::Home).kept(true));
                    }
                    Place::Untouched => self.set(there, self.entry(there).of_zeros()),
                    Place::Staged => {}
                }
                self.set(page, entry.only_pins());
            }
            at += PAGE_BYTES;
        }
        true
    }
}
