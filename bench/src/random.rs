//! Random numbers from a seed, without any other state: the same seed gives the same run on every machine.

/// A small generator (xorshift64*). Good enough to choose pages and keys; not for secrets.
#[derive(Clone, Debug)]
pub struct XorShift(u64);

impl XorShift {
    /// A generator that gives the same numbers for the same `seed`; every seed is allowed.
    pub fn seeded(seed: u64) -> XorShift {
        XorShift(scramble(seed).max(1))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `limit`, all about equally likely; 0 when `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        spread(self.next_u64(), limit)
    }

    /// A number from 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        // A double holds exactly 53 bits.
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The position in `0..limit` that stands for `bits`, all positions about equally likely.
#[expect(clippy::cast_possible_truncation, reason = "the product's upper half is below `limit`, which is a usize")]
pub const fn spread(bits: u64, limit: usize) -> usize {
    ((bits as u128 * limit as u128) >> 64) as usize
}

/// A number that looks unrelated to `value`, but is always the same for it (the mixing step of splitmix64).
pub const fn scramble(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// `0, 1, … count − 1` in a random order.
pub fn permutation(count: u32, random: &mut XorShift) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    random.shuffle(&mut order);
    order
}

/// Ranks by Zipf's law, as the YCSB benchmark draws them: rank `i` is about `1 / i^0.99` as likely as rank 1.
///
/// J. Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: usize,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// YCSB's skew.
    const THETA: f64 = 0.99;

    /// YCSB's ranks where it scatters them over keys (its ScrambledZipfianGenerator): however few keys there are, the law is over
    /// ten billion ranks, so that only the first of them make a key hot, and the others touch all keys alike.
    const YCSB: (usize, f64) = (10_000_000_000, 26.469_028_201_783_02);

    /// A law over `count` ranks. Takes time linear in `count`, once.
    pub fn over(count: usize) -> Zipf {
        Zipf::with_zeta(count, zeta(count))
    }

    /// YCSB's law over ten billion ranks.
    pub fn ycsb() -> Zipf {
        Zipf::with_zeta(Self::YCSB.0, Self::YCSB.1)
    }

    fn with_zeta(count: usize, all: f64) -> Zipf {
        let spread = 1.0 - (2.0 / count.max(1) as f64).powf(1.0 - Self::THETA);
        let eta = spread / (1.0 - zeta(2.min(count)) / all);
        Zipf { count, zeta: all, alpha: 1.0 / (1.0 - Self::THETA), eta }
    }

    /// The next rank, 0 the likeliest.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the ranks below")]
    pub fn rank(&self, random: &mut XorShift) -> usize {
        let at = random.unit();
        let scaled = at * self.zeta;
        if scaled < 1.0 || self.count < 2 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(Self::THETA) {
            return 1;
        }
        let rank = self.count as f64 * (self.eta * at - self.eta + 1.0).powf(self.alpha);
        (rank as usize).min(self.count - 1)
    }
}

/// The sum of `1 / rank^0.99` over the first `upto` ranks.
fn zeta(upto: usize) -> f64 {
    (1..=upto).map(|rank| (rank as f64).powf(-Zipf::THETA)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draw = |seed| {
            let mut random = XorShift::seeded(seed);
            (0..8).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn zipf_draws_the_first_rank_as_often_as_its_law_says() {
        let (zipf, mut random) = (Zipf::over(1000), XorShift::seeded(1));
        let draws = 100_000;
        let first = (0..draws).filter(|_| zipf.rank(&mut random) == 0).count();
        // 1 / zeta(1000) = 0.1304; four standard deviations of 100,000 draws are 0.0043.
        let share = first as f64 / f64::from(draws);
        assert!((share - 1.0 / zipf.zeta).abs() < 0.0043, "{share} against {}", 1.0 / zipf.zeta);
    }

    /// The sum over all ranks, from the first ten thousand and the Euler-Maclaurin formula for the others.
    fn zeta_of_many(count: f64) -> f64 {
        let (near, theta) = (10_000, Zipf::THETA);
        let term = |rank: f64| rank.powf(-theta);
        let between = (count.powf(1.0 - theta) - (near as f64).powf(1.0 - theta)) / (1.0 - theta);
        zeta(near) + between + (term(count) - term(near as f64)) / 2.0
    }

    #[test]
    fn ycsbs_constant_is_the_sum_over_ten_billion_ranks() {
        let (count, zeta) = Zipf::YCSB;
        assert!((zeta_of_many(count as f64) - zeta).abs() < 1e-6, "{}", zeta_of_many(count as f64));
    }

    #[test]
    fn top_ranks_have_the_share_that_the_law_gives_them() {
        let draws = 200_000;
        for law in [Zipf::ycsb(), Zipf::over(800_000)] {
            let mut random = XorShift::seeded(3);
            let ranks: Vec<usize> = (0..draws).map(|_| law.rank(&mut random)).collect();
            for top in [1, 2, 10, 100, 10_000, 800_000] {
                let share = ranks.iter().filter(|rank| **rank < top).count() as f64 / f64::from(draws);
                let wanted = zeta(top) / law.zeta;
                // The formula of Gray et al. is exact for the first two ranks, and gives ranks from the third on a little too much or
                // too little: under half a percent of all draws below any rank. Four deviations of the draws are another half.
                assert!((share - wanted).abs() < 0.012, "{share} below rank {top}, not {wanted}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_permutation_has_every_number_once(count in 0u32..2000, seed: u64) {
            let mut order = permutation(count, &mut XorShift::seeded(seed));
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..count));
        }

        #[test]
        fn draws_stay_below_their_limit(limit in 1usize..1 << 40, seed: u64, count in 2usize..5000) {
            let mut random = XorShift::seeded(seed);
            prop_assert!(random.below(limit) < limit);
            prop_assert!(Zipf::over(count).rank(&mut random) < count);
        }
    }
}
