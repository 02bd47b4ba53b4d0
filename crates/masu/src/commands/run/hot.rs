//! Serves a program and its children from outside while it runs: `masu attach` from the start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use access::Backend;
use hugepages::attach::{Control, Doing, ROUND_MIN, Settings, Until, attach};
use hugepages::report::Report;
use hugepages::target::Target;
use hugepages::{Refusal, policy, rate_limiter};
use linux::process_lock::ProcessLock;
use linux::{Pid, children, status};
use serde::{Deserialize, Serialize};
use units::{Bytes, Fraction};

use super::counts::Shared;
use crate::HOST;
use crate::commands::attach::open;
use crate::failure::Failure;
use crate::open::{Observers, Purpose, admit, can_promote, hold};
use crate::priority::Priority;

/// Smallest memory of a served program: below that it has too few windows.
const WORTH_IT: Bytes = Bytes::mib(8);

/// Processes that were not served, behind their number.
pub const SMALL: &str = "with less than 8 MiB at each look";
pub const NOT_SERVED: &str = "that could not be served";

/// Interval of the search for new children.
const CHILDREN_EVERY: Duration = Duration::from_secs(1);

/// Longest time between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(50);

/// Shortest time between two counts after promotions.
const COUNT_EVERY_MIN: Duration = Duration::from_millis(100);

/// Totals over all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Windows promoted.
    pub promoted: u64,
    /// Of these, windows that were huge at the last count, and to the end.
    pub still_huge: u64,
    /// Of these, windows that no count has seen huge: the process ended first.
    pub uncounted: u64,
    /// Windows split again.
    pub demoted: u64,
    /// Memory returned by the splits.
    pub returned: Bytes,
    /// Windows that the program gave back in part, whose blocks were split, and the memory that this freed.
    pub torn: (u64, Bytes),
    /// Torn windows whose blocks the kernel does not split, and the memory that it keeps of them.
    pub torn_left: (u64, Bytes),
    /// Processes and windows looked at.
    pub looked_at: LookedAt,
    /// Processes that were large enough and could not be served.
    pub not_served: u64,
    /// Processes that were too small at each look.
    pub small: u64,
    /// Reason why the program or its children could not be served.
    pub why: Option<String>,
}

impl Outcome {
    fn add(&mut self, report: &Report, counts: Option<&Shared>) {
        self.promoted += report.windows_promoted;
        let still = report.windows_still_huge;
        let (counted, after) = counts.map_or((still, 0), |counts| counts.lock().of_last_count(report.pid, still));
        self.still_huge += counted;
        self.uncounted += after;
        self.looked_at.add(report);
        self.demoted += report.windows_demoted;
        self.returned += report.returned_bytes;
        self.torn.0 += report.torn_windows;
        self.torn.1 += report.torn_returned_bytes;
        self.torn_left.0 += report.torn_left_windows;
        self.torn_left.1 += report.torn_left_bytes;
    }
}

/// Processes and windows that masu looked at from outside, by their state at the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookedAt {
    pub processes: u64,
    /// The sum of the following ones.
    pub windows_seen: u64,
    pub windows_huge: u64,
    pub windows_cold: u64,
    pub windows_compactable: u64,
    /// Hot, and not promoted when the program ended.
    pub windows_waiting: u64,
    /// Hot, and without a huge page for this reason.
    pub windows_refused: BTreeMap<Refusal, u64>,
}

impl LookedAt {
    fn add(&mut self, report: &Report) {
        self.windows_seen += report.windows_seen;
        self.windows_huge += report.windows_huge;
        self.windows_cold += report.windows_cold;
        self.windows_compactable += report.windows_compactable;
        self.windows_waiting += report.windows_waiting;
        for (why, windows) in &report.windows_refused {
            *self.windows_refused.entry(*why).or_insert(0) += windows;
        }
    }

    /// Line of a report; `None` where no window was seen.
    pub fn text(&self) -> Option<String> {
        if self.windows_seen == 0 {
            return None;
        }
        let processes = if self.processes == 1 { "process" } else { "processes" };
        let mut columns = vec![
            format!("{} huge", self.windows_huge),
            format!("{} without a hot page", self.windows_cold),
            format!("{} with too few", self.windows_compactable),
            format!("{} hot and not promoted in time", self.windows_waiting),
        ];
        columns.extend(self.windows_refused.iter().map(|(why, windows)| format!("{windows} refused ({why})")));
        let (number, windows) = (self.processes, self.windows_seen);
        Some(format!("looked at from outside: {number} {processes}, {windows} windows: {}", columns.join(", ")))
    }

