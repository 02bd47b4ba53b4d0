//! `memfd_create(2)` and `futex(2)`: a few pages that other processes may map too, and waiting on a word in them.
//!
//! Other processes open it as `/proc/PID/fd/N` and map it shared; it lives until the last of them ends. Its content is
//! atomic words only: a value that another process wrote is never taken for more than a number.
//!
//! Cost: a page where it is touched, and one system call to wait or to wake. Side effects: none.
//!
//! Since: memfd_create Linux 3.17; futex always.
//!
//! Truth: memfd_create(2), fcntl(2) on seals, futex(2).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
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
    file: OwnedFd,
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

    /// Maps a file that another process made and sealed against shrinking. `None` when it is not sealed, or smaller
    /// than `size`.
    ///
    /// # Errors
    /// The kernel's answer when it cannot be mapped.
    pub fn of(file: OwnedFd, size: Bytes) -> Result<Option<SharedMemory>, Errno> {
        let sealed = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !sealed || fstat(&file)?.st_size.cast_unsigned() < size.0 {
            return Ok(None);
        }
        Self::map(file, size).map(Some)
    }

    fn map(file: OwnedFd, size: Bytes) -> Result<SharedMemory, Errno> {
        let bytes = usize::try_from(size.0).map_err(|_| Errno::NOMEM)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(SharedMemory { start, length: bytes / size_of::<AtomicU32>(), file })
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

    /// Path for other processes, valid while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", crate::Pid::own(), self.file.as_raw_fd())
    }
}

/// Descriptor of the file, to be passed to another process.
impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
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
    fn what_another_made_is_mapped_if_it_cannot_be_cut_off() {
        let memory = SharedMemory::create("masu-test", Bytes::kib(8)).unwrap();
        memory.words()[2].store(5, Relaxed);
        let again = SharedMemory::of(memory.file.try_clone().unwrap(), Bytes::kib(8)).unwrap().unwrap();
        assert_eq!(again.words_64()[1].load(Relaxed), 5);
        assert!(SharedMemory::of(memory.file.try_clone().unwrap(), Bytes::kib(12)).unwrap().is_none(), "too short");
        let open = memfd_create("masu-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 8192).unwrap();
        assert!(SharedMemory::of(open, Bytes::kib(8)).unwrap().is_none(), "not sealed");
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
