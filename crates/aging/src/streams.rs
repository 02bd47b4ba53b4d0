//! Drop-behind for streams: pages that streams insert into the page cache are dropped again, and no others.
//!
//! `policy` decides the time; `detect` finds streams when none was named; `passes` tells a second use from the first;
//! `kept` has the pages that stay while memory is free, `lately` those of mappings; `mapped` handles pages that the stream
//! maps; `layers` finds the work done for a stream by others; `raw` tells reads of a block device from those of metadata;
//! `intake` reads the insertions; `act` drops pages, and verifies the result; `tally` adds up.

pub mod act;
pub mod detect;
pub mod due;
mod intake;
pub mod kept;
pub mod lately;
pub mod layers;
pub mod lifetimes;
pub mod mapped;
pub mod passes;
pub mod policy;
pub mod raw;
pub mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use access::backend::Unavailable;
use access::insertions::{Filter, Insertions, Membership};
use linux::{KernelFiles, Pid, Untrusted, block_device, stat, status};
use units::{Bytes, Pages};

use crate::left_pages::Reason;
use crate::levels::Level;
use crate::policy::streams_may_keep;
use crate::report::Event;
use act::{DropResult, Dropper, Places};
use detect::Detector;
use due::Due;
use kept::Kept;
use lately::Lately;
use layers::{Layers, Named};
use lifetimes::{Lifetimes, free_memory};
use mapped::{OwnMappings, mappers};
use passes::Passes;
use policy::{Queue, SETTINGS};
use raw::RawReads;
use tally::{Owner, Tally};

/// Pages that stay while memory is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Pages that a process inserts twice, until it ends; pages inserted a third time stay for good.
    ReadAgain,
    /// All clean pages, until the end: masu ends with the command that they are for.
    All,
}

/// Follows page-cache insertions, and drops the pages of streams.
#[derive(Debug)]
pub struct Streams {
    insertions: Insertions,
    filter: Filter,
    keep: Keep,
    followed: Followed,
    /// Processes reported as streams, and as readers of what they have read before, each with the time of its line.
    told: Told,
    queue: Queue,
    kept: Kept,
    lately: Lately,
    own: OwnMappings,
    lifetimes: Lifetimes,
    /// Pages that may be kept beside those that are.
    room: Pages,
    room_at: Option<Duration>,
    dropper: Dropper,
    layers: Layers,
    raw: RawReads,
    /// Time to wait before the next step.
    wait: Duration,
    /// Time of the last look for closed files.
    closed_at: Duration,
    /// Readahead size of the kernel, by device.
    read_ahead: BTreeMap<(u32, u32), Pages>,
    memory: Bytes,
    tally: Tally,
    reported: Reported,
    /// Devices whose files cannot be opened, with a line about them.
    unreachable_reported: BTreeSet<(u32, u32)>,
    forgot_at: Duration,
}

/// Passes of the followed processes.
#[derive(Debug)]
enum Followed {
    /// All processes are followed: each may be a stream.
    Detect(Detector),
    /// Of all that is followed.
    Whole(Passes),
}

/// Reported processes. A process is reported once, and once more when the report before is old.
#[derive(Debug, Default)]
struct Told {
    streams: BTreeMap<Pid, Duration>,
    ended: BTreeMap<Pid, Duration>,
    keeping: BTreeMap<Pid, Duration>,
}

/// Reported totals, with the time of the report.
#[derive(Debug, Default)]
struct Reported {
    at: Duration,
    dropped: Pages,
    lost: Pages,
}

/// Shortest interval between two lines about dropped pages.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shortest interval between two lines of one kind about one process.
const PROCESS_LINE_EVERY: Duration = Duration::from_secs(60);

/// Interval of reading the free memory.
const ROOM_EVERY: Duration = Duration::from_millis(200);

/// Readahead size of kernels that do not show it: 128 KiB.
const USUAL: Pages = Pages(32);

/// Interval of reading the insertions.
const EVERY: Duration = Duration::from_millis(20);

/// Kept pages of a process that are reported: 1 MiB.
const KEPT_REPORTED_MIN: Pages = Pages(256);

