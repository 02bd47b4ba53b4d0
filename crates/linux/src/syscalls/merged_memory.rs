//! Pages of our own with the content of other processes' pages, merged with them by KSM: the same frames at our
//! addresses.
//!
//! A cache operation on such an address (`cache_line.rs`) acts on the lines of the shared page, and un-merges nothing:
//! the memory is read-only, and neither a load nor `clflush` is a write. The content is read through `/proc/PID/mem`,
//! which leaves a merged page merged. `process_vm_readv` (`process_vm.rs`) pins the pages it reads, and so un-merges
//! them.
//!
//! KSM merges at its next scan, if it runs (`ksm.rs`); we do not turn it on. [`MergedCopy::merged`] reports the merged
//! pages, by frame numbers on both sides. A page is not merged, and stays a plain copy, if its source was written
//! meanwhile, has ended, or has more sharers than KSM puts on one frame (`max_page_sharing`).
//!
//! Cost: a copy of each page until it is merged; then no memory but 8 bytes of page table and KSM's own record (64
//! bytes, `rmap_item`). Making a copy takes one system call per page. Descriptors: one for each process, two while the
//! copy is made. Side effects: the kernel counts our pages as sharers; a sharer that reads its page waits no longer
//! than before.
//!
//! Since: KSM Linux 2.6.32. Needs the right to trace the process (PTRACE_MODE_ATTACH), and CAP_SYS_ADMIN for frame
//! numbers. A caller that may not flush the lines of a page (another trust domain) must not get a copy: this is decided
//! elsewhere.
//!
//! Truth: Documentation/admin-guide/mm/ksm.rst; madvise(2); seen on Linux 6.18.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use units::{Address, AddressRange, PageSize, Pages};

use crate::cache_line::{self, Flusher, LINE_BYTES, Ticks};
use crate::memory_file::MemoryFile;
use crate::pagemap::{PageEntry, Pagemap};
use crate::{Error, Pid};

const PAGE_BYTES: usize = 4096;
const _: () = assert!(PAGE_BYTES as u64 == PageSize::Small.bytes().0);

/// Number of cache lines in one page.
pub const LINES_PER_PAGE: usize = PAGE_BYTES / LINE_BYTES;

/// A page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageOf {
    /// Process of the page.
    pub pid: Pid,
    /// Start address of the page.
    pub address: Address,
}

/// Copies of other processes' pages that KSM merges with them.
#[derive(Debug)]
pub struct MergedCopy {
    memory: Memory,
    sources: Vec<PageOf>,
    /// Opened before the memory was read.
    pagemaps: BTreeMap<Pid, Pagemap>,
    own: Pagemap,
}

