//! Loading, calibrating and running the BPF program. The only file of this crate with unsafe code.
#![allow(unsafe_code, reason = "libbpf's iterator of one task has no safe wrapper, and the records are shared memory")]

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use libbpf_rs::{AsRawLibbpf, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};
use linux::Error;
use rustix::io::Errno;
use rustix::mm::{MapFlags as MemoryFlags, ProtFlags, mmap, munmap};
use units::{PageSize, Window, cast};

use super::record::{WALK_CALIBRATE, WALK_READ, WALK_RECORDS_MAX, WALK_WRITTEN, WalkAnswer, WalkRequest, WindowRecord};
use crate::backend::Unavailable;
use crate::bpf_object::{self, Aligned};

/// Name in messages.
const PROGRAM: &str = "the walk's program";

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../../bpf/walk.bpf.o"));

/// Depth of the search for the direct map's base below the page table's own address: 64 TiB, all that four levels
/// map.
const CANDIDATES_GIB: u32 = 64 << 10;

/// A page of ours that the kernel moves during the search is not found; the next one is.
const ATTEMPTS: usize = 3;

/// The loaded program.
#[derive(Debug)]
pub struct Program {
    object: Object,
    request: MapHandle,
    answer: MapHandle,
    records: Records,
    direct_map: u64,
    levels: u32,
}

/// The program attached to one task. Detaches on drop.
#[derive(Debug)]
pub struct Link {
    link: NonNull<libbpf_sys::bpf_link>,
    tid: i32,
}

