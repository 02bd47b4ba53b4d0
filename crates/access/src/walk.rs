//! The page-table walk: every accessed bit of a process, read by BPF, exact, at about a third of a millisecond per
//! GiB.
//!
//! `program` loads and runs the BPF program and is the one file here with unsafe code; `record` is the record format
//! of the two sides; this file makes an [`Observer`] of it. The clear is `/proc/PID/clear_refs`, which flushes no TLB. A
//! page whose translation stays in the TLB is not seen again. That is intended: a page that costs no page walk gains
//! nothing from a huge page.
//!
//! A scan takes no lock and is a hint: callers check again, before they act, through an interface that locks.

mod program;
mod record;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use linux::clear_refs::{self, Forget};
use linux::{Error, KernelFiles, Pid};
use rustix::io::Errno;
use units::{Address, Bytes, Window, cast};

use crate::backend::{Backend, Unavailable};
use crate::estimate;
use crate::map::{AccessMap, Class, PageSet, WindowHeat};
use crate::observer::{Cost, Observer, Stopwatch};
use program::{Link, Program};
use record::{WINDOW_HUGE, WINDOW_UNREADABLE, WindowRecord};

/// The loaded and calibrated walk. Loading costs about 0.1 s (the kernel's type information), so it is done once and
/// shared by all watched processes.
#[derive(Clone, Debug)]
pub struct Walker(Rc<RefCell<Program>>);

impl Walker {
    /// Loads the program and finds the base of the kernel's direct map.
    ///
    /// # Errors
    /// Reason for which this host does not allow it, and the remedy.
    pub fn load() -> Result<Walker, Unavailable> {
        let mut program = Program::load()?;
        program.calibrate()?;
        Ok(Walker(Rc::new(RefCell::new(program))))
    }

    /// Number of page-table levels, 4 or 5: as found by walking, not the processor's capability.
    pub fn page_table_levels(&self) -> u32 {
        self.0.borrow().levels()
    }
}

/// A process watched by the walk.
#[derive(Debug)]
pub struct WalkObserver<F> {
    walker: Walker,
    files: F,
    pid: Pid,
    link: Link,
    address_space: Option<u64>,
    replaced: bool,
    began: Instant,
    scan_ages: Vec<Duration>,
    map: AccessMap,
    cost: Cost,
}

impl<F: KernelFiles> WalkObserver<F> {
    /// Watches `pid`. Nothing is cleared before `begin`.
    ///
    /// # Errors
    /// `Gone` when there is no such process, or it has no memory (a kernel thread, a zombie).
    pub fn new(walker: Walker, files: F, pid: Pid) -> Result<WalkObserver<F>, Error> {
        let link = walker.0.borrow_mut().link(pid.0)?;
        let mut observer = WalkObserver {
            walker,
            files,
            pid,
            link,
            address_space: None,
            replaced: false,
            began: Instant::now(),
            scan_ages: Vec::new(),
            map: AccessMap::empty(Backend::BpfWalk),
            cost: Cost::default(),
        };
        observer.read(&mut |_| ())?;
        Ok(observer)
    }

    /// One scan of the whole address space.
    fn read(&mut self, see: &mut dyn FnMut(&WindowRecord)) -> Result<(), Error> {
        let space = self.walker.0.borrow_mut().read(&self.link, see)?;
        if space == 0 {
            return Err(Error::of_process("walk", format!("process {}", self.pid), Errno::SRCH));
        }
        if self.address_space.is_some_and(|before| before != space) {
            self.replaced = true;
        }
        self.address_space = Some(space);
        Ok(())
    }

    /// Classes after the last scan.
    fn classes(&self) -> Vec<Class> {
        let scans: u32 = cast::fits(self.scan_ages.len());
        let mut classes = vec![Class::default()];
        let mut before = Duration::ZERO;
        for (accessed_reads, age) in (1..=scans).rev().zip(&self.scan_ages) {
            classes.push(Class { accessed_reads, rate: estimate::rate_between(before, *age) });
            before = *age;
        }
        classes
    }
}

