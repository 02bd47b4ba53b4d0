//! What masu does while a program runs that was started with the preload library: it looks at the memory of each process
//! that has a seat on the board, gives back what huge pages hold for nothing, and takes a last look when one leaves.
//!
//! It runs in a thread of its own, and the program waits for it at one place only: at its exit, if a report is wanted, for
//! at most a quarter of a second.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use contract::board::{self, Board, Code, Seat, Stage};
use hugepages::count::{Counted, Counter};
use hugepages::trim::Trimmer;
use hugepages::trim::policy::Settings as Trim;
use linux::shared_memory::{self, SharedMemory};
use linux::{Error, Pid, status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use units::Bytes;

use crate::HOST;
use crate::failure::Failure;

/// The first look at a process comes so long after its start: what ends before that is not worth one.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Looks for a report come so far apart at most.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(10);

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Count superpages for a report.
    pub report: bool,
    /// Give back what huge pages hold for nothing.
    pub trim: Option<Trim>,
    /// A process that is watched without having a seat: one that is served from outside.
    pub without_seat: Option<Pid>,
}

/// What was seen and done, all processes together.
#[derive(Debug, Default)]
pub struct Seen {
    /// Each process at its fullest.
    pub fullest: BTreeMap<Pid, Counted>,
    /// Processes that had a seat.
    pub processes: u64,
    /// Processes for which there was none.
    pub turned_away: u32,
    /// Mappings moved to a multiple of a superpage.
    pub aligned: u64,
    /// Windows split because they held too much for nothing.
    pub demoted: u64,
    /// What that returned.
    pub returned: Bytes,
    /// Split windows that were filled later and made huge again.
    pub promoted_again: u64,
    /// The worst that became of a text.
    pub code: Code,
    /// Why nothing can be given back.
    pub no_trim: Option<Error>,
    /// The most that one process had resident, of those that were looked at.
    pub rss_peak: Bytes,
    /// Windows that the library reserved, also those that were given back since.
    pub reserved_ever: u64,
    /// The watching itself failed, and what it saw is lost.
    pub lost: bool,
}

/// The board, and the thread that watches it.
#[derive(Debug)]
pub struct Watch {
    memory: Arc<SharedMemory>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// A board for the programs that are about to be started.
pub fn new_board() -> Result<SharedMemory, Failure> {
    let size = Bytes::kib(board::BYTES as u64 / 1024);
    let memory = SharedMemory::create(board::NAME, size)
        .map_err(|errno| Failure::new(format!("cannot make a page to share: {}", linux::describe(errno))))?;
    Board::new(memory.words()).ok_or_else(|| Failure::new("cannot make a page to share: it has the wrong size"))?;
    Ok(memory)
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn begin(memory: SharedMemory, wanted: Wanted) -> std::io::Result<Watch> {
        let memory = Arc::new(memory);
        let over = Arc::new(AtomicBool::new(false));
        let (shared, ending) = (Arc::clone(&memory), Arc::clone(&over));
        let thread = std::thread::Builder::new().spawn(move || watch(&shared, wanted, &ending))?;
        Ok(Watch { memory, over, thread })
    }

    /// Has this process taken a seat?
    pub fn is_seated(&self, pid: Pid) -> bool {
        Board::of(self.memory.words()).is_some_and(|board| board.taken().any(|seat| pid_of(seat) == Some(pid)))
    }

    /// Ends it, and says what was seen. A failure in the thread loses the report and nothing else.
    pub fn end(self) -> Seen {
        self.over.store(true, Relaxed);
        if let Some(board) = Board::of(self.memory.words()) {
            board.bell().fetch_add(1, Relaxed);
            shared_memory::wake(board.bell());
        }
        self.thread.join().unwrap_or(Seen { lost: true, ..Seen::default() })
    }
}

/// One process that is watched.
struct Watched {
    due: Instant,
    quiet: Duration,
    /// Set once it is certain that it is one of ours.
    ours: Option<OwnedFd>,
    counter: Counter,
    trimmer: Option<Trimmer>,
    no_trim: Option<Error>,
}

impl Watched {
    fn new(pid: Pid) -> Watched {
        Watched {
            due: Instant::now() + FIRST_LOOK,
            quiet: FIRST_LOOK,
            ours: None,
            counter: Counter::new(pid),
            trimmer: None,
            no_trim: None,
        }
    }

