//! Delivery of signals to the program's handlers, and the return from a handler.
//!
//! The kernel writes a handler's frame outside of any system call. It cannot wait for a missing page there: it ends the
//! program. So the kernel delivers every signal on the library's stack, which is always present. The library maps in
//! the program's stack, or its alternate stack, writes the same frame there, and continues in the program's handler.
//! The handler returns to a stub (`handler_return.rs`), or makes rt_sigreturn(2), a trapped call. The frame may have
//! left memory meanwhile, so the library copies it to its own stack, where the kernel reads it.
//!
//! The library keeps nothing for a running handler: a handler may leave by longjmp, or switch stacks.
//!
//! Truth: `get_sigframe`, `x64_setup_rt_frame`, `rt_sigreturn` in arch/x86/kernel/signal.c and signal_64.c;
//! arch/x86/kernel/fpu/signal.c; `do_sigaltstack`, `signal_setup_done` in kernel/signal.c.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use farmem_engine::PAGE_BYTES;
use farmem_engine::pager::Touch;

use crate::kernel::{call, size, uint};
use crate::program::{Program, program};
use crate::registers::Context;
use crate::signals::{self, Action, Handler, SET_BYTES, bit, ours_of, without_ours};
use crate::thread::{self, Repeated, Thread};
use crate::{memory, page_fault, stub};

unsafe extern "C" {
    /// Stub of `handler_return.rs`, and its end.
    fn masu_return();
    fn masu_return_end();
}

/// The kernel's `struct ucontext`, `struct siginfo`, and `struct rt_sigframe` of both and a return address.
const CONTEXT_BYTES: usize = 304;
const INFO_BYTES: usize = 128;
const FRAME_BYTES: u64 = 8 + (CONTEXT_BYTES + INFO_BYTES) as u64;

/// Words of `struct ucontext`: the alternate stack, the address of the processor's state, the signal mask.
const STACK_WORD: usize = 2;
const STATE_WORD: usize = 28;
const MASK_WORD: usize = 37;

const _: () = assert!(core::mem::offset_of!(libc::ucontext_t, uc_stack) == STACK_WORD * 8);
const _: () = assert!(core::mem::offset_of!(libc::ucontext_t, uc_mcontext) + 23 * 8 == STATE_WORD * 8);
const _: () = assert!(core::mem::offset_of!(libc::ucontext_t, uc_sigmask) == MASK_WORD * 8);

/// State of the processor as FXSAVE stores it, and alignment of the state.
const PLAIN_STATE_BYTES: u64 = 512;
const STATE_ALIGNMENT: u64 = 64;

/// Longest state of the processor that a return accepts: AMX takes 11 KiB.
const STATE_BYTES_MAX: usize = 16 << 10;

/// Words of 32 bits in the state: a mark (`FP_XSTATE_MAGIC1`), and the length with the extended state.
const EXTENDED_WORD: usize = 464 / 4;
const EXTENDED: u32 = 0x4650_5853;

/// Flags that the kernel clears for a handler: TF, DF, RF.
const CLEARED_FLAGS: u64 = 1 << 8 | 1 << 10 | 1 << 16;

/// si_code of a signal that the kernel forces (SI_KERNEL).
const BY_KERNEL: c_int = 0x80;

/// Red zone of the ABI: memory below the stack pointer that a function may use.
const RED_ZONE: u64 = 128;

const SS_AUTODISARM: c_int = 1 << 31;

/// # Safety
/// Called by the kernel as a signal handler, with the signals of [`signals::BLOCKED`] blocked.
pub unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if let Some(action) = signals::action(signal) {
        // SAFETY: the kernel's own arguments.
        unsafe { deliver(signal, info, context, action) };
    }
}