impl Program {
    /// Loads the BPF program.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn load() -> Result<Program, Unavailable> {
        libbpf_rs::set_print(None::<(PrintLevel, fn(PrintLevel, String))>);
        let open = ObjectBuilder::default().open_memory(&OBJECT.0).map_err(|e| refused("be opened", &e))?;
        let object = open.load().map_err(|e| refused("be loaded", &e))?;
        let handle = |name| bpf_object::map_of(&object, PROGRAM, name);
        let (request, answer) = (handle("request")?, handle("answer")?);
        let records = Records::map(handle("records")?.as_fd()).map_err(|errno| Unavailable {
            reason: format!("the walk's records cannot be mapped: {}", linux::describe(errno)),
            remedy: "Raise RLIMIT_AS, or run as root.".to_owned(),
        })?;
        Ok(Program { object, request, answer, records, direct_map: 0, levels: 4 })
    }

    /// Levels of the page tables: 4 or 5.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// Finds the kernel's mapping of physical memory and the number of page-table levels: the only base and depth for
    /// which a walk to a page of ours finds the word that we wrote there, twice.
    pub fn calibrate(&mut self) -> Result<(), Unavailable> {
        let failed = |reason: String| Unavailable {
            reason,
            remedy:
                "If `masu facts` shows lockdown (confidentiality), boot without it; else please report this kernel."
                    .to_owned(),
        };
        let link = self.link(linux::Pid::own().0).map_err(|e| failed(e.to_string()))?;
        for _ in 0..ATTEMPTS {
            if self.found_by_walking(&link, &mut MagicPage::new()).map_err(|e| failed(e.to_string()))? {
                return Ok(());
            }
        }
        Err(failed("the kernel's direct map was not found by walking to a page of our own".to_owned()))
    }

    /// One attempt: true when base and depth were found. The page may be moved meanwhile; then it is not found.
    fn found_by_walking(&mut self, link: &Link, page: &mut MagicPage) -> Result<bool, Error> {
        for levels in [4, 5] {
            let mut found = None;
            for (round, candidates) in [CANDIDATES_GIB, CANDIDATES_GIB].into_iter().enumerate() {
                let magic = page.write(round as u64);
                let request = WalkRequest {
                    start: page.address(),
                    magic,
                    candidates,
                    levels,
                    mode: WALK_CALIBRATE,
                    ..WalkRequest::default()
                };
                let answer = self.run(link, request)?;
                let again = found.is_none_or(|before| before == answer.direct_map);
                found = (answer.direct_map != 0 && again).then_some(answer.direct_map);
                if found.is_none() {
                    break;
                }
            }
            if let Some(base) = found {
                (self.direct_map, self.levels) = (base, levels);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Attaches to the task `tid` (a thread; the first one has the process's number).
    pub fn link(&mut self, tid: i32) -> Result<Link, Error> {
        let failed = |errno| Error::of_process("walk", format!("process {tid}"), errno);
        let program = self.object.progs().find(|program| program.name() == "walk").ok_or(failed(Errno::NOSYS))?;
        let mut info = libbpf_sys::bpf_iter_link_info::default();
        info.task.tid = u32::try_from(tid).map_err(|_| failed(Errno::SRCH))?;
        let options = libbpf_sys::bpf_iter_attach_opts {
            sz: size_of::<libbpf_sys::bpf_iter_attach_opts>() as libbpf_sys::size_t,
            link_info: &raw mut info,
            link_info_len: cast::fits(size_of_val(&info)),
            ..Default::default()
        };
        // SAFETY: the program belongs to `self.object`, which is loaded and outlives the call; `options` and the `info`
        // that it points to outlive the call; libbpf copies both.
        let link =
            unsafe { libbpf_sys::bpf_program__attach_iter(program.as_libbpf_object().as_ptr(), &raw const options) };
        let link = NonNull::new(link).ok_or_else(|| failed(last_errno()))?;
        Ok(Link { link, tid })
    }

    /// Reads the whole address space of the linked task, in order of address, and returns a number that identifies
    /// this address space among later ones of the same process; 0 when it has none.
    pub fn read(&mut self, link: &Link, see: &mut dyn FnMut(&WindowRecord)) -> Result<u64, Error> {
        let end = if self.levels == 5 { 1 << 56 } else { 1 << 47 };
        let (mut start, mut space) = (0, 0);
        while start < end {
            let request = WalkRequest {
                start,
                end,
                direct_map: self.direct_map,
                levels: self.levels,
                mode: WALK_READ,
                ..WalkRequest::default()
            };
            let answer = self.run(link, request)?;
            if answer.tasks == 0 || answer.address_space == 0 {
                return Ok(0);
            }
            let filled = cast::index(answer.records.into()).min(WALK_RECORDS_MAX);
            for number in 0..filled {
                see(&self.records.get(number));
            }
            if answer.next <= start {
                break; // the program always advances; this bounds the loop all the same
            }
            (start, space) = (answer.next, answer.address_space);
        }
        Ok(space)
    }

    /// Reads one window with the dirty bits of its pages in place of the accessed bits, if it has a page table.
    pub fn read_written(&mut self, link: &Link, window: Window) -> Result<Option<WindowRecord>, Error> {
        let (start, end) = (window.range().start().0, window.range().end().0);
        let (direct_map, levels) = (self.direct_map, self.levels);
        let request = WalkRequest { start, end, direct_map, levels, mode: WALK_WRITTEN, ..WalkRequest::default() };
        let answer = self.run(link, request)?;
        Ok((answer.tasks != 0 && answer.records == 1).then(|| self.records.get(0)))
    }

    fn run(&mut self, link: &Link, request: WalkRequest) -> Result<WalkAnswer, Error> {
        let failed = |errno| Error::of_process("walk", format!("process {}", link.tid), errno);
        let key = 0u32.to_ne_bytes();
        let write =
            |map: &MapHandle, value: &[u8]| map.update(&key, value, MapFlags::ANY).map_err(|_| failed(Errno::IO));
        write(&self.request, &request.to_bytes())?;
        write(&self.answer, &WalkAnswer::default().to_bytes())?;
        link.run().map_err(failed)?;
        let bytes = self.answer.lookup(&key, MapFlags::ANY).ok().flatten().ok_or(failed(Errno::IO))?;
        WalkAnswer::from_bytes(&bytes).ok_or(failed(Errno::IO))
    }
}

impl Link {
    /// Runs the program once: an iterator over the one task, read to its end. The program writes to its maps, not to
    /// the iterator's text.
    fn run(&self) -> Result<(), Errno> {
        // SAFETY: the link is alive until drop; both calls only read it, and the file descriptor that comes back is
        // new and owned by nobody else.
        let iterator = unsafe {
            let fd = libbpf_sys::bpf_iter_create(libbpf_sys::bpf_link__fd(self.link.as_ptr()));
            if fd < 0 {
                return Err(last_errno());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let mut text = [0u8; 64];
        while rustix::io::read(&iterator, &mut text)? > 0 {}
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: made by attach_iter, destroyed once, here.
        unsafe { libbpf_sys::bpf_link__destroy(self.link.as_ptr()) };
    }
}

/// The array of records, mapped. The BPF program writes to it while it runs, so it is only ever copied from.
#[derive(Debug)]
struct Records {
    first: NonNull<WindowRecord>,
    mapped_bytes: usize,
}

impl Records {
    fn map(map: BorrowedFd<'_>) -> Result<Records, Errno> {
        let mapped_bytes = (size_of::<WindowRecord>() * WALK_RECORDS_MAX).next_multiple_of(4096);
        // SAFETY: a new mapping at an address of the kernel's choice, shared with the map behind `map`.
        let memory =
            unsafe { mmap(std::ptr::null_mut(), mapped_bytes, ProtFlags::READ, MemoryFlags::SHARED, map.as_fd(), 0)? };
        Ok(Records { first: NonNull::new(memory.cast()).ok_or(Errno::NOMEM)?, mapped_bytes })
    }

    fn get(&self, number: usize) -> WindowRecord {
        assert!(number < WALK_RECORDS_MAX);
        // SAFETY: `number` lies in the mapping (checked above), which is as long as this struct; the record is plain
        // numbers, valid whatever their bits; volatile because another side writes, and no reference is made.
        unsafe { self.first.as_ptr().add(number).read_volatile() }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map`, unmapped once; no reference into it exists. A failure leaves it mapped.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// A page of our own with a word in it that occurs nowhere else.
struct MagicPage(Box<[u64]>);

impl MagicPage {
    fn new() -> MagicPage {
        MagicPage(vec![0; 2 * cast::index(PageSize::Small.bytes().0 / 8)].into_boxed_slice())
    }

    fn index(&self) -> usize {
        let start = self.0.as_ptr().addr();
        (start.next_multiple_of(cast::index(PageSize::Small.bytes().0)) - start) / 8
    }

    fn address(&self) -> u64 {
        (&raw const self.0[self.index()]).expose_provenance() as u64
    }

    fn write(&mut self, round: u64) -> u64 {
        let magic = 0x6d61_7375_77a1_c000 ^ self.address().rotate_left(13) ^ round;
        let index = self.index();
        self.0[index] = magic;
        std::hint::black_box(&self.0);
        magic
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn refused(what: &str, error: &libbpf_rs::Error) -> Unavailable {
    bpf_object::refused(PROGRAM, what, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_are_laid_out_as_in_the_compiled_program() {
        macro_rules! same {
            ($c:literal, $record:ty, $($field:ident),+) => {
                assert_eq!(bpf_object::layout("walk.bpf.o", $c), [$(
                    (stringify!($field).to_owned(), u32::try_from(std::mem::offset_of!($record, $field)).unwrap())
                ),+]);
            };
        }
        same!("walk_request", WalkRequest, start, end, direct_map, magic, candidates, levels, mode, unused);
        same!("walk_answer", WalkAnswer, address_space, next, direct_map, records, tasks);
        same!("window_record", WindowRecord, start, flags, accessed, present);
    }
}