    /// Reason for which no window was huge at any count. `some_refused`: a process was large enough, and could not be
    /// served.
    pub fn why_none(&self, some_refused: bool) -> String {
        if self.processes == 0 && some_refused {
            return "no process was looked at: none that had enough memory could be served".to_owned();
        }
        if self.processes == 0 {
            return format!("no process was looked at: none had {WORTH_IT} at a look, once a second");
        }
        let reasons = [
            (self.windows_waiting, "the hot ones were not due before the program ended"),
            (self.windows_refused.values().sum(), "the hot ones were refused"),
            (self.windows_compactable, "too few of their pages were hot"),
            (self.windows_cold, "no page of theirs was hot at a look"),
        ];
        match reasons.iter().find(|(windows, _)| *windows > 0) {
            Some((_, why)) => format!("no window of 2 MiB was made huge: {why}"),
            None => "no window of 2 MiB was found at a look".to_owned(),
        }
    }
}

/// Serves in a thread of its own, until it is ended.
#[derive(Debug)]
pub struct Hot {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Outcome, Failure>>,
}

/// Reports, before anything is started, the reason that rules out serving from outside.
pub fn check() -> Result<(), Failure> {
    admit(Pid::own(), Purpose::Attach)?;
    can_promote(&linux::probe::collapse(&*HOST))
}

impl Hot {
    /// Begins with `pid`; with its children, unless `alone`. Counts after promotions, if a report is wanted.
    ///
    /// # Errors
    /// No further thread can be started.
    pub fn begin(pid: Pid, alone: bool, max_extra_rss: Fraction, counts: Option<Shared>) -> std::io::Result<Hot> {
        let over = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&over);
        let thread = std::thread::Builder::new().spawn(move || serve(pid, alone, max_extra_rss, counts, &ending))?;
        Ok(Hot { over, thread })
    }

    /// Ends the thread, and returns its totals.
    pub fn end(self) -> Result<Outcome, Failure> {
        self.over.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(Failure::new("cannot say what was promoted: the work failed")))
    }
}

fn serve(
    pid: Pid,
    alone: bool,
    max_extra_rss: Fraction,
    counts: Option<Shared>,
    over: &AtomicBool,
) -> Result<Outcome, Failure> {
    let observers = Observers::find(None)?;
    let policy =
        policy::Settings { max_extra_rss, idle_rounds: 3, settle_noise: Fraction::clamped(0.005), ..policy::PAPER };
    let settings =
        Settings { rate: rate_limiter::MEASURED, until: Until::Stopped, dry_run: false, round_min: ROUND_MIN };
    let mut host = Host {
        start: Instant::now(),
        over,
        root: pid,
        // DAMON watches one process at a time.
        alone: alone || observers.backend == Backend::DamonVaddr,
        observers: &observers,
        policy,
        known: BTreeMap::new(),
        waiting: Vec::new(),
        looked: None,
        small: BTreeSet::new(),
        counting: counts.map(Counting::new),
        outcome: Outcome::default(),
        priority: Priority::default(),
    };
    if host.alone && !alone {
        host.outcome.why = Some("its children are not served: DAMON watches one process at a time".to_owned());
    }
    let mut targets = Vec::new();
    attach(&mut targets, settings, &mut host);
    targets.append(&mut host.waiting);
    for target in &targets {
        host.ended(&Report::of(target, linux::cpu_time::of_process(), false));
    }
    host.outcome.small = host.small.len() as u64;
    Ok(host.outcome)
}

/// The loop's callbacks: silent, since the terminal is the program's.
struct Host<'a> {
    start: Instant,
    over: &'a AtomicBool,
    root: Pid,
    alone: bool,
    observers: &'a Observers,
    policy: policy::Settings,
    /// Processes that were large enough, each with its lock against another masu; `None` for a process that cannot be
    /// served.
    known: BTreeMap<Pid, Option<ProcessLock>>,
    waiting: Vec<Target>,
    looked: Option<Instant>,
    /// Processes that were too small at each look.
    small: BTreeSet<Pid>,
    counting: Option<Counting>,
    outcome: Outcome,
    priority: Priority,
}

