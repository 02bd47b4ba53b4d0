//! Contents of a window, by the scan and by frame numbers: both must say the same, and the truth.

use access::residency::{Viewer, WindowState};
use hugepages::count;
use linux::process_madvise::{Advice, advise};
use std::os::fd::AsFd;
use units::{Pages, Window};

use super::collapse::collapse;
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};
use crate::requirement::Requirement;
use crate::swap::Swap;
use crate::target_process::MADV_GUARD_INSTALL;
use crate::target_process::{Backing, Protection, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    residency requires [Root, PageFrames];
    each_kind_of_page_is_counted_as_what_it_is [HugePageModes];
    pages_that_a_fork_shares_are_shared_until_it_ends_or_writes [HugePageModes];
    a_huge_page_is_told_from_512_small_ones [RemoteCollapse, RemoteAdvice, HugePageModes];
    the_huge_zero_page_is_nobodys_memory [HugePageModes];
    guard_pages_are_counted_where_the_kernel_tells [GuardPages, HugePageModes];
    a_part_of_a_window_has_its_own_pages [RemoteCollapse, HugePageModes];
    swapped_pages_are_counted [Swap, RemoteAdvice, HugePageModes];
    a_program_that_ended_is_gone;
};

/// A window without resident memory.
const NOTHING: WindowState = WindowState {
    resident: Pages(0),
    zero: Pages(0),
    swapped: Pages(0),
    shared: Pages(0),
    guards: Pages(0),
    file: Pages(0),
    huge: false,
};

/// Asks in every way that this kernel has.
fn expect(host: &Host, process: &TargetProcess, window: Window, expected: WindowState) -> Outcome {
    let by_frames = Viewer::by_frames(process.pid())?;
    assert_eq!(by_frames.window(window)?, expected, "by frame numbers");
    if host.has(Requirement::PagemapScan) {
        assert_eq!(Viewer::open(process.pid())?.window(window)?, expected, "by the scan");
    }
    Ok(())
}

/// Written, only read, without rights, given back, never touched.
fn each_kind_of_page_is_counted_as_what_it_is(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    let window = heap.windows()[0];
    expect(host, &process, window, NOTHING)?;
    process.write(heap.pages(0, 100), 1)?;
    process.read(heap.pages(100, 150))?;
    expect(host, &process, window, WindowState { resident: Pages(100), zero: Pages(50), ..NOTHING })?;
    process.write(heap.page(120), 1)?;
    process.advise(heap.pages(0, 10), libc::MADV_DONTNEED)?;
    process.protect(heap.pages(90, 130), Protection::None)?;
    expect(host, &process, window, WindowState { resident: Pages(91), zero: Pages(49), ..NOTHING })?;
    process.protect(heap.all(), Protection::ReadWrite)?;
    process.check(heap.pages(10, 100), 1)?;
    process.check(heap.page(120), 1)?;
    let shared = process.map(Backing::SharedAnonymous, 1)?;
    process.write(shared.pages(0, 9), 1)?;
    expect(host, &process, shared.windows()[0], WindowState { resident: Pages(9), file: Pages(9), ..NOTHING })?;
    Ok(())
}

/// The writer gets a private copy, and the remaining page has one owner again only when the other process has gone.
fn pages_that_a_fork_shares_are_shared_until_it_ends_or_writes(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    let window = heap.windows()[0];
    process.write(heap.pages(0, 100), 1)?;
    process.read(heap.pages(200, 205))?;
    let fork = process.fork()?;
    let state = WindowState { resident: Pages(100), zero: Pages(5), ..NOTHING };
    expect(host, &process, window, WindowState { shared: Pages(100), ..state })?;
    process.write(heap.pages(0, 10), 2)?;
    expect(host, &process, window, WindowState { shared: Pages(90), ..state })?;
    process.write_in_fork(fork, heap.pages(10, 30), 3)?;
    expect(host, &process, window, WindowState { shared: Pages(70), ..state })?;
    process.end_fork(fork)?;
    expect(host, &process, window, state)?;
    process.check(heap.pages(0, 10), 2)?;
    process.check(heap.pages(10, 100), 1)?;
    Ok(())
}

