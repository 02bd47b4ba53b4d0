//! Time: the time stamp counter, and the kernel's clock in its place once a thread of the program may not read the counter.
//!
//! PR_SET_TSC (prctl(2)) makes the counter's instruction raise SIGSEGV, per thread; new threads and exec inherit that. The
//! library's handlers run in these threads, too.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use farmem_engine::calls::Call;
use farmem_engine::counters::{Counter, Counters};

use crate::kernel::{call, uint};
use crate::lock::LOCK;

/// Mode of PR_SET_TSC in which the instruction raises SIGSEGV.
const TSC_SIGSEGV: u32 = 2;

/// Whether some thread may not read the counter.
static IS_FORBIDDEN: AtomicBool = AtomicBool::new(false);

const MEBI: u64 = 1 << 20;

/// Then ticks are computed from the kernel's clock: ticks and nanoseconds at one moment, and the ticks of 2^20 ns.
static TICKS: AtomicU64 = AtomicU64::new(0);
static NS: AtomicU64 = AtomicU64::new(0);
static TICKS_OF_MEBI_NS: AtomicU64 = AtomicU64::new(MEBI * 5 / 2);

/// Ticks of the time stamp counter, or of the kernel's clock in ticks about as long.
pub fn ticks() -> u64 {
    if !IS_FORBIDDEN.load(Acquire) {
        return counter();
    }
    let (ns, length) = (clock_ns().wrapping_sub(NS.load(Relaxed)), TICKS_OF_MEBI_NS.load(Relaxed));
    let rest = (ns % MEBI).wrapping_mul(length) / MEBI;
    TICKS.load(Relaxed).wrapping_add((ns / MEBI).wrapping_mul(length)).wrapping_add(rest)
}

fn counter() -> u64 {
    // SAFETY: reads a counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The kernel's clock that only goes forward.
pub fn clock_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes our own memory.
    unsafe { call!(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, (&raw mut time).expose_provenance()) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Chooses the clock at the start: the program may have inherited that it may not read the counter.
pub fn choose() {
    let mut mode = 0_u32;
    // SAFETY: writes our own memory.
    let answer = unsafe { call!(libc::SYS_prctl, libc::PR_GET_TSC, (&raw mut mode).expose_provenance(), 0, 0, 0) };
    if answer == 0 && mode == TSC_SIGSEGV {
        IS_FORBIDDEN.store(true, Release);
    }
}

/// Whether the call forbids its thread to read the counter.
pub fn forbids_counter(call: Call) -> bool {
    let [first, second, ..] = call.arguments.map(uint);
    i64::from(call.number) == libc::SYS_prctl && first == libc::PR_SET_TSC.cast_unsigned() && second == TSC_SIGSEGV
}

/// Reads the counter no more, in any thread. Ticks go on from the same number, and are as long as those counted so far.
pub fn leave_counter(counters: &Counters<'_>) {
    let _guard = LOCK.lock();
    if IS_FORBIDDEN.load(Relaxed) {
        return;
    }
    let (ticks, ns) = (counter(), clock_ns());
    let ticks_since = ticks.saturating_sub(counters.get(Counter::EarlyTicks));
    let ns_since = ns.saturating_sub(counters.get(Counter::EarlyNs));
    // In two steps, so that the product fits for two months.
    if let Some(length) = ticks_since.saturating_mul(MEBI >> 10).checked_div(ns_since >> 10) {
        TICKS_OF_MEBI_NS.store(length, Relaxed);
    }
    TICKS.store(ticks, Relaxed);
    NS.store(ns, Relaxed);
    IS_FORBIDDEN.store(true, Release);
}