/// Has the program's handler called when the library's handler returns, on the stack that the kernel would use.
///
/// # Safety
/// With the arguments that the kernel gave to the library's handler, from within it. No reference to the thread's
/// record is in use.
pub unsafe fn deliver(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, action: Action) {
    // SAFETY: the caller's.
    let (mut frame, stack) = unsafe { (Context::of(context), Context::of(context).signal_stack()) };
    // SAFETY: the caller's.
    let thread = unsafe { Thread::on(stack) };
    let (Some(thread), Some(program)) = (thread, program()) else {
        // The first instructions of a thread that was cloned with signals unblocked: its stack is present.
        // SAFETY: the caller's.
        return unsafe { call_here(signal, info, context, action) };
    };
    let stub = [masu_return as *const (), masu_return_end as *const ()].map(|place| place.expose_provenance() as u64);
    let is_fault = bit(signal) & signals::FAULTS != 0;
    if thread.owns(frame.get(libc::REG_RSP)) || !is_fault && (stub[0]..stub[1]).contains(&frame.get(libc::REG_RIP)) {
        // SAFETY: the caller's.
        return unsafe { put_off(signal, info, &mut frame, &action) };
    }
    signals::note_reset(signal, &action);
    // SAFETY: the caller's.
    unsafe { Repeated::note_mask(&frame) };
    let during = stub::leave_stub(thread, &mut frame);
    // SAFETY: the caller's.
    if unsafe { build(program, thread, info, &mut frame, &action) } {
        return enter(thread, signal, &mut frame, &action, during);
    }
    // As `force_sigsegv`.
    let blocked = frame.set_of_mask() | thread.blocked;
    let fallback =
        signals::action(libc::SIGSEGV).filter(|_| signal != libc::SIGSEGV && blocked & bit(libc::SIGSEGV) == 0);
    let Some(action) = fallback.filter(|_| signals::is_handled(libc::SIGSEGV)) else { die(libc::SIGSEGV) };
    // SAFETY: all zeros are a value of it.
    let mut forced: libc::siginfo_t = unsafe { core::mem::zeroed() };
    (forced.si_signo, forced.si_code) = (libc::SIGSEGV, BY_KERNEL);
    // SAFETY: as above.
    if unsafe { build(program, thread, &raw const forced, &mut frame, &action) } {
        return enter(thread, libc::SIGSEGV, &mut frame, &action, during);
    }
    die(libc::SIGSEGV)
}

/// A signal that interrupted the library. Another thread handles a signal as of now that the program ignored when this
/// handler of the library began: it comes again when that returns, and has set the program's mask.
///
/// # Safety
/// That of [`deliver`].
unsafe fn put_off(signal: c_int, info: *const libc::siginfo_t, frame: &mut Context, action: &Action) {
    if bit(signal) & signals::FAULTS != 0 {
        // The library's own access to the program's memory.
        die(signal);
    }
    signals::set_again(signal, action);
    frame.set_mask(frame.set_of_mask() | bit(signal));
    // SAFETY: reads the kernel's record; a signal to this thread, which has it blocked.
    unsafe {
        let (process, thread) = (call!(libc::SYS_getpid), call!(libc::SYS_gettid));
        call!(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info.addr());
    }
}

/// Passes on a signal that does not come from the library: to the program's handler, or with the default effect.
///
/// # Safety
/// With the arguments that the kernel gave to the library's handler, from within it.
pub unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let action = signals::action(signal).unwrap_or_default();
    match size(action.handler) {
        // Sent by a process, and no fault.
        // SAFETY: the kernel's own.
        libc::SIG_IGN if unsafe { (*info).si_code } <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: as above.
            if unsafe { (*info).si_code } <= 0 {
                // Sent again, for the kernel's default action when this handler returns.
                // SAFETY: a signal to this process, as it was sent.
                unsafe { call!(libc::SYS_kill, call!(libc::SYS_getpid), signal) };
            }
            // The kernel does not let a fault be ignored. Without our handler it comes again, with its default action.
            signals::set_default(signal);
        }
        _ => {
            signals::reset_if_once(signal, &action);
            // SAFETY: the caller's.
            unsafe { deliver(signal, info, context, action) };
        }
    }
}

/// Calls the handler from within the library's.
///
/// # Safety
/// That of [`deliver`].
unsafe fn call_here(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, action: Action) {
    // SAFETY: the caller's.
    let before = unsafe { Context::of(context) }.set_of_mask();
    let mask = without_ours(before | action.mask | signals::own_bit(signal, &action));
    // SAFETY: reads our own memory; the return from this handler sets the mask as it was.
    unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, (&raw const mask).addr(), 0, SET_BYTES) };
    let handler = core::ptr::with_exposed_provenance::<()>(size(action.handler));
    // SAFETY: the program registered this handler; a plain one ignores the last two arguments.
    unsafe { core::mem::transmute::<*const (), Handler>(handler)(signal, info, context) };
}

/// Places of a frame's parts.
struct Places {
    /// Return address, context, information.
    frame: u64,
    /// State of the processor.
    state: u64,
    /// First byte behind both.
    end: u64,
}

