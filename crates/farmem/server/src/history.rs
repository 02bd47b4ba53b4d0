//! History of the transfer sizes of code sites, or of marked sections, during a run.

use std::collections::BTreeMap;
use std::time::Duration;

use farmem_engine::PAGE_BYTES;
use farmem_engine::units::Learned;
use serde::{Deserialize, Serialize};
use units::Bytes;

/// Number of readings kept. When there are more, every second one is dropped, and readings come half as often.
const MOST_READINGS: usize = 256;

/// Number of parts kept of each reading: the ones with the most faults.
const MOST_PARTS: usize = 64;

/// Time between the first readings.
const EVERY: Duration = Duration::from_millis(100);

/// Part of a program with a transfer size of its own. A program has code sites or marked sections, so the names are of
/// one kind.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// A site's address, or a section's number.
    pub name: u64,
    /// Number of its faults so far.
    pub faults: u32,
    /// Transfer size, in pages.
    pub unit_pages: u32,
}

impl Part {
    /// Known parts, in no order.
    pub fn of(learned: &Learned) -> impl Iterator<Item = Part> + '_ {
        let sites = learned.sites.known();
        let sites = sites.map(|site| Part { name: site.site, faults: site.faults, unit_pages: site.unit_pages });
        let sections = learned.marked.known().map(|section| Part {
            name: section.section.into(),
            faults: section.faults,
            unit_pages: section.unit_pages,
        });
        sites.chain(sections)
    }
}

/// Transfer size of a part, from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Since {
    /// Seconds after the program's start.
    pub since_s: f64,
    /// Bytes per fault from then on.
    pub unit_bytes: Bytes,
}

/// Readings of all parts, at moments after the program's start.
#[derive(Clone, Debug)]
pub struct History {
    every: Duration,
    /// Transfer size in pages, by the name of the part.
    readings: Vec<(Duration, BTreeMap<u64, u32>)>,
}

impl Default for History {
    fn default() -> History {
        History { every: EVERY, readings: Vec::new() }
    }
}

impl History {
    /// Whether a reading is due.
    pub fn is_due(&self, now: Duration) -> bool {
        self.readings.last().is_none_or(|(last, _)| now >= *last + self.every)
    }

    /// Takes a reading.
    pub fn read(&mut self, now: Duration, parts: impl Iterator<Item = Part>) {
        let mut parts: Vec<Part> = parts.collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.faults));
        let units = parts.iter().take(MOST_PARTS).map(|part| (part.name, part.unit_pages)).collect();
        self.readings.push((now, units));
        if self.readings.len() > MOST_READINGS {
            let mut number = 0;
            self.readings.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// Changes of a part's transfer size. Changes between two readings are not seen.
    pub fn of(&self, name: u64) -> Vec<Since> {
        let known = self.readings.iter().filter_map(|(at, units)| Some((at, *units.get(&name)?)));
        let mut since: Vec<Since> = Vec::new();
        for (at, pages) in known {
            let unit_bytes = Bytes(u64::from(pages) * PAGE_BYTES);
            if since.last().is_none_or(|last| last.unit_bytes != unit_bytes) {
                since.push(Since { since_s: at.as_secs_f64(), unit_bytes });
            }
        }
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: u64, faults: u32, unit_pages: u32) -> Part {
        Part { name, faults, unit_pages }
    }

    #[test]
    fn units_are_told_when_they_change() {
        let mut history = History::default();
        for (second, pages) in [(0, 1), (1, 1), (2, 16), (3, 16), (4, 4)] {
            history.read(Duration::from_secs(second), [part(7, 10, pages), part(8, 5, 1)].into_iter());
        }
        let told = |since_s, kib| Since { since_s, unit_bytes: Bytes::kib(kib) };
        assert_eq!(history.of(7), [told(0.0, 4), told(2.0, 64), told(4.0, 16)]);
        assert_eq!(history.of(8), [told(0.0, 4)]);
        assert_eq!(history.of(9), []);
    }

    #[test]
    fn a_long_run_has_no_more_readings_than_a_short_one_but_rarer_ones() {
        let mut history = History::default();
        let (mut now, mut readings) = (Duration::ZERO, 0);
        while now < Duration::from_secs(24 * 3600) {
            if history.is_due(now) {
                history.read(now, [part(7, 1, 1)].into_iter());
                readings += 1;
            }
            now += Duration::from_millis(50);
        }
        assert!(history.readings.len() <= MOST_READINGS && readings < 3000, "{readings}");
        assert_eq!(history.of(7).len(), 1);
        assert!(history.readings.is_sorted_by_key(|(at, _)| *at));
    }

    #[test]
    fn of_many_parts_those_with_the_most_faults_are_kept() {
        let mut history = History::default();
        history.read(Duration::ZERO, (0..1000).map(|number| part(number, u32::try_from(number).unwrap(), 1)));
        assert!(history.of(10).is_empty() && !history.of(999).is_empty());
    }
}
