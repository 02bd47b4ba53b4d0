//! The target's memory: mapping it, touching exactly the pages that an order names, and comparing contents.
//!
//! No Rust reference ever points into a mapping, because other processes, forks and the kernel change its contents:
//! every access is volatile, through an address. An order for memory that is not mapped ends the process with a fault,
//! as such an access does in any program.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ftruncate, open};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use units::spread::Random;

use super::orders::{Answer, Backing, Part, Protection, pattern};

const WINDOW: u64 = 2 << 20;
const PAGE: u64 = 4096;
const WORDS_PER_PAGE: u64 = PAGE / 8;

/// Maps `windows` whole windows, with an inaccessible window on both sides so that the kernel merges them with no
/// neighbour. Start and end.
pub(super) fn map(backing: Backing, windows: u64) -> Result<(u64, u64), Errno> {
    let bytes = windows.checked_mul(WINDOW).filter(|&bytes| bytes > 0).ok_or(Errno::INVAL)?;
    let place = reserve(bytes)?;
    let read_write = ProtFlags::READ | ProtFlags::WRITE;
    let sharing = match backing {
        Backing::Anonymous | Backing::PrivateFile => MapFlags::PRIVATE,
        Backing::ReservedHuge => MapFlags::PRIVATE | MapFlags::HUGETLB,
        Backing::SharedAnonymous | Backing::SharedFile => MapFlags::SHARED,
    };
    let flags = sharing | MapFlags::FIXED;
    match backing {
        Backing::Anonymous | Backing::SharedAnonymous | Backing::ReservedHuge => {
            // SAFETY: the place was reserved by `reserve` for this mapping alone, so nothing of ours is replaced.
            unsafe { mm::mmap_anonymous(pointer(place), length(bytes), read_write, flags)? };
        }
        Backing::PrivateFile | Backing::SharedFile => {
            let file = nameless_file(bytes)?;
            // SAFETY: as above; the file keeps its length for as long as it is mapped, because it has no name.
            unsafe { mm::mmap(pointer(place), length(bytes), read_write, flags, file.as_fd(), 0)? };
        }
    }
    Ok((place, place + bytes))
}

/// Maps `windows` windows of private memory at `start`, where nothing may be yet, without a promise of memory for all of
/// them. Start and end.
pub(super) fn map_at(start: u64, windows: u64) -> Result<(u64, u64), Errno> {
    let bytes = windows.checked_mul(WINDOW).filter(|&bytes| bytes > 0).ok_or(Errno::INVAL)?;
    let read_write = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with this flag the kernel replaces nothing that is mapped already.
    unsafe { mm::mmap_anonymous(pointer(start), length(bytes), read_write, flags)? };
    Ok((start, start + bytes))
}

/// Moves a mapping, or a part of one, to another place with its pages. Start and end there.
pub(super) fn move_away(part: Part, pages_off: u64) -> Result<(u64, u64), Errno> {
    let bytes = part.end - part.start;
    let place = reserve(bytes)? + pages_off * PAGE;
    let flags = MremapFlags::MAYMOVE;
    // SAFETY: the old place is a mapping of the target process's that nothing here refers to; the new one was reserved
    // just now.
    unsafe { mm::mremap_fixed(pointer(part.start), length(bytes), length(bytes), flags, pointer(place))? };
    Ok((place, place + bytes))
}

/// Addresses for `bytes`, aligned to a window, with an inaccessible window before and after.
fn reserve(bytes: u64) -> Result<u64, Errno> {
    let whole = bytes.next_multiple_of(WINDOW) + 3 * WINDOW;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses the place, so nothing of ours is replaced.
    let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), length(whole), ProtFlags::empty(), flags)? };
    Ok((start.addr() as u64 + WINDOW).next_multiple_of(WINDOW))
}

/// Fills each page of the part with its pattern.
pub(super) fn write(part: Part, seed: u64) {
    for word in part.pages().flat_map(words) {
        // SAFETY: the test maps the memory that it orders to be written; otherwise this faults like any wild write, in
        // the target process.
        unsafe { word_at(word).write_volatile(pattern(part, seed, word)) };
    }
}

/// Sets one byte of each page, at this distance from the page's start, to something that is not zero.
pub(super) fn write_byte(part: Part, at: u64) {
    for page in part.pages() {
        // SAFETY: as in `write`; `at` is less than a page.
        unsafe { pointer(page + at % PAGE).cast::<u8>().write_volatile(0xa5) };
    }
}

/// Reads one word of each page.
pub(super) fn read(part: Part) {
    part.pages().for_each(read_page);
}

/// Reads one word of one page.
pub(super) fn read_page(page: u64) {
    // SAFETY: the test maps the memory that it orders to be read; otherwise this faults like any wild read, in the
    // target process.
    unsafe { word_at(page).read_volatile() };
}

/// Rewrites the present contents of each page, so that it is dirtied and still checks.
pub(super) fn rewrite(part: Part) {
    for page in part.pages() {
        // SAFETY: as in `read` and `write`. Two spinners that do this at once store the same value.
        unsafe { word_at(page).write_volatile(word_at(page).read_volatile()) };
    }
}

