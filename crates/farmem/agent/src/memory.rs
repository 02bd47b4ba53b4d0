//! The program's memory: mapping in the memory of a call, and calls that change mappings.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use farmem_engine::PAGE_BYTES;
use farmem_engine::calls::{self, Buffer, Call, Refusal, Until, number};
use farmem_engine::counters::Counter;
use farmem_engine::pager::Touch;

use crate::doorbell;
use crate::executable;
use crate::frames::Frames;
use crate::kernel::{self, call, int, size};
use crate::lock::{Guard, LOCK};
use crate::page_fault;
use crate::program::{HAS_WRITE_ONLY_MAPPING, HEAP_END, Program, program};
use crate::thread::Thread;

const fn page_down(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

const fn page_up(address: u64) -> u64 {
    page_down(address.saturating_add(PAGE_BYTES - 1))
}

/// Largest number of pages pinned by one call.
pub fn most_pinned(program: &Program) -> u64 {
    u64::from(program.pager.budget().frames / 8)
}

/// Whether some of this memory may be paged.
pub fn touches(program: &Program, start: u64, bytes: u64) -> bool {
    program.pager.space.some_may_be_paged(start, bytes)
}

/// Takes the lock, with no batch in flight: for calls that change mappings, or release memory.
pub fn lock_idle(program: &'static Program) -> Guard<'static> {
    let guard = LOCK.lock();
    match program.pager.settle(&mut Frames::new(program), &mut program.units(&guard)) {
        Ok(()) => guard,
        Err(never) => match never {},
    }
}

/// Maps in and pins the memory that the call touches.
pub fn fault_in(program: &'static Program, thread: &mut Thread, call: Call) {
    fault_in_up_to(program, thread, call, most_pinned(program));
}

/// The same, for at most `most` pages.
pub fn fault_in_up_to(program: &'static Program, thread: &mut Thread, call: Call, most: u64) {
    let mut left = most;
    calls::buffers(call, &Own::new(program), &mut |buffer: Buffer| {
        if touches(program, buffer.start, buffer.bytes) {
            pin(program, buffer, left, |start, pages| {
                if buffer.until == Until::Replaced {
                    thread.pin_for_thread(start, pages);
                } else if let Some(more) = thread.remember(start, pages, |page| program.pager.unpin(page)) {
                    left -= more.min(left);
                } else {
                    // More pieces than the record holds: they are present, only not pinned.
                    take_off(program, start, pages);
                }
            });
        }
    });
}

/// Maps in all arguments of exec, and pins as many as possible.
pub fn fault_in_arguments(program: &'static Program, thread: &mut Thread, call: Call) {
    let mut left = 4 * most_pinned(program);
    calls::buffers(call, &Own::new(program), &mut |buffer: Buffer| {
        if touches(program, buffer.start, buffer.bytes) {
            pin(program, buffer, u64::MAX, |start, pages| {
                let more = (pages <= left).then(|| thread.remember(start, pages, |page| program.pager.unpin(page)));
                match more.flatten() {
                    Some(more) => left -= more,
                    None => take_off(program, start, pages),
                }
            });
        }
    });
}

/// Maps in and pins the mutexes that the kernel marks when the thread ends.
pub fn fault_in_robust_list(program: &'static Program, thread: &mut Thread) {
    if thread.robust == 0 {
        return;
    }
    let (most, head) = (most_pinned(program), thread.robust);
    calls::robust_list(head, &Own::new(program), &mut |buffer: Buffer| {
        if touches(program, buffer.start, buffer.bytes) {
            pin(program, buffer, most, |start, pages| {
                if thread.remember(start, pages, |page| program.pager.unpin(page)).is_none() {
                    take_off(program, start, pages);
                }
            });
        }
    });
}

/// Number of unpaged pages in a row after which the search in a buffer ends.
const MISSES: u32 = 1024;

/// Maps in a buffer's pages and pins at most `most`. Calls `run` with the pinned ones, in runs, with the lock held.
fn pin(program: &'static Program, buffer: Buffer, most: u64, mut run: impl FnMut(u64, u64)) {
    let (start, end) = (page_down(buffer.start), page_up(buffer.start.saturating_add(buffer.bytes)));
    let guard = LOCK.lock();
    let (mut address, mut pinned, mut from) = (start, 0, start);
    // Programs may name more than they have ("as much as comes"): the search beyond their memory is short.
    let mut misses = 0;
    while address < end && pinned < most && misses < MISSES {
        let mut done = program.pager.pin(address);
        if !done && program.pager.space.may_be_paged(address) {
            let mut frames = Frames::new(program);
            let touch = Touch { address, write: false, site: 0 };
            match program.pager.touch(&mut frames, &mut program.units(&guard), touch) {
                Ok(_) => done = program.pager.pin(address),
                Err(never) => match never {},
            }
        }
        if done {
            (pinned, misses) = (pinned + 1, 0);
        } else {
            misses += 1;
            if from < address {
                run(from, (address - from) / PAGE_BYTES);
            }
            from = address + PAGE_BYTES;
        }
        address += PAGE_BYTES;
    }
    if from < address {
        run(from, (address - from) / PAGE_BYTES);
    }
    drop(guard);
    doorbell::ring(program);
}

/// Unpins the pages of the thread's calls that have returned.
pub fn unpin(thread: &mut Thread) {
    if thread.is_idle() {
        return;
    }
    let Some(program) = program() else { return };
    let over = thread.drop_completed(read_word);
    let _guard = LOCK.lock();
    for (start, pages) in thread.take_pins(over) {
        take_off(program, start, pages);
    }
}

/// Unpins the pages that were pinned from this number on.
pub fn take_off_last(thread: &mut Thread, from: usize) {
    let Some(program) = program() else { return };
    let _guard = LOCK.lock();
    for (start, pages) in thread.take_pins(from) {
        take_off(program, start, pages);
    }
}

/// Removes pins. The lock is held.
fn take_off(program: &Program, start: u64, pages: u64) {
    (0..pages).for_each(|page| program.pager.unpin(start + page * PAGE_BYTES));
}

/// Bytes of the program's memory read at a time: strings are searched for their end.
const BLOCK_BYTES: u64 = 256;

/// The program's memory as `calls` reads it, for one call.
struct Own {
    program: &'static Program,
    /// Address of the last block that was read, and its content.
    block: Cell<(u64, [u64; size(BLOCK_BYTES) / 8])>,
}

impl Own {
    const fn new(program: &'static Program) -> Own {
        Own { program, block: Cell::new((u64::MAX, [0; size(BLOCK_BYTES) / 8])) }
    }
}

impl calls::Memory for Own {
    fn word(&self, address: u64) -> Option<u64> {
        let (start, at) = (address & !(BLOCK_BYTES - 1), size(address % BLOCK_BYTES));
        if !at.is_multiple_of(8) {
            return read_word(address);
        }
        let (known, mut words) = self.block.get();
        if known != start {
            let ours = words.as_mut_ptr().expose_provenance() as u64;
            if !through_the_kernel(libc::SYS_process_vm_readv, ours, start, BLOCK_BYTES) {
                return None;
            }
            self.block.set((start, words));
        }
        words.get(at / 8).copied()
    }

    fn is_own_process(&self, pid: u32) -> bool {
        pid == 0 || pid == self.program.process.load(Relaxed)
    }
}

/// Reads eight bytes of the program's memory; `None` where it has none.
pub fn read_word(address: u64) -> Option<u64> {
    let mut word = 0_u64;
    let ours = core::ptr::from_mut(&mut word).expose_provenance();
    through_the_kernel(libc::SYS_process_vm_readv, ours as u64, address, 8).then_some(word)
}

/// Writes words to the program's memory. False where it has none, or may not write.
pub fn write_words(address: u64, words: &[u64]) -> bool {
    let bytes = size_of_val(words) as u64;
    through_the_kernel(libc::SYS_process_vm_writev, words.as_ptr().expose_provenance() as u64, address, bytes)
}

/// Writes bytes of one page to the program's memory. False where it has none, or may not write.
pub fn write_bytes(address: u64, bytes: &[u8]) -> bool {
    let (start, count) = (bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64);
    through_the_kernel(libc::SYS_process_vm_writev, start, address, count)
}

/// Copies between the library's memory and the program's, which may be unmapped: a plain load would end the program
/// then.
fn through_the_kernel(direction: i64, ours: u64, theirs: u64, bytes: u64) -> bool {
    let Some(program) = program() else { return false };
    let vector = |start: u64| libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut(size(start)),
        iov_len: size(bytes),
    };
    let (local, remote) = (vector(ours), vector(theirs));
    let write = direction == libc::SYS_process_vm_writev;
    // Between bringing a page and the copy another thread may evict it again.
    for _ in 0..16 {
        let process = program.process.load(Relaxed);
        // The kernel looks for the page first and writes to its frame then: meanwhile the page must not leave.
        let guard = write.then(|| LOCK.lock());
        // SAFETY: our own memory on one side; on the other the program's, as the call in hand asks for.
        let answer =
            unsafe { call!(direction, process, (&raw const local).addr(), 1, (&raw const remote).addr(), 1, 0) };
        drop(guard);
        if answer == bytes as i64 {
            return true;
        }
        let last = theirs.saturating_add(bytes - 1);
        let mut came = false;
        for address in [theirs, last] {
            if program.pager.space.may_be_paged(address) {
                came |= page_fault::serve(program, Touch { address, write, site: 0 }).is_some();
            }
        }
        if !came {
            return false;
        }
    }
    false
}

/// Begins to page memory. The lock is held.
pub fn page(program: &Program, start: u64, bytes: u64) {
    if !program.pager.space.reaches(start.saturating_add(bytes)) {
        program.pager.counters.add(Counter::NotRegistered, 1);
        return;
    }
    // If memory here has vanished unseen, its pages must not come back.
    program.pager.forget(start, bytes);
    register(program, start, bytes);
}

/// Registers memory, which is paged from now on and stays one mapping.
fn register(program: &Program, start: u64, bytes: u64) {
    // The kernel maps huge pages by itself where nothing is registered yet.
    // SAFETY: advice that changes no content.
    unsafe { call!(libc::SYS_madvise, start, bytes, libc::MADV_NOHUGEPAGE) };
    if program.uffd.register(start, bytes) {
        program.pager.space.mark(start, bytes);
    } else {
        program.pager.counters.add(Counter::NotRegistered, 1);
    }
}

pub fn failed(answer: i64) -> bool {
    (-4095..0).contains(&answer)
}

/// Answer to a call that cannot be made. It is counted.
fn refused(program: &Program, refusal: Refusal, errno: i32) -> i64 {
    program.pager.counters.refuse(refusal);
    -i64::from(errno)
}

/// Answer to a call that changes mappings, or `None` when only the kernel is concerned.
pub fn emulate(program: &'static Program, call: Call) -> Option<i64> {
    let [first, second, third, fourth, ..] = call.arguments;
    let paged = |start: u64, bytes: u64| touches(program, start, bytes);
    match call.number {
        number::MMAP => map(program, call),
        number::MUNMAP if paged(first, second) => {
            let _guard = lock_idle(program);
            let answer = as_it_stands(call);
            if !failed(answer) {
                program.pager.forget(first, page_up(second));
            }
            Some(answer)
        }
        number::MPROTECT | number::PKEY_MPROTECT if paged(first, second) => {
            Some(protect(program, call, first, second, third))
        }
        number::BRK => Some(move_heap_end(program, first)),
        number::MREMAP if paged(first, second.max(1)) || (int(fourth) & libc::MREMAP_FIXED != 0) => {
            Some(remap(program, call))
        }
        // As at the limit of locked memory. An answer of 0 would promise that no page reaches a disk or a server.
        number::MLOCK | number::MLOCK2 if paged(first, second) => Some(refused(program, Refusal::Lock, libc::ENOMEM)),
        number::MLOCKALL => Some(refused(program, Refusal::Lock, libc::EPERM)),
        number::MUNLOCK if paged(first, second) => Some(0),
        number::USERFAULTFD => Some(refused(program, Refusal::Userfaultfd, libc::ENOSYS)),
        // SHM_REMAP replaces existing mappings.
        number::SHMAT if third & 0o40_000 != 0 => Some(-i64::from(libc::EINVAL)),
        _ => None,
    }
}

pub fn as_it_stands(call: Call) -> i64 {
    // SAFETY: the program's own call.
    unsafe { kernel::syscall(call.number.into(), call.arguments) }
}

fn map(program: &'static Program, call: Call) -> Option<i64> {
    let [start, bytes, protection, flags, ..] = call.arguments;
    let (protection, flags) = (int(protection), int(flags));
    let has = |flag: i32| flags & flag != 0;
    let anonymous = has(libc::MAP_ANONYMOUS) && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let peculiar = has(libc::MAP_GROWSDOWN | libc::MAP_LOCKED | libc::MAP_HUGETLB | libc::MAP_STACK);
    let odd = protection & libc::PROT_EXEC != 0 || protection == libc::PROT_WRITE;
    let paged = anonymous && !peculiar && bytes >= program.least_bytes && !odd;
    let replaces = has(libc::MAP_FIXED) && touches(program, start, bytes);
    if !paged && !replaces {
        return None;
    }
    let mut call = call;
    if paged {
        // Pages come at their first touch, and they may be more than the machine's memory.
        call.arguments[3] = i64::from(flags & !libc::MAP_POPULATE | libc::MAP_NORESERVE).cast_unsigned();
    }
    let _guard = lock_idle(program);
    let answer = as_it_stands(call);
    if failed(answer) && replaces {
        forget_what_is_gone(program, start, page_up(bytes));
    }
    if !failed(answer) {
        let (start, bytes) = (answer.cast_unsigned(), page_up(bytes));
        if replaces {
            program.pager.forget(start, bytes);
        }
        if paged {
            page(program, start, bytes);
        }
    }
    Some(answer)
}

/// Whether a part of a range is not mapped.
pub fn has_hole(start: u64, bytes: u64) -> bool {
    // SAFETY: changes nothing.
    failed(unsafe { call!(libc::SYS_msync, start, bytes, libc::MS_ASYNC) })
}

/// Forgets memory that a failed call may have unmapped before its failure.
fn forget_what_is_gone(program: &Program, start: u64, bytes: u64) {
    if has_hole(start, bytes) {
        program.pager.space.each_run(start, bytes, |first, pages| {
            let first = program.pager.space.address(first);
            let pages = (0..pages).map(|page| first + u64::from(page) * PAGE_BYTES);
            pages.filter(|page| has_hole(*page, PAGE_BYTES)).for_each(|page| program.pager.forget(page, PAGE_BYTES));
        });
    }
}

fn protect(program: &'static Program, call: Call, start: u64, bytes: u64, protection: u64) -> i64 {
    let protection = int(protection);
    let has = |flag: i32| protection & flag != 0;
    let guard = lock_idle(program);
    let is_write_only = has(libc::PROT_WRITE) && !has(libc::PROT_READ);
    let cannot_move = is_write_only || call.number == number::PKEY_MPROTECT;
    if cannot_move || (has(libc::PROT_WRITE) && has(libc::PROT_EXEC) && !executable::make_page(program)) {
        HAS_WRITE_ONLY_MAPPING.store(true, Relaxed);
    }
    if protection == libc::PROT_NONE {
        // A page that cannot be read cannot be written back later.
        let mut frames = Frames::new(program);
        match program.pager.write_back_range(&mut frames, &mut program.units(&guard), start, page_up(bytes)) {
            Ok(_) => {}
            Err(never) => match never {},
        }
    }
    as_it_stands(call)
}

/// Has all writable memory of later calls executable, too (READ_IMPLIES_EXEC).
pub fn expect_executable(program: &'static Program) {
    let _guard = lock_idle(program);
    if !executable::make_page(program) {
        HAS_WRITE_ONLY_MAPPING.store(true, Relaxed);
    }
}

/// brk(2), whose answer is the end of the heap.
fn move_heap_end(program: &'static Program, asked: u64) -> i64 {
    let _guard = lock_idle(program);
    let before = HEAP_END.load(Relaxed);
    // SAFETY: the program's own call.
    let answer = unsafe { call!(libc::SYS_brk, asked) };
    let now = answer.cast_unsigned();
    HEAP_END.store(now, Relaxed);
    let (old_end, end) = (page_up(before), page_up(now));
    if before != 0 && end > old_end {
        page(program, old_end, end - old_end);
    } else if end < old_end {
        program.pager.forget(end, old_end - end);
    }
    answer
}

/// Whether the kernel has this range as one mapping, or as a part of one: it checks this for a range that is to grow.
fn is_one_mapping(start: u64, bytes: u64) -> bool {
    // SAFETY: grows by a page, if there is space behind it. The page is removed again, and was never known to the
    // program.
    unsafe {
        let grown = call!(libc::SYS_mremap, start, bytes, bytes.saturating_add(PAGE_BYTES), 0);
        if !failed(grown) {
            call!(libc::SYS_munmap, start + bytes, PAGE_BYTES);
        }
        grown != -i64::from(libc::EFAULT)
    }
}

/// mremap(2). Pages in the program move along; pages in the victim queue are written back first, and stored pages are
/// copied.
fn remap(program: &'static Program, call: Call) -> i64 {
    let [old, old_bytes, new_bytes, flags, place, _] = call.arguments;
    let flags = int(flags);
    let (old_bytes, new_bytes) = (page_up(old_bytes), page_up(new_bytes));
    if flags & libc::MREMAP_DONTUNMAP != 0 || old % PAGE_BYTES != 0 || old_bytes == 0 {
        // Only of use to a program that serves its own faults, as the pager does; and for shared memory, which is not
        // paged.
        return match touches(program, old, old_bytes.max(1)) {
            true if flags & libc::MREMAP_DONTUNMAP != 0 => refused(program, Refusal::LeftMapped, libc::EINVAL),
            true => -i64::from(libc::EINVAL),
            false => as_it_stands(call),
        };
    }
    let guard = lock_idle(program);
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if !fixed {
        // In place, if possible.
        // SAFETY: the program's own call, without leave to move.
        let here = unsafe { call!(libc::SYS_mremap, old, old_bytes, new_bytes, 0) };
        if !failed(here) {
            if new_bytes < old_bytes {
                program.pager.forget(old + new_bytes, old_bytes - new_bytes);
            } else if new_bytes > old_bytes && program.pager.space.may_be_paged(old) {
                program.pager.forget(old + old_bytes, new_bytes - old_bytes);
                // Memory that was too small to be paged is paged from now on, or the kernel would see two mappings.
                register(program, old, new_bytes);
            }
            return here;
        }
        if here != -i64::from(libc::ENOMEM) || flags & libc::MREMAP_MAYMOVE == 0 {
            return here;
        }
    } else if touches(program, old, old_bytes) && !is_one_mapping(old, old_bytes) {
        // Refused before anything happens: the kernel would first unmap the memory at the new place, or move a part
        // (6.17).
        return -i64::from(libc::EFAULT);
    }
    let kept = old_bytes.min(new_bytes);
    let mut frames = Frames::new(program);
    match program.pager.write_back_victims(&mut frames, &mut program.units(&guard), old, old_bytes) {
        Ok(()) => {}
        Err(never) => match never {},
    }
    let mut call = call;
    call.arguments[4] = place;
    // The kernel removes moved memory from the userfaultfd, and with it any mapping that it merges at the new place:
    // memory whose missing pages would read as zeros from then on. So until it is registered again it must differ from
    // all paged memory. The difference is advice on the order of reading, which the kernel never gets for paged memory,
    // and does not heed.
    let is_paged = touches(program, old, old_bytes);
    // SAFETY: advice that changes no content.
    let advised = |start: u64, bytes: u64, advice: i32| unsafe { call!(libc::SYS_madvise, start, bytes, advice) };
    let apart = if is_paged { advised(old, old_bytes, libc::MADV_RANDOM) } else { 0 };
    if failed(apart) {
        advised(old, old_bytes, libc::MADV_NORMAL);
        return if has_hole(old, old_bytes) { -i64::from(libc::EFAULT) } else { apart };
    }
    let answer = as_it_stands(call);
    if failed(answer) {
        if is_paged {
            advised(old, old_bytes, libc::MADV_NORMAL);
        }
        forget_what_is_gone(program, old, old_bytes);
        if fixed {
            forget_what_is_gone(program, place, new_bytes);
        }
        return answer;
    }
    let new = answer.cast_unsigned();
    if fixed {
        program.pager.forget(new, new_bytes);
    }
    if is_paged {
        page(program, new, new_bytes);
        advised(new, new_bytes, libc::MADV_NORMAL);
        let copy = |from, to| frames.copy_stored(from, to);
        if !program.pager.relocate(&mut program.units(&guard), old, new, kept, copy) {
            kernel::out_of_page_slots();
        }
        program.pager.forget(old, old_bytes);
    }
    answer
}
