//! `ptrace(2)`: one system call in the name of another process, `prctl(PR_SET_THP_DISABLE)`, and nothing else.
//!
//! Whether a process may have huge pages at all is a flag of its memory that only the process itself can set. So one of
//! its threads is stopped, made to execute the call, and put back as it was: registers, signal mask, the system call it
//! slept in. What else can be done from outside is done without stopping anybody (`process_madvise.rs`). What came of
//! it stands in `status.rs` (`THP_enabled:`).
//!
//! How the thread is left as it was found:
//! - It is stopped by PTRACE_INTERRUPT, in the kernel, on its way to user mode. If it slept in a system call, that call
//!   has answered "to be restarted" and does so after all is put back: the registers with `orig_rax` say which, and the
//!   kernel keeps the time that is left. Our call carries `orig_rax` −1 so that nothing is restarted before.
//! - Its signals are blocked meanwhile, and wait. A stop signal, which cannot be blocked, is kept and sent again.
//! - The call is an instruction that is there already (in the vdso); neither code nor stack is written.
//! - It is put back at a stop of the same kind as the first, so no instruction of its own runs in between.
//! - A thread in a restartable sequence (rseq) is let go on until it has left it.
//! - A process stopped by job control (Ctrl-Z) runs for the one call and stops again.
//!
//! - Waiting calls that the kernel does not restart by itself (`epoll_wait`, `semop` and others that signal(7) lists) are
//!   made again, unless a signal is there that they should answer EINTR to.
//!
//! Cost: some 100 µs, for which one thread stands still. Side effects: the time limit of a call that is made again starts
//! anew; rare ones (`io_uring_enter`, `connect` with a time limit) answer EINTR, as after SIGSTOP and SIGCONT. Should masu be killed with SIGKILL between two of these steps, the thread goes on in the wrong place; all other
//! signals to masu wait until it is done.
//!
//! Since: PTRACE_SEIZE Linux 3.4, signal masks 3.11, where rseq is 5.13; PR_SET_THP_DISABLE 3.15. x86-64 only. Needs
//! ptrace access (PTRACE_MODE_ATTACH): the same user, or CAP_SYS_PTRACE.
//!
//! Truth: ptrace(2), prctl(2), signal(7), rseq(2); kernel/ptrace.c, `get_signal` in kernel/signal.c,
//! `arch_do_signal_or_restart` in arch/x86/kernel/signal.c.

mod tracee;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use quantities::Address;
use rustix::io::Errno;

use self::tracee::{HeldSignals, Tracee};
use crate::maps::{self, Mapping};
use crate::status::{self, Seccomp};
use crate::{Error, KernelFiles, Pid, files};

/// The kernel's numbers that libc does not have, or that are asked for by value.
pub mod numbers {
    /// prctl: the process may have no huge pages, or may again.
    pub const PR_SET_THP_DISABLE: u64 = libc::PR_SET_THP_DISABLE as u64;
    /// ptrace: the blocked signals of a thread.
    pub const PTRACE_GETSIGMASK: u32 = 0x420a;
    /// ptrace: sets them.
    pub const PTRACE_SETSIGMASK: u32 = 0x420b;
    /// ptrace: where the thread's restartable sequences are described.
    pub const PTRACE_GET_RSEQ_CONFIGURATION: u32 = 0x420f;
    /// ptrace: a stop that was asked for, or one of the group.
    pub const PTRACE_EVENT_STOP: u32 = 128;
}

/// So long a thread may take to come to a stop. One that waits for a disk, or for the child of a vfork, does not stop.
const PATIENCE: Duration = Duration::from_secs(2);

/// Threads that are tried, the first one first.
const THREADS_MAX: usize = 8;

/// Forbids `pid` to have huge pages, or allows them again: memory that is touched from now on. What is huge stays so.
///
/// # Errors
/// `Gone` if the process ended; `Denied` without ptrace access, or when somebody else traces it; `Other` with EBUSY when no
/// thread came to a stop, and with the kernel's answer when it refused the call. `Unsupported` on another processor.
pub fn forbid_huge_pages(files: &impl KernelFiles, pid: Pid, forbid: bool) -> Result<(), Error> {
    let at = find_syscall(files, pid)?;
    let arguments = [numbers::PR_SET_THP_DISABLE, u64::from(forbid), 0, 0, 0];
    let threads = threads_of(files, pid)?;
    // Until the thread is put back, nothing but SIGKILL may end us.
    let held = HeldSignals::hold();
    // A thread of its own: the kernel lets go of whatever a tracer traces when that ends.
    let done = thread::scope(|scope| {
        let tracer = scope.spawn(|| in_any_of(pid, &threads, at, arguments));
        tracer.join().unwrap_or_else(|_| Err(failed("stop", pid, Errno::IO)))
    });
    drop(held);
    let done = done.map_err(|error| match error {
        // So the kernel answers about a process on its way out, too.
        Error::Denied(_) if has_ended(files, pid) => failed("trace", pid, Errno::SRCH),
        other => other,
    });
    match done? {
        0 => Ok(()),
        answer => {
            let errno = i32::try_from(-answer).ok().filter(|number| (1..4096).contains(number));
            let errno = errno.map_or(Errno::IO, Errno::from_raw_os_error);
            Err(Error::of_process("call prctl(PR_SET_THP_DISABLE) in", object(pid), errno))
        }
    }
}

