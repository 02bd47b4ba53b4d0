//! Pseudo-random numbers, the same for the same seed on every machine. Pure. Not for secrets.
//!
//! splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. A counter, each
//! value with its bits spread.

use crate::cast;

/// Step of the counter: 2^64 divided by the golden ratio, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Number without visible relation to `value`, and always the same for it.
#[must_use]
#[inline]
pub const fn spread(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Index below `end` for these bits, each about equally likely; 0 when `end` is 0.
#[must_use]
#[inline]
pub const fn within(bits: u64, end: usize) -> usize {
    cast::index(((bits as u128 * end as u128) >> 64) as u64)
}

/// Sequence of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Sequence of this seed.
    #[must_use]
    pub const fn seeded(seed: u64) -> Random {
        Random(seed)
    }

    /// Sequence of `seed` for one `purpose`: sequences of different purposes are independent.
    #[must_use]
    pub const fn for_purpose(seed: u64, purpose: u64) -> Random {
        Random(spread(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93)))
    }

    /// Next number.
    #[inline]
    pub const fn number(&mut self) -> u64 {
        let number = spread(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// Number below `end` with equal probability, to within `end` in 4 billion; 0 when `end` is 0.
    #[inline]
    pub const fn below_u32(&mut self, end: u32) -> u32 {
        (((self.number() >> 32) * end as u64) >> 32) as u32
    }

    /// Index below `end`, each about equally likely; 0 when `end` is 0.
    #[inline]
    pub const fn below(&mut self, end: usize) -> usize {
        within(self.number(), end)
    }

    /// Number from 0 up to, not including, 1.
    #[must_use]
    pub fn fraction(&mut self) -> f64 {
        // A double holds 53 bits exactly.
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Shuffles a list of at most `u32::MAX` items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below_u32(cast::fits(last + 1));
            items.swap(last, other as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers of the reference implementation (Vigna, splitmix64.c) with seed 1234567.
    #[test]
    fn the_numbers_are_those_of_the_reference_implementation() {
        let mut random = Random::seeded(1_234_567);
        let numbers: [u64; 3] = std::array::from_fn(|_| random.number());
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn sequences_of_different_purposes_differ() {
        let first = |purpose| Random::for_purpose(7, purpose).number();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }

    proptest! {
        #[test]
        fn numbers_stay_below_their_end(end in 1u32.., seed: u64) {
            let mut random = Random::seeded(seed);
            prop_assert!(random.below_u32(end) < end);
            prop_assert!(random.below(end as usize) < end as usize);
            prop_assert!((0.0..1.0).contains(&random.fraction()));
            prop_assert_eq!((random.below_u32(0), random.below(0)), (0, 0));
        }

        #[test]
        fn a_shuffled_list_has_every_item_once(count in 0u32..2000, seed: u64) {
            let mut items: Vec<u32> = (0..count).collect();
            Random::seeded(seed).shuffle(&mut items);
            items.sort_unstable();
            prop_assert!(items.into_iter().eq(0..count));
        }
    }
}
