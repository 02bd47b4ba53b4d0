//! Situations for the tests of the policies: by hand, and arbitrary.

use proptest::prelude::*;
use units::{Bytes, WayMask, Ways};

use super::{Cache, Curve, Program, Sharer, SharingGroup, Situation};

/// Cache with this number of ways of 1 MiB, and this number of classes.
pub fn cache(ways: u32, classes_max: usize) -> Cache {
    Cache { usable: WayMask::lowest(Ways(ways)), ways_min: Ways(1), classes_max, way_bytes: Bytes::mib(1) }
}

/// Program with this MPKI by ways that shares nothing: 1000 cycles without a miss, 100 more for each.
pub fn program(misses: &[f64]) -> Program {
    let misses = Curve::new(misses.to_vec());
    Program { private_misses: misses.clone(), misses, base_cycles: 1000.0, miss_cycles: 100.0, stalled_fraction: 0.0 }
}

/// MPKI of random accesses to `holds` ways' worth of data.
pub fn random(accesses: f64, holds: u32, ways: u32) -> Vec<f64> {
    (0..=ways).map(|w| accesses * (1.0 - f64::from(w.min(holds)) / f64::from(holds))).collect()
}

/// MPKI of a loop over `holds` ways' worth of data: all accesses miss, or none.
pub fn cyclic(accesses: f64, holds: u32, ways: u32) -> Vec<f64> {
    (0..=ways).map(|w| if w < holds { accesses } else { 0.0 }).collect()
}

/// Programs without anything shared.
pub fn situation(cache: Cache, programs: Vec<Program>) -> Situation {
    Situation { cache, programs, shared: Vec::new() }
}

/// Sharing group of 4 MiB with these sharers, and the same MPKI for each.
pub fn set(sharers: &[usize], misses: &[f64]) -> SharingGroup {
    let sharer = |program: &usize| Sharer { program: *program, misses: Curve::new(misses.to_vec()) };
    SharingGroup { sharers: sharers.iter().map(sharer).collect(), bytes: Bytes::mib(4) }
}

/// Falling curve, in steps of any height, with an arbitrary number of values.
fn falling(most: f64) -> impl Strategy<Value = Vec<f64>> {
    (0.0..most, prop::collection::vec(prop_oneof![Just(1.0), 0.0..1.0f64], 1..24)).prop_map(|(first, falls)| {
        let mut value = first;
        let next = move |fall: f64| {
            let now = value;
            value *= fall;
            now
        };
        falls.into_iter().map(next).collect()
    })
}

prop_compose! {
    fn any_program()(
        misses in falling(40.0),
        private in 0.0..=1.0f64,
        base_cycles in 300.0..3000.0f64,
        miss_cycles in 20.0..300.0f64,
        stalled_fraction in 0.0..1.0f64,
    ) -> Program {
        let private_misses = Curve::new(misses.iter().map(|value| value * private).collect());
        Program { misses: Curve::new(misses), private_misses, base_cycles, miss_cycles, stalled_fraction }
    }
}

prop_compose! {
    /// Arbitrary valid situation.
    pub fn any_situation()(
        (first, ways) in (0u32..8, 1u32..24),
        ways_min in 1u32..4,
        classes_max in 1usize..18,
        programs in prop::collection::vec(any_program(), 0..14),
        sets in prop::collection::vec((prop::collection::vec(0usize..14, 2..5), falling(20.0), 1u64..30), 0..3),
    ) -> Situation {
        let usable = WayMask::run(first, Ways(ways.max(ways_min)));
        let cache = Cache { usable, ways_min: Ways(ways_min), classes_max, way_bytes: Bytes::mib(1) };
        let shared = sets.into_iter().filter_map(|(mut who, misses, mib)| {
            who.retain(|program| *program < programs.len());
            who.sort_unstable();
            who.dedup();
            let set = set(&who, &misses);
            (who.len() >= 2).then_some(SharingGroup { bytes: Bytes::mib(mib), ..set })
        }).collect();
        Situation { cache, programs, shared }
    }
}
