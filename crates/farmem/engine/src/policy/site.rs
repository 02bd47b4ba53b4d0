//! Transfer size and prefetch by code site: sections without marks.
//!
//! A site is the instruction that faulted. Nearly all faults of a program come from few sites, and each site has its
//! own access pattern: a sweep along the rows needs large units, the same sweep across them single pages. So each site
//! has
//!
//! - a **unit**, its transfer size, from the learned use of the neighbouring pages (`density.rs`);
//! - **streams**, and the prefetch ahead of them (`stream.rs`).
//!
//! A fault on a page with a large unit fetches the sixteen pages around it at once, and requests the rest of its unit in
//! the background, if there is one. A stream in order has a window ahead of it, which doubles while it is hit. The
//! first page of the window is left unmapped, so that its fault shows the program's arrival there: then the next window
//! is requested, and has the time of a whole window to arrive. A stream in steps has a series of units ahead, with the
//! same mechanism.
//!
//! Duties of the caller:
//! 1. at each fault, calls [`Sites::on_fault`] with its knowledge of the page;
//! 2. fetches the missing pages of `fetch` at once (it waits for a page in flight), maps the faulting page and the
//!    others, except the pages in `markers`: they stay in memory unmapped;
//! 3. has `ahead` fetched in the background, in order, with the same exception, and maps the pages that arrived;
//! 4. keeps `mark` with the fetched pages, also when they are evicted, and passes it at their next fault.
//!
//! An unmapped page that leaves memory before its touch needs no report: its fault is then one on a stored page. The
//! caller may keep it anywhere, the longer the better. Only the owner of a mark is read: the share of a site's fetched
//! pages that came back within a life time decides whether its streams are on probation (`replacement.rs`).
//!
//! The state of a site can be saved for the program's next run (`profile.rs`).
//!
//! Time is counted in pages fetched: a page's life in memory is the number of pages fetched during its stay. Nothing is
//! a float.
//!
//! Tried and dropped, in the simulator (`crates/sim/examples/transfer`): a share for units on probation that grows when they
//! come back (it takes from `main`, and both are too small then); a higher threshold for sites whose pages come back
//! (the same); a gap of any pages as still in order (random faults among few pages look like streams).

mod ahead;
mod fetch_plan;
mod profile;
#[cfg(test)]
mod tests;

use super::density::{Density, ONE, Outcome, Price, Watches};
use super::stream::{self, Streams};
use super::{MAX_UNIT_LOG2, Run, spread, unit_around};
use crate::cast::{fits, low};
use ahead::{Asked, FIRST_PIECE_LOG2, MAX_WINDOW_LOG2};

pub use fetch_plan::{Fault, FetchPlan, Kind, Limits, MARKERS, SERIES, Series};
pub use profile::{INITIAL_PROFILE_WORDS, InitialProfile, PROFILE_BYTES, SiteProfile};

/// Number of sites known at a time.
pub const SITES: usize = 1024;

/// Ways of the table: possible places of one site.
const WAYS: usize = 4;

/// Faults of a site between two choices of its unit.
const UNIT_EVERY: u32 = 8;

/// State of one site. All zeros: none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Site {
    /// 0: free.
    address: u64,
    streams: Streams,
    density: Density,
    faults: u32,
    /// Pages fetched by all sites, at its last fault.
    touched: u32,
    /// Requests, and faults on the site's own pages that a stay of a whole life time would have saved: both halved from
    /// time to time.
    requests: u16,
    returned: u16,
    /// 1 + log2 of its unit; 0: not chosen yet.
    unit: u8,
    unused: [u8; 7],
}

impl Site {
    const NONE: Site = Site {
        address: 0,
        streams: Streams::UNKNOWN,
        density: Density::UNKNOWN,
        faults: 0,
        touched: 0,
        requests: 0,
        returned: 0,
        unit: 0,
        unused: [0; 7],
    };
}

/// Report on one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteView {
    /// Address of the instruction.
    pub site: u64,
    /// Number of its faults since it is known.
    pub faults: u32,
    /// Its unit, in pages.
    pub unit_pages: u32,
    /// Step from fault to fault in pages; 0: none that is trusted.
    pub stride_pages: i64,
}

/// All sites of a program. All zeros: nothing known. One megabyte.
#[derive(Debug)]
#[repr(C)]
pub struct Sites {
    sites: [Site; SITES],
    watches: Watches,
    /// Pages fetched so far.
    clock: u32,
    random: u32,
    /// Faults on pages that had left shortly before, and pages fetched in that time: both halved from time to time.
    soon: u32,
    brought: u32,
    /// Streams that requested pages ahead, in this epoch and in the one before.
    active_now: u32,
    active_before: u32,
    epoch_began: u32,
    epoch: u32,
}

impl Default for Sites {
    fn default() -> Sites {
        Sites::UNKNOWN
    }
}

