//! `/proc/PID/mem`: the memory of another process as a file.
//!
//! For a word or a page of its own making; what is read in bulk is `process_vm.rs`'s.
//!
//! Cost: one open, and a copy. Side effects: as if the process itself had read or written there, but for protections, which
//! do not hold: so whoever writes must be sure of the place.
//!
//! Since: writing Linux 2.6.39. Needs the right to trace the process (PTRACE_MODE_ATTACH).
//!
//! Truth: proc_pid_mem(5); `mem_rw` in fs/proc/base.c.

use std::fs::File;
use std::os::unix::fs::FileExt;

use quantities::Address;

use crate::{Error, Pid, files};

/// Fills `into` from `at` in the memory of `pid`.
///
/// # Errors
/// `Gone` if the process ended, `Denied` without the right to trace it, `Other` (EIO) where nothing is mapped.
pub fn read(pid: Pid, at: Address, into: &mut [u8]) -> Result<(), Error> {
    let path = format!("/{}", pid.file("mem"));
    let failed = |error: std::io::Error| Error::of_process("read", &path, files::errno(error));
    File::open(&path).and_then(|file| file.read_exact_at(into, at.0)).map_err(failed)
}

/// Writes `from` to `at` in the memory of `pid`.
///
/// # Errors
/// As [`read`].
pub fn write(pid: Pid, at: Address, from: &[u8]) -> Result<(), Error> {
    let path = format!("/{}", pid.file("mem"));
    let failed = |error: std::io::Error| Error::of_process("write", &path, files::errno(error));
    File::options().write(true).open(&path).and_then(|file| file.write_all_at(from, at.0)).map_err(failed)
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
        read(Pid::own(), at, &mut bytes).unwrap();
        assert_eq!(u32::from_ne_bytes(bytes), 7);
        write(Pid::own(), at, &9u32.to_ne_bytes()).unwrap();
        assert_eq!(word.load(Relaxed), 9);
    }

    #[test]
    fn where_nothing_is_mapped_nothing_is_read() {
        assert!(matches!(read(Pid::own(), Address(4096), &mut [0; 4]), Err(Error::Other(_))));
    }
}
