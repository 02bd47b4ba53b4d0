//! Set-associative cache: fills are limited by a mask, lookups are not. Pure.
//!
//! An access looks in all ways of its set. A miss fills a line, into the ways of its mask only: so work CAT and AMD QoS
//! (Intel SDM volume 3, 19.19; AMD64 APM volume 2, 19.3). Addresses are physical, so shared frames have shared lines.
//! Each line records its filler: the class of service, and the monitoring id counted by `llc_occupancy`.
//!
//! Replacement considers the ways of the mask alone, and takes an empty one first, the lowest:
//!
//! | name        | evicted line                            | effect of a mask |
//! |-------------|----------------------------------------------------------------|-------------------------|
//! | `lru`       | the least recently used                 | among the ways of the mask |
//! | `fifo`      | the least recently filled               | the same |
//! | `tree-plru` | the target of the bits of a binary tree | bits that point away from the mask are ignored |
//! | `qlru`      | the lowest way of age 3                 | only ages of the mask's ways are read and raised |
//!
//! `tree-plru`: each access turns the bits on its path away, also on the path of a way outside of the mask. Where a bit
//! points to a half without a way of the mask, the other half is taken.
//!
//! `qlru` is QLRU_H11_M1_R0_U0_UMO in the naming of Abel and Reineke (nanoBench, ISPASS 2020; uops.info/cache.html): a
//! hit changes age 3 or 2 to 1 and 1 to 0 (H11), a fill has age 1 (M1), the lowest way of age 3 is evicted (R0), and
//! without one all ages are raised until there is one (U0), on a miss only (UMO). The choice of real processors under a
//! mask is published for none of these.
//!
//! Fast: each tag has a byte beside it, and the bytes of eight ways are compared at once; tags are compared only where
//! the bytes are equal. Accesses do not allocate.

use serde::{Deserialize, Serialize};
use units::cast::fits;
use units::{Bytes, WayMask, Ways};

mod replacement;

use replacement::Recency;
pub(super) use replacement::{IN_ORDER, place_of, to_the_front};

/// Bytes per line.
pub const LINE: Bytes = Bytes(64);

/// Line of physical memory: its address divided by 64. This limits memory to 256 GiB, less one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u32);

/// Number that no line has.
pub(super) const EMPTY: u32 = u32::MAX;

/// Filler of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Filler {
    /// Class of service.
    pub class: u8,
    /// Monitoring id (RMID).
    pub monitor: u8,
}

/// Replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// Least recently used.
    Lru,
    /// Least recently filled.
    Fifo,
    /// Tree of bits.
    TreePlru,
    /// Four ages: `QLRU_H11_M1_R0_U0_UMO`.
    Qlru,
}

impl Replacement {
    /// All policies.
    pub const ALL: [Replacement; 4] = [Replacement::Lru, Replacement::Fifo, Replacement::TreePlru, Replacement::Qlru];
}

/// Geometry and replacement of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sets of all slices together: at least 1, a multiple of `slices`.
    pub sets: u32,
    /// Lines per set: 1 to 64.
    pub ways: Ways,
    /// Slices, chosen by a hash of the address; 1 for none. Real hashes are not published; this one spreads as well as
    /// any.
    pub slices: u32,
    /// Replacement policy.
    pub replacement: Replacement,
}

impl Shape {
    /// Capacity.
    pub fn bytes(self) -> Bytes {
        Bytes(u64::from(self.sets) * u64::from(self.ways.0) * LINE.0)
    }

    /// Set of a line.
    pub fn set_of(self, line: Line) -> u32 {
        Index::new(self).set_of(line)
    }
}

/// Precomputed lookup of sets: avoids divisions at each access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index {
    slices: u32,
    /// Sets of a slice, and their bit mask if their number is a power of two.
    in_slice: u32,
    bits: Option<u32>,
}

