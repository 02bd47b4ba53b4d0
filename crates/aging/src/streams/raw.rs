//! Reads of block devices themselves, told from those of file-system metadata. Pure.
//!
//! Both insert pages of the device: a program that reads the device (dd, a backup of an image), and a file system that
//! reads its own inodes and directories for a program. The first is a stream. The second returns to the same pages, and
//! they are few. So the pages of a process count as a stream's after 2 MiB in order; a gap is allowed where pages were
//! cached before.
//!
//! No I/O, no clock, no randomness.

use std::collections::BTreeMap;

use access::insertions::{FileId, Insertion};
use linux::Pid;
use units::Pages;

/// Pages in order after which a device is read as a whole: 2 MiB.
const MUCH: Pages = Pages(512);
/// Longest gap: 8 MiB that were cached before.
const GAP: u64 = 2048;
/// Number of processes and devices that are remembered.
const MOST: usize = 1024;

/// Reads of block devices in order.
#[derive(Debug, Default)]
pub struct RawReads {
    reads: BTreeMap<(Pid, FileId), Read>,
    /// Pages of metadata, by device.
    metadata: BTreeMap<FileId, u64>,
}

#[derive(Debug, Default)]
struct Read {
    end: u64,
    in_order: u64,
    /// Insertions before the decision.
    before: Vec<Insertion>,
}

impl RawReads {
    /// Insertions of a stream: this one, and earlier ones of the same read.
    pub fn add(&mut self, insertion: Insertion) -> Vec<Insertion> {
        if self.reads.len() >= MOST && !self.reads.contains_key(&(insertion.process, insertion.file)) {
            self.give_up();
        }
        let read = self.reads.entry((insertion.process, insertion.file)).or_default();
        let gap = insertion.pages.start.checked_sub(read.end);
        let is_in_order = gap.is_some_and(|gap| gap <= GAP);
        if !is_in_order {
            *self.metadata.entry(insertion.file).or_default() += count(&read.before);
            *read = Read::default();
        }
        read.end = insertion.pages.end;
        read.in_order += insertion.pages.end.saturating_sub(insertion.pages.start);
        read.before.push(insertion);
        if read.in_order < MUCH.0 {
            return Vec::new();
        }
        std::mem::take(&mut read.before)
    }

    /// Pages of metadata since the last call, by device; the undecided reads become metadata if `is_over`.
    pub fn take_metadata(&mut self, is_over: bool) -> BTreeMap<FileId, u64> {
        if is_over {
            self.give_up();
        }
        std::mem::take(&mut self.metadata)
    }

    fn give_up(&mut self) {
        for ((_, file), read) in std::mem::take(&mut self.reads) {
            *self.metadata.entry(file).or_default() += count(&read.before);
        }
    }
}

fn count(insertions: &[Insertion]) -> u64 {
    insertions.iter().map(|insertion| insertion.pages.end.saturating_sub(insertion.pages.start)).sum()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    fn insertion(pages: Range<u64>) -> Insertion {
        let file = FileId { device: (0, 3), inode: 7 << 20, generation: 0 };
        Insertion { file, pages, process: Pid(1) }
    }

    fn metadata(reads: &mut RawReads) -> u64 {
        reads.take_metadata(true).values().sum()
    }

    #[test]
    fn a_device_read_in_order_is_a_stream_from_its_first_page_on() {
        let mut reads = RawReads::default();
        let all: Vec<Insertion> = (0..64).flat_map(|n| reads.add(insertion(n * 32..n * 32 + 32))).collect();
        assert_eq!((count(&all), all[0].pages.start), (64 * 32, 0));
        assert_eq!(count(&reads.add(insertion(64 * 32 + 1000..64 * 32 + 1032))), 32, "after pages cached before");
        assert_eq!(metadata(&mut reads), 0);
    }

    #[test]
    fn scattered_pages_are_metadata_and_are_counted() {
        let mut reads = RawReads::default();
        for n in 0..100 {
            assert_eq!(reads.add(insertion((n * 7919 % 100) * 10_000..(n * 7919 % 100) * 10_000 + 32)), []);
        }
        assert_eq!(metadata(&mut reads), 3200);
        assert_eq!(metadata(&mut reads), 0);
    }

    proptest! {
        #[test]
        fn each_page_is_of_a_stream_or_metadata(all in prop::collection::vec((0u64..20_000, 1u64..400), 1..200)) {
            let mut reads = RawReads::default();
            let (mut inserted, mut streamed) = (0, 0);
            for (start, pages) in all {
                inserted += pages;
                streamed += count(&reads.add(insertion(start..start + pages)));
            }
            prop_assert_eq!(streamed + metadata(&mut reads), inserted);
        }
    }
}
