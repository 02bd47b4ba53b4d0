//! The next functions after ours: the C library's, or those in another preloaded library.
//!
//! Looked up once at the start. A call before that (from another library's start) looks up by itself; dlsym of an
//! existing function allocates nothing.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// Start function of a thread.
pub type Function = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

static BRK: Next = Next::of(c"brk");
static SBRK: Next = Next::of(c"sbrk");
static PTHREAD_CREATE: Next = Next::of(c"pthread_create");
static PRCTL: Next = Next::of(c"prctl");
static SYSCALL: Next = Next::of(c"syscall");
static EXECVE: Next = Next::of(c"execve");
static FEXECVE: Next = Next::of(c"fexecve");
static EXECVPE: Next = Next::of(c"execvpe");
static POSIX_SPAWN: Next = Next::of(c"posix_spawn");
static POSIX_SPAWNP: Next = Next::of(c"posix_spawnp");

type Strings = *const *const c_char;

/// mmap and mremap of another preloaded library, which must see the calls that it hooks; null without one.
static FOREIGN_MMAP: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static FOREIGN_MREMAP: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// mmap(3).
pub type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;

/// A function looked up by any thread at any time: all find the same.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn of(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn get(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: a name that ends in a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Relaxed);
        found
    }
}

/// Looks up all of them.
pub fn find() {
    for next in [&BRK, &SBRK, &PTHREAD_CREATE, &PRCTL] {
        next.get();
    }
    // A library that hooks one hooks the other. `__mmap` is the C library's own name.
    let (mmap, mremap) = (Next::of(c"mmap").get(), Next::of(c"mremap").get());
    if optional(c"__mmap").is_some_and(|own| own != mmap) {
        FOREIGN_MMAP.store(mmap, Relaxed);
        FOREIGN_MREMAP.store(mremap, Relaxed);
    }
}

/// mmap of another preloaded library.
pub fn foreign_mmap() -> Option<Mmap> {
    let found = FOREIGN_MMAP.load(Relaxed);
    // SAFETY: a function of the name mmap, whose type this is.
    (!found.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Mmap>(found) })
}

/// mremap of another preloaded library, or of the C library if that one has none.
pub fn foreign_mremap() -> Option<Mremap> {
    let found = FOREIGN_MREMAP.load(Relaxed);
    // SAFETY: a function of the name mremap, whose type this is, except the last argument, which may be missing.
    (!found.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Mremap>(found) })
}

/// prctl(2).
///
/// # Safety
/// As prctl(2).
pub unsafe fn prctl(operation: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    let next = PRCTL.get();
    if next.is_null() {
        return -1;
    }
    // SAFETY: the C library's prctl; it reads only the arguments of the operation.
    let next: unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(operation, a, b, c, d) }
}

/// brk(3).
///
/// # Safety
/// As brk(2).
pub unsafe fn brk(end: *mut c_void) -> c_int {
    let next = BRK.get();
    if next.is_null() {
        return -1;
    }
    // SAFETY: the C library's brk, whose type this is.
    let next: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(end) }
}

/// sbrk(3).
///
/// # Safety
/// As sbrk(2).
pub unsafe fn sbrk(more: isize) -> *mut c_void {
    let next = SBRK.get();
    if next.is_null() {
        return core::ptr::without_provenance_mut(usize::MAX);
    }
    // SAFETY: the C library's sbrk, whose type this is.
    let next: unsafe extern "C" fn(isize) -> *mut c_void = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(more) }
}

/// pthread_create(3).
///
/// # Safety
/// As pthread_create(3).
pub unsafe fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: Function,
    argument: *mut c_void,
) -> c_int {
    type Create =
        unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Function, *mut c_void) -> c_int;
    let next = PTHREAD_CREATE.get();
    if next.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: the C library's pthread_create, whose type this is.
    let next: Create = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(thread, attributes, function, argument) }
}

/// A function or variable that only some C libraries have.
pub fn optional(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name that ends in a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// syscall(3).
///
/// # Safety
/// As the call.
pub unsafe fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    type Call = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    let next = SYSCALL.get();
    if next.is_null() {
        return -1;
    }
    // SAFETY: the C library's syscall; it reads six arguments in any case.
    let next: Call = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(number, a, b, c, d, e, f) }
}

/// execve(3).
///
/// # Safety
/// As execve(3).
pub unsafe fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let next = EXECVE.get();
    if next.is_null() {
        return -1;
    }
    // SAFETY: the C library's execve, whose type this is.
    let next: unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(path, arguments, environment) }
}

/// fexecve(3).
///
/// # Safety
/// As fexecve(3).
pub unsafe fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    let next = FEXECVE.get();
    if next.is_null() {
        return -1;
    }
    // SAFETY: the C library's fexecve, whose type this is.
    let next: unsafe extern "C" fn(c_int, Strings, Strings) -> c_int = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(fd, arguments, environment) }
}

/// execvpe(3).
///
/// # Safety
/// As execvpe(3).
pub unsafe fn execvpe(name: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let next = EXECVPE.get();
    if next.is_null() {
        return -1;
    }
    // SAFETY: the C library's execvpe, whose type this is.
    let next: unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(name, arguments, environment) }
}

/// posix_spawn(3).
///
/// # Safety
/// As posix_spawn(3).
pub unsafe fn posix_spawn(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    type Spawn =
        unsafe extern "C" fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
    let next = POSIX_SPAWN.get();
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's posix_spawn, whose type this is.
    let next: Spawn = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(pid, file, actions, attributes, arguments, environment) }
}

/// posix_spawnp(3).
///
/// # Safety
/// As posix_spawnp(3).
pub unsafe fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    type Spawn =
        unsafe extern "C" fn(*mut libc::pid_t, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;
    let next = POSIX_SPAWNP.get();
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's posix_spawnp, whose type this is.
    let next: Spawn = unsafe { core::mem::transmute(next) };
    // SAFETY: the caller's.
    unsafe { next(pid, file, actions, attributes, arguments, environment) }
}
