//! Contents of a window, by the scan and by frame numbers: both must say the same, and the truth.

use access::residency::{Viewer, WindowState};
use linux::process_madvise::{Advice, advise};
use std::os::fd::AsFd;
use units::{Pages, Window};

use super::collapse::collapse;
use super::{Outcome, no_automatic_huge_pages};
use crate::live::Live;
use crate::need::Need;
use crate::swap::Swap;
use crate::toy::MADV_GUARD_INSTALL;
use crate::toy::{Backing, Protection, ToyProcess};

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
fn expect(live: &Live, toy: &ToyProcess, window: Window, expected: WindowState) -> Outcome {
    let by_frames = Viewer::by_frames(toy.pid())?;
    assert_eq!(by_frames.window(window)?, expected, "by frame numbers");
    if live.has(Need::PagemapScan) {
        assert_eq!(Viewer::open(toy.pid())?.window(window)?, expected, "by the scan");
    }
    Ok(())
}

/// Written, only read, without rights, given back, never touched.
pub fn each_kind_of_page_is_counted_as_what_it_is(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    let window = heap.windows()[0];
    expect(live, &toy, window, NOTHING)?;
    toy.write(heap.pages(0, 100), 1)?;
    toy.read(heap.pages(100, 150))?;
    expect(live, &toy, window, WindowState { resident: Pages(100), zero: Pages(50), ..NOTHING })?;
    toy.write(heap.page(120), 1)?;
    toy.advise(heap.pages(0, 10), libc::MADV_DONTNEED)?;
    toy.protect(heap.pages(90, 130), Protection::None)?;
    expect(live, &toy, window, WindowState { resident: Pages(91), zero: Pages(49), ..NOTHING })?;
    toy.protect(heap.all(), Protection::ReadWrite)?;
    toy.check(heap.pages(10, 100), 1)?;
    toy.check(heap.page(120), 1)?;
    let shared = toy.map(Backing::SharedAnonymous, 1)?;
    toy.write(shared.pages(0, 9), 1)?;
    expect(live, &toy, shared.windows()[0], WindowState { resident: Pages(9), file: Pages(9), ..NOTHING })?;
    Ok(())
}

/// The writer gets a private copy, and the remaining page has one owner again only when the other process has gone.
pub fn pages_that_a_fork_shares_are_shared_until_it_ends_or_writes(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    let window = heap.windows()[0];
    toy.write(heap.pages(0, 100), 1)?;
    toy.read(heap.pages(200, 205))?;
    let fork = toy.fork()?;
    let state = WindowState { resident: Pages(100), zero: Pages(5), ..NOTHING };
    expect(live, &toy, window, WindowState { shared: Pages(100), ..state })?;
    toy.write(heap.pages(0, 10), 2)?;
    expect(live, &toy, window, WindowState { shared: Pages(90), ..state })?;
    toy.write_in_fork(fork, heap.pages(10, 30), 3)?;
    expect(live, &toy, window, WindowState { shared: Pages(70), ..state })?;
    toy.end_fork(fork)?;
    expect(live, &toy, window, state)?;
    toy.check(heap.pages(0, 10), 2)?;
    toy.check(heap.pages(10, 100), 1)?;
    Ok(())
}

/// The pages of a split huge page still lie in a row; they are small all the same.
pub fn a_huge_page_is_told_from_512_small_ones(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    let window = heap.windows()[0];
    let full = WindowState { resident: Pages(512), ..NOTHING };
    toy.write(heap.all(), 1)?;
    expect(live, &toy, window, full)?;
    collapse(&toy, heap)?;
    expect(live, &toy, window, WindowState { huge: true, ..full })?;
    let pidfd = toy.pid().open()?;
    advise(toy.pid(), pidfd.as_fd(), &[heap.page(0).range()], Advice::Cold)?;
    expect(live, &toy, window, full)?;
    toy.check(heap.all(), 1)?;
    Ok(())
}

/// A program that asked for huge pages gets the huge zero page when it reads memory that it never wrote.
pub fn the_huge_zero_page_is_nobodys_memory(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _zero = crate::knob::Knob::turn("/sys/kernel/mm/transparent_hugepage/use_zero_page", "1")?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.advise(heap.all(), libc::MADV_HUGEPAGE)?;
    toy.read(heap.page(7))?;
    expect(live, &toy, heap.windows()[0], WindowState { zero: Pages(512), huge: true, ..NOTHING })
}

/// Some kernels have guard pages and do not show them; those count nothing, and collapse refuses by itself.
pub fn guard_pages_are_counted_where_the_kernel_tells(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.pages(0, 100), 1)?;
    toy.advise(heap.pages(50, 60), MADV_GUARD_INSTALL)?;
    let state = Viewer::open(toy.pid())?.window(heap.windows()[0])?;
    assert!([Pages(0), Pages(10)].contains(&state.guards), "{state:?}");
    expect(live, &toy, heap.windows()[0], WindowState { resident: Pages(90), guards: state.guards, ..NOTHING })
}

/// Sent out by advice, brought back by a touch.
pub fn swapped_pages_are_counted(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _swap = Swap::on(16 << 20)?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.pages(0, 100), 1)?;
    let pidfd = toy.pid().open()?;
    advise(toy.pid(), pidfd.as_fd(), &[heap.pages(20, 60).range()], Advice::PageOut)?;
    let expected = WindowState { resident: Pages(60), swapped: Pages(40), ..NOTHING };
    expect(live, &toy, heap.windows()[0], expected)?;
    toy.check(heap.pages(0, 100), 1)?;
    expect(live, &toy, heap.windows()[0], WindowState { resident: Pages(100), ..NOTHING })
}

/// The open file outlives its process, and reports its end.
pub fn a_program_that_ended_is_gone(_: &Live) -> Outcome {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.page(0), 1)?;
    let viewers = [Viewer::open(toy.pid())?, Viewer::by_frames(toy.pid())?];
    let pid = toy.pid();
    toy.kill();
    for viewer in viewers {
        let error = viewer.window(heap.windows()[0]).expect_err("its memory is gone");
        assert!(error.is_gone(), "{error}");
    }
    assert!(Viewer::open(pid).expect_err("there is no such process").is_gone());
    Ok(())
}
