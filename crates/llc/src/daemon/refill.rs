//! Keeping a region filled: a thread for each region and each cache, which may allocate in the region alone.
//!
//! It has own pages that KSM merged with those of the set (`linux::merged_memory`). A page is *placed* by flushing its lines and touching
//! them: a touch alone moves no line that lies in somebody's ways. Once placed, lines stay, and only what was lost is placed again: how
//! much that is, the occupancy of the region's group says; without it, some lines are loaded and timed. `policy::Pace` says when and how
//! much.
//!
//! Where there are no partitions, a page is placed once, and then only touched where a timed load says that it was lost: so it is kept in
//! the cache, wherever there.
//!
//! Each check reads the frames of our pages and of those that they were copied from. Pages that are no longer the same frame are left out,
//! and counted by whose frame changed: ours must never, unless the kernel moved the page for both.

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
use units::{Bytes, Fraction, Pages};

use super::policy::{Held, Pace, Turn};

/// Own pages that are merged with others', and what can be done to their lines.
pub trait Lines {
    /// How many pages.
    fn count(&self) -> usize;
    /// For each, whether it is in the same frame as the one that it was copied from.
    ///
    /// # Errors
    /// `Denied` without the privilege to see frames.
    fn merged(&self) -> Result<Vec<bool>, Error>;
    /// The frames of ours.
    ///
    /// # Errors
    /// As [`Lines::merged`].
    fn frames(&self) -> Result<Vec<Option<u64>>, Error>;
    /// Throws their lines out of all caches.
    ///
    /// # Errors
    /// `Unsupported` on a processor that cannot.
    fn flush(&self, pages: Range<usize>) -> Result<(), Error>;
    /// Loads their lines.
    fn touch(&self, pages: Range<usize>);
    /// How long the load of one line takes.
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

/// What one thread has done so far, and found last.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Filled {
    /// Pages of the set that it looks after.
    pub pages: u64,
    /// Of these, merged with ours now.
    pub merged_pages: u64,
    /// Of these, placed.
    pub placed_pages: u64,
    /// What was flushed and touched, in all.
    pub refilled_bytes: Bytes,
    /// How much of the merged pages is in the region, as measured last; `None` before that.
    pub held_fraction: Option<f64>,
    /// By the occupancy of the group, not by timed loads.
    pub by_occupancy: bool,
    /// CPU time, in all.
    pub cpu_us: u64,
    /// Pages that were merged until their owner wrote them or ended.
    pub parted_pages: u64,
    /// Pages that were merged until ours was another frame: parted by us. There must be none.
    pub unmerged_pages: u64,
    /// Why it stopped.
    pub failure: Option<String>,
}

/// Pieces are so large: what is brought in at once stays where it is put (`linux::cache_line`), and takes a few milliseconds.
const PIECE_PAGES: usize = 64;
/// Whether pages are merged is looked at so often.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// As long as nothing is merged.
const CHECK_FIRST: Duration = Duration::from_millis(100);
/// Lines that are loaded and timed for a look.
const SAMPLES: usize = 64;

/// One thread's work, a turn at a time.
#[derive(Debug)]
pub struct Worker<L: Lines> {
    lines: L,
    pace: Pace,
    /// There is a region to move lines to.
    partitioned: bool,
    /// The most that the region can hold.
    room: Bytes,
    merged: Vec<bool>,
    placed: Vec<bool>,
    frames: Vec<Option<u64>>,
    next: usize,
    checked: Option<Duration>,
    /// A load that takes longer came from memory.
    slow: Option<Ticks>,
    /// Where the next samples are taken.
    sample: usize,
    /// What was found and done.
    pub filled: Filled,
}

impl<L: Lines> Worker<L> {
    /// A worker that begins at `now`.
    pub fn new(lines: L, duty: Fraction, partitioned: bool, room: Bytes, now: Duration) -> Worker<L> {
        let count = lines.count();
        let filled = Filled { pages: count as u64, ..Filled::default() };
        let nothing = vec![false; count];
        Worker {
            lines,
            pace: Pace::new(duty, now),
            partitioned,
            room,
            merged: nothing.clone(),
            placed: nothing,
            frames: vec![None; count],
            next: 0,
            checked: None,
            slow: None,
            sample: 0,
            filled,
        }
    }

