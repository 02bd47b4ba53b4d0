//! Watches a program that runs with the preload library. A thread scans each process that has a process slot on the
//! status page, splits huge pages that hold unused memory, and counts once more when a process exits. Forked processes
//! without a slot are looked for in `/proc` (`forked.rs`).
//!
//! The program waits for this thread at its exit only, if a report is wanted, for at most a quarter of a second.

mod forked;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use contract::image::LeftOut;
use contract::status_page::{self, Code, ProcessSlot, Stage, StatusPage};
use hugepages::trim::Trimmer;
use hugepages::trim::policy::Settings as Trim;
use linux::shared_memory::{self, SharedMemory};
use linux::{Error, Pid, Untrusted, cgroup, status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use units::cast::saturated;
use units::{Bytes, PageSize};

use self::forked::{Search, has_own_memory};
use super::counts::Shared;
use crate::HOST;
use rustix::io::Errno;

/// Time from the start of a process to its first scan for unused memory: shorter processes are not worth one.
const FIRST_SCAN: Duration = Duration::from_secs(1);

/// The same to its first count for a report: memory may be in use for less than a second.
const FIRST_COUNT: Duration = Duration::from_millis(100);

/// Interval at which the limit on reserved windows follows the headroom of masu's control group.
const LIMIT_EVERY: Duration = Duration::from_secs(1);

/// Interval between searches for forked processes without a slot, and the same as a multiple of a search's time: on a
/// machine with many processes the longer of the two.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
const SEARCH_EVERY_TIMES: u32 = 200;

/// Longest interval between counts of a process for a report, while all counts take less than this part of the time, and
/// beyond it.
const COUNT_EVERY_MAX: Duration = Duration::from_secs(1);
const COUNTING_PART: u32 = 50;
const SCAN_EVERY_MAX: Duration = Duration::from_secs(10);

/// Tasks of the thread.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Count superpages for a report.
    pub report: bool,
    /// Split huge pages that hold unused memory.
    pub trim: Option<Trim>,
    /// A process that is watched without a process slot: it is served from outside.
    pub without_slot: Option<Pid>,
}

/// Totals over all processes.
#[derive(Debug, Default)]
pub struct Seen {
    /// Programs that loaded the library.
    pub programs: u64,
    /// Processes that had a process slot, and forked ones that were found without.
    pub processes: u64,
    /// Processes that found no free slot.
    pub turned_away: u32,
    /// Mappings moved to a multiple of a superpage.
    pub aligned: u64,
    /// Windows split because they held too much unused memory.
    pub demoted: u64,
    /// Memory returned by the splits.
    pub returned: Bytes,
    /// Windows that the program gave back in part, whose blocks were split, and the memory that this freed.
    pub torn: (u64, Bytes),
    /// Torn windows whose blocks the kernel does not split, and the memory that it keeps of them.
    pub torn_left: (u64, Bytes),
    /// The same of blocks that a fork shares: the most in one process.
    pub torn_shared: (u64, Bytes),
    /// Huge windows that a fork shares, so that they are neither read nor split, and the memory that may be wasted in
    /// them: the most in one process. Processes of one fork share the same windows.
    pub shared_left: (u64, Bytes),
    /// Split windows that were filled later and promoted again, and those still huge at the last scan.
    pub promoted_again: (u64, u64),
    /// Worst result for a text segment.
    pub code: Code,
    /// Reason why no memory can be returned.
    pub no_trim: Option<Error>,
    /// Windows ever reserved by the library, with those returned since.
    pub reserved_ever: u64,
    /// Programs that were started without the library, by reason.
    pub left_out: BTreeMap<String, u64>,
    /// Processes that run on after the program, with their names: it has gone into the background.
    pub still_running: Vec<(Pid, Untrusted)>,
    /// Windows that stayed on small pages: they did not fit in half of the headroom of masu's control group.
    pub kept_small: u32,
    /// Control groups of the programs, with the processes that the kernel has killed there for lack of memory meanwhile.
    pub oom_kills: BTreeMap<String, u64>,
    /// The thread itself failed, and its counts are lost.
    pub lost: bool,
    /// Time that counts took.
    counting: Duration,
}

