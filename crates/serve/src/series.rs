//! Course of each group's memory, at three resolutions.
//!
//! Pure.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use units::{Bytes, Pages, cast};

use crate::groups::{Groups, OfGroup};

/// Most groups that are followed.
const GROUPS_MOST: usize = 300;

/// Amounts of a point, by their names in JSON.
pub const AMOUNTS: [&str; 9] =
    ["usage", "anonymous", "file", "shared", "kernel", "swap", "huge", "kubelet_working_set", "unmapped"];

/// Memory of a group at one time: pages of 4 KiB in the order of [`AMOUNTS`]; `None` where the kernel does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point(pub [Option<u32>; AMOUNTS.len()]);

/// Memory of all groups at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since 1970.
    pub at: u64,
    /// Groups, each with its visible path.
    pub groups: Vec<(String, Point)>,
}

/// Time span of a question, from the shortest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// One hour, each ten seconds.
    Hour,
    /// One day, each five minutes.
    Day,
    /// One week, each hour.
    Week,
}

impl Point {
    fn of(group: &OfGroup) -> Point {
        let charges = &group.charges;
        let amounts = [
            Some(charges.usage_bytes),
            Some(charges.anonymous_bytes),
            Some(charges.file_bytes),
            Some(charges.shared_bytes),
            charges.kernel_bytes,
            charges.swap_bytes,
            charges.huge_bytes,
            Some(charges.working_set_bytes),
            group.unmapped_bytes,
        ];
        let pages = |bytes: Bytes| cast::saturated(bytes.pages().0);
        Point(amounts.map(|amount| amount.map(pages)))
    }

    /// An amount, in bytes.
    pub fn bytes(&self, amount: usize) -> Option<Bytes> {
        self.0[amount].map(|pages| Pages(u64::from(pages)).bytes())
    }
}

impl Sample {
    /// The groups that are followed, of a measurement.
    pub fn of(groups: &Groups, at: u64) -> Sample {
        let kept = groups.groups.iter().take(GROUPS_MOST);
        Sample { at, groups: kept.map(|group| (group.group.to_string(), Point::of(group))).collect() }
    }
}

impl Range {
    /// All, from the shortest.
    pub const ALL: [Range; 3] = [Range::Hour, Range::Day, Range::Week];

    /// The range of this name.
    pub fn named(name: &str) -> Option<Range> {
        Range::ALL.into_iter().find(|range| range.name() == name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Range::Hour => "1h",
            Range::Day => "24h",
            Range::Week => "7d",
        }
    }

    /// Time between two points, in seconds.
    pub const fn every_s(self) -> u64 {
        match self {
            Range::Hour => 10,
            Range::Day => 300,
            Range::Week => 3600,
        }
    }

    /// Its length in seconds.
    pub const fn length_s(self) -> u64 {
        match self {
            Range::Hour => 3600,
            Range::Day => 24 * 3600,
            Range::Week => 7 * 24 * 3600,
        }
    }
}

/// Courses of all groups.
#[derive(Debug, Default)]
pub struct Series {
    rings: [Ring; Range::ALL.len()],
}

/// Courses at one resolution.
#[derive(Debug, Default)]
struct Ring {
    at: VecDeque<u64>,
    /// One entry for each time.
    groups: BTreeMap<String, VecDeque<Option<Point>>>,
}

impl Series {
    /// Adds a sample, which is later than all before. Each range takes the first of each of its intervals.
    pub fn add(&mut self, sample: &Sample) {
        for (range, ring) in Range::ALL.into_iter().zip(&mut self.rings) {
            ring.add(range, sample);
        }
    }

    /// The times of a range, and the courses of its groups, or of one of them.
    pub fn of<'s>(
        &'s self,
        range: Range,
        group: Option<&'s str>,
    ) -> (impl Iterator<Item = u64> + 's, impl Iterator<Item = (&'s str, &'s VecDeque<Option<Point>>)> + 's) {
        let ring = &self.rings[range as usize];
        let groups = ring.groups.iter().filter(move |(name, _)| group.is_none_or(|group| group == *name));
        (ring.at.iter().copied(), groups.map(|(name, points)| (&**name, points)))
    }
}