/// Chooses the stack as the kernel does. `None` when an alternate stack is too small.
fn places(stack: &libc::stack_t, sp: u64, action: &Action, state_bytes: u64) -> Option<Places> {
    let (start, bytes) = (stack.ss_sp.addr() as u64, stack.ss_size as u64);
    let is_inside = |sp: u64| sp > start && sp - start <= bytes;
    let is_on = stack.ss_flags & SS_AUTODISARM == 0 && is_inside(sp);
    let enters = action.flags & libc::SA_ONSTACK as u64 != 0 && bytes > 0 && !is_on;
    let top = if enters { start + bytes } else { sp.wrapping_sub(RED_ZONE) };
    // In whole words, of which each page is probed.
    let state_bytes = state_bytes.next_multiple_of(8);
    let state = top.wrapping_sub(state_bytes) & !(STATE_ALIGNMENT - 1);
    let frame = (state.wrapping_sub(FRAME_BYTES) & !15).wrapping_sub(8);
    let fits = frame < state && (!is_on && !enters || is_inside(frame));
    fits.then_some(Places { frame, state, end: state.wrapping_add(state_bytes) })
}

/// Writes the frame to the program's memory, and points the stack pointer at it. False when the program has no memory
/// there.
///
/// # Safety
/// The information and the context are the kernel's, in the frame of this handler.
unsafe fn build(
    program: &'static Program,
    thread: &mut Thread,
    info: *const libc::siginfo_t,
    context: &mut Context,
    action: &Action,
) -> bool {
    // SAFETY: the kernel's own context; `state_bytes` reads the state that it names.
    let (state, state_bytes) = unsafe { state_of(context.raw()) };
    let sp = context.get(libc::REG_RSP);
    let Some(places) = places(&thread.programs_stack, sp, action, state_bytes) else { return false };
    if !make_writable(program, places.frame, places.end, context.get(libc::REG_RIP)) {
        return false;
    }
    let stack = thread.programs_stack;
    let at = |address: u64| core::ptr::with_exposed_provenance_mut::<u8>(size(address));
    let context_at = places.frame + 8;
    let word = |number: usize| at(context_at + number as u64 * 8).cast::<u64>();
    let mask = context.set_of_mask() | thread.blocked;
    // SAFETY: the program's memory was writable just now, and nothing of its stack is in use there. A page that leaves
    // meanwhile is brought. Sources are the kernel's, on this stack.
    unsafe {
        core::ptr::copy_nonoverlapping(state, at(places.state), size(state_bytes));
        core::ptr::copy_nonoverlapping(context.raw().cast::<u8>(), at(context_at), CONTEXT_BYTES);
        core::ptr::copy_nonoverlapping(info.cast::<u8>(), at(context_at + CONTEXT_BYTES as u64), INFO_BYTES);
        at(places.frame).cast::<u64>().write(return_address(action));
        word(STACK_WORD).write(stack.ss_sp.addr() as u64);
        word(STACK_WORD + 1).write(u64::from(stack.ss_flags.cast_unsigned()));
        word(STACK_WORD + 2).write(stack.ss_size as u64);
        word(STATE_WORD).write(if state_bytes > 0 { places.state } else { 0 });
        word(MASK_WORD).write(mask);
    }
    if stack.ss_flags & SS_AUTODISARM != 0 {
        thread.programs_stack = thread::NO_STACK;
    }
    context.set(libc::REG_RSP, places.frame);
    true
}

/// Return address of handlers that the C library gives.
static PLAIN_RESTORER: AtomicU64 = AtomicU64::new(0);

/// Notes the return address of the program's handlers, if its code is the C library's: mov rax, 15; syscall.
pub fn note_restorer(restorer: u64) {
    const CODE: [u64; 2] = [0x0f00_0000_0fc0_c748, 0x05];
    if ![0, PLAIN_RESTORER.load(Relaxed)].contains(&restorer)
        && memory::read_word(restorer) == Some(CODE[0])
        && memory::read_word(restorer.wrapping_add(1)).is_some_and(|word| word >> 56 == CODE[1])
    {
        PLAIN_RESTORER.store(restorer, Relaxed);
    }
}

/// Return address of a handler: the stub that spares a trap, or the program's own code.
fn return_address(action: &Action) -> u64 {
    if action.restorer == PLAIN_RESTORER.load(Relaxed) {
        (masu_return as *const ()).expose_provenance() as u64
    } else {
        action.restorer
    }
}

