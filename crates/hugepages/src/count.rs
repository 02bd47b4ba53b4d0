//! Number of superpages of a process: reserved, allocated, failed and downgraded, by kind of memory and by size. Read
//! from outside, for any process, without its help.
//!
//! `count/rule.rs` defines the counts; `count/kind.rs` assigns memory to a kind. Both are pure. This file reads the
//! kernel: the mappings, the advice on them, the present pages (`PAGEMAP_SCAN`), and the frames of pages in windows
//! that are touched and not huge.
//!
//! Cost, measured once on Linux 6.18: `maps` and a scan, 1 ms for a process on huge pages and 4 ms per GiB of small
//! pages beside that; 20 µs, once, for each window that is touched and not huge. In addition `smaps`, the only source
//! for the advice: 11 to 15 ms per GiB of small pages. [`count`] reads all of it each time. A [`Counter`] keeps its
//! result on a window until the number of its pages changes. It reads `smaps` again when a mapping of at least a
//! window appeared or changed its rights, else every five seconds, and never for more than a hundredth of the time (a
//! twentieth for less than 3 ms).
//! Side effects: none. All readings hold the mmap lock for reading, for a moment each.
//!
//! Before Linux 6.7, without `PAGEMAP_SCAN`, some windows with an unmapped or protected part are not found.
//!
//! Not seen: shared memory, hugetlbfs, and memory unmapped since. Frames need CAP_SYS_ADMIN; without it, failed and
//! downgraded windows are not distinguished, and the result says so.

mod advice;
mod history;
mod kind;
mod rule;
mod zeros;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use access::residency::Viewer;
use linux::kpageflags::{FrameTable, is_one_huge_page};
use linux::maps::{self, Mapping};
use linux::pagemap::{PageEntry, Pagemap};
use linux::probe::Known;
use linux::smaps::{self, VmFlags};
use linux::status::{self, HugePages};
use linux::thp::{self, Enabled, SizeEnabled};
use linux::{Error, KernelFiles, Pid, thp_stats, vmstat};
use rustix::io::Errno;
use serde::Serialize;
use units::{Bytes, PAGES_PER_WINDOW, PageSize, Pages, Window};

use crate::observe::Pieces;
use advice::Advice;
use history::{History, Judged};
pub use kind::{Kind, kinds};
use rule::{Base, Contents, Extent, Fate, Frames, Giving, Tally};
use zeros::Zeros;

/// The windows of one kind of memory, or of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Superpages {
    /// Windows that would get a huge page at the first touch, or have or had one. The following counts are parts of
    /// this one.
    pub reserved_windows: u64,
    /// Huge now.
    pub allocated_windows: u64,
    /// Touched, and nothing tells that it was huge: no huge page was available, the memory was touched before it was
    /// advised, or a fork had all of its pages copied before a count saw it.
    pub failed_windows: Known<u64>,
    /// Huge once, small pages now: by its frames, or by an earlier count of the same [`Counter`].
    pub downgraded_windows: Known<u64>,
    /// Touched and not huge, for either reason, or for an unknown one.
    pub not_huge_windows: u64,
    /// Swapped out: all written pages are in swap.
    pub swapped_windows: u64,
    /// Never written to.
    pub untouched_windows: u64,
    /// Memory of downgraded windows that the program has given back and the kernel still keeps and charges, until the
    /// huge page is split. Part of no count above.
    pub torn_bytes: Known<Bytes>,
}

impl Superpages {
    fn of(tally: Tally, why_not_known: &str) -> Superpages {
        let Tally { reserved, allocated, failed, downgraded, not_known, swapped_out, torn_pages } = tally;
        fn known<T>(not_known: u64, value: T, why: &str) -> Known<T> {
            if not_known == 0 { Known::Value(value) } else { Known::Unknown(why.to_owned()) }
        }
        let not_huge = failed + downgraded + not_known;
        Superpages {
            reserved_windows: reserved,
            allocated_windows: allocated,
            failed_windows: known(not_known, failed, why_not_known),
            downgraded_windows: known(not_known, downgraded, why_not_known),
            not_huge_windows: not_huge,
            swapped_windows: swapped_out,
            untouched_windows: reserved.saturating_sub(allocated + not_huge + swapped_out),
            torn_bytes: known(u64::from(!why_not_known.is_empty()), Pages(torn_pages).bytes(), why_not_known),
        }
    }