impl MergedCopy {
    /// Copies these pages and offers the copies to KSM. Missing pages are left out. [`MergedCopy::sources`] lists the
    /// copied pages in order of address for each process, as `pages` should be. A process number means the process that
    /// has it now, and no later one that gets it during the copy.
    ///
    /// # Errors
    /// `Denied` without the right to trace one of the processes, `Other` without memory or descriptors, `Unsupported`
    /// by a kernel without KSM. `Gone` when all pages are missing.
    pub fn of(pages: &[PageOf]) -> Result<MergedCopy, Error> {
        let own = Pagemap::open(Pid::own())?;
        let mut memory = Memory::map(pages.len()).map_err(failed("map"))?;
        let mut sources = Vec::with_capacity(pages.len());
        let mut processes: BTreeMap<Pid, Result<Source, Error>> = BTreeMap::new();
        let mut last = None;
        for page in pages {
            // A process that has ended stays excluded: its number may belong to another by the next page.
            let source = processes.entry(page.pid).or_insert_with(|| Source::open(page.pid));
            match source.as_ref().map_err(Error::clone).and_then(|source| source.content(page.address)) {
                Ok(content) => {
                    memory.fill(sources.len(), &content);
                    sources.push(*page);
                }
                Err(error) if is_of_page_only(&error) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        if sources.is_empty()
            && let Some(error) = last
        {
            return Err(error);
        }
        let pagemaps = processes.into_iter().filter_map(|(pid, source)| Some((pid, source.ok()?.pagemap))).collect();
        memory.offer().map_err(|errno| match errno {
            Errno::INVAL => Error::of_host("merge", "memory of our own (MADV_MERGEABLE)", Errno::OPNOTSUPP),
            errno => failed("merge")(errno),
        })?;
        Ok(MergedCopy { memory, sources, pagemaps, own })
    }

    /// The copied pages, in our order.
    pub fn sources(&self) -> &[PageOf] {
        &self.sources
    }

    /// Number of copied pages.
    pub fn pages(&self) -> Pages {
        Pages(self.sources.len() as u64)
    }

    /// Current frames of our pages; `None` for a page that is not in memory.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn frames(&self) -> Result<Vec<Option<u64>>, Error> {
        let entries = self.own.entries(self.memory.range(self.sources.len())?)?;
        if entries.iter().any(|entry| entry.is_present() && entry.frame().is_none()) {
            return Err(Error::of_host("read", "frame numbers in /proc/self/pagemap", Errno::PERM));
        }
        Ok(entries.into_iter().map(PageEntry::frame).collect())
    }

    /// For each page, true if it shares the frame of its source now. False for all pages of a process that has ended,
    /// or has become another program.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn merged(&self) -> Result<Vec<bool>, Error> {
        let mut merged = vec![false; self.sources.len()];
        let frames = self.frames()?;
        let mut from = 0;
        while from < self.sources.len() {
            let run = run_of(&self.sources[from..]);
            let first = self.sources[from];
            let range = range_of(first.address.0, run)?;
            let theirs = match self.pagemaps.get(&first.pid).map(|pagemap| pagemap.entries(range)) {
                Some(Ok(entries)) => entries,
                Some(Err(Error::Gone(_))) | None => Vec::new(),
                Some(Err(error)) => return Err(error),
            };
            for (nth, entry) in theirs.iter().enumerate().take(run) {
                merged[from + nth] =
                    entry.frame().is_some() && entry.frame() == frames.get(from + nth).copied().flatten();
            }
            from += run;
        }
        Ok(merged)
    }

    /// Number of pages that share the frame of their source now.
    ///
    /// # Errors
    /// As [`MergedCopy::merged`].
    pub fn merged_pages(&self) -> Result<Pages, Error> {
        Ok(Pages(self.merged()?.into_iter().filter(|merged| *merged).count() as u64))
    }

    /// Flushes the lines of these pages (indices into [`MergedCopy::sources`]) from all caches.
    ///
    /// # Errors
    /// `Unsupported` on a processor other than x86-64.
    ///
    /// # Panics
    /// For indices out of range.
    pub fn flush(&self, pages: Range<usize>) -> Result<(), Error> {
        let flusher = Flusher::of_this_processor()?;
        let (first, lines) = self.lines(&pages);
        // SAFETY: whole lines of our own mapping, which is readable while `self` lives.
        unsafe { flusher.flush(first, lines) };
        Ok(())
    }

    /// Brings the lines of these pages into the last-level cache, for all processors that use it. A line that was in no
    /// cache goes to ways of this thread's class of service; a cached line stays where it is. Call it once for the
    /// whole range: in parts smaller than the second-level cache, fewer lines stay (`cache_line.rs`).
    ///
    /// # Panics
    /// As [`MergedCopy::flush`].
    pub fn touch(&self, pages: Range<usize>) {
        let (first, lines) = self.lines(&pages);
        // SAFETY: as in `flush`.
        unsafe { cache_line::touch(first, lines) };
    }

    /// Loads a word of each line of these pages, once, as a program does.
    ///
    /// # Panics
    /// As [`MergedCopy::flush`].
    pub fn load(&self, pages: Range<usize>) {
        let (first, lines) = self.lines(&pages);
        // SAFETY: as in `flush`.
        unsafe { cache_line::load(first, lines) };
    }

