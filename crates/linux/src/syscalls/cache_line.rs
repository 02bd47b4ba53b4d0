//! `clflush`, loads and the time stamp counter: flushes, loads and times cache lines of our own memory.
//!
//! A load that hits moves nothing: the line stays in its part of the cache. Only a flushed line comes back to ways of
//! the loading thread's class of service. So moving lines takes a flush and then a load. Lines are found by physical
//! address: flushing and touching a page that KSM merged (`merged_memory.rs`) flushes and touches it for all sharers.
//!
//! **One load is not enough** where the last-level cache does not include the processor's own caches (Intel since
//! Skylake-SP). The load brings the line into the loading processor's second-level cache. The last level gets the line
//! when it is evicted from there, and only if it was used again: a line read once is dropped. So `touch` loads
//! everything twice, and then asks for a demotion (`cldemote`, a hint, ignored by processors without it), so that a
//! small part does not stay with the loading processor. Measured from another processor (docs/results/llc-refill):
//! after a flush a load takes 400 ticks; after one pass of loads 240 to 260 up to 4 MiB, and nearly 400 for 16 MiB;
//! after `touch` 135, for 256 KiB as for 16 MiB.
//!
//! Cost: flushing cached lines and touching them take a part of a millisecond per MiB each (docs/results/llc-refill).
//! Side effects: `clflush` evicts a line from the caches of all processors, and the next reader waits for memory. It
//! changes no content and needs only the right to read the page.
//!
//! Since: x86 with `clflush` (SSE2, so every x86-64); `clflushopt`, which does not wait for the previous one, where
//! CPUID has it. Other processors are `Unsupported`; there only loads work.
//!
//! Truth: Intel SDM volume 2, CLFLUSH, CLFLUSHOPT, CLDEMOTE, RDTSC, LFENCE; AMD APM volume 3.

use rustix::io::Errno;

use crate::Error;

/// Bytes of one cache line, on every x86-64 so far.
pub const LINE_BYTES: usize = 64;

/// Time in ticks of the time stamp counter, at a constant rate of some ticks per nanosecond. For comparing only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(pub u64);

/// Flush instruction of this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flusher {
    /// One line at a time, in order.
    Clflush,
    /// Several lines at a time.
    Clflushopt,
}

impl Flusher {
    /// The best instruction that this processor has.
    ///
    /// # Errors
    /// `Unsupported` on a processor other than x86-64.
    pub fn of_this_processor() -> Result<Flusher, Error> {
        arch::flusher().ok_or_else(|| Error::of_host("flush", "cache lines on this processor", Errno::OPNOTSUPP))
    }

    /// Flushes the `lines` lines from `first` on, and waits until they are out.
    ///
    /// # Safety
    /// `first` is the start of a line; all of the lines are mapped and may be read until this returns.
    pub(crate) unsafe fn flush(self, first: *const u8, lines: usize) {
        // SAFETY: as the caller promises.
        unsafe { arch::flush(self, first, lines) }
    }
}

/// Makes the `lines` lines from `first` on hit for all processors: loads each twice, one pass after the other, and
/// demotes it.
///
/// # Safety
/// `first` is the start of a line; all of the lines are mapped and may be read until this returns.
pub(crate) unsafe fn touch(first: *const u8, lines: usize) {
    for _ in 0..2 {
        // SAFETY: as the caller promises.
        unsafe { load(first, lines) };
    }
    // SAFETY: as the caller promises.
    unsafe { arch::demote(first, lines) };
}

/// Loads a word of each of the `lines` lines from `first` on, once.
///
/// # Safety
/// As `touch`.
pub(crate) unsafe fn load(first: *const u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: within the lines that the caller promises; a line's start is aligned for a word. Volatile, since the
        // memory may be exchanged for another with the same content at any time.
        unsafe { first.add(line * LINE_BYTES).cast::<u64>().read_volatile() };
    }
}

