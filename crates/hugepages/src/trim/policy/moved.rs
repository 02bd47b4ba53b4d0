//! Pairs of huge windows that vanished with windows that became huge: the program moved them (mremap).
//!
//! The first rule that finds a pair decides:
//! 1. The frame, where frames are visible: the same huge page. A window whose frame is known follows no other rule.
//! 2. The mapping: one of the same length vanished and another appeared, and the window is at the same place in it.
//! 3. The order of address.
//!
//! Rules 2 and 3 pair only windows with equal samples. A new window may be taken for one that was freed at the same time:
//! it is split early only if it has as many zero pages as the freed one, to the page.
//!
//! No I/O, no clock, no randomness.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use units::{Address, AddressRange, Pages, Window};

/// Content of a huge window, as far as it may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// Sampled pages that seem to hold only zeros.
    Sampled(Pages),
    /// A fork shares it.
    Shared,
    /// Not read: it is not huge any more, or not readable.
    Unknown,
}

/// A window that vanished, as it was, or one that became huge, as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its address.
    pub window: Window,
    /// First frame, if known.
    pub frame: Option<u64>,
    /// Its content.
    pub look: Look,
}

/// A window that was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Move {
    /// Old address.
    pub from: Window,
    /// New address.
    pub to: Window,
    /// Whether the frame told, and not the content.
    pub is_certain: bool,
}

/// Mappings that vanished, each with one of the same length that appeared; both in order of address.
pub fn mappings(before: &[AddressRange], now: &[AddressRange]) -> Vec<(AddressRange, AddressRange)> {
    let [known, stays] = [before, now].map(|all| all.iter().collect::<BTreeSet<_>>());
    let mut appeared: BTreeMap<u64, VecDeque<AddressRange>> = BTreeMap::new();
    for range in now.iter().filter(|range| !known.contains(range)) {
        appeared.entry(range.bytes().0).or_default().push_back(*range);
    }
    let vanished = before.iter().filter(|range| !stays.contains(range));
    vanished.filter_map(|range| Some((*range, appeared.get_mut(&range.bytes().0)?.pop_front()?))).collect()
}

/// Address of a window after the move of its mapping; `None` if its mapping did not move, or not by whole windows.
pub fn shifted(window: Window, mappings: &[(AddressRange, AddressRange)]) -> Option<Window> {
    let behind = mappings.partition_point(|(from, _)| from.start() <= window.start());
    let (from, to) = mappings.get(behind.checked_sub(1)?).filter(|(from, _)| from.covers(window.range()))?;
    let start = to.start().0 + (window.start().0 - from.start().0);
    let moved = Address(start).window();
    (moved.start().0 == start).then_some(moved)
}

/// Pairs the windows in `lost` with those in `found`, both in order of address; at most one pair for each window.
pub fn pair(lost: &[Seen], found: &[Seen], mappings: &[(AddressRange, AddressRange)]) -> Vec<Move> {
    let mut open = Open { lost: lost.to_vec(), found: found.to_vec(), moves: Vec::new() };
    open.pair_by(true, |one| one.frame, |one| one.frame);
    open.lost.retain(|one| one.frame.is_none());
    let place = |one: &Seen| shifted(one.window, mappings);
    open.pair_by(false, |one| Some((place(one)?, one.look)), |one| Some((one.window, one.look)));
    // The old content is not known, or the new one cannot be read: the place in the mapping is enough.
    let hidden = open.found.iter().filter(|one| matches!(one.look, Look::Unknown | Look::Shared));
    let hidden: BTreeSet<Window> = hidden.map(|one| one.window).collect();
    let old = |one: &Seen| place(one).filter(|to| one.look == Look::Unknown || hidden.contains(to));
    open.pair_by(false, old, |one| Some(one.window));
    let known = |one: &Seen| Some(one.look).filter(|content| *content != Look::Unknown);
    open.pair_by(false, known, known);
    open.moves.sort_unstable();
    open.moves
}

/// Windows without a pair, and the pairs.
struct Open {
    lost: Vec<Seen>,
    found: Vec<Seen>,
    moves: Vec<Move>,
}

