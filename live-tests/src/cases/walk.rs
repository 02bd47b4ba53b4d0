//! The page-table walk on a program that stands still between orders: every page, exactly.

use access::Source;
use access::walk::{WalkSource, Walker};
use linux::probe::HostFacts;
use units::PAGES_PER_WINDOW;

use super::collapse::collapse;
use super::{Outcome, at_random, no_automatic_huge_pages, present_pages, seen_present, touched, walker};
use crate::live::Live;
use crate::toy::{Backing, Mapping, Protection, ToyProcess};

const GIB: u64 = 1 << 30;
/// A place in the middle of nowhere: programs, heaps and libraries lie far above it.
const NOWHERE: u64 = 16 << 40;
/// Only page tables of five levels reach it.
pub(crate) const ABOVE_47_BITS: u64 = 1 << 50;

/// The mark of the whole feature: random sets from none to all, touched by four threads at once.
pub fn it_finds_exactly_the_pages_touched_after_a_clear(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 4)?;
    toy.write(heap.all(), 1)?;
    let all: Vec<u64> = (0..2048).collect();
    let mut source = WalkSource::new(walker()?, live.files(), toy.pid())?;
    for (seed, count) in (1..).zip([0, 1, 4, 64, 511, 1024, 2047, 2048]) {
        let chosen = at_random(seed, count, 2048);
        source.begin()?;
        toy.forget_translations()?;
        toy.read_pages(heap, &chosen, 4)?;
        source.look()?;
        assert_eq!(touched(source.map(), heap), chosen, "{count} of 2048 pages, seed {seed}");
        assert_eq!(seen_present(source.map(), heap), all);
    }
    toy.check(heap.all(), 1)?;
    Ok(())
}

/// The paper's question per window: 1 of 512, a quarter, all.
pub fn it_finds_every_nth_page_of_a_window_whose_pages_are_not_all_there(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 2)?;
    toy.write(heap.all().every(2), 3)?;
    let mut source = WalkSource::new(walker()?, live.files(), toy.pid())?;
    for nth in [512, 4, 2] {
        source.begin()?;
        toy.forget_translations()?;
        toy.read(heap.all().every(nth))?;
        source.look()?;
        let expected: Vec<u64> = (0..1024).filter(|page| page % nth == 0).collect();
        assert_eq!(touched(source.map(), heap), expected, "every {nth}th page");
        assert_eq!(seen_present(source.map(), heap), present_pages(&toy, heap)?);
    }
    Ok(())
}

/// One clear, many reads: a page counts in all scans after its first touch.
pub fn a_page_counts_in_every_look_from_the_one_that_saw_it_first(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.all(), 1)?;
    let mut source = WalkSource::new(walker()?, live.files(), toy.pid())?;
    source.begin()?;
    toy.forget_translations()?;
    for part in [heap.pages(0, 10), heap.pages(5, 30), heap.pages(500, 512)] {
        toy.read(part)?;
        source.look()?;
    }
    let map = source.map();
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
pub fn a_huge_window_has_one_bit_for_all_its_pages(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 3)?;
    toy.write(heap.all(), 1)?;
    collapse(&toy, heap)?;
    let mut source = WalkSource::new(walker()?, live.files(), toy.pid())?;
    source.begin()?;
    toy.forget_translations()?;
    toy.read(heap.window(1).every(512))?;
    source.look()?;
    let heats: Vec<_> = source.map().windows.iter().filter(|heat| heap.range().covers(heat.window.range())).collect();
    assert!(heats.iter().all(|heat| heat.huge), "{heats:?}");
    assert_eq!(heats.iter().map(|heat| heat.touched.count()).collect::<Vec<_>>(), [0, 512, 0]);
    assert_eq!(heats.iter().map(|heat| heat.present.count()).collect::<Vec<_>>(), [512; 3]);
    toy.check(heap.all(), 1)?;
    Ok(())
}

/// Taking all rights away leaves the pages where they are; the processor's bit for "present" goes, the kernel's stays.
pub fn pages_without_any_right_are_still_there(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 1)?;
    toy.write(heap.pages(0, 300), 1)?;
    toy.protect(heap.pages(100, 400), Protection::None)?;
    let mut source = WalkSource::new(walker()?, live.files(), toy.pid())?;
    source.begin()?;
    toy.forget_translations()?;
    toy.read(heap.pages(0, 50))?;
    source.look()?;
    assert_eq!(seen_present(source.map(), heap), (0..300).collect::<Vec<_>>());
    assert_eq!(touched(source.map(), heap), (0..50).collect::<Vec<_>>());
    toy.protect(heap.all(), Protection::ReadWrite)?;
    toy.check(heap.pages(0, 300), 1)?;
    Ok(())
}

