//! Pairs of measurements: a condition and its baseline, taken right after each other, in the order ABBA.
//!
//! Drift during a benchmark (a warmer host, a noisy neighbour) affects both sides of a pair alike, and the order ABBA
//! lets a steady drift favour neither. So the figure is the median of the paired ratios, and its interval comes from
//! drawing the pairs again, with replacement (bootstrap). No clock and no randomness of its own: both are passed in.

use serde::Serialize;

use units::spread::Random;

/// Minimum number of pairs for telling a difference from chance: n pairs all fall on one side by chance with a
/// probability of 2 / 2^n, which is below 5 % from 6 on.
pub const PAIRS_MIN: usize = 6;

/// Number of bootstrap resamples for the interval.
const RESAMPLES: usize = 4000;

/// Desired direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Throughput, accuracy.
    More,
    /// Latency, memory, processor time.
    Less,
}

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval lies on the good side of 1.
    Better,
    /// The whole interval lies on the bad side of 1.
    Worse,
    /// The interval contains 1.
    NoDifference,
    /// Fewer than [`PAIRS_MIN`] pairs.
    TooFewPairs,
}

impl Verdict {
    /// Words for a table.
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::NoDifference => "no difference",
            Verdict::TooFewPairs => "too few pairs to tell",
        }
    }
}

/// One figure measured under two conditions, pair by pair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Number of pairs.
    pub pairs: usize,
    /// Median of the baseline's samples.
    pub baseline: f64,
    /// Median of the other condition's samples.
    pub this: f64,
    /// Median of the paired ratios, this / baseline.
    pub ratio: f64,
    /// Lower end of the 95 % interval of `ratio`.
    pub ratio_low: f64,
    /// Upper end of the 95 % interval of `ratio`.
    pub ratio_high: f64,
}

impl Comparison {
    /// Compares two equally long lists of samples, where samples of the same index were taken right after each other.
    ///
    /// `None` when the lists are empty, differ in length, or hold a value that allows no ratio (a baseline of zero or
    /// below, or not a number).
    pub fn of(baseline: &[f64], this: &[f64], random: &mut Random) -> Option<Comparison> {
        let ratios = paired_ratios(baseline, this)?;
        let (ratio_low, ratio_high) = bootstrap_interval(&ratios, random)?;
        Some(Comparison {
            pairs: ratios.len(),
            baseline: median(baseline)?,
            this: median(this)?,
            ratio: median(&ratios)?,
            ratio_low,
            ratio_high,
        })
    }

    /// Whether this condition is better than its baseline, for the desired direction `better`.
    pub fn verdict(&self, better: Better) -> Verdict {
        if self.pairs < PAIRS_MIN {
            Verdict::TooFewPairs
        } else if self.ratio_low <= 1.0 && 1.0 <= self.ratio_high {
            Verdict::NoDifference
        } else if (self.ratio_low > 1.0) == (better == Better::More) {
            Verdict::Better
        } else {
            Verdict::Worse
        }
    }
}

/// Difference between two conditions, for cases where a ratio would be meaningless: 5 ms are much beside `true` and
/// little beside a compiler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Number of pairs.
    pub pairs: usize,
    /// Median of the baseline's samples.
    pub baseline: f64,
    /// Median of the other condition's samples.
    pub this: f64,
    /// Median of the paired differences, this − baseline.
    pub difference: f64,
    /// Lower end of the 95 % interval of `difference`.
    pub difference_low: f64,
    /// Upper end of the 95 % interval of `difference`.
    pub difference_high: f64,
}

impl Difference {
    /// Compares two equally long lists of samples, as [`Comparison::of`] does.
    ///
    /// `None` when the lists are empty, differ in length, or hold a value that is not a number.
    pub fn of(baseline: &[f64], this: &[f64], random: &mut Random) -> Option<Difference> {
        if baseline.len() != this.len() {
            return None;
        }
        let differences: Vec<f64> = baseline.iter().zip(this).map(|(base, this)| this - base).collect();
        let difference = median(&differences)?;
        let (difference_low, difference_high) = bootstrap_interval(&differences, random)?;
        Some(Difference {
            pairs: differences.len(),
            baseline: median(baseline)?,
            this: median(this)?,
            difference,
            difference_low,
            difference_high,
        })
    }
}

/// The middle value, or the mean of the two middle ones; `None` for nothing, or when one is not a number.
pub fn median(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) })
}

/// `this / baseline`, place by place.
fn paired_ratios(baseline: &[f64], this: &[f64]) -> Option<Vec<f64>> {
    if baseline.len() != this.len() || baseline.is_empty() {
        return None;
    }
    let ratio = |(base, this): (&f64, &f64)| (*base > 0.0 && this.is_finite()).then(|| this / base);
    baseline.iter().zip(this).map(ratio).collect()
}

/// The middle 95 % of the medians of pairs drawn again.
fn bootstrap_interval(values: &[f64], random: &mut Random) -> Option<(f64, f64)> {
    let mut drawn = vec![0.0; values.len()];
    let mut medians = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        drawn.fill_with(|| values[random.below(values.len())]);
        medians.push(median(&drawn)?);
    }
    medians.sort_unstable_by(f64::total_cmp);
    let cut = RESAMPLES / 40; // 2.5 % at each end
    Some((medians[cut], medians[RESAMPLES - 1 - cut]))
}

