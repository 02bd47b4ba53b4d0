//! `/proc/PID/pagemap`: state of each page of a process, entry by entry or by the `PAGEMAP_SCAN` ioctl.
//!
//! Entries show pages that are present, swapped, or shared with another process or merged (`exclusive` is off). The
//! scan shows pages mapped by huge pages, and the zero page. Neither shows the use of a page: `access`.
//!
//! Cost: about 2 µs a window for the entries, less for the scan, under the mmap lock held for reading.
//! Side effect: none.
//!
//! Since: entries Linux 2.6.25, `exclusive` 4.2, guard pages 6.15; `PAGEMAP_SCAN` 6.7. Needs ptrace access to the
//! process (PTRACE_MODE_READ); frame numbers need CAP_SYS_ADMIN and read as zero without it.
//!
//! Truth: Documentation/admin-guide/mm/pagemap.rst; fs/proc/task_mmu.c.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use linux_raw_sys::general::{
    PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, page_region, pm_scan_arg,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use units::{Address, AddressRange, Pages, cast};

use crate::proxy::{self, Call};
use crate::{Error, Pid, error};

/// One entry of the file: the state of one small page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntry(pub u64);

impl PageEntry {
    /// In memory.
    pub const fn is_present(self) -> bool {
        self.0 & (1 << 63) != 0
    }

    /// In swap.
    pub const fn is_swapped(self) -> bool {
        self.0 & (1 << 62) != 0
    }

    /// File page, or shared anonymous memory.
    pub const fn is_file(self) -> bool {
        self.0 & (1 << 61) != 0
    }

    /// Guard page (MADV_GUARD_INSTALL): touching it kills the program. Reported since Linux 6.15.
    pub const fn is_guard(self) -> bool {
        self.0 & (1 << 58) != 0
    }

    /// Mapped by this process alone. Off for the zero page, for pages shared by a fork and for pages merged by KSM.
    pub const fn is_exclusive(self) -> bool {
        self.0 & (1 << 56) != 0
    }

    /// Candidate for a page merged by KSM: present, without a file, and mapped elsewhere as well. The zero page and
    /// pages shared by a fork qualify too; the frame's flags decide (`kpageflags.rs`).
    pub const fn may_be_merged(self) -> bool {
        self.is_present() && !self.is_file() && !self.is_exclusive()
    }

    /// Frame number; `None` for a page that is not present or a reader without CAP_SYS_ADMIN.
    pub const fn frame(self) -> Option<u64> {
        let number = self.0 & ((1 << 55) - 1);
        if self.is_present() && number != 0 { Some(number) } else { None }
    }
}

/// Neighbouring pages in the same state, as the scan reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Address range of the pages.
    pub range: AddressRange,
    /// In memory.
    pub present: bool,
    /// In swap.
    pub swapped: bool,
    /// Zero page: present, but no memory of the program's own.
    pub zero: bool,
    /// Mapped by an entry of 2 MiB (or more).
    pub huge: bool,
}

/// Open file of one process. It stays with the address space of its opening.
#[derive(Debug)]
pub struct Pagemap {
    file: OwnedFd,
    pid: Pid,
}

const REPORTED: u64 = (PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO | PAGE_IS_HUGE) as u64;
const SCAN: Opcode = opcode::read_write::<pm_scan_arg>(b'f', 16);
const RUNS_PER_CALL: usize = 1024;
/// Runs per call. Huge pages lie side by side, and most calls ask for a single window.
const HUGE_RUNS_PER_CALL: usize = 16;

/// Filter of a scan.
#[derive(Clone, Copy)]
struct Category {
    /// Categories that must be set, or not set if they are in `none_of` as well.
    all_of: u64,
    none_of: u64,
    any_of: u64,
}

impl Default for Category {
    fn default() -> Category {
        Category { all_of: 0, none_of: 0, any_of: u64::from(PAGE_IS_PRESENT | PAGE_IS_SWAPPED) }
    }
}

