//! Pages of streams that stay for a time, because their reader may come back and memory is free. Pure.
//!
//! A command's clean pages stay until it ends, so that its second pass need not read the disk. A service keeps the pages
//! that it has inserted twice until it ends. Both are kept in memory that nobody uses: the rest is dropped as soon as less is
//! free. The newest pages go first, because a second pass begins with the oldest ones.
//!
//! No I/O, no clock, no randomness.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use access::insertions::FileId;
use linux::Pid;
use units::{Bytes, Pages};

use super::due::Due;
use crate::policy::{Headroom, low_watermark};

/// Ranges that are remembered, some 100 bytes each; beyond that the oldest are dropped.
const RANGES_MOST: usize = 1 << 18;

/// Length of a range that is not extended any more: it is released as a whole.
const RANGE_PAGES_MOST: u64 = 1024;

/// Pages kept, the oldest first.
#[derive(Debug, Default)]
pub struct Kept {
    ranges: VecDeque<Due>,
    pages: u64,
    of_process: BTreeMap<Pid, u64>,
}

impl Kept {
    /// Kept pages.
    pub fn pages(&self) -> Pages {
        Pages(self.pages)
    }

    /// Processes that inserted kept pages, with the numbers of pages.
    pub fn processes(&self) -> impl Iterator<Item = (Pid, Pages)> + '_ {
        self.of_process.iter().map(|(pid, pages)| (*pid, Pages(*pages)))
    }

    /// Keeps pages.
    pub fn keep(&mut self, file: FileId, pages: Range<u64>, process: Pid) {
        let count = pages.end.saturating_sub(pages.start);
        self.pages += count;
        *self.of_process.entry(process).or_default() += count;
        if let Some(last) = self.ranges.back_mut()
            && (last.file, last.process, last.pages.end) == (file, process, pages.start)
            && last.count() < RANGE_PAGES_MOST
        {
            last.pages.end = pages.end;
            return;
        }
        self.ranges.push_back(Due::first(file, pages, process));
    }

    /// Releases at least this number of pages, the newest first; and what is more than can be remembered.
    pub fn release(&mut self, pages: Pages) -> Vec<Due> {
        let mut released = Vec::new();
        let mut count = 0;
        while self.ranges.len() > RANGES_MOST
            && let Some(due) = self.ranges.pop_front()
        {
            released.push(due);
        }
        while count < pages.0
            && let Some(due) = self.ranges.pop_back()
        {
            count += due.count();
            released.push(due);
        }
        self.forget(&released);
        released
    }

    /// Releases the pages of these processes.
    pub fn release_of(&mut self, has_ended: impl Fn(Pid) -> bool) -> Vec<Due> {
        let (released, kept): (Vec<Due>, Vec<Due>) = self.ranges.drain(..).partition(|due| has_ended(due.process));
        self.ranges = kept.into();
        self.forget(&released);
        released
    }

    fn forget(&mut self, released: &[Due]) {
        for due in released {
            self.pages -= due.count();
            if let Some(of) = self.of_process.get_mut(&due.process) {
                *of -= due.count();
            }
        }
        self.of_process.retain(|_, pages| *pages > 0);
    }
}

/// Free memory of a domain (the host or a control group) with its limit, as seen by streams.
///
/// More pages may be kept while twice the low watermark stays free after them.
pub fn may_keep(free: &[Headroom]) -> Bytes {
    let left = |domain: &Headroom| domain.left.saturating_sub(low_watermark(domain.limit).scaled(2.0));
    free.iter().map(left).min().unwrap_or(Bytes(0))
}

/// Kept bytes to release now: below the low watermark, until twice that is free.
pub fn must_release(free: &[Headroom]) -> Bytes {
    let missing = |domain: &Headroom| {
        let low = low_watermark(domain.limit);
        if domain.left < low { low.scaled(2.0).saturating_sub(domain.left) } else { Bytes(0) }
    };
    free.iter().map(missing).max().unwrap_or(Bytes(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(inode: u64) -> FileId {
        FileId { device: (8, 1), inode, generation: 0 }
    }

    #[test]
    fn the_newest_pages_are_released_first() {
        let mut kept = Kept::default();
        (0..4).for_each(|n| kept.keep(file(n), 0..100, Pid(1)));
        let released: Vec<u64> = kept.release(Pages(150)).iter().map(|due| due.file.inode).collect();
        assert_eq!((released, kept.pages()), (vec![3, 2], Pages(200)));
        assert_eq!(kept.release(Pages(0)), []);
    }

    #[test]
    fn pages_stay_while_their_process_runs() {
        let mut kept = Kept::default();
        kept.keep(file(1), 0..100, Pid(1));
        kept.keep(file(1), 100..150, Pid(2));
        assert_eq!(kept.release_of(|pid| pid == Pid(1)), [Due::first(file(1), 0..100, Pid(1))]);
        assert_eq!(kept.processes().collect::<Vec<_>>(), [(Pid(2), Pages(50))]);
    }

    #[test]
    fn only_free_memory_is_filled_and_little_free_memory_ends_it() {
        let host = |left| Headroom { limit: Bytes::gib(16), left: Bytes::gib(left) };
        assert_eq!((may_keep(&[host(10)]), must_release(&[host(10)])), (Bytes::gib(8), Bytes(0)));
        assert_eq!((may_keep(&[host(1)]), must_release(&[host(1)])), (Bytes(0), Bytes(0)), "neither more nor less");
        assert_eq!((may_keep(&[host(0)]), must_release(&[host(0)])), (Bytes(0), Bytes::gib(2)));
        let group = Headroom { limit: Bytes::gib(1), left: Bytes::mib(200) };
        assert_eq!(may_keep(&[host(10), group]), Bytes::mib(72), "the smallest one counts");
        assert_eq!((may_keep(&[]), must_release(&[])), (Bytes(0), Bytes(u64::MAX)), "nothing known, nothing kept");
    }

    proptest! {
        #[test]
        fn each_kept_page_is_released_once(
            kept_pages in prop::collection::vec((0u64..4, 0u64..9, 1u64..2000, 1i32..5), 1..60),
            releases in prop::collection::vec((0u64..4000, 0i32..5), 1..60),
        ) {
            let mut kept = Kept::default();
            let (mut all, mut gone) = (0, 0);
            for ((inode, first, count, pid), (pages, ended)) in kept_pages.into_iter().zip(releases.into_iter().cycle()) {
                kept.keep(file(inode), first * 1000..first * 1000 + count, Pid(pid));
                all += count;
                gone += kept.release(Pages(pages)).iter().map(Due::count).sum::<u64>();
                gone += kept.release_of(|pid| pid == Pid(ended)).iter().map(Due::count).sum::<u64>();
                prop_assert_eq!(kept.pages().0, all - gone);
                prop_assert_eq!(kept.processes().map(|(_, pages)| pages.0).sum::<u64>(), all - gone);
            }
            gone += kept.release(Pages(u64::MAX)).iter().map(Due::count).sum::<u64>();
            prop_assert_eq!((all, kept.pages()), (gone, Pages(0)));
        }
    }
}