/// Order of the conditions in one round: forward in even rounds, backward in odd ones, so that two conditions come as
/// ABBA and three as ABCCBA.
pub fn order_of_round(round: usize, conditions: usize) -> Vec<usize> {
    if round.is_multiple_of(2) { (0..conditions).collect() } else { (0..conditions).rev().collect() }
}

/// Rounds with their conditions, as (round, condition), in this order.
pub fn turns(rounds: usize, conditions: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| order_of_round(round, conditions).into_iter().map(move |nth| (round, nth)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compare(baseline: &[f64], this: &[f64]) -> Option<Comparison> {
        Comparison::of(baseline, this, &mut Random::seeded(1))
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn drift_that_meets_both_sides_alike_does_not_show() {
        // The machine gets ten times slower while both run; each pair still gives 1.25.
        let baseline: Vec<f64> = (1..=10).map(|speed| 100.0 / f64::from(speed)).collect();
        let this: Vec<f64> = baseline.iter().map(|speed| speed * 1.25).collect();
        let found = compare(&baseline, &this).unwrap();
        assert!((found.ratio - 1.25).abs() < 1e-12);
        assert!((found.ratio_high - found.ratio_low).abs() < 1e-12);
        assert_eq!(found.verdict(Better::More), Verdict::Better);
        assert_eq!(found.verdict(Better::Less), Verdict::Worse);
    }

    #[test]
    fn an_interval_with_one_in_it_is_no_difference() {
        let baseline = [1.0; 8];
        let this = [0.9, 1.1, 0.95, 1.05, 1.0, 0.98, 1.02, 1.01];
        assert_eq!(compare(&baseline, &this).unwrap().verdict(Better::More), Verdict::NoDifference);
    }

    #[test]
    fn five_pairs_tell_nothing_and_six_do() {
        assert_eq!(compare(&[1.0; 5], &[2.0; 5]).unwrap().verdict(Better::More), Verdict::TooFewPairs);
        assert_eq!(compare(&[1.0; 6], &[2.0; 6]).unwrap().verdict(Better::More), Verdict::Better);
    }

    #[test]
    fn lists_that_are_no_pairs_are_refused() {
        assert_eq!(compare(&[], &[]), None);
        assert_eq!(compare(&[1.0], &[1.0, 2.0]), None);
        assert_eq!(compare(&[0.0, 1.0], &[1.0, 1.0]), None);
        assert_eq!(compare(&[1.0, 1.0], &[f64::NAN, 1.0]), None);
    }

    #[test]
    fn a_difference_is_that_of_pairs_and_not_of_medians() {
        let found = Difference::of(&[1.0, 5.0, 9.0], &[2.0, 6.0, 20.0], &mut Random::seeded(1)).unwrap();
        assert_eq!((found.difference, found.baseline, found.this), (1.0, 5.0, 6.0));
        assert!(found.difference_low >= 1.0 && found.difference_high <= 11.0);
        assert_eq!(Difference::of(&[], &[], &mut Random::seeded(1)), None);
        assert_eq!(Difference::of(&[1.0], &[1.0, 2.0], &mut Random::seeded(1)), None);
        assert_eq!(Difference::of(&[1.0], &[f64::NAN], &mut Random::seeded(1)), None);
    }

    #[test]
    fn two_conditions_come_as_abba() {
        let order: Vec<usize> = turns(4, 2).map(|(_, nth)| nth).collect();
        assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(order_of_round(1, 3), [2, 1, 0]);
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_ratio_and_lies_within_the_samples(
            samples in prop::collection::vec((0.1f64..1e6, 0.1f64..1e6), 1..40), seed: u64,
        ) {
            let (baseline, this): (Vec<f64>, Vec<f64>) = samples.iter().copied().unzip();
            let found = Comparison::of(&baseline, &this, &mut Random::seeded(seed)).unwrap();
            let ratios = samples.iter().map(|(base, this)| this / base);
            let low = ratios.clone().fold(f64::INFINITY, f64::min);
            let high = ratios.fold(0.0, f64::max);
            prop_assert!(low <= found.ratio_low && found.ratio_high <= high);
            prop_assert!(found.ratio_low <= found.ratio && found.ratio <= found.ratio_high);
        }

        #[test]
        fn a_common_factor_changes_no_ratio(
            samples in prop::collection::vec((0.1f64..1e6, 0.1f64..1e6), 1..20), power in -8i32..8,
        ) {
            let factor = 2f64.powi(power);
            let (baseline, this): (Vec<f64>, Vec<f64>) = samples.iter().copied().unzip();
            let scaled = |values: &[f64]| values.iter().map(|value| value * factor).collect::<Vec<_>>();
            let (plain, scaled) = (compare(&baseline, &this).unwrap(), compare(&scaled(&baseline), &scaled(&this)).unwrap());
            prop_assert!((plain.ratio - scaled.ratio).abs() <= plain.ratio * 1e-12);
        }

        #[test]
        fn every_condition_is_measured_once_a_round(round in 0usize..100, conditions in 0usize..10) {
            let mut order = order_of_round(round, conditions);
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..conditions));
        }
    }
}