    /// Memory on huge pages.
    pub fn allocated(&self) -> Bytes {
        Bytes(self.allocated_windows * PageSize::Huge.bytes().0)
    }
}

/// One kind and its windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfKind {
    /// The kind.
    pub kind: Kind,
    /// Its windows.
    #[serde(flatten)]
    pub superpages: Superpages,
}

/// Blocks of one size below 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OfSize {
    /// The size of the blocks.
    pub page_bytes: Bytes,
    /// Number of such blocks.
    pub allocated_pages: u64,
    /// Mapped part of them.
    pub resident_bytes: Bytes,
}

/// Result of a count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// The process.
    #[serde(skip)]
    pub pid: Pid,
    /// The process forbade huge pages for itself (`prctl`), or another did for it.
    pub forbidden: bool,
    /// All kinds, in the order of [`Kind::ALL`].
    pub by_kind: Vec<OfKind>,
    /// All kinds together.
    pub total: Superpages,
    /// Blocks of the sizes below 2 MiB, smallest first. `None` where the host gives none, so they were not counted.
    pub small_sizes: Option<Known<Vec<OfSize>>>,
    /// Memory in mappings without a window.
    #[serde(flatten)]
    pub pieces: Pieces,
}

impl Counted {
    /// The windows of one kind.
    pub fn of(&self, kind: Kind) -> Option<&Superpages> {
        self.by_kind.iter().find(|of| of.kind == kind).map(|of| &of.superpages)
    }

    /// Whether it has huge memory, or memory that would get huge pages.
    pub fn is_of_interest(&self) -> bool {
        self.total.reserved_windows > 0
    }
}

/// Counts the superpages of `pid` once. To count repeatedly, keep a [`Counter`].
///
/// # Errors
/// `Gone` if the process ended, `Denied` without ptrace access.
pub fn count(files: &impl KernelFiles, pid: Pid) -> Result<Counted, Error> {
    Counter::new(pid).count(files)
}

/// Limit of small-page windows examined in one count: 32 GiB. Windows beyond it count as touched and not huge, for an
/// unknown reason.
const WINDOWS_READ_MAX: u64 = 16 << 10;

/// `smaps` is read again without need only after this multiple of its cost.
const SMAPS_EVERY: u32 = 100;

/// Smaller multiple for a reading that costs less than [`SMAPS_CHEAP`]: memory that a program maps between two counts is
/// known to be advised at the second one.
const SMAPS_EVERY_CHEAP: u32 = 20;
const SMAPS_CHEAP: Duration = Duration::from_millis(3);

/// Shortest time between two reads where no mapping has come.
const SMAPS_EVERY_MIN: Duration = Duration::from_secs(5);

/// Counts the superpages of one process repeatedly, cheaply.
#[derive(Debug)]
pub struct Counter {
    pid: Pid,
    advice: Option<Advice>,
    history: History,
    zeros: Zeros,
}

impl Counter {
    /// A counter of `pid`, which has read nothing yet.
    pub fn new(pid: Pid) -> Counter {
        Counter { pid, advice: None, history: History::default(), zeros: Zeros::default() }
    }

    /// A counter of `pid`, a child that this process has forked: it has the same memory at first.
    pub fn of_child(&self, pid: Pid) -> Counter {
        Counter { history: self.history.clone(), ..Counter::new(pid) }
    }

    /// Learns of windows that this process had huge from the first count of a child.
    /// Returns their number.
    pub fn learn(&mut self, child: &Counter) -> u64 {
        self.history.learn(&child.history)
    }

