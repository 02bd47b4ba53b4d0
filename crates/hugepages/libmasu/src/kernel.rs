//! The system calls that are made from here, through the C library that the program has anyway. All that is called in a
//! signal handler is a plain system call: no memory is allocated, no lock taken.

use core::ffi::c_int;

/// This thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the address of this thread's errno, valid as long as the thread.
    unsafe { *libc::__errno_location() }
}

/// Keeps errno as it is: a signal handler may come between a call of the program and its look at the answer.
pub fn keeping_errno(work: impl FnOnce()) {
    let before = errno();
    work();
    // SAFETY: this thread's errno; nobody but this thread uses it.
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

/// For as long as it lives this thread is not cancelled (pthread_cancel(3)): it would keep what it holds for ever.
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

/// A descriptor of our own, closed in programs that are started by exec.
pub struct Descriptor(c_int);

impl Descriptor {
    /// Takes over what a call returned; `None` for a failure.
    pub fn of(fd: c_int) -> Option<Descriptor> {
        (fd >= 0).then_some(Descriptor(fd))
    }

    /// Its number.
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

/// Pages of our own: mapped, not allocated, so that they may come and go in a signal handler.
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// Memory filled with zeros; `None` when there is none.
    pub fn new(bytes: usize) -> Option<Mapping> {
        Mapping::of(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// What lies in a file, to be read.
    pub fn of_file(file: &Descriptor, bytes: usize) -> Option<Mapping> {
        Mapping::of(bytes, libc::PROT_READ, libc::MAP_SHARED, file.number())
    }

    fn of(bytes: usize, rights: c_int, flags: c_int, fd: c_int) -> Option<Mapping> {
        // SAFETY: a new mapping where the kernel has room for it.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, rights, flags, fd, 0) };
        (start != libc::MAP_FAILED).then(|| Mapping { start: start.cast(), bytes })
    }

    /// Where it begins.
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

/// Milliseconds on a clock that only goes forward.
pub fn now_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}
