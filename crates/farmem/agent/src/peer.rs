//! Memory of another process, which may be paged, too: process_vm_readv, process_vm_writev and PTRACE_PEEKDATA.
//!
//! The kernel finds no page where the other program's pager keeps it, and answers EFAULT. The reader then looks up the
//! page in the other program's tables, with the same right by which it reads that program's memory: in a slot of its
//! victim queue, or in its store's file (pidfd_getfd). A content counts only if it is whole: a stored page by its
//! checksum, a slot by two equal readings between which the page stayed there.
//!
//! Pages on a server, and writes to missing pages, are refused with ENOSYS, as by a kernel without these calls: libraries
//! copy otherwise then. The other program can write anything into its tables: only its own content comes of that.

use farmem_engine::PAGE_BYTES;
use farmem_engine::calls::{Call, Refusal, number};
use farmem_engine::entry::{Entry, Place};
use farmem_engine::pager::Checksum;
use farmem_engine::segment::{Layout, PLACES, Places};
use farmem_engine::space::Space;

use crate::frames::{self, PAGE};
use crate::kernel::{Decimal, call, int, size, uint};
use crate::mappings;
use crate::memory;
use crate::program::Program;
use crate::registers::Context;
use crate::thread::Thread;

const EFAULT: i64 = -(libc::EFAULT as i64);

/// Attempts to read a page that the other pager moves meanwhile.
const ATTEMPTS: u32 = 200;

/// Vectors that one call may have, on each side (`UIO_MAXIOV`).
const VECTORS_MAX: u64 = 1024;

/// Makes the call, and answers it.
pub fn make(program: &'static Program, thread: &mut Thread, context: &mut Context, call: Call) {
    memory::fault_in(program, thread, call);
    // SAFETY: the program's own call, which does not sleep.
    let answer = unsafe { crate::kernel::syscall(call.number.into(), call.arguments) };
    let answer = match call.number {
        number::PTRACE => peek(call, answer),
        _ => transfer(program, call, answer),
    };
    if answer == -i64::from(libc::ENOSYS) {
        program.pager.counters.refuse(Refusal::PeerMemory);
    }
    context.answer(answer);
}

/// PTRACE_PEEKDATA: the word goes to the address in `data`.
fn peek(call: Call, answer: i64) -> i64 {
    let [_, process, address, data, ..] = call.arguments;
    if answer != -i64::from(libc::EIO) {
        return answer;
    }
    let Some(mut peer) = Peer::find(int(process)) else { return answer };
    let mut bytes = [0; 8];
    let mut done = 0;
    while done < bytes.len() {
        let at = address.wrapping_add(done as u64);
        let piece = size(PAGE_BYTES - at % PAGE_BYTES).min(bytes.len() - done);
        if peer.read(at, &mut bytes[done..done + piece]).is_err() {
            return answer;
        }
        done += piece;
    }
    if memory::write_words(data, &[u64::from_le_bytes(bytes)]) { 0 } else { EFAULT }
}

/// Rest of a process_vm_readv or process_vm_writev that the kernel ended early.
fn transfer(program: &'static Program, call: Call, answer: i64) -> i64 {
    let [process, local, local_count, remote, remote_count, _] = call.arguments;
    let is_short = |bytes: u64| answer >= 0 && answer.cast_unsigned() < bytes;
    if uint(process) == program.process.load(core::sync::atomic::Ordering::Relaxed) {
        return answer;
    }
    let (Some(ours), Some(theirs)) = (total(local, local_count), total(remote, remote_count)) else { return answer };
    if answer != EFAULT && !is_short(ours.min(theirs)) {
        return answer;
    }
    let Some(mut peer) = Peer::find(int(process)) else { return answer };
    if call.number == number::PROCESS_VM_WRITEV {
        return -i64::from(libc::ENOSYS);
    }
    let mut done = answer.max(0).cast_unsigned();
    let mut page = [0_u8; PAGE];
    while done < ours.min(theirs) {
        let (Some((from, left)), Some((to, space))) = (at(remote, remote_count, done), at(local, local_count, done))
        else {
            break;
        };
        // Within one page on both sides.
        let to_end = |address: u64| PAGE_BYTES - address % PAGE_BYTES;
        let bytes = left.min(space).min(to_end(from)).min(to_end(to));
        let piece = &mut page[..size(bytes)];
        let result = peer.read(from, piece).and_then(|()| memory::write_bytes(to, piece).then_some(()).ok_or(EFAULT));
        match result {
            Ok(()) => done += bytes,
            // Of a part no library makes anything; with ENOSYS it copies all in another way.
            Err(why) if done > 0 && why != -i64::from(libc::ENOSYS) => break,
            Err(why) => return why,
        }
    }
    done.cast_signed()
}

