//! The loop on programs that change, fork, exec and end while it runs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use hugepages::Refusal;
use hugepages::attach::Until;
use hugepages::policy;
use hugepages::report::Report;
use hugepages::target::{Phase, Target};
use linux::probe::HostFacts;
use linux::vmstat::vmstat;
use units::{Bytes, Pages};

use super::scripted_driver::{ScriptedDriver, generous, settings, target, target_with, use_parts};
use super::{Outcome, huge_bytes, no_automatic_huge_pages, present_pages};
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;
use crate::target_process::{Backing, Mapping, Protection, TargetError, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    attach_changes requires [Root, PageTableWalk, RemoteCollapse, HugePageModes];
    a_program_that_execs_starts_anew;
    a_program_that_exits_ends_the_run_and_is_reported;
    undo_splits_what_the_program_tore_after_the_last_look;
    undo_returns_the_torn_parts_to_the_account_of_added_memory;
    undo_splits_what_the_program_moved;
    undo_splits_what_the_program_moved_to_where_it_cannot_be_huge;
    lazily_freed_halves_are_given_back_in_part_and_split_by_nobody;
    windows_given_back_and_filled_again_between_two_looks_were_split_by_nobody;
    the_huge_page_of_zeros_is_nobodys_huge_window;
    a_window_that_the_program_moves_is_still_masus_and_still_paid_for;
    of_two_programs_the_one_that_stays_is_served;
    windows_that_a_fork_shares_wait_until_it_ended;
    a_refusal_that_lasts_is_reported_and_not_repeated;
    memory_that_changes_all_the_time_is_never_damaged [RemoteAdvice];
};

const HUGE: u64 = 2 << 20;

fn hot_heap(process: &mut TargetProcess, windows: u64) -> Result<Mapping, TargetError> {
    let heap = process.map(Backing::Anonymous, windows)?;
    process.write(heap.all(), 7)?;
    Ok(heap)
}

/// Its new memory is found and served; the state of the old memory is forgotten.
fn a_program_that_execs_starts_anew(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let mut heap = hot_heap(&mut process, 2)?;
    let mut targets = vec![target(host, &process)?];
    let exec_now = Cell::new(false);
    let script = |_| {
        if exec_now.take() {
            process.exec()?;
            heap = hot_heap(&mut process, 3)?;
        }
        use_parts(&mut process, &[heap.all()])
    };
    let mut execed = false;
    let until = |targets: &[Target]| {
        if !execed && targets[0].totals.promoted == 2 {
            execed = true;
            exec_now.set(true);
        }
        targets[0].totals.promoted == 5 && targets[0].phase == Phase::Settled
    };
    ScriptedDriver::new(script, until).attach(&mut targets, settings(Until::Stopped))?;

    assert_eq!(targets[0].totals.execs, 1);
    assert_eq!(targets[0].promoted_now(), 3);
    assert_eq!(huge_bytes(host, &process, heap)?, 3 * HUGE);
    process.check(heap.all(), 7)?;
    Ok(())
}

/// In the middle of a round: an end like any other, and it is in the report.
fn a_program_that_exits_ends_the_run_and_is_reported(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    for exit_at in [1, 2, 4, 9] {
        let mut process = TargetProcess::start()?;
        let heap = hot_heap(&mut process, 3)?;
        let mut targets = vec![target(host, &process)?];
        let script = |waits| {
            if waits == exit_at {
                process.kill();
            }
            if waits < exit_at { use_parts(&mut process, &[heap.all()]) } else { Ok(()) }
        };
        ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Stopped))?;
        assert_eq!(targets[0].phase, Phase::Ended, "ended at wait {exit_at}");
        let report = Report::of(&targets[0], Duration::ZERO, false);
        assert!(report.ended && report.rss_after_bytes.is_none(), "{report:?}");
        assert!(report.windows_promoted <= 3);
    }
    Ok(())
}

