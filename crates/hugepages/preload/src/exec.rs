//! Programs that the program starts: one that cannot be served gets an environment without masu's variables, and runs
//! as without masu. The file is judged before the start (`contract::image`), since a sanitizer's runtime ends a program
//! into which another library was loaded first.
//!
//! A child of vfork shares its parent's memory, so nothing is allocated or changed but counters: the new environment is
//! on the stack.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use contract::image::{self, LeftOut, Verdict};
use contract::settings::{self, Settings};

use crate::state::STATE;
use crate::{kernel, next, page_file};

type Strings = *const *const c_char;

/// Whether this process has put a seccomp filter on, or has one since its start.
static SANDBOXED: AtomicBool = AtomicBool::new(false);

/// Marks that a filter judges all calls from now on. Programs started after that get nothing of masu's.
pub fn set_sandboxed() {
    SANDBOXED.store(true, Relaxed);
}

const ENTRIES_MAX: usize = 1024;
const LINE_BYTES: usize = 2048;

/// Environment without masu's variables.
struct Stripped {
    entries: [*const c_char; ENTRIES_MAX],
    preload: [u8; LINE_BYTES],
}

/// Calls `go` with the environment for a program: the given one, or one without masu's variables.
///
/// # Safety
/// `environment` is an array of strings that ends with a null pointer, or null.
unsafe fn with_environment(
    left_out: impl FnOnce() -> Option<LeftOut>,
    environment: Strings,
    go: impl FnOnce(Strings) -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    let Some(ours) = (unsafe { ours(environment) }) else { return go(environment) };
    let limited = || kernel::has_limited_memory().then_some(LeftOut::Limited);
    // The program may have changed its user or its namespaces since its start.
    let apart = || {
        let path = Settings::parse(core::str::from_utf8(ours).ok()?)?.status_page?;
        (!page_file::opens_after_exec(path)).then_some(LeftOut::NoStatusPage)
    };
    let why = match SANDBOXED.load(Relaxed) {
        true => Some(LeftOut::Sandbox),
        false => kernel::keeping_errno(|| limited().or_else(left_out).or_else(apart)),
    };
    let Some(why) = why else { return go(environment) };
    let page = STATE.status_page();
    page.into_iter().for_each(|page| page.count_left_out(why));
    let mut stripped = Stripped { entries: [core::ptr::null(); ENTRIES_MAX], preload: [0; LINE_BYTES] };
    // SAFETY: the caller's.
    let is_stripped = unsafe { stripped.fill(environment) };
    let answer = go(if is_stripped { stripped.entries.as_ptr() } else { environment });
    // The start failed: execve returns only then. A shell tries each folder of PATH.
    if answer != 0 {
        page.into_iter().for_each(|page| page.uncount_left_out(why));
    }
    answer
}

/// The text of an entry.
///
/// # Safety
/// A string.
unsafe fn text<'a>(entry: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(entry) }.to_bytes()
}

fn value<'a>(entry: &'a [u8], name: &str) -> Option<&'a [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// masu's request in an environment.
///
/// # Safety
/// As [`with_environment`].
unsafe fn ours<'a>(environment: Strings) -> Option<&'a [u8]> {
    let mut entry = environment;
    if entry.is_null() {
        return None;
    }
    // SAFETY: the entries up to the null pointer are strings.
    unsafe {
        while !(*entry).is_null() {
            if let Some(ours) = value(text(*entry), settings::VARIABLE) {
                return Some(ours);
            }
            entry = entry.add(1);
        }
    }
    None
}

fn is_ours(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next() == Some(b"libmasu-preload.so")
}

impl Stripped {
    /// Copies all entries but masu's; false if there is no room.
    ///
    /// # Safety
    /// As [`with_environment`].
    unsafe fn fill(&mut self, environment: Strings) -> bool {
        let (mut from, mut count) = (environment, 0);
        loop {
            // SAFETY: not beyond the null pointer.
            let entry = unsafe { *from };
            if entry.is_null() {
                return true;
            }
            // SAFETY: a string; there is a next one.
            let line = unsafe {
                from = from.add(1);
                text(entry)
            };
            if value(line, settings::VARIABLE).is_some() {
                continue;
            }
            let kept = match value(line, settings::PRELOAD) {
                Some(libraries) => match self.without_ours(libraries) {
                    Some(kept) => kept,
                    None => continue,
                },
                None => entry,
            };
            if count + 1 >= ENTRIES_MAX {
                return false;
            }
            self.entries[count] = kept;
            count += 1;
        }
    }

    /// The variable with the other libraries of the list; `None` without any.
    fn without_ours(&mut self, libraries: &[u8]) -> Option<*const c_char> {
        let mut length = 0;
        let mut put = |bytes: &[u8]| {
            // The last byte stays zero.
            let place = self.preload[..LINE_BYTES - 1].get_mut(length..length + bytes.len())?;
            place.copy_from_slice(bytes);
            length += bytes.len();
            Some(())
        };
        put(settings::PRELOAD.as_bytes())?;
        let others =
            libraries.split(|byte| matches!(byte, b':' | b' ')).filter(|path| !path.is_empty() && !is_ours(path));
        let mut any = false;
        for path in others {
            put(if any { b":" } else { b"=" })?;
            put(path)?;
            any = true;
        }
        any.then_some(self.preload.as_ptr().cast())
    }
}

