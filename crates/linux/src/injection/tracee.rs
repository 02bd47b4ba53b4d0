//! One thread of another process under ptrace: stopping it, one call in its name, putting it back.
//!
//! A [`Tracee`] is running or not known to be stopped; [`Stopped`] is at a stop from which it can be put back. Both let
//! go of the thread when they are dropped, or at the latest when the tracing thread ends.

use std::time::{Duration, Instant};

use quantities::Address;
use rustix::io::Errno;

use super::numbers::{PTRACE_GET_RSEQ_CONFIGURATION, PTRACE_GETSIGMASK, PTRACE_SETSIGMASK};
use crate::Pid;

/// The code segment of 64-bit programs (`__USER_CS`).
const CODE_64: u64 = 0x33;

/// Times that a thread is let go on because it was in a restartable sequence, which takes it nanoseconds to leave.
const SEQUENCES_MAX: usize = 1000;

/// Signals to this process wait while this lives.
///
/// # Safety
/// `before` is the mask that was in force when this was made, and is put back by the same thread.
#[derive(Debug)]
pub(super) struct HeldSignals {
    before: libc::sigset_t,
}

impl HeldSignals {
    pub(super) fn hold() -> HeldSignals {
        // SAFETY: a signal set is plain data for which zeros are valid; both outlive the calls, which fill them.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            HeldSignals { before }
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that the kernel gave us, unchanged.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Why a traced thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// As we asked, or because its process is stopped by job control: both are stops to put it back from.
    Asked,
    /// At the entry of a system call, or at its exit.
    SystemCall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// It ended.
    Ended,
}

/// What `waitpid` said.
pub(super) fn decode(status: i32) -> Stop {
    const STOP_EVENT: i32 = super::numbers::PTRACE_EVENT_STOP.cast_signed();
    if !libc::WIFSTOPPED(status) {
        return Stop::Ended;
    }
    match (libc::WSTOPSIG(status), status >> 16) {
        (_, STOP_EVENT) => Stop::Asked,
        (signal, 0) if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
        (signal, 0) => Stop::Signal(signal),
        // No other event was asked for; going on is what leaves it as it was.
        _ => Stop::Signal(0),
    }
}

/// A seized thread.
#[derive(Debug)]
pub(super) struct Tracee {
    process: Pid,
    thread: Pid,
    /// Stop signals that came during our call.
    held: Vec<i32>,
}

impl Tracee {
    /// Begins to trace. The thread goes on as it was.
    pub(super) fn seize(process: Pid, thread: Pid) -> Result<Tracee, Errno> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err(Errno::NOSYS);
        }
        // SAFETY: SEIZE takes options as a number and touches no memory of ours.
        unsafe { ptrace(libc::PTRACE_SEIZE, thread, 0, libc::PTRACE_O_TRACESYSGOOD as u64)? };
        Ok(Tracee { process, thread, held: Vec::new() })
    }

    /// Brings it to a stop, outside any restartable sequence. Signals that come before are delivered.
    pub(super) fn stopped(self, patience: Duration) -> Result<Stopped, Errno> {
        for _ in 0..SEQUENCES_MAX {
            self.interrupt()?;
            self.until_asked(patience)?;
            let registers = self.registers()?;
            if registers.cs != CODE_64 {
                // In the middle of a 32-bit call; it will not be for long.
                self.go_on(libc::PTRACE_CONT, 0)?;
                continue;
            }
            if !self.in_sequence(registers.rip)? {
                let mask = self.mask()?;
                let registers = if self.has_signal_for(mask) { registers } else { entered_again(registers) };
                return Ok(Stopped { tracee: self, registers, mask });
            }
            self.go_on(libc::PTRACE_CONT, 0)?;
            std::thread::yield_now();
        }
        self.interrupt()?;
        self.until_asked(patience)?;
        self.let_go();
        Err(Errno::AGAIN)
    }

    fn interrupt(&self) -> Result<(), Errno> {
        // SAFETY: takes no arguments and touches no memory of ours.
        unsafe { ptrace(libc::PTRACE_INTERRUPT, self.thread, 0, 0) }
    }

    /// Lets it run on, with this signal delivered first if it is not 0.
    fn go_on(&self, how: libc::c_uint, signal: i32) -> Result<(), Errno> {
        // SAFETY: takes a signal's number and touches no memory of ours.
        unsafe { ptrace(how, self.thread, 0, u64::from(signal.unsigned_abs())) }
    }

    /// Waits for the stop that was asked for; delivers what comes before it.
    fn until_asked(&self, patience: Duration) -> Result<(), Errno> {
        loop {
            match self.wait(patience)? {
                Stop::Asked => return Ok(()),
                Stop::SystemCall => self.go_on(libc::PTRACE_CONT, 0)?,
                Stop::Signal(signal) => self.go_on(libc::PTRACE_CONT, signal)?,
                Stop::Ended => return Err(Errno::SRCH),
            }
        }
    }

    /// The same while it carries our registers and its signals are blocked: those that cannot be are kept for later. There is
    /// no limit of time, for to let it go now would be to let it go on in the wrong place; it waits for its own mmap lock at
    /// most.
    fn until(&mut self, wanted: Stop, how: libc::c_uint) -> Result<(), Errno> {
        loop {
            match self.wait(Duration::MAX)? {
                stop if stop == wanted => return Ok(()),
                Stop::Ended => return Err(Errno::SRCH),
                Stop::Signal(signal) => {
                    if signal != 0 {
                        self.held.push(signal);
                    }
                    self.go_on(how, 0)?;
                }
                Stop::Asked | Stop::SystemCall => self.go_on(how, 0)?,
            }
        }
    }

    /// The next stop. EBUSY when it takes too long.
    fn wait(&self, patience: Duration) -> Result<Stop, Errno> {
        let begun = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: `status` outlives the call, which fills it.
            let found = unsafe { libc::waitpid(self.thread.0, &raw mut status, libc::__WALL | libc::WNOHANG) };
            match found {
                0 if begun.elapsed() > patience => return Err(Errno::BUSY),
                // A stop takes microseconds; what takes longer is looked for ever less often.
                0 if begun.elapsed() < Duration::from_micros(200) => std::thread::yield_now(),
                0 => std::thread::sleep((begun.elapsed() / 8).min(Duration::from_millis(10))),
                -1 => match last_errno() {
                    Errno::INTR => {}
                    Errno::CHILD => return Err(Errno::SRCH),
                    errno => return Err(errno),
                },
                _ => return Ok(decode(status)),
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

    /// Its blocked signals, one bit each.
    fn mask(&self) -> Result<u64, Errno> {
        let mut mask = 0u64;
        // SAFETY: `mask` is as long as is said, and outlives the call, which fills it.
        unsafe { ptrace(PTRACE_GETSIGMASK, self.thread, 8, (&raw mut mask).expose_provenance() as u64)? };
        Ok(mask)
    }

    fn set_mask(&self, mask: u64) -> Result<(), Errno> {
        // SAFETY: `mask` is as long as is said, and outlives the call, which only reads it.
        unsafe { ptrace(PTRACE_SETSIGMASK, self.thread, 8, (&raw const mask).expose_provenance() as u64) }
    }

    /// Is there a signal that it will have to handle? If that cannot be seen, there may be.
    fn has_signal_for(&self, mask: u64) -> bool {
        let path = format!("/proc/{}/task/{}/status", self.process, self.thread);
        let status = std::fs::read(path).map(|status| String::from_utf8_lossy(&status).into_owned());
        status.map_or(true, |status| pending(&status) & !mask != 0)
    }

    /// Whether it is in a restartable sequence, which would not be restarted if it went on elsewhere in between.
    fn in_sequence(&self, at: u64) -> Result<bool, Errno> {
        let mut found = RseqConfiguration::default();
        let size = size_of::<RseqConfiguration>() as u64;
        // SAFETY: `found` is as long as is said, and outlives the call, which fills it.
        let asked = unsafe {
            ptrace(PTRACE_GET_RSEQ_CONFIGURATION, self.thread, size, (&raw mut found).expose_provenance() as u64)
        };
        match asked {
            Ok(()) if found.pointer != 0 => {}
            // Not registered, or a kernel that cannot say: before 5.13.
            Ok(()) | Err(Errno::IO | Errno::INVAL) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        const SECTION_IN_RSEQ: u64 = 8;
        let section = self.word(found.pointer + SECTION_IN_RSEQ)?;
        if section == 0 {
            return Ok(false);
        }
        Ok(is_within(at, self.word(section + 8)?, self.word(section + 16)?))
    }

    /// Eight bytes of its memory.
    fn word(&self, address: u64) -> Result<u64, Errno> {
        let mut word = 0u64;
        let ours = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
        let theirs = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(usize::try_from(address).map_err(|_| Errno::FAULT)?),
            iov_len: 8,
        };
        // SAFETY: `ours` names eight bytes that outlive the call; `theirs` is only looked at by the kernel, there.
        let read = unsafe { libc::process_vm_readv(self.process.0, &raw const ours, 1, &raw const theirs, 1, 0) };
        if read == 8 { Ok(word) } else { Err(if read < 0 { last_errno() } else { Errno::FAULT }) }
    }

    /// Ends the tracing, and sends again what was kept.
    fn let_go(&self) {
        // SAFETY: takes a signal's number, here none, and touches no memory of ours.
        let _ended_or_free = unsafe { ptrace(libc::PTRACE_DETACH, self.thread, 0, 0) };
        for signal in &self.held {
            // SAFETY: three numbers. The thread may have ended, and then nobody misses the signal.
            unsafe { libc::syscall(libc::SYS_tgkill, self.process.0, self.thread.0, *signal) };
        }
    }
}

/// Signals that wait for a thread or for its process, in the text of its `status`.
pub(super) fn pending(status: &str) -> u64 {
    let waiting = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    waiting.filter_map(|bits| u64::from_str_radix(bits.trim(), 16).ok()).fold(0, |all, bits| all | bits)
}

/// The registers of a thread whose system call we interrupted and that the kernel will not restart by itself, as they were
/// before the call: it is made again. Only of calls that have done nothing when they answer EINTR. A time limit starts anew.
pub(super) fn entered_again(registers: libc::user_regs_struct) -> libc::user_regs_struct {
    const INSTRUCTION_BYTES: u64 = 2;
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
        let (rax, rip) = (registers.orig_rax, registers.rip - INSTRUCTION_BYTES);
        return libc::user_regs_struct { rax, rip, ..registers };
    }
    registers
}

