//! Misses of a program on its sharing groups, when it has the cache to itself and no shared partition is kept warm.
//!
//! Known are its misses on all of its pages and on its private ones, by ways. With LRU all lines younger than some
//! age are in the cache (`contend`), so at each age both footprints are known. The footprint of the shared pages is
//! their difference, and the shared misses follow in the same manner:
//!
//! ```text
//! d c_all / d age = misses(c_all)        d c_private / d age = private_misses(c_private)
//! shared(c_all − c_private) = misses(c_all) − private_misses(c_private)
//! ```

use units::{Bytes, Ways};

use crate::policy::{Curve, Program, Situation, shared_occupancy};

/// Steps per way.
const STEPS: u32 = 8;

/// For each sharer of a group: its misses on the group, by the ways that lines of the group have. A program with
/// several sharing groups is assumed to treat all alike, each by its size.
pub fn curves(situation: &Situation, set: usize) -> Vec<Curve> {
    let of = |program: usize| {
        let mine = situation.shared.iter().flat_map(move |other| {
            other
                .sharers
                .iter()
                .filter(move |sharer| sharer.program == program)
                .map(move |sharer| (other.bytes, sharer))
        });
        mine.fold((0u64, 0.0), |(bytes, misses), (more, sharer)| {
            (bytes.saturating_add(more.0), misses + sharer.misses.at(Ways(0)))
        })
    };
    let here = situation.shared[set].bytes;
    let curve = |sharer: &crate::policy::Sharer| {
        let Some(program) = situation.programs.get(sharer.program) else { return Curve::new(vec![0.0]) };
        let (bytes, all) = of(sharer.program);
        let together = together(program, all, situation.cache.usable.ways());
        let misses = sharer.misses.at(Ways(0));
        let stretch = part_of(Bytes(bytes), here);
        let at = |ways: u32| if all > 0.0 { misses / all * together.between(f64::from(ways) * stretch) } else { 0.0 };
        Curve::new((0..=situation.cache.usable.ways().0).map(at).collect())
    };
    situation.shared[set].sharers.iter().map(curve).collect()
}

/// Fraction `one` / `other`.
fn part_of(one: Bytes, other: Bytes) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio of sizes")]
    let ratio = one.0 as f64 / other.0.max(1) as f64;
    ratio.max(1.0)
}

/// Misses on all shared data of a program, `all` without any cache, by the ways that its lines have.
fn together(program: &Program, all: f64, ways: Ways) -> Curve {
    let (mut has, mut private, mut least) = (0.0f64, 0.0f64, all);
    let mut found = vec![(0.0, all)];
    for _ in 0..ways.0 * STEPS {
        let rate = program.misses.between(has);
        if rate <= 0.0 {
            break;
        }
        let age = 1.0 / (f64::from(STEPS) * rate);
        has += 1.0 / f64::from(STEPS);
        let bend = program.private_misses.fall(private).max(0.0) * age;
        let mean = shared_occupancy::mean_of_decay(bend);
        private = (private + program.private_misses.between(private) * mean * age).min(has);
        least = least.min((program.misses.between(has) - program.private_misses.between(private)).max(0.0));
        found.push((has - private, least));
    }
    // Values at whole ways, on straight lines between the computed points; the last is kept beyond them.
    let at = |ways: u32| {
        let ways = f64::from(ways);
        let next = found.iter().position(|(has, _)| *has >= ways);
        match next {
            None => least,
            Some(0) => all,
            Some(next) => {
                let ((from, before), (to, after)) = (found[next - 1], found[next]);
                before + (after - before) * if to > from { (ways - from) / (to - from) } else { 1.0 }
            }
        }
    };
    Curve::new((0..=ways.0).map(at).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::examples::{cache, cyclic, program, random, set, situation};

    fn reader(misses: Vec<f64>, private: &[f64]) -> Program {
        Program { misses: Curve::new(misses), ..program(private) }
    }

    #[test]
    fn half_of_a_loop_is_a_loop_of_half_the_size() {
        // A loop over 8 ways' worth, half of it shared: its shared accesses hit with 4 ways of their own, and not
        // with fewer.
        let loops = reader(cyclic(20.0, 8, 12), &cyclic(10.0, 4, 12));
        let found = together(&loops, 10.0, Ways(12));
        assert!((0..3).all(|ways| (found.at(Ways(ways)) - 10.0).abs() < 0.5), "{found:?}");
        assert!((5..=12).all(|ways| found.at(Ways(ways)) < 0.5), "{found:?}");
    }

    #[test]
    fn random_accesses_to_a_set_are_random_without_the_others() {
        let both = reader(random(20.0, 8, 12), &random(10.0, 4, 12));
        let found = together(&both, 10.0, Ways(12));
        for (ways, expected) in random(10.0, 4, 12).into_iter().enumerate() {
            assert!((found.values()[ways] - expected).abs() < 0.5, "{ways}: {found:?}");
        }
    }

    #[test]
    fn two_sets_are_treated_alike() {
        let both = reader(random(20.0, 8, 12), &[0.0; 13]);
        let sets = vec![set(&[0, 1], &random(15.0, 4, 12)), set(&[0, 1], &random(5.0, 4, 12))];
        let two = Situation { shared: sets, ..situation(cache(12, 16), vec![both; 2]) };
        let found = curves(&two, 1);
        assert!((found[0].at(Ways(2)) - 2.5).abs() < 0.2 && found[0] == found[1], "{found:?}");
    }
}
