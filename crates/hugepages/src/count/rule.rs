//! Fate of a window: reserved, allocated, failed, downgraded. Pure.
//!
//! Hayasaka and Shimizu, IA32 Super Page (section 6, figure 15): `/proc/super_page` of their kernel prints, by order,
//! the numbers of superpages reserved, allocated and failed. That kernel counts at the event. Here the counts are
//! read from the memory's present state, so they hold for a program that runs already.
//!
//! | paper      | here                                                                              |
//! |------------|-----------------------------------------------------------------------------------|
//! | `reserve`  | windows that would get a huge page at the first touch, or got one in another way    |
//! | `allocate` | of these, windows that are huge now                                               |
//! | `fail`     | touched, never huge: no huge page was available, or touched before it was advised   |
//! | downgrade  | huge once, small pages now                                                        |
//!
//! We differ: the paper's counters only rise; ours give the present state, and fall when memory is unmapped. A fully
//! swapped-out window is neither failed nor downgraded: it has no frames to read.
//!
//! **Once huge.** The pages of a split huge page keep their frames: page i of the window lies in frame base + i, and
//! base is a multiple of 512. A page allocated alone fits by chance once in 512 times; so do pages allocated one
//! after the other from one large block. In a window that lies whole in its mapping, half of the resident pages must
//! fit one base. A window with a part unmapped, or with other rights on a part, is found at the edge of a mapping:
//! there 64 pages must fit, or the frames must still be one huge page to the kernel. Where huge pages were not
//! requested, only the latter counts: memory filled from its start, out of a large free block, has the frames of a
//! split huge page anyway.
//!
//! After a fork the first write to a page copies it, to any place. So a window whose pages were all written since looks
//! failed, unless an earlier count saw it huge, or some pages still lie in what the kernel has as one huge page.
//!
//! No I/O, no clock, no randomness.

use std::collections::BTreeMap;

use linux::kpageflags::FrameFlags;
use linux::maps::Mapping;
use linux::pagemap::{PageEntry, Run};
use linux::smaps::{VmFlag, VmFlags};
use linux::thp::Enabled;
use units::{PAGES_PER_WINDOW, Pages, Window};

/// Pages that must fit one base at the edge of a mapping; a process has many edges.
pub const FIT_AT_EDGE: u64 = 64;

/// Conditions for huge pages at the first touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Giving {
    /// The host's setting for 2 MiB pages.
    pub enabled: Enabled,
    /// The process forbade huge pages for itself.
    pub forbidden: bool,
}

/// Whether the kernel would give this mapping huge pages at the first touch.
pub fn would_get(mapping: &Mapping, flags: VmFlags, giving: Giving) -> bool {
    let usable = mapping.permissions.read || mapping.permissions.write;
    let wanted = match giving.enabled {
        Enabled::Always => !flags.contains(VmFlag::NoHugePage),
        Enabled::Madvise => flags.contains(VmFlag::HugePage),
        Enabled::Never => false,
    };
    let never = [VmFlag::HugeTlb, VmFlag::Io, VmFlag::PfnMap].into_iter().any(|flag| flags.contains(flag));
    mapping.is_anonymous() && usable && wanted && !giving.forbidden && !never
}

/// Whether to check windows of this mapping for an earlier huge page.
pub fn may_have_been_huge(mapping: &Mapping, flags: VmFlags, giving: Giving) -> bool {
    would_get(mapping, flags, giving) || flags.contains(VmFlag::HugePage) || giving.forbidden
}

/// Contents of a window, or of a mapping's part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Pages of the program's own in memory, without the zero page.
    pub resident: u64,
    /// Pages in swap.
    pub swapped: u64,
    /// Pages mapped by a huge entry.
    pub huge: u64,
}

impl Contents {
    /// One huge page.
    pub fn is_huge(self) -> bool {
        self.huge == PAGES_PER_WINDOW as u64
    }