    /// Counts.
    ///
    /// # Errors
    /// `Gone` if the process ended, `Denied` without ptrace access.
    pub fn count(&mut self, files: &impl KernelFiles) -> Result<Counted, Error> {
        let splits = vmstat::vmstat(files).ok().and_then(|stat| stat.thp_split_pmd);
        let mappings = maps::maps(files, self.pid)?;
        self.know_advice(files, &mappings)?;
        let forbidden = status::status(files, self.pid)?.huge_pages == HugePages::Forbidden;
        let giving = Giving { enabled: enabled_for_huge(files)?, forbidden };
        let mut counting = Counting {
            pagemap: Pagemap::open(self.pid)?,
            pid: self.pid,
            small_sizes: gives_small_sizes(files)?,
            has_torn: has_torn(files),
            frames: None,
            windows_read: 0,
            why_not_known: String::new(),
            tallies: BTreeMap::new(),
            edges: BTreeMap::new(),
            pieces: Pieces::default(),
            sizes: BTreeMap::new(),
            before: std::mem::take(&mut self.history),
            judged: Judged::new(),
            huge: BTreeSet::new(),
            small: BTreeSet::new(),
        };
        counting.before.begin(&mappings, splits);
        self.zeros.retain(&mappings);
        let kinds = kinds(&mappings, |data| self.zeros.end(self.pid, &mappings, data));
        for (mapping, kind) in mappings.iter().zip(kinds) {
            let Some(kind) = kind else { continue };
            let flags = self.advice.as_ref().and_then(|advice| advice.on(mapping)).unwrap_or_default();
            counting.at(mapping, kind, flags, giving)?;
        }
        counting.at_edges()?;
        self.history = std::mem::take(&mut counting.before);
        let (huge, small) = (std::mem::take(&mut counting.huge), std::mem::take(&mut counting.small));
        self.history.end(huge, small, std::mem::take(&mut counting.judged));
        self.has_memory(files)?;
        Ok(counting.counted(forbidden))
    }

    /// A process on its way out has no memory any more, and must not be taken for one without huge pages.
    fn has_memory(&self, files: &impl KernelFiles) -> Result<(), Error> {
        let has = status::status(files, self.pid).is_ok_and(|status| status.rss > Bytes(0) && !status.zombie);
        if has { Ok(()) } else { Err(Error::of_process("count", format!("process {}", self.pid), Errno::SRCH)) }
    }

    fn know_advice(&mut self, files: &impl KernelFiles, mappings: &[Mapping]) -> Result<(), Error> {
        if self.advice.as_ref().is_some_and(|advice| advice.is_good_for(mappings)) {
            return Ok(());
        }
        let begun = Instant::now();
        let details = smaps::details(files, self.pid)?;
        let cost = begun.elapsed();
        let by_start =
            details.into_iter().map(|detail| (detail.mapping.range.start().0, (detail.mapping, detail.flags)));
        let (now, by_start) = (Instant::now(), by_start.collect());
        let rest = cost * if cost < SMAPS_CHEAP { SMAPS_EVERY_CHEAP } else { SMAPS_EVERY };
        self.advice = Some(Advice { read_again: now + rest.max(SMAPS_EVERY_MIN), not_before: now + rest, by_start });
        Ok(())
    }
}

/// The host's mode for 2 MiB pages; since Linux 6.8 this size may have its own. `Never` on a kernel without.
fn enabled_for_huge(files: &impl KernelFiles) -> Result<Enabled, Error> {
    let host = match thp::enabled(files) {
        Err(Error::Unsupported(_)) => return Ok(Enabled::Never),
        other => other?,
    };
    let sizes = thp::sizes(files)?;
    let own = sizes.iter().find(|size| size.bytes == PageSize::Huge.bytes()).and_then(|size| size.enabled);
    Ok(match own {
        None | Some(SizeEnabled::Inherit) => host,
        Some(SizeEnabled::Always) => Enabled::Always,
        Some(SizeEnabled::Madvise) => Enabled::Madvise,
        Some(SizeEnabled::Never) => Enabled::Never,
    })
}

/// Whether the host gives anonymous memory pages of a size between 4 KiB and 2 MiB.
fn gives_small_sizes(files: &impl KernelFiles) -> Result<bool, Error> {
    let sizes = match thp::sizes(files) {
        Err(Error::Unsupported(_)) => return Ok(false),
        other => other?,
    };
    let inherits = thp::enabled(files)? != Enabled::Never;
    let given = |size: &thp::Size| match size.enabled {
        None | Some(SizeEnabled::Never) => false,
        Some(SizeEnabled::Inherit) => inherits,
        Some(SizeEnabled::Always | SizeEnabled::Madvise) => true,
    };
    Ok(sizes.iter().any(|size| size.bytes < PageSize::Huge.bytes() && given(size)))
}

/// Whether the host may have huge pages with a part unmapped. Before Linux 6.12 the kernel keeps no present number.
fn has_torn(files: &impl KernelFiles) -> bool {
    thp_stats::partially_mapped(files).map_or_else(
        |_| vmstat::vmstat(files).is_ok_and(|stat| stat.thp_deferred_split_page.is_none_or(|count| count > 0)),
        |count| count > 0,
    )
}

