//! Start and end of a program, as the library sees them.
//!
//! The loader runs `begin` before the code of the program and of all its libraries (`-z initfirst`), and `end` when
//! it returns from main or calls exit. masu's request is in the environment. Without it nothing is done, and nothing
//! is done at the end.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use contract::placement::Size;
use contract::settings::{self, Settings};
use contract::status_page::{Code, Stage};

use crate::state::STATE;
use crate::{exec, heap, image, kernel, mapping_budget, next, page_file, stack};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: unsafe extern "C" fn(c_int, *const *mut c_char, *const *mut c_char) = begin;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Longest wait of an exiting program for masu's last count.
const LAST_COUNT_MS: i64 = 250;

/// Whether it waits at all.
static LAST_COUNT: AtomicBool = AtomicBool::new(false);

/// Start time, by the kernel's clock; 0 for the program that masu started itself, which is counted even if it was
/// short.
static BEGUN_MS: AtomicI64 = AtomicI64::new(0);

/// Age from which other programs are counted at exit. A younger one is counted only if it reserved a window.
const COUNTED_FROM_MS: i64 = 100;

/// Whether masu knows this process by another id than its own: it is in a pid namespace within masu's.
static NESTED: AtomicBool = AtomicBool::new(false);

/// The environment from the loader. The C library's own variable for it is not set yet.
#[derive(Clone, Copy)]
struct Environment(*const *mut c_char);

/// # Safety
/// Called by the loader, with the program's arguments and its environment.
unsafe extern "C" fn begin(_: c_int, _: *const *mut c_char, environment: *const *mut c_char) {
    let environment = Environment(environment);
    if environment.find(settings::VARIABLE).is_none() {
        next::find();
        return;
    }
    // First of all: under a filter nothing may be called but what the loader has called just before.
    if !is_free_of_filters() {
        exec::set_sandboxed();
        return;
    }
    next::find();
    kernel::keeping_errno(|| {
        let variable = |name| environment.find(name);
        let disabled = variable(settings::DISABLE).is_some_and(|(_, value)| !matches!(value.to_bytes(), b"" | b"0"));
        let Some((start, asked)) = variable(settings::VARIABLE).filter(|_| !disabled) else { return };
        let Some(asked) = asked.to_str().ok().and_then(Settings::parse) else { return };
        let status_page = asked.status_page.and_then(page_file::map);
        // Without it masu can neither count nor trim the memory of this program.
        if asked.status_page.is_some() && status_page.is_none() {
            return;
        }
        if asked.malloc {
            heap::ask();
        }
        mapping_budget::begin();
        STATE.begin(asked.sizes, asked.align, asked.stack);
        if let Some(start) = status_page {
            LAST_COUNT.store(asked.last_count, Relaxed);
            let is_main = asked.status_page.and_then(masu_of).is_some_and(|masu| kernel::parent() == Some(masu));
            BEGUN_MS.store(if is_main { 0 } else { kernel::clock_ms() }, Relaxed);
            if let Some(process) = known_as().or_else(kernel::process) {
                NESTED.store(kernel::process() != Some(process), Relaxed);
                // SAFETY: mapped just now, shared and writable, and never unmapped.
                unsafe { STATE.use_status_page(start, process) };
                STATE.status_page().into_iter().for_each(|page| page.count_program());
                register_fork_handler();
            }
        }
        if asked.stack {
            stack::advise_main(environment.end());
        }
        let code = image::advise(asked.code);
        if let Some(slot) = STATE.slot().filter(|_| code != Code::Untouched) {
            slot.set_code(code);
        }
        if asked.alone {
            serve_no_children(environment, start);
        }
    });
}

/// Whether no seccomp filter judges the calls of this process. It is read by calls that the loader makes for each
/// library: openat, read and close; prctl and seccomp may be forbidden. In doubt there is a filter.
fn is_free_of_filters() -> bool {
    let Some(fd) = kernel::open_as_loader(c"/proc/self/status") else { return false };
    let mut text = [0; 4096];
    let mut length = 0;
    while let Some(more @ 1..) = text.get_mut(length..).and_then(|rest| kernel::read(fd, rest)) {
        length += more;
    }
    kernel::close(fd);
    let lines = text.get(..length).unwrap_or_default().split(|byte| *byte == b'\n');
    let mut mode = lines.filter_map(|line| line.strip_prefix(b"Seccomp:"));
    // A kernel without filters has no such line.
    length > 0 && mode.next().is_none_or(|mode| mode.trim_ascii() == b"0")
}

/// Gives masu, which waits on the futex word, time for a last count of huge memory; limited, and only if masu
/// requested it for a report.
extern "C" fn end() {
    let Some((status_page, slot)) = STATE.status_page().zip(STATE.slot()) else { return };
    if !STATE.owns_slot() {
        return;
    }
    let short = kernel::clock_ms() - BEGUN_MS.load(Relaxed) < COUNTED_FROM_MS && slot.reserved_in_all() == 0;
    if !LAST_COUNT.load(Relaxed) || short || status_page.is_closed() {
        // The slot is not read any more, and other processes may need it.
        status_page.release(&slot);
        return;
    }
    slot.set_stage(Stage::Leaving);
    status_page.doorbell().fetch_add(1, Relaxed);
    kernel::wake(status_page.doorbell());
    let step_ms = 50;
    for _ in 0..LAST_COUNT_MS / step_ms {
        if slot.stage() != Stage::Leaving || status_page.is_closed() {
            return;
        }
        kernel::wait(slot.stage_word(), Stage::Leaving as u32, step_ms);
    }
}

