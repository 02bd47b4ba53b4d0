//! `ptrace(PTRACE_SECCOMP_GET_FILTER)`: the seccomp filters of a stopped thread, and their verdict about one call.
//!
//! The presence of a filter (`Seccomp:` in `status.rs`) says nothing about one call: every container has one. So the
//! filters are read and run here over the call to come, as the kernel runs them: all of them, and the strictest action
//! counts. A classic BPF program has no loops and no state, so its verdict is that of the kernel.
//!
//! Cost: two system calls and up to 64 KiB a filter. Side effects: none.
//!
//! Since: Linux 4.4 with CONFIG_CHECKPOINT_RESTORE. Needs CAP_SYS_ADMIN in the first user namespace, and a tracer
//! without a filter of its own.
//!
//! Truth: seccomp(2), ptrace(2); `seccomp_get_filter`, `seccomp_run_filters` and `seccomp_check_filter` in
//! kernel/seccomp.c, linux/filter.h.

use rustix::io::Errno;

use crate::Pid;

/// Kernel numbers that libc lacks.
pub mod numbers {
    /// ptrace: the program of a filter, the newest first.
    pub const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;
}

/// Length of the kernel's `struct seccomp_data`.
const DATA_BYTES: u32 = 64;

/// The kernel's bound of one program.
const INSTRUCTIONS_MAX: usize = 4096;

/// Bound of a thread's filters: the kernel allows 32768 instructions in all, each filter counting for four more.
const FILTERS_MAX: u64 = 8192;

/// The kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Jump if true.
    pub jt: u8,
    /// Jump if false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// A call, as a filter gets it: the kernel's `struct seccomp_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Number of the call; −1 for a call that a tracer skips.
    pub number: i32,
    /// Convention (AUDIT_ARCH_…).
    pub arch: u32,
    /// Address behind the instruction.
    pub instruction_pointer: u64,
    /// Arguments.
    pub arguments: [u64; 6],
}

impl SystemCall {
    /// The aligned 32-bit word at `offset`.
    fn word(&self, offset: u32) -> Option<u32> {
        let mut bytes = [0; DATA_BYTES as usize];
        bytes[..4].copy_from_slice(&self.number.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.arch.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.instruction_pointer.to_ne_bytes());
        for (place, argument) in bytes[16..].chunks_exact_mut(8).zip(self.arguments) {
            place.copy_from_slice(&argument.to_ne_bytes());
        }
        let index = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(4))?;
        bytes.get(index..index + 4)?.try_into().ok().map(u32::from_ne_bytes)
    }
}

/// Action of a filter, the strictest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Kills the process; also for an action that the kernel does not know.
    KillProcess,
    /// Kills the thread.
    KillThread,
    /// Raises SIGSYS.
    Trap,
    /// Answers an error.
    Errno,
    /// Asks a supervisor.
    UserNotif,
    /// Asks a tracer; ENOSYS without one.
    Trace,
    /// Lets the call pass, and logs it.
    Log,
    /// Lets the call pass.
    Allow,
}

impl Action {
    /// All, by their number in messages.
    pub const ALL: [Action; 8] = [
        Action::KillProcess,
        Action::KillThread,
        Action::Trap,
        Action::Errno,
        Action::UserNotif,
        Action::Trace,
        Action::Log,
        Action::Allow,
    ];

    fn of(answer: u32) -> Action {
        match answer & 0xffff_0000 {
            0x0000_0000 => Action::KillThread,
            0x0003_0000 => Action::Trap,
            0x0005_0000 => Action::Errno,
            0x7fc0_0000 => Action::UserNotif,
            0x7ff0_0000 => Action::Trace,
            0x7ffc_0000 => Action::Log,
            0x7fff_0000 => Action::Allow,
            _ => Action::KillProcess,
        }
    }

    /// Whether the call is made as without a filter.
    pub fn passes(self) -> bool {
        matches!(self, Action::Log | Action::Allow)
    }

    /// Words between "its seccomp filter" and the call.
    pub fn word(self) -> &'static str {
        match self {
            Action::KillProcess => "kills it for",
            Action::KillThread => "kills the thread for",
            Action::Trap => "raises SIGSYS for",
            Action::Errno => "refuses",
            Action::UserNotif => "asks a supervisor about",
            Action::Trace => "asks a tracer about",
            Action::Log | Action::Allow => "allows",
        }
    }
}

/// Program of one filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Vec<Instruction>);

