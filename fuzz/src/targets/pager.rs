//! The pager over a simulated machine. The bytes are a script: touches, sweeps, calls that change mappings, pins, pages
//! that the kernel holds, a budget that changes, a failing store and a corrupting one. The program always reads the
//! bytes that it wrote, and the pager never takes more frames than its limit.

mod numbers;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::input::Input;
use farmem_engine::PAGE_BYTES;
use farmem_engine::counters::{COUNTER_WORDS, Counter, Counters};
use farmem_engine::entry::Place;
use farmem_engine::handshake::Sections;
use farmem_engine::pager::{BATCHES_WORDS, Batches, Pager, Served, Touch, VictimQueue};
use farmem_engine::policy::what_if::Ghosts;
use farmem_engine::space::{CHUNK_PAGES, DIRECTORY_WORDS, Page, Space};
use farmem_engine::units::{Costs, Learned, Units};
use numbers::{Failure, Numbers, PAGES, address};

const NUMBERED: usize = 2 * CHUNK_PAGES as usize;
/// Fewer than in a real pager, so that the ring of the victim queue wraps. A real one has half as many as the budget
/// has frames, and 4096 more.
const SLOTS: usize = 1024;
const MOST_FRAMES: u64 = 640;
const WAYS: [Sections; 3] = [Sections::Off, Sections::Auto, Sections::Marked];

/// The tables, made once: the directory alone has 16 MiB.
struct Tables {
    directory: Vec<AtomicU32>,
    bases: Vec<AtomicU64>,
    entries: Vec<AtomicU64>,
    checksums: Vec<AtomicU64>,
    slots: Vec<AtomicU64>,
    queues: [Vec<AtomicU64>; 2],
    counters: [AtomicU64; COUNTER_WORDS],
    batches: Box<[AtomicU64; BATCHES_WORDS]>,
    ends: [AtomicU64; 3],
    learned: Box<Learned>,
    ghosts: Vec<u64>,
}

impl Tables {
    fn new() -> Tables {
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        Tables {
            directory: (0..DIRECTORY_WORDS).map(|_| AtomicU32::new(0)).collect(),
            bases: words(3),
            entries: words(NUMBERED),
            checksums: words(2 * NUMBERED),
            slots: words(SLOTS),
            queues: [words(1024), words(1024)],
            counters: [const { AtomicU64::new(0) }; COUNTER_WORDS],
            batches: Box::new([const { AtomicU64::new(0) }; BATCHES_WORDS]),
            ends: [const { AtomicU64::new(0) }; 3],
            learned: Box::default(),
            ghosts: vec![0; 1280],
        }
    }

    /// Restores the state of a new program.
    fn clear(&mut self) {
        let zeros = |words: &[AtomicU64]| words.iter().for_each(|word| word.store(0, Relaxed));
        [&self.bases, &self.slots, &self.queues[0], &self.queues[1]].into_iter().for_each(|words| zeros(words));
        [&self.counters[..], &self.batches[..], &self.ends[..]].into_iter().for_each(zeros);
        // The program lies at the end of one chunk and at the beginning of the next, in either order.
        let (half, chunk) = (PAGES as usize / 2, CHUNK_PAGES as usize);
        for pages in [0..half, chunk - half..chunk + half, 2 * chunk - half..2 * chunk] {
            zeros(&self.entries[pages.clone()]);
            zeros(&self.checksums[pages.start * 2..pages.end * 2]);
        }
        for page in [0, PAGES - 1] {
            self.directory[(address(page) >> 25) as usize].store(0, Relaxed);
        }
        *self.learned = Learned::default();
        self.ghosts.fill(0);
    }
}

thread_local! {
    static TABLES: RefCell<Tables> = RefCell::new(Tables::new());
}

struct World<'a> {
    pager: Pager<'a>,
    units: Units<'a>,
    machine: Numbers,
    expected: Vec<u64>,
    /// Pages that a call has pinned, and whether they are still there: not when the program gave them up.
    pins: Vec<(u64, bool)>,
}

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    TABLES.with_borrow_mut(|tables| {
        tables.clear();
        let mut input = Input(bytes);
        let Tables { directory, bases, entries, checksums, slots, queues, counters, batches, ends, learned, ghosts } =
            tables;
        let pager = Pager {
            space: Space::new(directory, bases),
            entries,
            checksums,
            victims: VictimQueue::new(slots, ends),
            queues: [&queues[0], &queues[1]],
            batches: Batches(batches),
            counters: Counters(counters),
        };
        let units = Units {
            learned,
            ghosts: Ghosts::over(ghosts),
            sections: WAYS[usize::from(input.byte() % 3)],
            fixed_log2: input.byte() % 9,
            base_log2: input.byte() % 4,
            costs: if input.byte().is_multiple_of(4) { Costs::SERVER.alone() } else { Costs::SERVER },
        };
        pager.counters.set(Counter::BudgetFrames, 256 + u64::from(input.byte()));
        let expected = vec![0; PAGES as usize];
        let mut world = World { pager, units, machine: Numbers::new(SLOTS), expected, pins: Vec::new() };
        world.begin(u64::from(input.byte() % 64));
        let (mut ended, understood) = (Ok(()), !input.0.is_empty());
        while !input.0.is_empty() && ended.is_ok() {
            ended = world.step(&mut input);
            // After a failure the program has ended, and its tables are not used again.
            if ended.is_ok() {
                world.consistent();
            }
        }
        if let Err(Failure::Corrupt(page)) = ended {
            assert!(world.machine.lies.contains(&page), "{page:?} was what the program had written");
        }
        understood
    })
}