/// The process id in `/proc/PID/fd/N`.
fn masu_of(path: &str) -> Option<u32> {
    path.split('/').nth(2)?.parse().ok()
}

impl Environment {
    /// End of the stack's mapping: with the page of its last string. The loader's strings come after the
    /// environment's, in the same page or the next.
    fn end(self) -> usize {
        let mut entry = self.0;
        let mut last = entry.addr();
        // SAFETY: the entries up to the null pointer are strings.
        while !entry.is_null() && unsafe { !(*entry).is_null() } {
            // SAFETY: as above.
            let text = unsafe { CStr::from_ptr(*entry) };
            last = last.max(text.as_ptr().addr() + text.to_bytes().len());
            // SAFETY: this was not the last one.
            entry = unsafe { entry.add(1) };
        }
        last.next_multiple_of(Size::SMALL.bytes())
    }

    /// A variable: the address of its entry, and its value.
    fn find(self, name: &str) -> Option<(*mut c_char, &'static CStr)> {
        let mut entry = self.0;
        if entry.is_null() {
            return None;
        }
        loop {
            // SAFETY: the entries up to the null pointer are strings, and this is not beyond it.
            let text = unsafe { *entry };
            if text.is_null() {
                return None;
            }
            // SAFETY: a string that lies in the environment, and stays there.
            let value = unsafe { CStr::from_ptr(text) }.to_bytes_with_nul();
            if let Some(rest) = value.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
                return Some((text, CStr::from_bytes_with_nul(rest).ok()?));
            }
            // SAFETY: this was not the last one.
            entry = unsafe { entry.add(1) };
        }
    }
}

/// Id of this process in the pid namespace of `/proc`, the one of the status page's path: masu's.
fn known_as() -> Option<u32> {
    let mut digits = [0u8; 16];
    let digits = kernel::read_link(c"/proc/self", &mut digits)?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Leaves the placement of this process's memory alone: masu does not know the process, and could not trim it.
fn leave_alone() {
    STATE.stop();
    heap::stop();
}

/// Registers a slot for forked children, which have the same memory and are processes of their own. (Reading the
/// child's id in the outer namespace would take a call that a sandbox may forbid by then.)
fn register_fork_handler() {
    type Register = unsafe extern "C" fn(
        Option<extern "C" fn()>,
        Option<extern "C" fn()>,
        Option<extern "C" fn()>,
        *mut c_void,
    ) -> c_int;
    extern "C" fn in_child() {
        // In a sandbox even reading one's own id may be forbidden.
        if !STATE.is_acting() {
            return;
        }
        STATE.is_forked();
        kernel::keeping_errno(|| match kernel::process() {
            // The first of a namespace: no other process has this id after a fork.
            Some(1) => {
                NESTED.store(true, Relaxed);
                leave_alone();
            }
            Some(process) if !NESTED.load(Relaxed) => STATE.take_slot(process),
            _ => leave_alone(),
        });
    }
    // The C library's pthread_atfork is this, with a handle of the function's owner.
    let register = next::optional(c"__register_atfork").or_else(|| next::optional(c"pthread_atfork"));
    let Some(register) = register else { return };
    // SAFETY: one of the two functions, whose type this is (the second ignores the last argument).
    let register: Register = unsafe { core::mem::transmute(register) };
    // SAFETY: a function that stays for as long as this library, which is never unloaded.
    unsafe { register(None, None, Some(in_child), core::ptr::null_mut()) };
}

/// Removes masu's additions from the environment, in place, so that child processes run as without masu.
fn serve_no_children(environment: Environment, asked: *mut c_char) {
    // SAFETY: the entry that `find` found, `MASU_TOUCH=…`.
    unsafe { cut_value(asked, settings::VARIABLE, |_| usize::MAX) };
    let Some((entry, _)) = environment.find(settings::PRELOAD) else { return };
    let first = |value: &[u8]| value.iter().position(|byte| *byte == b':').unwrap_or(value.len()) + 1;
    // SAFETY: the entry that `find` found.
    unsafe { cut_value(entry, settings::PRELOAD, first) };
}

/// Cuts the first `cut(value)` bytes of a variable's value.
///
/// # Safety
/// `entry` is an entry `name=value` of the environment. No other thread reads it now: the program has not begun.
unsafe fn cut_value(entry: *mut c_char, name: &str, cut: impl Fn(&[u8]) -> usize) {
    // SAFETY: an entry begins with its name and the sign.
    let value = unsafe { entry.add(name.len() + 1) };
    // SAFETY: and ends in a zero byte.
    let bytes = unsafe { CStr::from_ptr(value) }.to_bytes();
    let (length, cut) = (bytes.len(), cut(bytes).min(bytes.len()));
    // SAFETY: within the value and its zero byte.
    unsafe { core::ptr::copy(value.add(cut), value, length - cut + 1) };
}
