//! Number of neighbours that are used along with a page: the base of a site's transfer size.
//!
//! A unit is worth its transfer when the pages around the faulting one are used before they are evicted. A pager does
//! not see uses, so it makes experiments: at some faults one page of the neighbourhood is *watched*. It lies outside of
//! the fetched pages, or it is fetched and left unmapped. Either way its use is a fault. If the fault comes within a
//! life time (until as many pages were fetched as the budget holds), the page was worth its fetch, else not.
//!
//! Level `n` is the half of the aligned block of 2^n pages without the faulting page. The watched page is any page of
//! it, so the used share of the watched pages is an unbiased estimate of `m(n)`, the used share of that half, under the
//! pressure of the moment. A unit of 2^k pages is then expected to have 1 + Σ 2^(n-1)·m(n) used pages, and costs F +
//! 2^k·c. The chosen unit has the least cost per used page. When memory gets short, pages leave before they are used, m
//! falls and the unit with it: by itself, without a threshold.
//!
//! The cost of a page includes the fault on the page that it evicts: see `Price`.

use super::spread;
use crate::cast::{fits, index, saturated};

/// One whole, for shares.
pub(super) const ONE: u32 = 4096;

/// Levels 1..=8; 0 is not used.
const LEVELS: usize = 9;

/// The expected used share of the smallest half before any sample, and the loss per level above it.
const GUESS: u32 = ONE * 3 / 4;
const GUESS_DECAY: (u32, u32) = (7, 8);

/// Samples after which the mean moves by a fixed share.
const LONGEST_MEMORY: u32 = 20;

/// Unit of the saved share: this number of [`ONE`]ths.
const SAVED_PART: u16 = 16;

/// Neighbourhood of a site. All zeros: nothing known.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Density {
    used: [u16; LEVELS],
    samples: [u8; LEVELS],
}

impl Density {
    /// Nothing known.
    pub(super) const UNKNOWN: Density = Density { used: [0; LEVELS], samples: [0; LEVELS] };

    /// Largest weight of an earlier run, in samples of this one.
    pub(super) const MAX_SAVED: u8 = 10;

    /// Used share of levels 1 to 8 in parts of 256, and its number of samples.
    pub(super) fn saved(&self) -> ([u8; LEVELS - 1], [u8; LEVELS - 1]) {
        // A share of one is saved as the largest below it.
        let of = |n: usize| saturated(self.used[n + 1] / SAVED_PART);
        (core::array::from_fn(of), core::array::from_fn(|n| self.samples[n + 1].min(Density::MAX_SAVED)))
    }

    /// Restores a saved neighbourhood.
    pub(super) fn of_saved(used: [u8; LEVELS - 1], samples: [u8; LEVELS - 1]) -> Density {
        let mut density = Density::UNKNOWN;
        for (n, (used, samples)) in used.into_iter().zip(samples).enumerate() {
            density.used[n + 1] = u16::from(used) * SAVED_PART;
            density.samples[n + 1] = samples.min(Density::MAX_SAVED);
        }
        density
    }

    /// Counts a watched page of `level` that was used in its time, or not.
    pub(super) fn learn(&mut self, level: u8, was_used: bool) {
        let guess = self.share(level);
        let n = usize::from(level);
        let (Some(used), Some(samples)) = (self.used.get_mut(n), self.samples.get_mut(n)) else { return };
        let known = if *samples == 0 { guess } else { u32::from(*used) };
        let weight = (u32::from(*samples) + 2).min(LONGEST_MEMORY);
        let seen = if was_used { ONE } else { 0 };
        let next = (known * (weight - 1) + seen + weight / 2) / weight;
        *used = fits(next.min(ONE));
        *samples = samples.saturating_add(1);
    }

    /// The expected used share of the half at `level`, of [`ONE`]. A level without samples follows from the level
    /// below.
    pub(super) fn share(&self, level: u8) -> u32 {
        let mut share = GUESS;
        for n in 1..=usize::from(level).min(LEVELS - 1) {
            share = if self.samples[n] > 0 { u32::from(self.used[n]) } else { share * GUESS_DECAY.0 / GUESS_DECAY.1 };
        }
        share
    }

