//! Keeps a shared partition warm: a thread for each partition and each cache, which may allocate only in the
//! partition.
//!
//! The thread has own pages that KSM merged with those of the sharing group (`linux::merged_memory`). A page is
//! *placed* by flushing its lines and touching them: a touch alone moves no line that lies in other ways. Once
//! placed, lines stay, and only lost ones are placed again: the occupancy of the partition's group gives their
//! number; without it, some lines are loaded and timed. `policy::RateLimiter` decides the time and the amount.
//!
//! Without partitions, a page is placed once, and then only touched if a timed load finds it lost: so it is kept in
//! the cache, in any way.
//!
//! Each check reads the frames of our pages and of their originals. Pages that are no longer in the same frame are
//! left out, and counted by the side that changed: ours must never, unless the kernel moved the page for both.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linux::cache_line::Ticks;
use linux::merged_memory::{LINES_PER_PAGE, MergedCopy, PageOf};
use linux::{Error, Pid, cpu_time};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use serde::Serialize;
use units::cast::{index, saturated};
use units::{Bytes, Fraction, Pages};

use super::rate_limiter::{Held, Phase, RateLimiter};

/// Own pages that are merged with others', and operations on their lines.
pub trait Lines {
    /// Number of pages.
    fn count(&self) -> usize;
    /// For each page, whether it is in the same frame as its original.
    ///
    /// # Errors
    /// `Denied` without the privilege to see frames.
    fn merged(&self) -> Result<Vec<bool>, Error>;
    /// Frames of our pages.
    ///
    /// # Errors
    /// As [`Lines::merged`].
    fn frames(&self) -> Result<Vec<Option<u64>>, Error>;
    /// Evicts their lines from all caches.
    ///
    /// # Errors
    /// `Unsupported` on a processor that cannot.
    fn flush(&self, pages: Range<usize>) -> Result<(), Error>;
    /// Loads their lines.
    fn touch(&self, pages: Range<usize>);
    /// Duration of the load of one line.
    ///
    /// # Errors
    /// As [`Lines::flush`].
    fn time_load(&self, page: usize, line: usize) -> Result<Ticks, Error>;
}

impl Lines for MergedCopy {
    fn count(&self) -> usize {
        self.sources().len()
    }

    fn merged(&self) -> Result<Vec<bool>, Error> {
        MergedCopy::merged(self)
    }

    fn frames(&self) -> Result<Vec<Option<u64>>, Error> {
        MergedCopy::frames(self)
    }

    fn flush(&self, pages: Range<usize>) -> Result<(), Error> {
        MergedCopy::flush(self, pages)
    }

    fn touch(&self, pages: Range<usize>) {
        MergedCopy::touch(self, pages);
    }

    fn time_load(&self, page: usize, line: usize) -> Result<Ticks, Error> {
        MergedCopy::time_load(self, page, line)
    }
}

/// Counts of one thread, and its last measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WarmState {
    /// Pages of the sharing group that the thread keeps warm.
    pub pages: u64,
    /// Pages merged with ours now.
    pub merged_pages: u64,
    /// Placed pages.
    pub placed_pages: u64,
    /// Bytes flushed and touched, in all.
    pub refilled_bytes: Bytes,
    /// Fraction of the merged pages in the partition, as measured last; `None` before that.
    pub held_fraction: Option<f64>,
    /// Measured by the occupancy of the group, not by timed loads.
    pub by_occupancy: bool,
    /// CPU time, in all.
    pub cpu_us: u64,
    /// Pages that were merged until their owner wrote them or ended.
    pub parted_pages: u64,
    /// Pages un-merged by masu: merged until ours was another frame. There must be none.
    pub unmerged_pages: u64,
    /// Reason why the thread stopped.
    pub failure: Option<String>,
}

/// Pages per piece: lines placed at once stay in place (`linux::cache_line`), and take a few milliseconds.
const PIECE_PAGES: usize = 64;
/// Interval between checks of the merged pages.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The same, while nothing is merged.
const CHECK_FIRST: Duration = Duration::from_millis(100);
/// Number of lines loaded and timed in a check.
const SAMPLES: usize = 64;

/// Work of one thread, a turn at a time.
#[derive(Debug)]
pub struct Worker<L: Lines> {
    lines: L,
    limiter: RateLimiter,
    /// There is a partition to move lines to.
    partitioned: bool,
    /// Capacity of the partition.
    capacity: Bytes,
    merged: Vec<bool>,
    placed: Vec<bool>,
    frames: Vec<Option<u64>>,
    next: usize,
    checked: Option<Duration>,
    /// Threshold: a slower load came from memory.
    slow: Option<Ticks>,
    /// Position of the next samples.
    sample: usize,
    /// Counts so far.
    pub state: WarmState,
}

