//! Eviction: units leave in the order of arrival, through the victim queue, with a second round for units that came
//! back.
//!
//! Two rings over memory of the caller:
//!
//! ```text
//!   enter ──► probation ──┐                              came back: `enter` again, as re-used
//!        └──► main ───────┴──► the caller's victim queue
//!              ▲  │
//!              └──┘ re-used units stay for one more round, mapped all the time
//! ```
//!
//! - `main`: first in, first out. A re-used unit gets another round for each time it came back, at most three.
//! - `probation`: units of streams, which are not needed for long ([`FetchPlan::probation`](super::site::FetchPlan)).
//!   They leave first, once there are more of them than their share. So a scan over everything does not evict the pages
//!   in repeated use. In a loop over more than memory holds, a part stays and is hit, where a single queue would miss
//!   everything. One unit in 32 on probation goes to `main`, so that unused units there leave in the end. While most fetched
//!   pages were not gone for long, the program **loops** over more than memory holds: then every unit is on
//!   probation, regardless of its site, and one in eight is kept.
//! - The victim queue (`pager/victim_queue.rs`): unmapped and still in memory. A fault there costs no transfer, and shows
//!   that the unit is re-used.
//!
//! Published relatives: Yang et al., "FIFO queues are all you need for cache eviction" (S3-FIFO), SOSP 2023, a small
//! queue before a large one; Zhang et al., "SIEVE is simpler than LRU", NSDI 2024; Qureshi et al., "Adaptive insertion
//! policies for high performance caching", ISCA 2007, the one in 32. We differ: hits are not seen. Only a fault in the
//! victim queue shows one, and the site that fetched a unit decides whether it is on probation.
//!
//! An entry is a hint, the page's own state decides: pages of a unit that came back or were unmapped stay in its entry,
//! and the caller skips pages that are not where the ring has them. So the rings are never searched for an entry.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Run;
use crate::cast::{fits, index, low, saturated};

/// Place of a ring: a run of at most 512 pages. Zero is a valid entry, since rings count their entries.
const PAGE_BITS: u32 = 45;
const PAGES_BITS: u32 = 9;

/// Longest run of one entry; longer ones take several.
pub const ENTRY_PAGES: u32 = 1 << PAGES_BITS;

/// Rounds of a re-used unit after its first.
const MOST_ROUNDS: u8 = 3;

/// One unit on probation in this number enters the main queue; the second figure applies while the program loops.
const MAIN_ONE_IN: u32 = 32;
const MAIN_ONE_IN_LOOP: u32 = 8;

/// Memory of the rings: words of the shared segment that only the holder of the lock changes. With as many entries per
/// ring as the budget has pages, no push can fail in practice.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// Units of streams.
    pub probation: &'a [AtomicU64],
    /// All other mapped units.
    pub main: &'a [AtomicU64],
}

/// Positions in one ring.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Ring {
    head: u32,
    len: u32,
    /// Pages of all entries, including pages that are not there any more.
    pages: u64,
}

impl Ring {
    fn push(&mut self, slots: &[AtomicU64], run: Run, rounds: u8) -> bool {
        let capacity: u32 = saturated(slots.len());
        if self.len >= capacity || run.pages == 0 || run.pages > ENTRY_PAGES || run.first_page >> PAGE_BITS != 0 {
            return false;
        }
        let at = (u64::from(self.head) + u64::from(self.len)) % u64::from(capacity);
        let Some(slot) = slots.get(index(at)) else { return false };
        let rounds = u64::from(rounds.min(MOST_ROUNDS));
        let entry = run.first_page | u64::from(run.pages - 1) << PAGE_BITS | rounds << (PAGE_BITS + PAGES_BITS);
        slot.store(entry, Relaxed);
        self.len += 1;
        self.pages = self.pages.saturating_add(u64::from(run.pages));
        true
    }

    fn pop(&mut self, slots: &[AtomicU64]) -> Option<(Run, u8)> {
        let capacity: u32 = saturated(slots.len());
        if self.len == 0 || capacity == 0 {
            return None;
        }
        let entry = slots.get((self.head % capacity) as usize)?.load(Relaxed);
        self.head = (self.head % capacity + 1) % capacity;
        self.len -= 1;
        let pages = low(entry >> PAGE_BITS) % ENTRY_PAGES + 1;
        self.pages = self.pages.saturating_sub(u64::from(pages));
        let rounds = fits((entry >> (PAGE_BITS + PAGES_BITS)) & 3);
        Some((Run { first_page: entry & ((1 << PAGE_BITS) - 1), pages }, rounds))
    }
}