impl<F: KernelFiles> Observer for WalkObserver<F> {
    fn backend(&self) -> Backend {
        Backend::BpfWalk
    }

    fn begin(&mut self) -> Result<(), Error> {
        let present = self.map.present();
        let stopwatch = Stopwatch::start();
        clear_refs::clear(&self.files, self.pid, Forget::AllPages)?;
        self.began = Instant::now();
        // The memory covered by the clear is known from the scan before it; for the first clear it is counted at the
        // first scan.
        self.cost.clear.add(stopwatch.elapsed(), present);
        self.scan_ages.clear();
        self.replaced = false;
        self.map.windows.iter_mut().for_each(WindowHeat::forget);
        self.map.classes = self.classes();
        self.map.observed = Duration::ZERO;
        if present == Bytes(0) {
            let mut windows = Vec::new();
            self.read(&mut |record| absorb(&mut windows, record, 0))?;
            self.map.windows = windows;
            self.cost.clear.covered += self.map.present();
            self.replaced = false;
        }
        Ok(())
    }

    fn scan(&mut self) -> Result<(), Error> {
        let (start, stopwatch) = (Instant::now(), Stopwatch::start());
        // Ages double, so the 255th scan is out of reach; should it come, later ones share its class.
        let number = cast::saturated(self.scan_ages.len() + 1);
        let mut windows = std::mem::take(&mut self.map.windows);
        let mut merge = Merge::into(&mut windows);
        let outcome = self.read(&mut |record| merge.see(record, number));
        merge.finish();
        self.map.windows = windows;
        outcome?;
        self.scan_ages.push(start - self.began);
        self.map.classes = self.classes();
        self.map.observed = start - self.began;
        self.cost.scan.add(stopwatch.elapsed(), self.map.present());
        Ok(())
    }

    fn age(&self) -> Duration {
        self.began.elapsed()
    }

    fn map(&self) -> &AccessMap {
        &self.map
    }

    fn cost(&self) -> Cost {
        self.cost
    }

    fn address_space_changed(&self) -> bool {
        self.replaced
    }

    fn written(&self, window: Window) -> Result<Option<PageSet>, Error> {
        let record = self.walker.0.borrow_mut().read_written(&self.link, window)?;
        let is_read = |record: &WindowRecord| record.flags & WINDOW_UNREADABLE == 0;
        Ok(record.filter(is_read).map(|record| PageSet(record.accessed)))
    }
}

/// Appends one record to a list of earlier windows.
fn absorb(windows: &mut Vec<WindowHeat>, record: &WindowRecord, class: u8) {
    let mut heat = WindowHeat::untouched(Address(record.start).window());
    update(&mut heat, record, class);
    if heat.huge || heat.present != PageSet::EMPTY {
        windows.push(heat);
    }
}

/// Adds one scan's record of a window to earlier ones.
fn update(heat: &mut WindowHeat, record: &WindowRecord, class: u8) {
    if record.flags & WINDOW_UNREADABLE != 0 {
        return;
    }
    let huge = record.flags & WINDOW_HUGE != 0;
    if huge != heat.huge {
        // Promoted or split since the last scan: its pages no longer have the bits that were read then.
        heat.forget();
        heat.huge = huge;
    }
    heat.present = PageSet(record.present);
    if class != 0 {
        heat.classify(&PageSet(record.accessed), class);
    }
}

/// Merges one scan, whose records come in order of address, into the windows known so far. Windows missing from the
/// scan are gone. Between two scans next to nothing changes, so known windows are updated in place.
struct Merge<'a> {
    windows: &'a mut Vec<WindowHeat>,
    next: usize,
    gone: Vec<usize>,
    new: Vec<WindowHeat>,
}

