//! Times of scanning a tracked program, and of leaving it alone. Pure.
//!
//! A round scans at doubling ages up to the program's own period, with a scan at the period's end, from which its
//! list is made. Then the round rests: until the next one is due by the session parameters, and long enough to keep
//! the cost of watching below a part of one processor ([`Settings::cpu_fraction`]): a program may not occupy the
//! tracker by asking for much. The cost of promotion does not delay scans: promotion has its own rate limit, and only
//! repeated promotion is owed ([`Debt`]). A settled program without a time between rounds is watched in longer
//! rounds, as in `masu attach`.
//!
//! A round of a few milliseconds cannot tell whether a huge window is idle. So a program with short rounds, and with
//! windows that could be split, gets a longer round at intervals ([`LONG`]).
//!
//! No I/O, no clock, no randomness.

use std::time::Duration;

use access::estimate;
use contract::track::terms::Terms;
use units::cast::saturated;
use units::{Bytes, NonZeroFraction, PAGES_PER_WINDOW};

use crate::rate_limiter;

/// Settings of the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Largest fraction of one processor for watching one program.
    pub cpu_fraction: NonZeroFraction,
    /// Rate limiter of watching settled programs.
    pub rate: rate_limiter::Settings,
}

/// Observation after which an untouched window counts as idle: the shortest first round of `masu attach`.
pub const LONG: Duration = Duration::from_millis(1280);

/// Interval of rounds of that length for a program with shorter rounds, if it has windows that could be split.
pub const LONG_EVERY: Duration = Duration::from_secs(10);

/// Length of one observation, as the program asked for it.
pub fn period(terms: Terms) -> Duration {
    Duration::from_millis(u64::from(terms.period_ms))
}

/// Age of the scan after the one at `last`; `None` when that was the last of the round. The round has `length`, at
/// least `period`, and there is a scan at the end of `period`, too.
pub fn next_scan(last: Option<Duration>, period: Duration, length: Duration) -> Option<Duration> {
    if last.is_some_and(|last| last >= length) {
        return None;
    }
    let end = if last.is_some_and(|last| last >= period) { length } else { period };
    // The scan before the one at `end` has at most three quarters of its age: two scans close to each other show
    // nothing new.
    let next = estimate::next_scan(last);
    Some(if next * 4 > end * 3 { end } else { next })
}

/// Length of a round. `spent` is the cost of the last one; `is_long_due` is true when a round long enough to find
/// idle windows is due.
pub fn length(terms: Terms, settled: bool, spent: Duration, is_long_due: bool, s: Settings) -> Duration {
    let may_watch = settled && terms.every_ms == 0;
    let watch = spent.div_f64(s.rate.watch_fraction.get()).min(s.rate.watch_every.1);
    let on = if may_watch { watch } else { Duration::ZERO };
    period(terms).max(on).max(if is_long_due { LONG } else { Duration::ZERO })
}

/// Rest after a round that took `took` and cost `spent` of processor time for scanning.
pub fn rest(terms: Terms, took: Duration, spent: Duration, s: Settings) -> Duration {
    let own = Duration::from_millis(u64::from(terms.every_ms)).saturating_sub(took);
    let fair = spent.div_f64(s.cpu_fraction.get()).saturating_sub(took);
    own.max(fair)
}

/// Cost of a program to the tracker, not yet paid for with rest.
///
/// Making all of a large program huge at once may take seconds, which is no reason to stop scanning it for minutes. A
/// program that splits its windows repeatedly has them promoted only at the rate of its scans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    owed: Duration,
}

/// Allowed overdraft for each 2 MiB of the program's memory: enough to promote all of it once, even where the host of
/// a virtual machine has to find the memory first.
pub const OWED_PER_WINDOW: Duration = Duration::from_millis(5);

impl Debt {
    /// Adds a round that cost `spent`, scanning and acting, and ended `passed` after the one before; `memory` is the
    /// program's. Returns the least rest.
    pub fn rest(&mut self, spent: Duration, passed: Duration, memory: Bytes, s: Settings) -> Duration {
        self.owed = (self.owed + spent).saturating_sub(passed.mul_f64(s.cpu_fraction.get()));
        let windows = saturated(memory.pages().0 / PAGES_PER_WINDOW as u64);
        self.owed.saturating_sub(OWED_PER_WINDOW.saturating_mul(windows)).div_f64(s.cpu_fraction.get())
    }
}

#[cfg(test)]
mod tests {
    use contract::track::terms::USUAL;
    use proptest::prelude::*;

    use super::*;