    /// Times a load of line `line` of page `page`, now; the line is in the caches afterwards.
    ///
    /// # Errors
    /// `Unsupported` on a processor other than x86-64.
    ///
    /// # Panics
    /// For a page index or a line index out of range.
    pub fn time_load(&self, page: usize, line: usize) -> Result<Ticks, Error> {
        assert!(line < LINES_PER_PAGE, "line {line} of a page");
        let (first, _) = self.lines(&(page..page + 1));
        // SAFETY: a line of one page of our own, as in `flush`; its start is aligned for a word.
        unsafe { cache_line::time_load(first.add(line * LINE_BYTES).cast()) }
    }

    /// First line of these pages, and their number of lines.
    fn lines(&self, pages: &Range<usize>) -> (*const u8, usize) {
        assert!(
            pages.start <= pages.end && pages.end <= self.sources.len(),
            "pages {pages:?} of {}",
            self.sources.len()
        );
        (self.memory.page(pages.start), pages.len() * LINES_PER_PAGE)
    }
}

/// Memory of one process: two files that stay bound to the address space at the time they were opened.
#[derive(Debug)]
struct Source {
    memory: MemoryFile,
    pagemap: Pagemap,
}

impl Source {
    fn open(pid: Pid) -> Result<Source, Error> {
        let pagemap = Pagemap::open(pid)?;
        Ok(Source { memory: MemoryFile::open(pid)?, pagemap })
    }

    fn content(&self, address: Address) -> Result<[u8; PAGE_BYTES], Error> {
        let mut content = [0; PAGE_BYTES];
        self.memory.read(address, &mut content).map(|()| content)
    }
}

/// True if only the page or its process is gone (EIO is the answer for an unmapped page). Any other error would hit
/// other pages as well.
fn is_of_page_only(error: &Error) -> bool {
    error.is_gone() || error.errno() == Some(Errno::IO)
}

/// Number of pages, from the first on, that are neighbours in one process.
fn run_of(pages: &[PageOf]) -> usize {
    let Some(first) = pages.first() else { return 0 };
    let follows = |(nth, page): &(usize, &PageOf)| {
        page.pid == first.pid && Some(page.address.0) == first.address.0.checked_add((*nth * PAGE_BYTES) as u64)
    };
    pages.iter().enumerate().take_while(follows).count()
}

fn range_of(start: u64, pages: usize) -> Result<AddressRange, Error> {
    let end = start.saturating_add((pages * PAGE_BYTES) as u64);
    AddressRange::new(start, end)
        .map_err(|_| Error::of_host("merge", format_args!("{pages} pages from {start:#x} on"), Errno::INVAL))
}

/// Memory that is filled once and then only read.
///
/// # Safety
/// `mapped` is one whole private anonymous mapping of `pages` pages (of one, for none), made here and owned by this
/// value alone. It is written by `fill` alone, which takes `&mut self`, and not after `offer`, which makes it
/// read-only. No reference into it is ever made.
#[derive(Debug)]
struct Memory {
    mapped: *mut c_void,
    pages: usize,
}