impl<'a> Merge<'a> {
    fn into(windows: &'a mut Vec<WindowHeat>) -> Merge<'a> {
        Merge { windows, next: 0, gone: Vec::new(), new: Vec::new() }
    }

    fn see(&mut self, record: &WindowRecord, class: u8) {
        let window = Address(record.start).window();
        while self.windows.get(self.next).is_some_and(|heat| heat.window < window) {
            self.gone.push(self.next);
            self.next += 1;
        }
        match self.windows.get_mut(self.next).filter(|heat| heat.window == window) {
            Some(heat) => {
                update(heat, record, class);
                if !heat.huge && heat.present == PageSet::EMPTY {
                    self.gone.push(self.next);
                }
                self.next += 1;
            }
            None => absorb(&mut self.new, record, class),
        }
    }

    fn finish(mut self) {
        self.gone.extend(self.next..self.windows.len());
        if !self.gone.is_empty() {
            let mut gone = self.gone.into_iter().peekable();
            let mut index = 0;
            self.windows.retain(|_| {
                let keep = gone.next_if_eq(&index).is_none();
                index += 1;
                keep
            });
        }
        if !self.new.is_empty() {
            self.windows.append(&mut self.new);
            self.windows.sort_unstable_by_key(|heat| heat.window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(window: u64, accessed: u64, present: u64) -> WindowRecord {
        let mut record = WindowRecord { start: window << 21, ..WindowRecord::default() };
        record.accessed[0] = accessed;
        record.present[0] = present;
        record
    }

    fn scan(windows: &mut Vec<WindowHeat>, records: &[WindowRecord], class: u8) {
        let mut merge = Merge::into(windows);
        records.iter().for_each(|record| merge.see(record, class));
        merge.finish();
    }

    #[test]
    fn a_page_stays_in_the_class_of_the_scan_that_saw_it_first() {
        let mut windows = Vec::new();
        scan(&mut windows, &[record(7, 0b001, 0b111)], 1);
        scan(&mut windows, &[record(7, 0b011, 0b111)], 2);
        assert_eq!(windows.len(), 1);
        assert_eq!(windows[0].class_of[..3], [1, 2, 0]);
        assert_eq!(windows[0].touched.count(), 2);
    }

    #[test]
    fn windows_come_and_go_between_scans_and_stay_in_order() {
        let mut windows = Vec::new();
        scan(&mut windows, &[record(5, 1, 1), record(9, 1, 1)], 1);
        scan(&mut windows, &[record(3, 0, 1), record(9, 1, 1), record(12, 1, 1)], 2);
        let numbers: Vec<u64> = windows.iter().map(|heat| heat.window.0).collect();
        assert_eq!(numbers, [3, 9, 12]);
        assert_eq!(windows[1].class_of[0], 1);
        assert_eq!(windows[2].class_of[0], 2);
    }

    #[test]
    fn a_window_that_was_promoted_meanwhile_forgets_its_pages() {
        let mut windows = Vec::new();
        scan(&mut windows, &[record(5, 0b1, 0b11)], 1);
        let huge = WindowRecord { flags: WINDOW_HUGE, accessed: [0; 8], present: [u64::MAX; 8], ..record(5, 0, 0) };
        scan(&mut windows, &[huge], 2);
        assert!(windows[0].huge);
        assert_eq!(windows[0].touched, PageSet::EMPTY);
        assert_eq!(windows[0].class_of[0], 0);
    }

    #[test]
    fn an_empty_page_table_is_no_window_and_an_unreadable_one_changes_nothing() {
        let mut windows = Vec::new();
        scan(&mut windows, &[record(4, 0, 0), record(5, 1, 1)], 1);
        assert_eq!(windows.len(), 1);
        let unreadable = WindowRecord { flags: WINDOW_UNREADABLE, ..record(5, 0, 0) };
        scan(&mut windows, &[unreadable], 2);
        assert_eq!(windows[0].class_of[0], 1);
        assert_eq!(windows[0].present.count(), 1);
    }
}
