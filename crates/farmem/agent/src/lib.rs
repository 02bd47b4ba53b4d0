//! `libmasu-pager.so`: far memory for a program larger than its machine, paged from within.
//!
//! Loaded by `masu run --local` through LD_PRELOAD. At the start (`start.rs`) it gets the session parameters from masu,
//! finds the memory that is paged from then on, and has every system call trapped. A touch of a missing page raises
//! SIGBUS in the touching thread (`bus_error.rs`), which brings the page itself and goes on. A call (`syscall_trap.rs`) is
//! examined first: its memory is mapped in and stays until the call is done, and calls that change mappings are made
//! here.
//!
//! The decisions and the state of every page are in `crates/farmem/engine`, which is tested outside of any program.
//!
//! Rules: nothing here allocates, uses the C library or thread-local storage, or waits for anything but the pager's
//! lock and the store. The holder of the lock runs no handler of the program and touches no paged memory. Every system
//! call is made by an instruction of this library's own.

#![no_std]

mod advice;
mod bus_error;
mod clock;
mod delivery;
mod descriptors;
mod doorbell;
mod exchange;
mod executable;
mod frames;
mod handler_return;
mod kernel;
mod leave;
mod left_out;
mod limits;
mod lock;
mod mappings;
mod memory;
mod page_fault;
mod peer;
mod prepare;
mod process;
mod program;
mod registers;
mod section;
mod signals;
mod socket;
mod start;
mod store_request;
mod stub;
mod syscall_trap;
mod syscall_user_dispatch;
mod thread;
mod transfer;
mod uffd;
mod vfork;

/// Nothing here panics; a panic would stop the program rather than let it go on wrongly.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    kernel::give_up(&["the pager has failed, which it must not; the program is ended"])
}

/// `swpin_countstart` of the paper: begins a marked section.
#[unsafe(no_mangle)]
pub extern "C" fn swpin_countstart(section: core::ffi::c_int) {
    section::begins(section);
}

/// `swpin_refresh` of the paper: ends a marked section.
#[unsafe(no_mangle)]
pub extern "C" fn swpin_refresh(section: core::ffi::c_int) {
    section::ends(section);
}
