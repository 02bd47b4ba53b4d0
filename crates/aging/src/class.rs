//! Classification of page frames by use. Pure.
//!
//! Oshima, Aoki and Arai, section 4: the active list is to be split by the use of its pages, such as
//!
//! | paper                          | here                | flags of the frame (`/proc/kpageflags`)           |
//! | プロセスのコード領域            | [`Class::Code`]     | a mapped page of a file, in an executable mapping |
//! | 読み込み専用データ領域          | [`Class::ReadOnly`] | a mapped page of a file, in no executable mapping |
//! | 通常データ領域                  | [`Class::Data`]     | anonymous                                         |
//! | プロセス間共有メモリ            | [`Class::Shared`]   | swap-backed, not anonymous: tmpfs, SysV, memfd    |
//! | バッファキャッシュ              | [`Class::Cache`]    | on a list of the kernel's, and none of the above  |
//!
//! The paper's own implementation (section 5) has two lists: active-mapped is the first four of ours, active-unmapped
//! the last.
//!
//! We differ. A private copy of a file page, such as a program's data section, is anonymous and counts as data, as the
//! kernel ages it. A file mapped writable and shared counts as read-only data, because the frame does not show more.
//! Executable mappings of `/dev/zero` and of tmpfs are shared memory, not code. Unmapped tmpfs files are shared memory,
//! too: their eviction needs swap.
//!
//! No I/O, no clock, no randomness.

use linux::kpageflags::FrameFlags;
use serde::{Deserialize, Serialize};

/// Class of pages with content from a program or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Executed programs and libraries.
    Code,
    /// Other file mappings.
    ReadOnly,
    /// Heaps, stacks, and written pages of private file mappings.
    Data,
    /// Shared memory, and files in tmpfs.
    Shared,
    /// Unmapped file pages.
    Cache,
}

impl Class {
    /// All classes, in display order.
    pub const ALL: [Class; 5] = [Class::Code, Class::ReadOnly, Class::Data, Class::Shared, Class::Cache];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Class::Code => "code",
            Class::ReadOnly => "read-only data",
            Class::Data => "data",
            Class::Shared => "shared memory",
            Class::Cache => "page cache",
        }
    }

    /// True if eviction writes to a file and a refault reads from it; other classes need swap.
    pub fn is_of_files(self) -> bool {
        matches!(self, Class::Code | Class::ReadOnly | Class::Cache)
    }
}

/// Memory of no class: the kernel does not age it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    /// Pool of huge pages (hugetlb), in use or free.
    HugePool,
    /// Kernel objects: inodes, directory entries, network buffers.
    Slab,
    /// Page tables.
    PageTables,
    /// Reserved at boot: firmware, the kernel's image, the page descriptors.
    Reserved,
    /// Taken offline, by the administrator or by the hypervisor (a balloon).
    Offline,
    /// Faulty, and out of use.
    Faulty,
    /// Other kernel memory: stacks, drivers, per-processor data.
    Kernel,
    /// Unused.
    Free,
}

impl Rest {
    /// All other uses, in display order.
    pub const ALL: [Rest; 8] = [
        Rest::HugePool,
        Rest::Slab,
        Rest::PageTables,
        Rest::Reserved,
        Rest::Offline,
        Rest::Faulty,
        Rest::Kernel,
        Rest::Free,
    ];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Rest::HugePool => "huge page pool",
            Rest::Slab => "slab",
            Rest::PageTables => "page tables",
            Rest::Reserved => "reserved at boot",
            Rest::Offline => "offline, or taken by the host",
            Rest::Faulty => "faulty",
            Rest::Kernel => "kernel, other",
            Rest::Free => "free",
        }
    }
}

/// Use of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Pages that the kernel ages, or would age if they were not mlocked.
    Aged(Class, LruState),
    /// Other memory.
    Rest(Rest),
    /// No memory: a hole.
    Absent,
}

/// LRU list of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LruState {
    /// Active list: used more than once lately, as far as the kernel has seen.
    Active,
    /// Inactive list: the next to be evicted.
    Idle,
    /// Unevictable: mlock, SHM_LOCK, ramfs.
    Locked,
}

/// Use of the frame with these flags; `is_code`: an executable file mapping maps it.
///
/// A tail frame of a block is passed with the flags of its head: the use of a block is the same for all its frames.
pub fn use_of(flags: FrameFlags, is_code: bool) -> Use {
    // Fields of kernel objects may look like any flags, so kernel objects are tested first.
    let rest = if flags.is_absent() {
        return Use::Absent;
    } else if flags.is_offline() {
        Some(Rest::Offline)
    } else if flags.is_faulty() {
        Some(Rest::Faulty)
    } else if flags.is_free() {
        Some(Rest::Free)
    } else if flags.is_slab() {
        Some(Rest::Slab)
    } else if flags.is_page_table() {
        Some(Rest::PageTables)
    } else if flags.is_of_huge_pool() {
        Some(Rest::HugePool)
    } else if !flags.is_listed() {
        Some(if flags.is_reserved() { Rest::Reserved } else { Rest::Kernel })
    } else {
        None
    };
    rest.map_or_else(|| Use::Aged(class_of(flags, is_code), lru_state_of(flags)), Use::Rest)
}

