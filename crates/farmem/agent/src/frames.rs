//! The pager's machine on Linux: `exchange.rs` moves the pages; the store is a file, or a server behind masu.

use core::convert::Infallible;

use farmem_engine::PAGE_BYTES;
use farmem_engine::backend::Backend;
use farmem_engine::pager::{Checksum, LOOKED_AT, Machine, Pager};
use farmem_engine::space::Page;
use xxhash_rust::xxh3::xxh3_128;

use farmem_engine::segment::Ask;

use crate::doorbell;
use crate::exchange;
use crate::executable;
use crate::kernel::{self, Decimal, call};
use crate::limits;
use crate::program::{HAS_WRITE_ONLY_MAPPING, Program};
use crate::store_request;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of a page, as a size of memory.
pub const PAGE: usize = kernel::size(PAGE_BYTES);

/// Machine for one call of the pager, whose lock is held.
pub struct Frames {
    program: &'static Program,
    /// Address of a page that was present although the pager had it as untouched.
    pub was_there: Option<u64>,
}

const EEXIST: i64 = -(libc::EEXIST as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOENT: i64 = -(libc::ENOENT as i64);
const EFBIG: i64 = -(libc::EFBIG as i64);

/// Whether a page could not be written to the file because of the program's limit of file sizes.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

impl Frames {
    pub const fn new(program: &'static Program) -> Frames {
        Frames { program, was_there: None }
    }

    fn slot(&self, slot: u32) -> u64 {
        self.program.slots + u64::from(slot) * PAGE_BYTES
    }

    /// Handles an address at which nothing was mapped, with its reason.
    fn note(&mut self, address: u64, why: i64) {
        if why == EEXIST {
            self.was_there = Some(address);
        }
    }

    /// Copies from memory that the program cannot write. False when it cannot be read either.
    fn copy_out(&self, address: u64, slot: u64, bytes: u64) -> bool {
        // With copies anyway, the refusal had another reason.
        if self.program.uffd.backend == Backend::Copy || HAS_WRITE_ONLY_MAPPING.load(Relaxed) {
            return false;
        }
        let (local, remote) = (vector(slot, kernel::size(bytes)), vector(address, kernel::size(bytes)));
        let process = self.program.process.load(Relaxed);
        let (local, remote) = ((&raw const local).addr(), (&raw const remote).addr());
        // SAFETY: the slot is ours; reading the program's memory changes nothing. Then its frames are dropped, whose
        // content the slot has: nobody can write there, since the lock is held, under which protections change.
        unsafe {
            call!(libc::SYS_process_vm_readv, process, local, 1, remote, 1, 0) == bytes as i64
                && call!(libc::SYS_madvise, address, bytes, libc::MADV_DONTNEED) == 0
        }
    }

    /// Reads pieces of the program's memory, one behind the other, and returns the number of bytes read. Through the
    /// kernel: a plain load might end the program.
    fn read_program(&self, words: &mut [u64], pieces: &[libc::iovec]) -> usize {
        let local = vector(words.as_mut_ptr().expose_provenance() as u64, size_of_val(words));
        let (process, from) = (self.program.process.load(Relaxed), pieces.as_ptr().expose_provenance());
        // SAFETY: writes our own words; reading the program's memory changes nothing.
        let bytes =
            unsafe { call!(libc::SYS_process_vm_readv, process, (&raw const local).addr(), 1, from, pieces.len(), 0) };
        // Memory that cannot be read: none of it.
        kernel::size(bytes.max(0).cast_unsigned())
    }

    fn fail(&self, doing: &str, page: Page, answer: i64) -> ! {
        let errno = answer.unsigned_abs();
        let (page, number) = (Decimal::of(page.0.into()), Decimal::of(errno));
        let mut name = [0_u8; 256];
        let (before, (why, remedy)) = match words(errno) {
            Some(known) => ("", known),
            None => ("errno ", (number.text(), OF_DEVICE)),
        };
        kernel::give_up(&[
            "cannot ",
            doing,
            " page ",
            page.text(),
            " of the store ",
            self.store_name(&mut name),
            ": ",
            before,
            why,
            ". The program is ended, since it cannot go on without its own data.\n    ",
            remedy,
        ])
    }

    /// Whether masu carries the pages to be written: the store is no file of the program's, or the program has set a
    /// limit of file sizes since its start.
    fn is_carried(&self) -> bool {
        self.program.store < 0 || IS_LIMITED.load(Relaxed)
    }

    /// Writes `count` pages of the file. False when the program's limit of file sizes forbids it.
    fn write_file(&self, page: Page, address: u64, count: u32) -> bool {
        if self.store_io(WRITE, page, address, count) != EFBIG {
            return true;
        }
        IS_LIMITED.store(true, Relaxed);
        limits::drop_size_signal();
        false
    }

    /// Reads or writes `count` pages of the file, from or to the library's memory: all of them, in as many calls as
    /// needed. Returns 0, or EFBIG.
    fn store_io(&self, (number, doing): (i64, &str), page: Page, address: u64, count: u32) -> i64 {
        let (mut done, bytes) = (0, u64::from(count) * PAGE_BYTES);
        while done < bytes {
            let at = u64::from(page.0) * PAGE_BYTES + done;
            // SAFETY: the caller's memory, which is ours.
            let answer = unsafe { call!(number, self.program.store, address + done, bytes - done, at) };
            match answer {
                1.. => done += answer.cast_unsigned(),
                0 => self.fail(doing, page, libc::ENODATA.into()),
                _ if answer == -i64::from(libc::EINTR) => {}
                EFBIG => return EFBIG,
                _ => self.fail(doing, page, answer),
            }
        }
        0
    }

    /// Path of the file, from the kernel: a file without a name has the name of its folder and a number.
    fn store_name<'a>(&self, name: &'a mut [u8]) -> &'a str {
        const FOLDER: &[u8] = b"/proc/self/fd/";
        let mut link = [0_u8; FOLDER.len() + 21];
        let number = Decimal::of(self.program.store.unsigned_abs().into());
        for (place, byte) in link.iter_mut().zip(FOLDER.iter().chain(number.text().as_bytes())) {
            *place = *byte;
        }
        let (link, most) = (link.as_ptr().expose_provenance(), name.len());
        // SAFETY: reads our own text, which ends with a zero, and writes our own bytes.
        let bytes = unsafe { call!(libc::SYS_readlink, link, name.as_mut_ptr().expose_provenance(), most) };
        let found = usize::try_from(bytes).ok().and_then(|bytes| name.get(..bytes));
        found.and_then(|name| core::str::from_utf8(name).ok()).unwrap_or_default()
    }
}