/// The kernel keeps and charges such windows whole: `--undo` leaves none.
fn undo_splits_what_the_program_tore_after_the_last_look(host: &Host) -> Outcome {
    const WINDOWS: u64 = 3;
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = hot_heap(&mut process, WINDOWS)?;
    let mut targets = vec![target(host, &process)?];
    let script = |_| use_parts(&mut process, &[heap.all()]);
    ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;
    assert_eq!(targets[0].promoted_now(), WINDOWS);
    process.advise(heap.pages(128, 1024), libc::MADV_DONTNEED)?;
    assert!(targets[0].undo().is_empty());
    // One window was given back whole.
    assert_eq!(targets[0].torn(), (1, Pages(384).bytes()));
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    process.check(heap.pages(0, 128), 7)?;
    process.check(heap.pages(1024, 1536), 7)?;
    Ok(())
}

/// The kernel splits such windows (MADV_FREE), and their pages are in memory still: no fork split them. Pages that are in
/// use again before masu looks change nothing.
fn lazily_freed_halves_are_given_back_in_part_and_split_by_nobody(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = hot_heap(&mut process, 4)?;
    let mut targets = vec![target(host, &process)?];
    let script = |_| use_parts(&mut process, &[heap.all()]);
    ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;
    assert_eq!(targets[0].promoted_now(), 4);
    // Half of two windows, and one whole.
    process.advise(heap.pages(256, 768), libc::MADV_FREE)?;
    process.advise(heap.pages(1536, 2048), libc::MADV_FREE)?;
    let is_in_memory = present_pages(&process, heap)?.len();
    let (kept, freed) = (heap.pages(768, 1536), heap.pages(0, 256));
    let script = |_| use_parts(&mut process, &[freed, kept]);
    let mut rounds = 0;
    let until = |_: &[Target]| {
        rounds += 1;
        rounds > 4
    };
    ScriptedDriver::new(script, until).attach(&mut targets, settings(Until::Stopped))?;
    assert_eq!(is_in_memory, 2048, "a lazily freed page is in memory until the kernel needs it");
    let ends = targets[0].ends();
    assert_eq!((ends.torn, ends.split_by_others), (2, 0), "{ends:?}");
    process.check(freed, 7)?;
    process.check(kept, 7)?;
    for pause in [0, 1100, 0] {
        process.write(heap.all(), 7)?;
        // By then the kernel's sum is read anew, and the pages are in use again.
        std::thread::sleep(Duration::from_millis(pause));
        let script = |_| use_parts(&mut process, &[heap.all()]);
        ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;
        for window in 0..4 {
            process.advise(heap.pages(window * 512 + 128, window * 512 + 384), libc::MADV_FREE)?;
        }
    }
    let ends = targets[0].ends();
    assert!(ends.torn > 2 && (ends.unmapped, ends.split_by_others) == (0, 0), "{ends:?}");
    assert_eq!(ends.sum() + targets[0].promoted_now(), targets[0].totals.promoted, "{ends:?}");
    process.check(kept.first(64), 7)?;
    Ok(())
}

/// Such windows are small, with all of their pages, as after a fork; the third window is split.
fn windows_given_back_and_filled_again_between_two_looks_were_split_by_nobody(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = hot_heap(&mut process, 3)?;
    let mut targets = vec![target(host, &process)?];
    let script = |_| use_parts(&mut process, &[heap.all()]);
    ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;
    assert_eq!(targets[0].promoted_now(), 3);
    // The last two looks see no split by another program.
    for _ in 0..2 {
        targets[0].scan()?;
    }
    let splits = || vmstat(host.files()).map(|stat| stat.thp_split_pmd.unwrap_or_default());
    let before = splits()?;
    process.advise(heap.pages(0, 1024), libc::MADV_DONTNEED)?;
    process.write(heap.pages(0, 1024), 7)?;
    process.advise(heap.page(1024), libc::MADV_COLD)?;
    let all = splits()? - before;
    targets[0].scan()?;
    let ends = targets[0].ends();
    assert!(all >= 1 && ends.split_by_others == all.min(3), "{all} splits on the host: {ends:?}");
    assert_eq!((ends.unmapped + ends.split_by_others, ends.torn), (3, 0), "{ends:?}");
    assert_eq!(targets[0].extra_rss(), Bytes(0));
    process.check(heap.all(), 7)?;
    Ok(())
}

