//! Syscall User Dispatch: the call that turns it on, and the values that it names. Threads turn it on here, or by the
//! stubs of `process.rs`.

use core::sync::atomic::{AtomicU8, AtomicU64};

use crate::kernel::call;

/// Range of this library's text, whose calls are not trapped: its start and its bytes. The section `.masu_trap`
/// (`stub.rs`) lies outside of it. Read by the stubs of
/// `process.rs`.
pub static DISPATCH: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Selector that the kernel reads at each call: 1 means that calls are trapped. One byte for all threads, never
/// changed.
pub static SELECTOR: AtomicU8 = AtomicU8::new(1);

/// Traps the calls of this thread from now on.
pub fn begin(text: (u64, u64)) -> i64 {
    const SET: i32 = 59;
    const ON: i32 = 1;
    // SAFETY: from now on calls from elsewhere raise SIGSYS, for which there is a handler.
    unsafe { call!(libc::SYS_prctl, SET, ON, text.0, text.1, SELECTOR.as_ptr().addr()) }
}
