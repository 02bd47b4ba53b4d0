//! The loop: observe, decide, act, measure again, until nothing changes; then watch at a slow pace.
//!
//! A round is one clear and scans at doubling ages. It ends when twice the time has shown no new hot window, after 10
//! s at the latest. Then the plans of all programs are carried out in the order of `policy::share_turns`, each call
//! followed by the pause that `pace` asks for. Where many windows cost nothing, they are promoted earlier, in the
//! time between two scans. The caller waits, stops and reports progress, through [`Control`].
//!
//! Programs may arrive while the loop runs. A new program is added at the start of a round, since a round clears once
//! and scans many times. To keep its wait short, an arrival ends the watching of settled programs, and a round that
//! only gathers more evidence ends at its shortest length.

use std::collections::BTreeSet;
use std::time::Duration;

use access::estimate;
use linux::Error;

use crate::policy::{self, Growth, Plan};
use crate::rate_limiter::{self, RateLimiter};
use crate::target::{Phase, Target};

/// Caller's side of the loop.
pub trait Control {
    /// Time since the start.
    fn now(&self) -> Duration;

    /// Waits for `time`; returns early when asked to stop, and once for each program that ends or arrives.
    fn wait(&mut self, time: Duration);

    /// Programs that arrived since the last call, to be added now.
    fn arrivals(&mut self) -> Vec<Target> {
        Vec::new()
    }

    /// Whether [`Control::arrivals`] would return a program.
    fn has_arrivals(&self) -> bool {
        false
    }

    /// Whether others may still arrive. Then the loop goes on, and waits, when all programs have ended.
    fn may_more_come(&self) -> bool {
        false
    }

    /// Receives a program that ended, at the start of a round: hands it back to stay among the targets, or keeps it,
    /// where many come and go and must not pile up.
    fn departed(&mut self, target: Target) -> Option<Target> {
        Some(target)
    }

    /// True once asked to stop (Ctrl-C, SIGTERM).
    fn stop(&self) -> bool;

    /// Processor time of this process so far.
    fn cpu_time(&self) -> Duration;

    /// Called before and after a call that may make the program wait.
    fn in_haste(&mut self, haste: bool);

    /// Called after every scan and, while acting, after every window.
    fn progress(&mut self, doing: Doing, targets: &[Target]);
}

/// Activity of the loop, for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Scanning, at this age of the observation.
    Looking {
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
    /// The loop was stopped, or all programs ended and no other may come.
    Stopped,
}

/// Settings of the loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Policy for windows.
    pub policy: policy::Settings,
    /// Rates and pauses.
    pub pace: rate_limiter::Settings,
    /// End condition.
    pub until: Until,
    /// Plan, check for obstacles, and change nothing.
    pub dry_run: bool,
    /// The shortest observation of the first round, and of the rounds that confirm it.
    pub round_min: (Duration, Duration),
}

/// Values used for the figures under `bench/`.
pub const ROUND_MIN: (Duration, Duration) = (Duration::from_millis(1280), Duration::from_millis(640));

/// Works on `targets` until the end that `s` names. A program that ends meanwhile, or that cannot be worked on any
/// more ([`Target::failure`]), is left out from then on.
pub fn attach(targets: &mut Vec<Target>, s: Settings, control: &mut dyn Control) {
    let mut watch = Duration::ZERO;
    loop {
        if take_in(targets, control) > 0 {
            watch = Duration::ZERO;
        }
        let cpu_before = control.cpu_time();
        if is_live(targets) {
            round(targets, s, control, watch);
        } else if control.may_more_come() && !control.has_arrivals() {
            pause(NOBODY_THERE, s, control);
        }
        if over(targets, s, control) || (s.dry_run && !matches!(s.until, Until::For(_))) {
            return;
        }
        let settled = targets.iter().all(|target| target.phase != Phase::Watching);
        let spent = control.cpu_time().saturating_sub(cpu_before);
        watch = if settled { rate_limiter::watch_again_after(spent, s.pace) } else { Duration::ZERO };
    }
}

