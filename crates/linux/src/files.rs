//! The kernel's text files under a root directory. Tests put a tree of their own under the same code.
//!
//! Paths are relative to the root and have no leading slash: `proc/42/maps`, `sys/kernel/mm/damon/admin`.
//!
//! Cost: three system calls for a file; files that need the mmap lock of a process are read by a proxy (`proxy.rs`).
//! Side effects: those of each file, described in its module.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::error::errno;
use crate::untrusted::{bytes_of, text_of};
use crate::{Pid, proxy};

/// Mode of a lock on a directory of the kernel's, advisory among its users (flock(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Excludes writers.
    Shared,
    /// Excludes all other users.
    Exclusive,
}

/// Lock that is held until it is dropped or the process ends.
#[derive(Debug)]
#[must_use = "the lock ends with it"]
pub struct Locked {
    /// Directory, open while it is locked.
    _directory: Option<OwnedFd>,
}

impl Locked {
    /// No lock: for trees that no other process can see.
    pub const fn nothing() -> Locked {
        Locked { _directory: None }
    }
}

/// All file operations that text interfaces need: reading, writing, listing, inodes, and directories with a meaning
/// to the kernel.
pub trait KernelFiles {
    /// Reads the whole file as text. Bytes that are not UTF-8 become characters of their own (`untrusted::text_of`),
    /// so different names stay different.
    ///
    /// # Errors
    /// The kernel's answer, for the caller to sort by [`crate::Error::of_host`] or [`crate::Error::of_process`].
    fn read(&self, path: &str) -> Result<String, Errno>;

    /// Reads the whole file as bytes, for parsing names. The default, for a tree of text, is [`KernelFiles::read`].
    ///
    /// # Errors
    /// As [`KernelFiles::read`].
    fn bytes(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.read(path).map(String::into_bytes)
    }

    /// Writes `value` with one `write(2)`. The file is never created: a missing file is a missing feature.
    ///
    /// # Errors
    /// The kernel's answer.
    fn write(&self, path: &str, value: &str) -> Result<(), Errno>;

    /// Names in a directory, sorted.
    ///
    /// # Errors
    /// The kernel's answer.
    fn list(&self, path: &str) -> Result<Vec<String>, Errno>;

    /// Names of the directories in a directory, sorted. Distinguishes groups of any name from the kernel's files.
    ///
    /// # Errors
    /// The kernel's answer.
    fn directories(&self, path: &str) -> Result<Vec<String>, Errno> {
        let names = self.list(path)?;
        Ok(names.into_iter().filter(|name| self.list(&format!("{path}/{name}")).is_ok()).collect())
    }

    /// Inode of a file or directory. Some interfaces identify a control group by it.
    ///
    /// # Errors
    /// The kernel's answer.
    fn inode(&self, path: &str) -> Result<u64, Errno>;

    /// Number of the user who owns a file or directory.
    ///
    /// # Errors
    /// The kernel's answer; `ENOSYS`, the default, for a tree that has no owners.
    fn owner(&self, _path: &str) -> Result<u32, Errno> {
        Err(Errno::NOSYS)
    }

    /// Makes a directory, for interfaces that create an object by it.
    ///
    /// # Errors
    /// The kernel's answer.
    fn make_directory(&self, path: &str) -> Result<(), Errno>;

    /// Removes a directory, with the files that the kernel has put into it.
    ///
    /// # Errors
    /// The kernel's answer.
    fn remove_directory(&self, path: &str) -> Result<(), Errno>;

    /// Locks a directory, without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if another process holds it, or the kernel's answer.
    fn lock(&self, path: &str, lock: Lock) -> Result<Locked, Errno>;
}

impl<F: KernelFiles + ?Sized> KernelFiles for &F {
    fn read(&self, path: &str) -> Result<String, Errno> {
        (**self).read(path)
    }

