//! Fetch plan of a touch: one interface to all policies, over the shared segment.
//!
//! A page is identified here by its address divided by 4096; the pager has numbers of its own for pages, and keeps 16
//! bits with each for the policy.

use crate::budget::Budget;
use crate::cast::fits;
use crate::handshake::Sections;
use crate::policy::marked::{self, Marked};
use crate::policy::replacement::{Arrival, Replacement};
use crate::policy::site::{Fault, FetchPlan, Kind, Limits, MARKERS, SERIES, Series, Sites};
use crate::policy::what_if::{Clock, Ghosts, WhatIf};
use crate::policy::{NO_PAGE, Run, unit_around};

/// Learned state of a program. Memory full of zeros is a valid start of it.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Learned {
    /// State by code site.
    pub sites: Sites,
    /// State by the program's own marks.
    pub marked: Marked,
    /// Eviction queues.
    pub replacement: Replacement,
    /// Prediction for half and double the memory.
    pub what_if: WhatIf,
    /// Number of evictions.
    pub clock: Clock,
}

/// Costs, in nanoseconds; the transfer of a page includes its checksum, and mapping it in and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Cost of a fault that fetches one stored page, without the page's transfer.
    pub fault_ns: u32,
    /// Cost of the transfer of each page.
    pub page_ns: u32,
    /// Cost of the transfer of each page in the background; 0: there is none.
    pub ahead_page_ns: u32,
}

impl Costs {
    /// Costs of a file. The kernel does readahead and write-behind on it; a second layer of both gains nothing.
    pub const FILE: Costs = Costs { fault_ns: 5_500, page_ns: 850, ahead_page_ns: 0 };
    /// Costs of a server on this machine or near it, asked through masu.
    pub const SERVER: Costs = Costs { fault_ns: 35_000, page_ns: 3_000, ahead_page_ns: 2_000 };

    /// Same costs without a background.
    #[must_use]
    pub const fn alone(self) -> Costs {
        Costs { ahead_page_ns: 0, ..self }
    }
}

/// Decides the fetch plan of a touch.
#[derive(Debug)]
pub struct Units<'a> {
    /// Learned state.
    pub learned: &'a mut Learned,
    /// Evicted pages, and their times.
    pub ghosts: Ghosts<'a>,
    /// Source of the program's sections.
    pub sections: Sections,
    /// Unit without sections: 2^n pages.
    pub fixed_log2: u8,
    /// Smallest unit: 2^n pages.
    pub base_log2: u8,
    /// Costs of fetching.
    pub costs: Costs,
}

/// Touch, in the pager's terms.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Faulting instruction.
    pub site: u64,
    /// Touched page.
    pub page: u64,
    /// Limit of the fetch plan.
    pub area: Run,
    /// State in which the fault found the page.
    pub kind: Kind,
    /// Mark kept with the page.
    pub mark: u16,
}

