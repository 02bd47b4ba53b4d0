//! Frequency of an event. Pure.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Deserializer, Serialize};

/// Events per second, never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Rate(f64);

impl Rate {
    /// No event seen.
    pub const ZERO: Rate = Rate(0.0);

    /// Once in ten seconds.
    pub const TENTH: Rate = Rate(0.1);

    /// `value` events per second; a negative or undefined value counts as zero.
    pub fn per_second(value: f64) -> Rate {
        Rate(if value > 0.0 { value } else { 0.0 })
    }

    /// As a plain number of events per second.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Rate, D::Error> {
        f64::deserialize(from).map(Rate::per_second)
    }
}

impl Add for Rate {
    type Output = Rate;
    fn add(self, other: Rate) -> Rate {
        Rate(self.0 + other.0)
    }
}

impl Sum for Rate {
    fn sum<I: Iterator<Item = Rate>>(all: I) -> Rate {
        all.fold(Rate::ZERO, Add::add)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self.0 {
            0.0 => "0 /s".to_owned(),
            r if r < 10.0 => format!("{r:.2} /s"),
            r => format!("{r:.0} /s"),
        })
    }
}
