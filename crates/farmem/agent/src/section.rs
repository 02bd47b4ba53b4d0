//! Sections that the program marks itself. Called as plain functions, so signals are blocked while the lock is held.

use core::ffi::c_int;

use crate::kernel::call;
use crate::lock::{Guard, LOCK};
use crate::program::{Program, is_paged, program};
use crate::signals::{SET_BYTES, without_ours};

/// Begins a section.
pub fn begins(section: c_int) {
    with(|program, guard| program.units(guard).section_begins(section.cast_unsigned()));
}

/// Ends a section.
pub fn ends(section: c_int) {
    with(|program, guard| program.units(guard).section_ends(section.cast_unsigned(), program.pager.budget()));
}

fn with(work: impl FnOnce(&'static Program, &Guard<'_>)) {
    let Some(program) = program().filter(|_| is_paged()) else { return };
    let (all, mut before) = (without_ours(u64::MAX), 0_u64);
    let set = |set: *const u64, old: *mut u64| {
        // SAFETY: reads and writes our own words.
        unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set.addr(), old.addr(), SET_BYTES) }
    };
    set(&raw const all, &raw mut before);
    work(program, &LOCK.lock());
    set(&raw const before, core::ptr::null_mut());
}
