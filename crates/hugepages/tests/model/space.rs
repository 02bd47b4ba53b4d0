//! One model program: its windows, and the record of masu's actions on it.

use std::time::Duration;

use linux::maps::{Mapping, Permissions};
use units::{AddressRange, Bytes, PageSize, Pages, Window};

use super::cell::{Cell, Mapped, PAGES};

/// The first window of every program.
pub const FIRST: u64 = 0x1000;

/// One program.
#[derive(Clone, Debug)]
pub struct Space {
    /// Its consecutive windows.
    pub cells: Vec<Cell>,
    /// Pages in memory elsewhere: code, libraries, stacks.
    pub other_rss: u64,
    /// Room below its memory cgroup's limit.
    pub room: Option<Bytes>,
    /// It cannot run from the first time to the second.
    pub halted: Option<(Duration, Duration)>,
    /// It ended.
    pub ended: bool,
    /// Number of the present address space.
    pub generation: u64,
    /// Grows with every event.
    pub version: u64,
    /// Version at the last reading of the resident memory.
    pub version_counted: Option<u64>,
    /// An event hid from masu the memory that it added: a window changed between the measurement and the collapse, or
    /// pages of the program's own went to swap beside those.
    pub raced: bool,
    /// Time of masu's last clear.
    pub began: Duration,
    /// Number of clears: the rounds.
    pub rounds: u32,
    /// Collapses that masu measured again and found huge.
    pub promoted: u64,
    /// Splits by masu that it measured again and found small.
    pub demoted: u64,
    /// Pages that those splits returned.
    pub returned: u64,
    /// Torn huge pages that masu split.
    pub torn_split: u64,
    /// Every collapse requested by masu: the round, the window's index.
    pub collapses: Vec<(u32, usize)>,
    /// The age of the observation at each of these.
    pub ages: Vec<Duration>,
    /// A huge page is preallocated for it.
    pub has_preallocated: bool,
}

impl Space {
    /// A program with these windows.
    pub fn of(cells: Vec<Cell>) -> Space {
        Space {
            cells,
            other_rss: 0,
            room: None,
            halted: None,
            ended: false,
            generation: 0,
            version: 0,
            version_counted: None,
            raced: false,
            began: Duration::ZERO,
            rounds: 0,
            promoted: 0,
            demoted: 0,
            returned: 0,
            torn_split: 0,
            collapses: Vec::new(),
            ages: Vec::new(),
            has_preallocated: false,
        }
    }

    /// The index of a window, if it is one of ours.
    pub fn index(&self, window: Window) -> Option<usize> {
        let index = usize::try_from(window.0.checked_sub(FIRST)?).ok()?;
        (index < self.cells.len()).then_some(index)
    }

    /// Whether it cannot run at this time.
    pub fn is_halted(&self, at: Duration) -> bool {
        self.halted.is_some_and(|(from, to)| (from..to).contains(&at))
    }

    /// Resident memory.
    pub fn resident(&self) -> Bytes {
        let cells: u64 = self.cells.iter().map(Cell::resident).sum();
        Pages(cells + self.other_rss).bytes()
    }

    /// Memory present only because masu collapsed.
    pub fn added(&self) -> Bytes {
        Pages(self.cells.iter().map(|cell| cell.added).sum()).bytes()
    }

    /// Its mappings as the kernel lists them: like neighbours are merged.
    pub fn mappings(&self) -> Vec<Mapping> {
        let half = PageSize::Huge.bytes().0 / 2;
        let mut all: Vec<Mapping> = Vec::new();
        for (number, cell) in (FIRST..).zip(&self.cells) {
            let start = Window(number).start().0;
            let pieces: &[(u64, u64, &str)] = match cell.mapped {
                Mapped::Nothing => &[],
                Mapped::Anonymous => &[(0, 2, "rw-p")],
                Mapped::ReadOnly => &[(0, 2, "r--p")],
                Mapped::NoAccess => &[(0, 2, "---p")],
                Mapped::File => &[(0, 2, "rw-f")],
                Mapped::SharedMemory => &[(0, 2, "rw-s")],
                Mapped::CutInTwo => &[(0, 1, "rw-p"), (1, 2, "r--p")],
            };
            for (from, to, kind) in pieces {
                if let Ok(range) = AddressRange::new(start + from * half, start + to * half) {
                    append(&mut all, mapping(range, kind));
                }
            }
        }
        all
    }
}

fn mapping(range: AddressRange, kind: &str) -> Mapping {
    let file = kind.ends_with('f');
    Mapping {
        range,
        permissions: Permissions {
            read: kind.starts_with('r'),
            write: kind[1..].starts_with('w'),
            execute: false,
            shared: kind.ends_with('s'),
        },
        offset: 0,
        device: (0, 0),
        inode: u64::from(file),
        path: if file { "/srv/data" } else { "" }.into(),
    }
}

fn append(all: &mut Vec<Mapping>, next: Mapping) {
    if let Some(last) = all.last_mut()
        && last.range.end() == next.range.start()
        && (last.permissions, last.inode) == (next.permissions, next.inode)
        && let Ok(joined) = AddressRange::new(last.range.start().0, next.range.end().0)
    {
        last.range = joined;
        return;
    }
    all.push(next);
}

/// The window with this index.
pub fn window(index: usize) -> Window {
    Window(FIRST + index as u64)
}

/// Memory added by promoting a window with `resident` pages.
pub fn cost(resident: u64) -> Bytes {
    Pages(PAGES - resident.min(PAGES)).bytes()
}
