//! masu's side of the memory shared with a paged program, which may write any value there at any time. The bytes are a
//! script: words that the program overwrites, and masu's work meanwhile: I/O batches, synchronous store requests,
//! counters. Pages of the store and of the memory are within their bounds, nothing panics, and every step ends.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use farmem::history::{History, Part};
use farmem::observation::Observed;
use farmem::report::{Counted, Report};
use farmem_engine::counters::{COUNTER_WORDS, Counters};
use farmem_engine::pager::{BATCH_PAGES, BATCHES_PAGES, BATCHES_WORDS, BatchWorker, Batches, Checksum};
use farmem_engine::policy::MAX_UNIT_LOG2;
use farmem_engine::segment::StoreRequest;
use farmem_engine::space::Page;
use farmem_engine::units::Learned;

use crate::input::Input;
use crate::scribble::scribble;

thread_local! {
    static LEARNED: RefCell<Box<Learned>> = RefCell::default();
}

/// The workers of masu that run I/O batches: checks that each request is within bounds.
struct Bounds {
    fails: bool,
    done: u32,
}

impl Bounds {
    fn check(&mut self, first: u32, pages: u32) -> Result<(), ()> {
        assert!(pages <= BATCH_PAGES && first + pages <= BATCHES_PAGES, "{pages} pages at {first}");
        self.done += 1;
        if self.fails { Err(()) } else { Ok(()) }
    }
}

impl BatchWorker for Bounds {
    type Trouble = ();

    fn fetch(&mut self, _: Page, first: u32, checksums: &mut [Checksum]) -> Result<(), ()> {
        self.check(first, checksums.len() as u32)
    }

    fn write(&mut self, _: Page, first: u32, pages: u32) -> Result<(), ()> {
        self.check(first, pages)
    }

    fn invalid(&mut self) {}
}

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let batches: [AtomicU64; BATCHES_WORDS] = [const { AtomicU64::new(0) }; BATCHES_WORDS];
    let counters: [AtomicU64; COUNTER_WORDS] = [const { AtomicU64::new(0) }; COUNTER_WORDS];
    let request: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];
    let mut workers = Bounds { fails: false, done: 0 };
    let (mut number, mut asked) = (0, 0);
    let mut history = History::default();
    LEARNED.with_borrow_mut(|learned| {
        scribble(learned, &mut input);
        while !input.0.is_empty() {
            match input.byte() % 8 {
                0 | 1 => batches[usize::from(input.half()) % BATCHES_WORDS].store(word(&mut input), Relaxed),
                2 => {
                    // The program's request for an I/O batch, at its place.
                    let first = BATCHES_WORDS - (1 + usize::from(input.byte() % 8)) * ((BATCHES_WORDS - 517) / 8);
                    batches[0].store(u64::from(input.byte() % 12), Relaxed);
                    for (at, value) in
                        [1, u64::from(input.byte() % 3), word(&mut input), word(&mut input)].into_iter().enumerate()
                    {
                        batches[first + at].store(value, Relaxed);
                    }
                }
                3 => counters[usize::from(input.byte()) % COUNTER_WORDS].store(word(&mut input), Relaxed),
                4 => request[usize::from(input.byte() % 5)].store(word(&mut input) as u32, Relaxed),
                5 => {
                    workers.fails = input.byte() % 8 == 7;
                    number += u64::from(Batches(&batches).run_batch(&mut workers, number) == Ok(true));
                }
                6 => {
                    if let Some((ask, _, pages)) = StoreRequest(&request).asked() {
                        assert!(ask == farmem_engine::segment::Ask::Copy || (1..=1 << MAX_UNIT_LOG2).contains(&pages));
                        StoreRequest(&request).answer(true);
                        asked += 1;
                    }
                }
                _ => {
                    history.read(Duration::from_millis(input.half().into()), Part::of(learned));
                    let counted = Counted::of(
                        1,
                        &Counters(&counters),
                        learned,
                        Observed { history: history.clone(), ..Observed::default() },
                    );
                    assert!(counted.stall_s >= 0.0, "{counted:?}");
                    let report = Report::of(1.0, &[counted.clone(), counted]);
                    assert!(report.victim_queue_hit_rate.is_none_or(|rate| (0.0..=1.0).contains(&rate)), "{report:?}");
                    asked += 1;
                }
            }
        }
    });
    workers.done + asked > 0
}

/// Numbers at the borders, and any.
fn word(input: &mut Input<'_>) -> u64 {
    match input.byte() % 8 {
        0 => u64::MAX - u64::from(input.byte()),
        1 => u64::from(u32::MAX) + u64::from(input.byte()),
        2 => 1 << (input.byte() % 64),
        3 => input.word(),
        _ => u64::from(input.byte()),
    }
}