impl Streams {
    /// Starts the tracing. `memory` is the amount that the level is a fraction of.
    ///
    /// # Errors
    /// Reason that this host does not allow it, and the remedy.
    pub fn begin(
        files: &impl KernelFiles,
        filter: Filter,
        keep: Keep,
        level: Level,
        memory: Bytes,
    ) -> Result<Streams, Unavailable> {
        let insertions = Insertions::of(filter)?;
        if filter != Filter::All {
            insertions.report_others()?;
        }
        let dropper = Dropper::new(files).map_err(|error| no_mounts(&error))?;
        let followed = match filter {
            Filter::All => Followed::Detect(Detector::default()),
            Filter::Group(_) | Filter::Members => Followed::Whole(Passes::default()),
        };
        let mut streams = Streams {
            insertions,
            filter,
            keep,
            followed,
            told: Told::default(),
            queue: Queue::new(SETTINGS),
            kept: Kept::default(),
            lately: Lately::default(),
            own: OwnMappings::default(),
            lifetimes: Lifetimes::default(),
            room: Pages(0),
            room_at: None,
            dropper,
            layers: Layers::default(),
            raw: RawReads::default(),
            wait: EVERY,
            closed_at: Duration::ZERO,
            read_ahead: BTreeMap::new(),
            memory,
            tally: Tally::default(),
            reported: Reported::default(),
            unreachable_reported: BTreeSet::new(),
            forgot_at: Duration::ZERO,
        };
        streams.set_level(level);
        Ok(streams)
    }

    /// Follows a process from now on.
    ///
    /// # Errors
    /// When too many processes are followed.
    pub fn follow(&self, pid: Pid, membership: Membership) -> Result<(), Unavailable> {
        self.insertions.add_member(pid, membership)
    }

    /// Follows the insertions by this control group's processes from now on.
    ///
    /// # Errors
    /// When the kernel refuses the map of the BPF program.
    pub fn follow_group(&self, inode: u64) -> Result<(), Unavailable> {
        self.insertions.set_filter(Filter::Group(inode))
    }

    /// Ends the membership of a process that only starts others.
    pub fn dismiss(&self, pid: Pid) {
        self.insertions.remove_member(pid);
    }

    /// Followed processes that still run, with their names: those that were named, and their descendants.
    pub fn members(&self, files: &impl KernelFiles) -> Vec<(Pid, Untrusted)> {
        let runs = |pid: &Pid| stat::stat(files, *pid).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'));
        let running = self.insertions.member_pids().into_iter().filter(|pid| *pid != Pid::own()).filter(runs);
        running.map(|pid| (pid, name_of(files, pid))).collect()
    }

    /// Sets the amount that may stay from now on.
    pub fn set_level(&mut self, level: Level) {
        let keep = streams_may_keep(level, self.memory).unwrap_or(Bytes(u64::MAX));
        self.queue.set_keep(Pages(keep.0 / 4096));
    }

