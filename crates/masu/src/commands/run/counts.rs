//! Counts of the processes of a run, for its report: each at its fullest, and at its last count. The thread that watches
//! and the one that promotes from outside both count, so that no promotion is in the report without a count after it,
//! unless the program ended first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hugepages::count::{Counted, Counter};
use linux::{Pid, stat, status, thp_permission};
use units::Bytes;

use crate::open::FIRST_THREAD_ENDED;
use crate::{HOST, prohibition};

/// Counts shared by the threads of masu.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Counts>>);

impl Shared {
    /// The counts. A thread that failed in the middle leaves those of the other processes valid.
    pub fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Counts {
    /// Each process at its fullest.
    pub fullest: BTreeMap<Pid, Counted>,
    /// Each process at its last count.
    pub last: BTreeMap<Pid, Counted>,
    /// Largest peak RSS of a counted process.
    pub rss_peak: Bytes,
    /// Notes about processes that had huge pages forbidden at their last count.
    pub forbidden: BTreeMap<Pid, String>,
    /// Notes about processes whose first thread has ended: `/proc` does not show their memory, so no count has it.
    pub hidden: BTreeMap<Pid, String>,
    counters: BTreeMap<Pid, Counter>,
    /// Parent of each process at its first count.
    parents: BTreeMap<Pid, Pid>,
    promoted: BTreeMap<Pid, Promoted>,
    arrived: BTreeSet<Pid>,
}

/// Windows that masu made huge in a process: all, and those before its last count.
#[derive(Clone, Copy, Debug, Default)]
struct Promoted {
    all: u64,
    counted: u64,
}

impl Counts {
    /// Counts windows, and keeps the count as the last one, and if it is the highest one. False when the process has
    /// ended.
    pub fn count(&mut self, pid: Pid) -> bool {
        if self.look_at_first_thread(pid) {
            return true;
        }
        let is_first = !self.parents.contains_key(&pid);
        let parent = if is_first { stat::stat(&*HOST, pid).ok().map(|stat| stat.parent) } else { None };
        let mut counter = self.counters.remove(&pid).unwrap_or_else(|| self.new_counter(pid, parent));
        let counted = counter.count(&*HOST);
        if let (Ok(_), Some(parent)) = (&counted, parent) {
            self.parents.insert(pid, parent);
            let learned = self.counters.get_mut(&parent).map_or(0, |parent| parent.learn(&counter));
            // A count in the middle of the copying did not know these.
            self.fullest.get_mut(&parent).into_iter().for_each(|counted| counted.were_huge(learned));
        }
        let is_gone = counted.as_ref().is_err_and(linux::Error::is_gone);
        if !is_gone {
            self.counters.insert(pid, counter);
        }
        counted.into_iter().for_each(|counted| self.keep(pid, counted));
        !is_gone
    }

    /// Notes a process whose first thread has ended, and whose others go on. True for such a process.
    pub fn look_at_first_thread(&mut self, pid: Pid) -> bool {
        let found = status::status(&*HOST, pid).ok().filter(status::Status::first_thread_ended);
        if let Some(status) = &found {
            let note = || format!("process {pid} ({}): {FIRST_THREAD_ENDED}; no count has it since", status.name);
            self.hidden.entry(pid).or_insert_with(note);
        }
        found.is_some()
    }

    /// A counter that begins with the history of the parent, or of a child that was counted before its parent.
    fn new_counter(&self, pid: Pid, parent: Option<Pid>) -> Counter {
        let child =
            || self.parents.iter().find(|(_, parent)| **parent == pid).and_then(|(child, _)| self.counters.get(child));
        let relative = parent.and_then(|parent| self.counters.get(&parent)).or_else(child);
        relative.map_or_else(|| Counter::new(pid), |relative| relative.of_child(pid))
    }

    fn keep(&mut self, pid: Pid, counted: Counted) {
        if counted.forbidden {
            self.forbidden.entry(pid).or_insert_with(|| forbidding(pid));
        } else {
            self.forbidden.remove(&pid);
        }
        // An exiting process no longer has this figure.
        let peak = status::status(&*HOST, pid).map_or(Bytes(0), |status| status.rss_peak);
        self.rss_peak = self.rss_peak.max(peak);
        if let Some(promoted) = self.promoted.get_mut(&pid) {
            promoted.counted = promoted.all;
        }
        let fullness = |counted: &Counted| (counted.total.allocated_windows, counted.total.reserved_windows);
        let fuller = self.fullest.get(&pid).is_none_or(|before| fullness(&counted) >= fullness(before));
        if counted.is_of_interest() {
            if fuller {
                self.fullest.insert(pid, counted.clone());
            }
            self.last.insert(pid, counted);
        } else {
            self.last.remove(&pid);
        }
    }

    /// Forgets how to count a process that has ended; its counts stay.
    pub fn ended(&mut self, pid: Pid) {
        self.counters.remove(&pid);
        self.parents.remove(&pid);
    }

    /// Names a process that is served from outside, to be counted from now on.
    pub fn arrives(&mut self, pid: Pid) {
        self.arrived.insert(pid);
    }

    /// Processes named since the last call.
    pub fn take_arrived(&mut self) -> BTreeSet<Pid> {
        std::mem::take(&mut self.arrived)
    }

    /// Notes that masu has made `all` windows of a process huge.
    pub fn promoted(&mut self, pid: Pid, all: u64) {
        self.promoted.entry(pid).or_default().all = all;
    }

    /// Of the windows that masu made huge and found huge at its last look, `still`: those in the last count, and those made
    /// huge after it. The rest was small at the last count. The process ended before another one.
    pub fn of_last_count(&self, pid: Pid, still: u64) -> (u64, u64) {
        let after = self.promoted.get(&pid).map_or(0, |promoted| promoted.all.saturating_sub(promoted.counted));
        let huge = self.last.get(&pid).map_or(0, |counted| counted.total.allocated_windows);
        let counted = still.saturating_sub(after).min(huge);
        (counted, after.min(still))
    }
}

fn forbidding(pid: Pid) -> String {
    let name = status::status(&*HOST, pid).map_or_else(|_| linux::Untrusted::from("?"), |status| status.name);
    prohibition::note(pid, &name, &thp_permission::origin(&*HOST, pid))
}
