//! Tests of the harness's own target process (`target_process`): every other live test relies on it.

use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use linux::KernelFiles;
use linux::clear_refs::{self, Forget};
use rustix::io::Errno;

use super::{Outcome, no_automatic_huge_pages, present_pages};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, Protection, TargetError, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    target_process requires [];
    a_page_is_resident_once_it_was_touched_and_not_before [Root];
    memory_that_was_changed_by_another_is_noticed [Root];
    a_moved_mapping_still_checks;
    a_fork_shares_until_one_of_the_two_writes;
    refusals_and_faults_come_back_as_errors;
    the_process_id_stays_over_exec_and_the_memory_does_not [Root];
    a_dropped_target_process_leaves_no_process_behind;
    spinning_threads_touch_pages_until_they_rest [Root];
};

/// Order by order, the pages that the kernel sees are the pages that were ordered.
fn a_page_is_resident_once_it_was_touched_and_not_before(_: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    for backing in [Backing::Anonymous, Backing::SharedAnonymous, Backing::PrivateFile] {
        let heap = process.map(backing, 2)?;
        assert_eq!(heap.windows().len(), 2, "{backing:?} is not aligned");
        assert_eq!(present_pages(&process, heap)?, [0; 0], "{backing:?}");
        process.write(heap.page(3), 1)?;
        process.write(heap.window(1).every(100).first(2), 1)?;
        assert_eq!(present_pages(&process, heap)?, [3, 512, 612], "{backing:?}");
        process.check(heap.page(3), 1)?;
    }
    Ok(())
}

/// `check` reads every word: one byte changed by another process is found, and named.
fn memory_that_was_changed_by_another_is_noticed(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.all(), 5)?;
    process.check(heap.all(), 5)?;

    let place = heap.page(77).range().start().0 + 4088;
    let mut memory = std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", process.pid()))?;
    let mut byte = [0];
    memory.seek(SeekFrom::Start(place))?;
    memory.read_exact(&mut byte)?;
    memory.seek(SeekFrom::Start(place))?;
    memory.write_all(&[!byte[0]])?;

    match process.check(heap.all(), 5) {
        Err(TargetError::Differs { address, .. }) => assert_eq!(address, place),
        other => return Err(format!("expected a difference at {place:#x}, got {other:?}").into()),
    }
    Ok(())
}

/// Patterns belong to the mapping, not to the address.
fn a_moved_mapping_still_checks(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 2)?;
    process.write(heap.all().every(3), 9)?;
    let moved = process.move_away(heap.all())?;
    assert_ne!(moved, heap);
    assert_eq!(moved.windows().len(), 2);
    process.check(moved.all().every(3), 9)?;
    Ok(())
}

/// Both sides keep their own view, whichever writes first.
fn a_fork_shares_until_one_of_the_two_writes(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.pages(0, 4), 1)?;
    let first = process.fork()?;
    let second = process.fork()?;
    assert_ne!(first.pid(), second.pid());

    process.write_in_fork(first, heap.page(1), 2)?;
    process.write(heap.page(2), 3)?;

    process.check(heap.pages(0, 2), 1)?;
    process.check(heap.page(2), 3)?;
    process.check_in_fork(first, heap.page(1), 2)?;
    process.check_in_fork(first, heap.page(2), 1)?;
    process.check_in_fork(second, heap.pages(0, 4), 1)?;
    process.end_fork(first)?;
    process.check_in_fork(second, heap.pages(0, 4), 1)?;
    process.end_fork(second)?;
    process.check(heap.page(0), 1)?;
    Ok(())
}

/// A test can tell a refusal from a wrong access, and a wrong access from a hang.
fn refusals_and_faults_come_back_as_errors(_: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.unmap(heap.page(5))?;
    let refusal = process.protect(heap.all(), Protection::Read).expect_err("a hole cannot be protected");
    assert_eq!(refusal.errno(), Some(Errno::NOMEM), "{refusal}");
    process.lock(heap.pages(0, 2))?;
    process.unlock(heap.pages(0, 2))?;
    process.forbid_huge_pages()?;

    process.protect(heap.pages(8, 9), Protection::None)?;
    match process.read(heap.page(8)) {
        Err(TargetError::Ended { status, .. }) => assert!(status.contains("signal: 11"), "{status}"),
        other => return Err(format!("expected a fault, got {other:?}").into()),
    }
    let status = TargetProcess::start()?.exit(3)?;
    assert_eq!(status.code(), Some(3));
    Ok(())
}

/// Everything that was mapped is gone, and the same target process takes orders.
fn the_process_id_stays_over_exec_and_the_memory_does_not(host: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let pid = process.pid();
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.all(), 1)?;
    process.exec()?;
    assert_eq!(process.pid(), pid);
    let mapped = linux::maps::maps(host.files(), pid)?;
    assert!(!mapped.iter().any(|mapping| mapping.range.intersection(heap.range()).is_some()));
    let fresh = process.map(Backing::Anonymous, 1)?;
    process.write(fresh.page(0), 2)?;
    process.check(fresh.page(0), 2)?;
    Ok(())
}

/// Nor does a dropped target process with forks.
fn a_dropped_target_process_leaves_no_process_behind(host: &Host) -> Outcome {
    let mut process = TargetProcess::start()?;
    let pid = process.pid();
    let fork = process.fork()?.pid();
    drop(process);
    assert_eq!(host.files().read(&pid.file("stat")), Err(Errno::NOENT));
    // The fork is an orphan, so the kernel reports its end only in its own time; give it a moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_running(host, &fork.file("stat")) {
        assert!(Instant::now() < deadline, "the fork {fork} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A zombie has ended, even before it is waited for.
fn is_running(host: &Host, stat: &str) -> bool {
    host.files().read(stat).is_ok_and(|text| !text.contains(") Z "))
}

/// Threads touch the given pages, and stop when told to.
fn spinning_threads_touch_pages_until_they_rest(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.pages(0, 16), 4)?;
    process.spin(heap.pages(0, 16), 3, true)?;
    let threads = host.files().list(&process.pid().file("task"))?;
    assert_eq!(threads.len(), 4);
    process.rest()?;
    assert_eq!(host.files().list(&process.pid().file("task"))?.len(), 1);
    process.check(heap.pages(0, 16), 4)?;

    clear_refs::clear(host.files(), process.pid(), Forget::AllPages)?;
    process.forget_translations()?;
    assert_eq!(referenced_pages(host, &process, heap)?, 0);
    process.read(heap.pages(2, 7))?;
    assert_eq!(referenced_pages(host, &process, heap)?, 5);
    Ok(())
}

/// Pages of the mapping whose accessed bit is set, by smaps.
fn referenced_pages(host: &Host, process: &TargetProcess, heap: Mapping) -> Result<u64, libtest_mimic::Failed> {
    let text = host.files().read(&process.pid().file("smaps"))?;
    let start = format!("{:x}-", heap.range().start().0);
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
    let line = lines.find(|line| line.starts_with("Referenced:")).ok_or("no Referenced: line")?;
    let kib: u64 = line.split_ascii_whitespace().nth(1).ok_or("no amount")?.parse()?;
    Ok(kib / 4)
}
