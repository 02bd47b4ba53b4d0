//! A look at who has merged pages now: page tables of the processes that offered memory to KSM, and the flags of the frames in them.
//!
//! 1. `ksm_stat` chooses the processes: only memory that was offered is merged. Its counters do not choose: a forked child has none and all merged
//!    pages of its parent. On kernels that do not say who offered something all processes are looked at.
//! 2. `maps` names the mappings that may hold anonymous pages: all private ones. smaps would tell which were offered (`mg`), but walks
//!    all of their pages for that.
//! 3. `PAGEMAP_SCAN` leaves out, of large mappings, what is not there, huge, or the zero page.
//! 4. `pagemap` has a word for each page that is left: the frame, and whether others map it too. Only then it may be merged.
//! 5. `kpageflags` tells whether the frame is: asked once for each frame, in their order, neighbours in one call.
//!
//! **Look after look** the fifth step, which costs most, is for what changed: a page in whose word nothing changed is merged still. A
//! frame stays KSM's until all have left it. That it was then taken again for the same address and is shared with others there, and is
//! not KSM's, can be only with a fork since, or with a page that older forks share and that came back from swap; so when there is a
//! process that began since the last look as a fork, or anything was swapped in, all flags are asked anew. Pages that a fork shares and
//! KSM has not merged are asked at each look: KSM may turn them into merged ones where they are.
//! Steps 1 to 4 are for all pages at each look. Nothing cheaper is exact: neither KSM's counters nor its tracepoints nor the counts of
//! page faults tell of a page that was written, given back, moved or parted by another process.
//!
//! A look is no snapshot: processes go on while it is taken, and a page may be parted between its two steps. What is in it was so at
//! some moment of the look.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use linux::kpageflags::FrameTable;
use linux::ksm::Reported;
use linux::maps::{Mapping, maps};
use linux::pagemap::{PageEntry, Pagemap, need_frame_numbers};
use linux::processes::processes;
use linux::{Error, KernelFiles, Pid, cgroup, cpu_time, ksm, stat, status, vmstat};
use units::{Address, AddressRange, Pages};

use super::domain::{By, Member};
use super::index::{Changed, Index, MergedPage};

/// From so many pages on a mapping is scanned before it is read: what a scan costs at the least, reading a page costs a hundred times.
const SCANNED_FROM: Pages = Pages(1024);

/// What is not found where domains are made by control groups and there are none.
pub const NO_CGROUPS: &str = "the control groups of processes";

/// What is scanned at once, and how many of these are read without a scan at most.
const STEP: Pages = Pages(4096);
const UNSCANNED_MAX: u32 = 63;

/// Looks at the host, again and again.
#[derive(Debug)]
pub struct Observer {
    frames: FrameTable,
    by: By,
    left_out: BTreeSet<Pid>,
    index: Index,
    members: BTreeMap<Pid, Member>,
    seen: Seen,
}

/// What there was at the last look, of that which can make other pages look like merged ones.
#[derive(Debug, Default)]
struct Seen {
    /// Every process that has memory, by when it began.
    processes: BTreeMap<Pid, u64>,
    /// Pages swapped in since boot.
    swapped_in: u64,
}

impl Seen {
    /// Notes what there is now, and says whether anybody began since the last time as the fork of another, and is one still, or anything
    /// was swapped in.
    fn changes(&mut self, files: &impl KernelFiles) -> Result<bool, Error> {
        /// From a device, from compressed memory, and pages of nothing but zeros.
        const SWAPPED_IN: [&str; 3] = ["pswpin", "zswpin", "swpin_zero"];
        let mut now = BTreeMap::new();
        let mut forked = false;
        for pid in processes(files)? {
            let Ok(stat) = stat::stat(files, pid) else { continue }; // ended meanwhile
            if stat.of_kernel || matches!(stat.state, 'Z' | 'X') {
                continue; // without memory
            }
            forked |= stat.forked && self.processes.get(&pid) != Some(&stat.start_ticks);
            now.insert(pid, stat.start_ticks);
        }
        let counters = vmstat::vmstat(files)?;
        let swapped_in = SWAPPED_IN.iter().filter_map(|name| counters.get(name)).sum();
        let came_back = swapped_in != self.swapped_in;
        *self = Seen { processes: now, swapped_in };
        Ok(forked || came_back)
    }
}