impl Pagemap {
    /// Opens it for `pid`.
    ///
    /// # Errors
    /// `Gone`, or `Denied` without ptrace access.
    pub fn open(pid: Pid) -> Result<Pagemap, Error> {
        let path = format!("/{}", pid.file("pagemap"));
        match proxy::open(pid, &path, OFlags::RDONLY) {
            Ok(file) => Ok(Pagemap { file, pid }),
            Err(errno) => Err(Error::of_process("open", path, errno)),
        }
    }

    /// Entries of all pages in `range`, in order. Pages that are not mapped read as empty entries.
    ///
    /// # Errors
    /// `Gone` if the address space ended.
    pub fn entries(&self, range: AddressRange) -> Result<Vec<PageEntry>, Error> {
        let mut entries = Vec::with_capacity(cast::index(range.pages().0));
        self.each(range, |_, entry| entries.push(entry))?;
        Ok(entries)
    }

    /// Passes the address and entry of each page of `range` to `take`, in order; unmapped pages have an empty entry.
    /// For ranges of any length: nothing is kept.
    ///
    /// # Errors
    /// `Gone` if the address space ended.
    pub fn each(&self, range: AddressRange, mut take: impl FnMut(Address, PageEntry)) -> Result<(), Error> {
        /// 256 KiB: stays in the second-level cache.
        const ENTRIES_PER_CALL: u64 = 32 << 10;
        const PAGE: u64 = Pages(1).bytes().0;
        fn step(call: &mut Call<'_>) -> Result<u64, Errno> {
            let [offset, length, ..] = call.numbers;
            let length = cast::index(length).min(call.bytes.len());
            let file = call.file.ok_or(Errno::BADF)?;
            rustix::io::pread(file, &mut call.bytes[..length], offset).map(|filled| filled as u64)
        }
        let mut at = range.start().0;
        let read = proxy::about(self.pid, |proxy| {
            while at < range.end().0 {
                let length = ENTRIES_PER_CALL.min((range.end().0 - at) / PAGE) * 8;
                let filled = proxy.call(step, [at / PAGE * 8, length, 0, 0], Some(self.file.as_fd()))?.value;
                let words = proxy.bytes()[..cast::index(filled)].as_chunks::<8>().0;
                if words.is_empty() {
                    return Err(Errno::SRCH); // the kernel's sign that the memory is gone
                }
                for word in words {
                    take(Address(at), PageEntry(u64::from_ne_bytes(*word)));
                    at += PAGE;
                }
            }
            Ok(())
        });
        read.map_err(|errno| self.failed("read", errno))
    }

    /// Runs of pages in `range` that are in memory, small, and not the zero page. Empty if the address space ended.
    ///
    /// The kernel reads page tables alone for this. Leaving out file pages as well would make it read each frame, and
    /// the scan would take as long as reading the entries.
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.7.
    pub fn scan_small(&self, range: AddressRange) -> Result<Vec<AddressRange>, Error> {
        let others = u64::from(PAGE_IS_PFNZERO | PAGE_IS_HUGE);
        let wanted = Category { all_of: u64::from(PAGE_IS_PRESENT) | others, none_of: others, any_of: 0 };
        Ok(self.scan_for(range, wanted, RUNS_PER_CALL)?.into_iter().map(|run| run.range).collect())
    }

    /// Runs of present or swapped pages in `range`.
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.7; `Gone` if the address space ended.
    pub fn scan(&self, range: AddressRange) -> Result<Vec<Run>, Error> {
        self.scan_for(range, Category::default(), RUNS_PER_CALL)
    }

    /// Runs of pages in `range` that are mapped by huge pages. Empty if the address space ended; `entries` can tell.
    ///
    /// # Errors
    /// `Unsupported` before Linux 6.7.
    pub fn scan_huge(&self, range: AddressRange) -> Result<Vec<Run>, Error> {
        let wanted = Category { all_of: u64::from(PAGE_IS_HUGE), ..Category::default() };
        self.scan_for(range, wanted, HUGE_RUNS_PER_CALL)
    }