impl Open {
    /// Pairs windows with equal keys, in order of address.
    fn pair_by<K: Ord>(
        &mut self,
        is_certain: bool,
        old: impl Fn(&Seen) -> Option<K>,
        new: impl Fn(&Seen) -> Option<K>,
    ) {
        let mut places: BTreeMap<K, VecDeque<Window>> = BTreeMap::new();
        for one in &self.found {
            if let Some(key) = new(one) {
                places.entry(key).or_default().push_back(one.window);
            }
        }
        let mut taken = BTreeSet::new();
        self.lost.retain(|one| {
            let to = old(one).and_then(|key| places.get_mut(&key)?.pop_front());
            if let Some(to) = to {
                taken.insert(to);
                self.moves.push(Move { from: one.window, to, is_certain });
            }
            to.is_none()
        });
        self.found.retain(|one| !taken.contains(&one.window));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(window: u64, zero: u64) -> Seen {
        Seen { window: Window(window), frame: None, look: Look::Sampled(Pages(zero)) }
    }

    fn framed(window: u64, frame: u64) -> Seen {
        Seen { frame: Some(frame), ..seen(window, 56) }
    }

    fn all(windows: &[(u64, u64)]) -> Vec<Seen> {
        windows.iter().map(|(window, zero)| seen(*window, *zero)).collect()
    }

    fn range(first: u64, windows: u64) -> AddressRange {
        AddressRange::new(Window(first).start().0, Window(first + windows).start().0).unwrap()
    }

    fn paired(lost: &[Seen], found: &[Seen], moved: &[(AddressRange, AddressRange)]) -> Vec<(u64, u64)> {
        pair(lost, found, moved).into_iter().map(|one| (one.from.0, one.to.0)).collect()
    }

    #[test]
    fn equal_windows_are_paired_in_order_of_address() {
        let (lost, found) = (all(&[(1, 56), (2, 56), (3, 56)]), all(&[(11, 56), (12, 56), (13, 56)]));
        assert_eq!(paired(&lost, &found, &[]), [(1, 11), (2, 12), (3, 13)]);
    }

    #[test]
    fn windows_that_changed_their_order_are_paired_by_content() {
        let (lost, found) = (all(&[(1, 10), (2, 20), (3, 30)]), all(&[(11, 30), (12, 10), (13, 20)]));
        assert_eq!(paired(&lost, &found, &[]), [(1, 12), (2, 13), (3, 11)]);
    }

    #[test]
    fn mappings_of_different_lengths_that_changed_their_order_are_told_apart() {
        let moved = mappings(&[range(1, 2), range(5, 1), range(9, 3)], &[range(9, 3), range(21, 1), range(25, 2)]);
        assert_eq!(moved, [(range(1, 2), range(25, 2)), (range(5, 1), range(21, 1))]);
        let (lost, found) = (all(&[(1, 56), (2, 56), (5, 56)]), all(&[(21, 56), (25, 56), (26, 56)]));
        assert_eq!(paired(&lost, &found, &moved), [(1, 25), (2, 26), (5, 21)]);
    }

    #[test]
    fn of_a_mapping_that_moved_in_part_the_rest_stays() {
        // Windows 2 and 3 of the mapping from 1 to 4.
        let moved = mappings(&[range(1, 4)], &[range(1, 1), range(4, 1), range(21, 2)]);
        assert_eq!(moved, []);
        assert_eq!(paired(&all(&[(2, 10), (3, 20)]), &all(&[(21, 10), (22, 20)]), &moved), [(2, 21), (3, 22)]);
    }

    #[test]
    fn of_more_vanished_windows_than_new_ones_the_rest_has_no_pair() {
        let (lost, found) = (all(&[(1, 10), (2, 20), (3, 20)]), all(&[(11, 20)]));
        assert_eq!(paired(&lost, &found, &[]), [(2, 11)]);
        assert_eq!(paired(&found, &lost, &[]), [(11, 2)]);
    }

    #[test]
    fn a_new_window_with_another_content_is_no_move() {
        assert_eq!(paired(&all(&[(1, 56)]), &all(&[(11, 55)]), &[]), []);
        let moved = [(range(1, 1), range(11, 1))];
        assert_eq!(paired(&all(&[(1, 56)]), &all(&[(11, 55)]), &moved), [], "nor in a mapping of the same length");
    }

    #[test]
    fn a_new_window_with_another_frame_is_no_move_whatever_it_holds() {
        let moved = [(range(1, 2), range(11, 2))];
        let lost = [framed(1, 512), framed(2, 1024)];
        assert_eq!(paired(&lost, &[framed(11, 1024), framed(12, 4096)], &moved), [(2, 11)]);
        assert!(pair(&lost, &[framed(11, 1024)], &moved)[0].is_certain);
        assert!(!pair(&all(&[(1, 56)]), &all(&[(11, 56)]), &moved)[0].is_certain);
    }

    #[test]
    fn the_place_in_the_mapping_tells_of_windows_that_cannot_be_read() {
        let shared = |window| Seen { look: Look::Shared, ..seen(window, 0) };
        let unknown = |window| Seen { look: Look::Unknown, ..seen(window, 0) };
        let moved = [(range(1, 3), range(11, 3))];
        let (lost, found) = ([seen(1, 56), shared(2), unknown(3)], [shared(11), shared(12), seen(13, 0)]);
        assert_eq!(paired(&lost, &found, &moved), [(1, 11), (2, 12), (3, 13)]);
        assert_eq!(paired(&lost, &found, &[]), [(2, 11)], "without it only equals are paired");
    }

    #[test]
    fn a_mapping_that_moved_by_less_than_a_window_shifts_none() {
        let from = AddressRange::new(Window(1).start().0, Window(3).start().0).unwrap();
        let to = AddressRange::new(Window(11).start().0 + 4096, Window(13).start().0 + 4096).unwrap();
        assert_eq!(shifted(Window(1), &[(from, to)]), None);
        assert_eq!(
            [0, 1, 2, 3].map(|one| shifted(Window(one), &[(from, range(7, 2))]).map(|to| to.0)),
            [None, Some(7), Some(8), None]
        );
    }

    proptest! {
        #[test]
        fn no_window_is_in_two_pairs_and_all_that_fit_are_paired(
            lost in prop::collection::btree_map(0u64..50, 0u64..4, 0..20),
            found in prop::collection::btree_map(100u64..150, 0u64..4, 0..20),
            moved in any::<bool>(),
        ) {
            let seen = |windows: &BTreeMap<u64, u64>| all(&windows.iter().map(|(a, b)| (*a, *b)).collect::<Vec<_>>());
            let (lost, found) = (seen(&lost), seen(&found));
            let mapping = [(range(0, 50), range(100, 50))];
            let moves = pair(&lost, &found, if moved { &mapping } else { &[] });
            let from: BTreeSet<Window> = moves.iter().map(|one| one.from).collect();
            let to: BTreeSet<Window> = moves.iter().map(|one| one.to).collect();
            prop_assert_eq!((from.len(), to.len()), (moves.len(), moves.len()));
            for zero in (0..4).map(|zero| Look::Sampled(Pages(zero))) {
                let of = |all: &[Seen]| all.iter().filter(|one| one.look == zero).count();
                let pairs = lost.iter().filter(|one| one.look == zero && from.contains(&one.window)).count();
                prop_assert_eq!(pairs, of(&lost).min(of(&found)));
            }
        }
    }
}
