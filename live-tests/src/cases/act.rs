//! Promotion, probing and demotion of single windows of a running program, each verified afterwards.

use access::Observer;
use access::residency::WindowState;
use access::walk::WalkObserver;
use hugepages::Refusal;
use hugepages::act::{self, Demoted, End, Promoted};
use hugepages::program::{Program, RunningProgram};
use linux::Error;
use linux::probe::HostFacts;
use units::{Bytes, Pages, Window};

use super::collapse::sparse_window;
use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages, walker};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    act requires [Root, RemoteCollapse, HugePageModes];
    a_dense_window_is_promoted_for_nothing;
    a_sparse_window_is_promoted_only_within_the_budget;
    demotion_returns_the_pages_that_hold_only_zeros [RemoteAdvice];
    probing_clears_the_accessed_bit_and_the_next_touch_sets_it [PageTableWalk, RemoteAdvice];
    a_program_that_ends_half_way_is_gone;
    a_program_that_execs_half_way_has_nothing_there_any_more;
    a_window_that_was_huge_already_is_left_as_it_is;
};

/// All that a window can cost.
pub(super) const ANY_PRICE: Bytes = Bytes::mib(2);

/// A target process with dense windows, and masu's handle on it.
pub(super) fn dense(
    host: &Host,
    windows: u64,
) -> Result<(TargetProcess, Mapping, RunningProgram<&linux::Rooted>), libtest_mimic::Failed> {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, windows)?;
    process.write(heap.all(), 7)?;
    let program = RunningProgram::open(host.files(), process.pid())?;
    Ok((process, heap, program))
}

/// Promotes as masu does over its rounds: passing refusals are tried again.
pub(super) fn promote(program: &dyn Program, window: Window, budget: Bytes) -> Result<Promoted, Error> {
    let mut outcome = act::promote(program, window, budget, act::NOT_KNOWN)?;
    for _ in 0..20 {
        let passing = [Refusal::TryAgain, Refusal::NoHugePage, Refusal::Busy].map(Promoted::No);
        if !passing.contains(&outcome) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        outcome = act::promote(program, window, budget, act::NOT_KNOWN)?;
    }
    Ok(outcome)
}

/// The usual state of hot windows: all pages resident already.
fn a_dense_window_is_promoted_for_nothing(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 2)?;
    let before = present_pages(&process, heap)?;
    let outcome = promote(&program, heap.windows()[0], Bytes(0))?;
    assert_eq!(outcome, Promoted::Yes { resident_before: Pages(512) });
    assert_eq!(huge_bytes(host, &process, heap)?, 2 << 20, "one of the two windows is huge");
    assert_eq!(present_pages(&process, heap)?, before);
    assert!(!program.state(heap.windows()[1])?.unwrap_or_default().huge);
    process.check(heap.all(), 7)?;
    Ok(())
}

/// Exact to the page: the check uses current residency, not that of the plan.
fn a_sparse_window_is_promoted_only_within_the_budget(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap) = sparse_window(8)?;
    let window = heap.windows()[0];
    let program = RunningProgram::open(host.files(), process.pid())?;
    let cost = Pages(512 - 64).bytes();
    let page = Bytes::kib(4);
    assert_eq!(act::promote(&program, window, cost - page, act::NOT_KNOWN)?, Promoted::No(Refusal::OverBudget));
    assert_eq!(present_pages(&process, heap)?.len(), 64, "a refused window was touched");
    assert_eq!(promote(&program, window, cost)?, Promoted::Yes { resident_before: Pages(64) });
    let state = program.state(window)?.unwrap_or_default();
    assert!(state.huge && state.resident == Pages(512), "{state:?}");
    process.check(heap.all().every(8), 7)?;

    let empty = process.map(Backing::Anonymous, 1)?;
    process.read(empty.pages(0, 100))?;
    let outcome = act::promote(&program, empty.windows()[0], ANY_PRICE, act::NOT_KNOWN)?;
    assert_eq!(outcome, Promoted::No(Refusal::NotResident), "zero pages are nobody's memory");
    Ok(())
}

