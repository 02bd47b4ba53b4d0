//! Promotion, probing and demotion of single windows of a running program, each verified afterwards.

use access::Source;
use access::residency::WindowState;
use access::walk::WalkSource;
use hugepages::Refusal;
use hugepages::act::{self, Demoted, Promoted};
use hugepages::program::{Program, RunningProgram};
use linux::Error;
use linux::probe::HostFacts;
use units::{Bytes, Pages, Window};

use super::collapse::sparse_window;
use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages, walker};
use crate::live::Live;
use crate::toy::{Backing, Mapping, ToyProcess};

/// All that a window can cost.
pub(super) const ANY_PRICE: Bytes = Bytes::mib(2);

/// A target process with dense windows, and masu's handle on it.
pub(super) fn dense(
    live: &Live,
    windows: u64,
) -> Result<(ToyProcess, Mapping, RunningProgram<&linux::Rooted>), libtest_mimic::Failed> {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, windows)?;
    toy.write(heap.all(), 7)?;
    let program = RunningProgram::open(live.files(), toy.pid())?;
    Ok((toy, heap, program))
}

/// Promotes as masu does over its rounds: passing refusals are tried again.
pub(super) fn promote(program: &dyn Program, window: Window, budget: Bytes) -> Result<Promoted, Error> {
    let mut outcome = act::promote(program, window, budget)?;
    for _ in 0..20 {
        let passing = [Refusal::TryAgain, Refusal::NoHugePage, Refusal::Busy].map(Promoted::No);
        if !passing.contains(&outcome) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        outcome = act::promote(program, window, budget)?;
    }
    Ok(outcome)
}

/// The usual state of hot windows: all pages resident already.
pub fn a_dense_window_is_promoted_for_nothing(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap, program) = dense(live, 2)?;
    let before = present_pages(&toy, heap)?;
    let outcome = promote(&program, heap.windows()[0], Bytes(0))?;
    assert_eq!(outcome, Promoted::Yes { resident_before: Pages(512) });
    assert_eq!(huge_bytes(live, &toy, heap)?, 2 << 20, "one of the two windows is huge");
    assert_eq!(present_pages(&toy, heap)?, before);
    assert!(!program.state(heap.windows()[1])?.unwrap_or_default().huge);
    toy.check(heap.all(), 7)?;
    Ok(())
}

/// Exact to the page: the check uses current residency, not that of the plan.
pub fn a_sparse_window_is_promoted_only_within_the_budget(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap) = sparse_window(8)?;
    let window = heap.windows()[0];
    let program = RunningProgram::open(live.files(), toy.pid())?;
    let cost = Pages(512 - 64).bytes();
    let page = Bytes::kib(4);
    assert_eq!(act::promote(&program, window, cost - page)?, Promoted::No(Refusal::OverBudget));
    assert_eq!(present_pages(&toy, heap)?.len(), 64, "a refused window was touched");
    assert_eq!(promote(&program, window, cost)?, Promoted::Yes { resident_before: Pages(64) });
    let state = program.state(window)?.unwrap_or_default();
    assert!(state.huge && state.resident == Pages(512), "{state:?}");
    toy.check(heap.all().every(8), 7)?;

    let empty = toy.map(Backing::Anonymous, 1)?;
    toy.read(empty.pages(0, 100))?;
    let outcome = act::promote(&program, empty.windows()[0], ANY_PRICE)?;
    assert_eq!(outcome, Promoted::No(Refusal::NotResident), "zero pages are nobody's memory");
    Ok(())
}

