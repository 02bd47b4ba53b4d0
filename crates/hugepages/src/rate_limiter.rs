//! Rate of acting and of scanning, low enough for the program not to notice. Pure.
//!
//! A promotion holds the program's mmap lock and blocks any thread that touches that window; the kernel may first
//! have to compact memory. So each call is followed by a pause that keeps the calls to a part of the time: a third
//! while they are quick, a quarter once they are slow (memory that the host has to find first). When a call takes
//! long enough to indicate compaction, pauses double until calls are quick again.
//!
//! No I/O, no clock, no randomness.

use std::time::Duration;

use units::NonZeroFraction;

/// Settings of the rate limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Largest fraction of the time inside promoting calls while they are quick.
    pub busy_fraction: NonZeroFraction,
    /// The same while they are slow.
    pub busy_fraction_slow: NonZeroFraction,
    /// A window that took longer than this is slow.
    pub slow_window: Duration,
    /// A window that took longer than this waited for compaction.
    pub compacting_window: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// Largest fraction of one processor for watching a settled program.
    pub watch_fraction: NonZeroFraction,
    /// Shortest and longest time between two scans of a settled program.
    pub watch_every: (Duration, Duration),
}

/// Values used for the figures under `bench/`.
pub const MEASURED: Settings = Settings {
    busy_fraction: NonZeroFraction::ratio(1, 3),
    busy_fraction_slow: NonZeroFraction::ratio(1, 4),
    slow_window: Duration::from_millis(2),
    compacting_window: Duration::from_millis(20),
    pause_max: Duration::from_secs(2),
    watch_fraction: NonZeroFraction::ratio(1, 200),
    watch_every: (Duration::from_secs(10), Duration::from_secs(600)),
};

/// Rate of one run of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimiter {
    compacting_in_a_row: u32,
}

impl RateLimiter {
    /// Pause after a window that took `took`.
    pub fn pause_after(&mut self, took: Duration, s: Settings) -> Duration {
        let busy = if took <= s.slow_window { s.busy_fraction } else { s.busy_fraction_slow };
        let even = took.mul_f64(1.0 / busy.get() - 1.0);
        if took <= s.compacting_window {
            self.compacting_in_a_row = 0;
            return even.min(s.pause_max);
        }
        let backed_off = even.saturating_mul(1 << self.compacting_in_a_row.min(10));
        self.compacting_in_a_row = self.compacting_in_a_row.saturating_add(1);
        backed_off.min(s.pause_max)
    }
}

/// Wait before the next scan of a settled program, when the last such round cost `spent` of processor time.
pub fn watch_again_after(spent: Duration, s: Settings) -> Duration {
    let (shortest, longest) = s.watch_every;
    spent.div_f64(s.watch_fraction.get()).clamp(shortest, longest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_third_of_the_time_is_one_part_call_and_two_parts_pause() {
        let pause = RateLimiter::default().pause_after(ms(1), MEASURED);
        assert!(pause.abs_diff(ms(2)) < Duration::from_micros(1), "{pause:?}");
    }

    #[test]
    fn a_slow_call_is_one_part_of_four() {
        let pause = RateLimiter::default().pause_after(ms(5), MEASURED);
        assert!(pause.abs_diff(ms(15)) < Duration::from_micros(1), "{pause:?}");
    }

    #[test]
    fn compaction_in_a_row_doubles_the_pause_and_a_quick_call_forgets_it() {
        let mut limiter = RateLimiter::default();
        let s = Settings { busy_fraction_slow: NonZeroFraction::ratio(1, 2), pause_max: ms(10_000), ..MEASURED };
        let pauses = [30, 30, 30, 10, 30].map(|took| limiter.pause_after(ms(took), s));
        assert_eq!(pauses, [ms(30), ms(60), ms(120), ms(10), ms(30)]);
    }

    #[test]
    fn a_round_of_100_ms_at_half_a_percent_waits_20_seconds() {
        assert_eq!(watch_again_after(ms(100), MEASURED), Duration::from_secs(20));
        assert_eq!(watch_again_after(ms(1), MEASURED), Duration::from_secs(10));
    }

    proptest! {
        #[test]
        fn calls_never_take_more_than_their_part_until_the_longest_pause(took_us in 1u64..100_000, calls in 1usize..20) {
            let mut limiter = RateLimiter::default();
            let took = Duration::from_micros(took_us);
            for _ in 0..calls {
                let pause = limiter.pause_after(took, MEASURED);
                let part = took.as_secs_f64() / (took + pause).as_secs_f64();
                prop_assert!(pause == MEASURED.pause_max || part <= MEASURED.busy_fraction.get() + 1e-6);
                prop_assert!(pause <= MEASURED.pause_max);
            }
        }
    }
}