/// Windows of private anonymous memory that are huge now.
///
/// # Errors
/// `Gone` if the process ended, `Denied` without ptrace access.
pub fn huge_windows(files: &impl KernelFiles, pid: Pid) -> Result<Vec<Window>, Error> {
    let pagemap = Pagemap::open(pid)?;
    let mut huge = Vec::new();
    for mapping in maps::maps(files, pid)?.iter().filter(|mapping| mapping.is_anonymous()) {
        let contents = windows_of(&pagemap, pid, mapping)?;
        huge.extend(contents.into_iter().filter(|(_, contents)| contents.is_huge()).map(|(window, _)| window));
    }
    Ok(huge)
}

/// Windows of private anonymous memory that are fully resident and not huge, by rising address.
///
/// # Errors
/// As [`huge_windows`].
pub fn full_windows(files: &impl KernelFiles, pid: Pid) -> Result<Vec<Window>, Error> {
    let pagemap = Pagemap::open(pid)?;
    let mut full = Vec::new();
    for mapping in maps::maps(files, pid)?.iter().filter(|mapping| mapping.is_anonymous()) {
        let contents = windows_of(&pagemap, pid, mapping)?.into_iter();
        full.extend(contents.filter(|(_, contents)| contents.is_full()).map(|(window, _)| window));
    }
    Ok(full)
}

/// Windows of private anonymous memory that are resident in part and not huge, with their resident pages, by rising
/// address: each may be the rest of a huge page.
///
/// # Errors
/// As [`huge_windows`].
pub fn holed_windows(files: &impl KernelFiles, pid: Pid) -> Result<Vec<(Window, Pages)>, Error> {
    let pagemap = Pagemap::open(pid)?;
    let mut holed = BTreeMap::new();
    for mapping in maps::maps(files, pid)?.iter().filter(|mapping| mapping.is_anonymous()) {
        for (window, contents) in windows_of(&pagemap, pid, mapping)? {
            // Two mappings may share a window.
            let resident: &mut u64 = holed.entry(window).or_default();
            *resident += if contents.is_huge() { PAGES_PER_WINDOW as u64 } else { contents.resident };
        }
    }
    let is_holed = |resident: &u64| *resident > 0 && *resident < PAGES_PER_WINDOW as u64;
    let holed = holed.into_iter().filter(|(_, resident)| is_holed(resident));
    Ok(holed.map(|(window, resident)| (window, Pages(resident))).collect())
}

/// Contents of a mapping's windows; empty windows are left out.
fn windows_of(pagemap: &Pagemap, pid: Pid, mapping: &Mapping) -> Result<BTreeMap<Window, Contents>, Error> {
    let mut windows = BTreeMap::new();
    match pagemap.scan(mapping.range) {
        Ok(runs) => rule::contents(&mut windows, &runs),
        Err(Error::Unsupported(_)) => {
            // Before Linux 6.7.
            let viewer = Viewer::by_frames(pid)?;
            for window in mapping.range.touched_windows() {
                let state = viewer.window_in(window, mapping.range)?;
                let huge = if state.huge { PAGES_PER_WINDOW as u64 } else { 0 };
                let contents = Contents { resident: state.resident.0, swapped: state.swapped.0, huge };
                if contents.is_touched() {
                    windows.insert(window, contents);
                }
            }
        }
        Err(error) => return Err(error),
    }
    Ok(windows)
}

/// One count.
struct Counting {
    pid: Pid,
    pagemap: Pagemap,
    small_sizes: bool,
    /// The host has torn huge pages.
    has_torn: bool,
    /// Opened when it is first needed.
    frames: Option<Result<FrameTable, Error>>,
    windows_read: u64,
    why_not_known: String,
    tallies: BTreeMap<Kind, Tally>,
    /// Windows over the edge of mappings.
    edges: BTreeMap<Window, Edge>,
    pieces: Pieces,
    /// Blocks and mapped pages by the number of pages in a block.
    sizes: BTreeMap<usize, (u64, u64)>,
    /// From the counts before.
    before: History,
    /// From this one.
    judged: Judged,
    /// Huge now.
    huge: BTreeSet<Window>,
    /// Small now, and huge before.
    small: BTreeSet<Window>,
}

/// Parts of a window that spans several mappings.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// Kind of the first mapping.
    kind: Kind,
    /// At least one mapping would get huge pages, or may have had some.
    wanted: bool,
    resident: u64,
}

