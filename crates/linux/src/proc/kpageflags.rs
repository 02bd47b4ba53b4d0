//! `/proc/kpageflags`: the kernel's flags of a page frame.
//!
//! The flags give the use of a frame, whether it is on the active list, and the extent of its compound page (folio).
//! Without `PAGEMAP_SCAN` (before Linux 6.7) they also identify huge pages and the zero page. Frame numbers come from
//! `pagemap.rs`, the existing frames from `zoneinfo.rs`.
//!
//! Later frames of a block have the flags of the first; up to some kernel between 6.1 and 6.12 only the first has
//! most of them.
//!
//! **KPF_KSM is set for every anonymous page** since Linux 6.10 (dee3d0bef2b0, "proc: rewrite stable_page_flags()", tests
//! for one of two bits), until "fs/proc: fix KPF_KSM reported for all anonymous pages" (July 2026, also in the
//! later 7.1.y and 6.18.y). 6.12.117 of Debian has the fault. [`FrameTable::tells_merged`] finds it by trying. `KSM:` of `smaps.rs` is
//! right on these kernels too.
//!
//! Cost: one `pread` of 8 bytes a frame; some 2 µs and 10 ns a frame for frames in a row. Side effect: none.
//! Since: Linux 2.6.25, `ZeroPage` 4.0; needs CONFIG_PROC_PAGE_MONITOR and CAP_SYS_ADMIN.
//! Truth: Documentation/admin-guide/mm/pagemap.rst; include/uapi/linux/kernel-page-flags.h.

use units::{PAGES_PER_WINDOW, Pages, cast};

use crate::frame_file::{BEYOND, FrameFile};
use crate::pagemap::{PageEntry, Pagemap};
use crate::scratch::Scratch;
use crate::{Error, Pid};

/// Bits in use, numbered as in `linux/kernel-page-flags.h`.
pub mod bits {
    /// Content equals the file's.
    pub const UP_TO_DATE: u32 = 3;
    /// On an LRU list, or on the unevictable list.
    pub const LRU: u32 = 5;
    /// On the active list.
    pub const ACTIVE: u32 = 6;
    /// Slab: the kernel's own objects.
    pub const SLAB: u32 = 7;
    /// Free.
    pub const BUDDY: u32 = 10;
    /// Mapped by a page table.
    pub const MMAP: u32 = 11;
    /// Anonymous memory of programs.
    pub const ANON: u32 = 12;
    /// Backed by swap.
    pub const SWAP_BACKED: u32 = 14;
    /// First frame of a compound page.
    pub const COMPOUND_HEAD: u32 = 15;
    /// Later frame of a compound page.
    pub const COMPOUND_TAIL: u32 = 16;
    /// From the pool of huge pages (hugetlb).
    pub const HUGE: u32 = 17;
    /// On the unevictable list.
    pub const UNEVICTABLE: u32 = 18;
    /// Faulty memory, out of use.
    pub const HWPOISON: u32 = 19;
    /// No such frame.
    pub const NO_PAGE: u32 = 20;
    /// Merged by KSM.
    pub const KSM: u32 = 21;
    /// Part of a transparent huge page.
    pub const THP: u32 = 22;
    /// Taken offline, by the administrator or by a balloon driver for the hypervisor.
    pub const OFFLINE: u32 = 23;
    /// Zero page.
    pub const ZERO_PAGE: u32 = 24;
    /// Page table.
    pub const PAGE_TABLE: u32 = 26;
    /// Reserved at boot: firmware, the kernel's image, the page descriptors. Not a stable interface.
    pub const RESERVED: u32 = 32;
    /// Locked by mlock(2); on its way to the unevictable list, if it is not there yet. Not a stable interface
    /// (include/linux/kernel-page-flags.h).
    pub const MLOCKED: u32 = 33;
}

/// Flags of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFlags(u64);

impl FrameFlags {
    const fn has(self, bit: u32) -> bool {
        self.0 & (1 << bit) != 0
    }

    /// On an LRU list or the unevictable list (KPF_LRU).
    pub const fn is_listed(self) -> bool {
        self.has(bits::LRU)
    }