/// Times the load of one word. The load begins after all earlier loads, and ends before the clock is read again.
///
/// # Errors
/// `Unsupported` on a processor other than x86-64.
///
/// # Safety
/// `word` is aligned, mapped and may be read until this returns.
pub(crate) unsafe fn time_load(word: *const u64) -> Result<Ticks, Error> {
    // SAFETY: as the caller promises.
    let ticks = unsafe { arch::time_load(word) };
    ticks.ok_or_else(|| Error::of_host("time", "loads on this processor", Errno::OPNOTSUPP))
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid_count, _mm_clflush, _mm_lfence, _mm_mfence, _rdtsc};

    use super::{Flusher, LINE_BYTES, Ticks};

    #[expect(clippy::unnecessary_wraps, reason = "other processors have none")]
    pub(super) fn flusher() -> Option<Flusher> {
        /// CPUID leaf 7, EBX.
        const CLFLUSHOPT: u32 = 1 << 23;
        #[allow(unused_unsafe, reason = "newer compilers know that every x86-64 has it")]
        // SAFETY: every x86-64 has CPUID; a missing leaf reads as some value, and is queried only if it exists.
        let has = unsafe { __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ebx & CLFLUSHOPT != 0 };
        Some(if has { Flusher::Clflushopt } else { Flusher::Clflush })
    }

    pub(super) unsafe fn flush(by: Flusher, first: *const u8, lines: usize) {
        // SAFETY: a fence, which every x86-64 has. Earlier stores and loads complete before any flush.
        unsafe { _mm_mfence() };
        for line in 0..lines {
            let at = first.wrapping_add(line * LINE_BYTES);
            match by {
                // SAFETY: a line that may be read, as the caller promises. Every x86-64 has the instruction.
                Flusher::Clflush => unsafe { _mm_clflush(at) },
                // SAFETY: a line that may be read, as the caller promises; only a processor that has the instruction
                // has this value. It changes no register, no flag and no content.
                Flusher::Clflushopt => unsafe {
                    asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags))
                },
            }
        }
        // SAFETY: as above. A later load does not hit a line that is being flushed.
        unsafe { _mm_mfence() };
    }

    pub(super) unsafe fn demote(first: *const u8, lines: usize) {
        for line in 0..lines {
            let at = first.wrapping_add(line * LINE_BYTES);
            // SAFETY: a hint; a processor without the instruction executes its (reserved) code as a no-op. It changes
            // no register, no flag and no content.
            unsafe { asm!("cldemote [{}]", in(reg) at, options(nostack, preserves_flags)) };
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "other processors have none")]
    pub(super) unsafe fn time_load(word: *const u64) -> Option<Ticks> {
        // SAFETY: every x86-64 has the fences and the time stamp counter (not so RDTSCP), and they touch no memory;
        // `word` may be read, as the caller promises. A fence waits for the loads before it, and no later instruction
        // begins before.
        let (begun, ended) = unsafe {
            _mm_mfence();
            _mm_lfence();
            let begun = _rdtsc();
            _mm_lfence();
            word.read_volatile();
            _mm_lfence();
            let ended = _rdtsc();
            _mm_lfence();
            (begun, ended)
        };
        Some(Ticks(ended.saturating_sub(begun)))
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use super::{Flusher, Ticks};

    pub(super) fn flusher() -> Option<Flusher> {
        None
    }

    pub(super) unsafe fn flush(_: Flusher, _: *const u8, _: usize) {}

    pub(super) unsafe fn demote(_: *const u8, _: usize) {}

    pub(super) unsafe fn time_load(_: *const u64) -> Option<Ticks> {
        None
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Aligned to a cache line.
    #[repr(align(64))]
    struct Line([u64; 8]);

    #[test]
    fn a_flushed_line_is_slower_than_a_touched_one_by_the_median_and_its_content_stays() {
        /// Lines per page, and pages: few enough for a second-level cache, so one pass of loads surely brings them no
        /// farther.
        const EACH: usize = 64;
        const PAGES: usize = 64;
        let lines: Vec<Line> = (0..(EACH * PAGES) as u64).map(|n| Line([n; 8])).collect();
        let first = lines.as_ptr().cast::<u8>();
        let flusher = Flusher::of_this_processor().unwrap();
        // One line of each page, and pages in an order that no prefetcher guesses.
        let mut random = units::spread::Random::seeded(0);
        let mut median = || {
            let times = (0..PAGES).map(|_| {
                let word = &raw const lines[random.below(PAGES) * EACH + random.below(EACH)].0[0];
                // SAFETY: a word of `lines`, which lives.
                unsafe { time_load(word).unwrap() }
            });
            let mut times: Vec<Ticks> = times.collect();
            times.sort();
            times[times.len() / 2]
        };
        for by in [flusher, Flusher::Clflush] {
            for way in [touch, load] {
                // SAFETY: the lines of `lines`, which live and may be read.
                unsafe { by.flush(first, lines.len()) };
                let flushed = median();
                // SAFETY: as above.
                unsafe {
                    by.flush(first, lines.len()); // the timed lines are cached again
                    way(first, lines.len());
                }
                let near = median();
                assert!(flushed > near, "{by:?}: {flushed:?} after the flush, {near:?} after loads");
            }
        }
        assert!(lines.iter().enumerate().all(|(n, line)| line.0 == [n as u64; 8]));
    }
}
