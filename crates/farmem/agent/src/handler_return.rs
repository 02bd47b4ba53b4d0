//! Return address of the program's handlers: the way back without a trap.
//!
//! A trap costs as much as a signal. The frame may have left memory, so the kernel cannot read it where it lies. The
//! stub below blocks signals, changes to the library's stack of this thread, and goes on in `delivery.rs`. The C
//! library's own return address is in its place only while a handler runs; another one (SA_RESTORER) stays.
//!
//! Unwinders and debuggers find the interrupted registers by the frame description, which is that of the C library's
//! `__restore_rt`.

use core::arch::global_asm;

use crate::delivery;
use crate::program::PAGED;
use crate::signals::{BLOCKED, SET_BYTES};
use crate::thread::{BYTES, GUARD_BYTES, STACK_BYTES, Thread};

global_asm!(
    ".cfi_startproc",
    ".cfi_signal_frame",
    // Registers of the interrupted program, in the context at the stack pointer.
    ".macro masu_register number, offset",
    ".cfi_escape 0x10, \\number, 3, 0x77, (\\offset & 0x7f) | 0x80, \\offset >> 7",
    ".endm",
    // DW_CFA_def_cfa_expression: the word at rsp + 160.
    ".cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06",
    "masu_register 8, 40",
    "masu_register 9, 48",
    "masu_register 10, 56",
    "masu_register 11, 64",
    "masu_register 12, 72",
    "masu_register 13, 80",
    "masu_register 14, 88",
    "masu_register 15, 96",
    "masu_register 5, 104",
    "masu_register 4, 112",
    "masu_register 6, 120",
    "masu_register 3, 128",
    "masu_register 1, 136",
    "masu_register 0, 144",
    "masu_register 2, 152",
    "masu_register 7, 160",
    "masu_register 16, 168",
    // Unwinders look up the byte before a return address.
    "nop",
    ".globl masu_return",
    ".hidden masu_return",
    "masu_return:",
    // A forked child, and a program that has left: all memory is present.
    "cmp byte ptr [rip + {paged}], 0",
    "je 3f",
    "mov edi, {block}",
    "lea rsi, [rip + {blocked}]",
    "xor edx, edx",
    "mov r10d, {set_bytes}",
    "mov eax, {rt_sigprocmask}",
    "syscall",
    // Within the red zone and one page. A missing page is brought, and may leave again before the call.
    "lea rsi, [rsp - 64]",
    "and rsi, -32",
    "2:",
    "mov qword ptr [rsi], 0",
    "xor edi, edi",
    "mov eax, {sigaltstack}",
    "syscall",
    "cmp rax, -14",
    "je 2b",
    "mov rax, [rsi]",
    "mov rdx, [rsi + 16]",
    "cmp rdx, {stack_bytes}",
    "jne 3f",
    "lea rcx, [rax - {guard_bytes}]",
    "test ecx, {bytes} - 1",
    "jnz 3f",
    "mov rdi, rsp",
    "lea rsp, [rax + rdx]",
    "call {returned}",
    "3:",
    "mov eax, {rt_sigreturn}",
    "syscall",
    ".globl masu_return_end",
    ".hidden masu_return_end",
    "masu_return_end:",
    "ud2",
    ".cfi_endproc",
    paged = sym PAGED,
    blocked = sym BLOCKED,
    returned = sym returned,
    block = const libc::SIG_BLOCK,
    set_bytes = const SET_BYTES,
    stack_bytes = const STACK_BYTES,
    guard_bytes = const GUARD_BYTES,
    bytes = const BYTES,
    rt_sigprocmask = const libc::SYS_rt_sigprocmask,
    sigaltstack = const libc::SYS_sigaltstack,
    rt_sigreturn = const libc::SYS_rt_sigreturn,
);

/// # Safety
/// Called by the stub, on the upper end of the library's stack, with the signals of [`BLOCKED`] blocked.
unsafe extern "C" fn returned(context_at: u64) -> ! {
    // SAFETY: no handler of the library runs on this stack, whose upper end this is; nobody has the record.
    let thread = unsafe { Thread::here() };
    delivery::return_from_handler(thread, context_at)
}
