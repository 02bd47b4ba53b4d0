//! Sampling of frames, and the error of the estimate. Pure.
//!
//! A host of 24 GiB has six million frames, and reading each takes about a second. The sample reads small blocks of
//! neighbouring frames: one block at a random place in each stretch of `one_in` blocks (a stratified sample). Each
//! block represents its stretch. The error of a sum is estimated from the differences between neighbouring stretches
//! (Wolter, "Introduction to Variance Estimation", 2nd edition, section 8.2.1, the estimator of successive
//! differences). This estimator accounts for memory in long runs: equal neighbours add no uncertainty.
//!
//! No I/O, no clock; randomness comes from a seed.

use std::ops::Range;

use units::spread::Random;

/// Consecutive frames in one read.
pub const BLOCK_FRAMES: u64 = 8;

/// Sampling design.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Design {
    /// One block of this many; 1 for all.
    pub one_in: u64,
    /// Random seed.
    pub seed: u64,
}

impl Design {
    /// Design that reads all frames.
    pub const WHOLE: Design = Design { one_in: 1, seed: 0 };

    /// Design for `frames` with at most about this many blocks.
    pub fn of_at_most(blocks: u64, frames: u64, seed: u64) -> Design {
        Design { one_in: frames.div_ceil(BLOCK_FRAMES).div_ceil(blocks.max(1)).max(1), seed }
    }
}

/// Consecutive frames to read, and the number of frames that they represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// First frame.
    pub first: u64,
    /// Number of frames.
    pub count: u64,
    /// Number of frames in the stretch, the block included.
    pub stands_for: u64,
}

/// Frames to read out of `count` frames starting with `first`, in order.
pub fn picks(first: u64, count: u64, design: Design) -> impl Iterator<Item = Pick> {
    let one_in = design.one_in.max(1);
    // For a full scan, blocks are as long as one read may be.
    let stretch = BLOCK_FRAMES.saturating_mul(if one_in == 1 { 64 } else { one_in });
    let mut random = Random::seeded(design.seed);
    (0..count.div_ceil(stretch)).map(move |number| {
        let begin = number * stretch;
        let frames = stretch.min(count - begin);
        if one_in == 1 {
            return Pick { first: first + begin, count: frames, stands_for: frames };
        }
        let block = random.number() % frames.div_ceil(BLOCK_FRAMES) * BLOCK_FRAMES;
        Pick { first: first + begin + block, count: BLOCK_FRAMES.min(frames - block), stands_for: frames }
    })
}

/// Frames to read of several ranges, in order, each with its own random sequence. The same design reads the same
/// frames.
pub fn picks_of_all(ranges: &[Range<u64>], design: Design) -> impl Iterator<Item = Pick> {
    let mut random = Random::seeded(design.seed);
    ranges.iter().flat_map(move |range| {
        let seed = random.number();
        picks(range.start, range.end.saturating_sub(range.start), Design { seed, ..design })
    })
}

/// Estimate of a sum over all frames from a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    frames: f64,
    /// Squared differences between neighbours, halved as they are added.
    squares: f64,
    before: Option<f64>,
    /// Number of frames of the largest stretch that was read in part.
    stretch: f64,
}

impl Sum {
    /// Adds a stretch with `seen` hits among the picked frames. Stretches come in order.
    #[expect(clippy::cast_precision_loss, reason = "numbers of frames, far below 2^52")]
    pub fn add(&mut self, pick: Pick, seen: u64) {
        let (count, stands_for) = (pick.count.max(1) as f64, pick.stands_for as f64);
        let share = seen as f64 / count;
        self.frames += seen as f64 * (stands_for / count);
        // A stretch that was read fully adds no uncertainty.
        let unseen = 1.0 - count / stands_for.max(1.0);
        if unseen > 0.0 {
            self.stretch = self.stretch.max(stands_for);
        }
        if let Some(before) = self.before.replace(share) {
            self.squares += unseen * ((share - before) * stands_for).powi(2) / 2.0;
        }
    }

    /// Estimated number of frames.
    pub fn frames(&self) -> f64 {
        self.frames
    }

