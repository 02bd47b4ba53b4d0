//! The loop: observe, decide, act, measure again, until nothing changes; then watch at a slow rate.
//!
//! A round is one clear and scans at doubling ages. It ends when twice the time has shown no new hot window, after 10
//! s at the latest. Then the plans of all programs are carried out in the order of `policy::share_turns`, each call
//! followed by the pause that the rate limiter asks for. Where many windows cost nothing, they are promoted earlier,
//! in the time between two scans. The caller waits, stops and reports progress, through [`Control`].
//!
//! Programs may arrive while the loop runs. A new program is added at the start of a round, since a round clears once
//! and scans many times. To keep its wait short, an arrival ends the watching of settled programs, and a round that
//! only gathers more evidence ends at its shortest length.

mod carry_out;

use std::time::Duration;

use access::estimate;
use linux::Error;

use crate::policy::{self, Growth};
use crate::rate_limiter::{self, RateLimiter};
use crate::target::{Phase, Target};

/// Caller's side of the loop.
pub trait Control {
    /// Time since the start.
    fn now(&self) -> Duration;

    /// Waits for `time`; returns early when asked to stop, and once for each program that ends or arrives.
    fn wait(&mut self, time: Duration);

    /// True once asked to stop (Ctrl-C, SIGTERM).
    fn stop(&self) -> bool;

    /// Processor time of this process so far.
    fn cpu_time(&self) -> Duration;

    /// Programs that arrived since the last call, to be added now.
    fn arrivals(&mut self) -> Vec<Target> {
        Vec::new()
    }

    /// Whether [`Control::arrivals`] would return a program, or [`Control::keeps`] would leave one.
    fn has_arrivals(&self) -> bool {
        false
    }

    /// Whether more programs may arrive. Then the loop goes on, and waits, when all programs have ended.
    fn expects_arrivals(&self) -> bool {
        false
    }

    /// Whether the loop goes on with a program; asked at the start of a round. One that it leaves keeps its huge pages, and
    /// is given to [`Control::remove`].
    fn keeps(&mut self, target: &Target) -> bool {
        let _ = target;
        true
    }

    /// Receives a program that ended, at the start of a round: returns it to stay among the targets, or takes it,
    /// where many come and go and must not pile up.
    fn remove(&mut self, target: Target) -> Option<Target> {
        Some(target)
    }

    /// Called with each new program, and when one becomes unable to run ([`Target::halted`]) or able to.
    fn halted(&mut self, target: &Target) {
        let _ = target;
    }

    /// Called before and after a call that may make the program wait.
    fn set_urgent(&mut self, urgent: bool);

    /// Called after every scan and, while acting, after every window.
    fn progress(&mut self, doing: Doing, targets: &[Target]);
}

/// Activity of the loop, for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Scanning, at this age of the observation.
    Scanning {
        /// Time since the clear.
        age: Duration,
    },
    /// Promoting.
    Promoting {
        /// Windows done in this round.
        done: u64,
        /// Windows planned in this round.
        planned: u64,
    },
    /// Waiting for the next scan of settled programs.
    Watching,
}

/// End condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All programs have settled.
    Settled,
    /// This time has passed.
    For(Duration),
    /// The loop was stopped, or all programs ended and no other is expected.
    Stopped,
}

/// Settings of the loop. Each [`Target`] has the settings of its policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Rates and pauses.
    pub rate: rate_limiter::Settings,
    /// End condition.
    pub until: Until,
    /// Plan, check for obstacles, and change nothing.
    pub dry_run: bool,
    /// The shortest observation of the first round, and of the rounds that confirm it.
    pub round_min: (Duration, Duration),
}

/// Values used for the figures under `bench/`.
pub const ROUND_MIN: (Duration, Duration) = (Duration::from_millis(1280), Duration::from_millis(640));

/// Longest wait for an arrival when there is no program.
const WITHOUT_PROGRAMS: Duration = Duration::from_secs(10);

/// Interval of the looks whether the programs can run.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Works on `targets` until the end that `s` names. A program that ends meanwhile, or that cannot be worked on any
/// more ([`Target::failure`]), is left out from then on.
pub fn attach(targets: &mut Vec<Target>, s: Settings, control: &mut dyn Control) {
    let end = match s.until {
        Until::For(time) => Some(time),
        Until::Settled if !s.dry_run => Some(settle_within(targets)),
        Until::Settled | Until::Stopped => None,
    };
    Loop { targets, s, control, limiter: RateLimiter::default(), end, look_again: Duration::ZERO }.run();
}

