//! `libmasu-pager.so`: a program larger than its machine, paged from within.
//!
//! Loaded by `masu run --local` through LD_PRELOAD. At the start (`start.rs`) it asks masu for its terms, finds the memory
//! that is paged from then on, and has every system call shown to it. A touch of a page that is not there raises SIGBUS in
//! the thread that touched it (`fault.rs`), which brings the page itself and goes on. A call (`caught.rs`) is looked at
//! first: its memory is brought and stays until it is done, and calls that change what is mapped are made here.
//!
//! What is decided, and where every page is, stands in `crates/farmem/engine`, which is tested outside of any program.
//!
//! The rules of this house: nothing here allocates, uses the C library or thread-local storage, or waits for anybody but the
//! pager's lock and the store. Whoever holds the lock has all signals blocked and touches no paged memory. Every system
//! call is made by an instruction of this library's own.

#![no_std]

mod bell;
mod caught;
mod descriptors;
mod errand;
mod exchange;
mod fault;
mod frames;
mod kernel;
mod lock;
mod mappings;
mod memory;
mod process;
mod program;
mod section;
mod signals;
mod start;
mod thread;
mod transfer;
mod uffd;

use core::sync::atomic::AtomicU64;

/// This library's text, from where calls are not caught: its start and its bytes. Read by the stubs of `process.rs`.
pub(crate) static DISPATCH: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Nothing here panics; if it did, the program would be stopped rather than go on wrongly.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    kernel::give_up(&["the pager has failed, which it must not; the program is ended"])
}

/// `swpin_countstart` of the paper: a marked section begins.
#[unsafe(no_mangle)]
pub extern "C" fn swpin_countstart(section: core::ffi::c_int) {
    section::begins(section);
}

/// `swpin_refresh` of the paper: a marked section ends.
#[unsafe(no_mangle)]
pub extern "C" fn swpin_refresh(section: core::ffi::c_int) {
    section::ends(section);
}
