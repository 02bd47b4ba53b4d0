//! Memory that promotion added to a program, in huge windows and in windows that were split since.

use std::collections::BTreeMap;

use linux::Error;
use units::{Bytes, Pages, Window};

use crate::program::Program;

/// A window that was split, by masu or by others, and keeps pages that were not resident before its promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leftover {
    before: Pages,
    now: Pages,
}

/// Memory added by promotion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraMemory {
    leftovers: BTreeMap<Window, Leftover>,
    /// Sum over huge windows and leftovers, kept incrementally: a program may have a million windows.
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
        self.total = left.fold(in_huge_windows, |sum, left| sum + left);
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

    /// Measures all leftovers again.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn measure(&mut self, program: &dyn Program) -> Result<(), Error> {
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
