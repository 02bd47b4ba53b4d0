//! Shared occupancy: the ways that each stream holds when several fill the same ones.
//!
//! Xiang, Ding, Luo and Bao, "HOTL: A Higher Order Theory of Locality", ASPLOS 2013: with LRU all lines younger than
//! some age stay, whichever stream filled them; a stream holds its footprint within that age; and a footprint grows
//! at the miss rate of the stream with a cache of its size:
//!
//! ```text
//! d c_i / d age = speed_i · misses_i(c_i)        until  Σ c_i = the ways that there are
//! ```
//!
//! | paper               | here                         | unit                                      |
//! |---------------------|------------------------------|-------------------------------------------|
//! | footprint           | the answer of [`held`]       | ways                                      |
//! | miss ratio          | [`Feed::curve`]              | misses per thousand instructions, by ways |
//! | access rate         | `speeds`                     | instructions per cycle, times any constant |
//!
//! Whirlpool's and KPart's step by step division is the same equation with coarse steps (`combine`).
//!
//! We differ: masks may overlap. A line replaces the oldest one, so a stream that may fill several ways avoids the
//! contended ones. All grow together until some run of ways is full of lines of streams that are confined to it;
//! these streams are final, and the others go on in the remaining ways. And several programs may feed one stream: the
//! lines that they share.

use units::WayMask;

use super::Curve;

/// Steps per way.
const STEPS: f64 = 2.0;
/// Negligible step, in ways.
const LEAST_STEP: f64 = 1e-9;

/// Accesses of one program in a stream.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// Index of the program in the speeds.
    pub program: usize,
    /// Its misses by the ways of all of the data.
    pub curve: &'a Curve,
}

/// Lines as young as their last access, by any program.
#[derive(Clone, Debug)]
pub struct Stream<'a> {
    /// Ways that the stream fills, contiguous.
    pub mask: WayMask,
    /// Fraction of the data in this stream, above 0 to 1.
    pub part: f64,
    /// Programs that read the lines.
    pub feeds: Vec<Feed<'a>>,
}

impl Stream<'_> {
    /// Misses over time when the stream holds this number of ways.
    fn rate(&self, ways: f64, speeds: &[f64]) -> f64 {
        let whole = ways / self.part;
        self.feeds.iter().map(|feed| speeds[feed.program] * self.part * feed.curve.between(whole)).sum()
    }

    /// Decrease of the miss rate with one more way, never negative.
    fn fall(&self, ways: f64, speeds: &[f64]) -> f64 {
        let whole = ways / self.part;
        self.feeds.iter().map(|feed| speeds[feed.program] * feed.curve.fall(whole)).sum::<f64>().max(0.0)
    }
}

/// A growing stream: from its first way to its last, with the full ways removed.
#[derive(Clone, Copy)]
struct Growing {
    stream: usize,
    first: u32,
    end: u32,
    rate: f64,
}

impl Growing {
    const fn within(&self, first: u32, end: u32) -> bool {
        first <= self.first && self.end <= end
    }
}

