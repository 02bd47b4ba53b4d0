//! Frames of a window: lazily freed pages, and memory of torn blocks. Page tables show neither.
//!
//! A page freed lazily (MADV_FREE) stays mapped until reclaim takes it or the program writes to it again. Its frame is
//! anonymous and not backed by swap (`/proc/kpageflags`). A write sets the dirty bit of its entry and leaves the frame as
//! it is, so the frame alone shows a page that *was* freed; [`crate::Observer::written`] has the dirty bits.
//!
//! A block (a folio of 2 MiB or of a smaller size) is torn if the program has unmapped a part of it, by munmap or by
//! MADV_DONTNEED. The kernel frees no page of the block, and charges all of it to the memory cgroup, until it splits
//! the block: when reclaim comes, or when masu advises one of its mapped pages cold.
//!
//! Cost: 2 µs a window for the entries, and 2 to 7 µs for each run of frames. Needs CAP_SYS_ADMIN.

use std::collections::BTreeMap;

use linux::Error;
use linux::kpageflags::{FrameFlags, FrameTable};
use linux::pagemap::{PageEntry, Pagemap};
use units::{PAGES_PER_WINDOW, Pages, Window};

use crate::map::PageSet;

/// Frames of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowFrames {
    /// Resident pages with a frame that was freed lazily; some of them may have been written since.
    pub lazily_freed: PageSet,
    /// Blocks with pages that are not mapped in this window, in order of their first mapped page.
    pub partial: Vec<PartialBlock>,
    /// The same, with pages that another process maps too, after a fork: it may map the rest of the block.
    pub shared_partial: Vec<PartialBlock>,
}

/// Block of which this window maps a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialBlock {
    /// Frame of its first page.
    pub frame: u64,
    /// Number of its pages.
    pub pages: Pages,
    /// Number of its pages that are mapped here.
    pub mapped: Pages,
    /// First page of the window that maps one of them.
    pub first: usize,
}

/// Blocks by first frame, each with its pages and those that are mapped. A block that mremap moved lies in two windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks(BTreeMap<u64, (Pages, Pages)>);

impl Blocks {
    /// Adds the part that one window maps.
    pub fn add(&mut self, part: PartialBlock) {
        let (_, mapped) = self.0.entry(part.frame).or_insert((part.pages, Pages(0)));
        mapped.0 += part.mapped.0;
    }

    /// Pages of a block that no window added here maps: charged, and of no use to the program.
    pub fn unmapped(&self, frame: u64) -> Pages {
        self.0.get(&frame).map_or(Pages(0), |(pages, mapped)| Pages(pages.0.saturating_sub(mapped.0)))
    }

    /// The same of all blocks.
    pub fn unmapped_in_all(&self) -> Pages {
        Pages(self.0.values().map(|(pages, mapped)| pages.0.saturating_sub(mapped.0)).sum())
    }
}

/// Reads the frames of a window. `None` if the kernel hides frame numbers.
///
/// # Errors
/// `Gone` when the address space ended.
pub fn read(pagemap: &Pagemap, table: &FrameTable, window: Window) -> Result<Option<WindowFrames>, Error> {
    let entries = pagemap.entries(window.range())?;
    if entries.iter().any(|entry| entry.is_present() && entry.frame().is_none()) {
        return Ok(None);
    }
    Ok(Some(judge(&entries, |first, count| table.flags_of(first, count).unwrap_or_default())))
}

