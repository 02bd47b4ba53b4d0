//! Whole runs of trimming over a model program, worked out by hand and found by chance.

#![expect(clippy::unwrap_used, reason = "test support")]

#[path = "trim/moves.rs"]
mod moves;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use access::residency::WindowState;
use hugepages::act::{FullPromotions, promote_full};
use hugepages::program::Program;
use hugepages::trim::observe::Content;
use hugepages::trim::policy::{MEASURED, PAGES_PER_SAMPLE, Settings};
use hugepages::trim::{Round, Trimmer};
use linux::Error;
use linux::maps::{Mapping, Permissions};
use linux::process_madvise::Advice;
use proptest::prelude::*;
use rustix::io::Errno;
use units::{AddressRange, Bytes, Fraction, Pages, Window};

const ALL: u64 = 512;
const FIRST: u64 = 0x1000;

/// One window of the model.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Number of non-zero pages, from the first on.
    filled: u64,
    huge: bool,
    shared: bool,
    locked: bool,
    /// Interval at which a page is filled.
    fills_every: Option<Duration>,
    /// Number of splits.
    splits: u32,
}

impl Cell {
    fn huge(filled: u64) -> Cell {
        Cell { filled, huge: true, shared: false, locked: false, fills_every: None, splits: 0 }
    }

    fn resident(&self) -> u64 {
        if self.huge { ALL } else { self.filled }
    }

    fn zero(&self) -> u64 {
        self.resident() - self.filled
    }
}

#[derive(Debug)]
struct World {
    cells: Vec<Cell>,
    now: Duration,
    elsewhere: u64,
    /// Pages elsewhere that were freed lazily, resident still.
    lazily_freed: u64,
    ended: bool,
    halted: bool,
    new_memory: bool,
    /// Its only mapping, as indices of cells; all of them if not set.
    maps: Option<(u64, u64)>,
    /// It moves its windows to the other half at the next question for its resident memory.
    moves_after_scan: bool,
    /// The program's windows after the exec that comes before the next collapse.
    execs_to: Option<Vec<Cell>>,
    /// It became another program since [`Program::renew`].
    is_another: bool,
    cpu: Duration,
    returns_zero_pages: bool,
    collapses: u32,
    /// Reads of windows that were not huge.
    broken: Vec<String>,
}

#[derive(Clone)]
struct Model(Rc<RefCell<World>>);

impl Model {
    fn of(cells: Vec<Cell>) -> Model {
        Model(Rc::new(RefCell::new(World {
            cells,
            now: Duration::ZERO,
            elsewhere: 0,
            lazily_freed: 0,
            ended: false,
            halted: false,
            new_memory: false,
            maps: None,
            moves_after_scan: false,
            execs_to: None,
            is_another: false,
            cpu: Duration::ZERO,
            returns_zero_pages: true,
            collapses: 0,
            broken: Vec::new(),
        })))
    }

    fn trimmer(&self, settings: Settings) -> Trimmer {
        Trimmer::of(Box::new(self.clone()), Box::new(self.clone()), settings)
    }

    fn change(&self, index: usize, change: impl FnOnce(&mut Cell)) {
        change(&mut self.0.borrow_mut().cells[index]);
    }

    fn cells(&self) -> Vec<Cell> {
        self.0.borrow().cells.clone()
    }

    fn ask<T>(&self, takes_us: u64, answer: impl FnOnce(&mut World) -> T) -> Result<T, Error> {
        let mut world = self.0.borrow_mut();
        world.cpu += Duration::from_micros(takes_us);
        if world.ended { Err(Error::of_process("ask", "a model", Errno::SRCH)) } else { Ok(answer(&mut world)) }
    }

    /// Lets time pass for the program.
    fn pass(&self, time: Duration) {
        let mut world = self.0.borrow_mut();
        let (from, to) = (world.now, world.now + time);
        world.now = to;
        for cell in &mut world.cells {
            if let Some(every) = cell.fills_every {
                let pages = to.as_nanos() / every.as_nanos() - from.as_nanos() / every.as_nanos();
                cell.filled = (cell.filled + u64::try_from(pages).unwrap()).min(ALL);
            }
        }
    }

