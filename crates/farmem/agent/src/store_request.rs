//! Synchronous store requests to masu, for stores that the program does not reach by itself: one at a time, by the
//! holder of the lock.
//!
//! masu waits as long as the store needs, and informs the user meanwhile. If masu itself has ended, its stored pages
//! are lost, and the program is ended with that reason.

use farmem_engine::handshake::WAKE;
use farmem_engine::segment::{ASKED, Ask};
use farmem_engine::space::Page;

use crate::clock;
use crate::kernel::{self, call};
use crate::program::Program;
use crate::signals;
use crate::socket;
use crate::thread::Repeated;

/// Busy-waiting time for the answer before sleeping: about 20 µs.
const SHORTLY_TICKS: u64 = 50_000;

/// Submits a request, and waits until it is done.
pub fn ask(program: &Program, ask: Ask, page: Page, pages: u32) {
    let request = &program.request;
    request.ask(ask, page, pages);
    let state = request.state().as_ptr().addr();
    // SAFETY: wakes masu, which waits on our own word.
    unsafe { call!(libc::SYS_futex, state, libc::FUTEX_WAKE, 1) };
    if program.store >= 0 {
        // Of a program with a file masu waits on the socket.
        socket::send_at_once(program.socket, &WAKE);
    }
    let begun = clock::ticks();
    loop {
        match request.answered() {
            Some(true) => return,
            // masu has reported the reason.
            Some(false) => kernel::end(2),
            None if clock::ticks().wrapping_sub(begun) < SHORTLY_TICKS => core::hint::spin_loop(),
            None => {
                let second = libc::timespec { tv_sec: 1, tv_nsec: 0 };
                // SAFETY: reads our own memory, and waits on our own word.
                let answer = unsafe {
                    call!(libc::SYS_futex, state, libc::FUTEX_WAIT, ASKED, (&raw const second).expose_provenance())
                };
                if answer == -i64::from(libc::ETIMEDOUT) {
                    is_masu_there(program);
                }
            }
        }
    }
}

/// Ends the program if a signal would have ended it but for this wait, or if masu has ended.
pub fn is_masu_there(program: &Program) {
    if let Some(mask) = Repeated::mask_now() {
        signals::end_by_pending(mask);
    }
    if is_gone(program) {
        kernel::give_up(&[
            "masu is gone, and with it what it kept of this program's memory; the program is ended\n    ",
            "Find out what ended masu (dmesg tells of a lack of memory; it also ends with the program that it started); \
             with --store file:DIR programs go on without it.",
        ]);
    }
}

fn is_gone(program: &Program) -> bool {
    let mut fds = libc::pollfd { fd: program.socket, events: 0, revents: 0 };
    // SAFETY: writes our own memory.
    unsafe { call!(libc::SYS_poll, (&raw mut fds).expose_provenance(), 1, 0) };
    fds.revents & (libc::POLLHUP | libc::POLLERR) != 0
}