/// Compares every word of the part with the pattern, and reports the first that differs.
pub(super) fn check(part: Part, seed: u64) -> Answer {
    for address in part.pages().flat_map(words) {
        // SAFETY: as in `read`.
        let found = unsafe { word_at(address).read_volatile() };
        let expected = pattern(part, seed, address);
        if found != expected {
            return Answer::Differs { address, found, expected };
        }
    }
    Answer::Done
}

pub(super) fn protect(part: Part, protection: Protection) -> Result<(), Errno> {
    let flags = match protection {
        Protection::None => MprotectFlags::empty(),
        Protection::Read => MprotectFlags::READ,
        Protection::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    // SAFETY: the part is one of the target process's own mappings, to which no reference exists.
    unsafe { mm::mprotect(pointer(part.start), whole(part), flags) }
}

pub(super) fn unmap(part: Part) -> Result<(), Errno> {
    // SAFETY: as in `protect`.
    unsafe { mm::munmap(pointer(part.start), whole(part)) }
}

/// `madvise` with the kernel's number, so that newer advice can be given too.
pub(super) fn advise(part: Part, advice: i32) -> Result<(), Errno> {
    // SAFETY: as in `protect`; advice that drops content drops only the content of that mapping.
    answered(unsafe { libc::madvise(pointer(part.start), whole(part), advice) })
}

pub(super) fn lock(part: Part) -> Result<(), Errno> {
    // SAFETY: locking changes no content.
    unsafe { mm::mlock(pointer(part.start), whole(part)) }
}

pub(super) fn unlock(part: Part) -> Result<(), Errno> {
    // SAFETY: unlocking changes no content.
    unsafe { mm::munlock(pointer(part.start), whole(part)) }
}

/// Makes the processor forget the translations that it holds for this process, so that the next access to each page
/// walks the page table and sets its accessed bit.
///
/// Unmapping more pages than `tlb_single_page_flush_ceiling` (33) flushes all of the address space at once.
pub(super) fn forget_translations() -> Result<(), Errno> {
    let bytes = 64 * 4096;
    let read_write = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the place, so nothing of ours is replaced.
    let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, read_write, MapFlags::PRIVATE)? };
    for page in 0..64 {
        // SAFETY: within the mapping made above.
        unsafe { start.cast::<u8>().add(page * 4096).write_volatile(1) };
    }
    // SAFETY: the mapping made above, which nothing refers to any more.
    unsafe { mm::munmap(start, bytes) }
}

/// Forbids huge pages as a program does, in every system-wide mode.
pub(super) fn forbid_huge_pages() -> Result<(), Errno> {
    // SAFETY: PR_SET_THP_DISABLE takes one number and three zeros, and touches no memory of ours.
    answered(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) })
}

/// Offers all memory, including later mappings, to be merged with equal pages (`PR_SET_MEMORY_MERGE`, Linux 6.4).
pub(super) fn offer_all() -> Result<(), Errno> {
    const PR_SET_MEMORY_MERGE: libc::c_int = 67;
    // SAFETY: it takes one number and three zeros, and changes no content.
    answered(unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) })
}

/// Load latency of these pages: the median over one line of each page. Pages and lines are in random order: newer
/// processors predict large steps, and the rest of a page after a few of its lines.
#[cfg(target_arch = "x86_64")]
pub(super) fn time_loads(part: Part) -> Result<u64, Errno> {
    use std::arch::x86_64::{_mm_lfence, _mm_mfence, _rdtsc};
    let mut pages: Vec<u64> = part.pages().collect();
    let mut random = Random::seeded(0);
    random.shuffle(&mut pages);
    // The translations are there before the clock runs.
    pages.iter().for_each(|&page| read_page(page));
    let mut times = Vec::with_capacity(pages.len());
    for page in pages {
        // Not close to the first line, which is near now.
        let word = word_at(page + (4 + random.below(56)) as u64 * 64);
        // SAFETY: every x86-64 has the fences and the clock, and they touch no memory; the word is one that the test maps, as in `read_page`.
        times.push(unsafe {
            _mm_mfence();
            _mm_lfence();
            let begun = _rdtsc();
            _mm_lfence();
            word.read_volatile();
            _mm_lfence();
            _rdtsc() - begun
        });
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied().ok_or(Errno::INVAL)
}

/// Only x86-64 has the clock.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn time_loads(_: Part) -> Result<u64, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// A temporary file of `bytes` without a name.
fn nameless_file(bytes: u64) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// The kernel's last answer to this thread.
pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn answered(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

fn words(page: u64) -> impl Iterator<Item = u64> + Clone {
    (0..WORDS_PER_PAGE).map(move |word| page + word * 8)
}

fn word_at(address: u64) -> *mut u64 {
    pointer(address).cast()
}

fn whole(part: Part) -> usize {
    length(part.end - part.start)
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(length(address))
}

#[expect(clippy::cast_possible_truncation, reason = "masu runs on 64-bit machines only, as the line above checks")]
const fn length(bytes: u64) -> usize {
    const { assert!(usize::BITS == 64) };
    bytes as usize
}
