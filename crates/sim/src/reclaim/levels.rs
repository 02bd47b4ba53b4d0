//! masu's addition to the kernel's lists: pages kept for some time under pressure, and pages dropped after use. Pure.
//!
//! The clock of pressure counts whole seconds with at least one reclaim: the polling interval of a program beside the
//! kernel. The simulator sees each use; masu learns uses from samples.

use super::memory::Memory;
use super::pages::{List, flag};
use super::{Lists, Rate};
use aging::class::Class;

const SECOND_US: u64 = 1_000_000;

impl Memory {
    fn rate(&self, class: Class) -> Rate {
        match self.aging.lists {
            Lists::Classic if self.levels_hold => self.aging.rates[class as usize],
            _ => Rate::Kernel,
        }
    }

    /// Applies the level after a use of a page; `came`: the use inserted it.
    pub(super) fn apply_level(&mut self, page: u32, came: bool) {
        match self.rate(self.pages.get(page).class) {
            Rate::Kernel => (),
            Rate::Level(level) if level.get() > 0 => self.keep(page),
            Rate::Level(_) if came && (self.is_of_file(page) || self.has_swap_left()) => {
                self.let_go(page);
                // It was not evicted, so its return is no refault.
                self.pages.clear(page, flag::WORKINGSET);
                self.counts(page).drops += 1;
            }
            Rate::Level(_) => (),
        }
    }

    fn keep(&mut self, page: u32) {
        let class = self.pages.get(page).class;
        let is_kept = matches!(self.pages.list(page), Some(List::Kept(_)));
        if is_kept || !class.is_of_files() || self.kept_of_files() < self.budget() {
            self.pages.put(page, List::Kept(class));
            self.pages.get_mut(page).stamp = self.work.pressure_us;
        }
    }

    pub(super) fn kept_of_files(&self) -> u64 {
        let of_files = Class::ALL.into_iter().filter(|class| class.is_of_files());
        of_files.map(|class| self.pages.len(List::Kept(class))).sum()
    }

    /// Limit of kept file pages.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of pages, far below 2^52, and a part of it"
    )]
    pub(super) fn budget(&self) -> u64 {
        (self.machine.memory.0 as f64 * self.aging.budget.get()) as u64
    }

    /// Advances the clock at a reclaim, and returns expired pages to the kernel.
    pub(super) fn feel_pressure(&mut self) {
        let second = self.now_us / SECOND_US;
        if self.last_pressure_s.replace(second) == Some(second) {
            return;
        }
        self.work.pressure_us += SECOND_US;
        for class in Class::ALL {
            let Rate::Level(level) = self.rate(class) else { continue };
            let left = u64::from(100 - level.get());
            // Level 100 has no expiry.
            let Some(keep_us) = self.aging.base_us.saturating_mul(u64::from(level.get())).checked_div(left) else {
                continue;
            };
            while let Some(oldest) = self.pages.oldest(List::Kept(class))
                && self.pages.get(oldest).stamp.saturating_add(keep_us) <= self.work.pressure_us
            {
                self.give_back(oldest);
            }
        }
    }

    /// Returns kept pages to the kernel when nothing else is reclaimable, the class with the lowest level first. False
    /// if there are none.
    ///
    /// Without swap, memory without a file cannot be evicted even then.
    pub(super) fn release_for_want(&mut self) -> bool {
        let level_of = |class: &Class| match self.rate(*class) {
            Rate::Kernel => 0,
            Rate::Level(level) => level.get(),
        };
        let has_some = |class: &Class| self.pages.len(List::Kept(*class)) > 0;
        let can_go = |class: &Class| class.is_of_files() || self.has_swap_left();
        let class = Class::ALL.into_iter().filter(|class| has_some(class) && can_go(class)).min_by_key(level_of);
        let Some(list) = class.map(List::Kept) else { return false };
        for _ in 0..super::kernel::BATCH {
            let Some(oldest) = self.pages.oldest(list) else { break };
            self.give_back(oldest);
            self.work.released_for_want += 1;
        }
        true
    }

    /// Returns a page to the kernel's aging like an unlocked page: at the head of the inactive list.
    fn give_back(&mut self, page: u32) {
        let list = if self.is_of_file(page) { List::InactiveFile } else { List::InactiveAnon };
        self.pages.put(page, list);
    }
}