impl Counting {
    fn at(&mut self, mapping: &Mapping, kind: Kind, flags: VmFlags, giving: Giving) -> Result<(), Error> {
        let would_get = rule::would_get(mapping, flags, giving);
        let wanted = rule::may_have_been_huge(mapping, flags, giving);
        let whole = mapping.range.whole_windows();
        if kind == Kind::Code && whole.len() == 0 {
            return Ok(());
        }
        let windows = windows_of(&self.pagemap, self.pid, mapping)?;
        self.pieces.add(mapping, Pages(windows.values().map(|contents| contents.resident).sum()));
        let tally = self.tallies.entry(kind).or_default();
        if would_get {
            // Empty windows are not among the windows found.
            let found = windows.keys().filter(|window| mapping.range.covers(window.range())).count() as u64;
            tally.reserved += (whole.len() as u64).saturating_sub(found);
        }
        for (window, contents) in windows {
            if !mapping.range.covers(window.range()) {
                let edge = self.edges.entry(window).or_insert(Edge { kind, wanted, resident: 0 });
                edge.wanted |= wanted;
                edge.resident += contents.resident;
                continue;
            }
            // A window with holes may be a torn huge page, whoever made it.
            let may_be_torn = self.has_torn && contents.resident < PAGES_PER_WINDOW as u64;
            let extent = if wanted { Extent::Whole } else { Extent::Unwanted };
            let read_frames = mapping.is_anonymous() && (wanted || may_be_torn);
            let (fate, torn) = self.fate(window, contents, extent, read_frames)?;
            self.tallies.entry(kind).or_default().add(would_get, fate, torn);
        }
        Ok(())
    }

    /// Windows with one part unmapped, or with other rights than the rest.
    fn at_edges(&mut self) -> Result<(), Error> {
        for (window, Edge { kind, wanted, resident }) in std::mem::take(&mut self.edges) {
            if kind != Kind::Code && resident > 0 {
                let extent = if wanted { Extent::Edge } else { Extent::Unwanted };
                let contents = Contents { resident, ..Contents::default() };
                let (fate, torn) = self.fate(window, contents, extent, true)?;
                // An unknown fate is most likely the apparent one: memory at the edge of a mapping.
                self.tallies.entry(kind).or_default().add(false, fate, torn);
            }
        }
        Ok(())
    }

    /// Fate of a window, and its pages that a torn huge page holds. An earlier count is a witness beside the frames.
    fn fate(
        &mut self,
        window: Window,
        contents: Contents,
        extent: Extent,
        read_frames: bool,
    ) -> Result<(Fate, Pages), Error> {
        let (fate, torn) = self.fate_by_frames(window, contents, extent, read_frames)?;
        let was_huge = !matches!(fate, Fate::Allocated | Fate::Untouched) && self.before.was_huge(window);
        let fate = rule::with_history(fate, was_huge);
        match fate {
            Fate::Allocated => _ = self.huge.insert(window),
            Fate::Downgraded => _ = self.small.insert(window),
            Fate::SwappedOut if was_huge => _ = self.small.insert(window),
            Fate::SwappedOut | Fate::Failed | Fate::NotHuge | Fate::Untouched => {}
        }
        Ok((fate, torn))
    }

