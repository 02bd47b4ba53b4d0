//! Ways of a set-associative cache, as a number and as a mask. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number of ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ways(pub u32);

/// Mask of ways: bit n is way n. Intel's capacity bitmask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WayMask(pub u64);

impl WayMask {
    /// Empty mask.
    pub const NONE: WayMask = WayMask(0);

    /// `count` consecutive ways, the lowest being way `first`; those beyond way 63 are left out.
    pub const fn run(first: u32, count: Ways) -> WayMask {
        let ones = if count.0 >= 64 { u64::MAX } else { (1 << count.0) - 1 };
        WayMask(if first >= 64 { 0 } else { ones << first })
    }

    /// The lowest `count` ways.
    pub const fn lowest(count: Ways) -> WayMask {
        WayMask::run(0, count)
    }

    /// Number of ways.
    pub const fn ways(self) -> Ways {
        Ways(self.0.count_ones())
    }

    /// Lowest way; `None` for the empty mask.
    pub const fn first(self) -> Option<u32> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros()) }
    }

    /// Whether it is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all are consecutive; true for the empty mask.
    pub const fn is_contiguous(self) -> bool {
        self.0 == 0 || (self.0 >> self.0.trailing_zeros()).wrapping_add(1).is_power_of_two() || self.0 == u64::MAX
    }

    /// Whether `way` is among them.
    pub const fn contains(self, way: u32) -> bool {
        way < 64 && self.0 >> way & 1 == 1
    }

    /// Whether all of `other` are among them.
    pub const fn covers(self, other: WayMask) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether both have a way in common.
    pub const fn overlaps(self, other: WayMask) -> bool {
        self.0 & other.0 != 0
    }

    /// Ways in both.
    #[must_use]
    pub const fn and(self, other: WayMask) -> WayMask {
        WayMask(self.0 & other.0)
    }

    /// Ways in either.
    #[must_use]
    pub const fn or(self, other: WayMask) -> WayMask {
        WayMask(self.0 | other.0)
    }

    /// Ways that `other` does not have.
    #[must_use]
    pub const fn without(self, other: WayMask) -> WayMask {
        WayMask(self.0 & !other.0)
    }

    /// Lowest run of consecutive ways.
    #[must_use]
    pub const fn first_run(self) -> WayMask {
        match self.first() {
            None => WayMask::NONE,
            Some(first) => WayMask::run(first, Ways((self.0 >> first).trailing_ones())),
        }
    }
}

/// In the kernel's format: `ff0`.
impl fmt::Display for WayMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:x}", self.0))
    }
}

impl Serialize for WayMask {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WayMask {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<WayMask, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Text that is not a mask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadWayMask(String);

impl fmt::Display for BadWayMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected a mask of ways in hexadecimal, such as ff0", self.0)
    }
}

impl std::error::Error for BadWayMask {}

impl std::str::FromStr for WayMask {
    type Err = BadWayMask;

    /// Hexadecimal, with or without `0x`.
    fn from_str(text: &str) -> Result<WayMask, BadWayMask> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
        let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let parsed = plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
        parsed.map(WayMask).ok_or_else(|| BadWayMask(text.to_owned()))
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_are_in_a_row_and_masks_with_holes_are_not() {
        assert_eq!(WayMask::run(4, Ways(4)), WayMask(0xf0));
        assert_eq!(WayMask::run(60, Ways(8)), WayMask(0xf << 60));
        assert_eq!(WayMask::lowest(Ways(64)), WayMask(u64::MAX));
        assert!(WayMask(u64::MAX).is_contiguous() && WayMask::NONE.is_contiguous() && WayMask(0x600).is_contiguous());
        assert!(!WayMask(0x5).is_contiguous());
        assert_eq!(WayMask(0b1101_1100).first_run(), WayMask(0b1_1100));
        assert_eq!(WayMask::NONE.first_run(), WayMask::NONE);
    }

    #[test]
    fn masks_are_read_as_the_kernel_writes_them_and_with_a_prefix() {
        assert_eq!("fffff".parse(), Ok(WayMask(0xf_ffff)));
        assert_eq!("0x3F0".parse(), Ok(WayMask(0x3f0)));
        for bad in ["", "0x", "g", "+f", "11111111111111111"] {
            assert!(bad.parse::<WayMask>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bits: u64) {
            prop_assert_eq!(WayMask(bits).to_string().parse::<WayMask>(), Ok(WayMask(bits)));
        }

        #[test]
        fn a_first_run_is_in_a_row_within_and_as_long_as_can_be(bits: u64) {
            let run = WayMask(bits).first_run();
            prop_assert!(run.is_contiguous() && WayMask(bits).covers(run));
            let next = run.first().map_or(64, |first| first + run.ways().0);
            prop_assert!(!WayMask(bits).contains(next));
        }
    }
}
