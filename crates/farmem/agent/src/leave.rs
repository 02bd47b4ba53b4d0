//! End of the service of a program that puts a seccomp filter on itself: the filter knows none of the pager's calls, and
//! may kill the program for one. All pages come back, the traps go, and the program runs unserved from then on.

use core::sync::atomic::Ordering::Relaxed;

use farmem_engine::PAGE_BYTES;
use farmem_engine::calls::{Call, number};
use farmem_engine::counters::Counter;
use farmem_engine::handshake::Aside;
use farmem_engine::left_out::LeftOut;

use crate::frames::Frames;
use crate::kernel::{call, uint};
use crate::lock::LOCK;
use crate::program::{PAGED, Program};
use crate::syscall_user_dispatch::SELECTOR;
use crate::{left_out, mappings, signals, socket};

/// Whether a call of seccomp(2), or of prctl(2) with PR_SET_SECCOMP, would put a filter on or set the strict mode.
pub const fn puts_on_filter(call: Call) -> bool {
    const BY_PRCTL: [u64; 2] = [libc::SECCOMP_MODE_STRICT as u64, libc::SECCOMP_MODE_FILTER as u64];
    let [first, second, third, ..] = call.arguments;
    match call.number {
        number::SECCOMP => matches!((first, second, third), (0, 0, 0)) || first == 1 && third != 0,
        _ => second == BY_PRCTL[0] || second == BY_PRCTL[1] && third != 0,
    }
}

/// Ends the service, if the program has one thread and the machine has memory for all of it. False where it goes on.
pub fn leave(program: &'static Program) -> bool {
    // SAFETY: asks.
    let process = uint(unsafe { call!(libc::SYS_getpid) }.cast_unsigned());
    // A child of vfork shares the memory with its parent, which stays paged; another thread may be in the pager.
    if process != program.process.load(Relaxed) || left_out::threads() != Some(1) {
        return false;
    }
    let guard = LOCK.lock();
    let counters = &program.pager.counters;
    let missing = counters.get(Counter::StoredPages).saturating_mul(PAGE_BYTES);
    if missing > free_bytes() / 2 {
        return false;
    }
    let before = [Counter::BudgetShare, Counter::BudgetFrames].map(|counter| (counter, counters.get(counter)));
    counters.set(Counter::BudgetShare, 0);
    counters.set(Counter::BudgetFrames, u32::MAX.into());
    let all_is_here = match program.pager.fault_in_all(&mut Frames::new(program), &mut program.units(&guard)) {
        Ok(all_is_here) => all_is_here,
        Err(never) => match never {},
    };
    // masu reports the budget that the program had.
    before.into_iter().for_each(|(counter, value)| counters.set(counter, value));
    if !all_is_here {
        return false;
    }
    mappings::each(|mapping| {
        let bytes = mapping.end - mapping.start;
        if mapping.private && program.pager.space.some_may_be_paged(mapping.start, bytes) {
            // Memory beside the paged one is not registered, and not changed.
            program.uffd.unregister(mapping.start, bytes);
        }
    });
    PAGED.store(false, Relaxed);
    SELECTOR.store(0, Relaxed);
    signals::hand_back();
    socket::send_at_once(program.socket, &Aside { reason: LeftOut::FilteredLater }.message());
    for fd in [program.socket, program.store, program.uffd.fd] {
        if fd >= 0 {
            // SAFETY: our own, and not used any more.
            unsafe { call!(libc::SYS_close, fd) };
        }
    }
    true
}

/// Free memory of the machine.
fn free_bytes() -> u64 {
    // SAFETY: all zeros are a value of it.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: writes our own memory.
    let answer = unsafe { call!(libc::SYS_sysinfo, (&raw mut info).expose_provenance()) };
    if answer == 0 { info.freeram.saturating_mul(info.mem_unit.into()) } else { 0 }
}