    const S: Settings = Settings { cpu_fraction: NonZeroFraction::ratio(1, 10), rate: rate_limiter::MEASURED };

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn scans(period: Duration, length: Duration) -> Vec<u128> {
        let mut ages = Vec::new();
        let mut last = None;
        while let Some(next) = next_scan(last, period, length) {
            ages.push(next.as_millis());
            last = Some(next);
        }
        ages
    }

    #[test]
    fn scans_double_and_the_last_is_at_the_end_of_the_period() {
        assert_eq!(scans(ms(1280), ms(1280)), [10, 20, 40, 80, 160, 320, 640, 1280]);
        assert_eq!(scans(ms(1000), ms(1000)), [10, 20, 40, 80, 160, 320, 640, 1000]);
        assert_eq!(scans(ms(10), ms(10)), [10]);
        assert_eq!(scans(ms(13), ms(13)), [13]);
        assert_eq!(scans(ms(100), ms(1280)), [10, 20, 40, 100, 200, 400, 800, 1280]);
        assert_eq!(scans(ms(1000), ms(1280)), [10, 20, 40, 80, 160, 320, 640, 1000, 1280]);
    }

    #[test]
    fn a_program_that_asks_for_much_rests_until_its_share_has_come_round() {
        assert_eq!(rest(USUAL, ms(1280), ms(16), S), ms(0));
        assert_eq!(rest(USUAL, ms(100), ms(50), S), ms(400));
        assert_eq!(rest(Terms { every_ms: 5000, ..USUAL }, ms(1280), ms(16), S), ms(3720));
    }

    #[test]
    fn a_settled_program_is_watched_for_longer_unless_it_named_a_time() {
        assert_eq!(length(USUAL, true, ms(20), false, S), ms(4000), "half a percent of a processor");
        assert_eq!(length(USUAL, true, ms(1), false, S), ms(1280), "a small one costs so little anyway");
        assert_eq!(length(USUAL, false, ms(20), false, S), ms(1280));
        assert_eq!(length(Terms { every_ms: 2000, ..USUAL }, true, ms(20), false, S), ms(1280));
        assert_eq!(length(Terms { period_ms: 10, ..USUAL }, false, ms(1), true, S), LONG);
    }

    #[test]
    fn a_large_program_is_made_huge_once_without_a_rest_and_then_at_the_pace_of_watching() {
        let (mut debt, memory) = (Debt::default(), Bytes::mib(2000));
        let mut rest = |spent, passed| debt.rest(ms(spent), ms(passed), memory, S);
        assert_eq!(rest(5000, 0), ms(0), "1000 windows, 5 ms each");
        assert_eq!(rest(500, 0), ms(5000), "and again: a tenth of a processor");
        assert_eq!(rest(0, 5000), ms(0));
        assert_eq!(rest(1000, 20_000), ms(0), "the debt is paid over time");
    }

    #[test]
    fn memory_that_is_spread_thinly_over_windows_pays_for_what_it_is() {
        assert_eq!(Debt::default().rest(ms(50), ms(0), Bytes::mib(4), S), ms(400));
    }

    proptest! {
        #[test]
        fn every_round_scans_at_its_period_and_at_its_end_in_growing_steps(period in 10u64..600_000, on in 0u64..600_000) {
            let length = period + on;
            let ages = scans(ms(period), ms(length));
            prop_assert!(ages.contains(&u128::from(period)));
            prop_assert_eq!(*ages.last().unwrap(), u128::from(length));
            prop_assert!(ages.is_sorted() && ages.len() < 32);
        }

        #[test]
        fn no_program_costs_more_than_its_share(took in 0u64..100_000, spent in 0u64..100_000) {
            let spent = spent.min(took.max(1));
            let whole = ms(took) + rest(USUAL, ms(took), ms(spent), S);
            prop_assert!(ms(spent).as_secs_f64() <= whole.as_secs_f64() * 0.1 + 1e-6);
        }

        #[test]
        fn a_program_whose_windows_are_promoted_repeatedly_costs_no_more_than_its_share(
            rounds in prop::collection::vec((0u64..300, 0u64..300), 200..300), memory in 0u64..200,
        ) {
            let (mut debt, mut time, mut last, mut cost) = (Debt::default(), ms(0), ms(0), ms(0));
            let memory = Bytes::mib(memory);
            for (scanned, acted) in rounds {
                let took = ms(300 + acted);
                cost += ms(scanned + acted);
                time += took;
                let passed = time - std::mem::replace(&mut last, time);
                let owed = debt.rest(ms(scanned + acted), passed, memory, S);
                time += rest(USUAL, took, ms(scanned), S).max(owed);
            }
            let once = ms(5 * (memory.pages().0 / 512));
            prop_assert!(cost <= time.mul_f64(0.1) + once + ms(1), "{cost:?} in {time:?}");
        }
    }
}
