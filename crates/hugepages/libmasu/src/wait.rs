//! A thread that waits for the tracker's signal.
//!
//! It sleeps without the lock, so that other threads can use the context and disable it. Disabling waits until the
//! thread has woken before the descriptors are closed.

use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;

use crate::interface::*;
use crate::kernel::{NotCancelled, errno, now_ms};
use crate::lock::own_thread;
use crate::track::signal;
use crate::track::{Track, Waits};

/// See masu_track_wait().
pub fn wait(track: &Track, timeout_ms: c_int, active: &mut u64) -> c_int {
    if track.by_handler() {
        return MASU_INVALID;
    }
    let _whole = NotCancelled::now();
    let mut locked = match track.hold() {
        Ok(locked) => locked,
        Err(result) => return result,
    };
    let Some(waits) = locked.waits_on() else { return MASU_NOT_ENABLED };
    if track.waiter.compare_exchange(0, own_thread(), SeqCst, SeqCst).is_err() {
        return MASU_BUSY;
    }
    drop(locked);
    let was_blocked = signal::mask(libc::SIG_BLOCK, waits.signal);
    let result = sleep(track, waits, timeout_ms, active);
    if !was_blocked {
        signal::mask(libc::SIG_UNBLOCK, waits.signal);
    }
    track.waiter.store(0, SeqCst);
    result
}

/// Sleeps until a signal comes, the tracker or the time ends, or the context is disabled.
fn sleep(track: &Track, waits: Waits, timeout_ms: c_int, active: &mut u64) -> c_int {
    let end = now_ms() + i64::from(timeout_ms);
    let mut is_over = false;
    loop {
        while let Some(pages) = signal::next_of(waits.taken) {
            track.notified(pages);
        }
        if !track.is_on() {
            return MASU_NOT_ENABLED;
        }
        let active_now = track.take_pending();
        if active_now > 0 {
            *active = active_now;
            return MASU_OK;
        }
        if is_over {
            return MASU_NOTHING;
        }
        // The tracker's end is told without any time, too, and on a processor that comes back late.
        let left = if timeout_ms < 0 { -1 } else { (end - now_ms()).max(0) };
        is_over = left == 0;
        match poll_once(waits, poll_ms(left)) {
            Ok(false) => {}
            Ok(true) => return MASU_NO_TRACKER,
            Err(()) => return MASU_SYSTEM,
        }
    }
}

/// A time as poll(2) takes it.
#[expect(clippy::cast_possible_truncation, reason = "clamped to what an int holds")]
fn poll_ms(left: i64) -> c_int {
    left.clamp(-1, i64::from(c_int::MAX)) as c_int
}

/// Sleeps until an event, and returns whether it is only the end of the tracker.
fn poll_once(waits: Waits, timeout_ms: c_int) -> Result<bool, ()> {
    let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
    let mut fds = [entry(waits.taken, libc::POLLIN), entry(waits.woken, libc::POLLIN), entry(waits.tracker, 0)];
    // SAFETY: three entries, which live as long as the call.
    if unsafe { libc::poll(fds.as_mut_ptr(), 3, timeout_ms) } < 0 {
        return if errno() == libc::EINTR { Ok(false) } else { Err(()) };
    }
    if fds[1].revents != 0 {
        let mut count = 0u64;
        // SAFETY: eight bytes, which live as long as the call; it does not block.
        unsafe { libc::read(waits.woken, (&raw mut count).cast(), 8) };
    }
    Ok(fds[0].revents == 0 && fds[1].revents == 0 && fds[2].revents != 0)
}
