//! Children on their parent's stack (vfork), and children that ask to be traced.
//!
//! The parent waits in the kernel, outside of any handler and with its own signal mask: a signal whose default is to
//! end it does so. Both go on at the program's instruction behind the call; the child has used the stack meanwhile, so
//! the place is kept in the child's record, whose address stays in a register that the call does not use.
//!
//! A debugger starts its program by vfork, PTRACE_TRACEME and exec. A traced process stops at each signal until its
//! tracer continues it, and the tracer waits in vfork until exec: a signal of the library would stop both for ever. So
//! the request is only noted, and made between the last signal and exec. The parent cannot see the difference, since it
//! waits until then.

use core::arch::global_asm;
use core::sync::atomic::Ordering::Relaxed;

use farmem_engine::calls::{Call, Refusal, number};

use crate::kernel::{call, uint};
use crate::lock::with_lock;
use crate::program::{Program, is_own_process};
use crate::registers::Context;
use crate::stub;
use crate::syscall_user_dispatch::{DISPATCH, SELECTOR};
use crate::thread::{self, Thread};

global_asm!(
    // The child's record is in r9, which neither vfork nor clone nor clone3 has as an argument.
    ".globl masu_vfork",
    ".hidden masu_vfork",
    ".p2align 4",
    "masu_vfork:",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "mov rcx, [r9 + {resume}]",
    "mov r11, [r9 + {resume} + 8]",
    // The child has ended, or is another program: its record is free.
    "mov dword ptr [r9 + {number}], -1",
    "mov r9, r11",
    "jmp rcx",
    // The child uses no stack: a page of it might be missing, and it has no handlers' stack of its own yet.
    "2:",
    "mov [r9 + {resume} + 16], rdi",
    "mov [r9 + {resume} + 24], rsi",
    "mov [r9 + {resume} + 32], rdx",
    "mov [r9 + {resume} + 40], r10",
    "mov [r9 + {resume} + 48], r8",
    "mov rdi, r9",
    "xor esi, esi",
    "mov eax, 131",
    "syscall",
    "mov edi, 59",
    "mov esi, 1",
    "mov rdx, [rip + {dispatch}]",
    "mov r10, [rip + {dispatch} + 8]",
    "lea r8, [rip + {selector}]",
    "mov eax, 157",
    "syscall",
    "mov rdi, [r9 + {resume} + 16]",
    "mov rsi, [r9 + {resume} + 24]",
    "mov rdx, [r9 + {resume} + 32]",
    "mov r10, [r9 + {resume} + 40]",
    "mov r8, [r9 + {resume} + 48]",
    "mov rcx, [r9 + {resume}]",
    "mov r9, [r9 + {resume} + 8]",
    "xor eax, eax",
    "jmp rcx",
    // exec of a child that asked to be traced. Its calls are not trapped any more, then it is traced; from there to exec
    // it touches no memory. If exec fails, it goes on, traced and not trapped.
    ".macro masu_traced name, number",
    ".globl \\name",
    ".hidden \\name",
    ".p2align 4",
    "\\name:",
    "mov edi, 59",
    "xor esi, esi",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "mov eax, 157",
    "syscall",
    "mov r9, [rsp + 16]",
    "mov rsi, [rsp + 24]",
    "mov rdx, [rsp + 32]",
    "mov r10, [rsp + 40]",
    "mov r8, [rsp + 48]",
    "xor edi, edi",
    "mov eax, 101",
    "syscall",
    "mov rdi, r9",
    "mov eax, \\number",
    "syscall",
    "mov r9, [rsp + 56]",
    "ret 184",
    ".endm",
    "masu_traced masu_traced_execve, 59",
    "masu_traced masu_traced_execveat, 322",
    number = const core::mem::offset_of!(Thread, number),
    resume = const core::mem::offset_of!(Thread, resume),
    dispatch = sym DISPATCH,
    selector = sym SELECTOR,
);

// The child's call to sigaltstack gets the record's address.
const _: () = assert!(core::mem::offset_of!(Thread, stack) == 0);

unsafe extern "C" {
    fn masu_vfork();
    fn masu_traced_execve();
    fn masu_traced_execveat();
}