const READ: (i64, &str) = (libc::SYS_pread64, "read");
const WRITE: (i64, &str) = (libc::SYS_pwrite64, "write");

const OF_ROOM: &str = "Make room there, or name a directory on a larger device with --store file:DIR.";
const OF_DEVICE: &str =
    "Look at what the kernel says of the device (dmesg); name another directory with --store file:DIR.";

/// Description of a file's error for the user, and the remedy.
fn words(errno: u64) -> Option<(&'static str, &'static str)> {
    Some(match i32::try_from(errno).ok()? {
        libc::ENOSPC => ("no space left on device (ENOSPC)", OF_ROOM),
        libc::EDQUOT => ("disk quota exceeded (EDQUOT)", OF_ROOM),
        libc::EIO => ("input/output error (EIO)", OF_DEVICE),
        // Not an answer of the kernel: see `store_io`.
        libc::ENODATA => (
            "it is beyond the end of its file, which something cut short",
            "Find out what changes files there, or name another directory with --store file:DIR.",
        ),
        _ => return None,
    })
}

/// Transfers in pieces: the kernel transfers within one mapping only, and refuses a piece across its border; then the
/// pieces become smaller, down to a page. `piece` gets the number of bytes done and the number to do, and returns the
/// number done, and the reason for the end. So does this function.
fn in_pieces(count: u32, mut piece: impl FnMut(u64, u64) -> (u64, i64)) -> (u64, i64) {
    let all = u64::from(count) * PAGE_BYTES;
    let (mut done, mut size) = (0, all);
    while done < all {
        let bytes = size.min(all - done);
        let (now, why) = piece(done, bytes);
        done += now;
        if now == bytes {
            continue;
        }
        if now == 0 && (bytes == PAGE_BYTES || !matches!(why, EINVAL | ENOENT)) {
            return (done, why);
        }
        if now == 0 {
            size = (bytes / 2).next_multiple_of(PAGE_BYTES);
        }
    }
    (done, 0)
}

