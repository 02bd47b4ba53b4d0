//! SIGBUS: a touch of a missing page, or the program's own bus error.

use core::ffi::{c_int, c_void};

use farmem_engine::counters::Counter;
use farmem_engine::pager::{Served, Touch};

use crate::program::{Program, is_paged, program};
use crate::registers::Context;
use crate::thread::Repeated;
use crate::{clock, delivery, kernel, page_fault};

/// Bit of a page fault's error code that marks a write.
const WRITE: i64 = 2;

/// BUS_ADRERR of C: there is nothing at the address.
const NOTHING_THERE: c_int = 2;

/// # Safety
/// Called by the kernel as a signal handler, on a stack of the library's own, with the signals of
/// [`crate::signals::BLOCKED`] blocked.
pub unsafe extern "C" fn on_bus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own, valid while the handler runs.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr() as u64) };
    let ours = |program: &&Program| code == NOTHING_THERE && program.pager.space.may_be_paged(address);
    // In a forked child nothing is paged, and the userfaultfd is its parent's.
    if let Some(program) = program().filter(|_| is_paged()).filter(ours) {
        let begun = clock::ticks();
        // SAFETY: this is a handler of the library's, with the kernel's own context.
        unsafe { Repeated::note_mask(&Context::of(context)) };
        // SAFETY: as above.
        let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let touch = Touch {
            address,
            write: registers[libc::REG_ERR as usize] & WRITE != 0,
            site: registers[libc::REG_RIP as usize].cast_unsigned(),
        };
        let served = page_fault::serve(program, touch);
        // SAFETY: this is a handler of the library's.
        let times = unsafe { Repeated::here() }.again(address, served == Some(Served::Already));
        if times > PATIENCE {
            kernel::give_up(&[
                "a page that should be there is not; the program is ended before it goes wrong\n    ",
                "This should not happen; please report it.",
            ]);
        }
        if served.is_some() {
            let now = clock::ticks();
            program.pager.counters.add(Counter::StallTicks, now.wrapping_sub(begun));
            // masu computes the length of a tick from two moments far apart.
            if now.wrapping_sub(program.pager.counters.get(Counter::LateTicks)) > 1 << 28 {
                program.pager.counters.set(Counter::LateTicks, now);
                program.pager.counters.set(Counter::LateNs, clock::clock_ns());
            }
            return;
        }
        if program.pager.space.page(address).is_none() {
            kernel::out_of_page_slots();
        }
    }
    // SAFETY: the kernel's own arguments.
    unsafe { delivery::pass_on(signal, info, context) };
}

/// Limit of faults in a row on a present page: another thread may have brought it meanwhile, but not this often by
/// chance.
const PATIENCE: u32 = 100_000;
