//! Whether a process runs a file: `/proc/PID/exe`, compared by device and inode.
//!
//! The text of the link is what it is called where the process sees it, and any user may mount something of its own in a namespace of its own
//! and call a program there as it likes. So the file itself is asked for. Nobody is waited for: the link is looked at first,
//! which asks no file system, and of a file that is called otherwise nothing more is asked; then `statx` takes what the kernel
//! knows (`AT_STATX_DONT_SYNC`), so a file server of the process's owner (FUSE) is not asked.
//!
//! Running a file says nothing about who runs it: any user may, with an environment of its choice.
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

/// A program's file, by its name here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    /// Without symbolic links.
    path: PathBuf,
}

impl Executable {
    /// The file of this name, which must be there.
    ///
    /// # Errors
    /// `Unsupported` when there is no such file; `Other` with EACCES or EINVAL for what is no regular file.
    pub fn at(path: &Path) -> Result<Executable, Error> {
        let failed = |errno| Error::of_host("find", path.display(), errno);
        let path = std::fs::canonicalize(path).map_err(|error| failed(crate::files::errno(error)))?;
        let (_, kind) = file(&path).map_err(failed)?;
        if kind != FileType::RegularFile {
            return Err(failed(Errno::INVAL));
        }
        Ok(Executable { path })
    }

    /// Does this process run it? A file that has its name by now is meant, and not one that was replaced by it.
    pub fn is_run_by(&self, pid: Pid) -> bool {
        let link = format!("/proc/{pid}/exe");
        let is_called_so = std::fs::read_link(&link).is_ok_and(|name| name == self.path);
        is_called_so && file(Path::new(&link)).ok().zip(file(&self.path).ok()).is_some_and(|(run, own)| run == own)
    }
}

type FileId = (u32, u32, u64);

/// Device and inode, and what it is.
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
