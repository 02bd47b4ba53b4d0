//! Physical memory: the frames of programs and shared sets. Pure.

use units::Pages;
use units::cast::{index, saturated};
use units::spread::Random;

use super::set_associative::Line;

/// Lines per page.
pub const PAGE_LINES: u32 = 64;

/// Page frame, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame(pub u32);

impl Frame {
    /// Largest number of frames, limited by line numbers.
    pub const COUNT: u32 = u32::MAX / PAGE_LINES;

    /// Line `nth` of the frame, 0 to 63.
    #[inline]
    pub const fn line(self, nth: u32) -> Line {
        Line(self.0 * PAGE_LINES + nth)
    }

    /// Frame of a line.
    #[inline]
    pub const fn of(line: Line) -> Frame {
        Frame(line.0 / PAGE_LINES)
    }
}

/// Free frames.
#[derive(Clone, Debug)]
pub struct Memory {
    free: Vec<u32>,
    beyond: u32,
}

impl Memory {
    /// Memory of this size; `scattered`: frames are handed out in random order, as on a machine with some uptime.
    pub fn new(pages: Pages, scattered: bool, seed: u64) -> Memory {
        let count = saturated::<_, u32>(pages.0).min(Frame::COUNT);
        let mut free: Vec<u32> = (0..count).rev().collect();
        if scattered {
            Random::for_purpose(seed, 0).shuffle(&mut free);
        }
        Memory { free, beyond: count }
    }

    /// Takes this number of frames, or all if there are fewer.
    pub fn take(&mut self, pages: Pages) -> Vec<Frame> {
        let count = index(pages.0).min(self.free.len());
        self.free.split_off(self.free.len() - count).into_iter().rev().map(Frame).collect()
    }

    /// Takes consecutive frames above all others, for a program that streams through more memory than a table should
    /// list; returns the first.
    pub fn take_row(&mut self, pages: Pages) -> Option<Frame> {
        let first = self.beyond;
        let end = first.checked_add(u32::try_from(pages.0).ok()?).filter(|end| *end <= Frame::COUNT)?;
        self.beyond = end;
        Some(Frame(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_given_once_and_the_same_for_the_same_seed() {
        let take = |seed| {
            let mut memory = Memory::new(Pages(1000), true, seed);
            [memory.take(Pages(600)), memory.take(Pages(600))]
        };
        let [first, second] = take(7);
        assert_eq!((first.len(), second.len()), (600, 400));
        let mut all: Vec<Frame> = first.iter().chain(&second).copied().collect();
        all.sort();
        assert_eq!(all, (0..1000).map(Frame).collect::<Vec<_>>());
        assert_eq!(take(7), [first.clone(), second]);
        assert_ne!(take(8)[0], first);
    }

    #[test]
    fn contiguous_frames_are_in_a_row() {
        let mut memory = Memory::new(Pages(10), false, 1);
        assert_eq!(memory.take(Pages(3)), [Frame(0), Frame(1), Frame(2)]);
        assert_eq!((memory.take_row(Pages(5)), memory.take_row(Pages(1))), (Some(Frame(10)), Some(Frame(15))));
        assert_eq!(memory.take_row(Pages(u64::from(Frame::COUNT))), None);
    }
}
