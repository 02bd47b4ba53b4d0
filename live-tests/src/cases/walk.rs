//! The page-table walk on a program that stands still between orders: every page, exactly.

use access::Observer;
use access::walk::{WalkObserver, Walker};
use linux::probe::HostFacts;
use units::PAGES_PER_WINDOW;

use super::collapse::collapse;
use super::{Outcome, at_random, no_automatic_huge_pages, present_pages, seen_present, touched, walker};
use crate::host::{Host, LiveTest, tests};
use crate::target_process::{Backing, Mapping, Protection, TargetProcess};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    walk requires [Root, PageTableWalk];
    it_finds_exactly_the_pages_touched_after_a_clear [HugePageModes];
    it_finds_every_nth_page_of_a_window_whose_pages_are_not_all_there [HugePageModes];
    a_page_counts_in_every_look_from_the_one_that_saw_it_first [HugePageModes];
    a_huge_window_has_one_bit_for_all_its_pages [RemoteCollapse, HugePageModes];
    pages_without_any_right_are_still_there [HugePageModes];
    memory_above_128_tib_is_found [FiveLevels, HugePageModes];
    windows_behind_holes_of_a_gib_and_of_512_gib_are_found [HugePageModes];
    more_windows_than_one_reading_holds_are_all_found [HugePageModes];
    the_walk_and_the_facts_agree_on_the_levels_of_the_page_tables;
    calibrating_twice_gives_the_same_answer [HugePageModes];
};

const GIB: u64 = 1 << 30;
/// A place in the middle of nowhere: programs, heaps and libraries lie far above it.
const NOWHERE: u64 = 16 << 40;
/// Only page tables of five levels reach it.
pub(crate) const ABOVE_47_BITS: u64 = 1 << 50;

/// The mark of the whole feature: random sets from none to all, touched by four threads at once.
fn it_finds_exactly_the_pages_touched_after_a_clear(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 4)?;
    process.write(heap.all(), 1)?;
    let all: Vec<u64> = (0..2048).collect();
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    for (seed, count) in (1..).zip([0, 1, 4, 64, 511, 1024, 2047, 2048]) {
        let chosen = at_random(seed, count, 2048);
        observer.begin()?;
        process.forget_translations()?;
        process.read_pages(heap, &chosen, 4)?;
        observer.scan()?;
        assert_eq!(touched(observer.map(), heap), chosen, "{count} of 2048 pages, seed {seed}");
        assert_eq!(seen_present(observer.map(), heap), all);
    }
    process.check(heap.all(), 1)?;
    Ok(())
}

/// The paper's question per window: 1 of 512, a quarter, all.
fn it_finds_every_nth_page_of_a_window_whose_pages_are_not_all_there(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 2)?;
    process.write(heap.all().every(2), 3)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    for nth in [512, 4, 2] {
        observer.begin()?;
        process.forget_translations()?;
        process.read(heap.all().every(nth))?;
        observer.scan()?;
        let expected: Vec<u64> = (0..1024).filter(|page| page % nth == 0).collect();
        assert_eq!(touched(observer.map(), heap), expected, "every {nth}th page");
        assert_eq!(seen_present(observer.map(), heap), present_pages(&process, heap)?);
    }
    Ok(())
}

/// One clear, many reads: a page counts in all scans after its first touch.
fn a_page_counts_in_every_look_from_the_one_that_saw_it_first(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.all(), 1)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    process.forget_translations()?;
    for part in [heap.pages(0, 10), heap.pages(5, 30), heap.pages(500, 512)] {
        process.read(part)?;
        observer.scan()?;
    }
    let map = observer.map();
    let window = heap.windows()[0];
    let heat = map.windows.iter().find(|heat| heat.window == window).ok_or("the window is missing")?;
    for (pages, reads) in [(0..10, 3), (10..30, 2), (500..512, 1), (30..500, 0)] {
        let classes: Vec<_> = pages.map(|page| map.class(heat, page)).collect();
        assert!(classes.iter().all(|class| class.accessed_reads == reads), "{classes:?}");
        assert!(classes.iter().all(|class| (class.rate.get() > 0.0) == (reads > 0)), "{classes:?}");
    }
    Ok(())
}

/// A huge page has one accessed bit, so touching one byte of it touches all.
fn a_huge_window_has_one_bit_for_all_its_pages(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 3)?;
    process.write(heap.all(), 1)?;
    collapse(&process, heap)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    process.forget_translations()?;
    process.read(heap.window(1).every(512))?;
    observer.scan()?;
    let heats: Vec<_> = observer.map().windows.iter().filter(|heat| heap.range().covers(heat.window.range())).collect();
    assert!(heats.iter().all(|heat| heat.huge), "{heats:?}");
    assert_eq!(heats.iter().map(|heat| heat.touched.count()).collect::<Vec<_>>(), [0, 512, 0]);
    assert_eq!(heats.iter().map(|heat| heat.present.count()).collect::<Vec<_>>(), [512; 3]);
    process.check(heap.all(), 1)?;
    Ok(())
}

