//! Mapped files by class, with their owners: the candidates for mlock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use linux::cgroup;
use linux::maps::{self, Mapping};
use linux::{KernelFiles, Pid, Untrusted, status};
use units::{AddressRange, Bytes};

use crate::left_out::{Cause, Tally};
use crate::ranges::Ranges;
use crate::shares::{Filling, Owner, Owners};

/// Files mapped by some processes.
#[derive(Debug, Default)]
pub struct Mapped {
    /// Owners of the processes.
    pub owners: Owners,
    /// Mapped files.
    pub files: BTreeMap<FileKey, MappedFile>,
    /// Processes whose mappings were not read: their owner has its share, or the kernel gave no answer.
    pub left_out: Tally,
}

/// File, as `/proc/PID/maps` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileKey {
    /// Device of the file system.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
}

/// Mappings of one file by all scanned processes.
#[derive(Clone, Debug)]
pub struct MappedFile {
    /// Path, as the kernel prints it.
    pub path: Untrusted,
    /// Owners of the processes that map it.
    pub owners: BTreeSet<Owner>,
    /// Mappings through which it can be opened: one per process, a few per owner.
    pub through: Vec<(Pid, AddressRange)>,
    /// Pages in executable mappings.
    pub code: Ranges,
    /// Pages in any mapping.
    pub all: Ranges,
}

impl MappedFile {
    /// Owners that map the file, for a claim.
    pub fn owners(&self) -> Vec<Owner> {
        self.owners.iter().copied().collect()
    }

    /// From its first mapped page to its last.
    pub fn window(&self) -> Range<u64> {
        let (first, last) = (self.all.iter().next(), self.all.iter().last());
        first.zip(last).map_or(0..0, |(first, last)| first.start..last.end)
    }
}

/// Limit of the cost of one pass, exceeded by at most one process. A mapping costs 1, and [`ROW`] more for a new file
/// or a new part of a file. At most some 3 s, and 150 MiB of memory.
const MOST: u64 = 1 << 22;
const ROW: u64 = 16;

/// Files mapped by these processes. A process that ended or cannot be read maps nothing.
pub fn of(files: &impl KernelFiles, pids: &BTreeSet<Pid>) -> Mapped {
    at_most(files, pids, MOST)
}

/// Reads processes until the cost reaches `most`. The next process belongs to the owner with the lowest cost.
fn at_most(files: &impl KernelFiles, pids: &BTreeSet<Pid>, most: u64) -> Mapped {
    let mut found = Mapped::default();
    let mut unread: BTreeMap<Owner, VecDeque<Pid>> = BTreeMap::new();
    for pid in pids {
        if let Some(owner) = owner(files, *pid, &mut found.owners) {
            unread.entry(owner).or_default().push_back(*pid);
        }
    }
    let mut filling = Filling::new(&found.owners);
    unread.keys().for_each(|owner| filling.wants(*owner, Some(1)));
    let mut left = most;
    while let Some(owner) = filling.first().filter(|_| left > 0) {
        let next = unread.get_mut(&owner).and_then(VecDeque::pop_front);
        let Some(pid) = next else {
            filling.wants(owner, None);
            continue;
        };
        let mappings = match maps::maps(files, pid) {
            Ok(mappings) => mappings,
            Err(error) => {
                if error.is_unanswered() {
                    found.left_out.add(Cause::Unanswered, owner, Bytes(0));
                }
                continue; // ended, or not readable
            }
        };
        let rows: u64 = mappings.iter().map(|mapping| add(&mut found.files, owner, pid, mapping)).sum();
        let cost = mappings.len() as u64 + rows * ROW;
        filling.grant(owner, cost);
        left = left.saturating_sub(cost);
    }
    for (owner, pids) in unread {
        pids.iter().for_each(|_| found.left_out.add(Cause::Mappings, owner, Bytes(0)));
    }
    found
}

/// Owner of a process: its real user, even under a set-user-ID program, in its control group. `None` for a kernel
/// thread, and for a process that has ended.
fn owner(files: &impl KernelFiles, pid: Pid, owners: &mut Owners) -> Option<Owner> {
    let status = status::status(files, pid).ok()?;
    if status.kernel_thread || status.zombie {
        return None;
    }
    let group = cgroup::path_of(files, pid).ok()?.unwrap_or_default();
    Some(owners.of(&group.to_string(), status.uids[0]))
}

/// Adds a mapping; returns the number of rows that it takes in our tables.
fn add(found: &mut BTreeMap<FileKey, MappedFile>, owner: Owner, pid: Pid, mapping: &Mapping) -> u64 {
    /// Processes of one owner through which a file may be opened.
    const THROUGH: usize = 4;
    let Some(pages) = pages_of(mapping) else { return 0 };
    let key = FileKey { device: mapping.device, inode: mapping.inode };
    let file = found.entry(key).or_insert_with(|| MappedFile {
        path: mapping.path.clone(),
        owners: BTreeSet::new(),
        through: Vec::new(),
        code: Ranges::default(),
        all: Ranges::default(),
    });
    let rows = |file: &MappedFile| file.owners.len() + file.through.len() + file.all.count() + file.code.count();
    let before = rows(file);
    file.owners.insert(owner);
    // The processes of one owner are not read in one go.
    if file.through.last().is_none_or(|(last, _)| *last != pid) && file.through.len() < THROUGH * file.owners.len() {
        file.through.push((pid, mapping.range));
    }
    file.all.insert(pages.clone());
    if mapping.permissions.execute {
        file.code.insert(pages);
    }
    rows(file).saturating_sub(before) as u64
}