impl Units<'_> {
    /// Fetch plan and arrival class. Nothing is requested ahead when the background `is_busy`. `here` tells of a nearby
    /// page whether it is in memory, or in flight.
    pub fn plan(
        &mut self,
        asked: Asked,
        budget: Budget,
        is_busy: bool,
        here: impl Fn(u64) -> bool,
    ) -> (FetchPlan, Arrival) {
        let max_unit_log2 = max_unit_log2(budget);
        let is_stored = asked.kind == Kind::Stored;
        let distance = if is_stored { self.ghosts.returned(asked.page, &self.learned.clock) } else { 0 };
        self.learned.what_if.fault(asked.page, is_stored, distance, budget.frames);
        let unit = |log2: u8| unit_around(asked.page, log2.min(max_unit_log2)).within(asked.area);
        let mut plan = match self.sections {
            Sections::Auto => {
                let limits = Limits {
                    budget_pages: budget.frames,
                    life_pages: self.learned.replacement.life_pages(budget.frames, budget.aside),
                    fault_ns: self.costs.fault_ns,
                    page_ns: self.costs.page_ns,
                    ahead_page_ns: if is_busy { 0 } else { self.costs.ahead_page_ns },
                    base_log2: self.base_log2.min(max_unit_log2),
                    max_unit_log2,
                };
                let Asked { site, page, area, kind, mark } = asked;
                self.learned.sites.on_fault(&Fault { site, page, area, distance, mark, kind }, &limits, here)
            }
            Sections::Marked => {
                let settings = self.settings(budget);
                self.learned.marked.faulted();
                let mut plan = plain(unit(self.learned.marked.unit_log2(settings)));
                plan.mark = if is_stored { self.learned.marked.swapped_in(asked.mark) } else { asked.mark };
                plan
            }
            Sections::Off => plain(unit(self.fixed_log2)),
        };
        let replacement = &mut self.learned.replacement;
        // No page that was gone for longer can be kept.
        let distance = if u64::from(distance) <= 2 * u64::from(budget.frames) { distance } else { 0 };
        if is_stored {
            replacement.fetched(plan.fetch.pages, distance, budget.frames, budget.beyond);
        }
        let is_looping = is_stored && replacement.is_looping();
        plan.probation |= replacement.is_looping();
        // Slightly more memory would have kept it.
        let soon = distance > 0 && u64::from(distance) < u64::from(budget.frames) * 7 / 8;
        let arrival = match asked.kind {
            Kind::Victim => Arrival::Reused,
            _ if is_looping => self.learned.replacement.arrival_in_loop(distance),
            _ if soon => Arrival::Reused,
            _ if plan.probation => Arrival::Probation,
            _ => Arrival::New,
        };
        (plan, arrival)
    }

    /// Takes a touch back, after its plan with this mark: the memory is not paged.
    pub fn was_no_fault(&mut self, mark: u16) {
        match self.sections {
            Sections::Auto => self.learned.sites.was_no_fault(mark),
            Sections::Marked => self.learned.marked.was_no_fault(),
            Sections::Off => {}
        }
    }

    fn settings(&self, budget: Budget) -> marked::Settings {
        let max_set_log2 = max_unit_log2(budget).saturating_sub(self.base_log2);
        marked::Settings { base_log2: self.base_log2, max_set_log2, local_pages: budget.frames.into() }
    }

    /// Begins a section, marked by the program.
    pub fn section_begins(&mut self, section: u32) {
        if self.sections == Sections::Marked {
            self.learned.marked.count_start(section);
        }
    }

    /// Ends a section, marked by the program.
    pub fn section_ends(&mut self, section: u32, budget: Budget) {
        if self.sections == Sections::Marked {
            let settings = self.settings(budget);
            self.learned.marked.refresh(section, settings);
        }
    }

    /// Counts pages fetched from the store.
    pub fn fetched(&mut self, run: Run, budget: Budget) {
        self.learned.what_if.fetched(run, &self.learned.clock, budget.frames);
    }

    /// Records a page that is in the store only now.
    pub fn evicted(&mut self, page: u64, budget: Budget) {
        self.ghosts.evicted(page, &mut self.learned.clock);
        self.learned.what_if.evicted(page, &self.learned.clock, budget.frames);
    }

    /// Next page to be left unmapped, to see whether it would be missed with half the memory. To be asked until `None`.
    pub fn next_lost(&mut self, budget: Budget) -> Option<u64> {
        self.learned.what_if.next_lost(budget.frames)
    }
}

/// Largest unit: 2^n pages.
fn max_unit_log2(budget: Budget) -> u8 {
    fits(budget.largest_unit_pages().ilog2())
}

/// Plan for one run only.
fn plain(fetch: Run) -> FetchPlan {
    FetchPlan { fetch, ahead: [Series::NOTHING; SERIES], markers: [NO_PAGE; MARKERS], mark: 0, probation: false }
}
