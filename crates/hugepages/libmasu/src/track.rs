//! One context: a watched program, or one that can be.
//!
//! All calls with a context take its lock; callbacks run under it, so a call from a callback returns MASU_BUSY. A
//! signal handler does not wait for the lock: it stores the number of pages, and the owner of the lock handles it.

pub mod signal;

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering::SeqCst};

use contract::track::list::Verdict;
use contract::track::terms::Terms;
use contract::track::wire::{Answer, Request, Totals};

use crate::interface::*;
use crate::kernel::{Descriptor, Mapping, NotCancelled, own_process};
use crate::list::{List, Unusable};
use crate::lock::{Lock, own_thread};
use crate::tracker::{Failed, Tracker, VERDICTS_AT_ONCE};

/// A program that is watched, or can be. Made by masu_track_new().
pub struct Track {
    lock: Lock,
    /// The process that enabled it, 0 while it is not enabled.
    process: AtomicI32,
    /// Active pages of the last signal, 0 once handled.
    pending: AtomicU64,
    arrived: AtomicU64,
    /// The waiting thread, 0 for none, and the descriptor that wakes it: open as long as handlers may run.
    pub waiter: AtomicI32,
    woken: AtomicI32,
    by_handler: AtomicBool,
    /// Connection to the tracker, while there is one, for the owner of the lock.
    talk: AtomicPtr<Tracker>,
    /// Windows of all arenas of this context.
    arenas: AtomicU64,
    inner: core::cell::UnsafeCell<Inner>,
}

/// State for the lock's owner only.
struct Inner {
    terms: Terms,
    wanted_signal: c_int,
    functions: Functions,
    on: Option<On>,
    list: Option<List>,
    lists: u64,
    verdicts: [u64; 3],
    totals: Totals,
    reason: &'static CStr,
}

/// The program's callbacks.
#[derive(Clone, Copy)]
pub struct Functions {
    pub decide: MasuDecide,
    pub compact: MasuCompact,
    pub notify: MasuNotify,
    pub user: *mut c_void,
}

/// State while enabled.
struct On {
    tracker: Tracker,
    signal: c_int,
    /// Descriptors: one from which a waiting thread reads the signal, and one for a handler in another thread to wake
    /// it.
    taken: Descriptor,
    woken: Descriptor,
    /// Thread in which the signal was blocked for it.
    blocked_in: Option<i32>,
}

/// Descriptors that a thread waits at, and the signal. They stay open for as long as [`Track::waiter`] is set.
#[derive(Clone, Copy)]
pub struct Waits {
    /// Source of the signal.
    pub taken: c_int,
    /// Written by a handler in another thread.
    pub woken: c_int,
    /// Connection to the tracker, for its end.
    pub tracker: c_int,
    /// The signal.
    pub signal: c_int,
}

const NO_REASON: &CStr = c"nothing has been refused";

/// End of a connection to a tracker.
#[derive(Clone, Copy)]
enum End {
    /// Unregister with the tracker.
    Requested,
    /// The tracker refused to begin.
    Refused,
    /// The tracker has ended, or does not answer.
    Lost,
}

/// Proof of holding the lock; releases it.
pub struct Locked<'a>(&'a Track, #[expect(dead_code, reason = "for as long as it lives")] NotCancelled);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.lock.give();
        self.0.deliver();
    }
}

