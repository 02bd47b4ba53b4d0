//! Resident pages: the lowest backend, and the check before and after each action.
//!
//! Carries no information on use. Exact at the moment of the call, under the kernel's lock. Read from the
//! `PAGEMAP_SCAN` ioctl (Linux 6.7) or, before it, from frame numbers with `/proc/kpageflags`.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use linux::kpageflags::{FrameTable, is_one_huge_page};
use linux::maps::Mapping;
use linux::pagemap::{PageEntry, Pagemap};
use linux::{Error, KernelFiles, Pid};
use units::{Address, AddressRange, PAGES_PER_WINDOW, Pages, Window, cast};

use crate::backend::Backend;
use crate::frames::{self, WindowFrames};
use crate::map::{AccessMap, Class, PageSet, WindowHeat};
use crate::observer::{Cost, Observer, Stopwatch};

/// Contents of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowState {
    /// Pages of the program's own in memory, without the zero page.
    pub resident: Pages,
    /// Pages that map the zero page.
    pub zero: Pages,
    /// Pages in swap.
    pub swapped: Pages,
    /// Resident pages that another process maps too, after a fork or merged by KSM.
    pub shared: Pages,
    /// Guard pages. Kernels before 6.15 do not report them; their collapse refuses by itself.
    pub guards: Pages,
    /// Pages of a file or of shared memory.
    pub file: Pages,
    /// One huge page of memory. The kernel's huge page of zeros is none.
    pub huge: bool,
}

/// Reader of the windows of one process.
#[derive(Debug)]
pub struct Viewer {
    pagemap: Pagemap,
    /// In use on a kernel without the scan.
    frames: Option<FrameTable>,
    /// Opened at the first [`Viewer::frames`]; `None` where that is denied.
    table: OnceCell<Option<FrameTable>>,
}

impl Viewer {
    /// Opens the files needed to read `pid`.
    ///
    /// # Errors
    /// `Gone`, or `Denied` without ptrace access; before Linux 6.7 also without CAP_SYS_ADMIN.
    pub fn open(pid: Pid) -> Result<Viewer, Error> {
        let pagemap = Pagemap::open(pid)?;
        let frames = match pagemap.scan(Window(0).range()) {
            Err(Error::Unsupported(_)) => Some(FrameTable::open()?),
            _ => None,
        };
        Ok(Viewer { pagemap, frames, table: OnceCell::new() })
    }

    /// The same by frame numbers alone, as on a kernel without the scan.
    ///
    /// # Errors
    /// `Gone`, or `Denied` without CAP_SYS_ADMIN.
    pub fn by_frames(pid: Pid) -> Result<Viewer, Error> {
        Ok(Viewer { pagemap: Pagemap::open(pid)?, frames: Some(FrameTable::open()?), table: OnceCell::new() })
    }

    /// Contents of `window` now.
    ///
    /// # Errors
    /// `Gone` when the address space ended.
    pub fn window(&self, window: Window) -> Result<WindowState, Error> {
        self.window_in(window, window.range())
    }

    /// Contents now of the part of `window` that lies in `range`, such as a mapping.
    ///
    /// # Errors
    /// `Gone` when the address space ended.
    pub fn window_in(&self, window: Window, range: AddressRange) -> Result<WindowState, Error> {
        let Some(part) = range.intersection(window.range()) else { return Ok(WindowState::default()) };
        let mut entries = self.pagemap.entries(window.range())?;
        let first = part.start().page_in_window();
        let inside = first..first + cast::index(part.pages().0);
        let outside = entries.iter_mut().enumerate().filter(|(page, _)| !inside.contains(page));
        outside.for_each(|(_, entry)| *entry = PageEntry(0));
        match &self.frames {
            None => {
                let mut zero = PageSet::EMPTY;
                let mut huge_pages = 0;
                for run in self.pagemap.scan(part)? {
                    let pages = cast::index(run.range.pages().0);
                    huge_pages += if run.huge { pages } else { 0 };
                    if run.zero {
                        let first = run.range.start().page_in_window();
                        (first..first + pages).for_each(|page| zero.insert(page));
                    }
                }
                Ok(tally(&entries, &zero, huge_pages == PAGES_PER_WINDOW))
            }
            Some(frames) => {
                let zero = zero_pages(&entries, frames);
                Ok(tally(&entries, &zero, huge_by_frames(&entries, frames)))
            }
        }
    }

