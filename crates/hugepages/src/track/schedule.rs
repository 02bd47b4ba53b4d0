//! When a tracked program is looked at, and when it is left alone.
//!
//! A round looks at doubling ages up to the program's own period, the last look at the period's end. Then it rests: until the
//! next round is due by its own terms, and for as long as keeps the watching of it below a part of one processor
//! ([`Settings::cpu_fraction`]): a program may not have the tracker to itself by asking for much. One that has settled, and
//! named no time between rounds, is watched as `masu attach` watches.
//!
//! No I/O, no clock, no randomness.

use std::time::Duration;

use access::estimate;
use libmasu::track::terms::Terms;
use quantities::NonZeroFraction;

use crate::pace;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The most of one processor that watching one program may cost.
    pub cpu_fraction: NonZeroFraction,
    /// How settled programs are watched.
    pub pace: pace::Settings,
}

/// The age of the next look after the one at `last`; `None` when that was the last of a round of this length.
pub fn next_look(last: Option<Duration>, length: Duration) -> Option<Duration> {
    if last.is_some_and(|last| last >= length) {
        return None;
    }
    // The last look but one is half the length old at least: two looks close to each other show nothing new.
    let next = estimate::next_look(last);
    Some(if next * 4 > length * 3 { length } else { next })
}

/// How long a round looks: the program's period; in one that has settled at least `watch`.
pub fn length(terms: Terms, watch: Duration) -> Duration {
    Duration::from_millis(u64::from(terms.period_ms)).max(watch)
}

/// How long a settled program is watched in one round, when the last one cost `spent`.
pub fn watch(terms: Terms, settled: bool, spent: Duration, s: Settings) -> Duration {
    if settled && terms.every_ms == 0 { pace::watch_again_after(spent, s.pace) } else { Duration::ZERO }
}

/// How long it rests after a round that took `took` and cost `spent` of processor time.
pub fn rest(terms: Terms, took: Duration, spent: Duration, s: Settings) -> Duration {
    let own = Duration::from_millis(u64::from(terms.every_ms)).saturating_sub(took);
    let fair = spent.div_f64(s.cpu_fraction.get()).saturating_sub(took);
    own.max(fair)
}

#[cfg(test)]
mod tests {
    use libmasu::track::terms::USUAL;
    use proptest::prelude::*;

    use super::*;

    const S: Settings = Settings { cpu_fraction: NonZeroFraction::ratio(1, 10), pace: pace::MEASURED };

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn looks(length: Duration) -> Vec<u128> {
        let mut ages = Vec::new();
        let mut last = None;
        while let Some(next) = next_look(last, length) {
            ages.push(next.as_millis());
            last = Some(next);
        }
        ages
    }

    #[test]
    fn looks_double_and_the_last_is_at_the_end_of_the_period() {
        assert_eq!(looks(ms(1280)), [10, 20, 40, 80, 160, 320, 640, 1280]);
        assert_eq!(looks(ms(1000)), [10, 20, 40, 80, 160, 320, 640, 1000]);
        assert_eq!(looks(ms(10)), [10]);
        assert_eq!(looks(ms(13)), [13]);
    }

    #[test]
    fn a_program_that_asks_for_much_rests_until_its_share_has_come_round() {
        assert_eq!(rest(USUAL, ms(1280), ms(16), S), ms(0));
        assert_eq!(rest(USUAL, ms(100), ms(50), S), ms(400));
        assert_eq!(rest(Terms { every_ms: 5000, ..USUAL }, ms(1280), ms(16), S), ms(3720));
    }

    #[test]
    fn a_settled_program_is_watched_for_longer_unless_it_named_a_time() {
        assert_eq!(watch(USUAL, true, ms(20), S), Duration::from_secs(10));
        assert_eq!(watch(USUAL, false, ms(20), S), Duration::ZERO);
        assert_eq!(watch(Terms { every_ms: 2000, ..USUAL }, true, ms(20), S), Duration::ZERO);
        assert_eq!(length(USUAL, Duration::from_secs(10)), Duration::from_secs(10));
    }

    proptest! {
        #[test]
        fn every_round_comes_to_its_end_in_growing_steps(length in 10u64..700_000) {
            let ages = looks(ms(length));
            prop_assert_eq!(*ages.last().unwrap(), u128::from(length));
            prop_assert!(ages.is_sorted() && ages.len() < 20);
        }

        #[test]
        fn no_program_costs_more_than_its_share(took in 0u64..100_000, spent in 0u64..100_000) {
            let spent = spent.min(took.max(1));
            let whole = ms(took) + rest(USUAL, ms(took), ms(spent), S);
            prop_assert!(ms(spent).as_secs_f64() <= whole.as_secs_f64() * 0.1 + 1e-6);
        }
    }
}
