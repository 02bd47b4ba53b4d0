//! Touches and frees most free memory once, before any measurement.
//!
//! A virtual machine's memory is often backed by its host only at the first touch, and that first touch can cost tens
//! of times an ordinary page fault. Without the warm-up, the first condition would pay for all others.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use units::cast::index;
use units::{Bytes, PageSize};

use crate::host;
use crate::mapping::{Mapping, PAGE_BYTES, WINDOW_BYTES};
use crate::stop::Stop;

/// Free memory that the warm-up leaves alone.
const LEAVE: Bytes = Bytes::gib(2);

/// Results of one warm-up.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp {
    /// Memory touched.
    pub bytes: Bytes,
    /// Time taken with huge pages, which come from whole free blocks.
    pub huge: Duration,
    /// Time taken with 4 KiB pages, which also use fragmented free memory.
    pub small: Duration,
}

/// Touches memory with huge pages and then with 4 KiB pages: all free memory but 2 GiB, or `limit` where that is less.
///
/// # Errors
/// When interrupted, or when memory cannot be mapped.
pub fn run(limit: Bytes, stop: &Stop) -> Result<WarmUp> {
    let bytes = host::available().saturating_sub(LEAVE).min(limit);
    let huge = touch(bytes, true, stop).context("cannot warm up memory with huge pages")?;
    let small = touch(bytes, false, stop).context("cannot warm up memory with 4 KiB pages")?;
    Ok(WarmUp { bytes, huge, small })
}

fn touch(bytes: Bytes, with_huge_pages: bool, stop: &Stop) -> Result<Duration> {
    let begun = Instant::now();
    let length = index(bytes.0);
    if length < WINDOW_BYTES {
        return Ok(Duration::ZERO);
    }
    let mut mapping = Mapping::anonymous(length)?;
    match mapping.want_huge_pages(with_huge_pages) {
        // A kernel without transparent huge pages has nothing to turn on or off.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => return Err(error.into()),
        _ => {}
    }
    for window in mapping.words().chunks_mut(WINDOW_BYTES / 8) {
        stop.check()?;
        window.iter_mut().step_by(PAGE_BYTES / 8).for_each(|word| *word = 1);
        if host::available() < Bytes::gib(1) {
            break; // another process needs the memory now
        }
    }
    Ok(begun.elapsed())
}

/// Warm memory in reserve, freed piece by piece as another process turns memory into huge pages.
///
/// A host that backs memory lazily also takes back free memory, within seconds. Memory warmed up before a measurement
/// is cold again in the middle of it, and returning it costs processor time that the host does not charge evenly. The
/// kernel allocates the most recently freed memory first. So memory freed at the rate of its allocation keeps a
/// measurement on warm memory throughout, as on a machine with memory of its own.
#[derive(Debug)]
pub struct Reservoir {
    pieces: Vec<Mapping>,
}

/// Frees a [`Reservoir`] until it is dropped; the remainder is freed at once then.
#[derive(Debug)]
pub struct Flow {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const PIECE: Bytes = Bytes::mib(8);

/// Number of pieces that are free before they are needed.
const AHEAD: u64 = 2;

/// Interval between reads of the kernel's count of huge pages.
const EVERY: Duration = Duration::from_millis(5);

impl Reservoir {
    /// Takes `bytes` on huge pages, or less where 2 GiB would not be left free.
    ///
    /// # Errors
    /// When interrupted, or when memory cannot be mapped.
    pub fn fill(bytes: Bytes, stop: &Stop) -> Result<Reservoir> {
        Reservoir::of(bytes, true, stop)
    }

    /// The same on 4 KiB pages.
    ///
    /// # Errors
    /// As [`Reservoir::fill`].
    pub fn fill_small(bytes: Bytes, stop: &Stop) -> Result<Reservoir> {
        Reservoir::of(bytes, false, stop)
    }

    fn of(bytes: Bytes, with_huge_pages: bool, stop: &Stop) -> Result<Reservoir> {
        let mut pieces = Vec::new();
        for _ in 0..bytes.0.div_ceil(PIECE.0) {
            stop.check()?;
            if host::available() < LEAVE {
                break;
            }
            let mut piece = Mapping::anonymous(index(PIECE.0))?;
            piece.want_huge_pages(with_huge_pages)?;
            piece.words().iter_mut().step_by(PAGE_BYTES / 8).for_each(|word| *word = 1);
            pieces.push(piece);
        }
        Ok(Reservoir { pieces })
    }

    /// Frees it bit by bit over `time`, from another thread.
    pub fn free_over(mut self, time: Duration) -> Flow {
        let pause = time.div_f64(self.pieces.len().max(1) as f64);
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) && self.pieces.pop().is_some() {
                thread::sleep(pause);
            }
        });
        Flow { over, thread: Some(thread) }
    }

    /// Frees from another thread as much of it as becomes huge pages from now on.
    ///
    /// # Errors
    /// When the kernel does not count huge pages.
    pub fn flow(mut self) -> Result<Flow> {
        let windows_a_piece = PIECE.0 / PageSize::Huge.bytes().0;
        // The pieces are huge pages themselves: freed ones are missing in the count, and added here.
        let at_first = host::huge_pages_in_use()?;
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut freed = 0;
            while !ends.load(Ordering::Relaxed) && !self.pieces.is_empty() {
                let in_use = host::huge_pages_in_use().unwrap_or(at_first);
                let taken = (in_use + freed * windows_a_piece).saturating_sub(at_first);
                while freed < taken / windows_a_piece + AHEAD && self.pieces.pop().is_some() {
                    freed += 1;
                }
                thread::sleep(EVERY);
            }
        });
        Ok(Flow { over, thread: Some(thread) })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // A thread that panicked has freed its pieces too.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_touch_is_no_error() {
        assert_eq!(touch(Bytes(0), true, &Stop::default()).unwrap(), Duration::ZERO);
    }

    #[test]
    fn no_more_is_touched_than_asked_for() {
        assert!(run(Bytes::mib(8), &Stop::default()).unwrap().bytes <= Bytes::mib(8));
    }

    #[test]
    fn a_reservoir_frees_as_much_as_is_taken() {
        let stop = Stop::default();
        let reservoir = Reservoir::fill(Bytes::mib(160), &stop).unwrap();
        let flow = reservoir.flow().unwrap();
        thread::sleep(Duration::from_millis(100));
        let before = host::huge_pages_in_use().unwrap();
        let mut taken = Mapping::anonymous(64 << 20).unwrap();
        taken.want_huge_pages(true).unwrap();
        taken.words().iter_mut().step_by(PAGE_BYTES / 8).for_each(|word| *word = 1);
        let mut after = before;
        for _ in 0..200 {
            thread::sleep(Duration::from_millis(10));
            after = host::huge_pages_in_use().unwrap();
            // Other tests use huge pages meanwhile, but fewer.
            if after <= before + 16 {
                drop(flow);
                return;
            }
        }
        panic!("{before} huge pages before 32 more were taken, and {after} two seconds after");
    }

    #[test]
    fn both_kinds_of_pages_are_touched() {
        for huge in [true, false] {
            assert!(touch(Bytes::mib(8), huge, &Stop::default()).unwrap() > Duration::ZERO);
        }
    }
}