    fn scan_for(&self, range: AddressRange, wanted: Category, runs_per_call: usize) -> Result<Vec<Run>, Error> {
        let Category { all_of, none_of, any_of } = wanted;
        let categories = all_of | none_of << 16 | any_of << 32;
        let mut found = Vec::new();
        let scanned = proxy::about(self.pid, |proxy| {
            let mut from = range.start().0;
            while from < range.end().0 {
                let numbers = [from, range.end().0, categories, runs_per_call as u64];
                let filled = proxy.call(scan_step, numbers, Some(self.file.as_fd()))?.value;
                let (words, _) = proxy.bytes().as_chunks::<8>();
                let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
                let walked = words.next().unwrap_or(0);
                for _ in 0..filled {
                    let mut next = || words.next().unwrap_or(0);
                    found.push(page_region { start: next(), end: next(), categories: next() });
                }
                if walked <= from {
                    break; // no progress: nothing left to report
                }
                from = walked;
            }
            Ok(())
        });
        scanned.map_err(|errno| self.failed("scan", errno))?;
        found.into_iter().map(|region| decode_run(region).map_err(|_| self.failed("scan", Errno::IO))).collect()
    }

    fn path(&self) -> String {
        format!("/{}", self.pid.file("pagemap"))
    }

    fn failed(&self, operation: &str, errno: Errno) -> Error {
        Error::of_process(operation, self.path(), errno)
    }
}

/// One scan: its end comes first in the bytes, the regions behind it.
fn scan_step(call: &mut Call<'_>) -> Result<u64, Errno> {
    let [start, end, categories, length] = call.numbers;
    let category = |shift: u32| categories >> shift & 0xffff;
    let (walked, regions) = call.bytes.split_at_mut(8);
    let space = regions.len() / size_of::<page_region>();
    let mut request = pm_scan_arg {
        size: size_of::<pm_scan_arg>() as u64,
        flags: 0,
        start,
        end,
        walk_end: 0,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: length.min(space as u64),
        max_pages: 0,
        category_inverted: category(16),
        category_mask: category(0),
        category_anyof_mask: category(32),
        return_mask: REPORTED,
    };
    let file = call.file.ok_or(Errno::BADF)?;
    // SAFETY: `request` and the bytes that it points to, with space for `vec_len` records, outlive the call; the
    // kernel writes at most that number of records and the fields of `request`; the file is open while it is
    // borrowed.
    let filled = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(SCAN), &raw mut request) };
    walked.copy_from_slice(&request.walk_end.to_ne_bytes());
    u64::try_from(filled).map_err(|_| error::errno(std::io::Error::last_os_error()))
}

/// True if this kernel offers `PAGEMAP_SCAN`; false if it could not be asked.
pub fn has_scan() -> bool {
    let nothing = AddressRange::new(0, Pages(1).bytes().0);
    let asked =
        Pagemap::open(Pid::own()).and_then(|own| nothing.map(|range| own.scan(range)).unwrap_or(Ok(Vec::new())));
    asked.is_ok()
}

/// Checks that the kernel reports frame numbers, by asking for the frame of a page of our own. Hidden numbers read as
/// zero.
///
/// User 0 of a user namespace may have all capabilities and still get none.
///
/// # Errors
/// `Denied` if they are hidden; else as [`Pagemap::open`] and [`Pagemap::entries`].
pub fn need_frame_numbers() -> Result<(), Error> {
    let ours = Box::new(1_u8); // written, so in memory, unless it goes to swap at once
    let address = std::ptr::from_ref(&*ours).addr() as u64;
    let start = address - address % Pages(1).bytes().0;
    let path = "/proc/self/pagemap";
    let failed = |errno| Error::of_host("read", format_args!("frame numbers in {path}"), errno);
    let range = AddressRange::new(start, start + Pages(1).bytes().0).map_err(|_| failed(Errno::FAULT))?;
    let entries = Pagemap::open(Pid::own())?.entries(range)?;
    if entries.iter().any(|entry| entry.is_present() && entry.frame().is_none()) {
        return Err(failed(Errno::PERM));
    }
    Ok(())
}

