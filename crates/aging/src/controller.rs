//! Moves the dials within their bounds: by what comes back, and by what memory costs everybody. Pure.
//!
//! A page that comes back soon after it had gone (a refault) should not have gone: its class is aged too fast, and its dial goes
//! up. A class of which nothing has come back for a while, under pressure, has more than it needs: its dial goes down. When
//! everybody stands still for want of memory, the dials of those that lose nothing go down faster.
//!
//! No I/O, no clock, no randomness.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use units::Fraction;

use crate::dials::{Bounds, Dial};
use crate::policy::STALLED_MOST;

/// How often the dials are looked at.
pub const EVERY: Duration = Duration::from_secs(5);

/// Pages that came back in a second from which on a class is aged too fast: as many reads from a disk that take a millisecond
/// each make a program stand still for a twentieth of the time.
pub const TOO_MANY_PER_S: f64 = 50.0;

/// Time under pressure without a refault after which a dial goes down a step.
pub const QUIET: Duration = Duration::from_secs(30);

/// A step up, and a step down: up soon, down slowly.
const UP: u8 = 20;
const DOWN: u8 = 5;

/// What was seen of one class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Pages that came back, in a second.
    pub refaults_per_s: f64,
    /// Time under pressure since the last of them, or since the last step down.
    pub quiet: Duration,
    /// What share of the time everybody stood still.
    pub stalled: Fraction,
}

/// Why a dial was moved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Why {
    /// So many pages came back in a second.
    Refaults {
        /// How many.
        refaults_per_s: f64,
    },
    /// Nothing came back for so long under pressure.
    Quiet {
        /// How long.
        quiet_s: f64,
    },
    /// Everybody stood still for such a share of the time, and nothing came back.
    Stalled {
        /// The share.
        stalled: Fraction,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Refaults { refaults_per_s } => write!(f, "{refaults_per_s:.0} pages a second came back"),
            Why::Quiet { quiet_s } => write!(f, "nothing came back in {quiet_s:.0} s under pressure"),
            Why::Stalled { stalled } => {
                write!(
                    f,
                    "everybody stood still for {:.0} % of the time, and nothing of it came back",
                    stalled.get() * 100.0
                )
            }
        }
    }
}

/// Where a dial goes from here; `None`: it stays.
pub fn moved(dial: Dial, bounds: Bounds, seen: Seen) -> Option<(Dial, Why)> {
    let (to, why) = if seen.refaults_per_s >= TOO_MANY_PER_S {
        (dial.raised(UP, bounds), Why::Refaults { refaults_per_s: seen.refaults_per_s })
    } else if seen.stalled.get() >= STALLED_MOST && seen.quiet >= EVERY {
        (dial.lowered(UP, bounds), Why::Stalled { stalled: seen.stalled })
    } else if seen.quiet >= QUIET {
        (dial.lowered(DOWN, bounds), Why::Quiet { quiet_s: seen.quiet.as_secs_f64() })
    } else {
        return None;
    };
    (to != dial).then_some((to, why))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALM: Seen = Seen { refaults_per_s: 0.0, quiet: Duration::ZERO, stalled: Fraction::ZERO };

    fn bounds(text: &str) -> Bounds {
        text.parse().unwrap()
    }

    #[test]
    fn what_comes_back_raises_its_dial_and_quiet_lowers_it_again() {
        let bounds = bounds("40-90");
        let thrashing = Seen { refaults_per_s: 200.0, ..CALM };
        assert_eq!(moved(Dial::clamped(40), bounds, thrashing).unwrap().0, Dial::clamped(60));
        assert_eq!(moved(Dial::clamped(80), bounds, thrashing).unwrap().0, Dial::clamped(90), "up to the bound");
        assert_eq!(moved(Dial::clamped(90), bounds, thrashing), None);
        let quiet = Seen { quiet: QUIET, ..CALM };
        assert_eq!(moved(Dial::clamped(60), bounds, quiet).unwrap().0, Dial::clamped(55));
        assert_eq!(moved(Dial::clamped(40), bounds, quiet), None);
        assert_eq!(moved(Dial::clamped(60), bounds, CALM), None);
    }

    #[test]
    fn when_everybody_waits_what_loses_nothing_gives_way() {
        let waiting = Seen { quiet: EVERY, stalled: Fraction::clamped(0.2), ..CALM };
        let (to, why) = moved(Dial::clamped(90), bounds("0-100"), waiting).unwrap();
        assert_eq!(to, Dial::clamped(70));
        assert_eq!(why.to_string(), "everybody stood still for 20 % of the time, and nothing of it came back");
        let both = Seen { refaults_per_s: 60.0, ..waiting };
        assert_eq!(moved(Dial::clamped(70), bounds("0-100"), both).unwrap().0, Dial::clamped(90));
    }

    proptest! {
        #[test]
        fn a_dial_that_may_not_move_does_not(value in 0u8..=100, refaults in 0.0..1e6, quiet in 0u64..1000, stalled in 0.0..1.0) {
            let dial = Dial::clamped(value);
            let seen = Seen { refaults_per_s: refaults, quiet: Duration::from_secs(quiet), stalled: Fraction::clamped(stalled) };
            prop_assert_eq!(moved(dial, Bounds::fixed(dial), seen), None);
        }

        #[test]
        fn more_refaults_never_lower_a_dial(value in 0u8..=100, refaults in TOO_MANY_PER_S..1e6, quiet in 0u64..1000, stalled in 0.0..1.0) {
            let seen = Seen { refaults_per_s: refaults, quiet: Duration::from_secs(quiet), stalled: Fraction::clamped(stalled) };
            let bounds = Bounds { low: Dial::NONE, high: Dial::NEVER };
            prop_assert!(moved(Dial::clamped(value), bounds, seen).is_none_or(|(to, _)| to > Dial::clamped(value)));
        }
    }
}
