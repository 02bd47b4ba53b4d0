//! Fetch, prefetch and eviction policies.
//!
//! | file | decides |
//! |---|---|
//! | [`marked`] | the transfer size of a section that the program marks: the paper's rule |
//! | [`site`] | the transfer size and the prefetch of each code site, by itself: the default |
//! | `density`, `stream` | a site's knowledge: the number of neighbours used along with a page, and the next page |
//! | [`replacement`] | the units to evict, and their order |
//! | [`what_if`] | the number of faults with half and with double the budget |
//!
//! `crates/sim/examples/transfer` runs all of it on synthetic programs, with a cost model.
//!
//! A user-space pager sees faults and never hits. So everything here uses faults, and fetched pages that were
//! deliberately left unmapped (readahead markers): a fault on such a page costs little and shows that the page is used.
//!
//! Nothing here has a lock, a clock, or memory of its own beyond its struct. The caller holds one lock around all of
//! it.

pub mod marked;
pub mod replacement;
pub mod site;
pub mod what_if;

mod density;
mod stream;

/// Largest transfer size, as a power of two of pages: 256 pages, 1 MiB.
pub const MAX_UNIT_LOG2: u8 = 8;

/// Stands for "no page".
pub const NO_PAGE: u64 = u64::MAX;

/// Consecutive pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    /// First page: address divided by 4096.
    pub first_page: u64,
    /// Number of pages; 0 is nothing.
    pub pages: u32,
}

impl Run {
    /// No pages.
    pub const NOTHING: Run = Run { first_page: 0, pages: 0 };

    /// The page behind the last one.
    pub fn end_page(self) -> u64 {
        self.first_page.saturating_add(u64::from(self.pages))
    }

    /// Whether the run has `page`.
    pub fn contains(self, page: u64) -> bool {
        page >= self.first_page && page < self.end_page()
    }

    /// Part of the run within `area`.
    pub fn within(self, area: Run) -> Run {
        let first = self.first_page.max(area.first_page);
        let end = self.end_page().min(area.end_page());
        if end <= first { Run::NOTHING } else { Run { first_page: first, pages: pages_between(first, end) } }
    }
}

/// The aligned unit of 2^`log2` pages around `page`. `log2` above [`MAX_UNIT_LOG2`] counts as that.
pub fn unit_around(page: u64, log2: u8) -> Run {
    let pages = 1u32 << log2.min(MAX_UNIT_LOG2);
    Run { first_page: page & !u64::from(pages - 1), pages }
}

/// Pages from `first` to `end`, at most `u32::MAX`.
pub(crate) fn pages_between(first: u64, end: u64) -> u32 {
    crate::cast::saturated(end.saturating_sub(first))
}

/// Spreads the bits of `value` (the multiplicative step of splitmix64).
pub(crate) fn spread(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