impl<L: Lines> Worker<L> {
    /// A worker that begins at `now`.
    pub fn new(lines: L, duty: Fraction, partitioned: bool, capacity: Bytes, now: Duration) -> Worker<L> {
        let count = lines.count();
        let state = WarmState { pages: count as u64, ..WarmState::default() };
        let nothing = vec![false; count];
        Worker {
            lines,
            limiter: RateLimiter::new(duty, now),
            partitioned,
            capacity,
            merged: nothing.clone(),
            placed: nothing,
            frames: vec![None; count],
            next: 0,
            checked: None,
            slow: None,
            sample: 0,
            state,
        }
    }

    /// Checks once and refills; returns the time to rest. `cpu` is the CPU time of this thread, `occupancy` the
    /// occupancy of the partition's group in this cache, if known.
    ///
    /// # Errors
    /// An error that makes continuing pointless.
    pub fn turn(
        &mut self,
        now: Duration,
        cpu: &dyn Fn() -> Duration,
        occupancy: &dyn Fn() -> Option<Bytes>,
    ) -> Result<Duration, Error> {
        let begun = cpu();
        self.limiter.earn(now);
        let rest = self.look_and_place(now, cpu, occupancy);
        let spent = cpu().saturating_sub(begun);
        self.limiter.spent(spent);
        self.state.cpu_us = self.state.cpu_us.saturating_add(saturated(spent.as_micros()));
        self.state.placed_pages = self.placed.iter().filter(|placed| **placed).count() as u64;
        rest.map(|rest| rest.max(self.limiter.debt()))
    }

    fn look_and_place(
        &mut self,
        now: Duration,
        cpu: &dyn Fn() -> Duration,
        occupancy: &dyn Fn() -> Option<Bytes>,
    ) -> Result<Duration, Error> {
        let wait = if self.state.merged_pages == 0 { CHECK_FIRST } else { CHECK_EVERY };
        if self.checked.is_none_or(|checked| now >= checked + wait) {
            self.check()?;
            self.checked = Some(now);
        }
        if self.state.merged_pages == 0 {
            return Ok(CHECK_FIRST);
        }
        let wanted = Bytes(Pages(self.state.merged_pages).bytes().0.min(self.capacity.0));
        let held = self.held(wanted, occupancy)?;
        match self.limiter.turn(now, held, wanted, self.new_bytes()) {
            Phase::Rest(rest) => Ok(rest.min(wait)),
            Phase::WarmUp { bytes, time } => {
                let end = cpu() + time;
                self.place(bytes, wanted, &|| cpu() >= end, occupancy)?;
                Ok(Duration::ZERO)
            }
        }
    }

    /// Bytes merged and not placed yet, up to the capacity.
    fn new_bytes(&self) -> Bytes {
        let new = self.merged.iter().zip(&self.placed).filter(|(merged, placed)| **merged && !**placed).count();
        let placed = self.placed.iter().filter(|placed| **placed).count();
        let capacity = self.capacity.0.saturating_sub(Pages(placed as u64).bytes().0);
        Bytes(Pages(new as u64).bytes().0.min(capacity / Pages(1).bytes().0 * Pages(1).bytes().0))
    }

    /// Checks which pages are merged now.
    fn check(&mut self) -> Result<(), Error> {
        let (merged, frames) = (self.lines.merged()?, self.lines.frames()?);
        for page in 0..self.lines.count() {
            if self.merged[page] && !merged[page] {
                // Ours stayed: the other has left.
                let ours_stayed = self.frames[page] == frames[page];
                let count = if ours_stayed { &mut self.state.parted_pages } else { &mut self.state.unmerged_pages };
                *count += 1;
            }
            // A page that moved to another frame has other lines.
            if !merged[page] || self.frames[page] != frames[page] {
                self.placed[page] = false;
            }
        }
        self.state.merged_pages = merged.iter().filter(|merged| **merged).count() as u64;
        (self.merged, self.frames) = (merged, frames);
        Ok(())
    }

    /// Measures the part that is in place.
    fn held(&mut self, wanted: Bytes, occupancy: &dyn Fn() -> Option<Bytes>) -> Result<Held, Error> {
        let placed = self.placed_part();
        if let Some(bytes) = occupancy().filter(|_| self.partitioned) {
            #[expect(clippy::cast_precision_loss, reason = "a part of a cache")]
            let part = bytes.0 as f64 / wanted.0.max(1) as f64;
            (self.state.held_fraction, self.state.by_occupancy) = (Some(part.min(1.0)), true);
            return Ok(Held::Measured(bytes));
        }
        // Pages that were never placed are not sampled.
        let near = if placed > 0.0 { self.near_part()? } else { 1.0 };
        let part = placed * near;
        (self.state.held_fraction, self.state.by_occupancy) = (Some(part), false);
        Ok(Held::Sampled(Fraction::clamped(part)))
    }

