//! `SigIgn:`, `SigCgt:` and `ShdPnd:` of `/proc/PID/status`, sigaction(2): ignored and pending signals.
//!
//! Signals ignored by our parent stay ignored over exec, as with nohup(1) or a shell's `&`; catching one would undo
//! that for the programs that we start. SIGPIPE needs more: the Rust library ignores it in every program before main,
//! and resets it to the default in programs started from there. So its original state is read before that.
//!
//! Cost: one small file; one system call at the start of the program. Side effects: those of `raise`, `stop_…` and
//! `write_…`. Since: always. Truth: proc_pid_status(5), signal(7), sigaction(2), setpgid(2) on orphaned process groups.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::key_lines::{required, split};
use crate::{Error, KernelFiles, Pid};

/// Signals, as a set of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals(u64);

impl Signals {
    /// True if the set contains the signal with this number.
    pub fn contains(self, signal: i32) -> bool {
        u32::try_from(signal - 1).is_ok_and(|bit| self.0.checked_shr(bit).is_some_and(|rest| rest & 1 != 0))
    }
}

/// Pending signals of a process.
///
/// # Errors
/// `Gone` if it ended, `Malformed`.
pub fn pending(files: &impl KernelFiles, pid: Pid) -> Result<Signals, Error> {
    let path = pid.file("status");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| Error::of_process("read", &object, errno))?;
    set_of(&text, "ShdPnd", &object)
}

/// True if a signal would do no harm: a handler of the process catches it, or it is ignored. A thread's blocked mask
/// does not count: another thread need not block it, and exec(2) keeps the mask but resets the handlers.
///
/// # Errors
/// `Gone` if it ended, `Malformed`.
pub fn is_expected(files: &impl KernelFiles, pid: Pid, signal: i32) -> Result<bool, Error> {
    let path = pid.file("status");
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| Error::of_process("read", &object, errno))?;
    ["SigCgt", "SigIgn"]
        .into_iter()
        .try_fold(false, |expected, key| Ok(expected || set_of(&text, key, &object)?.contains(signal)))
}

fn set_of(text: &str, key: &str, object: &str) -> Result<Signals, Error> {
    let value = text.lines().filter_map(split).find(|(found, _)| *found == key).map(|(_, value)| value);
    let value = required(object, key, value)?;
    let bits = u64::from_str_radix(value, 16);
    bits.map(Signals).map_err(|_| Error::malformed(object, format_args!("{key}: {value}, expected a hexadecimal set")))
}

/// Signals that this process ignores.
///
/// # Errors
/// `Malformed`, or the kernel's error on a host without /proc.
pub fn ignored(files: &impl KernelFiles) -> Result<Signals, Error> {
    const PATH: &str = "proc/self/status";
    let object = format!("/{PATH}");
    let text = files.read(PATH).map_err(|errno| Error::of_host("read", &object, errno))?;
    set_of(&text, "SigIgn", &object)
}

/// True if SIGPIPE was ignored when this program started.
static BROKEN_PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Run by the C library's start code, before the Rust library's.
#[used]
// SAFETY: a function of the type that this section holds; it needs nothing of the Rust library.
#[unsafe(link_section = ".init_array")]
static RECORD_BROKEN_PIPE: extern "C" fn() = record_broken_pipe;

extern "C" fn record_broken_pipe() {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the action; the variable is of the type that the call fills.
    unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: filled, or zeros, which are valid too.
    let now = unsafe { now.assume_init() };
    BROKEN_PIPE_IGNORED.store(now.sa_sigaction == libc::SIG_IGN, Relaxed);
}

