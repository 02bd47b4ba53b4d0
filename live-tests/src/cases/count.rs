//! Superpages counted from outside: a window counts as the last call left it.

use hugepages::act::{self, Demoted};
use hugepages::count::{Counted, Kind, Superpages, count};
use hugepages::program::RunningProgram;
use linux::probe::Known;
use units::Bytes;

use super::act::{ANY_PRICE, promote};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;
use crate::target_process::{Backing, Mapping, Protection, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    count requires [Root, PageFrames, HugePageModes];
    each_window_counts_as_what_became_of_it [RemoteCollapse, RemoteAdvice];
    a_collapsed_window_is_reserved_and_allocated [RemoteCollapse];
    a_window_that_was_torn_is_downgraded [PagemapScan];
    a_process_that_forbids_huge_pages_has_none_reserved;
    on_a_host_that_gives_to_all_everything_is_reserved;
    smaller_sizes_are_counted_by_size [SmallHugePages];
};

/// Reserved, allocated, failed, downgraded, untouched.
fn numbers(of: &Superpages) -> [Option<u64>; 5] {
    let known = |windows: &Known<u64>| windows.value().copied();
    [
        Some(of.reserved_windows),
        Some(of.allocated_windows),
        known(&of.failed_windows),
        known(&of.downgraded_windows),
        Some(of.untouched_windows),
    ]
}

fn counted(host: &Host, process: &TargetProcess) -> Result<Counted, linux::Error> {
    let counted = count(host.files(), process.pid())?;
    let of = |kind| numbers(counted.of(kind).expect("all kinds are there"));
    assert_eq!(of(Kind::Mmap), numbers(&counted.total), "all that a target process maps is of one kind");
    Ok(counted)
}

/// Expected counts of a target process with this mapping only, as the five numbers.
fn is(host: &Host, process: &TargetProcess, expected: [u64; 5]) -> Outcome {
    let counted = counted(host, process)?;
    assert_eq!(numbers(&counted.total), expected.map(Some), "{counted:?}");
    Ok(())
}

fn advised(windows: u64) -> Result<(TargetProcess, Mapping), libtest_mimic::Failed> {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, windows)?;
    process.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    Ok((process, heap))
}

/// The paper's three terms, and its term for a downgrade.
fn each_window_counts_as_what_became_of_it(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 8)?;
    is(host, &process, [0; 5])?;
    // Too early for a huge page.
    // Of three pages, one at most lies by chance as in a huge page.
    [7, 300, 400].into_iter().try_for_each(|page| process.write(heap.page(512 + page), 7))?;
    process.write(heap.window(2).every(3), 7)?;
    is(host, &process, [0; 5])?;
    process.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    is(host, &process, [8, 0, 2, 0, 6])?;
    // One page is enough; reading alone gives no private page.
    process.write(heap.page(4 * 512), 7)?;
    process.write(heap.window(5), 7)?;
    process.read(heap.page(6 * 512))?;
    is(host, &process, [8, 2, 2, 0, 4])?;
    let program = RunningProgram::open(host.files(), process.pid())?;
    for window in [4, 5] {
        assert!(matches!(act::demote(&program, heap.windows()[window])?, Demoted::Yes { .. }));
    }
    is(host, &process, [8, 0, 2, 2, 4])?;
    assert!(matches!(promote(&program, heap.windows()[5], ANY_PRICE)?, act::Promoted::Yes { .. }));
    is(host, &process, [8, 1, 2, 1, 4])?;
    process.check(heap.window(5), 7)?;
    Ok(())
}

/// A window made huge without advice is counted all the same, on both sides.
fn a_collapsed_window_is_reserved_and_allocated(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 3)?;
    process.write(heap.all(), 7)?;
    let program = RunningProgram::open(host.files(), process.pid())?;
    assert!(matches!(promote(&program, heap.windows()[1], ANY_PRICE)?, act::Promoted::Yes { .. }));
    is(host, &process, [1, 1, 0, 0, 0])
}

/// The window does not lie whole in a mapping any more; its pages still lie as in a huge one.
fn a_window_that_was_torn_is_downgraded(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = advised(3)?;
    process.write(heap.all(), 7)?;
    is(host, &process, [3, 3, 0, 0, 0])?;
    process.unmap(heap.pages(100, 110))?;
    is(host, &process, [3, 2, 0, 1, 0])?;
    process.protect(heap.pages(600, 800), Protection::Read)?;
    is(host, &process, [3, 1, 0, 2, 0])?;
    // All but some pages of a window that the kernel has not taken apart yet.
    process.unmap(heap.pages(1024, 1530))?;
    is(host, &process, [3, 0, 0, 3, 0])?;
    process.check(heap.pages(110, 512), 7)?;
    Ok(())
}

/// The process's own word goes before advice.
fn a_process_that_forbids_huge_pages_has_none_reserved(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = advised(4)?;
    process.write(heap.window(0), 7)?;
    process.forbid_huge_pages()?;
    process.write(heap.window(1), 7)?;
    let found = counted(host, &process)?;
    assert!(found.forbidden);
    // A window that is huge already stays so.
    assert_eq!(numbers(&found.total), [1, 1, 0, 0, 0].map(Some));
    Ok(())
}

/// The host's setting, for programs without advice.
fn on_a_host_that_gives_to_all_everything_is_reserved(host: &Host) -> Outcome {
    let _always = Setting::set("/sys/kernel/mm/transparent_hugepage/enabled", "always")?;
    let mut process = TargetProcess::start()?;
    let before = count(host.files(), process.pid())?.total;
    let heap = process.map(Backing::Anonymous, 8)?;
    process.write(heap.window(0), 7)?;
    process.advise(heap.window(7), libc::MADV_NOHUGEPAGE)?;
    let after = count(host.files(), process.pid())?.total;
    assert_eq!(after.reserved_windows - before.reserved_windows, 7);
    assert!(after.allocated_windows > before.allocated_windows);
    Ok(())
}

/// A window of 32 pages of 64 KiB, and none of them taken for parts of a huge one.
fn smaller_sizes_are_counted_by_size(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _none = Setting::set("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "never")?;
    let mut process = TargetProcess::start()?;
    assert_eq!(count(host.files(), process.pid())?.small_sizes, None, "nobody looks where none are given");
    let _small = Setting::set("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "madvise")?;
    let heap = process.map(Backing::Anonymous, 2)?;
    process.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    process.write(heap.window(0), 7)?;
    let found = count(host.files(), process.pid())?;
    let Some(Known::Value(sizes)) = &found.small_sizes else { return Err(format!("{found:?}").into()) };
    let found_pages: Vec<_> = sizes.iter().map(|of| (of.page_bytes, of.allocated_pages, of.resident_bytes)).collect();
    assert_eq!(found_pages, [(Bytes::kib(64), 32, Bytes::mib(2))]);
    assert_eq!(numbers(&found.total)[3], Some(0), "{found:?}");
    process.check(heap.window(0), 7)?;
    Ok(())
}