impl Sites {
    /// Nothing known.
    pub const UNKNOWN: Sites = Sites {
        sites: [Site::NONE; SITES],
        watches: Watches::NONE,
        clock: 0,
        random: 0,
        soon: 0,
        brought: 0,
        active_now: 0,
        active_before: 0,
        epoch_began: 0,
        epoch: 0,
    };

    /// Decides the fetch plan of a fault. `here` tells whether a page is mapped, a marker or in flight; it is asked about a
    /// few pages, and may be wrong.
    pub fn on_fault(&mut self, fault: &Fault, limits: &Limits, here: impl Fn(u64) -> bool) -> FetchPlan {
        let page = fault.page;
        let area = if fault.area.contains(page) { fault.area } else { Run { first_page: page, pages: 1 } };
        let life = limits.life_pages.max(1);
        self.end_watches(fault, life);
        let at = self.site_at(fault.site);
        self.count(fault, at, life);
        let unit = self.unit_log2(at, limits);
        let here = |other: u64| other == page || here(other);
        let asked = Asked { fault, limits, area, unit, at, here: &here };
        let mut plan = FetchPlan::only(page);
        plan.mark = fits(at + 1);
        let waiting = self.sites[at].streams.waiting_for(page).is_some();
        if matches!(fault.kind, Kind::Stored | Kind::Victim) && !waiting {
            let limit = self.window_limit(limits).max(1).ilog2();
            self.sites[at].streams.missed(page, fits(limit));
        }
        match fault.kind {
            Kind::Stored => {
                plan.fetch = unit_around(page, unit).within(area);
                self.go_on(&asked, &mut plan);
                ahead::split(&asked, &mut plan);
                self.watch(&asked);
            }
            Kind::FirstTouch => self.go_on(&asked, &mut plan),
            Kind::Marker | Kind::InFlight | Kind::Victim if waiting => self.go_on(&asked, &mut plan),
            // A watched page, or a page that another site requested.
            Kind::Marker | Kind::InFlight => return plan,
            Kind::Victim => {
                plan.fetch = unit_around(page, unit).within(area);
                return plan;
            }
        }
        self.mark_watched(&mut plan, page, area);
        self.clock = self.clock.wrapping_add(plan.fetch.pages).wrapping_add(plan.pages_ahead());
        self.brought = self.brought.saturating_add(plan.fetch.pages).saturating_add(plan.pages_ahead());
        plan
    }

    /// Takes back the count of a fault, whose plan has this mark.
    pub fn was_no_fault(&mut self, mark: u16) {
        if let Some(site) = usize::from(mark).checked_sub(1).and_then(|at| self.sites.get_mut(at)) {
            site.faults = site.faults.saturating_sub(1);
            site.requests = site.requests.saturating_sub(1);
        }
    }

