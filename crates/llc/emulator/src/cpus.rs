//! Sets of CPUs, as masks and as lists. Their forms: cpuset(7), "FORMATS". Pure.

use std::collections::BTreeSet;
use std::fmt;

use rustix::io::Errno;
use units::cast::index;

/// Limit of CPU numbers.
const MOST: u32 = 8192;

/// Set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(pub BTreeSet<u32>);

impl Cpus {
    /// CPUs 0 to `count` - 1.
    pub fn first(count: u32) -> Cpus {
        Cpus((0..count).collect())
    }

    /// Parses a list: `0-3,8`. Empty text is an empty set.
    ///
    /// # Errors
    /// EINVAL for no list; ERANGE for numbers too large.
    pub fn of_list(text: &str) -> Result<Cpus, Errno> {
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| crate::text::unsigned(text, 10).ok_or(Errno::INVAL);
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(Errno::INVAL);
            }
            let in_range = |cpu: u64| u32::try_from(cpu).ok().filter(|cpu| *cpu < MOST).ok_or(Errno::RANGE);
            cpus.extend(in_range(first)?..=in_range(last)?);
        }
        Ok(Cpus(cpus))
    }

    /// Parses a mask in hexadecimal, in groups of up to eight digits between commas, the highest first.
    ///
    /// # Errors
    /// EINVAL for no mask; EOVERFLOW for one with more bits than there can be CPUs.
    pub fn of_mask(text: &str) -> Result<Cpus, Errno> {
        let mut cpus = BTreeSet::new();
        let words = text.trim().split(',').rev();
        for (word, digits) in (0_u32..).zip(words) {
            let plain =
                !digits.is_empty() && digits.len() <= 8 && digits.chars().all(|digit| digit.is_ascii_hexdigit());
            let bits = plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten().ok_or(Errno::INVAL)?;
            if bits != 0 && word >= MOST / 32 {
                return Err(Errno::OVERFLOW);
            }
            cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| word * 32 + bit));
        }
        Ok(Cpus(cpus))
    }

    /// Mask with the digits needed for CPU `highest`.
    pub fn mask(&self, highest: u32) -> String {
        let word = |word: u32| self.0.range(word * 32..word * 32 + 32).fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32));
        let top = highest / 32;
        let digits = index((highest % 32 / 4 + 1).into());
        let mut text = format!("{:0digits$x}", word(top));
        for lower in (0..top).rev() {
            text.push_str(&format!(",{:08x}", word(lower)));
        }
        text
    }

    /// CPUs that `other` does not have.
    #[must_use]
    pub fn without(&self, other: &Cpus) -> Cpus {
        Cpus(self.0.difference(&other.0).copied().collect())
    }

    /// Whether the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// List format: `0-3,8`.
impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for cpu in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => runs.push((*cpu, *cpu)),
            }
        }
        let words = runs.iter().map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_say_the_same() {
        let cpus = Cpus::of_list("0-3,8,40\n").unwrap();
        assert_eq!(cpus.to_string(), "0-3,8,40");
        assert_eq!(cpus.mask(47), "0100,0000010f");
        assert_eq!(Cpus::of_mask("0100,0000010f\n"), Ok(cpus));
        assert_eq!((Cpus::default().to_string(), Cpus::default().mask(1)), (String::new(), "0".to_owned()));
        assert_eq!(Cpus::of_list("\n"), Ok(Cpus::default()));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in ["a", "3-1", "1-", "0x1"] {
            assert_eq!(Cpus::of_list(bad), Err(Errno::INVAL), "{bad}");
        }
        for bad in ["", "g", "123456789", "1,,0"] {
            assert_eq!(Cpus::of_mask(bad), Err(Errno::INVAL), "{bad}");
        }
        assert_eq!(Cpus::of_list("999999"), Err(Errno::RANGE));
    }
}
