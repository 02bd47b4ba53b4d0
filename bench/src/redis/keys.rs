//! Requested keys, and their expected values.

use crate::random::Zipf;
use units::spread::{Random, spread, within};

/// How often each key is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Distribution {
    /// Equal frequency for all keys.
    Uniform,
    /// Few keys often, most keys rarely (YCSB's zipfian), spread over all of the memory.
    Zipfian,
}

impl Distribution {
    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian => "zipfian",
        }
    }
}

/// Draws keys.
#[derive(Clone, Debug)]
pub struct Keys {
    count: usize,
    zipf: Option<Zipf>,
}

impl Keys {
    /// A law over `count` keys.
    pub fn over(count: usize, distribution: Distribution) -> Keys {
        Keys { count, zipf: (distribution == Distribution::Zipfian).then(|| Zipf::over(count)) }
    }

    /// The next `wanted` keys.
    pub fn draw(&self, wanted: usize, random: &mut Random) -> Vec<u32> {
        (0..wanted).map(|_| self.one(random)).collect()
    }

    fn one(&self, random: &mut Random) -> u32 {
        let key = match &self.zipf {
            None => random.below(self.count),
            // Ranks that follow each other lie anywhere, as in YCSB, so that no window holds all the hot keys.
            Some(zipf) => within(spread(zipf.rank(random) as u64), self.count),
        };
        u32::try_from(key).unwrap_or(u32::MAX)
    }
}

/// Letters of a key's name: `key:0000012345`.
pub const NAME_BYTES: usize = 14;

/// The name of key number `key`.
pub fn name(key: u32) -> [u8; NAME_BYTES] {
    let mut name = *b"key:0000000000";
    let mut rest = key;
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    name
}

/// Bytes of the token that a value repeats.
pub const TOKEN_BYTES: usize = 8;

/// The token of key number `key`: its value is this, again and again.
pub const fn token(key: u32) -> [u8; TOKEN_BYTES] {
    // Without the bytes of a line end, only to keep a dump readable.
    let mut bytes = spread(key as u64).to_le_bytes();
    let mut nth = 0;
    while nth < TOKEN_BYTES {
        bytes[nth] = b'a' + bytes[nth] % 26;
        nth += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decimal_and_of_one_length() {
        assert_eq!(&name(0), b"key:0000000000");
        assert_eq!(&name(u32::MAX), b"key:4294967295");
        assert_ne!(token(1), token(2));
    }

    #[test]
    fn both_laws_stay_within_the_keys_and_zipf_repeats_itself() {
        let distinct = |distribution| {
            let mut drawn = Keys::over(10_000, distribution).draw(5000, &mut Random::seeded(1));
            assert!(drawn.iter().all(|key| *key < 10_000));
            drawn.sort_unstable();
            drawn.dedup();
            drawn.len()
        };
        let (uniform, zipfian) = (distinct(Distribution::Uniform), distinct(Distribution::Zipfian));
        assert!(zipfian * 2 < uniform, "{zipfian} and {uniform} distinct keys in 5000");
    }
}