    /// The unit with the least cost per used page, as 2^n pages, between `smallest` and `largest`. `now` is kept unless
    /// another one is better by a sixteenth.
    pub(super) fn best_unit(&self, price: Price, smallest: u8, largest: u8, now: u8) -> u8 {
        let largest = largest.min(super::MAX_UNIT_LOG2);
        let smallest = smallest.min(largest);
        let mut used = u64::from(ONE);
        let mut best = smallest;
        let mut best_cost = u64::MAX;
        let mut share = GUESS;
        for n in 0..=largest {
            if n > 0 {
                let level = usize::from(n);
                share = if self.samples[level] > 0 {
                    u32::from(self.used[level])
                } else {
                    share * GUESS_DECAY.0 / GUESS_DECAY.1
                };
                // The uncertain part is not counted: one standard deviation of a mean with this memory.
                let doubt = (share * (ONE - share.min(ONE)) / (2 * LONGEST_MEMORY)).isqrt();
                used += u64::from(share.saturating_sub(doubt)) << (n - 1);
            }
            if n < smallest {
                continue;
            }
            // Nanoseconds per used page, times 16: below 2^32 * 2^8 * 2^16, and `used` is at least ONE.
            let mut cost = ((price.fault_ns + (price.page_ns << n)) << 16) / used;
            if n == now {
                cost -= cost / 16;
            }
            if cost < best_cost {
                (best, best_cost) = (n, cost);
            }
        }
        best
    }
}

/// Cost of a fetch, in nanoseconds, at most 2^32 each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Price {
    /// Cost of the fault with any size.
    pub(super) fault_ns: u64,
    /// Cost of each page: its transfer, and the share of a fault that follows because another page was evicted for it.
    pub(super) page_ns: u64,
}

/// Number of watched pages at a time.
const WATCHES: usize = 512;

/// One page is watched at a time in each group of 2^n pages.
const GROUP_LOG2: u32 = 4;

/// Watched page.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Watch {
    /// 1 + the page; 0: none.
    page: u64,
    /// Pages fetched when the watch began.
    since: u32,
    site: u16,
    level: u8,
    unused: u8,
}

/// Result of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) site: u16,
    pub(super) level: u8,
    pub(super) was_used: bool,
}

/// All watched pages.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Watches {
    slots: [Watch; WATCHES],
    /// Next slot whose age is checked.
    hand: u32,
    unused: u32,
}

impl Watches {
    pub(super) const NONE: Watches =
        Watches { slots: [Watch { page: 0, since: 0, site: 0, level: 0, unused: 0 }; WATCHES], hand: 0, unused: 0 };

    fn slot_of(page: u64) -> usize {
        index(spread(page >> GROUP_LOG2) % (WATCHES as u64))
    }

    /// Begins the watch of `page`. False when its slot is taken and the watch there is not over.
    pub(super) fn begin(&mut self, page: u64, site: u16, level: u8, clock: u32) -> bool {
        let slot = &mut self.slots[Watches::slot_of(page)];
        if slot.page != 0 || page == super::NO_PAGE {
            return false;
        }
        *slot = Watch { page: page + 1, since: clock, site, level, unused: 0 };
        true
    }

    /// Ends the watch of `page`, which was used.
    pub(super) fn used(&mut self, page: u64) -> Option<Outcome> {
        let slot = &mut self.slots[Watches::slot_of(page)];
        if slot.page == 0 || slot.page - 1 != page {
            return None;
        }
        slot.page = 0;
        Some(Outcome { site: slot.site, level: slot.level, was_used: true })
    }

    /// Ends the watch of `page` without a result.
    pub(super) fn forget(&mut self, page: u64) {
        let slot = &mut self.slots[Watches::slot_of(page)];
        if slot.page == page.wrapping_add(1) {
            slot.page = 0;
        }
    }

    /// The watched page in the group of 16 around `page`.
    pub(super) fn in_group(&self, page: u64) -> Option<u64> {
        let watched = self.slots[Watches::slot_of(page)].page.checked_sub(1)?;
        (watched >> GROUP_LOG2 == page >> GROUP_LOG2).then_some(watched)
    }

