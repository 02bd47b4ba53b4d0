//! Stubs by which a handler has the program's call made: the way out of the trap, and out of the stub again when a signal
//! comes.

use core::arch::global_asm;
use core::ops::Range;

use farmem_engine::calls::{Call, parts};

use crate::kernel::{size, uint};
use crate::registers::Context;
use crate::thread::Thread;

// A call is passed on by returning from the handler to one of these stubs instead of the program's own instruction. The
// return address and some words lie below the program's red zone. `ret 136` jumps there and restores the stack pointer,
// in one instruction, so that no signal comes between. Registers are as the call leaves them.
global_asm!(
    ".globl masu_pass",
    ".hidden masu_pass",
    ".p2align 4",
    "masu_pass:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 144",
    ".cfi_offset rip, -144",
    "syscall",
    // Completion flag: see `Thread::over`.
    "mov qword ptr [rsp + 8], 0",
    "ret 136",
    ".cfi_endproc",
    ".globl masu_pass_end",
    ".hidden masu_pass_end",
    "masu_pass_end:",
    // With other arguments than the program's, which it gets back: a caller may rely on them afterwards.
    ".globl masu_pass_part",
    ".hidden masu_pass_part",
    ".p2align 4",
    "masu_pass_part:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 168",
    ".cfi_offset rip, -168",
    "syscall",
    "mov rdi, [rsp + 16]",
    "mov rsi, [rsp + 24]",
    "mov rdx, [rsp + 32]",
    "mov qword ptr [rsp + 8], 0",
    "ret 160",
    ".cfi_endproc",
    ".globl masu_pass_part_end",
    ".hidden masu_pass_part_end",
    "masu_pass_part_end:",
    // A part of a call that promises all bytes: if the kernel answers with all of this part, the call is trapped again for
    // the next one. For the last part the word at rsp + 72 is no possible answer. Otherwise the answer is that of
    // `parts::answer`.
    ".globl masu_pass_more",
    ".hidden masu_pass_more",
    ".p2align 4",
    "masu_pass_more:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 216",
    ".cfi_offset rip, -216",
    "syscall",
    "mov rdi, [rsp + 16]",
    "mov rsi, [rsp + 24]",
    "mov rdx, [rsp + 32]",
    "mov r10, [rsp + 40]",
    "mov r8, [rsp + 48]",
    "mov r9, [rsp + 56]",
    "mov qword ptr [rsp + 8], 0",
    "cmp rax, [rsp + 72]",
    "je masu_trap",
    "mov rcx, [rsp + 64]",
    "lea r11, [rax + rcx]",
    "test rax, rax",
    "cmovle r11, rcx",
    "test rcx, rcx",
    "cmovz r11, rax",
    "mov rax, r11",
    ".globl masu_pass_more_answered",
    ".hidden masu_pass_more_answered",
    "masu_pass_more_answered:",
    "ret 208",
    ".cfi_endproc",
    ".globl masu_pass_more_end",
    ".hidden masu_pass_more_end",
    "masu_pass_more_end:",
    // Outside of the range whose calls are not trapped. No call has the number -1.
    ".pushsection .masu_trap, \"ax\", @progbits",
    ".globl masu_trap",
    ".hidden masu_trap",
    ".p2align 4",
    "masu_trap:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 216",
    ".cfi_offset rip, -216",
    "mov rax, -1",
    "syscall",
    ".globl masu_trapped",
    ".hidden masu_trapped",
    "masu_trapped:",
    "ud2",
    ".cfi_endproc",
    ".p2align 4",
    ".globl masu_trap_end",
    ".hidden masu_trap_end",
    "masu_trap_end:",
    ".popsection",
    // exec: when the kernel returns EFAULT (14), the program makes its call anew. See `execute`.
    ".macro masu_exec name, number",
    ".globl \\name",
    ".hidden \\name",
    ".p2align 4",
    "\\name:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 144",
    ".cfi_offset rip, -144",
    "syscall",
    "cmp rax, -14",
    "mov qword ptr [rsp + 8], 0",
    "jne 5f",
    "sub qword ptr [rsp], 2",
    "mov eax, \\number",
    "5:",
    "ret 136",
    ".cfi_endproc",
    ".endm",
    "masu_exec masu_execve, 59",
    "masu_exec masu_execveat, 322",
);

unsafe extern "C" {
    fn masu_pass();
    fn masu_pass_end();
    fn masu_pass_part();
    fn masu_pass_part_end();
    fn masu_pass_more();
    fn masu_pass_more_answered();
    fn masu_pass_more_end();
    fn masu_trap();
    fn masu_trapped();
    fn masu_trap_end();
    fn masu_execve();
    fn masu_execveat();
}