/// Pages of the file behind a mapping; `None` for anonymous memory.
fn pages_of(mapping: &Mapping) -> Option<Range<u64>> {
    let first = mapping.offset / 4096;
    (mapping.inode != 0).then(|| first..first.saturating_add(mapping.range.pages().0))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one run is meant")]
mod tests {
    use linux::fake::FakeKernel;
    use rustix::io::Errno;

    use super::*;

    const MAPS: &str = "\
400000-402000 r--p 00000000 fe:00 12 /usr/bin/server
402000-406000 r-xp 00002000 fe:00 12 /usr/bin/server
406000-407000 rw-p 00006000 fe:00 12 /usr/bin/server
500000-600000 rw-p 00000000 00:00 0 [heap]
700000-702000 r--s 00010000 fe:00 13 /var/lib/fonts
";

    fn process(kernel: FakeKernel, pid: i32, user: u32, maps: &str) -> FakeKernel {
        let status = format!(
            "Name:\tx\nState:\tS\nTgid:\t{pid}\nUid:\t{user}\t0\t0\t0\nVmRSS:\t 4 kB\nVmSize:\t 4 kB\nThreads:\t1\nCapEff:\t0\n"
        );
        kernel
            .file(&format!("proc/{pid}/maps"), maps)
            .file(&format!("proc/{pid}/status"), &status)
            .file(&format!("proc/{pid}/cgroup"), "4:memory:/web\n")
    }

    #[test]
    fn executable_mappings_are_code_and_others_read_only_data() {
        let kernel = process(process(FakeKernel::new(), 7, 33, MAPS), 8, 33, MAPS);
        let found = of(&kernel, &[Pid(7), Pid(8), Pid(9)].into());
        assert_eq!(found.files.len(), 2, "one that is gone maps nothing");
        let server = &found.files[&FileKey { device: (254, 0), inode: 12 }];
        assert_eq!(server.code.iter().collect::<Vec<_>>(), [2..6]);
        assert_eq!((server.all.iter().collect::<Vec<_>>(), server.window()), (vec![0..7], 0..7));
        assert_eq!(server.through.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [Pid(7), Pid(8)]);
        let fonts = &found.files[&FileKey { device: (254, 0), inode: 13 }];
        assert_eq!((fonts.code.pages(), fonts.window()), (0, 16..18));
        let names: Vec<String> = fonts.owners.iter().map(|owner| found.owners.name(*owner).to_string()).collect();
        assert_eq!(names, ["user 33 in control group /web"], "the real user");
    }

    #[test]
    fn a_user_with_many_mappings_takes_no_time_from_another() {
        let mut kernel = FakeKernel::new();
        for pid in 10..40 {
            kernel = process(kernel, pid, 4001, MAPS);
        }
        let kernel = process(kernel, 90, 4002, MAPS);
        let pids: BTreeSet<Pid> = (10..40).chain([90]).map(Pid).collect();
        let mut found = at_most(&kernel, &pids, 200);
        let server = &found.files[&FileKey { device: (254, 0), inode: 12 }];
        assert_eq!(server.owners.len(), 2, "the last one is read although its number is the highest");
        assert!(server.through.len() < 5, "{:?}", server.through);
        let lines = crate::left_out::Reports::default().of(
            std::mem::take(&mut found.left_out),
            &found.owners,
            std::time::Duration::ZERO,
        );
        assert_eq!((lines.len(), lines[0].owner.user), (1, 4001));
    }
    #[test]
    fn a_process_without_an_answer_is_left_out_and_the_others_are_read() {
        let kernel = process(FakeKernel::new(), 8, 33, MAPS);
        let kernel = process(kernel, 7, 34, MAPS).refusing("proc/7/maps", Errno::TIMEDOUT);
        let mut found =
            of(&process(kernel, 9, 35, MAPS).refusing("proc/9/maps", Errno::ACCESS), &[Pid(7), Pid(8), Pid(9)].into());
        let server = &found.files[&FileKey { device: (254, 0), inode: 12 }];
        assert_eq!(server.through.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [Pid(8)]);
        let lines = crate::left_out::Reports::default().of(
            std::mem::take(&mut found.left_out),
            &found.owners,
            std::time::Duration::ZERO,
        );
        let causes: Vec<_> = lines.iter().map(|lines| (lines.owner.user, lines.why.clone())).collect();
        assert_eq!(causes, [(34, Cause::Unanswered.to_string())], "a refusal is no news");
    }
}