/// Bytes of all vectors; `None` where they cannot be read or are too many.
fn total(vectors: u64, count: u64) -> Option<u64> {
    let mut bytes = 0_u64;
    for number in 0..Some(count).filter(|count| *count <= VECTORS_MAX)? {
        bytes = bytes.saturating_add(memory::read_word(vectors.checked_add(number * 16 + 8)?)?);
    }
    Some(bytes)
}

/// Address of the byte number `done`, and the bytes of its vector from there on.
fn at(vectors: u64, count: u64, done: u64) -> Option<(u64, u64)> {
    let mut before = done;
    for number in 0..count.min(VECTORS_MAX) {
        let entry = vectors.checked_add(number * 16)?;
        let (start, bytes) = (memory::read_word(entry)?, memory::read_word(entry.checked_add(8)?)?);
        if before < bytes {
            return Some((start.wrapping_add(before), bytes - before));
        }
        before -= bytes;
    }
    None
}

/// Another process with a pager.
struct Peer {
    process: i32,
    segment: u64,
    layout: Layout,
    places: Places,
    /// Its store's file, once it was needed; -1 where it cannot be had.
    store: Option<i32>,
    /// Mapping that was looked up last.
    mapping: Option<(u64, u64)>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(fd @ 0..) = self.store {
            // SAFETY: our own.
            unsafe { call!(libc::SYS_close, fd) };
        }
    }
}

impl Peer {
    /// Finds the tables of a process. `None` if it has no pager.
    fn find(process: i32) -> Option<Peer> {
        let mut segment = None;
        each_mapping(process, |mapping| {
            if mapping.segment {
                segment = Some((mapping.start, mapping.end - mapping.start));
            }
        });
        let (segment, bytes) = segment?;
        let mut words = [0; Places::WORDS];
        for (number, word) in words.iter_mut().enumerate() {
            *word = read_word(process, segment + ((PLACES + number) * 8) as u64)?;
        }
        let places = Places::of(words)?;
        let layout = Layout::new(size(places.most_pages), size(places.frames));
        (layout.bytes as u64 == bytes).then_some(Peer { process, segment, layout, places, store: None, mapping: None })
    }

