//! C interface; each call has a context.

use core::ffi::{c_char, c_int, c_void};

use crate::interface::*;
use crate::track::signal;
use crate::track::{Functions, Track};
use crate::wait;

/// Context behind a pointer of the program's.
///
/// # Safety
/// NULL, or a context that masu_track_new() made and masu_track_free() has not taken.
unsafe fn context<'a>(track: *mut Track) -> Result<&'a Track, c_int> {
    // SAFETY: the caller's.
    unsafe { track.as_ref() }.ok_or(MASU_INVALID)
}

/// Copies the part of `from` that the program knows. Its size is in the first field.
///
/// # Safety
/// `to` is NULL or points to a structure of this kind, of the size in its first field.
pub unsafe fn copy_out<T: Copy>(to: *mut T, from: T) -> c_int {
    if to.is_null() {
        return MASU_INVALID;
    }
    // SAFETY: all structures of ours begin with their size.
    let size = unsafe { to.cast::<usize>().read() };
    if size < size_of::<usize>() {
        return MASU_INVALID;
    }
    let bytes = size.min(size_of::<T>());
    let (from, to) = ((&raw const from).cast::<u8>(), to.cast::<u8>());
    let head = size_of::<usize>();
    // SAFETY: both have that many bytes; the size stays as the program wrote it.
    unsafe { core::ptr::copy_nonoverlapping(from.add(head), to.add(head), bytes - head) };
    MASU_OK
}

/// Version of the library's interface: MASU_ABI of the header that it was built with.
#[unsafe(no_mangle)]
pub extern "C" fn masu_abi() -> c_int {
    MASU_ABI
}

/// Text of a result. For every number; never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn masu_result_text(result: c_int) -> *const c_char {
    match result {
        MASU_OK => c"done",
        MASU_NOTHING => c"nothing to report",
        MASU_INVALID => c"an argument is NULL or out of its bounds",
        MASU_ALREADY => c"enabled already",
        MASU_NOT_ENABLED => c"not enabled",
        MASU_NO_TRACKER => c"no tracker is running (masu track)",
        MASU_REFUSED => c"the tracker refused",
        MASU_BUSY => c"called from a callback of the same context, or another thread waits with it",
        MASU_FORKED => c"the context belongs to the parent of this process",
        MASU_NO_MEMORY => c"no memory to be had",
        MASU_NO_HUGE_PAGE => c"no huge page to be had, or the limit is reached",
        MASU_TOO_SMALL => c"the buffer is smaller than the list",
        MASU_SYSTEM => c"the kernel refused",
        _ => c"no result of masu's",
    }
    .as_ptr()
}

/// Fills in the defaults, `settings->size` too. `size` is sizeof *settings.
///
/// # Safety
/// `settings` is NULL or points to a structure of that size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_settings_init(settings: *mut MasuTrackSettings, size: usize) {
    // SAFETY: the caller's.
    unsafe { fill_in(settings, size, MasuTrackSettings { size, ..usual() }) };
}

/// Writes the part of `usual` that the program knows; fields of the program beyond that are zero.
///
/// # Safety
/// `settings` is NULL or points to a structure of that size.
pub unsafe fn fill_in<T>(settings: *mut T, size: usize, usual: T) {
    let (to, from) = (settings.cast::<u8>(), (&raw const usual).cast::<u8>());
    if !to.is_null() {
        // SAFETY: the caller's; at most the size of our structure is read.
        unsafe {
            to.write_bytes(0, size);
            core::ptr::copy_nonoverlapping(from, to, size.min(size_of::<T>()));
        }
    }
}

/// Settings of a program: the fields that it knows, and defaults for the rest. `None` for a size that no version had.
///
/// # Safety
/// `settings` is of the size in its first field.
pub unsafe fn take_in<T: Copy>(settings: *const T, usual: T) -> Option<T> {
    let mut wanted = usual;
    // SAFETY: all structures of ours begin with their size.
    let size = unsafe { settings.cast::<usize>().read() };
    if size < size_of::<usize>() || size > size_of::<T>() {
        return None;
    }
    // SAFETY: both have that many bytes.
    unsafe { core::ptr::copy_nonoverlapping(settings.cast::<u8>(), (&raw mut wanted).cast(), size) };
    Some(wanted)
}

