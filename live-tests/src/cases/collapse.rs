//! Promotion and demotion from outside: the actual effect of `process_madvise` on a window.

use std::os::fd::AsFd;

use linux::process_madvise::{Advice, advise};
use rustix::io::Errno;
use units::{PAGES_PER_WINDOW, PageSize};

use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    collapse requires [Root, RemoteCollapse, HugePageModes];
    a_window_with_one_page_becomes_a_huge_page_and_keeps_its_content;
    cold_on_one_page_splits_a_huge_page_and_keeps_its_content [RemoteAdvice];
};

/// A window whose every `nth` page holds a pattern, on small pages.
pub(super) fn sparse_window(nth: u64) -> Result<(TargetProcess, Mapping), crate::target_process::TargetError> {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.all().every(nth), 7)?;
    Ok((process, heap))
}

/// Passing refusals (a page in another processor's batch, no free huge page yet) are tried again a few times.
pub(super) fn collapse(process: &TargetProcess, heap: Mapping) -> Result<(), libtest_mimic::Failed> {
    let pidfd = process.pid().open()?;
    let mut answer = Err(Errno::AGAIN);
    for _ in 0..20 {
        answer = advise(process.pid(), pidfd.as_fd(), &[heap.range()], Advice::Collapse);
        match answer {
            Err(Errno::AGAIN | Errno::NOMEM | Errno::BUSY) => std::thread::sleep(std::time::Duration::from_millis(50)),
            _ => break,
        }
    }
    answer.map(drop).map_err(|errno| format!("collapse: {}", linux::describe(errno)).into())
}

/// The hardest case that must work: one page of 512.
fn a_window_with_one_page_becomes_a_huge_page_and_keeps_its_content(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = sparse_window(512)?;
    assert_eq!(present_pages(&process, heap)?, [0]);
    assert_eq!(huge_bytes(host, &process, heap)?, 0);

    collapse(&process, heap)?;

    assert_eq!(huge_bytes(host, &process, heap)?, PageSize::Huge.bytes().0);
    assert_eq!(present_pages(&process, heap)?.len(), PAGES_PER_WINDOW);
    process.check(heap.page(0), 7)?;
    Ok(())
}

/// Demotion: advice on a part of a huge page splits it. Whether the zero-filled pages go back at once differs from
/// kernel to kernel, and is for the feature to measure; content never changes.
fn cold_on_one_page_splits_a_huge_page_and_keeps_its_content(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = sparse_window(8)?;
    collapse(&process, heap)?;
    assert_eq!(huge_bytes(host, &process, heap)?, PageSize::Huge.bytes().0);

    let pidfd = process.pid().open()?;
    advise(process.pid(), pidfd.as_fd(), &[heap.page(1).range()], Advice::Cold)?;

    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    let present = present_pages(&process, heap)?;
    assert!((0..64).all(|n| present.contains(&(n * 8))), "a written page went missing: {present:?}");
    process.check(heap.all().every(8), 7)?;
    Ok(())
}
