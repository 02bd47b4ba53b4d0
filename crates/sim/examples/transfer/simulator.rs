//! The fetch policy on a synthetic program, page by page, with a cost model.
//!
//! Like the pager, the simulator has a budget, the two rings of `replacement.rs`, a victim queue, held pages, and one
//! background thread that fetches requested runs one after the other. It omits: several threads, write-back overlapping
//! with computation (here a dirty page costs the fault that evicts it), and the cost of unmapping.

use core::sync::atomic::AtomicU64;
use std::collections::{BinaryHeap, VecDeque};

use farmem_engine::policy::marked::{self, Marked};
use farmem_engine::policy::replacement::{self, Arrival, Memory, Replacement};
use farmem_engine::policy::site::{Fault, FetchPlan, Kind, Limits, MARKERS, Sites};
use farmem_engine::policy::what_if::{Clock, WhatIf};
use farmem_engine::policy::{MAX_UNIT_LOG2, NO_PAGE, Run, unit_around};

use crate::programs::{Program, Step};

/// Address of page 0 of every program.
const BASE: u64 = 0x5_5555_5000;

/// Costs in nanoseconds.
const FAULT_NS: u32 = 5000;
const PAGE_NS: u32 = 700;
const VICTIM_NS: u32 = 2000;
const AHEAD_PAGE_NS: u32 = 350;
const AHEAD_RUN_NS: u64 = 1000;
/// Time until the first page of a run arrives, while other runs are in flight.
const AHEAD_LATENCY_NS: u64 = 0;
const OUT_PAGE_NS: u64 = 500;
const FRESH_PAGE_NS: u64 = 300;
const FRESH_FAULT_NS: u64 = 3000;

/// Choice of the transfer size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    Fixed(u8),
    Marked,
    Auto,
    /// Auto, without fetching ahead.
    AutoAlone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Untouched,
    Stored,
    Victim,
    Marker,
    Mapped,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    state: State,
    dirty: bool,
    used: bool,
    mark: u16,
    section_run: u16,
    left_at: u32,
    ready_at: u64,
}

const FRESH: Page =
    Page { state: State::Untouched, dirty: false, used: false, mark: 0, section_run: 0, left_at: 0, ready_at: 0 };

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    compute_ns: u64,
    elapsed_ns: u64,
    waited_ns: u64,
    pub(super) faults_stored: u64,
    faults_fresh: u64,
    faults_in_victim_queue: u64,
    faults_on_markers: u64,
    faults_in_flight: u64,
    pub(super) pages_in: u64,
    pages_ahead: u64,
    pages_unused: u64,
    pages_out: u64,
    pub(super) faults_at_half: u64,
    pub(super) faults_at_double: u64,
}

impl Outcome {
    /// Run time over computing time.
    pub(super) fn slowdown(&self) -> f64 {
        self.elapsed_ns as f64 / self.compute_ns as f64
    }
}

struct Simulator {
    pages: Vec<Page>,
    units: Units,
    sampling: bool,
    budget: u32,
    sites: Box<Sites>,
    marked: Marked,
    queue: Replacement,
    rings: [Vec<AtomicU64>; 2],
    /// Unmapped units, the oldest first.
    victims: VecDeque<Run>,
    in_memory: u32,
    touched: u32,
    in_victim_queue: u32,
    left: Clock,
    what_if: WhatIf,
    now: u64,
    background_free: u64,
    seen: Outcome,
}

/// Runs a program with a budget.
pub(super) fn run(program: &Program, budget_pages: u32, units: Units) -> Outcome {
    Simulator::run(program, budget_pages, units).seen
}

/// Number of pages fetched with perfect knowledge of the future, one at a time: the minimum (L. A. Belady, "A study of
/// replacement algorithms for a virtual-storage computer", 1966).
pub(super) fn fewest_pages_in(program: &Program, budget_pages: u32) -> u64 {
    let mut touched = Vec::new();
    (program.steps)(&mut |step| {
        if let Step::Touch { page, .. } = step
            && touched.last() != Some(&page)
        {
            touched.push(page);
        }
    });
    const NEVER: usize = usize::MAX;
    let mut next = vec![NEVER; touched.len()];
    let mut coming = vec![NEVER; program.pages as usize];
    for (at, page) in touched.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut coming[*page as usize], at);
    }
    // Pages in memory by their next use, the latest first; stale entries are skipped.
    let mut latest = BinaryHeap::new();
    let (mut needed, mut seen) = (vec![None; program.pages as usize], vec![false; program.pages as usize]);
    let (mut here, mut brought) = (0, 0);
    for (at, page) in touched.iter().map(|page| *page as usize).enumerate() {
        if needed[page].is_none() {
            brought += u64::from(std::mem::replace(&mut seen[page], true));
            while here >= budget_pages
                && let Some((when, other)) = latest.pop()
            {
                if needed[other] == Some(when) {
                    needed[other] = None;
                    here -= 1;
                }
            }
            here += 1;
        }
        needed[page] = Some(next[at]);
        latest.push((next[at], page));
    }
    brought
}