impl Index {
    pub(super) fn new(shape: Shape) -> Index {
        let in_slice = shape.sets / shape.slices;
        Index { slices: shape.slices, in_slice, bits: in_slice.is_power_of_two().then(|| in_slice - 1) }
    }

    #[inline]
    pub(super) fn set_of(self, line: Line) -> u32 {
        let set = if let Some(bits) = self.bits { line.0 & bits } else { line.0 % self.in_slice };
        if self.slices == 1 { set } else { slice_of(line, self.slices) * self.in_slice + set }
    }
}

/// Slice of a line: its number hashed to 32 bits (the finalizer of `MurmurHash3`, public domain), scaled to the number
/// of slices.
#[inline]
fn slice_of(line: Line, slices: u32) -> u32 {
    let mut spread = line.0;
    spread = (spread ^ spread >> 16).wrapping_mul(0x85eb_ca6b);
    spread = (spread ^ spread >> 13).wrapping_mul(0xc2b2_ae35);
    spread ^= spread >> 16;
    ((u64::from(spread) * u64::from(slices)) >> 32) as u32
}

/// Position of a line: set and way in one number, from 0 to sets · ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub usize);

/// Result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The line was cached, in any way.
    Hit {
        /// Position.
        slot: Slot,
        /// Filler of the line.
        filler: Filler,
    },
    /// The line was not cached, and was filled.
    Miss {
        /// Position now.
        slot: Slot,
        /// Evicted line.
        evicted: Option<Line>,
    },
    /// The line was not cached, and the mask has no way: nothing changed.
    Bypass,
}

/// Highest bit of each equal byte; sometimes also of a byte above an equal one, whose tag then differs.
#[inline]
pub(super) fn equal_marks(marks: u64, wanted: u64) -> u64 {
    let other = marks ^ wanted;
    other.wrapping_sub(ONES) & !other & HIGHS
}

/// Cache with its content.
#[derive(Clone, Debug)]
pub struct Cache {
    shape: Shape,
    index: Index,
    /// Lines, set after set, [`Cache::stride`] apart.
    tags: Vec<u32>,
    /// Mark byte of each tag; way 0 is the lowest byte of a word.
    marks: Vec<u64>,
    /// Filled ways of each set: bit n for way n.
    filled: Vec<u64>,
    fillers: Vec<Filler>,
    recency: Recency,
    /// Ways, rounded up to whole words of marks.
    stride: usize,
    all_ways: u64,
    held: Vec<u32>,
}

/// Marks per word.
const LANES: usize = 8;
/// A one, and the highest bit, in each byte.
pub(super) const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// Mark of a line: a byte that lines of one set seldom have in common.
#[inline]
pub(super) fn mark_of(line: Line) -> u64 {
    u64::from(line.0.wrapping_mul(0x9e37_79b1) >> 24)
}

impl Cache {
    /// Empty cache.
    ///
    /// # Panics
    /// With a shape out of bounds: parsers of input have to check it.
    pub fn new(shape: Shape) -> Cache {
        assert!((1..=64).contains(&shape.ways.0), "1 to 64 ways");
        assert!(
            shape.slices >= 1 && shape.sets >= 1 && shape.sets.is_multiple_of(shape.slices),
            "as many sets in each slice"
        );
        let stride = (shape.ways.0 as usize).next_multiple_of(LANES);
        let slots = shape.sets as usize * stride;
        Cache {
            shape,
            index: Index::new(shape),
            tags: vec![EMPTY; slots],
            marks: vec![0; slots / LANES],
            filled: vec![0; shape.sets as usize],
            fillers: vec![Filler::default(); slots],
            recency: Recency::new(shape, stride),
            stride,
            all_ways: WayMask::lowest(shape.ways).0,
            held: vec![0; 256],
        }
    }

    /// Geometry.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of slots: one more than the largest [`Slot`] of an access.
    pub fn slots(&self) -> usize {
        self.tags.len()
    }

