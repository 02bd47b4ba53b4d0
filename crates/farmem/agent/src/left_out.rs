//! Programs that are not paged: seen at their start, or when a served program becomes one of them by exec.
//!
//! The judgement of files is `farmem_engine::program_file`. A sanitizer and valgrind are seen in memory.

use core::arch::{asm, global_asm};
use core::ffi::{CStr, c_char};

use farmem_engine::calls::{Call, number};
use farmem_engine::handshake::{Aside, FILTERED_ENDING};
use farmem_engine::left_out::LeftOut;
use farmem_engine::program_file::{self, Interpreter, Judged, SCRIPTS_MAX, Source};

use crate::kernel::{call, int, size};
use crate::program::Program;
use crate::socket;

// Functions that exist in a process with a sanitizer's runtime, in its library or in the program; a function of the
// system's C library only; and the loader's list for debuggers. The loader puts a zero where there is none.
global_asm!(
    ".weak __asan_init",
    ".weak __hwasan_init",
    ".weak __tsan_init",
    ".weak __lsan_init",
    ".weak __msan_init",
    ".weak gnu_get_libc_version",
    ".weak _r_debug",
    ".pushsection .data.rel.ro.masu_weak,\"aw\"",
    ".balign 8",
    ".hidden masu_weak",
    ".globl masu_weak",
    "masu_weak:",
    ".quad __asan_init",
    ".quad __hwasan_init",
    ".quad __tsan_init",
    ".quad __lsan_init",
    ".quad __msan_init",
    ".quad gnu_get_libc_version",
    ".quad _r_debug",
    ".popsection",
);

unsafe extern "C" {
    static masu_weak: [u64; 7];
    #[link_name = "_DYNAMIC"]
    static OWN_DYNAMIC: u8;
}

fn weak(index: usize) -> u64 {
    // SAFETY: written by the loader before any code of the library runs.
    unsafe { (&raw const masu_weak).cast::<u64>().add(index).read_volatile() }
}

/// Whether the loader is that of the system's C library. Another one passes no environment to `begin`.
pub fn is_systems_c_library() -> bool {
    weak(5) != 0
}

/// Reason that is seen without a call.
pub fn in_memory() -> Option<LeftOut> {
    if (0..5).any(|index| weak(index) != 0) || has_static_sanitizer() {
        hide_from_sanitizer();
        return Some(LeftOut::Sanitizer);
    }
    is_under_valgrind().then_some(LeftOut::Emulated)
}

/// `link_map`, as link.h publishes it.
#[repr(C)]
struct LinkMap {
    address: u64,
    name: *const c_char,
    dynamic: u64,
    next: *mut LinkMap,
}

/// First library of the loader's list: the program itself. Null where the loader shows no list.
fn first_library() -> *mut LinkMap {
    // `r_debug`: version, and at 8 the first library.
    let list = weak(6);
    if list == 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: the loader's list, complete before any library begins.
    unsafe { core::ptr::with_exposed_provenance::<*mut LinkMap>(size(list + 8)).read() }
}

/// Whether a sanitizer's runtime is linked into the program and not exported. It begins before all libraries
/// (DT_PREINIT_ARRAY), and refers to hooks `__sanitizer_…` that the program may define.
fn has_static_sanitizer() -> bool {
    const DT_STRTAB: u64 = 5;
    const DT_STRSZ: u64 = 10;
    const DT_PREINIT_ARRAY: u64 = 32;
    const MARK: &[u8] = b"\0__sanitizer_";
    let program = first_library();
    if program.is_null() {
        return false;
    }
    let (mut is_first, mut names, mut bytes) = (false, 0, 0);
    // SAFETY: the program's dynamic section, which ends with a zero; its names are mapped as long as it says.
    unsafe {
        let mut entry = core::ptr::with_exposed_provenance::<[u64; 2]>(size((*program).dynamic));
        while !entry.is_null() && (*entry)[0] != 0 {
            match *entry {
                [DT_PREINIT_ARRAY, _] => is_first = true,
                [DT_STRTAB, at] => names = at,
                [DT_STRSZ, length] => bytes = length,
                _ => {}
            }
            entry = entry.add(1);
        }
        if !is_first || names == 0 {
            return false;
        }
        // Some loaders add the program's address to the entry, and some do not.
        let start = if names < (*program).address { names + (*program).address } else { names };
        let names = core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(size(start)), size(bytes));
        names.windows(MARK.len()).any(|name| name == MARK)
    }
}

