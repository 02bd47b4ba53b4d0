//! Mappings from before the program begins: data and text of the program and of its libraries.
//!
//! `.bss` is anonymous memory and only needs the advice. `.data` is a private mapping of the file, and the kernel
//! makes no huge pages of it: whole windows of it are copied to anonymous memory, which then takes their place in one
//! system call. That is only done while the process has one thread, since a write meanwhile would be lost. Text is
//! not written, so it can be done at any time; but tools that use the file of a mapping (perf, uprobes) do not find
//! its symbols any more. So the first choice is that the kernel maps the file's own pages huge.

use core::ffi::{c_int, c_void};
use core::ops::Range;

use contract::placement::{self, Size};
use contract::status_page::{Code, Kind};

use crate::state::STATE;
use crate::{kernel, next, reservation};

/// Request for the objects.
struct Wanted {
    code: bool,
    single: bool,
    outcome: Code,
}

/// Advises data, and text if `code`; returns the result for the text.
pub fn advise(code: bool) -> Code {
    let mut wanted = Wanted { code, single: is_single_threaded(), outcome: Code::Untouched };
    // SAFETY: the function below has the required type, and gets the variable above.
    unsafe { libc::dl_iterate_phdr(Some(of_object), (&raw mut wanted).cast()) };
    wanted.outcome
}

/// Called for each loaded object.
///
/// # Safety
/// As dl_iterate_phdr(3) calls it, with a [`Wanted`].
unsafe extern "C" fn of_object(info: *mut libc::dl_phdr_info, _: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: the loader's, for the time of this call.
    let info = unsafe { &*info };
    // SAFETY: the variable that `advise` passes on; no other reference exists now.
    let wanted = unsafe { &mut *wanted.cast::<Wanted>() };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader gives their number, and they stay mapped with the object.
    let parts = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr;
    let ours = (of_object as *const () as usize) as u64;
    if parts.iter().any(|part| (part.p_vaddr..part.p_vaddr + part.p_memsz).contains(&ours.wrapping_sub(base))) {
        return 0;
    }
    let read_only_after_start = parts.iter().find(|part| part.p_type == libc::PT_GNU_RELRO);
    let sealed = read_only_after_start.map_or(0..0, |part| part.p_vaddr..part.p_vaddr + part.p_memsz);
    for part in parts.iter().filter(|part| part.p_type == libc::PT_LOAD) {
        if part.p_flags & libc::PF_W != 0 {
            // SAFETY: a part of a loaded object, with its range that was made read-only.
            unsafe { of_data(base, part, &sealed, wanted.single) };
        } else if wanted.code && part.p_flags & libc::PF_X != 0 && part.p_flags & libc::PF_R != 0 {
            // SAFETY: a part of a loaded object.
            let outcome = unsafe { of_text(base, part) };
            if outcome as u32 > wanted.outcome as u32 {
                wanted.outcome = outcome;
            }
        }
    }
    0
}

fn page_up(address: u64) -> usize {
    kernel::address(address).next_multiple_of(Size::SMALL.bytes())
}

fn page_down(address: u64) -> usize {
    kernel::address(address) & !(Size::SMALL.bytes() - 1)
}

/// # Safety
/// `part` is a writable part of an object loaded at `base`.
unsafe fn of_data(base: u64, part: &libc::Elf64_Phdr, sealed: &Range<u64>, single: bool) {
    let start = base + part.p_vaddr;
    let (file_end, end) = (start + part.p_filesz, start + part.p_memsz);
    let bss = page_up(file_end);
    if page_up(end) > bss {
        advise_and_count(bss, page_up(end) - bss, Kind::Bss);
    }
    // The rest behind the range that was made read-only, whether that is the first piece of this part or all of it.
    let sealed_here = sealed.start < part.p_vaddr + part.p_memsz && sealed.end > part.p_vaddr;
    let data = if sealed_here { page_up(base + sealed.end) } else { page_up(start) };
    let bytes = page_down(file_end).saturating_sub(data);
    if let Some((first, whole)) = placement::whole_part(data, bytes, Size::HUGE) {
        let run = if part.p_flags & libc::PF_X != 0 { libc::PROT_EXEC } else { 0 };
        let protection = libc::PROT_READ | libc::PROT_WRITE | run;
        // SAFETY: loaded data behind the read-only range; no other thread runs that could write to it meanwhile.
        if single && unsafe { replace(first, whole, protection) } {
            STATE.count_reserved(Kind::Bss, placement::whole_pages(first, whole, Size::HUGE));
        }
    }
}