/// True when `at` lies in the section that starts at `start` and is `length` long.
pub(super) fn is_within(at: u64, start: u64, length: u64) -> bool {
    at.wrapping_sub(start) < length
}

/// What the kernel knows about the restartable sequences of a thread (`struct ptrace_rseq_configuration`).
#[repr(C)]
#[derive(Debug, Default)]
struct RseqConfiguration {
    pointer: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// A thread at a stop, and what it takes to put it back.
#[derive(Debug)]
pub(super) struct Stopped {
    tracee: Tracee,
    registers: libc::user_regs_struct,
    mask: u64,
}

impl Stopped {
    /// Makes one system call by the instruction at `at`, puts the thread back and lets it go. The kernel's answer to the
    /// call: a negative number is an errno.
    pub(super) fn call(mut self, at: Address, number: i64, arguments: [u64; 5]) -> Result<i64, Errno> {
        let answer = self.make(at, number, arguments);
        let back = self.put_back();
        self.tracee.let_go();
        back.and(answer)
    }

    fn make(&mut self, at: Address, number: i64, [rdi, rsi, rdx, r10, r8]: [u64; 5]) -> Result<i64, Errno> {
        let rax = number.cast_unsigned();
        let registers =
            libc::user_regs_struct { rip: at.0, rax, orig_rax: u64::MAX, rdi, rsi, rdx, r10, r8, ..self.registers };
        self.tracee.set_mask(u64::MAX)?;
        self.tracee.set_registers(&registers)?;
        self.tracee.go_on(libc::PTRACE_SYSCALL, 0)?;
        self.tracee.until(Stop::SystemCall, libc::PTRACE_SYSCALL)?;
        let entered = self.tracee.registers()?;
        if entered.orig_rax != rax || entered.rip != at.0 + 2 {
            return Err(Errno::FAULT); // it is somewhere else; whatever that is must not happen
        }
        self.tracee.go_on(libc::PTRACE_SYSCALL, 0)?;
        self.tracee.until(Stop::SystemCall, libc::PTRACE_SYSCALL)?;
        Ok(self.tracee.registers()?.rax.cast_signed())
    }

    /// Everything as it was, from a stop of the kind in which it was found.
    fn put_back(&mut self) -> Result<(), Errno> {
        self.tracee.interrupt()?;
        // Fails when it is running, and then it is on its way to the stop; or when it ended, which the wait tells.
        let _running = self.tracee.go_on(libc::PTRACE_CONT, 0);
        self.tracee.until(Stop::Asked, libc::PTRACE_CONT)?;
        self.tracee.set_registers(&self.registers)?;
        self.tracee.set_mask(self.mask)
    }
}

/// # Safety
/// As for the request: `data` and `address` are numbers, or addresses of memory that is as long as the request expects.
unsafe fn ptrace(request: libc::c_uint, thread: Pid, address: u64, data: u64) -> Result<(), Errno> {
    // SAFETY: the caller's contract; both are passed on as they are.
    let answer = unsafe { libc::ptrace(request, thread.0, address, data) };
    if answer == -1 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
