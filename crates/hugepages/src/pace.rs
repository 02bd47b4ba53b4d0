//! How fast to act and how seldom to look, so that the program does not feel it.
//!
//! A promotion holds the program's mmap lock and makes whoever touches that window wait; the kernel may first have to
//! compact memory. So each call is followed by a pause that keeps the calls to a part of the time, and a slow call, the
//! sign of compaction, by pauses that double until calls are quick again.
//!
//! No I/O, no clock, no randomness.

use std::time::Duration;

use quantities::NonZeroFraction;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The most of the time that may pass inside promoting calls.
    pub busy_fraction: NonZeroFraction,
    /// A call that took longer than this, per window, is slow.
    pub slow_window: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The most of one processor that watching a settled program may cost.
    pub watch_fraction: NonZeroFraction,
    /// The shortest and the longest time between two looks at a settled program.
    pub watch_every: (Duration, Duration),
}

/// What the figures under `bench/` were measured with.
pub const MEASURED: Settings = Settings {
    busy_fraction: NonZeroFraction::ratio(1, 3),
    slow_window: Duration::from_millis(4),
    pause_max: Duration::from_millis(500),
    watch_fraction: NonZeroFraction::ratio(1, 200),
    watch_every: (Duration::from_secs(10), Duration::from_secs(600)),
};

/// The pace of one run of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    slow_in_a_row: u32,
}

impl Pace {
    /// How long to leave the program alone after a call that took `took`.
    pub fn pause_after(&mut self, took: Duration, s: Settings) -> Duration {
        let idle_part = 1.0 / s.busy_fraction.get() - 1.0;
        let even = took.mul_f64(idle_part);
        if took <= s.slow_window {
            self.slow_in_a_row = 0;
            return even.min(s.pause_max);
        }
        let backed_off = s.slow_window.saturating_mul(1 << self.slow_in_a_row.min(10));
        self.slow_in_a_row = self.slow_in_a_row.saturating_add(1);
        even.max(backed_off).min(s.pause_max)
    }
}

/// How long to wait before looking at a settled program again, when the last such round cost `spent` of processor time.
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
        let pause = Pace::default().pause_after(ms(1), MEASURED);
        assert!(pause.abs_diff(ms(2)) < Duration::from_micros(1), "{pause:?}");
    }

    #[test]
    fn slow_calls_in_a_row_double_the_pause_and_a_quick_one_forgets_them() {
        let mut pace = Pace::default();
        let s = Settings { busy_fraction: NonZeroFraction::ONE, ..MEASURED };
        let pauses = [5, 5, 5, 1, 5].map(|took| pace.pause_after(ms(took), s));
        assert_eq!(pauses, [ms(4), ms(8), ms(16), ms(0), ms(4)]);
    }

    #[test]
    fn a_round_of_100_ms_at_half_a_percent_waits_20_seconds() {
        assert_eq!(watch_again_after(ms(100), MEASURED), Duration::from_secs(20));
        assert_eq!(watch_again_after(ms(1), MEASURED), Duration::from_secs(10));
    }

    proptest! {
        #[test]
        fn calls_never_take_more_than_their_part_until_the_longest_pause(took_us in 1u64..100_000, calls in 1usize..20) {
            let mut pace = Pace::default();
            let took = Duration::from_micros(took_us);
            for _ in 0..calls {
                let pause = pace.pause_after(took, MEASURED);
                let part = took.as_secs_f64() / (took + pause).as_secs_f64();
                prop_assert!(pause == MEASURED.pause_max || part <= MEASURED.busy_fraction.get() + 1e-6);
                prop_assert!(pause <= MEASURED.pause_max);
            }
        }
    }
}