impl Track {
    /// Context with these settings; `None` for values out of their bounds.
    pub fn new(settings: &MasuTrackSettings) -> Option<Track> {
        let by_handler = match settings.delivery {
            MASU_BY_WAITING => false,
            MASU_BY_HANDLER => true,
            _ => return None,
        };
        let terms = Terms {
            pid: settings.pid,
            signal: settings.signal,
            decides: false,
            threshold_pages: settings.threshold_pages,
            period_ms: settings.period_ms,
            every_ms: settings.every_ms,
            hot_rate: settings.hot_rate,
            hot_fraction: settings.hot_fraction,
            max_extra_rss: settings.max_extra_rss,
        };
        terms.are_sound().then(|| Track {
            lock: Lock::new(),
            process: AtomicI32::new(0),
            pending: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
            waiter: AtomicI32::new(0),
            woken: AtomicI32::new(-1),
            by_handler: AtomicBool::new(by_handler),
            talk: AtomicPtr::new(core::ptr::null_mut()),
            arenas: AtomicU64::new(0),
            inner: core::cell::UnsafeCell::new(Inner {
                terms,
                wanted_signal: settings.signal,
                functions: Functions { decide: None, compact: None, notify: None, user: core::ptr::null_mut() },
                on: None,
                list: None,
                lists: 0,
                verdicts: [0; 3],
                totals: Totals::default(),
                reason: NO_REASON,
            }),
        })
    }

    /// Takes the lock, for a call from the program.
    pub fn hold(&self) -> Result<Locked<'_>, c_int> {
        if self.is_forked() {
            return Err(MASU_FORKED);
        }
        let whole = NotCancelled::now();
        self.lock.take().map(|()| Locked(self, whole)).map_err(|_| MASU_BUSY)
    }

    /// Whether it was enabled by the parent of this forked process.
    pub fn is_forked(&self) -> bool {
        let process = self.process.load(SeqCst);
        process != 0 && process != own_process()
    }

    /// Records a signal with `active` active pages. In a signal handler.
    pub fn notified(&self, active: u64) {
        self.arrived.fetch_add(1, SeqCst);
        self.pending.store(active.max(1), SeqCst);
        if self.by_handler() {
            self.deliver();
        } else {
            self.wake();
        }
    }

    /// Handles a signal if the lock is free; otherwise its owner will.
    fn deliver(&self) {
        while self.by_handler() && self.pending.load(SeqCst) > 0 && !self.is_forked() && self.lock.try_take() {
            let active = self.pending.swap(0, SeqCst);
            // SAFETY: the lock is ours.
            let inner = unsafe { &mut *self.inner.get() };
            if active > 0 && inner.on.is_some() {
                match inner.functions.notify {
                    // SAFETY: the program's own function, with the program's own pointer.
                    Some(notify) => unsafe { notify(active, inner.functions.user) },
                    None => {
                        inner.handle();
                    }
                }
            }
            self.lock.give();
        }
    }

    /// Wakes the waiting thread.
    fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight bytes that live as long as the call; an invalid descriptor is refused.
        unsafe { libc::write(self.woken.load(SeqCst), (&raw const one).cast(), 8) };
    }

    /// Whether notifications are for a handler.
    pub fn by_handler(&self) -> bool {
        self.by_handler.load(SeqCst)
    }

    /// Adds `more` windows (negative: removes) to the arenas of this context. False when the tracker's limit does not
    /// allow it. From a callback, too: while one runs, no other thread talks to the tracker.
    pub fn change_arenas(&self, more: i64) -> bool {
        if self.is_forked() {
            return true;
        }
        let _whole = NotCancelled::now();
        let is_ours_already = self.lock.take().is_err();
        let wanted = self.arenas.load(SeqCst).saturating_add_signed(more);
        // SAFETY: NULL, or the connection in `On`, which ends under the lock; the lock is ours, and while callbacks
        // run there are only shared references to it.
        let may = match unsafe { self.talk.load(SeqCst).as_ref() } {
            Some(tracker) => match tracker.ask(&Request::Arena { windows: wanted }) {
                Ok((Answer::Granted { windows }, _)) => windows >= wanted,
                _ => true,
            },
            None => true,
        };
        if may {
            self.arenas.store(wanted, SeqCst);
        }
        if !is_ours_already {
            self.lock.give();
            self.deliver();
        }
        may
    }

    /// Whether it was enabled and not disabled since.
    pub fn is_on(&self) -> bool {
        self.process.load(SeqCst) != 0
    }

    /// Takes the active pages of the last unhandled signal.
    pub fn take_pending(&self) -> u64 {
        self.pending.swap(0, SeqCst)
    }
}

