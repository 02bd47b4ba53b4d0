//! Time lost waiting for memory.

use std::time::Instant;

use linux::pressure;
use units::{Bytes, Pages};

use super::Outcome;
use super::disk_file::DiskFile;
use crate::group::Group;
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    pressure requires [Root, Pressure, MemoryGroups, DiskFiles, Shell];
    a_group_that_is_too_small_for_what_it_reads_makes_the_host_wait;
};

/// A program whose cgroup is too small for its repeated reads waits, and no longer than it runs.
fn a_group_that_is_too_small_for_what_it_reads_makes_the_host_wait(host: &Host) -> Outcome {
    let group = Group::make("pressure")?;
    group.limit(Bytes::mib(32).0)?;
    let file = DiskFile::make("pressure", Pages(Bytes::mib(64).pages().0))?;
    let (before, began) = (pressure::of_host(host.files())?, Instant::now());
    file.stream_through(&group, 5)?;
    let (after, took) = (pressure::of_host(host.files())?, began.elapsed());
    let waited = after.some.total - before.some.total;
    assert!(!waited.is_zero() && waited <= took, "waited {waited:?} of {took:?}");
    assert!(after.full.total - before.full.total <= waited, "{before:?}, {after:?}");
    Ok(())
}
