//! Threads and processes that the program makes.
//!
//! A new thread must have a stack for its handlers, and its calls trapped, before its first instruction; the kernel
//! provides neither. So the library makes the call by a stub, to which the thread returns. The stub sets both up and
//! continues at the program's own return address.
//!
//! A child that shares the memory until it calls exec (vfork) is trapped, too, since it passes paged memory to that
//! call: see `vfork.rs`. A child with memory of its own (fork) is not paged: see [`fork`].

use core::arch::global_asm;
use core::sync::atomic::Ordering::Relaxed;

use farmem_engine::calls::{Call, Refusal, number};
use farmem_engine::counters::Counter;
use farmem_engine::entry::Place;

use crate::frames::Frames;
use crate::kernel::{call, size, uint};
use crate::lock::{LOCK, with_lock};
use crate::program::{PAGED, Program};
use crate::registers::Context;
use crate::syscall_user_dispatch::{DISPATCH, SELECTOR};
use crate::thread::{self, Thread};
use crate::{kernel, left_out, mappings, memory, signals, stub, vfork};

// The child's stub, see `begin_thread`.
global_asm!(
    // With another first argument than the program's, which it gets back.
    ".globl masu_clone",
    ".hidden masu_clone",
    ".p2align 4",
    "masu_clone:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 144",
    ".cfi_offset rip, -144",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "mov rdi, [rsp + 8]",
    "ret 136",
    ".cfi_endproc",
    // The child, on its own stack: the return address, its record, the program's first argument.
    "2:",
    "push rsi",
    "push rdx",
    "push r10",
    "push r8",
    "push r9",
    "push rbx",
    "mov rbx, [rsp + 56]",
    "test rbx, rbx",
    "jz 3f",
    "mov rdi, rbx",
    "xor esi, esi",
    "mov eax, 131",
    "syscall",
    "mov eax, 186",
    "syscall",
    "mov [rbx + {number}], eax",
    "3:",
    "mov edi, 59",
    "mov esi, 1",
    "mov rdx, [rip + {dispatch}]",
    "mov r10, [rip + {dispatch} + 8]",
    "lea r8, [rip + {selector}]",
    "mov eax, 157",
    "syscall",
    "pop rbx",
    "pop r9",
    "pop r8",
    "pop r10",
    "pop rdx",
    "pop rsi",
    "mov rdi, [rsp + 16]",
    "xor eax, eax",
    "ret 16",
    number = const core::mem::offset_of!(Thread, number),
    dispatch = sym DISPATCH,
    selector = sym SELECTOR,
);

unsafe extern "C" {
    fn masu_clone();
}

/// Largest number of retries of an exec whose arguments were evicted before the kernel had read them all.
const EXEC_TRIES: u32 = 200;

/// execve and execveat. The arguments may be more than can be pinned, and another thread may evict them between their
/// mapping and the call. The kernel reports this before it has done anything: then they are mapped in again.
pub fn execute(program: &'static Program, thread: &mut Thread, context: &mut Context, call: Call) {
    memory::fault_in_arguments(program, thread, call);
    if thread.exec_tries == 0 {
        left_out::tell_of_exec(program, call);
    }
    if vfork::execute_traced(thread, context, call) {
        return;
    }
    thread.exec_tries += 1;
    if thread.exec_tries > EXEC_TRIES {
        return stub::pass(thread, context);
    }
    stub::pass_exec(thread, context, call.number == number::EXECVE);
}

/// Arguments of clone(2) and clone3(2).
struct Clone {
    flags: u64,
    /// Start of the child's stack; 0 for the parent's.
    stack: u64,
}

/// clone, clone3, fork and vfork.
pub fn make(program: &'static Program, thread: &mut Thread, context: &mut Context, call: Call) {
    let before = thread.thread_pins();
    memory::fault_in(program, thread, call);
    let number = context.get(libc::REG_RAX) as i64;
    let asked = match number {
        libc::SYS_fork => Clone { flags: 0, stack: 0 },
        libc::SYS_vfork => Clone { flags: (libc::CLONE_VM | libc::CLONE_VFORK) as u64, stack: 0 },
        libc::SYS_clone => Clone { flags: context.get(libc::REG_RDI), stack: context.get(libc::REG_RSI) },
        _ => {
            let Some([flags, .., stack, stack_bytes, _]) = clone3_arguments(thread, context) else { return };
            Clone { flags, stack: if stack == 0 { 0 } else { stack + stack_bytes } }
        }
    };
    let shares = |flag: i32| asked.flags & i64::from(flag).cast_unsigned() != 0;
    const CLEAR_SIGHAND: u64 = 1 << 32;
    if asked.flags & CLEAR_SIGHAND != 0 && shares(libc::CLONE_VM) {
        // Its calls could not be trapped. The C library knows kernels without it.
        return context.answer(-i64::from(libc::ENOSYS));
    }
    if shares(libc::CLONE_VM) && !shares(libc::CLONE_VFORK) && !shares(libc::CLONE_THREAD) {
        // Another process with this one's memory, for good: its pages would have two owners.
        program.pager.counters.refuse(Refusal::SharedMemory);
        return context.answer(-i64::from(libc::EINVAL));
    }
    if !shares(libc::CLONE_VM) {
        fork(program, thread, context, asked.stack);
    } else if asked.stack == 0 {
        vfork::vfork(thread, context);
    } else {
        let record =
            if shares(libc::CLONE_VFORK) { Some(core::ptr::null_mut()) } else { with_lock(thread::new_record) };
        if let Some(record) = record.filter(|record| !record.is_null()) {
            // SAFETY: nobody has it yet.
            let child = unsafe { &mut *record };
            child.blocked = thread.blocked;
            thread.take_thread_pins(before).for_each(|(start, pages)| child.pin_for_thread(start, pages));
        }
        match record {
            Some(record) => begin_thread(context, thread, asked.stack, record.expose_provenance() as u64, number),
            None => context.answer(-i64::from(libc::EAGAIN)),
        }
    }
}