impl Ring {
    fn add(&mut self, range: Range, sample: &Sample) {
        let interval = |at: u64| at / range.every_s();
        if self.at.back().is_some_and(|last| interval(*last) >= interval(sample.at)) {
            return;
        }
        for (name, point) in &sample.groups {
            if self.groups.len() < GROUPS_MOST || self.groups.contains_key(name) {
                let empty = || std::iter::repeat_n(None, self.at.len()).collect();
                self.groups.entry(name.clone()).or_insert_with(empty).push_back(Some(*point));
            }
        }
        self.at.push_back(sample.at);
        let number = self.at.len();
        self.groups.values_mut().for_each(|points| points.resize(number, None));
        while self.at.front().is_some_and(|first| sample.at.saturating_sub(*first) > range.length_s()) {
            self.at.pop_front();
            for points in self.groups.values_mut() {
                points.pop_front();
            }
        }
        self.groups.retain(|_, points| points.iter().any(Option::is_some));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(at: u64, groups: &[(&str, u32)]) -> Sample {
        let point = |usage| Point([Some(usage), None, None, None, None, None, None, None, None]);
        Sample { at, groups: groups.iter().map(|(name, usage)| ((*name).to_owned(), point(*usage))).collect() }
    }

    fn usage(series: &Series, range: Range, group: &str) -> Vec<Option<u64>> {
        let (_, mut groups) = series.of(range, Some(group));
        let points = groups.next().map(|(_, points)| points.iter());
        points.into_iter().flatten().map(|point| point.and_then(|point| point.bytes(0)).map(|bytes| bytes.0)).collect()
    }

    #[test]
    fn a_group_has_a_point_for_each_time_and_none_while_it_was_not_there() {
        let mut series = Series::default();
        series.add(&sample(1000, &[("/a", 1)]));
        series.add(&sample(1010, &[("/a", 2), ("/b", 5)]));
        series.add(&sample(1020, &[("/b", 6)]));
        assert_eq!(usage(&series, Range::Hour, "/a"), [Some(4096), Some(8192), None]);
        assert_eq!(usage(&series, Range::Hour, "/b"), [None, Some(5 << 12), Some(6 << 12)]);
        assert_eq!(usage(&series, Range::Day, "/a"), [Some(4096)], "one point in five minutes");
        assert_eq!(series.of(Range::Hour, None).0.collect::<Vec<_>>(), [1000, 1010, 1020]);
    }

    #[test]
    fn a_group_that_is_gone_for_longer_than_the_range_is_forgotten() {
        let mut series = Series::default();
        series.add(&sample(1000, &[("/a", 1)]));
        for at in (2000..5000).step_by(10) {
            series.add(&sample(at, &[("/b", 1)]));
        }
        assert_eq!(usage(&series, Range::Hour, "/a"), []);
        assert_eq!(usage(&series, Range::Day, "/a").first(), Some(&Some(4096)));
    }

    proptest! {
        #[test]
        fn all_courses_have_the_length_of_the_times(samples in prop::collection::vec((0..4000u64, prop::collection::vec((0..5u8, 0..9u32), 0..5)), 0..40)) {
            let mut series = Series::default();
            for (at, groups) in samples {
                let mut groups: Vec<(String, u32)> = groups.into_iter().map(|(name, usage)| (format!("/{name}"), usage)).collect();
                groups.sort();
                groups.dedup_by(|a, b| a.0 == b.0);
                let groups: Vec<(&str, u32)> = groups.iter().map(|(name, usage)| (&**name, *usage)).collect();
                series.add(&sample(at, &groups));
                for range in Range::ALL {
                    let (times, groups) = series.of(range, None);
                    let times: Vec<u64> = times.collect();
                    prop_assert!(times.is_sorted());
                    prop_assert!(groups.into_iter().all(|(_, points)| points.len() == times.len()));
                }
            }
        }
    }
}
