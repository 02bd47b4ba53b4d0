//! Forked copies of paged programs. The kernel gives a copy no userfaultfd, so it is not paged until it calls exec.
//!
//! A copy is a process that runs the program it was forked with, maps the shared segment of a paged program, and has no
//! memory with a userfaultfd: the child of a vfork has its parent's. Without the right to read a process, it is not
//! counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use linux::maps::Mapping;
use linux::shared_memory::SharedMemory;
use linux::smaps::{self, Detail, VmFlag};
use linux::stat::{self, stat};
use linux::{KernelFiles, Pid, processes};
use rustix::fs::fstat;
use units::Bytes;

/// `smaps` walks all page tables: copies are read at most this part of the time.
const REST: u32 = 20;

/// Path of the System V segment of a program under `ulimit -f`.
const SYSTEM_V: &[u8] = b"/SYSV";

/// Shared segment of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// Inode of the memfd.
    File(u64),
    /// Number of the System V segment.
    SystemV(u64),
}

impl Segment {
    /// Segment of a served program.
    pub fn of(memory: &SharedMemory) -> Option<Segment> {
        match (memory.number(), memory.file()) {
            (Some(number), _) => Some(Segment::SystemV(number.into())),
            (None, Some(file)) => Some(Segment::File(fstat(file).ok()?.st_ino)),
            (None, None) => None,
        }
    }

    /// Segment in a process's mapping.
    fn in_mapping(mapping: &Mapping, path: &str) -> Option<Segment> {
        let (name, inode) = (mapping.path.bytes(), mapping.inode);
        match name {
            file if file.starts_with(path.as_bytes()) => Some(Segment::File(inode)),
            name if name.starts_with(SYSTEM_V) => Some(Segment::SystemV(inode)),
            _ => None,
        }
    }
}

/// Copies at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Number of copies.
    pub copies: u64,
    /// Their private memory together. A page that several processes share is divided by their number.
    pub bytes: Bytes,
}

impl Held {
    fn and(self, other: Held) -> Held {
        Held { copies: self.copies.saturating_add(other.copies), bytes: self.bytes + other.bytes }
    }

    /// The larger figure of both, each by itself.
    pub fn peak(self, other: Held) -> Held {
        Held { copies: self.copies.max(other.copies), bytes: self.bytes.max(other.bytes) }
    }
}

/// Peaks by program.
#[derive(Debug, Default)]
pub struct Peaks(BTreeMap<Segment, Held>);

impl Peaks {
    /// Takes a reading, and returns the sum over all programs in `served`.
    pub fn read(&mut self, found: &BTreeMap<Segment, Held>) -> Held {
        for (segment, held) in found {
            if let Some(peak) = self.0.get_mut(segment) {
                *peak = peak.peak(*held);
            }
        }
        let served = found.iter().filter(|(segment, _)| self.0.contains_key(segment));
        served.fold(Held::default(), |sum, (_, held)| sum.and(*held))
    }

    /// Peak of a served program's copies.
    pub fn of(&mut self, segment: Segment) -> Held {
        *self.0.entry(segment).or_default()
    }

    /// Removes a program that has ended, with its copies.
    pub fn end(&mut self, segment: Segment) -> Held {
        self.0.remove(&segment).unwrap_or_default()
    }
}

/// Search for copies.
#[derive(Debug)]
pub struct Search {
    /// Start of the path of a shared segment in mappings.
    path: String,
    /// Start of the run, in ticks.
    begun: u64,
    /// Processes that are no copies, and never become one.
    others: BTreeSet<Pid>,
    rests_until: Instant,
}

impl Search {
    /// For a run that begins now.
    pub fn begin(files: &impl KernelFiles, path: String) -> Search {
        let begun = stat::now_ticks(files).unwrap_or(0);
        Search { path, begun, others: BTreeSet::new(), rests_until: Instant::now() }
    }

    /// Copies now, by program; `None` if the last search was too expensive for another one yet.
    pub fn look(&mut self, files: &impl KernelFiles) -> Option<BTreeMap<Segment, Held>> {
        let now = Instant::now();
        if now < self.rests_until {
            return None;
        }
        let all: BTreeSet<Pid> = processes::processes(files).ok()?.into_iter().collect();
        self.others.retain(|pid| all.contains(pid));
        let mut found: BTreeMap<Segment, Held> = BTreeMap::new();
        for pid in all {
            if self.others.contains(&pid) {
                continue;
            }
            let Some((segment, bytes)) = self.copy(files, pid) else {
                self.others.insert(pid);
                continue;
            };
            let held = found.entry(segment).or_default();
            *held = held.and(Held { copies: 1, bytes });
        }
        self.rests_until = Instant::now() + now.elapsed().saturating_sub(Duration::from_millis(1)) * REST;
        Some(found)
    }

