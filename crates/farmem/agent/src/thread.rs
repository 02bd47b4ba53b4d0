//! State of each thread: a stack for its signal handlers, and beside it a record.
//!
//! Handlers run on this stack instead of the program's own, which may be paged memory with a missing page. The record
//! lies at the stack's upper end, so a handler finds it from its stack pointer; nothing here uses thread-local storage,
//! which belongs to the C library.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use farmem_engine::PAGE_BYTES;

use crate::kernel::call;
use crate::program::program;
use crate::registers::Context;

/// Size of a thread's stack and record, and its alignment.
pub const BYTES: usize = 256 << 10;
const RECORD_BYTES: usize = 8 << 10;
pub const GUARD_BYTES: usize = 4096;
pub const STACK_BYTES: usize = BYTES - RECORD_BYTES - GUARD_BYTES;

/// Largest number of page runs that one call has pinned.
const MOST_PINS: usize = 128;

/// Largest number of nested calls of a thread, each interrupted by a handler that makes the next.
const MOST_CALLS: usize = 8;

/// Call that was passed on, and may be interrupted: a handler of the program may make calls of its own before it is
/// done.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PendingCall {
    /// Address of the completion flag, a word that the stub sets to zero when the call returns, and its value until
    /// then.
    word: u64,
    flag_value: u64,
    /// End of its pins and of the pins of the calls that it interrupted.
    last_pin: usize,
    /// Whether the kernel uses any of the following fields.
    is_used: bool,
    /// Mask of the program while the call lasts, if it is the call's own (sigsuspend(2)).
    pub during: Option<u64>,
    /// Signal set for the kernel instead of the program's.
    pub set: u64,
    /// Address and size of a set, for pselect6.
    pub pair: [u64; 2],
    /// Vectors of a transfer that was cut short.
    pub vectors: [[u64; 2]; 16],
    /// A `msghdr` with these vectors.
    pub message: [u64; 7],
}

/// Largest number of page runs that the kernel may touch as long as the thread lives.
const MOST_THREAD_PINS: usize = 16;

/// One thread's record.
#[repr(C)]
pub struct Thread {
    /// Stack, as passed to sigaltstack(2). First field: `process.rs` passes its address on.
    pub stack: libc::stack_t,
    /// Thread ID; the child writes it itself (`process.rs`).
    pub number: AtomicU32,
    /// The program's own settings for sigaltstack(2).
    pub programs_stack: libc::stack_t,
    /// Head of its list of robust mutexes, which the kernel walks when the thread ends.
    pub robust: u64,
    /// The library's signals that are blocked in the program's view.
    pub blocked: u64,
    /// Number of attempts in a row to become another program.
    pub exec_tries: u32,
    /// Child with this thread's memory that asked to be traced (`process::trace_me`); 0: none.
    pub traced: u32,
    /// Record of the last child on this thread's stack.
    pub child: *mut Thread,
    /// Where that child's parent and the child continue, and registers of both (`process.rs`).
    pub resume: [u64; 7],
    /// Copied arguments of clone3.
    pub clone_arguments: [u64; 16],
    pins: [[u64; 2]; MOST_PINS],
    pinned: usize,
    /// Number of the current call's first pin.
    first_pin: usize,
    calls: [PendingCall; MOST_CALLS],
    calls_now: usize,
    flag_values: u64,
    thread_pins: [[u64; 2]; MOST_THREAD_PINS],
    thread_pins_now: usize,
}

const _: () = assert!(size_of::<Thread>() + size_of::<Repeated>() <= RECORD_BYTES);

/// Last fault of a thread, behind its record: a fault may come while a call of the same thread borrows the record.
#[repr(C)]
pub struct Repeated {
    address: AtomicU64,
    times: AtomicU32,
    /// Signal mask of the program when it was interrupted.
    mask: AtomicU64,
}