/// Takes this library's name out of the loader's list, by which the address sanitizer finds out whether its own library
/// comes first; it ends the program if not. It skips libraries without a name, as the kernel's (vDSO).
fn hide_from_sanitizer() {
    let own = (&raw const OWN_DYNAMIC).expose_provenance() as u64;
    // SAFETY: the loader's list, complete before any library begins, and one thread.
    unsafe {
        let mut map = first_library();
        while !map.is_null() {
            if (*map).dynamic == own {
                (*map).name = c"".as_ptr();
                return;
            }
            map = (*map).next;
        }
    }
}

/// valgrind's client request RUNNING_ON_VALGRIND: instructions that a processor executes without an effect.
fn is_under_valgrind() -> bool {
    let request = [0x1001_u64, 0, 0, 0, 0, 0];
    let mut answer = 0_u64;
    // SAFETY: rotations of a register by 128 bits in all, and an exchange of a register with itself.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdx") answer,
            in("rax") request.as_ptr(),
            out("rdi") _,
            options(nostack),
        );
    }
    answer != 0
}

/// Whether more seccomp filters were put on this process than masu has; also where that cannot be read. Makes no calls
/// but the loader's own: openat, read and close.
pub fn is_filtered(of_masu: Option<&[u8]>) -> bool {
    let of_masu = of_masu.and_then(decimal).unwrap_or(0);
    filters().is_none_or(|filters| filters > of_masu)
}

/// Reason of a program that is traced at its start: its tracer, a debugger in this run, would get the pager's signals,
/// and may keep them. The first program is paged under a tracer of masu itself.
pub fn by_tracer(socket: i32) -> Option<LeftOut> {
    // SAFETY: asks.
    let parent = int(unsafe { call!(libc::SYS_getppid) }.cast_unsigned());
    let is_first = parent > 0 && socket::peer(socket).is_some_and(|peer| peer.pid == parent);
    let is_traced = || Status::read().and_then(|status| status.line(b"TracerPid:")).is_some_and(|tracer| tracer > 0);
    (!is_first && is_traced()).then_some(LeftOut::Traced)
}

/// `/proc/self/status`.
struct Status {
    text: [u8; 4096],
    length: usize,
}

impl Status {
    fn read() -> Option<Status> {
        let fd = open(libc::AT_FDCWD, c"/proc/self/status".as_ptr().addr() as u64, 0)?;
        let mut text = [0_u8; 4096];
        let mut length = 0;
        while length < text.len() {
            let (start, room) = (text.as_mut_ptr().expose_provenance() + length, text.len() - length);
            // SAFETY: writes our own buffer.
            let got = unsafe { call!(libc::SYS_read, fd, start, room) };
            if got <= 0 {
                break;
            }
            length += size(got.cast_unsigned());
        }
        // SAFETY: our own.
        unsafe { call!(libc::SYS_close, fd) };
        Some(Status { text, length })
    }

    /// Number in the line with this name.
    fn line(&self, name: &[u8]) -> Option<u64> {
        let lines = self.text[..self.length].split(|byte| *byte == b'\n');
        let found = lines.filter_map(|line| line.strip_prefix(name)).next()?;
        decimal(found.trim_ascii())
    }
}

/// Number of seccomp filters of this process; `None` where it cannot be read.
fn filters() -> Option<u64> {
    let status = Status::read()?;
    match (status.line(b"Seccomp:"), status.line(b"Seccomp_filters:")) {
        (Some(0), _) => Some(0),
        (Some(_), Some(filters)) => Some(filters.max(1)),
        // A kernel without filters.
        (None, _) if status.length > 0 => Some(0),
        _ => None,
    }
}

/// Number of threads of this process.
pub fn threads() -> Option<u64> {
    Status::read()?.line(b"Threads:")
}

fn decimal(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Opens a file to be read, as the loader opens libraries.
fn open(folder: i32, path: u64, flags: i32) -> Option<i32> {
    // SAFETY: opens a file to be read; the kernel checks the path's address.
    let fd = unsafe { call!(libc::SYS_openat, folder, path, libc::O_RDONLY | libc::O_CLOEXEC | flags, 0) };
    (fd >= 0).then(|| int(fd.cast_unsigned()))
}

/// Lets masu count this program, whose filter allows no more than the loader's calls: opens the file that masu watches.
pub fn tell_of_filter(path: Option<&[u8]>) {
    let mut name = [0_u8; 256];
    let parts = path.unwrap_or_default().iter().chain(FILTERED_ENDING.as_bytes());
    let mut bytes = 0;
    for (place, byte) in name.iter_mut().zip(parts) {
        *place = *byte;
        bytes += 1;
    }
    if path.is_none() || bytes == name.len() {
        return;
    }
    if let Some(fd) = open(libc::AT_FDCWD, name.as_ptr().addr() as u64, 0) {
        // SAFETY: our own.
        unsafe { call!(libc::SYS_close, fd) };
    }
}

/// An open file.
struct File(i32);

impl Source for File {
    fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let (start, bytes) = (to.as_mut_ptr().expose_provenance(), to.len());
        // SAFETY: writes the given bytes.
        unsafe { call!(libc::SYS_pread64, self.0, start, bytes, offset) == bytes as i64 }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: our own.
        unsafe { call!(libc::SYS_close, self.0) };
    }
}

