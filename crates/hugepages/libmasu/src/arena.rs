//! An arena: memory on huge pages, into which a program moves its hot objects.
//!
//! HPS (section 4.3, figure 5) uses hugetlbfs for this. Here a window comes from the hugetlb pool, if there is one
//! with a free page. Otherwise it is a transparent huge page, collapsed before it is handed out. Memory is taken only
//! on request: at the beginning only addresses are reserved.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::calls::{fill_in, take_in};
use crate::interface::*;
use crate::lock::Lock;
use crate::track::Track;

/// Bytes of a window.
const WINDOW: usize = 2 << 20;

/// An arena. Made by masu_arena_new().
pub struct MasuArena {
    lock: Lock,
    /// First address, aligned to windows, and number of windows.
    start: usize,
    windows_most: usize,
    /// Mapped range, one window longer.
    mapped: (usize, usize),
    settings: MasuArenaSettings,
    track: *mut Track,
    inner: core::cell::UnsafeCell<Inner>,
    used: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// Windows handed out, by kind: hugetlb, transparent, small.
    by_kind: [u64; 3],
    /// Address from which the range may belong to others; 0 while all of it is ours.
    lost_from: usize,
    /// Windows of the range in use, from the first on.
    places: usize,
    refused: u64,
    /// Free part of the window that objects come from: its start …
    next: usize,
    /// … and its end.
    end: usize,
}

/// Fills in the defaults: the hugetlb pool first, transparent huge pages otherwise, never small pages. `bytes` has no
/// default. `size` is sizeof *settings.
///
/// # Safety
/// `settings` is NULL or points to a structure of that size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_arena_settings_init(settings: *mut MasuArenaSettings, size: usize) {
    // SAFETY: the caller's.
    unsafe { fill_in(settings, size, MasuArenaSettings { size, ..USUAL }) };
}

const USUAL: MasuArenaSettings =
    MasuArenaSettings { size: size_of::<MasuArenaSettings>(), bytes: 0, small_pages_too: 0, no_hugetlb: 0 };

/// Makes an arena. With an enabled context, its windows count against the tracker's limit on huge pages for the
/// program and its user; NULL for none. The context must outlive the arena.
/// Returns MASU_OK, MASU_INVALID, MASU_NO_MEMORY.
///
/// # Safety
/// `settings` is of the size in its first field; `track` is NULL or a context; `arena` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_arena_new(
    settings: *const MasuArenaSettings,
    track: *mut Track,
    arena: *mut *mut MasuArena,
) -> c_int {
    if settings.is_null() || arena.is_null() {
        return MASU_INVALID;
    }
    // SAFETY: the caller's.
    let Some(settings) = (unsafe { take_in(settings, USUAL) }).filter(|settings| settings.bytes > 0) else {
        return MASU_INVALID;
    };
    let Ok(bytes) = usize::try_from(settings.bytes) else { return MASU_INVALID };
    let windows_most = bytes.div_ceil(WINDOW);
    let Some(reserved) = windows_most.checked_add(1).and_then(|windows| windows.checked_mul(WINDOW)) else {
        return MASU_INVALID;
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new addresses without any right.
    let mapped = unsafe { libc::mmap(null_mut(), reserved, libc::PROT_NONE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return MASU_NO_MEMORY;
    }
    // SAFETY: asks for memory.
    let place = unsafe { libc::calloc(1, size_of::<MasuArena>()) }.cast::<MasuArena>();
    if place.is_null() {
        // SAFETY: just mapped, and known only here.
        unsafe { libc::munmap(mapped, reserved) };
        return MASU_NO_MEMORY;
    }
    let mapped = mapped.expose_provenance();
    let new = MasuArena {
        lock: Lock::new(),
        start: mapped.next_multiple_of(WINDOW),
        windows_most,
        mapped: (mapped, reserved),
        settings,
        track,
        inner: core::cell::UnsafeCell::default(),
        used: AtomicU64::new(0),
    };
    // SAFETY: malloc's memory is aligned for anything and large enough; `arena` may be written to.
    unsafe {
        place.write(new);
        arena.write(place);
    }
    MASU_OK
}

/// Frees it with all objects in it. NULL is allowed.
///
/// # Safety
/// NULL, or an arena that is no longer used, and neither are its objects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_arena_free(arena: *mut MasuArena) {
    // SAFETY: the caller's.
    let Some(arena_ref) = (unsafe { arena.as_ref() }) else { return };
    let locked = arena_ref.locked(|_, inner| (inner.by_kind.iter().sum::<u64>(), inner.lost_from));
    let (windows, lost_from) = locked.unwrap_or((0, 0));
    arena_ref.tell(0i64.saturating_sub_unsigned(windows));
    let (start, bytes) = arena_ref.mapped;
    let bytes = if lost_from == 0 { bytes } else { lost_from - start };
    // SAFETY: our own mapping, no longer used; then our own memory.
    unsafe {
        libc::munmap(core::ptr::with_exposed_provenance_mut(start), bytes);
        libc::free(arena.cast());
    }
}

/// One more window: 2 MiB, aligned to 2 MiB, filled with zeros, on a huge page.
/// Returns MASU_OK, MASU_NO_HUGE_PAGE when the arena is full, no huge page is available, or the limit is reached,
/// MASU_INVALID, MASU_BUSY when called in a signal handler that interrupts another such call.
///
/// # Safety
/// `arena` is NULL or an arena; `window` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_arena_window(arena: *mut MasuArena, window: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's.
    let Some(arena) = (unsafe { arena.as_ref() }) else { return MASU_INVALID };
    if window.is_null() {
        return MASU_INVALID;
    }
    match arena.next_window(|_, start| start) {
        Ok(start) => {
            // SAFETY: the caller's.
            unsafe { window.write(core::ptr::with_exposed_provenance_mut(start)) };
            MASU_OK
        }
        Err(result) => result,
    }
}