impl Repeated {
    /// Last fault of the thread on whose handlers' stack this runs.
    ///
    /// # Safety
    /// Called by one of the library's handlers.
    pub unsafe fn here() -> &'static Repeated {
        let end = start_of_stack() + BYTES;
        // SAFETY: the kernel runs handlers only on stacks that `map` made, whose last bytes nobody else uses. Zeros are
        // a value of it, and it is only ever seen as atomics.
        unsafe { &*core::ptr::with_exposed_provenance::<Repeated>(end - size_of::<Repeated>()) }
    }

    /// Notes the mask of the interrupted program: a wait for the store ends by a signal that would end the program.
    ///
    /// # Safety
    /// Called by one of the library's handlers, with its context.
    pub unsafe fn note_mask(context: &Context) {
        // A fault of the library itself, within a handler, tells nothing of the program.
        let is_of_library = start_of_stack() as u64..=(start_of_stack() + BYTES) as u64;
        if is_ours(context.signal_stack()) && !is_of_library.contains(&context.get(libc::REG_RSP)) {
            // SAFETY: the caller's, and on a stack that `map` made.
            unsafe { Repeated::here() }.mask.store(context.set_of_mask(), Relaxed);
        }
    }

    /// Notes the mask of the program's handler, which begins now.
    ///
    /// # Safety
    /// Called on a stack that `map` made.
    pub unsafe fn note_handlers_mask(mask: u64) {
        // SAFETY: the caller's.
        unsafe { Repeated::here() }.mask.store(mask, Relaxed);
    }

    /// Mask of the program, if this runs in a handler of the library.
    pub fn mask_now() -> Option<u64> {
        let mut stack = NO_STACK;
        // SAFETY: writes our own memory.
        let answer = unsafe { call!(libc::SYS_sigaltstack, 0, (&raw mut stack).addr()) };
        let is_on = answer == 0 && is_ours(stack);
        // SAFETY: on a stack that `map` made, as its place and its size say.
        is_on.then(|| unsafe { Repeated::here() }.mask.load(Relaxed))
    }

    /// Number of faults in a row at this address that found the page present.
    pub fn again(&self, address: u64, was_there: bool) -> u32 {
        let same = self.address.swap(address, Relaxed) == address;
        let times = if same && was_there { self.times.load(Relaxed) + 1 } else { 0 };
        self.times.store(times, Relaxed);
        times
    }
}

/// Whether this runs on a stack that `map` made: `stack` is the alternate stack that the kernel has, or had when it called
/// a handler.
fn is_ours(stack: libc::stack_t) -> bool {
    stack.ss_flags & libc::SS_DISABLE == 0
        && stack.ss_sp.addr() == start_of_stack() + GUARD_BYTES
        && stack.ss_size == STACK_BYTES
}

/// Start of the signal stack on which this runs.
fn start_of_stack() -> usize {
    let on_the_stack = 0_u8;
    (&raw const on_the_stack).expose_provenance() & !(BYTES - 1)
}