    /// Looks a line up in all ways, and fills it into the ways of `mask` on a miss.
    #[inline]
    pub fn access(&mut self, line: Line, mask: WayMask, by: Filler) -> Access {
        debug_assert_ne!(line.0, EMPTY, "the last line of all does not exist");
        let set = self.index.set_of(line) as usize;
        let Some(slot) = self.find(set, line) else { return self.fill(set, line, mask.0 & self.all_ways, by) };
        let first = set * self.stride;
        #[expect(clippy::cast_possible_truncation, reason = "a way: below 64")]
        self.recency.hit(set, first, (slot - first) as u32);
        Access::Hit { slot: Slot(slot), filler: self.fillers[slot] }
    }

    /// Way of a line in its set.
    #[inline]
    fn find(&self, set: usize, line: Line) -> Option<usize> {
        let words = self.stride / LANES;
        let wanted = mark_of(line) * ONES;
        for (nth, marks) in self.marks[set * words..(set + 1) * words].iter().enumerate() {
            let mut equal = equal_marks(*marks, wanted);
            while equal != 0 {
                let slot = set * self.stride + nth * LANES + equal.trailing_zeros() as usize / 8;
                if self.tags[slot] == line.0 {
                    return Some(slot);
                }
                equal &= equal - 1;
            }
        }
        None
    }

    #[inline(never)]
    fn fill(&mut self, set: usize, line: Line, allowed: u64, by: Filler) -> Access {
        if allowed == 0 {
            return Access::Bypass;
        }
        let first = set * self.stride;
        let empty = !self.filled[set] & allowed;
        let way = if empty != 0 { empty.trailing_zeros() } else { self.recency.victim(set, first, allowed) };
        self.recency.fill(set, first, way);
        let slot = first + way as usize;
        let (word, shift) = (&mut self.marks[slot / LANES], slot % LANES * 8);
        *word = *word & !(0xff << shift) | mark_of(line) << shift;
        self.filled[set] |= 1 << way;
        let before = std::mem::replace(&mut self.tags[slot], line.0);
        let filler = std::mem::replace(&mut self.fillers[slot], by);
        self.held[usize::from(by.monitor)] += 1;
        let evicted = (before != EMPTY).then_some(Line(before));
        if evicted.is_some() {
            self.held[usize::from(filler.monitor)] -= 1;
        }
        Access::Miss { slot: Slot(slot), evicted }
    }

    /// Removes a line, as `clflush` does; returns its slot if it was cached.
    #[inline]
    pub fn flush(&mut self, line: Line) -> Option<Slot> {
        let set = self.index.set_of(line) as usize;
        let slot = self.find(set, line)?;
        self.tags[slot] = EMPTY;
        self.filled[set] &= !(1 << (slot - set * self.stride));
        self.held[usize::from(self.fillers[slot].monitor)] -= 1;
        Some(Slot(slot))
    }

    /// Slot of a line, without any effect.
    pub fn slot_of(&self, line: Line) -> Option<Slot> {
        self.find(self.index.set_of(line) as usize, line).map(Slot)
    }

    /// Way of a slot.
    pub fn way_of(&self, slot: Slot) -> u32 {
        fits(slot.0 % self.stride)
    }

    /// Filler of a slot; of an empty slot, the last one.
    pub fn filler_of(&self, slot: Slot) -> Filler {
        self.fillers[slot.0]
    }

    /// Bytes filled by a monitoring id and still cached: `llc_occupancy`.
    pub fn occupancy(&self, monitor: u8) -> Bytes {
        Bytes(u64::from(self.held[usize::from(monitor)]) * LINE.0)
    }

    /// All cached lines, with their slots.
    pub fn lines(&self) -> impl Iterator<Item = (Line, Slot)> + '_ {
        self.tags.iter().enumerate().filter(|(_, tag)| **tag != EMPTY).map(|(slot, tag)| (Line(*tag), Slot(slot)))
    }
}