    /// Sites that have faulted, in no order: without sites known only from an earlier run.
    pub fn known(&self) -> impl Iterator<Item = SiteView> + '_ {
        self.sites.iter().filter(|site| site.address != 0 && site.faults > 0).map(|site| SiteView {
            site: site.address,
            faults: site.faults,
            unit_pages: 1 << site.unit.saturating_sub(1).min(MAX_UNIT_LOG2),
            stride_pages: if site.streams.trust >= stream::TRUSTED { site.streams.stride } else { 0 },
        })
    }

    /// Index of the site in the table; a new one replaces the site that faulted longest ago.
    fn site_at(&mut self, address: u64) -> usize {
        let address = address.max(1);
        let set = Sites::set_of(address);
        let mut coldest = (0, set);
        for at in set..set + WAYS {
            let site = &self.sites[at];
            if site.address == address {
                return at;
            }
            let age = if site.address == 0 { u32::MAX } else { self.clock.wrapping_sub(site.touched) };
            if age >= coldest.0 {
                coldest = (age, at);
            }
        }
        let at = coldest.1;
        self.sites[at] = Site { address, ..Site::NONE };
        at
    }

    /// Ends the watch on the faulting page, and the expired ones.
    fn end_watches(&mut self, fault: &Fault, life: u32) {
        if let Some(outcome) = self.watches.used(fault.page) {
            self.learn(outcome);
        }
        for _ in 0..8 {
            if let Some(outcome) = self.watches.next_expired(self.clock, life) {
                self.learn(outcome);
            }
        }
    }

    fn learn(&mut self, outcome: Outcome) {
        if let Some(site) = self.sites.get_mut(usize::from(outcome.site)) {
            site.density.learn(outcome.level, outcome.was_used);
        }
    }

    /// Counts the fault's evidence about memory: a shortage, or a stream's page that came back.
    fn count(&mut self, fault: &Fault, at: usize, life: u32) {
        let site = &mut self.sites[at];
        site.faults = site.faults.saturating_add(1);
        site.touched = self.clock;
        site.requests = site.requests.saturating_add(1);
        if site.requests >= 256 {
            site.requests /= 2;
            site.returned /= 2;
        }
        let soon = fault.distance > 0 && fault.distance < life / 4;
        if fault.kind == Kind::Stored && soon {
            self.soon = self.soon.saturating_add(1);
        }
        if self.brought >= life.saturating_mul(2) {
            self.brought /= 2;
            self.soon /= 2;
        }
        let came_back = fault.kind == Kind::Victim
            || (fault.kind == Kind::Stored && fault.distance > 0 && fault.distance < life - life / 8);
        if came_back && let Some(owner) = usize::from(fault.mark).checked_sub(1).and_then(|at| self.sites.get_mut(at)) {
            owner.returned = owner.returned.saturating_add(1);
        }
    }

    /// Whether pages of this site are seldom needed again within a life time.
    fn probation(&self, at: usize) -> bool {
        let site = &self.sites[at];
        site.requests >= profile::JUDGED_REQUESTS && u32::from(site.returned) * 32 < u32::from(site.requests)
    }

    /// Cost of a page: its transfer, and the faults that follow because it evicts another one.
    fn price(&self, limits: &Limits) -> Price {
        // The share of evicted pages that were needed again within a quarter of a life time. One page more of memory
        // would have saved four times that share of a fault, per page of space and life time.
        let one = u64::from(ONE);
        let lost = (u64::from(self.soon) * 4 * one / u64::from(self.brought.max(256))).min(one * 15 / 16);
        // Such a fault evicts another page in its turn: V = F + c + lost * V.
        let (fault_ns, page_ns) = (u64::from(limits.fault_ns), u64::from(limits.page_ns));
        let whole_fault_ns = (fault_ns + page_ns) * one / (one - lost);
        Price { fault_ns, page_ns: page_ns + whole_fault_ns * lost / one }
    }

    /// The unit of a site, chosen anew from time to time.
    fn unit_log2(&mut self, at: usize, limits: &Limits) -> u8 {
        let price = self.price(limits);
        // A unit never takes more than a sixteenth of memory.
        let fits = fits((limits.budget_pages / 16).max(1).ilog2());
        let largest = limits.max_unit_log2.min(MAX_UNIT_LOG2).min(fits);
        let smallest = limits.base_log2.min(largest);
        let site = &mut self.sites[at];
        let now = site.unit.wrapping_sub(1);
        if site.unit == 0 || site.faults.is_multiple_of(UNIT_EVERY) || now > largest || now < smallest {
            site.unit = site.density.best_unit(price, smallest, largest, now) + 1;
        }
        site.unit - 1
    }

    /// Limit of the pages ahead of one stream: all active ones together have at most a quarter of memory.
    fn window_limit(&self, limits: &Limits) -> u32 {
        let streams = self.active_now.max(self.active_before).max(1);
        (limits.budget_pages / 4 / streams).min(1 << MAX_WINDOW_LOG2)
    }

    /// Chooses a page of the neighbourhood to be watched, at some faults.
    fn watch(&mut self, asked: &Asked<'_, impl Fn(u64) -> bool>) {
        let (fault, unit, limits) = (asked.fault.page, asked.unit, asked.limits);
        self.random = low(spread(u64::from(self.random) ^ (fault << 32)) >> 32);
        let random = self.random;
        let levels = u32::from(limits.max_unit_log2.clamp(1, MAX_UNIT_LOG2));
        // Mostly the levels around the unit, since they decide.
        let level = match random % 4 {
            0 => u32::from(unit) + 1,
            1 => u32::from(unit).max(1),
            _ => 1 + (random >> 8) % levels,
        }
        .min(levels);
        let level: u8 = fits(level);
        // An unmapped page within the unit costs a fault if it is used: seldom, where units are cheap.
        if level <= unit && unit < FIRST_PIECE_LOG2 && !(random >> 16).is_multiple_of(4) {
            return;
        }
        let half = 1u64 << (level - 1);
        let buddy = (fault ^ half) & !(half - 1);
        let page = buddy + u64::from(random >> 4) % half;
        if !asked.area.contains(page) || (asked.here)(page) {
            return;
        }
        self.watches.begin(page, fits(asked.at), level, self.clock);
    }

    /// Leaves watched pages of the plan unmapped; ends the watch where that is not possible.
    fn mark_watched(&mut self, plan: &mut FetchPlan, page: u64, area: Run) {
        self.mark_watched_in(plan.fetch, plan, page);
        for series in plan.ahead {
            for n in 0..series.runs {
                self.mark_watched_in(series.run(n, area), plan, page);
            }
        }
    }

    fn mark_watched_in(&mut self, run: Run, plan: &mut FetchPlan, page: u64) {
        let mut group = run.first_page;
        while group < run.end_page() {
            let watched = self.watches.in_group(group).filter(|watched| *watched != page && run.contains(*watched));
            if let Some(watched) = watched
                && !plan.has_marker(watched)
                && !plan.add_marker(watched)
            {
                self.watches.forget(watched);
            }
            group = (group | 15).saturating_add(1);
        }
    }
}
