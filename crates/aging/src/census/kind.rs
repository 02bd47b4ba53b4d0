//! Kind of memory behind the pages of a mapping.
//!
//! A page table distinguishes file pages from others, but also reports as file pages the packet rings and buffers that
//! a driver or io_uring shares with a program, and huge pages of the pool. Memory without frame descriptions, such as
//! device registers, looks like anonymous pages. Therefore the frames are read.

use linux::Error;
use linux::kpageflags::{FrameFlags, FrameTable};

use super::memory::Memory;
use super::tally::of_its_block;

/// Number of frames of neighbouring pages that are read for their kind.
const ASKED: usize = 8;

/// Kind of neighbouring pages of one mapping. If they disagree, the later variant wins: a page just read from a file is
/// on no list yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No memory, or the zero page.
    Nothing,
    /// Memory of the kernel or a driver.
    Kernel,
    /// Private memory.
    Anonymous,
    /// File on a disk.
    File,
    /// Pool of huge pages.
    HugePool,
    /// tmpfs or other shared memory.
    Shared,
}

impl Kind {
    fn of(flags: FrameFlags) -> Kind {
        if flags.is_absent() || flags.is_offline() || flags.is_zero_page() {
            Kind::Nothing
        } else if flags.is_of_huge_pool() {
            Kind::HugePool
        } else if flags.is_slab() || flags.is_page_table() || flags.is_free() {
            Kind::Kernel
        } else if flags.is_anonymous() {
            Kind::Anonymous
        } else if flags.is_swap_backed() {
            Kind::Shared
        } else if flags.is_listed() || flags.is_up_to_date() {
            Kind::File
        } else {
            Kind::Kernel
        }
    }

    /// Kind of these frames, which belong to neighbouring pages of one mapping. Reads some of them.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN.
    pub fn of_frames(frames: &[u64], table: &FrameTable, memory: &Memory) -> Result<Kind, Error> {
        let mut kind = Kind::Nothing;
        for frame in frames.iter().step_by(frames.len().div_ceil(ASKED).max(1)) {
            // Frames beyond memory have no flags.
            if memory.contains(*frame) {
                kind = kind.max(Kind::of(of_its_block(table, *frame, table.flags(*frame)?)?));
            }
        }
        Ok(kind)
    }
}

#[cfg(test)]
mod tests {
    use linux::kpageflags::bits::{
        ANON, HUGE, LRU, MMAP, NO_PAGE, PAGE_TABLE, SLAB, SWAP_BACKED, UP_TO_DATE, ZERO_PAGE,
    };

    use super::*;

    fn of(set: &[u32]) -> Kind {
        Kind::of(FrameFlags::of(set.iter().fold(0, |flags, bit| flags | 1 << bit)))
    }

    #[test]
    fn what_drivers_share_with_a_program_is_no_file() {
        assert_eq!(of(&[MMAP]), Kind::Kernel);
        assert_eq!(of(&[]), Kind::Kernel);
        assert_eq!(of(&[SLAB, ANON]), Kind::Kernel);
        assert_eq!(of(&[PAGE_TABLE, MMAP]), Kind::Kernel);
        assert_eq!(of(&[HUGE, MMAP, UP_TO_DATE]), Kind::HugePool);
        assert_eq!(of(&[NO_PAGE]), Kind::Nothing);
        assert_eq!(of(&[ZERO_PAGE, LRU]), Kind::Nothing);
    }

    #[test]
    fn files_and_shared_memory_are_known_also_before_they_are_on_a_list() {
        assert_eq!(of(&[LRU, MMAP, UP_TO_DATE]), Kind::File);
        assert_eq!(of(&[MMAP, UP_TO_DATE]), Kind::File);
        assert_eq!(of(&[MMAP, UP_TO_DATE, SWAP_BACKED]), Kind::Shared);
        assert_eq!(of(&[MMAP, SWAP_BACKED, ANON]), Kind::Anonymous);
    }

    #[test]
    fn one_page_that_says_more_than_the_others_speaks_for_them() {
        let kinds = [of(&[MMAP]), of(&[MMAP, UP_TO_DATE]), of(&[NO_PAGE])];
        assert_eq!(kinds.into_iter().max(), Some(Kind::File));
    }
}
