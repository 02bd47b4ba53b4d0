//! What is asked at a fault, and what is ordered.

use super::super::{NO_PAGE, Run};

/// Series that one order can have.
pub const SERIES: usize = 3;

/// Pages that one order can hold back.
pub const HELD: usize = 6;

/// How a page was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Never touched before: memory is taken, nothing is transferred.
    FirstTouch = 0,
    /// In the store only.
    Home = 1,
    /// In memory, since it has just left the program.
    Staged = 2,
    /// In memory, since it was held back.
    Held = 3,
    /// On its way.
    Arriving = 4,
}

/// One fault.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fault {
    /// Address of the instruction.
    pub site: u64,
    /// Address that was touched, divided by 4096.
    pub page: u64,
    /// The mapping it lies in: no order leaves it.
    pub area: Run,
    /// Pages that left memory since this one did (`what_if`); 0: not known.
    pub distance: u32,
    /// What the order that last brought the page asked to keep with it; 0: nothing.
    pub mark: u16,
    /// How the page was found.
    pub kind: Kind,
}

/// What there is to work with. All figures may change at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Room {
    /// Local memory, staging included.
    pub budget_pages: u32,
    /// Pages that come while one stays ([`Replacement::life_pages`](crate::policy::replace::Replacement::life_pages)).
    pub life_pages: u32,
    /// A fault that brings one page from home, without the page's transfer, in nanoseconds.
    pub fault_ns: u32,
    /// The transfer of each page, in nanoseconds.
    pub page_ns: u32,
    /// The transfer of each page in the background; 0: there is no background.
    pub ahead_page_ns: u32,
    /// Smallest transfer: 2^n pages.
    pub base_log2: u8,
    /// Largest unit: 2^n pages, at most 8.
    pub max_unit_log2: u8,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Order {
    /// To be brought now: contains the faulting page. Of a staged page's unit, bring back what is staged and no more.
    pub fetch: Run,
    /// To be brought in the background.
    pub ahead: [Series; SERIES],
    /// Not to be mapped, wherever they lie in `fetch` and `ahead`; [`NO_PAGE`]: none.
    pub held: [u64; HELD],
    /// To be kept with the pages that are brought.
    pub mark: u16,
    /// They belong to a stream that does not come back soon: they may leave before others.
    pub passing: bool,
}

impl Order {
    /// Just this page.
    pub(super) fn only(page: u64) -> Order {
        Order {
            fetch: Run { first_page: page, pages: 1 },
            ahead: [Series::NOTHING; SERIES],
            held: [NO_PAGE; HELD],
            mark: 0,
            passing: false,
        }
    }

    /// Whether `page` stays unmapped.
    pub fn holds(&self, page: u64) -> bool {
        self.held.contains(&page)
    }

    /// False: there is no room for another one.
    pub(super) fn hold(&mut self, page: u64) -> bool {
        let free = self.held.iter_mut().find(|held| **held == NO_PAGE);
        free.map(|free| *free = page).is_some()
    }

    pub(super) fn add(&mut self, series: Series) {
        if let Some(free) = self.ahead.iter_mut().find(|free| free.runs == 0) {
            *free = series;
        }
    }

    /// Pages that are to come in the background.
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
    /// Pages of each run, at most 256.
    pub run_pages: u32,
    /// How many runs; 0: nothing.
    pub runs: u16,
    /// Runs begin at a multiple of 2^n pages, at their page or before it.
    pub align_log2: u16,
}

impl Series {
    /// Nothing.
    pub const NOTHING: Series = Series { first_page: 0, stride: 0, run_pages: 0, runs: 0, align_log2: 0 };

    /// The run `n`, as far as it lies in `area`.
    pub fn run(self, n: u16, area: Run) -> Run {
        if n >= self.runs {
            return Run::NOTHING;
        }
        let Some(offset) = self.stride.checked_mul(i64::from(n)) else { return Run::NOTHING };
        let Some(page) = self.first_page.checked_add_signed(offset) else { return Run::NOTHING };
        let before = page & ((1u64 << self.align_log2.min(63)) - 1);
        Run { first_page: page - before, pages: self.run_pages }.within(area)
    }

    /// Pages of all runs.
    pub fn pages(self) -> u32 {
        self.run_pages.saturating_mul(u32::from(self.runs))
    }
}
