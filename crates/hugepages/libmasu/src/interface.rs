//! C types and constants between a program and this library. Source of `masu.h`.

use core::ffi::{c_int, c_void};

/// Version of this interface. Programs linked with one run with every later library of the same soname.
pub const MASU_ABI: i32 = 1;

/// Done.
pub const MASU_OK: i32 = 0;
/// Nothing to report: the time is up, or there is no new list.
pub const MASU_NOTHING: i32 = 1;
/// An argument is NULL where that is not allowed, or out of its bounds.
pub const MASU_INVALID: i32 = -1;
/// Enabled already.
pub const MASU_ALREADY: i32 = -2;
/// Not enabled.
pub const MASU_NOT_ENABLED: i32 = -3;
/// There is no tracker, or it has ended. The program goes on as without one.
pub const MASU_NO_TRACKER: i32 = -4;
/// The tracker refused; masu_track_reason() has the reason.
pub const MASU_REFUSED: i32 = -5;
/// Called from a callback of this same context, or while another thread waits with it.
pub const MASU_BUSY: i32 = -6;
/// This is a forked child; the context belongs to its parent. Make a new one.
pub const MASU_FORKED: i32 = -7;
/// No memory available.
pub const MASU_NO_MEMORY: i32 = -8;
/// No huge page available, or the limit on huge pages is reached.
pub const MASU_NO_HUGE_PAGE: i32 = -9;
/// The buffer is smaller than the list; the required size was written.
pub const MASU_TOO_SMALL: i32 = -10;
/// The kernel returned an error, in errno.
pub const MASU_SYSTEM: i32 = -11;

/// Leave the window as it is.
pub const MASU_LEAVE: i32 = 0;
/// Pass the window's active pages to the compact callback, which moves their hot objects elsewhere.
pub const MASU_COMPACT: i32 = 1;
/// Make the window one huge page; the tracker does it.
pub const MASU_PROMOTE: i32 = 2;

/// A thread waits for notifications in masu_track_wait().
pub const MASU_BY_WAITING: i32 = 0;
/// Notifications call the program in a signal handler.
pub const MASU_BY_HANDLER: i32 = 1;

/// An active page: at least `hot_rate` page walks per second.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuPage {
    /// Start address.
    pub address: u64,
    /// Scans of the last observation that found it accessed: the paper's acscount.
    pub count: u32,
    /// Page walks per second: accesses that missed the TLB.
    pub rate: f32,
}

/// A window: 2 MiB of address space, 512 pages of 4 KiB, at least one of them active and none on a huge page.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuWindow {
    /// Start address.
    pub address: u64,
    /// Its active pages, in order of address. Valid until the callback returns.
    pub pages: *const MasuPage,
    /// Number of its active pages.
    pub hot: u32,
    /// Number of its 512 pages in memory.
    pub resident: u32,
    /// Page walks per second of all its pages: a huge page would save these.
    pub walks: f32,
    /// Suggestion of the default rule: MASU_PROMOTE with at least `hot_fraction` of 512 active, else MASU_COMPACT.
    pub suggested: i32,
}

/// Decides on a window: MASU_LEAVE, MASU_COMPACT or MASU_PROMOTE; anything else leaves it.
pub type MasuDecide = Option<unsafe extern "C" fn(window: *const MasuWindow, user: *mut c_void) -> c_int>;

/// Moves the hot objects of these windows elsewhere, such as into an arena. The windows are in order of address and
/// valid until it returns.
pub type MasuCompact = Option<unsafe extern "C" fn(windows: *const MasuWindow, count: usize, user: *mut c_void)>;

/// Called in a signal handler with the number of active pages. May call functions of signal-safety(7), and none of
/// masu's.
pub type MasuNotify = Option<unsafe extern "C" fn(active: u64, user: *mut c_void)>;

/// Session parameters. masu_track_settings_init() fills in the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuTrackSettings {
    /// Bytes of this structure in the program's header.
    pub size: usize,
    /// Process to watch; default 0, the caller. Only root may name another.
    pub pid: i32,
    /// Real-time signal to use; default 0, an unused one.
    pub signal: i32,
    /// MASU_BY_WAITING, the default, or MASU_BY_HANDLER.
    pub delivery: i32,
    /// Number of active pages from which to notify. Default: 1.
    pub threshold_pages: u64,
    /// Length of one observation, 10 to 600000. Default: 1280.
    pub period_ms: u32,
    /// Least time from the beginning of one observation to that of the next. Default: 0, as fast as the tracker goes.
    pub every_ms: u32,
    /// Page walks per second from which a page is active. Default: 0.1.
    pub hot_rate: f64,
    /// Fraction of a window's 512 pages that must be active for a huge page. Default: 0.25, the paper's example.
    pub hot_fraction: f64,
    /// Memory that promotion may add, as a fraction of the program's memory. Default: 0.01.
    pub max_extra_rss: f64,
}

/// Totals since the start.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuTrackCounters {
    /// Bytes of this structure in the program's header.
    pub size: usize,
    /// 1 while a tracker watches, else 0.
    pub enabled: i32,
    /// Signal in use, 0 when none is.
    pub signal: i32,
    /// Signals that arrived.
    pub notifications: u64,
    /// Lists that were fetched.
    pub lists: u64,
    /// Windows with a verdict, by verdict: left, compacted, promoted.
    pub verdicts: [u64; 3],
    /// Tracker: observations.
    pub rounds: u64,
    /// Tracker: windows made huge.
    pub promoted: u64,
    /// Tracker: windows split again.
    pub demoted: u64,
    /// Tracker: promotions refused by the kernel, the memory budget or a limit.
    pub refused: u64,
    /// Tracker: memory that promotion holds beyond the earlier resident memory.
    pub extra_rss_bytes: u64,
}

/// Settings of an arena: memory on huge pages to move objects into.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuArenaSettings {
    /// Bytes of this structure in the program's header.
    pub size: usize,
    /// Largest size in bytes; rounded up to whole windows of 2 MiB. Memory is taken only on request.
    pub bytes: u64,
    /// 1: give small pages where no huge page is available. Default 0: MASU_NO_HUGE_PAGE.
    pub small_pages_too: i32,
    /// 1: take no page from the hugetlb pool. Default 0: the pool first, if there is one. Set 1 in a program whose
    /// forked children go on using its memory: a copy of such a page takes another one, and where the pool has none
    /// the child is killed by SIGBUS.
    pub no_hugetlb: i32,
}

/// Contents of an arena.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuArenaCounters {
    /// Bytes of this structure in the program's header.
    pub size: usize,
    /// Largest number of windows.
    pub windows_most: u64,
    /// Windows in use.
    pub windows: u64,
    /// Windows in use from the hugetlb pool.
    pub windows_hugetlb: u64,
    /// Windows in use given as transparent huge pages. The kernel may have split them since; `masu stat` counts.
    pub windows_thp: u64,
    /// Windows in use on small pages.
    pub windows_small: u64,
    /// Failed requests for windows: none available, or the limit reached.
    pub refused: u64,
    /// Bytes handed out by masu_arena_alloc().
    pub used_bytes: u64,
}
