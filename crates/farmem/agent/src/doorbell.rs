//! Doorbells for I/O batches (`farmem_engine::pager`): the library wakes masu when a batch is submitted, and masu wakes
//! a waiting thread of the program when its batch completes.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

use farmem_engine::pager::Pager;

use crate::clock;
use crate::kernel::{self, call};
use crate::program::{self, Program};
use crate::store_request;

/// Busy-waiting time before sleeping: about 20 µs, less than a sleep and a wake-up take.
const SHORTLY_TICKS: u64 = 50_000;

/// Number of submitted batches when masu was woken last.
static BACKEND: AtomicU64 = AtomicU64::new(0);

/// Wakes masu if it sleeps and a batch was submitted. Best called without the lock, since other threads wait for it
/// meanwhile.
pub fn ring(program: &Program) {
    let submitted = program.pager.batches.submitted();
    if BACKEND.load(Relaxed) == submitted {
        return;
    }
    BACKEND.store(submitted, Relaxed);
    // Either masu sees the batch, or this sees that masu sleeps.
    fence(SeqCst);
    if program.doorbell.masu_sleeps().load(Relaxed) != 0 {
        let word = program.doorbell.submissions();
        word.fetch_add(1, SeqCst);
        // SAFETY: wakes masu, which waits on a word of the shared segment.
        unsafe { call!(libc::SYS_futex, word.as_ptr().addr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

/// Waits until the oldest batch has completed. The lock is held.
pub fn wait_for_completion(program: &Program, pager: &Pager<'_>) {
    ring(program);
    let begun = clock::ticks();
    while clock::ticks().wrapping_sub(begun) < SHORTLY_TICKS {
        if !pager.batches.is_oldest_running() {
            return;
        }
        core::hint::spin_loop();
    }
    loop {
        let completions = program.doorbell.completions();
        let seen = completions.load(SeqCst);
        program.doorbell.program_sleeps().store(1, SeqCst);
        fence(SeqCst);
        if !pager.batches.is_oldest_running() {
            return;
        }
        let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        let second = (&raw const second).expose_provenance();
        // SAFETY: waits on a word of the shared segment, and reads our own memory.
        let answer = unsafe { call!(libc::SYS_futex, completions.as_ptr().addr(), libc::FUTEX_WAIT, seen, second) };
        if answer == -i64::from(libc::ETIMEDOUT) {
            store_request::is_masu_there(program);
            if program::is_left_behind() {
                // The child of a vfork, whose parent was killed: no batch will complete.
                kernel::end(128 + libc::SIGKILL);
            }
        }
    }
}
