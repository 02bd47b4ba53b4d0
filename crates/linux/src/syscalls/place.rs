//! open(2) with `O_PATH`: holds a file of another process without asking its server, and then finds the mount of the
//! file.
//!
//! A kernel link (`/proc/PID/exe`, `map_files`) leads to a file that the process chose. Holding it opens nothing.
//! `mounts.rs` reads the number of its mount from `/proc/self/fdinfo`, and decides whether that mount is local. Only
//! then is the file opened, through `/proc/self/fd`: this is the file that was checked, even if the link has changed
//! since. A held mount keeps its number.
//!
//! Limit: a file of NFS before version 4 is looked up again at the server when it is held, so `maps` is asked for its
//! device first.
//!
//! Cost: four system calls. Side effects: while it is held, its file system cannot be unmounted, and a deleted file
//! keeps its space.
//!
//! Since: Linux 2.6.39. Truth: open(2), proc_pid_fd(5).

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Stat, fstat, fstatfs, open};
use rustix::io::Errno;
use units::AddressRange;

use crate::mounts::{FileSystem, Mounts, mount_of};
use crate::{Error, KernelFiles, Pid, proxy};

/// A file that is held (`O_PATH`), and not open.
#[derive(Debug)]
pub struct Place {
    held: OwnedFd,
    pid: Pid,
    /// Path for messages.
    path: String,
}

/// A held file on a local mount: access to it waits at most for a disk.
#[derive(Debug)]
pub struct LocalFile(Place);

impl Place {
    /// Holds the file of the mapping at a range of `maps`. Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
    ///
    /// # Errors
    /// `Gone` when the mapping no longer exists; `Denied` without the privilege.
    pub fn of_mapping(pid: Pid, range: AddressRange) -> Result<Place, Error> {
        let path = format!("/{}", pid.file(&format!("map_files/{:x}-{:x}", range.start().0, range.end().0)));
        // The kernel looks the mapping up under the mmap lock.
        let held = proxy::open(pid, &path, OFlags::PATH);
        Place::of(held, pid, path)
    }

    /// Holds the executable of a process.
    ///
    /// # Errors
    /// `Gone`; `Denied` without ptrace access (PTRACE_MODE_READ).
    pub fn of_program(pid: Pid) -> Result<Place, Error> {
        let path = format!("/{}", pid.file("exe"));
        Place::of(open(path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()), pid, path)
    }

    fn of(held: Result<OwnedFd, Errno>, pid: Pid, path: String) -> Result<Place, Error> {
        let held = held.map_err(|errno| Error::of_process("open", &path, errno))?;
        Ok(Place { held, pid, path })
    }

    /// The file, if its mount is local; else the type of its file system. The mount tables must have been read after
    /// the file was held.
    ///
    /// # Errors
    /// The kernel's answer for `/proc/self/fdinfo`.
    pub fn local(self, files: &impl KernelFiles, mounts: &mut Mounts) -> Result<Result<LocalFile, String>, Error> {
        let id = mount_of(&self.held).map_err(|errno| Error::of_host("read", "/proc/self/fdinfo", errno))?;
        let FileSystem { kind, is_local } = mounts.of_mount(files, self.pid, id);
        Ok(if is_local { Ok(LocalFile(self)) } else { Err(kind) })
    }
}

impl LocalFile {
    /// stat(2) of the file.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn stat(&self) -> Result<Stat, Error> {
        fstat(&self.0.held).map_err(|errno| Error::of_process("look at", &self.0.path, errno))
    }

    /// Magic number of its file system (statfs(2)).
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn magic(&self) -> Result<u64, Error> {
        let about = fstatfs(&self.0.held).map_err(|errno| Error::of_process("look at", &self.0.path, errno))?;
        Ok(u64::try_from(about.f_type).unwrap_or(0))
    }

    /// Opens the file. Regular files only, since opening a device may have side effects.
    ///
    /// # Errors
    /// The kernel's answer; `AGAIN` for a file with a lease.
    pub fn open(&self, flags: OFlags) -> Result<File, Error> {
        let again = format!("/proc/self/fd/{}", self.0.held.as_raw_fd());
        let opened = open(again.as_str(), flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
        opened.map(File::from).map_err(|errno| Error::of_process("open", &self.0.path, errno))
    }

    /// The error that opening an unfit file gives.
    pub(crate) fn failed(&self, errno: Errno) -> Error {
        Error::of_host("open", &self.0.path, errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rooted;

    #[test]
    fn the_program_of_this_test_is_held_and_opened_and_is_the_same_file() {
        let place = Place::of_program(Pid::own()).unwrap();
        let mut mounts = Mounts::read(&Rooted::host()).unwrap();
        if let Ok(found) = place.local(&Rooted::host(), &mut mounts).unwrap() {
            let (held, open) = (found.stat().unwrap(), fstat(found.open(OFlags::RDONLY).unwrap()).unwrap());
            assert_eq!((held.st_dev, held.st_ino), (open.st_dev, open.st_ino));
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        assert!(Place::of_program(Pid(i32::MAX)).unwrap_err().is_gone());
    }
}