/// Sets the registers and the mask for the handler, whose frame lies at the stack pointer.
fn enter(thread: &mut Thread, signal: c_int, context: &mut Context, action: &Action, during: Option<u64>) {
    let frame = context.get(libc::REG_RSP);
    context.set(libc::REG_RIP, action.handler);
    context.set(libc::REG_RDI, u64::from(signal.cast_unsigned()));
    context.set(libc::REG_RSI, frame + 8 + CONTEXT_BYTES as u64);
    context.set(libc::REG_RDX, frame + 8);
    context.set(libc::REG_RAX, 0);
    context.set(libc::REG_EFL, context.get(libc::REG_EFL) & !CLEARED_FLAGS);
    // The kernel gives the handler an initial state.
    context.set_no_state();
    // A call with a mask of its own (sigsuspend) is still in effect for its handlers.
    let now = during.unwrap_or_else(|| context.set_of_mask() | thread.blocked);
    let mask = now | action.mask | signals::own_bit(signal, action);
    thread.blocked = ours_of(mask);
    context.set_mask(without_ours(mask));
    // SAFETY: within a handler of the library, on its stack.
    unsafe { Repeated::note_handlers_mask(mask) };
}

/// The processor's state in a context, and its length in bytes.
///
/// # Safety
/// The context is the kernel's.
unsafe fn state_of(context: *const libc::ucontext_t) -> (*const u8, u64) {
    // SAFETY: the caller's.
    let state = unsafe { (*context).uc_mcontext.fpregs };
    if state.is_null() {
        return (core::ptr::null(), 0);
    }
    // SAFETY: at least 512 bytes, aligned.
    let [mark, extended] = unsafe { state.cast::<u32>().add(EXTENDED_WORD).cast::<[u32; 2]>().read() };
    (state.cast(), state_bytes(mark, extended))
}

fn state_bytes(mark: u32, extended: u32) -> u64 {
    if mark == EXTENDED { u64::from(extended).max(PLAIN_STATE_BYTES) } else { PLAIN_STATE_BYTES }
}

/// Attempts to map a page in: another thread may evict it between its fault and the probe.
const TRIES: u32 = 64;

/// Makes the pages of a range present, and checks that the program may write there; the first word of the range and of
/// each page in it is lost. By a system call: a store might end the program, and the kernel extends the main stack.
fn make_writable(program: &'static Program, start: u64, end: u64, site: u64) -> bool {
    // SAFETY: writes the old mask to memory that is about to be overwritten.
    let write = |address: u64| unsafe { call!(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, 0, address, SET_BYTES) } == 0;
    let mut address = start;
    while address < end {
        let mut left = TRIES;
        while !write(address) {
            left -= 1;
            let touch = Touch { address, write: true, site };
            let is_paged = program.pager.space.may_be_paged(address);
            if left == 0 || !is_paged || page_fault::serve(program, touch).is_none() {
                return false;
            }
        }
        address = (address & !(PAGE_BYTES - 1)).saturating_add(PAGE_BYTES);
    }
    true
}

/// Ends the program by a signal, as the kernel does for one that it cannot deliver.
fn die(signal: c_int) -> ! {
    let set = bit(signal);
    signals::set_default(signal);
    // SAFETY: reads our own set; ends the process.
    unsafe {
        call!(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, (&raw const set).addr(), 0, SET_BYTES);
        call!(libc::SYS_tgkill, call!(libc::SYS_getpid), call!(libc::SYS_gettid), signal);
    }
    crate::kernel::end(128 + signal)
}

/// Frame of a program's handler, on the library's stack. The stack pointer is at its context when the kernel reads it.
#[repr(C, align(64))]
struct Copied {
    context: [u64; CONTEXT_BYTES / 8],
    _alignment: [u64; 2],
    state: [u64; STATE_BYTES_MAX / 8],
}

const _: () = assert!(core::mem::offset_of!(Copied, state).is_multiple_of(size(STATE_ALIGNMENT)));

