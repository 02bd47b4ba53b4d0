//! Touches and frees most free memory once, before anything is measured.
//!
//! A virtual machine's memory is often backed by its host only when it is first touched, and that first touch can cost tens
//! of times an ordinary page fault. Whichever condition happened to run first would pay for all others.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quantities::Bytes;

use crate::host;
use crate::mapping::{Mapping, PAGE_BYTES, WINDOW_BYTES};
use crate::stop::Stop;

/// Free memory that the warm-up leaves alone.
const LEAVE: Bytes = Bytes::gib(2);

/// What one warm-up did.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp {
    /// Memory touched.
    pub bytes: Bytes,
    /// Time taken with huge pages, which come from whole free blocks.
    pub huge: Duration,
    /// Time taken with 4 KiB pages, which come from what is left in pieces too.
    pub small: Duration,
}

/// Touches memory with huge pages and then with 4 KiB pages: all but 2 GiB of what is free, or `limit` where that is less.
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
    let length = usize::try_from(bytes.0).unwrap_or(0);
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
            break; // somebody else needs the memory now
        }
    }
    Ok(begun.elapsed())
}

/// Warm memory held back, to be freed while something else needs it.
///
/// A host that backs memory lazily also takes back what the machine reports free, within seconds: memory warmed up before a
/// measurement is cold again in the middle of it. What was freed last is allocated first, so memory freed bit by bit
/// during a measurement keeps it on warm memory throughout, as on a machine with memory of its own.
#[derive(Debug)]
pub struct Reservoir {
    pieces: Vec<Mapping>,
}

const PIECE: Bytes = Bytes::mib(32);

impl Reservoir {
    /// Takes `bytes` on huge pages, or less where 2 GiB would not be left free.
    ///
    /// # Errors
    /// When interrupted, or when memory cannot be mapped.
    pub fn fill(bytes: Bytes, stop: &Stop) -> Result<Reservoir> {
        let mut pieces = Vec::new();
        for _ in 0..bytes.0.div_ceil(PIECE.0) {
            stop.check()?;
            if host::available() < LEAVE {
                break;
            }
            let mut piece = Mapping::anonymous(usize::try_from(PIECE.0).unwrap_or(0))?;
            piece.want_huge_pages(true)?;
            piece.words().iter_mut().step_by(PAGE_BYTES / 8).for_each(|word| *word = 1);
            pieces.push(piece);
        }
        Ok(Reservoir { pieces })
    }

    /// Frees it bit by bit over `time`, from another thread.
    pub fn free_over(self, time: Duration) {
        let pause = time.div_f64(self.pieces.len().max(1) as f64);
        thread::spawn(move || {
            for piece in self.pieces {
                drop(piece);
                thread::sleep(pause);
            }
        });
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
    fn both_kinds_of_pages_are_touched() {
        for huge in [true, false] {
            assert!(touch(Bytes::mib(8), huge, &Stop::default()).unwrap() > Duration::ZERO);
        }
    }
}