/// The whole of it where the kernel gives it back, none of it where it does not; the content never changes.
fn demotion_returns_the_pages_that_hold_only_zeros(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let returns = HostFacts::gather(host.files()).split_frees_zero_pages.is_yes();
    let (mut process, heap) = sparse_window(8)?;
    let window = heap.windows()[0];
    let program = RunningProgram::open(host.files(), process.pid())?;
    assert_eq!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { resident_before: Pages(64) });
    let (kept, returned) = if returns { (Pages(64), Pages(448)) } else { (Pages(512), Pages(0)) };

    let demoted = act::demote(&program, window)?;
    assert_eq!(demoted, Demoted::Yes { returned: returned.bytes(), resident: kept });
    assert_eq!(act::demote(&program, window)?, Demoted::Already { resident: kept, end: End::SplitByOthers });

    let state = program.state(window)?.unwrap_or_default();
    assert_eq!((state.resident, state.huge), (kept, false), "{state:?}");
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    process.check(heap.all().every(8), 7)?;
    // The returned pages are available again when needed, and the window can be huge again.
    process.write(heap.page(1), 9)?;
    assert!(matches!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { .. }));
    process.check(heap.page(1), 9)?;
    process.check(heap.all().every(8), 7)?;
    Ok(())
}

/// The probe flushes the processor's memory of the translation; a plain clear does not.
fn probing_clears_the_accessed_bit_and_the_next_touch_sets_it(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 1)?;
    let window = heap.windows()[0];
    assert!(matches!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { .. }));
    let touched_now = |process: &TargetProcess| -> Result<u32, libtest_mimic::Failed> {
        let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
        observer.scan()?;
        let found = observer.map().windows.iter().find(|heat| heat.window == window).cloned();
        let heat = found.filter(|heat| heat.huge).ok_or("the window is not huge")?;
        Ok(heat.touched.count())
    };
    for _ in 0..5 {
        process.read(heap.page(100))?;
        assert_eq!(touched_now(&process)?, 512);
        assert!(act::probe(&program, window)?);
        assert_eq!(touched_now(&process)?, 0, "the probe cleared nothing");
    }
    assert!(program.state(window)?.unwrap_or_default().huge, "probing splits nothing");
    process.check(heap.all(), 7)?;
    Ok(())
}

/// The end comes between two windows: the error that callers take as the program's end.
fn a_program_that_ends_half_way_is_gone(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 3)?;
    let windows = heap.windows();
    assert!(matches!(promote(&program, windows[0], ANY_PRICE)?, Promoted::Yes { .. }));
    process.kill();
    let ends = [
        act::promote(&program, windows[1], ANY_PRICE, act::NOT_KNOWN).map(drop),
        act::demote(&program, windows[0]).map(drop),
        act::probe(&program, windows[0]).map(drop),
    ];
    for end in ends {
        let error = end.expect_err("the program has ended");
        assert!(error.is_gone(), "{error}");
    }
    Ok(())
}

/// The same process, but with nothing known of its memory: its new memory is not touched by mistake.
fn a_program_that_execs_half_way_has_nothing_there_any_more(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 2)?;
    let windows = heap.windows();
    assert!(matches!(promote(&program, windows[0], ANY_PRICE)?, Promoted::Yes { .. }));
    process.exec()?;
    let fresh = process.map(Backing::Anonymous, 1)?;
    process.write(fresh.all(), 3)?;
    for window in windows.iter().filter(|window| !fresh.windows().contains(window)) {
        assert_eq!(act::promote(&program, *window, ANY_PRICE, act::NOT_KNOWN)?, Promoted::No(Refusal::NotResident));
        assert!(!act::probe(&program, *window)?);
        assert_eq!(act::demote(&program, *window)?, Demoted::GONE);
    }
    assert_eq!(huge_bytes(host, &process, fresh)?, 0);
    assert!(program.renew()?);
    let outcome = promote(&program, fresh.windows()[0], Bytes(0))?;
    assert_eq!(outcome, Promoted::Yes { resident_before: Pages(512) }, "the new memory is served");
    process.check(fresh.all(), 3)?;
    Ok(())
}

/// The kernel's own daemon was faster, or the program asked by itself.
fn a_window_that_was_huge_already_is_left_as_it_is(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut process, heap, program) = dense(host, 1)?;
    let window = heap.windows()[0];
    assert!(matches!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { .. }));
    let before: WindowState = program.state(window)?.unwrap_or_default();
    assert_eq!(act::promote(&program, window, Bytes(0), act::NOT_KNOWN)?, Promoted::Already);
    assert_eq!(program.state(window)?, Some(before));
    process.check(heap.all(), 7)?;
    Ok(())
}