/// The status page, and the thread that watches it.
#[derive(Debug)]
pub struct Watch {
    memory: Arc<SharedMemory>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// Makes a status page for the programs of this run.
pub fn new_status_page() -> Result<SharedMemory, Errno> {
    let memory = SharedMemory::create(status_page::NAME, Bytes::kib(status_page::BYTES as u64 / 1024))?;
    limit_windows(&StatusPage::new(memory.words()).ok_or(Errno::INVAL)?);
    Ok(memory)
}

/// Limits the windows that the programs may reserve where a control group limits memory: to half of its headroom now. A
/// window that is huge from its first touch is charged at once, and one with little used memory is not split before some
/// seconds.
fn limit_windows(page: &StatusPage<'_>) {
    let headroom = cgroup::memory(&*HOST, Pid::own()).ok().flatten().and_then(|group| group.headroom());
    if let Some(headroom) = headroom {
        page.limit_windows(saturated(headroom.0 / 2 / PageSize::Huge.bytes().0));
    }
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// No further thread can be started.
    pub fn begin(memory: SharedMemory, wanted: Wanted, counts: Shared) -> std::io::Result<Watch> {
        let memory = Arc::new(memory);
        let over = Arc::new(AtomicBool::new(false));
        let (shared, ending) = (Arc::clone(&memory), Arc::clone(&over));
        let thread = std::thread::Builder::new().spawn(move || watch(&shared, wanted, &counts, &ending))?;
        Ok(Watch { memory, over, thread })
    }

    /// Whether this process has taken a process slot.
    pub fn has_slot(&self, pid: Pid) -> bool {
        StatusPage::of(self.memory.words())
            .is_some_and(|page| page.slots_in_use().any(|slot| pid_of(slot) == Some(pid)))
    }

    /// Ends the thread, and returns its totals. A failure in the thread loses the report and nothing else.
    pub fn end(self) -> Seen {
        self.over.store(true, Relaxed);
        if let Some(page) = StatusPage::of(self.memory.words()) {
            page.doorbell().fetch_add(1, Relaxed);
            shared_memory::wake(page.doorbell());
        }
        self.thread.join().unwrap_or(Seen { lost: true, ..Seen::default() })
    }
}

/// A watched process.
struct Watched {
    due: Instant,
    quiet: Duration,
    /// Time of the next scan for unused memory.
    trim_due: Instant,
    /// Set once the process is known to be one of this run.
    ours: Option<OwnedFd>,
    trimmer: Option<Trimmer>,
    no_trim: Option<Error>,
}

impl Watched {
    fn new(wanted: Wanted) -> Watched {
        let first = if wanted.report { FIRST_COUNT } else { FIRST_SCAN };
        let now = Instant::now();
        Watched { due: now + first, quiet: first, trim_due: now + FIRST_SCAN, ours: None, trimmer: None, no_trim: None }
    }

    /// Whether the process still runs, and is the owner of the process slot: it then has the status page mapped. The
    /// number in the slot proves nothing. Its process wrote it there itself; in a PID namespace it may be the number of
    /// another process; and a free number is reused.
    fn presence(&mut self, pid: Pid, page_inode: u64) -> Presence {
        if let Some(process) = &self.ours {
            let at_once = Timespec::default();
            let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ended| ended > 0);
            return if ended { Presence::Gone } else { Presence::Ours };
        }
        // Opened before the read: all that is read is of this process, or fails.
        let process = match pid.open() {
            Ok(process) => process,
            Err(error) if error.is_gone() => return Presence::Gone,
            Err(_) => return Presence::Unknown,
        };
        match linux::maps::maps(&*HOST, pid) {
            Ok(mappings) if mappings.iter().any(|mapping| is_status_page(mapping, page_inode)) => {
                self.ours = Some(process);
                Presence::Ours
            }
            _ if !is_there(pid) => Presence::Gone,
            _ => Presence::Unknown,
        }
    }
}

enum Presence {
    Ours,
    Unknown,
    Gone,
}

fn is_status_page(mapping: &linux::maps::Mapping, inode: u64) -> bool {
    let name = format!("/memfd:{}", status_page::NAME);
    mapping.inode == inode && mapping.path.bytes().starts_with(name.as_bytes())
}

