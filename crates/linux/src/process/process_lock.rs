//! Lock on a process: one masu at a time works on it.
//!
//! There are two locks, since a user that may take a lock can exclude others by it:
//!
//! * root: the byte at the offset of the pid in `/run/masu/private/processes.lock` (`runtime_directory.rs`), which no
//!   other user can open.
//! * every other user: `/proc/PID/maps`, by flock(2). Opening it needs ptrace access to the process
//!   (PTRACE_MODE_READ) or, on newer kernels, CAP_PERFMON. So no stranger excludes its owner. Root takes this lock
//!   as well, and continues without it: an owner does not exclude root.
//!
//! Both end with the descriptor, however masu ends, and leave no file for each process. `/proc/PID/maps` is one inode
//! for each mount of procfs: two masus without root that see different mounts do not see each other.
//!
//! Cost: three system calls and two descriptors. Side effects: none on the process.
//!
//! Since: Linux 3.15 (F_OFD_SETLK).
//!
//! Truth: fcntl_locking(2), flock(2), ptrace(2) on access modes; `proc_maps_open` in fs/proc/task_mmu.c.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use units::cast;

use crate::{Error, Pid, proxy, runtime_directory};

/// Lock that ends when it is dropped.
#[derive(Debug)]
#[must_use = "the lock ends with it"]
pub struct ProcessLock {
    _of_root: Option<OwnedFd>,
    _of_owner: Option<OwnedFd>,
    /// True if another program holds the owner's lock: a masu of the owner may be at work, beside root's.
    pub is_contended: bool,
}

/// Reason why a process is not locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlocked {
    /// Another process holds the lock.
    Held,
    /// The kernel's answer.
    Failed(Error),
}

/// Locks `pid`; `directory` is by convention `/run/masu`.
///
/// # Errors
/// [`Unlocked`].
pub fn lock(directory: &Path, pid: Pid) -> Result<ProcessLock, Unlocked> {
    let of_root = match runtime_directory::private(directory) {
        Ok(_) => Some(lock_byte(&runtime_directory::private_path(directory).join("processes.lock"), pid)?),
        Err(_) if !rustix::process::geteuid().is_root() => None,
        Err(error) => return Err(Unlocked::Failed(error)),
    };
    match (lock_maps(pid), &of_root) {
        (Ok(of_owner), _) => Ok(ProcessLock { _of_root: of_root, _of_owner: Some(of_owner), is_contended: false }),
        (Err(unlocked), None) => Err(unlocked),
        (Err(unlocked), Some(_)) => {
            Ok(ProcessLock { _of_root: of_root, _of_owner: None, is_contended: unlocked == Unlocked::Held })
        }
    }
}

fn lock_byte(path: &Path, pid: Pid) -> Result<OwnedFd, Unlocked> {
    let failed = |errno| Unlocked::Failed(Error::of_host("lock", path.display(), errno));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    // SAFETY: `flock` is made of numbers alone, so zeros are valid; a zero `l_whence` makes `l_start` count from the
    // beginning.
    let mut byte: libc::flock = unsafe { std::mem::zeroed() };
    byte.l_type = cast::fits(libc::F_WRLCK);
    (byte.l_start, byte.l_len) = (libc::off_t::from(pid.0), 1);
    // SAFETY: the descriptor is open while `file` lives; the kernel reads one `flock`, which outlives the call, and
    // keeps no pointer.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const byte) };
    if done == 0 {
        return Ok(file);
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
        Errno::AGAIN | Errno::ACCESS => Err(Unlocked::Held),
        errno => Err(failed(errno)),
    }
}

fn lock_maps(pid: Pid) -> Result<OwnedFd, Unlocked> {
    let path = format!("/proc/{pid}/maps");
    let failed = |errno| Unlocked::Failed(Error::of_process("lock", &path, errno));
    let file = proxy::open(pid, &path, OFlags::RDONLY).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::AGAIN) => Err(Unlocked::Held),
        Err(errno) => Err(failed(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quiet_process::QuietProcess;

    #[test]
    fn a_process_is_locked_once_and_its_neighbours_are_free() {
        let run = tempfile::tempdir().unwrap();
        let directory = run.path().join("masu");
        let (one, other) = (QuietProcess::start(), QuietProcess::start());
        let held = lock(&directory, one.pid()).unwrap();
        assert!(!held.is_contended);
        assert_eq!(lock(&directory, one.pid()).unwrap_err(), Unlocked::Held);
        let _beside = lock(&directory, other.pid()).unwrap();
        drop(held);
        // A child of another test, forked and not yet in its exec, shares the lock until then.
        let free = std::iter::repeat_with(|| lock(&directory, one.pid())).take(1000).find(|again| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            again.is_ok()
        });
        assert!(free.is_some());
    }

    #[test]
    fn a_lock_of_the_owner_keeps_others_away_and_root_not() {
        let run = tempfile::tempdir().unwrap();
        let directory = run.path().join("masu");
        let process = QuietProcess::start();
        let _squatter = lock_maps(process.pid()).unwrap();
        assert_eq!(lock_maps(process.pid()).unwrap_err(), Unlocked::Held);
        match lock(&directory, process.pid()) {
            Ok(held) => assert!(held.is_contended && rustix::process::geteuid().is_root()),
            Err(unlocked) => assert!(unlocked == Unlocked::Held && !rustix::process::geteuid().is_root()),
        }
    }
}