    /// A file's page with read content (KPF_UPTODATE). Frames taken by the kernel and its drivers do not have this
    /// flag.
    pub const fn is_up_to_date(self) -> bool {
        self.has(bits::UP_TO_DATE)
    }

    /// On the active list (KPF_ACTIVE). A kernel with generations instead of two lists (MGLRU) has no such list.
    pub const fn is_active(self) -> bool {
        self.has(bits::ACTIVE)
    }

    /// Locked in memory; possibly not yet moved to the unevictable list.
    pub const fn is_locked(self) -> bool {
        self.has(bits::UNEVICTABLE) || self.has(bits::MLOCKED)
    }

    /// On the unevictable list, because it is locked (KPF_UNEVICTABLE).
    pub const fn is_unevictable(self) -> bool {
        self.has(bits::UNEVICTABLE)
    }

    /// Anonymous memory: heap, stack, written pages of private file mappings (KPF_ANON).
    pub const fn is_anonymous(self) -> bool {
        self.has(bits::ANON)
    }

    /// Backed by swap: anonymous, or of tmpfs and shared memory (KPF_SWAPBACKED).
    pub const fn is_swap_backed(self) -> bool {
        self.has(bits::SWAP_BACKED)
    }

    /// Flags with KPF_SWAPBACKED: for memory without a file on a disk that the kernel does not mark so (memfd_secret(2)).
    #[must_use]
    pub const fn of_memory(self) -> FrameFlags {
        FrameFlags(self.0 | 1 << bits::SWAP_BACKED)
    }

    /// In the page table of some process (KPF_MMAP).
    pub const fn is_mapped(self) -> bool {
        self.has(bits::MMAP)
    }

    /// Slab: the kernel's own objects (KPF_SLAB).
    pub const fn is_slab(self) -> bool {
        self.has(bits::SLAB)
    }

    /// Page table (KPF_PGTABLE).
    pub const fn is_page_table(self) -> bool {
        self.has(bits::PAGE_TABLE)
    }

    /// Free (KPF_BUDDY). Free frames on a per-processor list do not show it.
    pub const fn is_free(self) -> bool {
        self.has(bits::BUDDY)
    }

    /// From the pool of huge pages (KPF_HUGE).
    pub const fn is_of_huge_pool(self) -> bool {
        self.has(bits::HUGE)
    }

    /// No memory: a hole (KPF_NOPAGE).
    pub const fn is_absent(self) -> bool {
        self.has(bits::NO_PAGE)
    }

    /// Taken offline, or by the hypervisor (KPF_OFFLINE).
    pub const fn is_offline(self) -> bool {
        self.has(bits::OFFLINE)
    }

    /// Faulty, and out of use (KPF_HWPOISON).
    pub const fn is_faulty(self) -> bool {
        self.has(bits::HWPOISON)
    }

    /// Reserved at boot (KPF_RESERVED).
    pub const fn is_reserved(self) -> bool {
        self.has(bits::RESERVED)
    }

    /// First frame of a compound page (KPF_COMPOUND_HEAD).
    pub const fn is_head(self) -> bool {
        self.has(bits::COMPOUND_HEAD)
    }

    /// Later frame of a compound page (KPF_COMPOUND_TAIL).
    pub const fn is_tail(self) -> bool {
        self.has(bits::COMPOUND_TAIL)
    }

    /// Wraps a raw word of the file, for tests of the crates above.
    #[cfg(any(test, feature = "fake"))]
    pub const fn of(flags: u64) -> FrameFlags {
        FrameFlags(flags)
    }

    /// Merged by KSM with pages of the same content, even if only one is left (KPF_KSM). An empty page that KSM
    /// replaced by the zero page does not count. Some kernels set it for every anonymous page
    /// ([`FrameTable::tells_merged`]).
    pub const fn is_merged(self) -> bool {
        self.has(bits::KSM)
    }

    /// Part of a transparent huge page (KPF_THP), mapped huge or not.
    pub const fn is_transparent_huge(self) -> bool {
        self.has(bits::THP)
    }

    /// Zero page, small or huge (KPF_ZERO_PAGE).
    pub const fn is_zero_page(self) -> bool {
        self.has(bits::ZERO_PAGE)
    }
}

