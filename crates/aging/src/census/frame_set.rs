//! A set of page frames.

use units::cast;

/// Page frames, a bit each: 32 KiB for each GiB of memory up to the highest in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameSet {
    words: Vec<u64>,
}

impl FrameSet {
    /// Adds a frame. True if it was not in the set.
    pub fn insert(&mut self, frame: u64) -> bool {
        let (word, bit) = place(frame);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let was = self.words[word];
        self.words[word] |= bit;
        was & bit == 0
    }

    /// Adds the frames of another set.
    pub fn add_all(&mut self, other: &FrameSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        self.words.iter_mut().zip(&other.words).for_each(|(word, more)| *word |= more);
    }

    /// True if it is in the set.
    pub fn contains(&self, frame: u64) -> bool {
        let (word, bit) = place(frame);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Frames in it.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The frames, by rising number.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.checked_sub(1)?;
                Some(index as u64 * 64 + u64::from(bit))
            })
        })
    }
}

/// The word and the bit of a frame.
fn place(frame: u64) -> (usize, u64) {
    (cast::index(frame / 64), 1 << (frame % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_numbers(frames in prop::collection::vec(0u64..1000, 0..200)) {
            let (mut ours, mut truth) = (FrameSet::default(), BTreeSet::new());
            for frame in frames {
                prop_assert_eq!(ours.insert(frame), truth.insert(frame));
            }
            prop_assert_eq!(ours.iter().collect::<Vec<_>>(), truth.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(ours.len(), truth.len() as u64);
            prop_assert!((0..1100).all(|frame| ours.contains(frame) == truth.contains(&frame)));
        }

        #[test]
        fn two_sets_become_one(
            one in prop::collection::btree_set(0u64..1000, 0..50), other in prop::collection::btree_set(0u64..1000, 0..50),
        ) {
            let of = |frames: &BTreeSet<u64>| {
                let mut set = FrameSet::default();
                frames.iter().for_each(|frame| {
                    set.insert(*frame);
                });
                set
            };
            let mut both = of(&one);
            both.add_all(&of(&other));
            prop_assert_eq!(both.iter().collect::<Vec<_>>(), one.union(&other).copied().collect::<Vec<_>>());
        }
    }
}
