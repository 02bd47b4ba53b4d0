//! How much is fetched at a fault, what is fetched in advance, and what leaves.
//!
//! | file | decides |
//! |---|---|
//! | [`marked`] | the unit of a section that the program marks: the paper's rule |
//! | [`site`] | the unit and the prefetch of each code site, by itself: the default |
//! | `density`, `stream` | what a site knows: how many of its neighbours a page takes with it, and where it goes next |
//! | [`replace`] | which units leave, and in which order |
//! | [`what_if`] | how many faults there would be with half and with double the budget |
//!
//! `crates/sim/examples/transfer` runs all of it on synthetic programs, with a cost model.
//!
//! A user-space pager sees faults and never hits. So everything here lives on faults, and on pages that were brought but
//! deliberately left unmapped ("held"): a fault on such a page costs little and says that the page is used.
//!
//! Nothing here has a lock, a clock, or memory of its own beyond its struct. The caller holds one lock around all of it.

pub mod marked;
pub mod replace;
pub mod site;
pub mod what_if;

mod density;
mod stream;

/// The largest unit, as a power of two of pages: 256 pages, 1 MiB.
pub const MAX_UNIT_LOG2: u8 = 8;

/// Stands for "no page".
pub const NO_PAGE: u64 = u64::MAX;

/// Neighbouring pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    /// The first one: address divided by 4096.
    pub first_page: u64,
    /// How many; 0 is nothing.
    pub pages: u32,
}

impl Run {
    /// No pages.
    pub const NOTHING: Run = Run { first_page: 0, pages: 0 };

    /// The page behind the last one.
    pub fn end_page(self) -> u64 {
        self.first_page.saturating_add(u64::from(self.pages))
    }

    /// Whether `page` is one of them.
    pub fn contains(self, page: u64) -> bool {
        page >= self.first_page && page < self.end_page()
    }

    /// What of it lies in `area`.
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
    u32::try_from(end.saturating_sub(first)).unwrap_or(u32::MAX)
}

/// Spreads the bits of `value` (the multiplicative step of splitmix64).
pub(crate) fn spread(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
