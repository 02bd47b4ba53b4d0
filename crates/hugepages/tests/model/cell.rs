//! One window of a model program, and the kernel's effects on it when advised.

use std::fmt;
use std::time::Duration;

use access::PageSet;
use access::residency::WindowState;
use rustix::io::Errno;
use units::{PAGES_PER_WINDOW, Pages};

/// Pages of a window.
pub const PAGES: u64 = PAGES_PER_WINDOW as u64;

/// Default interval between a program's touches.
pub const OFTEN: Duration = Duration::from_millis(100);

/// A program with this interval is seen in any deciding round, and counts as using its pages.
pub const IN_USE: Duration = Duration::from_millis(1200);

/// Mapping over one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Private memory that may be read and written.
    Anonymous,
    /// The same, made read-only.
    ReadOnly,
    /// The same, made inaccessible for now; its content stays.
    NoAccess,
    /// A private mapping of a file.
    File,
    /// Shared memory.
    SharedMemory,
    /// Anonymous memory whose second half has other permissions.
    CutInTwo,
    /// Nothing.
    Nothing,
}

/// The kernel's answer to a collapse that it does not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An error.
    Refused(Errno),
    /// Success, without effect.
    YesAndNothing,
}

/// One window. Pages are counted, not named: the program's own come first, then zero pages, then swapped pages.
#[derive(Clone, PartialEq, Eq)]
pub struct Cell {
    /// Mapping.
    pub mapped: Mapped,
    /// Pages in memory that the program has touched.
    pub used: u64,
    /// Pages in memory filled in by a collapse and not touched.
    pub filled: u64,
    /// Part of them filled in by masu's collapses.
    pub added: u64,
    /// Pages that map the zero page.
    pub zero: u64,
    /// Pages in swap.
    pub swapped: u64,
    /// Pages that a forked child shares.
    pub shared: u64,
    /// Guard pages.
    pub guards: u64,
    /// Pages that the program touches again and again.
    pub hot: u64,
    /// Interval of the touches.
    pub period: Duration,
    /// Start of the touches.
    pub hot_since: Duration,
    /// Mapped by one entry.
    pub huge: bool,
    /// Small, and its pages are the rest of a huge page that the kernel keeps whole.
    pub torn: bool,
    /// Made huge by masu: its pages in memory before. Kept after a split until masu had a chance to see the split.
    pub ours: Option<u64>,
    /// Number of promotions by masu since it was last empty.
    pub promotions: u32,
    /// The program used MADV_NOHUGEPAGE.
    pub forbidden: bool,
    /// Answer to the next collapses, and their number.
    pub failing: Option<(Answer, u32)>,
    /// Number of splits without effect, because the huge page is held.
    pub pinned: u32,
    /// Number of scans that do not see it.
    pub hidden: u32,
    /// The whole window was advised cold since it is huge.
    pub probed: bool,
    /// A collapse succeeded, and masu has not measured again yet.
    pub collapsed: bool,
    /// That collapse was meant for an address space that is gone.
    pub astray: bool,
    /// A split succeeded, and masu has not measured again yet; number of pages returned.
    pub split: Option<u64>,
    /// Grows with every event, so that a race between a scan and an action can be told from a mistake.
    pub version: u64,
    /// Version at the last call of `state`.
    pub version_measured: Option<u64>,
    /// It was small then.
    pub measured_small: bool,
    /// Version at the source's last scan.
    pub version_looked: Option<u64>,
}