/// Reason that this program's own file gives.
pub fn by_own_file() -> Option<LeftOut> {
    let file = File(open(libc::AT_FDCWD, c"/proc/self/exe".as_ptr().addr() as u64, 0)?);
    match program_file::judge(&file) {
        Judged::LeftOut { reason, .. } => Some(reason),
        Judged::Paged | Judged::Script(_) | Judged::Unknown => None,
    }
}

/// Tells masu of a program that this one becomes by exec, if it will load no library.
pub fn tell_of_exec(program: &Program, call: Call) {
    let [first, second, _, _, fifth, _] = call.arguments;
    let (folder, path, flags) = match call.number {
        number::EXECVE => (libc::AT_FDCWD, first, 0),
        _ => (int(first), second, int(fifth) & (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW)),
    };
    if flags != 0 {
        return;
    }
    if let Some(reason) = of_exec(folder, path) {
        socket::send_at_once(program.socket, &Aside { reason }.message());
    }
}

/// Reason for a file that loads no library.
fn of_exec(folder: i32, path: u64) -> Option<LeftOut> {
    let mut interpreter: Option<Interpreter> = None;
    for _ in 0..SCRIPTS_MAX {
        let (folder, path) = match &interpreter {
            Some(interpreter) => (libc::AT_FDCWD, interpreter.with_zero().as_ptr().addr() as u64),
            None => (folder, path),
        };
        let file = regular_file(folder, path)?;
        match program_file::judge(&file.0) {
            _ if interpreter.is_none() && file.1 => return Some(LeftOut::Privileged),
            Judged::LeftOut { reason, loads: false } => return Some(reason),
            Judged::Script(next) => interpreter = Some(next),
            Judged::Paged | Judged::LeftOut { .. } | Judged::Unknown => return None,
        }
    }
    None
}

/// Opens a regular file that can be read, and tells whether its start gives privileges. Anything else is not opened:
/// that may have effects.
fn regular_file(folder: i32, path: u64) -> Option<(File, bool)> {
    let found = File(open(folder, path, libc::O_PATH)?);
    // SAFETY: all zeros are a value of it.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: writes our own memory, and asks.
    let (answer, own) = unsafe {
        let answer = call!(libc::SYS_fstat, found.0, (&raw mut about).expose_provenance());
        (answer, [call!(libc::SYS_geteuid), call!(libc::SYS_getegid)].map(|id| crate::kernel::uint(id.cast_unsigned())))
    };
    if answer < 0 || about.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let by_mode = program_file::gives_privileges(about.st_mode, about.st_uid, about.st_gid, (own[0], own[1]));
    let file = File(open(folder, path, libc::O_NONBLOCK | libc::O_NOCTTY)?);
    let mut value = [0_u8; 64];
    let (name, place) = (c"security.capability".as_ptr().addr(), value.as_mut_ptr().expose_provenance());
    // Root gains nothing by file capabilities, so the loader trusts the environment.
    // SAFETY: writes our own buffer.
    let by_file = own[0] != 0 && unsafe { call!(libc::SYS_fgetxattr, file.0, name, place, value.len()) } >= 0;
    Some((file, by_mode || by_file))
}

/// A string of the environment.
///
/// # Safety
/// `environment` is an array of strings that ends with a null pointer.
pub unsafe fn variable(environment: *const *mut c_char, name: &[u8]) -> Option<&'static [u8]> {
    let mut entry = environment;
    // SAFETY: the caller's.
    while !entry.is_null() && unsafe { !(*entry).is_null() } {
        // SAFETY: as above; the strings stay where they are.
        let text = unsafe { CStr::from_ptr(*entry) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(value);
        }
        // SAFETY: before the null pointer there is always a next.
        entry = unsafe { entry.add(1) };
    }
    None
}
