//! System calls of the hooks, past the hooks: as libc would make them, without calling ourselves.
//!
//! `syscall(3)` is the only function of libc that is called while a program runs. It takes no lock, allocates nothing
//! and sets errno as the real function would. After the start only calls that every C program makes anyway (mmap,
//! munmap, mremap, mprotect, madvise, futex, getpid) are made, so that a sandbox which allows the program allows us.

use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::AtomicU32;

/// Return value of a failed call.
pub const FAILED: c_long = -1;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// An int argument as wide as a register: the upper half of the caller's register may hold anything, and the kernel
/// reads all of it.
fn wide(number: c_int) -> c_long {
    c_long::from(number)
}

/// Preserves errno over calls whose failure must stay invisible.
pub fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the address of this thread's errno, valid as long as the thread.
    let errno = unsafe { __errno_location() };
    // SAFETY: as above; only this thread uses it.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// This thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the address of this thread's errno, valid as long as the thread.
    unsafe { *__errno_location() }
}

/// Soft limit of a resource; `None` for none.
pub fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a variable of ours, of the type that the call fills; no new limit is given.
    let failed = unsafe {
        libc::syscall(libc::SYS_prlimit64, 0_i64, u64::from(resource), core::ptr::null::<u8>(), &raw mut limit)
    };
    if failed != 0 || limit.rlim_cur == libc::RLIM64_INFINITY { None } else { Some(limit.rlim_cur) }
}

/// Whether the address space or the data of this process has a limit, and so those of the program that replaces it.
pub fn has_limited_memory() -> bool {
    limit(libc::RLIMIT_AS).is_some() || limit(libc::RLIMIT_DATA).is_some()
}

/// mmap(2).
///
/// # Safety
/// As mmap(2): MAP_FIXED replaces existing mappings.
pub unsafe fn mmap(start: usize, bytes: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> c_long {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_mmap, start, bytes, wide(protection), wide(flags), wide(fd), offset) }
}

/// munmap(2).
///
/// # Safety
/// Nothing refers to that memory any more.
pub unsafe fn munmap(start: usize, bytes: usize) {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_munmap, start, bytes) };
}

/// mremap(2).
///
/// # Safety
/// As mremap(2).
pub unsafe fn mremap(old: usize, old_bytes: usize, bytes: usize, flags: c_int, place: usize) -> c_long {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_mremap, old, old_bytes, bytes, wide(flags), place) }
}

/// mprotect(2). True on success.
///
/// # Safety
/// That memory is not used in a way that the new protection forbids.
pub unsafe fn mprotect(start: usize, bytes: usize, protection: c_int) -> bool {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_mprotect, start, bytes, wide(protection)) == 0 }
}

/// Advice that changes no content: MADV_HUGEPAGE, MADV_COLLAPSE, MADV_POPULATE_*. True on success.
pub fn advise(start: usize, bytes: usize, advice: c_int) -> bool {
    debug_assert!(!matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE));
    // SAFETY: such advice changes how memory is backed and never its content, anywhere.
    unsafe { libc::syscall(libc::SYS_madvise, start, bytes, wide(advice)) == 0 }
}

/// This process; `None` in a sandbox that refuses the call.
pub fn process() -> Option<u32> {
    // SAFETY: no arguments.
    pid(unsafe { libc::syscall(libc::SYS_getpid) })
}

fn pid(answer: c_long) -> Option<u32> {
    u32::try_from(answer).ok().filter(|pid| *pid != 0)
}

/// Whether the kernel can read a string at an address, which may extend the stack as a read of our own would. (It
/// looks up a file of that name; untouched memory is the empty name.)
pub fn can_read(address: usize) -> bool {
    // SAFETY: the kernel checks the address itself and returns EFAULT for an unmapped one.
    let answer = unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, address, libc::F_OK) };
    answer != FAILED || errno() != libc::EFAULT
}

/// Parent process; `None` for a parent outside the PID namespace, and in a sandbox that refuses the call.
pub fn parent() -> Option<u32> {
    // SAFETY: no arguments.
    pid(unsafe { libc::syscall(libc::SYS_getppid) })
}