impl Locked<'_> {
    fn inner(&mut self) -> &mut Inner {
        // SAFETY: the lock is ours for as long as `self`, and this borrows all of it.
        unsafe { &mut *self.0.inner.get() }
    }

    /// See masu_track_enable().
    pub fn enable(&mut self) -> c_int {
        let track = self.0;
        let inner = self.inner();
        if inner.on.as_ref().is_some_and(|on| !on.tracker.is_over()) {
            return MASU_ALREADY;
        }
        self.leave(End::Lost);
        let inner = self.inner();
        let tracker = match Tracker::find() {
            Ok(tracker) => tracker,
            Err(failed) => return inner.failed(failed),
        };
        let Some(signal) = signal::take(inner.wanted_signal, core::ptr::from_ref(track).cast_mut()) else {
            inner.reason = c"the signal is in use already, or all real-time signals are";
            return MASU_REFUSED;
        };
        // SAFETY: a new descriptor.
        let woken = Descriptor::of(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) });
        let (Some(taken), Some(woken)) = (signal::descriptor(signal), woken) else {
            signal::release(signal);
            return MASU_SYSTEM;
        };
        track.process.store(own_process(), SeqCst);
        track.pending.store(0, SeqCst);
        track.woken.store(woken.number(), SeqCst);
        let blocked_in = (!track.by_handler() && !signal::mask(libc::SIG_BLOCK, signal)).then(own_thread);
        inner.terms.signal = signal;
        inner.terms.decides = inner.functions.decide.is_some();
        let answer = tracker.ask(&Request::Register(inner.terms));
        let on = inner.on.insert(On { tracker, signal, taken, woken, blocked_in });
        match answer {
            Ok((Answer::Welcome, _)) => {
                track.talk.store((&raw const on.tracker).cast_mut(), SeqCst);
                let windows = track.arenas.load(SeqCst);
                if windows > 0 {
                    // A tracker that started later needs the arenas' size.
                    let _ = on.tracker.ask(&Request::Arena { windows });
                }
                MASU_OK
            }
            Ok(_) => {
                self.leave(End::Requested);
                MASU_NO_TRACKER
            }
            Err(failed @ Failed::Refused(_)) => {
                self.leave(End::Refused);
                self.inner().failed(failed)
            }
            Err(failed) => {
                self.leave(End::Lost);
                self.inner().failed(failed)
            }
        }
    }

    /// See masu_track_disable().
    pub fn disable(&mut self) -> c_int {
        if self.inner().on.is_none() {
            return MASU_NOT_ENABLED;
        }
        if self.0.waiter.load(SeqCst) == own_thread() {
            return MASU_BUSY;
        }
        self.leave(End::Requested);
        MASU_OK
    }

    /// Ends being watched. The signal is released when none can come any more: the tracker has confirmed that, or has
    /// ended.
    fn leave(&mut self, end: End) {
        let track = self.0;
        let inner = self.inner();
        track.talk.store(core::ptr::null_mut(), SeqCst);
        let Some(on) = inner.on.take() else { return };
        let is_over = match end {
            End::Refused => true,
            End::Lost => on.tracker.has_ended(),
            End::Requested => {
                matches!(on.tracker.ask(&Request::Unregister), Ok((Answer::Bye, _))) || on.tracker.has_ended()
            }
        };
        let On { tracker, signal, taken, woken, blocked_in } = on;
        track.process.store(0, SeqCst);
        while track.waiter.load(SeqCst) != 0 {
            track.wake();
            // SAFETY: lets others run.
            unsafe { libc::sched_yield() };
        }
        if is_over {
            signal::release(signal);
        } else {
            signal::disown(signal);
        }
        if is_over && blocked_in == Some(own_thread()) {
            signal::mask(libc::SIG_UNBLOCK, signal);
        }
        inner.list = None;
        track.woken.store(-1, SeqCst);
        track.pending.store(0, SeqCst);
        // Only now that no handler runs and no thread waits.
        drop((tracker, taken, woken));
    }

    /// See masu_track_set_functions().
    pub fn set_functions(&mut self, functions: Functions) -> c_int {
        let inner = self.inner();
        inner.functions = functions;
        let decides = functions.decide.is_some();
        let is_news = inner.terms.decides != decides;
        inner.terms.decides = decides;
        match &inner.on {
            Some(on) if is_news => match on.tracker.ask(&Request::Register(inner.terms)) {
                Ok(_) => MASU_OK,
                Err(failed) => inner.failed(failed),
            },
            _ => MASU_OK,
        }
    }

    /// The callbacks in use.
    pub fn functions(&mut self) -> Functions {
        self.inner().functions
    }

    /// See masu_track_fetch().
    ///
    /// # Safety
    /// `pages` has room for `capacity` pages, if that is more than 0.
    pub unsafe fn fetch(&mut self, pages: *mut MasuPage, capacity: usize, count: &mut usize) -> c_int {
        let inner = self.inner();
        let result = if inner.list.is_some() { MASU_OK } else { inner.take_list() };
        if result != MASU_OK {
            *count = 0;
            return result;
        }
        let Some(list) = &inner.list else { return MASU_NOTHING };
        let all = list.pages();
        *count = all.len();
        if all.len() > capacity {
            return MASU_TOO_SMALL;
        }
        // SAFETY: as above; the list is memory of our own, unknown to the program.
        unsafe { core::ptr::copy_nonoverlapping(all.as_ptr(), pages, all.len()) };
        inner.list = None;
        MASU_OK
    }

    /// See masu_track_handle().
    pub fn handle(&mut self) -> c_int {
        self.inner().handle()
    }

    /// See hps_enable_track().
    pub fn enable_with(&mut self, threshold_pages: u64, by_handler: bool) -> c_int {
        if self.inner().on.as_ref().is_some_and(|on| !on.tracker.is_over()) {
            return MASU_ALREADY;
        }
        self.leave(End::Lost);
        self.0.by_handler.store(by_handler, SeqCst);
        self.inner().terms.threshold_pages = threshold_pages;
        self.enable()
    }

    /// See masu_track_stats(). After the tracker ended, its last figures.
    pub fn stats(&mut self) -> MasuTrackCounters {
        let arrived = self.0.arrived.load(SeqCst);
        let inner = self.inner();
        let mut signal = 0;
        if let Some(on) = &inner.on
            && let Ok((Answer::Progress(totals), _)) = on.tracker.ask(&Request::Progress)
        {
            inner.totals = totals;
            signal = on.signal;
        }
        let totals = inner.totals;
        MasuTrackCounters {
            size: size_of::<MasuTrackCounters>(),
            enabled: i32::from(signal != 0),
            signal,
            notifications: arrived,
            lists: inner.lists,
            verdicts: inner.verdicts,
            rounds: totals.rounds,
            promoted: totals.promoted,
            demoted: totals.demoted,
            refused: totals.refused,
            extra_rss_bytes: totals.extra_rss_bytes,
        }
    }

    /// Reason for the last refusal.
    pub fn reason(&mut self) -> &'static CStr {
        self.inner().reason
    }

    /// Descriptors for a thread that waits without the lock.
    pub fn waits_on(&mut self) -> Option<Waits> {
        let on = self.inner().on.as_ref()?;
        let (taken, woken) = (on.taken.number(), on.woken.number());
        Some(Waits { taken, woken, tracker: on.tracker.number(), signal: on.signal })
    }
}