/// The longest run until settled: a program whose memory never comes to rest does not keep masu for ever.
pub fn settle_within(targets: &[Target]) -> Duration {
    let resident: u64 = targets.iter().map(|target| target.totals.rss_before.0).sum();
    Duration::from_secs(180 + (resident >> 30))
}

/// A run of the loop.
struct Loop<'a> {
    targets: &'a mut Vec<Target>,
    s: Settings,
    control: &'a mut dyn Control,
    /// Rate of the promotions of this round.
    limiter: RateLimiter,
    /// End of the run, after the start.
    end: Option<Duration>,
    /// Time of the next look whether the programs can run.
    look_again: Duration,
}

impl Loop<'_> {
    fn run(&mut self) {
        let mut watch = Duration::ZERO;
        loop {
            if self.exchange_programs() > 0 {
                watch = Duration::ZERO;
            }
            let cpu_before = self.control.cpu_time();
            if self.has_programs() {
                self.round(watch);
            } else if self.control.expects_arrivals() && !self.control.has_arrivals() {
                self.pause(WITHOUT_PROGRAMS);
            }
            if !self.s.dry_run && self.has_programs() {
                if self.s.until == Until::Settled && self.is_settled() {
                    self.serve_waiting();
                } else {
                    self.serve_pauses();
                }
            }
            if self.is_over() || (self.s.dry_run && !matches!(self.s.until, Until::For(_))) {
                return;
            }
            let spent = self.control.cpu_time().saturating_sub(cpu_before);
            watch =
                if self.is_settled() { rate_limiter::watch_again_after(spent, self.s.rate) } else { Duration::ZERO };
        }
    }

    /// Removes ended programs and adds arrivals. Returns the number of arrivals.
    fn exchange_programs(&mut self) -> usize {
        let control = &mut *self.control;
        let stays = |target: Target| {
            if target.phase == Phase::Ended || !control.keeps(&target) { control.remove(target) } else { Some(target) }
        };
        *self.targets = std::mem::take(self.targets).into_iter().filter_map(stays).collect();
        let arrived = self.control.arrivals();
        let count = arrived.len();
        self.targets.extend(arrived);
        count
    }

    fn has_programs(&self) -> bool {
        self.targets.iter().any(|target| target.phase != Phase::Ended)
    }

    fn is_settled(&self) -> bool {
        self.targets.iter().all(|target| target.phase != Phase::Watching)
    }

    fn is_over(&self) -> bool {
        let has_programs = self.has_programs();
        let more_may_arrive = self.control.has_arrivals() || self.control.expects_arrivals();
        let done = match self.s.until {
            Until::Settled => has_programs && self.is_settled(),
            Until::For(_) | Until::Stopped => false,
        };
        done || self.is_late() || self.control.stop() || !(has_programs || more_may_arrive)
    }

    /// Whether a stop, the end of the run or of all programs cuts the round short; having settled does not.
    fn is_cut_short(&self) -> bool {
        self.is_late() || self.control.stop() || !self.has_programs()
    }

    fn is_late(&self) -> bool {
        self.end.is_some_and(|end| self.control.now() >= end)
    }

    /// Waits, but not beyond the end of the run, and looks meanwhile whether the programs can run.
    fn pause(&mut self, time: Duration) {
        let left = self.end.map_or(time, |end| end.saturating_sub(self.control.now()));
        let until = self.control.now() + time.min(left);
        loop {
            let now = self.control.now();
            if now >= self.look_again {
                self.look_for_halts();
                let took = self.control.now().saturating_sub(now);
                self.look_again = now + LOOK_EVERY.max(took * 20); // looks take a twentieth of the time at most
            }
            let wait = until.saturating_sub(now).min(self.look_again.saturating_sub(now));
            self.control.wait(wait);
            let waited = self.control.now().saturating_sub(now);
            // A wait that was cut short has its reason, which the caller looks for.
            let is_over = self.control.now() >= until || self.control.stop() || self.control.has_arrivals();
            if waited < wait || is_over {
                return;
            }
        }
    }

    fn look_for_halts(&mut self) {
        for target in self.targets.iter_mut().filter(|target| target.phase != Phase::Ended) {
            if target.look_for_halt() {
                self.control.halted(target);
            }
        }
    }

    /// One round. A settled program is watched for the whole time to the next one, `watch`, so that memory with rare
    /// use is not taken for idle.
    fn round(&mut self, watch: Duration) {
        tracing::debug!(programs = self.targets.len(), "round begins");
        self.limiter = RateLimiter::default();
        self.look_for_halts();
        self.for_each(Target::begin_round);
        let is_conclusive = self.observe();
        if self.oldest() < watch && !self.is_cut_short() && !self.control.has_arrivals() {
            self.control.progress(Doing::Watching, self.targets);
            self.scan_at(watch, Duration::ZERO);
        }
        if self.control.stop() {
            return;
        }
        self.look_for_halts();
        if self.s.dry_run {
            self.foresee();
        } else {
            self.promote();
            self.split_idle();
        }
        if self.is_cut_short() || !is_conclusive {
            return; // a round that was cut short says nothing about settling
        }
        let now = self.control.now();
        self.for_each(|target| {
            target.settle(now);
            Ok(())
        });
    }

    /// Scans at doubling ages until a longer observation would change no verdict. False when an arrival ended it
    /// before.
    fn observe(&mut self) -> bool {
        let is_open = |target: &Target| target.totals.promoted == 0 || target.split_candidates() > 0;
        let (first, confirming) = self.s.round_min;
        let shortest = if self.targets.iter().any(is_open) { first } else { confirming };
        let has_new = self.targets.iter().any(Target::is_new);
        let mut before = None;
        let mut next = self.next_due(None);
        loop {
            self.scan_at(next, shortest);
            let now: Growth = self.targets.iter().map(Target::growth).sum();
            let is_steady = if has_new {
                policy::is_steady(before, now)
            } else {
                before.is_some_and(|before| policy::are_as_many_wanted(before, now))
            };
            if (next >= shortest && is_steady) || next >= estimate::LAST_SCAN || self.is_cut_short() {
                return true;
            }
            if next >= shortest && self.control.has_arrivals() {
                return false;
            }
            let promoted = next >= shortest && !self.s.dry_run && self.promote_at_once(next);
            // After a long series of promotions the next scan only has to confirm that no window was missed: a quarter
            // more of the time shows whether a sweep goes on.
            next = if promoted && policy::is_decided(now) {
                self.oldest().max(next * 5 / 4)
            } else {
                self.next_due(Some(next))
            };
            before = Some(now);
        }
    }

    /// Scans when the observation has reached `age`. The end of one program interrupts the wait, but does not shorten
    /// the observation of the others: the rest of the time is waited for. On an arrival, the others are scanned once
    /// `enough` of that time has passed.
    fn scan_at(&mut self, age: Duration, enough: Duration) {
        let ended = |targets: &[Target]| targets.iter().filter(|target| target.phase == Phase::Ended).count();
        loop {
            let ended_before = ended(self.targets);
            loop {
                self.pause(age.saturating_sub(self.oldest()));
                let is_too_soon = self.oldest() < age.min(enough);
                if !(self.control.has_arrivals() && is_too_soon) || self.is_cut_short() {
                    break;
                }
            }
            self.for_each(Target::scan);
            self.control.progress(Doing::Scanning { age: self.oldest() }, self.targets);
            if ended(self.targets) == ended_before || self.oldest() >= age || self.is_cut_short() {
                return;
            }
        }
    }

    /// Twice the last age. Where scanning or promoting took longer than that, the scan is due at once, in place of the
    /// missed one.
    fn next_due(&self, last: Option<Duration>) -> Duration {
        let mut due = estimate::next_scan(last);
        while due < estimate::LAST_SCAN && estimate::next_scan(Some(due)) <= self.oldest() {
            due = estimate::next_scan(Some(due));
        }
        due
    }

    /// Age of the oldest observation.
    fn oldest(&self) -> Duration {
        let live = self.targets.iter().filter(|target| target.phase != Phase::Ended);
        live.map(|target| target.source().age()).max().unwrap_or_default()
    }

    /// Calls `work` with every program that has not ended.
    fn for_each(&mut self, mut work: impl FnMut(&mut Target) -> Result<(), Error>) {
        for index in 0..self.targets.len() {
            self.with(index, &mut work);
        }
    }

    /// Calls `work` with a program, unless it ended. A program that ends meanwhile, or that cannot be worked on any
    /// more (a privilege lost at exec), is left out from then on; the others go on.
    fn with(&mut self, index: usize, work: impl FnOnce(&mut Target) -> Result<(), Error>) {
        let target = &mut self.targets[index];
        if target.phase == Phase::Ended {
            return;
        }
        target.set_now(self.control.now());
        if let Err(error) = work(target) {
            target.phase = Phase::Ended;
            target.failure = Some(error).filter(|error| !error.is_gone());
        }
    }
}