/// Copies clone3's arguments to the thread's record: flags, …, stack, its bytes, tls. `None`: the call was answered.
fn clone3_arguments(thread: &mut Thread, context: &mut Context) -> Option<[u64; 8]> {
    let (address, bytes) = (context.get(libc::REG_RDI), context.get(libc::REG_RSI));
    let most = size_of_val(&thread.clone_arguments) as u64;
    if !(64..=most).contains(&bytes) {
        context.answer(-i64::from(if bytes < 64 { libc::EINVAL } else { libc::E2BIG }));
        return None;
    }
    thread.clone_arguments = [0; 16];
    for (number, word) in thread.clone_arguments.iter_mut().take(size(bytes.div_ceil(8))).enumerate() {
        let Some(value) = memory::read_word(address + number as u64 * 8) else {
            context.answer(-i64::from(libc::EFAULT));
            return None;
        };
        *word = value;
    }
    thread.clone_arguments.first_chunk().copied()
}

/// Creates a child with the program's memory and a stack of its own.
fn begin_thread(context: &mut Context, thread: &mut Thread, stack: u64, record: u64, number: i64) {
    let top = stack - 24;
    let words = [context.get(libc::REG_RIP), record, context.get(libc::REG_RDI)];
    let place = core::ptr::with_exposed_provenance_mut::<u64>(size(top));
    for (index, word) in words.into_iter().enumerate() {
        // SAFETY: the stack that the program gives to its child, whose upper end is not used yet; a missing page is
        // brought.
        unsafe { place.add(index).write_unaligned(word) };
    }
    let first = context.get(libc::REG_RDI);
    if number == libc::SYS_clone3 {
        // The sixth word is the stack's size.
        thread.clone_arguments[6] -= 24;
        context.set(libc::REG_RDI, (&raw const thread.clone_arguments).expose_provenance() as u64);
    } else {
        context.set(libc::REG_RSI, top);
    }
    stub::leave_by(context, masu_clone as *const (), [first]);
}

/// Whether much of the stored memory is unreadable at the moment: brought back, it could not be evicted again.
fn too_much_would_stay(program: &Program) -> bool {
    let mut pages = 0;
    if program.pager.counters.get(Counter::StoredPages) > 0 {
        mappings::each(|mapping| {
            if !mapping.readable {
                program.pager.space.each_run(mapping.start, mapping.end - mapping.start, |first, run| {
                    let is_stored = |more: &u32| program.pager.entry(first.plus(*more)).place() == Place::Stored;
                    pages += (0..run).filter(is_stored).count();
                });
            }
        });
    }
    pages as u64 > memory::most_pinned(program)
}

/// Creates a child with memory of its own, a copy of this process. The child cannot get missing pages: the kernel gives
/// it no userfaultfd, and it would read zeros. So all pages of the program must be in memory; then the child has all of
/// them, and is not paged until it calls exec. If they do not fit, fork fails as it does without memory.
fn fork(program: &'static Program, thread: &mut Thread, context: &mut Context, stack: u64) {
    let guard = LOCK.lock();
    let all_is_here = || match program.pager.fault_in_all(&mut Frames::new(program), &mut program.units(&guard)) {
        Ok(all_is_here) => all_is_here,
        Err(never) => match never {},
    };
    if too_much_would_stay(program) || !all_is_here() {
        program.pager.counters.add(Counter::ForksRefused, 1);
        drop(guard);
        return context.answer(-i64::from(libc::ENOMEM));
    }
    let number = context.get(libc::REG_RAX) as i64;
    // The child goes on from the handler, too, and then on its own stack, if it was given one.
    let mut arguments = context.arguments();
    if number == libc::SYS_clone {
        arguments[1] = 0;
    } else if number == libc::SYS_clone3 {
        (thread.clone_arguments[5], thread.clone_arguments[6]) = (0, 0);
        arguments[0] = (&raw const thread.clone_arguments).expose_provenance() as u64;
    }
    // SAFETY: the program's own call; both go on from the handler's frame, each with its own copy.
    let answer = unsafe { kernel::syscall(number, arguments) };
    if answer == 0 {
        PAGED.store(false, Relaxed);
        hand_signals_back(thread, context);
        if stack != 0 {
            context.set(libc::REG_RSP, stack);
        }
        // SAFETY: asks.
        program.process.store(uint(unsafe { call!(libc::SYS_getpid) }.cast_unsigned()), Relaxed);
    }
    drop(guard);
    context.answer(answer);
}

/// Gives handlers, mask and alternate stack of the program to the kernel, in a forked child.
fn hand_signals_back(thread: &Thread, context: &mut Context) {
    let all = u64::MAX;
    // SAFETY: reads our own set. The return from the handler sets the program's mask.
    unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, (&raw const all).addr(), 0, signals::SET_BYTES) };
    signals::hand_back();
    // The kernel changes no stack that the stack pointer lies in, and Linux 6.12 looks before rt_sigreturn sets it.
    // SAFETY: no memory is accessed by the stack pointer before it is set again, and no signal comes.
    unsafe {
        core::arch::asm!(
            "xchg rsp, {sp}", "syscall", "xchg rsp, {sp}",
            sp = inout(reg) context.get(libc::REG_RSP) => _,
            inlateout("rax") libc::SYS_sigaltstack => _,
            in("rdi") &raw const thread.programs_stack, in("rsi") 0,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    context.set_signal_stack(thread.programs_stack);
    context.set_mask(context.set_of_mask() | thread.blocked);
}