/// # Safety
/// `part` is a readable, executable and not writable part of an object loaded at `base`.
unsafe fn of_text(base: u64, part: &libc::Elf64_Phdr) -> Code {
    let start = base + part.p_vaddr;
    let bytes = page_down(start + part.p_filesz).saturating_sub(page_up(start));
    let Some((first, whole)) = placement::whole_part(page_up(start), bytes, Size::HUGE) else { return Code::Untouched };
    let windows = placement::whole_pages(first, whole, Size::HUGE);
    let congruent = start.wrapping_sub(part.p_offset).is_multiple_of(Size::HUGE.bytes() as u64);
    let huge_file = congruent
        && kernel::advise(first, whole, libc::MADV_HUGEPAGE)
        && kernel::advise(first, whole, libc::MADV_COLLAPSE);
    // SAFETY: loaded text, which is not written.
    let outcome = match huge_file || unsafe { replace(first, whole, libc::PROT_READ | libc::PROT_EXEC) } {
        true if huge_file => Code::FileMapped,
        true => Code::Copied,
        false => return Code::Refused,
    };
    STATE.count_reserved(Kind::Code, windows);
    outcome
}

/// Copies `bytes` from `start` to fresh anonymous memory on huge pages, which then takes their place. False, with
/// everything as it was, when that memory is not available.
///
/// # Safety
/// Mapped and readable, and not written meanwhile; `protection` is its present protection.
unsafe fn replace(start: usize, bytes: usize, protection: c_int) -> bool {
    let flags = reservation::PLAIN | libc::MAP_FIXED;
    let phase = start & (Size::HUGE.bytes() - 1);
    let Some(copy) = reservation::reserve(bytes, Size::HUGE, phase, reservation::PLAIN) else { return false };
    // SAFETY: our own empty reservation becomes memory.
    if !unsafe { kernel::mprotect(copy, bytes, libc::PROT_READ | libc::PROT_WRITE) } {
        // SAFETY: reserved above, known only here.
        unsafe { kernel::munmap(copy, bytes) };
        return false;
    }
    kernel::advise(copy, bytes, libc::MADV_HUGEPAGE);
    // SAFETY: `bytes` are readable at `start` (the caller's) and writable at `copy` (ours), and they do not overlap.
    unsafe { copy_bytes(start, copy, bytes) };
    // SAFETY: the copy, known only here; then the move, which replaces the original by the same content at once.
    let moved = unsafe {
        kernel::mprotect(copy, bytes, protection)
            && kernel::mremap(copy, bytes, bytes, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, start) != kernel::FAILED
    };
    if !moved {
        // The kernel unmaps the target before it finds that it cannot move (for lack of its own memory): so the
        // content is put back, which is the same content if it is still there.
        // SAFETY: the copy is whole, readable since it was written, and known only here; the original's place is the
        // program's, with the same content as before.
        unsafe {
            if kernel::mapped(kernel::mmap(start, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)).is_some() {
                copy_bytes(copy, start, bytes);
                kernel::mprotect(start, bytes, protection);
            }
            kernel::munmap(copy, bytes);
        }
    }
    moved
}

/// # Safety
/// `bytes` are readable at `from` and writable at `to`, and do not overlap.
unsafe fn copy_bytes(from: usize, to: usize, bytes: usize) {
    // SAFETY: the caller's.
    unsafe {
        core::ptr::copy_nonoverlapping(
            core::ptr::with_exposed_provenance::<u8>(from),
            core::ptr::with_exposed_provenance_mut::<u8>(to),
            bytes,
        );
    }
}

fn advise_and_count(start: usize, bytes: usize, kind: Kind) {
    if STATE.sizes().largest_within(bytes).is_some() {
        STATE.advise(start, bytes, kind);
    }
}

/// True if the process has never had a second thread, according to the C library.
fn is_single_threaded() -> bool {
    next::optional(c"__libc_single_threaded").is_some_and(|flag| {
        // SAFETY: a variable of the C library, a char that it sets to zero before it starts a second thread.
        unsafe { flag.cast::<u8>().read_volatile() != 0 }
    })
}