    /// One look and what follows from it; how long to rest. `cpu` is the CPU time of this thread, `occupancy` what the region's group
    /// has in this cache, where that is known.
    ///
    /// # Errors
    /// What makes going on pointless.
    pub fn turn(
        &mut self,
        now: Duration,
        cpu: &dyn Fn() -> Duration,
        occupancy: &dyn Fn() -> Option<Bytes>,
    ) -> Result<Duration, Error> {
        let begun = cpu();
        self.pace.earn(now);
        let rest = self.look_and_place(now, cpu, occupancy);
        let spent = cpu().saturating_sub(begun);
        self.pace.spent(spent);
        self.filled.cpu_us = self.filled.cpu_us.saturating_add(u64::try_from(spent.as_micros()).unwrap_or(0));
        self.filled.placed_pages = self.placed.iter().filter(|placed| **placed).count() as u64;
        rest.map(|rest| rest.max(self.pace.debt()))
    }

    fn look_and_place(
        &mut self,
        now: Duration,
        cpu: &dyn Fn() -> Duration,
        occupancy: &dyn Fn() -> Option<Bytes>,
    ) -> Result<Duration, Error> {
        let wait = if self.filled.merged_pages == 0 { CHECK_FIRST } else { CHECK_EVERY };
        if self.checked.is_none_or(|checked| now >= checked + wait) {
            self.check()?;
            self.checked = Some(now);
        }
        if self.filled.merged_pages == 0 {
            return Ok(CHECK_FIRST);
        }
        let wanted = Bytes(Pages(self.filled.merged_pages).bytes().0.min(self.room.0));
        let held = self.held(wanted, occupancy)?;
        match self.pace.turn(now, held, wanted, self.new_bytes()) {
            Turn::Rest(rest) => Ok(rest.min(wait)),
            Turn::Refill { bytes, time } => {
                let end = cpu() + time;
                self.place(bytes, wanted, &|| cpu() >= end, occupancy)?;
                Ok(Duration::ZERO)
            }
        }
    }

    /// Merged and not placed yet, as far as there is room.
    fn new_bytes(&self) -> Bytes {
        let new = self.merged.iter().zip(&self.placed).filter(|(merged, placed)| **merged && !**placed).count();
        let placed = self.placed.iter().filter(|placed| **placed).count();
        let room = self.room.0.saturating_sub(Pages(placed as u64).bytes().0);
        Bytes(Pages(new as u64).bytes().0.min(room / Pages(1).bytes().0 * Pages(1).bytes().0))
    }

    /// Which pages are merged now.
    fn check(&mut self) -> Result<(), Error> {
        let (merged, frames) = (self.lines.merged()?, self.lines.frames()?);
        for page in 0..self.lines.count() {
            if self.merged[page] && !merged[page] {
                // Ours is where it was: the other has left.
                let ours_stayed = self.frames[page] == frames[page];
                let count = if ours_stayed { &mut self.filled.parted_pages } else { &mut self.filled.unmerged_pages };
                *count += 1;
            }
            // What moved to another frame has other lines.
            if !merged[page] || self.frames[page] != frames[page] {
                self.placed[page] = false;
            }
        }
        self.filled.merged_pages = merged.iter().filter(|merged| **merged).count() as u64;
        (self.merged, self.frames) = (merged, frames);
        Ok(())
    }

    /// How much is where it should be.
    fn held(&mut self, wanted: Bytes, occupancy: &dyn Fn() -> Option<Bytes>) -> Result<Held, Error> {
        let placed = self.placed_part();
        if let Some(bytes) = occupancy().filter(|_| self.partitioned) {
            #[expect(clippy::cast_precision_loss, reason = "a part of a cache")]
            let part = bytes.0 as f64 / wanted.0.max(1) as f64;
            (self.filled.held_fraction, self.filled.by_occupancy) = (Some(part.min(1.0)), true);
            return Ok(Held::Measured(bytes));
        }
        // What was never placed is not to be asked for.
        let near = if placed > 0.0 { self.near_part()? } else { 1.0 };
        let part = placed * near;
        (self.filled.held_fraction, self.filled.by_occupancy) = (Some(part), false);
        Ok(Held::Sampled(Fraction::clamped(part)))
    }

    /// The part of what can be placed that is.
    fn placed_part(&self) -> f64 {
        let wanted = self.filled.merged_pages.min(self.room.0 / Pages(1).bytes().0).max(1);
        let placed = self.placed.iter().filter(|placed| **placed).count();
        #[expect(clippy::cast_precision_loss, reason = "a number of pages")]
        let part = placed as f64 / wanted as f64;
        part.min(1.0)
    }

    /// The part of some lines of placed pages that comes from a cache. Sampling brings in what it samples, so each time it is others.
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

    /// What is slow: three quarters of the way from a load that hits to one that has to go to memory.
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

