//! Sets of page numbers of a file, as ranges. Pure.
//!
//! No I/O, no clock, no randomness.

use std::collections::BTreeMap;
use std::ops::Range;

/// Sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range; an empty one adds nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Ranges that begin before its end and do not end before its start are merged with it.
        while let Some((first, last)) = self.0.range(..=end).next_back().map(|(first, last)| (*first, *last)) {
            if last < start {
                break;
            }
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    /// Removes a range.
    pub fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let touched: Vec<(u64, u64)> = self
            .0
            .range(..range.end)
            .rev()
            .map(|(first, last)| (*first, *last))
            .take_while(|(_, last)| *last > range.start)
            .collect();
        for (first, last) in touched {
            self.0.remove(&first);
            if first < range.start {
                self.0.insert(first, range.start);
            }
            if last > range.end {
                self.0.insert(range.end, last);
            }
        }
    }

    /// Ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(first, last)| *first..*last)
    }

    /// True if the set overlaps `range`.
    pub fn meets(&self, range: &Range<u64>) -> bool {
        self.0.range(..range.end).next_back().is_some_and(|(_, last)| *last > range.start && !range.is_empty())
    }

    /// Intersection.
    #[must_use]
    pub fn and(&self, other: &Ranges) -> Ranges {
        let (small, large) = if self.0.len() <= other.0.len() { (self, other) } else { (other, self) };
        let mut both = Ranges::default();
        for range in small.iter() {
            let before = large.0.range(..=range.start).next_back().map_or(range.start, |(first, _)| *first);
            for (first, last) in large.0.range(before..range.end) {
                both.insert(range.start.max(*first)..range.end.min(*last));
            }
        }
        both
    }

    /// Difference: pages of this set that are not in the other one.
    #[must_use]
    pub fn without(&self, other: &Ranges) -> Ranges {
        let mut left = self.clone();
        other.iter().for_each(|range| left.remove(&range));
        left
    }

    /// The first `most` pages.
    #[must_use]
    pub fn first(&self, most: u64) -> Ranges {
        let (mut left, mut some) = (most, Ranges::default());
        for range in self.iter() {
            let end = range.end.min(range.start.saturating_add(left));
            some.insert(range.start..end);
            left -= end - range.start;
            if left == 0 {
                break;
            }
        }
        some
    }

    /// Number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// True without any page.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(all: I) -> Ranges {
        let mut ranges = Ranges::default();
        all.into_iter().for_each(|range| ranges.insert(range));
        ranges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn numbers(ranges: &Ranges) -> BTreeSet<u64> {
        ranges.iter().flatten().collect()
    }

    fn some() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0u64..60, 0u64..12).prop_map(|(start, count)| start..start + count), 0..12)
    }

    proptest! {
        #[test]
        fn they_are_sets_of_numbers(a in some(), b in some(), most in 0u64..80) {
            let (of_a, of_b): (Ranges, Ranges) = (a.iter().cloned().collect(), b.iter().cloned().collect());
            let (in_a, in_b): (BTreeSet<u64>, BTreeSet<u64>) = (a.into_iter().flatten().collect(), b.into_iter().flatten().collect());
            prop_assert_eq!(numbers(&of_a), in_a.clone());
            prop_assert_eq!(numbers(&of_a.and(&of_b)), in_a.intersection(&in_b).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(numbers(&of_a.without(&of_b)), in_a.difference(&in_b).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(numbers(&of_a.first(most)), in_a.iter().take(usize::try_from(most).unwrap()).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(of_a.pages(), in_a.len() as u64);
            prop_assert_eq!(of_a.is_empty(), in_a.is_empty());
            let all: Vec<Range<u64>> = of_a.iter().collect();
            prop_assert!(all.windows(2).all(|two| two[0].end < two[1].start), "they neither overlap nor touch");
        }
    }
}