/// On one line, non-zero fields only: people read a failing script.
impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let huge = if self.huge { " huge" } else { "" };
        let huge = if self.torn { " torn" } else { huge };
        let ours = self.ours.map_or(String::new(), |before| format!(" (ours, {before} before)"));
        write!(f, "{:?}{huge}{ours}", self.mapped)?;
        let kinds = [
            (self.used, "used"),
            (self.filled, "filled"),
            (self.added, "added"),
            (self.zero, "zero"),
            (self.swapped, "swapped"),
            (self.shared, "shared"),
            (self.guards, "guards"),
            (self.hot, "hot"),
        ];
        kinds.iter().filter(|(pages, _)| *pages > 0).try_for_each(|(pages, kind)| write!(f, ", {pages} {kind}"))?;
        if self.hot > 0 {
            write!(f, " every {:?}", self.period)?;
        }
        let forbidden = if self.forbidden { ", forbidden" } else { "" };
        let failing = self.failing.map_or(String::new(), |failing| format!(", failing {failing:?}"));
        write!(f, "{forbidden}{failing}")
    }
}

impl Cell {
    /// Anonymous memory with `used` pages in memory and no further touches.
    pub fn used(used: u64) -> Cell {
        Cell {
            mapped: Mapped::Anonymous,
            used: used.min(PAGES),
            filled: 0,
            added: 0,
            zero: 0,
            swapped: 0,
            shared: 0,
            guards: 0,
            hot: 0,
            period: OFTEN,
            hot_since: Duration::ZERO,
            huge: false,
            torn: false,
            ours: None,
            promotions: 0,
            forbidden: false,
            failing: None,
            pinned: 0,
            hidden: 0,
            probed: false,
            collapsed: false,
            astray: false,
            split: None,
            version: 0,
            version_measured: None,
            measured_small: false,
            version_looked: None,
        }
    }

    /// The same, with the first `hot` pages touched every `period`.
    pub fn hot(used: u64, hot: u64, period: Duration) -> Cell {
        Cell { hot: hot.min(used), period, ..Cell::used(used) }
    }

    /// The same, huge already when masu comes.
    pub fn huge(self) -> Cell {
        Cell { filled: PAGES - self.used, zero: 0, swapped: 0, shared: 0, guards: 0, huge: true, ..self }
    }

    /// Pages in memory.
    pub fn resident(&self) -> u64 {
        self.used + self.filled
    }

    /// State as the kernel reports it under its lock.
    pub fn state(&self) -> WindowState {
        WindowState {
            resident: Pages(self.resident()),
            zero: Pages(self.zero),
            swapped: Pages(self.swapped),
            shared: Pages(self.shared),
            guards: Pages(self.guards),
            file: Pages(if self.is_file() { self.resident() } else { 0 }),
            huge: self.huge,
        }
    }

    /// Scan by masu, which from now on can tell whether it was split meanwhile.
    pub fn show(&mut self) {
        self.version_looked = Some(self.version);
        if !self.huge {
            (self.ours, self.probed) = (None, false);
        }
    }

    /// Measurement by masu. True when it may count a promotion: small before, a successful collapse, huge after.
    pub fn measure(&mut self) -> bool {
        (self.version_measured, self.measured_small) = (Some(self.version), !self.huge);
        if !self.huge {
            self.ours = None;
        }
        let promoted = std::mem::take(&mut self.collapsed) && self.huge;
        if promoted && self.ours.is_none() {
            (self.ours, self.promotions) = (Some(self.used), self.promotions + 1); // by others, just then
        }
        promoted
    }

    /// Pages that the page tables show: the zero page counts.
    pub fn present(&self) -> PageSet {
        first_pages(self.resident() + self.zero)
    }

    /// Whether it was touched after `since`, up to `now`.
    pub fn touched(&self, since: Duration, now: Duration) -> bool {
        let turn = |at: Duration| at.as_nanos() / self.period.as_nanos().max(1);
        self.hot > 0 && turn(now) > turn(since.max(self.hot_since))
    }

    /// Whether it is in use, and was so all the time since `began`.
    pub fn in_use_since(&self, began: Duration) -> bool {
        self.hot > 0 && self.period <= IN_USE && self.hot_since <= began
    }