/// What a look was like.
#[derive(Debug, Default)]
pub struct Look {
    /// Processes whose pages were looked at.
    pub processes: usize,
    /// Those that have offered something, as far as we could see, and could not be looked at, with the reason.
    pub not_read: Vec<(Pid, Error)>,
    /// Words of page tables that were read.
    pub pages: Pages,
    /// Frames whose flags were asked.
    pub frames_asked: u64,
    /// All flags were asked, also of what had not changed.
    pub anew: bool,
    /// What was different from the last look.
    pub changed: Changed,
    /// How long it took.
    pub took: Duration,
    /// The processor time of that.
    pub cpu: Duration,
}

/// What was found in one process.
#[derive(Debug, Default)]
struct Found {
    /// Merged, as nothing has changed.
    known: Vec<MergedPage>,
    /// To be asked.
    open: Vec<MergedPage>,
    words: u64,
}

impl Observer {
    /// An observer that puts processes into domains in this way. Processes that are `left_out` are not looked at.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN; `Unsupported` by a kernel without CONFIG_PROC_PAGE_MONITOR.
    pub fn new(by: By, left_out: BTreeSet<Pid>) -> Result<Observer, Error> {
        need_frame_numbers()?;
        let frames = FrameTable::open()?;
        let (index, members, seen) = (Index::default(), BTreeMap::new(), Seen::default());
        Ok(Observer { frames, by, left_out, index, members, seen })
    }

    /// What was found by the last look.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Who those are that have merged pages.
    pub fn members(&self) -> &BTreeMap<Pid, Member> {
        &self.members
    }

    /// From now on looks at these processes not, and at all others.
    pub fn leave_out(&mut self, processes: BTreeSet<Pid>) {
        self.left_out = processes;
    }

    /// Looks at all processes.
    ///
    /// # Errors
    /// When there is no list of processes, or `Unsupported` where domains are made by control groups and there are none.
    pub fn look(&mut self, files: &impl KernelFiles) -> Result<Look, Error> {
        let (begun, cpu_begun) = (Instant::now(), cpu_time::of_thread());
        let mut look = Look::default();
        let (mut found, mut members) = (Vec::new(), BTreeMap::new());
        for pid in processes(files)?.into_iter().filter(|pid| !self.left_out.contains(pid)) {
            match self.look_at(files, pid) {
                Ok(Some((member, of))) => {
                    look.processes += 1;
                    look.pages.0 += of.words;
                    members.insert(pid, member);
                    found.push((pid, of));
                }
                Ok(None) => {}
                Err(error) if error.is_gone() => {} // ended, or became another program, on the way
                Err(error @ Error::Unsupported(_)) => return Err(error),
                Err(error) => {
                    if let Some((member, of)) = as_before(&error, pid, &mut self.members, &self.index) {
                        members.insert(pid, member);
                        found.push((pid, of));
                    }
                    look.not_read.push((pid, error));
                }
            }
        }
        // Only now: whoever forked while we read, forked before the flags are asked.
        look.anew = self.seen.changes(files)?;
        if look.anew {
            found.iter_mut().for_each(|(_, of)| of.open = joined(std::mem::take(of)));
        }
        look.frames_asked = self.ask(&mut found)?;
        look.changed = self.index.update(found.into_iter().map(|(pid, of)| (pid, joined(of))));
        self.members = members;
        (look.took, look.cpu) = (begun.elapsed(), cpu_time::of_thread().saturating_sub(cpu_begun));
        Ok(look)
    }