/// True if these flags, of 512 frames in a row, belong to one transparent huge page. KPF_THP also shows in smaller
/// blocks, common in the page cache. In a huge page only the first frame is a head, and all others are tails.
pub fn is_one_huge_page(flags: &[FrameFlags]) -> bool {
    let Some((first, others)) = flags.split_first() else { return false };
    flags.len() == PAGES_PER_WINDOW
        && first.is_head()
        && first.is_transparent_huge()
        && others.iter().all(|frame| frame.is_tail())
}

/// Open `/proc/kpageflags`.
#[derive(Debug)]
pub struct FrameTable(FrameFile);

impl FrameTable {
    /// Opens it.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN, `Unsupported` where the kernel lacks it.
    pub fn open() -> Result<FrameTable, Error> {
        FrameFile::open("/proc/kpageflags").map(FrameTable)
    }

    /// False on a kernel that sets KPF_KSM for every anonymous page (file head): it sets the flag for pages of our own
    /// that nothing can have merged since they were written.
    ///
    /// # Errors
    /// Without memory, or without the right to see frame numbers.
    pub fn tells_merged(&self) -> Result<bool, Error> {
        let mut own =
            Scratch::of(Pages(8).bytes()).map_err(|errno| Error::of_host("map", "memory of our own", errno))?;
        own.touch_all();
        for frame in Pagemap::open(Pid::own())?.entries(own.range())?.into_iter().filter_map(PageEntry::frame) {
            if !self.flags(frame)?.is_merged() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Flags of frame `number`.
    ///
    /// # Errors
    /// `Other` for a frame that does not exist.
    pub fn flags(&self, number: u64) -> Result<FrameFlags, Error> {
        let mut flags = FrameFlags(0);
        self.0.each(number, 1, |word| flags = FrameFlags(word))?;
        Ok(flags)
    }

    /// Flags of `count` frames in a row, from `first` on.
    ///
    /// # Errors
    /// `Other` for frames that do not exist.
    pub fn flags_of(&self, first: u64, count: usize) -> Result<Vec<FrameFlags>, Error> {
        let mut flags = Vec::with_capacity(count);
        self.read_into(first, count, &mut flags)?;
        Ok(flags)
    }

    /// Appends the flags of `count` frames in a row, from `first` on, to `flags`.
    ///
    /// # Errors
    /// `Other` for frames that do not exist.
    pub fn read_into(&self, first: u64, count: usize, flags: &mut Vec<FrameFlags>) -> Result<(), Error> {
        self.0.each(first, count, |word| flags.push(FrameFlags(word)))
    }

    /// Passes the flags of each of `numbers`, which must rise, to `take`, in order. Frames close to each other are
    /// read by one call, with the frames between them. A frame that no longer exists has no flags.
    ///
    /// # Errors
    /// The kernel's answer: `Denied`, if our privilege was revoked.
    pub fn of_each(&self, numbers: &[u64], mut take: impl FnMut(u64, FrameFlags)) -> Result<(), Error> {
        let mut left = numbers;
        while let Some(first) = left.first() {
            let run = run_of(left);
            let (these, others) = left.split_at(run);
            let count = these.last().map_or(0, |last| last - first) + 1;
            let mut at = *first;
            let mut wanted = these.iter().peekable();
            let read = self.0.each(*first, cast::index(count), |word| {
                while wanted.next_if(|number| **number == at).is_some() {
                    take(at, FrameFlags(word));
                }
                at += 1;
            });
            match read {
                Err(error) if error.errno() == Some(BEYOND) => wanted.for_each(|number| take(*number, FrameFlags(0))),
                read => read?,
            }
            left = others;
        }
        Ok(())
    }
}

/// Number of these rising numbers, from the first on, that are worth one call.
fn run_of(numbers: &[u64]) -> usize {
    /// Largest gap between frames that surely costs less than a call.
    const STEP_MAX: u64 = 4;
    let apart = numbers.windows(2).position(|pair| pair[1].saturating_sub(pair[0]) > STEP_MAX);
    apart.map_or(numbers.len(), |last| last + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;

    use super::*;

    #[test]
    fn flags_are_told_apart_by_their_documented_bits() {
        assert!(FrameFlags(1 << 22).is_transparent_huge());
        assert!(FrameFlags(1 << 24).is_zero_page());
        assert!(FrameFlags(1 << 21).is_merged() && !FrameFlags(!(1 << 21)).is_merged());
        assert!(!FrameFlags(!(1 << 22)).is_transparent_huge());
        assert!(FrameFlags(1 << 15).is_head() && !FrameFlags(1 << 15).is_tail());
        assert!(FrameFlags(1 << 16).is_tail() && !FrameFlags(1 << 16).is_head());
    }
    #[test]
    fn frames_close_to_each_other_are_one_run() {
        assert_eq!(run_of(&[]), 0);
        assert_eq!(run_of(&[7]), 1);
        assert_eq!(run_of(&[7, 7, 8, 12, 17, 18]), 4);
        assert_eq!(run_of(&[0, u64::MAX]), 1);
    }

    #[test]
    fn the_flags_of_scattered_frames_are_those_that_each_has() {
        let Ok(table) = FrameTable::open() else { return println!("SKIP: /proc/kpageflags is not for us") };
        let numbers: Vec<u64> = (0..2000).map(|n| n * n / 7 + 256).chain([1 << 54, 1 << 54, (1 << 54) + 1]).collect();
        let mut found = Vec::new();
        table.of_each(&numbers, |number, flags| found.push((number, flags))).unwrap();
        assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), numbers);
        // Flags may change at any time. Only flags equal before and after count, with a few tries for each.
        let one_by_one =
            || numbers.iter().map(|number| table.flags(*number).unwrap_or(FrameFlags(0))).collect::<Vec<_>>();
        let mut unlike: BTreeSet<u64> = numbers.iter().copied().collect();
        for _ in 0..10 {
            let (before, mut between) = (one_by_one(), Vec::new());
            table.of_each(&numbers, |_, flags| between.push(flags)).unwrap();
            let all = numbers.iter().zip(before).zip(between).zip(one_by_one());
            let alike = all.filter(|(((_, before), between), after)| before == after && before == between);
            for (((number, _), _), _) in alike {
                unlike.remove(number);
            }
        }
        assert_eq!(unlike, BTreeSet::new());
    }

    #[test]
    fn frames_before_the_last_keep_their_flags_when_others_are_beyond_it() {
        let mut file = tempfile::tempfile().unwrap();
        let words: Vec<u8> = (1..=600u64).flat_map(u64::to_ne_bytes).collect();
        file.write_all(&words).unwrap();
        let table = FrameTable(FrameFile::of(file));
        let mut found = Vec::new();
        table.of_each(&[7, 597, 599, 600, 602], |number, flags| found.push((number, flags.0))).unwrap();
        assert_eq!(found, [(7, 8), (597, 598), (599, 600), (600, 0), (602, 0)]);
        let folder = FrameTable(FrameFile::of(std::fs::File::open("/").unwrap()));
        let error = folder.of_each(&[7], |_, _| panic!("nothing was read")).unwrap_err();
        assert_eq!(error.errno(), Some(rustix::io::Errno::ISDIR));
    }

    #[test]
    fn a_smaller_block_that_begins_where_a_huge_page_would_is_none() {
        let (head, tail) = (FrameFlags(1 << 15 | 1 << 22), FrameFlags(1 << 16 | 1 << 22));
        let mut flags = vec![tail; PAGES_PER_WINDOW];
        flags[0] = head;
        assert!(is_one_huge_page(&flags));
        assert!(!is_one_huge_page(&flags[..511]) && !is_one_huge_page(&[]));
        flags[16] = head;
        assert!(!is_one_huge_page(&flags), "two blocks");
        flags[16..].fill(FrameFlags(0));
        assert!(!is_one_huge_page(&flags), "one of sixteen, and single pages");
        // From the pool of huge pages.
        let pool = [vec![FrameFlags(1 << 15 | 1 << 17)], vec![FrameFlags(1 << 16 | 1 << 17); 511]].concat();
        assert!(!is_one_huge_page(&pool));
    }
}
