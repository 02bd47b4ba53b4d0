//! The pager against a model of memory: in all cases the program reads its own writes, and the budget holds.

#[path = "model/machine.rs"]
mod machine;
#[path = "model/runs.rs"]
mod runs;
#[path = "model/step.rs"]
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64};

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::Backend;
use farmem_engine::counters::{COUNTER_WORDS, Counter, Counters};
use farmem_engine::entry::Place;
use farmem_engine::handshake::Sections;
use farmem_engine::pager::{BATCHES_WORDS, Batches, Pager, Served, Touch, VictimQueue};
use farmem_engine::policy::what_if::Ghosts;
use farmem_engine::segment::Layout;
use farmem_engine::space::{CHUNK_PAGES, DIRECTORY_WORDS, Page, Space};
use farmem_engine::units::{Costs, Learned, Units};
use machine::Model;
use proptest::prelude::*;
use step::{Step, step};

const BASE: u64 = 0x7000_0000_0000;

struct Memory {
    directory: Vec<AtomicU32>,
    words: Vec<AtomicU64>,
    layout: Layout,
    counters: [AtomicU64; COUNTER_WORDS],
    batches: Box<[AtomicU64; BATCHES_WORDS]>,
    ends: [AtomicU64; 3],
}

impl Memory {
    fn new(pages: usize, frames: usize) -> Memory {
        let layout = Layout::new(pages, frames);
        Memory {
            directory: (0..DIRECTORY_WORDS).map(|_| AtomicU32::new(0)).collect(),
            words: (0..(layout.bytes - layout.bases) / 8).map(|_| AtomicU64::new(0)).collect(),
            layout,
            counters: [const { AtomicU64::new(0) }; COUNTER_WORDS],
            batches: Box::new([const { AtomicU64::new(0) }; BATCHES_WORDS]),
            ends: [const { AtomicU64::new(0) }; 3],
        }
    }

    fn words(&self, from: usize, count: usize) -> &[AtomicU64] {
        &self.words[(from - self.layout.bases) / 8..][..count]
    }

    fn pager(&self) -> Pager<'_> {
        let layout = &self.layout;
        Pager {
            space: Space::new(&self.directory, self.words(layout.bases, 1 + layout.pages / CHUNK)),
            entries: self.words(layout.entries, layout.pages),
            checksums: self.words(layout.checksums, layout.pages * 2),
            victims: VictimQueue::new(self.words(layout.victims, layout.slots), &self.ends),
            queues: layout.queues.map(|queue| self.words(queue, layout.units)),
            counters: Counters(&self.counters),
            batches: Batches(&self.batches),
        }
    }
}

const PAGES: u64 = 3000;

/// Pages of a chunk, as a size.
const CHUNK: usize = 1 << 13;
const _: () = assert!(CHUNK as u64 == CHUNK_PAGES);

fn address(page: u64) -> u64 {
    // Across the border of two chunks.
    BASE + (32 << 20) - (PAGES / 2) * PAGE_BYTES + page * PAGE_BYTES
}

struct World<'a> {
    pager: Pager<'a>,
    units: Units<'a>,
    model: Model,
    expected: BTreeMap<u64, u64>,
    pinned: Vec<u64>,
}

