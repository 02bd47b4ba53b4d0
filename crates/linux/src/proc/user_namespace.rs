//! `/proc/PID/ns/user`: maker of the user namespace of a process.
//!
//! A user can have any number of users in namespaces of its own. Of nested namespaces the outermost counts: its maker
//! is a user of ours.
//!
//! Cost: an open and two ioctls for each level, at most 32. Side effects: none. Needs ptrace access to the process
//! (PTRACE_MODE_READ).
//!
//! Since: Linux 4.9 (NS_GET_PARENT), 4.11 (NS_GET_OWNER_UID).
//!
//! Truth: ioctl_nsfs(2), user_namespaces(7); `ns_ioctl` in fs/nsfs.c.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;

use crate::{Error, Pid};

const NS_GET_PARENT: u32 = 0xb702;
const NS_GET_OWNER_UID: u32 = 0xb704;
/// Maximum nesting depth of the kernel.
const DEPTH_MAX: usize = 33;

/// Number of the initial user namespace (`USER_NS_INIT_INO`).
const INITIAL: u64 = 0xefff_fffd;

/// Whether this process is in the host's user namespace. In another one it has no capability over the host, whatever
/// its sets say: the kernel refuses what it checks by `capable`, such as advice to another process.
///
/// # Errors
/// `Unsupported` on a kernel without user namespaces; `Denied`.
pub fn is_initial() -> Result<bool, Error> {
    let path = "/proc/self/ns/user";
    let failed = |errno| Error::of_host("open", path, errno);
    Ok(inode(&open_namespace(path).map_err(failed)?).map_err(failed)? == INITIAL)
}

/// User id of the maker of the outermost namespace that `pid` is in and we are not; `None` if `pid` is in ours.
///
/// # Errors
/// `Gone`, `Denied`; `Other` for a namespace that is not below ours.
pub fn maker(pid: Pid) -> Result<Option<u32>, Error> {
    let path = format!("/proc/{pid}/ns/user");
    let failed = |errno| Error::of_process("open", &path, errno);
    let own = inode(&open_namespace("/proc/self/ns/user").map_err(failed)?).map_err(failed)?;
    let mut namespace = open_namespace(&path).map_err(failed)?;
    if inode(&namespace).map_err(failed)? == own {
        return Ok(None);
    }
    for _ in 0..DEPTH_MAX {
        let above = parent(&namespace).map_err(failed)?;
        if inode(&above).map_err(failed)? == own {
            return owner(&namespace).map(Some).map_err(failed);
        }
        namespace = above;
    }
    Err(failed(Errno::XDEV))
}

fn open_namespace(path: &str) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn inode(namespace: &OwnedFd) -> Result<u64, Errno> {
    Ok(fstat(namespace)?.st_ino)
}

fn parent(namespace: &OwnedFd) -> Result<OwnedFd, Errno> {
    // SAFETY: the descriptor is open while `namespace` lives; this call takes no argument.
    let above = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT as _) };
    if above < 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor, ours from now on; the kernel opens it with O_CLOEXEC.
    Ok(unsafe { OwnedFd::from_raw_fd(above) })
}

fn owner(namespace: &OwnedFd) -> Result<u32, Errno> {
    let mut user: libc::uid_t = 0;
    // SAFETY: the descriptor is open while `namespace` lives; the kernel writes one `uid_t`, which outlives the call.
    let done = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut user) };
    if done < 0 { Err(last_errno()) } else { Ok(user) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::quiet_process::QuietProcess;

    #[test]
    fn a_process_in_our_namespace_has_no_other_maker() {
        assert_eq!(maker(QuietProcess::start().pid()), Ok(None));
    }

    #[test]
    fn the_maker_of_nested_namespaces_is_the_one_of_the_outermost() {
        let nested = ["--reuid", "4001", "--clear-groups", "unshare", "-Ur", "unshare", "-Ur", "cat"];
        let mut command = Command::new("setpriv");
        command.args(nested).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { return };
        let echo = std::io::Write::write_all(&mut child.stdin.as_ref().unwrap(), b"x");
        let came = std::io::Read::read(child.stdout.as_mut().unwrap(), &mut [0]);
        if echo.is_ok() && came.is_ok_and(|bytes| bytes == 1) {
            assert_eq!(maker(Pid(i32::try_from(child.id()).unwrap())), Ok(Some(4001)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
