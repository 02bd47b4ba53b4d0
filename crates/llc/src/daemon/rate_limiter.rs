//! Rate limiter of the threads that keep a shared partition warm.
//!
//! Pure: time comes in as an argument. A line that was flushed and touched is in the partition until it is evicted,
//! so most checks find nothing to do, and checks become rarer. The CPU time is bounded: a refill that took a
//! hundredth of a second is followed, at a duty of one percent, by a second of rest.
//!
//! | here        | unit                                        | source |
//! |-------------|---------------------------------------------|--------|
//! | `duty`      | CPU time per wall time, one thread, 0 to 1  | configuration; 0.01 |
//! | `allowance` | CPU time to spend now; below 0 after a long piece | `duty` · time, at most that of [`SAVED`] |
//! | `missing`   | bytes of the group outside the partition | the group, less `llc_occupancy`; or by sampled loads |

use std::time::Duration;

use units::{Bytes, Fraction};

/// Greatest time over which unused allowance accumulates.
pub const SAVED: Duration = Duration::from_secs(10);
/// The first rest after a check that found nothing to do; each further one is twice as long, up to the last.
pub const REST_MIN: Duration = Duration::from_millis(50);
/// The longest rest.
pub const REST_MAX: Duration = Duration::from_secs(2);
/// Fraction of a sharing group that may be missing without a refill: occupancy is counted in pieces, and samples
/// scatter.
const TOLERATED: f64 = 1.0 / 32.0;

/// Longest rest to pay off an overdraft.
const DEBT_MAX_S: f64 = 3600.0;

/// Knowledge about the part of a sharing group in its partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Held {
    /// Occupancy of the partition's monitoring group.
    Measured(Bytes),
    /// Fraction of loaded and timed lines that came from a cache.
    Sampled(Fraction),
    /// No measurement.
    Unknown,
}

/// Next action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// Rest for this time.
    Rest(Duration),
    /// Flush and touch, up to this number of bytes or this CPU time, whichever is first.
    WarmUp {
        /// Missing bytes.
        bytes: Bytes,
        /// CPU time that may be spent.
        time: Duration,
    },
}

/// Rate limiter of one thread.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    duty: f64,
    /// In seconds; below 0 after an overdraft.
    allowance_s: f64,
    looked: Duration,
    /// Number of checks in a row that found nothing to do.
    quiet: u32,
}

impl RateLimiter {
    /// Rate limiter that begins at `now`.
    pub fn new(duty: Fraction, now: Duration) -> RateLimiter {
        RateLimiter { duty: duty.get(), allowance_s: 0.0, looked: now, quiet: 0 }
    }

    /// Next action at `now`, with `held` of `wanted` in the partition. `new` bytes are known to be missing: they were
    /// never placed.
    pub fn turn(&mut self, now: Duration, held: Held, wanted: Bytes, new: Bytes) -> Phase {
        self.earn(now);
        let missing = missing(held, wanted).max(new);
        if missing == Bytes(0) {
            let rest = REST_MIN.saturating_mul(1 << self.quiet.min(16)).min(REST_MAX);
            self.quiet += 1;
            return Phase::Rest(rest);
        }
        self.quiet = 0;
        if self.allowance_s <= 0.0 || self.duty <= 0.0 {
            let wait = if self.duty > 0.0 { -self.allowance_s / self.duty } else { f64::INFINITY };
            return Phase::Rest(Duration::from_secs_f64(wait.min(DEBT_MAX_S)).max(REST_MIN));
        }
        Phase::WarmUp { bytes: missing, time: Duration::from_secs_f64(self.allowance_s) }
    }

    /// Charges CPU time, of checks and refills.
    pub fn spent(&mut self, cpu: Duration) {
        self.allowance_s -= cpu.as_secs_f64();
    }

    /// Notes a known change: the next check is soon again.
    pub fn changed(&mut self) {
        self.quiet = 0;
    }

    /// Rest until the spent time is earned, for checks and refills.
    pub fn debt(&self) -> Duration {
        let owed = (-self.allowance_s / self.duty).clamp(0.0, DEBT_MAX_S);
        Duration::from_secs_f64(if owed.is_nan() { 0.0 } else { owed })
    }