/// Longest wait for an arrival when there is no program.
const NOBODY_THERE: Duration = Duration::from_secs(10);

/// Drops ended programs and adds arrivals. Returns the number of arrivals.
fn take_in(targets: &mut Vec<Target>, control: &mut dyn Control) -> usize {
    let stays = |target: Target| if target.phase == Phase::Ended { control.departed(target) } else { Some(target) };
    *targets = std::mem::take(targets).into_iter().filter_map(stays).collect();
    let arrived = control.arrivals();
    let count = arrived.len();
    targets.extend(arrived);
    count
}

fn is_live(targets: &[Target]) -> bool {
    targets.iter().any(|target| target.phase != Phase::Ended)
}

fn over(targets: &[Target], s: Settings, control: &dyn Control) -> bool {
    let nobody = !is_live(targets);
    let somebody_may_come = control.has_arrivals() || control.may_more_come();
    let done = match s.until {
        Until::Settled => !nobody && targets.iter().all(|target| target.phase != Phase::Watching),
        Until::For(time) => control.now() >= time,
        Until::Stopped => false,
    };
    done || control.stop() || (nobody && !somebody_may_come)
}

/// Waits, but not beyond the end of the run.
fn pause(time: Duration, s: Settings, control: &mut dyn Control) {
    let left = match s.until {
        Until::For(end) => end.saturating_sub(control.now()),
        Until::Settled | Until::Stopped => time,
    };
    control.wait(time.min(left));
}

/// One round. A settled program is watched for the whole time to the next one, `watch`, so that memory with rare use
/// is not taken for idle.
fn round(targets: &mut [Target], s: Settings, control: &mut dyn Control, watch: Duration) {
    tracing::debug!(programs = targets.len(), "round begins");
    for_live(targets, Target::begin_round);
    let open = targets.iter().any(|target| target.promoted == 0 || target.under_suspicion(s.policy) > 0);
    let shortest = if open { s.round_min.0 } else { s.round_min.1 };
    let new = targets.iter().any(Target::is_new);
    let mut pace = RateLimiter::default();
    let mut before = None;
    let mut next = next_due(None, targets);
    let is_conclusive = loop {
        look_at(next, shortest, targets, s, control);
        let now = growth(targets);
        let steady = if new {
            policy::is_steady(before, now, s.policy)
        } else {
            before.is_some_and(|before| policy::are_as_many_wanted(before, now, s.policy))
        };
        if (next >= shortest && steady) || next >= estimate::LAST_SCAN || over_looking(targets, s, control) {
            break true;
        }
        if next >= shortest && control.has_arrivals() {
            break false;
        }
        let promoted = next >= shortest && !s.dry_run && promote_at_once(targets, s, control, next, &mut pace);
        next =
            if promoted && policy::is_decided(now) { look_soon(next, targets) } else { next_due(Some(next), targets) };
        before = Some(now);
    };
    if oldest(targets) < watch && !over_looking(targets, s, control) && !control.has_arrivals() {
        control.progress(Doing::Watching, targets);
        look_at(watch, Duration::ZERO, targets, s, control);
    }
    if control.stop() {
        return;
    }
    if s.dry_run {
        foresee(targets, s, control);
    } else {
        promote(targets, s, control, &mut pace);
        give_back(targets, s, control);
    }
    if over_looking(targets, s, control) || !is_conclusive {
        return; // a round that was cut short says nothing about settling
    }
    let now = control.now();
    for_live(targets, |target| {
        let settled = target.settle(s.policy);
        target.phase = if settled { Phase::Settled } else { Phase::Watching };
        if settled {
            target.settled_at.get_or_insert(now);
        }
        Ok(())
    });
}