/// Judges the entries of a window. `flags` returns the flags of a number of frames in a row, fewer beyond the last frame.
pub fn judge(entries: &[PageEntry], flags: impl Fn(u64, usize) -> Vec<FrameFlags>) -> WindowFrames {
    let mut found = WindowFrames::default();
    let mut groups: BTreeMap<u64, Vec<FrameFlags>> = BTreeMap::new();
    let mut blocks: BTreeMap<u64, (PartialBlock, bool)> = BTreeMap::new();
    for run in runs(entries) {
        let own = flags(run.frame, run.pages);
        for (number, flag) in (0..run.pages).zip(&own) {
            let (page, frame) = (run.page + number, run.frame + number as u64);
            // Up to some kernel after 6.1 only the first frame of a block has all flags.
            let mut of_block = *flag;
            if flag.is_head() || flag.is_tail() {
                let group_start = frame - frame % PAGES_PER_WINDOW as u64;
                let group = groups.entry(group_start).or_insert_with(|| flags(group_start, PAGES_PER_WINDOW));
                let at = units::cast::index(frame - group_start);
                if let Some((head, pages)) = block_around(group, at) {
                    of_block = group[head];
                    let frame = group_start + head as u64;
                    let new = PartialBlock { frame, pages: Pages(pages as u64), mapped: Pages(0), first: page };
                    let (block, is_shared) = blocks.entry(frame).or_insert((new, false));
                    block.mapped.0 += 1;
                    *is_shared |= !run.is_own;
                }
            }
            if run.is_own && of_block.is_anonymous() && !of_block.is_swap_backed() {
                found.lazily_freed.insert(page);
            }
        }
    }
    for (block, is_shared) in blocks.into_values().filter(|(block, _)| block.mapped < block.pages) {
        if is_shared { found.shared_partial.push(block) } else { found.partial.push(block) }
    }
    found.partial.sort_by_key(|block| block.first);
    found.shared_partial.sort_by_key(|block| block.first);
    found
}

/// First frame and length of the block around frame `at` of an aligned group of 512.
fn block_around(group: &[FrameFlags], at: usize) -> Option<(usize, usize)> {
    let head = (0..=at).rev().find(|number| !group.get(*number).is_some_and(|flags| flags.is_tail()))?;
    if !group.get(head)?.is_head() {
        return None; // split meanwhile
    }
    Some((head, 1 + group[head + 1..].iter().take_while(|flags| flags.is_tail()).count()))
}

/// Neighbouring pages in consecutive frames: all of the process's own, or all shared.
struct Run {
    is_own: bool,
    page: usize,
    frame: u64,
    pages: usize,
}