    /// Segment and memory of a copy; `None` for another process.
    fn copy(&self, files: &impl KernelFiles, pid: Pid) -> Option<(Segment, Bytes)> {
        let stat = stat(files, pid).ok()?;
        // masu's own helpers have its mappings.
        let may_be = stat.forked && stat.start_ticks >= self.begun && stat.parent != Pid::own() && !stat.of_kernel;
        if !may_be || pid == Pid::own() {
            return None;
        }
        let segment = |mapping: &Mapping| Segment::in_mapping(mapping, &self.path);
        let segment = linux::maps::maps(files, pid).ok()?.iter().find_map(segment)?;
        let details = smaps::details(files, pid).ok()?;
        let is_parents = details.iter().any(|detail| detail.flags.contains(VmFlag::UffdMissing));
        (!is_parents).then(|| (segment, details.iter().map(private).sum()))
    }
}

/// Private memory of a mapping.
fn private(detail: &Detail) -> Bytes {
    let mapping = &detail.mapping;
    if mapping.permissions.shared || detail.flags.contains(VmFlag::HugeTlb) {
        return Bytes(0);
    }
    detail.pss.min(detail.anonymous)
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    const SEGMENT: &str = "/memfd:masu-segment-7 ";

    fn process(kernel: FakeKernel, pid: i32, flags: u32, start: u64, mappings: &[String]) -> FakeKernel {
        let stat = format!("{pid} (x) S 2 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0 0\n");
        let smaps = mappings.concat();
        let maps: String = smaps.lines().filter(|line| line.contains('-')).flat_map(|line| [line, "\n"]).collect();
        let file = |name: &str| format!("proc/{pid}/{name}");
        kernel.file(&file("stat"), &stat).file(&file("maps"), &maps).file(&file("smaps"), &smaps)
    }

    fn mapping(head: &str, pss: u64, anonymous: u64, flags: &str) -> String {
        format!(
            "{head}\nRss: {anonymous} kB\nPss: {pss} kB\nAnonymous: {anonymous} kB\nAnonHugePages: 0 kB\nSwap: 0 kB\n\
             Locked: 0 kB\nVmFlags: rd wr{flags}\n"
        )
    }

    fn segment(inode: u64) -> String {
        mapping(&format!("1000-2000 rw-s 0 00:01 {inode} {SEGMENT}(deleted)"), 9, 0, " sh")
    }

    fn heap(pss: u64, anonymous: u64, flags: &str) -> String {
        mapping("10000000-20000000 rw-p 0 00:00 0 ", pss, anonymous, flags)
    }

    /// PF_FORKNOEXEC.
    const FORKED: u32 = 64;

    #[test]
    fn copies_are_processes_without_exec_that_map_a_segment_and_have_memory_of_their_own() {
        let mut kernel = FakeKernel::new().file("proc/uptime", "1.00 1.00\n");
        let system_v = mapping("1000-2000 rw-s 0 00:01 3 /SYSV00000000 (deleted)", 9, 0, " sh");
        kernel = process(kernel, 11, 0, 200, &[segment(5), heap(900, 900, " um")]);
        kernel = process(kernel, 12, FORKED, 201, &[segment(5), heap(400, 800, "")]);
        kernel = process(kernel, 13, FORKED, 202, &[segment(5), heap(300, 300, "")]);
        kernel = process(kernel, 14, FORKED, 203, &[segment(5), heap(900, 900, " um")]);
        kernel = process(kernel, 15, FORKED, 204, &[heap(700, 700, "")]);
        kernel = process(kernel, 16, FORKED, 205, &[system_v, heap(50, 50, "")]);
        kernel = process(kernel, 17, FORKED, 99, &[segment(5), heap(900, 900, "")]);
        let mut search = Search::begin(&kernel, SEGMENT.to_owned());
        let two = Held { copies: 2, bytes: Bytes::kib(700) };
        let one = Held { copies: 1, bytes: Bytes::kib(50) };
        let found = search.look(&kernel).unwrap();
        assert_eq!(found, BTreeMap::from([(Segment::File(5), two), (Segment::SystemV(3), one)]));
        // After an exec it is no copy any more.
        let kernel = process(FakeKernel::new(), 13, 0, 202, &[heap(300, 300, "")]);
        search.rests_until = Instant::now();
        assert_eq!(search.look(&kernel), Some(BTreeMap::new()));
    }

    #[test]
    fn peaks_are_of_served_programs_only() {
        let held = |copies, mib| Held { copies, bytes: Bytes::mib(mib) };
        let (ours, foreign) = (Segment::File(5), Segment::SystemV(5));
        let mut peaks = Peaks::default();
        assert_eq!(peaks.of(ours), Held::default());
        let reading = |copies, mib| BTreeMap::from([(ours, held(copies, mib)), (foreign, held(9, 999))]);
        assert_eq!(peaks.read(&reading(3, 900)), held(3, 900));
        assert_eq!(peaks.read(&reading(4, 100)), held(4, 100));
        assert_eq!(peaks.of(ours), held(4, 900));
        assert_eq!((peaks.end(ours), peaks.read(&reading(3, 900))), (held(4, 900), Held::default()));
    }
}
