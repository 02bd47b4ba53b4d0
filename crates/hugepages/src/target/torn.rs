//! Torn huge pages of a program: windows of which it gave back a part (MADV_DONTNEED, munmap).
//!
//! The program's resident memory falls at once. The kernel keeps the whole block, and charges it to the memory cgroup,
//! until reclaim splits it. masu splits it earlier: advice on one of its mapped pages (MADV_COLD) splits the block and
//! frees its unmapped pages. The program loses nothing, because the block is mapped page by page already.
//!
//! Frames are hidden from masu here, so a torn block is not told from small pages: each window with holes is tried
//! once, and again when the number of its pages changed. On small pages the advice has no effect but the age of one
//! page. A split is known by the kernel's counters; the rest of the window is what it freed.

use std::collections::BTreeMap;

use access::AccessMap;
use linux::Error;
use linux::process_madvise::Advice;
use rustix::io::Errno;
use units::{AddressRange, Bytes, PAGES_PER_WINDOW, PageSize, Pages, Window};

use super::Target;
use crate::program::Program;

/// Windows with holes, and the splits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Torn {
    /// Windows with holes: number of their pages, one of them, and whether it was tried.
    windows: BTreeMap<Window, Holed>,
    /// Windows split.
    pub split: u64,
    /// Memory that the splits freed.
    pub returned: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holed {
    resident: Pages,
    page: usize,
    is_tried: bool,
}

impl Torn {
    /// Notes the windows with holes after a scan.
    pub fn update(&mut self, map: &AccessMap) {
        let mut known = std::mem::take(&mut self.windows);
        for heat in map.windows.iter().filter(|heat| !heat.huge) {
            let resident = Pages(u64::from(heat.present.count()));
            let Some(page) = heat.present.iter().next().filter(|_| resident.0 < PAGES_PER_WINDOW as u64) else {
                continue;
            };
            let same = known.remove(&heat.window).filter(|before| before.resident == resident);
            self.windows.insert(heat.window, same.unwrap_or(Holed { resident, page, is_tried: false }));
        }
    }

    /// Windows to try: none while the host has no torn huge page.
    pub fn to_try(&self, program: &dyn Program) -> Vec<Window> {
        let untried = self.windows.iter().filter(|(_, holed)| !holed.is_tried);
        let untried: Vec<Window> = untried.map(|(window, _)| *window).collect();
        if untried.is_empty() || program.torn_on_host() == Some(0) { Vec::new() } else { untried }
    }

    /// Tries to split the block in a window. True if there was one.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn try_split(&mut self, program: &dyn Program, window: Window) -> Result<bool, Error> {
        let Some(holed) = self.windows.get_mut(&window) else { return Ok(false) };
        let start = window.page(holed.page).0;
        let Ok(page) = AddressRange::new(start, start + PageSize::Small.bytes().0) else { return Ok(false) };
        let torn_before = program.torn_on_host();
        if torn_before == Some(0) {
            return Ok(false);
        }
        // Since the scan the window may have become huge, and the advice would split it.
        if program.state(window)?.is_none_or(|state| state.huge || state.resident != holed.resident) {
            return Ok(false);
        }
        holed.is_tried = true;
        let before = program.splits_of_host();
        if program.advise(page, Advice::Cold) == Err(Errno::SRCH) {
            return Err(Error::of_process("advise on", format!("window {window}"), Errno::SRCH));
        }
        // Others split pages, too: the host has one torn page less, where the kernel counts them.
        let is_split = before.zip(program.splits_of_host()).is_some_and(|(before, after)| after > before)
            && torn_before.zip(program.torn_on_host()).is_none_or(|(before, after)| after < before);
        if is_split {
            let freed = Pages((PAGES_PER_WINDOW as u64).saturating_sub(holed.resident.0)).bytes();
            self.count(freed);
        }
        Ok(is_split)
    }

    /// Counts a split that freed this memory.
    pub fn count(&mut self, freed: Bytes) {
        self.split += 1;
        self.returned += freed;
    }

    /// Forgets the windows: the program has another address space.
    pub fn clear(&mut self) {
        self.windows.clear();
    }
}

impl Target {
    /// Windows that may hold a torn huge page.
    pub fn maybe_torn(&mut self) -> Vec<Window> {
        self.torn.update(self.process.source().map());
        self.torn.to_try(self.process.program())
    }

    /// Splits a torn huge page, if the window has one.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn split_torn(&mut self, window: Window) -> Result<(), Error> {
        let program = self.process.program();
        if self.torn.try_split(program, window)? {
            self.huge.measure_torn(window, program)?;
        }
        Ok(())
    }

    /// Torn huge pages that masu split, and the memory that this freed.
    pub fn torn(&self) -> (u64, Bytes) {
        (self.torn.split, self.torn.returned)
    }
}

#[cfg(test)]
mod tests {
    use access::{Backend, PageSet, WindowHeat};

    use super::*;

    fn torn(windows: &[(u64, u64, bool)]) -> Torn {
        let holed = |(window, resident, is_tried): &(u64, u64, bool)| {
            (Window(*window), Holed { resident: Pages(*resident), page: 0, is_tried: *is_tried })
        };
        Torn { windows: windows.iter().map(holed).collect(), ..Torn::default() }
    }

    #[test]
    fn a_window_is_tried_again_when_its_pages_changed() {
        let mut all = torn(&[(7, 128, true), (8, 128, true), (9, 1, true)]);
        let present = |pages: usize| {
            let mut present = PageSet::EMPTY;
            (0..pages).for_each(|page| present.insert(page));
            present
        };
        let heat = |window: u64, pages: usize| WindowHeat {
            window: Window(window),
            huge: false,
            present: present(pages),
            touched: PageSet::EMPTY,
            class_of: Box::new([0; PAGES_PER_WINDOW]),
        };
        let mut map = AccessMap::empty(Backend::BpfWalk);
        map.windows = vec![heat(7, 128), heat(8, 100), heat(10, 512), heat(11, 0)];
        all.update(&map);
        // The full, the empty and the unmapped window are out.
        assert_eq!(all.windows, torn(&[(7, 128, true), (8, 100, false)]).windows);
    }
}