/// A program reads memory that it never wrote, and a huge window that it gave back: neither has a huge page of its own.
fn the_huge_page_of_zeros_is_nobodys_huge_window(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let _zero = Setting::set("/sys/kernel/mm/transparent_hugepage/use_zero_page", "1")?;
    let mut process = TargetProcess::start()?;
    let heap = hot_heap(&mut process, 3)?;
    let unwritten = process.map(Backing::Anonymous, 2)?;
    process.advise(unwritten.all(), libc::MADV_HUGEPAGE)?;
    process.read(unwritten.pages(0, 1024))?;
    let mut targets = vec![target(host, &process)?];
    let script = |_| use_parts(&mut process, &[heap.all()]);
    ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;
    assert_eq!((targets[0].promoted_now(), targets[0].columns().huge), (3, 3), "{:?}", targets[0].columns());
    assert_eq!(targets[0].kept(), BTreeMap::new());

    process.advise(heap.window(2), libc::MADV_DONTNEED)?;
    process.advise(heap.window(2), libc::MADV_HUGEPAGE)?;
    process.read(heap.page(1024))?;
    let script = |_| use_parts(&mut process, &[heap.pages(0, 1024)]);
    ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;
    assert_eq!((targets[0].promoted_now(), targets[0].columns().huge), (2, 2), "{:?}", targets[0].columns());
    assert_eq!((targets[0].ends().unmapped, targets[0].kept()), (1, BTreeMap::new()));
    process.check(heap.pages(0, 1024), 7)?;
    Ok(())
}

/// Three windows with 256 of 512 pages each, promoted by masu.
fn half_empty(host: &Host, process: &mut TargetProcess) -> Result<(Mapping, Vec<Target>), libtest_mimic::Failed> {
    let heap = process.map(Backing::Anonymous, 3)?;
    process.write(heap.all().every(2), 7)?;
    let mut targets = vec![target_with(host, process, generous())?];
    let script = |_| use_parts(process, &[heap.all().every(2)]);
    ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;
    assert_eq!(targets[0].promoted_now(), 3);
    assert_eq!(targets[0].extra_rss(), Pages(3 * 256).bytes());
    Ok((heap, targets))
}

fn splits_return_memory(host: &Host) -> bool {
    HostFacts::gather(host.files()).split_frees_zero_pages.is_yes()
}

/// The program gave back a part of each window; their splits leave nothing that masu added.
fn undo_returns_the_torn_parts_to_the_account_of_added_memory(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let (heap, mut targets) = half_empty(host, &mut process)?;
    for window in 0..3 {
        process.advise(heap.pages(window * 512 + 128, (window + 1) * 512), libc::MADV_DONTNEED)?;
    }
    assert!(targets[0].undo().is_empty());
    assert_eq!(targets[0].torn(), (3, Pages(3 * 384).bytes()));
    assert_eq!(targets[0].extra_rss(), Bytes(0));
    Ok(())
}

/// After the last look: the huge pages are at other addresses.
fn undo_splits_what_the_program_moved(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let (heap, mut targets) = half_empty(host, &mut process)?;
    let heap = process.move_away(heap.all())?;
    assert_eq!(huge_bytes(host, &process, heap)?, 3 * HUGE);
    assert!(targets[0].undo().is_empty());
    assert_eq!(huge_bytes(host, &process, heap)?, 0);
    assert_eq!((targets[0].totals.demoted, targets[0].ends().unmapped), (3, 0));
    if splits_return_memory(host) {
        assert_eq!((targets[0].totals.returned, targets[0].extra_rss()), (Pages(3 * 256).bytes(), Bytes(0)));
    }
    process.check(heap.all().every(2), 7)?;
    Ok(())
}

/// One page behind the start of a window: the kernel maps the huge pages page by page, and keeps them whole.
fn undo_splits_what_the_program_moved_to_where_it_cannot_be_huge(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let (heap, mut targets) = half_empty(host, &mut process)?;
    let heap = process.move_off(heap.all(), 1)?;
    targets[0].begin_round()?;
    targets[0].scan()?;
    assert_eq!(targets[0].extra_rss(), Pages(3 * 256).bytes(), "the memory is in use");
    assert_eq!((targets[0].ends().split_by_others, targets[0].ends().unmapped), (3, 0));
    assert!(targets[0].undo().is_empty());
    if splits_return_memory(host) {
        assert_eq!((targets[0].totals.returned, targets[0].extra_rss()), (Pages(3 * 256).bytes(), Bytes(0)));
    }
    process.check(heap.all().every(2), 7)?;
    Ok(())
}