impl Host<'_> {
    /// Looks for processes of the program that have grown large enough.
    fn find_new(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < CHILDREN_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        let mut all = vec![self.root];
        if !self.alone {
            match children::descendants(&*HOST, self.root) {
                Ok(descendants) => all.extend(descendants),
                Err(error) if error.is_gone() => {}
                Err(error) => self.outcome.why = Some(format!("its children are not served: {error}")),
            }
        }
        self.known.retain(|pid, _| all.contains(pid));
        for pid in all {
            // The size of a process whose first thread has ended is not known.
            let may_be_large = |status: status::Status| status.rss >= WORTH_IT || status.first_thread_ended();
            let large = || status::status(&*HOST, pid).is_ok_and(may_be_large);
            if self.known.contains_key(&pid) {
                continue;
            }
            if !large() {
                self.small.insert(pid);
            } else {
                self.small.remove(&pid);
                let is_over = |status: status::Status| status.zombie && !status.first_thread_ended();
                let has_ended = || status::status(&*HOST, pid).map_or(true, is_over);
                let held = self.take_in(pid).inspect_err(|failure| {
                    if has_ended() {
                        return;
                    }
                    self.outcome.not_served += 1;
                    if pid == self.root {
                        self.outcome.why = Some(failure.line().to_owned());
                    }
                });
                self.known.insert(pid, held.ok());
            }
        }
    }

    /// Locks and opens a process. One that cannot be served (it forbids it, it ended, another masu has it) is left
    /// alone.
    fn take_in(&mut self, pid: Pid) -> Result<ProcessLock, Failure> {
        let status = admit(pid, Purpose::Attach)?;
        let held = hold(pid, Purpose::Attach)?;
        let (target, _) = open(self.observers, pid, status.name, self.policy)?;
        self.waiting.push(target);
        self.outcome.looked_at.processes += 1;
        if let Some(counting) = &self.counting {
            counting.counts.lock().arrives(pid);
        }
        Ok(held)
    }

    fn ended(&mut self, report: &Report) {
        self.outcome.add(report, self.counting.as_ref().map(|counting| &counting.counts));
    }
}

/// Counts for a report, soon after promotions: the program may end at any time.
struct Counting {
    counts: Shared,
    /// Windows promoted in each process.
    promoted: BTreeMap<Pid, u64>,
    /// Processes with promotions since their last count.
    changed: BTreeSet<Pid>,
    not_before: Instant,
}

impl Counting {
    fn new(counts: Shared) -> Counting {
        Counting { counts, promoted: BTreeMap::new(), changed: BTreeSet::new(), not_before: Instant::now() }
    }

    fn note(&mut self, targets: &[Target]) {
        for target in targets {
            let promoted = target.totals.promoted;
            if self.promoted.insert(target.pid, promoted).unwrap_or(0) != promoted {
                self.counts.lock().promoted(target.pid, promoted);
                self.changed.insert(target.pid);
            }
        }
    }

    /// Counts, for a twentieth of the time at most.
    fn count(&mut self) {
        let begun = Instant::now();
        if begun < self.not_before || self.changed.is_empty() {
            return;
        }
        for pid in std::mem::take(&mut self.changed) {
            self.counts.lock().count(pid);
        }
        self.not_before = Instant::now() + (begun.elapsed() * 20).max(COUNT_EVERY_MIN);
    }
}

impl Control for Host<'_> {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wait(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.find_new();
            self.counting.iter_mut().for_each(Counting::count);
            if left.is_zero() || self.stop() || !self.waiting.is_empty() {
                return;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    fn arrivals(&mut self) -> Vec<Target> {
        self.find_new();
        std::mem::take(&mut self.waiting)
    }

    fn has_arrivals(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn expects_arrivals(&self) -> bool {
        !self.stop()
    }

    fn remove(&mut self, target: Target) -> Option<Target> {
        self.ended(&Report::of(&target, Duration::ZERO, false));
        None
    }

    fn stop(&self) -> bool {
        self.over.load(Relaxed)
    }

    fn cpu_time(&self) -> Duration {
        linux::cpu_time::of_process()
    }

    fn set_urgent(&mut self, urgent: bool) {
        self.priority.set(urgent);
    }

    fn progress(&mut self, _: Doing, targets: &[Target]) {
        self.counting.iter_mut().for_each(|counting| counting.note(targets));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_a_look_are_all_in_its_line() {
        let looked_at = LookedAt {
            processes: 1,
            windows_seen: 10,
            windows_huge: 4,
            windows_cold: 3,
            windows_waiting: 1,
            windows_refused: BTreeMap::from([(Refusal::Locked, 2)]),
            ..LookedAt::default()
        };
        assert_eq!(
            looked_at.text().unwrap(),
            "looked at from outside: 1 process, 10 windows: 4 huge, 3 without a hot page, 0 with too few, 1 hot and not \
             promoted in time, 2 refused (locked)"
        );
        assert_eq!(LookedAt::default().text(), None);
    }

    #[test]
    fn where_nothing_was_made_huge_the_reason_is_that_of_the_look() {
        let none = LookedAt::default();
        assert_eq!(none.why_none(false), "no process was looked at: none had 8.0 MiB at a look, once a second");
        let refused = "no process was looked at: none that had enough memory could be served";
        assert_eq!(none.why_none(true), refused);
        let one = LookedAt { processes: 1, ..none };
        assert_eq!(one.why_none(false), "no window of 2 MiB was found at a look");
        let cold = LookedAt { windows_cold: 20, ..one.clone() };
        assert_eq!(cold.why_none(false), "no window of 2 MiB was made huge: no page of theirs was hot at a look");
        let waiting = LookedAt { windows_waiting: 20, ..one };
        let expected = "no window of 2 MiB was made huge: the hot ones were not due before the program ended";
        assert_eq!(waiting.why_none(false), expected);
    }
}
