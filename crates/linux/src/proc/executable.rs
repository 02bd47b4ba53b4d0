//! `/proc/PID/exe`, compared with a file by device and inode: does a process run this file?
//!
//! The text of the link is a path in the mount namespace of the process. Any user can build a namespace and run a
//! program there under any path. So the file itself is compared, without waiting for any process. First the link is
//! read, which asks no file system; a different name ends the comparison. Then `statx` takes the kernel's cached data
//! (`AT_STATX_DONT_SYNC`), so a file server of the process's owner (FUSE) is not asked.
//!
//! Running a file says nothing about its user: any user may run it, with an environment of its choice.
//!
//! Cost: two system calls, some 3 µs, and two more for a process that runs a file of this name. Side effects: none.
//!
//! Since: Linux 4.11. Needs ptrace access (PTRACE_MODE_READ).
//!
//! Truth: proc_pid_exe(5), statx(2).

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;

use crate::{Error, Pid};

/// A program's file, by its path in our namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// Without symbolic links.
    path: PathBuf,
}

impl Executable {
    /// The file at this path, which must exist.
    ///
    /// # Errors
    /// `Unsupported` if there is no such file; `Other` with EACCES or EINVAL for anything but a regular file.
    pub fn at(path: &Path) -> Result<Executable, Error> {
        let failed = |errno| Error::of_host("find", path.display(), errno);
        let path = std::fs::canonicalize(path).map_err(|error| failed(crate::error::errno(error)))?;
        let (_, kind) = file(&path).map_err(failed)?;
        if kind != FileType::RegularFile {
            return Err(failed(Errno::INVAL));
        }
        Ok(Executable { path })
    }

    /// True if this process runs the file that has the path now, not one that it replaced.
    pub fn is_run_by(&self, pid: Pid) -> bool {
        let link = format!("/proc/{pid}/exe");
        let is_called_so = std::fs::read_link(&link).is_ok_and(|name| name == self.path);
        is_called_so && file(Path::new(&link)).ok().zip(file(&self.path).ok()).is_some_and(|(run, own)| run == own)
    }
}

type FileId = (u32, u32, u64);

/// Device, inode and file type.
fn file(path: &Path) -> Result<(FileId, FileType), Errno> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, path, flags, StatxFlags::TYPE | StatxFlags::INO)?;
    let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
    Ok(((found.stx_dev_major, found.stx_dev_minor, found.stx_ino), kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_run_our_own_file_and_no_copy_of_it() {
        let own = std::env::current_exe().unwrap();
        assert!(Executable::at(&own).unwrap().is_run_by(Pid::own()));
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join(own.file_name().unwrap());
        std::fs::copy(&own, &copy).unwrap();
        assert!(!Executable::at(&copy).unwrap().is_run_by(Pid::own()));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        assert!(Executable::at(&link).unwrap().is_run_by(Pid::own()), "a symbolic link names it as well");
    }

    #[test]
    fn what_is_not_there_or_no_file_is_refused() {
        assert!(matches!(Executable::at(Path::new("/nowhere/at/all")), Err(Error::Unsupported(_))));
        assert!(Executable::at(Path::new("/proc")).is_err());
    }
}