/// Its memory counts against the budget at its new address, until the program gives it back.
fn a_window_that_the_program_moves_is_still_masus_and_still_paid_for(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let (mut heap, mut targets) = half_empty(host, &mut process)?;
    for _ in 0..2 {
        heap = process.move_away(heap.all())?;
        targets[0].begin_round()?;
        targets[0].scan()?;
        assert_eq!((targets[0].promoted_now(), targets[0].ends().sum()), (3, 0));
        assert_eq!(targets[0].extra_rss(), Pages(3 * 256).bytes());
        assert!(heap.windows().into_iter().all(|window| targets[0].was_served(window)));
    }
    process.unmap(heap.all())?;
    targets[0].begin_round()?;
    targets[0].scan()?;
    assert_eq!((targets[0].promoted_now(), targets[0].ends().unmapped), (0, 3));
    assert_eq!(targets[0].extra_rss(), Bytes(0));
    Ok(())
}

/// The end of one is not the end of all.
fn of_two_programs_the_one_that_stays_is_served(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (mut leaving, mut staying) = (TargetProcess::start()?, TargetProcess::start()?);
    hot_heap(&mut leaving, 1)?;
    let heap = hot_heap(&mut staying, 2)?;
    let mut targets = vec![target(host, &leaving)?, target(host, &staying)?];
    let script = |waits| {
        if waits == 2 {
            leaving.kill();
        }
        use_parts(&mut staying, &[heap.all()])
    };
    ScriptedDriver::new(script, |_| false).attach(&mut targets, settings(Until::Settled))?;
    assert_eq!((targets[0].phase, targets[1].phase), (Phase::Ended, Phase::Settled));
    assert_eq!(huge_bytes(host, &staying, heap)?, 2 * HUGE);
    staying.check(heap.all(), 7)?;
    Ok(())
}

/// A database that forks to save: nothing is promoted while the copy lives, everything after. On kernels that refuse a
/// window without a writable page, as a fork leaves them, only after a write.
fn windows_that_a_fork_shares_wait_until_it_ended(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = hot_heap(&mut process, 2)?;
    let mut fork = Some(process.fork()?);
    let mut targets = vec![target(host, &process)?];
    let (end_fork, write) = (Cell::new(false), Cell::new(false));
    let script = |_| {
        if end_fork.take()
            && let Some(fork) = fork.take()
        {
            process.check_in_fork(fork, heap.all(), 7)?;
            process.end_fork(fork)?;
        }
        if write.take() {
            process.write(heap.all().every(512), 7)?;
        }
        use_parts(&mut process, &[heap.all()])
    };
    let mut ended = false;
    let until = |targets: &[Target]| {
        let refused = |why| targets[0].refused().get(&why) == Some(&2);
        if !ended && refused(Refusal::Shared) {
            assert_eq!(targets[0].totals.promoted, 0, "a shared window was promoted");
            ended = true;
            end_fork.set(true);
        }
        write.set(refused(Refusal::Invalid));
        targets[0].totals.promoted == 2
    };
    ScriptedDriver::new(script, until).attach(&mut targets, settings(Until::Stopped))?;
    assert!(ended);
    assert_eq!(huge_bytes(host, &process, heap)?, 2 * HUGE);
    process.check(heap.all(), 7)?;
    Ok(())
}

