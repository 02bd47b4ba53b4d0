//! Access check of one process to another (PTRACE_MODE_READ), by the kernel's own answer.
//!
//! User 0 is no privilege: without CAP_SYS_PTRACE the kernel denies it access to other users' processes. The rule
//! (user, group, capabilities, user namespaces, `dumpable`, security modules) is not repeated here. A thread takes on
//! the group and the effective capabilities of the asking process, and reads the link `/proc/PID/ns/user`, which the
//! kernel shows by that rule alone (`maps` opens for CAP_PERFMON as well on newer kernels). The thread's other
//! credentials stay ours: the asking process is of our user, which [`Asking::of`] checks, and no other user may signal
//! or trace the thread.
//!
//! For a process in another user namespace no capability counts, because it holds them only there. Security modules see
//! masu's label.
//!
//! Cost: one thread, five system calls. Side effects: none that outlive the thread.
//!
//! Since: always. Credentials belong to a thread in the kernel; only the C library makes them per process, and it is
//! bypassed.
//!
//! Truth: ptrace(2) on access modes; credentials(7); setfsgid(2); `__ptrace_may_access` in kernel/ptrace.c,
//! `cap_ptrace_access_check` in security/commoncap.c, `proc_ns_readlink` in fs/proc/namespaces.c.

use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::message_socket::Peer;
use crate::{Error, KernelFiles, Pid, status};

/// An asking process of our user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// Effective group id.
    pub group: u32,
    /// Effective capabilities in our user namespace, one bit each.
    pub capabilities: u64,
}

impl Asking {
    /// The process behind a connection. To exclude a later process with the same number, check afterwards that it has
    /// not ended.
    ///
    /// # Errors
    /// `Denied` for a process of another user than ours, or that has changed its user since it connected; `Gone`.
    pub fn of(files: &impl KernelFiles, peer: Peer) -> Result<Asking, Error> {
        let pid = peer.pid.ok_or_else(|| Error::of_process("find", "the process that asks", Errno::SRCH))?;
        let status = status::status(files, pid)?;
        if peer.user != geteuid().as_raw() || status.uid != peer.user {
            return Err(Error::of_process("act for", format!("process {pid} of user {}", status.uid), Errno::PERM));
        }
        let namespace = |of: Pid| {
            let path = of.file("ns/user");
            files.inode(&path).map_err(|errno| Error::of_process("read", format!("/{path}"), errno))
        };
        let is_ours = namespace(pid)? == namespace(Pid::own())?;
        let capabilities = if is_ours { status.effective_capabilities } else { 0 };
        Ok(Asking { group: peer.group, capabilities })
    }

    /// True if it may inspect `target` now.
    ///
    /// # Errors
    /// `Gone`, or `Other` when there is no thread or no descriptor left.
    pub fn may_inspect(self, target: Pid) -> Result<bool, Error> {
        let path = format!("/proc/{target}/ns/user");
        let failed = |errno| Error::of_process("read", &path, errno);
        let read = std::thread::Builder::new().spawn({
            let path = path.clone();
            move || self.take_on().and_then(|()| std::fs::read_link(path).map(drop).map_err(crate::error::errno))
        });
        let read = read.map_err(|error| failed(crate::error::errno(error)))?.join();
        match read.unwrap_or(Err(Errno::IO)) {
            Ok(()) => Ok(true),
            Err(Errno::ACCESS | Errno::PERM) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Gives this thread, which must end afterwards, the credentials of the asking process.
    fn take_on(self) -> Result<(), Errno> {
        let own = capabilities(None)?;
        set_file_group(self.group)?;
        let effective = own.effective & CapabilitySet::from_bits_retain(self.capabilities);
        set_capabilities(None, rustix::thread::CapabilitySets { effective, ..own })
    }
}

/// Sets the group for this thread's access checks (setfsgid(2)), which returns only the previous one.
fn set_file_group(group: u32) -> Result<(), Errno> {
    let set = |group: u32| {
        // SAFETY: a number is passed, no memory; it changes credentials of this thread alone.
        unsafe { libc::syscall(libc::SYS_setfsgid, libc::c_ulong::from(group)) }
    };
    set(group);
    if set(u32::MAX) == libc::c_long::from(group) { Ok(()) } else { Err(Errno::PERM) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    const ALL: u64 = u64::MAX >> 1;
    const SYS_PTRACE: u64 = 1 << 19;

    struct Sleeper(Child);

    impl Sleeper {
        fn of(user: u32, group: u32) -> Sleeper {
            let mut command = Command::new("sleep");
            command.arg("60").stdin(Stdio::null()).uid(user).gid(group);
            Sleeper(command.spawn().unwrap())
        }

        fn pid(&self) -> Pid {
            Pid(i32::try_from(self.0.id()).unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn asking(capabilities: u64) -> Asking {
        Asking { group: 0, capabilities }
    }

    #[test]
    fn user_0_inspects_others_by_capability_and_not_by_its_number() {
        if !geteuid().is_root() {
            return;
        }
        let (own, others) = (Sleeper::of(0, 0), Sleeper::of(4001, 4001));
        for (capabilities, expected) in [(0, false), (ALL & !SYS_PTRACE, false), (SYS_PTRACE, true), (ALL, true)] {
            assert_eq!(asking(capabilities).may_inspect(others.pid()), Ok(expected), "{capabilities:#x}");
        }
        // Of the same user, with capabilities that the asking process lacks.
        assert_eq!(asking(0).may_inspect(own.pid()), Ok(false));
        assert_eq!(asking(ALL).may_inspect(own.pid()), Ok(true));
        let other_group = Sleeper::of(0, 4001);
        assert_eq!(asking(ALL & !SYS_PTRACE).may_inspect(other_group.pid()), Ok(false));
        // Our own credentials are unchanged.
        assert!(std::fs::read_link(format!("/proc/{}/ns/user", others.pid())).is_ok());
    }

    #[test]
    fn a_process_that_ended_is_gone() {
        let ended = Sleeper::of(geteuid().as_raw(), rustix::process::getegid().as_raw()).pid();
        assert!(asking(ALL).may_inspect(ended).unwrap_err().is_gone());
    }
}
