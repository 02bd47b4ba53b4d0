//! Handling of an access with any page lists. Pure.

use units::cast::fits;

use super::kernel::Classic;
use super::pages::{List, Pages, flag};
use super::trace::{Access, Trace};
use super::{Aging, ClassRow, Counts, Lists, Machine, Outcome, Row, Work};
use aging::class::Class;

/// Memory with its whole state.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) pages: Pages,
    pub(super) machine: Machine,
    pub(super) aging: Aging,
    /// State of the classic lists only.
    pub(super) classic: Classic,
    /// Pages of the paper's active lists due for a scan, times a hundred.
    pub(super) due: [u64; 2],
    /// Priority at the end of the last reclaim of the paper's lists.
    pub(super) last_priority: u32,
    /// Mapped pages in memory.
    pub(super) mapped: u64,
    pub(super) swap_used: u64,
    pub(super) now_us: u64,
    pub(super) levels_hold: bool,
    /// Last second under pressure.
    pub(super) last_pressure_s: Option<u64>,
    pub(super) work: Work,
    firsts: Vec<u32>,
    phase: usize,
    /// Counters by phase, and by file.
    counts: Vec<Vec<Counts>>,
}

impl Memory {
    /// Empty memory.
    pub(super) fn of(trace: &Trace, machine: &Machine, aging: &Aging) -> Memory {
        let files = trace.files();
        let mut next = 0_u32;
        let firsts = files.iter().map(|file| {
            let first = next;
            // All files have at most `PAGES_MAX` pages.
            next += fits::<_, u32>(file.pages.0);
            first
        });
        Memory {
            firsts: firsts.collect(),
            pages: Pages::of(files.iter().map(|file| (file.class, file.pages.0))),
            machine: *machine,
            aging: *aging,
            classic: Classic::default(),
            due: [0; 2],
            last_priority: super::kernel::PRIORITY,
            mapped: 0,
            swap_used: 0,
            now_us: 0,
            levels_hold: !trace.sets_levels(),
            last_pressure_s: None,
            work: Work::default(),
            phase: 0,
            counts: vec![vec![Counts::default(); files.len()]; trace.phases().len().max(1)],
        }
    }

    pub(super) fn first_page(&self, file: usize) -> u32 {
        self.firsts.get(file).copied().unwrap_or(0)
    }

    pub(super) fn begin_phase(&mut self, phase: usize) {
        self.phase = phase;
    }

    pub(super) fn counts(&mut self, page: u32) -> &mut Counts {
        let file = self.pages.get(page).file as usize;
        &mut self.counts[self.phase][file]
    }

    pub(super) fn has_swap_left(&self) -> bool {
        self.swap_used < self.machine.swap.0
    }

    /// True for a file page: its eviction needs no swap.
    pub(super) fn is_of_file(&self, page: u32) -> bool {
        self.pages.get(page).class.is_of_files()
    }

    /// Handles one use of a page.
    pub(super) fn access(&mut self, access: Access, page: u32) {
        let is_there = self.pages.list(page).is_some();
        if is_there {
            self.counts(page).hits += 1;
        } else if !self.bring_in(access, page) {
            return;
        }
        match access {
            Access::Touch => {
                if !self.pages.has(page, flag::MAPPED) {
                    self.mapped += 1;
                }
                self.pages.set(page, flag::YOUNG | flag::MAPPED);
            }
            Access::Read => self.mark_accessed(page),
            // A write to a file does not predict another use; for shared memory it counts as a use.
            Access::Write if !self.is_of_file(page) => self.mark_accessed(page),
            Access::Write => (),
        }
        self.apply_level(page, !is_there);
    }

    /// Advances the time.
    pub(super) fn pass(&mut self, us: u64) {
        self.now_us = self.now_us.saturating_add(us);
        self.add_up_in_time();
    }