impl Inner {
    /// Result code of a failure. The failed connection is closed at the next call.
    fn failed(&mut self, failed: Failed) -> c_int {
        match failed {
            Failed::NoTracker => MASU_NO_TRACKER,
            Failed::Untrusted => {
                self.reason = c"the tracker belongs to neither root nor your user";
                MASU_REFUSED
            }
            Failed::Refused(why) => {
                self.reason = why.text();
                MASU_REFUSED
            }
        }
    }

    /// Gets the latest list.
    fn take_list(&mut self) -> c_int {
        let Some(on) = &self.on else { return MASU_NOT_ENABLED };
        match on.tracker.ask(&Request::Fetch) {
            Ok((Answer::List { .. }, Some(file))) => match List::of(&file) {
                Ok(list) => {
                    self.lists += 1;
                    self.list = Some(list);
                    MASU_OK
                }
                Err(Unusable::NoMemory) => MASU_NO_MEMORY,
                Err(Unusable::Untrusted) => {
                    on.tracker.give_up();
                    MASU_NO_TRACKER
                }
            },
            Ok((Answer::Nothing, _)) => MASU_NOTHING,
            Ok(_) => {
                on.tracker.give_up();
                MASU_NO_TRACKER
            }
            Err(failed) => self.failed(failed),
        }
    }

