//! Promotion and demotion from outside: the actual effect of `process_madvise` on a window.

use std::os::fd::AsFd;

use linux::process_madvise::{Advice, advise};
use rustix::io::Errno;
use units::{PAGES_PER_WINDOW, PageSize};

use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages};
use crate::live::Live;
use crate::toy::{Backing, Mapping, ToyProcess};

/// A window whose every `nth` page holds a pattern, on small pages.
pub(super) fn sparse_window(nth: u64) -> Result<(ToyProcess, Mapping), crate::toy::ToyError> {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.all().every(nth), 7)?;
    Ok((toy, heap))
}

/// Passing refusals (a page in another processor's batch, no free huge page yet) are tried again a few times.
pub(super) fn collapse(toy: &ToyProcess, heap: Mapping) -> Result<(), libtest_mimic::Failed> {
    let pidfd = toy.pid().open()?;
    let mut answer = Err(Errno::AGAIN);
    for _ in 0..20 {
        answer = advise(toy.pid(), pidfd.as_fd(), &[heap.range()], Advice::Collapse);
        match answer {
            Err(Errno::AGAIN | Errno::NOMEM | Errno::BUSY) => std::thread::sleep(std::time::Duration::from_millis(50)),
            _ => break,
        }
    }
    answer.map(drop).map_err(|errno| format!("collapse: {}", linux::describe(errno)).into())
}

/// The hardest case that must work: one page of 512.
pub fn a_window_with_one_page_becomes_a_huge_page_and_keeps_its_content(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap) = sparse_window(512)?;
    assert_eq!(present_pages(&toy, heap)?, [0]);
    assert_eq!(huge_bytes(live, &toy, heap)?, 0);

    collapse(&toy, heap)?;

    assert_eq!(huge_bytes(live, &toy, heap)?, PageSize::Huge.bytes().0);
    assert_eq!(present_pages(&toy, heap)?.len(), PAGES_PER_WINDOW);
    toy.check(heap.page(0), 7)?;
    Ok(())
}

/// Demotion: advice on a part of a huge page splits it. Whether the zero-filled pages go back at once differs from
/// kernel to kernel, and is for the feature to measure; content never changes.
pub fn cold_on_one_page_splits_a_huge_page_and_keeps_its_content(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap) = sparse_window(8)?;
    collapse(&toy, heap)?;
    assert_eq!(huge_bytes(live, &toy, heap)?, PageSize::Huge.bytes().0);

    let pidfd = toy.pid().open()?;
    advise(toy.pid(), pidfd.as_fd(), &[heap.page(1).range()], Advice::Cold)?;

    assert_eq!(huge_bytes(live, &toy, heap)?, 0);
    let present = present_pages(&toy, heap)?;
    assert!((0..64).all(|n| present.contains(&(n * 8))), "a written page went missing: {present:?}");
    toy.check(heap.all().every(8), 7)?;
    Ok(())
}