    /// All its pages are in memory, as small ones.
    pub fn is_full(self) -> bool {
        self.resident == PAGES_PER_WINDOW as u64 && self.huge == 0
    }

    /// At least one page was ever written.
    pub fn is_touched(self) -> bool {
        self.resident + self.swapped > 0
    }
}

/// Adds the runs of one mapping to the contents of its windows.
pub fn contents(windows: &mut BTreeMap<Window, Contents>, runs: &[Run]) {
    for run in runs.iter().filter(|run| !run.zero) {
        for window in run.range.touched_windows() {
            let Some(part) = run.range.intersection(window.range()) else { continue };
            let pages = part.pages().0;
            let contents = windows.entry(window).or_default();
            contents.resident += if run.present { pages } else { 0 };
            contents.swapped += if run.swapped && !run.present { pages } else { 0 };
            contents.huge += if run.present && run.huge { pages } else { 0 };
        }
    }
}

/// Position of a window in its mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Whole in one mapping.
    Whole,
    /// Over the edge of a mapping that would get huge pages.
    Edge,
    /// Over the edge of a mapping that would not.
    Unwanted,
}

/// First frame of the presumed huge page, and the number of pages that fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// A multiple of 512.
    pub frame: u64,
    /// Pages in their place relative to that frame.
    pub fits: u64,
}

/// Evidence from the frames of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Not readable.
    Hidden,
    /// No page lies as in a huge page.
    NoBase,
    /// Best base of the pages that do.
    Base(Base),
}

/// Base that most pages fit. `entries` cover a whole window; pages with `left_out` true do not count.
pub fn frames(entries: &[PageEntry], left_out: impl Fn(usize) -> bool) -> Frames {
    let mut bases: BTreeMap<u64, u64> = BTreeMap::new();
    let mut hidden = false;
    for (number, entry) in entries.iter().enumerate().take(PAGES_PER_WINDOW) {
        if !entry.is_present() || entry.is_file() || left_out(number) {
            continue;
        }
        match entry.frame() {
            None => hidden = true,
            Some(frame) if frame % PAGES_PER_WINDOW as u64 == number as u64 => {
                *bases.entry(frame - number as u64).or_default() += 1;
            }
            Some(_) => {}
        }
    }
    let best = bases.into_iter().max_by_key(|(_, fits)| *fits);
    match best {
        _ if hidden => Frames::Hidden,
        None => Frames::NoBase,
        Some((frame, fits)) => Frames::Base(Base { frame, fits }),
    }
}

/// Whether this window, which is not huge, was huge once. `None` when unknown.
pub fn once_huge(frames: Frames, resident: u64, extent: Extent, one_block_still: bool) -> Option<bool> {
    match (frames, extent) {
        (Frames::Hidden, _) => None,
        (Frames::NoBase, _) => Some(false),
        (Frames::Base(_), _) if one_block_still => Some(true),
        (Frames::Base(base), Extent::Whole) => Some(base.fits * 2 >= resident),
        (Frames::Base(_), Extent::Unwanted) => Some(false),
        (Frames::Base(base), Extent::Edge) => Some(base.fits >= FIT_AT_EDGE && base.fits * 2 >= resident),
    }
}

/// Fate of a window, beside reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Never written to.
    Untouched,
    /// Huge.
    Allocated,
    /// Small pages, and never huge.
    Failed,
    /// Small pages, and huge once.
    Downgraded,
    /// Small pages; whether it was huge once is unknown.
    NotHuge,
    /// All written pages are in swap.
    SwappedOut,
}

/// The fate of a window.
pub fn fate(contents: Contents, once_huge: Option<bool>) -> Fate {
    match once_huge {
        _ if contents.is_huge() => Fate::Allocated,
        _ if !contents.is_touched() => Fate::Untouched,
        _ if contents.resident == 0 => Fate::SwappedOut,
        Some(true) => Fate::Downgraded,
        Some(false) => Fate::Failed,
        None => Fate::NotHuge,
    }
}

