//! Replay of the kernel's page lists: page accesses of a trace found in memory, by class, under the kernel's aging and
//! under other rates. Pure.
//!
//! `trace` is the text form of a trace; `pages` holds the pages and their lists; `memory` handles an access; `kernel`
//! has the classic lists with the aging of current kernels, `paper` the lists of Oshima, Aoki and Arai; `levels` adds
//! masu's protection levels.
//!
//! | paper (sections 4 and 5) | here |
//! |---|---|
//! | figure 2: active-list, inactive-list | [`Lists::One`] |
//! | section 5: active-mapped-list, -unmapped-list | [`Lists::Split`] |
//! | `mapped_page_cost`, at 100 no aging of mapped | [`Lists::Split::mapped_page_cost`]: rate of aging (100 − cost) % |
//! | figure 4: a list for each use, each with a rate | [`Lists::Classic`] with [`Rate::Level`] |
//!
//! The memory is a control group with a limit. Allocating tasks reclaim directly, page by page; nothing is freed ahead,
//! as kswapd does for a whole host.
//!
//! Differences from a kernel: pages are single (no large folios); there is no readahead and no fault-around; written
//! pages are clean at once; nothing is unmapped; there is one processor, without its per-CPU batches (31 pages per
//! list); pages are scanned in insertion order. The number of shadows is unlimited. Swap takes no time, and a page that
//! returns from swap frees its slot.
//!
//! No I/O, no clock, no randomness: the same trace has the same outcome.

mod kernel;
mod levels;
mod memory;
mod pages;
mod paper;
#[cfg(test)]
mod tests;
pub mod trace;

use serde::Serialize;
use units::{Fraction, Pages};

use aging::class::Class;
use aging::levels::Level;
use memory::Memory;
use trace::{Step, Trace};

/// Machine of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Limit of the group.
    pub memory: Pages,
    /// Swap space for anonymous and shared memory; zero for none.
    pub swap: Pages,
    /// 0 to 200, as `vm.swappiness`; the kernel's default is 60.
    pub swappiness: u8,
    /// Duration of an access to a page that is not in memory, in microseconds; other accesses take no time. With zero,
    /// time advances only at `wait` lines of the trace.
    pub miss_us: u64,
    /// Age limit of the kernel's sums over a group, in microseconds. The kernel uses these sums to decide whether a
    /// refault came soon, and whether the inactive list is too short. 2 s since Linux 5.16, and reading `memory.stat`
    /// refreshes them; zero means always fresh. In the first period they are the sums of an empty group.
    pub sums_us: u64,
}

/// Rate of aging of a class, with the kernel's classic lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// The kernel's rate.
    Kernel,
    /// Level 100: pages are never evicted while the budget suffices. Level 0: pages inserted by a use are dropped at
    /// once after it, and older pages stay with the kernel. Between: pages are kept for `base · level / (100 − level)` of
    /// time under pressure since their last use, and then returned to the kernel.
    Level(Level),
}

/// Page lists and their aging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// The current kernel without generations: one pair for files and one pair for other memory.
    Classic,
    /// One pair for all memory, as in the paper's figure 2; levels have no effect.
    One,
    /// Two active lists and one inactive list, as in the paper's section 5; levels have no effect.
    Split {
        /// 0: the list of mapped pages is aged like the other one; 100: not at all.
        mapped_page_cost: Level,
    },
}

/// Aging of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aging {
    /// Page lists.
    pub lists: Lists,
    /// Rate of each class, in the order of [`Class::ALL`].
    pub rates: [Rate; 5],
    /// Fraction of memory for kept file pages. Beyond it, file pages stay with the kernel. Anonymous and shared memory
    /// is kept by not swapping it, without a budget.
    pub budget: Fraction,
    /// Time under pressure for which level 50 keeps a page, in microseconds.
    pub base_us: u64,
}

/// Default time under pressure for which level 50 keeps a page, in microseconds.
pub const BASE_US: u64 = 60_000_000;

impl Aging {
    /// The current kernel alone.
    pub const KERNEL: Aging =
        Aging { lists: Lists::Classic, rates: [Rate::Kernel; 5], budget: Fraction::ZERO, base_us: BASE_US };