    /// Placed fraction of the pages that can be placed.
    fn placed_part(&self) -> f64 {
        let wanted = self.state.merged_pages.min(self.capacity.0 / Pages(1).bytes().0).max(1);
        let placed = self.placed.iter().filter(|placed| **placed).count();
        #[expect(clippy::cast_precision_loss, reason = "a number of pages")]
        let part = placed as f64 / wanted as f64;
        part.min(1.0)
    }

    /// Fraction of some lines of placed pages that comes from a cache. Sampling loads the sampled lines, so each time
    /// it takes others.
    fn near_part(&mut self) -> Result<f64, Error> {
        let slow = self.calibrated()?;
        let placed: Vec<usize> = (0..self.placed.len()).filter(|page| self.placed[*page]).collect();
        let mut near = 0;
        for _ in 0..SAMPLES {
            // Far from each other, so that no prefetcher has brought the next one in.
            self.sample = self.sample.wrapping_add(SAMPLE_STEP);
            let (page, line) = (placed[self.sample / LINES_PER_PAGE % placed.len()], self.sample % LINES_PER_PAGE);
            near += u32::from(self.lines.time_load(page, line)? <= slow);
        }
        #[expect(clippy::cast_precision_loss, reason = "a handful of samples")]
        let part = f64::from(near) / SAMPLES as f64;
        Ok(part)
    }

    /// Threshold of slow loads: three quarters of the way from a load that hits to one from memory.
    fn calibrated(&mut self) -> Result<Ticks, Error> {
        if let Some(slow) = self.slow {
            return Ok(slow);
        }
        let page = self.merged.iter().position(|merged| *merged).unwrap_or(0);
        let median = |lines: &L| -> Result<u64, Error> {
            let times: Result<Vec<Ticks>, Error> =
                (0..LINES_PER_PAGE).map(|line| lines.time_load(page, line * 37 % LINES_PER_PAGE)).collect();
            let mut times = times?;
            times.sort_unstable();
            Ok(times[times.len() / 2].0)
        };
        self.lines.flush(page..page + 1)?;
        let far = median(&self.lines)?;
        self.lines.touch(page..page + 1);
        let near = median(&self.lines)?;
        let slow = Ticks(near + far.saturating_sub(near) / 4 * 3);
        self.slow = Some(slow);
        Ok(slow)
    }

    /// Places pages, never placed ones first, up to the given bytes or time. With the occupancy known, also until
    /// nothing is missing any more.
    fn place(
        &mut self,
        bytes: Bytes,
        wanted: Bytes,
        is_over: &dyn Fn() -> bool,
        occupancy: &dyn Fn() -> Option<Bytes>,
    ) -> Result<(), Error> {
        let count = self.lines.count();
        let limit = index(self.capacity.0 / Pages(1).bytes().0);
        let mut open = self.merged.iter().zip(&self.placed).filter(|(merged, placed)| **merged && !**placed).count();
        let mut placed = self.placed.iter().filter(|placed| **placed).count();
        let only_new = open > 0 && placed < limit;
        let most = if self.partitioned || only_new { bytes } else { wanted };
        let (mut done, mut looked) = (Bytes(0), 0);
        while done < most && looked < count && !(looked > 0 && is_over()) {
            let end = (self.next + PIECE_PAGES).min(count);
            let mut pages = Vec::with_capacity(end - self.next);
            for page in self.next..end {
                let new = !self.placed[page];
                // A partition holds no more than its capacity.
                if !self.merged[page] || (only_new && !new) || (new && placed >= limit) {
                    continue;
                }
                placed += usize::from(new);
                open -= usize::from(new && open > 0);
                if new || self.partitioned || self.is_lost(page)? {
                    pages.push(page);
                }
            }
            for run in pages.chunk_by(|one, other| one + 1 == *other) {
                let (first, last) = (run[0], run[run.len() - 1]);
                if self.partitioned || !self.placed[first] {
                    self.lines.flush(first..last + 1)?;
                }
                self.lines.touch(first..last + 1);
                self.placed[first..=last].fill(true);
            }
            done = Bytes(done.0 + Pages(pages.len() as u64).bytes().0);
            looked += end - self.next;
            self.next = if end == count { 0 } else { end };
            if only_new && open == 0 {
                break;
            }
            if self.partitioned && !only_new && occupancy().is_some_and(|held| held >= wanted) {
                break;
            }
        }
        self.state.refilled_bytes = Bytes(self.state.refilled_bytes.0 + done.0);
        Ok(())
    }