fn runs(entries: &[PageEntry]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (page, entry) in entries.iter().enumerate().take(PAGES_PER_WINDOW) {
        let Some(frame) = entry.frame().filter(|_| !entry.is_file()) else { continue };
        let is_own = entry.is_exclusive();
        let is_next = |run: &&mut Run| {
            run.is_own == is_own && run.page + run.pages == page && run.frame + run.pages as u64 == frame
        };
        match runs.last_mut().filter(is_next) {
            Some(run) => run.pages += 1,
            None => runs.push(Run { is_own, page, frame, pages: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use linux::kpageflags::bits;

    use super::*;

    const fn flags(of: &[u32]) -> FrameFlags {
        let (mut word, mut number) = (0, 0);
        while number < of.len() {
            word |= 1 << of[number];
            number += 1;
        }
        FrameFlags::of(word)
    }

    const SMALL: FrameFlags = flags(&[bits::ANON, bits::SWAP_BACKED]);
    const FREED: FrameFlags = flags(&[bits::ANON]);
    const HEAD: FrameFlags = flags(&[bits::ANON, bits::SWAP_BACKED, bits::COMPOUND_HEAD, bits::THP]);
    const TAIL: FrameFlags = flags(&[bits::COMPOUND_TAIL, bits::THP]);

    fn own(frame: u64) -> PageEntry {
        PageEntry(1 << 63 | 1 << 56 | frame)
    }

    /// Frames 512 to 1023 are one huge page, 1024 to 1039 a block of 16, 2000 to 2009 freed lazily, all others small.
    fn machine(first: u64, count: usize) -> Vec<FrameFlags> {
        (first..first + count as u64)
            .map(|frame| match frame {
                512 | 1024 => HEAD,
                513..=1023 | 1025..=1039 => TAIL,
                2000..=2009 => FREED,
                _ => SMALL,
            })
            .collect()
    }

    #[test]
    fn a_quarter_of_a_huge_page_holds_three_quarters() {
        let mut entries = vec![PageEntry(0); PAGES_PER_WINDOW];
        (0..128).for_each(|page| entries[page] = own(512 + page as u64));
        let found = judge(&entries, machine);
        let torn = PartialBlock { frame: 512, pages: Pages(512), mapped: Pages(128), first: 0 };
        assert_eq!(found, WindowFrames { partial: vec![torn], ..WindowFrames::default() });
        let mut blocks = Blocks::default();
        blocks.add(torn);
        assert_eq!((blocks.unmapped(512), blocks.unmapped_in_all()), (Pages(384), Pages(384)));
    }

    #[test]
    fn a_whole_block_holds_nothing_wherever_it_is_mapped() {
        let whole: Vec<PageEntry> = (512..1024).map(own).collect();
        assert_eq!(judge(&whole, machine).partial, []);
        // mremap moved it by half a window.
        let moved = |pages: std::ops::Range<usize>, frame: u64| {
            let mut entries = vec![PageEntry(0); PAGES_PER_WINDOW];
            pages.clone().for_each(|page| entries[page] = own(frame + (page - pages.start) as u64));
            judge(&entries, machine).partial
        };
        let mut blocks = Blocks::default();
        for part in [moved(256..512, 512), moved(0..256, 768)].concat() {
            assert_eq!(part.mapped, Pages(256));
            blocks.add(part);
        }
        assert_eq!(blocks.unmapped_in_all(), Pages(0));
    }

    #[test]
    fn a_smaller_block_may_be_torn_too() {
        let mut entries = vec![PageEntry(0); PAGES_PER_WINDOW];
        (entries[7], entries[9]) = (own(1030), own(1025));
        let expected = PartialBlock { frame: 1024, pages: Pages(16), mapped: Pages(2), first: 7 };
        assert_eq!(judge(&entries, machine).partial, [expected]);
    }

    #[test]
    fn lazily_freed_pages_are_anonymous_and_not_backed_by_swap() {
        let mut entries = vec![PageEntry(0); PAGES_PER_WINDOW];
        (0..20).for_each(|page| entries[page] = own(1995 + page as u64));
        let found = judge(&entries, machine);
        assert_eq!(found.lazily_freed.iter().collect::<Vec<_>>(), (5..15).collect::<Vec<_>>());
    }

    #[test]
    fn file_pages_do_not_count_and_shared_ones_only_among_the_shared_blocks() {
        let mut entries = vec![PageEntry(0); PAGES_PER_WINDOW];
        entries[0] = PageEntry(1 << 63 | 1 << 56 | 1 << 61 | 600);
        entries[1] = PageEntry(1 << 63 | 2000);
        assert_eq!(judge(&entries, machine), WindowFrames::default());
        entries[2] = PageEntry(1 << 63 | 512);
        entries[3] = own(513);
        let torn = PartialBlock { frame: 512, pages: Pages(512), mapped: Pages(2), first: 2 };
        assert_eq!(judge(&entries, machine), WindowFrames { shared_partial: vec![torn], ..WindowFrames::default() });
        let whole: Vec<PageEntry> = (512..1024).map(|frame| PageEntry(1 << 63 | (frame % 2) << 56 | frame)).collect();
        assert_eq!(judge(&whole, machine), WindowFrames::default());
    }

    #[test]
    fn a_block_that_was_split_between_two_reads_is_none() {
        let mut entries = vec![PageEntry(0); PAGES_PER_WINDOW];
        entries[3] = own(515);
        let torn = |first: u64, count: usize| {
            let small = first.is_multiple_of(512);
            (0..count).map(|_| if small { SMALL } else { TAIL }).collect::<Vec<_>>()
        };
        assert_eq!(judge(&entries, torn).partial, []);
    }
}
