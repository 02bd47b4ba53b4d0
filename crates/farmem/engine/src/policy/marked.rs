//! Transfer size of a section that the program marks: the paper's rule, and the fixed size.
//!
//! Midorikawa and Uchiyama, "遠隔メモリアクセスのためのスワップページサイズ自動調整機構" (Adaptive Page Size Control for Remote Page Swapping,
//! 2012), sections 3.2, 3.3, 4.1 and 4.3. When a section ends, the pages that were swapped in during it are its working
//! set, about:
//!
//! - more than local memory holds: ideal bytes = local bytes / working-set pages (formula 1), and the page size falls
//!   in one step to the largest possible one that is not above it;
//! - fewer: the size may have been made too small before, so it is doubled.
//!
//! | paper                                  | here                   | unit                          | paper's value |
//! | 最小ページサイズ                        | `base_log2`            | 2^n pages of 4 KiB            | 2 (16 KiB)    |
//! | セット枚数, at most 64                  | `max_set_log2`         | 2^n base pages                | 6 (1 MiB)     |
//! | ローカルメモリサイズ                     | `local_pages`          | pages of 4 KiB                |               |
//! | `swpin count` ≠ 0 の枚数                | `distinct_units`       | units swapped in at least once|               |
//! | `request setnum` of an `id`            | `remembered`           | unit, as 2^n pages            |               |
//! | `swpin_countstart(id)`                 | [`Marked::count_start`]|                               |               |
//! | `swpin_refresh(id)`                    | [`Marked::refresh`]    |                               |               |
//!
//! Differences, where the paper is silent:
//! - A working set as large as local memory keeps its unit.
//! - Nothing below one base page and nothing above the largest set.
//! - `refresh` without its `count_start`, or after another section's, changes no unit: the count is not its own.
//! - Sections have numbers 0..[`SECTIONS`]; others are not remembered.
//! - Instead of a counter per page that is set to zero at each refresh, a page has the number of the section run of its
//!   unit's last swap-in (see [`Marked::swapped_in`]). A run is one of 65,535, then numbers return: a page that was not
//!   swapped in for exactly that many runs is counted once too few.

use super::{MAX_UNIT_LOG2, Run, unit_around};
use crate::cast::fits;

/// Number of remembered sections.
pub const SECTIONS: usize = 256;

/// Parameters of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Smallest transfer: 2^n pages of 4 KiB.
    pub base_log2: u8,
    /// Largest set: 2^n base pages.
    pub max_set_log2: u8,
    /// Local memory, in pages of 4 KiB.
    pub local_pages: u64,
}

impl Settings {
    /// The paper's sizes, 16 KiB to 1 MiB, with `local_pages` of local memory.
    pub const fn paper(local_pages: u64) -> Settings {
        Settings { base_log2: 2, max_set_log2: 6, local_pages }
    }

    fn smallest(self) -> u8 {
        self.base_log2.min(MAX_UNIT_LOG2)
    }

    fn largest(self) -> u8 {
        self.base_log2.saturating_add(self.max_set_log2).min(MAX_UNIT_LOG2)
    }
}

/// Unit after a section: 2^n pages. `unit_log2` is the unit of the section's run, `distinct_units` its number of units
/// swapped in.
pub fn next_unit_log2(unit_log2: u8, distinct_units: u64, settings: Settings) -> u8 {
    let (smallest, largest) = (settings.smallest(), settings.largest());
    let unit_log2 = unit_log2.clamp(smallest, largest);
    let local_units = settings.local_pages >> unit_log2;
    if distinct_units > local_units {
        let ideal_pages = settings.local_pages / distinct_units; // above zero: distinct_units > local_units >= 0
        let log2: u8 = fits(ideal_pages.checked_ilog2().unwrap_or(0));
        log2.clamp(smallest, largest)
    } else if distinct_units < local_units {
        (unit_log2 + 1).min(largest)
    } else {
        unit_log2
    }
}

/// The units of a program's marked sections. All zeros: nothing known, the base page.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Marked {
    /// By section: 1 + log2 of its unit in pages; 0 is unknown.
    remembered: [u8; SECTIONS],
    /// 1 + log2 of the unit in force; 0: the base page.
    unit: u8,
    /// Whether a section is being counted.
    counting: u8,
    /// Number of the section run: the mark of its pages.
    run: u16,
    /// Section in the count.
    section: u32,
    /// Units swapped in at least once in this run.
    distinct_units: u64,
    /// Faults by section.
    faults: [u32; SECTIONS],
}

