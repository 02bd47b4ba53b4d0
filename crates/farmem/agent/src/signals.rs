//! Settings for the program's signals, two of which the library uses: SIGBUS for missing pages, SIGSYS for trapped
//! calls.
//!
//! The program may handle, block and wait for both; its settings are applied when a signal does not come from the
//! library. No signal set that reaches the kernel has them. Handlers of all signals are kept here, and the kernel has
//! the library's in their place (`delivery.rs`); the kernel keeps the actions without a handler.
//!
//! Signals that the program ignores are not blocked while the library serves a fault or a call. The kernel keeps a
//! blocked signal even if it is ignored, since its action may change (`sig_ignored` in kernel/signal.c), and wakes
//! another thread for it: SIGCHLD of a thread's child would end the write of another thread in part.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

use crate::kernel::{call, size};
use crate::lock::{Futex, Lock};
use crate::program::is_own_process;

/// Argument of rt_sigaction(2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

pub const SET_BYTES: u64 = 8;
const SA_RESTORER: u64 = 0x0400_0000;

/// Bit of a signal in a set.
pub const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Signals of the library.
const OURS: u64 = bit(libc::SIGBUS) | bit(libc::SIGSYS);

/// Set without the library's signals.
pub const fn without_ours(set: u64) -> u64 {
    set & !OURS
}

/// The library's signals in a set.
pub const fn ours_of(set: u64) -> u64 {
    set & OURS
}

/// Signals of faults, which always end a program that ignores them.
pub const FAULTS: u64 = OURS | bit(libc::SIGSEGV) | bit(libc::SIGILL) | bit(libc::SIGFPE) | bit(libc::SIGTRAP);

/// Signals whose default is to do nothing. SIGCONT continues a stopped program when it is sent.
const NOTHING: u64 = bit(libc::SIGCHLD) | bit(libc::SIGCONT) | bit(libc::SIGURG) | bit(libc::SIGWINCH);

/// Signals blocked while the library serves a fault or a call: all but its own, and those that the program ignores. One
/// that comes nevertheless, since another thread handles it as of now, is put off (`delivery.rs`).
pub static BLOCKED: AtomicU64 = AtomicU64::new(without_ours(u64::MAX));

/// The program's settings for one signal. Threads change them one at a time; others read them at any time.
struct Settings {
    /// Odd during a change.
    changes: AtomicU32,
    /// Handler, flags, restorer, mask.
    words: [AtomicU64; 4],
}

static SETTINGS: [Settings; 64] =
    [const { Settings { changes: AtomicU32::new(0), words: [const { AtomicU64::new(0) }; 4] } }; 64];

/// Lock of changes. Its holder has all signals blocked and waits for nothing.
static CHANGING: Lock = Lock::over(Futex::new(), Futex::new());

fn settings(signal: c_int) -> Option<&'static Settings> {
    SETTINGS.get(usize::try_from(signal).ok()?.checked_sub(1)?)
}

impl Settings {
    fn get(&self) -> Action {
        loop {
            let before = self.changes.load(Acquire);
            let [handler, flags, restorer, mask] = [0, 1, 2, 3].map(|number: usize| self.words[number].load(Relaxed));
            fence(Acquire);
            if before.is_multiple_of(2) && self.changes.load(Relaxed) == before {
                return Action { handler, flags, restorer, mask };
            }
            core::hint::spin_loop();
        }
    }

    /// The lock of changes is held.
    fn set(&self, action: Action) {
        let before = self.changes.load(Relaxed);
        self.changes.store(before.wrapping_add(1), Relaxed);
        fence(Release);
        for (word, value) in self.words.iter().zip([action.handler, action.flags, action.restorer, action.mask]) {
            word.store(value, Relaxed);
        }
        self.changes.store(before.wrapping_add(2), Release);
    }
}

/// The program's settings for a signal. Its handler is valid only if the kernel, too, has one for it.
pub fn action(signal: c_int) -> Option<Action> {
    settings(signal).map(Settings::get)
}

/// Whether the program handles a signal that is not the library's.
pub fn is_handled(signal: c_int) -> bool {
    kernels(signal, None).is_ok_and(|action| action.handler == delivery())
}

/// Bit of the signal itself in the mask of its handler.
pub fn own_bit(signal: c_int, action: &Action) -> u64 {
    if action.flags & libc::SA_NODEFER as u64 == 0 { bit(signal) } else { 0 }
}

core::arch::global_asm!(
    // Exactly the bytes that unwinders and debuggers look for behind a signal frame.
    ".globl masu_restore",
    ".hidden masu_restore",
    "masu_restore:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05",
);

