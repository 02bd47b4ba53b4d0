//! Pages of our own that KSM merges with a program's, and the effect of flushing and touching them on that program's
//! loads.

use std::fs;
use std::time::Duration;

use linux::Pid;
use linux::ksm::Run;
use linux::merged_memory::{LINES_PER_PAGE, MergedCopy, PageOf};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use units::{Address, Pages};

use super::llc_shared::{Merging, merged, offering, until, until_merged};
use super::{Outcome, no_automatic_huge_pages};
use crate::host::{Host, LiveTest, tests};
use crate::setting::Setting;
use crate::target_process::{Mapping, Part, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    llc_refill requires [Root, PageFrames, Ksm];
    our_copies_take_no_memory_and_flushing_and_touching_them_parts_nothing;
    without_ksm_a_copy_stays_a_copy;
    lines_that_were_flushed_and_touched_are_near_for_a_program_on_another_processor [RealProcessor, SharedCache];
};

fn sources(pid: Pid, part: Part) -> Vec<PageOf> {
    part.pages().map(|address| PageOf { pid, address: Address(address) }).collect()
}

/// Two target processes with the same `pages` pages, and our copy of them, all in the same frames.
fn merged_copy(seed: u64, pages: u64) -> Result<([(TargetProcess, Mapping); 2], MergedCopy), libtest_mimic::Failed> {
    let _merging = Merging::start()?;
    let processes = [offering(seed, pages)?, offering(seed, pages)?];
    until_merged(&processes.each_ref().map(|(process, heap)| (process.pid(), heap.pages(0, pages))))?;
    let copy = MergedCopy::of(&sources(processes[0].0.pid(), processes[0].1.pages(0, pages)))?;
    assert_eq!(copy.pages(), Pages(pages));
    until("our copy merged", || Ok(copy.merged_pages()? == Pages(pages)))?;
    Ok((processes, copy))
}

/// The host's memory in KSM frames, as the kernel counts it.
fn pages_shared() -> Result<u64, libtest_mimic::Failed> {
    Ok(linux::ksm::host(&linux::Rooted::host())?.pages_shared.0)
}

/// Our own copies take no frame once they are merged, and nothing that is done through them parts a page.
fn our_copies_take_no_memory_and_flushing_and_touching_them_parts_nothing(_: &Host) -> Outcome {
    const PAGES: u64 = 200;
    let _quiet = no_automatic_huge_pages()?;
    let (mut processes, copy) = merged_copy(20, PAGES)?;
    let shared = pages_shared()?;
    let frames = copy.frames()?;
    for _ in 0..3 {
        copy.flush(0..copy.sources().len())?;
        copy.touch(0..copy.sources().len());
        copy.time_load(7, 3)?;
    }
    assert_eq!(copy.merged_pages()?, Pages(PAGES));
    assert_eq!(copy.frames()?, frames);
    for (process, heap) in &processes {
        assert_eq!(merged(process.pid(), heap.pages(0, PAGES))?, usize::try_from(PAGES)?);
    }
    assert_eq!(pages_shared()?, shared);
    // A page that a program writes is private again: our page stays merged with the other's, and not with the first's.
    let [(a, in_a), (b, in_b)] = &mut processes;
    a.write(in_a.pages(10, 15), 21)?;
    assert_eq!(copy.merged_pages()?, Pages(PAGES - 5));
    let expected: Vec<bool> = (0..PAGES).map(|page| !(10..15).contains(&page)).collect();
    assert_eq!(copy.merged()?, expected);
    assert_eq!(merged(b.pid(), in_b.pages(0, PAGES))?, usize::try_from(PAGES)?);
    a.kill();
    assert_eq!(copy.merged_pages()?, Pages(0), "of whoever has ended nothing is merged");
    b.check(in_b.pages(0, PAGES), 20)?;
    Ok(())
}

/// With KSM off a copy stays a copy, and this is reported.
fn without_ksm_a_copy_stays_a_copy(host: &Host) -> Outcome {
    let _off = Setting::set("/sys/kernel/mm/ksm/run", "0")?;
    let (process, heap) = offering(22, 8)?;
    let copy = MergedCopy::of(&sources(process.pid(), heap.pages(0, 8)))?;
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(linux::ksm::host(host.files())?.run, Run::Stopped);
    assert_eq!((copy.pages(), copy.merged_pages()?), (Pages(8), Pages(0)));
    Ok(())
}

/// Puts a thread on one processor. 0 is the one that asks.
fn put_on(pid: Option<Pid>, cpu: usize) -> std::io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let pid = pid.and_then(|pid| rustix::process::Pid::from_raw(pid.0));
    Ok(sched_setaffinity(pid, &cpus)?)
}

/// Pins this thread to one processor. Dropping restores its affinity.
struct Pinned {
    before: CpuSet,
}

