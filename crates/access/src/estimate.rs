//! Access rate of a page, from the age at which it was first seen touched. Pure.
//!
//! HPS (section 5.1.1) clears the accessed bits, waits, reads, adds one to `acscount`, and repeats: its count is the
//! number of rounds with an access. We clear once and scan at growing ages a₁ < a₂ < … < aₙ. A page first seen young
//! at the kth scan would have been seen at every later one, so its count is n − k + 1 of n, and its rate follows from
//! the interval (aₖ₋₁, aₖ] of its first access: for accesses that come independently at rate λ, the value that makes
//! that interval most likely,
//!
//! ```text
//! λ = ln(aₖ / aₖ₋₁) / (aₖ − aₖ₋₁)
//! ```
//!
//! and for the first scan, whose interval starts at zero, the rate at which half of such pages would have been seen:
//! λ = ln 2 / a₁ (a lower bound: a page may be touched any number of times before the first scan).
//!
//! | paper      | here             | unit                                  |
//! | `acscount` | `accessed_reads` | scans that saw the page young         |
//! | —          | `rate`           | accesses that cost a page walk, per s |
//!
//! No I/O, no clock, no randomness.

use std::time::Duration;

use units::Rate;

/// Age of the first scan.
pub const FIRST_SCAN: Duration = Duration::from_millis(10);

/// Longest observation after one clear. A page touched less often than about every ten seconds is not hot.
pub const LAST_SCAN: Duration = Duration::from_millis(10_240);

/// Age of the next scan: twice the age of the last one; 10 ms after a clear.
pub fn next_scan(last: Option<Duration>) -> Duration {
    last.map_or(FIRST_SCAN, |age| age.saturating_mul(2))
}

/// Rate of a page first seen young between `unseen` (zero: the clear itself) and `seen`.
pub fn rate_between(unseen: Duration, seen: Duration) -> Rate {
    let (a, b) = (unseen.as_secs_f64(), seen.as_secs_f64());
    if b <= 0.0 {
        return Rate::ZERO;
    }
    if a <= 0.0 {
        return Rate::per_second(std::f64::consts::LN_2 / b);
    }
    if b <= a {
        return Rate::per_second(1.0 / a);
    }
    Rate::per_second((b / a).ln() / (b - a))
}

/// Rate of a page that was found touched in `hits` of `samples` independent checks, each over `interval`: for
/// accesses at rate λ, a check misses all with probability e^(−λ·interval). If all are hits, one miss in twice as
/// many checks is assumed, so that the answer stays finite.
pub fn rate_of_hits(hits: u32, samples: u32, interval: Duration) -> Rate {
    if hits == 0 || samples == 0 || interval.is_zero() {
        return Rate::ZERO;
    }
    let missed = 1.0 - f64::from(hits.min(samples)) / f64::from(samples);
    let missed = missed.max(0.5 / f64::from(samples));
    Rate::per_second(-missed.ln() / interval.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn scans_come_at_doubling_ages() {
        let mut age = None;
        let mut all = Vec::new();
        while age.unwrap_or_default() < LAST_SCAN {
            age = Some(next_scan(age));
            all.extend(age.map(|a| a.as_millis()));
        }
        assert_eq!(all, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240]);
    }

    #[test]
    fn a_page_first_seen_between_one_and_two_seconds_is_touched_every_1_44_seconds() {
        // ln 2 / 1 s = 0.693 /s, which is also where e^(−λ·1 s) − e^(−λ·2 s) is largest.
        assert!((rate_between(ms(1000), ms(2000)).get() - std::f64::consts::LN_2).abs() < 1e-9);
    }

    #[test]
    fn the_first_scan_gives_a_lower_bound() {
        assert!((rate_between(Duration::ZERO, ms(10)).get() - 69.3147).abs() < 1e-3);
    }

    #[test]
    fn half_the_hits_of_100_ms_samples_are_6_9_per_second() {
        assert!((rate_of_hits(10, 20, ms(100)).get() - 6.931_47).abs() < 1e-4);
        assert_eq!(rate_of_hits(0, 20, ms(100)), Rate::ZERO);
    }

    proptest! {
        #[test]
        fn a_later_first_scan_never_means_a_higher_rate(a in 1u64..10_000, step in 1u64..10_000, later in 1u64..10_000) {
            let early = rate_between(ms(a), ms(a + step));
            let late = rate_between(ms(a + step), ms(a + step + later));
            prop_assert!(late <= early);
        }

        #[test]
        fn more_hits_never_mean_a_lower_rate(samples in 1u32..100, hits in 0u32..100) {
            let fewer = rate_of_hits(hits, samples, ms(5));
            let more = rate_of_hits(hits + 1, samples, ms(5));
            prop_assert!(more >= fewer);
            prop_assert!(more.get().is_finite());
        }

        #[test]
        fn the_estimate_is_where_the_interval_is_most_likely(a in 1u64..5_000, step in 1u64..5_000, other in 0.1f64..10.0) {
            let (from, to) = (ms(a).as_secs_f64(), ms(a + step).as_secs_f64());
            let likelihood = |rate: f64| (-rate * from).exp() - (-rate * to).exp();
            let best = rate_between(ms(a), ms(a + step)).get();
            prop_assert!(likelihood(best) >= likelihood(best * other) - 1e-12);
        }
    }
}