unsafe extern "C" {
    fn masu_restore();
}

/// Return address of the library's handlers: a return through it is not a trapped call.
fn restorer() -> u64 {
    (masu_restore as *const ()).expose_provenance() as u64
}

pub type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Address of the library's handler for the program's signals.
static DELIVERY: AtomicU64 = AtomicU64::new(0);

fn delivery() -> u64 {
    DELIVERY.load(Relaxed)
}

/// Sets the library's handler for the signals that the program will handle.
pub fn deliver_by(handler: Handler) {
    DELIVERY.store((handler as *const ()).expose_provenance() as u64, Relaxed);
}

/// Gives a signal its default action in the kernel.
pub fn set_default(signal: c_int) {
    // The kernel accepts it for every signal that has a handler.
    let _ = kernels(signal, Some(&Action::default()));
}

/// Notes that the kernel has reset an action that holds once.
pub fn note_reset(signal: c_int, action: &Action) {
    if action.flags & SA_RESETHAND == 0 || !is_own_process() {
        return;
    }
    let _guard = CHANGING.lock();
    if kernels(signal, None).is_ok_and(|now| is_dropped(signal, &now)) {
        block(signal, false);
    }
}

/// Sets an action again that the kernel has reset, for a signal that comes once more.
pub fn set_again(signal: c_int, action: &Action) {
    if action.flags & SA_RESETHAND != 0 && kernels(signal, None).is_ok_and(|now| size(now.handler) == libc::SIG_DFL) {
        let _ = kernels(signal, Some(&ours(delivery(), action.flags & OF_KERNEL)));
    }
}

/// Resets the program's settings for a signal of the library whose handler is to be called once.
pub fn reset_if_once(signal: c_int, action: &Action) {
    if action.flags & SA_RESETHAND != 0
        && let Some(settings) = settings(signal)
    {
        let _guard = CHANGING.lock();
        settings.set(Action::default());
    }
}

/// Sets a signal's action in the kernel, if `new` is given. Returns the old one.
fn kernels(signal: c_int, new: Option<&Action>) -> Result<Action, i64> {
    let mut before = Action::default();
    let address = new.map_or(0, |action| core::ptr::from_ref(action).addr());
    // SAFETY: reads and writes our own memory. Handlers are the library's, which preserve the state that a handler must
    // preserve, or the program's own.
    let answer = unsafe { call!(libc::SYS_rt_sigaction, signal, address, (&raw mut before).addr(), SET_BYTES) };
    if answer == 0 { Ok(before) } else { Err(answer) }
}

/// Action with a handler of the library: on its stack, with the signals of [`BLOCKED`] blocked.
fn ours(handler: u64, flags: u64) -> Action {
    let always = (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64 | SA_RESTORER;
    Action { handler, flags: flags | always, restorer: restorer(), mask: BLOCKED.load(Relaxed) }
}

/// Whether the kernel drops a signal with this action when it is sent, unless it is blocked.
fn is_dropped(signal: c_int, action: &Action) -> bool {
    match size(action.handler) {
        // A write of the library's own may raise SIGXFSZ, and takes it back.
        libc::SIG_IGN => bit(signal) & (FAULTS | bit(libc::SIGXFSZ)) == 0,
        libc::SIG_DFL => bit(signal) & NOTHING != 0,
        _ => false,
    }
}

/// Has the library's handlers block a signal, or not. The lock of changes is held, or there is one thread.
fn block(signal: c_int, is_blocked: bool) {
    let bit = bit(signal);
    let before = if is_blocked { BLOCKED.fetch_or(bit, Relaxed) } else { BLOCKED.fetch_and(!bit, Relaxed) };
    if is_own_process() && (before & bit != 0) == is_blocked {
        return;
    }
    for other in 1..=64 {
        // An action that holds once may be over by now.
        let is_ours = |action: &Action| action.restorer == restorer() && action.flags & SA_RESETHAND == 0;
        if let Some(action) = kernels(other, None).ok().filter(is_ours)
            && (action.mask & bit != 0) != is_blocked
        {
            // The kernel accepted the same with another mask.
            let _ = kernels(other, Some(&Action { mask: action.mask ^ bit, ..action }));
        }
    }
}

/// Blocks a signal until this handler of the library returns.
fn block_here(signal: c_int) {
    let set = bit(signal);
    // SAFETY: reads our own set.
    unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, (&raw const set).addr(), 0, SET_BYTES) };
}

/// Blocks no signal that the program ignores from its start. The library has taken its own.
pub fn let_ignored_pass() {
    for signal in 1..=64 {
        if kernels(signal, None).is_ok_and(|action| is_dropped(signal, &action)) {
            block(signal, false);
        }
    }
}

