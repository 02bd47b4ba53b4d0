//! What passes between a program and this library, as C sees it. `masu.h` is made from here.

use core::ffi::{c_int, c_void};

/// The version of this interface. Programs linked with one run with every later library of the same soname.
pub const MASU_ABI: i32 = 1;

/// Done.
pub const MASU_OK: i32 = 0;
/// Nothing to report: the time is up, or there is no new list.
pub const MASU_NOTHING: i32 = 1;
/// An argument is NULL that must not be, or out of its bounds.
pub const MASU_INVALID: i32 = -1;
/// Enabled already.
pub const MASU_ALREADY: i32 = -2;
/// Not enabled.
pub const MASU_NOT_ENABLED: i32 = -3;
/// There is no tracker, or it has ended. The program goes on as if it had never asked.
pub const MASU_NO_TRACKER: i32 = -4;
/// The tracker said no; masu_track_reason() says why.
pub const MASU_REFUSED: i32 = -5;
/// Called from a callback of this same context, or while another thread waits with it.
pub const MASU_BUSY: i32 = -6;
/// This is a child that was forked; the context belongs to its parent. Make one of its own.
pub const MASU_FORKED: i32 = -7;
/// No memory to be had.
pub const MASU_NO_MEMORY: i32 = -8;
/// No huge page to be had, or the limit on huge pages is reached.
pub const MASU_NO_HUGE_PAGE: i32 = -9;
/// The buffer is smaller than the list; how much it takes was written.
pub const MASU_TOO_SMALL: i32 = -10;
/// The kernel said no; errno says why.
pub const MASU_SYSTEM: i32 = -11;

/// Leave the window as it is.
pub const MASU_LEAVE: i32 = 0;
/// Hand the window's active pages to the compact callback, which moves what is hot in them elsewhere.
pub const MASU_COMPACT: i32 = 1;
/// Make the window one huge page; the tracker does it.
pub const MASU_PROMOTE: i32 = 2;

/// Notifications are waited for by a thread, in masu_track_wait().
pub const MASU_BY_WAITING: i32 = 0;
/// Notifications call the program in a signal handler.
pub const MASU_BY_HANDLER: i32 = 1;

/// An active page: one that is walked to at least `hot_rate` times a second.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuPage {
    /// Where it begins.
    pub address: u64,
    /// Looks of the last observation that saw it touched: the paper's acscount.
    pub count: u32,
    /// Page walks a second: accesses that missed the TLB.
    pub rate: f32,
}

/// A window: 2 MiB of address space, 512 pages of 4 KiB, of which at least one is active and none is on a huge page.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuWindow {
    /// Where it begins.
    pub address: u64,
    /// Its active pages, in order of address. Valid until the callback returns.
    pub pages: *const MasuPage,
    /// How many those are.
    pub hot: u32,
    /// How many of its 512 pages are in memory.
    pub resident: u32,
    /// Page walks a second of all its pages: what a huge page would save.
    pub walks: f32,
    /// What the default rule suggests: MASU_PROMOTE with at least `hot_fraction` of 512 active, else MASU_COMPACT.
    pub suggested: i32,
}

/// Decides what becomes of a window: MASU_LEAVE, MASU_COMPACT or MASU_PROMOTE; anything else leaves it.
pub type MasuDecide = Option<unsafe extern "C" fn(window: *const MasuWindow, user: *mut c_void) -> c_int>;

/// Moves what is hot in these windows elsewhere, such as into an arena. The windows are in order of address and valid until
/// it returns.
pub type MasuCompact = Option<unsafe extern "C" fn(windows: *const MasuWindow, count: usize, user: *mut c_void)>;

/// Called in a signal handler: so many pages are active. May call what signal-safety(7) allows, and nothing of masu's.
pub type MasuNotify = Option<unsafe extern "C" fn(active: u64, user: *mut c_void)>;

/// What to be watched for. masu_track_settings_init() fills in what is usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuTrackSettings {
    /// Bytes of this structure as the program knows it.
    pub size: usize,
    /// The process to watch; 0 for the caller, which is usual. Only root may name another.
    pub pid: i32,
    /// The real-time signal to use; 0 for one that nobody uses, which is usual.
    pub signal: i32,
    /// MASU_BY_WAITING, which is usual, or MASU_BY_HANDLER.
    pub delivery: i32,
    /// Notify when so many pages are active. Usual: 1.
    pub threshold_pages: u64,
    /// How long one observation takes, 10 to 600000. Usual: 1280.
    pub period_ms: u32,
    /// From the beginning of one observation to that of the next, at least. Usual: 0, as fast as the tracker goes.
    pub every_ms: u32,
    /// A page is active that is walked to so often in a second. Usual: 0.1.
    pub hot_rate: f64,
    /// The part of a window's 512 pages that must be active for a huge page. Usual: 0.25, the paper's example.
    pub hot_fraction: f64,
    /// What promotion may add to the memory of the program, as a part of it. Usual: 0.01.
    pub max_extra_rss: f64,
}

/// What came of it so far.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuTrackCounters {
    /// Bytes of this structure as the program knows it.
    pub size: usize,
    /// 1 while a tracker watches, else 0.
    pub enabled: i32,
    /// The signal that is used, 0 when none is.
    pub signal: i32,
    /// Signals that arrived.
    pub notifications: u64,
    /// Lists that were fetched.
    pub lists: u64,
    /// Windows for which a verdict was given, by verdict: left, compacted, promoted.
    pub verdicts: [u64; 3],
    /// Of the tracker: observations.
    pub rounds: u64,
    /// Of the tracker: windows made huge.
    pub promoted: u64,
    /// Of the tracker: windows split again.
    pub demoted: u64,
    /// Of the tracker: promotions refused by the kernel, the memory budget or a limit.
    pub refused: u64,
    /// Of the tracker: memory that promotion holds beyond what was resident before.
    pub extra_rss_bytes: u64,
}

/// What an arena is to be: memory on huge pages to move objects into.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuArenaSettings {
    /// Bytes of this structure as the program knows it.
    pub size: usize,
    /// The most that it may hold, in bytes; rounded up to whole windows of 2 MiB. No memory is taken before it is asked for.
    pub bytes: u64,
    /// 1: give small pages where no huge page is to be had. 0, which is usual: MASU_NO_HUGE_PAGE.
    pub small_pages_too: i32,
    /// 1: take no page from the hugetlb pool. 0, which is usual: the pool first, if there is one. A program that forks
    /// children which go on with its memory says 1: a copy of such a page takes another one, and where the pool has none the
    /// child is ended by SIGBUS.
    pub no_hugetlb: i32,
}

/// What an arena holds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MasuArenaCounters {
    /// Bytes of this structure as the program knows it.
    pub size: usize,
    /// The windows that it may have.
    pub windows_most: u64,
    /// The windows that it has.
    pub windows: u64,
    /// Of these, from the hugetlb pool.
    pub windows_hugetlb: u64,
    /// Of these, transparent huge pages. Whether they still are is for the kernel; `masu stat` counts.
    pub windows_thp: u64,
    /// Of these, on small pages.
    pub windows_small: u64,
    /// Windows asked for in vain: none to be had, or the limit reached.
    pub refused: u64,
    /// Bytes handed out by masu_arena_alloc().
    pub used_bytes: u64,
}