impl Filter {
    /// A filter of this program.
    pub fn new(program: Vec<Instruction>) -> Filter {
        Filter(program)
    }

    /// Action for `call`; that of a kill for a program that the kernel would not have accepted.
    pub fn action(&self, call: &SystemCall) -> Action {
        Action::of(self.answer(call))
    }

    fn answer(&self, call: &SystemCall) -> u32 {
        const KILL_PROCESS: u32 = 1 << 31;
        self.run(call).unwrap_or(KILL_PROCESS)
    }

    fn run(&self, call: &SystemCall) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
        let mut at = 0usize;
        // Jumps go forward, so no instruction runs twice.
        for _ in 0..self.0.len() {
            let Instruction { code, jt, jf, k } = *self.0.get(at)?;
            at += 1;
            let slot = usize::try_from(k).ok();
            let operand = if code & 0x08 != 0 { x } else { k };
            match code {
                0x20 => a = call.word(k)?,
                0x80 => a = DATA_BYTES,
                0x81 => x = DATA_BYTES,
                0x00 => a = k,
                0x01 => x = k,
                0x60 => a = *memory.get(slot?)?,
                0x61 => x = *memory.get(slot?)?,
                0x02 => *memory.get_mut(slot?)? = a,
                0x03 => *memory.get_mut(slot?)? = x,
                0x07 => x = a,
                0x87 => a = x,
                0x06 => return Some(k),
                0x16 => return Some(a),
                0x05 => at = at.checked_add(slot?)?,
                0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                    let holds = match code & 0xf0 {
                        0x10 => a == operand,
                        0x20 => a > operand,
                        0x30 => a >= operand,
                        _ => a & operand != 0,
                    };
                    at += usize::from(if holds { jt } else { jf });
                }
                0x84 => a = a.wrapping_neg(),
                // A division by an X of zero ends the program with 0.
                0x34 | 0x3c | 0x94 | 0x9c if operand == 0 => return Some(0),
                _ => a = arithmetic(code, a, operand)?,
            }
        }
        None
    }
}

fn arithmetic(code: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match code & !0x08 {
        0x04 => a.wrapping_add(operand),
        0x14 => a.wrapping_sub(operand),
        0x24 => a.wrapping_mul(operand),
        0x34 => a.checked_div(operand)?,
        0x44 => a | operand,
        0x54 => a & operand,
        0x64 => a.wrapping_shl(operand),
        0x74 => a.wrapping_shr(operand),
        0x94 => a.checked_rem(operand)?,
        0xa4 => a ^ operand,
        _ => return None,
    })
}

/// Action of all filters of a thread: the strictest. The kernel compares the answers as signed numbers, those that it
/// does not know, too.
pub fn action(filters: &[Filter], call: &SystemCall) -> Action {
    let answers = filters.iter().map(|filter| (filter.answer(call) & 0xffff_0000).cast_signed());
    answers.min().map_or(Action::Allow, |answer| Action::of(answer.cast_unsigned()))
}

/// Reads the filters of a thread that this process traces and that is stopped.
///
/// # Errors
/// `ACCESS` without CAP_SYS_ADMIN, or under a filter of our own; `MEDIUMTYPE`, `INVAL` or `IO` where the kernel keeps no
/// copy.
pub fn read(thread: Pid) -> Result<Vec<Filter>, Errno> {
    let mut filters = Vec::new();
    for index in 0..FILTERS_MAX {
        // SAFETY: without a place for the program the kernel answers its length alone.
        let length = match unsafe { get(thread, index, std::ptr::null_mut()) } {
            Err(Errno::NOENT) => return Ok(filters),
            length => length?,
        };
        if length == 0 || length > INSTRUCTIONS_MAX {
            return Err(Errno::INVAL);
        }
        let mut program = vec![Instruction::default(); INSTRUCTIONS_MAX];
        // SAFETY: room for the longest program that the kernel accepts; the thread is stopped.
        let length = unsafe { get(thread, index, program.as_mut_ptr())? };
        program.truncate(length);
        filters.push(Filter(program));
    }
    Err(Errno::TOOBIG)
}

/// # Safety
/// `into` is null, or has room for [`INSTRUCTIONS_MAX`] instructions.
unsafe fn get(thread: Pid, index: u64, into: *mut Instruction) -> Result<usize, Errno> {
    // SAFETY: the caller's.
    let answer = unsafe { libc::ptrace(numbers::PTRACE_SECCOMP_GET_FILTER, thread.0, index, into) };
    usize::try_from(answer).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests;
