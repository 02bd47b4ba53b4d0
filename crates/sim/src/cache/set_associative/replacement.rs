//! State of the replacement policies, and their choice of the victim.

use units::cast::fits;

use super::{Replacement, Shape};

/// State for all sets.
#[derive(Clone, Debug)]
pub enum Recency {
    /// LRU and FIFO of up to 16 ways: the ways in 4 bits each, the last used or filled in the lowest.
    Orders {
        /// Order of each set.
        orders: Vec<u64>,
        /// Used bits of an order.
        bits: u32,
        /// LRU: a hit counts as a use.
        hits_count: bool,
    },
    /// LRU and FIFO of more ways: time of use, or of fill, of each line.
    Stamps {
        /// Stamp of each slot.
        stamps: Vec<u32>,
        /// Last stamp.
        clock: u32,
        /// LRU: a hit counts as a use.
        hits_count: bool,
    },
    /// Tree-PLRU: the bits of a set; bit n belongs to node n, with the children 2n and 2n + 1. Node 1 is the root. A
    /// set bit points right.
    Trees {
        /// Bits of each set.
        nodes: Vec<u64>,
        /// Levels of the tree.
        levels: u32,
    },
    /// QLRU: the ages of the ways of a set, high bits and low bits.
    Ages(Vec<[u64; 2]>),
}

impl Recency {
    /// The state of an empty cache.
    pub fn new(shape: Shape, stride: usize) -> Recency {
        let sets = shape.sets as usize;
        let hits_count = shape.replacement == Replacement::Lru;
        match shape.replacement {
            Replacement::Lru | Replacement::Fifo if shape.ways.0 <= 16 => {
                Recency::Orders { orders: vec![IN_ORDER; sets], bits: shape.ways.0 * 4, hits_count }
            }
            Replacement::Lru | Replacement::Fifo => {
                Recency::Stamps { stamps: vec![0; sets * stride], clock: 0, hits_count }
            }
            Replacement::TreePlru => {
                Recency::Trees { nodes: vec![0; sets], levels: shape.ways.0.next_power_of_two().trailing_zeros() }
            }
            Replacement::Qlru => Recency::Ages(vec![[0; 2]; sets]),
        }
    }

    /// Records a hit.
    #[inline]
    pub fn hit(&mut self, set: usize, first: usize, way: u32) {
        match self {
            Recency::Orders { orders, hits_count, .. } => {
                if *hits_count {
                    orders[set] = to_the_front(orders[set], way);
                }
            }
            Recency::Stamps { stamps, clock, hits_count } => {
                if *hits_count {
                    stamps[first + way as usize] = next(clock, stamps);
                }
            }
            Recency::Trees { nodes, levels } => turn_away(&mut nodes[set], *levels, way),
            Recency::Ages(ages) => {
                let [high, low] = &mut ages[set];
                let bit = 1 << way;
                // H11: ages 2 and 3 to 1, ages 1 and 0 to 0.
                *low = if *high & bit != 0 { *low | bit } else { *low & !bit };
                *high &= !bit;
            }
        }
    }

    /// Records a fill.
    #[inline]
    pub fn fill(&mut self, set: usize, first: usize, way: u32) {
        match self {
            Recency::Orders { orders, .. } => orders[set] = to_the_front(orders[set], way),
            Recency::Stamps { stamps, clock, .. } => stamps[first + way as usize] = next(clock, stamps),
            Recency::Trees { nodes, levels } => turn_away(&mut nodes[set], *levels, way),
            Recency::Ages(ages) => {
                let [high, low] = &mut ages[set];
                *high &= !(1 << way);
                *low |= 1 << way; // M1
            }
        }
    }

    /// Victim among the `allowed` ways, at least one and none of them empty.
    #[inline]
    pub fn victim(&mut self, set: usize, first: usize, allowed: u64) -> u32 {
        match self {
            Recency::Orders { orders, bits, .. } => last(orders[set], *bits, allowed),
            Recency::Stamps { stamps, .. } => oldest(stamps, first, allowed),
            Recency::Trees { nodes, levels } => pointed_at(nodes[set], *levels, allowed),
            Recency::Ages(ages) => {
                let [high, low] = &mut ages[set];
                raise(high, low, allowed);
                (*high & *low & allowed).trailing_zeros()
            }
        }
    }
}

