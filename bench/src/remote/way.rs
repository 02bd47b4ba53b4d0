//! Ways of running a program with less memory than data: the columns of the tables.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use units::Bytes;

/// A way of running the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `masu run --local` with a fixed transfer size, in KiB.
    Fixed(u32),
    /// `masu run --local`, transfer sizes by the paper's rule in sections that the program marks.
    Marked,
    /// `masu run --local`, as it is by default, with a program that it has never seen.
    Auto,
    /// The same with the site profile of an earlier run.
    Known,
    /// The kernel swaps to compressed memory.
    Zram,
    /// The kernel swaps to a file.
    SwapFile,
}

/// Transfer sizes from the smallest to the largest, in KiB.
const UNITS_KIB: [u32; 9] = [4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Default transfer sizes in KiB, unless all are requested.
const USUAL_KIB: [u32; 5] = [4, 16, 64, 256, 1024];

/// Transfer sizes of a quick run, in KiB.
const FEW_KIB: [u32; 3] = [4, 64, 1024];

/// Number of measured transfer sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// Three.
    Few,
    /// Five.
    Usual,
    /// Nine.
    All,
}

impl Way {
    /// All ways, with some or all of the fixed transfer sizes.
    pub fn all(units: Units) -> Vec<Way> {
        let fixed: &[u32] = match units {
            Units::Few => &FEW_KIB,
            Units::Usual => &USUAL_KIB,
            Units::All => &UNITS_KIB,
        };
        let others = [Way::Marked, Way::Auto, Way::Known, Way::Zram, Way::SwapFile];
        fixed.iter().map(|kib| Way::Fixed(*kib)).chain(others).collect()
    }

    /// Arguments of `masu run`, for the ways that use masu.
    pub fn of_masu(self) -> Option<Vec<String>> {
        let words =
            |unit: &str, sections: &str| Some(["--unit", unit, "--sections", sections].map(str::to_owned).to_vec());
        match self {
            Way::Fixed(kib) if kib >= 1024 => words(&format!("{}MiB", kib >> 10), "off"),
            Way::Fixed(kib) => words(&format!("{kib}KiB"), "off"),
            Way::Marked => words("auto", "marked"),
            Way::Auto | Way::Known => words("auto", "auto"),
            Way::Zram | Way::SwapFile => None,
        }
    }

    /// Transfer size of a way with a single one.
    pub const fn unit(self) -> Option<Bytes> {
        match self {
            Way::Fixed(kib) => Some(Bytes::kib(kib as u64)),
            _ => None,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Fixed(kib) if *kib >= 1024 => write!(f, "{}M", kib >> 10),
            Way::Fixed(kib) => write!(f, "{kib}K"),
            Way::Marked => f.write_str("marked"),
            Way::Auto => f.write_str("auto"),
            Way::Known => f.write_str("known"),
            Way::Zram => f.write_str("zram"),
            Way::SwapFile => f.write_str("swap-file"),
        }
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        let found = Way::all(Units::All).into_iter().find(|way| way.to_string() == text);
        found.ok_or_else(|| "expected 4K, 8K … 1M, marked, auto, known, zram or swap-file".into())
    }
}

impl Serialize for Way {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Way {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Way, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_named_alike_on_the_command_line_and_in_tables() {
        for way in Way::all(Units::All) {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        assert!("2M".parse::<Way>().is_err() && "".parse::<Way>().is_err());
    }

    #[test]
    fn masu_is_told_a_unit_and_where_sections_come_from() {
        let words = |way: Way| way.of_masu().map(|words| words.join(" "));
        assert_eq!(words(Way::Fixed(64)).as_deref(), Some("--unit 64KiB --sections off"));
        assert_eq!(words(Way::Fixed(1024)).as_deref(), Some("--unit 1MiB --sections off"));
        assert_eq!(words(Way::Marked).as_deref(), Some("--unit auto --sections marked"));
        assert_eq!(words(Way::Zram), None);
    }

    #[test]
    fn a_quick_look_still_meets_both_ends() {
        let units = |units| Way::all(units).into_iter().filter_map(Way::unit).collect::<Vec<_>>();
        assert_eq!(units(Units::Few), [Bytes::kib(4), Bytes::kib(64), Bytes::mib(1)]);
        assert_eq!((units(Units::Usual).len(), units(Units::All).len()), (5, 9));
    }
}
