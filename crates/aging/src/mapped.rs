//! Which files are mapped, by class: what may be pinned.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use linux::maps::{self, Mapping};
use linux::{Error, KernelFiles, Pid, Untrusted};
use quantities::AddressRange;

use crate::ranges::Ranges;

/// A file, as `/proc/PID/maps` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileKey {
    /// The file system's device.
    pub device: (u32, u32),
    /// Its inode.
    pub inode: u64,
}

/// What is mapped of one file by all the processes that were asked.
#[derive(Clone, Debug)]
pub struct MappedFile {
    /// As the kernel prints its name.
    pub path: Untrusted,
    /// Where it can be opened from: mappings of it, one for each process.
    pub through: Vec<(Pid, AddressRange)>,
    /// Its pages in executable mappings.
    pub code: Ranges,
    /// Its pages in any mapping.
    pub all: Ranges,
}

impl MappedFile {
    /// One beyond its last mapped page.
    pub fn end(&self) -> u64 {
        self.all.iter().last().map_or(0, |range| range.end)
    }
}

/// The files that these processes map, and how many processes could not be looked at.
pub fn of(files: &impl KernelFiles, pids: &BTreeSet<Pid>) -> (BTreeMap<FileKey, MappedFile>, u64) {
    let (mut found, mut not_read) = (BTreeMap::new(), 0);
    for pid in pids {
        match maps::maps(files, *pid) {
            Ok(mappings) => mappings.iter().for_each(|mapping| add(&mut found, *pid, mapping)),
            Err(Error::Gone(_)) => {}
            Err(_) => not_read += 1,
        }
    }
    (found, not_read)
}

fn add(found: &mut BTreeMap<FileKey, MappedFile>, pid: Pid, mapping: &Mapping) {
    let Some(pages) = pages_of(mapping) else { return };
    let key = FileKey { device: mapping.device, inode: mapping.inode };
    let file = found.entry(key).or_insert_with(|| MappedFile {
        path: mapping.path.clone(),
        through: Vec::new(),
        code: Ranges::default(),
        all: Ranges::default(),
    });
    if file.through.last().is_none_or(|(last, _)| *last != pid) {
        file.through.push((pid, mapping.range));
    }
    file.all.insert(pages.clone());
    if mapping.permissions.execute {
        file.code.insert(pages);
    }
}

/// The pages of the file behind a mapping; `None` for memory without one.
fn pages_of(mapping: &Mapping) -> Option<Range<u64>> {
    let first = mapping.offset / 4096;
    (mapping.inode != 0).then(|| first..first.saturating_add(mapping.range.pages().0))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one run is meant")]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    const MAPS: &str = "\
400000-402000 r--p 00000000 fe:00 12 /usr/bin/server
402000-406000 r-xp 00002000 fe:00 12 /usr/bin/server
406000-407000 rw-p 00006000 fe:00 12 /usr/bin/server
500000-600000 rw-p 00000000 00:00 0 [heap]
700000-702000 r--s 00010000 fe:00 13 /var/lib/fonts
";

    #[test]
    fn a_programs_file_is_code_where_it_is_run_and_read_only_data_elsewhere() {
        let kernel = FakeKernel::new().file("proc/7/maps", MAPS).file("proc/8/maps", MAPS);
        let (found, not_read) = of(&kernel, &[Pid(7), Pid(8), Pid(9)].into());
        assert_eq!((found.len(), not_read), (2, 0), "one that is gone is no failure");
        let server = &found[&FileKey { device: (254, 0), inode: 12 }];
        assert_eq!(server.code.iter().collect::<Vec<_>>(), [2..6]);
        assert_eq!(server.all.iter().collect::<Vec<_>>(), [0..7]);
        assert_eq!(server.through.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [Pid(7), Pid(8)]);
        let fonts = &found[&FileKey { device: (254, 0), inode: 13 }];
        assert_eq!((fonts.code.pages(), fonts.all.iter().next()), (0, Some(16..18)));
    }
}
