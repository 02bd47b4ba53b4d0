//! Counting a file's pages in the page cache.

use std::os::fd::AsFd;

use linux::cachestat::{CacheStat, cachestat};
use linux::page_cache;
use units::{Bytes, Pages};

use super::Outcome;
use super::disk_file::DiskFile;
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    cachestat requires [CacheStat, DiskFiles];
    the_count_is_that_of_the_pages_which_are_named_resident;
    what_a_group_has_no_room_for_was_evicted [Root, MemoryGroups, Shell];
};

const LENGTH: Pages = Pages(16384);

fn all_of(of: &DiskFile) -> Result<CacheStat, linux::Error> {
    cachestat(of.file.as_fd(), Bytes(0), Bytes(0))
}

/// Beside the other way to ask.
fn the_count_is_that_of_the_pages_which_are_named_resident(_: &Host) -> Outcome {
    let of = DiskFile::make("cachestat", LENGTH)?;
    assert_eq!(all_of(&of)?.cached, Pages(0));
    of.read(1000..1300)?;
    of.read(9000..9001)?;
    let named = page_cache::resident(&of.file, 0..LENGTH.0)?;
    let count: u64 = named.iter().map(|run| run.end - run.start).sum();
    let counted = all_of(&of)?;
    assert_eq!((counted.cached, counted.dirty), (Pages(count), Pages(0)), "{named:?}");
    assert!(count >= 301, "{named:?}");
    Ok(())
}

/// Pages above a cgroup's limit were evicted. Whether they would be missed depends on the cgroup's other accesses
/// since.
fn what_a_group_has_no_room_for_was_evicted(_: &Host) -> Outcome {
    let group = Group::make("cachestat")?;
    group.limit(Bytes::mib(32).0)?;
    let of = DiskFile::make("cachestat", LENGTH)?;
    of.stream_through(&group, 1)?;
    let counted = all_of(&of)?;
    assert!(counted.cached.0 > 0 && counted.cached.bytes() <= Bytes::mib(32), "{counted:?}");
    assert!(counted.evicted.0 > 0 && counted.recently_evicted <= counted.evicted, "{counted:?}");
    assert!(counted.cached.0 + counted.evicted.0 <= LENGTH.0, "{counted:?}");
    Ok(())
}