/// Addresses that only five levels reach, for programs that ask for them.
pub fn memory_above_128_tib_is_found(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let low = toy.map(Backing::Anonymous, 1)?;
    let high = toy.map_at(ABOVE_47_BITS, 2)?;
    let higher = toy.map_at(ABOVE_47_BITS * 31, 1)?;
    exactly_the_touched(live, &mut toy, &[low, high, higher])
}

/// Empty upper tables are skipped in one step, at every level.
pub fn windows_behind_holes_of_a_gib_and_of_512_gib_are_found(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let mut mappings = Vec::new();
    for offset_gib in [0, 1, 3, 512, 513, 1024, 5 * 512 + 7, 20 * 1024] {
        mappings.push(toy.map_at(NOWHERE + offset_gib * GIB, 1)?);
    }
    exactly_the_touched(live, &mut toy, &mappings)
}

fn exactly_the_touched(live: &Live, toy: &mut ToyProcess, mappings: &[Mapping]) -> Outcome {
    for mapping in mappings {
        toy.write(mapping.all(), 1)?;
    }
    let mut source = WalkSource::new(walker()?, live.files(), toy.pid())?;
    source.begin()?;
    toy.forget_translations()?;
    let pages = |mapping: &Mapping| mapping.windows().len() as u64 * PAGES_PER_WINDOW as u64;
    let chosen: Vec<Vec<u64>> =
        (1..).zip(mappings).map(|(seed, mapping)| at_random(seed, 77, pages(mapping))).collect();
    for (mapping, chosen) in mappings.iter().zip(&chosen) {
        toy.read_pages(*mapping, chosen, 1)?;
    }
    source.look()?;
    for (mapping, chosen) in mappings.iter().zip(&chosen) {
        assert_eq!(&touched(source.map(), *mapping), chosen, "{}", mapping.range());
        assert_eq!(seen_present(source.map(), *mapping), (0..pages(mapping)).collect::<Vec<_>>());
        toy.check(mapping.all(), 1)?;
    }
    Ok(())
}

/// One reading holds 2048 windows; the next goes on where it stopped.
pub fn more_windows_than_one_reading_holds_are_all_found(live: &Live) -> Outcome {
    const WINDOWS: u64 = 2500;
    let _quiet = no_automatic_huge_pages()?;
    let mut toy = ToyProcess::start()?;
    let heap = toy.map_at(NOWHERE, WINDOWS)?;
    toy.write(heap.all().every(512), 1)?;
    let mut source = WalkSource::new(walker()?, live.files(), toy.pid())?;
    source.begin()?;
    toy.forget_translations()?;
    toy.read(heap.all().every(512 * 3))?;
    source.look()?;
    let firsts =
        |nth: u64| (0..WINDOWS).filter(|window| window % nth == 0).map(|window| window * 512).collect::<Vec<_>>();
    assert_eq!(seen_present(source.map(), heap), firsts(1));
    assert_eq!(touched(source.map(), heap), firsts(3));
    toy.check(heap.all().every(512), 1)?;
    Ok(())
}

/// Found by walking here, by mapping there.
pub fn the_walk_and_the_facts_agree_on_the_levels_of_the_page_tables(live: &Live) -> Outcome {
    let facts = HostFacts::gather(live.files());
    let mapped = facts.page_table_levels.value().ok_or("the facts do not know")?;
    assert_eq!(walker()?.page_table_levels(), u32::from(*mapped));
    Ok(())
}

/// A wrong base of the direct map would show another program's tables, or nothing.
pub fn calibrating_twice_gives_the_same_answer(live: &Live) -> Outcome {
    let _quiet = no_automatic_huge_pages()?;
    let (one, other) = (walker()?, Walker::load().map_err(|why| why.reason)?);
    assert_eq!(one.page_table_levels(), other.page_table_levels());
    let mut toy = ToyProcess::start()?;
    let heap = toy.map(Backing::Anonymous, 2)?;
    toy.write(heap.all().every(7), 1)?;
    toy.freeze()?;
    let mut maps = Vec::new();
    for walker in [one, other] {
        let mut source = WalkSource::new(walker, live.files(), toy.pid())?;
        source.look()?;
        maps.push(source.map().windows.clone());
    }
    toy.thaw()?;
    assert!(!maps[0].is_empty());
    assert_eq!(maps[0], maps[1]);
    Ok(())
}