impl Simulator {
    fn run(program: &Program, budget: u32, units: Units) -> Simulator {
        let capacity = budget as usize * 2;
        let mut simulator = Simulator {
            pages: vec![FRESH; program.pages as usize],
            units,
            sampling: true, // its cost is negligible, and the same for all
            budget,
            sites: Box::new(Sites::UNKNOWN),
            marked: Marked::default(),
            queue: Replacement::default(),
            rings: [(); 2].map(|()| (0..capacity).map(|_| AtomicU64::new(0)).collect()),
            victims: VecDeque::new(),
            in_memory: 0,
            touched: 0,
            in_victim_queue: 0,
            left: Clock::default(),
            what_if: WhatIf::UNKNOWN,
            now: 0,
            background_free: 0,
            seen: Outcome::default(),
        };
        (program.steps)(&mut |step| match step {
            Step::Touch { site, page, write, ns } => simulator.touch(u64::from(site), page as usize, write, ns),
            Step::Begin(section) => simulator.marked.count_start(section),
            Step::End(section) => simulator.marked.refresh(section, marked::Settings::paper(u64::from(budget))),
        });
        simulator.seen.elapsed_ns = simulator.now;
        simulator.seen.faults_at_half = simulator.what_if.at_half();
        simulator.seen.faults_at_double = simulator.what_if.at_double();
        simulator
    }

    fn touch(&mut self, site: u64, page: usize, write: bool, ns: u32) {
        self.seen.compute_ns += u64::from(ns);
        self.now += u64::from(ns);
        let entry = &mut self.pages[page];
        if entry.state != State::Mapped || entry.ready_at > self.now {
            self.fault(site, page);
        }
        let entry = &mut self.pages[page];
        assert_eq!(entry.state, State::Mapped);
        entry.used = true;
        entry.dirty |= write;
    }

    fn beyond(&self) -> u32 {
        self.touched.saturating_sub(self.budget)
    }

    fn aside(&self) -> u32 {
        replacement::aside_pages(self.budget, self.beyond())
    }

    fn limits(&self) -> Limits {
        Limits {
            budget_pages: self.budget,
            life_pages: self.queue.life_pages(self.budget, self.aside()),
            fault_ns: FAULT_NS,
            page_ns: PAGE_NS,
            ahead_page_ns: if self.units == Units::AutoAlone { 0 } else { AHEAD_PAGE_NS },
            base_log2: 0,
            max_unit_log2: MAX_UNIT_LOG2,
        }
    }

