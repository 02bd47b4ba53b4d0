//! Amounts of memory, in bytes and in pages of 4 KiB. Pure.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::PageSize;

/// An amount of memory in bytes. Prints as `512 B`, `4.0 KiB`, `1.5 GiB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A number of 4 KiB pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Pages(pub u64);

impl Bytes {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// The whole pages of 4 KiB in it, rounded down.
    pub const fn pages(self) -> Pages {
        Pages(self.0 / PageSize::Small.bytes().0)
    }

    /// This amount in GiB, for figures "per GiB".
    #[expect(clippy::cast_precision_loss, reason = "a figure for people and ratios: 53 bits are enough")]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }

    /// `self · factor`, rounded down to a whole byte. A negative or undefined factor gives zero.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float to integer saturates: no negative, no overflow"
    )]
    pub fn scaled(self, factor: f64) -> Bytes {
        Bytes((self.0 as f64 * factor) as u64)
    }

    /// `self − other`, or zero.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// `(self − base) / base`: the growth over a baseline; negative when it shrank, zero for an empty baseline.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn growth_over(self, base: Bytes) -> f64 {
        if base.0 == 0 {
            return 0.0;
        }
        (self.0 as f64 - base.0 as f64) / base.0 as f64
    }
}

impl Pages {
    /// Memory of this number of pages.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0 * PageSize::Small.bytes().0)
    }
}

impl fmt::Display for Bytes {
    #[expect(clippy::cast_precision_loss, reason = "printed with one decimal")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            n if n < 1 << 10 => format!("{n} B"),
            n if n < 1 << 20 => format!("{:.1} KiB", n as f64 / f64::from(1 << 10)),
            n if n < 1 << 30 => format!("{:.1} MiB", n as f64 / f64::from(1 << 20)),
            n => format!("{:.2} GiB", n as f64 / f64::from(1 << 30)),
        };
        f.pad(&text)
    }
}

/// Text that is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBytes(String);

impl fmt::Display for BadBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected an amount of memory, such as 512MiB or 4GiB", self.0)
    }
}

impl std::error::Error for BadBytes {}

impl FromStr for Bytes {
    type Err = BadBytes;

    /// `4096`, `4KiB`, `4K`, `4 MiB`, `1.5GiB`. Units are powers of two.
    fn from_str(text: &str) -> Result<Bytes, BadBytes> {
        let bad = || BadBytes(text.to_owned());
        let text_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(text_end);
        let shift = match unit.trim() {
            "" | "B" => 0,
            "K" | "KiB" => 10,
            "M" | "MiB" => 20,
            "G" | "GiB" => 30,
            "T" | "TiB" => 40,
            _ => return Err(bad()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(Bytes).ok_or_else(bad);
        }
        let number: f64 = number.parse().map_err(|_| bad())?;
        Ok(Bytes(1 << shift).scaled(number))
    }
}

/// Sums saturate: the terms may come from a server or another program.
impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(all: I) -> Bytes {
        all.fold(Bytes(0), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_with_binary_units() {
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes::kib(4).to_string(), "4.0 KiB");
        assert_eq!(Bytes::mib(1536).to_string(), "1.50 GiB");
    }

    #[test]
    fn parses_what_people_write() {
        assert_eq!("4GiB".parse(), Ok(Bytes::gib(4)));
        assert_eq!("4 G".parse(), Ok(Bytes::gib(4)));
        assert_eq!("1.5MiB".parse(), Ok(Bytes::kib(1536)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        for bad in ["", "GiB", "4GB", "-1", "4..5M", "99999999999999T"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    /// Found by fuzzing: a control group's figures, and those of a server, were added to a small number.
    #[test]
    fn a_sum_ends_at_the_largest_amount() {
        let mut sum = Bytes(u64::MAX);
        sum += Bytes(1);
        assert_eq!([Bytes(u64::MAX) + Bytes(9), sum], [Bytes(u64::MAX); 2]);
        assert_eq!([Bytes(u64::MAX), Bytes(5)].into_iter().sum::<Bytes>(), Bytes(u64::MAX));
    }

    #[test]
    fn growth_is_relative_to_the_baseline() {
        assert!((Bytes::mib(101).growth_over(Bytes::mib(100)) - 0.01).abs() < 1e-12);
        assert!(Bytes::mib(50).growth_over(Bytes::mib(100)) < 0.0);
        assert!(Bytes::mib(50).growth_over(Bytes(0)).abs() < 1e-12);
    }
}
