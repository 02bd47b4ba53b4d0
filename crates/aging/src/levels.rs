//! Protection levels: one per class, 0 to 100, the paper's `mapped_page_cost` generalized. Pure.
//!
//! No I/O, no clock, no randomness.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::class::Class;

/// Protection level of a class: 0 (aged as by the kernel, or faster) to 100 (not aged).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Level(u8);

/// Bounds of a protection level. Written `80`, or `60-100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// Initial level, and the level without refaults.
    pub low: Level,
    /// Upper bound.
    pub high: Level,
}

/// Text that is no valid level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLevel(String);

impl fmt::Display for BadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: expected a number from 0 (dropped after use) to 100 (never aged), or two of them, such as 60-100",
            self.0
        )
    }
}

impl std::error::Error for BadLevel {}

impl Level {
    /// Aged as by the kernel, or dropped at once.
    pub const NONE: Level = Level(0);
    /// Not aged.
    pub const NEVER: Level = Level(100);

    /// `value`, limited to 100.
    pub fn clamped(value: u8) -> Level {
        Level(value.min(100))
    }

    /// Level as a number, 0 to 100.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Fraction of the kernel's own rate of aging: 1 at 0, 0 at 100.
    pub fn rate(self) -> f64 {
        f64::from(100 - self.0) / 100.0
    }

    /// Level raised by this much, at most to the upper bound.
    pub fn raised(self, by: u8, bounds: Bounds) -> Level {
        Level(self.0.saturating_add(by).min(bounds.high.0))
    }

    /// Level lowered by this much, at least to the lower bound.
    pub fn lowered(self, by: u8, bounds: Bounds) -> Level {
        Level(self.0.saturating_sub(by).max(bounds.low.0))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Bounds {
    /// Bounds that fix the level.
    pub fn fixed(level: Level) -> Bounds {
        Bounds { low: level, high: level }
    }

    /// True if the level can move.
    pub fn is_free(self) -> bool {
        self.low < self.high
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_free() { write!(f, "{}-{}", self.low, self.high) } else { self.low.fmt(f) }
    }
}

impl FromStr for Bounds {
    type Err = BadLevel;

    fn from_str(text: &str) -> Result<Bounds, BadLevel> {
        let bad = || BadLevel(text.to_owned());
        let level = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u8>().ok()).flatten().filter(|value| *value <= 100).map(Level).ok_or_else(bad)
        };
        let (low, high) = match text.split_once('-') {
            Some((low, high)) => (level(low)?, level(high)?),
            None => (level(text)?, level(text)?),
        };
        if low <= high { Ok(Bounds { low, high }) } else { Err(bad()) }
    }
}

/// One value per class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClass<T>(pub [T; Class::ALL.len()]);

impl<T: Copy> ByClass<T> {
    /// Value of one class.
    pub fn get(&self, class: Class) -> T {
        self.0[class as usize]
    }

    /// Replaces the value of one class.
    pub fn set(&mut self, class: Class, value: T) {
        self.0[class as usize] = value;
    }

    /// Classes with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Class, T)> + '_ {
        Class::ALL.into_iter().map(|class| (class, self.get(class)))
    }
}

/// Requested bounds by class; `None`: left to the kernel.
pub type Preferences = ByClass<Option<Bounds>>;

/// Current level by class.
pub type Levels = ByClass<Option<Level>>;

impl Preferences {
    /// Initial levels.
    pub fn at_first(&self) -> Levels {
        ByClass(self.0.map(|preference| preference.map(|bounds| bounds.low)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_level_is_one_number_or_two_in_order() {
        assert_eq!("80".parse(), Ok(Bounds::fixed(Level(80))));
        assert_eq!("0-100".parse(), Ok(Bounds { low: Level(0), high: Level(100) }));
        for bad in ["", "101", "-1", "80-60", "a", "1-", "+5", "50%", "1-2-3", "1000"] {
            assert!(bad.parse::<Bounds>().is_err(), "{bad}");
        }
        let said = "101".parse::<Bounds>().unwrap_err().to_string();
        assert!(said.starts_with("101: expected a number from 0"), "{said}");
    }

    #[test]
    fn the_rate_is_the_papers_at_both_ends() {
        // Section 5: mapped_page_cost = 0 ages mapped pages like all others, 100 not at all.
        assert!((Level(0).rate() - 1.0).abs() < 1e-9 && Level(100).rate().abs() < 1e-9);
        assert!((Level(80).rate() - 0.2).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn printed_bounds_parse_back(low in 0u8..=100, more in 0u8..=100) {
            let bounds = Bounds { low: Level(low), high: Level::clamped(low.saturating_add(more)) };
            prop_assert_eq!(bounds.to_string().parse(), Ok(bounds));
        }

        #[test]
        fn a_level_is_never_moved_out_of_its_bounds(low in 0u8..=100, high in 0u8..=100, by: u8, up: bool) {
            prop_assume!(low <= high);
            let bounds = Bounds { low: Level(low), high: Level(high) };
            let moved = if up { bounds.low.raised(by, bounds) } else { bounds.high.lowered(by, bounds) };
            prop_assert!((bounds.low..=bounds.high).contains(&moved));
        }
    }
}
