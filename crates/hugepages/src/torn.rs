//! Torn huge pages of a program: windows of which it gave back a part (MADV_DONTNEED, munmap).
//!
//! The program's resident memory falls at once. The kernel keeps the whole block, and charges it to the memory cgroup,
//! until reclaim splits it. masu splits it earlier: advice on one of its mapped pages (MADV_COLD) splits the block and
//! frees its unmapped pages. The program loses nothing, because the block is mapped page by page already.
//!
//! Frames show a torn block ([`act::split_torn`]). Where they are hidden, it is not told from small pages: each window
//! with holes is tried once, and again when the number of its pages changed. On small pages the advice has no effect but
//! the age of one page. A window may be made huge and torn again with the same number of pages: where frames are
//! visible, all windows are looked at again when the kernel has counted another torn page.
//! A split is known by the kernel's counters.

use std::collections::{BTreeMap, BTreeSet};

use linux::Error;
use units::{Bytes, PAGES_PER_WINDOW, Pages, Window};

use crate::act::{self, TornBlock};
use crate::program::Program;

/// Reasons for which the kernel does not split a block, in words.
pub const STAYS: &str = "locked, or another process maps it";

/// Windows with holes, and the splits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Torn {
    windows: BTreeMap<Window, Holed>,
    /// Torn pages of the host since boot, at the last look.
    counted: Option<u64>,
    /// Windows split.
    pub split: u64,
    /// Memory that the splits freed.
    pub returned: Bytes,
    /// Windows whose block the kernel did not split at the last attempt, and the memory that it keeps of each.
    stays: BTreeMap<Window, Bytes>,
    /// The same of blocks that a fork shares: the other process has them, too.
    shared: BTreeMap<Window, Bytes>,
}

/// Resident pages of a window with holes, and whether it was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holed {
    resident: Pages,
    is_tried: bool,
}

impl Torn {
    /// Notes the windows that are not huge, with their resident pages; full and empty ones are left out.
    pub fn update(&mut self, windows: impl Iterator<Item = (Window, Pages)>) {
        let mut known = std::mem::take(&mut self.windows);
        let has_holes = |resident: Pages| resident.0 > 0 && resident.0 < PAGES_PER_WINDOW as u64;
        for (window, resident) in windows.filter(|(_, resident)| has_holes(*resident)) {
            let same = known.remove(&window).filter(|before| before.resident == resident);
            self.windows.insert(window, same.unwrap_or(Holed { resident, is_tried: false }));
        }
        self.stays.retain(|window, _| self.windows.contains_key(window));
        self.shared.retain(|window, _| self.windows.contains_key(window));
    }

    /// Windows whose blocks stay, and the memory that the kernel keeps of them.
    pub fn stays(&self) -> (u64, Bytes) {
        let (own, shared) = (self.stays_own(), self.stays_shared());
        (own.0 + shared.0, own.1 + shared.1)
    }

    /// The same without those that a fork shares.
    pub fn stays_own(&self) -> (u64, Bytes) {
        (self.stays.len() as u64, self.stays.values().copied().sum())
    }

    /// The same of those that a fork shares.
    pub fn stays_shared(&self) -> (u64, Bytes) {
        (self.shared.len() as u64, self.shared.values().copied().sum())
    }

    /// Windows to try: none while the host has no torn huge page.
    pub fn to_try(&mut self, program: &dyn Program) -> Vec<Window> {
        if self.windows.is_empty() || program.torn_on_host() == Some(0) {
            return Vec::new();
        }
        let counted = program.torn_so_far();
        let has_more = std::mem::replace(&mut self.counted, counted) != counted;
        let untried = self.windows.iter().filter(|(_, holed)| has_more || !holed.is_tried);
        untried.map(|(window, _)| *window).collect()
    }

    /// Torn huge pages of the host that stay, of which some may be the program's: frames are hidden, and windows with
    /// holes have been tried.
    pub fn maybe_stays(&self, program: &dyn Program) -> u64 {
        let tried = self.windows.iter().find(|(_, holed)| holed.is_tried);
        let is_hidden = tried.is_some_and(|(window, _)| program.frames(*window).is_ok_and(|frames| frames.is_none()));
        if is_hidden { program.torn_on_host().unwrap_or(0) } else { 0 }
    }

    /// Tries to split the block in a window. True if there was one.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn try_split(&mut self, program: &dyn Program, window: Window) -> Result<bool, Error> {
        let was_tried = self.windows.get_mut(&window).is_some_and(|holed| std::mem::replace(&mut holed.is_tried, true));
        if was_tried && program.frames(window)?.is_none() {
            return Ok(false);
        }
        self.stays.remove(&window);
        self.shared.remove(&window);
        let block = act::split_torn(program, window)?;
        match block {
            TornBlock::None => {}
            TornBlock::Split(freed) => (self.split, self.returned) = (self.split + 1, self.returned + freed),
            TornBlock::Stays(kept) => drop(self.stays.insert(window, kept)),
            TornBlock::Shared(kept) => drop(self.shared.insert(window, kept)),
        }
        Ok(matches!(block, TornBlock::Split(_)))
    }

    /// Looks for all windows with holes, and tries them, until `stop`. Those that a fork shares are tried again.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn split_all(&mut self, program: &dyn Program, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        if program.torn_on_host() == Some(0) {
            self.stays.clear();
            self.shared.clear();
            return Ok(());
        }
        self.update(program.holed_windows()?.into_iter());
        // Windows that a fork shared may be the program's alone now.
        let mut windows: BTreeSet<Window> = self.to_try(program).into_iter().collect();
        windows.extend(self.shared.keys());
        for window in windows {
            if stop() || program.torn_on_host() == Some(0) {
                break;
            }
            self.try_split(program, window)?;
        }
        Ok(())
    }

    /// Forgets the windows: the program has another address space.
    pub fn clear(&mut self) {
        self.windows.clear();
        self.stays.clear();
        self.shared.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torn(windows: &[(u64, u64, bool)]) -> Torn {
        let holed = |(window, resident, is_tried): &(u64, u64, bool)| {
            (Window(*window), Holed { resident: Pages(*resident), is_tried: *is_tried })
        };
        Torn { windows: windows.iter().map(holed).collect(), ..Torn::default() }
    }

    #[test]
    fn a_window_is_tried_again_when_its_pages_changed() {
        let mut all = torn(&[(7, 128, true), (8, 128, true), (9, 1, true)]);
        let now = [(7, 128), (8, 100), (10, 512), (11, 0)].map(|(window, pages)| (Window(window), Pages(pages)));
        all.update(now.into_iter());
        // The full, the empty and the unmapped window are out.
        assert_eq!(all.windows, torn(&[(7, 128, true), (8, 100, false)]).windows);
    }
}
