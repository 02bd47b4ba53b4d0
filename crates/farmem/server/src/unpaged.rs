//! Memory of a paged program that is not paged, and comes on top of its local memory: shared memory, reserved huge
//! pages, files, and private memory that the pager does not have. Pure.

use linux::Untrusted;
use linux::smaps::kinds::{Kind, Kinds};
use serde::{Deserialize, Serialize};
use units::Bytes;

/// Files below this size are in no text: every program has its own file and some libraries.
const FILES_MIN: Bytes = Bytes::mib(16);

/// Other memory below this size is in no text.
const OTHERS_MIN: Bytes = Bytes::mib(1);

/// Private memory below this size is in no text: stacks, initialised data, the library's own.
pub const PRIVATE_MIN: Bytes = Bytes::mib(16);

/// Memory below this size, or below half of local memory, is no reason for a line while the program runs.
const WARNED_MIN: Bytes = Bytes::mib(16);

/// The same for files, which the kernel can reclaim: twice as much, and as much as local memory.
const WARNED_FILES_MIN: Bytes = Bytes::mib(64);

/// Least memory that is not paged, other than files, for a line while the program runs with this local memory.
pub fn warned_min(local: Bytes) -> Bytes {
    WARNED_MIN.max(Bytes(local.0 / 2))
}

/// Number of forked copies, and the verb for it.
pub fn copies(copies: u64) -> (String, &'static str) {
    if copies == 1 { ("1 forked copy".to_owned(), "has") } else { (format!("{copies} forked copies"), "have") }
}

/// Resident memory by kind, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Unpaged {
    /// Shared memory: memfd, System V, shared anonymous mappings, tmpfs.
    pub shared_bytes: Bytes,
    /// Reserved huge pages (hugetlbfs).
    pub hugetlb_bytes: Bytes,
    /// Page cache of mapped files.
    pub file_bytes: Bytes,
    /// Private memory: stacks, small or executable mappings, initialised data, written pages of private mappings of
    /// files.
    pub private_bytes: Bytes,
    /// Name of the largest shared or mapped object.
    pub largest: Option<Untrusted>,
    /// Its resident size.
    pub largest_bytes: Bytes,
    /// Its kind, for the text.
    #[serde(skip)]
    pub largest_kind: Option<Kind>,
    /// Most forked copies of the program at the same time, before their exec.
    #[serde(default)]
    pub copies: u64,
    /// Peak of their private memory together, at a moment of its own.
    #[serde(default)]
    pub copies_bytes: Bytes,
}

impl Unpaged {
    /// From the sums; `queue` is private memory of the pager's own.
    pub fn of(kinds: Kinds, queue: Bytes) -> Unpaged {
        let largest_kind = kinds.largest.as_ref().map(|largest| largest.kind);
        let (largest, largest_bytes) = kinds.largest.map_or((None, Bytes(0)), |of| (Some(of.name), of.bytes));
        Unpaged {
            shared_bytes: kinds.shared,
            hugetlb_bytes: kinds.hugetlb,
            file_bytes: kinds.files,
            private_bytes: (kinds.anonymous + kinds.file_copies).saturating_sub(queue),
            largest,
            largest_bytes,
            largest_kind,
            copies: 0,
            copies_bytes: Bytes(0),
        }
    }

    /// All of it.
    pub fn total(&self) -> Bytes {
        self.shared_bytes + self.hugetlb_bytes + self.file_bytes + self.private_bytes + self.copies_bytes
    }

    /// Sizes by kind, without the small ones; `None` if all are small. The largest object stands behind the size of its
    /// kind.
    pub fn text(&self) -> Option<String> {
        let copies = format!("of {}", copies(self.copies).0);
        let kinds = [
            (self.shared_bytes, OTHERS_MIN, "of shared memory", Some(Kind::Shared)),
            (self.hugetlb_bytes, OTHERS_MIN, "of reserved huge pages", Some(Kind::Hugetlb)),
            (self.file_bytes, FILES_MIN, "of files", Some(Kind::File)),
            (
                self.private_bytes,
                PRIVATE_MIN,
                "of private memory (stacks, small or executable mappings, data, written pages of mapped files)",
                None,
            ),
            (self.copies_bytes, PRIVATE_MIN, copies.as_str(), None),
        ];
        let largest = self.largest.as_ref().filter(|_| self.largest_bytes >= OTHERS_MIN);
        let largest = largest.map_or(String::new(), |name| format!(" (the largest: {name}, {})", self.largest_bytes));
        let said = kinds.into_iter().filter(|(bytes, least, ..)| bytes >= least);
        let said = said.map(|(bytes, _, text, kind)| {
            let largest = if kind.is_some() && kind == self.largest_kind { largest.as_str() } else { "" };
            format!("{bytes} {text}{largest}")
        });
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| said.join(", "))
    }

    /// Whether it is so much beside this local memory that the user should know at once.
    pub fn is_much(&self, local: Bytes) -> bool {
        let held = self.shared_bytes + self.hugetlb_bytes + self.private_bytes;
        held >= warned_min(local) || self.file_bytes >= WARNED_FILES_MIN.max(local)
    }
}