fn usual() -> MasuTrackSettings {
    let usual = contract::track::terms::USUAL;
    MasuTrackSettings {
        size: size_of::<MasuTrackSettings>(),
        pid: usual.pid,
        signal: usual.signal,
        delivery: MASU_BY_WAITING,
        threshold_pages: usual.threshold_pages,
        period_ms: usual.period_ms,
        every_ms: usual.every_ms,
        hot_rate: usual.hot_rate,
        hot_fraction: usual.hot_fraction,
        max_extra_rss: usual.max_extra_rss,
    }
}

/// Makes a context, not enabled yet. With `settings` NULL it has the defaults. Several may be enabled at a time, each
/// for another process.
/// Returns MASU_OK, MASU_INVALID for values out of their bounds, MASU_NO_MEMORY.
///
/// # Safety
/// `settings` is NULL or of the size in its first field; `track` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_new(settings: *const MasuTrackSettings, track: *mut *mut Track) -> c_int {
    if track.is_null() {
        return MASU_INVALID;
    }
    let mut wanted = usual();
    if !settings.is_null() {
        // SAFETY: the caller's.
        let Some(theirs) = (unsafe { take_in(settings, wanted) }) else { return MASU_INVALID };
        wanted = theirs;
    }
    let Some(new) = Track::new(&wanted) else { return MASU_INVALID };
    // SAFETY: asks for memory.
    let place = unsafe { libc::calloc(1, size_of::<Track>()) }.cast::<Track>();
    if place.is_null() {
        return MASU_NO_MEMORY;
    }
    // SAFETY: malloc's memory is aligned for anything and large enough; `track` may be written to.
    unsafe {
        place.write(new);
        track.write(place);
    }
    MASU_OK
}

/// Disables it, if need be, and frees it. NULL is allowed. Not from a callback: returns MASU_BUSY there. In a forked
/// child it frees the child's copy.
///
/// # Safety
/// NULL, or a context that is no longer used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_free(track: *mut Track) -> c_int {
    // SAFETY: the caller's.
    let Ok(context) = (unsafe { context(track) }) else { return MASU_OK };
    if context.is_forked() {
        signal::forget(track);
    } else {
        match context.hold() {
            Ok(mut locked) => match locked.disable() {
                MASU_BUSY => return MASU_BUSY,
                _ => drop(locked),
            },
            Err(result) => return result,
        }
    }
    // SAFETY: made by masu_track_new(), and no longer used; its descriptors and mappings are closed.
    unsafe {
        core::ptr::drop_in_place(track);
        libc::free(track.cast());
    }
    MASU_OK
}

/// Sets the functions that masu_track_handle() calls; each may be NULL. `decide` is called for each window; without
/// it the tracker decides by its default rule, as `masu attach` does. `compact` gets the windows to be compacted.
/// `user` is passed on. Also allowed while enabled; from a callback of the same context MASU_BUSY.
///
/// # Safety
/// The functions live as long as they are set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_set_functions(
    track: *mut Track,
    decide: MasuDecide,
    compact: MasuCompact,
    user: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    with(unsafe { context(track) }, |locked| {
        let now = locked.functions();
        locked.set_functions(Functions { decide, compact, user, ..now })
    })
}

/// With MASU_BY_HANDLER: calls `notify` in the signal handler, and does no more. Without it the handler fetches,
/// decides and compacts at once, which is for programs whose functions may run in a signal handler. NULL removes it.
///
/// # Safety
/// The function lives as long as it is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_set_notify(track: *mut Track, notify: MasuNotify, user: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    with(unsafe { context(track) }, |locked| {
        let now = locked.functions();
        locked.set_functions(Functions { notify, user, ..now })
    })
}

/// Makes the tracker watch. With MASU_BY_WAITING the signal is blocked in this thread, and in threads that it starts
/// from then on. After the tracker ended, another call connects to the one that runs now.
/// Returns MASU_OK, MASU_ALREADY, MASU_NO_TRACKER, MASU_REFUSED, MASU_BUSY.
///
/// # Safety
/// A context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_enable(track: *mut Track) -> c_int {
    // SAFETY: the caller's.
    with(unsafe { context(track) }, |locked| locked.enable())
}

