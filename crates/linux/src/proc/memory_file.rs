//! `/proc/PID/mem`: memory of another process as a file.
//!
//! For single words or pages. Bulk reads are in `process_vm.rs`.
//!
//! The file stays with the memory that the process had when it was opened: after an exec it is the old program's
//! memory, which the new program does not have.
//!
//! The process chooses its mappings: memory of a file whose server does not answer would keep the reader in the
//! kernel. So each copy is made by a proxy (`proxy.rs`), until a deadline.
//!
//! Cost: one open, and one call of the proxy for each copy. Side effects: as if the process itself had read or
//! written there, except that protections do not hold. Check the address before a write.
//!
//! Since: writing Linux 2.6.39. Needs the right to trace the process (PTRACE_MODE_ATTACH).
//!
//! Truth: proc_pid_mem(5); `mem_rw` in fs/proc/base.c.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use units::{Address, cast};

use crate::proxy::{self, Call};
use crate::{Error, Pid};

/// Open memory of one program.
#[derive(Debug)]
pub struct MemoryFile {
    file: OwnedFd,
    pid: Pid,
    path: String,
}

impl MemoryFile {
    /// Opens the present memory of `pid`.
    ///
    /// # Errors
    /// `Gone` if the process ended, `Denied` without the right to trace it.
    pub fn open(pid: Pid) -> Result<MemoryFile, Error> {
        let path = format!("/{}", pid.file("mem"));
        let file = proxy::open(pid, &path, OFlags::RDWR);
        let file = file.map_err(|errno| Error::of_process("open", &path, errno))?;
        Ok(MemoryFile { file, pid, path })
    }

    /// Fills `into` from `at`.
    ///
    /// # Errors
    /// `Gone` if the program has ended; `Other`: EIO for unmapped addresses, ETIMEDOUT if the memory does not come.
    pub fn read(&self, at: Address, into: &mut [u8]) -> Result<(), Error> {
        fn step(call: &mut Call<'_>) -> Result<u64, Errno> {
            let length = cast::index(call.numbers[1]);
            let into = call.bytes.get_mut(..length).ok_or(Errno::TOOBIG)?;
            rustix::io::pread(call.file.ok_or(Errno::BADF)?, into, call.numbers[0]).map(|read| read as u64)
        }
        let read = proxy::about(self.pid, |proxy| {
            let length = into.len() as u64;
            match proxy.call(step, [at.0, length, 0, 0], Some(self.file.as_fd()))?.value {
                0 => return Err(Errno::SRCH), // that address space has ended
                read if read < length => return Err(Errno::IO),
                _ => {}
            }
            let copied = &mut proxy.bytes()[..into.len()];
            into.copy_from_slice(copied);
            copied.fill(0);
            Ok(())
        });
        read.map_err(|errno| Error::of_process("read", &self.path, errno))
    }

    /// Writes `from` to `at`.
    ///
    /// # Errors
    /// As [`MemoryFile::read`]. Bytes not written within the deadline may be written later.
    pub fn write(&self, at: Address, from: &[u8]) -> Result<(), Error> {
        fn step(call: &mut Call<'_>) -> Result<u64, Errno> {
            let length = cast::index(call.numbers[1]);
            let from = call.bytes.get(..length).ok_or(Errno::TOOBIG)?;
            rustix::io::pwrite(call.file.ok_or(Errno::BADF)?, from, call.numbers[0]).map(|written| written as u64)
        }
        let written = proxy::about(self.pid, |proxy| {
            let length = from.len() as u64;
            proxy.bytes().get_mut(..from.len()).ok_or(Errno::TOOBIG)?.copy_from_slice(from);
            let written = proxy.call(step, [at.0, length, 0, 0], Some(self.file.as_fd()))?.value;
            if written == length { Ok(()) } else { Err(Errno::IO) }
        });
        written.map_err(|errno| Error::of_process("write", &self.path, errno))
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
