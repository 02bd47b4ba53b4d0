//! Syscall trap (SIGSYS): every system call of the program, before the kernel sees it.
//!
//! Syscall User Dispatch (prctl(2), Linux 5.11, no privilege) turns each call outside of this library's own text into a
//! signal. The handler maps in and pins the memory that the call touches, since the kernel would return EFAULT for a
//! missing page, and has the call made at the program's own address. Calls that change things the pager uses are made
//! here.

use core::ffi::{c_int, c_void};

use farmem_engine::calls::{self, Call, Kind, Refusal, Signal};

use crate::kernel::{int, size, uint};
use crate::program::{Program, is_paged, program};
use crate::registers::Context;
use crate::signals::{self, Action, SET_BYTES, without_ours};
use crate::thread::{Repeated, Thread};
use crate::{advice, clock, delivery, descriptors, leave, memory, peer, process, stub, transfer, vfork};

/// AUDIT_ARCH_X86_64.
const X86_64: u32 = 0xc000_003e;

/// personality(2): readable memory is executable, too.
const READ_IMPLIES_EXEC: u64 = 0x40_0000;

/// # Safety
/// Called by the kernel as a signal handler, on a stack of `thread.rs`, with the signals of [`signals::BLOCKED`] blocked.
pub unsafe extern "C" fn on_call(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    const BY_DISPATCH: c_int = 2;
    // SAFETY: the kernel's own.
    let code = unsafe { (*info).si_code };
    let Some(program) = program().filter(|_| code == BY_DISPATCH && is_paged()) else {
        // SAFETY: the kernel's own arguments.
        return unsafe { delivery::pass_on(signal, info, context) };
    };
    // The kernel's record of such a signal: the call's number and its architecture follow the address.
    // SAFETY: within the kernel's own record of 128 bytes.
    let architecture = unsafe { info.cast::<u32>().add(7).read() };
    if architecture != X86_64 {
        crate::kernel::give_up(&[
            "the program makes 32-bit system calls, which the pager does not know; it is ended\n    ",
            "Run it without --local, or give it a build that makes none.",
        ]);
    }
    // SAFETY: the kernel's own, and this handler's.
    let mut context = unsafe { Context::of(context) };
    // SAFETY: this is a handler of the library's, with the kernel's own context.
    unsafe { Repeated::note_mask(&context) };
    // SAFETY: this is a handler of the library's, and it is not interrupted by itself: its own calls are not trapped.
    let thread = unsafe { Thread::here() };
    vfork::release_child(thread);
    memory::unpin(thread);
    if i64::from(uint(context.get(libc::REG_RAX))) == libc::SYS_set_robust_list {
        thread.robust = context.get(libc::REG_RDI);
    }
    if !matches!(i64::from(uint(context.get(libc::REG_RAX))), libc::SYS_execve | libc::SYS_execveat) {
        thread.exec_tries = 0;
    }
    thread.begin();
    match stub::take_more(&mut context) {
        Some(more) if more.done > 0 => transfer::go_on(program, thread, &mut context, &more),
        // A call that has waited begins anew.
        _ => dispatch(program, thread, &mut context),
    }
    thread.settle();
}

fn dispatch(program: &'static Program, thread: &mut Thread, context: &mut Context) {
    let call = Call { number: uint(context.get(libc::REG_RAX)), arguments: context.arguments() };
    if i64::from(call.number) == libc::SYS_personality && call.arguments[0] & READ_IMPLIES_EXEC != 0 {
        memory::expect_executable(program);
    }
    if clock::forbids_counter(call) {
        clock::leave_counter(&program.pager.counters);
    }
    const TRACE_ME: u64 = 0;
    if i64::from(call.number) == libc::SYS_ptrace
        && call.arguments[0] == TRACE_ME
        && let Some(answer) = vfork::trace_me(program, thread)
    {
        return context.answer(answer);
    }
    match calls::kind(call) {
        Kind::Plain => plain(program, thread, context, call),
        Kind::Transfer { address, length, vectors, offset, .. } => {
            transfer::make(program, thread, context, call, &transfer::Shape { address, length, vectors, offset });
        }
        Kind::Memory => {
            if let Some(answer) = advice::emulate(program, call).or_else(|| memory::emulate(program, call)) {
                context.answer(answer);
            } else {
                plain(program, thread, context, call);
            }
        }
        Kind::Descriptor => match descriptors::emulate(program, call) {
            Some(answer) => context.answer(answer),
            None => stub::pass(thread, context),
        },
        Kind::Peer => peer::make(program, thread, context, call),
        // Without an address it only asks whether the kernel has filters; the answer is EFAULT.
        Kind::Refused { refusal: Refusal::Seccomp, .. } if !leave::puts_on_filter(call) || leave::leave(program) => {
            stub::pass(thread, context);
        }
        Kind::Refused { errno, refusal } => {
            program.pager.counters.refuse(refusal);
            context.answer(-i64::from(errno));
        }
        Kind::Signal(signal) => match of_signals(thread, context, call, signal) {
            Some(answer) => context.answer(answer),
            None => plain(program, thread, context, call),
        },
        Kind::Process => match i64::from(call.number) {
            libc::SYS_exit => {
                memory::fault_in_robust_list(program, thread);
                // Its stack may be gone already, and nothing returns from this.
                // SAFETY: the program's own call.
                unsafe { crate::kernel::syscall(libc::SYS_exit, call.arguments) };
            }
            libc::SYS_exit_group => stub::pass(thread, context),
            libc::SYS_execve | libc::SYS_execveat => process::execute(program, thread, context, call),
            _ => process::make(program, thread, context, call),
        },
    }
}

