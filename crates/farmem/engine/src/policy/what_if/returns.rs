//! Additional memory that would have kept the pages that return, from a sample.
//!
//! Of `one_in` pages one is sampled, by its number. It is remembered when it leaves memory, with the number of
//! evictions until then. When it is fetched again, the difference is its distance: the number of pages of additional
//! memory that would have kept it. Distances are counted in steps of a sixteenth of an octave. So the smallest budget
//! is known with which most fetches would not have been.
//!
//! The table holds the samples of some 24 budgets of evicted pages. A page beyond that is not known: its loop is larger
//! than the table covers, and the amount of touched memory is the bound then.
//!
//! Accuracy: for a loop over N pages in a queue, first in, first out, the result is N to within a sixteenth (tests). For
//! uniform random use it is the touched memory. Pages that large transfers fetch in vain count as used, so the result
//! is an upper bound where transfers are larger than the use of the program.

use super::{Clock, Ghosts};
use crate::cast::index;
use crate::policy::spread;

/// Places for samples.
const SAMPLES: usize = 2048;

/// Steps of an octave; distances below that number have a step each.
const STEPS: u32 = 16;

/// Steps of all distances of 32 bits.
const ALL: usize = (STEPS + 28 * STEPS) as usize;

/// Sampled evicted pages, and the counted distances. All zeros: nothing seen.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Returns {
    /// Fetched pages by distance; a sample counts for all pages that it stands for.
    pages: [u64; ALL],
    gone: [u64; SAMPLES],
}

impl Returns {
    /// Nothing seen.
    pub const UNKNOWN: Returns = Returns { pages: [0; ALL], gone: [0; SAMPLES] };

    /// Remembers a page that left memory with the last eviction.
    pub fn evicted(&mut self, page: u64, clock: &Clock, budget_pages: u32) {
        if is_sampled(page, one_in(budget_pages)) {
            Ghosts::over(&mut self.gone).remember(page, clock);
        }
    }

    /// Counts a page that is fetched.
    pub fn fetched(&mut self, page: u64, clock: &Clock, budget_pages: u32) {
        let one_in = one_in(budget_pages);
        if !is_sampled(page, one_in) {
            return;
        }
        let distance = Ghosts::over(&mut self.gone).returned(page, clock);
        if let Some(count) = self.pages.get_mut(step(distance)).filter(|_| distance > 0) {
            *count = count.saturating_add(one_in.into());
        }
    }

    /// Smallest number of additional pages that would have kept `parts` sixteenths of `fetched` pages. `None` if the
    /// known distances are too few.
    pub fn pages_that_keep(&self, parts: u64, fetched: u64) -> Option<u64> {
        let wanted = u128::from(fetched) * u128::from(parts);
        let mut kept = 0_u64;
        let found = self.pages.iter().zip(0..).find(|(count, _)| {
            kept = kept.saturating_add(**count);
            kept > 0 && u128::from(kept) * 16 >= wanted
        });
        found.map(|(_, step)| last_of(step))
    }

    /// Number of fetched pages that so many additional pages would have kept.
    pub fn kept_by(&self, more_pages: u64) -> u64 {
        let steps = self.pages.iter().zip(0..).take_while(|(_, step)| last_of(*step) <= more_pages);
        steps.fold(0, |kept, (count, _)| kept.saturating_add(*count))
    }
}

/// A power of two, so that with another budget the samples of the larger number are among those of the smaller.
fn one_in(budget_pages: u32) -> u32 {
    (budget_pages / 64).max(1).checked_next_power_of_two().unwrap_or(1 << 31)
}

/// By other bits than those that choose the place in the table.
fn is_sampled(page: u64, one_in: u32) -> bool {
    (spread(page) >> 32) & u64::from(one_in - 1) == 0
}

/// Step of a distance.
fn step(distance: u32) -> usize {
    let octave = 31_u32.saturating_sub(distance.leading_zeros());
    let step = match octave {
        0..4 => distance,
        _ => STEPS + (octave - 4) * STEPS + ((distance >> (octave - 4)) & (STEPS - 1)),
    };
    index(step.into())
}

/// Largest distance of a step.
fn last_of(step: u64) -> u64 {
    let steps = u64::from(STEPS);
    match step.checked_sub(steps) {
        None => step,
        Some(above) => ((steps + above % steps + 1) << (above / steps)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    #[test]
    fn each_distance_has_a_step_that_holds_it_to_within_a_sixteenth() {
        let mut before = 0;
        for distance in (0..200_000).chain((18..32).map(|bit| (1 << bit) - 1)).chain([u32::MAX]) {
            let (step, distance) = (step(distance), u64::from(distance));
            assert!(step >= before && step < ALL, "{distance}");
            before = step;
            assert!((distance..=distance + distance / 16).contains(&last_of(step as u64)), "{distance}");
        }
    }

    /// First in, first out, over any sequence of pages.
    fn queue(budget: u32, pages: impl Iterator<Item = u64>) -> (Returns, u64) {
        let (mut returns, mut clock, mut fetched) = (Returns::UNKNOWN, Clock::default(), 0);
        let (mut queue, mut held) = (VecDeque::new(), HashSet::new());
        for page in pages {
            if !held.insert(page) {
                continue;
            }
            returns.fetched(page, &clock, budget);
            fetched += 1;
            queue.push_back(page);
            if queue.len() > budget as usize
                && let Some(old) = queue.pop_front()
            {
                held.remove(&old);
                clock.tick();
                returns.evicted(old, &clock, budget);
            }
        }
        (returns, fetched)
    }

    #[test]
    fn a_loop_needs_as_many_pages_as_it_has() {
        for (budget, all) in [(1024, 1100), (1024, 1500), (1024, 5000), (4096, 40_000), (512, 8000)] {
            let (returns, fetched) = queue(budget, (0..40 * all).map(|at| at % all));
            let more = returns.pages_that_keep(14, fetched).unwrap();
            let needs = u64::from(budget) + more;
            assert!((all - 1..=all + all / 16 + 1).contains(&needs), "{budget} {all}: {needs}");
            assert!(returns.kept_by(more) * 16 >= fetched * 14 && returns.kept_by(more / 2) == 0);
        }
    }

    #[test]
    fn pages_that_never_return_need_nothing() {
        let (returns, fetched) = queue(1024, 0..100_000);
        assert_eq!((returns.pages_that_keep(14, fetched), returns.kept_by(u64::MAX)), (None, 0));
    }

    #[test]
    fn a_small_loop_beside_rare_pages_needs_the_small_one() {
        let pages = (0..400_000).map(|at| if at % 20 == 0 { 1_000_000 + at } else { at % 2000 });
        let (returns, fetched) = queue(1024, pages);
        let needs = 1024 + returns.pages_that_keep(14, fetched).unwrap();
        assert!((1900..=2400).contains(&needs), "{needs}");
    }

    #[test]
    fn a_table_that_a_program_has_filled_with_anything_gives_some_answer() {
        let mut returns = Returns { pages: [u64::MAX; ALL], gone: [u64::MAX; SAMPLES] };
        for page in 0..100 {
            returns.evicted(page, &Clock::default(), u32::MAX);
            returns.fetched(page, &Clock::default(), 0);
        }
        assert_eq!(returns.kept_by(u64::MAX), u64::MAX);
        assert!(returns.pages_that_keep(14, u64::MAX).is_some());
    }
}