impl World<'_> {
    /// Some pages were in memory before paging began.
    fn begin(&mut self, adopted: u64) {
        self.pager.space.mark(address(0), PAGES * PAGE_BYTES);
        for page in 0..adopted {
            self.machine.hold(page as usize, Some(page + 1));
            self.expected[page as usize] = page + 1;
            self.pager.adopt(&mut self.units, address(page));
        }
    }

    fn frames(&self) -> u64 {
        u64::from(self.pager.frames_in_use())
    }

    /// Runs one event of the script.
    fn step(&mut self, input: &mut Input<'_>) -> Result<(), Failure> {
        let what = input.byte();
        let page = u64::from(input.half()) % PAGES;
        let pages = 1 + u64::from(input.byte()).min(PAGES - page - 1);
        match what % 32 {
            0..6 => {
                return self.access(
                    page,
                    (what >= 128).then_some(u64::from(what) << 32 | page),
                    1 + u64::from(what >> 5),
                );
            }
            6..13 => {
                let stride = 1 + u64::from(what >> 5);
                for step in 0..pages * 2 {
                    if what & 16 != 0 && step % stride == 0 {
                        self.machine.run_batch(&self.pager);
                    }
                    let write = ((step + pages) % 3 == 0).then_some(page << 16 | step << 1 | 1);
                    self.access((page + step * stride) % PAGES, write, stride)?;
                }
            }
            13 => self.forget(page, pages)?,
            14 => {
                self.forget(page, pages)?;
                (page..page + pages).for_each(|page| self.machine.mapped[page as usize] = false);
            }
            15 => (page..page + pages).for_each(|page| self.machine.mapped[page as usize] = true),
            // The most that a call has.
            16 | 17 if self.pins.len() < 32 => {
                self.access(page, None, 9)?;
                if self.pager.pin(address(page)) {
                    self.pins.push((page, true));
                }
            }
            16..19 => {
                if let Some((page, _)) = self.pins.pop() {
                    self.pager.unpin(address(page));
                }
            }
            19 if self.machine.held.len() < 16 => {
                self.machine.held.insert(page);
            }
            19 | 20 => self.machine.held.clear(),
            21 => {
                let stay = self.pager.write_back_range(
                    &mut self.machine,
                    &mut self.units,
                    address(page),
                    pages * PAGE_BYTES,
                )?;
                let here = (page..page + pages).filter(|page| self.machine.program[*page as usize].is_some());
                assert_eq!(here.count(), stay as usize, "pages that are not pinned are evicted");
            }
            22 | 23 => self.move_to(page, u64::from(input.half()) % PAGES, pages)?,
            24 => {
                let all_is_here = self.pager.fault_in_all(&mut self.machine, &mut self.units)?;
                let away = (0..PAGES).filter(|page| {
                    let number = self.pager.space.page(address(*page));
                    let place = number.map_or(Place::Untouched, |number| self.pager.entry(number).place());
                    matches!(place, Place::Stored | Place::Victim)
                });
                assert_eq!(all_is_here, away.count() == 0, "what a fork needs is not all there");
                let [touched, zeros] =
                    [Counter::TouchedPages, Counter::ZeroPages].map(|counter| self.pager.counters.get(counter));
                let is_mapped = self.machine.mapped.iter().all(|mapped| *mapped);
                assert!(all_is_here || !is_mapped || touched - zeros > self.budget(), "it fits, and does not come");
            }
            25 => self.units.fixed_log2 = (pages % 9) as u8,
            26 => self.units.sections = WAYS[(pages % 3) as usize],
            27 if pages % 2 == 0 => self.units.section_begins(u32::from(what >> 5)),
            27 => self.units.section_ends(u32::from(what >> 5), self.pager.budget()),
            28 => self.pager.counters.set(Counter::BudgetFrames, page % MOST_FRAMES),
            29 => self.pager.counters.set(Counter::BudgetShare, if pages > 128 { 0 } else { pages << 9 }),
            // A failed store stays failed: an I/O batch may not have reported it yet.
            30 if what >= 128 && self.machine.fails_after != Some(0) => self.machine.fails_after = Some(pages),
            30 => self.machine.lie(page),
            _ if what >= 128 => {
                self.machine.run_batch(&self.pager);
            }
            _ => self.touch_nothing(page)?,
        }
        Ok(())
    }

    /// A load or a store of the program.
    fn access(&mut self, page: u64, write: Option<u64>, site: u64) -> Result<(), Failure> {
        let at = page as usize;
        if !self.machine.mapped[at] {
            return Ok(());
        }
        if self.machine.program[at].is_none() {
            let before = (self.frames(), self.budget(), self.pager.counters.get(Counter::FramesBeyond));
            self.machine.most = 0;
            let touch = Touch { address: address(page) + page % PAGE_BYTES, write: write.is_some(), site };
            let served = self.pager.touch(&mut self.machine, &mut self.units, touch)?;
            // An I/O batch that was complete may have mapped the page in.
            assert!(served == Served::Yes || served == Served::Already, "{served:?}");
            // Frames that were taken under a larger budget stay.
            let beyond = self.pager.counters.get(Counter::FramesBeyond) - before.2;
            let may = before.0.max(before.1).max(self.budget()) + beyond;
            assert!(self.machine.most <= may, "{} frames, and {may} may be", self.machine.most);
        }
        let content = self.machine.program[at].as_mut();
        let content = content.unwrap_or_else(|| panic!("page {page} was served, and is not there"));
        assert_eq!(*content, self.expected[at], "page {page}");
        if let Some(new) = write {
            (*content, self.expected[at]) = (new, new);
        }
        Ok(())
    }

    fn budget(&self) -> u64 {
        u64::from(self.pager.budget().frames)
    }

    /// A touch where the program has no memory, or of a page that another thread has mapped in already.
    fn touch_nothing(&mut self, page: u64) -> Result<(), Failure> {
        let at = page as usize;
        if self.machine.program[at].is_none() && self.machine.mapped[at] {
            return Ok(());
        }
        let touch = Touch { address: address(page), write: false, site: 3 };
        let served = self.pager.touch(&mut self.machine, &mut self.units, touch)?;
        assert_ne!(served, Served::Yes, "nothing came for page {page}");
        let outside = Touch { address: address(page) + (1 << 40), ..touch };
        assert_eq!(self.pager.touch(&mut self.machine, &mut self.units, outside)?, Served::NotPaged);
        Ok(())
    }

    fn forget(&mut self, page: u64, pages: u64) -> Result<(), Failure> {
        self.pager.settle(&mut self.machine, &mut self.units)?;
        self.pager.forget(address(page), pages * PAGE_BYTES);
        for page in page..page + pages {
            self.machine.hold(page as usize, None);
            self.expected[page as usize] = 0;
        }
        let gone = page..page + pages;
        self.pins.iter_mut().filter(|pin| gone.contains(&pin.0)).for_each(|pin| pin.1 = false);
        Ok(())
    }

    /// mremap(2) to a destination of its own, as the library does it.
    fn move_to(&mut self, from: u64, to: u64, pages: u64) -> Result<(), Failure> {
        let pages = pages.min(PAGES - from).min(PAGES - to);
        if from < to + pages && to < from + pages {
            return Ok(());
        }
        self.forget(to, pages)?;
        let (start, bytes) = (address(from), pages * PAGE_BYTES);
        self.pager.write_back_victims(&mut self.machine, &mut self.units, start, bytes)?;
        for page in 0..pages {
            let (old, new) = ((from + page) as usize, (to + page) as usize);
            self.machine.program[new] = self.machine.program[old].take();
            self.machine.mapped[new] = std::mem::replace(&mut self.machine.mapped[old], false);
            self.machine.held.remove(&(from + page));
            self.expected[new] = std::mem::take(&mut self.expected[old]);
        }
        let machine = &mut self.machine;
        let copy = |old: Page, new: Page| machine.copy_stored(old, new);
        assert!(self.pager.relocate(&mut self.units, start, address(to), bytes, copy), "there are numbers for all");
        self.forget(from, pages)
    }

    fn consistent(&self) {
        let (pager, machine) = (&self.pager, &self.machine);
        assert_eq!(pager.counters.get(Counter::ResidentPages), machine.resident());
        assert_eq!(self.frames(), machine.frames());
        let (mut stored, mut touched, mut zeros) = (0, 0, 0);
        for page in 0..PAGES {
            let Some(number) = pager.space.page(address(page)) else { continue };
            let place = pager.entry(number).place();
            assert_eq!(place == Place::Resident, machine.program[page as usize].is_some(), "page {page}");
            stored += u64::from(place == Place::Stored);
            touched += u64::from(pager.entry(number).is_touched());
            zeros += u64::from(pager.entry(number).is_of_zeros());
            assert!(!pager.entry(number).is_of_zeros() || self.expected[page as usize] == 0, "page {page}");
            if place == Place::Victim {
                let slot = pager.entry(number).slot();
                assert_eq!(
                    pager.victims.slot(slot),
                    farmem_engine::pager::Slot::Holds(number),
                    "page {page} in slot {slot}"
                );
            }
        }
        assert_eq!(
            [Counter::StoredPages, Counter::TouchedPages, Counter::ZeroPages]
                .map(|counter| pager.counters.get(counter)),
            [stored, touched, zeros]
        );
        for (page, _) in self.pins.iter().filter(|pin| pin.1) {
            assert!(machine.program[*page as usize].is_some(), "page {page} was pinned and left");
        }
    }
}