impl Pinned {
    fn to(cpu: usize) -> std::io::Result<Pinned> {
        let pinned = Pinned { before: sched_getaffinity(None)? };
        put_on(None, cpu)?;
        Ok(pinned)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(None, &self.before) {
            eprintln!("cannot let this thread go where it might before: {error}");
        }
    }
}

fn median(mut of: Vec<u64>) -> u64 {
    of.sort_unstable();
    of[of.len() / 2]
}

/// Two processors with a common last-level cache. Not every report of one is true: the processors of a virtual machine
/// may be far apart.
pub(crate) fn neighbours() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let cpus = || (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let with =
        |cpu: usize| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list")).ok();
    let pairs = cpus().flat_map(|one| cpus().filter(move |other| *other > one).map(move |other| [one, other]));
    let said = pairs.into_iter().find(|[one, other]| with(*one).is_some_and(|of| with(*other) == Some(of)))?;
    is_near(said).unwrap_or(false).then_some(said)
}

/// Whether lines loaded by one of these processors, beyond the size of its private caches, are faster for the other
/// than memory is.
fn is_near([one, other]: [usize; 2]) -> Result<bool, libtest_mimic::Failed> {
    const PAGES: u64 = 2048;
    let memory = vec![1u8; usize::try_from((PAGES + 1) * 4096)?];
    let start = (memory.as_ptr().addr() as u64).next_multiple_of(4096);
    let own = |page| PageOf { pid: Pid::own(), address: Address(start + page * 4096) };
    let copy = MergedCopy::of(&(0..PAGES).map(own).collect::<Vec<_>>())?;
    let all = || 0..copy.sources().len();
    let loads = || -> Result<u64, libtest_mimic::Failed> {
        let _there = Pinned::to(other)?;
        let times: Result<Vec<u64>, linux::Error> =
            all().step_by(3).map(|page| Ok(copy.time_load(page, page * 37 % LINES_PER_PAGE)?.0)).collect();
        Ok(median(times?))
    };
    copy.flush(all())?;
    let far = loads()?;
    copy.flush(all())?;
    let here = Pinned::to(one)?;
    (0..4).for_each(|_| copy.load(all()));
    drop(here);
    Ok(loads()? * 3 < far * 2)
}

/// Loads by a program on one processor, after a thread on another has thrown its lines out, and after it has brought them back.
fn lines_that_were_flushed_and_touched_are_near_for_a_program_on_another_processor(_: &Host) -> Outcome {
    /// 512 KiB, which a second-level cache holds, and 8 MiB, which it does not.
    const PAGES: [usize; 2] = [128, 2048];
    const ROUNDS: usize = 9;
    /// The host of a virtual machine may move its processors apart for a while, and together again.
    const ATTEMPTS: usize = 10;
    let _quiet = no_automatic_huge_pages()?;
    let (mut processes, copy) = merged_copy(23, PAGES[1] as u64)?;
    let (process, heap) = &mut processes[0];
    let (mut said, mut together) = (Vec::new(), 0);
    for _ in 0..ATTEMPTS {
        let Some(pair) = neighbours() else {
            std::thread::sleep(Duration::from_millis(300));
            continue;
        };
        let found = loads_after(&copy, process, *heap, pair, PAGES, ROUNDS)?;
        assert_eq!(copy.merged_pages()?, Pages(PAGES[1] as u64));
        let Some((pages, flushed, touched)) = found.iter().find(|(_, flushed, touched)| flushed * 2 <= touched * 3)
        else {
            return Ok(());
        };
        said.push(format!("{pages} pages: {flushed} ticks after the flush, {touched} after flush and touch"));
        together += usize::from(neighbours().is_some());
    }
    assert!(together < ATTEMPTS, "{said:#?}");
    // The probe has seen a cache in common, which they did not keep.
    println!("SKIP: two processors have no last-level cache in common for long enough: {said:?}");
    Ok(())
}

/// Load latency of `process` in ticks for each number of pages: after a flush, and after flush and touch.
fn loads_after(
    copy: &MergedCopy,
    process: &mut TargetProcess,
    heap: Mapping,
    [ours, theirs]: [usize; 2],
    sizes: [usize; 2],
    rounds: usize,
) -> Result<Vec<(usize, u64, u64)>, libtest_mimic::Failed> {
    put_on(Some(process.pid()), theirs)?;
    let pinned = Pinned::to(ours)?;
    let mut found = Vec::new();
    for pages in sizes {
        let timed = heap.pages(0, pages as u64);
        let (mut flushed, mut touched) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            copy.flush(0..pages)?;
            flushed.push(process.time_loads(timed)?);
            copy.flush(0..pages)?;
            copy.touch(0..pages);
            touched.push(process.time_loads(timed)?);
        }
        found.push((pages, median(flushed), median(touched)));
    }
    drop(pinned);
    Ok(found)
}
