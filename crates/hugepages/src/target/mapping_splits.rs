//! Windows given back whole and filled again between two scans look like windows that others split: small, with all of
//! their pages. The kernel's counter of split mappings (`thp_split_pmd`) tells them apart: removing a huge mapping whole
//! splits nothing. It counts the splits of all programs, so it gives the most that can have been split: on a host where
//! others split as many, a window counts as split.

use crate::act::End;

/// Splits on the host since the scan before the last one, less those that explain a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingSplits {
    /// Counter before the last scan and before the one before it; `None` if the kernel does not count.
    last: Option<u64>,
    before_last: Option<u64>,
    explained: u64,
}

impl MappingSplits {
    /// Reads the counter before a scan.
    pub fn begin_scan(&mut self, counter: Option<u64>) {
        *self = MappingSplits { last: counter, before_last: self.last, explained: 0 };
    }

    /// Corrects the end of a window that was huge at the scan before the last one, or since. `counter` reads the present
    /// value.
    pub fn explain(&mut self, end: End, counter: impl FnOnce() -> Option<u64>) -> End {
        match end {
            End::Unmapped | End::GivenBackAndFilled => end,
            End::Torn => {
                self.explained += 1;
                end
            }
            End::SplitByOthers => {
                let since = counter().zip(self.before_last);
                let is_split = since.is_none_or(|(now, before)| now.saturating_sub(before) > self.explained);
                self.explained += u64::from(is_split);
                if is_split { end } else { End::GivenBackAndFilled }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(splits: &mut MappingSplits, counter: Option<u64>, ends: &[End]) -> Vec<End> {
        ends.iter().map(|end| splits.explain(*end, || counter)).collect()
    }

    #[test]
    fn no_more_windows_are_split_than_mappings_on_the_host() {
        let (split, filled) = (End::SplitByOthers, End::GivenBackAndFilled);
        let mut splits = MappingSplits::default();
        splits.begin_scan(Some(10));
        splits.begin_scan(Some(11));
        assert_eq!(ends(&mut splits, Some(12), &[split; 3]), [split, split, filled]);
        splits.begin_scan(Some(12));
        assert_eq!(ends(&mut splits, Some(12), &[End::Torn, split, End::Unmapped]), [End::Torn, filled, End::Unmapped]);
        splits.begin_scan(Some(12));
        assert_eq!(ends(&mut splits, Some(12), &[split]), [filled]);
        assert_eq!(ends(&mut splits, Some(13), &[split]), [split], "read again: it was split since");
    }

    #[test]
    fn without_the_counter_and_before_the_second_scan_a_small_window_was_split() {
        let split = End::SplitByOthers;
        let mut splits = MappingSplits::default();
        assert_eq!(ends(&mut splits, Some(7), &[split]), [split]);
        splits.begin_scan(Some(7));
        assert_eq!(ends(&mut splits, Some(7), &[split]), [split]);
        splits.begin_scan(None);
        assert_eq!(ends(&mut splits, None, &[split]), [split]);
    }
}
