//! Pages of a command's mappings that stay for some seconds after it has passed or unmapped them, while memory is free.
//! Pure.
//!
//! A program that maps a file, reads it in order, unmaps it and does so again need not read the disk twice. A slow mapped
//! stream still leaves little behind: its pages go while it runs.
//!
//! No I/O, no clock, no randomness.

use std::collections::VecDeque;
use std::time::Duration;

use units::Pages;

use super::due::Due;

/// Time that pages stay.
const STAY: Duration = Duration::from_secs(3);

/// Ranges that are remembered; beyond that the oldest are dropped.
const RANGES_MOST: usize = 1 << 16;

/// Pages with the time since which they stay, the oldest first.
#[derive(Debug, Default)]
pub struct Lately {
    ranges: VecDeque<(Duration, Due)>,
    pages: u64,
}

impl Lately {
    /// Pages that stay.
    pub fn pages(&self) -> Pages {
        Pages(self.pages)
    }

    /// Lets pages stay from now on.
    pub fn keep(&mut self, now: Duration, due: Due) {
        self.pages += due.count();
        self.ranges.push_back((now, due));
    }

    /// Releases what has stayed long enough, and what is more than can be remembered.
    pub fn over(&mut self, now: Duration) -> Vec<Due> {
        let is_over = |(since, _): &(Duration, Due)| now >= *since + STAY;
        let mut released = Vec::new();
        while self.ranges.len() > RANGES_MOST || self.ranges.front().is_some_and(is_over) {
            let Some((_, due)) = self.ranges.pop_front() else { break };
            released.push(due);
        }
        self.forget(released)
    }

    /// Releases at least this number of pages, the newest first.
    pub fn release(&mut self, pages: Pages) -> Vec<Due> {
        let (mut released, mut count) = (Vec::new(), 0);
        while count < pages.0
            && let Some((_, due)) = self.ranges.pop_back()
        {
            count += due.count();
            released.push(due);
        }
        self.forget(released)
    }

    fn forget(&mut self, released: Vec<Due>) -> Vec<Due> {
        self.pages -= released.iter().map(Due::count).sum::<u64>();
        released
    }
}

#[cfg(test)]
mod tests {
    use access::insertions::FileId;
    use linux::Pid;

    use super::*;

    fn due(first: u64) -> Due {
        Due::first(FileId { device: (8, 1), inode: 1, generation: 0 }, first..first + 10, Pid(7))
    }

    #[test]
    fn pages_stay_for_some_seconds_and_no_longer() {
        let mut lately = Lately::default();
        (0..3).for_each(|n| lately.keep(Duration::from_secs(n), due(n * 10)));
        assert_eq!((lately.over(STAY / 2), lately.pages()), (vec![], Pages(30)));
        assert_eq!(lately.over(STAY + Duration::from_secs(1)), [due(0), due(10)]);
        assert_eq!((lately.over(STAY * 2), lately.pages()), (vec![due(20)], Pages(0)));
    }

    #[test]
    fn little_free_memory_takes_the_newest_first() {
        let mut lately = Lately::default();
        (0..3).for_each(|n| lately.keep(Duration::ZERO, due(n * 10)));
        assert_eq!(lately.release(Pages(11)), [due(20), due(10)]);
        assert_eq!((lately.release(Pages(0)), lately.pages()), (vec![], Pages(10)));
        assert_eq!(lately.release(Pages(u64::MAX)), [due(0)]);
    }
}