/// Copies pages of the library's memory.
fn copy(from: u64, to: u64, count: u32) {
    let from = core::ptr::with_exposed_provenance::<u8>(kernel::size(from));
    let to = core::ptr::with_exposed_provenance_mut::<u8>(kernel::size(to));
    // SAFETY: slots and the segment's data are ours and disjoint, and the data has space for a unit.
    unsafe { core::ptr::copy_nonoverlapping(from, to, count as usize * PAGE) };
}

/// Checksum of a page of the library's memory.
fn checksum_of(address: u64) -> Checksum {
    let start = core::ptr::with_exposed_provenance::<[u8; PAGE]>(kernel::size(address));
    // SAFETY: a slot with a frame: ours, and nobody writes there now.
    checksum_of_page(unsafe { &*start })
}

/// Checksum of a page.
pub fn checksum_of_page(page: &[u8; PAGE]) -> Checksum {
    Checksum::from(xxh3_128(page))
}

fn vector(start: u64, bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(kernel::size(start)), iov_len: bytes }
}

#[expect(clippy::cast_possible_truncation, reason = "a transfer has at most MAX_UNIT_PAGES pages")]
const fn pages(bytes: u64) -> u32 {
    (bytes / PAGE_BYTES) as u32
}

impl Machine for Frames {
    type Fatal = Infallible;

    fn move_in(&mut self, slot: u32, address: u64, count: u32) -> u32 {
        let from = self.slot(slot);
        let (done, why) = in_pieces(count, |done, bytes| {
            // SAFETY: the slots are ours, and are recorded as empty after this.
            unsafe { exchange::map_in(self.program.uffd, from + done, address + done, bytes) }
        });
        self.note(address + done, why);
        pages(done)
    }

    fn move_out(&mut self, address: u64, slot: u32, count: u32) -> u32 {
        let to = self.slot(slot);
        let (done, _) = in_pieces(count, |done, bytes| {
            // SAFETY: the slots are ours; a touch by the program there faults, and waits for the lock that is held.
            let (gone, why) = unsafe { exchange::evict(self.program.uffd, address + done, to + done, bytes) };
            if gone > 0 || why != EINVAL || bytes > PAGE_BYTES {
                return (gone, why);
            }
            // SAFETY: as above.
            let (gone, why) = unsafe { executable::take_out(self.program, address + done, to + done) };
            // Only a page that the program cannot write may be copied: one that is busy for a moment stays.
            let is_copied = gone == 0 && why == EINVAL && self.copy_out(address + done, to + done, bytes);
            if is_copied { (bytes, 0) } else { (gone, why) }
        });
        pages(done)
    }

    fn map_zeros(&mut self, address: u64, count: u32) -> u32 {
        // SAFETY: a unit is no larger than the zeros.
        let give = |done, bytes| unsafe { self.program.uffd.copy(address + done, self.program.zeros, bytes) };
        let (done, why) = in_pieces(count, give);
        self.note(address + done, why);
        pages(done)
    }

    fn clear(&mut self, slot: u32, count: u32) {
        let start = core::ptr::with_exposed_provenance_mut::<u8>(kernel::size(self.slot(slot)));
        // SAFETY: the slots are ours.
        unsafe { start.write_bytes(0, count as usize * PAGE) };
    }

    fn checksum(&mut self, slot: u32) -> Checksum {
        checksum_of(self.slot(slot))
    }

    fn is_zeros(&mut self, slot: u32) -> bool {
        let start = core::ptr::with_exposed_provenance::<u128>(kernel::size(self.slot(slot)));
        // SAFETY: as for its sum; a page is aligned.
        let words = unsafe { core::slice::from_raw_parts(start, PAGE / size_of::<u128>()) };
        words.iter().all(|word| *word == 0)
    }

