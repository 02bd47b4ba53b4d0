//! List of active pages, in the memory layout that the tracker hands over. Pure.
//!
//! A [`Head`], then the [`Window`]s in order of address, then the [`Page`]s: those in the first window, in the
//! second, and so on. The memory is a sealed memfd: it can no longer be written or shrunk, so its receiver may read
//! it like private memory. All numbers have the processor's byte order: both sides are on one machine.

/// Version of the list layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"masu-l01");

/// Head of the list.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: u64,
    /// Number of this list of the program, from 1.
    pub generation: u64,
    /// Number of windows.
    pub windows: u64,
    /// Number of pages behind the windows.
    pub pages: u64,
}

/// 2 MiB window on small pages, with at least one active page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Start address.
    pub address: u64,
    /// Index of its first page in the list.
    pub first: u64,
    /// Number of its 512 pages that are active.
    pub hot: u32,
    /// Number of its pages in memory.
    pub resident: u32,
    /// Page walks per second of all its pages: a huge page would save these.
    pub walks: f32,
    /// Suggested [`Verdict`] as a number.
    pub suggested: u32,
}

/// An active page.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Page {
    /// Start address.
    pub address: u64,
    /// Scans that found it accessed: the paper's `acscount`.
    pub count: u32,
    /// Page walks per second.
    pub rate: f32,
}

const _: () = assert!(size_of::<Head>() == 32 && size_of::<Window>() == 32 && size_of::<Page>() == 16);

/// Decision on a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Leave it as it is.
    Leave = 0,
    /// Move its hot pages elsewhere: the program does that.
    Compact = 1,
    /// Make it huge: the tracker does that.
    Promote = 2,
}

impl Verdict {
    /// Verdict from a number of another program: an unknown number leaves the window alone.
    pub fn of(number: u32) -> Verdict {
        match number {
            1 => Verdict::Compact,
            2 => Verdict::Promote,
            _ => Verdict::Leave,
        }
    }
}

impl Head {
    /// Bytes of the whole list; `None` when no memory could hold it.
    pub fn bytes(&self) -> Option<u64> {
        let windows = self.windows.checked_mul(size_of::<Window>() as u64)?;
        let pages = self.pages.checked_mul(size_of::<Page>() as u64)?;
        windows.checked_add(pages)?.checked_add(size_of::<Head>() as u64)
    }

    /// Whether a list with this head fits in `bytes` of memory. The windows' page ranges are checked one by one
    /// ([`Window::is_within`]).
    pub fn fits(&self, bytes: u64) -> bool {
        self.magic == MAGIC && self.bytes().is_some_and(|needed| needed <= bytes)
    }
}

impl Window {
    /// Whether its pages lie within a list of `pages` pages.
    pub fn is_within(&self, pages: u64) -> bool {
        self.hot <= 512 && self.first.checked_add(u64::from(self.hot)).is_some_and(|end| end <= pages)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_fits_the_memory_that_it_was_made_for_and_no_less() {
        let head = Head { magic: MAGIC, generation: 1, windows: 2, pages: 3 };
        assert_eq!(head.bytes(), Some(32 + 2 * 32 + 3 * 16));
        assert!(head.fits(144) && !head.fits(143));
        assert!(!Head { magic: 0, ..head }.fits(144));
    }

    #[test]
    fn what_is_no_verdict_leaves_the_window_alone() {
        assert_eq!([0, 1, 2, 3, u32::MAX].map(Verdict::of), {
            use Verdict::{Compact, Leave, Promote};
            [Leave, Compact, Promote, Leave, Leave]
        });
    }

    proptest! {
        #[test]
        fn no_head_makes_a_list_longer_than_its_memory(windows: u64, pages: u64, bytes: u64) {
            let head = Head { magic: MAGIC, generation: 1, windows, pages };
            if head.fits(bytes) {
                prop_assert!(u128::from(windows) * 32 + u128::from(pages) * 16 + 32 <= u128::from(bytes));
            }
        }

        #[test]
        fn no_window_reaches_beyond_the_pages(first: u64, hot: u32, pages: u64) {
            if (Window { first, hot, ..Window::default() }).is_within(pages) {
                prop_assert!(u128::from(first) + u128::from(hot) <= u128::from(pages));
            }
        }
    }
}