    /// Checks one more slot; frees it and returns its result when its time is up.
    pub(super) fn next_expired(&mut self, clock: u32, life: u32) -> Option<Outcome> {
        let slot = &mut self.slots[self.hand as usize % WATCHES];
        self.hand = self.hand.wrapping_add(1);
        if slot.page == 0 || clock.wrapping_sub(slot.since) < life {
            return None;
        }
        slot.page = 0;
        Some(Outcome { site: slot.site, level: slot.level, was_used: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRICE: Price = Price { fault_ns: 5000, page_ns: 700 };

    fn knowing(shares: [u32; 8]) -> Density {
        let mut density = Density::UNKNOWN;
        for (n, share) in shares.into_iter().enumerate() {
            density.used[n + 1] = u16::try_from(share).unwrap();
            density.samples[n + 1] = 200;
        }
        density
    }

    #[test]
    fn where_every_neighbour_is_used_the_unit_is_the_largest() {
        assert_eq!(knowing([ONE; 8]).best_unit(PRICE, 0, 8, 0), 8);
    }

    #[test]
    fn where_no_neighbour_is_used_the_unit_is_one_page() {
        assert_eq!(knowing([0; 8]).best_unit(PRICE, 0, 8, 8), 0);
    }

    #[test]
    fn where_only_the_next_three_pages_are_used_the_unit_is_four() {
        // Per used page: 1 page 5.7, 2 pages 3.2, 4 pages 1.95, 8 pages 2.65 us.
        assert_eq!(knowing([ONE, ONE, 0, 0, 0, 0, 0, 0]).best_unit(PRICE, 0, 8, 0), 2);
    }

    #[test]
    fn nothing_known_starts_with_a_moderate_unit() {
        let unit = Density::UNKNOWN.best_unit(PRICE, 0, 8, 0);
        assert!((3..=5).contains(&unit), "{unit}");
    }

    #[test]
    fn a_page_that_pushes_out_what_is_needed_makes_units_small() {
        let halves = knowing([ONE / 2; 8]);
        let dear = Price { fault_ns: 5000, page_ns: 5000 };
        assert!(halves.best_unit(dear, 0, 8, 0) < halves.best_unit(PRICE, 0, 8, 0));
    }

    #[test]
    fn a_mean_follows_a_site_that_changed_within_some_dozens_of_samples() {
        let mut density = knowing([ONE; 8]);
        for _ in 0..60 {
            density.learn(1, false);
        }
        assert!(density.share(1) < ONE / 10);
    }

    #[test]
    fn a_watch_ends_with_the_use_of_its_page_or_with_its_time() {
        let mut watches = Watches::NONE;
        assert!(watches.begin(40, 3, 2, 1000));
        assert!(!watches.begin(41, 3, 2, 1000), "one page of sixteen at a time");
        assert_eq!(watches.in_group(47), Some(40));
        assert_eq!(watches.used(41), None);
        assert_eq!(watches.used(40), Some(Outcome { site: 3, level: 2, was_used: true }));
        assert!(watches.begin(41, 3, 5, 1000));
        let ended: Vec<_> = (0..WATCHES).filter_map(|_| watches.next_expired(1099, 100)).collect();
        assert_eq!(ended, []);
        let ended: Vec<_> = (0..WATCHES).filter_map(|_| watches.next_expired(1100, 100)).collect();
        assert_eq!(ended, [Outcome { site: 3, level: 5, was_used: false }]);
    }

    proptest! {
        #[test]
        fn a_unit_never_leaves_its_bounds(
            learned in prop::collection::vec((any::<u8>(), any::<bool>()), 0..200), fault_ns in any::<u32>(),
            page_ns in any::<u32>(), smallest in any::<u8>(), largest in any::<u8>(), now in any::<u8>(),
        ) {
            let mut density = Density::UNKNOWN;
            for (level, used) in learned {
                density.learn(level, used);
                prop_assert!(density.share(level) <= ONE);
            }
            let price = Price { fault_ns: u64::from(fault_ns), page_ns: u64::from(page_ns) };
            let unit = density.best_unit(price, smallest, largest, now);
            prop_assert!(unit <= largest.min(8));
            prop_assert!(unit >= smallest.min(largest).min(8));
        }
    }
}
