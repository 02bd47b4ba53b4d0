//! `/run/masu`: masu's files for other processes of this boot, in two directories with fixed modes.
//!
//! `/run/masu` is 0755: sockets that clients of every user connect to. `/run/masu/private` is 0700: journals
//! (`journal.rs`) and locks (`process_lock.rs`). The first masu makes both, and every use repairs the modes after
//! another umask or an older masu. A directory of another owner, or a symbolic link in its place, is refused: a user
//! able to rename its entries could make masu read and write other files.
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

use crate::error::errno;
use crate::{Error, KernelFiles};

/// Path on every host.
pub const DIRECTORY: &str = "/run/masu";

/// Makes or repairs the directory that every user may read, and opens it.
///
/// # Errors
/// `Denied` without the privilege, with EPERM for a directory of another owner and ENOTDIR for anything but a
/// directory.
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

/// Path of the private directory.
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
            // The reason why it was not made is more useful than ENOENT.
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

/// Owner of the `/run/masu` that this process sees. A journal in another `/run/masu` than the host's ends with its
/// mount namespace, while settings of the kernel stay changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The host's: that of process 1.
    Hosts,
    /// Another one.
    Another,
    /// Undecidable, for this reason.
    CannotTell(String),
}

/// Compares `directory` with that of process 1. `directory` is an absolute path, without `..` and symbolic links.
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
        // No mount holds it: a chroot.
        (Ok(_), Ok(Some(_))) => Seen::Another,
        (Err(error), _) | (_, Err(error)) => Seen::CannotTell(Error::to_string(&error)),
        (_, Ok(None)) => Seen::CannotTell(format!("process 1 has no mount that holds {directory}")),
    }
}

/// File system (`major:minor`) of `path`, and the path within it, by the mounts of a process.
fn place(mounts: &str, path: &str) -> Option<(String, String)> {
    let lies_in = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[_, _, device, root, at, ..] = fields.as_slice() else { return None };
        let below = path.strip_prefix(at.trim_end_matches('/'))?;
        let place = (device.to_owned(), format!("{}{below}", root.trim_end_matches('/')));
        (below.is_empty() || below.starts_with('/')).then_some((at.len(), place))
    };
    // Of two mounts at the same point the later one covers the earlier.
    mounts.lines().filter_map(lies_in).max_by_key(|(length, _)| *length).map(|(_, place)| place)
}

#[cfg(test)]
mod tests;