/// Distance of the stub's words below the program's stack pointer: the red zone, the return address, and `words` words.
const fn below(words: usize) -> u64 {
    128 + 8 * (1 + words as u64)
}

/// Address of the first of these words, the completion flag: it tells when a call is done.
fn stamp_at(context: &Context, words: usize) -> u64 {
    context.get(libc::REG_RSP) - below(words) + 8
}

/// Returns from the handler so that the call is made, with its arguments from the context, and the program continues
/// behind it.
pub fn pass(thread: &mut Thread, context: &mut Context) {
    let flag_value = thread.passed_on(stamp_at(context, 1));
    leave_by(context, masu_pass as *const (), [flag_value]);
}

/// The same for a part of the call: the program's first three arguments are replaced while it is made.
pub fn pass_part(thread: &mut Thread, context: &mut Context, part: Call) {
    let [first, second, third, ..] = context.arguments();
    (0..3).for_each(|number| context.set_argument(number, part.arguments[number]));
    let flag_value = thread.passed_on(stamp_at(context, 4));
    leave_by(context, masu_pass_part as *const (), [flag_value, first, second, third]);
}

/// Number of words of `masu_pass_more`: the completion flag, the program's six arguments, the bytes done, the bytes of
/// this part, and the number of the program's call.
const MORE_WORDS: usize = 10;

/// Indices of the words, of which word 0 is the return address.
const FIRST_ARGUMENT: usize = 2;
const DONE: usize = 8;
const BYTES: usize = 9;
const NUMBER: usize = 10;

/// No answer of a call.
const LAST: u64 = 1 << 63;

/// Transfer in parts, between two of them.
pub struct More {
    /// The program's call.
    pub call: Call,
    /// Bytes of the parts before this one.
    pub done: u64,
}

/// The same for a part of a call that promises all bytes, after `more.done` of them. `bytes`: number of bytes of this
/// part, after which the call is trapped for the next one; `None` for the last part.
pub fn pass_more(thread: &mut Thread, context: &mut Context, more: &More, part: Call, bytes: Option<u64>) {
    let flag_value = thread.passed_on(stamp_at(context, MORE_WORDS));
    let [a, b, c, d, e, f] = more.call.arguments;
    (0..6).for_each(|number| context.set_argument(number, part.arguments[number]));
    context.set(libc::REG_RAX, part.number.into());
    let words = [flag_value, a, b, c, d, e, f, more.done, bytes.unwrap_or(LAST), more.call.number.into()];
    leave_by(context, masu_pass_more as *const (), words);
}

/// Has the thread wait by a call that answers 0 when the program's call can be made; that is trapped then as for the first
/// time.
pub fn pass_wait(thread: &mut Thread, context: &mut Context, wait: Call) {
    let call = Call { number: uint(context.get(libc::REG_RAX)), arguments: context.arguments() };
    pass_more(thread, context, &More { call, done: 0 }, wait, Some(0));
}

/// Section with the instruction that is trapped after a part.
pub fn trap() -> Range<u64> {
    let address = |place: *const ()| place.expose_provenance() as u64;
    address(masu_trap as *const ())..address(masu_trap_end as *const ())
}

/// The transfer of which a part is done, if the trapped instruction is the stub's. The registers are the program's then, as
/// if it had been trapped at its own instruction.
pub fn take_more(context: &mut Context) -> Option<More> {
    if context.get(libc::REG_RIP) != (masu_trapped as *const ()).expose_provenance() as u64 {
        return None;
    }
    let stack = context.get(libc::REG_RSP);
    // SAFETY: the instruction is reached from the stub only, with its words there.
    let word = |number| unsafe { word_at(stack, number) };
    (0..6).for_each(|number| context.set_argument(number, word(FIRST_ARGUMENT + number)));
    context.set(libc::REG_RIP, word(0));
    context.set(libc::REG_RSP, stack + below(MORE_WORDS));
    context.set(libc::REG_RAX, word(NUMBER));
    let call = Call { number: uint(word(NUMBER)), arguments: context.arguments() };
    Some(More { call, done: word(DONE) + word(BYTES) })
}

/// A word that `leave_by` wrote; a missing page is brought.
///
/// # Safety
/// `stack` is the stack pointer in a stub with that many words.
unsafe fn word_at(stack: u64, number: usize) -> u64 {
    // SAFETY: `leave_by` wrote that many words from there on, below the red zone, where the program has nothing; aligned as
    // the stack pointer is.
    unsafe { core::ptr::with_exposed_provenance::<u64>(size(stack)).add(number).read_volatile() }
}