#[cfg(test)]
mod tests {
    use linux::smaps::kinds::Largest;

    use super::*;

    fn largest(name: &str, mib: u64, kind: Kind) -> Largest {
        Largest { name: name.into(), bytes: Bytes::mib(mib), kind }
    }

    #[test]
    fn an_object_of_a_kind_that_is_not_named_is_not_named() {
        let (anonymous, files) = (Bytes::mib(48), Bytes::mib(6));
        let kinds = Kinds { anonymous, files, largest: Some(largest("/libc.so.6", 2, Kind::File)), ..Kinds::default() };
        let unpaged = Unpaged::of(kinds.clone(), Bytes(0));
        let wanted =
            "48.0 MiB of private memory (stacks, small or executable mappings, data, written pages of mapped files)";
        assert_eq!(unpaged.text().as_deref(), Some(wanted));
        assert_eq!(unpaged.largest_bytes, Bytes::mib(2));
        let files = Bytes::mib(16);
        let named = Unpaged::of(Kinds { files, ..kinds }, Bytes(0)).text().unwrap();
        assert_eq!(named, format!("16.0 MiB of files (the largest: /libc.so.6, 2.0 MiB), {wanted}"));
    }

    #[test]
    fn what_is_not_paged_is_named_with_its_size() {
        let kinds = Kinds {
            shared: Bytes::mib(700),
            files: Bytes::mib(20),
            file_copies: Bytes::mib(2),
            anonymous: Bytes::mib(30),
            registered: Bytes::mib(999),
            largest: Some(largest("/memfd:java_heap (deleted)", 690, Kind::Shared)),
            ..Kinds::default()
        };
        let unpaged = Unpaged::of(kinds, Bytes::mib(8));
        assert_eq!((unpaged.private_bytes, unpaged.total()), (Bytes::mib(24), Bytes::mib(744)));
        let wanted = "700.0 MiB of shared memory (the largest: /memfd:java_heap (deleted), 690.0 MiB), 20.0 MiB of files, \
                      24.0 MiB of private memory (stacks, small or executable mappings, data, written pages of mapped files)";
        assert_eq!(unpaged.text().as_deref(), Some(wanted));
        assert!(unpaged.is_much(Bytes::mib(128)) && !unpaged.is_much(Bytes::gib(2)));
    }

    #[test]
    fn forked_copies_are_named_with_their_number_and_memory() {
        let few = Unpaged { copies: 9, copies_bytes: Bytes::mib(4), ..Unpaged::default() };
        assert_eq!((few.total(), few.text()), (Bytes::mib(4), None));
        let said = |copies| Unpaged { copies, copies_bytes: Bytes::mib(900), ..Unpaged::default() }.text().unwrap();
        assert_eq!(
            (said(1).as_str(), said(3).as_str()),
            ("900.0 MiB of 1 forked copy", "900.0 MiB of 3 forked copies")
        );
    }

    #[test]
    fn what_every_program_has_is_not_worth_a_line() {
        let small = Unpaged { file_bytes: Bytes::mib(8), private_bytes: Bytes::mib(3), ..Unpaged::default() };
        assert_eq!((small.text(), small.is_much(Bytes::mib(2))), (None, false));
        let libraries = Unpaged { file_bytes: Bytes::mib(40), ..Unpaged::default() };
        assert!(libraries.text().is_some() && !libraries.is_much(Bytes::mib(2)));
        let index = Unpaged { file_bytes: Bytes::mib(400), ..Unpaged::default() };
        assert!(index.is_much(Bytes::mib(64)) && !index.is_much(Bytes::mib(512)));
    }
}
