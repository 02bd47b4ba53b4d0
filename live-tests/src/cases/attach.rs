//! The whole control loop on a running program: observe, decide, act, measure again, report.

use std::cell::Cell;
use std::time::Duration;

use hugepages::Refusal;
use hugepages::attach::Until;
use hugepages::report::Report;
use hugepages::target::{Phase, Target};
use linux::pagemap::{PageEntry, Pagemap};
use linux::probe::HostFacts;
use units::{Bytes, Pages};

use super::scripted_driver::{ScriptedDriver, generous, settings, target, target_with, use_parts};
use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, Part, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    attach requires [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    hot_dense_windows_become_huge_and_cold_and_sparse_ones_do_not;
    idle_huge_windows_are_given_back [RemoteAdvice];
    undo_splits_what_this_run_promoted [RemoteAdvice];
    two_programs_share_one_masu;
    a_dry_run_plans_the_same_and_changes_nothing;
    shared_memory_and_files_are_left_alone_however_hot;
};

const HUGE: u64 = 2 << 20;

/// Eight windows: two dense and hot, two dense and cold, two with 64 resident pages and hot, two with 200.
struct Heap {
    all: Mapping,
}

impl Heap {
    fn of(process: &mut TargetProcess) -> Result<Heap, crate::target_process::TargetError> {
        let heap = Heap { all: process.map(Backing::Anonymous, 8)? };
        for part in heap.written() {
            process.write(part, 7)?;
        }
        Ok(heap)
    }

    fn dense_hot(&self) -> Part {
        self.all.pages(0, 1024)
    }

    fn thin_hot(&self) -> [Part; 2] {
        [self.all.window(4).first(64), self.all.window(5).first(64)]
    }

    fn middling_hot(&self) -> [Part; 2] {
        [self.all.window(6).first(200), self.all.window(7).first(200)]
    }

    fn hot(&self) -> Vec<Part> {
        [&[self.dense_hot()], &self.thin_hot()[..], &self.middling_hot()].concat()
    }

    fn written(&self) -> Vec<Part> {
        [&[self.all.pages(0, 2048)], &self.thin_hot()[..], &self.middling_hot()].concat()
    }

    fn check(&self, process: &mut TargetProcess) -> Outcome {
        for part in self.written() {
            process.check(part, 7)?;
        }
        Ok(())
    }
}

/// Numbers of the mapping's huge windows.
fn huge_windows(process: &TargetProcess, heap: Mapping) -> Result<Vec<usize>, libtest_mimic::Failed> {
    let viewer = access::residency::Viewer::open(process.pid())?;
    let mut huge = Vec::new();
    for (number, window) in heap.windows().into_iter().enumerate() {
        if viewer.window(window)?.huge {
            huge.push(number);
        }
    }
    Ok(huge)
}

/// masu's main task: the paper's rule, without a byte more memory.
fn hot_dense_windows_become_huge_and_cold_and_sparse_ones_do_not(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = Heap::of(&mut process)?;
    let before = present_pages(&process, heap.all)?;
    let mut targets = vec![target(host, &process)?];
    let driver = ScriptedDriver::new(|_| use_parts(&mut process, &heap.hot()), |_| false);
    driver.attach(&mut targets, settings(Until::Settled))?;

    assert_eq!(huge_windows(&process, heap.all)?, [0, 1]);
    assert_eq!(huge_bytes(host, &process, heap.all)?, 2 * HUGE);
    assert_eq!(present_pages(&process, heap.all)?, before, "memory was added or taken");
    let report = Report::of(&targets[0], Duration::ZERO, false);
    assert!(report.settled && !report.ended);
    assert_eq!((report.windows_promoted, report.windows_demoted), (2, 0));
    assert_eq!(report.windows_refused.get(&Refusal::OverBudget), Some(&2), "200 hot pages deserve a huge page");
    assert!(report.windows_compactable >= 2, "64 hot pages do not: {report:?}");
    assert_eq!(report.extra_rss_bytes, Bytes(0));
    assert_eq!(report.what_if.len(), 4);
    heap.check(&mut process)
}

/// Promoted while it was hot, idle later: probed, split, and its untouched memory is back where the kernel does that.
fn idle_huge_windows_are_given_back(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let returns = HostFacts::gather(host.files()).split_frees_zero_pages.is_yes();
    let mut process = TargetProcess::start()?;
    let heap = Heap::of(&mut process)?;
    let mut targets = vec![target_with(host, &process, generous())?];
    // Once all qualifying windows are huge, those of 200 pages are not used any more.
    let idle = Cell::new(false);
    let hot = heap.hot();
    let still_hot = [&[heap.dense_hot()], &heap.thin_hot()[..]].concat();
    let driver = ScriptedDriver::new(
        |_| use_parts(&mut process, if idle.get() { &still_hot } else { &hot }),
        |targets: &[Target]| {
            idle.set(idle.get() || targets[0].totals.promoted == 4);
            targets[0].totals.demoted == 2
        },
    );
    driver.attach(&mut targets, settings(Until::Stopped))?;

    assert_eq!(huge_windows(&process, heap.all)?, [0, 1], "the windows in use keep their huge pages");
    let added = Pages(2 * (512 - 200)).bytes();
    // Memory that is not returned is owed.
    let (returned, owed, left) = if returns { (added, Bytes(0), 400) } else { (Bytes(0), added, 1024) };
    let report = Report::of(&targets[0], Duration::ZERO, false);
    assert_eq!((report.windows_promoted, report.windows_demoted), (4, 2));
    assert_eq!((report.returned_bytes, report.extra_rss_bytes), (returned, owed));
    let present = present_pages(&process, heap.all)?;
    let zero = zero_pages(&process, heap.all.pages(3072, 4096))?;
    assert_eq!(present.iter().filter(|page| **page >= 3072).count() - zero, left);
    heap.check(&mut process)
}