fn watch(memory: &SharedMemory, wanted: Wanted, counts: &Shared, over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut all: BTreeMap<Pid, Watched> = BTreeMap::new();
    let Some(page) = StatusPage::of(memory.words()) else { return seen };
    let inode = std::fs::metadata(memory.path()).map_or(0, |about| about.ino());
    if let Some(pid) = wanted.without_slot {
        all.insert(pid, Watched { ours: pid.open().ok(), ..Watched::new(wanted) });
    }
    let begun = Instant::now();
    // Processes killed in each group when a program was first seen there; masu's own group is the first program's.
    let mut kills: BTreeMap<String, u64> = cgroup::oom_kills(&*HOST, Pid::own()).into_iter().collect();
    let (mut limited, mut search_due) = (begun, begun + SEARCH_EVERY);
    let mut search = Search::new(&*HOST);
    // Found by a search, and in no slot since.
    let mut without_slot = BTreeSet::new();
    while !over.load(Relaxed) {
        if limited.elapsed() >= LIMIT_EVERY {
            limited = Instant::now();
            limit_windows(&page);
        }
        let now = Instant::now();
        if now >= search_due {
            without_slot.extend(find_forked(&mut search, &page, inode, wanted, &mut all));
            search_due = Instant::now() + SEARCH_EVERY.max(now.elapsed() * SEARCH_EVERY_TIMES);
        }
        let doorbell = page.doorbell().load(Relaxed);
        for slot in page.slots_in_use() {
            let Some(pid) = pid_of(slot) else { continue };
            without_slot.remove(&pid);
            let watched = all.entry(pid).or_insert_with(|| Watched::new(wanted));
            if slot.stage() == Stage::Leaving {
                if wanted.report && matches!(watched.presence(pid, inode), Presence::Ours) {
                    counts.lock().count(pid);
                }
                slot.set_stage(Stage::Counted);
                shared_memory::wake(slot.stage_word());
                // The process is about to exit; programs that start many others need its slot.
                page.release(&slot);
            }
        }
        for pid in counts.lock().take_arrived() {
            let new = || Watched { ours: pid.open().ok(), due: Instant::now(), ..Watched::new(wanted) };
            all.entry(pid).or_insert_with(new);
        }
        let mut gone = Vec::new();
        for (pid, watched) in all.iter_mut().filter(|(_, watched)| watched.due <= Instant::now()) {
            if let Some((group, before)) = cgroup::oom_kills(&*HOST, *pid) {
                kills.entry(group).or_insert(before);
            }
            let stays = match watched.presence(*pid, inode) {
                Presence::Ours => {
                    // A process that exits waits for this thread.
                    let stop = || over.load(Relaxed) || page.doorbell().load(Relaxed) != doorbell;
                    scan(*pid, watched, wanted, &mut seen, counts, begun.elapsed(), &stop)
                }
                Presence::Gone => false,
                Presence::Unknown => {
                    counts.lock().look_at_first_thread(*pid);
                    watched.due = Instant::now() + FIRST_SCAN;
                    true
                }
            };
            if !stays {
                gone.push(*pid);
            }
        }
        for pid in gone {
            let left = page.slots_in_use().filter(|slot| pid_of(*slot) == Some(pid)).collect::<Vec<_>>();
            left.iter().for_each(|slot| page.release(slot));
            counts.lock().ended(pid);
            all.remove(&pid).into_iter().for_each(|watched| add_totals(watched, &mut seen));
        }
        let next = all.values().map(|watched| watched.due).min();
        // Without a report a new process is found at its first scan or later.
        let longest = if wanted.report { FIRST_COUNT } else { FIRST_SCAN };
        let nap = next.map_or(longest, |due| due.saturating_duration_since(Instant::now())).min(longest);
        if !over.load(Relaxed) {
            shared_memory::wait(page.doorbell(), doorbell, nap);
        }
    }
    without_slot.extend(find_forked(&mut search, &page, inode, wanted, &mut all));
    seen.still_running = still_running(&page, all.keys(), inode, wanted, counts);
    page.close();
    // No process takes a slot from now on, and is counted twice.
    page.slots_in_use().filter_map(pid_of).for_each(|pid| _ = without_slot.remove(&pid));
    for slot in page.slots_in_use() {
        // A process that waits for its last count stops waiting.
        shared_memory::wake(slot.stage_word());
    }
    all.into_values().for_each(|watched| add_totals(watched, &mut seen));
    add_page_totals(&page, kills, &mut seen);
    seen.processes += without_slot.len() as u64;
    seen
}

/// Adds the sums of the status page, and the processes that the kernel has killed since `kills`.
fn add_page_totals(page: &StatusPage<'_>, kills: BTreeMap<String, u64>, seen: &mut Seen) {
    let totals = page.totals();
    (seen.programs, seen.processes) = (page.programs().into(), page.processes().into());
    (seen.aligned, seen.reserved_ever, seen.code) = (totals.aligned, totals.reserved, totals.code);
    (seen.turned_away, seen.kept_small) = (page.refused(), page.kept_small());
    let since =
        |(group, before): (String, u64)| Some((cgroup::oom_kills_in(&*HOST, &group)?.saturating_sub(before), group));
    seen.oom_kills =
        kills.into_iter().filter_map(since).filter(|of| of.0 > 0).map(|(killed, group)| (group, killed)).collect();
    let counted = LeftOut::ALL.iter().map(|why| (why.words().to_owned(), u64::from(page.left_out(*why))));
    seen.left_out = counted.filter(|(_, count)| *count > 0).collect();
}

