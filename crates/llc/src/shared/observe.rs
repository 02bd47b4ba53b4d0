//! Scans for merged pages: page tables of the processes that offered memory to KSM, and the flags of their frames.
//!
//! 1. `ksm_stat` selects the processes: only offered memory is merged. Its counters do not select: a forked child has
//!    counters of zero and all merged pages of its parent. Kernels without that information get all processes
//!    scanned.
//! 2. `maps` lists the mappings that may hold anonymous pages: all private ones. smaps would tell the offered ones
//!    (`mg`), but walks all of their pages for that.
//! 3. `PAGEMAP_SCAN` skips, in large mappings, absent and huge pages and the zero page.
//! 4. `pagemap` gives an entry for each remaining page: the frame, and whether other processes map it too. Only then
//!    it may be merged.
//! 5. `kpageflags` tells whether the frame is merged: read once for each frame, in frame order, neighbours in one
//!    call. On kernels whose flag does not tell, `fork_shared` does.
//!
//! **In repeated scans** the fifth step, the most expensive one, covers only changes: a page with an unchanged entry
//! is still merged. A frame stays KSM's until its last mapping is gone. The same frame can return to the same
//! address, shared there and not KSM's, only through a fork since then, or through a page shared by older forks that
//! came back from swap. So all flags are read again when a process has been forked since the last scan, or any page
//! was swapped in. Pages shared by a fork and not merged by KSM are read at each scan: KSM may merge them in place.
//! Steps 1 to 4 cover all pages at each scan. Nothing cheaper is exact: neither KSM's counters nor its tracepoints
//! nor the counts of page faults report a page that was written, freed, moved or un-merged by another process.
//!
//! A scan is no snapshot: processes run meanwhile, and a page may be un-merged between the two steps. Each result was
//! true at some moment of the scan.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use linux::kpageflags::FrameTable;
use linux::ksm::Reported;
use linux::maps::{Mapping, maps};
use linux::pagemap::{PageEntry, Pagemap, need_frame_numbers};
use linux::processes::processes;
use linux::{Error, KernelFiles, Pid, cgroup, cpu_time, ksm, stat, status, vmstat};
use units::cast::index;
use units::{Address, AddressRange, Pages};

use super::domain::{By, Member};
use super::fork_shared;
use super::index::{Changed, Found, Index, MergedPage};

/// Least size of a mapping that is scanned before it is read: the fixed cost of a scan is a hundred times the cost of
/// reading a page.
const SCANNED_FROM: Pages = Pages(1024);

/// Name of the missing feature where domains are made by control groups and the host has none.
pub const NO_CGROUPS: &str = "the control groups of processes";

/// Range of one scan, and the greatest number of such steps in a row that are read without a scan.
const STEP: Pages = Pages(4096);
const UNSCANNED_MAX: u32 = 63;

/// Scans the host repeatedly.
#[derive(Debug)]
pub struct Observer {
    frames: FrameTable,
    /// KPF_KSM tells merged pages from others; if not, `fork_shared` does.
    flag_tells: bool,
    by: By,
    left_out: BTreeSet<Pid>,
    index: Index,
    members: BTreeMap<Pid, Member>,
    fork_state: ForkState,
}

/// State at the last scan of everything that can make other pages look like merged ones.
#[derive(Debug, Default)]
struct ForkState {
    /// Every process that has memory: its start time, and whether it still runs the program that it was forked with.
    processes: BTreeMap<Pid, (u64, bool)>,
    /// Pages swapped in since boot.
    swapped_in: u64,
}