/// Pages that map the zero page: a split leaves it where it took pages away.
fn zero_pages(process: &TargetProcess, part: Part) -> Result<usize, libtest_mimic::Failed> {
    let viewer = access::residency::Viewer::open(process.pid())?;
    let mut zero = 0;
    for window in part.range().whole_windows() {
        zero += usize::try_from(viewer.window(window)?.zero.0)?;
    }
    Ok(zero)
}

/// The state afterwards is the same as without masu.
fn undo_splits_what_this_run_promoted(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = Heap::of(&mut process)?;
    let mut targets = vec![target_with(host, &process, generous())?];
    let driver = ScriptedDriver::new(|_| use_parts(&mut process, &heap.hot()), |_| false);
    driver.attach(&mut targets, settings(Until::Settled))?;
    assert_eq!(huge_windows(&process, heap.all)?, [0, 1, 6, 7]);
    assert_eq!(targets[0].extra_rss(), Pages(2 * (512 - 200)).bytes());

    targets[0].undo();

    assert_eq!(huge_bytes(host, &process, heap.all)?, 0);
    assert_eq!((targets[0].totals.promoted, targets[0].totals.demoted), (4, 4));
    let returns = HostFacts::gather(host.files()).split_frees_zero_pages.is_yes();
    let owed = if returns { Bytes(0) } else { Pages(2 * (512 - 200)).bytes() };
    assert_eq!(targets[0].extra_rss(), owed);
    heap.check(&mut process)
}

/// One loop, one schedule, both served.
fn two_programs_share_one_masu(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut processes = [TargetProcess::start()?, TargetProcess::start()?];
    let [first, second] = &mut processes;
    let heaps = [Heap::of(first)?, Heap::of(second)?];
    let mut targets = vec![target(host, first)?, target(host, second)?];
    let script = |_| {
        use_parts(first, &heaps[0].hot())?;
        use_parts(second, &heaps[1].thin_hot())
    };
    ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;

    assert!(targets.iter().all(|target| target.phase == Phase::Settled));
    assert_eq!(huge_windows(&processes[0], heaps[0].all)?, [0, 1]);
    assert_eq!(huge_windows(&processes[1], heaps[1].all)?, [0; 0], "what is hot in one is not hot in the other");
    assert_eq!((targets[0].totals.promoted, targets[1].totals.promoted), (2, 0));
    for (process, heap) in processes.iter_mut().zip(&heaps) {
        heap.check(process)?;
    }
    Ok(())
}

/// Down to the frame numbers: the pages that were there are there, and no other.
fn a_dry_run_plans_the_same_and_changes_nothing(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = Heap::of(&mut process)?;
    let entries = |process: &TargetProcess| -> Result<Vec<PageEntry>, linux::Error> {
        Pagemap::open(process.pid())?.entries(heap.all.range())
    };
    let before = entries(&process)?;
    let mut targets = vec![target_with(host, &process, generous())?];
    let driver = ScriptedDriver::new(|_| use_parts(&mut process, &heap.hot()), |_| false);
    let dry = hugepages::attach::Settings { dry_run: true, ..settings(Until::Settled) };
    driver.attach(&mut targets, dry)?;

    assert_eq!(entries(&process)?, before);
    assert_eq!(huge_bytes(host, &process, heap.all)?, 0);
    let report = Report::of(&targets[0], Duration::ZERO, true);
    assert_eq!((report.windows_promoted, report.windows_demoted), (4, 0));
    assert_eq!(report.extra_rss_bytes, Pages(2 * (512 - 200)).bytes());
    assert_eq!((targets[0].totals.promoted, targets[0].extra_rss()), (0, Bytes(0)));
    heap.check(&mut process)
}

/// A huge page there would be shared by all processes that map the file.
fn shared_memory_and_files_are_left_alone_however_hot(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let mut heaps = Vec::new();
    for backing in [Backing::SharedAnonymous, Backing::SharedFile, Backing::PrivateFile, Backing::Anonymous] {
        let heap = process.map(backing, 2)?;
        process.write(heap.all(), 7)?;
        heaps.push(heap);
    }
    let mut targets = vec![target_with(host, &process, generous())?];
    let all: Vec<Part> = heaps.iter().map(|heap| heap.all()).collect();
    ScriptedDriver::new(|_| use_parts(&mut process, &all), |_| false).attach(&mut targets, settings(Until::Settled))?;

    for (heap, huge) in heaps.iter().zip([0, 0, 0, 2]) {
        assert_eq!(huge_windows(&process, *heap)?.len(), huge, "{}", heap.range());
        process.check(heap.all(), 7)?;
    }
    assert_eq!(targets[0].totals.promoted, 2);
    let refused = targets[0].refused();
    assert!(refused.get(&Refusal::NotAnonymous).is_some_and(|windows| *windows >= 6), "{refused:?}");
    Ok(())
}
