//! Account of streams: pages brought into the page cache, dropped, and left, by reason and owner. Pure.
//!
//! At the end, the pages brought in are those dropped and those left. Before, some wait ([`Tally::waiting`]).
//!
//! No I/O, no clock, no randomness.

use std::collections::{BTreeMap, BTreeSet};

use linux::{Pid, Untrusted};
use units::Pages;

use crate::left_pages::{Left, Reason};

/// Process or device that pages are left for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// Process, with its command name.
    Process(Pid, Untrusted),
    /// Device, by its numbers.
    Device((u32, u32)),
}

/// Account of all streams.
#[derive(Debug, Default)]
pub struct Tally {
    brought: u64,
    dropped: u64,
    left: BTreeMap<(Reason, Option<Owner>), u64>,
}

/// Owners that are named for each account; the others are one.
const OWNERS_MOST: usize = 64;

impl Tally {
    /// Adds pages that a stream has inserted.
    pub fn brought_in(&mut self, pages: u64) {
        self.brought += pages;
    }

    /// Adds pages that are not in the page cache any more.
    pub fn dropped(&mut self, pages: u64) {
        self.dropped += pages;
    }

    /// Adds pages that are left for good.
    pub fn left(&mut self, reason: Reason, owner: Option<Owner>, pages: u64) {
        let owner = owner
            .filter(|owner| self.left.len() < OWNERS_MOST || self.left.contains_key(&(reason, Some(owner.clone()))));
        if pages > 0 {
            *self.left.entry((reason, owner)).or_default() += pages;
        }
    }

    /// Devices whose pages are left because they cannot be opened, or are metadata.
    pub fn devices(&self) -> Vec<(u32, u32)> {
        let device = |(reason, owner): &(Reason, Option<Owner>)| match owner {
            Some(Owner::Device(device)) if is_of_file_system(*reason) => Some(*device),
            _ => None,
        };
        self.left.keys().filter_map(device).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Counts the pages of a device as dropped whose file system has gone, and its pages with it.
    pub fn gone(&mut self, device: (u32, u32)) {
        let of_device = |(reason, owner): &(Reason, Option<Owner>)| {
            is_of_file_system(*reason) && *owner == Some(Owner::Device(device))
        };
        self.dropped += self.left.iter().filter(|(key, _)| of_device(key)).map(|(_, pages)| pages).sum::<u64>();
        self.left.retain(|key, _| !of_device(key));
    }

    /// All pages inserted by streams.
    pub fn all_brought_in(&self) -> Pages {
        Pages(self.brought)
    }

    /// Dropped pages in all.
    pub fn all_dropped(&self) -> Pages {
        Pages(self.dropped)
    }

    /// Pages left for good.
    pub fn all_left(&self) -> Pages {
        Pages(self.left.values().sum())
    }

    /// Pages that are neither dropped nor left for good.
    pub fn waiting(&self) -> Pages {
        Pages(self.brought.saturating_sub(self.dropped + self.all_left().0))
    }

    /// Pages left for good, by reason and owner; the largest amounts first.
    pub fn lines(&self) -> Vec<Left> {
        let left = |((why, owner), pages): (&(Reason, Option<Owner>), &u64)| {
            let (pid, name, device) = match owner {
                Some(Owner::Process(pid, name)) => (Some(pid.0), Some(name.clone()), None),
                Some(Owner::Device((major, minor))) => (None, None, Some(format!("{major}:{minor}"))),
                None => (None, None, None),
            };
            Left { why: *why, bytes: Pages(*pages).bytes(), pid, name, device }
        };
        let mut lines: Vec<Left> = self.left.iter().map(left).collect();
        lines.sort_by_key(|left| std::cmp::Reverse(left.bytes));
        lines
    }
}

fn is_of_file_system(reason: Reason) -> bool {
    matches!(reason, Reason::Unreachable | Reason::Metadata)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_left_is_named_with_reason_and_owner() {
        let mut tally = Tally::default();
        tally.brought_in(256 * 100);
        tally.dropped(256 * 60);
        tally.left(Reason::Mapped, Some(Owner::Process(Pid(12), "post\ngres".into())), 256 * 30);
        tally.left(Reason::Unreachable, Some(Owner::Device((0, 45))), 256 * 10);
        let lines: Vec<String> = tally.lines().iter().map(ToString::to_string).collect();
        assert_eq!(lines[0], "30.0 MiB mapped or in use by process 12 (post\\x0agres)");
        assert_eq!(lines[1], "10.0 MiB in files of device 0:45 that masu cannot open or drop (deleted ones included)");
        assert_eq!(tally.waiting(), Pages(0));
        let json = serde_json::to_value(&tally.lines()[0]).unwrap();
        assert_eq!((&json["why"], &json["pid"], &json["bytes"]), (&"mapped".into(), &12.into(), &(30 << 20).into()));
        assert!(json.get("device").is_none());
    }

    #[test]
    fn the_pages_of_a_file_system_that_is_gone_are_gone_and_the_sum_stays() {
        let mut tally = Tally::default();
        tally.brought_in(100);
        tally.dropped(10);
        let (gone, there) = (Owner::Device((7, 0)), Owner::Device((0, 45)));
        tally.left(Reason::Unreachable, Some(gone.clone()), 40);
        tally.left(Reason::Metadata, Some(gone.clone()), 5);
        tally.left(Reason::Unreachable, Some(there), 30);
        tally.left(Reason::Mapped, Some(Owner::Process(Pid(12), "a".into())), 15);
        assert_eq!(tally.devices(), [(0, 45), (7, 0)]);
        tally.gone((7, 0));
        assert_eq!((tally.all_dropped(), tally.all_left(), tally.waiting()), (Pages(55), Pages(45), Pages(0)));
        assert_eq!(tally.devices(), [(0, 45)]);
    }

    #[test]
    fn the_number_of_owners_is_bounded_and_no_page_is_lost() {
        let mut tally = Tally::default();
        for pid in 0..1000 {
            tally.brought_in(3);
            tally.left(Reason::ReadAgain, Some(Owner::Process(Pid(pid), "a".into())), 3);
        }
        assert!(tally.lines().len() <= OWNERS_MOST + 1);
        assert_eq!((tally.all_left(), tally.waiting()), (Pages(3000), Pages(0)));
    }

    proptest! {
        #[test]
        fn the_lines_add_up(parts in prop::collection::vec((0usize..7, 0i32..4, 0u64..500), 0..50)) {
            const ALL: [Reason; 8] = [
                Reason::Mapped, Reason::MappedByStream, Reason::Unwritten, Reason::Unreachable, Reason::BlockDevice, Reason::Metadata, Reason::ReadAgain, Reason::Missed,
            ];
            let (mut tally, mut sum) = (Tally::default(), 0);
            for (reason, pid, pages) in parts {
                tally.brought_in(2 * pages);
                tally.dropped(pages);
                tally.left(ALL[reason], (pid > 0).then(|| Owner::Process(Pid(pid), "a".into())), pages);
                sum += pages;
            }
            let listed: u64 = tally.lines().iter().map(|left| left.bytes.0 / 4096).sum();
            prop_assert_eq!((listed, tally.all_dropped().0, tally.all_brought_in().0), (sum, sum, 2 * sum));
        }
    }
}
