//! Resident memory of a process by kind, from its `smaps`: shared memory, reserved huge pages, files, and private memory.
//!
//! A program may map one object several times (ZGC maps its heap at three places). Mappings of the same part of an
//! object count once: `Pss` divides a page by the number of its mappings.

use std::collections::BTreeMap;

use units::Bytes;

use super::{Detail, VmFlag};
use crate::Untrusted;
use crate::maps::Mapping;

/// Resident memory by kind. The kinds do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// Shared memory: memfd, System V, shared anonymous mappings, files in tmpfs.
    pub shared: Bytes,
    /// Pages of hugetlbfs.
    pub hugetlb: Bytes,
    /// Page cache of mapped files.
    pub files: Bytes,
    /// Written pages of private mappings of files and of shared memory; all pages of private mappings of `/dev/zero`.
    pub file_copies: Bytes,
    /// Private memory without a file that no userfaultfd has registered.
    pub anonymous: Bytes,
    /// Private memory without a file that a userfaultfd has registered for missing pages.
    pub registered: Bytes,
    /// Largest object among `shared`, `hugetlb` and `files`.
    pub largest: Option<Largest>,
}

/// Largest object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Largest {
    /// Name.
    pub name: Untrusted,
    /// Resident size.
    pub bytes: Bytes,
    /// Kind whose sum it is in.
    pub kind: Kind,
}

/// Kind of a mapped object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Shared memory.
    Shared,
    /// Pages of hugetlbfs.
    Hugetlb,
    /// Page cache of a file.
    File,
}

/// Part of an object in one mapping.
struct Part {
    start: u64,
    end: u64,
    resident: Bytes,
    divided: Bytes,
}

/// Objects by kind, device and inode, with their path and mapped parts.
type Objects<'a> = BTreeMap<(Kind, (u32, u32), u64), (&'a Untrusted, Vec<Part>)>;

/// Sums the mappings by kind. `in_memory` tells devices (major, minor) of file systems in memory (tmpfs).
pub fn kinds(details: &[Detail], in_memory: impl Fn((u32, u32)) -> bool) -> Kinds {
    let mut sums = Kinds::default();
    let mut objects = Objects::new();
    for detail in details {
        let mapping = &detail.mapping;
        let Some(kind) = kind_of(detail, &in_memory) else {
            let registered = detail.flags.contains(VmFlag::UffdMissing);
            let sum = if registered { &mut sums.registered } else { &mut sums.anonymous };
            *sum += detail.anonymous;
            continue;
        };
        let part = match kind {
            Kind::Hugetlb => detail.hugetlb,
            // The written pages of a private mapping are no longer the object's.
            Kind::Shared | Kind::File => detail.rss.saturating_sub(detail.anonymous),
        };
        sums.file_copies += if kind == Kind::Hugetlb { Bytes(0) } else { detail.anonymous };
        // A process has no more memory than addresses: a figure beyond them is no figure.
        let resident = part.min(mapping.range.bytes());
        let end = mapping.offset.saturating_add(mapping.range.bytes().0);
        let divided = if kind == Kind::Hugetlb { Bytes(0) } else { detail.pss.min(resident) };
        let object = objects.entry((kind, mapping.device, mapping.inode));
        object.or_insert_with(|| (&mapping.path, Vec::new())).1.push(Part {
            start: mapping.offset,
            end,
            resident,
            divided,
        });
    }
    for ((kind, ..), (name, parts)) in objects {
        let resident = resident_once(parts);
        *match kind {
            Kind::Shared => &mut sums.shared,
            Kind::Hugetlb => &mut sums.hugetlb,
            Kind::File => &mut sums.files,
        } += resident;
        if sums.largest.as_ref().is_none_or(|largest| resident > largest.bytes) && resident > Bytes(0) {
            sums.largest = Some(Largest { name: name.clone(), bytes: resident, kind });
        }
    }
    sums
}

/// Kind of the object; `None` for private memory without a file.
fn kind_of(detail: &Detail, in_memory: &impl Fn((u32, u32)) -> bool) -> Option<Kind> {
    let mapping = &detail.mapping;
    if detail.flags.contains(VmFlag::HugeTlb) {
        return Some(Kind::Hugetlb);
    }
    if mapping.inode == 0 && !mapping.permissions.shared {
        return None;
    }
    Some(if is_shared_memory(mapping) || in_memory(mapping.device) { Kind::Shared } else { Kind::File })
}

/// Whether the name is one that the kernel gives to shared memory.
pub fn is_shared_memory(mapping: &Mapping) -> bool {
    const NAMES: [&[u8]; 4] = [b"/memfd:", b"/SYSV", b"/dev/zero", b"/dev/shm/"];
    let path = mapping.path.bytes();
    NAMES.iter().any(|name| path.starts_with(name))
}

/// Resident memory of an object, whose parts may overlap.
fn resident_once(mut parts: Vec<Part>) -> Bytes {
    parts.sort_unstable_by_key(|part| part.start);
    let overlap = parts.windows(2).any(|pair| pair[1].start < pair[0].end);
    if !overlap {
        return parts.iter().map(|part| part.resident).sum();
    }
    // Each page is divided by its mappings, in this process and in others: with others the sum is too low, and the
    // largest part alone is a lower bound as well.
    let divided: Bytes = parts.iter().map(|part| part.divided).sum();
    parts.iter().map(|part| part.resident).max_by_key(|bytes| bytes.0).unwrap_or(Bytes(0)).max(divided)
}

#[cfg(test)]
mod tests {
    use super::super::parse_details;
    use super::*;