/// Order with way n at place n.
pub const IN_ORDER: u64 = 0xfedc_ba98_7654_3210;
/// A one, and the highest bit, in each place.
const ONES: u64 = 0x1111_1111_1111_1111;
const HIGHS: u64 = ONES << 3;

/// Place of a way, in bits.
#[inline]
pub fn place_of(order: u64, way: u32) -> u32 {
    // Lowest zero place, which is exact: only places above it can be false matches.
    let other = order ^ (u64::from(way) * ONES);
    (other.wrapping_sub(ONES) & !other & HIGHS).trailing_zeros() & 0x3c
}

/// Moves a way to the front; the ways before it move up by a place.
#[inline]
pub fn to_the_front(order: u64, way: u32) -> u64 {
    let place = place_of(order, way);
    let before = (1 << place) - 1;
    order & !(before | 0xf << place) | (order & before) << 4 | u64::from(way)
}

/// Last allowed way in the order; at least one way is allowed.
#[inline]
fn last(order: u64, bits: u32, allowed: u64) -> u32 {
    let mut place = bits;
    while place > 0 {
        place -= 4;
        let way = order >> place & 0xf;
        if allowed >> way & 1 != 0 {
            return way as u32;
        }
    }
    allowed.trailing_zeros()
}

/// Next stamp. At overflow, all stamps are renumbered in order: once in 4 billion accesses.
#[inline]
fn next(clock: &mut u32, stamps: &mut [u32]) -> u32 {
    if *clock == u32::MAX {
        *clock = renumber(stamps);
    }
    *clock += 1;
    *clock
}

/// Renumbers stamps from 1 on, in order; zero and equal stamps stay so. Returns the last.
#[cold]
fn renumber(stamps: &mut [u32]) -> u32 {
    let mut sorted: Vec<u32> = stamps.iter().copied().filter(|stamp| *stamp != 0).collect();
    sorted.sort_unstable();
    sorted.dedup();
    for stamp in stamps.iter_mut().filter(|stamp| **stamp != 0) {
        let rank = sorted.partition_point(|other| other < stamp);
        // There are fewer slots than stamps.
        *stamp = fits(rank + 1);
    }
    fits(sorted.len())
}

/// Allowed way with the least stamp; the lowest of several.
#[inline]
fn oldest(stamps: &[u32], first: usize, allowed: u64) -> u32 {
    let lowest = allowed.trailing_zeros();
    let run = (allowed >> lowest).trailing_ones();
    let begin = first + lowest as usize;
    let (mut best, mut least) = (lowest, u32::MAX);
    for (way, stamp) in (lowest..).zip(&stamps[begin..begin + run as usize]) {
        (best, least) = if *stamp < least { (way, *stamp) } else { (best, least) };
    }
    // Only a mask with a hole has further ways.
    let mut left = allowed & !(u64::MAX >> (64 - run) << lowest);
    while left != 0 {
        let way = left.trailing_zeros();
        let stamp = stamps[first + way as usize];
        (best, least) = if stamp < least { (way, stamp) } else { (best, least) };
        left &= left - 1;
    }
    best
}

/// Turns all bits on the path to `way` away from it.
#[inline]
fn turn_away(nodes: &mut u64, levels: u32, way: u32) {
    let mut node = 1u32;
    for level in (0..levels).rev() {
        let right = way >> level & 1;
        *nodes = *nodes & !(1 << node) | u64::from(1 - right) << node;
        node = node * 2 + right;
    }
}

