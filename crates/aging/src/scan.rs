//! Scan of the resident pages of mapped files, by class, and refaults between scans. It does not mlock anything.
//!
//! The scan takes some 25 ms per GiB resident in small pages. It therefore runs without the locks that the headroom
//! monitor needs.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use linux::page_cache;

use crate::class::Class;
use crate::levels::{ByClass, Levels};
use crate::mapped::{FileKey, Mapped, MappedFile};
use crate::ranges::Ranges;

/// File to scan.
#[derive(Clone, Debug)]
pub struct Source {
    /// File.
    pub key: FileKey,
    /// Open descriptor.
    pub file: Arc<File>,
    /// Shared memory: it goes to swap.
    pub is_swap_backed: bool,
}

/// Scan result.
#[derive(Debug)]
pub struct Scan {
    /// Mapped files.
    pub mapped: Mapped,
    /// Resident pages of the classes that have a level.
    pub found: Vec<Found>,
}

/// One class of one file.
#[derive(Debug)]
pub struct Found {
    /// File.
    pub key: FileKey,
    /// Class.
    pub class: Class,
    /// Pages mapped in this class, and in memory.
    pub resident: Ranges,
}

impl Scan {
    /// Scans the mapped files that are open.
    pub fn at(mapped: Mapped, sources: &[Source], levels: &Levels) -> Scan {
        let mut found = Vec::new();
        for Source { key, file, is_swap_backed } in sources {
            let Some(of) = mapped.files.get(key) else { continue };
            for (class, ranges) in by_class(of, *is_swap_backed) {
                if levels.get(class).is_none() {
                    continue;
                }
                let mut resident = Ranges::default();
                for range in ranges.iter() {
                    // Pages that cannot be read now are read in the next scan.
                    let there = page_cache::resident(file, range).unwrap_or_default();
                    there.into_iter().for_each(|run| resident.insert(run));
                }
                found.push(Found { key: *key, class, resident });
            }
        }
        Scan { mapped, found }
    }
}

/// Pages of a file by class.
fn by_class(mapped: &MappedFile, is_swap_backed: bool) -> Vec<(Class, Ranges)> {
    if is_swap_backed {
        return vec![(Class::Shared, mapped.all.clone())];
    }
    vec![(Class::Code, mapped.code.clone()), (Class::ReadOnly, mapped.all.without(&mapped.code))]
}

/// Refault samples: the pages resident at the last scan, and those absent since an earlier one.
#[derive(Debug, Default)]
pub struct RefaultSamples(BTreeMap<(FileKey, Class), Sample>);

/// Known pages of one class of a file.
#[derive(Debug, Default)]
struct Sample {
    resident: Ranges,
    gone: Ranges,
}

impl RefaultSamples {
    /// Counts refaults by class: pages that were resident, were evicted, and are back. Files that are not mapped any
    /// more are forgotten.
    pub fn note(&mut self, scan: &Scan) -> ByClass<u64> {
        self.0.retain(|(key, _), _| scan.mapped.files.contains_key(key));
        let mut refaults = ByClass::default();
        for Found { key, class, resident } in &scan.found {
            let back = self.0.entry((*key, *class)).or_default().update(resident);
            refaults.set(*class, refaults.get(*class) + back);
        }
        refaults
    }
}

impl Sample {
    /// Refaults of one class of a file.
    fn update(&mut self, resident: &Ranges) -> u64 {
        self.resident.without(resident).iter().for_each(|range| self.gone.insert(range));
        let back = self.gone.and(resident);
        back.iter().for_each(|range| self.gone.remove(&range));
        self.resident = resident.clone();
        back.pages()
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one run is meant")]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::ops::Range;

    use super::*;
    use crate::levels::Level;

    const FILE: FileKey = FileKey { device: (1, 2), inode: 3 };

    fn mapped() -> MappedFile {
        let (code, all) = (std::iter::once(2..4).collect(), std::iter::once(0..8).collect());
        MappedFile { path: linux::Untrusted::default(), owners: BTreeSet::new(), through: Vec::new(), code, all }
    }

    fn all_mapped() -> Mapped {
        Mapped { files: [(FILE, mapped())].into(), ..Mapped::default() }
    }

    #[test]
    fn a_page_that_is_back_is_a_refault_and_a_new_one_is_not() {
        let mut samples = RefaultSamples::default();
        let mut note = |ranges: &[Range<u64>]| {
            let found = vec![Found { key: FILE, class: Class::Code, resident: ranges.iter().cloned().collect() }];
            samples.note(&Scan { mapped: all_mapped(), found }).get(Class::Code)
        };
        assert_eq!(note(&[0..10]), 0);
        assert_eq!(note(&[0..4]), 0);
        assert_eq!(note(&[0..8, 20..30]), 4);
        assert_eq!(note(&[0..10, 20..30]), 2);
        assert_eq!(note(&[0..10, 20..30]), 0);
        samples.note(&Scan { mapped: Mapped::default(), found: Vec::new() });
        assert!(samples.0.is_empty(), "an unmapped file is forgotten");
    }

    #[test]
    fn executed_shared_memory_is_shared_memory() {
        let of = |swap_backed| {
            let classes = by_class(&mapped(), swap_backed).into_iter();
            classes.map(|(class, ranges)| (class, ranges.pages())).collect::<Vec<_>>()
        };
        assert_eq!(of(true), [(Class::Shared, 8)]);
        assert_eq!(of(false), [(Class::Code, 2), (Class::ReadOnly, 6)]);
    }

    #[test]
    fn only_classes_with_a_level_are_scanned_and_only_resident_pages_found() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5 * 4096]).unwrap();
        let sources = [Source { key: FILE, file: Arc::new(file), is_swap_backed: false }];
        let mut levels = ByClass::default();
        levels.set(Class::ReadOnly, Some(Level::NEVER));
        let scan = Scan::at(all_mapped(), &sources, &levels);
        let found: Vec<_> = scan.found.iter().map(|of| (of.class, of.resident.pages())).collect();
        assert_eq!(found, [(Class::ReadOnly, 3)]);
    }
}