/// Class of an arriving unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Fetched from the store, or touched for the first time.
    New,
    /// Brought for a stream.
    Probation,
    /// Back from the victim queue; or soon back from the store.
    Reused,
}

/// Both queues. All zeros: empty.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Replacement {
    probation: Ring,
    main: Ring,
    unused_words: [u64; 2],
    /// Number of units on probation so far.
    probation_units: u32,
    /// Part of the recently fetched pages that had not been gone for long, in 65536ths.
    known: u32,
    /// Number of evictions while those pages were gone.
    usual: u32,
    unused: u32,
}

/// Target size of the victim queue, in pages, freed before a fetch; also the number of mapped pages on probation above which
/// they leave first. An eighth of memory each. A program with fewer pages `beyond` its budget gets only that number:
/// all of these pages go round, and each queue's share reduces the pages that could stay.
pub fn aside_pages(budget_pages: u32, beyond_pages: u32) -> u32 {
    beyond_pages.clamp((budget_pages / 64).max(LEAST_ASIDE), most_aside_pages(budget_pages))
}

/// As [`aside_pages`], for a program of any size.
pub fn most_aside_pages(budget_pages: u32) -> u32 {
    (budget_pages / 8).max(LEAST_ASIDE)
}

/// Number of pages to examine now for pages of zeros, which need no memory, before others are evicted. Only where pages
/// of zeros may be the whole excess; at most two are examined per page of the program in all.
pub fn zeros_to_look_for(budget_pages: u32, beyond_pages: u32, looked: u64, touched_pages: u64) -> u32 {
    let almost_fits = (1..=budget_pages / 2).contains(&beyond_pages);
    let left = touched_pages.saturating_mul(2).saturating_sub(looked);
    if almost_fits { low(left.min(LOOKS.into())) } else { 0 }
}

/// Pages examined in a row, while a fault waits: half a millisecond if few of them are of zeros.
const LOOKS: u32 = 4096;

/// Least size of a share: some units.
const LEAST_ASIDE: u32 = 64;

impl Replacement {
    /// Counts `pages` fetched from the store. `distance` is the number of evictions since one of them left; 0: not
    /// known, it was long ago.
    ///
    /// Nothing is concluded for a program of more than one and a half times its memory: the pages that it uses
    /// repeatedly would pass as well.
    pub fn fetched(&mut self, pages: u32, distance: u32, budget_pages: u32, beyond_pages: u32) {
        if beyond_pages > budget_pages / 2 {
            self.known = 0;
            return;
        }
        let budget = u64::from(budget_pages.max(1));
        let these = u64::from(pages).min(budget);
        // A weighted mean is not above both of its values.
        let moved = |from: u32, to: u32| fits((u64::from(from) * (budget - these) + u64::from(to) * these) / budget);
        self.known = moved(self.known, if distance > 0 { 1 << 16 } else { 0 });
        if distance > 0 {
            self.usual = moved(self.usual, distance);
        }
    }

    /// Arrival class of a page with a known distance while the program loops: a page that is missed much sooner
    /// than usual is kept.
    pub fn arrival_in_loop(&self, distance: u32) -> Arrival {
        if distance > 0 && distance < self.usual / 2 { Arrival::Reused } else { Arrival::Probation }
    }

    /// Whether the program loops over more than memory holds, but not over much more.
    pub fn is_looping(&self) -> bool {
        self.known > 1 << 15
    }

    /// Pages fetched during the stay of a page that is not kept.
    pub fn life_pages(&self, budget_pages: u32, aside_pages: u32) -> u32 {
        if self.is_looping() { aside_pages.saturating_mul(2) } else { budget_pages }
    }

    /// Enters a run that was mapped, left unmapped, or is in flight. False: the ring is full, and a run must leave
    /// first. A run longer than [`ENTRY_PAGES`] is refused.
    pub fn enter(&mut self, memory: Memory<'_>, run: Run, arrival: Arrival) -> bool {
        match arrival {
            Arrival::New => self.main.push(memory.main, run, 0),
            Arrival::Reused => self.main.push(memory.main, run, 1),
            Arrival::Probation => {
                self.probation_units = self.probation_units.wrapping_add(1);
                let one_in = if self.is_looping() { MAIN_ONE_IN_LOOP } else { MAIN_ONE_IN };
                if self.probation_units.is_multiple_of(one_in) {
                    self.main.push(memory.main, run, 0)
                } else {
                    self.probation.push(memory.probation, run, 0)
                }
            }
        }
    }