/// The whole of it where the kernel gives it back, none of it where it does not; the content never changes.
pub fn demotion_returns_the_pages_that_hold_only_zeros(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let returns = HostFacts::gather(live.files()).split_frees_zero_pages.is_yes();
    let (mut toy, heap) = sparse_window(8)?;
    let window = heap.windows()[0];
    let program = RunningProgram::open(live.files(), toy.pid())?;
    assert_eq!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { resident_before: Pages(64) });
    let (kept, returned) = if returns { (Pages(64), Pages(448)) } else { (Pages(512), Pages(0)) };

    let demoted = act::demote(&program, window)?;
    assert_eq!(demoted, Demoted::Yes { returned: returned.bytes(), resident: kept });
    assert_eq!(act::demote(&program, window)?, Demoted::Already { resident: kept });

    let state = program.state(window)?.unwrap_or_default();
    assert_eq!((state.resident, state.huge), (kept, false), "{state:?}");
    assert_eq!(huge_bytes(live, &toy, heap)?, 0);
    toy.check(heap.all().every(8), 7)?;
    // The returned pages are available again when needed, and the window can be huge again.
    toy.write(heap.page(1), 9)?;
    assert!(matches!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { .. }));
    toy.check(heap.page(1), 9)?;
    toy.check(heap.all().every(8), 7)?;
    Ok(())
}

/// The probe flushes the processor's memory of the translation; a plain clear does not.
pub fn probing_clears_the_accessed_bit_and_the_next_touch_sets_it(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap, program) = dense(live, 1)?;
    let window = heap.windows()[0];
    assert!(matches!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { .. }));
    let touched_now = |toy: &ToyProcess| -> Result<u32, libtest_mimic::Failed> {
        let mut source = WalkSource::new(walker()?, live.files(), toy.pid())?;
        source.look()?;
        let found = source.map().windows.iter().find(|heat| heat.window == window).cloned();
        let heat = found.filter(|heat| heat.huge).ok_or("the window is not huge")?;
        Ok(heat.touched.count())
    };
    for _ in 0..5 {
        toy.read(heap.page(100))?;
        assert_eq!(touched_now(&toy)?, 512);
        assert!(act::probe(&program, window)?);
        assert_eq!(touched_now(&toy)?, 0, "the probe cleared nothing");
    }
    assert!(program.state(window)?.unwrap_or_default().huge, "probing splits nothing");
    toy.check(heap.all(), 7)?;
    Ok(())
}

/// The end comes between two windows: the error that callers take as the program's end.
pub fn a_program_that_ends_half_way_is_gone(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap, program) = dense(live, 3)?;
    let windows = heap.windows();
    assert!(matches!(promote(&program, windows[0], ANY_PRICE)?, Promoted::Yes { .. }));
    toy.kill();
    let ends = [
        act::promote(&program, windows[1], ANY_PRICE).map(drop),
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
pub fn a_program_that_execs_half_way_has_nothing_there_any_more(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap, program) = dense(live, 2)?;
    let windows = heap.windows();
    assert!(matches!(promote(&program, windows[0], ANY_PRICE)?, Promoted::Yes { .. }));
    toy.exec()?;
    let fresh = toy.map(Backing::Anonymous, 1)?;
    toy.write(fresh.all(), 3)?;
    for window in windows.iter().filter(|window| !fresh.windows().contains(window)) {
        assert_eq!(act::promote(&program, *window, ANY_PRICE)?, Promoted::No(Refusal::NotResident));
        assert!(!act::probe(&program, *window)?);
        assert_eq!(act::demote(&program, *window)?, Demoted::Already { resident: Pages(0) });
    }
    assert_eq!(huge_bytes(live, &toy, fresh)?, 0);
    assert!(program.renew()?);
    let outcome = promote(&program, fresh.windows()[0], Bytes(0))?;
    assert_eq!(outcome, Promoted::Yes { resident_before: Pages(512) }, "the new memory is served");
    toy.check(fresh.all(), 3)?;
    Ok(())
}

/// The kernel's own daemon was faster, or the program asked by itself.
pub fn a_window_that_was_huge_already_is_left_as_it_is(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut toy, heap, program) = dense(live, 1)?;
    let window = heap.windows()[0];
    assert!(matches!(promote(&program, window, ANY_PRICE)?, Promoted::Yes { .. }));
    let before: WindowState = program.state(window)?.unwrap_or_default();
    assert_eq!(act::promote(&program, window, Bytes(0))?, Promoted::Already);
    assert_eq!(program.state(window)?, Some(before));
    toy.check(heap.all(), 7)?;
    Ok(())
}
