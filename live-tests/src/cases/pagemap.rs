//! The kernel's information on single pages.

use linux::clear_refs::{self, Forget};
use linux::pagemap::Pagemap;

use super::{Outcome, no_automatic_huge_pages, present_pages};
use crate::live::Live;
use crate::toy::{Backing, ToyProcess};

const SOFT_DIRTY: u64 = 1 << 55;

/// Two ways to ask the kernel the same thing.
pub fn scan_and_table_name_the_same_pages(_: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 2)?;
    toy.write(heap.pages(3, 40), 1)?;
    toy.write(heap.window(1).every(5), 1)?;

    let mut scanned = Vec::new();
    for run in Pagemap::open(toy.pid())?.scan(heap.range())? {
        assert!(run.present && !run.swapped, "{run:?}");
        let first = (run.range.start().0 - heap.range().start().0) / 4096;
        scanned.extend(first..first + run.range.pages().0);
    }

    let expected: Vec<u64> = (3..40).chain((512..1024).step_by(5)).collect();
    assert_eq!(scanned, expected);
    assert_eq!(present_pages(&toy, heap)?, expected);
    Ok(())
}

/// The marks are per process, so the test owns one.
pub fn soft_dirty_marks_exactly_the_pages_written_after_the_clear(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.pages(0, 8), 1)?;

    clear_refs::clear(live.files(), toy.pid(), Forget::SoftDirty)?;
    toy.read(heap.pages(0, 8))?;
    toy.write(heap.page(3), 2)?;

    let entries = Pagemap::open(toy.pid())?.entries(heap.pages(0, 8).range())?;
    let dirty: Vec<usize> = (0..8).filter(|&page| entries[page].0 & SOFT_DIRTY != 0).collect();
    assert_eq!(dirty, [3]);
    Ok(())
}
