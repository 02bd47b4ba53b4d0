//! madvise(2) on paged memory.

use core::ops::ControlFlow;

use farmem_engine::PAGE_BYTES;
use farmem_engine::calls::{Call, number};

use crate::kernel::{call, int};
use crate::mappings::{self, Mapping};
use crate::memory::{as_it_stands, failed, has_hole, lock_idle, touches};
use crate::program::Program;

const EFAULT: i64 = -(libc::EFAULT as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);

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
        number::PROCESS_MADVISE if changes_pages(int(fourth)) => Some(EINVAL),
        // `memory::remap` uses these to tell memory apart.
        number::PROCESS_MADVISE if matches!(int(fourth), libc::MADV_NORMAL..=libc::MADV_SEQUENTIAL) => Some(EINVAL),
        _ => None,
    }
}

/// madvise(2), some of whose range may be paged.
fn advise(program: &'static Program, call: Call) -> i64 {
    let [start, asked, advice, ..] = call.arguments;
    let advice = int(advice);
    // The kernel checks these two before anything else.
    let Some(bytes) = length(start, asked) else { return EINVAL };
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
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | POPULATE_READ
        | POPULATE_WRITE => ignore(program, start, bytes, advice),
        libc::MADV_COLLAPSE => EINVAL,
        // WILLNEED among others: the kernel reads files and swap ahead, and maps nothing.
        _ => as_it_stands(call),
    }
}

/// Length in whole pages, or `None` for a range that the kernel refuses: it begins within a page, or wraps around.
fn length(start: u64, asked: u64) -> Option<u64> {
    let bytes = asked.checked_next_multiple_of(PAGE_BYTES)?;
    start.checked_add(bytes).filter(|_| start.is_multiple_of(PAGE_BYTES)).map(|_| bytes)
}

/// The kernel's answer to advice that paged memory does not heed. Nothing is changed. The lock is held.
fn ignore(program: &Program, start: u64, bytes: u64, advice: i32) -> i64 {
    // SAFETY: no memory: the kernel only says whether it knows the advice.
    let known = unsafe { call!(libc::SYS_madvise, 0, 0, advice) };
    if failed(known) {
        return known;
    }
    match advice {
        POPULATE_READ => populate(program, start, start + bytes, |mapping| mapping.readable),
        POPULATE_WRITE => populate(program, start, start + bytes, |mapping| mapping.writable),
        _ if has_hole(start, bytes) => ENOMEM,
        _ => 0,
    }
}

/// The kernel's answer to a request to populate memory: pages come at their first touch, and they may be more than the
/// machine's memory. The kernel ends at the first page that it cannot populate.
fn populate(program: &Program, start: u64, end: u64, is_allowed: impl Fn(&Mapping) -> bool) -> i64 {
    let (mut address, mut answer) = (start, 0);
    let all = mappings::each(|mapping| {
        if answer == 0 && address < end && address < mapping.end {
            answer = match mapping.start > address {
                true => ENOMEM,
                false if !is_allowed(&mapping) => EINVAL,
                false if program.pager.has_guard(address, mapping.end.min(end) - address) => EFAULT,
                false => 0,
            };
            address = mapping.end;
        }
    });
    // Without the list of mappings (a chroot without proc) they all count as populated.
    if all && answer == 0 && address < end { ENOMEM } else { answer }
}

/// Has the kernel change pages. The lock is held.
fn change_pages(program: &Program, call: Call, start: u64, bytes: u64, advice: i32) -> i64 {
    if advice == GUARD_INSTALL && !program.pager.number_chunks(start, bytes) {
        return ENOMEM;
    }
    // The kernel may keep memory after MADV_FREE, or not; here it never does. The kernel checks the kind of memory.
    let free = advice == libc::MADV_FREE;
    let mut call = call;
    let mut answer = as_it_stands(call);
    if free && !failed(answer) {
        call.arguments[2] = libc::MADV_DONTNEED as u64;
        answer = as_it_stands(call);
    }
    if failed(answer) {
        change_up_to_failure(program, start, bytes, advice);
    } else {
        record(program, start, bytes, advice);
    }
    answer
}

/// Changes pages of a range one by one, up to those that the kernel refused: it may have changed a part before its
/// failure. The lock is held.
fn change_up_to_failure(program: &Program, start: u64, bytes: u64, advice: i32) {
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
