//! One cache: sets of ways, fills by mask, lookups everywhere. Pure.
//!
//! An access looks in all ways of its set. What it does not find it fills, and only into the ways of its mask: that is how CAT and
//! AMD QoS work (Intel SDM volume 3, 19.19; AMD64 APM volume 2, 19.3). Addresses are physical, so a shared frame is shared lines. Each
//! line remembers who filled it: the class of service, and the monitoring id that `llc_occupancy` counts by.
//!
//! Replacement looks at the ways of the mask alone, and takes an empty one first, the lowest:
//!
//! | name        | which line goes                                                | how a mask restricts it |
//! |-------------|----------------------------------------------------------------|-------------------------|
//! | `lru`       | the one used longest ago                                       | among those of the mask |
//! | `fifo`      | the one filled longest ago                                     | the same |
//! | `tree-plru` | where the bits of a binary tree point; each access turns those on its path away | where a bit points to a half without a way of the mask, the other half is taken; bits change on the path of any way |
//! | `qlru`      | the lowest way of age 3                                        | ages of the mask's ways alone are looked at and raised |
//!
//! `qlru` is QLRU_H11_M1_R0_U0_UMO in the naming of Abel and Reineke (nanoBench, ISPASS 2020; uops.info/cache.html): a hit makes age 3
//! or 2 to 1 and 1 to 0 (H11), a fill has age 1 (M1), the lowest way of age 3 goes (R0), and if there is none all ages are raised until
//! there is (U0), on a miss only (UMO). Which way real processors choose under a mask is published for none of these.
//!
//! Fast: of each tag there is a byte beside it, and the bytes of eight ways are compared at once; tags only where those are equal.
//! Nothing is allocated per access.

use serde::{Deserialize, Serialize};
use units::{Bytes, WayMask, Ways};

mod replacement;

use replacement::Recency;
pub(super) use replacement::{IN_ORDER, place_of, to_the_front};

/// Bytes of a line.
pub const LINE: Bytes = Bytes(64);

/// A line of physical memory: its address over 64. So there are 256 GiB of memory, less one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u32);

/// No line has this number.
pub(super) const EMPTY: u32 = u32::MAX;

/// Who fills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Filler {
    /// Class of service.
    pub class: u8,
    /// Monitoring id (RMID).
    pub monitor: u8,
}

/// Which line goes when one has to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The one used longest ago.
    Lru,
    /// The one filled longest ago.
    Fifo,
    /// Where a tree of bits points.
    TreePlru,
    /// Four ages: `QLRU_H11_M1_R0_U0_UMO`.
    Qlru,
}

impl Replacement {
    /// All of them.
    pub const ALL: [Replacement; 4] = [Replacement::Lru, Replacement::Fifo, Replacement::TreePlru, Replacement::Qlru];
}

/// How a cache is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sets of all slices together: at least 1, a multiple of `slices`.
    pub sets: u32,
    /// Lines in a set: 1 to 64.
    pub ways: Ways,
    /// Parts that a hash of the address chooses between; 1 for none. Real hashes are not published; this one spreads as well as any.
    pub slices: u32,
    /// Which line goes.
    pub replacement: Replacement,
}

impl Shape {
    /// What it holds.
    pub fn bytes(self) -> Bytes {
        Bytes(u64::from(self.sets) * u64::from(self.ways.0) * LINE.0)
    }

    /// Which set a line belongs to.
    pub fn set_of(self, line: Line) -> u32 {
        Index::new(self).set_of(line)
    }
}

/// How sets are found: what of a shape would otherwise be divided at each access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index {
    slices: u32,
    /// Sets of a slice, and the bits that choose among them, if these are all numbers of so many bits.
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

/// The slice of a line: its number spread over 32 bits (the finalizer of `MurmurHash3`, public domain), and the part of these that it is in.
#[inline]
fn slice_of(line: Line, slices: u32) -> u32 {
    let mut spread = line.0;
    spread = (spread ^ spread >> 16).wrapping_mul(0x85eb_ca6b);
    spread = (spread ^ spread >> 13).wrapping_mul(0xc2b2_ae35);
    spread ^= spread >> 16;
    ((u64::from(spread) * u64::from(slices)) >> 32) as u32
}