fn decode_run(region: page_region) -> Result<Run, units::BadRange> {
    let has = |flag: u32| region.categories & u64::from(flag) != 0;
    Ok(Run {
        range: AddressRange::new(region.start, region.end)?,
        present: has(PAGE_IS_PRESENT),
        swapped: has(PAGE_IS_SWAPPED),
        zero: has(PAGE_IS_PFNZERO),
        huge: has(PAGE_IS_HUGE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_by_its_documented_bits() {
        let entry = PageEntry(1 << 63 | 1 << 56 | 0x1234);
        assert!(entry.is_present() && entry.is_exclusive());
        assert!(!entry.is_swapped() && !entry.is_file() && !entry.is_guard());
        assert_eq!(entry.frame(), Some(0x1234));
        assert!(!entry.may_be_merged() && PageEntry(1 << 63 | 7).may_be_merged());
        assert!(!PageEntry(1 << 63 | 1 << 61 | 7).may_be_merged() && !PageEntry(1 << 62 | 7).may_be_merged());
        assert_eq!(PageEntry(1 << 63).frame(), None);
        assert_eq!(PageEntry(1 << 62 | 7).frame(), None);
    }

    #[test]
    fn a_run_with_a_torn_address_is_refused() {
        assert!(decode_run(page_region { start: 1, end: 4096, categories: 0 }).is_err());
        let run = decode_run(page_region { start: 0, end: 4096, categories: u64::from(PAGE_IS_PFNZERO) }).unwrap();
        assert!(run.zero && !run.present);
    }

    #[test]
    fn frame_numbers_are_told_to_whom_the_kernel_tells_them() {
        let admin = crate::capabilities::Capability::SysAdmin;
        let own = crate::capabilities::own(&crate::Rooted::host()).unwrap();
        match need_frame_numbers() {
            Ok(()) => assert!(own.contains(admin)),
            // In a user namespace the capability is present but has no effect here.
            Err(error) => assert!(matches!(error, Error::Denied(_)), "{error}"),
        }
    }

    #[test]
    fn own_touched_pages_are_present_and_untouched_ones_are_not() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        const LENGTH: usize = 8 * 4096;
        // SAFETY: a fresh anonymous mapping that nothing else refers to.
        let memory = unsafe {
            mmap_anonymous(std::ptr::null_mut(), LENGTH, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).unwrap()
        };
        // SAFETY: page 3 of the eight pages mapped above.
        unsafe { memory.cast::<u8>().add(3 * 4096).write_volatile(1) };
        let start = memory.expose_provenance() as u64;
        let range = AddressRange::new(start, start + LENGTH as u64).unwrap();
        let pagemap = Pagemap::open(Pid::own()).unwrap();
        let entries = pagemap.entries(range).unwrap();
        let mut each = Vec::new();
        pagemap.each(range, |address, entry| each.push((address.0, entry))).unwrap();
        assert_eq!(each, (start..).step_by(4096).zip(entries.iter().copied()).collect::<Vec<_>>());
        // Small, unless the first touch got a huge page.
        match pagemap.scan_small(range) {
            Err(Error::Unsupported(_)) => println!("SKIP: no PAGEMAP_SCAN here"),
            runs => {
                let third = AddressRange::new(start + 3 * 4096, start + 4 * 4096).unwrap();
                assert_eq!(runs.unwrap(), [third]);
            }
        }
        // SAFETY: the mapping made above; no reference into it exists.
        unsafe { munmap(memory, LENGTH).unwrap() };
        let present: Vec<usize> = (0..8).filter(|i| entries[*i].is_present()).collect();
        assert_eq!(present, [3]);
        assert!(entries[3].is_exclusive());
    }
}