    /// Time to wait before the next step.
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// Account of all streams.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Reads the insertions, and drops passed pages.
    ///
    /// # Errors
    /// When the kernel refuses the maps of the BPF program.
    pub fn step(
        &mut self,
        files: &impl KernelFiles,
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<(), Unavailable> {
        self.make_room(files, now);
        self.fetch(files, now, false)?;
        self.report_streams(files, now, events);
        let mut due = self.queue.due(now);
        due.extend(self.own.decided(files, now));
        let passed = |due: &Due| is_passed(&self.followed, &self.read_ahead, due);
        due.iter_mut().for_each(|due| due.may_page_out = passed(due));
        due.retain(|due| !self.keeps(files, due, now));
        let mut unmapped = self.own.due(files, now, |due| is_passed(&self.followed, &self.read_ahead, due));
        unmapped.retain(|due| !self.keeps_lately(files, due, now));
        due.extend(unmapped);
        due.extend(self.lately.over(now));
        self.drop_due(files, due, now);
        if now >= self.reported.at + LINE_EVERY {
            self.report(now, events);
        }
        Ok(())
    }

    /// Leaves pages where they are for now: those of a mapping that the stream has not passed in order, and, while memory
    /// is free, a command's clean pages: of its mappings for a time, others until its end.
    fn keeps(&mut self, files: &impl KernelFiles, due: &Due, now: Duration) -> bool {
        if (due.attempts, due.writes) != (0, 0) || due.early.is_some() {
            return false;
        }
        if self.own.is_mapped(files, due, &due.pages, now) {
            // Pages read ahead and in no page table yet would be dropped, and read again at the next touch.
            return if due.may_page_out {
                self.keeps_lately(files, due, now)
            } else {
                self.own.hold_mapped(due, &due.pages)
            };
        }
        if self.own.take_undecided(due, now) {
            return true;
        }
        let stays = self.may_stay(files, due);
        if stays {
            self.kept.keep(due.file, due.pages.clone(), due.process);
        }
        stays
    }

    /// Leaves pages of a command's mapping where they are for a time.
    fn keeps_lately(&mut self, files: &impl KernelFiles, due: &Due, now: Duration) -> bool {
        let stays = self.may_stay(files, due);
        if stays {
            self.lately.keep(now, due.clone());
        }
        stays
    }

    /// True for a command's clean pages while memory is free.
    fn may_stay(&mut self, files: &impl KernelFiles, due: &Due) -> bool {
        let has_room = self.keep == Keep::All && due.count() <= self.room.0;
        if !has_room || !self.dropper.may_wait(files, due) {
            return false;
        }
        self.room.0 -= due.count();
        true
    }

    /// Reads the free memory, and drops kept pages where little is left, and those of processes that have ended.
    fn make_room(&mut self, files: &impl KernelFiles, now: Duration) {
        if self.room_at.is_some_and(|at| now < at + ROOM_EVERY) {
            return;
        }
        self.room_at = Some(now);
        if self.filter == Filter::Members {
            self.own.set_processes(self.insertions.member_pids().into_iter().collect());
        }
        let processes: Vec<Pid> = self.kept.processes().map(|(pid, _)| pid).collect();
        let free = free_memory(files, std::iter::once(Pid::own()).chain(processes));
        self.room = Pages(kept::may_keep(&free).0 / 4096);
        let missing = Pages(kept::must_release(&free).0.div_ceil(4096));
        let mut due = self.lately.release(missing);
        let released = due.iter().map(Due::count).sum();
        due.extend(self.kept.release(Pages(missing.0.saturating_sub(released))));
        if self.keep == Keep::ReadAgain {
            let ended = self.lifetimes.ended(files);
            if !ended.is_empty() {
                due.extend(self.kept.release_of(|pid| ended.contains(&pid)));
            }
        }
        self.drop_due(files, due, now);
    }

    /// Drops the remaining pages, until that is done or `is_urgent` returns true.
    ///
    /// # Errors
    /// As [`Streams::step`].
    pub fn finish(
        &mut self,
        files: &impl KernelFiles,
        now: Duration,
        is_urgent: &dyn Fn() -> bool,
        events: &mut Vec<Event>,
    ) -> Result<(), Unavailable> {
        /// Dirty pages are dropped after their write-back: waited for while their number falls, and no longer than
        /// this.
        const MOST: Duration = Duration::from_secs(10);
        const PAUSE: Duration = Duration::from_millis(100);
        const WITHOUT_PROGRESS: u32 = 10;
        /// Times that pages are looked for which appeared meanwhile: one for each layer, and some more.
        const LOOKS: u32 = 10;
        self.step(files, now, events)?;
        self.count_metadata(files, true);
        self.settle_kept(files, now);
        let begin = Instant::now();
        let (mut least, mut idle, mut looks) = (u64::MAX, 0, 0);
        self.room = Pages(0);
        loop {
            let later = now + begin.elapsed();
            let due = [self.queue.rest(), self.own.rest()].concat();
            self.drop_due(files, due, later);
            let left = self.queue.waiting().0 + self.own.held().0;
            idle = if left < least { 0 } else { idle + 1 };
            least = least.min(left);
            if idle >= WITHOUT_PROGRESS || begin.elapsed() >= MOST || is_urgent() {
                break;
            }
            if left > 0 {
                std::thread::sleep(PAUSE);
            } else if looks >= LOOKS {
                break;
            }
            looks += u32::from(left == 0);
            // Write-back inserts pages in the layers below.
            let before = self.tally.all_brought_in();
            self.fetch(files, now + begin.elapsed(), true)?;
            if left == 0 && self.tally.all_brought_in() == before {
                break;
            }
        }
        self.count_metadata(files, true);
        // Pages still present now are not dropped.
        let mut result = DropResult::default();
        for due in [self.queue.rest(), self.own.rest()].concat() {
            let reason = if due.writes > 0 { Reason::Unwritten } else { Reason::Mapped };
            result.left.entry((reason, due.file)).or_default().0 += due.count();
        }
        self.count(files, result);
        self.count_gone(files);
        self.report(now, events);
        events.extend(self.layers.largest().into_iter().map(named));
        let (unconnected, unseen) = self.layers.unconnected();
        if unconnected >= layers::NAMED_MIN {
            events.push(Event::Unconnected { bytes: unconnected.bytes(), unseen_processes: unseen });
        }
        Ok(())
    }

    /// At the end: pages that a running service has inserted twice are its own, all others go.
    fn settle_kept(&mut self, files: &impl KernelFiles, now: Duration) {
        if self.keep == Keep::ReadAgain {
            let ended = self.lifetimes.ended(files);
            let due = self.kept.release_of(|pid| ended.contains(&pid));
            self.drop_due(files, due, now);
            for (pid, pages) in self.kept.processes() {
                self.tally.left(Reason::ReadAgain, Some(Owner::Process(pid, name_of(files, pid))), pages.0);
            }
            self.kept = Kept::default();
        }
        let due = [self.lately.release(Pages(u64::MAX)), self.kept.release(Pages(u64::MAX))].concat();
        self.drop_due(files, due, now);
    }

    /// Pages of a file system that is gone are gone with it.
    fn count_gone(&mut self, files: &impl KernelFiles) {
        for device in self.tally.devices() {
            if self.dropper.is_gone(files, device) {
                self.tally.gone(device);
            }
        }
    }

    fn drop_due(&mut self, files: &impl KernelFiles, due: Vec<Due>, now: Duration) {
        if !due.is_empty() {
            let mut places = Places { queue: &mut self.queue, own: &mut self.own };
            let result = self.dropper.drop_due(files, &mut places, due, now);
            self.count(files, result);
        }
    }

    /// Adds a result to the account.
    fn count(&mut self, files: &impl KernelFiles, result: DropResult) {
        self.tally.dropped(result.dropped.0);
        let mapped: BTreeSet<_> =
            result.left.keys().filter(|(reason, _)| *reason == Reason::Mapped).map(|(_, file)| *file).collect();
        let owners = if mapped.is_empty() { BTreeMap::new() } else { mappers(files, &mapped) };
        for ((mut reason, file), pages) in result.left {
            let owner = match reason {
                Reason::Mapped => owners.get(&file).cloned(),
                _ => {
                    let itself = block_device::of_inode(files, file.device, file.inode);
                    Some(Owner::Device(itself.unwrap_or(file.device)))
                }
            };
            if matches!(&owner, Some(Owner::Process(pid, _)) if self.own.is_of_stream(*pid)) {
                reason = Reason::MappedByStream;
            }
            self.tally.left(reason, owner.filter(|_| reason != Reason::Unwritten), pages.0);
        }
    }

    fn report_streams(&mut self, files: &impl KernelFiles, now: Duration, events: &mut Vec<Event>) {
        if now >= self.forgot_at + LINE_EVERY {
            // Pids are reused: the next process with the same pid is another one.
            self.forgot_at = now;
            let has_ended = |pid: Pid| stat::stat(files, pid).is_err_and(|error| error.is_gone());
            if let Followed::Detect(detector) = &mut self.followed {
                detector.forget(has_ended);
            }
            for told in [&mut self.told.streams, &mut self.told.ended, &mut self.told.keeping] {
                told.retain(|pid, _| !has_ended(*pid));
            }
        }
        if let Followed::Detect(detector) = &mut self.followed {
            for (pid, why) in detector.ended() {
                self.told.streams.remove(&pid);
                if is_new(&mut self.told.ended, pid, now) {
                    events.push(Event::NoStream { pid, name: name_of(files, pid), why });
                }
            }
            for pid in detector.streams() {
                if !self.told.streams.contains_key(&pid) && is_new(&mut self.told.streams, pid, now) {
                    events.push(Event::Stream { pid, name: name_of(files, pid) });
                }
            }
        }
        if self.keep == Keep::ReadAgain {
            for (pid, _) in self.kept.processes().filter(|(_, pages)| *pages >= KEPT_REPORTED_MIN) {
                if !self.told.keeping.contains_key(&pid) && is_new(&mut self.told.keeping, pid, now) {
                    events.push(Event::Keeping { pid, name: name_of(files, pid) });
                }
            }
        }
    }

    fn report(&mut self, now: Duration, events: &mut Vec<Event>) {
        self.reported.at = now;
        let lost = self.insertions.lost();
        if lost > self.reported.lost {
            events.push(Event::Missed { bytes: lost.bytes() });
            let new = lost.0 - self.reported.lost.0;
            self.tally.brought_in(new);
            self.tally.left(Reason::Missed, None, new);
            self.reported.lost = lost;
        }
        let dropped = self.tally.all_dropped();
        if dropped > self.reported.dropped {
            let kept = Pages(self.kept.pages().0 + self.lately.pages().0);
            events.push(Event::Dropped {
                bytes: Pages(dropped.0 - self.reported.dropped.0).bytes(),
                dropped_bytes: dropped.bytes(),
                waiting_bytes: Pages(self.tally.waiting().0.saturating_sub(kept.0)).bytes(),
                kept_bytes: kept.bytes(),
                left_bytes: self.tally.all_left().bytes(),
            });
            self.reported.dropped = dropped;
        }
        for (device, why) in self.dropper.unreachable() {
            if self.unreachable_reported.insert(*device) {
                let (major, minor) = device;
                events.push(Event::Skipped { what: format!("files of device {major}:{minor}"), why: why.clone() });
            }
        }
    }
}

impl Followed {
    fn passes(&self, pid: Pid) -> Option<&Passes> {
        match self {
            Followed::Detect(detector) => detector.passes(pid),
            Followed::Whole(passes) => Some(passes),
        }
    }
}

/// True if the stream has passed these pages in order, so that they may leave its mapping.
fn is_passed(followed: &Followed, read_ahead: &BTreeMap<(u32, u32), Pages>, due: &Due) -> bool {
    let ahead = policy::ahead(read_ahead.get(&due.file.device).copied().unwrap_or(USUAL));
    let behind = Pages(SETTINGS.behind_in_file.0.max(ahead.0));
    followed.passes(due.process).is_some_and(|passes| passes.is_passed(due.file, &due.pages, behind))
}

/// Remembers a line about a process; false if there was one shortly before.
fn is_new(told: &mut BTreeMap<Pid, Duration>, pid: Pid, now: Duration) -> bool {
    let is_old = told.get(&pid).is_none_or(|at| now >= *at + PROCESS_LINE_EVERY);
    if is_old {
        told.insert(pid, now);
    }
    is_old
}

fn name_of(files: &impl KernelFiles, pid: Pid) -> Untrusted {
    status::status(files, pid).map_or_else(|_| "ended".into(), |status| status.name)
}

fn named(of: Named) -> Event {
    let Named { pid, name, of_kernel, pages, first } = of;
    Event::Others { pid, name, bytes: pages.bytes(), of_kernel, include_pid: first }
}

/// The mounts could not be read: the remedy is that of the cause.
fn no_mounts(error: &linux::Error) -> Unavailable {
    let remedy = match error {
        linux::Error::Gone(_) | linux::Error::Unsupported(_) => "Mount /proc.",
        linux::Error::Denied(_) => "Run as root.",
        linux::Error::Malformed { .. } => "Please report the line: this masu cannot read it.",
        linux::Error::Other(_) => "Try again; if descriptors or memory are short (`ulimit -n`), end other programs.",
    };
    Unavailable { reason: error.to_string(), remedy: remedy.to_owned() }
}
