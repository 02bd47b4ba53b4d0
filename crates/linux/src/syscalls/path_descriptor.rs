//! open(2) with `O_PATH`: a descriptor of another process's file, made without a request to the file's server. It names
//! the mount of the file.
//!
//! A kernel link (`/proc/PID/exe`, `map_files`) leads to a file that the process chose. Such a descriptor opens nothing.
//! `mounts.rs` reads its mount number from `/proc/self/fdinfo`, and decides whether that mount is local. Only then is
//! the file opened, through `/proc/self/fd`: this is the file that was checked, even if the link has changed since. A
//! mount in use keeps its number.
//!
//! Limit: NFS before version 4 asks the server for the file all the same, so its device is checked first (`maps.rs`).
//!
//! Cost: four system calls. Side effects: while the descriptor is open, its file system cannot be unmounted, and a
//! deleted file keeps its space.
//!
//! Since: Linux 2.6.39. Truth: open(2), proc_pid_fd(5).

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Stat, fstat, fstatfs, open};
use rustix::io::Errno;
use units::AddressRange;

use crate::mounts::{FileSystem, Mounts, mount_of};
use crate::{Error, KernelFiles, Pid, proxy};

/// `O_PATH` descriptor of a file.
#[derive(Debug)]
pub struct PathDescriptor {
    descriptor: OwnedFd,
    pid: Pid,
    /// Path for messages.
    path: String,
}

/// File on a local mount: access to it waits at most for a disk.
#[derive(Debug)]
pub struct LocalFile(PathDescriptor);

/// Locality of a file's mount.
#[derive(Debug)]
pub enum Locality {
    /// The kernel alone answers for the file.
    Local(LocalFile),
    /// A server may answer for it; the kind of its file system.
    NotLocal(String),
}

impl Locality {
    /// The file, if its mount is local.
    pub fn local(self) -> Option<LocalFile> {
        match self {
            Locality::Local(file) => Some(file),
            Locality::NotLocal(_) => None,
        }
    }
}

impl PathDescriptor {
    /// Makes a descriptor of the file of the mapping at a range of `maps`. Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
    ///
    /// # Errors
    /// `Gone` when the mapping no longer exists; `Denied` without the privilege.
    pub fn of_mapping(pid: Pid, range: AddressRange) -> Result<PathDescriptor, Error> {
        let path = format!("/{}", pid.file(&format!("map_files/{:x}-{:x}", range.start().0, range.end().0)));
        // The kernel looks the mapping up under the mmap lock.
        PathDescriptor::of(proxy::open(pid, &path, OFlags::PATH), pid, path)
    }

    /// Makes a descriptor of the executable of a process.
    ///
    /// # Errors
    /// `Gone`; `Denied` without ptrace access (PTRACE_MODE_READ).
    pub fn of_program(pid: Pid) -> Result<PathDescriptor, Error> {
        let path = format!("/{}", pid.file("exe"));
        PathDescriptor::of(open(path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()), pid, path)
    }

    fn of(opened: Result<OwnedFd, Errno>, pid: Pid, path: String) -> Result<PathDescriptor, Error> {
        let descriptor = opened.map_err(|errno| Error::of_process("open", &path, errno))?;
        Ok(PathDescriptor { descriptor, pid, path })
    }

    /// Locality of the file's mount. The mount tables must have been read after the descriptor was made.
    ///
    /// # Errors
    /// The kernel's answer for `/proc/self/fdinfo`.
    pub fn locality(self, files: &impl KernelFiles, mounts: &mut Mounts) -> Result<Locality, Error> {
        let id = mount_of(&self.descriptor).map_err(|errno| Error::of_host("read", "/proc/self/fdinfo", errno))?;
        let FileSystem { kind, is_local } = mounts.of_mount(files, self.pid, id);
        Ok(if is_local { Locality::Local(LocalFile(self)) } else { Locality::NotLocal(kind) })
    }
}

impl LocalFile {
    /// stat(2) of the file.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn stat(&self) -> Result<Stat, Error> {
        fstat(&self.0.descriptor).map_err(|errno| Error::of_process("stat", &self.0.path, errno))
    }

    /// Magic number of its file system (statfs(2)).
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn magic(&self) -> Result<u64, Error> {
        let about = fstatfs(&self.0.descriptor).map_err(|errno| Error::of_process("stat", &self.0.path, errno))?;
        Ok(about.f_type.cast_unsigned())
    }

    /// Opens the file. Regular files only, since opening a device may have side effects.
    ///
    /// # Errors
    /// The kernel's answer; `AGAIN` for a file with a lease.
    pub fn open(&self, flags: OFlags) -> Result<File, Error> {
        let again = format!("/proc/self/fd/{}", self.0.descriptor.as_raw_fd());
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
    fn the_opened_program_is_the_file_of_the_descriptor() {
        let descriptor = PathDescriptor::of_program(Pid::own()).unwrap();
        let mut mounts = Mounts::read(&Rooted::host()).unwrap();
        if let Some(found) = descriptor.locality(&Rooted::host(), &mut mounts).unwrap().local() {
            let (found, open) = (found.stat().unwrap(), fstat(found.open(OFlags::RDONLY).unwrap()).unwrap());
            assert_eq!((found.st_dev, found.st_ino), (open.st_dev, open.st_ino));
        }
    }

    #[test]
    fn a_process_that_does_not_exist_is_gone() {
        assert!(PathDescriptor::of_program(Pid(i32::MAX)).unwrap_err().is_gone());
    }
}