impl<'a> World<'a> {
    fn new(memory: &'a Memory, learned: &'a mut Learned, ghosts: &'a mut [u64], frames: u64) -> World<'a> {
        let pager = memory.pager();
        pager.counters.set(Counter::BudgetFrames, frames);
        pager.space.mark(address(0), PAGES * PAGE_BYTES);
        let units = Units {
            learned,
            ghosts: Ghosts::over(ghosts),
            sections: Sections::Off,
            fixed_log2: 2,
            base_log2: 0,
            costs: Costs::SERVER,
        };
        let model = Model { mapped: (0..PAGES).map(address).collect(), ..Model::default() };
        World { pager, units, model, expected: BTreeMap::new(), pinned: Vec::new() }
    }

    /// Load or store of the program.
    fn access(&mut self, page: u64, write: Option<u64>, site: u64) -> Result<(), TestCaseError> {
        let at = address(page);
        if !self.model.mapped.contains(&at) {
            return Ok(());
        }
        if !self.model.program.contains_key(&at) {
            let touch = Touch { address: at, write: write.is_some(), site };
            let served = self.pager.touch(&mut self.model, &mut self.units, touch).map_err(TestCaseError::fail)?;
            // A completed batch may have brought it.
            prop_assert!(served == Served::Yes || served == Served::Already && self.model.program.contains_key(&at));
        }
        self.hear();
        let Some(content) = self.model.program.get_mut(&at) else {
            return Err(TestCaseError::fail(format!("page {page} is not there")));
        };
        prop_assert_eq!(*content, self.expected.get(&page).copied().unwrap_or(0), "page {}", page);
        if let Some(new) = write {
            *content = new;
            self.expected.insert(page, new);
        }
        Ok(())
    }

    /// Writes of other threads are the expected content.
    fn hear(&mut self) {
        for (at, content) in std::mem::take(&mut self.model.written) {
            self.expected.insert((at - address(0)) / PAGE_BYTES, content);
        }
    }

    fn settle(&mut self) {
        self.pager.settle(&mut self.model, &mut self.units).expect("nothing fails");
        self.hear();
    }

    /// Steps without a fault.
    fn submit(&mut self) {
        self.pager.submit();
    }

    fn run_batch(&mut self) {
        self.model.run_batch(&self.pager);
    }

    fn run_all_batches(&mut self) {
        while self.model.run_batch(&self.pager) {}
    }

    fn complete(&mut self) {
        self.pager.complete(&mut self.model, &mut self.units).expect("nothing fails");
    }

    fn forget(&mut self, page: u64, pages: u64) {
        self.settle();
        self.pager.forget(address(page), pages * PAGE_BYTES);
        for page in page..page + pages {
            self.model.program.remove(&address(page));
            self.expected.remove(&page);
        }
        self.pinned.retain(|pinned| !(page..page + pages).contains(pinned));
    }

    /// mremap(2) to a place of its own, with the library's steps.
    fn move_to(&mut self, from: u64, to: u64, pages: u64) -> Result<(), TestCaseError> {
        let pages = pages.min(PAGES - from).min(PAGES - to);
        let apart = from + pages <= to || to + pages <= from;
        let touched = |page: &u64| (from..from + pages).contains(page) || (to..to + pages).contains(page);
        if !apart || self.pinned.iter().any(touched) {
            return Ok(());
        }
        self.forget(to, pages);
        let (start, bytes) = (address(from), pages * PAGE_BYTES);
        self.pager.write_back_victims(&mut self.model, &mut self.units, start, bytes).map_err(TestCaseError::fail)?;
        self.hear();
        for page in 0..pages {
            let (old, new) = (address(from + page), address(to + page));
            if let Some(content) = self.model.program.remove(&old) {
                self.model.program.insert(new, content);
            }
            self.model.mapped.remove(&new);
            if self.model.mapped.remove(&old) {
                self.model.mapped.insert(new);
            }
            self.model.held.remove(&old);
            if let Some(content) = self.expected.remove(&(from + page)) {
                self.expected.insert(to + page, content);
            }
        }
        let store = &mut self.model.store;
        let copy = |old: Page, new: Page| {
            if let Some(content) = store.get(&old.0).copied() {
                store.insert(new.0, content);
            }
        };
        prop_assert!(self.pager.relocate(&mut self.units, start, address(to), bytes, copy));
        self.pager.forget(start, bytes);
        Ok(())
    }

    fn consistent(&self, shrunk_from: u64) -> Result<(), TestCaseError> {
        let (pager, model) = (&self.pager, &self.model);
        prop_assert_eq!(pager.counters.get(Counter::ResidentPages), model.program.len() as u64);
        let aside = pager.counters.get(Counter::FramesAside);
        prop_assert_eq!(u64::from(pager.frames_in_use()), (model.program.len() + model.slots.len()) as u64 + aside);
        let most = model.most_frames as u64 + aside;
        prop_assert!(most <= shrunk_from, "{most} frames were in use");
        prop_assert!(pager.counters.get(Counter::PeakFrames) <= most, "less was in use than is said");
        let (mut touched, mut zeros) = (0, 0);
        for page in 0..PAGES {
            let Some(number) = pager.space.page(address(page)) else { continue };
            let entry = pager.entry(number);
            prop_assert_eq!(
                entry.place() == Place::Resident,
                model.program.contains_key(&address(page)),
                "page {}",
                page
            );
            (touched, zeros) = (touched + u64::from(entry.is_touched()), zeros + u64::from(entry.is_of_zeros()));
        }
        prop_assert_eq!(pager.counters.get(Counter::TouchedPages), touched);
        prop_assert_eq!(pager.counters.get(Counter::ZeroPages), zeros);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_program_reads_what_it_wrote_and_the_budget_holds(
        steps in proptest::collection::vec(step(), 1..120),
        backend in proptest::sample::select(Backend::ALL.as_slice()),
    ) {
        let memory = Memory::new(2 * CHUNK, 1500);
        let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
        let mut world = World::new(&memory, &mut learned, &mut ghosts, 400);
        world.pager.counters.set(Counter::FramesAside, backend.doubled_pages().into());
        let mut most_frames = 400;
        for step in steps {
            match step {
                Step::Touch { page, write, site } => world.access(page, write, site)?,
                Step::Sweep { page, pages, stride, background } => {
                    for step in 0..pages {
                        match background.get(usize::try_from(step).unwrap_or(0) % background.len().max(1)) {
                            Some(0) => world.submit(),
                            Some(1) => world.run_batch(),
                            Some(2) => world.complete(),
                            _ => {}
                        }
                        let page = (page + step * stride) % PAGES;
                        world.access(page, (step % 3 == 0).then_some(page * 1000 + step), stride)?;
                    }
                }
                Step::Forget { page, pages } => world.forget(page, pages.min(PAGES - page)),
                Step::Unmap { page, pages } => {
                    let pages = pages.min(PAGES - page);
                    world.forget(page, pages);
                    let gone: BTreeSet<u64> = (page..page + pages).map(address).collect();
                    world.model.mapped.retain(|page| !gone.contains(page));
                }
                Step::Map { page, pages } => {
                    world.model.mapped.extend((page..page + pages.min(PAGES - page)).map(address));
                }
                Step::Pin { page } => {
                    // Limit of one call.
                    if world.pinned.len() < 32 {
                        world.access(page, None, 9)?;
                        if world.pager.pin(address(page)) {
                            world.pinned.push(page);
                        }
                    }
                }
                Step::Unpin => {
                    if let Some(page) = world.pinned.pop() {
                        world.pager.unpin(address(page));
                    }
                }
                Step::Hold { page } => {
                    if world.model.held.len() < 16 {
                        world.model.held.insert(address(page));
                    }
                }
                Step::LetGo => world.model.held.clear(),
                Step::AllHome { page, pages } => {
                    let range = (address(page), pages.min(PAGES - page) * PAGE_BYTES);
                    world.pager.write_back_range(&mut world.model, &mut world.units, range.0, range.1).map_err(TestCaseError::fail)?;
                }
                Step::Move { from, to, pages } => world.move_to(from, to, pages)?,
                Step::AllHere => {
                    let all = world.pager.fault_in_all(&mut world.model, &mut world.units).map_err(TestCaseError::fail)?;
                    prop_assert!(!world.pager.victims.holds_pages(), "what a fork needs is not all there");
                    let of = |counter| world.pager.counters.get(counter);
                    prop_assert_eq!(all, of(Counter::StoredPages) == 0);
                    let needed = of(Counter::TouchedPages) - of(Counter::ZeroPages) + of(Counter::FramesAside);
                    let is_mapped = world.model.mapped.len() as u64 == PAGES;
                    prop_assert!(all || !is_mapped || needed > world.pager.budget().frames.into(), "it fits, and does not come");
                }
                Step::Launch => world.submit(),
                Step::RunBatch => world.run_batch(),
                Step::Land => world.complete(),
                Step::Restless { restless } => world.model.restless = restless,
                Step::Alone { alone: true } => world.units.costs = Costs::SERVER.alone(),
                Step::Alone { alone: false } => world.units.costs = Costs::SERVER,
                Step::Unit { log2 } => world.units.fixed_log2 = log2,
                Step::Sections { sections } => world.units.sections = sections,
                Step::Section { begins: true, section } => world.units.section_begins(section),
                Step::Section { begins: false, section } => world.units.section_ends(section, world.pager.budget()),
                Step::Frames { frames } => {
                    world.pager.counters.set(Counter::BudgetFrames, frames);
                    most_frames = most_frames.max(frames);
                }
            }
            world.hear();
            for page in &world.pinned {
                prop_assert!(world.model.program.contains_key(&address(*page)), "page {} was pinned and left", page);
            }
            world.consistent(most_frames)?;
        }
    }
}

/// Touches all pages in order, repeatedly. Returns the counters.
fn sweeps(frames: u64, share: u64) -> [u64; 4] {
    let counted = counted_of_sweeps(frames, share, Sections::Off, Costs::SERVER, |_| {});
    [Counter::FaultsFirst, Counter::FaultsVictim, Counter::FaultsStored, Counter::PagesOut].map(counted)
}

/// The same, with `background` before each touch.
fn counted_of_sweeps(
    frames: u64,
    share: u64,
    sections: Sections,
    costs: Costs,
    mut background: impl FnMut(&mut World<'_>),
) -> impl Fn(Counter) -> u64 {
    let memory = Memory::new(2 * CHUNK, 3001);
    let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
    let mut world = World::new(&memory, &mut learned, &mut ghosts, frames);
    world.pager.counters.set(Counter::BudgetShare, share);
    (world.units.sections, world.units.costs) = (sections, costs);
    for round in 0..3 {
        for page in 0..PAGES {
            background(&mut world);
            world.access(page, Some(page + round), 7).expect("what was written is read");
        }
    }
    world.consistent(frames).expect("the counts hold");
    let words = world.pager.counters.0.each_ref().map(|word| word.load(std::sync::atomic::Ordering::Relaxed));
    move |counter| words[counter as usize]
}

#[test]
fn a_sweep_is_fetched_ahead_and_written_behind() {
    let alone = counted_of_sweeps(600, 0, Sections::Auto, Costs::SERVER.alone(), |_| {});
    let both = counted_of_sweeps(600, 0, Sections::Auto, Costs::SERVER, |world| world.run_all_batches());
    let [waited, ahead, behind] = [Counter::FaultsStored, Counter::PagesAhead, Counter::PagesBehind].map(&both);
    assert_eq!(alone(Counter::PagesAhead) + alone(Counter::PagesBehind), 0);
    assert!(waited * 6 < alone(Counter::FaultsStored), "{waited} of {}", alone(Counter::FaultsStored));
    assert!(ahead * 10 > both(Counter::PagesIn) * 9, "{ahead} of {}", both(Counter::PagesIn));
    assert!(behind * 10 > both(Counter::PagesOut) * 9, "{behind} of {}", both(Counter::PagesOut));
    assert!(both(Counter::FaultsOnMarkers) > 0);
}

#[test]
fn what_is_on_its_way_is_waited_for_and_arrives_then() {
    // Pages in flight stay there until they are needed.
    let both = counted_of_sweeps(600, 0, Sections::Auto, Costs::SERVER, |_| {});
    assert!(both(Counter::FaultsInFlight) > 0);
}

#[test]
fn what_fits_leaves_never_whether_the_budget_is_a_number_or_a_share() {
    for (frames, share) in [(PAGES, 0), (PAGES, 1 << 16)] {
        let [first, in_victim_queue, stored, out] = sweeps(frames, share);
        assert!(first > 0);
        assert_eq!([in_victim_queue, stored, out], [0, 0, 0], "{frames} frames, a share of {share}");
    }
}

#[test]
fn what_does_not_fit_goes_round() {
    for (frames, share) in [(PAGES - 64, 0), (PAGES, (1 << 16) - 1024)] {
        let [_, _, stored, out] = sweeps(frames, share);
        assert!(stored > 0 && out > 0, "{frames} frames, a share of {share}: {stored} {out}");
    }
}

/// System calls name memory beside the paged one, and the kernel may have mapped a page itself.
#[test]
fn the_faults_of_all_places_are_all_faults() {
    for sections in [Sections::Auto, Sections::Marked] {
        let memory = Memory::new(2 * CHUNK, 1500);
        let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
        let mut world = World::new(&memory, &mut learned, &mut ghosts, 600);
        world.units.sections = sections;
        world.units.section_begins(3);
        for round in 0..3 {
            for page in 0..PAGES {
                world.run_all_batches();
                world.access(page, Some(page + round), page % 3 + 2).expect("what was written is read");
                let beside = Touch { address: address(PAGES + page), write: false, site: 0 };
                let served = world.pager.touch(&mut world.model, &mut world.units, beside);
                assert_eq!(served, Ok(Served::NotPaged));
            }
        }
        world.units.section_ends(3, world.pager.budget());
        let kinds = [Counter::FaultsFirst, Counter::FaultsVictim, Counter::FaultsStored, Counter::FaultsInFlight];
        let counted: u64 = kinds.map(|counter| world.pager.counters.get(counter)).iter().sum();
        let learned = &world.units.learned;
        let sites = learned.sites.known().map(|site| u64::from(site.faults)).sum::<u64>();
        let marked = learned.marked.known().map(|section| u64::from(section.faults)).sum::<u64>();
        assert_eq!(sites + marked, counted, "{sections:?}");
        assert!(learned.sites.known().all(|site| site.site > 1), "memory beside is no place");
    }
}

/// They are neither written nor kept, and the rest fits.
#[test]
fn pages_of_zeros_leave_room_for_the_others_and_count_as_touched() {
    for share in [0, (2 << 16) / 3] {
        let memory = Memory::new(2 * CHUNK, 3001);
        let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
        let mut world = World::new(&memory, &mut learned, &mut ghosts, 2000);
        world.pager.counters.set(Counter::BudgetShare, share);
        let counted = |world: &World<'_>, counter| world.pager.counters.get(counter);
        (0..PAGES).for_each(|page| world.access(page, Some(page % 2 * page), 7).expect("what was written is read"));
        for _ in 0..8 {
            (1..PAGES).step_by(2).for_each(|page| world.access(page, None, 7).expect("what was written is read"));
        }
        let moved =
            [Counter::PagesIn, Counter::PagesOut, Counter::FaultsVictim].map(|counter| counted(&world, counter));
        assert_eq!(moved, [0; 3], "a share of {share}");
        assert!(counted(&world, Counter::ZeroPages) > PAGES / 4);
        assert_eq!(counted(&world, Counter::TouchedPages), PAGES);
        (0..PAGES).for_each(|page| world.access(page, None, 7).expect("what was written is read"));
        world.consistent(2000).expect("the counts hold");
    }
}

/// Chunks have numbers in the order of their first touch: the last pages of one and the first of another may be
/// consecutive in numbers, and not in memory.
#[test]
fn what_comes_back_for_a_fork_comes_to_its_own_address() {
    let memory = Memory::new(4 * CHUNK, 3001);
    let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
    let mut world = World::new(&memory, &mut learned, &mut ghosts, 2000);
    let border = |chunk: u64| PAGES / 2 + chunk * CHUNK_PAGES;
    let parts = [border(1) - 20..border(1), border(2)..border(2) + 20, border(1)..border(1) + 20];
    for part in parts.clone() {
        world.pager.space.mark(address(part.start), 20 * PAGE_BYTES);
        world.model.mapped.extend(part.clone().map(address));
        part.for_each(|page| world.access(page, Some(page), 7).expect("what was written is read"));
    }
    let number = |page: u64| world.pager.space.page(address(page)).expect("it was touched").0;
    assert_eq!(number(border(1) - 1) + 1, number(border(2)), "they follow each other");
    for part in parts.clone() {
        let stored =
            world.pager.write_back_range(&mut world.model, &mut world.units, address(part.start), 20 * PAGE_BYTES);
        assert_eq!(stored, Ok(0));
    }
    assert_eq!(world.pager.counters.get(Counter::StoredPages), 60);
    assert_eq!(world.pager.fault_in_all(&mut world.model, &mut world.units), Ok(true));
    parts.into_iter().flatten().for_each(|page| world.access(page, None, 7).expect("what was written is read"));
}

/// A page taken back from the victim queue leaves a hole, and no fetch uses up the slots before the holes.
#[test]
fn holes_in_the_victim_queue_are_filled_by_further_evictions() {
    let memory = Memory::new(2 * CHUNK, 1500);
    let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
    let budget = PAGES - 20;
    let mut world = World::new(&memory, &mut learned, &mut ghosts, budget);
    let touch = |world: &mut World<'_>, page: u64, step| {
        world.access(page, Some(step), 7).expect("what was written is read");
    };
    (0..PAGES).for_each(|page| touch(&mut world, page, 1));
    for step in 1..2_000_000_u64 {
        let page = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % PAGES;
        let place = world.pager.space.page(address(page)).map(|page| world.pager.entry(page).place());
        if place == Some(Place::Victim) {
            touch(&mut world, page, step);
        }
    }
    world.consistent(budget).expect("the counts hold");
    let from_victims = world.pager.counters.get(Counter::FaultsVictim);
    let slots = world.pager.victims.slots();
    assert!(from_victims > 4 * u64::from(slots), "{from_victims}");
}

/// Getting frames for a unit writes others of the same unit back.
#[test]
fn a_unit_brings_no_more_than_was_to_come_when_room_was_made() {
    let memory = Memory::new(2 * CHUNK, 3001);
    let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
    let (frames, unit) = (600, 32);
    let mut world = World::new(&memory, &mut learned, &mut ghosts, frames);
    world.units.fixed_log2 = 5;
    (0..PAGES).for_each(|page| world.access(page, Some(page), 7).expect("what was written is read"));
    for step in 0..20_000_u64 {
        let page = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % PAGES;
        let number = address(page) / PAGE_BYTES;
        let of_unit = (0..PAGES).filter(|other| address(*other) / PAGE_BYTES / unit == number / unit);
        let place = |page| world.pager.space.page(address(page)).map(|page| world.pager.entry(page).place());
        let to_come = of_unit.filter(|other| place(*other) == Some(Place::Stored)).count() as u64;
        let before = world.pager.counters.get(Counter::PagesIn);
        world.access(page, (step % 3 == 0).then_some(step), 7).expect("what was written is read");
        let came = world.pager.counters.get(Counter::PagesIn) - before;
        assert!(came <= to_come, "{came} of {to_come}");
    }
    world.consistent(frames).expect("the counts hold");
    assert_eq!(world.pager.counters.get(Counter::FramesBeyond), 0);
}

#[test]
fn a_page_that_comes_changes_and_leaves_while_it_lands_is_what_was_written() {
    let memory = Memory::new(2 * CHUNK, 3001);
    let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
    let mut world = World::new(&memory, &mut learned, &mut ghosts, 256);
    world.units.sections = Sections::Auto;
    world.model.restless = true;
    let reads = |world: &mut World<'_>, pages: std::ops::Range<u64>| {
        for page in pages {
            world.access(page, None, 7).expect("what was written is read");
            world.run_batch();
        }
    };
    reads(&mut world, 0..PAGES);
    // Calls of many threads have nearly all frames pinned.
    for page in 2000..2248 {
        world.access(page, None, 9).expect("what was written is read");
        assert!(world.pager.pin(address(page)));
    }
    for _ in 0..3 {
        reads(&mut world, 0..1500);
    }
}

/// Neither a touch of it, nor the fetch of a unit around it, and its content is gone.
#[test]
fn no_frame_comes_to_a_guard_page_and_it_moves_along() {
    let memory = Memory::new(2 * CHUNK, 3001);
    let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
    let frames = 600;
    let mut world = World::new(&memory, &mut learned, &mut ghosts, frames);
    world.units.fixed_log2 = 5;
    let reads = |world: &mut World<'_>, page| world.access(page, None, 7).expect("what was written is read");
    // Pages before 1000 are present, in the victim queue or stored; pages behind were never touched.
    (0..1000).for_each(|page| world.access(page, Some(page), 7).expect("what was written is read"));
    assert!(world.pager.number_chunks(address(0), PAGES * PAGE_BYTES));
    let guards = || (0..2000).filter(|page| page % 8 == 5);
    for page in guards() {
        world.forget(page, 1);
        world.pager.guard(address(page), PAGE_BYTES);
    }
    let are_guards = |world: &mut World<'_>, first: u64| {
        for page in guards().map(|page| first + page) {
            let touch = Touch { address: address(page), write: true, site: 7 };
            assert_eq!(world.pager.touch(&mut world.model, &mut world.units, touch), Ok(Served::Already));
            assert!(!world.model.program.contains_key(&address(page)), "page {page} has a frame");
        }
    };
    for round in 0..3 {
        (0..2000).filter(|page| page % 8 != 5).for_each(|page| reads(&mut world, page));
        are_guards(&mut world, 0);
        if round == 1 {
            world.settle();
            world.pager.empty(address(1000), 1000 * PAGE_BYTES);
            world.model.program.retain(|at, _| !(address(1000)..address(2000)).contains(at));
        }
    }
    for (from, to) in [(0, 2000), (1000, 0)] {
        world.move_to(from, to, 1000).expect("they move");
    }
    world.pager.guard(address(1000), 1000 * PAGE_BYTES);
    world.pager.unguard(address(0), 2000 * PAGE_BYTES);
    world.model.mapped.extend((0..2000).map(address));
    (0..2000).for_each(|page| reads(&mut world, page));
    (2000..3000).filter(|page| page % 8 != 5).for_each(|page| reads(&mut world, page));
    let moved = guards().take_while(|page| *page < 1000).map(|page| world.pager.space.page(address(2000 + page)));
    assert!(moved.flatten().all(|page| world.pager.entry(page).is_guard()));
    let has_guard = |page, pages| world.pager.has_guard(address(page), pages * PAGE_BYTES);
    assert!(!has_guard(0, 2005) && has_guard(2005, 1) && !has_guard(2006, 7) && has_guard(0, PAGES));
    world.consistent(frames).expect("the counts hold");
}
