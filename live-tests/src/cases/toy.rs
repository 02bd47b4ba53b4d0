//! Tests of the harness's own target process (`toy`): every other live test relies on it.

use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use linux::KernelFiles;
use linux::clear_refs::{self, Forget};
use rustix::io::Errno;

use super::{Outcome, no_automatic_huge_pages, present_pages};
use crate::live::Live;
use crate::toy::{Backing, Mapping, Protection, ToyError, ToyProcess};

/// Order by order, the pages that the kernel sees are the pages that were ordered.
pub fn a_page_is_resident_once_it_was_touched_and_not_before(_: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    for backing in [Backing::Anonymous, Backing::SharedAnonymous, Backing::PrivateFile] {
        let heap = toy.map(backing, 2)?;
        assert_eq!(heap.windows().len(), 2, "{backing:?} is not aligned");
        assert_eq!(present_pages(&toy, heap)?, [0; 0], "{backing:?}");
        toy.write(heap.page(3), 1)?;
        toy.write(heap.window(1).every(100).first(2), 1)?;
        assert_eq!(present_pages(&toy, heap)?, [3, 512, 612], "{backing:?}");
        toy.check(heap.page(3), 1)?;
    }
    Ok(())
}

/// `check` reads every word: one byte changed by another process is found, and named.
pub fn memory_that_was_changed_by_another_is_noticed(_: &Live) -> Outcome {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.all(), 5)?;
    toy.check(heap.all(), 5)?;

    let place = heap.page(77).range().start().0 + 4088;
    let mut memory = std::fs::OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", toy.pid()))?;
    let mut byte = [0];
    memory.seek(SeekFrom::Start(place))?;
    memory.read_exact(&mut byte)?;
    memory.seek(SeekFrom::Start(place))?;
    memory.write_all(&[!byte[0]])?;

    match toy.check(heap.all(), 5) {
        Err(ToyError::Differs { address, .. }) => assert_eq!(address, place),
        other => return Err(format!("expected a difference at {place:#x}, got {other:?}").into()),
    }
    Ok(())
}

/// Patterns belong to the mapping, not to the address.
pub fn a_moved_mapping_still_checks(_: &Live) -> Outcome {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 2)?;
    toy.write(heap.all().every(3), 9)?;
    let moved = toy.move_away(heap.all())?;
    assert_ne!(moved, heap);
    assert_eq!(moved.windows().len(), 2);
    toy.check(moved.all().every(3), 9)?;
    Ok(())
}

/// Both sides keep their own view, whichever writes first.
pub fn a_fork_shares_until_one_of_the_two_writes(_: &Live) -> Outcome {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.pages(0, 4), 1)?;
    let first = toy.fork()?;
    let second = toy.fork()?;
    assert_ne!(first.pid(), second.pid());

    toy.write_in_fork(first, heap.page(1), 2)?;
    toy.write(heap.page(2), 3)?;

    toy.check(heap.pages(0, 2), 1)?;
    toy.check(heap.page(2), 3)?;
    toy.check_in_fork(first, heap.page(1), 2)?;
    toy.check_in_fork(first, heap.page(2), 1)?;
    toy.check_in_fork(second, heap.pages(0, 4), 1)?;
    toy.end_fork(first)?;
    toy.check_in_fork(second, heap.pages(0, 4), 1)?;
    toy.end_fork(second)?;
    toy.check(heap.page(0), 1)?;
    Ok(())
}

/// A test can tell a refusal from a wrong access, and a wrong access from a hang.
pub fn refusals_and_faults_come_back_as_errors(_: &Live) -> Outcome {
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.unmap(heap.page(5))?;
    let refusal = toy.protect(heap.all(), Protection::Read).expect_err("a hole cannot be protected");
    assert_eq!(refusal.errno(), Some(Errno::NOMEM), "{refusal}");
    toy.lock(heap.pages(0, 2))?;
    toy.unlock(heap.pages(0, 2))?;
    toy.forbid_huge_pages()?;

    toy.protect(heap.pages(8, 9), Protection::None)?;
    match toy.read(heap.page(8)) {
        Err(ToyError::Ended { status, .. }) => assert!(status.contains("signal: 11"), "{status}"),
        other => return Err(format!("expected a fault, got {other:?}").into()),
    }
    let status = ToyProcess::start()?.exit(3)?;
    assert_eq!(status.code(), Some(3));
    Ok(())
}

/// Everything that was mapped is gone, and the same target process takes orders.
pub fn the_process_id_stays_over_exec_and_the_memory_does_not(live: &Live) -> Outcome {
    let mut toy = ToyProcess::start()?;
    let pid = toy.pid();
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.all(), 1)?;
    toy.exec()?;
    assert_eq!(toy.pid(), pid);
    let mapped = linux::maps::maps(live.files(), pid)?;
    assert!(!mapped.iter().any(|mapping| mapping.range.intersection(heap.range()).is_some()));
    let fresh = toy.map(Backing::Anonymous, 1)?;
    toy.write(fresh.page(0), 2)?;
    toy.check(fresh.page(0), 2)?;
    Ok(())
}

/// Nor does a dropped target process with forks.
pub fn a_dropped_toy_leaves_no_process_behind(live: &Live) -> Outcome {
    let mut toy = ToyProcess::start()?;
    let pid = toy.pid();
    let fork = toy.fork()?.pid();
    drop(toy);
    assert_eq!(live.files().read(&pid.file("stat")), Err(Errno::NOENT));
    // The fork is an orphan, so the kernel reports its end only in its own time; give it a moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_running(live, &fork.file("stat")) {
        assert!(Instant::now() < deadline, "the fork {fork} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A zombie has ended, even before it is waited for.
fn is_running(live: &Live, stat: &str) -> bool {
    live.files().read(stat).is_ok_and(|text| !text.contains(") Z "))
}

/// Threads touch the given pages, and stop when told to.
pub fn spinning_threads_touch_pages_until_they_rest(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.pages(0, 16), 4)?;
    toy.spin(heap.pages(0, 16), 3, true)?;
    let threads = live.files().list(&toy.pid().file("task"))?;
    assert_eq!(threads.len(), 4);
    toy.rest()?;
    assert_eq!(live.files().list(&toy.pid().file("task"))?.len(), 1);
    toy.check(heap.pages(0, 16), 4)?;

    clear_refs::clear(live.files(), toy.pid(), Forget::AllPages)?;
    toy.forget_translations()?;
    assert_eq!(referenced_pages(live, &toy, heap)?, 0);
    toy.read(heap.pages(2, 7))?;
    assert_eq!(referenced_pages(live, &toy, heap)?, 5);
    Ok(())
}

/// Pages of the mapping whose accessed bit is set, by smaps.
fn referenced_pages(live: &Live, toy: &ToyProcess, heap: Mapping) -> Result<u64, libtest_mimic::Failed> {
    let text = live.files().read(&toy.pid().file("smaps"))?;
    let start = format!("{:x}-", heap.range().start().0);
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
    let line = lines.find(|line| line.starts_with("Referenced:")).ok_or("no Referenced: line")?;
    let kib: u64 = line.split_ascii_whitespace().nth(1).ok_or("no amount")?.parse()?;
    Ok(kib / 4)
}
