//! Controller of the protection levels within their bounds, from refaults and memory stalls. Pure.
//!
//! A refault (a page that returns soon after its eviction) shows that its class is aged too fast, so its level rises. A
//! class without refaults for a while, under pressure, has more memory than it needs, so its level falls. When all
//! tasks stall on memory, the levels of classes without refaults fall faster.
//!
//! No I/O, no clock, no randomness.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use units::Fraction;

use crate::levels::{Bounds, Level};
use crate::policy::STALLED_MOST;

/// Interval of the controller.
pub const EVERY: Duration = Duration::from_secs(5);

/// Refaults per second from which a class is aged too fast: as many disk reads of a millisecond each stall a program
/// for a twentieth of the time.
pub const TOO_MANY_PER_S: f64 = 50.0;

/// Time under pressure without a refault after which a level falls by a step.
pub const QUIET: Duration = Duration::from_secs(30);

/// Steps up and down: up fast, down slowly.
const UP: u8 = 20;
const DOWN: u8 = 5;

/// Measurements of one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Refaults per second.
    pub refaults_per_s: f64,
    /// Time under pressure since the last refault, or since the last step down.
    pub quiet: Duration,
    /// Share of time with all tasks stalled.
    pub stalled: Fraction,
}

/// Reason of a move.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Why {
    /// Refaults in a second.
    Refaults {
        /// Rate.
        refaults_per_s: f64,
    },
    /// No refaults for this time under pressure.
    Quiet {
        /// Time in seconds.
        quiet_s: f64,
    },
    /// All tasks stalled for this share of the time, without refaults.
    Stalled {
        /// Share of time.
        stalled: Fraction,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Refaults { refaults_per_s } => write!(f, "{refaults_per_s:.0} refaults a second"),
            Why::Quiet { quiet_s } => write!(f, "no refault in {quiet_s:.0} s of reclaim"),
            Why::Stalled { stalled } => {
                write!(f, "all tasks stalled for {:.0} % of the time, without a refault", stalled.get() * 100.0)
            }
        }
    }
}

/// New level; `None`: no change.
pub fn moved(level: Level, bounds: Bounds, measured: Measured) -> Option<(Level, Why)> {
    let (to, why) = if measured.refaults_per_s >= TOO_MANY_PER_S {
        (level.raised(UP, bounds), Why::Refaults { refaults_per_s: measured.refaults_per_s })
    } else if measured.stalled.get() >= STALLED_MOST && measured.quiet >= EVERY {
        (level.lowered(UP, bounds), Why::Stalled { stalled: measured.stalled })
    } else if measured.quiet >= QUIET {
        (level.lowered(DOWN, bounds), Why::Quiet { quiet_s: measured.quiet.as_secs_f64() })
    } else {
        return None;
    };
    (to != level).then_some((to, why))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALM: Measured = Measured { refaults_per_s: 0.0, quiet: Duration::ZERO, stalled: Fraction::ZERO };

    fn bounds(text: &str) -> Bounds {
        text.parse().unwrap()
    }

    #[test]
    fn refaults_raise_a_level_and_quiet_lowers_it_again() {
        let bounds = bounds("40-90");
        let thrashing = Measured { refaults_per_s: 200.0, ..CALM };
        assert_eq!(moved(Level::clamped(40), bounds, thrashing).unwrap().0, Level::clamped(60));
        assert_eq!(moved(Level::clamped(80), bounds, thrashing).unwrap().0, Level::clamped(90), "up to the bound");
        assert_eq!(moved(Level::clamped(90), bounds, thrashing), None);
        let quiet = Measured { quiet: QUIET, ..CALM };
        assert_eq!(moved(Level::clamped(60), bounds, quiet).unwrap().0, Level::clamped(55));
        assert_eq!(moved(Level::clamped(40), bounds, quiet), None);
        assert_eq!(moved(Level::clamped(60), bounds, CALM), None);
    }

    #[test]
    fn when_all_tasks_stall_a_class_without_refaults_gives_way() {
        let waiting = Measured { quiet: EVERY, stalled: Fraction::clamped(0.2), ..CALM };
        let (to, why) = moved(Level::clamped(90), bounds("0-100"), waiting).unwrap();
        assert_eq!(to, Level::clamped(70));
        assert_eq!(why.to_string(), "all tasks stalled for 20 % of the time, without a refault");
        let both = Measured { refaults_per_s: 60.0, ..waiting };
        assert_eq!(moved(Level::clamped(70), bounds("0-100"), both).unwrap().0, Level::clamped(90));
    }

    proptest! {
        #[test]
        fn a_level_that_may_not_move_does_not(value in 0u8..=100, refaults in 0.0..1e6, quiet in 0u64..1000, stalled in 0.0..1.0) {
            let level = Level::clamped(value);
            let measured = Measured { refaults_per_s: refaults, quiet: Duration::from_secs(quiet), stalled: Fraction::clamped(stalled) };
            prop_assert_eq!(moved(level, Bounds::fixed(level), measured), None);
        }

        #[test]
        fn more_refaults_never_lower_a_level(value in 0u8..=100, refaults in TOO_MANY_PER_S..1e6, quiet in 0u64..1000, stalled in 0.0..1.0) {
            let measured = Measured { refaults_per_s: refaults, quiet: Duration::from_secs(quiet), stalled: Fraction::clamped(stalled) };
            let bounds = Bounds { low: Level::NONE, high: Level::NEVER };
            prop_assert!(moved(Level::clamped(value), bounds, measured).is_none_or(|(to, _)| to > Level::clamped(value)));
        }
    }
}