/// Takes a signal for the library.
pub fn take(signal: c_int, handler: Handler) -> bool {
    let action = ours((handler as *const ()).expose_provenance() as u64, libc::SA_RESTART as u64);
    match (kernels(signal, Some(&action)), settings(signal)) {
        (Ok(before), Some(settings)) => settings.set(before),
        _ => return false,
    }
    true
}

/// Flags whose effect the kernel has before it calls a handler: they apply to the library's, too.
const OF_KERNEL: u64 =
    (libc::SA_NOCLDSTOP | libc::SA_NOCLDWAIT | libc::SA_RESTART) as u64 | SA_RESETHAND | SA_EXPOSE_TAGBITS;
const SA_RESETHAND: u64 = 1 << 31;
const SA_EXPOSE_TAGBITS: u64 = 0x800;

/// Flags that the kernel knows; it clears others (`UAPI_SA_FLAGS`).
const KNOWN: u64 = OF_KERNEL | (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER) as u64 | SA_RESTORER;

/// rt_sigaction(2) for the program: its handlers are kept here, and called by the library's. Returns the old settings.
pub fn change(signal: c_int, new: Option<Action>) -> Result<Action, i64> {
    let Some(settings) = settings(signal) else { return kernels(signal, new.as_ref()) };
    let new = new.map(|action| Action { flags: action.flags & KNOWN, ..action });
    // A child that shares this memory until it calls exec has actions of its own in the kernel, and no place for them
    // here. It takes no lock: it may be killed at any time.
    let is_own = is_own_process();
    let _guard = is_own.then(|| CHANGING.lock());
    let kept = settings.get();
    if bit(signal) & OURS != 0 {
        if let Some(new) = new.filter(|_| is_own) {
            settings.set(new);
        }
        return Ok(kept);
    }
    let is_handler = |action: &Action| !matches!(size(action.handler), libc::SIG_DFL | libc::SIG_IGN);
    if new.is_some_and(|new| if is_own { !is_dropped(signal, &new) } else { is_handler(&new) }) {
        block_here(signal);
        block(signal, true);
    }
    let before = match &new {
        Some(new) if is_handler(new) && new.flags & SA_RESTORER != 0 && is_own => {
            settings.set(*new);
            let before = kernels(signal, Some(&ours(delivery(), new.flags & OF_KERNEL)));
            if before.is_err() {
                settings.set(kept);
            }
            before
        }
        // On the library's stack, which is present.
        Some(new) if is_handler(new) => {
            let flags = new.flags | libc::SA_ONSTACK as u64;
            kernels(signal, Some(&Action { flags, mask: without_ours(new.mask), ..*new }))
        }
        other => kernels(signal, other.as_ref()),
    };
    if is_own && before.is_ok() && new.is_some_and(|new| is_dropped(signal, &new)) {
        block(signal, false);
    }
    before.map(|before| if before.handler == delivery() { kept } else { before })
}

/// Gives all settings to the kernel: for a forked child, which is not paged.
pub fn hand_back() {
    for (signal, settings) in (1..).zip(&SETTINGS) {
        let is_kept = |action: Action| action.handler == delivery() || bit(signal) & OURS != 0;
        if kernels(signal, None).is_ok_and(is_kept) {
            // The kernel accepted the same before.
            let _ = kernels(signal, Some(&settings.get()));
        }
    }
}

/// Ends the program by a pending signal whose default action ends it, if the program neither handles it nor blocks it.
/// For waits in which all signals are blocked.
pub fn end_by_pending(mask: u64) {
    const STOPS: u64 = bit(libc::SIGTSTP) | bit(libc::SIGTTIN) | bit(libc::SIGTTOU);
    let mut pending = 0_u64;
    // SAFETY: writes our own set.
    unsafe { call!(libc::SYS_rt_sigpending, (&raw mut pending).addr(), SET_BYTES) };
    let ends = pending & !(mask | OURS | STOPS | NOTHING);
    for signal in (1..=64).filter(|signal| ends & bit(*signal) != 0) {
        if kernels(signal, None).is_ok_and(|action| size(action.handler) == libc::SIG_DFL) {
            let (set, mut before) = (bit(signal), 0_u64);
            // SAFETY: reads and writes our own sets. The signal ends the process, or another thread has taken it.
            unsafe {
                call!(
                    libc::SYS_rt_sigprocmask,
                    libc::SIG_UNBLOCK,
                    (&raw const set).addr(),
                    (&raw mut before).addr(),
                    SET_BYTES
                );
                call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, (&raw const before).addr(), 0, SET_BYTES);
            }
        }
    }
}
