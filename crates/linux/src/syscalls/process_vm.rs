//! `process_vm_readv(2)`: copies out of the memory of another process.
//!
//! Used only to test if a page of a huge page holds nothing but zeros; huge pages are found by `pagemap.rs`. The data
//! is a copy; the original may have changed before the caller reads it.
//!
//! Cost: one system call for up to 1024 addresses. Each takes the process's mmap lock for reading for a moment and
//! looks its page up: 0.6 µs per address, and 0.4 ms for 2 MiB in one piece (measured on Linux 6.18). So 1024 addresses
//! in 2 MiB cost more than all of it.
//! Side effects: a read sets the accessed bit, as the program's own read does. On absent memory it *faults in* a page
//! as the program's own read would: the zero page, or a page from swap. Memory that a fork shares with the process is
//! *copied* for this process, splitting huge pages, since the kernel pins the pages it reads (`gup_must_unshare` in
//! mm/; seen on Linux 6.18). So it is only for memory that is known to be present, and to be the process's own.
//!
//! Since: Linux 3.2; needs CONFIG_CROSS_MEMORY_ATTACH and the right to trace the process (PTRACE_MODE_ATTACH, more than
//! `pagemap` asks for). It takes a process id and no pidfd: to be sure of the process, check afterwards that a pidfd
//! opened before still belongs to a running process.
//!
//! Truth: process_vm_readv(2); `process_vm_rw_single_vec` in mm/process_vm_access.c.

use rustix::io::Errno;
use units::{Address, cast};

use crate::proxy::{self, Call};
use crate::{Pid, error};

/// Maximum number of addresses in one call (`UIO_MAXIOV`).
pub const ADDRESSES_MAX: usize = 1024;

/// Calls `take` with `each` bytes from every one of `addresses` in the memory of `pid`, one after the other. Fewer bytes
/// mean that the first missing address could not be read. The bytes are wiped afterwards.
///
/// # Errors
/// The kernel's answer for the first address: `FAULT` for unreadable memory, `SRCH` when the process ended, `PERM`
/// without the right to trace it, `TIMEDOUT` when its mmap lock or its memory was not available in time.
///
/// # Panics
/// For more than 2 MiB in all, or more than [`ADDRESSES_MAX`] addresses.
pub fn read<T>(pid: Pid, addresses: &[Address], each: usize, take: impl FnOnce(&[u8]) -> T) -> Result<T, Errno> {
    let wanted = addresses.len() * each;
    assert!(
        wanted <= ADDRESSES_AT && addresses.len() <= ADDRESSES_MAX,
        "{} addresses of {each} bytes",
        addresses.len()
    );
    let number = u64::try_from(pid.0).map_err(|_| Errno::SRCH)?;
    proxy::about(pid, |proxy| {
        for (into, address) in proxy.bytes()[ADDRESSES_AT..].as_chunks_mut::<8>().0.iter_mut().zip(addresses) {
            *into = address.0.to_ne_bytes();
        }
        let answer = proxy.call(step, [number, addresses.len() as u64, each as u64, 0], None)?;
        let bytes = &mut proxy.bytes()[..wanted];
        let taken = take(&bytes[..cast::index(answer.value)]);
        bytes.fill(0);
        Ok(taken)
    })
}

/// Offset of the addresses, behind the bytes.
const ADDRESSES_AT: usize = proxy::BYTES - ADDRESSES_MAX * 8;

fn step(call: &mut Call<'_>) -> Result<u64, Errno> {
    let (bytes, addresses) = call.bytes.split_at_mut(ADDRESSES_AT);
    let [pid, count, each, _] = call.numbers.map(cast::index);
    let there: Vec<libc::iovec> = addresses.as_chunks::<8>().0[..count]
        .iter()
        .map(|address| cast::index(u64::from_ne_bytes(*address)))
        .map(|address| libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: each })
        .collect();
    let here = &mut bytes[..count * each];
    let here = libc::iovec { iov_base: here.as_mut_ptr().cast(), iov_len: here.len() };
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::SRCH)?;
    // SAFETY: `here` is the one local piece, which outlives the call and has no other reference. `there` outlives the
    // call too; the addresses in it belong to another process, are only looked up by the kernel there, and are never
    // turned into a reference here.
    let answer =
        unsafe { libc::process_vm_readv(pid, &raw const here, 1, there.as_ptr(), there.len() as libc::c_ulong, 0) };
    u64::try_from(answer).map_err(|_| error::errno(std::io::Error::last_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quiet_process::QuietProcess;
    use crate::scratch::Scratch;
    use units::Bytes;

    #[test]
    fn what_lies_at_each_place_comes_in_order() {
        let words: Vec<u64> = (100..200).collect();
        let address = |index: usize| Address(&raw const words[index] as u64);
        let read = read(Pid::own(), &[address(70), address(3), address(99)], 8, <[u8]>::to_vec).unwrap();
        let read: Vec<u64> = read.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        assert_eq!(read, [170, 103, 199]);
    }

    #[test]
    fn what_comes_before_a_hole_is_filled_in_and_a_hole_alone_is_refused() {
        let mut scratch = Scratch::of(Bytes::kib(8)).unwrap();
        scratch.touch_all();
        let (first, nowhere) = (scratch.range().start(), Address(4096));
        let filled = |bytes: &[u8]| (bytes.len(), bytes[0]);
        assert_eq!(read(Pid::own(), &[first, nowhere, first], 16, filled), Ok((16, 1)));
        assert_eq!(read(Pid::own(), &[nowhere, first], 16, filled), Err(Errno::FAULT));
    }

    #[test]
    fn a_process_that_does_not_exist_is_said_so() {
        let quiet = QuietProcess::start();
        let pid = quiet.pid();
        drop(quiet);
        assert_eq!(read(pid, &[Address(4096)], 16, <[u8]>::len), Err(Errno::SRCH));
    }
}
