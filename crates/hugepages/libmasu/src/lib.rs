//! `libmasu.so` and `libmasu.a`: library of cooperating programs, which decide about their own pages.
//!
//! HPS's other half (Shimizu and Yamada, sections 3 to 5). The program registers with a tracker (`masu track`), gets
//! a signal with the number of its active pages, and fetches their list. It decides window by window: leave it, make
//! it huge, or move its hot objects onto a huge page of the program's own (`arena.rs`). `calls.rs` is the C interface
//! under current names, with a context (`track.rs`) each; `hps.rs` has the paper's four functions over one context.
//! `interface.rs` and those two make `masu.h`.
//!
//! Rules: code in a signal handler allocates nothing, waits for no lock, and keeps errno. There is no standard
//! library in here and no reachable panic. Without a tracker nothing is done: no thread, no signal, no memory.

#![no_std]

mod arena;
mod calls;
mod hps;
mod interface;
mod kernel;
mod list;
mod lock;
mod track;
mod tracker;
mod wait;

/// Nothing here panics; after a panic the program is stopped rather than continued wrongly.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