    /// Whether there is still a process, and whether it is the one that took the seat: it has the board mapped. Whoever sits
    /// on a seat wrote its number there itself, in a namespace of its own it may be a number of somebody else's, and a
    /// number that is free is given again.
    fn presence(&mut self, pid: Pid, board_inode: u64) -> Presence {
        if let Some(process) = &self.ours {
            let at_once = Timespec::default();
            let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ended| ended > 0);
            return if ended { Presence::Gone } else { Presence::Ours };
        }
        // Opened first: what is read then is of this process, or of none.
        let process = match pid.open() {
            Ok(process) => process,
            Err(error) if error.is_gone() => return Presence::Gone,
            Err(_) => return Presence::Unknown,
        };
        match linux::maps::maps(&*HOST, pid) {
            Ok(mappings) if mappings.iter().any(|mapping| is_board(mapping, board_inode)) => {
                self.ours = Some(process);
                Presence::Ours
            }
            Err(error) if error.is_gone() => Presence::Gone,
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

fn is_board(mapping: &linux::maps::Mapping, inode: u64) -> bool {
    let name = format!("/memfd:{}", board::NAME);
    mapping.inode == inode && mapping.path.bytes().starts_with(name.as_bytes())
}

fn watch(memory: &SharedMemory, wanted: Wanted, over: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut all: BTreeMap<Pid, Watched> = BTreeMap::new();
    let Some(board) = Board::of(memory.words()) else { return seen };
    let inode = std::fs::metadata(memory.path()).map_or(0, |about| about.ino());
    if let Some(pid) = wanted.without_seat {
        all.insert(pid, Watched { ours: pid.open().ok(), ..Watched::new(pid) });
    }
    let begun = Instant::now();
    while !over.load(Relaxed) {
        let bell = board.bell().load(Relaxed);
        for seat in board.taken() {
            let Some(pid) = pid_of(seat) else { continue };
            let watched = all.entry(pid).or_insert_with(|| Watched::new(pid));
            if seat.stage() == Stage::Leaving {
                if wanted.report && matches!(watched.presence(pid, inode), Presence::Ours) {
                    count(pid, watched, &mut seen);
                }
                seat.set_stage(Stage::Seen);
                shared_memory::wake(seat.stage_word());
                // It is as good as gone; programs that start many others need its seat.
                board.leave(&seat);
            }
        }
        let mut gone = Vec::new();
        for (pid, watched) in all.iter_mut().filter(|(_, watched)| watched.due <= Instant::now()) {
            let stays = match watched.presence(*pid, inode) {
                Presence::Ours => {
                    // Whoever leaves waits for us.
                    let stop = || over.load(Relaxed) || board.bell().load(Relaxed) != bell;
                    look(*pid, watched, wanted, &mut seen, begun.elapsed(), &stop)
                }
                Presence::Gone => false,
                Presence::Unknown => {
                    watched.due = Instant::now() + FIRST_LOOK;
                    true
                }
            };
            if !stays {
                gone.push(*pid);
            }
        }
        for pid in gone {
            let left = board.taken().filter(|seat| pid_of(*seat) == Some(pid)).collect::<Vec<_>>();
            left.iter().for_each(|seat| board.leave(seat));
            all.remove(&pid).into_iter().for_each(|watched| settle_up(watched, &mut seen));
        }
        let next = all.values().map(|watched| watched.due).min();
        let nap = next.map_or(FIRST_LOOK, |due| due.saturating_duration_since(Instant::now())).min(FIRST_LOOK);
        if !over.load(Relaxed) {
            shared_memory::wait(board.bell(), bell, nap);
        }
    }
    board.close();
    for seat in board.taken() {
        // Whoever waits for a last look does so no longer.
        shared_memory::wake(seat.stage_word());
    }
    all.into_values().for_each(|watched| settle_up(watched, &mut seen));
    let totals = board.totals();
    seen.processes = board.processes().into();
    (seen.aligned, seen.reserved_ever, seen.code) = (totals.aligned, totals.reserved, totals.code);
    seen.turned_away = board.turned_away();
    seen
}

fn pid_of(seat: Seat<'_>) -> Option<Pid> {
    i32::try_from(seat.process()).ok().filter(|pid| *pid > 0).map(Pid)
}

/// Looks at one process; false when it has ended.
fn look(
    pid: Pid,
    watched: &mut Watched,
    wanted: Wanted,
    seen: &mut Seen,
    now: Duration,
    stop: &dyn Fn() -> bool,
) -> bool {
    if wanted.report && !count(pid, watched, seen) {
        return false;
    }
    watched.quiet = (watched.quiet * 2).min(LOOK_EVERY_MAX);
    watched.due = Instant::now() + watched.quiet;
    let Some(settings) = wanted.trim else { return wanted.report || is_there(pid) };
    if watched.trimmer.is_none() && watched.no_trim.is_none() {
        match Trimmer::open(&*HOST, pid) {
            Ok(trimmer) => watched.trimmer = Some(trimmer),
            Err(error) if error.is_gone() => return false,
            Err(error) => watched.no_trim = Some(error),
        }
    }
    let Some(trimmer) = &mut watched.trimmer else { return wanted.report || is_there(pid) };
    match trimmer.round(settings, now, stop) {
        Ok(round) => watched.due = Instant::now() + round.next_look,
        Err(error) if error.is_gone() => return false,
        Err(error) => {
            watched.no_trim = Some(error);
            settle_up_trimmer(watched.trimmer.take(), seen);
        }
    }
    true
}

fn is_there(pid: Pid) -> bool {
    linux::status::status(&*HOST, pid).is_ok_and(|status| !status.zombie)
}

/// Counts, and keeps the count if more was reserved than at any time before. False when the process has ended.
fn count(pid: Pid, watched: &mut Watched, seen: &mut Seen) -> bool {
    match watched.counter.count(&*HOST) {
        Ok(counted) => {
            // A process that is just ending has no such figure any more.
            let peak = status::status(&*HOST, pid).map_or(Bytes(0), |status| status.rss_peak);
            seen.rss_peak = seen.rss_peak.max(peak);
            let fullness = |counted: &Counted| (counted.total.allocated_windows, counted.total.reserved_windows);
            let fuller = seen.fullest.get(&pid).is_none_or(|before| fullness(&counted) >= fullness(before));
            if fuller && counted.is_of_interest() {
                seen.fullest.insert(pid, counted);
            }
            true
        }
        Err(error) => !error.is_gone(),
    }
}

fn settle_up(watched: Watched, seen: &mut Seen) {
    settle_up_trimmer(watched.trimmer, seen);
    if seen.no_trim.is_none() {
        seen.no_trim = watched.no_trim;
    }
}

fn settle_up_trimmer(trimmer: Option<Trimmer>, seen: &mut Seen) {
    if let Some(trimmer) = trimmer {
        seen.demoted += trimmer.demoted;
        seen.returned += trimmer.returned;
        seen.promoted_again += trimmer.promoted_again;
    }
}
