//! Wait before a window that others split is promoted again. Pure.
//!
//! A fork shares the pages of a program, and the first write to a shared huge page splits it. A promotion copies 2 MiB,
//! and the program waits meanwhile: where children come every second, each promotion of such a window is lost work. So
//! a window that did not stay huge for [`LASTING`] waits, twice as long after each such promotion in a row. One that
//! did stay so long is promoted again at once.
//!
//! No I/O, no clock, no randomness.

use std::time::Duration;

/// Time as a huge page after which a promotion was worth its copy: some ten thousand times the cost of one.
pub const LASTING: Duration = Duration::from_secs(10);
/// Wait after the first promotion that did not last.
pub const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
pub const LONGEST_WAIT: Duration = Duration::from_secs(64);

/// Promotions of one window by masu.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// Time of the last promotion.
    promoted_at: Duration,
    /// Promotions in a row that did not last.
    short_lived: u32,
    /// Time from which it may be promoted again.
    again_at: Duration,
}

impl Repeats {
    /// Records a promotion at `now`.
    pub fn promoted(&mut self, now: Duration) {
        self.promoted_at = now;
    }

    /// Records that others had split the window by `now`.
    pub fn split_by_others(&mut self, now: Duration) {
        let lasted = now.saturating_sub(self.promoted_at);
        self.short_lived = if lasted >= LASTING { 0 } else { self.short_lived.saturating_add(1) };
        self.again_at = now.saturating_add(wait(self.short_lived));
    }

    /// Whether it may be promoted at `now`.
    pub fn may_promote(&self, now: Duration) -> bool {
        now >= self.again_at
    }
}

/// Wait after so many promotions in a row that did not last: none, 1 s, 2 s, 4 s and so on.
pub fn wait(short_lived: u32) -> Duration {
    match short_lived.checked_sub(1) {
        None => Duration::ZERO,
        Some(before) => FIRST_WAIT.saturating_mul(1 << before.min(30)).min(LONGEST_WAIT),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Times of the promotions of a window, each as early as allowed, that stays huge for these times.
    fn promotions(lasting_ms: &[u64]) -> Vec<Duration> {
        let (mut window, mut now) = (Repeats::default(), Duration::ZERO);
        let promote = |lasted: &u64| {
            now = now.max(window.again_at);
            assert!(window.may_promote(now));
            window.promoted(now);
            let at = now;
            now += ms(*lasted);
            window.split_by_others(now);
            at
        };
        lasting_ms.iter().map(promote).collect()
    }

    #[test]
    fn the_wait_doubles_up_to_a_minute() {
        assert_eq!([0, 1, 2, 3, 7, 8, u32::MAX].map(|n| wait(n).as_secs()), [0, 1, 2, 4, 64, 64, 64]);
    }

    #[test]
    fn forks_five_times_a_second_cost_four_promotions_in_fourteen_seconds() {
        let seconds: Vec<u128> = promotions(&[200; 5]).iter().map(Duration::as_millis).collect();
        assert_eq!(seconds, [0, 1200, 3400, 7600, 15_800]);
    }

    #[test]
    fn a_window_that_was_huge_for_long_is_promoted_again_at_once() {
        assert_eq!(promotions(&[200, 10_000, 10_000]), [0, 1200, 11_200].map(ms));
    }

    proptest! {
        #[test]
        fn no_window_is_promoted_more_than_once_in_four_seconds_on_average(
            lasting in prop::collection::vec(prop_oneof![0u64..3000, 9000u64..11_000], 1..200)
        ) {
            let all = promotions(&lasting);
            let time = all.last().copied().unwrap_or_default();
            prop_assert!(all.len() as u64 <= time.as_secs() / 4 + 4, "{} in {time:?}", all.len());
        }

        #[test]
        fn the_wait_never_shrinks_while_promotions_do_not_last(lasting in prop::collection::vec(0u64..10_000, 2..60)) {
            let mut window = Repeats::default();
            let (mut now, mut before) = (Duration::ZERO, Duration::ZERO);
            for lasted in lasting {
                window.promoted(now);
                now += ms(lasted);
                window.split_by_others(now);
                let wait = window.again_at - now;
                prop_assert!(wait >= before && wait <= LONGEST_WAIT);
                (before, now) = (wait, window.again_at);
            }
        }
    }
}