// SAFETY: the mapping belongs to no thread, and is written through `&mut self` alone.
unsafe impl Send for Memory {}
// SAFETY: through `&self` it is only read.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(pages: usize) -> Result<Memory, Errno> {
        let length = pages.max(1).checked_mul(PAGE_BYTES).ok_or(Errno::NOMEM)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(null_mut(), length, rights, MapFlags::PRIVATE)? };
        let memory = Memory { mapped, pages };
        // Small pages from the start; excluded from forked children and from core dumps.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: our own new mapping, to which nothing refers; the advice changes no content.
            match unsafe { madvise(mapped, length, advice) } {
                Ok(()) | Err(Errno::INVAL) => {} // a kernel without huge pages has no such advice
                Err(errno) => return Err(errno),
            }
        }
        Ok(memory)
    }

    const fn length(&self) -> usize {
        if self.pages == 0 { PAGE_BYTES } else { self.pages * PAGE_BYTES }
    }

    fn fill(&mut self, page: usize, content: &[u8; PAGE_BYTES]) {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        let to = self.mapped.wrapping_byte_add(page * PAGE_BYTES).cast::<u8>();
        // SAFETY: a whole page of our own mapping, which is still writable, as `offer` comes after; `content` lies
        // elsewhere.
        unsafe { to.copy_from_nonoverlapping(content.as_ptr(), PAGE_BYTES) };
    }

    /// Makes the memory read-only and mergeable.
    fn offer(&mut self) -> Result<(), Errno> {
        // SAFETY: the whole of our own mapping; only the right to write is removed.
        unsafe { mprotect(self.mapped, self.length(), MprotectFlags::READ)? };
        // SAFETY: the same mapping; a merged page has the same content.
        unsafe { madvise(self.mapped, self.length(), Advice::LinuxMergeable) }
    }

    fn page(&self, page: usize) -> *const u8 {
        self.mapped.wrapping_byte_add(page * PAGE_BYTES).cast_const().cast()
    }

    /// Range of the first `pages` pages.
    fn range(&self, pages: usize) -> Result<AddressRange, Error> {
        range_of(self.mapped.addr() as u64, pages)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, made in `map` and owned by `self`; no reference into it exists.
        let unmapped = unsafe { munmap(self.mapped, self.length()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

fn failed(operation: &str) -> impl Fn(Errno) -> Error {
    move |errno| Error::of_host(operation, "memory of our own", errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(pid: i32, number: u64) -> PageOf {
        PageOf { pid: Pid(pid), address: Address(number * 4096) }
    }

    #[test]
    fn neighbours_in_one_process_are_a_run() {
        assert_eq!(run_of(&[]), 0);
        assert_eq!(run_of(&[page(1, 7), page(1, 8), page(1, 10)]), 2);
        assert_eq!(run_of(&[page(1, 7), page(2, 8)]), 1);
    }

    #[test]
    fn what_was_copied_stands_in_our_memory_and_what_cannot_be_read_is_left_out() {
        let ours: Vec<u64> = (0..4 * 512).collect();
        let start = (ours.as_ptr().addr() as u64).next_multiple_of(4096);
        let own = Pid::own();
        let pages: Vec<PageOf> =
            [start, 4096, start + 4096].map(|at| PageOf { pid: own, address: Address(at) }).to_vec();
        let copy = match MergedCopy::of(&pages) {
            Err(Error::Unsupported(error)) => return println!("SKIP: {error}"),
            copy => copy.unwrap(),
        };
        assert_eq!(copy.sources(), [pages[0], pages[2]]);
        let at = copy.memory.page(1).addr() as u64;
        let mut bytes = vec![0; 4096];
        MemoryFile::open(own).unwrap().read(Address(at), &mut bytes).unwrap();
        let mut expected = vec![0; 4096];
        MemoryFile::open(own).unwrap().read(Address(start + 4096), &mut expected).unwrap();
        assert_eq!(bytes, expected);
        copy.touch(0..2);
        if cfg!(target_arch = "x86_64") {
            copy.flush(0..2).unwrap();
            assert!(copy.time_load(1, 63).unwrap() > Ticks(0));
        }
        // A caller with access to frame numbers sees two frames; KSM may run here, or not.
        if let Ok(frames) = copy.frames() {
            assert_eq!(frames.iter().flatten().count(), 2);
            assert_eq!(copy.merged().unwrap().len(), 2);
        }
    }

    #[test]
    fn only_what_is_gone_is_left_out() {
        let of = |errno| is_of_page_only(&Error::of_process("read", "/proc/1/mem", errno));
        assert!(of(Errno::SRCH) && of(Errno::NOENT) && of(Errno::IO));
        assert!(!of(Errno::ACCESS) && !of(Errno::MFILE) && !of(Errno::NOMEM));
    }

    #[test]
    fn of_nothing_there_is_an_empty_copy_and_of_what_is_gone_there_is_none() {
        let copy = match MergedCopy::of(&[]) {
            Err(Error::Unsupported(error)) => return println!("SKIP: {error}"),
            copy => copy.unwrap(),
        };
        assert_eq!((copy.pages(), copy.merged_pages().unwrap_or(Pages(0))), (Pages(0), Pages(0)));
        copy.touch(0..0);
        let quiet = crate::quiet_process::QuietProcess::start();
        let gone = quiet.pid();
        drop(quiet);
        let refused = MergedCopy::of(&[PageOf { pid: gone, address: Address(4096) }]).unwrap_err();
        assert!(refused.is_gone(), "{refused}");
    }
}