/// Whether the page was freed lazily (MADV_FREE): the kernel drops it first, and needs no swap.
pub fn is_lazily_freed(flags: FrameFlags) -> bool {
    flags.is_listed() && flags.is_anonymous() && !flags.is_swap_backed()
}

/// Class of a frame that is on a list.
fn class_of(flags: FrameFlags, is_code: bool) -> Class {
    if flags.is_anonymous() {
        Class::Data
    } else if flags.is_swap_backed() {
        Class::Shared
    } else if !flags.is_mapped() {
        Class::Cache
    } else if is_code {
        Class::Code
    } else {
        Class::ReadOnly
    }
}

/// LRU list of a frame that is on one.
pub fn lru_state_of(flags: FrameFlags) -> LruState {
    if flags.is_unevictable() {
        LruState::Locked
    } else if flags.is_active() {
        LruState::Active
    } else {
        LruState::Idle
    }
}

#[cfg(test)]
mod tests {
    use linux::kpageflags::bits;
    use proptest::prelude::*;

    use super::*;

    fn flags(set: &[u32]) -> FrameFlags {
        FrameFlags::of(set.iter().fold(0, |flags, bit| flags | 1 << bit))
    }

    fn of(set: &[u32]) -> Use {
        use_of(flags(set), false)
    }

    #[test]
    fn the_classes_are_those_of_the_papers_section_4() {
        use bits::{ACTIVE, ANON, LRU, MMAP, SWAP_BACKED, UNEVICTABLE};
        let text = flags(&[LRU, ACTIVE, MMAP]);
        assert_eq!(use_of(text, true), Use::Aged(Class::Code, LruState::Active));
        assert_eq!(use_of(text, false), Use::Aged(Class::ReadOnly, LruState::Active));
        assert_eq!(of(&[LRU, MMAP, ANON, SWAP_BACKED]), Use::Aged(Class::Data, LruState::Idle));
        assert_eq!(of(&[LRU, SWAP_BACKED, UNEVICTABLE]), Use::Aged(Class::Shared, LruState::Locked));
        assert_eq!(of(&[LRU]), Use::Aged(Class::Cache, LruState::Idle));
    }

    #[test]
    fn an_executable_mapping_of_shared_memory_is_no_code_and_a_private_copy_of_code_is_data() {
        use bits::{ANON, LRU, MMAP, SWAP_BACKED};
        assert_eq!(use_of(flags(&[LRU, MMAP, SWAP_BACKED]), true), Use::Aged(Class::Shared, LruState::Idle));
        assert_eq!(use_of(flags(&[LRU, MMAP, ANON]), true), Use::Aged(Class::Data, LruState::Idle));
        // Lazily freed (MADV_FREE): anonymous, and needs no swap for eviction.
        assert_eq!(of(&[LRU, MMAP, ANON]), Use::Aged(Class::Data, LruState::Idle));
        assert!(is_lazily_freed(flags(&[LRU, MMAP, ANON])));
        assert!(!is_lazily_freed(flags(&[LRU, MMAP, ANON, SWAP_BACKED])) && !is_lazily_freed(flags(&[LRU, MMAP])));
    }

    #[test]
    fn kernel_objects_are_recognized_before_any_other_flag() {
        use bits::{ANON, BUDDY, HUGE, HWPOISON, LRU, MMAP, NO_PAGE, OFFLINE, PAGE_TABLE, RESERVED, SLAB};
        // Seen on Linux 6.18: a slab keeps a list in the field that holds the owner of other frames.
        assert_eq!(of(&[SLAB, ANON]), Use::Rest(Rest::Slab));
        assert_eq!(of(&[PAGE_TABLE, MMAP]), Use::Rest(Rest::PageTables));
        assert_eq!(of(&[HUGE, MMAP, LRU]), Use::Rest(Rest::HugePool));
        assert_eq!(of(&[BUDDY]), Use::Rest(Rest::Free));
        assert_eq!(of(&[]), Use::Rest(Rest::Kernel));
        assert_eq!(of(&[NO_PAGE]), Use::Absent);
        assert_eq!(of(&[OFFLINE, BUDDY]), Use::Rest(Rest::Offline));
        assert_eq!(of(&[HWPOISON, LRU, MMAP]), Use::Rest(Rest::Faulty));
        assert_eq!(of(&[RESERVED]), Use::Rest(Rest::Reserved));
    }

    proptest! {
        #[test]
        fn only_what_is_on_a_list_is_aged_and_code_comes_of_mapped_files_alone(word: u64, is_code: bool) {
            let flags = FrameFlags::of(word);
            if let Use::Aged(class, lru_state) = use_of(flags, is_code) {
                prop_assert!(flags.is_listed());
                prop_assert_eq!(lru_state == LruState::Locked, flags.is_unevictable());
                if class == Class::Code {
                    prop_assert!(is_code && flags.is_mapped() && !flags.is_anonymous() && !flags.is_swap_backed());
                }
            }
        }
    }
}
