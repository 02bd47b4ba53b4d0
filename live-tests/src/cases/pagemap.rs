//! The kernel's information on single pages.

use linux::clear_refs::{self, Forget};
use linux::pagemap::Pagemap;

use super::{Outcome, no_automatic_huge_pages, present_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    pagemap requires [Root];
    scan_and_table_name_the_same_pages [PagemapScan];
    soft_dirty_marks_exactly_the_pages_written_after_the_clear [SoftDirty];
};

const SOFT_DIRTY: u64 = 1 << 55;

/// Two ways to ask the kernel the same thing.
fn scan_and_table_name_the_same_pages(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 2)?;
    process.write(heap.pages(3, 40), 1)?;
    process.write(heap.window(1).every(5), 1)?;

    let mut scanned = Vec::new();
    for run in Pagemap::open(process.pid())?.scan(heap.range())? {
        assert!(run.present && !run.swapped, "{run:?}");
        let first = (run.range.start().0 - heap.range().start().0) / 4096;
        scanned.extend(first..first + run.range.pages().0);
    }

    let expected: Vec<u64> = (3..40).chain((512..1024).step_by(5)).collect();
    assert_eq!(scanned, expected);
    assert_eq!(present_pages(&process, heap)?, expected);
    Ok(())
}

/// The marks are per process, so the test owns one.
fn soft_dirty_marks_exactly_the_pages_written_after_the_clear(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.pages(0, 8), 1)?;

    clear_refs::clear(host.files(), process.pid(), Forget::SoftDirty)?;
    process.read(heap.pages(0, 8))?;
    process.write(heap.page(3), 2)?;

    let entries = Pagemap::open(process.pid())?.entries(heap.pages(0, 8).range())?;
    let dirty: Vec<usize> = (0..8).filter(|&page| entries[page].0 & SOFT_DIRTY != 0).collect();
    assert_eq!(dirty, [3]);
    Ok(())
}