/// Makes `command` start with SIGPIPE as this program did, and with all other signals as they are now.
pub fn pass_on_broken_pipe(command: &mut Command) {
    let ignored = BROKEN_PIPE_IGNORED.load(Relaxed);
    // Also without work: otherwise posix_spawn is used, and glibc's leaves signals 32 and 33 ignored.
    let work = move || {
        if ignored {
            // SAFETY: a signal that may be ignored; no code of ours handles it.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec: one system call, no memory, no lock.
    unsafe { command.pre_exec(work) };
}

/// Makes `command` start with the signals that have come to this process: each with a flag that its handler here sets.
///
/// Without this a signal to the process group is lost if it comes before the program is in the group, or while the
/// program has the handlers of this process, between fork and exec.
pub fn pass_on_early(command: &mut Command, flags: Vec<(i32, Arc<AtomicBool>)>) {
    let work = move || {
        for (signal, _) in &flags {
            // SAFETY: this copy of the process becomes the program, which would lose the handlers anyway.
            unsafe { libc::signal(*signal, libc::SIG_DFL) };
        }
        flags.iter().filter(|(_, has_come)| has_come.load(Relaxed)).for_each(|(signal, _)| raise(*signal));
        Ok(())
    };
    // SAFETY: between fork and exec: system calls and reads of flags, no memory, no lock.
    unsafe { command.pre_exec(work) };
}

/// Sends this thread a signal, which ends it if that is the signal's default action. Accepts any number; one that is no
/// signal does nothing.
pub fn raise(signal: i32) {
    // SAFETY: a system call with a number.
    unsafe { libc::raise(signal) };
}

/// Stops all threads of this process as an uncaught Ctrl-Z does, and returns when it continues. An orphaned process
/// group (all parents in another session) could not be resumed by `fg`: there the kernel does not stop it, and this
/// returns at once.
pub fn stop_as_the_terminal_asks() {
    let mut before = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all of it may be zeros: no flags, no other signals blocked, the default action (SIG_DFL is 0).
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both are of the type that the call reads and fills; it cannot fail for a signal that may be caught.
    unsafe { libc::sigaction(libc::SIGTSTP, &raw const default, before.as_mut_ptr()) };
    raise(libc::SIGTSTP);
    // SAFETY: the action that the first call saved; its handler was installed before.
    unsafe { libc::sigaction(libc::SIGTSTP, before.as_ptr(), std::ptr::null_mut()) };
}

/// Allows writes to the terminal from the background, even if the terminal stops background writers (`stty tostop`).
/// Programs started from then on inherit this.
pub fn write_from_the_background() {
    // SAFETY: a signal that may be ignored; no code of ours handles it.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn the_first_signal_is_the_lowest_bit() {
        let kernel = FakeKernel::new().file("proc/self/status", "Name:\tx\nSigIgn:\t0000000000000003\nNew:\t1\n");
        let ignored = ignored(&kernel).unwrap();
        assert!(ignored.contains(1) && ignored.contains(2) && !ignored.contains(3));
        assert!(!ignored.contains(0) && !ignored.contains(-1) && !ignored.contains(65));
    }

    #[test]
    fn what_waits_for_a_process_is_told_from_what_waits_for_its_thread() {
        let kernel = FakeKernel::new().file("proc/42/status", "SigPnd:\t0000000000000001\nShdPnd:\t0000000000004000\n");
        let waiting = pending(&kernel, Pid(42)).unwrap();
        assert!(waiting.contains(libc::SIGTERM) && !waiting.contains(libc::SIGHUP));
        assert!(pending(&kernel, Pid(43)).unwrap_err().is_gone());
    }

    #[test]
    fn a_signal_is_expected_by_whoever_catches_or_ignores_it() {
        let status = "SigBlk:\t0000000000000001\nSigIgn:\t0000000000000002\nSigCgt:\t8000000000000000\n";
        let kernel = FakeKernel::new().file("proc/42/status", status);
        let expected = [1, 2, 64, 3].map(|signal| is_expected(&kernel, Pid(42), signal).unwrap());
        assert_eq!(expected, [false, true, true, false]);
        assert!(is_expected(&kernel, Pid(43), 1).unwrap_err().is_gone());
    }

    #[test]
    fn what_is_missing_or_torn_is_said() {
        let missing = FakeKernel::new().file("proc/self/status", "Name:\tx\n");
        assert!(matches!(ignored(&missing), Err(Error::Malformed { .. })));
        let torn = FakeKernel::new().file("proc/self/status", "SigIgn:\tzz\n");
        assert!(matches!(ignored(&torn), Err(Error::Malformed { .. })));
        assert!(ignored(&FakeKernel::new()).is_err());
    }

    #[test]
    fn a_program_gets_the_signals_that_came_before_its_start() {
        use std::os::unix::process::ExitStatusExt;
        let ends = |has_come: bool| {
            let mut command = Command::new("/bin/true");
            let flag = |set: bool| Arc::new(AtomicBool::new(set));
            pass_on_early(&mut command, vec![(libc::SIGWINCH, flag(true)), (libc::SIGUSR2, flag(has_come))]);
            command.status().unwrap()
        };
        assert_eq!((ends(false).code(), ends(true).signal()), (Some(0), Some(libc::SIGUSR2)));
    }

    #[test]
    fn this_process_ignores_sigpipe_as_rust_programs_do() {
        assert!(ignored(&crate::Rooted::host()).unwrap().contains(libc::SIGPIPE));
    }
}