/// Has the call made at the program's own address, once its memory is present.
fn plain(program: &'static Program, thread: &mut Thread, context: &mut Context, call: Call) {
    memory::fault_in(program, thread, call);
    stub::pass(thread, context);
}

const EFAULT: i64 = -(libc::EFAULT as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);

/// Calls with signal sets: the answer, or `None` when the kernel is to make the call, with the registers as they are
/// now.
fn of_signals(thread: &mut Thread, context: &mut Context, call: Call, signal: Signal) -> Option<i64> {
    let [first, second, third, fourth, ..] = call.arguments;
    match signal {
        Signal::Action => {
            if fourth != SET_BYTES {
                return Some(EINVAL);
            }
            let new = if second == 0 { None } else { Some(read_action(second)) };
            if new == Some(None) {
                return Some(EFAULT);
            }
            if let Some(new) = new.flatten() {
                delivery::note_restorer(new.restorer);
            }
            let answer = match signals::change(int(first), new.flatten()) {
                Ok(before) if third != 0 => {
                    write_words(third, &[before.handler, before.flags, before.restorer, before.mask])
                }
                Ok(_) => 0,
                Err(answer) => answer,
            };
            Some(answer)
        }
        Signal::Mask => {
            if fourth != SET_BYTES {
                return Some(EINVAL);
            }
            let before = context.set_of_mask() | thread.blocked;
            if second != 0 {
                let Some(set) = memory::read_word(second) else { return Some(EFAULT) };
                let new = match int(first) {
                    libc::SIG_BLOCK => before | set,
                    libc::SIG_UNBLOCK => before & !set,
                    libc::SIG_SETMASK => set,
                    _ => return Some(EINVAL),
                };
                const NEVER: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
                thread.blocked = signals::ours_of(new);
                context.set_mask(without_ours(new) & !NEVER);
            }
            Some(if third == 0 { 0 } else { write_words(third, &[before]) })
        }
        Signal::MaskDuring { set, bytes } | Signal::Takes { set, bytes } => {
            let address = call.arguments[set];
            if address != 0 && call.arguments[bytes] == SET_BYTES {
                let Some(asked) = memory::read_word(address) else { return Some(EFAULT) };
                let place = thread.pending_call();
                place.set = without_ours(asked);
                place.during = matches!(signal, Signal::MaskDuring { .. }).then_some(asked);
                context.set_argument(set, (&raw const place.set).expose_provenance() as u64);
            }
            None
        }
        Signal::MaskDuringBehind { pair } => {
            let address = call.arguments[pair];
            if address != 0 {
                let both = memory::read_word(address).zip(memory::read_word(address + 8));
                let Some((set, bytes)) = both else { return Some(EFAULT) };
                let place = thread.pending_call();
                place.pair = [set, bytes];
                if set != 0 && bytes == SET_BYTES {
                    let Some(asked) = memory::read_word(set) else { return Some(EFAULT) };
                    place.set = without_ours(asked);
                    place.during = Some(asked);
                    place.pair[0] = (&raw const place.set).expose_provenance() as u64;
                }
                context.set_argument(pair, (&raw const place.pair).expose_provenance() as u64);
            }
            None
        }
        Signal::Pending => None,
        Signal::Stack => Some(of_signal_stack(thread, context, first, second)),
        Signal::Return => delivery::return_from_handler(thread, context.get(libc::REG_RSP)),
    }
}

/// sigaltstack(2): the kernel's stack is always the library's. The program's is used when a signal is delivered.
fn of_signal_stack(thread: &mut Thread, context: &Context, new: u64, old: u64) -> i64 {
    let (before, sp) = (thread.programs_stack, context.get(libc::REG_RSP));
    if new != 0 {
        let words = [0, 8, 16].map(|offset| memory::read_word(new + offset));
        let [Some(start), Some(flags), Some(bytes)] = words else { return EFAULT };
        let stack = libc::stack_t {
            ss_sp: core::ptr::with_exposed_provenance_mut(size(start)),
            ss_flags: int(flags),
            ss_size: size(bytes),
        };
        if let Err(answer) = delivery::set_stack(thread, &stack, sp) {
            return answer;
        }
    }
    if old == 0 {
        return 0;
    }
    let flags = delivery::flags(&before, sp);
    write_words(old, &[before.ss_sp.addr() as u64, u64::from(flags.cast_unsigned()), before.ss_size as u64])
}

fn read_action(address: u64) -> Option<Action> {
    let words = [0, 8, 16, 24].map(|offset| memory::read_word(address + offset));
    let [Some(handler), Some(flags), Some(restorer), Some(mask)] = words else { return None };
    Some(Action { handler, flags, restorer, mask })
}

impl PartialEq for Action {
    fn eq(&self, other: &Action) -> bool {
        (self.handler, self.flags, self.mask) == (other.handler, other.flags, other.mask)
    }
}

/// Writes to the program's memory as the kernel would.
fn write_words(address: u64, words: &[u64]) -> i64 {
    if memory::write_words(address, words) { 0 } else { EFAULT }
}
