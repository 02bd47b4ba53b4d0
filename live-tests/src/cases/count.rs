//! Superpages counted from outside: a window counts as the last call left it.

use hugepages::act::{self, Demoted};
use hugepages::count::{Counted, Kind, Superpages, count};
use hugepages::program::RunningProgram;
use linux::probe::Known;
use units::Bytes;

use super::act::{ANY_PRICE, promote};
use super::{Outcome, no_automatic_huge_pages};
use crate::knob::Knob;
use crate::live::Live;
use crate::toy::{Backing, Mapping, Protection, ToyProcess};

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

fn counted(live: &Live, toy: &ToyProcess) -> Result<Counted, linux::Error> {
    let counted = count(live.files(), toy.pid())?;
    let of = |kind| numbers(counted.of(kind).expect("all kinds are there"));
    assert_eq!(of(Kind::Mmap), numbers(&counted.total), "all that a toy maps is of one kind");
    Ok(counted)
}

/// Expected counts of a target process with this mapping only, as the five numbers.
fn is(live: &Live, toy: &ToyProcess, expected: [u64; 5]) -> Outcome {
    let counted = counted(live, toy)?;
    assert_eq!(numbers(&counted.total), expected.map(Some), "{counted:?}");
    Ok(())
}

fn advised(windows: u64) -> Result<(ToyProcess, Mapping), libtest_mimic::Failed> {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, windows)?;
    toy.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    Ok((toy, heap))
}

/// The paper's three terms, and its term for a downgrade.
pub fn each_window_counts_as_what_became_of_it(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 8)?;
    is(live, &toy, [0; 5])?;
    // Too early for a huge page.
    toy.write(heap.page(512 + 7), 7)?;
    toy.write(heap.window(2).every(3), 7)?;
    is(live, &toy, [0; 5])?;
    toy.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    is(live, &toy, [8, 0, 2, 0, 6])?;
    // One page is enough; reading alone gives no private page.
    toy.write(heap.page(4 * 512), 7)?;
    toy.write(heap.window(5), 7)?;
    toy.read(heap.page(6 * 512))?;
    is(live, &toy, [8, 2, 2, 0, 4])?;
    let program = RunningProgram::open(live.files(), toy.pid())?;
    for window in [4, 5] {
        assert!(matches!(act::demote(&program, heap.windows()[window])?, Demoted::Yes { .. }));
    }
    is(live, &toy, [8, 0, 2, 2, 4])?;
    assert!(matches!(promote(&program, heap.windows()[5], ANY_PRICE)?, act::Promoted::Yes { .. }));
    is(live, &toy, [8, 1, 2, 1, 4])?;
    toy.check(heap.window(5), 7)?;
    Ok(())
}

/// A window made huge without advice is counted all the same, on both sides.
pub fn a_collapsed_window_is_reserved_and_allocated(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 3)?;
    toy.write(heap.all(), 7)?;
    let program = RunningProgram::open(live.files(), toy.pid())?;
    assert!(matches!(promote(&program, heap.windows()[1], ANY_PRICE)?, act::Promoted::Yes { .. }));
    is(live, &toy, [1, 1, 0, 0, 0])
}

/// The window does not lie whole in a mapping any more; its pages still lie as in a huge one.
pub fn a_window_that_was_torn_is_downgraded(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap) = advised(3)?;
    toy.write(heap.all(), 7)?;
    is(live, &toy, [3, 3, 0, 0, 0])?;
    toy.unmap(heap.pages(100, 110))?;
    is(live, &toy, [3, 2, 0, 1, 0])?;
    toy.protect(heap.pages(600, 800), Protection::Read)?;
    is(live, &toy, [3, 1, 0, 2, 0])?;
    // All but some pages of a window that the kernel has not taken apart yet.
    toy.unmap(heap.pages(1024, 1530))?;
    is(live, &toy, [3, 0, 0, 3, 0])?;
    toy.check(heap.pages(110, 512), 7)?;
    Ok(())
}

/// The process's own word goes before advice.
pub fn a_process_that_forbids_huge_pages_has_none_reserved(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap) = advised(4)?;
    toy.write(heap.window(0), 7)?;
    toy.forbid_huge_pages()?;
    toy.write(heap.window(1), 7)?;
    let found = counted(live, &toy)?;
    assert!(found.forbidden);
    // A window that is huge already stays so.
    assert_eq!(numbers(&found.total), [1, 1, 0, 0, 0].map(Some));
    Ok(())
}

/// The host's setting, for programs without advice.
pub fn on_a_host_that_gives_to_all_everything_is_reserved(live: &Live) -> Outcome {
    let _always = Knob::turn("/sys/kernel/mm/transparent_hugepage/enabled", "always")?;
    let mut toy = ToyProcess::start()?;
    let before = count(live.files(), toy.pid())?.total;
    let heap = toy.map(Backing::Anonymous, 8)?;
    toy.write(heap.window(0), 7)?;
    toy.advise(heap.window(7), libc::MADV_NOHUGEPAGE)?;
    let after = count(live.files(), toy.pid())?.total;
    assert_eq!(after.reserved_windows - before.reserved_windows, 7);
    assert!(after.allocated_windows > before.allocated_windows);
    Ok(())
}

/// A window of 32 pages of 64 KiB, and none of them taken for parts of a huge one.
pub fn smaller_sizes_are_counted_by_size(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _none = Knob::turn("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "never")?;
    let mut toy = ToyProcess::start()?;
    assert_eq!(count(live.files(), toy.pid())?.small_sizes, None, "nobody looks where none are given");
    let _small = Knob::turn("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "madvise")?;
    let heap = toy.map(Backing::Anonymous, 2)?;
    toy.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    toy.write(heap.window(0), 7)?;
    let found = count(live.files(), toy.pid())?;
    let Some(Known::Value(sizes)) = &found.small_sizes else { return Err(format!("{found:?}").into()) };
    let found_pages: Vec<_> = sizes.iter().map(|of| (of.page_bytes, of.allocated_pages, of.resident_bytes)).collect();
    assert_eq!(found_pages, [(Bytes::kib(64), 32, Bytes::mib(2))]);
    assert_eq!(numbers(&found.total)[3], Some(0), "{found:?}");
    toy.check(heap.window(0), 7)?;
    Ok(())
}
