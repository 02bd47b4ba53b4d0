//! Victim queue: a ring of slots, each with or without a frame.
//!
//! The slots in use lie between the tail and the head, in the order of their filling. A slot holds a page, a free
//! frame, or nothing if its page was taken back. Slots outside hold nothing. The ring has more slots than frames may be
//! in use, so where the head meets the tail some slots hold nothing.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Machine, Pager};
use crate::cast::{fits, saturated};
use crate::counters::Counter;
use crate::entry::Place;
use crate::space::Page;
use crate::units::Units;
use crate::{MAX_UNIT_PAGES, PAGE_BYTES};

/// Consecutive slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// First slot.
    pub slot: u32,
    /// Number of slots.
    pub pages: u32,
}

/// Largest number of runs of free frames in one search.
const MOST_RUNS: usize = 64;

/// Frames to be filled.
pub(super) struct Frames {
    runs: [Run; MOST_RUNS],
    found: usize,
    /// Position of the tail at the start.
    tail: u64,
}

impl Frames {
    pub(super) fn runs(&self) -> impl Iterator<Item = Run> {
        self.runs.into_iter().take(self.found)
    }
}

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// No frame.
    Empty,
    /// A frame whose content is not needed.
    Spare,
    /// A page.
    Holds(Page),
}

impl Slot {
    const fn of(word: u64) -> Slot {
        match word & 3 {
            0 => Slot::Empty,
            1 => Slot::Spare,
            _ => Slot::Holds(Page((word >> 32) as u32)),
        }
    }

    const fn word(self) -> u64 {
        match self {
            Slot::Empty => 0,
            Slot::Spare => 1,
            Slot::Holds(page) => 2 | ((page.0 as u64) << 32),
        }
    }
}

/// Victim queue of slots.
#[derive(Clone, Copy, Debug)]
pub struct VictimQueue<'a> {
    /// A word for each slot.
    slots: &'a [AtomicU64],
    /// Tail, head (both only grow; the remainder is the slot), and number of frames.
    ends: &'a [AtomicU64; 3],
}

impl<'a> VictimQueue<'a> {
    /// Victim queue over words of the shared segment.
    pub const fn new(slots: &'a [AtomicU64], ends: &'a [AtomicU64; 3]) -> VictimQueue<'a> {
        VictimQueue { slots, ends }
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        saturated(self.slots.len())
    }

    /// Number of frames in slots.
    pub fn frames(&self) -> u32 {
        saturated(self.ends[2].load(Relaxed))
    }

    fn tail(&self) -> u64 {
        self.ends[0].load(Relaxed)
    }

    fn head(&self) -> u64 {
        self.ends[1].load(Relaxed)
    }

    fn index(&self, at: u64) -> u32 {
        fits(at % u64::from(self.slots().max(1)))
    }

    /// Whether a slot holds a page.
    pub fn holds_pages(&self) -> bool {
        (0..self.slots()).any(|slot| matches!(self.slot(slot), Slot::Holds(_)))
    }

    /// Content of a slot.
    pub fn slot(&self, slot: u32) -> Slot {
        self.slots.get(slot as usize).map_or(Slot::Empty, |word| Slot::of(word.load(Relaxed)))
    }

    fn put(&self, slot: u32, holds: Slot) {
        let Some(word) = self.slots.get(slot as usize) else { return };
        let before = Slot::of(word.load(Relaxed));
        word.store(holds.word(), Relaxed);
        match (before == Slot::Empty, holds == Slot::Empty) {
            (true, false) => self.ends[2].store(self.ends[2].load(Relaxed).saturating_add(1), Relaxed),
            (false, true) => self.ends[2].store(self.ends[2].load(Relaxed).saturating_sub(1), Relaxed),
            _ => {}
        }
    }

    /// Records that frames left these slots.
    pub(super) fn emptied(&self, slot: u32, pages: u32) {
        (slot..slot + pages).for_each(|slot| self.put(slot, Slot::Empty));
    }

    /// Marks the content of this slot as not needed.
    pub(super) fn spare(&self, slot: u32) {
        if self.slot(slot) != Slot::Empty {
            self.put(slot, Slot::Spare);
        }
    }

    /// Consecutive empty slots at the head: at most `pages`, fewer at the end of the row.
    fn vacant(&self, pages: u32) -> Run {
        let slot = self.index(self.head());
        Run { slot, pages: pages.min(self.slots() - slot) }
    }

    /// Number of slots that can still enter at the head. None where the program has written a tail beyond the head.
    fn vacant_slots(&self) -> u32 {
        let used = self.head().checked_sub(self.tail());
        used.map_or(0, |used| saturated(u64::from(self.slots()).saturating_sub(used)))
    }

    fn advance_head(&self, pages: u32) {
        self.ends[1].store(self.head().wrapping_add(u64::from(pages)), Relaxed);
    }

    fn advance_tail(&self, slots: u32) {
        self.ends[0].store(self.tail().wrapping_add(u64::from(slots)), Relaxed);
    }
}