    /// Replaces the rate of a class.
    #[must_use]
    pub fn with(mut self, class: Class, rate: Rate) -> Aging {
        if let Some(of_class) = self.rates.get_mut(class as usize) {
            *of_class = rate;
        }
        self
    }
}

/// Counters of page events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Accesses that found the page in memory.
    pub hits: u64,
    /// First accesses to a page.
    pub first_reads: u64,
    /// Later accesses that did not find the page in memory.
    pub refaults: u64,
    /// Pages evicted for lack of memory.
    pub evictions: u64,
    /// Pages dropped after a use at level 0.
    pub drops: u64,
    /// Pages moved to an active list, from an inactive one or at a refault.
    pub activations: u64,
    /// Accesses (first reads or refaults, too) without memory for the page: a kernel would have killed a process.
    pub refused: u64,
}

impl Counts {
    /// Accesses that did not find the page in memory.
    pub fn misses(&self) -> u64 {
        self.first_reads + self.refaults
    }

    fn add(&mut self, other: Counts) {
        self.hits += other.hits;
        self.first_reads += other.first_reads;
        self.refaults += other.refaults;
        self.evictions += other.evictions;
        self.drops += other.drops;
        self.activations += other.activations;
        self.refused += other.refused;
    }
}

/// Counters of a file in a phase. An eviction counts in the phase of the eviction, not of the read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Name in the trace.
    pub phase: String,
    /// Name in the trace.
    pub file: String,
    /// Class of the file.
    pub class: Class,
    /// Counters.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Counters of a class, over all phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassRow {
    /// Class.
    pub class: Class,
    /// Counters.
    #[serde(flatten)]
    pub counts: Counts,
    /// Pages in memory at the end.
    pub resident_pages: Pages,
    /// Part of them on an active list.
    pub active_pages: Pages,
    /// Part of them kept by a level.
    pub kept_pages: Pages,
}

/// Work of the aging itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Number of direct reclaims.
    pub reclaims: u64,
    /// Scanned pages of active lists.
    pub active_scans: u64,
    /// Scanned pages of inactive lists.
    pub inactive_scans: u64,
    /// Scanned pages in the longest reclaim.
    pub most_scans_at_once: u64,
    /// Time under pressure: the seconds with at least one reclaim, in microseconds.
    pub pressure_us: u64,
    /// Kept pages returned to the kernel early, because nothing else was reclaimable.
    pub released_for_want: u64,
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Rows for each phase and each file with events in it, in the order of the trace.
    pub rows: Vec<Row>,
    /// Rows for each class with files.
    pub classes: Vec<ClassRow>,
    /// Work of the aging.
    pub work: Work,
}

impl Outcome {
    /// Counters of a file in a phase.
    pub fn of(&self, phase: &str, file: &str) -> Counts {
        let row = self.rows.iter().find(|row| row.phase == phase && row.file == file);
        row.map_or_else(Counts::default, |row| row.counts)
    }

    /// Counters of a class over all phases.
    pub fn of_class(&self, class: Class) -> Counts {
        let row = self.classes.iter().find(|row| row.class == class);
        row.map_or_else(Counts::default, |row| row.counts)
    }

    /// Counters of a class in a phase.
    pub fn of_class_in(&self, phase: &str, class: Class) -> Counts {
        let rows = self.rows.iter().filter(|row| row.phase == phase && row.class == class);
        let mut sum = Counts::default();
        rows.for_each(|row| sum.add(row.counts));
        sum
    }
}

/// Replays a trace on this machine with this aging. Levels apply from the trace's `levels` line on, or from the
/// beginning without one.
pub fn replay(trace: &Trace, machine: &Machine, aging: &Aging) -> Outcome {
    let mut memory = Memory::of(trace, machine, aging);
    for step in trace.steps() {
        memory.step(step);
    }
    memory.outcome(trace)
}

impl Memory {
    fn step(&mut self, step: Step) {
        match step {
            Step::Use { access, file, first, count } => {
                let begin = self.first_page(file) + first;
                (begin..begin + count).for_each(|page| self.access(access, page));
            }
            Step::Wait { us } => self.pass(us),
            Step::Levels => self.levels_hold = true,
            Step::Phase(phase) => self.begin_phase(phase),
        }
    }
}
