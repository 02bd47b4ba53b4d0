//! Merged miss curve of programs that share a partition, as KPart estimates it.
//!
//! El-Sayed et al., "KPart: A Hybrid Cache Partitioning-Sharing Technique for Commodity Multicores", HPCA 2018,
//! section IV, with the model of Mukkara, Beckmann and Sanchez, "Whirlpool", ASPLOS 2016: the partition grows by one
//! unit at a time, and each unit is divided between the programs in proportion to their misses with their shares at
//! that point.
//!
//! | paper                       | here                 | unit                       |
//! |-----------------------------|----------------------|----------------------------|
//! | miss curves                 | [`Program::misses`](super::Program::misses) | per thousand instructions |
//! | combined curve              | [`Combined::misses`] | per thousand instructions, summed |
//! | one unit                    | [`UNITS`] to a way   | ways                       |
//!
//! We differ: a unit is a fraction of a way, since a whole one is too coarse for 11 ways and 4 programs.

use units::Ways;
use units::cast::index;

use super::{Curve, Situation};

/// Units per way.
pub const UNITS: u32 = 4;

/// A group in a partition, by its ways.
#[derive(Clone, Debug)]
pub struct Combined {
    /// MPKI summed over the group, by ways from 0 to all usable ways.
    pub misses: Curve,
    /// Share of each program in the partition, in ways, by the ways of the partition; programs in the order of the
    /// group.
    pub shares: Vec<Vec<f64>>,
}

/// Estimates the merged curve of these programs.
pub fn combined(situation: &Situation, group: &[usize]) -> Combined {
    let curves: Vec<&Curve> =
        group.iter().filter_map(|program| situation.programs.get(*program)).map(|program| &program.misses).collect();
    let mut has = vec![0.0; curves.len()];
    let mut shares: Vec<Vec<f64>> = has.iter().map(|has| vec![*has]).collect();
    let mut misses = vec![sum(&curves, &has)];
    for _ in 0..situation.cache.usable.ways().0 {
        for _ in 0..UNITS {
            let rates: Vec<f64> = curves.iter().zip(&has).map(|(curve, has)| curve.between(*has)).collect();
            let total: f64 = rates.iter().sum();
            for (has, rate) in has.iter_mut().zip(&rates) {
                if total > 0.0 {
                    *has += rate / total / f64::from(UNITS);
                }
            }
        }
        misses.push(sum(&curves, &has));
        shares.iter_mut().zip(&has).for_each(|(shares, has)| shares.push(*has));
    }
    Combined { misses: Curve::new(misses), shares }
}

fn sum(curves: &[&Curve], has: &[f64]) -> f64 {
    curves.iter().zip(has).map(|(curve, has)| curve.between(*has)).sum()
}

impl Combined {
    /// Slowdown of each program of the group in a partition with this number of ways.
    pub fn slowdowns<'a>(
        &'a self,
        situation: &'a Situation,
        group: &'a [usize],
        ways: Ways,
    ) -> impl Iterator<Item = f64> + 'a {
        group.iter().zip(&self.shares).map(move |(program, shares)| {
            let at = index(ways.0.into()).min(shares.len() - 1);
            let program = &situation.programs[*program];
            program.slowdown(program.misses.between(shares[at]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::examples::{cache, cyclic, program, random, situation};

    #[test]
    fn alone_it_is_the_programs_own_curve() {
        let alone = situation(cache(8, 16), vec![program(&random(8.0, 8, 8))]);
        let found = combined(&alone, &[0]);
        assert_eq!(found.misses.values(), [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]);
        assert_eq!(found.shares[0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    }

    #[test]
    fn a_stream_takes_three_quarters_when_it_misses_three_times_as_much() {
        let both = situation(cache(8, 16), vec![program(&[30.0; 9]), program(&cyclic(10.0, 4, 8))]);
        let found = combined(&both, &[0, 1]);
        assert_eq!((found.shares[0][8], found.shares[1][8]), (6.0, 2.0));
        assert_eq!(found.misses.at(Ways(8)), 40.0); // The loop of 4 ways has 2.
    }
}