    fn fault(&mut self, site: u64, at: usize) {
        let entry = self.pages[at];
        let kind = match entry.state {
            State::Untouched => Kind::FirstTouch,
            State::Stored => Kind::Stored,
            State::Victim => Kind::Victim,
            _ if entry.ready_at > self.now => Kind::InFlight,
            State::Marker => Kind::Marker,
            State::Mapped => unreachable!(),
        };
        let area = Run { first_page: BASE, pages: self.pages.len() as u32 };
        let page = BASE + at as u64;
        let distance = if kind == Kind::Stored { self.left.distance(entry.left_at) } else { 0 };
        let fault = Fault { site, page, area, distance, mark: entry.mark, kind };
        self.what_if.fault(page, kind == Kind::Stored, distance, self.budget);
        let mut plan = self.plan(&fault);
        if kind == Kind::Stored {
            // Limit of the ghosts: they remember the last two budgets.
            let known = if distance <= self.budget * 2 { distance } else { 0 };
            self.queue.fetched(plan.fetch.pages, known, self.budget, self.beyond());
        }
        plan.probation |= self.queue.is_looping();
        assert!(plan.fetch.contains(page), "{plan:?} does not bring {page:#x}");
        assert_eq!(plan.fetch, plan.fetch.within(area), "a plan stays in its mapping");
        assert!(!plan.has_marker(page));
        let began = self.now;
        match kind {
            Kind::FirstTouch => {
                self.seen.faults_fresh += 1;
                self.now += FRESH_FAULT_NS;
                self.bring(plan.fetch, &plan, State::Untouched, Arrival::New, 0);
            }
            Kind::Stored => {
                self.seen.faults_stored += 1;
                let soon = distance < self.budget - self.budget / 8;
                let arrival = match (soon, plan.probation) {
                    _ if self.queue.is_looping() => {
                        self.queue.arrival_in_loop(if distance <= self.budget * 2 { distance } else { 0 })
                    }
                    (true, _) => Arrival::Reused,
                    (false, true) => Arrival::Probation,
                    (false, false) => Arrival::New,
                };
                self.now += u64::from(FAULT_NS);
                self.bring(plan.fetch, &plan, State::Stored, arrival, u64::from(PAGE_NS));
                self.bring(plan.fetch, &plan, State::Victim, Arrival::New, 0);
            }
            Kind::Victim => {
                self.seen.faults_in_victim_queue += 1;
                self.now += u64::from(VICTIM_NS);
                self.bring(plan.fetch, &plan, State::Victim, Arrival::Reused, 0);
            }
            Kind::Marker => {
                self.seen.faults_on_markers += 1;
                self.now += u64::from(VICTIM_NS);
                self.pages[at].state = State::Mapped;
            }
            Kind::InFlight => {
                self.seen.faults_in_flight += 1;
                self.now += u64::from(VICTIM_NS);
                self.seen.waited_ns += entry.ready_at.saturating_sub(self.now);
                self.now = self.now.max(entry.ready_at);
                self.pages[at].state = State::Mapped;
            }
        }
        let arrival = if plan.probation { Arrival::Probation } else { Arrival::New };
        for series in plan.ahead {
            for n in 0..series.runs {
                let run = series.run(n, area);
                assert_eq!(run, run.within(area), "a plan stays in its mapping");
                self.bring_ahead(run, &plan, arrival, began);
            }
        }
        if self.sampling {
            self.mark_lost();
        }
        if self.pages[at].state == State::Marker {
            self.pages[at].state = State::Mapped;
        }
        // With a few pages of memory, fetching ahead may have evicted it again.
        if self.pages[at].state != State::Mapped {
            self.bring(Run { first_page: page, pages: 1 }, &plan, self.pages[at].state, Arrival::New, 0);
        }
    }

    fn plan(&mut self, fault: &Fault) -> FetchPlan {
        let limits = self.limits();
        let largest = (self.budget / 2).max(1).ilog2() as u8;
        let fixed = match self.units {
            Units::Auto | Units::AutoAlone => {
                let pages = &self.pages;
                let here = |page: u64| {
                    let state = pages[(page - BASE) as usize].state;
                    state == State::Mapped || state == State::Marker
                };
                return self.sites.on_fault(fault, &limits, here);
            }
            Units::Fixed(log2) => log2,
            Units::Marked => self.marked.unit_log2(marked::Settings::paper(u64::from(self.budget))),
        };
        let fetch = unit_around(fault.page, fixed.min(largest)).within(fault.area);
        if self.units == Units::Marked && fault.kind == Kind::Stored {
            let entry = &mut self.pages[(fetch.first_page - BASE) as usize];
            entry.section_run = self.marked.swapped_in(entry.section_run);
        }
        FetchPlan { fetch, ahead: Default::default(), markers: [NO_PAGE; MARKERS], mark: 0, probation: false }
    }

    /// Maps the pages of `run` in state `from`.
    fn bring(&mut self, run: Run, plan: &FetchPlan, from: State, arrival: Arrival, page_ns: u64) {
        let count = self.count(run, from);
        if from != State::Victim {
            self.now += self.make_room(count);
        }
        let page_ns = if from == State::Untouched { FRESH_PAGE_NS } else { page_ns };
        self.now += u64::from(count) * page_ns;
        if from == State::Stored {
            self.seen.pages_in += u64::from(count);
        }
        let now = self.now;
        self.map(run, plan, from, arrival, |_| now);
    }

    fn count(&self, run: Run, state: State) -> u32 {
        let first = (run.first_page - BASE) as usize;
        self.pages[first..first + run.pages as usize].iter().filter(|page| page.state == state).count() as u32
    }