/// Makes the tracker stop watching. No signal comes after it; the signal has its default action again, and is
/// unblocked if masu_track_enable() had blocked it in this thread. Huge pages stay.
/// Returns MASU_OK, MASU_NOT_ENABLED, MASU_BUSY.
///
/// # Safety
/// A context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_disable(track: *mut Track) -> c_int {
    // SAFETY: the caller's.
    with(unsafe { context(track) }, |locked| locked.disable())
}

/// Waits for a notification, `timeout_ms` at most, or without end if that is negative, and writes the number of
/// active pages. One thread at a time; others may use the context meanwhile, and masu_track_disable() ends the wait.
/// Returns MASU_OK, MASU_NOTHING when the time is up, MASU_NOT_ENABLED, MASU_NO_TRACKER when it has ended, MASU_BUSY,
/// MASU_INVALID for a context with MASU_BY_HANDLER.
///
/// # Safety
/// A context; `active` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_wait(track: *mut Track, timeout_ms: c_int, active: *mut u64) -> c_int {
    let mut pages = 0;
    // SAFETY: the caller's.
    let result = match unsafe { context(track) } {
        Ok(context) => wait::wait(context, timeout_ms, &mut pages),
        Err(result) => result,
    };
    if result == MASU_OK && !active.is_null() {
        // SAFETY: the caller's.
        unsafe { active.write(pages) };
    }
    result
}

/// The list of active pages, in order of address, and their number. Each list is returned once, the latest one. With
/// a buffer that is too small nothing is lost: call again with one for `*count` pages.
/// Returns MASU_OK, MASU_NOTHING when there is no new list, MASU_TOO_SMALL, MASU_NOT_ENABLED, MASU_NO_TRACKER.
///
/// # Safety
/// A context; `pages` has room for `capacity` pages, or `capacity` is 0; `count` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_fetch(
    track: *mut Track,
    pages: *mut MasuPage,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    if count.is_null() || (pages.is_null() && capacity > 0) {
        return MASU_INVALID;
    }
    let mut found = 0;
    // SAFETY: the caller's.
    let result = with(unsafe { context(track) }, |locked| {
        // SAFETY: the caller's.
        unsafe { locked.fetch(pages, capacity, &mut found) }
    });
    // SAFETY: the caller's.
    unsafe { count.write(found) };
    result
}

/// Fetches the latest list, decides for each window, tells the tracker, and has the program compact. To be called
/// after masu_track_wait(), or after `notify`. Callbacks run in this thread, before it returns.
/// Returns MASU_OK, MASU_NOTHING when there is no new list, MASU_NOT_ENABLED, MASU_NO_TRACKER, MASU_BUSY.
///
/// # Safety
/// A context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_handle(track: *mut Track) -> c_int {
    // SAFETY: the caller's.
    with(unsafe { context(track) }, |locked| locked.handle())
}

/// Totals since the start. `stats->size` is sizeof *stats.
///
/// # Safety
/// A context; `stats` is NULL or of the size in its first field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_stats(track: *mut Track, stats: *mut MasuTrackCounters) -> c_int {
    if stats.is_null() {
        return MASU_INVALID;
    }
    // SAFETY: the caller's.
    with(unsafe { context(track) }, |locked| {
        let now = locked.stats();
        // SAFETY: the caller's.
        unsafe { copy_out(stats, now) }
    })
}

/// Text of the reason for the last MASU_REFUSED. Never NULL; valid for ever.
///
/// # Safety
/// A context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_track_reason(track: *mut Track) -> *const c_char {
    // SAFETY: the caller's.
    let locked = unsafe { context(track) }.and_then(Track::hold);
    locked.map_or(c"no reason can be given now", |mut locked| locked.reason()).as_ptr()
}

/// Calls `work` with the lock of a context.
pub fn with(context: Result<&Track, c_int>, work: impl FnOnce(&mut crate::track::Locked<'_>) -> c_int) -> c_int {
    match context.and_then(Track::hold) {
        Ok(mut locked) => work(&mut locked),
        Err(result) => result,
    }
}
