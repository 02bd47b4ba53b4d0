//! `libmasu-preload.so`: superpages from the first touch, inside an unmodified program.
//!
//! `masu run --huge touch` loads it through LD_PRELOAD. At the start (`start.rs`) it reads masu's request, takes a
//! slot on the shared status page, and advises the existing mappings: the programs' own data (`image.rs`), text and
//! the stack if requested. From then on it intercepts the calls by which programs get memory. A large mapping is
//! placed so that more of it can be huge, and advised; the kernel gives the huge page at the first touch. The C
//! library's own malloc does not pass here: a parameter makes it do the same (`heap.rs`).
//!
//! Rules: a hook allocates nothing, takes no lock, prints nothing, makes only the calls in `kernel.rs`, keeps errno,
//! and returns exactly the kernel's answer, except for the address where the program left it to the kernel. In doubt
//! it passes the call through. There is no reachable panic in here, no standard library and no allocator.

#![no_std]

mod exec;
mod heap;
mod image;
mod kernel;
mod mapping_budget;
mod next;
mod page_file;
mod reservation;
mod stack;
mod start;
mod state;

use core::ffi::{c_int, c_long, c_void};

use contract::image::LeftOut;
use contract::placement::{self, Request, Size};
use contract::status_page::Kind;

use crate::kernel::{mapped, pointer};
use crate::state::STATE;

/// Nothing here panics; after a panic the program is stopped rather than continued wrongly.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        // SAFETY: ends the process; there is no state to be kept.
        unsafe { libc::syscall(libc::SYS_exit_group, 134) };
    }
}

/// mmap(3).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    start: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let foreign = next::foreign_mmap();
    if let Some(next) = foreign.filter(|_| STATE.sizes().largest_within(bytes).is_none()) {
        // SAFETY: the caller's.
        return unsafe { next(start, bytes, protection, flags, fd, offset) };
    }
    let start = start.expose_provenance();
    // SAFETY: the caller's.
    let plain = || unsafe { map_as_asked(foreign, start, bytes, protection, flags, fd, offset) };
    let sizes = STATE.sizes();
    if sizes.largest_within(bytes).is_none() {
        return pointer(plain());
    }
    let has = |flag: c_int| flags & flag != 0;
    let placed_exactly = has(libc::MAP_FIXED) || has(libc::MAP_FIXED_NOREPLACE);
    let placement = placement::placement(
        Request {
            bytes,
            private_anonymous: flags & libc::MAP_TYPE == libc::MAP_PRIVATE && has(libc::MAP_ANONYMOUS),
            placed: placed_exactly || start != 0,
            stack: has(libc::MAP_GROWSDOWN) || (has(libc::MAP_STACK) && !STATE.stack()),
            peculiar: has(libc::MAP_LOCKED | libc::MAP_HUGETLB | libc::MAP_32BIT),
        },
        sizes,
        // Another preloaded library with this hook must see the original call.
        STATE.align() && foreign.is_none(),
    );
    if !placement.advise || !mapping_budget::may_serve() {
        return pointer(plain());
    }
    // Pages populated before the advice would be small ones.
    let populate = has(libc::MAP_POPULATE) && !has(libc::MAP_NONBLOCK);
    let flags = flags & !libc::MAP_POPULATE;
    let aligned = |size| kernel::keeping_errno(|| reservation::map(bytes, size, protection, flags));
    // SAFETY: the caller's, without a flag that only sets the time of populating.
    let as_asked = || unsafe { map_as_asked(foreign, start, bytes, protection, flags, fd, offset) };
    let at = match placement.align_to.and_then(aligned) {
        Some(at) => at,
        None => match as_asked() {
            kernel::FAILED => return pointer(kernel::FAILED),
            answer => kernel::address(answer.cast_unsigned()),
        },
    };
    kernel::keeping_errno(|| {
        STATE.advise(at, bytes, Kind::Mmap);
        if populate {
            let write = protection & libc::PROT_WRITE != 0;
            kernel::advise(at, bytes, if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ });
        }
    });
    core::ptr::with_exposed_provenance_mut(at)
}

/// # Safety
/// As mmap(2).
unsafe fn map_as_asked(
    foreign: Option<next::Mmap>,
    start: usize,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> c_long {
    match foreign {
        // SAFETY: the caller's.
        None => unsafe { kernel::mmap(start, bytes, protection, flags, fd, offset) },
        Some(next) => {
            let start = core::ptr::with_exposed_provenance_mut(start);
            // SAFETY: the caller's.
            unsafe { next(start, bytes, protection, flags, fd, offset) }.expose_provenance().cast_signed() as c_long
        }
    }
}

/// The same under the name of the large-file interface.
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    start: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap(start, bytes, protection, flags, fd, offset) }
}

