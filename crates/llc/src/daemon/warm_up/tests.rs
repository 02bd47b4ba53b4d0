use std::cell::{Cell, RefCell};
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// Pages whose lines are in the partition, elsewhere in the cache, or in memory; every touch and flush takes time.
#[derive(Debug, Default)]
struct Cache {
    /// Location of all lines of each page: 0 memory, 1 anywhere, 2 the partition.
    place: RefCell<Vec<u8>>,
    merged: RefCell<Vec<bool>>,
    frames: RefCell<Vec<Option<u64>>>,
    cpu: Cell<Duration>,
    touched: Cell<usize>,
}

#[derive(Clone, Debug)]
struct Model(Rc<Cache>);

impl Model {
    fn new(pages: usize) -> Model {
        let cache = Cache::default();
        *cache.place.borrow_mut() = vec![1; pages];
        *cache.merged.borrow_mut() = vec![true; pages];
        *cache.frames.borrow_mut() = (0..pages as u64).map(Some).collect();
        Model(Rc::new(cache))
    }

    fn spends(&self, micros: u64) {
        self.0.cpu.set(self.0.cpu.get() + Duration::from_micros(micros));
    }

    fn in_partition(&self) -> Bytes {
        Pages(self.0.place.borrow().iter().filter(|place| **place == 2).count() as u64).bytes()
    }
}

impl Lines for Model {
    fn count(&self) -> usize {
        self.0.merged.borrow().len()
    }

    fn merged(&self) -> Result<Vec<bool>, Error> {
        self.spends(self.count() as u64);
        Ok(self.0.merged.borrow().clone())
    }

    fn frames(&self) -> Result<Vec<Option<u64>>, Error> {
        Ok(self.0.frames.borrow().clone())
    }

    fn flush(&self, pages: Range<usize>) -> Result<(), Error> {
        self.spends(pages.len() as u64);
        self.0.place.borrow_mut()[pages].fill(0);
        Ok(())
    }

    fn touch(&self, pages: Range<usize>) {
        self.spends(5 * pages.len() as u64);
        self.0.touched.set(self.0.touched.get() + pages.len());
        for place in &mut self.0.place.borrow_mut()[pages] {
            *place = if *place == 0 { 2 } else { *place };
        }
    }

    fn time_load(&self, page: usize, _: usize) -> Result<Ticks, Error> {
        self.spends(1);
        // Ours is one line of 64; the others stay in place.
        Ok(Ticks(if self.0.place.borrow()[page] == 0 { 300 } else { 60 }))
    }
}

/// Runs until this time; returns the rest at the end.
fn run(worker: &mut Worker<Model>, model: &Model, from: &mut Duration, to: u64, measured: bool) -> Duration {
    let mut rest = Duration::ZERO;
    while *from < Duration::from_secs(to) {
        let cpu = || model.0.cpu.get();
        let before = cpu();
        rest = worker.turn(*from, &cpu, &|| measured.then(|| model.in_partition())).unwrap();
        *from += rest + (cpu() - before) + Duration::from_micros(1);
    }
    rest
}

fn duty(part: f64) -> Fraction {
    Fraction::clamped(part)
}

const PAGES: usize = 1000;

fn worker(model: &Model, partitioned: bool, room_pages: u64) -> Worker<Model> {
    Worker::new(model.clone(), duty(0.01), partitioned, Pages(room_pages).bytes(), Duration::ZERO)
}

#[test]
fn all_lines_come_into_the_shared_partition_once_and_then_nothing_is_touched() {
    for measured in [true, false] {
        let model = Model::new(PAGES);
        let (mut worker, mut now) = (worker(&model, true, 4000), Duration::ZERO);
        run(&mut worker, &model, &mut now, 5, measured);
        assert_eq!(model.in_partition(), Pages(1000).bytes(), "{:?}", worker.state);
        assert_eq!((worker.state.placed_pages, worker.state.by_occupancy), (1000, measured));
        let touched = model.0.touched.get();
        run(&mut worker, &model, &mut now, 60, measured);
        // The calibration touches one page.
        assert!(model.0.touched.get() <= touched + 1, "{} more", model.0.touched.get() - touched);
        // 1000 pages of 5 µs are 5 ms: half a second at a hundredth of a CPU.
        assert!(worker.state.cpu_us >= 5000);
    }
}