impl Thread {
    /// The thread on whose handlers' stack this runs.
    ///
    /// # Safety
    /// Called by one of the library's handlers, at most once at a time: there is one reference to a record.
    pub unsafe fn here() -> &'static mut Thread {
        let record = start_of_stack() + BYTES - RECORD_BYTES;
        // SAFETY: the kernel runs handlers only on stacks that `map` made, with a record beside each; and the caller's.
        unsafe { &mut *core::ptr::with_exposed_provenance_mut::<Thread>(record) }
    }

    /// The thread on whose handlers' stack this runs, if it runs on one: `stack` is the alternate stack that the kernel
    /// had when it called the handler.
    ///
    /// # Safety
    /// That of [`Thread::here`].
    pub unsafe fn on(stack: libc::stack_t) -> Option<&'static mut Thread> {
        // SAFETY: the caller's; the program cannot give such a stack to the kernel.
        is_ours(stack).then(|| unsafe { Thread::here() })
    }

    /// Whether an address lies in the stack beside this record.
    pub fn owns(&self, address: u64) -> bool {
        let start = self.stack.ss_sp.addr() as u64;
        address >= start && address - start <= BYTES as u64
    }

    /// Mask of the program during the call with this completion flag, if the call has one of its own.
    pub fn end_call(&mut self, word: u64) -> Option<u64> {
        let last = self.calls_now.checked_sub(1).and_then(|last| self.calls.get_mut(last))?;
        if last.word != word {
            return None;
        }
        last.word = 0;
        last.during.take()
    }

    /// Remembers pages that stay until the thread's next call. Pages that follow the call's last run, or begin on the
    /// same page, extend it. Returns the number of additional pages; `None` when no run is free.
    pub fn remember(&mut self, start: u64, pages: u64, unpin: impl FnOnce(u64)) -> Option<u64> {
        let of_this_call = self.pinned.checked_sub(1).filter(|last| *last >= self.first_pin);
        if let Some([from, length]) = of_this_call.and_then(|last| self.pins.get_mut(last)) {
            let end = *from + *length * PAGE_BYTES;
            if start == end {
                *length += pages;
                return Some(pages);
            }
            if start + PAGE_BYTES == end {
                unpin(start);
                *length += pages - 1;
                return Some(pages - 1);
            }
        }
        *self.pins.get_mut(self.pinned)? = [start, pages];
        self.pinned += 1;
        Some(pages)
    }

    /// Records pages that stay pinned as long as the thread lives: the kernel writes there when it ends, or at any time. Pages
    /// without a free entry stay for good.
    pub fn pin_for_thread(&mut self, start: u64, pages: u64) {
        if let Some(pin) = self.thread_pins.get_mut(self.thread_pins_now) {
            *pin = [start, pages];
            self.thread_pins_now += 1;
        }
    }

    /// Takes the pins that last as long as the thread, from number `from` on.
    pub fn take_thread_pins(&mut self, from: usize) -> impl Iterator<Item = (u64, u64)> {
        let until = self.thread_pins_now;
        self.thread_pins_now = from.min(until);
        self.thread_pins.iter().take(until).skip(from).map(|pin| (pin[0], pin[1]))
    }

    /// Number of these pins.
    pub const fn thread_pins(&self) -> usize {
        self.thread_pins_now
    }

    /// Takes the pins from number `from` on, which are no longer needed.
    pub fn take_pins(&mut self, from: usize) -> impl Iterator<Item = (u64, u64)> {
        let until = self.pinned;
        self.pinned = from.min(until);
        self.pins.iter().take(until).skip(from).map(|pin| (pin[0], pin[1]))
    }

    /// Starts another part of the current call, whose pins are apart from the earlier ones. Returns the number of the
    /// earlier runs.
    pub const fn part(&mut self) -> usize {
        self.first_pin = self.pinned;
        self.pinned
    }

    /// Whether the thread has no pins to remove.
    pub const fn is_idle(&self) -> bool {
        self.pinned == 0 && self.calls_now == 0
    }

    /// Removes the calls that are done, and returns the number of their first pin. A call whose frame a longjmp left
    /// may seem to go on until its stack memory is reused.
    pub fn drop_completed(&mut self, read: impl Fn(u64) -> Option<u64>) -> usize {
        while let Some(last) = self.calls_now.checked_sub(1).and_then(|last| self.calls.get(last)) {
            let goes_on = last.word != 0 && read(last.word) == Some(last.flag_value);
            if goes_on && self.calls_now < MOST_CALLS {
                break;
            }
            self.calls_now -= 1;
        }
        match self.calls_now.checked_sub(1).and_then(|last| self.calls.get(last)) {
            Some(last) => last.last_pin,
            None => 0,
        }
    }

    /// Begins a call.
    pub fn begin(&mut self) -> &mut PendingCall {
        let at = self.calls_now.min(MOST_CALLS - 1);
        (self.calls_now, self.first_pin) = (at + 1, self.pinned);
        let call = &mut self.calls[at];
        (call.word, call.flag_value, call.is_used, call.during) = (0, 0, false, None);
        call
    }

    /// Settles a call that was passed on or answered: without pins and without the library's memory it needs no record.
    pub fn settle(&mut self) {
        let before = self.calls_now.checked_sub(2).map_or(0, |before| self.calls[before.min(MOST_CALLS - 1)].last_pin);
        let last = self.calls_now.clamp(1, MOST_CALLS) - 1;
        if !self.calls[last].is_used && self.pinned == before {
            self.calls_now = self.calls_now.saturating_sub(1);
        }
    }

    /// Unpins all pages of an ended thread, and forgets what belonged to it. The lock is held.
    pub fn release(&mut self) {
        if let Some(program) = program() {
            let unpin = |(start, pages): (u64, u64)| {
                (0..pages).for_each(|page| program.pager.unpin(start + page * PAGE_BYTES));
            };
            self.take_pins(0).for_each(unpin);
            self.take_thread_pins(0).for_each(unpin);
        }
        (self.robust, self.blocked, self.exec_tries, self.traced) = (0, 0, 0, 0);
        (self.calls_now, self.child) = (0, core::ptr::null_mut());
        self.programs_stack = NO_STACK;
    }

    /// Call that was begun last.
    pub fn pending_call(&mut self) -> &mut PendingCall {
        let at = self.calls_now.clamp(1, MOST_CALLS) - 1;
        self.calls[at].is_used = true;
        &mut self.calls[at]
    }

    /// Marks the call as passed on: a word on the stack tells when it is done. Returns the required value of that word.
    pub fn passed_on(&mut self, word: u64) -> u64 {
        self.flag_values = self.flag_values.wrapping_add(2) | 1;
        let (flag_value, pinned) = (self.flag_values, self.pinned);
        let at = self.calls_now.clamp(1, MOST_CALLS) - 1;
        let call = &mut self.calls[at];
        (call.word, call.flag_value, call.last_pin) = (word, flag_value, pinned);
        flag_value
    }
}