    /// Inserts a page; false without memory for it.
    fn bring_in(&mut self, access: Access, page: u32) -> bool {
        self.pass(self.machine.miss_us);
        let was_seen = self.pages.has(page, flag::SEEN);
        self.pages.set(page, flag::SEEN);
        let counts = self.counts(page);
        if was_seen {
            counts.refaults += 1;
        } else {
            counts.first_reads += 1;
        }
        while self.pages.resident() >= self.machine.memory.0 {
            if !self.reclaim() && !self.release_for_want() {
                self.counts(page).refused += 1;
                return false;
            }
        }
        // A page seen before was in swap.
        if was_seen && !self.is_of_file(page) {
            self.swap_used = self.swap_used.saturating_sub(1);
        }
        match self.aging.lists {
            Lists::Classic => self.add_classic(access, page),
            Lists::One | Lists::Split { .. } => self.add_of_paper(access, page),
        }
        true
    }

    /// Use known to the kernel at once: the second one activates the page, and clears the first one.
    fn mark_accessed(&mut self, page: u32) {
        if !self.pages.has(page, flag::REFERENCED) {
            self.pages.set(page, flag::REFERENCED);
        } else if matches!(self.pages.list(page), Some(List::InactiveAnon | List::InactiveFile)) {
            self.pages.clear(page, flag::REFERENCED);
            self.activate(page);
        }
    }

    /// Moves a page to its active list.
    pub(super) fn activate(&mut self, page: u32) {
        let list = match self.aging.lists {
            Lists::Classic => {
                self.classic.age += 1;
                if self.is_of_file(page) { List::ActiveFile } else { List::ActiveAnon }
            }
            Lists::One | Lists::Split { .. } => self.active_of_paper(page),
        };
        self.pages.put(page, list);
        self.counts(page).activations += 1;
    }

    /// Frees some memory; returns whether it could.
    fn reclaim(&mut self) -> bool {
        self.feel_pressure();
        self.work.reclaims += 1;
        let before = self.work.active_scans + self.work.inactive_scans;
        let freed = match self.aging.lists {
            Lists::Classic => self.reclaim_classic(),
            Lists::One | Lists::Split { .. } => self.reclaim_of_paper(),
        };
        let scans = self.work.active_scans + self.work.inactive_scans - before;
        self.work.most_scans_at_once = self.work.most_scans_at_once.max(scans);
        freed
    }

    /// Removes a page, for lack of memory or not: to swap, if it has no file.
    pub(super) fn let_go(&mut self, page: u32) {
        if self.pages.take(page, flag::MAPPED) {
            self.mapped -= 1;
        }
        if !self.is_of_file(page) {
            self.swap_used += 1;
        }
        self.pages.clear(page, flag::YOUNG | flag::REFERENCED);
        self.pages.remove(page);
    }

    /// Result of the replay.
    pub(super) fn outcome(&self, trace: &Trace) -> Outcome {
        let mut rows = Vec::new();
        let mut classes = Class::ALL.map(|class| ClassRow {
            class,
            counts: Counts::default(),
            resident_pages: units::Pages(0),
            active_pages: units::Pages(0),
            kept_pages: units::Pages(0),
        });
        for (phase, by_file) in trace.phases().iter().zip(&self.counts) {
            for (file, counts) in trace.files().iter().zip(by_file) {
                classes[file.class as usize].counts.add(*counts);
                if *counts != Counts::default() {
                    rows.push(Row {
                        phase: phase.clone(),
                        file: file.name.clone(),
                        class: file.class,
                        counts: *counts,
                    });
                }
            }
        }
        for (list, class) in self.pages.residents() {
            let row = &mut classes[class as usize];
            row.resident_pages.0 += 1;
            row.active_pages.0 += u64::from(matches!(list, List::ActiveAnon | List::ActiveFile));
            row.kept_pages.0 += u64::from(matches!(list, List::Kept(_)));
        }
        let used = |class| trace.files().iter().any(|file| file.class == class);
        let classes = classes.into_iter().filter(|row| used(row.class)).collect();
        Outcome { rows, classes, work: self.work }
    }
}