    /// The paper's sigpagesz_handler(): fetches the list, decides window by window, and has the program compact.
    fn handle(&mut self) -> c_int {
        let result = if self.list.is_some() { MASU_OK } else { self.take_list() };
        if result != MASU_OK {
            return result;
        }
        let (Some(list), Some(on)) = (self.list.take(), &self.on) else { return MASU_NOTHING };
        let functions = self.functions;
        let to_compact = functions.compact.and_then(|_| Mapping::new(list.len().max(1) * size_of::<MasuWindow>()));
        let compacted = to_compact.as_ref().map(|space| space.start().cast::<MasuWindow>());
        let mut compact_count = 0;
        let mut sent = Ok(());
        let mut verdicts = Verdicts::of(&list);
        for (number, window) in list.windows() {
            let verdict = match functions.decide {
                // SAFETY: the program's own function; the window lives until it returns.
                Some(decide) => unsafe { decide(&raw const window, functions.user) },
                None => window.suggested,
            };
            let verdict = match verdict {
                MASU_COMPACT => Verdict::Compact,
                MASU_PROMOTE => Verdict::Promote,
                _ => Verdict::Leave,
            };
            self.verdicts[verdict as usize] += 1;
            if let Some(space) = compacted.filter(|_| verdict == Verdict::Compact) {
                // SAFETY: there is room for all windows of the list, and none comes twice.
                unsafe { space.add(compact_count).write(window) };
                compact_count += 1;
            }
            if functions.decide.is_some() && sent.is_ok() {
                sent = verdicts.put(&on.tracker, number, verdict as u8);
            }
        }
        if functions.decide.is_some() && sent.is_ok() {
            sent = verdicts.finish(&on.tracker);
        }
        if let (Some(compact), Some(windows)) = (functions.compact, compacted.filter(|_| compact_count > 0)) {
            // SAFETY: the program's own function; the windows and their pages live until it returns.
            unsafe { compact(windows, compact_count, functions.user) };
        }
        sent.map_or_else(|failed| self.failed(failed), |()| MASU_OK)
    }
}

/// Verdicts to be sent, some at a time.
struct Verdicts {
    generation: u64,
    first: u64,
    count: usize,
    space: [u8; VERDICTS_AT_ONCE],
}

impl Verdicts {
    fn of(list: &List) -> Verdicts {
        Verdicts { generation: list.generation(), first: 0, count: 0, space: [0; VERDICTS_AT_ONCE] }
    }

    fn put(&mut self, tracker: &Tracker, number: u64, verdict: u8) -> Result<(), Failed> {
        if self.count == VERDICTS_AT_ONCE || (self.count > 0 && number != self.first + self.count as u64) {
            self.send(tracker)?;
        }
        if self.count == 0 {
            self.first = number;
        }
        self.space[self.count] = verdict;
        self.count += 1;
        Ok(())
    }

    fn send(&mut self, tracker: &Tracker) -> Result<(), Failed> {
        let verdicts = &self.space[..core::mem::take(&mut self.count)];
        tracker.tell(&Request::Verdicts { generation: self.generation, first: self.first, verdicts })
    }

    fn finish(&mut self, tracker: &Tracker) -> Result<(), Failed> {
        if self.count > 0 {
            self.send(tracker)?;
        }
        tracker.tell(&Request::Decided { generation: self.generation })
    }
}