    fn bytes(&self, path: &str) -> Result<Vec<u8>, Errno> {
        (**self).bytes(path)
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Errno> {
        (**self).write(path, value)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        (**self).list(path)
    }

    fn directories(&self, path: &str) -> Result<Vec<String>, Errno> {
        (**self).directories(path)
    }

    fn inode(&self, path: &str) -> Result<u64, Errno> {
        (**self).inode(path)
    }

    fn owner(&self, path: &str) -> Result<u32, Errno> {
        (**self).owner(path)
    }

    fn make_directory(&self, path: &str) -> Result<(), Errno> {
        (**self).make_directory(path)
    }

    fn remove_directory(&self, path: &str) -> Result<(), Errno> {
        (**self).remove_directory(path)
    }

    fn lock(&self, path: &str, lock: Lock) -> Result<Locked, Errno> {
        (**self).lock(path, lock)
    }
}

/// Files below `/proc/PID` that are opened or read under a lock which the process, or an exec of it, may hold for
/// ever: its mmap lock, and exec_update_lock (`proc_mem_open` in fs/proc/base.c).
const LOCKING: [&str; 10] =
    ["auxv", "clear_refs", "cmdline", "environ", "ksm_stat", "maps", "numa_maps", "pagemap", "smaps", "smaps_rollup"];

/// Files of a host, or of a tree in the same form.
#[derive(Clone, Debug)]
pub struct Rooted {
    root: PathBuf,
}

impl Rooted {
    /// The running kernel.
    pub fn host() -> Rooted {
        Rooted { root: PathBuf::from("/") }
    }

    /// The tree under `root`.
    pub fn at(root: impl Into<PathBuf>) -> Rooted {
        Rooted { root: root.into() }
    }

    /// Process whose mmap lock the kernel takes for this file of the host.
    fn may_wait_for(&self, path: &str) -> Option<Pid> {
        if self.root != Path::new("/") {
            return None;
        }
        let (pid, file) = path.strip_prefix("proc/")?.split_once('/')?;
        LOCKING.contains(&file).then_some(Pid(pid.parse().ok()?))
    }

    fn path(&self, path: &str) -> PathBuf {
        debug_assert!(!Path::new(path).is_absolute(), "{path}: paths are relative to the root");
        self.root.join(OsStr::from_bytes(&bytes_of(path)))
    }
}

impl Rooted {
    fn names(&self, path: &str, is_one: impl Fn(&fs::DirEntry) -> io::Result<bool>) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path(path)).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            if is_one(&entry).map_err(errno)? {
                names.push(text_of(entry.file_name().into_vec()));
            }
        }
        names.sort();
        Ok(names)
    }
}

impl KernelFiles for Rooted {
    fn read(&self, path: &str) -> Result<String, Errno> {
        self.bytes(path).map(text_of)
    }

    fn bytes(&self, path: &str) -> Result<Vec<u8>, Errno> {
        if let Some(pid) = self.may_wait_for(path) {
            return proxy::read(pid, &format!("/{path}"));
        }
        // The kernel's files report no size. A small buffer would cost a system call per doubling.
        let mut bytes = Vec::with_capacity(16 << 10);
        let mut file = fs::File::open(self.path(path)).map_err(errno)?;
        file.read_to_end(&mut bytes).map_err(errno)?;
        Ok(bytes)
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Errno> {
        let written = match self.may_wait_for(path) {
            Some(pid) => proxy::write(pid, &format!("/{path}"), value)?,
            None => {
                let mut file = fs::OpenOptions::new().write(true).open(self.path(path)).map_err(errno)?;
                file.write(value.as_bytes()).map_err(errno)?
            }
        };
        match written {
            written if written == value.len() => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        self.names(path, |_| Ok(true))
    }

    fn directories(&self, path: &str) -> Result<Vec<String>, Errno> {
        self.names(path, |entry| Ok(entry.file_type()?.is_dir()))
    }

    fn inode(&self, path: &str) -> Result<u64, Errno> {
        Ok(fs::metadata(self.path(path)).map_err(errno)?.ino())
    }

    fn owner(&self, path: &str) -> Result<u32, Errno> {
        Ok(fs::metadata(self.path(path)).map_err(errno)?.uid())
    }

    fn make_directory(&self, path: &str) -> Result<(), Errno> {
        fs::create_dir(self.path(path)).map_err(errno)
    }

    fn remove_directory(&self, path: &str) -> Result<(), Errno> {
        fs::remove_dir(self.path(path)).map_err(errno)
    }

    fn lock(&self, path: &str, lock: Lock) -> Result<Locked, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(self.path(path), flags, Mode::empty())?;
        let operation = match lock {
            Lock::Shared => FlockOperation::NonBlockingLockShared,
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        flock(&directory, operation)?;
        Ok(Locked { _directory: Some(directory) })
    }
}
