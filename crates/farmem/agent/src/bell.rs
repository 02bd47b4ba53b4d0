//! How the program and masu wake each other for flights (`farmem_engine::pager`): masu when one takes off, a thread of the program
//! when the one that it waits for arrives.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

use farmem_engine::pager::Pager;

use crate::errand;
use crate::kernel::{self, call};
use crate::process;
use crate::program::Program;

/// So long it is waited for without sleep: about 20 µs, less than a sleep and a wake-up take.
const SHORTLY_TICKS: u64 = 50_000;

/// How many had taken off when masu was woken last.
static BACKEND: AtomicU64 = AtomicU64::new(0);

/// Something may have taken off: wakes masu if it sleeps. Best without the lock, which others wait for meanwhile.
pub fn ring(program: &Program) {
    let launched = program.pager.flights.launched();
    if BACKEND.load(Relaxed) == launched {
        return;
    }
    BACKEND.store(launched, Relaxed);
    // Either masu sees the flight, or this sees that masu sleeps.
    fence(SeqCst);
    if program.bell.masu_sleeps().load(Relaxed) != 0 {
        let word = program.bell.departures();
        word.fetch_add(1, SeqCst);
        // SAFETY: wakes masu, which waits on a word of both.
        unsafe { call!(libc::SYS_futex, word.as_ptr().addr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// Waits until the oldest flight has arrived. The lock is held.
pub fn wait_for_arrival(program: &Program, pager: &Pager<'_>) {
    ring(program);
    let begun = kernel::ticks();
    while kernel::ticks().wrapping_sub(begun) < SHORTLY_TICKS {
        if !pager.flights.is_waited_for() {
            return;
        }
        core::hint::spin_loop();
    }
    loop {
        let arrivals = program.bell.arrivals();
        let seen = arrivals.load(SeqCst);
        program.bell.program_sleeps().store(1, SeqCst);
        fence(SeqCst);
        if !pager.flights.is_waited_for() {
            return;
        }
        let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        let second = (&raw const second).expose_provenance();
        // SAFETY: waits on a word of both, and reads our own memory.
        let answer = unsafe { call!(libc::SYS_futex, arrivals.as_ptr().addr(), libc::FUTEX_WAIT, seen, second) };
        if answer == -i64::from(libc::ETIMEDOUT) {
            errand::is_masu_there(program);
            if process::is_left_behind() {
                // The child of a vfork, whose parent was killed: nothing will arrive.
                kernel::end(128 + libc::SIGKILL);
            }
        }
    }
}
