//! The kernel's page lists, replayed: what a trace of accesses finds in memory, by class, and what it would find with other rates of
//! aging. Pure.
//!
//! `trace` is the text form of a trace; `pages` are the pages and their lists; `memory` is what happens at an access; `kernel` the
//! classic lists as kernels of today age them, `paper` those of Oshima, Aoki and Arai; `dials` what masu adds to the kernel's.
//!
//! | paper (sections 4 and 5)                        | here                                                             |
//! |-------------------------------------------------|------------------------------------------------------------------|
//! | figure 2: active-list, inactive-list            | [`Lists::One`]                                                   |
//! | section 5: active-mapped-list, -unmapped-list   | [`Lists::Split`]                                                 |
//! | `mapped_page_cost`, at 100 no aging of mapped   | [`Lists::Split::mapped_page_cost`]: rate of aging (100 − cost) % |
//! | figure 4: a list for each use, each with a rate | [`Lists::Classic`] with [`Rate::Dial`]                           |
//!
//! The memory is that of a control group with a limit: it is reclaimed from by those who want more, page by page, and nothing is freed
//! ahead of that, as kswapd does for a whole host.
//!
//! Where it differs from a kernel: pages are single (no large folios), nothing is read ahead and no page is mapped because its
//! neighbour was touched; what is written is clean at once; nobody unmaps anything; one processor, whose batches of pages under way
//! (31 on each list) are not simulated; pages are scanned in the order in which they came. Shadows are never too many. Swap takes
//! no time, and a page that comes back leaves it.
//!
//! No I/O, no clock, no randomness: the same trace has the same outcome.

mod dials;
mod kernel;
mod memory;
mod pages;
mod paper;
#[cfg(test)]
mod tests;
pub mod trace;

use serde::Serialize;
use units::{Fraction, Pages};

use aging::class::Class;
use aging::dials::Dial;
use memory::Memory;
use trace::{Step, Trace};

/// What the trace runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// The limit of the group.
    pub memory: Pages,
    /// Room for anonymous and shared memory elsewhere; zero for none.
    pub swap: Pages,
    /// 0 to 200, as `vm.swappiness`; the kernel's own is 60.
    pub swappiness: u8,
    /// How long an access takes whose page is not in memory, in microseconds; others take no time. With zero, time goes by only where
    /// the trace says `wait`.
    pub miss_us: u64,
    /// How old the sums over a group get before the kernel adds them up again, in microseconds: by them it decides whether a page
    /// came back soon, and whether the inactive list is too short. 2 s since Linux 5.16, whoever reads `memory.stat` makes them new;
    /// zero for always new ones. In the first period they are those of a group in which nothing was yet.
    pub sums_us: u64,
}

/// How pages of a class are aged, where the kernel has its classic lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// As the kernel does.
    Kernel,
    /// 100: never, as long as the budget suffices. 0: what a use brought in is dropped at once after it, and what was there before
    /// stays with the kernel. Between: kept for `base · dial / (100 − dial)` of time under pressure since its last use, and then
    /// given back to the kernel.
    Dial(Dial),
}

/// The lists by which pages are aged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// The kernel of today without generations: a pair for files and a pair for the rest.
    Classic,
    /// One pair for all, as in the paper's figure 2; dials have no effect.
    One,
    /// Two active lists and one inactive, as in the paper's section 5; dials have no effect.
    Split {
        /// 0: the list of mapped pages is aged as the other one; 100: not at all.
        mapped_page_cost: Dial,
    },
}

/// How memory is aged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aging {
    /// By which lists.
    pub lists: Lists,
    /// For each of [`Class::ALL`], in that order.
    pub rates: [Rate; 5],
    /// The part of memory that pages of files may have which are kept. Where it is used up, others stay with the kernel. Anonymous
    /// and shared memory is kept by not being swapped, which needs no budget.
    pub budget: Fraction,
    /// The time under pressure for which a dial of 50 keeps a page, in microseconds.
    pub base_us: u64,
}

/// For how long a dial of 50 keeps a page, by default, in microseconds.
pub const BASE_US: u64 = 60_000_000;

impl Aging {
    /// The kernel of today alone.
    pub const KERNEL: Aging =
        Aging { lists: Lists::Classic, rates: [Rate::Kernel; 5], budget: Fraction::ZERO, base_us: BASE_US };

    /// The same with another rate for a class.
    #[must_use]
    pub fn with(mut self, class: Class, rate: Rate) -> Aging {
        if let Some(of_class) = self.rates.get_mut(class as usize) {
            *of_class = rate;
        }
        self
    }
}

/// How often something happened to pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Accesses that found the page in memory.
    pub hits: u64,
    /// The first access to a page at all.
    pub first_reads: u64,
    /// Later accesses that did not find it in memory.
    pub refaults: u64,
    /// Pages that were taken away for want of memory.
    pub evictions: u64,
    /// Pages that a dial of 0 dropped after their use.
    pub drops: u64,
    /// Pages that went to an active list, from an inactive one or as they came back.
    pub activations: u64,
    /// Accesses (first reads or refaults, too) for which there was no memory: a kernel would have killed somebody.
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

/// What happened to a file's pages in a phase. Evictions count where the page goes, and not where it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// As the trace calls it.
    pub phase: String,
    /// As the trace calls it.
    pub file: String,
    /// Of the file.
    pub class: Class,
    /// What happened.
    #[serde(flatten)]
    pub counts: Counts,
}

/// What happened to a class, in all phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassRow {
    /// Which.
    pub class: Class,
    /// What happened.
    #[serde(flatten)]
    pub counts: Counts,
    /// In memory at the end.
    pub resident_pages: Pages,
    /// Of these, on an active list.
    pub active_pages: Pages,
    /// Of these, kept by a dial.
    pub kept_pages: Pages,
}

/// What aging itself did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Times that memory was reclaimed because somebody wanted some.
    pub reclaims: u64,
    /// Pages of active lists that were looked at.
    pub active_scans: u64,
    /// Pages of inactive lists that were looked at.
    pub inactive_scans: u64,
    /// Pages that were looked at in the longest of the reclaims.
    pub most_scans_at_once: u64,
    /// Time under pressure: of the seconds in which memory was reclaimed.
    pub pressure_us: u64,
    /// Kept pages that were given back to the kernel before their time, since nothing else could be reclaimed.
    pub released_for_want: u64,
}

/// What came of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// For each phase and each of its files to whose pages something happened, in the order of the trace.
    pub rows: Vec<Row>,
    /// For each class of which there are files.
    pub classes: Vec<ClassRow>,
    /// What it cost.
    pub work: Work,
}

impl Outcome {
    /// What happened to a file in a phase.
    pub fn of(&self, phase: &str, file: &str) -> Counts {
        let row = self.rows.iter().find(|row| row.phase == phase && row.file == file);
        row.map_or_else(Counts::default, |row| row.counts)
    }

    /// What happened to a class in all phases.
    pub fn of_class(&self, class: Class) -> Counts {
        let row = self.classes.iter().find(|row| row.class == class);
        row.map_or_else(Counts::default, |row| row.counts)
    }

    /// What happened to a class in a phase.
    pub fn of_class_in(&self, phase: &str, class: Class) -> Counts {
        let rows = self.rows.iter().filter(|row| row.phase == phase && row.class == class);
        let mut sum = Counts::default();
        rows.for_each(|row| sum.add(row.counts));
        sum
    }
}

/// What comes of a trace on such a machine, with such aging. The dials hold from the line on that says so, or else from the beginning.
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
            Step::Dials => self.dials_hold = true,
            Step::Phase(phase) => self.begin_phase(phase),
        }
    }
}
