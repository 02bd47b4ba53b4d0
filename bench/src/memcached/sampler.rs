//! Resident memory over time, sampled from outside the program once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::pairs::median;
use crate::process::memory_counted;

/// Seconds since the beginning, and bytes.
pub type Series = Vec<(f64, f64)>;

const EVERY: Duration = Duration::from_secs(1);

/// Reads until it is finished or dropped.
#[derive(Debug)]
pub struct Sampler {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Series>>,
}

impl Sampler {
    /// Begins now with process `pid`.
    pub fn start(pid: u32) -> Sampler {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let (begun, mut series) = (Instant::now(), Series::new());
            for number in 0u32.. {
                while begun.elapsed() < EVERY * number {
                    if ends.load(Ordering::Relaxed) {
                        return series;
                    }
                    thread::sleep(Duration::from_millis(20));
                }
                let Ok(bytes) = memory_counted(pid) else { return series };
                series.push((begun.elapsed().as_secs_f64(), bytes.0 as f64));
            }
            series
        });
        Sampler { over, thread: Some(thread) }
    }

    /// Samples read.
    pub fn finish(mut self) -> Series {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Median of all series second by second, over those that last that long.
pub fn middle(all: &[&Series]) -> Series {
    let longest = all.iter().map(|series| series.len()).max().unwrap_or(0);
    let at = |second: usize| -> Option<(f64, f64)> {
        let there: Vec<(f64, f64)> = all.iter().filter_map(|series| series.get(second).copied()).collect();
        let part = |of: fn(&(f64, f64)) -> f64| median(&there.iter().map(of).collect::<Vec<_>>());
        Some((part(|point| point.0)?, part(|point| point.1)?))
    };
    (0..longest).filter_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_at_once_and_each_second_until_the_program_is_gone() {
        let sampler = Sampler::start(std::process::id());
        thread::sleep(Duration::from_millis(1500));
        let series = sampler.finish();
        assert!(series.len() == 2 && series[0].0 < 0.5 && series[1].0 >= 1.0 && series[0].1 > 0.0, "{series:?}");
        assert_eq!(Sampler::start(u32::MAX).finish(), []);
    }

    #[test]
    fn the_middle_goes_on_with_those_that_last() {
        let (long, short) = (vec![(0.0, 1.0), (1.0, 5.0)], vec![(0.0, 3.0)]);
        assert_eq!(middle(&[&long, &short]), [(0.0, 2.0), (1.0, 5.0)]);
        assert_eq!(middle(&[]), []);
    }
}