/// Follows the bits to a way, but never into a half without an allowed one.
#[inline]
fn pointed_at(nodes: u64, levels: u32, allowed: u64) -> u32 {
    let (mut node, mut first) = (1u32, 0u32);
    for level in (0..levels).rev() {
        let half = 1u32 << level;
        let in_half = (1u64 << half) - 1;
        let (left, right) = (allowed >> first & in_half, allowed >> (first + half) & in_half);
        let go_right = left == 0 || right != 0 && nodes >> node & 1 == 1;
        first += if go_right { half } else { 0 };
        node = node * 2 + u32::from(go_right);
    }
    first
}

/// U0: if none of the `allowed` ways has age 3, all of them are raised by the difference of the oldest to 3.
#[inline]
fn raise(high: &mut u64, low: &mut u64, allowed: u64) {
    let (h, l) = (*high & allowed, *low & allowed);
    if h & l != 0 {
        return;
    }
    let (h, l) = if h != 0 {
        (h | l, !l & allowed) // by one: 0 to 1, 1 to 2, 2 to 3
    } else if l != 0 {
        (allowed, l) // by two: 0 to 2, 1 to 3
    } else {
        (allowed, allowed)
    };
    *high = *high & !allowed | h;
    *low = *low & !allowed | l;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_moved_down_before_they_run_out_and_keep_their_order() {
        let mut stamps = vec![7, 0, u32::MAX, 9, 9];
        let mut clock = u32::MAX;
        assert_eq!(next(&mut clock, &mut stamps), 4);
        assert_eq!(stamps, [1, 0, 3, 2, 2]);
    }

    #[test]
    fn a_way_goes_to_the_front_from_any_place_and_the_last_of_a_mask_is_found() {
        let mut order = IN_ORDER;
        let mut list: Vec<u32> = (0..16).collect();
        for way in [0, 15, 7, 15, 8, 0, 3, 3, 14, 1].into_iter().chain((0..16).rev()) {
            order = to_the_front(order, way);
            list.retain(|other| *other != way);
            list.insert(0, way);
            let ways = list.iter().rev().fold(0, |order, way| order << 4 | u64::from(*way));
            assert_eq!(order, ways, "{way}");
        }
        assert_eq!(last(IN_ORDER, 64, u64::MAX), 15);
        assert_eq!((last(IN_ORDER, 32, 0xff), last(IN_ORDER, 32, 0b10_0110), last(IN_ORDER, 4, 1)), (7, 5, 0));
    }

    #[test]
    fn a_tree_points_to_the_way_that_was_not_used_and_masks_bend_it() {
        let mut nodes = 0;
        [0, 1, 2].into_iter().for_each(|way| turn_away(&mut nodes, 2, way));
        // The last access (2) was in the right half: the root points left, and the left node away from 1.
        assert_eq!(pointed_at(nodes, 2, 0b1111), 0);
        assert_eq!(pointed_at(nodes, 2, 0b1100), 3);
        assert_eq!(pointed_at(nodes, 2, 0b0110), 1);
        assert_eq!(pointed_at(nodes, 2, 0b0100), 2);
        assert_eq!(pointed_at(0, 0, 1), 0, "a cache of one way has no tree");
        assert_eq!(pointed_at(u64::MAX, 6, u64::MAX), 63);
    }

    #[test]
    fn ages_are_raised_until_one_of_the_mask_is_three() {
        let raised = |ages: [u64; 4], allowed: u64| {
            let of = |bit: u64| ages.iter().enumerate().fold(0, |all, (way, age)| all | (age >> bit & 1) << way);
            let (mut high, mut low) = (of(1), of(0));
            raise(&mut high, &mut low, allowed);
            [0, 1, 2, 3].map(|way| (high >> way & 1) * 2 + (low >> way & 1))
        };
        assert_eq!(raised([0, 1, 2, 2], 0b1111), [1, 2, 3, 3]);
        assert_eq!(raised([0, 1, 2, 2], 0b0011), [2, 3, 2, 2]);
        assert_eq!(raised([0, 1, 0, 3], 0b0101), [3, 1, 3, 3]);
        assert_eq!(raised([0, 1, 3, 2], 0b1111), [0, 1, 3, 2]);
    }
}