/// Clock that runs while the machine does, in ms.
pub fn clock_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a variable of ours; without a system call on all but odd machines.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Target of a symbolic link, cut to the length of `target`.
pub fn read_link<'a>(path: &core::ffi::CStr, target: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: a path that ends in a zero byte, and room for the given number of bytes.
    let length = unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), target.as_mut_ptr(), target.len())
    };
    target.get(..usize::try_from(length).ok()?)
}

/// Maps a file shared and writable; `None` when there is no such file.
pub fn map_file(path: &core::ffi::CStr, bytes: usize) -> Option<usize> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: a path that ends in a zero byte; the descriptor is ours until it is closed below.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
    // SAFETY: opened above, used only here.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    mapped(start)
}

/// Opens a file to be read.
pub fn open(path: &core::ffi::CStr) -> Option<c_int> {
    // SAFETY: a path that ends in a zero byte.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK,
        )
    };
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0)
}

/// Opens a file to be read, with the arguments of the loader.
pub fn open_as_loader(path: &core::ffi::CStr) -> Option<c_int> {
    // SAFETY: a path that ends in a zero byte.
    let fd =
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0)
}

/// Closes a file of ours.
pub fn close(fd: c_int) {
    // SAFETY: the caller's own.
    unsafe { libc::syscall(libc::SYS_close, wide(fd)) };
}

/// Reads on; `None` after a failure.
pub fn read(fd: c_int, into: &mut [u8]) -> Option<usize> {
    // SAFETY: fills the given bytes at most.
    usize::try_from(unsafe { libc::syscall(libc::SYS_read, wide(fd), into.as_mut_ptr(), into.len()) }).ok()
}

/// Reads from an offset; 0 after a failure.
pub fn read_at(fd: c_int, into: &mut [u8], at: u64) -> usize {
    // SAFETY: fills the given bytes at most.
    let length = unsafe { libc::syscall(libc::SYS_pread64, wide(fd), into.as_mut_ptr(), into.len(), at) };
    usize::try_from(length).map_or(0, |length| length)
}

/// Whether executing the file would give another user or group.
pub fn gives_privileges(fd: c_int) -> bool {
    // SAFETY: zeros are a value of it; the call fills it.
    unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        if libc::syscall(libc::SYS_fstat, wide(fd), &raw mut about) != 0 {
            return false;
        }
        let set_user =
            about.st_mode & libc::S_ISUID != 0 && i64::from(about.st_uid) != libc::syscall(libc::SYS_geteuid);
        let set_group = about.st_mode & libc::S_ISGID != 0
            && about.st_mode & libc::S_IXGRP != 0
            && i64::from(about.st_gid) != libc::syscall(libc::SYS_getegid);
        set_user || set_group
    }
}

/// Effective user of this process.
pub fn effective_user() -> Option<u32> {
    // SAFETY: no arguments.
    u32::try_from(unsafe { libc::syscall(libc::SYS_geteuid) }).ok()
}

/// Owner of the file at a path, links followed.
pub fn owner(path: &core::ffi::CStr) -> Option<u32> {
    // SAFETY: zeros are a value of it; a path that ends in a zero byte; the call fills the variable.
    unsafe {
        let mut about: libc::stat = core::mem::zeroed();
        let answer = libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut about, 0_i64);
        (answer == 0).then_some(about.st_uid)
    }
}

/// Wakes all waiters on a word of shared memory.
pub fn wake(word: &AtomicU32) {
    // SAFETY: a word that is mapped for as long as the borrow.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Waits until a word of shared memory is woken, at most `at_most_ms`. Also returns early, or at once.
pub fn wait(word: &AtomicU32, while_it_is: u32, at_most_ms: i64) {
    let time = libc::timespec { tv_sec: at_most_ms / 1000, tv_nsec: at_most_ms % 1000 * 1_000_000 };
    // SAFETY: a word that is mapped for as long as the borrow, and a time that outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, while_it_is, &raw const time) };
}

/// Address returned by mmap or mremap.
pub fn mapped(answer: c_long) -> Option<usize> {
    if answer == FAILED { None } else { usize::try_from(answer).ok() }
}

/// Address from a number of the kernel's or the loader's.
#[expect(clippy::cast_possible_truncation, reason = "addresses are 64 bits wide on every machine masu runs on")]
pub fn address(number: u64) -> usize {
    number as usize
}

/// Address as a C pointer.
pub fn pointer(answer: c_long) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(address(answer.cast_unsigned()))
}
