//! Parts of a whole. Pure.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A part of a whole, from 0 to 1. Written as `0.25`, `25%` or `1/4`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Fraction(f64);

/// A part of a whole, above 0 and up to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct NonZeroFraction(f64);

/// Text or number that is not a fraction.
#[derive(Clone, Debug, PartialEq)]
pub struct BadFraction {
    given: String,
    expected: &'static str,
}

impl fmt::Display for BadFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}", self.given, self.expected)
    }
}

impl std::error::Error for BadFraction {}

const ANY: &str = "a fraction from 0 to 1, such as 0.01, 1% or 1/4";
const ABOVE_ZERO: &str = "a fraction above 0 and up to 1, such as 0.25, 25% or 1/4";

impl Fraction {
    /// 0.
    pub const ZERO: Fraction = Fraction(0.0);

    /// 1.
    pub const ONE: Fraction = Fraction(1.0);

    /// `value` as a fraction.
    ///
    /// # Errors
    /// When it is not a number from 0 to 1.
    pub fn new(value: f64) -> Result<Fraction, BadFraction> {
        if (0.0..=1.0).contains(&value) {
            Ok(Fraction(value))
        } else {
            Err(BadFraction { given: value.to_string(), expected: ANY })
        }
    }

    /// `value` clamped to 0..=1; NaN becomes 0.
    pub fn clamped(value: f64) -> Fraction {
        Fraction(if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) })
    }

    /// As a plain number, 0..=1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl NonZeroFraction {
    /// 1.
    pub const ONE: NonZeroFraction = NonZeroFraction(1.0);

    /// `numerator / denominator`, for constants.
    ///
    /// # Panics
    /// At compile time, when used in a `const` with a value that is not above 0 and up to 1.
    pub const fn ratio(numerator: u32, denominator: u32) -> NonZeroFraction {
        assert!(numerator > 0 && numerator <= denominator);
        NonZeroFraction(numerator as f64 / denominator as f64)
    }

    /// `value` as a fraction above zero.
    ///
    /// # Errors
    /// When it is not a number above 0 and up to 1.
    pub fn new(value: f64) -> Result<NonZeroFraction, BadFraction> {
        if value > 0.0 && value <= 1.0 {
            Ok(NonZeroFraction(value))
        } else {
            Err(BadFraction { given: value.to_string(), expected: ABOVE_ZERO })
        }
    }

    /// As a plain number, above 0 and up to 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Some(percent) = text.strip_suffix('%') {
        return percent.trim().parse::<f64>().ok().map(|p| p / 100.0);
    }
    if let Some((over, under)) = text.split_once('/') {
        let (over, under): (f64, f64) = (over.trim().parse().ok()?, under.trim().parse().ok()?);
        return (under != 0.0).then_some(over / under);
    }
    text.parse().ok()
}

impl FromStr for Fraction {
    type Err = BadFraction;
    fn from_str(text: &str) -> Result<Fraction, BadFraction> {
        let bad = BadFraction { given: text.to_owned(), expected: ANY };
        number(text).and_then(|n| Fraction::new(n).ok()).ok_or(bad)
    }
}

impl FromStr for NonZeroFraction {
    type Err = BadFraction;
    fn from_str(text: &str) -> Result<NonZeroFraction, BadFraction> {
        let bad = BadFraction { given: text.to_owned(), expected: ABOVE_ZERO };
        number(text).and_then(|n| NonZeroFraction::new(n).ok()).ok_or(bad)
    }
}

impl From<NonZeroFraction> for Fraction {
    fn from(part: NonZeroFraction) -> Fraction {
        Fraction(part.0)
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.2} %", self.0 * 100.0))
    }
}

impl fmt::Display for NonZeroFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Fraction(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_numbers_percents_and_ratios() {
        for text in ["0.25", "25%", "25 %", "1/4", " 1 / 4 "] {
            assert_eq!(text.parse(), Ok(Fraction(0.25)), "{text}");
        }
    }

    #[test]
    fn refuses_what_lies_outside() {
        for bad in ["-0.1", "2", "101%", "NaN", "1/0", "", "x", "inf"] {
            assert!(bad.parse::<Fraction>().is_err(), "{bad}");
        }
        assert!("0".parse::<Fraction>().is_ok());
        assert_eq!(
            "0".parse::<NonZeroFraction>().unwrap_err().to_string(),
            "0: expected a fraction above 0 and up to 1, such as 0.25, 25% or 1/4"
        );
    }
}