    /// First page of `window` in memory; pages of zeros count.
    ///
    /// # Errors
    /// `Gone` when the address space ended.
    pub fn first_present(&self, window: Window) -> Result<Option<usize>, Error> {
        Ok(self.pagemap.entries(window.range())?.iter().position(|entry| entry.is_present()))
    }

    /// Whole windows in `range` that are mapped by huge pages of the program's own, in order. Empty when the address
    /// space ended: see [`Viewer::is_current`].
    ///
    /// # Errors
    /// `Gone` when the address space ended.
    pub fn huge_windows(&self, range: AddressRange) -> Result<Vec<Window>, Error> {
        if self.frames.is_none() {
            let runs = self.pagemap.scan_huge(range)?;
            let own = runs.into_iter().filter(|run| run.huge && !run.zero);
            return Ok(own.flat_map(|run| run.range.whole_windows()).collect());
        }
        let mut huge = Vec::new();
        for window in range.whole_windows() {
            if self.window(window)?.huge {
                huge.push(window);
            }
        }
        Ok(huge)
    }

    /// Frames of `window` now; `None` without CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// `Gone` when the address space ended.
    pub fn frames(&self, window: Window) -> Result<Option<WindowFrames>, Error> {
        self.frame_table().map_or(Ok(None), |table| frames::read(&self.pagemap, table, window))
    }

    fn frame_table(&self) -> Option<&FrameTable> {
        self.frames.as_ref().or_else(|| self.table.get_or_init(|| FrameTable::open().ok()).as_ref())
    }

    /// Frame of the first page of `window`; `None` without CAP_SYS_ADMIN, or if that page is not in memory.
    ///
    /// # Errors
    /// `Gone` when the address space ended.
    pub fn first_frame(&self, window: Window) -> Result<Option<u64>, Error> {
        Ok(self.pagemap.entries(window.first_page())?.first().and_then(|entry| entry.frame()))
    }

    /// Whether `frame` is the first of a huge page now, whoever maps it. False without CAP_SYS_ADMIN.
    pub fn is_huge_page(&self, frame: u64) -> bool {
        let flags = self.frame_table().and_then(|table| table.flags_of(frame, PAGES_PER_WINDOW).ok());
        flags.is_some_and(|flags| is_one_huge_page(&flags))
    }

    /// Addresses in `range` at which `frames` are mapped, by frame. Reads all entries: 8 bytes a page.
    ///
    /// # Errors
    /// `Gone` when the address space ended.
    pub fn find_frames(&self, range: AddressRange, frames: &BTreeSet<u64>) -> Result<BTreeMap<u64, Address>, Error> {
        let mut found = BTreeMap::new();
        self.pagemap.each(range, |address, entry| {
            if let Some(frame) = entry.frame().filter(|frame| frames.contains(frame)) {
                found.insert(frame, address);
            }
        })?;
        Ok(found)
    }

    /// Pages of the program's own in memory in `range`, without the zero page. Before Linux 6.7 zero pages count.
    ///
    /// # Errors
    /// `Gone` when the address space ended.
    pub fn resident_in(&self, range: AddressRange) -> Result<Pages, Error> {
        let runs = match self.pagemap.scan(range) {
            Err(Error::Unsupported(_)) => {
                let present = self.pagemap.entries(range)?.into_iter().filter(|entry| entry.is_present());
                return Ok(Pages(present.count() as u64));
            }
            runs => runs?,
        };
        Ok(Pages(runs.iter().filter(|run| run.present && !run.zero).map(|run| run.range.pages().0).sum()))
    }