    /// First touch of `used` pages by the program.
    pub fn touch(&mut self, used: u64) {
        let more = used.min(PAGES).saturating_sub(self.used);
        let refilled = more.min(self.filled);
        self.used += more;
        self.filled -= refilled;
        self.added = self.added.min(self.filled);
        self.fit();
    }

    /// Shrinks the counts of absent pages to the room beside the present ones.
    pub fn fit(&mut self) {
        let mut room = PAGES - self.resident();
        for kind in [&mut self.guards, &mut self.swapped, &mut self.zero] {
            *kind = (*kind).min(room);
            room -= *kind;
        }
        self.shared = self.shared.min(self.used);
        self.hot = self.hot.min(self.used);
    }

    /// Returns the memory to the kernel: MADV_DONTNEED, munmap.
    pub fn empty(&mut self) {
        let new = Cell::used(0);
        let Cell { mapped, forbidden, ours, probed, split, version, version_looked, version_measured, .. } = *self;
        *self = Cell { mapped, forbidden, ours, probed, split, version, version_looked, version_measured, ..new };
    }

    /// Returns a part of its memory to the kernel, which keeps the huge page.
    pub fn tear(&mut self, kept: u64) {
        let kept = kept.min(self.used);
        self.torn = self.huge && kept > 0;
        (self.used, self.filled, self.added) = (kept, 0, 0);
        self.huge = false;
    }

    /// Splits it without returning memory: a change of protection on one page, reclaim, the program itself.
    pub fn split_by_others(&mut self) {
        self.huge = false;
    }

    /// MADV_COLLAPSE on the whole window, or khugepaged.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn collapse(&mut self, by_masu: bool) -> Result<(), Errno> {
        match self.mapped {
            Mapped::Nothing => return Err(Errno::NOMEM),
            Mapped::Anonymous | Mapped::ReadOnly if !self.forbidden => {}
            _ => return Err(Errno::INVAL),
        }
        if self.huge {
            self.collapsed |= by_masu && self.measured_small; // whichever was faster
            return Ok(());
        }
        if let Some((answer, times)) = self.failing.filter(|(_, times)| by_masu && *times > 0) {
            self.failing = Some((answer, times - 1));
            return match answer {
                Answer::Refused(errno) => Err(errno),
                Answer::YesAndNothing => {
                    self.collapsed = true;
                    Ok(())
                }
            };
        }
        if self.guards > 0 || self.resident() + self.zero + self.swapped == 0 {
            return Err(Errno::INVAL);
        }
        let before = self.resident();
        if by_masu {
            (self.ours, self.collapsed) = (Some(before), true);
            self.added += PAGES - before;
            self.promotions += 1;
            self.probed = false;
        } else {
            self.added = 0; // from now on those pages are khugepaged's
        }
        self.filled += PAGES - before;
        self.torn = false;
        (self.zero, self.swapped, self.shared, self.huge) = (0, 0, 0, true);
        Ok(())
    }

    /// Whether its pages are a file's, or shared memory.
    pub fn is_file(&self) -> bool {
        matches!(self.mapped, Mapped::File | Mapped::SharedMemory)
    }

    /// Whether MADV_COLD is refused, or does nothing.
    pub fn refuses_cold(&self) -> bool {
        self.is_file() || self.mapped == Mapped::Nothing
    }

    /// MADV_COLD on one page of it.
    pub fn cold_page(&mut self, returns_zero_pages: bool) {
        self.split = Some(0);
        if !self.huge {
            return;
        }
        if self.pinned > 0 {
            self.pinned -= 1;
            return;
        }
        let back = if returns_zero_pages { self.filled } else { 0 };
        if returns_zero_pages {
            (self.filled, self.added) = (0, 0);
        }
        self.split_by_others();
        self.split = Some(back);
    }
}

/// The first `count` pages of a window.
pub fn first_pages(count: u64) -> PageSet {
    let mut pages = PageSet::EMPTY;
    (0..PAGES_PER_WINDOW).zip(0..count).for_each(|(page, _)| pages.insert(page));
    pages
}
