//! `libmasu.so` and `libmasu.a`: a program has a say about its pages.
//!
//! HPS's other half (Shimizu and Yamada, sections 3 to 5): the program registers with a tracker (`masu track`), is told by a
//! signal how many of its pages are active, fetches their list, and decides window by window: leave it, make it huge, or
//! move what is hot in it onto a huge page of its own (`arena.rs`). `calls.rs` is what C sees under current names, with a
//! context (`track.rs`) each; `hps.rs` the paper's four functions over one context. `interface.rs` and those two make `masu.h`.
//!
//! The rules of this house: what runs in a signal handler allocates nothing, waits for no lock, and keeps errno. There is no
//! standard library in here and no panic that could be reached. Without a tracker nothing is done: no thread, no signal, no
//! memory.

#![no_std]

mod arena;
mod calls;
mod hps;
mod interface;
mod kernel;
mod list;
mod lock;
mod signal;
mod track;
mod tracker;
mod wait;

/// Nothing here panics; if it did, the program would be stopped rather than go on wrongly.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