/// The pages of a split huge page still lie in a row; they are small all the same.
fn a_huge_page_is_told_from_512_small_ones(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    let window = heap.windows()[0];
    let full = WindowState { resident: Pages(512), ..NOTHING };
    process.write(heap.all(), 1)?;
    expect(host, &process, window, full)?;
    collapse(&process, heap)?;
    expect(host, &process, window, WindowState { huge: true, ..full })?;
    let pidfd = process.pid().open()?;
    advise(process.pid(), pidfd.as_fd(), &[heap.page(0).range()], Advice::Cold)?;
    expect(host, &process, window, full)?;
    process.check(heap.all(), 1)?;
    Ok(())
}

/// A program that asked for huge pages gets the huge zero page when it reads memory that it never wrote.
fn the_huge_zero_page_is_nobodys_memory(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _zero = crate::setting::Setting::set("/sys/kernel/mm/transparent_hugepage/use_zero_page", "1")?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    process.read(heap.page(7))?;
    expect(host, &process, heap.windows()[0], WindowState { zero: Pages(512), ..NOTHING })
}

/// Some kernels have guard pages and do not show them; those count nothing, and collapse refuses by itself.
fn guard_pages_are_counted_where_the_kernel_tells(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.pages(0, 100), 1)?;
    process.advise(heap.pages(50, 60), MADV_GUARD_INSTALL)?;
    let state = Viewer::open(process.pid())?.window(heap.windows()[0])?;
    assert!([Pages(0), Pages(10)].contains(&state.guards), "{state:?}");
    expect(host, &process, heap.windows()[0], WindowState { resident: Pages(90), guards: state.guards, ..NOTHING })
}

/// Of two mappings in a window each has its part, and neither is huge or full.
fn a_part_of_a_window_has_its_own_pages(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let [huge, heap] = [process.map(Backing::Anonymous, 1)?, process.map(Backing::Anonymous, 1)?];
    process.write(huge.all(), 1)?;
    process.write(heap.all(), 1)?;
    collapse(&process, huge)?;
    process.protect(heap.pages(0, 300), Protection::Read)?;
    let mut viewers = vec![Viewer::by_frames(process.pid())?];
    if host.has(Requirement::PagemapScan) {
        viewers.push(Viewer::open(process.pid())?);
    }
    for viewer in viewers {
        let part = |from, to| viewer.window_in(heap.windows()[0], heap.pages(from, to).range());
        assert_eq!(part(0, 300)?, WindowState { resident: Pages(300), ..NOTHING });
        assert_eq!(part(300, 512)?, WindowState { resident: Pages(212), ..NOTHING });
        assert_eq!(viewer.window_in(heap.windows()[0], huge.all().range())?, NOTHING, "another window");
        let whole = WindowState { resident: Pages(512), huge: true, ..NOTHING };
        assert_eq!(viewer.window_in(huge.windows()[0], huge.all().range())?, whole);
    }
    assert_eq!(count::full_windows(host.files(), process.pid())?, [], "it is full in no mapping");
    Ok(())
}

/// Sent out by advice, brought back by a touch.
fn swapped_pages_are_counted(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _swap = Swap::on(16 << 20)?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.pages(0, 100), 1)?;
    let pidfd = process.pid().open()?;
    advise(process.pid(), pidfd.as_fd(), &[heap.pages(20, 60).range()], Advice::PageOut)?;
    let expected = WindowState { resident: Pages(60), swapped: Pages(40), ..NOTHING };
    expect(host, &process, heap.windows()[0], expected)?;
    process.check(heap.pages(0, 100), 1)?;
    expect(host, &process, heap.windows()[0], WindowState { resident: Pages(100), ..NOTHING })
}

/// The open file outlives its process, and reports its end.
fn a_program_that_ended_is_gone(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.page(0), 1)?;
    let viewers = [Viewer::open(process.pid())?, Viewer::by_frames(process.pid())?];
    let pid = process.pid();
    process.kill();
    for viewer in viewers {
        let error = viewer.window(heap.windows()[0]).expect_err("its memory is gone");
        assert!(error.is_gone(), "{error}");
    }
    assert!(Viewer::open(pid).expect_err("there is no such process").is_gone());
    Ok(())
}