/// It has no memory any more.
fn has_ended(files: &impl KernelFiles, pid: Pid) -> bool {
    maps::maps(files, pid).is_ok_and(|mappings| mappings.is_empty()) || status::status(files, pid).is_err()
}

/// The first thread that comes to a stop makes the call.
fn in_any_of(pid: Pid, threads: &[Pid], at: Address, arguments: [u64; 5]) -> Result<i64, Error> {
    let mut last = failed("stop", pid, Errno::BUSY);
    for thread in threads {
        let stopped = Tracee::seize(pid, *thread).and_then(|tracee| tracee.stopped(PATIENCE));
        match stopped {
            Ok(tracee) => {
                return tracee.call(at, libc::SYS_prctl, arguments).map_err(|e| failed("call prctl in", pid, e));
            }
            // Not this one: it waits for something that no signal interrupts, or ended.
            Err(errno @ (Errno::BUSY | Errno::AGAIN)) => last = failed("stop", pid, errno),
            Err(errno) => return Err(failed("trace", pid, errno)),
        }
    }
    Err(last)
}

/// Threads whose system calls nobody filters, the first one first.
fn threads_of(files: &impl KernelFiles, pid: Pid) -> Result<Vec<Pid>, Error> {
    let path = pid.file("task");
    let names = files.list(&path).map_err(|errno| Error::of_process("list", format_args!("/{path}"), errno))?;
    let mut threads: Vec<Pid> = names.iter().filter_map(|name| name.parse().ok()).collect();
    threads.sort_by_key(|thread| (*thread != pid, *thread));
    threads.retain(|thread| {
        let unfiltered = [Seccomp::Off, Seccomp::NotReported];
        status::status(files, *thread).is_ok_and(|status| unfiltered.contains(&status.seccomp))
    });
    threads.truncate(THREADS_MAX);
    if threads.is_empty() { Err(failed("find an unfiltered thread of", pid, Errno::PERM)) } else { Ok(threads) }
}

/// Where in the process a `syscall` instruction stands.
fn find_syscall(files: &impl KernelFiles, pid: Pid) -> Result<Address, Error> {
    const CHUNK: u64 = 256 << 10;
    let path = format!("/{}", pid.file("mem"));
    let memory = File::open(&path).map_err(|e| Error::of_process("open", &path, files::errno(e)))?;
    let mut read_any = false;
    for mapping in candidates(&maps::maps(files, pid)?) {
        let mut from = mapping.range.start().0;
        while from < mapping.range.end().0 {
            let length = usize::try_from(CHUNK.min(mapping.range.end().0 - from)).unwrap_or(0);
            let mut bytes = vec![0; length];
            // What cannot be read has no instruction for us.
            let read = memory.read_at(&mut bytes, from).unwrap_or(0);
            read_any |= read > 0;
            if let Some(found) = syscall_in(&bytes[..read]) {
                return Ok(Address(from + found as u64));
            }
            from += length as u64;
        }
    }
    // A process on its way out has no memory left.
    Err(failed("find a system call instruction in", pid, if read_any { Errno::NOSYS } else { Errno::SRCH }))
}

/// Mappings in which to look, best first: the kernel's own page, the C library, any code.
fn candidates(mappings: &[Mapping]) -> Vec<&Mapping> {
    let rank = |mapping: &Mapping| match &*mapping.path.text() {
        "[vdso]" => 0,
        path if path
            .rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("libc.so") || name.starts_with("libc-")) =>
        {
            1
        }
        _ => 2,
    };
    let is_code = |mapping: &&Mapping| {
        let rights = mapping.permissions;
        rights.read && rights.execute && (mapping.inode != 0 || mapping.path == "[vdso]")
    };
    let mut found: Vec<&Mapping> = mappings.iter().filter(is_code).collect();
    found.sort_by_key(|mapping| rank(mapping));
    found
}

/// The first `syscall` instruction (0f 05) in these bytes. In the middle of another instruction it is as good: it is where
/// the processor is told to go on that counts.
fn syscall_in(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == [0x0f, 0x05])
}

fn object(pid: Pid) -> String {
    format!("process {pid}")
}

fn failed(operation: &str, pid: Pid, errno: Errno) -> Error {
    Error::of_process(operation, object(pid), errno)
}

#[cfg(test)]
mod tests;