    /// Adds the allowance of the time that has passed.
    pub fn earn(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.looked);
        self.looked = self.looked.max(now);
        self.allowance_s = (self.allowance_s + self.duty * passed.as_secs_f64()).min(self.duty * SAVED.as_secs_f64());
    }
}

/// Bytes to place; 0 if the difference may be an error of the measurement.
fn missing(held: Held, wanted: Bytes) -> Bytes {
    let missing = match held {
        Held::Measured(bytes) => Bytes(wanted.0.saturating_sub(bytes.0)),
        Held::Sampled(part) => wanted.scaled(1.0 - part.get()),
        Held::Unknown => wanted,
    };
    if missing <= wanted.scaled(TOLERATED) { Bytes(0) } else { missing }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SET: Bytes = Bytes::mib(8);
    const NONE: Bytes = Bytes(0);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn limiter() -> RateLimiter {
        RateLimiter::new(Fraction::clamped(0.01), Duration::ZERO)
    }

    #[test]
    fn a_hundredth_of_a_second_of_work_is_followed_by_a_second_of_rest() {
        let mut limiter = limiter();
        let begun = limiter.turn(at(1000), Held::Measured(Bytes(0)), SET, NONE);
        assert_eq!(begun, Phase::WarmUp { bytes: SET, time: at(10) });
        limiter.spent(at(20));
        assert_eq!(limiter.turn(at(1000), Held::Measured(Bytes::mib(4)), SET, NONE), Phase::Rest(at(1000)));
        assert!(
            matches!(limiter.turn(at(2100), Held::Measured(Bytes::mib(4)), SET, NONE), Phase::WarmUp { bytes, .. } if bytes == Bytes::mib(4))
        );
    }

    #[test]
    fn a_full_shared_partition_is_looked_at_ever_more_rarely_until_something_is_lost() {
        let mut limiter = limiter();
        let rests: Vec<Phase> = (0..8).map(|n| limiter.turn(at(5000 + n), Held::Measured(SET), SET, NONE)).collect();
        let expected = [50, 100, 200, 400, 800, 1600, 2000, 2000].map(|ms| Phase::Rest(at(ms)));
        assert_eq!(rests, expected);
        assert!(
            matches!(limiter.turn(at(6000), Held::Sampled(Fraction::clamped(0.5)), SET, NONE), Phase::WarmUp { bytes, .. } if bytes == Bytes::mib(4))
        );
        assert_eq!(limiter.turn(at(6001), Held::Measured(SET), SET, NONE), Phase::Rest(REST_MIN));
    }

    #[test]
    fn what_may_be_an_error_of_the_measurement_is_not_missing() {
        assert_eq!(missing(Held::Measured(Bytes(SET.0 - SET.0 / 32)), SET), Bytes(0));
        assert_eq!(missing(Held::Measured(Bytes(SET.0 - SET.0 / 31)), SET), Bytes(SET.0 / 31));
        assert_eq!(missing(Held::Measured(Bytes(SET.0 * 2)), SET), Bytes(0));
        assert_eq!(missing(Held::Unknown, SET), SET);
        // New bytes are placed.
        let mut limiter = limiter();
        let turn = limiter.turn(at(1000), Held::Measured(SET), SET, Bytes::kib(4));
        assert_eq!(turn, Phase::WarmUp { bytes: Bytes::kib(4), time: at(10) });
    }

    proptest! {
        #[test]
        fn never_more_is_spent_than_the_duty_allows(
            looks in prop::collection::vec((0u64..5000, 0.0f64..1.0, 0.0f64..0.01), 1..200), duty in 0.001f64..1.0,
        ) {
            let (mut limiter, mut now, mut spent) = (RateLimiter::new(Fraction::clamped(duty), Duration::ZERO), Duration::ZERO, 0.0);
            let mut last_piece = 0.0;
            for (wait, part, beyond) in looks {
                now += at(wait);
                if let Phase::WarmUp { time, .. } = limiter.turn(now, Held::Sampled(Fraction::clamped(part)), SET, NONE) {
                    // A piece that has begun is ended.
                    last_piece = beyond;
                    let cpu = time.as_secs_f64() + beyond;
                    limiter.spent(Duration::from_secs_f64(cpu));
                    spent += cpu;
                }
                prop_assert!(spent <= duty * now.as_secs_f64() + last_piece + 1e-6, "{spent} s of {now:?}");
            }
        }
    }
}