    /// Rounds until `end`, each at the time that the last one requested.
    fn run_until(&self, trimmer: &mut Trimmer, end: Duration) -> Vec<Round> {
        let mut rounds = Vec::new();
        while self.0.borrow().now < end {
            let now = self.0.borrow().now;
            let round = trimmer.round(now, &|| false).unwrap();
            rounds.push(round);
            self.pass(round.next_scan);
        }
        assert_eq!(self.0.borrow().broken, Vec::<String>::new());
        rounds
    }
}

fn to_the_other_half(cells: &mut [Cell]) {
    let half = cells.len() / 2;
    cells.rotate_left(half);
}

fn index(window: Window) -> usize {
    usize::try_from(window.0 - FIRST).unwrap()
}

impl Program for Model {
    fn mappings(&self) -> Result<Vec<Mapping>, Error> {
        self.ask(5, |world| {
            let (first, end) = world.maps.unwrap_or((0, world.cells.len() as u64));
            let [start, end] = [first, end].map(|index| Window(FIRST + index).start().0);
            vec![Mapping {
                range: AddressRange::new(start, end).unwrap(),
                permissions: Permissions { read: true, write: true, execute: false, shared: false },
                offset: 0,
                device: (0, 0),
                inode: 0,
                path: linux::Untrusted::default(),
            }]
        })
    }

    fn renew(&self) -> Result<bool, Error> {
        self.ask(1, |world| std::mem::take(&mut world.is_another))
    }

    fn state(&self, window: Window) -> Result<Option<WindowState>, Error> {
        self.ask(3, |world| {
            if world.is_another {
                return None;
            }
            let cell = world.cells[index(window)];
            let resident = Pages(cell.resident());
            let shared = if cell.shared { resident } else { Pages(0) };
            Some(WindowState { resident, shared, huge: cell.huge, ..WindowState::default() })
        })
    }

    fn preallocate(&self) {}

    fn free_preallocated(&self) {}

    fn advise(&self, range: AddressRange, advice: Advice) -> Result<(), Errno> {
        let advised = self.ask(500, |world| {
            let returns = world.returns_zero_pages;
            world.collapses += u32::from(advice == Advice::Collapse);
            if let Some(cells) = world.execs_to.take_if(|_| advice == Advice::Collapse) {
                (world.cells, world.new_memory, world.is_another) = (cells, true, true);
            }
            let cell = &mut world.cells[index(range.start().window())];
            if advice == Advice::Collapse {
                cell.huge = true;
            } else if cell.locked {
                return Err(Errno::INVAL);
            } else {
                cell.splits += u32::from(cell.huge);
                cell.filled = if cell.huge && !returns { ALL } else { cell.filled };
                cell.huge = false;
            }
            Ok(())
        });
        advised.map_err(|_| Errno::SRCH)?
    }

    fn resident(&self) -> Result<Bytes, Error> {
        self.ask(15, |world| {
            if std::mem::take(&mut world.moves_after_scan) {
                to_the_other_half(&mut world.cells);
            }
            let cells: u64 = world.cells.iter().map(Cell::resident).sum();
            Pages(cells + world.elsewhere + world.lazily_freed).bytes()
        })
    }

    fn halted(&self) -> Option<linux::halted::Halted> {
        self.0.borrow().halted.then_some(linux::halted::Halted::Stopped)
    }

    fn lazily_freed_bytes(&self) -> Result<Bytes, Error> {
        self.ask(1, |world| Pages(world.lazily_freed).bytes())
    }

    fn resident_exact(&self) -> Result<Bytes, Error> {
        self.resident()
    }

    fn cgroup_headroom(&self) -> Option<Bytes> {
        None
    }

    fn forbids(&self, _: Window) -> bool {
        false
    }
}

impl Content for Model {
    fn is_new_memory(&self) -> Result<bool, Error> {
        self.ask(1, |world| std::mem::take(&mut world.new_memory))
    }

