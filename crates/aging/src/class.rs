//! What a page frame is used for. Pure.
//!
//! Oshima, Aoki and Arai, section 4: the active list is to be split by the pages' purpose, such as
//!
//! | paper                          | here                | how a frame shows it (`/proc/kpageflags`)         |
//! | プロセスのコード領域            | [`Class::Code`]     | a mapped page of a file, in an executable mapping |
//! | 読み込み専用データ領域          | [`Class::ReadOnly`] | a mapped page of a file, in no executable mapping |
//! | 通常データ領域                  | [`Class::Data`]     | anonymous                                         |
//! | プロセス間共有メモリ            | [`Class::Shared`]   | swap-backed, not anonymous: tmpfs, SysV, memfd    |
//! | バッファキャッシュ              | [`Class::Cache`]    | on a list of the kernel's, and none of the above  |
//!
//! The paper's own implementation (section 5) has two lists: active-mapped is the first four of ours, active-unmapped the last.
//!
//! We differ: a private copy of a file's page, such as the data section of a program, is anonymous and counts as data, as the kernel
//! ages it. A file that a program maps writable and shared counts as read-only data: the frame does not say more. Executable
//! mappings of `/dev/zero` and of tmpfs are shared memory, not code. Files in tmpfs that nobody maps are shared memory, too, for they
//! need swap to go, as that does.
//!
//! No I/O, no clock, no randomness.

use linux::kpageflags::FrameFlags;
use serde::Serialize;

/// A class of pages that a program or a file has put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Programs and libraries, where they are run.
    Code,
    /// Files that are mapped otherwise.
    ReadOnly,
    /// Heaps, stacks, and what was written of privately mapped files.
    Data,
    /// Memory between programs, and files in tmpfs.
    Shared,
    /// Files that nobody maps.
    Cache,
}

impl Class {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Class; 5] = [Class::Code, Class::ReadOnly, Class::Data, Class::Shared, Class::Cache];

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Code => "code",
            Class::ReadOnly => "read-only data",
            Class::Data => "data",
            Class::Shared => "shared memory",
            Class::Cache => "page cache",
        }
    }

    /// Its pages go to a file when they go, and come from one when they come back; the others need swap.
    pub fn is_of_files(self) -> bool {
        matches!(self, Class::Code | Class::ReadOnly | Class::Cache)
    }
}

/// Memory that is in none of the classes: the kernel does not age it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rest {
    /// The pool of huge pages (hugetlb), given out or not.
    HugePool,
    /// The kernel's objects: inodes, directory entries, buffers of the network.
    Slab,
    /// Page tables.
    PageTables,
    /// The kernel's for other ends: its code, stacks, drivers, the description of the frames themselves.
    Kernel,
    /// In no use.
    Free,
}

impl Rest {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Rest; 5] = [Rest::HugePool, Rest::Slab, Rest::PageTables, Rest::Kernel, Rest::Free];

    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Rest::HugePool => "huge page pool",
            Rest::Slab => "slab",
            Rest::PageTables => "page tables",
            Rest::Kernel => "kernel, other",
            Rest::Free => "free",
        }
    }
}

/// What a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Pages that the kernel ages, or would if they were not locked.
    Aged(Class, Standing),
    /// Others.
    Rest(Rest),
    /// No memory: a hole, or taken off line.
    Absent,
}

/// Where a page stands with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// On the active list: used more than once lately, as far as the kernel has seen.
    Active,
    /// On the inactive list: the next to go, when memory is needed.
    Idle,
    /// On neither, because it may not be taken: mlock, SHM_LOCK, ramfs.
    Locked,
}

