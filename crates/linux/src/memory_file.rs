//! `/proc/PID/mem`: the memory of another process as a file.
//!
//! For a word or a page of its own making; what is read in bulk is `process_vm.rs`'s.
//!
//! The file stays with the memory that the process had when it was opened: after an exec it is the old program's, which the new one does not see.
//!
//! The process chooses what is mapped there: memory of a file whose server does not answer would keep the reader in the kernel. So each copy is
//! made by a fork (`forked.rs`), until a deadline.
//!
//! Cost: one open; one fork for each copy. Side effects: as if the process itself had read or written there, but for protections, which
//! do not hold: so whoever writes must be sure of the place.
//!
//! Since: writing Linux 2.6.39. Needs the right to trace the process (PTRACE_MODE_ATTACH).
//!
//! Truth: proc_pid_mem(5); `mem_rw` in fs/proc/base.c.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use quantities::Address;
use rustix::io::Errno;

use crate::forked::Forked;
use crate::{Error, Pid, files};

/// Time for a copy.
const WITHIN: Duration = Duration::from_secs(2);

/// The memory of one program, open.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    path: String,
}

impl MemoryFile {
    /// Opens the memory that `pid` has now.
    ///
    /// # Errors
    /// `Gone` if the process ended, `Denied` without the right to trace it.
    pub fn open(pid: Pid) -> Result<MemoryFile, Error> {
        let path = format!("/{}", pid.file("mem"));
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|error| Error::of_process("open", &path, files::errno(error)))?;
        Ok(MemoryFile { file, path })
    }

    /// Fills `into` from `at`.
    ///
    /// # Errors
    /// `Other`: EIO where nothing is mapped or the program has ended, ETIMEDOUT where the memory does not come.
    pub fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Error> {
        let mut bytes = vec![0; into.len()];
        self.copy("read", into, |file| {
            rustix::io::pread(file, &mut bytes, at.0).is_ok_and(|read| read == bytes.len()).then_some(bytes)
        })
    }

    /// Writes `from` to `at`.
    ///
    /// # Errors
    /// As [`MemoryFile::read`].
    pub fn write(&self, at: Address, from: &[u8]) -> Result<(), Error> {
        self.copy("write", &mut [], |file| {
            rustix::io::pwrite(file, from, at.0).is_ok_and(|written| written == from.len()).then(Vec::new)
        })
    }

    /// Copies in a fork, which says one byte and what it read.
    fn copy(
        &self,
        operation: &str,
        into: &mut [u8],
        work: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let failed = |errno| Error::of_process(operation, &self.path, errno);
        let child = Forked::start(c"masu-copy", self.file.as_fd(), |file, say| {
            if let Some(bytes) = work(file) {
                say(&[1]);
                say(&bytes);
            }
        });
        let mut child = child.map_err(failed)?;
        let deadline = Instant::now() + WITHIN;
        let copied = child.read(&mut [0], deadline).and_then(|()| child.read(into, deadline));
        if copied == Err(Errno::TIMEDOUT) {
            child.kill();
        }
        copied.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn a_word_of_our_own_is_read_and_written_through_the_file() {
        let word = AtomicU32::new(7);
        let at = Address(std::ptr::from_ref(&word).expose_provenance() as u64);
        let mut bytes = [0; 4];
        let memory = MemoryFile::open(Pid::own()).unwrap();
        memory.read(at, &mut bytes).unwrap();
        assert_eq!(u32::from_ne_bytes(bytes), 7);
        memory.write(at, &9u32.to_ne_bytes()).unwrap();
        assert_eq!(word.load(Relaxed), 9);
    }

    #[test]
    fn where_nothing_is_mapped_nothing_is_read() {
        assert!(matches!(MemoryFile::open(Pid::own()).unwrap().read(Address(4096), &mut [0; 4]), Err(Error::Other(_))));
    }
}
