//! One thread of another process under ptrace: a stop, one system call, and the registers as they were.
//!
//! A [`Tracee`] is seized; [`Stopped`] is at a stop from which it can be restored. The kernel detaches both, at the
//! latest when the tracing process ends.
//!
//! Rules that hold against a hostile process:
//! * Every exec is a stop of its own (PTRACE_O_TRACEEXEC, set by the seize itself). After it nothing is written any
//!   more: the saved registers belong to the stopped program, and the thread now runs another one. An exec by another
//!   thread ends this one, and ptrace answers ESRCH.
//! * Each entry of a system call is a stop. The call runs only if number, arguments, instruction and architecture match
//!   our call; any other call is skipped. So other threads may change the instruction at any time: their code runs with
//!   their rights alone.
//! * Every wait has a deadline, except two: while the kernel executes our call, and while it brings the thread to the
//!   stop at which it is restored. Giving up then would leave the thread with our registers. These waits are in a
//!   process of their own (`tracer.rs`).

use std::time::{Duration, Instant};

use rustix::io::Errno;
use units::{Address, cast};

use super::numbers::{
    AUDIT_ARCH_X86_64, PTRACE_GET_RSEQ_CONFIGURATION, PTRACE_GET_SYSCALL_INFO, PTRACE_GETSIGMASK, PTRACE_SETSIGMASK,
    PTRACE_SYSCALL_INFO_ENTRY, PTRACE_SYSCALL_INFO_EXIT,
};
use crate::Pid;
use crate::seccomp_filter::{self, Action, Filter, SystemCall};

/// The code segment of 64-bit programs (`__USER_CS`).
const CODE_64: u64 = 0x33;

/// Length of the `syscall` instruction.
pub(super) const INSTRUCTION_BYTES: u64 = 2;

/// Signals that an instruction raises. They stay unblocked during our call: the kernel resets the handler of a blocked
/// one that it must force.
const FAULTS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Reason why a call was not made. The numbers go over the pipe to masu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// No stop before the deadline.
    NoStop,
    /// The process called exec. Nothing was written afterwards.
    Exec,
    /// Other code ran in place of the call. The thread was restored.
    Foreign,
    /// The call was not reached before the deadline. The thread was restored.
    NoCall,
    /// No usable `syscall` instruction.
    NoInstruction,
    /// A seccomp filter does not let the call pass: its action, or the error of reading it.
    Filtered(Result<Action, Errno>),
    /// The thread or its process ended.
    Ended,
    /// Another error of ptrace.
    Kernel(Errno),
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        if errno == Errno::SRCH { Failed::Ended } else { Failed::Kernel(errno) }
    }
}

/// Reason of a stop of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// PTRACE_INTERRUPT, or a group stop by job control: a stop to restore from.
    Requested,
    /// Entry or exit of a system call.
    SystemCall,
    /// Delivery of a signal.
    Signal(i32),
    /// The process called exec.
    Exec,
    /// The thread ended.
    Ended,
}

/// Decodes the status of `waitpid`.
pub(super) fn decode(status: i32) -> Stop {
    const STOP_EVENT: i32 = super::numbers::PTRACE_EVENT_STOP.cast_signed();
    if !libc::WIFSTOPPED(status) {
        return Stop::Ended;
    }
    match (libc::WSTOPSIG(status), status >> 16) {
        (_, STOP_EVENT) => Stop::Requested,
        (_, libc::PTRACE_EVENT_EXEC) => Stop::Exec,
        (signal, 0) if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
        (signal, 0) => Stop::Signal(signal),
        // No other event is enabled.
        _ => Stop::Signal(0),
    }
}

/// One system call: number and arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) number: i64,
    pub(super) arguments: [u64; 5],
}

/// A seized thread.
#[derive(Debug)]
pub(super) struct Tracee {
    process: Pid,
    thread: Pid,
    /// Signals that arrived during our call, one bit each. They are sent again at the end.
    deferred: u64,
    /// Seccomp filters of the thread.
    filters: Vec<Filter>,
}

