//! `process_vm_readv(2)`: copies out of the memory of another process.
//!
//! Used for one question only, whether a page of a huge page holds nothing but zeros; where huge pages are is
//! `pagemap.rs`. What is read is copied out, and may have changed before the caller looks at it.
//!
//! Cost: one system call for up to 1024 places, each of which takes the process's mmap lock for reading for a moment and
//! looks its page up: 0.6 µs a place, and 0.4 ms for 2 MiB in one piece (measured on Linux 6.18). So 1024 places in 2 MiB
//! cost more than all of it.
//! Side effects: sets the accessed bit of what it reads, as the program's own reading does. On memory that is not there it
//! *faults in* what the program's own reading would: the zero page, or a page from swap. And memory that a fork shares it
//! *copies* for this process, splitting huge pages, since the kernel pins what it reads (`gup_must_unshare` in mm/; seen on
//! Linux 6.18). So it is only for memory that is known to be there, and to be the process's own.
//!
//! Since: Linux 3.2; needs CONFIG_CROSS_MEMORY_ATTACH and the right to trace the process (PTRACE_MODE_ATTACH, more than
//! `pagemap` asks for). It takes a process id and no pidfd: who must be sure whom it read looks afterwards whether the pidfd
//! that was opened before is still that of a running process.
//!
//! Truth: process_vm_readv(2); `process_vm_rw_single_vec` in mm/process_vm_access.c.

use quantities::Address;
use rustix::io::Errno;

use crate::Pid;

/// The most places in one call (`UIO_MAXIOV`).
pub const PLACES_MAX: usize = 1024;

/// Copies `each` bytes from every one of `places` in the memory of `pid` to `into`, one behind the other, and says how many
/// bytes were filled in from the front. Fewer than asked for means that the first place after those could not be read.
///
/// # Errors
/// The kernel's answer for the first place: `FAULT` where nothing may be read, `SRCH` when the process ended, `PERM` without
/// the right to trace it.
///
/// # Panics
/// When `into` is too short for all of it, or for more than [`PLACES_MAX`] places.
pub fn read(pid: Pid, places: &[Address], each: usize, into: &mut [u8]) -> Result<usize, Errno> {
    let wanted = places.len() * each;
    assert!(wanted <= into.len() && places.len() <= PLACES_MAX, "{} places of {each} bytes", places.len());
    let here = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: wanted };
    let there: Vec<libc::iovec> = places
        .iter()
        .map(|place| libc::iovec { iov_base: std::ptr::without_provenance_mut(usize_of(place.0)), iov_len: each })
        .collect();
    // SAFETY: `here` is the one local piece: the first `wanted` bytes of `into`, which outlives the call and which nobody
    // else refers to. `there` outlives the call too; the addresses in it belong to another process, are only looked up by
    // the kernel there, and are never turned into a reference here.
    let answer =
        unsafe { libc::process_vm_readv(pid.0, &raw const here, 1, there.as_ptr(), there.len() as libc::c_ulong, 0) };
    match usize::try_from(answer) {
        Ok(filled) => Ok(filled),
        Err(_) => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "addresses are 64 bits wide on every machine masu runs on")]
const fn usize_of(number: u64) -> usize {
    const { assert!(usize::BITS == 64) };
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quiet_process::QuietProcess;
    use crate::scratch::Scratch;
    use quantities::Bytes;

    #[test]
    fn what_lies_at_each_place_comes_in_order() {
        let words: Vec<u64> = (100..200).collect();
        let address = |index: usize| Address(&raw const words[index] as u64);
        let mut bytes = [0xff; 40];
        let filled = read(Pid::own(), &[address(70), address(3), address(99)], 8, &mut bytes).unwrap();
        let read: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        assert_eq!((filled, &read[..3]), (24, &[170, 103, 199][..]));
        assert_eq!(bytes[24..], [0xff; 16], "what was not asked for is left alone");
    }

    #[test]
    fn what_comes_before_a_hole_is_filled_in_and_a_hole_alone_is_refused() {
        let mut scratch = Scratch::of(Bytes::kib(8)).unwrap();
        scratch.touch_all();
        let (first, nowhere) = (scratch.range().start(), Address(4096));
        let mut bytes = [0; 64];
        assert_eq!(read(Pid::own(), &[first, nowhere, first], 16, &mut bytes), Ok(16));
        assert_eq!(bytes[0], 1);
        assert_eq!(read(Pid::own(), &[nowhere, first], 16, &mut bytes), Err(Errno::FAULT));
    }

    #[test]
    fn a_process_that_does_not_exist_is_said_so() {
        let quiet = QuietProcess::start();
        let pid = quiet.pid();
        drop(quiet);
        assert_eq!(read(pid, &[Address(4096)], 16, &mut [0; 16]), Err(Errno::SRCH));
    }
}