    /// Whether the process still has the address space of the opening. Not after exec.
    ///
    /// # Errors
    /// Any error except that it is gone.
    pub fn is_current(&self) -> Result<bool, Error> {
        match self.window(Window(0)) {
            Ok(_) => Ok(true),
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Counts the entries of one window by kind.
fn tally(entries: &[PageEntry], zero: &PageSet, huge: bool) -> WindowState {
    let mut state = WindowState::default();
    for (number, entry) in entries.iter().enumerate().take(PAGES_PER_WINDOW) {
        let is_zero = zero.contains(number);
        let resident = entry.is_present() && !is_zero;
        state.zero.0 += u64::from(is_zero);
        state.resident.0 += u64::from(resident);
        state.shared.0 += u64::from(resident && !entry.is_exclusive());
        state.swapped.0 += u64::from(entry.is_swapped() && !entry.is_guard());
        state.file.0 += u64::from(resident && entry.is_file());
        state.guards.0 += u64::from(entry.is_guard());
    }
    state.huge = huge && state.zero == Pages(0);
    state
}

/// Pages that map the zero page, found by their frames. All of a window's have the same frame, so few are checked.
fn zero_pages(entries: &[PageEntry], frames: &FrameTable) -> PageSet {
    let mut known: Option<(u64, bool)> = None;
    let mut zero = PageSet::EMPTY;
    for (number, entry) in entries.iter().enumerate().take(PAGES_PER_WINDOW) {
        let Some(frame) = entry.frame().filter(|_| !entry.is_exclusive()) else { continue };
        let is_zero = match known {
            Some((before, answer)) if before == frame => answer,
            _ => frames.flags(frame).is_ok_and(linux::kpageflags::FrameFlags::is_zero_page),
        };
        known = Some((frame, is_zero));
        if is_zero {
            zero.insert(number);
        }
    }
    zero
}

/// 512 consecutive frames, the first a multiple of 512, which are one huge page to the kernel. A huge page mapped
/// page by page would pass too; nothing that masu does leaves one behind.
fn huge_by_frames(entries: &[PageEntry], frames: &FrameTable) -> bool {
    let Some(first) = entries.first().and_then(|entry| entry.frame()) else { return false };
    let in_a_row = entries.iter().zip(first..).all(|(entry, expected)| entry.frame() == Some(expected));
    entries.len() == PAGES_PER_WINDOW
        && first % PAGES_PER_WINDOW as u64 == 0
        && in_a_row
        && frames.flags_of(first, PAGES_PER_WINDOW).is_ok_and(|flags| is_one_huge_page(&flags))
}

/// Residency as an [`Observer`]: every page in memory is in class 1, without count or rate.
#[derive(Debug)]
pub struct ResidencyObserver<F> {
    files: F,
    pid: Pid,
    pagemap: Pagemap,
    began: Instant,
    map: AccessMap,
    cost: Cost,
}

impl<F: KernelFiles> ResidencyObserver<F> {
    /// Watches `pid`.
    ///
    /// # Errors
    /// `Gone`, or `Denied` without ptrace access.
    pub fn new(files: F, pid: Pid) -> Result<ResidencyObserver<F>, Error> {
        let pagemap = Pagemap::open(pid)?;
        let map = AccessMap { classes: vec![Class::default(); 2], ..AccessMap::empty(Backend::Residency) };
        Ok(ResidencyObserver { files, pid, pagemap, began: Instant::now(), map, cost: Cost::default() })
    }

    fn read(&self, range: AddressRange, windows: &mut Vec<WindowHeat>) -> Result<(), Error> {
        match self.pagemap.scan(range) {
            Ok(runs) => {
                for run in runs.iter().filter(|run| run.present && !run.zero) {
                    add_run(windows, run.range, run.huge);
                }
                Ok(())
            }
            Err(Error::Unsupported(_)) => {
                for window in range.touched_windows() {
                    let Some(part) = range.intersection(window.range()) else { continue };
                    for (number, entry) in (0u64..).zip(self.pagemap.entries(part)?) {
                        let start = part.start().0 + number * 4096;
                        if let (true, Ok(page)) = (entry.is_present(), AddressRange::new(start, start + 4096)) {
                            add_run(windows, page, false);
                        }
                    }
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Appends a run of present pages to the windows. Runs come in order of address.
fn add_run(windows: &mut Vec<WindowHeat>, run: AddressRange, huge: bool) {
    for window in run.touched_windows() {
        let Some(part) = run.intersection(window.range()) else { continue };
        if windows.last().is_none_or(|last| last.window != window) {
            windows.push(WindowHeat::untouched(window));
        }
        let Some(heat) = windows.last_mut() else { continue };
        let first = part.start().page_in_window();
        let pages = cast::index(part.pages().0);
        (first..first + pages).for_each(|page| heat.present.insert(page));
        heat.huge |= huge && pages == PAGES_PER_WINDOW;
        let present = heat.present;
        heat.classify(&present, 1);
    }
}

impl<F: KernelFiles> Observer for ResidencyObserver<F> {
    fn backend(&self) -> Backend {
        Backend::Residency
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.began = Instant::now();
        Ok(())
    }

    fn scan(&mut self) -> Result<(), Error> {
        let stopwatch = Stopwatch::start();
        // The open file refers to the address space of its opening; after exec there is a new one.
        self.pagemap = Pagemap::open(self.pid)?;
        let mappings: Vec<Mapping> = linux::maps::maps(&self.files, self.pid)?;
        let mut windows = Vec::new();
        for mapping in mappings.iter().filter(|mapping| mapping.permissions.read && mapping.path != "[vsyscall]") {
            self.read(mapping.range, &mut windows)?;
        }
        self.map.windows = windows;
        self.map.observed = self.began.elapsed();
        self.cost.scan.add(stopwatch.elapsed(), self.map.present());
        Ok(())
    }

    fn age(&self) -> Duration {
        self.began.elapsed()
    }

    fn map(&self) -> &AccessMap {
        &self.map
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn address_space_changed(&self) -> bool {
        false // each scan is of the address space of its moment, and nothing is kept from one to the next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENT: u64 = 1 << 63;
    const EXCLUSIVE: u64 = 1 << 56;

    #[test]
    fn a_window_is_counted_by_kind() {
        let mut entries = vec![PageEntry(0); PAGES_PER_WINDOW];
        entries[0] = PageEntry(PRESENT | EXCLUSIVE);
        entries[1] = PageEntry(PRESENT);
        entries[2] = PageEntry(PRESENT); // the zero page
        entries[3] = PageEntry(1 << 62);
        entries[4] = PageEntry(1 << 58);
        entries[5] = PageEntry(PRESENT | EXCLUSIVE | 1 << 61);
        let mut zero = PageSet::EMPTY;
        zero.insert(2);
        let state = tally(&entries, &zero, false);
        let expected = WindowState {
            resident: Pages(3),
            file: Pages(1),
            zero: Pages(1),
            swapped: Pages(1),
            shared: Pages(1),
            guards: Pages(1),
            huge: false,
        };
        assert_eq!(state, expected);
    }

    #[test]
    fn runs_across_windows_and_mappings_join_in_their_windows() {
        let mut windows = Vec::new();
        let page = |n: u64| n * 4096;
        add_run(&mut windows, AddressRange::new(page(510), page(514)).unwrap(), false);
        add_run(&mut windows, AddressRange::new(page(600), page(601)).unwrap(), false);
        add_run(&mut windows, AddressRange::new(page(1024), page(2048)).unwrap(), true);
        let found: Vec<_> = windows.iter().map(|heat| (heat.window.0, heat.present.count(), heat.huge)).collect();
        assert_eq!(found, [(0, 2, false), (1, 3, false), (2, 512, true), (3, 512, true)]);
    }
}
