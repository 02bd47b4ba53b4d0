//! Private level: a cache without masks and classes, and without way numbers in its results. It is therefore faster
//! than a [`Cache`].
//!
//! LRU of up to 16 ways needs three things per set: its lines, a byte of each line, and the ways in the order of their
//! last use. A removed line goes to the end of that order, so empty ways are filled first. Other replacements use a
//! [`Cache`].

use units::WayMask;

use super::set_associative::{
    Access, Cache, EMPTY, Filler, IN_ORDER, Index, Line, Replacement, Shape, equal_marks, mark_of,
};
use super::set_associative::{ONES, place_of, to_the_front};

/// Private level with its content.
#[derive(Clone, Debug)]
pub enum Private {
    /// LRU of up to 16 ways.
    Fast(Fast),
    /// Any geometry and replacement.
    Plain(Box<Cache>),
}

/// LRU of up to 16 ways; see the head of this file.
#[derive(Clone, Debug)]
pub struct Fast {
    index: Index,
    sets: Vec<Set>,
    /// Number of words of marks.
    words: usize,
    /// Position of the last place of an order, in bits.
    last: u32,
}

#[derive(Clone, Debug)]
struct Set {
    marks: [u64; 2],
    /// Order of use: the most recent way in the lowest 4 bits.
    order: u64,
    tags: [u32; 16],
}

impl Private {
    /// Empty level.
    pub fn new(shape: Shape) -> Private {
        if shape.replacement != Replacement::Lru || shape.ways.0 > 16 {
            return Private::Plain(Box::new(Cache::new(shape)));
        }
        let set = Set { marks: [0; 2], order: IN_ORDER, tags: [EMPTY; 16] };
        Private::Fast(Fast {
            index: Index::new(shape),
            sets: vec![set; shape.sets as usize],
            words: shape.ways.0.div_ceil(8) as usize,
            last: (shape.ways.0 - 1) * 4,
        })
    }

    /// Accesses a line; returns whether it was cached. It is cached afterwards.
    #[inline]
    pub fn access(&mut self, line: Line) -> bool {
        match self {
            Private::Fast(fast) => fast.access(line),
            Private::Plain(cache) => {
                matches!(cache.access(line, WayMask(u64::MAX), Filler::default()), Access::Hit { .. })
            }
        }
    }

    /// Removes a line, if it is cached.
    #[inline]
    pub fn flush(&mut self, line: Line) {
        match self {
            Private::Fast(fast) => fast.flush(line),
            Private::Plain(cache) => _ = cache.flush(line),
        }
    }
}

impl Fast {
    #[inline]
    fn access(&mut self, line: Line) -> bool {
        let set = &mut self.sets[self.index.set_of(line) as usize];
        let mark = mark_of(line);
        if let Some(way) = set.find(line, mark * ONES, self.words) {
            set.order = to_the_front(set.order, way);
            return true;
        }
        let way = set.order >> self.last & 0xf;
        let others = set.order & ((1 << self.last) - 1);
        let unused = set.order & !(0xf << self.last | ((1 << self.last) - 1));
        set.order = unused | others << 4 | way;
        let (word, shift) = (&mut set.marks[(way / 8) as usize], way % 8 * 8);
        *word = *word & !(0xff << shift) | mark << shift;
        set.tags[way as usize] = line.0;
        false
    }

    fn flush(&mut self, line: Line) {
        let set = &mut self.sets[self.index.set_of(line) as usize];
        let Some(way) = set.find(line, mark_of(line) * ONES, self.words) else { return };
        set.tags[way as usize] = EMPTY;
        // The ways behind it move up, and it goes to the end.
        let place = place_of(set.order, way);
        let before = set.order & ((1 << place) - 1);
        let unused = set.order & !(0xf << self.last | ((1 << self.last) - 1));
        let behind = (set.order ^ unused) & !(0xf << place | ((1 << place) - 1));
        set.order = unused | u64::from(way) << self.last | behind >> 4 | before;
    }
}

impl Set {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a way: below 16")]
    fn find(&self, line: Line, wanted: u64, words: usize) -> Option<u32> {
        for (nth, marks) in self.marks.iter().take(words).enumerate() {
            let mut equal = equal_marks(*marks, wanted);
            while equal != 0 {
                let way = nth * 8 + equal.trailing_zeros() as usize / 8;
                if self.tags[way & 15] == line.0 {
                    return Some(way as u32);
                }
                equal &= equal - 1;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use units::Ways;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_a_cache_finds(
            (sets, slices) in prop::sample::select(vec![(1u32, 1u32), (4, 1), (6, 2), (5, 1)]),
            ways in 1u32..19,
            replacement in prop::sample::select(Replacement::ALL.to_vec()),
            steps in prop::collection::vec((0u32..5, 0u32..120), 0..600),
        ) {
            let shape = Shape { sets, ways: Ways(ways), slices, replacement };
            let (mut private, mut cache) = (Private::new(shape), Cache::new(shape));
            for (what, line) in steps {
                let line = Line(line);
                if what == 0 {
                    private.flush(line);
                    cache.flush(line);
                } else {
                    let hit = matches!(cache.access(line, WayMask(u64::MAX), Filler::default()), Access::Hit { .. });
                    prop_assert_eq!(private.access(line), hit, "{:?}", line);
                }
            }
        }
    }
}