/// Report on one section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionView {
    /// Number of the section.
    pub section: u32,
    /// Number of faults so far.
    pub faults: u32,
    /// Unit, in pages.
    pub unit_pages: u32,
}

impl Default for Marked {
    fn default() -> Marked {
        Marked {
            remembered: [0; SECTIONS],
            unit: 0,
            counting: 0,
            run: 0,
            section: 0,
            distinct_units: 0,
            faults: [0; SECTIONS],
        }
    }
}

impl Marked {
    /// Fetched run of one fault at `page` now.
    pub fn unit(&self, page: u64, settings: Settings) -> Run {
        unit_around(page, self.unit_log2(settings))
    }

    /// The unit in force: 2^n pages.
    pub fn unit_log2(&self, settings: Settings) -> u8 {
        self.unit.saturating_sub(1).clamp(settings.smallest(), settings.largest())
    }

    /// Begins a section: its unit is in force, if one is known, and counting starts.
    pub fn count_start(&mut self, section: u32) {
        if let Some(known) = self.slot(section).filter(|slot| **slot != 0) {
            self.unit = *known;
        }
        self.section = section;
        self.counting = 1;
        self.distinct_units = 0;
        self.run = if self.run == u16::MAX { 1 } else { self.run + 1 };
    }

    /// Counts a touch of a page that was not present.
    pub fn faulted(&mut self) {
        if let Some(faults) = self.faults.get_mut(self.section as usize).filter(|_| self.counting != 0) {
            *faults = faults.saturating_add(1);
        }
    }

    /// Takes back the last count.
    pub fn was_no_fault(&mut self) {
        if let Some(faults) = self.faults.get_mut(self.section as usize).filter(|_| self.counting != 0) {
            *faults = faults.saturating_sub(1);
        }
    }

