//! `/run/masu`: what masu leaves for other processes of this boot, in two directories with fixed modes.
//!
//! `/run/masu` is 0755: sockets that clients of every user connect to. `/run/masu/private` is 0700: journals (`knobs.rs`) and locks
//! (`process_lock.rs`). The first masu makes both, and every use repairs the modes, whatever umask or older masu made them. A directory of
//! another owner, or a symbolic link in its place, is refused: who can rename its entries could have masu read and write other files.
//!
//! Cost: five system calls each. Side effects: the directories stay.
//!
//! Since: always; the number of the first PID namespace Linux 3.8.
//!
//! Truth: this file; mkdirat(2), open(2) on O_NOFOLLOW; for [`seen`] proc_pid_mountinfo(5) and `PROC_PID_INIT_INO` in
//! include/linux/proc_ns.h.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fchmod, fstat, mkdir, open};
use rustix::io::Errno;

use crate::files::errno;
use crate::{Error, KernelFiles};

/// The place on every host.
pub const DIRECTORY: &str = "/run/masu";

/// Makes or repairs the directory that everybody may read, and opens it.
///
/// # Errors
/// `Denied` without the privilege, with EPERM for a directory of another owner and ENOTDIR for what is no directory.
pub fn public(directory: &Path) -> Result<OwnedFd, Error> {
    if let Some(above) = directory.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(above);
        made.map_err(|error| Error::of_host("create", above.display(), errno(error)))?;
    }
    make(directory, Mode::from_raw_mode(0o755))
}

/// Makes or repairs both, and opens the one that only its owner may read.
///
/// # Errors
/// As [`public`].
pub fn private(directory: &Path) -> Result<OwnedFd, Error> {
    public(directory)?;
    make(&private_path(directory), Mode::RWXU)
}

/// Where the private one lies.
pub fn private_path(directory: &Path) -> PathBuf {
    directory.join("private")
}

fn make(path: &Path, mode: Mode) -> Result<OwnedFd, Error> {
    let failed = |operation: &str, errno| Error::of_host(operation, path.display(), errno);
    let untrusted = |why: &str, errno| {
        Error::Denied(crate::At {
            operation: "trust".to_owned(),
            object: format!("{}, which {why}", path.display()),
            errno,
        })
    };
    let made = mkdir(path, mode);
    let opened =
        match open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(untrusted("is not a directory", Errno::NOTDIR)),
            // The reason why it was not made says more than that it is not there.
            Err(Errno::NOENT) => return Err(failed("create", made.err().unwrap_or(Errno::NOENT))),
            opened => opened.map_err(|errno| failed("open", errno))?,
        };
    let about = fstat(&opened).map_err(|errno| failed("open", errno))?;
    let own = rustix::process::geteuid().as_raw();
    if about.st_uid != own && about.st_uid != 0 {
        return Err(untrusted(&format!("belongs to user {}", about.st_uid), Errno::PERM));
    }
    if about.st_uid == own && about.st_mode & 0o7777 != mode.bits() {
        fchmod(&opened, mode).map_err(|errno| failed("set the mode of", errno))?;
    }
    Ok(opened)
}

/// Whose `/run/masu` this process sees. What lies in another than the host's ends with its mount namespace, while settings of the kernel stay
/// turned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The host's: that of process 1.
    Hosts,
    /// Another.
    Another,
    /// It cannot be told, for this reason.
    CannotTell(String),
}

/// Looks whose `directory` is: an absolute path, without `..` and symbolic links.
pub fn seen(files: &impl KernelFiles, directory: &str) -> Seen {
    const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
    let place_in = |pid: &str| {
        let path = format!("proc/{pid}/mountinfo");
        let mounts = files.read(&path).map_err(|errno| Error::of_host("read", format!("/{path}"), errno))?;
        Ok(place(&mounts, directory))
    };
    match files.inode("proc/self/ns/pid") {
        Ok(FIRST_PID_NAMESPACE) => {}
        Ok(_) => return Seen::CannotTell("masu is in a PID namespace of its own, as in a container".to_owned()),
        Err(errno) => return Seen::CannotTell(Error::of_host("read", "/proc/self/ns/pid", errno).to_string()),
    }
    match (place_in("self"), place_in("1")) {
        (Ok(own), Ok(Some(hosts))) if own == Some(hosts.clone()) => Seen::Hosts,
        // Without a mount that holds it: a chroot.
        (Ok(_), Ok(Some(_))) => Seen::Another,
        (Err(error), _) | (_, Err(error)) => Seen::CannotTell(Error::to_string(&error)),
        (_, Ok(None)) => Seen::CannotTell(format!("process 1 has no mount that holds {directory}")),
    }
}

/// The file system (`major:minor`) and the path in it at which `path` lies, by the mounts of a process.
fn place(mounts: &str, path: &str) -> Option<(String, String)> {
    let lies_in = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[_, _, device, root, at, ..] = fields.as_slice() else { return None };
        let below = path.strip_prefix(at.trim_end_matches('/'))?;
        let place = (device.to_owned(), format!("{}{below}", root.trim_end_matches('/')));
        (below.is_empty() || below.starts_with('/')).then_some((at.len(), place))
    };
    // Of two at the same point the later one covers the earlier.
    mounts.lines().filter_map(lies_in).max_by_key(|(length, _)| *length).map(|(_, place)| place)
}

#[cfg(test)]
mod tests;