/// mremap(3). A mapping that must move to grow is moved to a place where its huge pages stay whole. (In C the last
/// argument is optional; it is passed in the same register.)
///
/// # Safety
/// As mremap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_bytes: usize,
    bytes: usize,
    flags: c_int,
    place: *mut c_void,
) -> *mut c_void {
    if let Some(next) = next::foreign_mremap() {
        // SAFETY: the caller's.
        return unsafe { next(old, old_bytes, bytes, flags, place) };
    }
    let (old, place) = (old.expose_provenance(), place.expose_provenance());
    let grows = flags == libc::MREMAP_MAYMOVE && bytes > old_bytes && old_bytes != 0;
    let size = STATE.sizes().largest_within(bytes).filter(|_| grows && STATE.align() && reservation::may_place());
    let size = size.filter(|_| mapping_budget::may_serve());
    // SAFETY: the caller's, with fewer flags.
    let grown = size.and_then(|size| unsafe { grow(old, old_bytes, bytes, size) });
    // SAFETY: the caller's.
    let answer = grown.unwrap_or_else(|| unsafe { kernel::mremap(old, old_bytes, bytes, flags, place) });
    let began_small = STATE.sizes().largest_within(bytes) > STATE.sizes().largest_within(old_bytes);
    if let Some(at) = mapped(answer).filter(|_| grows && began_small) {
        // Other than private memory is hardly affected: the kernel keeps the advice, and gives huge pages there by
        // other rules.
        kernel::keeping_errno(|| STATE.advise(at, bytes, Kind::Mmap));
    }
    pointer(answer)
}

/// Grows a mapping in place, or at an aligned place; `None` when neither worked.
///
/// # Safety
/// As mremap(2) with MREMAP_MAYMOVE.
unsafe fn grow(old: usize, old_bytes: usize, bytes: usize, size: Size) -> Option<c_long> {
    kernel::keeping_errno(|| {
        // SAFETY: the caller's, without MREMAP_MAYMOVE.
        let here = unsafe { kernel::mremap(old, old_bytes, bytes, 0, 0) };
        if here != kernel::FAILED {
            return Some(here);
        }
        if kernel::errno() != libc::ENOMEM {
            return None;
        }
        // Huge pages stay whole only at the same offset from a multiple of their size as before.
        let phase = if placement::whole_pages(old, old_bytes, size) > 0 { old & (size.bytes() - 1) } else { 0 };
        let place = reservation::reserve(bytes, size, phase, reservation::PLAIN)?;
        // SAFETY: the caller's; `place` holds only our own empty reservation.
        let there = unsafe { kernel::mremap(old, old_bytes, bytes, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, place) };
        if there == kernel::FAILED {
            reservation::release(place, bytes);
            return None;
        }
        Some(there)
    })
}

/// brk(3): the C library's function, then the advice.
///
/// # Safety
/// As brk(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    let before = heap_end();
    // SAFETY: the caller's.
    let answer = unsafe { next::brk(end) };
    if answer == 0 {
        advise_heap(before, heap_end());
    }
    answer
}

/// sbrk(3): the C library's function, then the advice. (The C library's malloc calls its sbrk directly.)
///
/// # Safety
/// As sbrk(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(more: isize) -> *mut c_void {
    // SAFETY: the caller's.
    let before = unsafe { next::sbrk(more) };
    if more > 0 && before.addr() != usize::MAX {
        advise_heap(before.addr(), before.addr().saturating_add(more.cast_unsigned()));
    }
    before
}

/// pthread_create(3): with `--stack`, the new thread advises its stack before it begins.
///
/// # Safety
/// As pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: next::Function,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's attributes.
    let start = if STATE.stack() { unsafe { stack::thread_start(attributes, function, argument) } } else { None };
    let Some(start) = start else {
        // SAFETY: the caller's.
        return unsafe { next::pthread_create(thread, attributes, function, argument) };
    };
    // SAFETY: the caller's, with a function that calls the caller's with its argument.
    let answer = unsafe { next::pthread_create(thread, attributes, stack::begin, start.argument()) };
    if answer != 0 {
        start.cancel();
    }
    answer
}

/// prctl(2). A program that is about to enter a sandbox (seccomp) is left alone from then on: a filter need not allow
/// our calls. (In C the number of arguments depends on the operation; they are passed in the same registers.)
///
/// # Safety
/// As prctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(operation: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    before_sandbox(operation);
    // SAFETY: the caller's.
    unsafe { next::prctl(operation, a, b, c, d) }
}

/// Leaves a program alone that is about to enter a sandbox.
fn before_sandbox(operation: c_int) {
    if matches!(operation, libc::PR_SET_NO_NEW_PRIVS | libc::PR_SET_SECCOMP) {
        if STATE.is_acting() {
            STATE.count_left_out(LeftOut::OwnSandbox);
        }
        STATE.stop();
        heap::stop();
    }
    if operation == libc::PR_SET_SECCOMP {
        exec::set_sandboxed();
    }
}

/// syscall(3), by which libraries call seccomp(2). (In C the number of arguments depends on the call; reading more of
/// them than there are reads registers and the stack.)
///
/// # Safety
/// As the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    match number {
        // SECCOMP_SET_MODE_STRICT and _FILTER.
        libc::SYS_seccomp if a & 0xffff_ffff <= 1 => before_sandbox(libc::PR_SET_SECCOMP),
        #[expect(clippy::cast_possible_truncation, reason = "the kernel reads an int")]
        libc::SYS_prctl => before_sandbox(a as c_int),
        _ => {}
    }
    // SAFETY: the caller's.
    unsafe { next::syscall(number, a, b, c, d, e, f) }
}

fn heap_end() -> usize {
    // SAFETY: asks, and moves nothing.
    unsafe { next::sbrk(0) }.addr()
}

/// Advises the growth of the heap, to whole pages, so that it is one mapping with the rest.
fn advise_heap(before: usize, end: usize) {
    if STATE.sizes() == placement::Sizes::NONE || end <= before {
        return;
    }
    let start = before & !(Size::SMALL.bytes() - 1);
    kernel::keeping_errno(|| STATE.advise(start, end.next_multiple_of(Size::SMALL.bytes()) - start, Kind::Heap));
}
