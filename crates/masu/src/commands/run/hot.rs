//! Serves a program and its children from outside while it runs: `masu attach` from the start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use access::Backend;
use hugepages::attach::{Control, Doing, ROUND_MIN, Settings, Until, attach};
use hugepages::report::Report;
use hugepages::target::Target;
use hugepages::{policy, rate_limiter};
use linux::process_lock::ProcessLock;
use linux::{Pid, children, status};
use units::{Bytes, Fraction};

use crate::HOST;
use crate::commands::attach::open;
use crate::failure::Failure;
use crate::open::{Observers, Purpose, admit, can_promote, hold};
use crate::priority::Priority;

/// Smallest memory of a served program: below that it has too few windows.
const WORTH_IT: Bytes = Bytes::mib(8);

/// Interval of the search for new children.
const CHILDREN_EVERY: Duration = Duration::from_secs(1);

/// Longest time between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(50);

/// Totals over all processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Windows promoted.
    pub promoted: u64,
    /// Of these, windows that were huge at the end.
    pub still_huge: u64,
    /// Windows split again.
    pub demoted: u64,
    /// Memory returned by the splits.
    pub returned: Bytes,
    /// Windows that the program gave back in part, whose blocks were split, and the memory that this freed.
    pub torn: (u64, Bytes),
    /// Processes that were large enough and could not be served.
    pub not_served: u64,
    /// Reason why the program or its children could not be served.
    pub why: Option<String>,
}

impl Outcome {
    fn add(&mut self, report: &Report) {
        self.promoted += report.windows_promoted;
        self.still_huge += report.windows_still_huge;
        self.demoted += report.windows_demoted;
        self.returned += report.returned_bytes;
        self.torn.0 += report.torn_windows;
        self.torn.1 += report.torn_returned_bytes;
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
    /// Begins with `pid`; with its children, unless `alone`.
    ///
    /// # Errors
    /// No further thread can be started.
    pub fn begin(pid: Pid, alone: bool, max_extra_rss: Fraction) -> std::io::Result<Hot> {
        let over = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&over);
        let thread = std::thread::Builder::new().spawn(move || serve(pid, alone, max_extra_rss, &ending))?;
        Ok(Hot { over, thread })
    }

    /// Ends the thread, and returns its totals.
    pub fn end(self) -> Result<Outcome, Failure> {
        self.over.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(Failure::new("cannot say what was promoted: the work failed")))
    }
}

fn serve(pid: Pid, alone: bool, max_extra_rss: Fraction, over: &AtomicBool) -> Result<Outcome, Failure> {
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
        outcome: Outcome::default(),
        priority: Priority::default(),
    };
    if host.alone && !alone {
        host.outcome.why = Some("its children are not served: DAMON watches one process at a time".to_owned());
    }
    let mut targets = Vec::new();
    attach(&mut targets, settings, &mut host);
    let mut outcome = host.outcome;
    for target in &targets {
        outcome.add(&Report::of(target, linux::cpu_time::of_process(), false));
    }
    Ok(outcome)
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
            let large = || status::status(&*HOST, pid).is_ok_and(|status| status.rss >= WORTH_IT);
            if !self.known.contains_key(&pid) && large() {
                let held = self.take_in(pid).inspect_err(|failure| {
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
        Ok(held)
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
        self.outcome.add(&Report::of(&target, Duration::ZERO, false));
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

    fn progress(&mut self, _: Doing, _: &[Target]) {}
}