    fn seem_zeros(&mut self, addresses: &[u64]) -> u32 {
        // First some bytes at a page's beginning and some from its middle, and the whole page if these are zeros.
        const PLACES: [u64; 2] = [0, PAGE_BYTES / 2 + 64];
        const BYTES: usize = 32;
        const ALL: usize = PLACES.len() * LOOKED_AT;
        let mut read = [0_u64; ALL * BYTES / 8];
        let mut pieces = [vector(0, 0); ALL];
        let starts = addresses.iter().flat_map(|address| PLACES.map(|place| address + place));
        pieces.iter_mut().zip(starts).for_each(|(piece, start)| *piece = vector(start, BYTES));
        let count = ALL.min(addresses.len() * PLACES.len());
        let bytes = self.read_program(&mut read[..count * BYTES / 8], &pieces[..count]);
        let mut seem = 0;
        for (number, words) in
            read.chunks_exact(PLACES.len() * BYTES / 8).take(bytes / (PLACES.len() * BYTES)).enumerate()
        {
            let mut page = [0_u64; PAGE / 8];
            let is_zeros = |words: &[u64]| words.iter().all(|word| *word == 0);
            let whole = [vector(addresses[number], size_of_val(&page))];
            if is_zeros(words) && self.read_program(&mut page, &whole) == size_of_val(&page) && is_zeros(&page) {
                seem |= 1 << number;
            }
        }
        seem
    }

    fn drop_frame(&mut self, slot: u32) {
        // SAFETY: the slot is ours, and its content is not needed.
        unsafe { call!(libc::SYS_madvise, self.slot(slot), PAGE_BYTES, libc::MADV_DONTNEED) };
    }

    fn read_store(&mut self, page: Page, slot: u32, count: u32) -> Result<(), Infallible> {
        if self.program.store < 0 {
            store_request::ask(self.program, Ask::Read, page, count);
            copy(self.program.data, self.slot(slot), count);
            return Ok(());
        }
        self.store_io(READ, page, self.slot(slot), count);
        Ok(())
    }

    fn unload(&mut self, buffer: u32, slot: u32, count: u32) {
        copy(self.program.batch_data + u64::from(buffer) * PAGE_BYTES, self.slot(slot), count);
    }

    fn load(&mut self, slot: u32, buffer: u32, count: u32) {
        copy(self.slot(slot), self.program.batch_data + u64::from(buffer) * PAGE_BYTES, count);
    }

    fn wait_for_completion(&mut self, pager: &Pager<'_>) {
        doorbell::wait_for_completion(self.program, pager);
    }

    fn batch_failed(&mut self) -> Infallible {
        // masu has reported the reason.
        kernel::end(2)
    }

    fn write_store(&mut self, page: Page, slot: u32, count: u32) -> Result<(), Infallible> {
        if self.is_carried() || !self.write_file(page, self.slot(slot), count) {
            copy(self.slot(slot), self.program.data, count);
            store_request::ask(self.program, Ask::Write, page, count);
        }
        Ok(())
    }

    fn corrupt(&mut self, page: Page) -> Infallible {
        let page = Decimal::of(page.0.into());
        kernel::give_up(&[
            "page ",
            page.text(),
            " of the store is not what was written there: the store lost or changed it. ",
            "The program is ended before it sees wrong data.\n    ",
            "Find out what else writes to the store, and what the kernel says of its device (dmesg); name another with --store.",
        ])
    }
}

impl Frames {
    /// Copies the stored content of one page to another's place.
    pub fn copy_stored(&mut self, from: Page, to: Page) {
        let mut buffer = [0_u8; PAGE];
        let address = buffer.as_mut_ptr().expose_provenance() as u64;
        if !self.is_carried() {
            self.store_io(READ, from, address, 1);
            if self.write_file(to, address, 1) {
                return;
            }
        }
        store_request::ask(self.program, Ask::Copy, from, to.0);
    }
}
