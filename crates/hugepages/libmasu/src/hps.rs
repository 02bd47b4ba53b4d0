//! The paper's four functions (Shimizu and Yamada, section 5.2, table 1), over one context for the whole program.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::SeqCst};

use crate::calls::*;
use crate::interface::*;
use crate::track::Track;

/// Decides on a window, as masu_decide.
pub type HpsDecide = Option<unsafe extern "C" fn(window: *const MasuWindow) -> c_int>;

/// Compacts, as masu_compact.
pub type HpsCompact = Option<unsafe extern "C" fn(windows: *const MasuWindow, count: usize)>;

/// The program's context, made at the first call and never freed: threads may be in the midst of a call with it.
static TRACK: AtomicPtr<Track> = AtomicPtr::new(null_mut());

/// The program's functions, as pointers.
static DECIDE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static COMPACT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

unsafe extern "C" fn decide(window: *const MasuWindow, _: *mut c_void) -> c_int {
    // SAFETY: stored by hps_set_functions(), or zero, which is None.
    let function = unsafe { core::mem::transmute::<*mut c_void, HpsDecide>(DECIDE.load(SeqCst)) };
    // SAFETY: the program's own function; the window lives until it returns.
    function.map_or(MASU_LEAVE, |function| unsafe { function(window) })
}

unsafe extern "C" fn compact(windows: *const MasuWindow, count: usize, _: *mut c_void) {
    // SAFETY: as above.
    if let Some(function) = unsafe { core::mem::transmute::<*mut c_void, HpsCompact>(COMPACT.load(SeqCst)) } {
        // SAFETY: the program's own function; the windows live until it returns.
        unsafe { function(windows, count) };
    }
}

/// The program's context, made if there is none.
fn context() -> Result<*mut Track, c_int> {
    let there = TRACK.load(SeqCst);
    if !there.is_null() {
        return Ok(there);
    }
    let mut new = null_mut();
    // SAFETY: the defaults; the place may be written to.
    match unsafe { masu_track_new(core::ptr::null(), &raw mut new) } {
        MASU_OK => {}
        failed => return Err(failed),
    }
    match TRACK.compare_exchange(null_mut(), new, SeqCst, SeqCst) {
        Ok(_) => Ok(new),
        Err(there) => {
            // SAFETY: known only here.
            unsafe { masu_track_free(new) };
            Ok(there)
        }
    }
}

/// Watches the program from now on, and notifies when `threshold_pages` of its pages are active (0: when one is). With
/// MASU_BY_HANDLER the functions are called in a signal handler; with MASU_BY_WAITING in the thread that calls
/// hps_wait_signal().
/// Returns MASU_OK, MASU_INVALID, MASU_ALREADY, MASU_NO_TRACKER, MASU_REFUSED, MASU_NO_MEMORY, MASU_BUSY, MASU_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn hps_enable_track(threshold_pages: u64, delivery: c_int) -> c_int {
    if !matches!(delivery, MASU_BY_WAITING | MASU_BY_HANDLER) {
        return MASU_INVALID;
    }
    let track = match context() {
        Ok(track) => track,
        Err(failed) => return failed,
    };
    set_functions(track);
    // SAFETY: ours, and never freed.
    with(Ok(unsafe { &*track }), |locked| locked.enable_with(threshold_pages.max(1), delivery == MASU_BY_HANDLER))
}

fn set_functions(track: *mut Track) -> c_int {
    let decide: MasuDecide = if DECIDE.load(SeqCst).is_null() { None } else { Some(decide) };
    let compact: MasuCompact = if COMPACT.load(SeqCst).is_null() { None } else { Some(compact) };
    // SAFETY: a context of ours; functions that live as long as the library.
    unsafe { masu_track_set_functions(track, decide, compact, null_mut()) }
}

/// Stops watching the program. To be called when a program has compacted enough (section 4.1.1), since being watched
/// costs it TLB misses.
/// Returns MASU_OK, MASU_NOT_ENABLED, MASU_BUSY, MASU_FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn hps_disable_track() -> c_int {
    // SAFETY: NULL or ours.
    match unsafe { TRACK.load(SeqCst).as_ref() } {
        None => MASU_NOT_ENABLED,
        Some(track) if track.is_forked() => MASU_FORKED,
        Some(track) if !track.is_on() => MASU_NOT_ENABLED,
        // SAFETY: ours.
        Some(_) => unsafe { masu_track_disable(TRACK.load(SeqCst)) },
    }
}

/// Sets the program's functions: `decide` for each window, and `compact` with all windows to be compacted. NULL for
/// the default rule, and for not compacting. Before or while it is enabled; from within one of them MASU_BUSY, and
/// nothing is changed.
///
/// # Safety
/// The functions live as long as they are set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_set_functions(decide: HpsDecide, compact: HpsCompact) -> c_int {
    let track = match context() {
        Ok(track) => track,
        Err(failed) => return failed,
    };
    // SAFETY: ours, and never freed.
    match unsafe { &*track }.hold() {
        Ok(locked) => drop(locked),
        Err(result) => return result,
    }
    DECIDE.store(decide.map_or(null_mut(), |function| function as *mut c_void), SeqCst);
    COMPACT.store(compact.map_or(null_mut(), |function| function as *mut c_void), SeqCst);
    set_functions(track)
}

/// Waits for a notification, `timeout_ms` at most, or without end if that is negative; then fetches the list,
/// decides, and compacts. Returns the number of active pages, 0 when the time is up, or a negative result as
/// masu_track_wait().
#[unsafe(no_mangle)]
pub extern "C" fn hps_wait_signal(timeout_ms: c_int) -> i64 {
    let track = TRACK.load(SeqCst);
    if track.is_null() {
        return i64::from(MASU_NOT_ENABLED);
    }
    let mut active = 0;
    // SAFETY: ours; the place may be written to.
    match unsafe { masu_track_wait(track, timeout_ms, &raw mut active) } {
        MASU_OK => {}
        MASU_NOTHING => return 0,
        failed => return i64::from(failed),
    }
    // SAFETY: ours.
    match unsafe { masu_track_handle(track) } {
        MASU_OK | MASU_NOTHING => active.min(i64::MAX as u64) as i64,
        failed => i64::from(failed),
    }
}