impl ForkState {
    /// Notes the current state. Returns whether, since the last time, a process was forked that still runs its
    /// parent's program, or a page was swapped in.
    fn changes(&mut self, files: &impl KernelFiles) -> Result<bool, Error> {
        /// From a device, from compressed memory, and pages of only zeros.
        const SWAPPED_IN: [&str; 3] = ["pswpin", "zswpin", "swpin_zero"];
        let mut now = BTreeMap::new();
        let mut forked = false;
        for pid in processes(files)? {
            let Ok(stat) = stat::stat(files, pid) else { continue }; // ended meanwhile
            if stat.of_kernel || matches!(stat.state, 'Z' | 'X') {
                continue; // without memory
            }
            let is_known = self.processes.get(&pid).is_some_and(|(start, _)| *start == stat.start_ticks);
            forked |= stat.forked && !is_known;
            now.insert(pid, (stat.start_ticks, stat.forked));
        }
        let counters = vmstat::vmstat(files)?;
        let swapped_in = SWAPPED_IN.iter().filter_map(|name| counters.get(name)).sum();
        let swapped = swapped_in != self.swapped_in;
        *self = ForkState { processes: now, swapped_in };
        Ok(forked || swapped)
    }
}

/// Result of a scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// Processes with scanned pages.
    pub processes: usize,
    /// Processes that appear to have offered memory and could not be scanned, with the reason.
    pub not_read: Vec<(Pid, Error)>,
    /// Page-table entries read.
    pub pages: Pages,
    /// Frames whose flags were read.
    pub frames_asked: u64,
    /// Pages shared by fork or merged, which this kernel does not tell apart (`fork_shared`). They do not count as merged.
    pub undecided: Pages,
    /// All flags were read, including unchanged ones.
    pub anew: bool,
    /// Changes since the last scan.
    pub changed: Changed,
    /// Duration.
    pub took: Duration,
    /// CPU time.
    pub cpu: Duration,
}

impl Observer {
    /// Observer with this criterion for trust domains. Processes in `left_out` are not scanned.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN; `Unsupported` by a kernel without CONFIG_PROC_PAGE_MONITOR.
    pub fn new(by: By, left_out: BTreeSet<Pid>) -> Result<Observer, Error> {
        need_frame_numbers()?;
        let frames = FrameTable::open()?;
        let flag_tells = frames.tells_merged()?;
        let (index, members, fork_state) = (Index::default(), BTreeMap::new(), ForkState::default());
        Ok(Observer { frames, flag_tells, by, left_out, index, members, fork_state })
    }

    /// Index of the last scan.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Processes that have merged pages.
    pub fn members(&self) -> &BTreeMap<Pid, Member> {
        &self.members
    }

    /// Excludes exactly these processes from later scans.
    pub fn leave_out(&mut self, processes: BTreeSet<Pid>) {
        self.left_out = processes;
    }

    /// Scans all processes.
    ///
    /// # Errors
    /// When there is no list of processes, or `Unsupported` where domains are made by control groups and there are
    /// none.
    pub fn scan(&mut self, files: &impl KernelFiles) -> Result<Scan, Error> {
        let (begun, cpu_begun) = (Instant::now(), cpu_time::of_thread());
        let mut scan = Scan::default();
        let (mut found, mut members) = (Vec::new(), BTreeMap::new());
        for pid in processes(files)?.into_iter().filter(|pid| !self.left_out.contains(pid)) {
            match self.scan_process(files, pid) {
                Ok(Some((member, of))) => {
                    scan.processes += 1;
                    scan.pages.0 += of.words;
                    members.insert(pid, member);
                    found.push((pid, of));
                }
                Ok(None) => {}
                Err(error) if error.is_gone() => {} // ended, or became another program, on the way
                Err(error @ Error::Unsupported(_)) => return Err(error),
                Err(error) => {
                    if let Some((member, of)) = last_result(&error, pid, &mut self.members, &self.index) {
                        members.insert(pid, member);
                        found.push((pid, of));
                    }
                    scan.not_read.push((pid, error));
                }
            }
        }
        // Only now: a fork during the read precedes the read of the flags.
        scan.anew = self.fork_state.changes(files)?;
        if scan.anew {
            found.iter_mut().for_each(|(_, of)| of.open = joined(std::mem::take(of)));
        }
        scan.frames_asked = self.read_flags(&mut found)?;
        if !self.flag_tells {
            let forked = |pid: Pid| self.fork_state.processes.get(&pid).is_none_or(|(_, forked)| *forked);
            scan.undecided = fork_shared::keep_merged(files, forked, &mut found);
        }
        scan.changed = self.index.update(found.into_iter().map(|(pid, of)| (pid, joined(of))));
        self.members = members;
        (scan.took, scan.cpu) = (begun.elapsed(), cpu_time::of_thread().saturating_sub(cpu_begun));
        Ok(scan)
    }

