//! `memfd_create(2)`, `shmget(2)` and `futex(2)`: pages that other processes may map too, and waiting on a word in them.
//!
//! Other processes open it as `/proc/PID/fd/N` and map it shared; it lives until the last of them ends. Its content is
//! atomic words only: a value that another process wrote is never taken for more than a number.
//!
//! Cost: a page where it is touched, and one system call to wait or to wake. Side effects: none.
//!
//! Since: memfd_create Linux 3.17; futex always.
//!
//! Truth: memfd_create(2), fcntl(2) on seals, shmop(2), futex(2).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use rustix::time::Timespec;
use units::Bytes;

/// Memory that other processes may map.
///
/// # Safety
/// `start` and `length` (in words) describe one whole shared mapping of `file`, made here and unmapped only on drop.
/// Others write to it at any time, so it is only ever accessed as atomics. The file cannot be made shorter (sealed), so
/// every word stays valid while it is mapped.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<AtomicU32>,
    length: usize,
    backing: Backing,
}

/// Kind of the memory.
#[derive(Debug)]
enum Backing {
    File(OwnedFd),
    SystemV(u32),
}

// SAFETY: atomics may be used from any thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates zeroed shared memory of `size` bytes, whole words. `name` is seen in `/proc/PID/maps` as `/memfd:NAME
    /// (deleted)`. Started programs do not inherit the file.
    ///
    /// # Errors
    /// The kernel's answer when there is no memory or no free descriptor.
    pub fn create(name: &str, size: Bytes) -> Result<SharedMemory, Errno> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, size.0)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, size)
    }

    /// Creates zeroed shared memory that is no file, for a process that may write small files only (`ulimit -f`). Other
    /// processes of the same user and IPC namespace map it by its number; it lives until the last of them ends.
    ///
    /// # Errors
    /// The kernel's answer when there is no memory, or it lies beyond `kernel.shmmax` or `kernel.shmall`.
    pub fn without_file(size: Bytes) -> Result<SharedMemory, Errno> {
        let bytes = usize::try_from(size.0).map_err(|_| Errno::NOMEM)?;
        let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOMEM);
        // SAFETY: makes a segment.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, bytes, libc::IPC_CREAT | libc::SHM_NORESERVE | 0o600) };
        let number = u32::try_from(id).map_err(|_| failed())?;
        // SAFETY: a new mapping at an address that the kernel chooses. The segment goes with its last mapping: on Linux
        // others may map it until then.
        let start = unsafe {
            let start = libc::shmat(id, std::ptr::null(), 0);
            libc::shmctl(id, libc::IPC_RMID, null_mut());
            start
        };
        let start = NonNull::new(start.cast::<AtomicU32>()).filter(|start| start.as_ptr().addr() != usize::MAX);
        let start = start.ok_or_else(failed)?;
        Ok(SharedMemory { start, length: bytes / size_of::<AtomicU32>(), backing: Backing::SystemV(number) })
    }

    /// Descriptor of the file, to be passed to another process; `None` if it is no file.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::File(file) => Some(file.as_fd()),
            Backing::SystemV(_) => None,
        }
    }

    /// Number of the segment (shmat(2)); `None` if it is a file.
    pub const fn number(&self) -> Option<u32> {
        match &self.backing {
            Backing::File(_) => None,
            Backing::SystemV(number) => Some(*number),
        }
    }

    fn map(file: OwnedFd, size: Bytes) -> Result<SharedMemory, Errno> {
        let bytes = usize::try_from(size.0).map_err(|_| Errno::NOMEM)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(SharedMemory { start, length: bytes / size_of::<AtomicU32>(), backing: Backing::File(file) })
    }

    /// The memory as words of 64 bits.
    pub fn words_64(&self) -> &[AtomicU64] {
        // SAFETY: as for `words`; two words of 32 bits make one, and pages are aligned for both.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.length / 2) }
    }

    /// The memory as words of 32 bits.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: mapped while `self` lives (see the type); a mapping is aligned to pages.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Path for other processes, valid while this process lives; empty if it is no file.
    pub fn path(&self) -> String {
        self.file().map_or_else(String::new, |file| format!("/proc/{}/fd/{}", crate::Pid::own(), file.as_raw_fd()))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `create`; the borrow of `words` has ended.
        // A failure would leave a few pages mapped until the process ends.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length * size_of::<AtomicU32>()) };
    }
}

/// Waits while `word` is `value`, for at most `at_most`. Also returns when woken, or spuriously.
pub fn wait(word: &AtomicU32, value: u32, at_most: Duration) {
    let timeout = Timespec::try_from(at_most).ok();
    // Changed already, interrupted, or timed out: the caller checks.
    let _ = futex::wait(word, futex::Flags::empty(), value, timeout.as_ref());
}

/// Wakes all waiters on `word`.
pub fn wake(word: &AtomicU32) {
    // No waiter: nothing to do.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX.unsigned_abs());
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn what_others_write_through_the_file_is_seen_in_the_words() {
        let memory = SharedMemory::create("masu-test", Bytes::kib(64)).unwrap();
        assert_eq!(memory.words().len(), 16384);
        memory.words()[3].store(7, Relaxed);
        let mut file = std::fs::File::options().read(true).write(true).open(memory.path()).unwrap();
        let mut bytes = [0; 16];
        file.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[12..], 7u32.to_ne_bytes());
        file.rewind().unwrap();
        file.write_all(&9u32.to_ne_bytes()).unwrap();
        assert_eq!(memory.words()[0].load(Relaxed), 9);
    }

    #[test]
    fn memory_without_a_file_is_mapped_by_its_number_and_goes_with_its_last_mapping() {
        let memory = SharedMemory::without_file(Bytes::kib(64)).unwrap();
        memory.words_64()[1].store(5, Relaxed);
        let id = memory.number().unwrap().cast_signed();
        // SAFETY: a new mapping, of the same words.
        let again = unsafe { libc::shmat(id, std::ptr::null(), 0) };
        assert_ne!(again.addr(), usize::MAX);
        // SAFETY: mapped just now, with two words of 64 bits at least.
        assert_eq!(unsafe { (*again.cast::<AtomicU64>().add(1)).load(Relaxed) }, 5);
        assert!(memory.file().is_none() && memory.path().is_empty());
        drop(memory);
        // SAFETY: ours.
        assert_eq!(unsafe { libc::shmdt(again) }, 0);
        // SAFETY: as above; there is no such segment any more.
        assert_eq!(unsafe { libc::shmat(id, std::ptr::null(), 0) }.addr(), usize::MAX);
    }

    #[test]
    fn nobody_can_cut_it_off_under_us() {
        let memory = SharedMemory::create("masu-test", Bytes::kib(64)).unwrap();
        let file = std::fs::File::options().write(true).open(memory.path()).unwrap();
        assert_eq!(file.set_len(0).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_wait_ends_when_it_is_woken_and_at_once_when_the_word_has_changed() {
        let memory = SharedMemory::create("masu-test", Bytes::kib(4)).unwrap();
        let word = &memory.words()[5];
        wait(word, 1, Duration::from_secs(600)); // it is 0: returns
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Relaxed) == 0 {
                    wait(word, 0, Duration::from_secs(600));
                }
            });
            word.store(1, Relaxed);
            wake(word);
        });
    }
}