    /// Places pages, those first that never were, until so much is done, or time is up. With the occupancy known, also until nothing
    /// is missing any more.
    fn place(
        &mut self,
        bytes: Bytes,
        wanted: Bytes,
        is_over: &dyn Fn() -> bool,
        occupancy: &dyn Fn() -> Option<Bytes>,
    ) -> Result<(), Error> {
        let count = self.lines.count();
        let limit = usize::try_from(self.room.0 / Pages(1).bytes().0).unwrap_or(usize::MAX);
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
                // A region holds no more than its room.
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
        self.filled.refilled_bytes = Bytes(self.filled.refilled_bytes.0 + done.0);
        Ok(())
    }

    /// Does a line of this page come from memory?
    fn is_lost(&mut self, page: usize) -> Result<bool, Error> {
        let slow = self.calibrated()?;
        self.sample = self.sample.wrapping_add(SAMPLE_STEP);
        Ok(self.lines.time_load(page, self.sample % LINES_PER_PAGE)? > slow)
    }
}

/// No divisor in common with the lines of a page, and far.
const SAMPLE_STEP: usize = 64 * 1543 + 37;

/// What one thread is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// One page of each frame.
    pub pages: Vec<PageOf>,
    /// The CPUs of the cache.
    pub cpus: BTreeSet<u32>,
    /// There is a region to move lines to.
    pub partitioned: bool,
    /// The most that the region can hold.
    pub room: Bytes,
    /// The most of one CPU.
    pub duty: Fraction,
}

/// A thread that refills. Dropping ends it.
#[derive(Debug)]
pub struct Refiller {
    thread: Pid,
    filled: Arc<Mutex<Filled>>,
    ends: Arc<AtomicBool>,
    go: Option<mpsc::Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl Refiller {
    /// Makes the copies and starts the thread, which waits for [`Refiller::begin`]: first it must be in its group.
    ///
    /// # Errors
    /// When nothing can be copied, or no thread be started.
    pub fn start(order: &Order, occupancy: impl Fn() -> Option<Bytes> + Send + 'static) -> Result<Refiller, Error> {
        let mut pages = order.pages.clone();
        pages.sort_unstable();
        let copy = MergedCopy::of(&pages)?;
        let filled = Arc::new(Mutex::new(Filled { pages: copy.pages().0, ..Filled::default() }));
        let ends = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        let (own_filled, own_ends, order) = (Arc::clone(&filled), Arc::clone(&ends), order.clone());
        let failed = |error: std::io::Error| {
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            Error::of_host("start", "a thread", errno)
        };
        let body = move || {
            let pinned = pin(&order.cpus);
            // Nobody listens any more only when it is over.
            let _ = tell.send((Pid(gettid().as_raw_nonzero().get()), pinned));
            if wait.recv().is_ok() {
                refill(copy, &order, &own_filled, &own_ends, &wait, &occupancy);
            }
        };
        let handle = std::thread::Builder::new().name("masu-refill".to_owned()).spawn(body).map_err(failed)?;
        let answer = told.recv().map_err(|_| failed(std::io::Error::other("it ended")))?;
        let refiller = Refiller { thread: answer.0, filled, ends, go: Some(go), handle: Some(handle) };
        answer.1.map_err(|errno| Error::of_host("pin", "a thread to the CPUs of a cache", errno))?;
        Ok(refiller)
    }

    /// Its thread.
    pub fn thread(&self) -> Pid {
        self.thread
    }

    /// From now on.
    pub fn begin(&self) {
        if let Some(go) = &self.go {
            let _ = go.send(()); // it may have ended, which is seen in what it says
        }
    }

    /// What it has done so far.
    pub fn filled(&self) -> Filled {
        self.filled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Refiller {
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
    for cpu in cpus {
        set.set(usize::try_from(*cpu).unwrap_or(usize::MAX).min(CpuSet::MAX_CPU - 1));
    }
    sched_setaffinity(None, &set)
}

fn refill(
    copy: MergedCopy,
    order: &Order,
    filled: &Mutex<Filled>,
    ends: &AtomicBool,
    wait: &mpsc::Receiver<()>,
    occupancy: &dyn Fn() -> Option<Bytes>,
) {
    let begun = Instant::now();
    let mut worker = Worker::new(copy, order.duty, order.partitioned, order.room, Duration::ZERO);
    let tell = |of: &Filled| *filled.lock().unwrap_or_else(PoisonError::into_inner) = of.clone();
    while !ends.load(Ordering::Relaxed) {
        let rest = match worker.turn(begun.elapsed(), &cpu_time::of_thread, occupancy) {
            Ok(rest) => rest,
            Err(error) => {
                worker.filled.failure = Some(error.to_string());
                tell(&worker.filled);
                // Its number is kept until somebody asks it to end: it stands in a group, and must not become another's.
                while !ends.load(Ordering::Relaxed) && wait.recv().is_ok() {}
                return;
            }
        };
        tell(&worker.filled);
        if wait.recv_timeout(rest) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
