//! Places in a program's address space: addresses, ranges of whole pages, windows of 2 MiB. Pure.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::{Bytes, Pages, cast};

/// The two page sizes that masu moves memory between on x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB: one huge page, one [`Window`].
    Huge,
}

impl PageSize {
    /// Its size.
    pub const fn bytes(self) -> Bytes {
        match self {
            PageSize::Small => Bytes::kib(4),
            PageSize::Huge => Bytes::mib(2),
        }
    }
}

/// Small pages in one window.
pub const PAGES_PER_WINDOW: usize = 512;

/// A virtual address of the observed program. Prints, and serialises, as `0x7f12…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The window it lies in.
    pub const fn window(self) -> Window {
        Window(self.0 / PageSize::Huge.bytes().0)
    }

    /// Index of its page among the window's 512.
    #[expect(clippy::cast_possible_truncation, reason = "below 512")]
    pub const fn page_in_window(self) -> usize {
        ((self.0 / PageSize::Small.bytes().0) % PAGES_PER_WINDOW as u64) as usize
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:#x}", self.0))
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
        let text = String::deserialize(from)?;
        let number = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.map(Address).ok_or_else(|| D::Error::custom(format!("{text}: expected an address, such as 0x7f12")))
    }
}

/// Whole pages from `start` up to, not including, `end`. Never inverted, always aligned to 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    start: Address,
    end: Address,
}

/// Reason for which two numbers are not a range of whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange {
    start: u64,
    end: u64,
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}: expected start ≤ end, both multiples of 4096", self.start, self.end)
    }
}

impl std::error::Error for BadRange {}

impl AddressRange {
    /// The only constructor from numbers of external origin.
    ///
    /// # Errors
    /// When `end` lies before `start`, or either is not a multiple of 4 KiB.
    pub const fn new(start: u64, end: u64) -> Result<AddressRange, BadRange> {
        let page = PageSize::Small.bytes().0;
        if start > end || !start.is_multiple_of(page) || !end.is_multiple_of(page) {
            return Err(BadRange { start, end });
        }
        Ok(AddressRange { start: Address(start), end: Address(end) })
    }

    /// First address.
    pub const fn start(self) -> Address {
        self.start
    }

    /// First address after it.
    pub const fn end(self) -> Address {
        self.end
    }

    /// Length in bytes.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.end.0 - self.start.0)
    }

    /// Length in 4 KiB pages.
    pub const fn pages(self) -> Pages {
        self.bytes().pages()
    }

    /// True when it has no page.
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// True when `address` lies in it.
    pub fn contains(self, address: Address) -> bool {
        self.start <= address && address < self.end
    }

    /// True when all of `other` lies in it.
    pub fn covers(self, other: AddressRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Common part, or `None` when it is empty.
    pub fn intersection(self, other: AddressRange) -> Option<AddressRange> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(AddressRange { start, end })
    }

    /// Windows that lie in it whole, in order: the only ones that can become huge pages.
    pub fn whole_windows(self) -> impl ExactSizeIterator<Item = Window> + DoubleEndedIterator {
        let huge = PageSize::Huge.bytes().0;
        let (first, past) = (self.start.0.div_ceil(huge), self.end.0 / huge);
        WindowNumbers(first..past.max(first))
    }

    /// Windows that it touches, in order.
    pub fn touched_windows(self) -> impl ExactSizeIterator<Item = Window> + DoubleEndedIterator {
        let huge = PageSize::Huge.bytes().0;
        let first = self.start.0 / huge;
        let past = if self.is_empty() { first } else { self.end.0.div_ceil(huge) };
        WindowNumbers(first..past)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:x}-{:x}", self.start.0, self.end.0))
    }
}

struct WindowNumbers(std::ops::Range<u64>);

impl Iterator for WindowNumbers {
    type Item = Window;
    fn next(&mut self) -> Option<Window> {
        self.0.next().map(Window)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        // 2^64 / 2^21 windows fit a usize on every machine with 64-bit addresses.
        let left = cast::index(self.0.end - self.0.start);
        (left, Some(left))
    }
}

impl DoubleEndedIterator for WindowNumbers {
    fn next_back(&mut self) -> Option<Window> {
        self.0.next_back().map(Window)
    }
}

impl ExactSizeIterator for WindowNumbers {}

/// One aligned 2 MiB piece of an address space, by number: window `n` starts at `n · 2 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window(pub u64);

impl Window {
    /// First address.
    pub const fn start(self) -> Address {
        Address(self.0 * PageSize::Huge.bytes().0)
    }

    /// All its addresses.
    pub const fn range(self) -> AddressRange {
        AddressRange { start: self.start(), end: Address(self.start().0 + PageSize::Huge.bytes().0) }
    }

    /// Addresses of its first page.
    pub const fn first_page(self) -> AddressRange {
        AddressRange { start: self.start(), end: self.page(1) }
    }

    /// Address of its `index`th page, `index` < 512.
    pub const fn page(self, index: usize) -> Address {
        Address(self.start().0 + index as u64 * PageSize::Small.bytes().0)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.start().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn only_whole_windows_can_be_huge() {
        let range = AddressRange::new(3 * MIB, 9 * MIB).unwrap();
        assert_eq!(range.whole_windows().collect::<Vec<_>>(), [Window(2), Window(3)]);
        assert_eq!(range.touched_windows().collect::<Vec<_>>(), [Window(1), Window(2), Window(3), Window(4)]);
    }

    #[test]
    fn a_range_smaller_than_a_window_has_none() {
        let range = AddressRange::new(MIB, MIB + 4096).unwrap();
        assert_eq!(range.whole_windows().len(), 0);
        assert_eq!(range.touched_windows().len(), 1);
    }

    #[test]
    fn refuses_inverted_and_unaligned_ranges() {
        assert!(AddressRange::new(8192, 4096).is_err());
        assert!(AddressRange::new(1, 4096).is_err());
        assert!(AddressRange::new(0, 4097).is_err());
    }

    proptest! {
        #[test]
        fn whole_windows_lie_inside_and_touched_ones_cover(start in 0u64..1 << 30, pages in 0u64..4096) {
            let start = start / 4096 * 4096;
            let range = AddressRange::new(start, start + pages * 4096).unwrap();
            for window in range.whole_windows() {
                prop_assert!(range.covers(window.range()));
            }
            let covered: u64 = range
                .touched_windows()
                .filter_map(|w| range.intersection(w.range()))
                .map(|part| part.bytes().0)
                .sum();
            prop_assert_eq!(covered, range.bytes().0);
        }
    }
}
