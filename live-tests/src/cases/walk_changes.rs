//! The page-table walk on a program that changes during the walk: no error, and no stale result is kept.

use std::os::fd::AsFd;

use access::residency::Viewer;
use access::walk::WalkObserver;
use access::{AccessMap, Observer, WindowHeat};
use linux::Pid;
use linux::process_madvise::{Advice, advise};
use units::Window;

use super::collapse::collapse;
use super::{Outcome, no_automatic_huge_pages, present_pages, seen_present, touched, walker};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, TargetError, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    walk_changes requires [Root, PageTableWalk];
    a_window_that_was_promoted_or_split_between_two_looks_starts_anew [RemoteCollapse, RemoteAdvice, HugePageModes];
    windows_come_and_go_with_their_mappings [HugePageModes];
    mapping_moving_and_unmapping_during_looks_does_no_harm [HugePageModes];
    after_exec_the_map_is_void [HugePageModes];
    a_program_that_ended_is_gone_and_so_is_one_without_memory;
};

fn heat_of(map: &AccessMap, window: Window) -> Option<&WindowHeat> {
    map.windows.iter().find(|heat| heat.window == window)
}

/// Findings on small pages say nothing about the huge page that replaced them, and the other way round.
fn a_window_that_was_promoted_or_split_between_two_looks_starts_anew(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    let window = heap.windows()[0];
    process.write(heap.all().every(8), 1)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    process.forget_translations()?;
    process.read(heap.all().every(16))?;
    observer.scan()?;
    let heat = heat_of(observer.map(), window).ok_or("not seen")?;
    assert!(!heat.huge);
    assert_eq!((heat.present.count(), heat.touched.count()), (64, 32));

    collapse(&process, heap)?;
    observer.scan()?;
    let heat = heat_of(observer.map(), window).ok_or("not seen when huge")?;
    assert!(heat.huge);
    // The kernel makes a huge page look touched or not; the first scan's class must be gone.
    assert!(!heat.class_of.contains(&1), "the first look is not forgotten");
    assert!([0, 512].contains(&heat.touched.count()), "a huge window has one bit");

    let pidfd = process.pid().open()?;
    advise(process.pid(), pidfd.as_fd(), &[heap.page(0).range()], Advice::Cold)?;
    observer.scan()?;
    let heat = heat_of(observer.map(), window).ok_or("not seen when split")?;
    assert!(!heat.huge);
    assert!(heat.class_of.iter().all(|class| [0, 3].contains(class)), "earlier looks are not forgotten");
    // In place of pages removed by the split it left the zero page, which is not the program's memory.
    let resident = Viewer::open(process.pid())?.window(window)?.resident;
    let seen = seen_present(observer.map(), heap);
    assert_eq!(seen.len() as u64, resident.0);
    assert!((0..64).all(|n| seen.contains(&(n * 8))), "a written page is missing: {seen:?}");
    process.check(heap.all().every(8), 1)?;
    Ok(())
}

/// Map, move, unmap in part, unmap: each scan shows the current mappings.
fn windows_come_and_go_with_their_mappings(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let first = process.map(Backing::Anonymous, 2)?;
    process.write(first.all(), 1)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    let mut expect = |expected: &[(Mapping, usize)]| -> Outcome {
        observer.scan()?;
        for (mapping, pages) in expected {
            assert_eq!(seen_present(observer.map(), *mapping).len(), *pages, "{}", mapping.range());
        }
        Ok(())
    };
    expect(&[(first, 1024)])?;
    let second = process.map(Backing::Anonymous, 1)?;
    process.write(second.pages(10, 20), 2)?;
    expect(&[(first, 1024), (second, 10)])?;
    process.unmap(first.pages(500, 600))?;
    expect(&[(first, 924), (second, 10)])?;
    process.unmap(first.pages(600, 1024))?;
    expect(&[(first, 500), (second, 10)])?;
    let moved = process.move_away(second.all())?;
    expect(&[(first, 500), (second, 0), (moved, 10)])?;
    process.check(moved.pages(10, 20), 2)?;
    process.unmap(first.pages(0, 500))?;
    process.unmap(moved.all())?;
    expect(&[(first, 0), (second, 0), (moved, 0)])?;
    Ok(())
}

/// Page tables come and go while they are read without a lock. Garbage may be seen for a moment; errors may not, and
/// unchanged memory is seen as it is.
fn mapping_moving_and_unmapping_during_looks_does_no_harm(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let steady = process.map(Backing::Anonymous, 1)?;
    process.write(steady.all().every(3), 1)?;
    let expected = present_pages(&process, steady)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    let churned = std::thread::scope(|scope| -> Result<Vec<Mapping>, libtest_mimic::Failed> {
        let churning =
            scope.spawn(|| (0..120).map(|seed| churn(&mut process, seed)).collect::<Result<Vec<_>, TargetError>>());
        let mut looks = 0;
        while !churning.is_finished() || looks < 20 {
            if looks % 8 == 0 {
                observer.begin()?;
            }
            observer.scan()?;
            assert!(!observer.address_space_changed());
            assert_eq!(seen_present(observer.map(), steady), expected);
            looks += 1;
        }
        let churned = churning.join().map_err(|_| "the churning thread panicked")??;
        Ok(churned.into_iter().flatten().collect())
    })?;
    observer.scan()?;
    for gone in churned {
        assert_eq!(seen_present(observer.map(), gone), [0; 0], "{} is not mapped any more", gone.range());
    }
    process.check(steady.all().every(3), 1)?;
    Ok(())
}

/// One life of a mapping, from its first address to its last.
fn churn(process: &mut TargetProcess, seed: u64) -> Result<[Mapping; 2], TargetError> {
    let first = process.map(Backing::Anonymous, 2)?;
    process.write(first.all().every(1 + seed % 64), seed)?;
    let moved = process.move_away(first.all())?;
    process.check(moved.all().every(1 + seed % 64), seed)?;
    process.unmap(moved.pages(seed, 1024 - seed))?;
    process.unmap(moved.all())?;
    Ok([first, moved])
}

/// Findings on the old program say nothing about the one that replaced it.
fn after_exec_the_map_is_void(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.all(), 1)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    observer.scan()?;
    assert!(!observer.address_space_changed());

    process.exec()?;
    observer.scan()?;
    assert!(observer.address_space_changed());

    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.all(), 2)?;
    observer.begin()?;
    process.forget_translations()?;
    process.read(heap.pages(7, 9))?;
    observer.scan()?;
    assert!(!observer.address_space_changed(), "a new observation is of the new address space");
    assert_eq!(touched(observer.map(), heap), [7, 8]);
    Ok(())
}

/// Ended, or without memory from the start: the same answer, which callers take as the end of the program.
fn a_program_that_ended_is_gone_and_so_is_one_without_memory(host: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let pid = process.pid();
    let mut observer = WalkObserver::new(walker()?, host.files(), pid)?;
    observer.begin()?;
    observer.scan()?;
    process.kill();
    let look = observer.scan().expect_err("looking at a program that ended");
    assert!(look.is_gone(), "{look}");
    let begin = observer.begin().expect_err("clearing a program that ended");
    assert!(begin.is_gone(), "{begin}");
    // Process 2 starts all threads of the kernel, where it can be seen.
    for nobody in [pid, Pid(2)] {
        let error = WalkObserver::new(walker()?, host.files(), nobody).expect_err("a process without memory");
        assert!(error.is_gone(), "{error}");
    }
    Ok(())
}