    /// Pages of one process that may be merged; `None` for a process that has offered nothing.
    fn scan_process(&self, files: &impl KernelFiles, pid: Pid) -> Result<Option<(Member, Found)>, Error> {
        match ksm::of_process(files, pid)? {
            None => return Ok(None),
            Some(of) if of.mergeable == Reported::Value(false) => return Ok(None),
            Some(_) => {}
        }
        // Opened first: the descriptor keeps naming the memory of these mappings, or has none.
        let pagemap = Pagemap::open(pid)?;
        let mappings = maps(files, pid)?;
        if mappings.is_empty() {
            return Ok(None);
        }
        let member = self.member(files, pid)?;
        let known = self.index.of(pid);
        let mut found = Found::default();
        for mapping in mappings.iter().filter(|mapping| may_hold_merged(mapping)) {
            each_part(&pagemap, mapping.range, |part| read(&pagemap, part, known, &mut found))?;
        }
        Ok(Some((member, found)))
    }

    fn member(&self, files: &impl KernelFiles, pid: Pid) -> Result<Member, Error> {
        let status = status::status(files, pid)?;
        let group = cgroup::path_of(files, pid)?;
        if group.is_none() && self.by == By::Cgroup {
            return Err(Error::of_host("find", NO_CGROUPS, rustix::io::Errno::NOENT));
        }
        let group = group.unwrap_or_default();
        let domain = self.by.domain(&group, status.uids);
        Ok(Member { name: status.name, uid: status.uid, group, domain })
    }

    /// Reads the flags of all open frames, and keeps the merged ones of the open pages. Returns the number of frames.
    fn read_flags(&self, found: &mut [(Pid, Found)]) -> Result<u64, Error> {
        // Frames in order, with the index of the page among all open ones.
        let mut places: Vec<(u64, usize)> =
            found.iter().flat_map(|(_, of)| &of.open).enumerate().map(|(place, page)| (page.frame, place)).collect();
        places.sort_unstable();
        let frames: Vec<u64> = places.iter().map(|(frame, _)| *frame).collect();
        let mut merged = vec![false; places.len()];
        let mut asked = places.iter();
        self.frames.of_each(&frames, |_, flags| {
            if let Some((_, place)) = asked.next() {
                merged[*place] = flags.is_merged();
            }
        })?;
        let mut merged = merged.into_iter();
        for (_, of) in found {
            of.open.retain(|_| merged.next() == Some(true));
        }
        Ok(frames.chunk_by(|one, other| one == other).count() as u64)
    }
}

/// Keeps the last result for a process that cannot be read: a process cannot hide by failing reads.
fn last_result(error: &Error, pid: Pid, members: &mut BTreeMap<Pid, Member>, index: &Index) -> Option<(Member, Found)> {
    let member = members.remove(&pid).filter(|_| error.is_unanswered())?;
    Some((member, Found { known: index.of(pid).to_vec(), ..Found::default() }))
}

/// Private memory: shared mappings are never merged. The kernel's own mappings have nothing to merge.
fn may_hold_merged(mapping: &Mapping) -> bool {
    let kernels = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"];
    !mapping.permissions.shared && !kernels.iter().any(|kernels| mapping.path == *kernels)
}

