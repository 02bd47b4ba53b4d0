//! Requested keys, and their expected values.

use units::spread::spread;

use crate::choices;
use crate::random::{Keys, Zipf};

choices! {
    /// Frequency of each key.
    pub enum Distribution {
        Uniform = "uniform", "Equal frequency for all keys";
        Zipfian = "zipfian", "Few keys often, most keys rarely (YCSB's zipfian), spread over all of the memory";
    }
}

impl Distribution {
    /// Draws among `count` keys.
    pub fn over(self, count: u32) -> Keys {
        Keys::over(count, (self == Distribution::Zipfian).then(|| Zipf::over(count as usize)))
    }
}

/// Letters of a key's name: `key:0000012345`.
pub const NAME_BYTES: usize = 14;

/// The name of key number `key`.
pub fn name(key: u32) -> [u8; NAME_BYTES] {
    let mut name = *b"key:0000000000";
    let mut rest = key;
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10).to_le_bytes()[0];
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
}