/// Records in a block: blocks of addresses, each linked to the next.
const IN_A_BLOCK: usize = 510;

#[repr(C)]
struct Block {
    next: AtomicPtr<Block>,
    used: AtomicUsize,
    records: [AtomicPtr<Thread>; IN_A_BLOCK],
}

static FIRST: Block = Block {
    next: AtomicPtr::new(core::ptr::null_mut()),
    used: AtomicUsize::new(0),
    records: [const { AtomicPtr::new(core::ptr::null_mut()) }; IN_A_BLOCK],
};

/// Stack and record for a new thread: reused from an ended one, or new. The pager's lock is held. `None` when the
/// kernel has no memory.
pub fn new_record() -> Option<*mut Thread> {
    let process = program().map_or(0, |program| program.process.load(Relaxed));
    let mut block = &FIRST;
    loop {
        let used = block.used.load(Relaxed).min(IN_A_BLOCK);
        for record in block.records.iter().take(used) {
            let record = record.load(Relaxed);
            // SAFETY: records are never unmapped.
            let number = unsafe { &(*record).number };
            // SAFETY: signal 0 only asks whether there is such a thread.
            let is_there = || unsafe { call!(libc::SYS_tgkill, process, number.load(Relaxed), 0) } == 0;
            if number.load(Relaxed) != 0 && !is_there() {
                number.store(0, Relaxed);
                // SAFETY: its thread has ended, and with it the use of its pins.
                let dead = unsafe { &mut *record };
                dead.release();
                return Some(record);
            }
        }
        if used < IN_A_BLOCK {
            let record = map()?;
            block.records[used].store(record, Relaxed);
            block.used.store(used + 1, Relaxed);
            return Some(record);
        }
        let mut next = block.next.load(Relaxed);
        if next.is_null() {
            next = core::ptr::with_exposed_provenance_mut(map_memory(size_of::<Block>())?);
            block.next.store(next, Relaxed);
        }
        // SAFETY: mapped, zeros at first, and never unmapped.
        block = unsafe { &*next };
    }
}

/// No alternate stack.
pub const NO_STACK: libc::stack_t =
    libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };

fn map() -> Option<*mut Thread> {
    let start = map_memory(2 * BYTES)?;
    let aligned = start.next_multiple_of(BYTES);
    // SAFETY: our own memory, not used yet.
    unsafe {
        call!(libc::SYS_munmap, start, aligned - start);
        call!(libc::SYS_munmap, aligned + BYTES, start + BYTES - aligned);
        call!(libc::SYS_mprotect, aligned, GUARD_BYTES, libc::PROT_NONE);
    }
    let record = core::ptr::with_exposed_provenance_mut::<Thread>(aligned + BYTES - RECORD_BYTES);
    let stack = libc::stack_t {
        ss_sp: core::ptr::with_exposed_provenance_mut(aligned + GUARD_BYTES),
        ss_flags: 0,
        ss_size: STACK_BYTES,
    };
    // SAFETY: our own memory, aligned, which nobody else knows yet.
    unsafe {
        (*record).stack = stack;
        (*record).programs_stack = NO_STACK;
    }
    Some(record)
}

/// Maps memory of the library's own, which is not paged.
pub fn map_memory(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: makes new memory.
    let answer = unsafe { call!(libc::SYS_mmap, 0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1_i64, 0) };
    usize::try_from(answer).ok()
}