/// Memory for an object of `bytes`, at most 2 MiB, aligned to `align`, a power of two up to 4096; it never crosses a
/// window. It is freed with the arena.
/// Returns MASU_OK, MASU_NO_HUGE_PAGE and MASU_BUSY as masu_arena_window(), MASU_INVALID.
///
/// # Safety
/// `arena` is NULL or an arena; `object` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_arena_alloc(
    arena: *mut MasuArena,
    bytes: usize,
    align: usize,
    object: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let Some(arena) = (unsafe { arena.as_ref() }) else { return MASU_INVALID };
    if object.is_null() || bytes == 0 || bytes > WINDOW || !align.is_power_of_two() || align > 4096 {
        return MASU_INVALID;
    }
    let room = |inner: &mut Inner| {
        let start = inner.next.next_multiple_of(align);
        let fits = inner.end > 0 && start + bytes <= inner.end;
        fits.then(|| {
            inner.next = start + bytes;
            start
        })
    };
    let found = match arena.locked(|_, inner| room(inner)) {
        Ok(Some(start)) => Ok(start),
        Ok(None) => arena.next_window(|inner, window| {
            // Another thread may have added a window meanwhile: its rest is lost, as at any window's end.
            (inner.next, inner.end) = (window + bytes, window + WINDOW);
            window
        }),
        Err(result) => Err(result),
    };
    match found {
        Ok(start) => {
            arena.used.fetch_add(bytes as u64, SeqCst);
            // SAFETY: the caller's.
            unsafe { object.write(core::ptr::with_exposed_provenance_mut(start)) };
            MASU_OK
        }
        Err(result) => result,
    }
}

/// 1 if the address lies in the arena, else 0.
///
/// # Safety
/// `arena` is NULL or an arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_arena_contains(arena: *const MasuArena, address: *const c_void) -> c_int {
    // SAFETY: the caller's.
    let arena = unsafe { arena.as_ref() };
    let inside = |arena: &MasuArena| address.addr().wrapping_sub(arena.start) < arena.windows_most * WINDOW;
    c_int::from(arena.is_some_and(inside))
}

/// Contents of the arena. `stats->size` is sizeof *stats.
///
/// # Safety
/// `arena` is NULL or an arena; `stats` is NULL or of the size in its first field.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn masu_arena_stats(arena: *mut MasuArena, stats: *mut MasuArenaCounters) -> c_int {
    // SAFETY: the caller's.
    let Some(arena) = (unsafe { arena.as_ref() }) else { return MASU_INVALID };
    let found = arena.locked(|arena, inner| MasuArenaCounters {
        size: size_of::<MasuArenaCounters>(),
        windows_most: arena.windows_most as u64,
        windows: inner.by_kind.iter().sum(),
        windows_hugetlb: inner.by_kind[0],
        windows_thp: inner.by_kind[1],
        windows_small: inner.by_kind[2],
        refused: inner.refused,
        used_bytes: arena.used.load(SeqCst),
    });
    match found {
        // SAFETY: the caller's.
        Ok(now) => unsafe { crate::calls::copy_out(stats, now) },
        Err(result) => result,
    }
}