impl Pager<'_> {
    /// Gets frames to be filled, in at most [`MOST_RUNS`] runs: new ones while there is budget, then the oldest of the
    /// victim queue, whose pages are written back. The caller reports used frames by [`VictimQueue::emptied`], and in the end
    /// returns the rest by [`Pager::give_back`], before anything else.
    ///
    /// # Errors
    /// When the store has failed for good.
    pub(super) fn frames<M: Machine>(
        &self,
        machine: &mut M,
        units: &mut Units<'_>,
        pages: u32,
    ) -> Result<Frames, M::Fatal> {
        let (mut runs, mut found) = ([Run::default(); MOST_RUNS], 0);
        let mut left = pages;
        // New frames: slots at the head, which get a frame from the kernel when they are filled.
        let new = self.budget().frames.saturating_sub(self.frames_in_use()).min(left);
        while left > pages - new && found < MOST_RUNS {
            let run = self.claim_vacant(left - (pages - new));
            if run.pages == 0 {
                break;
            }
            (run.slot..run.slot + run.pages).for_each(|slot| self.victims.put(slot, Slot::Spare));
            runs[found] = run;
            (found, left) = (found + 1, left - run.pages);
        }
        let tail = self.victims.tail();
        while left > 0 && self.victims.tail() < self.victims.head() {
            let slot = self.victims.index(self.victims.tail());
            match self.victims.slot(slot) {
                Slot::Empty => self.victims.advance_tail(1),
                Slot::Holds(_) => self.write_back(machine, units, left)?,
                Slot::Spare => {
                    let last = found.checked_sub(1).map(|last| &mut runs[last]);
                    match last.filter(|run| run.slot + run.pages == slot) {
                        Some(run) => run.pages += 1,
                        None if found == MOST_RUNS => break,
                        None => {
                            runs[found] = Run { slot, pages: 1 };
                            found += 1;
                        }
                    }
                    self.victims.advance_tail(1);
                    left -= 1;
                }
            }
        }
        if found == 0 {
            // All frames are pinned, or held by the kernel: one frame too many for a while is better than a stopped
            // program.
            self.counters.add(Counter::FramesBeyond, 1);
            let run = self.claim_vacant(1);
            (run.slot..run.slot + run.pages).for_each(|slot| self.victims.put(slot, Slot::Spare));
            (runs[0], found) = (run, 1);
        }
        Ok(Frames { runs, found, tail })
    }

    /// Claims empty slots at the head: at most `pages`, and at least one, if any is empty.
    ///
    /// Pages that were taken back leave holes. Where the ring is full of them, the slot at the tail is also the next at
    /// the head: its content stays, as if it had just arrived, until holes are at the tail.
    fn claim_vacant(&self, pages: u32) -> Run {
        // Two rounds are more than needed; the bound holds for any values that the program may have written here.
        for _ in 0..2 * u64::from(self.victims.slots()) {
            if self.victims.vacant_slots() >= pages {
                break;
            }
            let is_hole = self.victims.slot(self.victims.index(self.victims.tail())) == Slot::Empty;
            let is_passed_over =
                !is_hole && self.victims.vacant_slots() == 0 && self.victims.frames() < self.victims.slots();
            if !is_hole && !is_passed_over {
                break;
            }
            self.victims.advance_tail(1);
            self.victims.advance_head(u32::from(is_passed_over));
        }
        let run = self.victims.vacant(pages.min(self.victims.vacant_slots()));
        self.victims.advance_head(run.pages);
        run
    }

    /// Returns unused frames: they are still free, and lie at the tail again, with holes between them.
    pub(super) fn give_back(&self, frames: &Frames) {
        let mut slots = frames.runs().flat_map(|run| run.slot..run.slot + run.pages);
        if slots.any(|slot| self.victims.slot(slot) != Slot::Empty) {
            self.victims.ends[0].store(frames.tail, Relaxed);
        }
    }

    /// Writes pages at the tail back to the store, at most `most` and only consecutive ones; their frames become spare.
    /// Pages of zeros are not written.
    fn write_back<M: Machine>(&self, machine: &mut M, units: &mut Units<'_>, most: u32) -> Result<(), M::Fatal> {
        let slot = self.victims.index(self.victims.tail());
        let Slot::Holds(first) = self.victims.slot(slot) else { return Ok(()) };
        // Some more than asked for, and no more than one transfer takes.
        let run = most.saturating_add(15).min(MAX_UNIT_PAGES);
        let end = self.victims.slots().min(slot.saturating_add(run));
        let mut pages = 1;
        while slot + pages < end && self.victims.slot(slot + pages) == Slot::Holds(first.plus(pages)) {
            pages += 1;
        }
        // The changed pages, in runs: handed over to masu, as far as batches are free.
        let mut from = 0;
        for more in 0..=pages {
            let changed = more < pages && !self.ends_as_zeros(machine, units, first.plus(more), slot + more) && {
                let (page, sum) = (first.plus(more), machine.checksum(slot + more));
                let same = self.entry(page).has_copy() && self.checksum(page) == sum;
                if !same {
                    self.set_checksum(page, sum);
                }
                !same
            };
            if !changed {
                if from < more {
                    let background = units.costs.ahead_page_ns > 0;
                    let run = (first.plus(from), more - from);
                    let taken = if background { self.hand_over(machine, run, slot + from) } else { 0 };
                    if taken < run.1 {
                        machine.write_store(run.0.plus(taken), slot + from + taken, run.1 - taken)?;
                    }
                    self.counters.add(Counter::PagesOut, run.1.into());
                }
                from = more + 1;
            }
        }
        for more in 0..pages {
            let page = first.plus(more);
            let entry = self.entry(page);
            if entry.is_of_zeros() {
                continue;
            }
            debug_assert_eq!(entry.place(), Place::Victim);
            self.counters.add(Counter::MarkerMisses, u64::from(entry.is_marker() && entry.is_requested()));
            let is_handed_over = units.costs.ahead_page_ns > 0 && self.batches.have(page);
            self.set(page, entry.at(Place::Stored).with_copy(true).marker(false).requested(is_handed_over));
            units.evicted(self.space.address(page) / PAGE_BYTES, self.budget());
            self.victims.put(slot + more, Slot::Spare);
        }
        Ok(())
    }

    /// Moves pages of the program to the head of the victim queue. Returns the number moved, from the first on.
    pub(super) fn evict<M: Machine>(&self, machine: &mut M, first: Page, pages: u32) -> u32 {
        let mut gone = 0;
        while gone < pages {
            let run = self.claim_vacant(pages - gone);
            if run.pages == 0 {
                break;
            }
            let from = first.plus(gone);
            let moved = machine.move_out(self.space.address(from), run.slot, run.pages);
            for more in 0..moved {
                let page = from.plus(more);
                self.set(page, self.entry(page).in_slot(run.slot + more));
                self.victims.put(run.slot + more, Slot::Holds(page));
            }
            gone += moved;
            if moved < run.pages {
                break;
            }
        }
        self.counters.sub(Counter::ResidentPages, gone.into());
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vacant slots of a queue of four, with these ends.
    fn vacant_slots(tail: u64, head: u64) -> u32 {
        let (slots, ends) = ([const { AtomicU64::new(0) }; 4], [tail, head, 0].map(AtomicU64::new));
        VictimQueue::new(&slots, &ends).vacant_slots()
    }

    #[test]
    fn a_tail_beyond_the_head_leaves_no_vacant_slot() {
        for (tail, head, vacant) in [(0, 0, 4), (3, 5, 2), (1, 5, 0), (6, 5, 0), (u64::MAX, 0, 0), (0, u64::MAX, 0)] {
            assert_eq!(vacant_slots(tail, head), vacant, "tail {tail}, head {head}");
        }
    }

    #[test]
    fn any_ends_and_any_number_of_frames_in_the_shared_segment_are_advanced() {
        for word in [0, 1, u64::MAX] {
            let (slots, ends) = ([const { AtomicU64::new(0) }; 4], [word; 3].map(AtomicU64::new));
            let victims = VictimQueue::new(&slots, &ends);
            victims.put(0, Slot::Spare);
            ends[2].store(word, Relaxed);
            victims.emptied(0, 1);
            victims.advance_head(1);
            victims.advance_tail(1);
            assert_eq!((victims.head(), victims.tail()), (word.wrapping_add(1), word.wrapping_add(1)));
            assert_eq!(victims.slot(0), Slot::Empty);
        }
    }
}
