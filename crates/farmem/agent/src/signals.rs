//! Signals of the program, two of them used by the library: SIGBUS for missing pages, SIGSYS for trapped calls.
//!
//! The program may handle, block and wait for both; its settings are kept here and applied when a signal does not come
//! from the library. No signal set that reaches the kernel has them.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::kernel::{call, size};
use crate::program::program;

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

/// The program's settings for the library's signals: handler, flags, mask.
struct Wanted([AtomicU64; 4]);

static WANTED: [Wanted; 2] = [const { Wanted([const { AtomicU64::new(0) }; 4]) }; 2];

fn wanted(signal: c_int) -> Option<&'static Wanted> {
    match signal {
        libc::SIGBUS => Some(&WANTED[0]),
        libc::SIGSYS => Some(&WANTED[1]),
        _ => None,
    }
}

impl Wanted {
    fn get(&self) -> Action {
        let word = |number: usize| self.0[number].load(Relaxed);
        Action { handler: word(0), flags: word(1), restorer: word(2), mask: word(3) }
    }

    fn set(&self, action: Action) {
        for (word, value) in self.0.iter().zip([action.handler, action.flags, action.restorer, action.mask]) {
            word.store(value, Relaxed);
        }
    }
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

/// Return address of all handlers, the library's and the program's: a return through it is not a trapped call.
fn restorer() -> u64 {
    (masu_restore as *const ()).expose_provenance() as u64
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Takes a signal for the library.
pub fn take(signal: c_int, handler: Handler) -> bool {
    let mut before = Action::default();
    let action = Action {
        handler: (handler as *const ()).expose_provenance() as u64,
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64 | SA_RESTORER,
        restorer: restorer(),
        mask: without_ours(u64::MAX),
    };
    // SAFETY: reads and writes our own memory; the handlers preserve the state that a handler must preserve.
    let answer = unsafe {
        call!(libc::SYS_rt_sigaction, signal, (&raw const action).addr(), (&raw mut before).addr(), SET_BYTES)
    };
    if let Some(wanted) = wanted(signal) {
        wanted.set(before);
    }
    answer == 0
}

/// rt_sigaction(2) for the program: settings for the library's signals are kept, settings for other signals go to the
/// kernel without these signals in the mask. Returns the old settings.
pub fn change(signal: c_int, new: Option<Action>) -> Result<Action, i64> {
    if let Some(wanted) = wanted(signal) {
        let before = wanted.get();
        // A child that shares our memory until it calls exec has handlers of its own in the kernel, and no place for
        // them here.
        let is_own = program().is_some_and(|program| {
            // SAFETY: asks.
            let process = unsafe { call!(libc::SYS_getpid) };
            i64::from(program.process.load(Relaxed)) == process
        });
        if let Some(new) = new.filter(|_| is_own) {
            wanted.set(new);
        }
        return Ok(before);
    }
    let new = new.map(|action| Action {
        flags: action.flags | SA_RESTORER,
        restorer: restorer(),
        mask: without_ours(action.mask),
        ..action
    });
    let mut before = Action::default();
    let address = new.as_ref().map_or(0, |action| (&raw const *action).addr());
    // SAFETY: reads and writes our own memory.
    let answer = unsafe { call!(libc::SYS_rt_sigaction, signal, address, (&raw mut before).addr(), SET_BYTES) };
    if answer == 0 { Ok(before) } else { Err(answer) }
}

/// Passes on a signal that does not come from the library: to the program's handler, or with the default effect.
///
/// # Safety
/// With the arguments that the kernel gave to the library's handler, from within it.
pub unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let action = wanted(signal).map_or(Action::default(), Wanted::get);
    match size(action.handler) {
        // Sent by a process, and no fault.
        // SAFETY: the kernel's own.
        libc::SIG_IGN if unsafe { (*info).si_code } <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: as above.
            if unsafe { (*info).si_code } <= 0 {
                // Sent again, for the kernel's default action when this handler returns.
                // SAFETY: a signal to this process, as it was sent.
                unsafe { call!(libc::SYS_kill, call!(libc::SYS_getpid), signal) };
            }
            // The kernel does not let a fault be ignored. Without our handler it comes again, with its default action.
            let default = Action::default();
            // SAFETY: reads our own memory.
            unsafe { call!(libc::SYS_rt_sigaction, signal, (&raw const default).addr(), 0, SET_BYTES) };
        }
        handler => {
            // Mask that the kernel would use for the program's handler: the old one, the action's own, and the signal.
            // SAFETY: the kernel's own context.
            let before = unsafe { (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().read() };
            let mask = without_ours(before | action.mask);
            // SAFETY: reads our own memory; the return from this handler sets the mask as it was.
            unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, (&raw const mask).addr(), 0, SET_BYTES) };
            let handler = core::ptr::with_exposed_provenance::<()>(handler);
            // SAFETY: the program registered this handler; a plain one ignores the last two arguments.
            unsafe { core::mem::transmute::<*const (), Handler>(handler)(signal, info, context) };
        }
    }
}