/// rt_sigreturn(2): continues where the frame with this context says.
pub fn return_from_handler(thread: &mut Thread, context_at: u64) -> ! {
    let mut copied = MaybeUninit::<Copied>::uninit();
    // SAFETY: numbers, for which any value is valid; the kernel reads only what `copy` fills. No reference to the whole.
    let copied = unsafe { &mut *copied.as_mut_ptr() };
    // SAFETY: the lock is not held, and the caller is a handler.
    if !unsafe { copy(copied, context_at) } {
        die(libc::SIGSEGV);
    }
    let words = &mut copied.context;
    let programs = libc::stack_t {
        ss_sp: core::ptr::with_exposed_provenance_mut(size(words[STACK_WORD])),
        ss_flags: uint(words[STACK_WORD + 1]).cast_signed(),
        ss_size: size(words[STACK_WORD + 2]),
    };
    let sp = words[5 + libc::REG_RSP.cast_unsigned() as usize];
    // The kernel ignores a stack that it does not accept.
    let _ = set_stack(thread, &programs, sp);
    words[STACK_WORD] = thread.stack.ss_sp.addr() as u64;
    words[STACK_WORD + 1] = u64::from(thread.stack.ss_flags.cast_unsigned());
    words[STACK_WORD + 2] = thread.stack.ss_size as u64;
    thread.blocked = ours_of(words[MASK_WORD]);
    words[MASK_WORD] = without_ours(words[MASK_WORD]);
    // SAFETY: the kernel continues from this frame, which lies above the stack pointer; that of the library's handler is
    // abandoned.
    unsafe {
        core::arch::asm!(
            "mov rsp, {frame}", "mov eax, 15", "syscall", "ud2",
            frame = in(reg) words.as_ptr(), options(noreturn)
        )
    }
}

/// Copies context and state from the program's memory. False when the state is longer than any processor's.
///
/// By plain loads: a missing page is brought, and where there is no memory the program ends by SIGSEGV, as the kernel
/// ends it.
///
/// # Safety
/// Without the lock, in a handler of the library: a load may fault.
unsafe fn copy(copied: &mut Copied, context_at: u64) -> bool {
    let at = |address: u64| core::ptr::with_exposed_provenance::<u8>(size(address));
    // SAFETY: any value is valid for a number, and the copy's parts are as long as these; the caller's.
    unsafe {
        core::ptr::copy_nonoverlapping(at(context_at), copied.context.as_mut_ptr().cast(), CONTEXT_BYTES);
    }
    let state = copied.context[STATE_WORD];
    if state == 0 {
        return true;
    }
    let plain = size(PLAIN_STATE_BYTES);
    // SAFETY: as above.
    unsafe { core::ptr::copy_nonoverlapping(at(state), copied.state.as_mut_ptr().cast(), plain) };
    let word = copied.state[EXTENDED_WORD / 2];
    let bytes = size(state_bytes(uint(word), uint(word >> 32)));
    let Some(rest) = copied.state.get_mut(plain / 8..bytes.div_ceil(8)) else { return false };
    // SAFETY: as above; `rest` has these bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(
            at(state.wrapping_add(PLAIN_STATE_BYTES)),
            rest.as_mut_ptr().cast(),
            bytes - plain,
        );
    }
    copied.context[STATE_WORD] = copied.state.as_ptr().expose_provenance() as u64;
    true
}

/// sigaltstack(2): sets the program's alternate stack. `sp` is the program's stack pointer.
pub fn set_stack(thread: &mut Thread, new: &libc::stack_t, sp: u64) -> Result<(), i64> {
    const KNOWN: c_int = SS_AUTODISARM;
    if flags(&thread.programs_stack, sp) & libc::SS_ONSTACK != 0 {
        return Err(-i64::from(libc::EPERM));
    }
    match new.ss_flags & !KNOWN {
        libc::SS_DISABLE => thread.programs_stack = thread::NO_STACK,
        0 | libc::SS_ONSTACK if new.ss_size < libc::MINSIGSTKSZ => return Err(-i64::from(libc::ENOMEM)),
        0 | libc::SS_ONSTACK => thread.programs_stack = libc::stack_t { ss_flags: new.ss_flags & KNOWN, ..*new },
        _ => return Err(-i64::from(libc::EINVAL)),
    }
    Ok(())
}

/// Flags of an alternate stack as sigaltstack(2) reports them.
pub fn flags(stack: &libc::stack_t, sp: u64) -> c_int {
    let (start, bytes) = (stack.ss_sp.addr() as u64, stack.ss_size as u64);
    let is_on = stack.ss_flags & SS_AUTODISARM == 0 && sp > start && sp - start <= bytes;
    match (bytes, is_on) {
        (0, _) => libc::SS_DISABLE,
        (_, true) => stack.ss_flags | libc::SS_ONSTACK,
        (_, false) => stack.ss_flags,
    }
}
