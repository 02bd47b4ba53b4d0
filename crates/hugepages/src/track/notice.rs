//! Time of a program's notification of active pages. Pure.
//!
//! A program is notified at its number of active pages, and not again before it has fetched the list. Unhandled
//! signals would pile up, and the fetched list is the latest in any case. None is lost for good. A signal that could
//! not be queued, or that was not handled for long (a handler that came at a bad time, a stopped program), is sent
//! again, at growing intervals.
//!
//! No I/O, no clock, no randomness.

use std::time::Duration;

/// Time without a fetch after which the program is notified again; it doubles each time.
pub const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Upper bound of that time.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(64);

/// State of a program's notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Time of the last notification since the last fetch, and the number of notifications since then.
    notified: Option<(Duration, u32)>,
    /// An unfetched list exists.
    waiting: bool,
    /// Signals sent.
    signals: u64,
}

impl Notice {
    /// Ends a round with `active` pages; the program wants notifications from `threshold` on. True when a list is to
    /// be prepared. Below the threshold an earlier prepared list is withdrawn: it is out of date. A notification
    /// without a fetch still counts: otherwise a number that swings would be notified each time.
    pub fn after_round(&mut self, active: u64, threshold: u64) -> bool {
        self.waiting = active >= threshold;
        self.waiting
    }

    /// Whether a notification is due at `now`.
    pub fn is_due(&self, now: Duration) -> bool {
        let is_retry_due =
            |(at, times): (Duration, u32)| now >= at + (RETRY_AFTER * (1 << (times - 1).min(8))).min(RETRY_AFTER_MAX);
        self.waiting && self.notified.is_none_or(is_retry_due)
    }

    /// Records a notification, or an attempt, at `now`: the next one comes later.
    pub fn notified(&mut self, now: Duration) {
        let times = self.notified.map_or(0, |(_, times)| times);
        self.notified = Some((now, times.saturating_add(1)));
    }

    /// Counts a sent signal.
    pub fn sent(&mut self) {
        self.signals += 1;
    }

    /// Number of signals sent.
    pub fn signals(&self) -> u64 {
        self.signals
    }

    /// Records a fetch: true if there was a list.
    pub fn fetched(&mut self) -> bool {
        self.notified = None;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_program_is_notified_once_and_again_only_after_a_fetch() {
        let mut notice = Notice::default();
        assert!(!notice.after_round(9, 10) && !notice.is_due(s(0)));
        assert!(notice.after_round(10, 10) && notice.is_due(s(1)));
        notice.notified(s(1));
        assert!(notice.after_round(11, 10) && !notice.is_due(s(2)), "coalesced");
        assert!(notice.fetched() && !notice.fetched());
        assert!(!notice.is_due(s(2)), "there is nothing new");
        assert!(notice.after_round(10, 10) && notice.is_due(s(2)));
    }

    #[test]
    fn an_unanswered_notification_is_repeated_at_growing_intervals() {
        let mut notice = Notice::default();
        notice.after_round(1, 1);
        let mut sent = Vec::new();
        for second in 0..300 {
            if notice.is_due(s(second)) {
                notice.notified(s(second));
                sent.push(second);
            }
        }
        assert_eq!(sent, [0, 2, 6, 14, 30, 62, 126, 190, 254]);
    }

    #[test]
    fn an_outdated_list_is_not_notified() {
        let mut notice = Notice::default();
        notice.after_round(10, 10);
        notice.after_round(3, 10);
        assert!(!notice.is_due(s(5)) && !notice.fetched());
    }

    #[test]
    fn a_number_that_swings_around_the_threshold_does_not_make_signals_pile_up() {
        let mut notice = Notice::default();
        let mut sent = 0;
        for second in 0..1000 {
            notice.after_round(if second % 2 == 0 { 10 } else { 9 }, 10);
            if notice.is_due(s(second)) {
                notice.notified(s(second));
                sent += 1;
            }
        }
        assert!(sent < 25, "{sent} signals");
    }

    proptest! {
        #[test]
        fn a_waiting_list_is_notified_within_the_longest_interval(
            steps in prop::collection::vec((0u8..4, 1u64..30), 1..100)
        ) {
            let mut notice = Notice::default();
            let (mut now, mut since) = (Duration::ZERO, None);
            for (what, wait) in steps {
                now += s(wait);
                match what {
                    0 => { notice.after_round(5, 5); since.get_or_insert(now); }
                    1 => { notice.after_round(1, 5); since = None; }
                    2 => { notice.fetched(); since = None; }
                    _ => if notice.is_due(now) { notice.notified(now); since = since.map(|_| now); }
                }
                if let Some(since) = since {
                    prop_assert!(notice.is_due(since + RETRY_AFTER_MAX));
                }
            }
        }
    }
}
