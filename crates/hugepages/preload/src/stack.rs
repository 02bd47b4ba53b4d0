//! Stacks on huge pages, for `--stack`: useful only for deep recursion and for arrays on the stack.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use contract::placement::{self, Size};
use contract::status_page::Kind;

use crate::next::Function;
use crate::state::STATE;
use crate::{kernel, next};

/// Largest size that the main thread's stack is extended to at once.
const MAIN_BYTES_MAX: usize = 64 << 20;

/// Margin below the limit: other threads' libraries may need a little, and the kernel rounds.
const SLACK_BYTES: usize = 64 << 10;

/// The kernel's gap below a stack (`stack_guard_gap`, 256 pages), and as much again.
const GAP_BYTES: usize = 2 << 20;

/// Stack of a thread without a requested size, where there is no limit (glibc's value).
const UNLIMITED_THREAD_BYTES: usize = 2 << 20;

/// Stack size of a thread that requests none.
static THREAD_BYTES: AtomicUsize = AtomicUsize::new(UNLIMITED_THREAD_BYTES);

/// Extends the main thread's stack to its limit, at most 64 MiB, and advises it. The kernel extends a stack page by
/// page, so otherwise no window of it would ever be untouched and whole. `top` is the end of the stack's mapping.
pub fn advise_main(top: usize) {
    let limit = limit_bytes();
    THREAD_BYTES.store(limit.unwrap_or(UNLIMITED_THREAD_BYTES), Relaxed);
    let page = Size::SMALL.bytes();
    let bytes = limit.unwrap_or(MAIN_BYTES_MAX).min(MAIN_BYTES_MAX).saturating_sub(SLACK_BYTES);
    let Some(lowest) = top.checked_sub(bytes).map(|lowest| lowest & !(page - 1)) else { return };
    let here = core::ptr::from_ref(&bytes).addr();
    // The kernel is made to read there, which extends the stack, or fails on unmapped memory.
    if lowest < here && is_free_below(lowest, here) && kernel::can_read(lowest) {
        let used_from = here & !(page - 1);
        STATE.advise(lowest, used_from - lowest, Kind::Stack);
    }
}

/// Whether nothing is mapped between the present stack and its future end, nor close below.
fn is_free_below(lowest: usize, here: usize) -> bool {
    // The present stack (128 KiB at least, more after deep calls) is not checked.
    let top = (here & !(Size::SMALL.bytes() - 1)).saturating_sub(GAP_BYTES);
    let start = lowest.saturating_sub(GAP_BYTES);
    if top <= start {
        return false;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: takes the place only if nothing is there.
    let answer = unsafe { kernel::mmap(start, top - start, libc::PROT_NONE, flags, -1, 0) };
    let Some(at) = kernel::mapped(answer) else { return false };
    // SAFETY: mapped just now, by us, and empty.
    unsafe { kernel::munmap(at, top - start) };
    at == start
}

/// Work of a new thread after it has advised its stack. There is a fixed number of these, so that nothing is
/// allocated: a thread takes its own before it does anything else, so they are free again at once.
#[derive(Debug)]
pub struct ThreadStart {
    taken: AtomicBool,
    function: AtomicUsize,
    argument: AtomicPtr<c_void>,
    stack_bytes: AtomicUsize,
}

static THREAD_STARTS: [ThreadStart; 64] = [const {
    ThreadStart {
        taken: AtomicBool::new(false),
        function: AtomicUsize::new(0),
        argument: AtomicPtr::new(core::ptr::null_mut()),
        stack_bytes: AtomicUsize::new(0),
    }
}; 64];

impl ThreadStart {
    /// Argument for the thread in place of its own.
    pub fn argument(&'static self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// Releases it when no thread was started.
    pub fn cancel(&self) {
        self.taken.store(false, Release);
    }
}

/// Stores the work of a new thread. `None` when all are taken, or its stack size is unknown: then it is left alone.
///
/// # Safety
/// `attributes` is null or points to attributes.
pub unsafe fn thread_start(
    attributes: *const libc::pthread_attr_t,
    function: Function,
    argument: *mut c_void,
) -> Option<&'static ThreadStart> {
    type GetSize = unsafe extern "C" fn(*const libc::pthread_attr_t, *mut usize) -> i32;
    let mut bytes = THREAD_BYTES.load(Relaxed);
    if !attributes.is_null() {
        let get: *mut c_void = next::optional(c"pthread_attr_getstacksize")?;
        // SAFETY: the C library's function of that name, whose type this is.
        let get: GetSize = unsafe { core::mem::transmute(get) };
        // SAFETY: the caller's attributes, and a variable of ours.
        if unsafe { get(attributes, &raw mut bytes) } != 0 {
            return None;
        }
    }
    let free = |thread_start: &&ThreadStart| !thread_start.taken.swap(true, Acquire);
    let thread_start = THREAD_STARTS.iter().find(free)?;
    thread_start.function.store(function as usize, Relaxed);
    thread_start.argument.store(argument, Relaxed);
    thread_start.stack_bytes.store(bytes, Relaxed);
    Some(thread_start)
}

/// Start of a thread: it advises its stack, which lies below its descriptor, and calls its own function. A little of
/// the neighbouring memory may be advised too, which changes no content.
///
/// # Safety
/// Called by the C library in a new thread, with a [`ThreadStart`].
pub unsafe extern "C" fn begin(thread_start: *mut c_void) -> *mut c_void {
    // SAFETY: one of `THREAD_STARTS`; only this thread has it until it marks it free.
    let thread_start = unsafe { &*thread_start.cast::<ThreadStart>() };
    let function = thread_start.function.load(Relaxed);
    let argument = thread_start.argument.load(Relaxed);
    let bytes = thread_start.stack_bytes.load(Relaxed);
    thread_start.cancel();
    let here = core::ptr::from_ref(&bytes).addr() & !(Size::SMALL.bytes() - 1);
    // SAFETY: no arguments; the descriptor's address, which is not read.
    let top = kernel::address(unsafe { libc::pthread_self() });
    if let Some(start) = top.checked_sub(bytes).filter(|start| (*start..top).contains(&here)) {
        // Whole windows only: the rest could not be huge, and need not be split from its neighbours.
        if let Some((first, whole)) = placement::whole_part(start, here - start, Size::HUGE) {
            kernel::keeping_errno(|| STATE.advise(first, whole, Kind::Stack));
        }
    }
    // SAFETY: stored by `thread_start` from a function of this type.
    let function: Function = unsafe { core::mem::transmute(function) };
    // SAFETY: the contract of pthread_create's caller.
    unsafe { function(argument) }
}

/// The limit of the stack; `None` for none.
fn limit_bytes() -> Option<usize> {
    usize::try_from(kernel::limit(libc::RLIMIT_STACK)?).ok()
}