/// The ways that each stream holds in the end, fractions included.
pub fn held(streams: &[Stream<'_>], speeds: &[f64]) -> Vec<f64> {
    let mut held = vec![0.0; streams.len()];
    let mut growing: Vec<Growing> = Vec::with_capacity(streams.len());
    for (stream, of) in streams.iter().enumerate() {
        if let Some(first) = of.mask.first().filter(|_| of.part > 0.0) {
            growing.push(Growing { stream, first, end: first + of.mask.ways().0, rate: 0.0 });
        }
    }
    let mut runs: Vec<(u32, u32)> = runs(&growing);
    while !growing.is_empty() {
        let mut total = 0.0;
        for one in &mut growing {
            one.rate = streams[one.stream].rate(held[one.stream], speeds);
            total += one.rate;
        }
        let mut time = 1.0 / (STEPS * total);
        if total <= 0.0 || !total.is_finite() || !time.is_finite() {
            break; // Their data is in the cache, nearly all of it.
        }
        for one in &mut growing {
            // While it grows along a straight line its rate falls; this is the mean rate.
            let bend = streams[one.stream].fall(held[one.stream], speeds) * time;
            one.rate *= mean_of_decay(bend);
        }
        let mut full = None;
        for (first, end) in &runs {
            let of = growing.iter().filter(|one| one.within(*first, *end));
            let (has, rate) = of.fold((0.0, 0.0), |(has, rate), one| (has + held[one.stream], rate + one.rate));
            let room = (f64::from(end - first) - has).max(0.0);
            if room <= rate * time {
                time = if rate > 0.0 { room / rate } else { 0.0 };
                full = Some((*first, *end));
            }
        }
        growing.iter().for_each(|one| held[one.stream] += one.rate * time);
        let grown: f64 = growing.iter().map(|one| one.rate * time).sum();
        if full.is_none() && (grown < LEAST_STEP || grown.is_nan()) {
            break; // The same, up to rounding.
        }
        if let Some((first, end)) = full {
            growing.retain(|one| !one.within(first, end));
            let moved = |way: u32| if way >= end { way - (end - first) } else { way.min(first) };
            growing.iter_mut().for_each(|one| (one.first, one.end) = (moved(one.first), moved(one.end)));
            runs = self::runs(&growing);
        }
    }
    held
}

/// (1 − e^−x)/x, from 1 down to 0: the mean of e^−t over t from 0 to x.
pub(super) fn mean_of_decay(x: f64) -> f64 {
    // Series of the inverse; the omitted term is x⁴/720.
    if x < 0.5 { 1.0 / (1.0 + x / 2.0 + x * x / 12.0) } else { (1.0 - (-x).exp()) / x }
}

/// Every run of ways from the first way of some stream to the last way of some stream.
fn runs(growing: &[Growing]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = growing
        .iter()
        .flat_map(|from| growing.iter().map(|to| (from.first, to.end)))
        .filter(|(first, end)| first < end)
        .collect();
    runs.sort_unstable();
    runs.dedup();
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::examples::{cyclic, random};

    /// Ways held by streams of one program each, all equally fast.
    fn of(streams: &[(u64, Vec<f64>)]) -> Vec<f64> {
        let curves: Vec<Curve> = streams.iter().map(|(_, misses)| Curve::new(misses.clone())).collect();
        let stream = |(program, (mask, _)): (usize, &(u64, Vec<f64>))| {
            let feeds = vec![Feed { program, curve: &curves[program] }];
            Stream { mask: WayMask(*mask), part: 1.0, feeds }
        };
        let streams: Vec<Stream<'_>> = streams.iter().enumerate().map(stream).collect();
        held(&streams, &vec![1.0; curves.len()])
    }

    fn close(found: &[f64], expected: &[f64]) -> bool {
        found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 0.05)
    }

    #[test]
    fn two_streams_divide_the_ways_by_how_often_they_miss() {
        let found = of(&[(0xff, vec![30.0; 9]), (0xff, vec![10.0; 9])]);
        assert!(close(&found, &[6.0, 2.0]), "{found:?}");
    }

    #[test]
    fn what_fits_stays_and_the_other_has_the_rest() {
        // Random accesses to 2 ways, 40 of them, beside a stream of 1: 2 · (1 − e^(−20 · age)), and the age is about
        // 6.
        let found = of(&[(0xff, random(40.0, 2, 8)), (0xff, vec![1.0; 9])]);
        assert!(close(&found, &[2.0, 6.0]), "{found:?}");
        let found = of(&[(0xff, cyclic(40.0, 2, 8)), (0xf0, cyclic(1.0, 3, 8))]);
        assert!(found[0] <= 2.0 && found[1] <= 3.0, "{found:?}");
    }

    #[test]
    fn whoever_may_fill_more_avoids_what_is_contended() {
        // The first may fill only ways 0 and 1; the second all 8, and has 6 of them for itself.
        let found = of(&[(0x03, vec![10.0; 9]), (0xff, vec![10.0; 9])]);
        assert!(close(&found, &[2.0, 6.0]), "{found:?}");
        // A slow one in ways 0 to 3 keeps its lines as long as the fast one does in all 8: 8 · 1/11 of them.
        let found = of(&[(0x0f, vec![1.0; 9]), (0xff, vec![10.0; 9])]);
        assert!(close(&found, &[8.0 / 11.0, 80.0 / 11.0]), "{found:?}");
    }

    #[test]
    fn a_full_run_in_the_middle_leaves_what_is_around_it() {
        let found = of(&[(0x3c, vec![100.0; 9]), (0xff, vec![1.0; 9]), (0xf0, vec![1.0; 9])]);
        assert!(close(&found, &[4.0, 2.0, 2.0]), "{found:?}");
    }

    #[test]
    fn those_who_share_lines_keep_them_young_together() {
        let (curve, stream) = (Curve::new(random(10.0, 8, 8)), Curve::new(vec![10.0; 9]));
        let feed = |program, curve| Feed { program, curve };
        let with = |feeds: Vec<Feed<'_>>| {
            let shared = Stream { mask: WayMask(0xff), part: 1.0, feeds };
            let other = Stream { mask: WayMask(0xff), part: 1.0, feeds: vec![feed(2, &stream)] };
            held(&[shared, other], &[1.0; 3])[0]
        };
        assert!(with(vec![feed(0, &curve), feed(1, &curve)]) > with(vec![feed(0, &curve)]) + 0.5);
        // Half of the data, alone: 4 ways hold it.
        let half = Stream { mask: WayMask(0xff), part: 0.5, feeds: vec![feed(0, &curve)] };
        let found = held(&[half], &[1.0])[0];
        assert!(found > 3.5 && found <= 4.0, "{found}");
    }

    /// Found by fuzzing: the time to the next miss exceeds all numbers, and the loop had no end.
    #[test]
    fn misses_that_are_almost_none_come_to_an_end() {
        assert!(of(&[(0xff, vec![40.0, 1e-319, 0.0]), (0xff, vec![1e-320; 4])]).iter().all(|held| held.is_finite()));
        assert!(of(&[(0xff, vec![1e-310; 9])]).iter().all(|held| held.is_finite()));
    }

    proptest! {
        #[test]
        fn nobody_has_more_than_its_mask_and_no_run_more_than_it_holds(
            streams in prop::collection::vec((0u32..12, 1u32..12, prop::collection::vec(0.0f64..50.0, 1..14)), 1..7),
        ) {
            let streams: Vec<(u64, Vec<f64>)> = streams.into_iter()
                .map(|(first, ways, misses)| (WayMask::run(first, units::Ways(ways)).0, misses)).collect();
            let found = of(&streams);
            for first in 0..24 {
                for ways in 1..24u32 {
                    let run = WayMask::run(first, units::Ways(ways));
                    let within = streams.iter().zip(&found).filter(|((mask, _), _)| run.covers(WayMask(*mask)));
                    prop_assert!(within.map(|(_, held)| held).sum::<f64>() <= f64::from(ways) + 1e-6);
                }
            }
            let all = streams.iter().fold(WayMask::NONE, |all, (mask, _)| all.or(WayMask(*mask)));
            if streams.iter().all(|(_, misses)| misses.iter().all(|misses| *misses > 0.5)) {
                prop_assert!((found.iter().sum::<f64>() - f64::from(all.ways().0)).abs() < 1e-6, "nothing is left empty");
            }
        }
    }
}