/// The same for execve or execveat, which the program makes anew after EFAULT.
pub fn pass_exec(thread: &mut Thread, context: &mut Context, is_execve: bool) {
    let stub = if is_execve { masu_execve } else { masu_execveat };
    let flag_value = thread.passed_on(stamp_at(context, 1));
    leave_by(context, stub as *const (), [flag_value]);
}

/// Leaves the handler by a stub: the return address and the words lie below the red zone.
pub fn leave_by<const WORDS: usize>(context: &mut Context, stub: *const (), words: [u64; WORDS]) {
    let stack = context.get(libc::REG_RSP) - below(WORDS);
    let next = context.get(libc::REG_RIP);
    let place = core::ptr::with_exposed_provenance_mut::<u64>(size(stack));
    // SAFETY: below the program's red zone nothing of its stack is in use; a missing page there is brought.
    unsafe {
        place.write_volatile(next);
        for (number, word) in words.into_iter().enumerate() {
            place.add(1 + number).write_volatile(word);
        }
    }
    context.set(libc::REG_RSP, stack);
    context.set(libc::REG_RIP, stub.expose_provenance() as u64);
}

/// Length of the instruction that makes a call.
const SYSCALL_BYTES: u64 = 2;

/// Takes a thread that was interrupted in a stub back to the program's own instruction, as if the call had been made
/// there: handlers see the program's addresses, and a call that the kernel restarts is trapped again. Returns the
/// program's mask during the call, if the call has one of its own and was interrupted.
///
/// A call that was not begun stays in the stub: a program whose timer is faster than the trap would never make it.
pub fn leave_stub(thread: &mut Thread, context: &mut Context) -> Option<u64> {
    let address = |place: *const ()| place.expose_provenance() as u64;
    let at = context.get(libc::REG_RIP);
    let within = |start: u64, end: *const ()| (start..address(end)).contains(&at).then_some(start);
    let (pass, part) = (address(masu_pass as *const ()), address(masu_pass_part as *const ()));
    let more = address(masu_pass_more as *const ());
    let (start, words) = if let Some(start) = within(pass, masu_pass_end as *const ()) {
        (start, 1)
    } else if let Some(start) = within(part, masu_pass_part_end as *const ()) {
        (start, 4)
    } else if within(more, masu_pass_more_end as *const ()).is_some() || trap().contains(&at) {
        (more, MORE_WORDS)
    } else if [masu_execve as *const (), masu_execveat as *const ()].map(address).contains(&at) {
        (at, 1)
    } else {
        return None;
    };
    let stack = context.get(libc::REG_RSP);
    // SAFETY: the instruction pointer is in a stub, which only `leave_by` leads to; no word beyond the stub's own is read.
    let word = |number: usize| unsafe { word_at(stack, number) };
    let done = if words == MORE_WORDS { word(DONE) } else { 0 };
    // The instruction leaves the next one's address in rcx.
    if at == start && done == 0 && context.get(libc::REG_RCX) != start + SYSCALL_BYTES {
        return None;
    }
    let more_at = address(masu_pass_more_answered as *const ());
    // Of a wait (`pass_wait`) nothing is to be answered but an error.
    let has_waited = words == MORE_WORDS
        && word(BYTES) == 0
        && at != more_at
        && (trap().contains(&at) || at != start && context.get(libc::REG_RAX) == 0);
    let is_to_be_made = at == start && done == 0 || has_waited;
    if words == MORE_WORDS {
        match at {
            _ if is_to_be_made => context.set(libc::REG_RAX, word(NUMBER)),
            // The kernel ends a call after some bytes when a signal comes, also one with SA_RESTART.
            _ if at == start => context.answer(done.cast_signed()),
            _ if at == more_at => {}
            _ if trap().contains(&at) => context.answer((done + word(BYTES)).cast_signed()),
            _ => context.answer(parts::answer(done, context.get(libc::REG_RAX).cast_signed())),
        }
    }
    let arguments = match words {
        4 => 3,
        MORE_WORDS => 6,
        _ => 0,
    };
    (0..arguments).for_each(|number| context.set_argument(number, word(FIRST_ARGUMENT + number)));
    context.set(libc::REG_RIP, word(0).wrapping_sub(if is_to_be_made { SYSCALL_BYTES } else { 0 }));
    context.set(libc::REG_RSP, stack + below(words));
    thread.end_call(stack + 8).filter(|_| !is_to_be_made)
}
