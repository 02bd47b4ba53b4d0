//! System calls of this library, through the C library that the program has anyway. Every call in a signal handler is
//! a plain system call: no memory is allocated, no lock taken.

use core::ffi::c_int;

/// This thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the address of this thread's errno, valid as long as the thread.
    unsafe { *libc::__errno_location() }
}

/// Preserves errno: a signal handler may come between a call of the program and its check of the result.
pub fn keeping_errno(work: impl FnOnce()) {
    let before = errno();
    work();
    // SAFETY: this thread's errno; only this thread uses it.
    unsafe { *libc::__errno_location() = before };
}

/// This process.
pub fn own_process() -> i32 {
    // SAFETY: asks.
    unsafe { libc::getpid() }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Keeps this thread from being cancelled (pthread_cancel(3)) while it lives: a cancelled thread would keep its locks
/// for ever.
pub struct NotCancelled(c_int);

impl NotCancelled {
    pub fn now() -> NotCancelled {
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: fills the variable.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        NotCancelled(before)
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        let mut before = 0;
        // SAFETY: fills the variable.
        unsafe { pthread_setcancelstate(self.0, &raw mut before) };
    }
}

/// A descriptor of our own, close-on-exec.
pub struct Descriptor(c_int);

impl Descriptor {
    /// Takes over the result of a call; `None` for a failure.
    pub fn of(fd: c_int) -> Option<Descriptor> {
        (fd >= 0).then_some(Descriptor(fd))
    }

    /// Number of the descriptor.
    pub fn number(&self) -> c_int {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: our own, and closed once.
        unsafe { libc::close(self.0) };
    }
}

/// Pages of our own: mapped, not allocated, so that they can be made and freed in a signal handler.
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// Memory filled with zeros; `None` when none is available.
    pub fn new(bytes: usize) -> Option<Mapping> {
        Mapping::of(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Contents of a file, read-only.
    pub fn of_file(file: &Descriptor, bytes: usize) -> Option<Mapping> {
        Mapping::of(bytes, libc::PROT_READ, libc::MAP_SHARED, file.number())
    }

    fn of(bytes: usize, rights: c_int, flags: c_int, fd: c_int) -> Option<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, rights, flags, fd, 0) };
        (start != libc::MAP_FAILED).then(|| Mapping { start: start.cast(), bytes })
    }

    /// Start address.
    pub fn start(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, as long as this value.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Milliseconds on a monotonic clock.
pub fn now_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}
