//! Random orders, ranks by Zipf's law, and keys.

use units::cast::fits;
use units::spread::{Random, spread, within};

/// `0, 1, … count − 1` in a random order.
pub fn permutation(count: u32, random: &mut Random) -> Vec<u32> {
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
    pub fn rank(&self, random: &mut Random) -> usize {
        let at = random.fraction();
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

/// Keys `0..count`, drawn alike or by Zipf's law.
#[derive(Clone, Debug)]
pub struct Keys {
    pub count: u32,
    law: Option<Zipf>,
}

impl Keys {
    /// Without a law, all keys are drawn alike.
    pub const fn over(count: u32, law: Option<Zipf>) -> Keys {
        Keys { count, law }
    }

    /// The next key.
    pub fn one(&self, random: &mut Random) -> u32 {
        let count = self.count as usize;
        fits(match &self.law {
            None => random.below(count),
            // Ranks that follow each other lie anywhere, as in YCSB, so that no window holds all the hot keys.
            Some(zipf) => within(spread(zipf.rank(random) as u64), count),
        })
    }

    /// The next `wanted` keys.
    pub fn draw(&self, wanted: usize, random: &mut Random) -> Vec<u32> {
        (0..wanted).map(|_| self.one(random)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zipf_draws_the_first_rank_as_often_as_its_law_says() {
        let (zipf, mut random) = (Zipf::over(1000), Random::seeded(1));
        let draws = 100_000;
        let first = (0..draws).filter(|_| zipf.rank(&mut random) == 0).count();
        // 1 / zeta(1000) = 0.1304; four standard deviations of 100,000 draws are 0.0043.
        let share = first as f64 / f64::from(draws);
        assert!((share - 1.0 / zipf.zeta).abs() < 0.0043, "{share} against {}", 1.0 / zipf.zeta);
    }

    #[test]
    fn keys_stay_below_their_count_and_zipf_repeats_them() {
        let distinct = |law| {
            let mut drawn = Keys::over(10_000, law).draw(5000, &mut Random::seeded(1));
            assert!(drawn.iter().all(|key| *key < 10_000));
            drawn.sort_unstable();
            drawn.dedup();
            drawn.len()
        };
        let (uniform, zipfian) = (distinct(None), distinct(Some(Zipf::over(10_000))));
        assert!(zipfian * 2 < uniform, "{zipfian} and {uniform} distinct keys in 5000");
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
            let mut random = Random::seeded(3);
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
            let mut order = permutation(count, &mut Random::seeded(seed));
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..count));
        }

        #[test]
        fn ranks_stay_below_their_count(seed: u64, count in 2usize..5000) {
            prop_assert!(Zipf::over(count).rank(&mut Random::seeded(seed)) < count);
        }
    }
}