/// Taking all rights away leaves the pages where they are; the processor's bit for "present" goes, the kernel's stays.
fn pages_without_any_right_are_still_there(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 1)?;
    process.write(heap.pages(0, 300), 1)?;
    process.protect(heap.pages(100, 400), Protection::None)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    process.forget_translations()?;
    process.read(heap.pages(0, 50))?;
    observer.scan()?;
    assert_eq!(seen_present(observer.map(), heap), (0..300).collect::<Vec<_>>());
    assert_eq!(touched(observer.map(), heap), (0..50).collect::<Vec<_>>());
    process.protect(heap.all(), Protection::ReadWrite)?;
    process.check(heap.pages(0, 300), 1)?;
    Ok(())
}

/// Addresses that only five levels reach, for programs that ask for them.
fn memory_above_128_tib_is_found(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let low = process.map(Backing::Anonymous, 1)?;
    let high = process.map_at(ABOVE_47_BITS, 2)?;
    let higher = process.map_at(ABOVE_47_BITS * 31, 1)?;
    exactly_the_touched(host, &mut process, &[low, high, higher])
}

/// Empty upper tables are skipped in one step, at every level.
fn windows_behind_holes_of_a_gib_and_of_512_gib_are_found(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let mut mappings = Vec::new();
    for offset_gib in [0, 1, 3, 512, 513, 1024, 5 * 512 + 7, 20 * 1024] {
        mappings.push(process.map_at(NOWHERE + offset_gib * GIB, 1)?);
    }
    exactly_the_touched(host, &mut process, &mappings)
}

fn exactly_the_touched(host: &Host, process: &mut TargetProcess, mappings: &[Mapping]) -> Outcome {
    for mapping in mappings {
        process.write(mapping.all(), 1)?;
    }
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    process.forget_translations()?;
    let pages = |mapping: &Mapping| mapping.windows().len() as u64 * PAGES_PER_WINDOW as u64;
    let chosen: Vec<Vec<u64>> =
        (1..).zip(mappings).map(|(seed, mapping)| at_random(seed, 77, pages(mapping))).collect();
    for (mapping, chosen) in mappings.iter().zip(&chosen) {
        process.read_pages(*mapping, chosen, 1)?;
    }
    observer.scan()?;
    for (mapping, chosen) in mappings.iter().zip(&chosen) {
        assert_eq!(&touched(observer.map(), *mapping), chosen, "{}", mapping.range());
        assert_eq!(seen_present(observer.map(), *mapping), (0..pages(mapping)).collect::<Vec<_>>());
        process.check(mapping.all(), 1)?;
    }
    Ok(())
}

/// One reading holds 2048 windows; the next goes on where it stopped.
fn more_windows_than_one_reading_holds_are_all_found(host: &Host) -> Outcome {
    const WINDOWS: u64 = 2500;
    let _quiet = no_automatic_huge_pages()?;
    let mut process = TargetProcess::start()?;
    let heap = process.map_at(NOWHERE, WINDOWS)?;
    process.write(heap.all().every(512), 1)?;
    let mut observer = WalkObserver::new(walker()?, host.files(), process.pid())?;
    observer.begin()?;
    process.forget_translations()?;
    process.read(heap.all().every(512 * 3))?;
    observer.scan()?;
    let firsts =
        |nth: u64| (0..WINDOWS).filter(|window| window % nth == 0).map(|window| window * 512).collect::<Vec<_>>();
    assert_eq!(seen_present(observer.map(), heap), firsts(1));
    assert_eq!(touched(observer.map(), heap), firsts(3));
    process.check(heap.all().every(512), 1)?;
    Ok(())
}

/// Found by walking here, by mapping there.
fn the_walk_and_the_facts_agree_on_the_levels_of_the_page_tables(host: &Host) -> Outcome {
    let facts = HostFacts::gather(host.files());
    let mapped = facts.page_table_levels.value().ok_or("the facts do not know")?;
    assert_eq!(walker()?.page_table_levels(), u32::from(*mapped));
    Ok(())
}

/// A wrong base of the direct map would show another program's tables, or nothing.
fn calibrating_twice_gives_the_same_answer(host: &Host) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (one, other) = (walker()?, Walker::load().map_err(|why| why.reason)?);
    assert_eq!(one.page_table_levels(), other.page_table_levels());
    let mut process = TargetProcess::start()?;
    let heap = process.map(Backing::Anonymous, 2)?;
    process.write(heap.all().every(7), 1)?;
    process.freeze()?;
    let mut maps = Vec::new();
    for walker in [one, other] {
        let mut observer = WalkObserver::new(walker, host.files(), process.pid())?;
        observer.scan()?;
        maps.push(observer.map().windows.clone());
    }
    process.thaw()?;
    assert!(!maps[0].is_empty());
    assert_eq!(maps[0], maps[1]);
    Ok(())
}