/// Scans when the observation has reached `age`. The end of one program interrupts the wait, but does not shorten the
/// observation of the others: the rest of the time is waited for. On an arrival, the others are scanned once `enough`
/// of that time has passed.
fn look_at(age: Duration, enough: Duration, targets: &mut [Target], s: Settings, control: &mut dyn Control) {
    let ended = |targets: &[Target]| targets.iter().filter(|target| target.phase == Phase::Ended).count();
    loop {
        let ended_before = ended(targets);
        loop {
            pause(age.saturating_sub(oldest(targets)), s, control);
            let is_too_soon = oldest(targets) < age.min(enough);
            if !(control.has_arrivals() && is_too_soon) || over_looking(targets, s, control) {
                break;
            }
        }
        for_live(targets, |target| target.look(s.policy));
        control.progress(Doing::Looking { age: oldest(targets) }, targets);
        if ended(targets) == ended_before || oldest(targets) >= age || over_looking(targets, s, control) {
            return;
        }
    }
}

/// A stop or the end of the run cuts scanning short; having settled does not.
fn over_looking(targets: &[Target], s: Settings, control: &dyn Control) -> bool {
    let timed = matches!(s.until, Until::For(end) if control.now() >= end);
    timed || control.stop() || targets.iter().all(|target| target.phase == Phase::Ended)
}

/// Twice the last age. Where scanning or promoting took longer than that, the scan is due at once, in place of the
/// missed one.
fn next_due(last: Option<Duration>, targets: &[Target]) -> Duration {
    let mut due = estimate::next_scan(last);
    while due < estimate::LAST_SCAN && estimate::next_scan(Some(due)) <= oldest(targets) {
        due = estimate::next_scan(Some(due));
    }
    due
}

/// After a long series of promotions the next scan need not wait for twice the last age when it only has to confirm
/// that no window was missed: a quarter more shows whether a sweep goes on.
fn look_soon(last: Duration, targets: &[Target]) -> Duration {
    oldest(targets).max(last * 5 / 4)
}

fn oldest(targets: &[Target]) -> Duration {
    let live = targets.iter().filter(|target| target.phase != Phase::Ended);
    live.map(|target| target.source().age()).max().unwrap_or_default()
}

/// Counts that tell whether a longer observation could change a verdict.
fn growth(targets: &[Target]) -> Growth {
    let mut growth = Growth::default();
    for target in targets {
        let verdicts = target.plan.verdicts;
        growth.seen += verdicts.seen;
        growth.wanted += target.promoted_now() + target.plan.promote.len() as u64 + verdicts.over_budget;
        growth.undecided += verdicts.compact;
        growth.undecided_pages += verdicts.compact_pages;
    }
    growth
}

/// Promotes windows that need not wait for the end of the round, until the scan after the one at the age of `last` is
/// due. True if there were any.
fn promote_at_once(
    targets: &mut [Target],
    s: Settings,
    control: &mut dyn Control,
    last: Duration,
    pace: &mut RateLimiter,
) -> bool {
    let plans = live_plans(targets, Target::plan_at_once);
    promote_planned(targets, &plans, pace, s, control, Some(estimate::next_scan(Some(last))));
    plans.iter().any(|plan| !plan.promote.is_empty())
}

/// Carries out the plans; a refused window leaves its part of the budget to the next in line.
fn promote(targets: &mut [Target], s: Settings, control: &mut dyn Control, pace: &mut RateLimiter) {
    let refusals = |targets: &[Target]| targets.iter().map(|target| target.refusals).sum::<u64>();
    loop {
        let before = refusals(targets);
        let plans = live_plans(targets, |target| target.plan.clone());
        promote_planned(targets, &plans, pace, s, control, None);
        if refusals(targets) == before || over_looking(targets, s, control) {
            return;
        }
        for_live(targets, |target| target.plan_again(s.policy));
    }
}