/// Reads the parts of a mapping that may hold merged pages.
///
/// A scan saves reads where little is in memory or much of it is huge, and else doubles the cost. So after a step
/// full of small pages, reading goes on without a scan, twice as far each time.
fn each_part(
    pagemap: &Pagemap,
    range: AddressRange,
    mut read: impl FnMut(AddressRange) -> Result<(), Error>,
) -> Result<(), Error> {
    if range.pages() < SCANNED_FROM {
        return read(range);
    }
    let (mut unscanned, mut full) = (0, 0);
    for step in steps(range) {
        if unscanned > 0 {
            unscanned -= 1;
            read(step)?;
            continue;
        }
        let runs = match pagemap.scan_small(step) {
            Ok(runs) => coarser(runs),
            Err(Error::Unsupported(_)) => vec![step], // before Linux 6.7
            Err(error) => return Err(error),
        };
        let wanted: u64 = runs.iter().map(|run| run.pages().0).sum();
        full = if wanted * 4 >= step.pages().0 * 3 { (full * 2 + 1).min(UNSCANNED_MAX) } else { 0 };
        unscanned = full;
        runs.into_iter().try_for_each(&mut read)?;
    }
    Ok(())
}

/// The range in pieces of [`STEP`].
fn steps(range: AddressRange) -> impl Iterator<Item = AddressRange> {
    let starts = (range.start().0..range.end().0).step_by(index(STEP.bytes().0));
    starts.filter_map(move |start| AddressRange::new(start, range.end().0.min(start + STEP.bytes().0)).ok())
}

/// Joins runs with small gaps between them.
fn coarser(runs: Vec<AddressRange>) -> Vec<AddressRange> {
    /// Gap whose reading costs no more than another call.
    const GAP_BYTES_MAX: u64 = Pages(32).bytes().0;
    let mut coarse: Vec<AddressRange> = Vec::with_capacity(runs.len());
    for run in runs {
        let joined = coarse.last().filter(|last| run.start().0.saturating_sub(last.end().0) <= GAP_BYTES_MAX);
        match joined.and_then(|last| AddressRange::new(last.start().0, run.end().0).ok()) {
            Some(joined) => {
                coarse.pop();
                coarse.push(joined);
            }
            None => coarse.push(run),
        }
    }
    coarse
}

/// Reads the entries of a range. `known` lists the pages merged at the last scan, by address.
fn read(pagemap: &Pagemap, range: AddressRange, known: &[MergedPage], found: &mut Found) -> Result<(), Error> {
    let mut known = &known[known.partition_point(|page| page.address < range.start())..];
    pagemap.each(range, |address, entry| {
        found.words += 1;
        take(address, entry, &mut known, found);
    })
}

/// Takes one entry. `known` is the rest of the known pages, from this address on.
fn take(address: Address, entry: PageEntry, known: &mut &[MergedPage], found: &mut Found) {
    if !entry.may_be_merged() {
        return;
    }
    let Some(frame) = entry.frame() else { return };
    while let Some((first, others)) = known.split_first()
        && first.address < address
    {
        *known = others;
    }
    let page = MergedPage { address, frame };
    if known.first() == Some(&page) { found.known.push(page) } else { found.open.push(page) }
}

