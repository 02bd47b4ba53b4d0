//! Values of the options of `masu run`.

use std::str::FromStr;

use contract::placement::Size;
use farmem_engine::backend::Backend;
use farmem_engine::budget::Budget;
use farmem_engine::{MAX_UNIT_PAGES, PAGE_BYTES};
use units::Bytes;

use super::Sections;

/// Smallest budget of a paged program: a call may have some of its memory pinned while other pages are mapped in.
const LEAST_LOCAL: Bytes = Bytes(Budget::LEAST_FRAMES as u64 * PAGE_BYTES);

/// Local part of a program's paged memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Local {
    /// A fixed size.
    Size(Bytes),
    /// A fraction of the program's paged memory, as it grows.
    Share(f64),
}

impl FromStr for Local {
    type Err = String;

    fn from_str(text: &str) -> Result<Local, String> {
        let example = "say a size such as 4GiB, or a part such as 10%";
        if let Some(number) = text.strip_suffix('%') {
            let percent: f64 = number.trim().parse().map_err(|_| format!("{text} is no part: {example}"))?;
            if !(percent > 0.0 && percent <= 100.0) {
                return Err(format!("{text} is not above 0% and at most 100%: {example}"));
            }
            return Ok(Local::Share(percent / 100.0));
        }
        let bytes: Bytes = text.parse().map_err(|_| format!("{text} is no size: {example}"))?;
        if bytes < LEAST_LOCAL {
            return Err(format!("{text} is less than {LEAST_LOCAL}, the least that works: {example}"));
        }
        Ok(Local::Size(bytes))
    }
}

/// Transfer size of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Learned by the policy.
    Auto,
    /// Fixed, in pages.
    Pages(u32),
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unit::Auto => f.write_str("auto"),
            Unit::Pages(pages) => Bytes(u64::from(*pages) * PAGE_BYTES).fmt(f),
        }
    }
}

impl FromStr for Unit {
    type Err = String;

    fn from_str(text: &str) -> Result<Unit, String> {
        if text == "auto" {
            return Ok(Unit::Auto);
        }
        let wrong = || format!("{text} is no unit: say auto, or a power of two from 4KiB to 1MiB");
        let bytes: Bytes = text.parse().map_err(|_| wrong())?;
        let pages = u32::try_from(bytes.0 / PAGE_BYTES).map_err(|_| wrong())?;
        let fits = bytes.0.is_multiple_of(PAGE_BYTES) && pages.is_power_of_two() && pages <= MAX_UNIT_PAGES;
        if fits { Ok(Unit::Pages(pages)) } else { Err(wrong()) }
    }
}

/// Smallest transfer size, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base(pub u32);

impl Base {
    /// Default: one page, or the first size of the paper's rule.
    pub fn usual(sections: Option<Sections>) -> Base {
        Base(if sections == Some(Sections::Marked) { 4 } else { 1 })
    }
}

impl std::fmt::Display for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Bytes(u64::from(self.0) * PAGE_BYTES).fmt(f)
    }
}

impl FromStr for Base {
    type Err = String;

    fn from_str(text: &str) -> Result<Base, String> {
        match text.parse() {
            Ok(Bytes(4096)) => Ok(Base(1)),
            Ok(Bytes(16384)) => Ok(Base(4)),
            _ => Err(format!("{text} is no smallest unit: say 4KiB or 16KiB")),
        }
    }
}

/// Backend that maps pages in and evicts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange(pub Backend);

impl FromStr for Exchange {
    type Err = String;

    fn from_str(text: &str) -> Result<Exchange, String> {
        let found = Backend::ALL.into_iter().find(|backend| backend.name() == text);
        found.map(Exchange).ok_or_else(|| format!("{text} is no backend: say move or copy"))
    }
}

/// Reads a size in one of the usual spellings: `2M`, `64K`, `64KiB`, `64k`.
pub fn page_size(text: &str) -> Result<Size, String> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &lower[digits.len()..] {
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 1024,
        _ => 0,
    };
    let kib = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(factor));
    kib.and_then(Size::of_kib)
        .filter(|size| size.kib() >= 16)
        .ok_or_else(|| format!("{text}: expected a size of pages, a power of two from 16K to 2M, such as 64K"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_memory_is_a_size_or_a_part() {
        assert_eq!("4GiB".parse(), Ok(Local::Size(Bytes::gib(4))));
        assert_eq!("10%".parse(), Ok(Local::Share(0.1)));
        assert_eq!("100%".parse(), Ok(Local::Share(1.0)));
        for bad in ["0", "0%", "-1%", "101%", "nan%", "ten", "", "%", "12KiB"] {
            let error = bad.parse::<Local>().unwrap_err();
            assert!(error.contains("4GiB") && error.contains("10%"), "{bad}: {error}");
        }
    }

    #[test]
    fn sizes_are_written_as_people_write_them() {
        for (text, size) in [("2M", 2048), ("64K", 64), ("64KiB", 64), ("1m", 1024), ("16k", 16)] {
            assert_eq!(page_size(text), Size::of_kib(size).ok_or(String::new()), "{text}");
        }
        for bad in ["", "64", "48K", "8K", "4M", "K", "4K", "2G", "99999999999K"] {
            assert!(page_size(bad).unwrap_err().contains("64K"), "{bad}");
        }
    }
}