impl Tracee {
    /// Seizes the thread, which runs on.
    pub(super) fn seize(process: Pid, thread: Pid) -> Result<Tracee, Failed> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err(Failed::Kernel(Errno::NOSYS));
        }
        let options = (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC).unsigned_abs();
        // SAFETY: SEIZE takes options as a number and touches no memory of ours.
        unsafe { ptrace(libc::PTRACE_SEIZE, thread, 0, u64::from(options))? };
        Ok(Tracee { process, thread, deferred: 0, filters: Vec::new() })
    }

    /// Stops the thread outside any restartable sequence. Signals that arrive before are delivered.
    pub(super) fn stopped(self, deadline: Instant) -> Result<Stopped, Failed> {
        loop {
            self.interrupt()?;
            self.until_requested(deadline)?;
            let registers = self.registers()?;
            // In a 32-bit system call or a restartable sequence: it runs on, for nanoseconds.
            if registers.cs == CODE_64 && !self.in_sequence(registers.rip)? {
                let mask = self.mask()?;
                let has_signal = self.has_signal_for(mask);
                return Ok(Stopped { tracee: self, found: registers, mask, has_signal });
            }
            if Instant::now() > deadline {
                self.detach();
                return Err(Failed::NoStop);
            }
            self.resume(libc::PTRACE_CONT, 0)?;
            std::thread::yield_now();
        }
    }

    fn interrupt(&self) -> Result<(), Errno> {
        // SAFETY: takes no arguments and touches no memory of ours.
        unsafe { ptrace(libc::PTRACE_INTERRUPT, self.thread, 0, 0) }
    }

    /// Resumes the thread; delivers `signal` first if it is not 0.
    fn resume(&self, how: libc::c_uint, signal: i32) -> Result<(), Errno> {
        // SAFETY: takes a signal's number and touches no memory of ours.
        unsafe { ptrace(how, self.thread, 0, u64::from(signal.unsigned_abs())) }
    }

    /// Waits for the requested stop; delivers signals that arrive before it.
    fn until_requested(&self, deadline: Instant) -> Result<(), Failed> {
        loop {
            match self.wait(Some(deadline))?.ok_or(Failed::NoStop)? {
                Stop::Requested => return Ok(()),
                // Any other stop cancels the interrupt (`ptrace_stop` in kernel/signal.c).
                Stop::SystemCall => self.interrupt().and_then(|()| self.resume(libc::PTRACE_CONT, 0))?,
                Stop::Signal(signal) => self.interrupt().and_then(|()| self.resume(libc::PTRACE_CONT, signal))?,
                Stop::Exec => {
                    self.detach();
                    return Err(Failed::Exec);
                }
                Stop::Ended => return Err(Failed::Ended),
            }
        }
    }

    /// The next stop; `None` at the deadline.
    fn wait(&self, deadline: Option<Instant>) -> Result<Option<Stop>, Failed> {
        let begun = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: `status` outlives the call, which fills it.
            let found = unsafe { libc::waitpid(self.thread.0, &raw mut status, libc::__WALL | libc::WNOHANG) };
            match found {
                0 if deadline.is_some_and(|deadline| Instant::now() > deadline) => return Ok(None),
                // A stop takes microseconds; one that takes longer is polled ever less often.
                0 if begun.elapsed() < Duration::from_micros(200) => std::thread::yield_now(),
                0 => std::thread::sleep((begun.elapsed() / 8).min(Duration::from_millis(10))),
                -1 => match last_errno() {
                    Errno::INTR => {}
                    Errno::CHILD => return Ok(Some(Stop::Ended)),
                    errno => return Err(errno.into()),
                },
                _ => return Ok(Some(decode(status))),
            }
        }
    }

    fn registers(&self) -> Result<libc::user_regs_struct, Errno> {
        // SAFETY: the registers are plain numbers, for which zeros are valid; they outlive the call, which fills them.
        unsafe {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            ptrace(libc::PTRACE_GETREGS, self.thread, 0, (&raw mut registers).expose_provenance() as u64)?;
            Ok(registers)
        }
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<(), Errno> {
        // SAFETY: the registers outlive the call, which only reads them.
        unsafe { ptrace(libc::PTRACE_SETREGS, self.thread, 0, (&raw const *registers).expose_provenance() as u64) }
    }

    /// Blocked signals, one bit each.
    fn mask(&self) -> Result<u64, Errno> {
        let mut mask = 0u64;
        // SAFETY: `mask` is as long as stated, and outlives the call, which fills it.
        unsafe { ptrace(PTRACE_GETSIGMASK, self.thread, 8, (&raw mut mask).expose_provenance() as u64)? };
        Ok(mask)
    }

    fn set_mask(&self, mask: u64) -> Result<(), Errno> {
        // SAFETY: `mask` is as long as stated, and outlives the call, which only reads it.
        unsafe { ptrace(PTRACE_SETSIGMASK, self.thread, 8, (&raw const mask).expose_provenance() as u64) }
    }

    /// True if a pending signal will be handled, or the state cannot be read.
    fn has_signal_for(&self, mask: u64) -> bool {
        let path = format!("/proc/{}/task/{}/status", self.process, self.thread);
        let status = std::fs::read(path).map(|status| String::from_utf8_lossy(&status).into_owned());
        status.map_or(true, |status| pending(&status) & !mask != 0)
    }

    /// True if the signal at this stop was raised by an instruction, not sent.
    fn is_fault(&self, signal: i32) -> bool {
        // SAFETY: the information is plain data, for which zeros are valid; it outlives the call, which fills it.
        let code = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            ptrace(libc::PTRACE_GETSIGINFO, self.thread, 0, (&raw mut info).expose_provenance() as u64)
                .map(|()| info.si_code)
        };
        FAULTS.contains(&signal) && code.is_ok_and(|code| code > 0)
    }

    /// The system call at whose entry or exit the thread is stopped.
    fn system_call(&self) -> Result<SystemCallInfo, Errno> {
        let mut info = SystemCallInfo::default();
        let size = size_of::<SystemCallInfo>() as u64;
        // SAFETY: `info` is as long as stated, and outlives the call, which fills it.
        unsafe {
            ptrace(PTRACE_GET_SYSCALL_INFO, self.thread, size, (&raw mut info).expose_provenance() as u64)?;
        }
        Ok(info)
    }

    /// Skips the system call at whose entry the thread is stopped. At an exit there is nothing to skip.
    fn skip_call(&self) -> Result<(), Errno> {
        let info = self.system_call()?;
        if info.op == PTRACE_SYSCALL_INFO_EXIT {
            return Ok(());
        }
        let registers = self.registers()?;
        let number = skipping_call(&self.filters, &info).cast_unsigned();
        self.set_registers(&libc::user_regs_struct { orig_rax: number, ..registers })
    }

    /// True in a restartable sequence; the kernel would not restart it if the thread ran other code in between.
    fn in_sequence(&self, at: u64) -> Result<bool, Failed> {
        let mut found = RseqConfiguration::default();
        let size = size_of::<RseqConfiguration>() as u64;
        // SAFETY: `found` is as long as stated, and outlives the call, which fills it.
        let asked = unsafe {
            ptrace(PTRACE_GET_RSEQ_CONFIGURATION, self.thread, size, (&raw mut found).expose_provenance() as u64)
        };
        match asked {
            Ok(()) if found.pointer != 0 => {}
            // Not registered, or a kernel without this request: before 5.13.
            Ok(()) | Err(Errno::IO | Errno::INVAL) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        const SECTION_IN_RSEQ: u64 = 8;
        let section = self.word(found.pointer.wrapping_add(SECTION_IN_RSEQ))?;
        if section == 0 {
            return Ok(false);
        }
        Ok(is_within(at, self.word(section.wrapping_add(8))?, self.word(section.wrapping_add(16))?))
    }

    fn word(&self, address: u64) -> Result<u64, Errno> {
        let mut word = [0; 8];
        self.read(Address(address), &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Fills `into` from the thread's memory. May wait for the provider of that memory.
    fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Errno> {
        let ours = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let theirs = libc::iovec { iov_base: std::ptr::without_provenance_mut(cast::index(at.0)), iov_len: into.len() };
        // SAFETY: `ours` names `into`, which outlives the call; `theirs` is only read by the kernel, there.
        let read = unsafe { libc::process_vm_readv(self.process.0, &raw const ours, 1, &raw const theirs, 1, 0) };
        match usize::try_from(read) {
            Ok(read) if read == into.len() => Ok(()),
            Ok(_) => Err(Errno::FAULT),
            Err(_) => Err(last_errno()),
        }
    }

    /// Detaches from the thread.
    fn detach(&self) {
        // SAFETY: takes a signal's number, here none, and touches no memory of ours.
        let _ended_or_free = unsafe { ptrace(libc::PTRACE_DETACH, self.thread, 0, 0) };
    }

    /// Sends the deferred signals again.
    fn resend_deferred(&self) {
        for signal in (1..=64).filter(|signal| self.deferred & bit(*signal) != 0) {
            // SAFETY: three numbers. The thread may have ended; then the signal is not needed.
            unsafe { libc::syscall(libc::SYS_tgkill, self.process.0, self.thread.0, signal) };
        }
    }
}

/// Number that takes the place of a call to be skipped. −1 is no call; but the filters judge it, too, and one that kills
/// for it gets a call without effect that it lets pass.
pub(super) fn skipping_call(filters: &[Filter], info: &SystemCallInfo) -> i64 {
    const CANDIDATES: [i64; 5] = [-1, libc::SYS_getpid, libc::SYS_gettid, libc::SYS_sched_yield, libc::SYS_getppid];
    let answers = |number: &i64| {
        let number = cast::saturated(*number);
        seccomp_filter::action(filters, &SystemCall { number, ..info.for_filters() })
    };
    // No effect is worse than a kill: any answer but that.
    CANDIDATES.into_iter().rev().max_by_key(|number| answers(number).min(Action::Errno)).unwrap_or(CANDIDATES[0])
}

/// Bit of a signal in a mask; none for 0, which is no signal.
fn bit(signal: i32) -> u64 {
    if (1..=64).contains(&signal) { 1 << (signal - 1) } else { 0 }
}

/// The mask during our call: everything but faults, which stay as the thread has them.
pub(super) fn mask_during_call(of_thread: u64) -> u64 {
    let faults = FAULTS.iter().fold(0, |faults, signal| faults | bit(*signal));
    !faults | of_thread & faults
}

/// Pending signals of a thread and of its process, from the text of its `status`.
pub(super) fn pending(status: &str) -> u64 {
    let waiting = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    waiting.filter_map(|bits| u64::from_str_radix(bits.trim(), 16).ok()).fold(0, |all, bits| all | bits)
}

/// Registers that make an interrupted system call again, for calls that the kernel does not restart by itself: as they
/// were before the call. Only for calls that have done nothing when they answer EINTR. A timeout starts anew.
pub(super) fn entered_again(registers: libc::user_regs_struct) -> libc::user_regs_struct {
    const CALLS: [i64; 12] = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_io_getevents,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_read,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
    ];
    let interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
    if interrupted && CALLS.contains(&registers.orig_rax.cast_signed()) {
        let (rax, rip) = (registers.orig_rax, registers.rip.wrapping_sub(INSTRUCTION_BYTES));
        return libc::user_regs_struct { rax, rip, ..registers };
    }
    registers
}

/// True when `at` lies in the section that starts at `start` and is `length` long.
pub(super) fn is_within(at: u64, start: u64, length: u64) -> bool {
    at.wrapping_sub(start) < length
}

/// The kernel's `struct ptrace_rseq_configuration`.
#[repr(C)]
#[derive(Debug, Default)]
struct RseqConfiguration {
    pointer: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// The kernel's `struct ptrace_syscall_info` at an entry (`number`, `arguments`) or an exit (`number` is the answer).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SystemCallInfo {
    pub(super) op: u8,
    pub(super) padding: [u8; 3],
    pub(super) arch: u32,
    pub(super) instruction_pointer: u64,
    pub(super) stack_pointer: u64,
    pub(super) number: u64,
    pub(super) arguments: [u64; 6],
}

impl SystemCallInfo {
    /// The call as seccomp filters get it.
    fn for_filters(&self) -> SystemCall {
        SystemCall {
            // The kernel's own cut: the number of a call is an int.
            number: cast::saturated(self.number.cast_signed()),
            arch: self.arch,
            instruction_pointer: self.instruction_pointer,
            arguments: self.arguments,
        }
    }

    /// True at the entry of exactly `call`, by the instruction at `at`.
    pub(super) fn is_entry_of(&self, call: Call, at: Address) -> bool {
        (self.op, self.arch) == (PTRACE_SYSCALL_INFO_ENTRY, AUDIT_ARCH_X86_64)
            && self.instruction_pointer == at.0.wrapping_add(INSTRUCTION_BYTES)
            && self.number == call.number.cast_unsigned()
            && self.arguments[..5] == call.arguments
    }
}

/// A thread at a stop, and the state to restore.
#[derive(Debug)]
pub(super) struct Stopped {
    tracee: Tracee,
    /// Registers found at the stop.
    found: libc::user_regs_struct,
    mask: u64,
    has_signal: bool,
}

impl Stopped {
    /// Fills `into` from the process's memory.
    pub(super) fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Errno> {
        self.tracee.read(at, into)
    }

    /// The instruction with which the thread entered its interrupted system call.
    pub(super) fn own_instruction(&self) -> Option<Address> {
        let in_call = self.found.orig_rax.cast_signed() >= 0;
        in_call.then(|| Address(self.found.rip.wrapping_sub(INSTRUCTION_BYTES)))
    }

    /// Reads the thread's filters, if its status says that it has some.
    pub(super) fn read_filters(&mut self, is_filtered: bool) -> Result<(), Failed> {
        if is_filtered {
            let read = seccomp_filter::read(self.tracee.thread).map_err(|errno| Failed::Filtered(Err(errno)))?;
            // Strict mode has no filter to read, and lets no such call pass.
            self.tracee.filters =
                if read.is_empty() { return Err(Failed::Filtered(Ok(Action::KillThread))) } else { read };
        }
        Ok(())
    }

    /// Judges a call by the thread's filters.
    pub(super) fn judge(&self, at: Address, call: Call) -> Result<(), Failed> {
        let mut arguments = [0; 6];
        arguments[..5].copy_from_slice(&call.arguments);
        let action = seccomp_filter::action(
            &self.tracee.filters,
            &SystemCall {
                number: cast::saturated(call.number),
                arch: AUDIT_ARCH_X86_64,
                instruction_pointer: at.0.wrapping_add(INSTRUCTION_BYTES),
                arguments,
            },
        );
        if action.passes() { Ok(()) } else { Err(Failed::Filtered(Ok(action))) }
    }

    /// Detaches from the thread, unchanged.
    pub(super) fn release(self) {
        self.tracee.detach();
    }

    /// Makes `call` with the instruction at `at`, restores the thread and detaches. Returns the kernel's answer: a
    /// negative number is an errno. The call must be reached by `deadline`.
    pub(super) fn call(mut self, at: Address, call: Call, deadline: Instant) -> Result<i64, Failed> {
        let answer = self.run_syscall(at, call, deadline);
        if let Err(gone @ (Failed::Exec | Failed::Ended)) = answer {
            self.tracee.detach();
            return Err(gone);
        }
        let restored = self.restore();
        self.tracee.detach();
        restored?;
        self.tracee.resend_deferred();
        answer
    }

    fn run_syscall(&mut self, at: Address, call: Call, deadline: Instant) -> Result<i64, Failed> {
        let [rdi, rsi, rdx, r10, r8] = call.arguments;
        let rax = call.number.cast_unsigned();
        let registers =
            libc::user_regs_struct { rip: at.0, rax, orig_rax: u64::MAX, rdi, rsi, rdx, r10, r8, r9: 0, ..self.found };
        self.tracee.set_mask(mask_during_call(self.mask))?;
        self.tracee.set_registers(&registers)?;
        self.tracee.resume(libc::PTRACE_SYSCALL, 0)?;
        self.until_call(Some(deadline))?;
        if !self.tracee.system_call()?.is_entry_of(call, at) {
            self.tracee.skip_call()?;
            return Err(Failed::Foreign);
        }
        // Another thread may have added a filter meanwhile (SECCOMP_FILTER_FLAG_TSYNC); the kernel runs them after this stop.
        let is_filtered =
            !self.tracee.filters.is_empty() || super::tracer::is_filtered(self.tracee.process, self.tracee.thread);
        if let Err(failed) = self.read_filters(is_filtered).and_then(|()| self.judge(at, call)) {
            self.tracee.skip_call()?;
            return Err(failed);
        }
        self.tracee.resume(libc::PTRACE_SYSCALL, 0)?;
        self.until_call(None)?;
        Ok(self.tracee.registers()?.rax.cast_signed())
    }

    /// Waits for the entry or exit of a system call. Signals are deferred, faults dropped: our registers raised them.
    fn until_call(&mut self, deadline: Option<Instant>) -> Result<(), Failed> {
        loop {
            match self.tracee.wait(deadline)?.ok_or(Failed::NoCall)? {
                Stop::SystemCall => return Ok(()),
                Stop::Ended => return Err(Failed::Ended),
                Stop::Exec => return Err(Failed::Exec),
                Stop::Signal(signal) if self.tracee.is_fault(signal) => return Err(Failed::Foreign),
                Stop::Signal(signal) => self.defer(signal),
                Stop::Requested => {}
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(Failed::NoCall);
            }
            self.tracee.resume(libc::PTRACE_SYSCALL, 0)?;
        }
    }

    fn defer(&mut self, signal: i32) {
        self.tracee.deferred |= bit(signal);
    }

    /// Restores the thread at a stop of the kind in which it was found. System calls that begin before that stop are
    /// skipped.
    fn restore(&mut self) -> Result<(), Failed> {
        self.tracee.interrupt()?;
        // ESRCH while it runs: it is on its way to the stop.
        let _running = self.tracee.resume(libc::PTRACE_SYSCALL, 0);
        loop {
            match self.tracee.wait(None)?.ok_or(Failed::NoStop)? {
                Stop::Requested => break,
                Stop::SystemCall => self.tracee.skip_call()?,
                Stop::Ended => return Err(Failed::Ended),
                Stop::Exec => return Err(Failed::Exec),
                Stop::Signal(signal) if self.tracee.is_fault(signal) => {}
                Stop::Signal(signal) => self.defer(signal),
            }
            // The stop cancelled the interrupt.
            self.tracee.interrupt()?;
            self.tracee.resume(libc::PTRACE_SYSCALL, 0)?;
        }
        let registers = if self.has_signal { self.found } else { entered_again(self.found) };
        self.tracee.set_registers(&registers)?;
        Ok(self.tracee.set_mask(self.mask)?)
    }
}

/// # Safety
/// As for the request: `data` and `address` are numbers, or addresses of memory as long as the request expects.
unsafe fn ptrace(request: libc::c_uint, thread: Pid, address: u64, data: u64) -> Result<(), Errno> {
    // SAFETY: the caller's contract; both are passed on as they are.
    let answer = unsafe { libc::ptrace(request, thread.0, address, data) };
    if answer == -1 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