/// All merged pages of one process, by address.
fn joined(of: Found) -> Vec<MergedPage> {
    let Found { mut known, open, .. } = of;
    if known.is_empty() {
        return open;
    }
    if !open.is_empty() {
        known.extend(open);
        known.sort_unstable(); // two sorted runs: one pass
    }
    known
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;
    use rustix::io::Errno;

    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(start * 4096, end * 4096).unwrap()
    }

    #[test]
    fn runs_close_to_each_other_are_read_at_once() {
        assert_eq!(coarser(vec![range(1, 2), range(34, 35), range(68, 70)]), [range(1, 35), range(68, 70)]);
        assert_eq!(coarser(Vec::new()), []);
    }

    #[test]
    fn a_fork_and_a_page_from_swap_make_a_look_a_new_one_and_a_worker_of_the_kernel_does_not() {
        let process = |kernel: &FakeKernel, pid: i32, state: char, flags: u64, began: u64| {
            let line = format!("{pid} (x) {state} 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {began} 0 0\n");
            kernel.add(&Pid(pid).file("stat"), &line);
        };
        let (forked, of_kernel) = (0x40, 0x0020_0000);
        let kernel = FakeKernel::new().file("proc/vmstat", "pswpin 5\nzswpin 7\n");
        let mut fork_state = ForkState::default();
        process(&kernel, 7, 'S', forked, 100);
        assert_eq!(fork_state.changes(&kernel), Ok(true), "the first scan knows nothing");
        assert_eq!(fork_state.changes(&kernel), Ok(false));
        process(&kernel, 8, 'S', 0, 200);
        process(&kernel, 9, 'I', forked | of_kernel, 200);
        process(&kernel, 10, 'Z', forked, 200);
        assert_eq!(fork_state.changes(&kernel), Ok(false));
        process(&kernel, 7, 'S', forked, 300);
        assert_eq!(fork_state.changes(&kernel), Ok(true), "another with the number");
        for counters in ["pswpin 6\nzswpin 7\n", "pswpin 6\nzswpin 8\n", "pswpin 6\nzswpin 8\nswpin_zero 1\n"] {
            kernel.add("proc/vmstat", counters);
            assert_eq!((fork_state.changes(&kernel), fork_state.changes(&kernel)), (Ok(true), Ok(false)), "{counters}");
        }
    }

    #[test]
    fn a_process_that_gives_no_answer_has_what_was_seen_last_and_a_refused_one_has_nothing() {
        let page = |number: u64, frame| MergedPage { address: Address(number * 4096), frame };
        let mut index = Index::default();
        index.update([(Pid(7), vec![page(1, 70)])]);
        let member = |name: &str| {
            let domain = By::Uid.domain(&"/".into(), [1000; 4]);
            Member { name: name.into(), uid: 1000, group: "/".into(), domain }
        };
        let mut members: BTreeMap<Pid, Member> = [(Pid(7), member("a")), (Pid(8), member("b"))].into();
        let of = |pid: i32, errno| Error::of_process("read", format!("/proc/{pid}/maps"), errno);
        let mut found = |pid: i32, errno| last_result(&of(pid, errno), Pid(pid), &mut members, &index);
        let (kept, pages) = found(7, Errno::TIMEDOUT).unwrap();
        assert_eq!((kept.uid, pages.known, pages.open), (1000, vec![page(1, 70)], vec![]));
        assert!(found(8, Errno::ACCESS).is_none());
        assert!(found(9, Errno::TIMEDOUT).is_none(), "never fork_state");
    }

    #[test]
    fn steps_cover_a_range() {
        assert_eq!(steps(range(1, 8200)).collect::<Vec<_>>(), [range(1, 4097), range(4097, 8193), range(8193, 8200)]);
    }

    #[test]
    fn a_word_that_did_not_change_is_known_and_any_other_that_may_be_merged_is_open() {
        let page = |number: u64, frame| MergedPage { address: Address(number * 4096), frame };
        let known = [page(1, 70), page(2, 71), page(4, 72), page(5, 73)];
        let (present, exclusive, file) = (1 << 63, 1 << 56, 1 << 61);
        let words = [present | 70, present | exclusive | 80, present | 90, present | 72, 0, present | file | 6];
        let mut left = known.as_slice();
        let mut found = Found::default();
        for (number, word) in (1..).zip(words) {
            take(Address(number * 4096), PageEntry(word), &mut left, &mut found);
        }
        assert_eq!(found.known, [page(1, 70), page(4, 72)]);
        assert_eq!(found.open, [page(3, 90)]);
        assert_eq!(joined(found), [page(1, 70), page(3, 90), page(4, 72)]);
    }

    #[test]
    fn private_memory_may_be_merged_and_shared_memory_and_the_kernels_may_not() {
        let of = |line: &str| may_hold_merged(&linux::maps::parse(line, "maps").unwrap()[0]);
        assert!(of("1000-2000 rw-p 00000000 00:00 0") && of("1000-2000 rw-p 00000000 fe:00 7    /usr/lib/a.so"));
        assert!(of("1000-2000 r--p 00000000 00:00 0   [heap]"));
        assert!(!of("1000-2000 rw-s 00000000 00:01 7   /dev/zero") && !of("1000-2000 r-xp 00000000 00:00 0   [vdso]"));
    }
}
