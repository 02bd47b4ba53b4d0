//! madvise(2) on paged memory.

use core::ops::ControlFlow;

use farmem_engine::PAGE_BYTES;
use farmem_engine::calls::{Call, number};

use crate::kernel::{call, int};
use crate::memory::{as_it_stands, failed, lock_idle, page_up, touches};
use crate::program::Program;

const POPULATE_READ: i32 = 22;
const POPULATE_WRITE: i32 = 23;
const DONTNEED_LOCKED: i32 = 24;
const GUARD_INSTALL: i32 = 102;
const GUARD_REMOVE: i32 = 103;

/// Advice after which pages are lost, or are guard pages, or are guard pages no more.
const fn changes_pages(advice: i32) -> bool {
    matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED | GUARD_INSTALL | GUARD_REMOVE)
}

/// Records the pages of a range that the kernel has changed by this advice.
fn record(program: &Program, start: u64, bytes: u64, advice: i32) {
    match advice {
        GUARD_INSTALL => program.pager.guard(start, bytes),
        GUARD_REMOVE => program.pager.unguard(start, bytes),
        _ => program.pager.empty(start, bytes),
    }
}

/// Answer to a call with advice, or `None` when only the kernel is concerned.
pub fn emulate(program: &'static Program, call: Call) -> Option<i64> {
    let [first, second, _, fourth, ..] = call.arguments;
    match call.number {
        number::MADVISE if touches(program, first, second) => Some(advise(program, call)),
        // On the process itself it would change pages unseen. Kernels before 6.13 give the same answer.
        number::PROCESS_MADVISE if changes_pages(int(fourth)) => Some(-i64::from(libc::EINVAL)),
        // `memory::remap` uses these to tell memory apart.
        number::PROCESS_MADVISE if matches!(int(fourth), libc::MADV_NORMAL..=libc::MADV_SEQUENTIAL) => {
            Some(-i64::from(libc::EINVAL))
        }
        _ => None,
    }
}

/// madvise(2), some of whose range may be paged.
fn advise(program: &'static Program, call: Call) -> i64 {
    let [start, asked, advice, ..] = call.arguments;
    let (bytes, advice) = (page_up(asked), int(advice));
    let _guard = lock_idle(program);
    match advice {
        _ if changes_pages(advice) => change_pages(program, call, start, bytes, advice),
        libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | POPULATE_READ
        | POPULATE_WRITE => 0,
        libc::MADV_COLLAPSE => -i64::from(libc::EINVAL),
        _ => as_it_stands(call),
    }
}

/// Has the kernel change pages. The lock is held.
fn change_pages(program: &Program, call: Call, start: u64, bytes: u64, advice: i32) -> i64 {
    // The kernel refuses other ranges before it changes anything.
    let is_valid = start.is_multiple_of(PAGE_BYTES) && start.checked_add(bytes).is_some() && call.arguments[1] <= bytes;
    if advice == GUARD_INSTALL && is_valid && !program.pager.number_chunks(start, bytes) {
        return -i64::from(libc::ENOMEM);
    }
    // The kernel may keep memory after MADV_FREE, or not; here it never does. The kernel checks the kind of memory.
    let free = advice == libc::MADV_FREE;
    let mut call = call;
    let mut answer = as_it_stands(call);
    if free && !failed(answer) {
        call.arguments[2] = libc::MADV_DONTNEED as u64;
        answer = as_it_stands(call);
    }
    if !failed(answer) {
        record(program, start, bytes, advice);
    } else if is_valid {
        change_up_to_failure(program, start, bytes, advice);
    }
    answer
}

/// Changes pages of a range one by one, up to those that the kernel refused: it may have changed a part before its
/// failure. The lock is held.
fn change_up_to_failure(program: &Program, start: u64, bytes: u64, advice: i32) {
    const ENOMEM: i64 = -(libc::ENOMEM as i64);
    let change = |address: u64| {
        // SAFETY: the program's own advice, page by page.
        let advised = |advice: i32| unsafe { call!(libc::SYS_madvise, address, PAGE_BYTES, advice) };
        match advised(advice) {
            0 => {
                if advice == libc::MADV_FREE {
                    advised(libc::MADV_DONTNEED);
                }
                record(program, address, PAGE_BYTES, advice);
            }
            // Nothing is mapped there, and the kernel went on behind.
            ENOMEM => program.pager.forget(address, PAGE_BYTES),
            _ => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    };
    let mut goes_on = ControlFlow::Continue(());
    program.pager.space.each_run(start, bytes, |first, pages| {
        let first = program.pager.space.address(first);
        if goes_on.is_continue() {
            goes_on = (0..pages).try_for_each(|page| change(first + u64::from(page) * PAGE_BYTES));
        }
    });
}