    /// Reads bytes of one page; or the negative errno.
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), i64> {
        for _ in 0..ATTEMPTS {
            if read(self.process, address, to) {
                return Ok(());
            }
            if !self.is_readable(address) {
                return Err(EFAULT);
            }
            match self.read_missing(address, to) {
                Found::Read => return Ok(()),
                Found::Never => return Err(-i64::from(libc::ENOSYS)),
                Found::Guard => return Err(EFAULT),
                // It moves just now.
                Found::Again => {
                    self.mapping = None;
                    // SAFETY: lets others run.
                    unsafe { call!(libc::SYS_sched_yield) };
                }
            }
        }
        Err(-i64::from(libc::ENOSYS))
    }

    /// Whether the process may read at an address: a page that was unmapped, or protected, is not read from the tables.
    fn is_readable(&mut self, address: u64) -> bool {
        if self.mapping.is_none_or(|(start, end)| !(start..end).contains(&address)) {
            let mut found = None;
            each_mapping(self.process, |mapping| {
                if mapping.readable && (mapping.start..mapping.end).contains(&address) {
                    found = Some((mapping.start, mapping.end));
                }
            });
            self.mapping = found;
        }
        self.mapping.is_some()
    }

    fn read_missing(&mut self, address: u64, to: &mut [u8]) -> Found {
        let Some(page) = self.page(address) else {
            // Never touched, in a chunk without pages.
            to.fill(0);
            return Found::Read;
        };
        if page >= self.layout.pages as u64 {
            return Found::Never;
        }
        let Some(entry) = self.entry(page) else { return Found::Never };
        let within = size(address % PAGE_BYTES);
        let mut whole = [0_u8; PAGE];
        match entry.place() {
            Place::Resident => return Found::Again,
            Place::Untouched if entry.is_guard() => return Found::Guard,
            Place::Untouched if self.entry(page) == Some(entry) => {}
            Place::Untouched => return Found::Again,
            Place::Victim => {
                let slot = self.places.slots + u64::from(entry.slot()) * PAGE_BYTES;
                let mut again = [0_u8; PAGE];
                let both = read(self.process, slot, &mut whole)
                    && self.entry(page) == Some(entry)
                    && read(self.process, slot, &mut again)
                    && self.entry(page) == Some(entry);
                if !both || whole != again {
                    return Found::Again;
                }
            }
            Place::Stored => {
                let Some(store) = self.store() else { return Found::Never };
                let start = whole.as_mut_ptr().expose_provenance();
                // SAFETY: writes our own buffer.
                let got = unsafe { call!(libc::SYS_pread64, store, start, PAGE, page * PAGE_BYTES) };
                let at = self.segment + self.layout.checksums as u64 + page * 16;
                let sum = read_word(self.process, at).zip(read_word(self.process, at + 8));
                let is_whole = sum.is_some_and(|(low, high)| frames::checksum_of_page(&whole) == Checksum([low, high]));
                if got != PAGE as i64 || !is_whole {
                    return Found::Again;
                }
            }
        }
        match whole.get(within..within + to.len()) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => return Found::Never,
        }
        Found::Read
    }

    fn page(&self, address: u64) -> Option<u64> {
        let at = self.segment + self.layout.directory as u64 + Space::directory_index(address)? * 4;
        let mut word = [0; 4];
        let word = read(self.process, at, &mut word).then_some(u32::from_le_bytes(word))?;
        Space::page_of_word(word, address).map(|page| page.0.into())
    }

    fn entry(&self, page: u64) -> Option<Entry> {
        read_word(self.process, self.segment + self.layout.entries as u64 + page * 8).map(Entry)
    }

    /// Descriptor of its store's file.
    fn store(&mut self) -> Option<i32> {
        let theirs = self.places.store?;
        let known = *self.store.get_or_insert_with(|| {
            // SAFETY: makes descriptors of our own.
            unsafe {
                let process = call!(libc::SYS_pidfd_open, self.process, 0);
                let fd = call!(libc::SYS_pidfd_getfd, process, theirs, 0);
                if process >= 0 {
                    call!(libc::SYS_close, process);
                }
                if fd < 0 { -1 } else { int(fd.cast_unsigned()) }
            }
        });
        (known >= 0).then_some(known)
    }
}

/// Result of one attempt to read a missing page.
enum Found {
    Read,
    /// The page moved meanwhile.
    Again,
    /// Only the other program brings it back.
    Never,
    /// The other program cannot read it, either.
    Guard,
}

fn each_mapping(process: i32, each: impl FnMut(mappings::Mapping)) {
    let mut path = [0_u8; 32];
    let number = Decimal::of(process.unsigned_abs().into());
    let parts = b"/proc/".iter().chain(number.text().as_bytes()).chain(b"/maps\0");
    path.iter_mut().zip(parts).for_each(|(place, byte)| *place = *byte);
    mappings::each_in(&path, each);
}

/// Reads memory of another process that is present there.
fn read(process: i32, from: u64, to: &mut [u8]) -> bool {
    let vector =
        |start: usize| libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(start), iov_len: to.len() };
    let bytes = to.len() as i64;
    let (local, remote) = (vector(to.as_ptr().expose_provenance()), vector(size(from)));
    let (local, remote) = ((&raw const local).addr(), (&raw const remote).addr());
    // SAFETY: writes the given bytes.
    unsafe { call!(libc::SYS_process_vm_readv, process, local, 1, remote, 1, 0) == bytes }
}

fn read_word(process: i32, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    read(process, address, &mut bytes).then_some(u64::from_le_bytes(bytes))
}
