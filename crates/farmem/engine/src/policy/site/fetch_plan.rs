//! Input of a fault, and the fetch plan.

use super::super::{NO_PAGE, Run};

/// Largest number of series in one plan.
pub const SERIES: usize = 3;

/// Largest number of pages that one plan leaves unmapped.
pub const MARKERS: usize = 6;

/// State in which the fault found the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Never touched before: memory is taken, nothing is transferred.
    FirstTouch = 0,
    /// In the store only.
    Stored = 1,
    /// In memory, in the victim queue.
    Victim = 2,
    /// In memory, left unmapped on purpose.
    Marker = 3,
    /// In flight.
    InFlight = 4,
}

/// One fault.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fault {
    /// Address of the instruction.
    pub site: u64,
    /// Touched address, divided by 4096.
    pub page: u64,
    /// Mapping of the page: no plan leaves it.
    pub area: Run,
    /// Number of evictions since this page's own (`what_if`); 0: not known.
    pub distance: u32,
    /// Mark from the plan that last fetched the page; 0: none.
    pub mark: u16,
    /// State in which the fault found the page.
    pub kind: Kind,
}

/// Limits and costs. All figures may change at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Limits {
    /// Local memory in pages, victim queue included.
    pub budget_pages: u32,
    /// Number of pages fetched during one page's stay
    /// ([`Replacement::life_pages`](crate::policy::replacement::Replacement::life_pages)).
    pub life_pages: u32,
    /// Cost of a fault that fetches one stored page, without the page's transfer, in nanoseconds.
    pub fault_ns: u32,
    /// Cost of the transfer of each page, in nanoseconds.
    pub page_ns: u32,
    /// Cost of the transfer of each page in the background, in nanoseconds; 0: there is no background.
    pub ahead_page_ns: u32,
    /// Smallest transfer: 2^n pages.
    pub base_log2: u8,
    /// Largest unit: 2^n pages, at most 8.
    pub max_unit_log2: u8,
}

/// Fetch plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FetchPlan {
    /// Pages to fetch now: the faulting page included. Of the unit of a page in the victim queue, only pages there return.
    pub fetch: Run,
    /// Pages to fetch in the background.
    pub ahead: [Series; SERIES],
    /// Pages that stay unmapped, in `fetch` and `ahead`; [`NO_PAGE`]: none.
    pub markers: [u64; MARKERS],
    /// Mark to be kept with the fetched pages.
    pub mark: u16,
    /// Whether the pages belong to a stream that does not come back soon: they may leave before others.
    pub probation: bool,
}

impl FetchPlan {
    /// Plan for one page only.
    pub(super) fn only(page: u64) -> FetchPlan {
        FetchPlan {
            fetch: Run { first_page: page, pages: 1 },
            ahead: [Series::NOTHING; SERIES],
            markers: [NO_PAGE; MARKERS],
            mark: 0,
            probation: false,
        }
    }

    /// Whether `page` stays unmapped.
    pub fn has_marker(&self, page: u64) -> bool {
        self.markers.contains(&page)
    }

    /// Leaves `page` unmapped. False: the plan has no more space.
    pub(super) fn add_marker(&mut self, page: u64) -> bool {
        let free = self.markers.iter_mut().find(|marker| **marker == NO_PAGE);
        free.map(|free| *free = page).is_some()
    }

    pub(super) fn add(&mut self, series: Series) {
        if let Some(free) = self.ahead.iter_mut().find(|free| free.runs == 0) {
            *free = series;
        }
    }

    /// Number of pages for the background.
    pub fn pages_ahead(&self) -> u32 {
        self.ahead.iter().fold(0, |sum: u32, s| sum.saturating_add(s.pages()))
    }
}

/// Runs at equal distances, to be fetched in the background in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Series {
    /// A page of the first run.
    pub first_page: u64,
    /// Pages from one run to the next; may be negative.
    pub stride: i64,
    /// Length of each run in pages, at most 256.
    pub run_pages: u32,
    /// Number of runs; 0: nothing.
    pub runs: u16,
    /// Alignment of the runs: they begin at a multiple of 2^n pages, at their page or before it.
    pub align_log2: u16,
}

impl Series {
    /// Nothing.
    pub const NOTHING: Series = Series { first_page: 0, stride: 0, run_pages: 0, runs: 0, align_log2: 0 };

    /// Run `n`, as far as it lies in `area`.
    pub fn run(self, n: u16, area: Run) -> Run {
        if n >= self.runs {
            return Run::NOTHING;
        }
        let Some(offset) = self.stride.checked_mul(i64::from(n)) else { return Run::NOTHING };
        let Some(page) = self.first_page.checked_add_signed(offset) else { return Run::NOTHING };
        let before = page & ((1u64 << self.align_log2.min(63)) - 1);
        Run { first_page: page - before, pages: self.run_pages }.within(area)
    }

    /// Number of pages of all runs.
    pub fn pages(self) -> u32 {
        self.run_pages.saturating_mul(u32::from(self.runs))
    }
}
