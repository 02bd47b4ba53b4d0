//! The tracker's signal of active pages.
//!
//! Both ways of delivery have a handler, since a real-time signal without one kills the program. A waiting thread has
//! the signal blocked and reads it from a descriptor; should another thread, which does not block it, get it first,
//! the handler wakes the waiting one.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};

use contract::track::terms::{SIGNAL_MAX, SIGNAL_MIN};

use crate::kernel::{Descriptor, keeping_errno, own_process};
use crate::lock::lower_half;
use crate::track::Track;

/// Context of each signal, by its number.
static OWNERS: [AtomicPtr<Track>; SIGNAL_MAX as usize + 1] =
    [const { AtomicPtr::new(null_mut()) }; SIGNAL_MAX as usize + 1];

/// Running handlers of each signal, in all threads: a context lives until those for its signal have returned. The
/// upper half is the process, since a fork copies the number and not the threads.
static RUNNING: [AtomicU64; SIGNAL_MAX as usize + 1] = [const { AtomicU64::new(0) }; SIGNAL_MAX as usize + 1];

/// Index of a signal in these.
fn index(signal: c_int) -> usize {
    signal.cast_unsigned() as usize
}

/// Adds `more` running handlers; returns the number before.
fn count_running(signal: usize, more: i32) -> u32 {
    let own = u64::from(own_process().cast_unsigned());
    let change = |now: u64| {
        let count = if now >> 32 == own { lower_half(now) } else { 0 };
        Some(own << 32 | u64::from(count.saturating_add_signed(more)))
    };
    let (Ok(before) | Err(before)) = RUNNING[signal].fetch_update(SeqCst, SeqCst, change);
    if before >> 32 == own { lower_half(before) } else { 0 }
}

/// A set of one signal.
fn set_of(signal: c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: fills the variable; zeros are valid as well.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

fn action_of(signal: c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks, and sets nothing; the variable has the type that the call fills, and zeros are valid.
    let done = unsafe { libc::sigaction(signal, core::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: as above.
    (done == 0).then(|| unsafe { now.assume_init() })
}

/// Takes `wanted`, or with 0 the last unused signal, for `track`. `None` when it has a handler already, or all have.
pub fn take(wanted: c_int, track: *mut Track) -> Option<c_int> {
    let candidates = if wanted == 0 { SIGNAL_MIN..=SIGNAL_MAX } else { wanted..=wanted };
    for signal in candidates.rev() {
        let is_free = action_of(signal).is_some_and(|now| now.sa_sigaction == libc::SIG_DFL);
        let owner = &OWNERS[index(signal)];
        if !is_free || owner.compare_exchange(null_mut(), track, SeqCst, SeqCst).is_err() {
            continue;
        }
        // SAFETY: made of numbers; zeros are valid.
        let mut ours = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
        ours.sa_sigaction = handler as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: a handler of the type for these flags, which lives as long as the library; so an enabled library
        // must not be unloaded, as masu.h says.
        if unsafe { libc::sigaction(signal, &raw const ours, null_mut()) } == 0 {
            return Some(signal);
        }
        owner.store(null_mut(), SeqCst);
    }
    None
}

/// Releases the signal: it has its earlier action, and no handler of ours runs any more. No sender uses it from now
/// on.
pub fn release(signal: c_int) {
    let set = set_of(signal);
    let was = mask(libc::SIG_BLOCK, signal);
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // A pending signal would kill the program once there is no handler.
    // SAFETY: the set and the time live as long as the call.
    while unsafe { libc::sigtimedwait(&raw const set, null_mut(), &raw const at_once) } == signal {}
    // SAFETY: made of numbers; zeros are valid and mean the default.
    let default = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    if action_of(signal).is_some_and(|now| is_ours(&now)) {
        // SAFETY: as it was before.
        unsafe { libc::sigaction(signal, &raw const default, null_mut()) };
    }
    disown(signal);
    if !was {
        mask(libc::SIG_UNBLOCK, signal);
    }
}

/// Keeps the handler, since signals may be on their way, without a context: it does nothing.
pub fn disown(signal: c_int) {
    OWNERS[index(signal)].store(null_mut(), SeqCst);
    while count_running(index(signal), 0) > 0 {
        // SAFETY: lets others run.
        unsafe { libc::sched_yield() };
    }
}

/// Removes a forked child's copy of a context, so that the handler, which is copied as well, does not find it.
pub fn forget(track: *mut Track) {
    for owner in &OWNERS {
        // A signal of another context stays.
        let _ = owner.compare_exchange(track, null_mut(), SeqCst, SeqCst);
    }
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == handler as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize
}

/// Blocks or unblocks it in this thread, and returns whether it was blocked.
pub fn mask(how: c_int, signal: c_int) -> bool {
    let set = set_of(signal);
    let mut before = set_of(signal);
    // SAFETY: both sets live as long as the call.
    unsafe { libc::pthread_sigmask(how, &raw const set, &raw mut before) };
    // SAFETY: as above.
    unsafe { libc::sigismember(&raw const before, signal) == 1 }
}

/// Descriptor to read the signal from.
pub fn descriptor(signal: c_int) -> Option<Descriptor> {
    let set = set_of(signal);
    // SAFETY: the set lives as long as the call.
    Descriptor::of(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })
}

/// Next pending signal at this descriptor: its value, the number of active pages.
pub fn next_of(descriptor: c_int) -> Option<u64> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    let bytes = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the variable has that many bytes, and any are valid.
    let got = unsafe { libc::read(descriptor, info.as_mut_ptr().cast(), bytes) };
    // SAFETY: as above.
    (got == bytes as isize).then(|| unsafe { info.assume_init() }.ssi_ptr)
}

/// Handler of the tracker's signal.
extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    keeping_errno(|| {
        let number = index(signal).min(SIGNAL_MAX as usize);
        count_running(number, 1);
        let track = OWNERS[number].load(SeqCst);
        if !track.is_null() && !info.is_null() {
            // SAFETY: a context's removal first disowns its signal, and waits until no handler runs; the kernel's
            // information lives as long as the handler.
            unsafe { (*track).notified((*info).si_value().sival_ptr as u64) };
        }
        count_running(number, -1);
    });
}
