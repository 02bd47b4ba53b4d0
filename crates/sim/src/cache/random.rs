//! Pseudo-random numbers, the same for the same seed. Pure.

/// splitmix64 (Steele, Lea and Flood, OOPSLA 2014): a counter with its bits spread.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Sequence of `seed` for one `purpose`: sequences of different purposes are independent.
    pub fn new(seed: u64, purpose: u64) -> Random {
        let mut random = Random(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.0 = random.number();
        random
    }

    /// Next number.
    #[inline]
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut spread = self.0;
        spread = (spread ^ spread >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        spread = (spread ^ spread >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        spread ^ spread >> 31
    }

    /// Number from 0 to `count` − 1 with equal probability, to within `count` in 4 billion. `count` is at least 1.
    #[inline]
    pub fn below(&mut self, count: u32) -> u32 {
        (((self.number() >> 32) * u64::from(count)) >> 32) as u32
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for place in (1..list.len()).rev() {
            let other = self.below(u32::try_from(place + 1).unwrap_or(u32::MAX)) as usize;
            list.swap(place, other);
        }
    }
}