    /// Next run to be unmapped. The caller moves its mapped pages to the victim queue.
    pub fn next_victim(&mut self, memory: Memory<'_>, aside_pages: u32) -> Option<Run> {
        if self.probation.pages > u64::from(aside_pages)
            && let Some((run, _)) = self.probation.pop(memory.probation)
        {
            return Some(run);
        }
        // Each entry gets three more rounds at most, so this ends.
        while let Some((run, rounds)) = self.main.pop(memory.main) {
            if rounds == 0 || !self.main.push(memory.main, run, rounds - 1) {
                return Some(run);
            }
        }
        self.probation.pop(memory.probation).map(|(run, _)| run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_rings<R>(capacity: usize, test: impl FnOnce(&mut Replacement, Memory<'_>) -> R) -> R {
        let ring = || (0..capacity).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (probation, main) = (ring(), ring());
        test(&mut Replacement::default(), Memory { probation: &probation, main: &main })
    }

    fn run(first_page: u64, pages: u32) -> Run {
        Run { first_page, pages }
    }

    #[test]
    fn units_leave_in_the_order_in_which_they_came() {
        with_rings(8, |queue, memory| {
            for n in 0..3 {
                assert!(queue.enter(memory, run(n * 16, 16), Arrival::New));
            }
            for n in 0..3 {
                assert_eq!(queue.next_victim(memory, 8), Some(run(n * 16, 16)));
            }
            assert_eq!(queue.next_victim(memory, 8), None);
        });
    }

    #[test]
    fn a_reused_unit_gets_a_second_round() {
        with_rings(8, |queue, memory| {
            queue.enter(memory, run(0, 1), Arrival::Reused);
            queue.enter(memory, run(1, 1), Arrival::New);
            let order: Vec<_> = (0..2).map(|_| queue.next_victim(memory, 8).unwrap().first_page).collect();
            assert_eq!(order, [1, 0]);
        });
    }

    #[test]
    fn a_scan_leaves_before_what_was_there() {
        with_rings(64, |queue, memory| {
            queue.enter(memory, run(1000, 16), Arrival::New);
            for n in 0..20 {
                queue.enter(memory, run(n, 1), Arrival::Probation);
            }
            // Eight may be on probation: 20 are, so twelve leave first, then the one of the main queue.
            let left: Vec<_> = (0..13).map(|_| queue.next_victim(memory, 8).unwrap().first_page).collect();
            assert_eq!(left[..12], (0..12).collect::<Vec<_>>());
            assert_eq!(left[12], 1000);
        });
    }

    #[test]
    fn what_is_kept_for_nothing_leaves_in_the_end_even_if_nothing_but_streams_come() {
        with_rings(512, |queue, memory| {
            for n in 0..48 {
                queue.enter(memory, run(10_000 + n, 1), Arrival::New);
            }
            let mut left = Vec::new();
            for n in 0..4000 {
                queue.enter(memory, run(n, 1), Arrival::Probation);
                if n >= 16 {
                    left.extend(queue.next_victim(memory, 8).map(|r| r.first_page).filter(|page| *page >= 10_000));
                }
            }
            assert_eq!(left.len(), 48);
        });
    }

    #[test]
    fn what_is_aside_is_an_eighth_or_what_does_not_fit_but_some_units() {
        let budgets = [(6400, 0, 100), (6400, 300, 300), (6400, 799, 799), (6400, 1_000_000, 800), (256, 0, 64)];
        for (budget, beyond, aside) in budgets {
            assert_eq!(aside_pages(budget, beyond), aside, "{beyond} beyond {budget}");
        }
    }

    #[test]
    fn zeros_are_looked_for_where_little_is_too_much_and_twice_at_most() {
        let cases = [(0, 0, 0), (1, 0, 4096), (500, 19_000, 1000), (500, 20_000, 0), (500, 30_000, 0), (501, 0, 0)];
        for (beyond, looked, now) in cases {
            assert_eq!(zeros_to_look_for(1000, beyond, looked, 10_000), now, "{beyond} beyond, {looked} looked at");
        }
    }

    /// Number of pages fetched in the last of several rounds over 1200 pages with memory for 1000, in units of 8.
    fn comes_in_a_round(is_told: bool) -> u64 {
        const BUDGET: u32 = 1000;
        const UNIT: u32 = 8;
        let aside = aside_pages(BUDGET, 200);
        with_rings(2048, |queue, memory| {
            let (mut mapped, mut came) = (std::collections::BTreeSet::new(), 0);
            let most = (BUDGET / UNIT) as usize;
            for round in 0..12 {
                came = 0;
                for page in (0..1200).step_by(UNIT as usize) {
                    if mapped.contains(&page) {
                        continue;
                    }
                    came += u64::from(UNIT);
                    while mapped.len() >= most {
                        let gone = queue.next_victim(memory, aside).unwrap();
                        assert!(mapped.remove(&gone.first_page));
                    }
                    if is_told && round > 0 {
                        queue.fetched(UNIT, 200, BUDGET, 200);
                    }
                    let arrival = if queue.is_looping() { queue.arrival_in_loop(200) } else { Arrival::New };
                    assert!(queue.enter(memory, run(page, UNIT), arrival));
                    mapped.insert(page);
                }
            }
            came
        })
    }

    #[test]
    fn who_goes_round_in_a_little_too_much_keeps_most_of_it() {
        assert_eq!(comes_in_a_round(false), 1200, "first in, first out");
        let told = comes_in_a_round(true);
        // 200 cannot stay, and 125 more are aside; one in eight of them takes the place of one that stays.
        assert!((200..500).contains(&told), "{told}");
    }

    #[test]
    fn nothing_is_concluded_of_a_program_with_much_more_than_its_memory() {
        let mut queue = Replacement::default();
        (0..100).for_each(|_| queue.fetched(64, 700, 1000, 500));
        assert!(queue.is_looping());
        assert_eq!((queue.life_pages(1000, 125), queue.arrival_in_loop(700)), (250, Arrival::Probation));
        assert_eq!(queue.arrival_in_loop(100), Arrival::Reused, "missed much sooner than the rest");
        queue.fetched(64, 700, 1000, 501);
        assert!(!queue.is_looping());
        assert_eq!(queue.life_pages(1000, 125), 1000);
        // Pages that were gone for long are no round either.
        (0..100).for_each(|_| queue.fetched(64, 0, 1000, 500));
        assert!(!queue.is_looping());
    }

    #[test]
    fn a_full_ring_refuses_instead_of_losing_something() {
        with_rings(2, |queue, memory| {
            assert!(queue.enter(memory, run(0, 1), Arrival::New));
            assert!(queue.enter(memory, run(1, 1), Arrival::New));
            assert!(!queue.enter(memory, run(2, 1), Arrival::New));
            assert_eq!(queue.next_victim(memory, 8), Some(run(0, 1)));
            assert!(queue.enter(memory, run(2, 1), Arrival::New));
        });
        with_rings(0, |queue, memory| {
            assert!(!queue.enter(memory, run(0, 1), Arrival::New));
            assert_eq!(queue.next_victim(memory, 8), None);
        });
    }

    /// Found by fuzzing.
    #[test]
    fn positions_that_the_program_wrote_over_lead_to_some_unit_and_not_beyond_the_ring() {
        with_rings(4, |queue, memory| {
            for head in [4, u32::MAX] {
                queue.main = Ring { head, len: u32::MAX, pages: u64::MAX };
                assert!(queue.next_victim(memory, 8).is_some());
                queue.main = Ring { head, len: 3, pages: u64::MAX };
                assert!(queue.enter(memory, run(1, 1), Arrival::Reused));
            }
        });
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_comes_out_twice(
            arrivals in prop::collection::vec((0u8..3, 1u32..=ENTRY_PAGES), 0..200), aside in any::<u32>(),
        ) {
            with_rings(256, |queue, memory| {
                let mut next = 0;
                let mut came = Vec::new();
                for (kind, pages) in arrivals {
                    let kind = [Arrival::New, Arrival::Probation, Arrival::Reused][usize::from(kind)];
                    if queue.enter(memory, run(next, pages), kind) {
                        came.push(run(next, pages));
                    }
                    next += u64::from(pages);
                }
                let mut out = Vec::new();
                while let Some(run) = queue.next_victim(memory, aside) {
                    out.push(run);
                }
                out.sort_by_key(|run| run.first_page);
                prop_assert_eq!(out, came);
                Ok(())
            })?;
        }
    }
}