/// Judges an open file, and closes it.
fn judge_file(fd: c_int, close: bool, scripts: u32) -> Option<LeftOut> {
    let is_privileged = kernel::gives_privileges(fd);
    let verdict = image::judge(&mut |at, into| kernel::read_at(fd, into, at));
    if close {
        kernel::close(fd);
    }
    match verdict {
        Verdict::LeftOut(why) => Some(why),
        _ if is_privileged => Some(LeftOut::Privileged),
        Verdict::Script(name) if scripts > 0 => judge_path(CStr::from_bytes_until_nul(&name).ok()?, scripts - 1),
        Verdict::Script(_) | Verdict::Served => None,
    }
}

fn judge_path(path: &CStr, scripts: u32) -> Option<LeftOut> {
    judge_file(kernel::open(path)?, true, scripts)
}

/// # Safety
/// A string, or null.
unsafe fn judge(path: *const c_char) -> Option<LeftOut> {
    // SAFETY: the caller's.
    if path.is_null() { None } else { judge_path(unsafe { CStr::from_ptr(path) }, 4) }
}

/// Judges the first readable file of this name in PATH.
///
/// # Safety
/// A string, or null.
unsafe fn judge_name(name: *const c_char) -> Option<LeftOut> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's.
    let file = unsafe { text(name) };
    if file.contains(&b'/') {
        // SAFETY: the caller's.
        return unsafe { judge(name) };
    }
    let mut entry = environment();
    // SAFETY: the C library's environment, whose entries up to the null pointer are strings.
    let path = unsafe {
        loop {
            if entry.is_null() || (*entry).is_null() {
                break &b"/bin:/usr/bin"[..];
            }
            if let Some(path) = value(text(*entry), "PATH") {
                break path;
            }
            entry = entry.add(1);
        }
    };
    for folder in path.split(|byte| *byte == b':') {
        let mut line = [0; 1024];
        let bytes = folder.len() + 1 + file.len();
        if bytes >= line.len() {
            continue;
        }
        line[..folder.len()].copy_from_slice(folder);
        line[folder.len()] = b'/';
        line[folder.len() + 1..bytes].copy_from_slice(file);
        let candidate = CStr::from_bytes_until_nul(&line).ok()?;
        if let Some(fd) = kernel::open(candidate) {
            return judge_file(fd, true, 4);
        }
    }
    None
}

/// The program's environment.
fn environment() -> Strings {
    // SAFETY: a variable of the C library, of this type.
    next::optional(c"environ").map_or(core::ptr::null(), |place| unsafe { *place.cast::<Strings>() })
}

/// execve(3).
///
/// # Safety
/// As execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's.
    unsafe { with_environment(|| judge(path), environment, |environment| next::execve(path, arguments, environment)) }
}

/// execv(3).
///
/// # Safety
/// As execv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's, with the C library's environment.
    unsafe { execve(path, arguments, environment()) }
}

/// fexecve(3).
///
/// # Safety
/// As fexecve(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with_environment(
            || judge_file(fd, false, 4),
            environment,
            |environment| next::fexecve(fd, arguments, environment),
        )
    }
}

/// execvpe(3).
///
/// # Safety
/// As execvpe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(name: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with_environment(|| judge_name(name), environment, |environment| next::execvpe(name, arguments, environment))
    }
}

/// execvp(3).
///
/// # Safety
/// As execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(name: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's, with the C library's environment.
    unsafe { execvpe(name, arguments, environment()) }
}

/// posix_spawn(3).
///
/// # Safety
/// As posix_spawn(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with_environment(
            || judge(path),
            environment,
            |environment| next::posix_spawn(pid, path, actions, attributes, arguments, environment),
        )
    }
}

/// posix_spawnp(3).
///
/// # Safety
/// As posix_spawnp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with_environment(
            || judge_name(name),
            environment,
            |environment| next::posix_spawnp(pid, name, actions, attributes, arguments, environment),
        )
    }
}

/// execl(3) and its kin take their arguments one by one. Each puts those of the registers before those of the stack, so
/// that they are an array, and calls the function that takes an array.
#[cfg(target_arch = "x86_64")]
macro_rules! listed {
    ($name:literal, $target:path) => {
        core::arch::global_asm!(
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            "pop rax",
            "push r9",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "mov rsi, rsp",
            "push rax",
            "push rbp",
            "mov rbp, rsp",
            "and rsp, -16",
            "call {target}",
            "mov rsp, rbp",
            "pop rbp",
            "pop rcx",
            "add rsp, 40",
            "push rcx",
            "ret",
            concat!(".size ", $name, ", . - ", $name),
            target = sym $target,
        );
    };
}
#[cfg(target_arch = "x86_64")]
listed!("execl", execv);
#[cfg(target_arch = "x86_64")]
listed!("execlp", execvp);
#[cfg(target_arch = "x86_64")]
listed!("execle", with_environment_behind);

/// execle(3): the environment comes behind the null pointer of the arguments.
///
/// # Safety
/// As execle(3), with the arguments as an array.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn with_environment_behind(path: *const c_char, arguments: Strings) -> c_int {
    let mut end = arguments;
    // SAFETY: the arguments end with a null pointer, and the environment follows it.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, end.add(1).cast::<Strings>().read())
    }
}
