//! Pages that are shared, or not in memory: a huge page would be a copy that costs memory, so masu does not promote
//! them yet.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hugepages::Refusal;
use hugepages::act::{self, Promoted};
use hugepages::program::{Program, RunningProgram};
use linux::process_madvise::{Advice, advise};
use units::Pages;

use super::act::{ANY_PRICE, dense, promote};
use super::llc_shared::Merging;
use super::{Outcome, huge_bytes, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};
use crate::swap::Swap;
use crate::target_process::{Backing, Part, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    act_shared requires [Root, RemoteCollapse, HugePageModes];
    what_a_forked_child_shares_is_promoted_only_after_it_ended;
    what_the_kernel_merged_is_promoted_only_after_it_was_parted [Ksm];
    what_is_in_swap_stays_there_until_the_program_wants_it [Swap, RemoteAdvice];
};

/// A snapshot child, as a database forks to save.
fn what_a_forked_child_shares_is_promoted_only_after_it_ended(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 2)?;
    let windows = heap.windows();
    assert!(matches!(promote(&program, windows[1], ANY_PRICE)?, Promoted::Yes { .. }));
    let fork = process.fork()?;
    assert_eq!(act::promote(&program, windows[0], ANY_PRICE, act::NOT_KNOWN)?, Promoted::No(Refusal::Shared));
    // Most of it copied is not all of it.
    process.write(heap.pages(0, 511), 8)?;
    assert_eq!(act::promote(&program, windows[0], ANY_PRICE, act::NOT_KNOWN)?, Promoted::No(Refusal::Shared));
    assert!(!program.state(windows[0])?.unwrap_or_default().huge);
    // Demoting shared memory has the effect that the kernel allows; either way both processes keep their contents.
    act::demote(&program, windows[1])?;
    process.check_in_fork(fork, heap.all(), 7)?;
    process.check(heap.window(1), 7)?;

    process.end_fork(fork)?;
    assert_eq!(promote(&program, windows[0], ANY_PRICE)?, Promoted::Yes { resident_before: Pages(512) });
    process.check(heap.pages(0, 511), 8)?;
    process.check(heap.pages(511, 1024), 7)?;
    Ok(())
}

/// The page with its origin at its own start, so that many such pages get the same content.
fn the_same(page: Part) -> Part {
    Part { origin: page.start, ..page }
}

/// Copies that the kernel found by itself (KSM).
fn what_the_kernel_merged_is_promoted_only_after_it_was_parted(host: &Host) -> Outcome {
    const ALIKE: u64 = 16;
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 1)?;
    let window = heap.windows()[0];
    for page in 0..ALIKE {
        process.write(the_same(heap.page(page)), 1)?;
    }
    let _merging = Merging::start()?;
    process.advise(heap.pages(0, ALIKE), libc::MADV_MERGEABLE)?;
    let deadline = Instant::now() + Duration::from_secs(90);
    while program.state(window)?.unwrap_or_default().shared != Pages(ALIKE) {
        assert!(Instant::now() < deadline, "not merged: {:?}", program.state(window)?);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(act::promote(&program, window, ANY_PRICE, act::NOT_KNOWN)?, Promoted::No(Refusal::Shared));
    assert_eq!(huge_bytes(host, &process, heap)?, 0);

    // The advice had cut the mapping in two; taken back, it is one again, as a huge page needs it.
    process.advise(heap.pages(0, ALIKE), libc::MADV_UNMERGEABLE)?;
    assert_eq!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { resident_before: Pages(512) });
    for page in 0..ALIKE {
        process.check(the_same(heap.page(page)), 1)?;
    }
    process.check(heap.pages(ALIKE, 512), 7)?;
    Ok(())
}

/// The kernel would read all of it back in; swapped pages are not hot.
fn what_is_in_swap_stays_there_until_the_program_wants_it(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _swap = Swap::on(16 << 20)?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.all(), 7)?;
    let window = heap.windows()[0];
    let pidfd = process.pid().open()?;
    advise(process.pid(), pidfd.as_fd(), &[heap.pages(100, 110).range()], Advice::PageOut)?;
    let program = RunningProgram::open(host.files(), process.pid())?;
    let state = program.state(window)?.unwrap_or_default();
    assert_eq!((state.swapped, state.resident), (Pages(10), Pages(502)), "{state:?}");
    assert_eq!(act::promote(&program, window, ANY_PRICE, act::NOT_KNOWN)?, Promoted::No(Refusal::Swapped));
    assert_eq!(program.state(window)?, Some(state));

    process.check(heap.all(), 7)?;
    assert_eq!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { resident_before: Pages(512) });
    process.check(heap.all(), 7)?;
    Ok(())
}
