//! Locking the pages of a file in memory from another process, against a stream through the same cgroup.

use std::ops::Range;

use linux::Error;
use linux::kpageflags::FrameTable;
use linux::page_cache::{drop_clean, resident};
use linux::pinned_file::PinnedFile;
use units::{Bytes, Pages};

use super::Outcome;
use super::disk_file::{DiskFile, MappedFile};
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    pinned_file requires [Root, PageFrames, DiskFiles];
    pinned_pages_stay_in_a_stream_and_go_when_they_are_let_go [MemoryGroups, Shell];
    a_pinned_part_stays_and_the_rest_goes [MemoryGroups, Shell];
    pinning_brings_in_nothing;
    a_file_that_is_cut_off_loses_its_pages_and_kills_nobody;
};

/// 24 MiB, of the 96 MiB that the group may have.
const LENGTH: Pages = Pages(6144);
/// More than twice the cgroup's limit.
const STREAM: Pages = Pages(65536);
const ALL: Range<u64> = 0..LENGTH.0;

/// A group with a file that a program maps and does not use, and another one to stream through it.
struct Setup {
    idle: DiskFile,
    stream: DiskFile,
    group: Group,
}

impl Setup {
    fn make(name: &str) -> Result<Setup, libtest_mimic::Failed> {
        let group = Group::make(name)?;
        group.limit(Bytes::mib(96).0)?;
        let setup = Setup {
            idle: DiskFile::make(name, LENGTH)?,
            stream: DiskFile::make(&format!("{name}-stream"), STREAM)?,
            group,
        };
        setup.bring_in()?;
        Ok(setup)
    }

    /// Brings all of the idle file into memory, charged to the cgroup. The stream runs first to make space: pages that
    /// it evicted later would be brought in by a mapping of ours at our own charge, where no stream through the cgroup
    /// reaches them.
    fn bring_in(&self) -> Outcome {
        drop_clean(&self.stream.file, 0..STREAM.0)?;
        self.idle.stream_through(&self.group, 1)?;
        assert_eq!(in_memory(&self.idle, ALL)?, LENGTH.0);
        Ok(())
    }

    fn stream(&self) -> Outcome {
        self.stream.stream_through(&self.group, 3)
    }

    fn pinned(&self, pages: Range<u64>) -> Result<PinnedFile, Error> {
        let mut pinned = PinnedFile::map(&self.idle.file, ALL)?;
        pinned.pin(pages)?;
        Ok(pinned)
    }
}

fn in_memory(of: &DiskFile, pages: Range<u64>) -> Result<u64, Error> {
    Ok(resident(&of.file, pages)?.iter().map(|run| run.end - run.start).sum())
}

/// The kernel reclaims pages that are only mapped, and leaves locked ones; after the unlock it reclaims them as before.
fn pinned_pages_stay_in_a_stream_and_go_when_they_are_let_go(_: &Host) -> Outcome {
    let setup = Setup::make("pinned")?;
    let program = MappedFile::map(&setup.idle.file, LENGTH)?;
    setup.stream()?;
    let left = in_memory(&setup.idle, ALL)?;
    assert!(left < LENGTH.0 / 10, "{left} pages stayed without a pin: the stream is too weak to prove anything");

    drop(program);
    setup.bring_in()?;
    let _program = MappedFile::map(&setup.idle.file, LENGTH)?;
    let mut pinned = setup.pinned(ALL)?;
    assert_eq!(pinned.locked(&FrameTable::open()?, ALL)?, LENGTH);
    setup.stream()?;
    assert_eq!((in_memory(&setup.idle, ALL)?, pinned.locked(&FrameTable::open()?, ALL)?), (LENGTH.0, LENGTH));
    drop_clean(&setup.idle.file, ALL)?;
    assert_eq!(in_memory(&setup.idle, ALL)?, LENGTH.0);

    pinned.unpin(ALL)?;
    assert_eq!(pinned.locked(&FrameTable::open()?, ALL)?, Pages(0));
    setup.stream()?;
    let left = in_memory(&setup.idle, ALL)?;
    assert!(left < LENGTH.0 / 10, "{left} pages stayed after they were let go");
    Ok(())
}

/// A part whose ends lie within large folios, where there are any.
fn a_pinned_part_stays_and_the_rest_goes(_: &Host) -> Outcome {
    let setup = Setup::make("pinned-part")?;
    let part = 1001..2001;
    let pinned = setup.pinned(part.clone())?;
    // Including the adjacent resident pages at both ends.
    let locked = pinned.locked(&FrameTable::open()?, ALL)?;
    assert!((1000..=1000 + 2 * 512).contains(&locked.0), "{locked:?} of 1000 pages");
    setup.stream()?;
    assert_eq!(in_memory(&setup.idle, part)?, 1000);
    // A folio has at most 512 pages, and there are two ends.
    let left = in_memory(&setup.idle, ALL)?;
    assert!(left <= 1000 + 2 * 512, "{left} pages stayed of 1000 that were pinned");
    drop(pinned);
    setup.stream()?;
    let left = in_memory(&setup.idle, ALL)?;
    assert!(left < LENGTH.0 / 10, "{left} pages stayed after all was let go");
    Ok(())
}

/// Not even by readahead, which leaves its marker on a page near the end of its range.
fn pinning_brings_in_nothing(_: &Host) -> Outcome {
    let of = DiskFile::make("pinned", LENGTH)?;
    of.read(0..2500)?;
    of.read(4000..4001)?;
    std::thread::sleep(std::time::Duration::from_millis(200)); // waits for the read-ahead to arrive
    let before = resident(&of.file, ALL)?;
    let count: u64 = before.iter().map(|run| run.end - run.start).sum();
    assert!((2501..LENGTH.0).contains(&count), "{before:?}");
    let mut pinned = PinnedFile::map(&of.file, ALL)?;
    pinned.pin(ALL)?;
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(resident(&of.file, ALL)?, before);
    assert_eq!(pinned.locked(&FrameTable::open()?, ALL)?, Pages(count));

    // Pages that came in since are locked from the next call on.
    of.read(5000..5001)?;
    let count = in_memory(&of, ALL)?;
    assert!(pinned.locked(&FrameTable::open()?, ALL)? < Pages(count));
    pinned.pin(ALL)?;
    assert_eq!(pinned.locked(&FrameTable::open()?, ALL)?, Pages(count));
    Ok(())
}

/// The file lives on without its content.
fn a_file_that_is_cut_off_loses_its_pages_and_kills_nobody(_: &Host) -> Outcome {
    let of = DiskFile::make("pinned", LENGTH)?;
    of.read(ALL)?;
    let mut pinned = PinnedFile::map(&of.file, ALL)?;
    pinned.pin(ALL)?;
    of.file.set_len(0)?;
    assert_eq!(pinned.locked(&FrameTable::open()?, ALL)?, Pages(0));
    let _ = pinned.pin(ALL); // a folio that is cut short is an error, and never a signal
    assert_eq!((in_memory(&of, ALL)?, pinned.locked(&FrameTable::open()?, ALL)?), (0, Pages(0)));
    Ok(())
}