    /// The pages of one process that may be merged; `None` for one that has offered nothing.
    fn look_at(&self, files: &impl KernelFiles, pid: Pid) -> Result<Option<(Member, Found)>, Error> {
        match ksm::of_process(files, pid)? {
            None => return Ok(None),
            Some(of) if of.mergeable == Reported::Value(false) => return Ok(None),
            Some(_) => {}
        }
        // Opened first: it keeps meaning the memory that the mappings are of, or has none.
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

    /// Asks for the flags of all open frames, and keeps of the open pages those that are merged. How many frames that were.
    fn ask(&self, found: &mut [(Pid, Found)]) -> Result<u64, Error> {
        // Frames in their order, with the place of the page among all open ones.
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

/// What the last look found in a process that gives no answer: nobody hides by giving none.
fn as_before(error: &Error, pid: Pid, members: &mut BTreeMap<Pid, Member>, index: &Index) -> Option<(Member, Found)> {
    let member = members.remove(&pid).filter(|_| error.is_unanswered())?;
    Some((member, Found { known: index.of(pid).to_vec(), ..Found::default() }))
}

/// Private memory: what is shared is never merged. What the kernel maps for its own ends has nothing to merge.
fn may_hold_merged(mapping: &Mapping) -> bool {
    let kernels = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"];
    !mapping.permissions.shared && !kernels.iter().any(|kernels| mapping.path == *kernels)
}

/// Has those parts of a mapping read that may hold merged pages.
///
/// A scan saves reading where little is in memory or much of it is huge, and else doubles the cost. So what follows a step that was
/// full of small pages is read without one, twice as far each time.
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
    let starts = (range.start().0..range.end().0).step_by(usize::try_from(STEP.bytes().0).unwrap_or(usize::MAX));
    starts.filter_map(move |start| AddressRange::new(start, range.end().0.min(start + STEP.bytes().0)).ok())
}

/// Runs with small gaps between them are read as one.
fn coarser(runs: Vec<AddressRange>) -> Vec<AddressRange> {
    /// Reading so many pages for nothing costs no more than another call.
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

/// Reads the words of a range. `known` is what was merged at the last look, by address.
fn read(pagemap: &Pagemap, range: AddressRange, known: &[MergedPage], found: &mut Found) -> Result<(), Error> {
    let mut known = &known[known.partition_point(|page| page.address < range.start())..];
    pagemap.each(range, |address, entry| {
        found.words += 1;
        take(address, entry, &mut known, found);
    })
}

/// Takes one word. `known` is what is left of what was known, from this address on.
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

/// All that is merged of one process, by address.
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
        let mut seen = Seen::default();
        process(&kernel, 7, 'S', forked, 100);
        assert_eq!(seen.changes(&kernel), Ok(true), "the first look knows nothing");
        assert_eq!(seen.changes(&kernel), Ok(false));
        process(&kernel, 8, 'S', 0, 200);
        process(&kernel, 9, 'I', forked | of_kernel, 200);
        process(&kernel, 10, 'Z', forked, 200);
        assert_eq!(seen.changes(&kernel), Ok(false));
        process(&kernel, 7, 'S', forked, 300);
        assert_eq!(seen.changes(&kernel), Ok(true), "another with the number");
        for counters in ["pswpin 6\nzswpin 7\n", "pswpin 6\nzswpin 8\n", "pswpin 6\nzswpin 8\nswpin_zero 1\n"] {
            kernel.add("proc/vmstat", counters);
            assert_eq!((seen.changes(&kernel), seen.changes(&kernel)), (Ok(true), Ok(false)), "{counters}");
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
        let mut found = |pid: i32, errno| as_before(&of(pid, errno), Pid(pid), &mut members, &index);
        let (kept, pages) = found(7, Errno::TIMEDOUT).unwrap();
        assert_eq!((kept.uid, pages.known, pages.open), (1000, vec![page(1, 70)], vec![]));
        assert!(found(8, Errno::ACCESS).is_none());
        assert!(found(9, Errno::TIMEDOUT).is_none(), "never seen");
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
