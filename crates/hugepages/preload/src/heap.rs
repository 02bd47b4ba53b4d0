//! The C library's malloc: it asks for huge pages by itself if its parameter `thp_pagesize` is set.
//!
//! The C library's tunable (`glibc.malloc.hugetlb=1`) sets it from the environment, which the program's children
//! inherit: also a child in a sandbox whose filter kills for madvise. So the library sets the parameter in the memory
//! of this one process, and clears it when the program enters a sandbox. The parameter is found by a neighbour that
//! mallopt(3) sets (M_ARENA_TEST), and is used only if all around it looks as in glibc 2.35 to 2.41; with another
//! C library malloc stays as it is.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

use contract::placement::Size;

use crate::{kernel, next};

/// mallopt's M_ARENA_TEST, and its default on 64-bit machines.
const ARENA_TEST: c_int = -7;
const ARENA_TEST_DEFAULT: c_int = 8;

/// Two values that no program sets.
const MARKS: [c_int; 2] = [0x4d61_7375, 0x7573_614d];

/// Default of `n_mmaps_max` behind it.
const MMAPS_MAX: u32 = 65536;

/// The parameter; null while it was not found.
static THP_PAGESIZE: AtomicPtr<AtomicUsize> = AtomicPtr::new(core::ptr::null_mut());

/// Makes malloc ask for huge pages. Initialises malloc, and allocates nothing.
pub fn ask() {
    // This name is the C library's own, with any allocator of the program.
    let Some(set) = next::optional(c"__libc_mallopt") else { return };
    let Some((start, words)) = data_of(set.addr()) else { return };
    // SAFETY: mallopt of the C library, whose type this is.
    let set: unsafe extern "C" fn(c_int, c_int) -> c_int = unsafe { core::mem::transmute(set) };
    // SAFETY: sets a parameter that is read when a further arena is made; nothing else runs yet.
    let mark = |value: c_int| unsafe { set(ARENA_TEST, value) };
    // SAFETY: within the initialised data of the C library, which stays mapped; read as atomics.
    let word = |at: usize| unsafe { &*core::ptr::with_exposed_provenance::<AtomicUsize>(start).add(at) };
    let is = |at: usize, value: c_int| usize::try_from(value) == Ok(word(at).load(Relaxed));
    mark(MARKS[0]);
    let found = (0..words.saturating_sub(6)).find(|at| is(*at, MARKS[0]));
    mark(MARKS[1]);
    let found = found.filter(|at| is(*at, MARKS[1]));
    mark(ARENA_TEST_DEFAULT);
    let Some(at) = found.filter(|at| is(*at, ARENA_TEST_DEFAULT)) else { return };
    // arena_test, arena_max, thp_pagesize, hp_pagesize, hp_flags and n_mmaps, n_mmaps_max and max_n_mmaps.
    let empty = |at: usize| word(at).load(Relaxed) == 0;
    let is_known = empty(at + 2) && empty(at + 3) && word(at + 4).load(Relaxed) & 0xffff_ffff == 0;
    if is_known && word(at + 5).load(Relaxed) & 0xffff_ffff == MMAPS_MAX as usize {
        let parameter = word(at + 2);
        parameter.store(Size::HUGE.bytes(), Relaxed);
        THP_PAGESIZE.store(core::ptr::from_ref(parameter).cast_mut(), Relaxed);
    }
}

/// Makes malloc ask no more.
pub fn stop() {
    let parameter = THP_PAGESIZE.swap(core::ptr::null_mut(), Relaxed);
    if !parameter.is_null() {
        // SAFETY: found by `ask`; the C library stays mapped.
        unsafe { (*parameter).store(0, Relaxed) };
    }
}

/// Search for the object with an address.
struct Search {
    inside: u64,
    found: Option<(usize, usize)>,
}

/// Initialised writable data of the object that has `inside`, behind what is read-only after the start: its address and
/// its words.
fn data_of(inside: usize) -> Option<(usize, usize)> {
    let mut search = Search { inside: inside as u64, found: None };
    // SAFETY: the function below has the required type, and gets the variable above.
    unsafe { libc::dl_iterate_phdr(Some(of_object), (&raw mut search).cast()) };
    search.found
}

/// # Safety
/// As dl_iterate_phdr(3) calls it, with a [`Search`].
unsafe extern "C" fn of_object(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's, for the time of this call; the variable of `data_of`.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader gives their number, and they stay mapped with the object.
    let parts = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let relative = search.inside.wrapping_sub(info.dlpi_addr);
    let loaded = |part: &&libc::Elf64_Phdr| part.p_type == libc::PT_LOAD;
    if !parts.iter().filter(loaded).any(|part| relative.wrapping_sub(part.p_vaddr) < part.p_memsz) {
        return 0;
    }
    let sealed =
        parts.iter().find(|part| part.p_type == libc::PT_GNU_RELRO).map_or(0, |part| part.p_vaddr + part.p_memsz);
    let data = parts.iter().filter(loaded).rfind(|part| part.p_flags & libc::PF_W != 0);
    search.found = data.and_then(|part| {
        let start = part.p_vaddr.max(sealed).next_multiple_of(8);
        let bytes = (part.p_vaddr + part.p_filesz).checked_sub(start)?;
        Some((kernel::address(info.dlpi_addr + start), kernel::address(bytes / 8)))
    });
    1
}
