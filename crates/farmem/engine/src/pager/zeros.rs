//! Pages that hold nothing but zeros: only the fact that they were touched is kept.
//!
//! They are found when they leave. In a program slightly larger than its budget they are also searched, since a program
//! that loops over its memory keeps most of it, these pages included. Such pages are frequent where a program allocates
//! more than it touches, as at the ends of arrays.

use super::{Incoming, Machine, Pager, Source, Unit};
use crate::PAGE_BYTES;
use crate::budget::Budget;
use crate::cast::fits;
use crate::counters::Counter;
use crate::entry::Place;
use crate::policy::replacement::zeros_to_look_for;
use crate::space::Page;
use crate::units::Units;

/// Number of pages of the program examined together.
pub const LOOKED_AT: usize = 32;

/// Largest number of table entries skipped in one search.
const PASSED: u64 = 1 << 16;

impl Pager<'_> {
    /// Checks whether the page of a slot holds nothing but zeros: then its content is dropped, and its frame is spare.
    pub(super) fn ends_as_zeros<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        page: Page,
        slot: u32,
    ) -> bool {
        let zeros = machine.is_zeros(slot);
        if zeros {
            let entry = self.entry(page);
            self.counters.add(Counter::MarkerMisses, u64::from(entry.is_marker() && entry.is_requested()));
            self.set(page, entry.of_zeros());
            self.victims.spare(slot);
            units.evicted(self.space.address(page) / PAGE_BYTES, self.budget());
        }
        zeros
    }

    /// Releases the frames of pages of zeros, until `pages` more pages fit, or the limit of the search is reached.
    pub(super) fn release_zero_pages<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        pages: u32,
        budget: Budget,
    ) {
        let (looked, touched) = (self.counters.get(Counter::ZeroLooks), self.counters.get(Counter::TouchedPagesPeak));
        let mut left = zeros_to_look_for(budget.frames, budget.beyond, looked, touched) as usize;
        let all = self.space.pages();
        let mut to_pass = all.min(PASSED);
        while left > 0 && to_pass > 0 && self.frames_in_use().saturating_add(pages) > budget.frames {
            let (mut these, mut addresses, mut found) = ([Page(0); LOOKED_AT], [0; LOOKED_AT], 0);
            let mut hand = self.counters.get(Counter::ZeroHand) % all;
            while found < left.min(LOOKED_AT) && to_pass > 0 {
                let page = Page(fits(hand));
                let entry = self.entry(page);
                if entry.place() == Place::Resident && entry.pins() == 0 {
                    (these[found], addresses[found]) = (page, self.space.address(page));
                    found += 1;
                }
                hand = (hand + 1) % all;
                to_pass -= 1;
            }
            left -= found;
            self.counters.set(Counter::ZeroHand, hand);
            self.counters.add(Counter::ZeroLooks, found as u64);
            let seem = machine.seem_zeros(&addresses[..found]);
            for (number, page) in these.into_iter().take(found).enumerate() {
                if seem >> number & 1 == 1 && self.evict(machine, page, 1) == 1 {
                    let slot = self.entry(page).slot();
                    // A page with other content stays in the victim queue.
                    if self.ends_as_zeros(machine, units, page, slot) {
                        machine.drop_frame(slot);
                        self.victims.emptied(slot, 1);
                    }
                }
            }
        }
    }

    /// Number of these pages that were never touched since they were allocated.
    pub(super) fn never_touched(&self, first: Page, pages: u32) -> u32 {
        (0..pages).map(|more| u32::from(!self.entry(first.plus(more)).is_touched())).sum()
    }

    /// Whether the page is in the store only, or of zeros.
    pub(super) fn is_away(&self, page: Page) -> bool {
        self.is_stored(page) || self.entry(page).is_of_zeros()
    }

    /// Fetches consecutive pages that are all in the store only, or all of zeros.
    pub(super) fn fetch_alike<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        unit: Unit,
        incoming: Incoming,
    ) -> Result<(), M::Fatal> {
        if self.entry(unit.0).is_of_zeros() {
            self.zeros(machine, units, unit, incoming.arrival)?;
        } else {
            self.fetch_run(machine, units, unit, incoming, Source::Store)?;
        }
        Ok(())
    }
}
