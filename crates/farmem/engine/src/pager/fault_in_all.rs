//! Brings all pages into the program: for a copy of it, which gets no pager and would read zeros elsewhere.

use super::{Incoming, Machine, Pager, Slot, Source};
use crate::MAX_UNIT_PAGES;
use crate::cast::{fits, saturated};
use crate::counters::Counter;
use crate::entry::Place;
use crate::policy::replacement::Arrival;
use crate::space::Page;
use crate::units::Units;

impl Pager<'_> {
    /// Brings all pages into the program, if there are frames for them. Returns whether none is elsewhere then.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub fn fault_in_all<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>) -> Result<bool, M::Fatal> {
        self.map_in_victims(machine, units)?;
        if self.victims.holds_pages() {
            return Ok(false);
        }
        // Frames in the victim queue are free now.
        let used = u64::from(self.frames_in_use().saturating_sub(self.victims.frames()));
        if used.saturating_add(self.counters.get(Counter::StoredPages)) <= self.budget().frames.into() {
            self.fetch_all(machine, units)?;
        }
        Ok(self.counters.get(Counter::StoredPages) == 0)
    }

    fn fetch_all<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>) -> Result<(), M::Fatal> {
        let all = saturated(self.space.pages());
        let is_stored = |page: u32| self.entry(Page(page)).place() == Place::Stored;
        let mut next = 0;
        while next < all && self.counters.get(Counter::StoredPages) > 0 {
            // Pages of different chunks have consecutive numbers, not consecutive memory.
            let alike = |page: &u32| Page(next).is_in_a_row(*page - next + 1) && is_stored(*page) == is_stored(next);
            let alike = (next..all.min(next.saturating_add(MAX_UNIT_PAGES))).take_while(alike);
            let mut run = fits(alike.count());
            if is_stored(next) {
                let incoming = Incoming { mark: self.entry(Page(next)).mark(), arrival: Arrival::New };
                run = self.fetch_run(machine, units, (Page(next), run), incoming, Source::Store)?;
            }
            next += run.max(1);
        }
        Ok(())
    }

    /// Takes all pages of the victim queue back into the program, as far as it accepts them: then the queue holds no
    /// page.
    ///
    /// # Errors
    /// When the store has failed for good.
    fn map_in_victims<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>) -> Result<(), M::Fatal> {
        self.settle(machine, units)?;
        for slot in 0..self.victims.slots() {
            let Slot::Holds(page) = self.victims.slot(slot) else { continue };
            if machine.move_in(slot, self.space.address(page), 1) == 1 {
                self.victims.emptied(slot, 1);
                self.set(page, self.entry(page).at(Place::Resident).marker(false).requested(false));
                self.mapped_in(units, page, 1, Arrival::New);
            }
        }
        Ok(())
    }
}