/// Last step of a dry run: checks the plans for obstacles, and plans again with the budget that those leave.
fn foresee(targets: &mut [Target], s: Settings, control: &mut dyn Control) {
    for index in 0..targets.len() {
        let mut foreseen = BTreeSet::new();
        loop {
            let plan = live_plans(targets, |target| target.plan.clone()).swap_remove(index);
            let new: Vec<_> = plan.promote.iter().filter(|promotion| foreseen.insert(promotion.window)).collect();
            if new.is_empty() {
                break;
            }
            for promotion in new {
                if over_looking(targets, s, control) {
                    return;
                }
                for_live(&mut targets[index..=index], |target| target.foresee(promotion));
            }
            for_live(&mut targets[index..=index], |target| target.plan_again(s.policy));
        }
    }
}

fn live_plans(targets: &mut [Target], mut plan: impl FnMut(&mut Target) -> Plan) -> Vec<Plan> {
    let live = |target: &Target| target.phase != Phase::Ended;
    targets.iter_mut().map(|target| if live(target) { plan(target) } else { Plan::default() }).collect()
}

/// Promotes window after window, until all are done or the observation has reached the age `until`, and the next scan
/// is due.
fn promote_planned(
    targets: &mut [Target],
    plans: &[Plan],
    pace: &mut RateLimiter,
    s: Settings,
    control: &mut dyn Control,
    until: Option<Duration>,
) {
    let turns = policy::share_turns(plans);
    let planned = turns.len() as u64;
    let mut rest = Duration::ZERO;
    for (done, (index, promotion)) in (1..).zip(turns) {
        if targets[index].phase == Phase::Ended {
            continue;
        }
        let begun = control.now();
        targets[index].make_ready();
        let ready = control.now().saturating_sub(begun);
        pause(rest.saturating_sub(ready), s, control);
        if over_looking(targets, s, control) || until.is_some_and(|age| oldest(targets) >= age) {
            rest = Duration::ZERO;
            break;
        }
        let begun = control.now();
        control.in_haste(true);
        one(&mut targets[index], |target| target.promote(&promotion, until.is_some(), s.policy));
        control.in_haste(false);
        let took = control.now().saturating_sub(begun);
        // Compaction affects all programs with memory, whichever asks for it.
        let felt = if ready > s.pace.compacting_window { ready.max(took) } else { took };
        rest = pace.pause_after(felt, s.pace);
        control.progress(Doing::Promoting { done, planned }, targets);
    }
    targets.iter().for_each(Target::rest);
    pause(rest, s, control);
}

/// Demotes windows found idle twice, and probes windows found idle once. No program waits for these windows, so their
/// pace is the plain one.
fn give_back(targets: &mut [Target], s: Settings, control: &mut dyn Control) {
    let mut pace = RateLimiter::default();
    for index in 0..targets.len() {
        let mut plan = policy::Plan::default();
        for_live(&mut targets[index..=index], |target| {
            plan = target.plan_giving_back(s.policy)?;
            Ok(())
        });
        let demote = plan.demote.iter().map(|window| (true, *window));
        for (is_demotion, window) in demote.chain(plan.probe.iter().map(|window| (false, *window))) {
            if over_looking(targets, s, control) {
                return;
            }
            let start = control.now();
            let work = |target: &mut Target| if is_demotion { target.demote(window) } else { target.probe(window) };
            control.in_haste(true);
            for_live(&mut targets[index..=index], work);
            control.in_haste(false);
            pause(pace.pause_after(control.now().saturating_sub(start), s.pace), s, control);
        }
    }
}

/// Calls `work` with every program that has not ended. One that ends meanwhile, or that cannot be worked on any more
/// (a privilege lost at exec), is left out from then on; the others go on.
fn for_live(targets: &mut [Target], mut work: impl FnMut(&mut Target) -> Result<(), Error>) {
    for target in targets.iter_mut().filter(|target| target.phase != Phase::Ended) {
        one(target, &mut work);
    }
}

fn one(target: &mut Target, work: impl FnOnce(&mut Target) -> Result<(), Error>) {
    if let Err(error) = work(target) {
        target.phase = Phase::Ended;
        target.failure = Some(error).filter(|error| !error.is_gone());
    }
}
