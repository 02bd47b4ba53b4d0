//! Policy of transfer sizes and of eviction. It learns in memory that the program can write to, so it begins with any
//! bytes at all. No fetch plan leaves its area, nothing panics, and every decision ends.

use std::sync::atomic::AtomicU64;

use crate::input::Input;
use crate::scribble::scribble;
use farmem_engine::budget::Budget;
use farmem_engine::handshake::Sections;
use farmem_engine::policy::replacement::{Arrival, ENTRY_PAGES, Memory};
use farmem_engine::policy::site::{Fault, FetchPlan, Kind, Limits};
use farmem_engine::policy::what_if::Ghosts;
use farmem_engine::policy::{MAX_UNIT_LOG2, Run};
use farmem_engine::units::{Asked, Costs, Learned, Units};

const KINDS: [Kind; 5] = [Kind::FirstTouch, Kind::Stored, Kind::Victim, Kind::Marker, Kind::InFlight];
const WAYS: [Sections; 3] = [Sections::Auto, Sections::Marked, Sections::Off];
/// Pages of a chunk, as in the pager.
const AREA_PAGES: u32 = 1 << 13;
const SITES: u64 = 6;

thread_local! {
    static LEARNED: std::cell::RefCell<Box<Learned>> = std::cell::RefCell::default();
}

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    LEARNED.with_borrow_mut(|learned| decide(learned, Input(bytes)));
    !bytes.is_empty()
}

fn decide(learned: &mut Learned, mut input: Input<'_>) {
    let input = &mut input;
    scribble(learned, input);
    let frames = match input.byte() {
        few @ 0..200 => Budget::LEAST_FRAMES + u32::from(few) * 16,
        _ => input.int(),
    };
    let budget = Budget::new(frames, input.word());
    let (mut ghosts, ring) = (vec![u64::from(input.int()); 64], || (0..32).map(|_| AtomicU64::new(0)).collect());
    let queues: [Vec<AtomicU64>; 2] = std::array::from_fn(|_| ring());
    for word in queues.iter().flatten().take(usize::from(input.byte() % 96)) {
        word.store(input.word(), std::sync::atomic::Ordering::Relaxed);
    }
    let memory = Memory { probation: &queues[0], main: &queues[1] };
    let mut units = Units {
        learned,
        ghosts: Ghosts::over(&mut ghosts),
        sections: WAYS[usize::from(input.byte() % 3)],
        fixed_log2: input.byte(),
        base_log2: input.byte() % 12,
        costs: if input.byte().is_multiple_of(2) {
            Costs::FILE
        } else {
            Costs { fault_ns: input.int(), page_ns: input.int(), ahead_page_ns: input.int() }
        },
    };
    // Addresses have at most 47 bits, so page numbers have 35.
    let start = u64::from(input.int()) % (1 << 22) * u64::from(AREA_PAGES);
    let area = Run { first_page: start, pages: AREA_PAGES };
    let mut last = 0_u16;
    for _ in 0..64 {
        if input.0.is_empty() {
            break;
        }
        step(&mut units, input, memory, area, budget, &mut last);
    }
    assert!(units.learned.sites.known().all(|site| site.unit_pages <= 1 << MAX_UNIT_LOG2));
    let _ = (units.learned.what_if.at_half(), units.learned.what_if.at_double(), units.learned.what_if.faults());
}

fn step(units: &mut Units<'_>, input: &mut Input<'_>, memory: Memory<'_>, area: Run, budget: Budget, last: &mut u16) {
    let what = input.byte();
    // The next page, a step, or any page.
    *last = match what >> 6 {
        0 => last.wrapping_add(1),
        1 => last.wrapping_add(u16::from(input.byte())),
        2 => last.wrapping_sub(1),
        _ => input.half(),
    } % AREA_PAGES as u16;
    let page = area.first_page + u64::from(*last);
    match what % 16 {
        0..10 => {
            let (site, mark) = (0x1000 + u64::from(input.byte()) % SITES, input.half());
            let kind = KINDS[usize::from(what >> 4) % KINDS.len()];
            let here = input.word();
            let here = |other: u64| here >> (other % 64) & 1 != 0;
            let (plan, _) = units.plan(Asked { site, page, area, kind, mark }, budget, what & 32 != 0, here);
            keeps(&plan, page, area);
            let mut lost = 0;
            while units.next_lost(budget).is_some() {
                lost += 1;
                assert!(lost <= 4096, "no end of what is lost");
            }
            let mut more = 0;
            while more < plan.fetch.pages {
                let piece = Run { first_page: plan.fetch.first_page + u64::from(more), pages: 16 };
                let _ = units.learned.replacement.enter(memory, piece, Arrival::Probation);
                more += piece.pages;
            }
            units.fetched(plan.fetch, budget);
        }
        10 => directly(units, input, page),
        11 => units.evicted(page, budget),
        12 => units.section_begins(input.int() % 300),
        13 => units.section_ends(input.int() % 300, budget),
        14 => {
            let way = [Arrival::New, Arrival::Probation, Arrival::Reused][usize::from(what >> 4) % 3];
            let _ =
                units.learned.replacement.enter(memory, Run { first_page: page, pages: u32::from(input.half()) }, way);
        }
        _ => {
            let leaving = units.learned.replacement.next_victim(memory, budget.aside);
            assert!(leaving.is_none_or(|run| (1..=ENTRY_PAGES).contains(&run.pages)));
        }
    }
}

/// With a background, and with settings and an area that no pager has.
fn directly(units: &mut Units<'_>, input: &mut Input<'_>, page: u64) {
    let limits = Limits {
        budget_pages: input.int(),
        life_pages: input.int(),
        fault_ns: input.int(),
        page_ns: input.int(),
        ahead_page_ns: u32::from(input.byte()),
        base_log2: input.byte(),
        max_unit_log2: input.byte(),
    };
    let area = Run { first_page: page.saturating_sub(u64::from(input.half())), pages: input.int() };
    let kind = KINDS[usize::from(input.byte()) % KINDS.len()];
    let site = u64::from(input.byte()) % SITES;
    let fault = Fault { site, page, area, distance: input.int(), mark: input.half(), kind };
    let here = input.word();
    let plan = units.learned.sites.on_fault(&fault, &limits, |other| here >> (other % 64) & 1 != 0);
    let area = if area.contains(page) { area } else { Run { first_page: page, pages: 1 } };
    keeps(&plan, page, area);
}

/// Checks that the fetch plan contains the page, and lies within its area as a whole.
fn keeps(plan: &FetchPlan, page: u64, area: Run) {
    assert!(plan.fetch.contains(page), "{plan:?} without {page:#x}");
    assert!(plan.fetch.within(area) == plan.fetch, "{plan:?} leaves {area:?}");
    assert!(plan.fetch.pages <= 1 << MAX_UNIT_LOG2, "{plan:?}");
    for series in plan.ahead {
        assert!(series.run_pages <= 1 << MAX_UNIT_LOG2, "{plan:?}");
        for run in (0..series.runs).map(|n| series.run(n, area)) {
            assert!(run.pages == 0 || run.within(area) == run, "{plan:?} leaves {area:?}");
        }
    }
}