    fn one(head: &str, rss: u64, pss: u64, anonymous: u64, rest: &str) -> String {
        format!(
            "{head}\nRss: {rss} kB\nPss: {pss} kB\nAnonymous: {anonymous} kB\nAnonHugePages: 0 kB\nSwap: 0 kB\n\
             Locked: 0 kB\n{rest}"
        )
    }

    fn of(mappings: &[String]) -> Kinds {
        kinds(&parse_details(&mappings.concat(), "x").unwrap(), |device| device == (0, 30))
    }

    #[test]
    fn memory_is_counted_by_its_kind() {
        let found = of(&[
            one("10000000-20000000 rw-p 0 00:00 0 ", 100, 100, 100, "VmFlags: rd wr um\n"),
            one("20000000-30000000 rw-p 0 00:00 0 [heap]", 30, 30, 30, "VmFlags: rd wr\n"),
            one("30000000-40000000 rw-s 0 00:01 7 /dev/zero (deleted)", 500, 500, 0, "VmFlags: rd wr sh\n"),
            one("40000000-50000000 rw-s 0 00:01 8 /SYSV00000000 (deleted)", 60, 60, 0, "VmFlags: rd wr sh\n"),
            one("50000000-60000000 rw-s 0 00:30 9 /tmp/on tmpfs", 7, 7, 0, "VmFlags: rd wr sh\n"),
            one("60000000-70000000 r--p 0 08:01 10 /usr/lib/lib.so", 40, 20, 8, "VmFlags: rd\n"),
            one(
                "70000000-80000000 rw-s 0 00:10 11 /anon_hugepage (deleted)",
                0,
                0,
                0,
                "Shared_Hugetlb: 2048 kB\nPrivate_Hugetlb: 4096 kB\nVmFlags: rd wr ht\n",
            ),
        ]);
        assert_eq!((found.registered, found.anonymous), (Bytes::kib(100), Bytes::kib(30)));
        // tmpfs by its device (00:30 is 48 in decimal, and no tmpfs of this test).
        assert_eq!((found.shared, found.hugetlb), (Bytes::kib(560), Bytes::kib(6144)));
        assert_eq!((found.files, found.file_copies), (Bytes::kib(39), Bytes::kib(8)));
        let (name, bytes, kind) = ("/anon_hugepage (deleted)".into(), Bytes::kib(6144), Kind::Hugetlb);
        assert_eq!(found.largest, Some(Largest { name, bytes, kind }));
    }

    #[test]
    fn files_in_tmpfs_are_shared_memory() {
        let found = of(&[one("50000000-60000000 rw-s 0 00:1e 9 /tmp/a", 7, 7, 0, "VmFlags: rd wr sh\n")]);
        assert_eq!((found.shared, found.files), (Bytes::kib(7), Bytes(0)));
    }

    /// As `mmap(MAP_PRIVATE)` of a memfd and of `/dev/zero`.
    #[test]
    fn written_pages_of_a_private_mapping_are_not_shared_memory() {
        let found = of(&[
            one("10000000-20000000 rw-p 0 00:01 7 /memfd:heap (deleted)", 200, 200, 150, "VmFlags: rd wr\n"),
            one("30000000-40000000 rw-p 0 00:05 5 /dev/zero", 300, 300, 300, "VmFlags: rd wr\n"),
        ]);
        assert_eq!((found.shared, found.file_copies), (Bytes::kib(50), Bytes::kib(450)));
        let (name, bytes, kind) = ("/memfd:heap (deleted)".into(), Bytes::kib(50), Kind::Shared);
        assert_eq!(found.largest, Some(Largest { name, bytes, kind }));
    }

    /// ZGC maps its heap three times; a page that it uses is in one, two or three of the views.
    #[test]
    fn several_views_of_the_same_memory_count_once() {
        let view = |start: u64, rss, pss| {
            let head = format!("{start:x}-{:x} rw-s 0 00:01 7 /memfd:java_heap (deleted)", start + (1 << 30));
            one(&head, rss, pss, 0, "VmFlags: rd wr sh\n")
        };
        let found = of(&[view(0x40_0000_0000, 700, 350), view(0x80_0000_0000, 700, 350), view(0x100_0000_0000, 0, 0)]);
        assert_eq!(found.shared, Bytes::kib(700));
        // Mapped by another process, too, so that half of each page is the other's.
        let found = of(&[view(0x40_0000_0000, 700, 175), view(0x80_0000_0000, 700, 175)]);
        assert_eq!(found.shared, Bytes::kib(700));
        // Views of which each has a part of the pages.
        let found = of(&[view(0x40_0000_0000, 400, 400), view(0x80_0000_0000, 300, 300)]);
        assert_eq!(found.shared, Bytes::kib(700));
    }

    #[test]
    fn parts_of_an_object_that_do_not_overlap_are_added() {
        let part = |start: u64, offset: u64| {
            let head = format!("{start:x}-{:x} rw-s {offset:x} 00:01 7 /memfd:a (deleted)", start + (1 << 20));
            one(&head, 512, 128, 0, "VmFlags: rd wr sh\n")
        };
        assert_eq!(of(&[part(0x1000_0000, 1 << 20), part(0x2000_0000, 0)]).shared, Bytes::mib(1));
    }

    #[test]
    fn absurd_figures_are_bounded_by_the_mapping() {
        let found = of(&[one("1000-3000 rw-s 0 00:01 7 /memfd:a (deleted)", 1 << 40, 1 << 40, 0, "VmFlags: sh\n")]);
        assert_eq!(found.shared, Bytes::kib(8));
        assert_eq!(of(&[]), Kinds::default());
    }
}
