//! Drop-behind for streams: pages that streams insert into the page cache are dropped again, and no others.
//!
//! `policy` decides the time; `detect` finds streams when none was named; `act` drops pages, and verifies the result.

pub mod act;
pub mod detect;
pub mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use access::backend::Unavailable;
use access::insertions::{Filter, Insertions, Membership};
use linux::read_ahead::read_ahead;
use linux::{KernelFiles, Pid, stat, status};
use units::{Bytes, Pages};

use crate::levels::Level;
use crate::policy::streams_may_keep;
use crate::report::Event;
use act::{DropResult, Dropper};
use detect::Detector;
use policy::{Queue, SETTINGS};

/// Follows page-cache insertions, and drops the pages of streams.
#[derive(Debug)]
pub struct Streams {
    insertions: Insertions,
    /// Detector of streams, if insertions of all processes are followed.
    detector: Option<Detector>,
    known: BTreeSet<Pid>,
    queue: Queue,
    dropper: Dropper,
    /// Readahead size of the kernel, by device.
    read_ahead: BTreeMap<(u32, u32), Pages>,
    memory: Bytes,
    totals: DropResult,
    reported: Reported,
    unreachable_reported: usize,
    forgot_at: Duration,
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

/// Readahead size of kernels that do not show it: 128 KiB.
const USUAL: Pages = Pages(32);

/// Interval of reading the insertions.
const EVERY: Duration = Duration::from_millis(50);

impl Streams {
    /// Starts the tracing. `memory` is the amount that the level is a fraction of.
    ///
    /// # Errors
    /// Reason that this host does not allow it, and the remedy.
    pub fn begin(
        files: &impl KernelFiles,
        filter: Filter,
        level: Level,
        memory: Bytes,
    ) -> Result<Streams, Unavailable> {
        let insertions = Insertions::of(filter)?;
        let dropper = Dropper::new(files)
            .map_err(|error| Unavailable { reason: error.to_string(), remedy: "Mount /proc.".to_owned() })?;
        let mut streams = Streams {
            insertions,
            detector: (filter == Filter::All).then(Detector::default),
            known: BTreeSet::new(),
            queue: Queue::new(SETTINGS),
            dropper,
            read_ahead: BTreeMap::new(),
            memory,
            totals: DropResult::default(),
            reported: Reported::default(),
            unreachable_reported: 0,
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

    /// Sets the amount that may stay from now on.
    pub fn set_level(&mut self, level: Level) {
        let keep = streams_may_keep(level, self.memory).unwrap_or(Bytes(u64::MAX));
        self.queue.set_keep(Pages(keep.0 / 4096));
    }

    /// Time to wait before the next step.
    pub fn wait(&self) -> Duration {
        EVERY
    }

    /// Dropped bytes, and bytes not dropped, in all.
    pub fn totals(&self) -> (Bytes, Bytes) {
        (self.totals.dropped.bytes(), self.totals.left.bytes())
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
        let own = Pid::own();
        let fetched = self.insertions.fetch()?;
        // Pages that masu reads for itself are few, and not of a stream.
        for insertion in fetched.into_iter().filter(|insertion| insertion.process != own) {
            let of_streams = match &mut self.detector {
                None => vec![insertion],
                Some(detector) => detector.add(insertion),
            };
            for insertion in of_streams {
                let device = insertion.file.device;
                let ahead =
                    *self.read_ahead.entry(device).or_insert_with(|| read_ahead(files, device).unwrap_or(USUAL));
                self.queue.insert(now, &insertion, ahead);
            }
        }
        self.report_streams(files, now, events);
        let due = self.queue.due(now);
        self.drop_due(files, due, now);
        if now >= self.reported.at + LINE_EVERY {
            self.report(now, events);
        }
        Ok(())
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
        self.step(files, now, events)?;
        let (begin, mut least, mut idle) = (Instant::now(), u64::MAX, 0);
        loop {
            let due = self.queue.rest();
            self.drop_due(files, due, now);
            let left = self.queue.waiting().0;
            idle = if left < least { 0 } else { idle + 1 };
            least = least.min(left);
            if left == 0 || idle >= WITHOUT_PROGRESS || begin.elapsed() >= MOST || is_urgent() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        // Pages still present now are not dropped.
        self.totals.left.0 += self.queue.rest().iter().map(|due| due.pages.end - due.pages.start).sum::<u64>();
        self.report(now, events);
        Ok(())
    }

    fn drop_due(&mut self, files: &impl KernelFiles, due: Vec<policy::Due>, now: Duration) {
        if !due.is_empty() {
            let dropped = self.dropper.drop_due(files, &mut self.queue, due, now);
            self.totals.add(dropped);
        }
    }

    fn report_streams(&mut self, files: &impl KernelFiles, now: Duration, events: &mut Vec<Event>) {
        let Some(detector) = &mut self.detector else { return };
        if now >= self.forgot_at + LINE_EVERY {
            // Pids are reused: the next process with the same pid is another one.
            self.forgot_at = now;
            let has_ended = |pid: Pid| stat::stat(files, pid).is_err_and(|error| error.is_gone());
            detector.forget(has_ended);
            self.known.retain(|pid| !has_ended(*pid));
        }
        for pid in detector.streams() {
            if self.known.insert(pid) {
                let name = status::status(files, pid).map_or_else(|_| "ended".into(), |status| status.name);
                events.push(Event::Stream { pid, name });
            }
        }
    }

    fn report(&mut self, now: Duration, events: &mut Vec<Event>) {
        self.reported.at = now;
        let lost = self.insertions.lost();
        if lost > self.reported.lost {
            events.push(Event::Missed { bytes: lost.bytes() });
            self.reported.lost = lost;
        }
        let dropped = self.totals.dropped;
        if dropped > self.reported.dropped {
            events.push(Event::Dropped {
                bytes: Pages(dropped.0 - self.reported.dropped.0).bytes(),
                dropped_bytes: dropped.bytes(),
                waiting_bytes: self.queue.waiting().bytes(),
                left_bytes: self.totals.left.bytes(),
            });
            self.reported.dropped = dropped;
        }
        for ((major, minor), why) in self.dropper.unreachable().skip(self.unreachable_reported) {
            events.push(Event::Skipped { what: format!("files of device {major}:{minor}"), why: why.clone() });
        }
        self.unreachable_reported = self.dropper.unreachable().count();
    }
}