/// The fate of a window with its history: `was_huge` at an earlier count, with pages at each count since.
pub fn with_history(by_frames: Fate, was_huge: bool) -> Fate {
    match by_frames {
        Fate::Failed | Fate::NotHuge if was_huge => Fate::Downgraded,
        other => other,
    }
}

/// Windows by fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sum of the following, and the untouched ones.
    pub reserved: u64,
    /// Huge now.
    pub allocated: u64,
    /// Touched and never huge.
    pub failed: u64,
    /// Huge once.
    pub downgraded: u64,
    /// Failed or downgraded.
    pub not_known: u64,
    /// In swap.
    pub swapped_out: u64,
    /// Pages of torn huge pages that no page table maps.
    pub torn_pages: u64,
}

impl Tally {
    /// Counts one window. A window without a request for huge pages counts only if it is or was huge.
    /// `torn` are the pages that a torn huge page holds there.
    pub fn add(&mut self, would_get: bool, fate: Fate, torn: Pages) {
        self.torn_pages += torn.0;
        if !would_get && !matches!(fate, Fate::Allocated | Fate::Downgraded) {
            return;
        }
        self.reserved += 1;
        match fate {
            Fate::Untouched => {}
            Fate::Allocated => self.allocated += 1,
            Fate::Failed => self.failed += 1,
            Fate::Downgraded => self.downgraded += 1,
            Fate::NotHuge => self.not_known += 1,
            Fate::SwappedOut => self.swapped_out += 1,
        }
    }

    /// Sum of both.
    #[must_use]
    pub fn and(self, other: Tally) -> Tally {
        Tally {
            reserved: self.reserved + other.reserved,
            allocated: self.allocated + other.allocated,
            failed: self.failed + other.failed,
            downgraded: self.downgraded + other.downgraded,
            not_known: self.not_known + other.not_known,
            swapped_out: self.swapped_out + other.swapped_out,
            torn_pages: self.torn_pages + other.torn_pages,
        }
    }
}

/// Neighbouring pages in consecutive frames: a block of several pages can lie only there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// First page, as its number in the window.
    pub page: usize,
    /// Frame of the first page.
    pub frame: u64,
    /// Number of pages.
    pub pages: usize,
}

/// The fewest pages in a row that are worth asking about: the smallest block for anonymous memory is 16 KiB.
const PAGES_IN_SMALLEST_BLOCK: usize = 4;

/// The runs of at least four pages.
pub fn frame_runs(entries: &[PageEntry]) -> Vec<FrameRun> {
    let mut runs: Vec<FrameRun> = Vec::new();
    for (page, entry) in entries.iter().enumerate().take(PAGES_PER_WINDOW) {
        let Some(frame) = entry.frame().filter(|_| !entry.is_file()) else { continue };
        match runs.last_mut().filter(|run| run.page + run.pages == page && run.frame + run.pages as u64 == frame) {
            Some(run) => run.pages += 1,
            None => runs.push(FrameRun { page, frame, pages: 1 }),
        }
    }
    runs.retain(|run| run.pages >= PAGES_IN_SMALLEST_BLOCK);
    runs
}

/// A block that the kernel handles as a whole, with at least a part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First page in the run.
    pub first: usize,
    /// Number of pages.
    pub pages: usize,
}

/// Blocks that begin in a run, from the flags of its frames and of the following ones. Single pages are none.
pub fn blocks(run: usize, flags: &[FrameFlags]) -> Vec<Block> {
    let heads = flags.iter().enumerate().take(run).filter(|(_, flags)| flags.is_head());
    heads
        .map(|(first, _)| Block {
            first,
            pages: 1 + flags[first + 1..].iter().take_while(|flags| flags.is_tail()).count(),
        })
        .filter(|block| block.pages > 1)
        .collect()
}

#[cfg(test)]
mod tests;