/// What the frame with these flags is used for; `is_code` says whether an executable mapping of a file has it.
///
/// A later frame of a block comes with the flags of its head: what a block is used for is the same for all of it.
pub fn use_of(flags: FrameFlags, is_code: bool) -> Use {
    // What the kernel's own objects keep where others have their flags may look like any of those: they come first.
    let rest = if flags.is_absent() {
        return Use::Absent;
    } else if flags.is_free() {
        Some(Rest::Free)
    } else if flags.is_slab() {
        Some(Rest::Slab)
    } else if flags.is_page_table() {
        Some(Rest::PageTables)
    } else if flags.is_of_huge_pool() {
        Some(Rest::HugePool)
    } else if !flags.is_listed() {
        Some(Rest::Kernel)
    } else {
        None
    };
    rest.map_or_else(|| Use::Aged(class_of(flags, is_code), standing_of(flags)), Use::Rest)
}

/// The class of a frame that is on one of the kernel's lists.
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

/// Where a frame stands that is on one of the kernel's lists.
pub fn standing_of(flags: FrameFlags) -> Standing {
    if flags.is_unevictable() {
        Standing::Locked
    } else if flags.is_active() {
        Standing::Active
    } else {
        Standing::Idle
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
    fn the_classes_of_the_paper_are_told_apart_as_its_section_4_names_them() {
        use bits::{ACTIVE, ANON, LRU, MMAP, SWAP_BACKED, UNEVICTABLE};
        let text = flags(&[LRU, ACTIVE, MMAP]);
        assert_eq!(use_of(text, true), Use::Aged(Class::Code, Standing::Active));
        assert_eq!(use_of(text, false), Use::Aged(Class::ReadOnly, Standing::Active));
        assert_eq!(of(&[LRU, MMAP, ANON, SWAP_BACKED]), Use::Aged(Class::Data, Standing::Idle));
        assert_eq!(of(&[LRU, SWAP_BACKED, UNEVICTABLE]), Use::Aged(Class::Shared, Standing::Locked));
        assert_eq!(of(&[LRU]), Use::Aged(Class::Cache, Standing::Idle));
    }

    #[test]
    fn an_executable_mapping_of_shared_memory_is_no_code_and_a_private_copy_of_code_is_data() {
        use bits::{ANON, LRU, MMAP, SWAP_BACKED};
        assert_eq!(use_of(flags(&[LRU, MMAP, SWAP_BACKED]), true), Use::Aged(Class::Shared, Standing::Idle));
        assert_eq!(use_of(flags(&[LRU, MMAP, ANON]), true), Use::Aged(Class::Data, Standing::Idle));
        // Lazily freed (MADV_FREE): anonymous, and needs no swap any more.
        assert_eq!(of(&[LRU, MMAP, ANON]), Use::Aged(Class::Data, Standing::Idle));
    }

    #[test]
    fn objects_of_the_kernel_are_its_own_whatever_else_their_flags_seem_to_say() {
        use bits::{ANON, BUDDY, HUGE, LRU, MMAP, NO_PAGE, OFFLINE, PAGE_TABLE, SLAB};
        // Seen on Linux 6.18: a slab keeps a list where other frames keep whose they are.
        assert_eq!(of(&[SLAB, ANON]), Use::Rest(Rest::Slab));
        assert_eq!(of(&[PAGE_TABLE, MMAP]), Use::Rest(Rest::PageTables));
        assert_eq!(of(&[HUGE, MMAP, LRU]), Use::Rest(Rest::HugePool));
        assert_eq!(of(&[BUDDY]), Use::Rest(Rest::Free));
        assert_eq!(of(&[]), Use::Rest(Rest::Kernel));
        assert_eq!(of(&[NO_PAGE]), Use::Absent);
        assert_eq!(of(&[OFFLINE, BUDDY]), Use::Absent);
    }

    proptest! {
        #[test]
        fn only_what_is_on_a_list_is_aged_and_code_comes_of_mapped_files_alone(word: u64, is_code: bool) {
            let flags = FrameFlags::of(word);
            if let Use::Aged(class, standing) = use_of(flags, is_code) {
                prop_assert!(flags.is_listed());
                prop_assert_eq!(standing == Standing::Locked, flags.is_unevictable());
                if class == Class::Code {
                    prop_assert!(is_code && flags.is_mapped() && !flags.is_anonymous() && !flags.is_swap_backed());
                }
            }
        }
    }
}