    /// The sections that have ended at least once, in the order of their numbers.
    pub fn known(&self) -> impl Iterator<Item = SectionView> + '_ {
        (0..).zip(self.remembered.iter().zip(&self.faults)).filter(|(_, (unit, _))| **unit != 0).map(
            |(section, (unit, faults))| SectionView {
                section,
                faults: *faults,
                unit_pages: 1 << (unit - 1).min(MAX_UNIT_LOG2),
            },
        )
    }

    /// Counts a unit that was swapped in. `mark` is the caller's mark of the **first page of the unit**, zero at first;
    /// the caller replaces it by the result. Outside of a section nothing is counted.
    pub fn swapped_in(&mut self, mark: u16) -> u16 {
        if self.counting == 0 {
            return mark;
        }
        if mark != self.run {
            self.distinct_units = self.distinct_units.saturating_add(1);
        }
        self.run
    }

    /// Ends a section: its next unit is computed, remembered and in force.
    pub fn refresh(&mut self, section: u32, settings: Settings) {
        if self.counting == 0 || self.section != section {
            return;
        }
        self.counting = 0;
        self.unit = next_unit_log2(self.unit_log2(settings), self.distinct_units, settings) + 1;
        let unit = self.unit;
        if let Some(slot) = self.slot(section) {
            *slot = unit;
        }
    }

    fn slot(&mut self, section: u32) -> Option<&mut u8> {
        self.remembered.get_mut(section as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 16 MiB of local memory: 1024 base pages of 16 KiB.
    const LOCAL: Settings = Settings::paper(4096);

    #[test]
    fn a_working_set_twice_as_large_as_local_memory_halves_the_unit_in_one_step() {
        // 64 KiB units, 256 of them fit; 512 were swapped in: 16 MiB / 512 = 32 KiB.
        assert_eq!(next_unit_log2(4, 512, LOCAL), 3);
    }

    #[test]
    fn shrinking_takes_one_step_however_far_it_is() {
        // 1 MiB units, 16 fit; 600 were swapped in: 16 MiB / 600 = 27.3 KiB, the power of two below is 16 KiB.
        assert_eq!(next_unit_log2(8, 600, LOCAL), 2);
        // 100 were: 163 KiB, so 128 KiB.
        assert_eq!(next_unit_log2(8, 100, LOCAL), 5);
    }

    #[test]
    fn growing_takes_one_doubling_however_small_the_working_set_is() {
        assert_eq!(next_unit_log2(2, 1, LOCAL), 3);
        assert_eq!(next_unit_log2(2, 0, LOCAL), 3);
    }

    #[test]
    fn a_working_set_that_fits_exactly_keeps_its_unit() {
        assert_eq!(next_unit_log2(4, 256, LOCAL), 4);
    }

    #[test]
    fn sixteen_kilobytes_times_sixty_four_is_the_largest_unit_and_one_base_page_the_smallest() {
        assert_eq!(next_unit_log2(8, 1, LOCAL), 8);
        assert_eq!(next_unit_log2(2, 1_000_000, LOCAL), 2);
    }

    #[test]
    fn the_first_pass_of_a_section_changes_no_unit_and_the_second_starts_with_what_it_found() {
        let mut marked = Marked { unit: 1 + 6, ..Marked::default() };
        marked.count_start(0);
        assert_eq!(marked.unit_log2(LOCAL), 6);
        let mut marks = [0u16; 128];
        for mark in &mut marks {
            *mark = marked.swapped_in(*mark); // 128 units of 256 KiB = 32 MiB
        }
        marked.refresh(0, LOCAL);
        assert_eq!(marked.unit_log2(LOCAL), 5); // 16 MiB / 128 = 128 KiB
        marked.count_start(1); // unknown: goes on with the unit in force
        marked.refresh(1, LOCAL);
        assert_eq!(marked.unit_log2(LOCAL), 6);
        marked.count_start(0);
        assert_eq!(marked.unit_log2(LOCAL), 5);
    }

    #[test]
    fn a_unit_swapped_in_often_counts_once_in_a_section_and_again_in_the_next() {
        let mut marked = Marked::default();
        let mut mark = 0;
        for _ in 0..3 {
            marked.count_start(7);
            for _ in 0..5 {
                mark = marked.swapped_in(mark);
            }
            assert_eq!(marked.distinct_units, 1);
            marked.refresh(7, LOCAL);
        }
    }

    #[test]
    fn a_section_that_was_not_counted_changes_nothing() {
        let mut marked = Marked { unit: 1 + 4, ..Marked::default() };
        marked.refresh(3, LOCAL);
        assert_eq!(marked.unit_log2(LOCAL), 4);
        marked.count_start(1);
        marked.refresh(2, LOCAL);
        assert_eq!(marked.unit_log2(LOCAL), 4);
    }

    #[test]
    fn a_section_is_known_with_its_faults_once_it_has_ended() {
        let mut marked = Marked::default();
        marked.faulted();
        marked.count_start(3);
        (0..5).for_each(|_| marked.faulted());
        assert_eq!(marked.known().count(), 0);
        marked.faulted();
        marked.was_no_fault();
        marked.refresh(3, LOCAL);
        marked.faulted();
        marked.was_no_fault();
        marked.count_start(256);
        marked.faulted();
        marked.refresh(256, LOCAL);
        let known: Vec<_> = marked.known().collect();
        assert_eq!(known, [SectionView { section: 3, faults: 5, unit_pages: 8 }]);
    }

    proptest! {
        #[test]
        fn a_unit_is_aligned_contains_its_page_and_stays_between_base_and_largest(
            page in any::<u64>(), sections in prop::collection::vec((any::<u32>(), any::<u16>()), 0..20),
            base_log2 in any::<u8>(), max_set_log2 in any::<u8>(), local_pages in any::<u64>(),
        ) {
            let settings = Settings { base_log2, max_set_log2, local_pages };
            let mut marked = Marked::default();
            for (section, units) in sections {
                marked.count_start(section);
                for n in 0..units.min(300) {
                    let _ = marked.swapped_in(n);
                }
                marked.refresh(section, settings);
                let unit = marked.unit(page, settings);
                prop_assert!(unit.pages.is_power_of_two());
                prop_assert_eq!(unit.first_page % u64::from(unit.pages), 0);
                prop_assert!(page >= unit.first_page && page - unit.first_page < u64::from(unit.pages));
                prop_assert!(unit.pages >= 1 << settings.smallest() && unit.pages <= 1 << settings.largest());
            }
        }

        #[test]
        fn a_larger_working_set_never_gets_a_larger_unit(unit in 2u8..=8, few in any::<u32>(), more in any::<u32>()) {
            let (few, more) = (u64::from(few.min(more)), u64::from(few.max(more)));
            prop_assert!(next_unit_log2(unit, few, LOCAL) >= next_unit_log2(unit, more, LOCAL));
        }

        #[test]
        fn after_shrinking_the_counted_units_fit_unless_the_base_page_is_reached(unit in 2u8..=8, units in 1u64..1_000_000) {
            let next = next_unit_log2(unit, units, LOCAL);
            if units > LOCAL.local_pages >> unit {
                prop_assert!(next == 2 || units << next <= LOCAL.local_pages);
            }
        }
    }
}
