//! Memory of a process that `masu attach` does not take, because it is not in anonymous mappings: shared memory, reserved
//! huge pages, files, and the written pages of private mappings of files.

use linux::mounts::Table;
use linux::smaps;
use linux::smaps::kinds::{self, Kind};
use linux::{Pid, Untrusted};
use serde::Serialize;
use units::Bytes;

use crate::HOST;

/// Less than one window is not worth a line.
const SHOWN_MIN: Bytes = Bytes::mib(2);

/// Files below this size are not worth a line.
const FILES_MIN: Bytes = Bytes::mib(16);

/// Resident memory outside anonymous mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Elsewhere {
    /// Shared memory: memfd, System V, shared anonymous mappings, tmpfs.
    shared_bytes: Bytes,
    /// Reserved huge pages (hugetlbfs).
    hugetlb_bytes: Bytes,
    /// Page cache of mapped files.
    file_bytes: Bytes,
    /// Written pages of private mappings of files, memfds and `/dev/zero`.
    copied_bytes: Bytes,
    /// Name of the largest of these objects, without its written copies.
    largest_object: Option<Untrusted>,
    /// Its resident size.
    largest_object_bytes: Bytes,
    /// Its kind, for the text.
    #[serde(skip)]
    largest_kind: Option<Kind>,
}

/// Reads the memory of a process; zeros when it has ended.
pub fn of(pid: Pid) -> Elsewhere {
    let details = smaps::details(&*HOST, pid).unwrap_or_default();
    let mounts = Table::read(&*HOST, "self").unwrap_or_default();
    let kinds = kinds::kinds(&details, |device| mounts.is_in_memory(device));
    let largest_kind = kinds.largest.as_ref().map(|largest| largest.kind);
    let (name, bytes) = kinds.largest.map_or((None, Bytes(0)), |of| (Some(of.name), of.bytes));
    Elsewhere {
        shared_bytes: kinds.shared,
        hugetlb_bytes: kinds.hugetlb,
        file_bytes: kinds.files,
        copied_bytes: kinds.file_copies,
        largest_object: name,
        largest_object_bytes: bytes,
        largest_kind,
    }
}

impl Elsewhere {
    /// The line; `None` if all of it is small. The largest object stands behind the size of its kind.
    pub fn text(&self) -> Option<String> {
        let kinds = [
            (self.shared_bytes, SHOWN_MIN, "of shared memory", Some(Kind::Shared)),
            (self.hugetlb_bytes, SHOWN_MIN, "of reserved huge pages", Some(Kind::Hugetlb)),
            (self.file_bytes, FILES_MIN, "of files", Some(Kind::File)),
            (self.copied_bytes, FILES_MIN, "of written pages in private mappings of files", None),
        ];
        let largest = self.largest_object.as_ref();
        let largest =
            largest.map_or(String::new(), |name| format!(" (the largest: {name}, {})", self.largest_object_bytes));
        let said = kinds.into_iter().filter(|(bytes, least, ..)| bytes >= least);
        let said = said.map(|(bytes, _, text, kind)| {
            let largest = if kind.is_some() && kind == self.largest_kind { largest.as_str() } else { "" };
            format!("{bytes} {text}{largest}")
        });
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| format!("left out, because it is not in anonymous mappings: {}", said.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_anonymous_is_named_with_its_size() {
        let heap = Elsewhere {
            shared_bytes: Bytes::mib(700),
            file_bytes: Bytes::mib(10),
            largest_object: Some("/memfd:java_heap (deleted)".into()),
            largest_object_bytes: Bytes::mib(690),
            largest_kind: Some(Kind::Shared),
            ..Elsewhere::default()
        };
        let wanted = "left out, because it is not in anonymous mappings: 700.0 MiB of shared memory (the largest: /memfd:java_heap \
                      (deleted), 690.0 MiB)";
        assert_eq!(heap.text().as_deref(), Some(wanted));
        assert_eq!(Elsewhere { file_bytes: Bytes::mib(10), ..Elsewhere::default() }.text(), None);
        // No object of a kind that is not named.
        let files = Elsewhere { largest_kind: Some(Kind::File), ..heap };
        let wanted = "left out, because it is not in anonymous mappings: 700.0 MiB of shared memory";
        assert_eq!(files.text().as_deref(), Some(wanted));
    }
}
