//! Memory that the kernel itself cannot read (memfd_secret(2)), mapped and written.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use units::{Bytes, cast};

/// The memory; unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct SecretMemory {
    start: NonNull<u8>,
    length: usize,
}

impl SecretMemory {
    /// Maps this many bytes, and writes each page.
    pub(crate) fn make(length: Bytes) -> Result<SecretMemory, Errno> {
        // SAFETY: the call takes a number alone.
        let answer = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
        let number = i32::try_from(answer).ok().filter(|number| *number >= 0);
        let last = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
        // SAFETY: a new descriptor with no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(number.ok_or_else(last)?) };
        rustix::fs::ftruncate(&file, length.0)?;
        let size = cast::index(length.0);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) }?;
        let memory = SecretMemory { start: NonNull::new(start.cast()).ok_or(Errno::FAULT)?, length: size };
        for at in (0..size).step_by(4096) {
            // SAFETY: `at` is within the mapping, which nobody else uses.
            unsafe { memory.start.add(at).write_volatile(1) };
        }
        Ok(memory)
    }
}

impl Drop for SecretMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