impl MasuArena {
    fn locked<T>(&self, work: impl FnOnce(&MasuArena, &mut Inner) -> T) -> Result<T, c_int> {
        self.lock.take().map_err(|_| MASU_BUSY)?;
        // SAFETY: the lock is ours.
        let result = work(self, unsafe { &mut *self.inner.get() });
        self.lock.give();
        Ok(result)
    }

    /// Tells the tracker that the context's arenas hold `more` more windows. False when its limit does not allow it.
    /// Never under the arena's lock: callbacks, which have the context's, use arenas.
    fn tell(&self, more: i64) -> bool {
        // SAFETY: NULL, or a context that outlives the arena.
        unsafe { self.track.as_ref() }.is_none_or(|track| track.change_arenas(more))
    }

    /// Takes the next window, and returns the result of `use_it`.
    fn next_window(&self, use_it: impl FnOnce(&mut Inner, usize) -> usize) -> Result<usize, c_int> {
        let may = self.tell(1);
        let taken = self.locked(|arena, inner| {
            let taken = if may { arena.take(inner) } else { None };
            inner.refused += u64::from(taken.is_none());
            taken.map(|start| use_it(inner, start))
        });
        if may && !matches!(taken, Ok(Some(_))) {
            self.tell(-1);
        }
        taken?.ok_or(MASU_NO_HUGE_PAGE)
    }

    /// The next window; `None` when none is available.
    fn take(&self, inner: &mut Inner) -> Option<usize> {
        let place = inner.places;
        if place >= self.windows_most {
            return None;
        }
        let start = self.start + place * WINDOW;
        let kind = if inner.lost_from == 0 { self.map(inner, start)? } else { return None };
        inner.places += 1;
        inner.by_kind[kind] += 1;
        Some(start)
    }

    /// Maps memory at `start`, and counts its kind.
    fn map(&self, inner: &mut Inner, start: usize) -> Option<usize> {
        let place = core::ptr::with_exposed_provenance_mut::<c_void>(start);
        // Within addresses of our own, still without memory.
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        if self.settings.no_hugetlb == 0 {
            match from_pool(place) {
                FromPool::Done => return Some(0),
                FromPool::None => {}
                FromPool::PlaceLost => {
                    inner.lost_from = start;
                    return None;
                }
            }
        }
        // SAFETY: over addresses of our own, still without any right.
        if unsafe { libc::mmap(place, WINDOW, rights, fixed, -1, 0) } != place {
            return None;
        }
        if collapse(place) {
            return Some(1);
        }
        if self.settings.small_pages_too != 0 {
            return Some(2);
        }
        // SAFETY: as it was: addresses without any right.
        unsafe { libc::mmap(place, WINDOW, libc::PROT_NONE, fixed | libc::MAP_NORESERVE, -1, 0) };
        None
    }
}

/// Maps a page of the hugetlb pool there. It is mapped elsewhere first. With an empty pool, kernels before 6.12 still
/// unmap the target of a MAP_FIXED, and another thread's mapping could come there.
fn from_pool(place: *mut c_void) -> FromPool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    // SAFETY: a new mapping at an address of the kernel's choice. The page is reserved at once, so that a touch never
    // fails.
    let page = unsafe { libc::mmap(null_mut(), WINDOW, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return FromPool::None;
    }
    let to = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: from a mapping known only here to addresses of our own, still without memory.
    if unsafe { libc::mremap(page, WINDOW, WINDOW, to, place) } == place {
        return FromPool::Done;
    }
    // SAFETY: just mapped, and known only here.
    unsafe { libc::munmap(page, WINDOW) };
    // mremap may fail after it has unmapped the target (before 5.16 it always fails). So the place is taken again, if
    // nothing else has been mapped there meanwhile.
    let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is mapped over anything.
    let again = unsafe { libc::mmap(place, WINDOW, libc::PROT_NONE, reserve, -1, 0) };
    if again == place { FromPool::None } else { FromPool::PlaceLost }
}

/// Result of taking a page from the pool.
enum FromPool {
    Done,
    /// The pool is empty.
    None,
    /// The pool is empty, and the place belongs to others now.
    PlaceLost,
}

/// Makes an empty window one huge page. On success the kernel reports it as one, in any THP mode of the host.
fn collapse(place: *mut c_void) -> bool {
    // SAFETY: our own memory, still unused: the first byte makes the kernel allocate a page, a huge one if allowed.
    unsafe {
        libc::madvise(place, WINDOW, libc::MADV_HUGEPAGE);
        place.cast::<u8>().write_volatile(0);
        libc::madvise(place, WINDOW, libc::MADV_COLLAPSE) == 0
    }
}