/// Finds forked processes without a slot, and adds them to the watched ones. Where no slot is free, processes without one
/// are counted as such, and not looked for; from outside nobody has the status page.
fn find_forked(
    search: &mut Search,
    page: &StatusPage<'_>,
    inode: u64,
    wanted: Wanted,
    all: &mut BTreeMap<Pid, Watched>,
) -> Vec<Pid> {
    if page.refused() > 0 || wanted.without_slot.is_some() {
        return Vec::new();
    }
    let slots: BTreeSet<Pid> = page.slots_in_use().filter_map(pid_of).collect();
    let mut found = search.new_processes(&*HOST, |pid| all.contains_key(&pid) || slots.contains(&pid));
    found.retain(|pid| {
        let mut watched = Watched::new(wanted);
        let is_new = matches!(watched.presence(*pid, inode), Presence::Ours)
            && has_own_memory(*pid, all.keys().chain(&slots).copied());
        if is_new {
            all.insert(*pid, watched);
        }
        is_new
    });
    found
}

/// Processes that are still there at the end of the program; they are counted once more.
fn still_running<'a>(
    page: &StatusPage<'_>,
    watched: impl Iterator<Item = &'a Pid>,
    inode: u64,
    wanted: Wanted,
    counts: &Shared,
) -> Vec<(Pid, Untrusted)> {
    let is_ours = |pid: &Pid| matches!(Watched::new(wanted).presence(*pid, inode), Presence::Ours);
    let pids: BTreeSet<Pid> = page.slots_in_use().filter_map(pid_of).chain(watched.copied()).filter(is_ours).collect();
    let counted = |pid: &Pid| !wanted.report || counts.lock().count(*pid);
    let alive = |pid: Pid| status::status(&*HOST, pid).ok().filter(|status| !status.zombie);
    pids.into_iter().filter(counted).filter_map(|pid| Some((pid, alive(pid)?.name))).collect()
}

fn pid_of(slot: ProcessSlot<'_>) -> Option<Pid> {
    i32::try_from(slot.process()).ok().filter(|pid| *pid > 0).map(Pid)
}

/// Scans a process. False when it has ended.
fn scan(
    pid: Pid,
    watched: &mut Watched,
    wanted: Wanted,
    seen: &mut Seen,
    counts: &Shared,
    now: Duration,
    stop: &dyn Fn() -> bool,
) -> bool {
    let begun = Instant::now();
    if wanted.report && !counts.lock().count(pid) {
        return false;
    }
    seen.counting += begun.elapsed();
    let most = if seen.counting * COUNTING_PART < now { COUNT_EVERY_MAX } else { SCAN_EVERY_MAX };
    watched.quiet = (watched.quiet * 2).min(most);
    watched.due = Instant::now() + watched.quiet;
    if counts.lock().look_at_first_thread(pid) {
        return true;
    }
    let Some(settings) = wanted.trim else { return wanted.report || is_there(pid) };
    if Instant::now() < watched.trim_due {
        watched.due = watched.due.min(watched.trim_due);
        return wanted.report || is_there(pid);
    }
    if watched.trimmer.is_none() && watched.no_trim.is_none() {
        match Trimmer::open(&*HOST, pid, settings) {
            Ok(trimmer) => watched.trimmer = Some(trimmer),
            Err(error) if error.is_gone() => return false,
            Err(error) => watched.no_trim = Some(error),
        }
    }
    let Some(trimmer) = &mut watched.trimmer else { return wanted.report || is_there(pid) };
    match trimmer.round(now, stop) {
        Ok(round) => {
            watched.trim_due = Instant::now() + round.next_scan;
            watched.due = if wanted.report { watched.due.min(watched.trim_due) } else { watched.trim_due };
        }
        Err(error) if error.is_gone() => return false,
        Err(error) => {
            watched.no_trim = Some(error);
            add_trimmed(watched.trimmer.take(), seen);
        }
    }
    true
}

fn is_there(pid: Pid) -> bool {
    status::status(&*HOST, pid).is_ok_and(|status| !status.zombie || status.first_thread_ended())
}

fn add_totals(watched: Watched, seen: &mut Seen) {
    add_trimmed(watched.trimmer, seen);
    if seen.no_trim.is_none() {
        seen.no_trim = watched.no_trim;
    }
}

fn add_trimmed(trimmer: Option<Trimmer>, seen: &mut Seen) {
    if let Some(trimmer) = trimmer {
        seen.demoted += trimmer.totals.demoted;
        seen.returned += trimmer.totals.returned;
        seen.torn.0 += trimmer.totals.torn;
        seen.torn.1 += trimmer.totals.torn_returned;
        seen.torn_left.0 += trimmer.totals.torn_left.0;
        seen.torn_left.1 += trimmer.totals.torn_left.1;
        seen.torn_shared = seen.torn_shared.max(trimmer.totals.torn_shared);
        seen.shared_left = seen.shared_left.max(trimmer.totals.shared_left);
        seen.promoted_again.0 += trimmer.totals.promoted_again;
        seen.promoted_again.1 += trimmer.promoted_still_huge();
    }
}