    fn huge_windows(&self, range: AddressRange) -> Result<Vec<Window>, Error> {
        self.ask(1, |world| {
            let is_huge = |window: &Window| world.cells.get(index(*window)).is_some_and(|cell| cell.huge);
            range.whole_windows().filter(is_huge).collect()
        })
    }

    fn sample(&self, window: Window) -> Result<Option<Pages>, Error> {
        self.ask(45, |world| {
            let cell = world.cells[index(window)];
            (cell.huge && !cell.shared).then(|| Pages(cell.zero() / PAGES_PER_SAMPLE as u64))
        })
    }

    fn count(&self, window: Window) -> Result<Option<Pages>, Error> {
        self.ask(450, |world| {
            let cell = world.cells[index(window)];
            if !cell.huge {
                world.broken.push(format!("window {} is not huge and was read", index(window)));
            }
            (cell.huge && !cell.shared).then(|| Pages(cell.zero()))
        })
    }

    fn cpu_time(&self) -> Duration {
        self.0.borrow().cpu
    }
}

fn settings(percent: f64) -> Settings {
    Settings { max_extra_rss: Fraction::clamped(percent / 100.0), ..MEASURED }
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn thin_windows_are_given_back_and_dense_ones_stay() {
    let model = Model::of([vec![Cell::huge(64); 10], vec![Cell::huge(ALL); 10]].concat());
    let mut trimmer = model.trimmer(settings(10.0));
    let rounds = model.run_until(&mut trimmer, seconds(10));
    // 10 · 448 = 4,480 pages are too many for a tenth of 10,240 − 4,480 = 5,760, which is 576: one window may stay.
    assert_eq!((trimmer.totals.demoted, trimmer.totals.returned), (9, Pages(9 * 448).bytes()));
    let last = rounds.last().unwrap();
    assert_eq!((last.huge_windows, last.extra, last.allowed.pages()), (11, Pages(448).bytes(), Pages(576)));
    assert!(model.cells()[10..].iter().all(|cell| cell.huge));
}

#[test]
fn lazily_freed_memory_allows_no_waste() {
    let split = |elsewhere, lazily_freed| {
        let model = Model::of(vec![Cell::huge(412); 4]);
        {
            let mut world = model.0.borrow_mut();
            (world.elsewhere, world.lazily_freed) = (elsewhere, lazily_freed);
        }
        model.run_until(&mut model.trimmer(settings(10.0)), seconds(60));
        model.cells().iter().filter(|cell| cell.splits > 0).count()
    };
    // 400 zero pages: a tenth of the 4,000 others. Pages freed lazily are none of them: 300 of 3,000 are left.
    assert_eq!((split(2352, 0), split(1352, 1000)), (0, 1));
}

#[test]
fn nothing_is_split_while_the_program_cannot_run() {
    let model = Model::of(vec![Cell::huge(20); 4]);
    let mut trimmer = model.trimmer(settings(0.0));
    trimmer.round(seconds(0), &|| false).unwrap();
    model.0.borrow_mut().halted = true;
    model.run_until(&mut trimmer, seconds(600));
    assert_eq!((trimmer.totals.demoted, trimmer.totals.counted), (0, 0));
    model.0.borrow_mut().halted = false;
    model.run_until(&mut trimmer, seconds(660));
    assert_eq!(trimmer.totals.demoted, 4);
}

#[test]
fn nothing_is_split_in_the_first_two_rounds() {
    let model = Model::of(vec![Cell::huge(64); 10]);
    let mut trimmer = model.trimmer(settings(0.0));
    let rounds = model.run_until(&mut trimmer, seconds(5));
    let demoted: Vec<u64> = rounds.iter().map(|round| round.demoted).take(4).collect();
    assert_eq!(demoted, [0, 0, 10, 0]);
    assert_eq!(rounds[2].returned, Pages(10 * 448).bytes());
}

#[test]
fn a_window_that_is_being_filled_is_not_split_until_it_is_left_thin() {
    // A page every 5 ms for 2 s, and then no more.
    let model = Model::of(vec![Cell { fills_every: Some(Duration::from_millis(5)), ..Cell::huge(0) }]);
    let mut trimmer = model.trimmer(settings(0.0));
    model.run_until(&mut trimmer, seconds(2));
    assert_eq!(trimmer.totals.demoted, 0);
    model.change(0, |cell| cell.fills_every = None);
    model.run_until(&mut trimmer, seconds(60));
    assert_eq!(trimmer.totals.demoted, 1);
    // A window that fills at a page in 200 ms changes no sample in some scans; the counts tell.
    let slow = Model::of(vec![Cell { fills_every: Some(Duration::from_millis(200)), ..Cell::huge(0) }]);
    let mut trimmer = slow.trimmer(settings(0.0));
    slow.run_until(&mut trimmer, seconds(100));
    assert_eq!(trimmer.totals.demoted, 0);
}

#[test]
fn a_window_that_is_huge_again_is_given_back_ever_later() {
    let model = Model::of(vec![Cell::huge(64)]);
    let mut trimmer = model.trimmer(settings(0.0));
    let mut scans = Vec::new();
    while trimmer.totals.scans < 200 {
        let now = model.0.borrow().now;
        let round = trimmer.round(now, &|| false).unwrap();
        if round.demoted > 0 {
            scans.push(trimmer.totals.scans);
            model.change(0, |cell| cell.huge = true); // khugepaged
        }
        model.pass(round.next_scan);
    }
    let distances: Vec<u64> = scans.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(distances.len() >= 4, "{scans:?}");
    assert!(distances.iter().zip([2, 4, 8, 16, 16]).all(|(distance, least)| *distance > least), "{scans:?}");
}

#[test]
fn a_window_that_fills_up_after_it_was_split_is_promoted_again_for_nothing() {
    let model = Model::of(vec![Cell::huge(64)]);
    let mut trimmer = model.trimmer(settings(0.0));
    model.run_until(&mut trimmer, seconds(10));
    assert_eq!(trimmer.totals.demoted, 1);
    model.change(0, |cell| cell.filled = 511);
    model.run_until(&mut trimmer, seconds(200));
    assert_eq!((trimmer.totals.promoted_again, model.0.borrow().collapses), (0, 0));
    model.change(0, |cell| cell.filled = ALL);
    model.run_until(&mut trimmer, seconds(500));
    assert_eq!((trimmer.totals.demoted, trimmer.totals.promoted_again, model.0.borrow().collapses), (1, 1, 1));
}

#[test]
fn locked_windows_are_left_alone_and_shared_ones_wait() {
    let locked = Cell { locked: true, ..Cell::huge(64) };
    let shared = Cell { shared: true, ..Cell::huge(64) };
    let model = Model::of(vec![locked, shared, Cell::huge(64)]);
    let mut trimmer = model.trimmer(settings(0.0));
    let rounds = model.run_until(&mut trimmer, seconds(200));
    assert_eq!((trimmer.totals.demoted, trimmer.left_alone()), (1, 1));
    assert_eq!(trimmer.totals.shared_left, (1, Bytes::mib(2)), "its content is not known");
    let last = rounds.last().unwrap();
    assert_eq!((last.huge_windows, last.extra), (2, Bytes(0)));
    model.change(1, |cell| cell.shared = false);
    model.run_until(&mut trimmer, seconds(2000));
    assert_eq!(trimmer.totals.demoted, 2);
}

#[test]
fn windows_that_a_fork_comes_to_share_stay_with_the_waste_that_was_sampled() {
    let model = Model::of(vec![Cell::huge(64), Cell::huge(512)]);
    let mut trimmer = model.trimmer(settings(0.0));
    trimmer.round(Duration::ZERO, &|| false).unwrap();
    assert_eq!(trimmer.totals.shared_left, (0, Bytes(0)));
    (0..2).for_each(|index| model.change(index, |cell| cell.shared = true));
    model.run_until(&mut trimmer, seconds(100));
    assert_eq!(trimmer.totals.shared_left, (1, Pages(448).bytes()), "the other one is full");
}

#[test]
fn a_program_that_goes_on_as_it_is_costs_less_than_a_percent_and_ever_less() {
    // 4 GiB: dense windows, and thin ones within the allowance.
    let model = Model::of([vec![Cell::huge(ALL); 2000], vec![Cell::huge(300); 48]].concat());
    let mut trimmer = model.trimmer(settings(10.0));
    model.run_until(&mut trimmer, seconds(200));
    let before = model.0.borrow().cpu;
    assert!(before < seconds(2), "{before:?}");
    let rounds = model.run_until(&mut trimmer, seconds(1200));
    let spent = model.0.borrow().cpu - before;
    assert!(spent < seconds(1), "0.1 % of 1,000 s: {spent:?}");
    assert!(rounds.iter().all(|round| round.next_scan >= seconds(5)));
}

#[test]
fn much_work_is_done_in_batches_with_pauses() {
    let model = Model::of(vec![Cell::huge(64); 1000]);
    let mut trimmer = model.trimmer(settings(0.0));
    let rounds = model.run_until(&mut trimmer, seconds(60));
    assert_eq!(trimmer.totals.demoted, 1000);
    assert!(rounds.iter().all(|round| round.demoted <= MEASURED.windows_at_once as u64));
    // Each is counted twice, and not once more.
    assert_eq!(trimmer.totals.counted, 2000);
    let cpu = model.0.borrow().cpu;
    assert!(cpu < seconds(2), "{cpu:?}");
}

#[test]
fn where_splitting_returns_nothing_it_is_given_up() {
    let model = Model::of(vec![Cell::huge(64); 100]);
    model.0.borrow_mut().returns_zero_pages = false;
    let mut trimmer = model.trimmer(settings(0.0));
    model.run_until(&mut trimmer, seconds(100));
    assert_eq!((trimmer.totals.demoted, trimmer.returns_memory()), (4, false));
}

#[test]
fn after_exec_nothing_that_was_known_holds() {
    let model = Model::of(vec![Cell::huge(64); 2]);
    let mut trimmer = model.trimmer(settings(0.0));
    model.run_until(&mut trimmer, seconds(2));
    model.0.borrow_mut().new_memory = true;
    let round = trimmer.round(seconds(2), &|| false).unwrap();
    assert_eq!((round.demoted, round.huge_windows), (0, 2), "seen for the first time");
}

#[test]
fn a_collapse_that_hits_the_program_after_exec_is_split_again_and_counted() {
    for (returns_zero_pages, returned) in [(true, ALL - 100), (false, 0)] {
        let model = Model::of(vec![Cell::huge(64); 2]);
        let mut trimmer = model.trimmer(settings(0.0));
        model.run_until(&mut trimmer, seconds(10));
        assert_eq!((trimmer.totals.demoted, trimmer.totals.returned), (2, Pages(2 * (ALL - 64)).bytes()));
        model.0.borrow_mut().returns_zero_pages = returns_zero_pages;
        model.0.borrow_mut().execs_to = Some(vec![Cell { huge: false, ..Cell::huge(100) }; 2]);
        (0..2).for_each(|index| model.change(index, |cell| cell.filled = ALL));
        model.run_until(&mut trimmer, seconds(500));
        assert_eq!((trimmer.totals.promoted_again, trimmer.totals.demoted), (1, 3));
        assert_eq!(trimmer.totals.returned, Pages(2 * (ALL - 64) + returned).bytes());
        assert_eq!(model.0.borrow().collapses, 1, "the other windows are of a program that is gone");
        assert!(model.cells().iter().all(|cell| !cell.huge));
    }
}

#[test]
fn making_full_windows_huge_ends_at_an_exec_and_says_so() {
    let full = Cell { huge: false, ..Cell::huge(ALL) };
    for (locked, left) in [(false, 0), (true, 1)] {
        let model = Model::of(vec![full; 4]);
        let windows: Vec<Window> = (FIRST..FIRST + 4).map(Window).collect();
        let made = |windows: &[Window]| promote_full(&model, windows, &mut |_| {}).unwrap();
        assert_eq!(made(&windows[..1]), FullPromotions { windows: 1, ..FullPromotions::default() });
        model.0.borrow_mut().execs_to = Some(vec![Cell { locked, ..full }; 4]);
        assert_eq!(made(&windows), FullPromotions { windows: left, is_another: true, ..FullPromotions::default() });
        assert_eq!(model.0.borrow().collapses, 2);
    }
}

#[test]
fn a_stop_ends_the_round_and_a_program_that_ended_is_gone() {
    let model = Model::of(vec![Cell::huge(64); 100]);
    let mut trimmer = model.trimmer(settings(0.0));
    model.run_until(&mut trimmer, seconds(2));
    let left = RefCell::new(5);
    let stop = || {
        let mut left = left.borrow_mut();
        *left = u32::saturating_sub(*left, 1);
        *left == 0
    };
    trimmer.round(seconds(9), &stop).unwrap();
    assert!(trimmer.totals.demoted <= 4);
    model.0.borrow_mut().ended = true;
    assert!(trimmer.round(seconds(10), &|| false).unwrap_err().is_gone());
}

proptest! {
    #[test]
    fn what_is_left_fits_and_no_window_was_split_for_nothing(
        filled in prop::collection::vec(0u64..=ALL, 1..60),
        elsewhere in 0u64..20_000,
        percent in 0.0f64..60.0,
    ) {
        let model = Model::of(filled.iter().map(|filled| Cell::huge(*filled)).collect());
        model.0.borrow_mut().elsewhere = elsewhere;
        let mut trimmer = model.trimmer(settings(percent));
        let rounds = model.run_until(&mut trimmer, seconds(60));
        let last = rounds.last().unwrap();
        prop_assert!(last.extra <= last.allowed);
        let cells = model.cells();
        let split: BTreeSet<usize> = (0..cells.len()).filter(|index| cells[*index].splits > 0).collect();
        prop_assert!(split.iter().all(|index| filled[*index] < ALL && cells[*index].splits == 1));
        let back: u64 = split.iter().map(|index| ALL - filled[*index]).sum();
        prop_assert_eq!(trimmer.totals.returned, Pages(back).bytes());
        // To the page, for any samples: all of it may hold a few pages that the samples did not see.
        let extra: u64 = cells.iter().map(Cell::zero).sum();
        let unseen = PAGES_PER_SAMPLE as u64 * cells.len() as u64;
        let base = elsewhere + filled.iter().sum::<u64>();
        prop_assert!(Pages(extra.saturating_sub(unseen)).bytes() <= Pages(base).bytes().scaled(percent / 100.0));
    }

    #[test]
    fn whatever_happens_the_counts_hold(
        filled in prop::collection::vec(0u64..=ALL, 1..8),
        happenings in prop::collection::vec((0usize..8, 0u8..6, 0u64..=ALL), 0..60),
    ) {
        let model = Model::of(filled.iter().map(|filled| Cell::huge(*filled)).collect());
        let mut trimmer = model.trimmer(settings(5.0));
        for (at, what, pages) in happenings {
            let now = model.0.borrow().now;
            let round = trimmer.round(now, &|| false).unwrap();
            model.pass(round.next_scan);
            model.change(at % filled.len(), |cell| match what {
                0 => cell.huge = true,
                1 => cell.huge = false,
                2 => cell.filled = pages,
                3 => cell.shared = pages > 256,
                4 => cell.locked = pages > 256,
                _ => {}
            });
        }
        let splits: u32 = model.cells().iter().map(|cell| cell.splits).sum();
        prop_assert_eq!(trimmer.totals.demoted, u64::from(splits));
        prop_assert!(trimmer.totals.promoted_again <= u64::from(model.0.borrow().collapses));
        prop_assert_eq!(&model.0.borrow().broken, &Vec::<String>::new());
    }
}