    /// 95 % confidence bound of the sum, in frames.
    ///
    /// At least three stretches: a use that no block showed may still be that large (the rule of three; Hanley and
    /// Lippman-Hand, "If nothing goes wrong, is everything all right?", 1983).
    pub fn bound(&self) -> f64 {
        (1.96 * self.squares.sqrt()).hypot(3.0 * self.stretch)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn estimate(frames: &[bool], design: Design) -> Sum {
        let mut sum = Sum::default();
        let mut left = frames.iter();
        let mut at = 0;
        for pick in picks(0, frames.len() as u64, design) {
            let between = usize::try_from(pick.first - at).unwrap();
            let count = usize::try_from(pick.count).unwrap();
            let seen = left.by_ref().skip(between).take(count).filter(|is| **is).count();
            at = pick.first + pick.count;
            sum.add(pick, seen as u64);
        }
        sum
    }

    fn count(frames: &[bool]) -> f64 {
        frames.iter().filter(|is| **is).count() as f64
    }

    #[test]
    fn a_full_scan_reads_all_frames() {
        let all: Vec<Pick> = picks(100, 1300, Design::WHOLE).collect();
        let frames: Vec<u64> = all.iter().flat_map(|pick| pick.first..pick.first + pick.count).collect();
        assert_eq!(frames, (100..1400).collect::<Vec<_>>());
    }

    #[test]
    fn memory_that_lies_in_one_piece_is_known_well() {
        let piece: Vec<bool> = (0..1 << 20).map(|frame| frame < 300_000).collect();
        let sum = estimate(&piece, Design { one_in: 64, seed: 7 });
        assert!((sum.frames() - 300_000.0).abs() <= 512.0 && sum.bound() < 2000.0, "{sum:?}");
    }

    #[test]
    fn memory_strewn_at_random_is_known_as_well_as_chance_allows() {
        let mut random = Random::seeded(1);
        let strewn: Vec<bool> = (0..1 << 20).map(|_| random.number() >> 63 == 1).collect();
        // 16,384 frames are read: half of 2^20, give or take 2^20 · 1.96 · √(¼ / 16,384) = 8,028.
        let sum = estimate(&strewn, Design { one_in: 64, seed: 7 });
        assert!((sum.frames() - count(&strewn)).abs() < 2.0 * sum.bound(), "{sum:?}");
        assert!((7_000.0..9_000.0).contains(&sum.bound()), "{sum:?}");
    }

    #[test]
    fn the_truth_is_within_the_bound_nineteen_times_of_twenty() {
        // Runs of 700 frames, every third of them used.
        let frames: Vec<bool> = (0..1 << 18).map(|frame| frame / 700 % 3 == 0).collect();
        let within = (0..400)
            .map(|seed| estimate(&frames, Design { one_in: 64, seed: seed << 32 }))
            .filter(|sum| (sum.frames() - count(&frames)).abs() <= sum.bound())
            .count();
        assert!(within >= 370, "{within} of 400");
    }

    #[test]
    fn a_use_that_no_block_shows_is_within_the_bound() {
        // Runs of eight frames, one in each 4,000: of 65 runs a sample of one in 64 hits one, or none.
        let frames: Vec<bool> = (0..1 << 18).map(|frame| frame % 4000 < 8).collect();
        let within = (0..400)
            .map(|seed| estimate(&frames, Design { one_in: 64, seed: seed << 32 }))
            .filter(|sum| (sum.frames() - count(&frames)).abs() <= sum.bound())
            .count();
        assert!(within >= 370, "{within} of 400");
        let nothing = estimate(&vec![false; 1 << 18], Design { one_in: 64, seed: 7 });
        assert_eq!((nothing.frames(), nothing.bound()), (0.0, 3.0 * 512.0));
    }

    #[test]
    fn a_sample_is_as_large_as_asked_for_on_hosts_of_any_size() {
        // 24 GiB: 6,291,456 frames in 786,432 blocks; one in 96 gives 8,192.
        assert_eq!(Design::of_at_most(8192, 6_291_456, 0).one_in, 96);
        assert_eq!(Design::of_at_most(8192, 4096, 0).one_in, 1);
        assert_eq!(Design::of_at_most(0, 0, 0).one_in, 1);
    }

    #[test]
    fn ranges_of_the_same_length_are_read_in_different_places() {
        let ranges = [0..1 << 16, 1 << 20..(1 << 20) + (1 << 16)];
        let all: Vec<u64> = picks_of_all(&ranges, Design { one_in: 64, seed: 7 }).map(|pick| pick.first).collect();
        let (one, other) = all.split_at(all.len() / 2);
        assert!(one.iter().zip(other).filter(|(one, other)| *one + (1 << 20) == **other).count() < one.len() / 4);
    }

    proptest! {
        #[test]
        fn picks_are_frames_of_the_range_in_order_and_stand_for_all_of_it(
            first in 0u64..1 << 30, count in 0u64..100_000, one_in in 0u64..200, seed: u64,
        ) {
            let all: Vec<Pick> = picks(first, count, Design { one_in, seed }).collect();
            prop_assert_eq!(all.iter().map(|pick| pick.stands_for).sum::<u64>(), count);
            let mut end = first;
            for pick in &all {
                prop_assert!(pick.first >= end && pick.count > 0 && pick.count <= pick.stands_for);
                end = pick.first + pick.count;
            }
            prop_assert!(end <= first + count);
        }

        #[test]
        fn picks_of_several_ranges_are_in_them_in_order_and_stand_for_all_of_them(
            gaps in prop::collection::vec((1u64..1000, 1u64..5000), 0..8), one_in in 0u64..200, seed: u64,
        ) {
            let mut at = 0;
            let ranges: Vec<Range<u64>> = gaps.into_iter().map(|(gap, count)| {
                let start = at + gap;
                at = start + count;
                start..at
            }).collect();
            let design = Design { one_in, seed };
            let all: Vec<Pick> = picks_of_all(&ranges, design).collect();
            let frames: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            prop_assert_eq!(all.iter().map(|pick| pick.stands_for).sum::<u64>(), frames);
            prop_assert!(all.windows(2).all(|two| two[0].first + two[0].count <= two[1].first));
            let is_in_one = |pick: &Pick| {
                ranges.iter().any(|range| range.contains(&pick.first) && pick.first + pick.count <= range.end)
            };
            prop_assert!(all.iter().all(is_in_one));
            prop_assert_eq!(picks_of_all(&ranges, design).collect::<Vec<_>>(), all);
        }

        #[test]
        fn a_whole_look_is_exact(frames in prop::collection::vec(any::<bool>(), 0..2000)) {
            let sum = estimate(&frames, Design::WHOLE);
            prop_assert_eq!(sum.frames(), count(&frames));
            prop_assert_eq!(sum.bound(), 0.0);
        }
    }
}