    fn map(&mut self, run: Run, plan: &FetchPlan, from: State, arrival: Arrival, ready_at: impl Fn(u32) -> u64) {
        let mut done = 0;
        // Small entries, so that a large unit is evicted piece by piece.
        let mut pieces: Vec<Run> = Vec::new();
        for page in run.first_page..run.end_page() {
            let entry = &mut self.pages[(page - BASE) as usize];
            if entry.state != from {
                continue;
            }
            if from == State::Victim {
                self.in_victim_queue -= 1;
            } else {
                self.in_memory += 1;
                self.touched += u32::from(from == State::Untouched);
                entry.dirty = from == State::Untouched;
                entry.used = false;
                entry.mark = plan.mark;
            }
            done += 1;
            match pieces.last_mut() {
                Some(last) if last.end_page() == page && last.pages < 16 => last.pages += 1,
                _ => pieces.push(Run { first_page: page, pages: 1 }),
            }
            entry.ready_at = ready_at(done);
            entry.state = if plan.has_marker(page) && from == State::Stored { State::Marker } else { State::Mapped };
        }
        if done == 0 {
            return;
        }
        if from == State::Stored && self.sampling {
            self.what_if.fetched(run, &self.left, self.budget);
            self.mark_lost();
        }
        for piece in pieces {
            let [probation, main] = &self.rings;
            let memory = Memory { probation, main };
            assert!(self.queue.enter(memory, piece, arrival), "the ring is full");
        }
    }

    fn bring_ahead(&mut self, run: Run, plan: &FetchPlan, arrival: Arrival, began: u64) {
        if self.units == Units::AutoAlone || run.pages == 0 {
            return;
        }
        let count = self.count(run, State::Stored);
        self.map(run, plan, State::Victim, Arrival::Probation, |_| began);
        if count == 0 {
            return;
        }
        let start = self.background_free.max(began) + AHEAD_RUN_NS + self.make_room(count);
        self.background_free = start + u64::from(count) * u64::from(AHEAD_PAGE_NS);
        let start = start + AHEAD_LATENCY_NS;
        self.seen.pages_in += u64::from(count);
        self.seen.pages_ahead += u64::from(count);
        // Pages arrive in pieces of sixteen.
        let piece = |n: u32| start + u64::from(n.next_multiple_of(16).min(count)) * u64::from(AHEAD_PAGE_NS);
        self.map(run, plan, State::Stored, arrival, piece);
    }

    /// Marks pages as held that half the budget would have evicted.
    fn mark_lost(&mut self) {
        while let Some(page) = self.what_if.next_lost(self.budget) {
            let entry = &mut self.pages[(page - BASE) as usize];
            if entry.state == State::Mapped {
                entry.state = State::Marker;
            }
        }
    }

    /// Evicts until this number of pages fits, and returns the cost of write-back.
    fn make_room(&mut self, pages: u32) -> u64 {
        let mut cost = 0;
        let [probation, main] = &self.rings;
        let memory = Memory { probation, main };
        let (mut idle, aside) = (0, self.aside());
        while self.in_memory + pages > self.budget && idle < 2 {
            idle += 1;
            while self.in_victim_queue < aside {
                let Some(run) = self.queue.next_victim(memory, aside) else { break };
                let mut moved = 0;
                for page in run.first_page..run.end_page() {
                    let entry = &mut self.pages[(page - BASE) as usize];
                    if matches!(entry.state, State::Mapped | State::Marker) {
                        entry.state = State::Victim;
                        moved += 1;
                    }
                }
                self.in_victim_queue += moved;
                if moved > 0 {
                    if self.victims.len() >= probation.len() {
                        // Entries of units that returned.
                        let pages = &self.pages;
                        let is_victim = |page: u64| pages[(page - BASE) as usize].state == State::Victim;
                        self.victims.retain(|run| (run.first_page..run.end_page()).any(is_victim));
                    }
                    self.victims.push_back(run);
                    idle = 0;
                }
            }
            if let Some(run) = self.victims.pop_front() {
                idle = 0;
                for page in run.first_page..run.end_page() {
                    let entry = &mut self.pages[(page - BASE) as usize];
                    if entry.state == State::Victim {
                        entry.state = State::Stored;
                        self.in_victim_queue -= 1;
                        self.in_memory -= 1;
                        entry.left_at = self.left.tick();
                        if entry.dirty {
                            cost += OUT_PAGE_NS;
                            self.seen.pages_out += 1;
                        }
                        if !entry.used {
                            self.seen.pages_unused += 1;
                        }
                    }
                }
            }
        }
        cost
    }
}