    /// Fate from the present pages alone. The frames are read where they could decide it.
    fn fate_by_frames(
        &mut self,
        window: Window,
        contents: Contents,
        extent: Extent,
        read_frames: bool,
    ) -> Result<(Fate, Pages), Error> {
        let whole = |once_huge| Ok((rule::fate(contents, once_huge), Pages(0)));
        if contents.is_huge() || contents.resident == 0 || !(read_frames || self.small_sizes) {
            return whole(Some(false));
        }
        if !self.small_sizes
            && !self.has_torn
            && let Some((_, once_huge)) =
                self.before.judged.get(&window).filter(|(resident, _)| *resident == contents.resident)
            && once_huge.is_some()
        {
            let once_huge = *once_huge;
            self.judged.insert(window, (contents.resident, once_huge));
            return whole(once_huge);
        }
        if self.windows_read >= WINDOWS_READ_MAX {
            self.why_not_known = format!("only {WINDOWS_READ_MAX} windows of small pages were examined");
            return whole(None);
        }
        self.windows_read += 1;
        let entries = self.pagemap.entries(window.range())?;
        let in_blocks = if self.small_sizes { self.blocks_of(&entries) } else { Vec::new() };
        if !read_frames {
            return whole(Some(false));
        }
        let frames = rule::frames(&entries, |page| in_blocks.get(page).copied().unwrap_or(false));
        if frames == Frames::Hidden {
            self.why_not_known = "frame numbers are shown only with CAP_SYS_ADMIN".to_owned();
        }
        let is_whole = contents.resident == PAGES_PER_WINDOW as u64;
        let one_block_still = match (frames, extent) {
            (Frames::Base(base), Extent::Edge) if base.fits < rule::FIT_AT_EDGE => self.is_one_block_still(base),
            (Frames::Base(base), Extent::Unwanted) => self.is_one_block_still(base),
            (Frames::Base(base), _) if self.has_torn && !is_whole => self.is_one_block_still(base),
            // A fork, and most pages were copied since.
            (Frames::Base(base), Extent::Whole) if base.fits * 2 < contents.resident => self.is_one_block_still(base),
            _ => false,
        };
        let once_huge = rule::once_huge(frames, contents.resident, extent, one_block_still);
        self.judged.insert(window, (contents.resident, once_huge));
        let has_gap = !(is_whole && extent == Extent::Whole);
        let torn = match frames {
            Frames::Base(base) if one_block_still && has_gap => (PAGES_PER_WINDOW as u64).saturating_sub(base.fits),
            _ => 0,
        };
        Ok((rule::fate(contents, once_huge), Pages(torn)))
    }

    fn frame_table(&mut self) -> Result<&FrameTable, &Error> {
        self.frames.get_or_insert_with(FrameTable::open).as_ref()
    }

    fn is_one_block_still(&mut self, base: Base) -> bool {
        let Ok(table) = self.frame_table() else { return false };
        table.flags_of(base.frame, PAGES_PER_WINDOW).is_ok_and(|flags| is_one_huge_page(&flags))
    }

    /// Counts the blocks of the smaller sizes in a window, and marks the pages that lie in one.
    fn blocks_of(&mut self, entries: &[PageEntry]) -> Vec<bool> {
        let mut in_blocks = vec![false; PAGES_PER_WINDOW];
        let mut found = Vec::new();
        for run in rule::frame_runs(entries) {
            let Ok(table) = self.frame_table() else { return in_blocks };
            let Ok(mut flags) = table.flags_of(run.frame, run.pages) else { continue };
            if flags.last().is_some_and(|last| last.is_head() || last.is_tail()) {
                // The last block goes on in frames that are not mapped here.
                let more = table.flags_of(run.frame + run.pages as u64, PAGES_PER_WINDOW);
                flags.extend(more.unwrap_or_default());
            }
            for block in rule::blocks(run.pages, &flags) {
                let mapped = block.pages.min(run.pages - block.first);
                if block.pages < PAGES_PER_WINDOW {
                    found.push((block.pages, mapped));
                    let first = run.page + block.first;
                    in_blocks[first..first + mapped].fill(true);
                }
            }
        }
        for (pages, mapped) in found {
            let size = self.sizes.entry(pages).or_default();
            size.0 += 1;
            size.1 += mapped as u64;
        }
        in_blocks
    }

    fn counted(self, forbidden: bool) -> Counted {
        let mut total = Tally::default();
        let mut by_kind = Vec::new();
        for kind in Kind::ALL {
            let tally = self.tallies.get(&kind).copied().unwrap_or_default();
            total = total.and(tally);
            by_kind.push(OfKind { kind, superpages: Superpages::of(tally, &self.why_not_known) });
        }
        let of_size = |(pages, (blocks, mapped)): (usize, (u64, u64))| OfSize {
            page_bytes: Pages(pages as u64).bytes(),
            allocated_pages: blocks,
            resident_bytes: Pages(mapped).bytes(),
        };
        let hidden = match self.frames {
            Some(Err(error)) => Some(error.to_string()),
            _ => (!self.why_not_known.is_empty()).then(|| self.why_not_known.clone()),
        };
        let small_sizes = self.small_sizes.then(|| match hidden {
            Some(why) => Known::Unknown(why),
            None => Known::Value(self.sizes.into_iter().map(of_size).collect()),
        });
        let total = Superpages::of(total, &self.why_not_known);
        Counted { pid: self.pid, forbidden, by_kind, total, small_sizes, pieces: self.pieces }
    }
}

#[cfg(test)]
mod tests;