/// Where a line lies: set and way in one number, from 0 to sets · ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub usize);

/// What came of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It was there, in some way.
    Hit {
        /// Where.
        slot: Slot,
        /// Who had filled it.
        filler: Filler,
    },
    /// It was not there, and was filled.
    Miss {
        /// Where it is now.
        slot: Slot,
        /// What had to go for it.
        evicted: Option<Line>,
    },
    /// It was not there, and the mask has no way: nothing changed.
    Bypass,
}

/// The highest bit of each byte that is equal; of one above such a byte as well at times, and its tag then differs.
#[inline]
pub(super) fn equal_marks(marks: u64, wanted: u64) -> u64 {
    let other = marks ^ wanted;
    other.wrapping_sub(ONES) & !other & HIGHS
}

/// A cache and what is in it.
#[derive(Clone, Debug)]
pub struct Cache {
    shape: Shape,
    index: Index,
    /// Lines of a set and then of the next; [`Cache::stride`] apart.
    tags: Vec<u32>,
    /// A byte of each tag, way 0 of a word being the lowest.
    marks: Vec<u64>,
    /// Of each set: bit n for way n, if it holds a line.
    filled: Vec<u64>,
    fillers: Vec<Filler>,
    recency: Recency,
    /// Ways, rounded up to whole words of marks.
    stride: usize,
    all_ways: u64,
    held: Vec<u32>,
}

/// Marks in a word.
const LANES: usize = 8;
/// A one, and the highest bit, in each byte.
pub(super) const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// The mark of a line: a byte that lines of one set seldom have in common.
#[inline]
pub(super) fn mark_of(line: Line) -> u64 {
    u64::from(line.0.wrapping_mul(0x9e37_79b1) >> 24)
}

impl Cache {
    /// An empty one.
    ///
    /// # Panics
    /// With a shape outside of its bounds: whoever reads shapes from people checks them.
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

    /// How it is built.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How many slots there are: one more than the greatest [`Slot`] that an access names.
    pub fn slots(&self) -> usize {
        self.tags.len()
    }

    /// Looks for a line in all ways, and fills it into those of `mask` if it is in none.
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

    /// Where in its set a line is.
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

    /// Throws a line out, as `clflush` does; where it was, if it was there.
    #[inline]
    pub fn flush(&mut self, line: Line) -> Option<Slot> {
        let set = self.index.set_of(line) as usize;
        let slot = self.find(set, line)?;
        self.tags[slot] = EMPTY;
        self.filled[set] &= !(1 << (slot - set * self.stride));
        self.held[usize::from(self.fillers[slot].monitor)] -= 1;
        Some(Slot(slot))
    }

    /// Where a line is, without any effect.
    pub fn slot_of(&self, line: Line) -> Option<Slot> {
        self.find(self.index.set_of(line) as usize, line).map(Slot)
    }

    /// The way of a slot.
    pub fn way_of(&self, slot: Slot) -> u32 {
        u32::try_from(slot.0 % self.stride).unwrap_or(0)
    }

    /// Who filled what is in a slot; what it was before, if it is empty.
    pub fn filler_of(&self, slot: Slot) -> Filler {
        self.fillers[slot.0]
    }

    /// What a monitoring id has filled and is still there: `llc_occupancy`.
    pub fn occupancy(&self, monitor: u8) -> Bytes {
        Bytes(u64::from(self.held[usize::from(monitor)]) * LINE.0)
    }

    /// All lines that are there, with the slot of each.
    pub fn lines(&self) -> impl Iterator<Item = (Line, Slot)> + '_ {
        self.tags.iter().enumerate().filter(|(_, tag)| **tag != EMPTY).map(|(slot, tag)| (Line(*tag), Slot(slot)))
    }
}