    /// Whether a line of this page comes from memory.
    fn is_lost(&mut self, page: usize) -> Result<bool, Error> {
        let slow = self.calibrated()?;
        self.sample = self.sample.wrapping_add(SAMPLE_STEP);
        Ok(self.lines.time_load(page, self.sample % LINES_PER_PAGE)? > slow)
    }
}

/// No divisor in common with the lines of a page, and far.
const SAMPLE_STEP: usize = 64 * 1543 + 37;

/// Input of one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// One page of each frame.
    pub pages: Vec<PageOf>,
    /// CPUs of the cache.
    pub cpus: BTreeSet<u32>,
    /// There is a partition to move lines to.
    pub partitioned: bool,
    /// Capacity of the partition.
    pub capacity: Bytes,
    /// Greatest part of one CPU.
    pub duty: Fraction,
}

/// Warm-up thread. Dropping ends it.
#[derive(Debug)]
pub struct Warmer {
    thread: Pid,
    state: Arc<Mutex<WarmState>>,
    ends: Arc<AtomicBool>,
    go: Option<mpsc::Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl Warmer {
    /// Makes the copies and starts the thread, which waits for [`Warmer::begin`]: first it must be in its group.
    ///
    /// # Errors
    /// When nothing can be copied, or no thread be started.
    pub fn start(job: &Job, occupancy: impl Fn() -> Option<Bytes> + Send + 'static) -> Result<Warmer, Error> {
        let mut pages = job.pages.clone();
        pages.sort_unstable();
        let copy = MergedCopy::of(&pages)?;
        let state = Arc::new(Mutex::new(WarmState { pages: copy.pages().0, ..WarmState::default() }));
        let ends = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        let (own_filled, own_ends, job) = (Arc::clone(&state), Arc::clone(&ends), job.clone());
        let failed = |error: std::io::Error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            Error::of_host("start", "a thread", errno)
        };
        let body = move || {
            let pinned = pin(&job.cpus);
            // A missing listener means that it is over.
            let _ = tell.send((Pid(gettid().as_raw_nonzero().get()), pinned));
            if wait.recv().is_ok() {
                run(copy, &job, &own_filled, &own_ends, &wait, &occupancy);
            }
        };
        let handle = std::thread::Builder::new().name("masu-refill".to_owned()).spawn(body).map_err(failed)?;
        let answer = told.recv().map_err(|_| failed(std::io::Error::other("it ended")))?;
        let warmer = Warmer { thread: answer.0, state, ends, go: Some(go), handle: Some(handle) };
        answer.1.map_err(|errno| Error::of_host("pin", "a thread to the CPUs of a cache", errno))?;
        Ok(warmer)
    }

    /// Id of the thread.
    pub fn thread(&self) -> Pid {
        self.thread
    }

    /// Starts warming.
    pub fn begin(&self) {
        if let Some(go) = &self.go {
            let _ = go.send(()); // an ended thread is seen in its counts
        }
    }

    /// Counts so far.
    pub fn state(&self) -> WarmState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Warmer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.go = None;
        if let Some(handle) = self.handle.take() {
            let _ = handle.join(); // its panic was printed
        }
    }
}

fn pin(cpus: &BTreeSet<u32>) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    // A set has no place for later CPUs. With none left the kernel refuses it.
    for cpu in cpus.iter().map(|cpu| index((*cpu).into())).filter(|cpu| *cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    sched_setaffinity(None, &set)
}

fn run(
    copy: MergedCopy,
    job: &Job,
    state: &Mutex<WarmState>,
    ends: &AtomicBool,
    wait: &mpsc::Receiver<()>,
    occupancy: &dyn Fn() -> Option<Bytes>,
) {
    let begun = Instant::now();
    let mut worker = Worker::new(copy, job.duty, job.partitioned, job.capacity, Duration::ZERO);
    let tell = |of: &WarmState| *state.lock().unwrap_or_else(PoisonError::into_inner) = of.clone();
    while !ends.load(Ordering::Relaxed) {
        let rest = match worker.turn(begun.elapsed(), &cpu_time::of_thread, occupancy) {
            Ok(rest) => rest,
            Err(error) => {
                worker.state.failure = Some(error.to_string());
                tell(&worker.state);
                // The thread id is kept until the thread is asked to end: it is in a group, and must not be reused.
                while !ends.load(Ordering::Relaxed) && wait.recv().is_ok() {}
                return;
            }
        };
        tell(&worker.state);
        if wait.recv_timeout(rest) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