#[test]
fn what_was_lost_comes_back_by_occupancy_without_touching_all() {
    let model = Model::new(PAGES);
    let (mut worker, mut now) = (worker(&model, true, 4000), Duration::ZERO);
    run(&mut worker, &model, &mut now, 5, true);
    let before = model.0.touched.get();
    model.0.place.borrow_mut()[..200].fill(0);
    run(&mut worker, &model, &mut now, 20, true);
    assert_eq!(model.in_partition(), Pages(1000).bytes());
    assert!(model.0.touched.get() - before <= 400, "{} touched for 200 lost", model.0.touched.get() - before);
}

#[test]
fn without_partitions_what_timed_loads_find_lost_is_touched_and_nothing_is_flushed_again() {
    let model = Model::new(PAGES);
    let (mut worker, mut now) = (worker(&model, false, 4000), Duration::ZERO);
    run(&mut worker, &model, &mut now, 5, false);
    let before = model.0.touched.get();
    // A quarter is lost, page by page.
    for page in (0..PAGES).step_by(4) {
        model.0.place.borrow_mut()[page] = 0;
    }
    run(&mut worker, &model, &mut now, 20, false);
    assert!(model.0.place.borrow().iter().all(|place| *place > 0));
    assert!((240..=260).contains(&(model.0.touched.get() - before)), "{}", model.0.touched.get() - before);
}

#[test]
fn pages_that_part_are_counted_by_who_left_and_come_back_when_they_are_merged_again() {
    let model = Model::new(PAGES);
    let (mut worker, mut now) = (worker(&model, true, 4000), Duration::ZERO);
    run(&mut worker, &model, &mut now, 5, false);
    model.0.merged.borrow_mut()[..30].fill(false);
    model.0.merged.borrow_mut()[50] = false;
    model.0.frames.borrow_mut()[50] = Some(99_999);
    // The kernel moved this one for both.
    model.0.frames.borrow_mut()[60] = Some(99_998);
    model.0.place.borrow_mut()[60] = 1;
    run(&mut worker, &model, &mut now, 8, false);
    let state = &worker.state;
    assert_eq!((state.parted_pages, state.unmerged_pages, state.merged_pages), (30, 1, 969));
    assert_eq!(model.0.place.borrow()[60], 2, "its new frame has other lines");
    model.0.merged.borrow_mut()[..30].fill(true);
    model.0.place.borrow_mut()[..30].fill(1);
    run(&mut worker, &model, &mut now, 20, false);
    assert!(model.0.place.borrow()[..30].iter().all(|place| *place == 2));
}

#[test]
fn a_shared_partition_holds_no_more_than_its_room_and_is_full_then() {
    let model = Model::new(PAGES);
    let (mut worker, mut now) = (worker(&model, true, 250), Duration::ZERO);
    run(&mut worker, &model, &mut now, 10, false);
    assert_eq!(worker.state.placed_pages, 250);
    assert_eq!(model.in_partition(), Pages(250).bytes());
    let touched = model.0.touched.get();
    run(&mut worker, &model, &mut now, 60, false);
    assert!(model.0.touched.get() <= touched + 1);
}

#[test]
fn until_ksm_has_merged_something_it_waits() {
    let model = Model::new(PAGES);
    model.0.merged.borrow_mut().fill(false);
    let (mut worker, mut now) = (worker(&model, true, 4000), Duration::ZERO);
    assert_eq!(run(&mut worker, &model, &mut now, 3, false), CHECK_FIRST);
    assert_eq!(model.0.touched.get(), 0);
    model.0.merged.borrow_mut()[10..20].fill(true);
    run(&mut worker, &model, &mut now, 5, false);
    assert_eq!((worker.state.merged_pages, worker.state.placed_pages), (10, 10));
}

proptest! {
    #[test]
    fn whatever_is_lost_the_duty_is_kept(
        losses in prop::collection::vec((0usize..PAGES, 0usize..PAGES), 1..20), part in 0.001f64..0.2, measured: bool,
    ) {
        let model = Model::new(PAGES);
        let mut worker = Worker::new(model.clone(), duty(part), true, Pages(4000).bytes(), Duration::ZERO);
        let mut now = Duration::ZERO;
        for (nth, (from, to)) in losses.into_iter().enumerate() {
            run(&mut worker, &model, &mut now, nth as u64 + 1, measured);
            model.0.place.borrow_mut()[from.min(to)..from.max(to)].fill(0);
            // One piece may be begun with hardly any allowance left.
            let piece = 5e-6 * PIECE_PAGES as f64;
            let spent = model.0.cpu.get().as_secs_f64();
            prop_assert!(spent <= part * now.as_secs_f64() + 2.0 * piece, "{spent} s of {now:?} at {part}");
        }
    }
}
