//! Memory that promotion added to a program, in huge windows and in windows that were split since.

use std::collections::BTreeMap;

use linux::Error;
use units::{Address, Bytes, PAGES_PER_WINDOW, Pages, Window};

use super::moved::pages_from;
use crate::program::Program;

/// A window that was split, by masu or by others, and keeps pages that were not resident before its promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leftover {
    before: Pages,
    now: Pages,
}

/// A huge page of masu's that the program moved to an address that is no multiple of 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedPage {
    pub frame: u64,
    pub first: Address,
    /// Pages resident before its promotion, and now.
    before: Pages,
    now: Pages,
    is_tried: bool,
}

/// Memory added by promotion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraMemory {
    leftovers: BTreeMap<Window, Leftover>,
    /// By first address.
    moved: BTreeMap<Address, MovedPage>,
    /// Sum over huge windows, leftovers and moved pages, kept incrementally: a program may have a million windows.
    total: Bytes,
}

impl ExtraMemory {
    /// All of it.
    pub fn total(&self) -> Bytes {
        self.total
    }

    /// Sums up anew; `in_huge_windows` is the memory added in windows that are huge.
    pub fn sum_up(&mut self, in_huge_windows: Bytes) {
        let left = self.leftovers.values().map(|left| left.now.bytes().saturating_sub(left.before.bytes()));
        let moved = self.moved.values().map(|page| page.now.bytes().saturating_sub(page.before.bytes()));
        self.total = left.chain(moved).fold(in_huge_windows, |sum, left| sum + left);
    }

    /// Adds the cost of a promotion.
    pub fn add(&mut self, cost: Bytes) {
        self.total += cost;
    }

    /// Records a split of a window with `before` resident pages before its promotion, which cost `cost`, and `now`
    /// resident pages after the split.
    pub fn record_split(&mut self, window: Window, before: Pages, now: Pages, cost: Bytes) {
        self.record_leftover(window, before, now);
        let left = now.bytes().saturating_sub(before.bytes());
        self.total = (self.total + left).saturating_sub(cost);
    }

    /// Records a window that is small again, without a change of the total.
    pub fn record_leftover(&mut self, window: Window, before: Pages, now: Pages) {
        if now > before {
            self.leftovers.insert(window, Leftover { before, now });
        }
    }

    /// Removes the leftover of a window that is huge again. Returns its pages resident before the first promotion.
    pub fn remove_leftover(&mut self, window: Window) -> Option<Pages> {
        self.leftovers.remove(&window).map(|left| left.before)
    }

    /// Records a huge page with `before` resident pages before its promotion, whose pages lie from `first` on now.
    pub fn record_moved(&mut self, frame: u64, first: Address, before: Pages) {
        let page = MovedPage { frame, first, before, now: Pages(PAGES_PER_WINDOW as u64), is_tried: false };
        self.moved.insert(first, page);
    }

    /// Moved pages that have memory to return; `again`: also those that were tried.
    pub fn moved_to_split(&self, again: bool) -> Vec<MovedPage> {
        self.moved.values().filter(|page| again || !page.is_tried).copied().collect()
    }

    /// Measures a moved page that was advised to split. One without added memory is forgotten.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn measure_moved(&mut self, first: Address, program: &dyn Program) -> Result<(), Error> {
        let Some((page, range)) = self.moved.get_mut(&first).zip(pages_from(first)) else { return Ok(()) };
        page.is_tried = true;
        page.now = program.resident_in(range)?.unwrap_or_default();
        if page.now <= page.before {
            self.moved.remove(&first);
        }
        Ok(())
    }

    /// Measures the moved pages again. A page that is not at its address may have been moved again.
    fn measure_all_moved(&mut self, program: &dyn Program) -> Result<(), Error> {
        let mut empty = BTreeMap::new();
        for (first, mut page) in std::mem::take(&mut self.moved) {
            let now = pages_from(first).map_or(Ok(None), |range| program.resident_in(range))?.unwrap_or_default();
            page.now = now;
            if now == Pages(0) {
                empty.insert(page.frame, page);
            } else if now > page.before {
                self.moved.insert(first, page);
            }
        }
        if empty.is_empty() {
            return Ok(());
        }
        for (frame, first) in program.find_huge_pages(&empty.keys().copied().collect())? {
            if let Some(page) = empty.get(&frame) {
                self.record_moved(frame, first, page.before);
            }
        }
        Ok(())
    }

    /// Measures all leftovers and moved pages again.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn measure(&mut self, program: &dyn Program) -> Result<(), Error> {
        self.measure_all_moved(program)?;
        self.leftovers
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|one| self.measure_one(one, program))
    }

    /// Measures the leftover of a window again, if it has one.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn measure_one(&mut self, window: Window, program: &dyn Program) -> Result<(), Error> {
        if let Some(before) = self.remove_leftover(window) {
            let now = program.state(window)?.unwrap_or_default().resident;
            self.record_leftover(window, before, now);
        }
        Ok(())
    }
}