/// Creates a child on the parent's stack; the parent waits meanwhile.
pub fn vfork(thread: &mut Thread, context: &mut Context) {
    let Some(record) = with_lock(thread::new_record) else {
        return context.answer(-i64::from(libc::EAGAIN));
    };
    // SAFETY: a record of ours that no thread has.
    let child = unsafe { &mut *record };
    // Until the child is gone, the record has the parent's number, which is in use.
    // SAFETY: asks.
    child.number.store(uint(unsafe { call!(libc::SYS_gettid) }.cast_unsigned()), Relaxed);
    (child.blocked, child.programs_stack) = (thread.blocked, thread.programs_stack);
    child.resume = [context.get(libc::REG_RIP), context.get(libc::REG_R9), 0, 0, 0, 0, 0];
    thread.child = record;
    context.set(libc::REG_R9, record.expose_provenance() as u64);
    context.set(libc::REG_RIP, (masu_vfork as *const ()).expose_provenance() as u64);
}

/// Removes the pins of the thread's last child on its stack, once that is gone.
pub fn release_child(thread: &mut Thread) {
    let record = core::mem::replace(&mut thread.child, core::ptr::null_mut());
    if record.is_null() {
        return;
    }
    with_lock(|| {
        // SAFETY: records are never unmapped.
        let number = unsafe { &(*record).number };
        if number.load(Relaxed) == u32::MAX {
            // SAFETY: no thread has it, and new threads get it under the lock.
            unsafe { &mut *record }.release();
        } else if number.load(Relaxed) == thread.number.load(Relaxed) {
            // A handler of the parent, before the parent has returned.
            thread.child = record;
        }
    });
}

/// ptrace(PTRACE_TRACEME). `None` when the kernel is to make the call.
pub fn trace_me(program: &Program, thread: &mut Thread) -> Option<i64> {
    if is_own_process() {
        // The parent would get each of the library's signals, and may keep it.
        program.pager.counters.refuse(Refusal::TraceMe);
        return Some(-i64::from(libc::EPERM));
    }
    // SAFETY: asks.
    thread.traced = uint(unsafe { call!(libc::SYS_getpid) }.cast_unsigned());
    Some(0)
}

/// execve and execveat of a child that asked to be traced. False if this one did not.
pub fn execute_traced(thread: &mut Thread, context: &mut Context, call: Call) -> bool {
    // SAFETY: asks.
    let process = uint(unsafe { call!(libc::SYS_getpid) }.cast_unsigned());
    if thread.traced != process {
        return false;
    }
    let is_execve = call.number == number::EXECVE;
    let [folder, path, .., flags] = match call.arguments {
        [path, arguments, variables, ..] if is_execve => {
            [i64::from(libc::AT_FDCWD).cast_unsigned(), path, arguments, variables, 0]
        }
        [folder, path, arguments, variables, flags, _] => [folder, path, arguments, variables, flags],
    };
    // A search in PATH tries names that do not exist: such a call must not leave the child traced.
    let answer = may_execute(folder, path, flags);
    if answer < 0 {
        context.answer(answer);
        return true;
    }
    thread.traced = 0;
    let stub = if is_execve { masu_traced_execve } else { masu_traced_execveat };
    let [first, second, third, fourth, fifth, sixth] = call.arguments;
    stub::leave_by(context, stub as *const (), [0, first, second, third, fourth, fifth, sixth]);
    true
}

/// Answer of exec as far as the file's name and its permissions tell.
fn may_execute(folder: u64, path: u64, flags: u64) -> i64 {
    // SAFETY: all zeros are a value of it.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    let place = (&raw mut status).expose_provenance();
    let known = flags & (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW) as u64;
    // SAFETY: writes our own memory, and asks; the path is the program's, as the call in hand asks for.
    unsafe {
        let answer = call!(libc::SYS_newfstatat, folder, path, place, known);
        if answer < 0 {
            return answer;
        }
        if status.st_mode & libc::S_IFMT != libc::S_IFREG {
            return -i64::from(libc::EACCES);
        }
        call!(libc::SYS_faccessat2, folder, path, libc::X_OK, known | libc::AT_EACCESS as u64)
    }
}