/// The report names each by its own reason, and the program still settles.
fn a_refusal_that_lasts_is_reported_and_not_repeated(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let [plain, unwanted, cut] = [hot_heap(&mut process, 1)?, hot_heap(&mut process, 2)?, hot_heap(&mut process, 1)?];
    process.advise(unwanted.all(), libc::MADV_NOHUGEPAGE)?;
    process.protect(cut.pages(256, 512), Protection::Read)?;
    let mut targets = vec![target(host, &process)?];
    let hot = [plain.all(), unwanted.all(), cut.all()];
    ScriptedDriver::new(|_| use_parts(&mut process, &hot), |_| false).attach(&mut targets, settings(Until::Settled))?;

    assert_eq!((targets[0].phase, targets[0].totals.promoted), (Phase::Settled, 1));
    let refused = targets[0].refused();
    assert_eq!(refused.get(&Refusal::Forbidden), Some(&2), "{refused:?}");
    assert!(refused.get(&Refusal::CrossesMappings).is_some_and(|windows| *windows >= 1), "{refused:?}");
    assert_eq!(huge_bytes(host, &process, plain)?, HUGE);
    for heap in [unwanted, cut] {
        assert_eq!(huge_bytes(host, &process, heap)?, 0);
    }
    for part in hot {
        process.check(part, 7)?;
    }
    Ok(())
}

/// Promotion and demotion as fast as they go, on memory that is written, cut, moved, given back and forked meanwhile.
fn memory_that_changes_all_the_time_is_never_damaged(host: &Host) -> Outcome {
    const ROUNDS: u32 = 240;
    let _quiet = no_automatic_huge_pages()?;
    let demotes = HostFacts::gather(host.files()).cold_splits.is_yes();
    let mut process = TargetProcess::start()?;
    let mut churn = Churn { heap: process.map(Backing::Anonymous, 4)?, seed: 0 };
    churn.rewrite(&mut process)?;
    let policy = policy::Settings { idle_rounds: 1, ..generous() };
    let mut targets = vec![target_with(host, &process, policy)?];
    let played = Cell::new(0);
    let script = |waits: u32| {
        played.set(waits);
        churn.step(&mut process, waits)
    };
    let until = |targets: &[Target]| played.get() >= ROUNDS && targets[0].totals.promoted > 0;
    ScriptedDriver::new(script, until).attach(&mut targets, settings(Until::Stopped))?;
    churn.check(&mut process)?;
    assert!(targets[0].totals.promoted >= 4, "promoted {}", targets[0].totals.promoted);
    assert!(!demotes || targets[0].totals.demoted + targets[0].promoted_now() <= targets[0].totals.promoted);
    Ok(())
}

/// A heap whose every window has 200 to 512 pages in memory, which change and are looked at again and again.
struct Churn {
    heap: Mapping,
    seed: u64,
}

impl Churn {
    fn kept(&self) -> [crate::target_process::Part; 4] {
        [0, 1, 2, 3].map(|window| self.heap.window(window).first(512 - 104 * window))
    }

    fn check(&self, process: &mut TargetProcess) -> Result<(), TargetError> {
        self.kept().into_iter().try_for_each(|part| process.check(part, self.seed))
    }

    fn rewrite(&mut self, process: &mut TargetProcess) -> Result<(), TargetError> {
        self.seed += 1;
        self.kept().into_iter().try_for_each(|part| process.write(part, self.seed))
    }

    fn step(&mut self, process: &mut TargetProcess, number: u32) -> Result<(), TargetError> {
        process.forget_translations()?;
        match number % 40 {
            0 => self.heap = process.move_away(self.heap.all())?,
            5 => process.protect(self.heap.pages(10, 20), Protection::Read)?,
            6 => (),
            7 => process.protect(self.heap.all(), Protection::ReadWrite)?,
            10 => {
                let fork = process.fork()?;
                let before = self.seed;
                self.rewrite(process)?;
                process.check_in_fork(fork, self.kept()[3], before)?;
                process.end_fork(fork)?;
            }
            15 => {
                process.advise(self.heap.window(2), libc::MADV_DONTNEED)?;
                process.write(self.kept()[2], self.seed)?;
            }
            // A quarter of the time nothing is touched, so that huge windows are given back.
            20..30 => return Ok(()),
            _ => self.rewrite(process)?,
        }
        self.check(process)
    }
}

/// Keeps the sizes above honest: the smallest part must be hot enough to deserve a huge page.
const _: () = assert!(Pages(512 - 104 * 3).0 > 128);
