//! The loop: observe, decide, act, measure again, until nothing changes; then watch at a slow pace.
//!
//! A round is one clear and looks at doubling ages. It ends when twice the time has shown no new hot window, after 10 s at
//! the latest; then the plans of all programs are carried out in the order of `policy::share_turns`, each call followed
//! by the pause that `pace` asks for. Waiting, stopping and telling about progress are the caller's, through [`Control`].

use std::time::Duration;

use access::estimate;
use linux::Error;

use crate::pace::{self, Pace};
use crate::policy;
use crate::target::{Phase, Target};

/// What the loop needs from whoever runs it.
pub trait Control {
    /// Time since the start.
    fn now(&self) -> Duration;

    /// Waits so long; returns early when asked to stop or when a program ends.
    fn wait(&mut self, time: Duration);

    /// True once asked to stop (Ctrl-C, SIGTERM).
    fn stop(&self) -> bool;

    /// Processor time of this process so far.
    fn cpu_time(&self) -> Duration;

    /// Told before the first and after the last of a row of calls for which the program may have to wait.
    fn in_haste(&mut self, haste: bool);

    /// Called after every look and, while acting, after every window.
    fn progress(&mut self, doing: Doing, targets: &[Target]);
}

/// What the loop is doing, for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Looking; this old is the observation.
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
    /// Waiting for the next look at settled programs.
    Watching,
}

/// When to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When every program has settled.
    Settled,
    /// After so long.
    For(Duration),
    /// When stopped, or when all programs ended.
    Stopped,
}

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// What becomes of a window.
    pub policy: policy::Settings,
    /// How fast.
    pub pace: pace::Settings,
    /// When to end.
    pub until: Until,
    /// Plan, and touch nothing.
    pub dry_run: bool,
    /// The shortest observation of the first round, and of the rounds that confirm it.
    pub round_min: (Duration, Duration),
}

/// What the figures under `bench/` were measured with.
pub const ROUND_MIN: (Duration, Duration) = (Duration::from_millis(1280), Duration::from_millis(640));

/// Works on `targets` until the end that `s` names. A program that ends on the way is left out from then on.
///
/// # Errors
/// What is not a program's end: a privilege lost, a file that makes no sense.
pub fn attach(targets: &mut [Target], s: Settings, control: &mut dyn Control) -> Result<(), Error> {
    let mut watch = Duration::ZERO;
    loop {
        let cpu_before = control.cpu_time();
        round(targets, s, control, watch)?;
        if over(targets, s, control) || (s.dry_run && !matches!(s.until, Until::For(_))) {
            return Ok(());
        }
        let settled = targets.iter().all(|target| target.phase != Phase::Watching);
        let spent = control.cpu_time().saturating_sub(cpu_before);
        watch = if settled { pace::watch_again_after(spent, s.pace) } else { Duration::ZERO };
    }
}

fn over(targets: &[Target], s: Settings, control: &dyn Control) -> bool {
    let done = match s.until {
        Until::Settled => targets.iter().all(|target| target.phase != Phase::Watching),
        Until::For(time) => control.now() >= time,
        Until::Stopped => false,
    };
    done || control.stop() || targets.iter().all(|target| target.phase == Phase::Ended)
}

/// Waits, but not beyond the end of the run.
fn pause(time: Duration, s: Settings, control: &mut dyn Control) {
    let left = match s.until {
        Until::For(end) => end.saturating_sub(control.now()),
        Until::Settled | Until::Stopped => time,
    };
    control.wait(time.min(left));
}

/// One round. A settled program is watched for the whole time to the next one, `watch`, so that what is used now and then
/// is not taken for idle.
fn round(targets: &mut [Target], s: Settings, control: &mut dyn Control, watch: Duration) -> Result<(), Error> {
    for_live(targets, Target::begin_round)?;
    let open = targets.iter().any(|target| target.promoted == 0 || target.under_suspicion() > 0);
    let shortest = if open { s.round_min.0 } else { s.round_min.1 };
    let mut due = None;
    let mut wanted_before = None;
    loop {
        let next = next_due(due, targets);
        pause(next.saturating_sub(oldest(targets)), s, control);
        look(targets, s, control)?;
        let wanted: u64 = targets.iter().map(wanted).sum();
        let steady = wanted_before == Some(wanted);
        if (next >= shortest && steady) || next >= estimate::LAST_LOOK || over_looking(targets, s, control) {
            break;
        }
        (due, wanted_before) = (Some(next), Some(wanted));
    }
    let left = watch.saturating_sub(oldest(targets));
    if !left.is_zero() && !over_looking(targets, s, control) {
        control.progress(Doing::Watching, targets);
        pause(left, s, control);
        look(targets, s, control)?;
    }
    if control.stop() {
        return Ok(());
    }
    if !s.dry_run {
        control.in_haste(true);
        let acted = promote(targets, s, control).and_then(|()| give_back(targets, s, control));
        control.in_haste(false);
        acted?;
    }
    let now = control.now();
    for_live(targets, |target| {
        let settled = target.settle(s.policy);
        target.phase = if settled { Phase::Settled } else { Phase::Watching };
        if settled {
            target.settled_at.get_or_insert(now);
        }
        Ok(())
    })
}

fn look(targets: &mut [Target], s: Settings, control: &mut dyn Control) -> Result<(), Error> {
    for_live(targets, |target| target.look(s.policy))?;
    control.progress(Doing::Looking { age: oldest(targets) }, targets);
    Ok(())
}

/// Looking is cut short by a stop or the end of the run, not by having settled.
fn over_looking(targets: &[Target], s: Settings, control: &dyn Control) -> bool {
    let timed = matches!(s.until, Until::For(end) if control.now() >= end);
    timed || control.stop() || targets.iter().all(|target| target.phase == Phase::Ended)
}

/// Twice the last age, and once more for as long as looking itself has taken that long already.
fn next_due(last: Option<Duration>, targets: &[Target]) -> Duration {
    let mut due = estimate::next_look(last);
    while due < oldest(targets) && due < estimate::LAST_LOOK {
        due = estimate::next_look(Some(due));
    }
    due
}

fn oldest(targets: &[Target]) -> Duration {
    let live = targets.iter().filter(|target| target.phase != Phase::Ended);
    live.map(|target| target.source().age()).max().unwrap_or_default()
}

/// Windows that are huge by us or deserve to be: when this stands still, twice the time has shown nothing new.
fn wanted(target: &Target) -> u64 {
    target.promoted_now() + target.plan.promote.len() as u64 + target.plan.verdicts.over_budget
}

/// Carries out the plans; what was refused leaves its part of the budget to the next in line.
fn promote(targets: &mut [Target], s: Settings, control: &mut dyn Control) -> Result<(), Error> {
    let refusals = |targets: &[Target]| targets.iter().map(|target| target.refusals).sum::<u64>();
    loop {
        let before = refusals(targets);
        promote_planned(targets, s, control)?;
        if refusals(targets) == before || over_looking(targets, s, control) {
            return Ok(());
        }
        for_live(targets, |target| target.plan_again(s.policy))?;
    }
}

fn promote_planned(targets: &mut [Target], s: Settings, control: &mut dyn Control) -> Result<(), Error> {
    let live = |target: &Target| target.phase != Phase::Ended;
    let plans: Vec<policy::Plan> =
        targets.iter().map(|target| if live(target) { target.plan.clone() } else { policy::Plan::default() }).collect();
    let turns = policy::share_turns(&plans);
    let planned = turns.len() as u64;
    let mut pace = Pace::default();
    for (done, (index, promotion)) in (1..).zip(turns) {
        if over_looking(targets, s, control) {
            break;
        }
        let start = control.now();
        let target = &mut targets[index];
        if live(target) {
            one(target, |target| target.promote(&promotion, s.policy))?;
        }
        let took = control.now().saturating_sub(start);
        control.progress(Doing::Promoting { done, planned }, targets);
        pause(pace.pause_after(took, s.pace), s, control);
    }
    Ok(())
}

/// Demotes what was found idle twice, and probes what was found idle. Nobody waits for such windows, so their pace is the
/// plain one.
fn give_back(targets: &mut [Target], s: Settings, control: &mut dyn Control) -> Result<(), Error> {
    let mut pace = Pace::default();
    for index in 0..targets.len() {
        let mut plan = policy::Plan::default();
        for_live(&mut targets[index..=index], |target| {
            plan = target.plan_giving_back(s.policy)?;
            Ok(())
        })?;
        let demote = plan.demote.iter().map(|window| (true, *window));
        for (is_demotion, window) in demote.chain(plan.probe.iter().map(|window| (false, *window))) {
            if over_looking(targets, s, control) {
                return Ok(());
            }
            let start = control.now();
            let work = |target: &mut Target| if is_demotion { target.demote(window) } else { target.probe(window) };
            for_live(&mut targets[index..=index], work)?;
            pause(pace.pause_after(control.now().saturating_sub(start), s.pace), s, control);
        }
    }
    Ok(())
}

/// Does something with every program that has not ended; a program that ends meanwhile is marked, not an error.
fn for_live(targets: &mut [Target], mut work: impl FnMut(&mut Target) -> Result<(), Error>) -> Result<(), Error> {
    for target in targets.iter_mut().filter(|target| target.phase != Phase::Ended) {
        one(target, &mut work)?;
    }
    Ok(())
}

fn one(target: &mut Target, work: impl FnOnce(&mut Target) -> Result<(), Error>) -> Result<(), Error> {
    match work(target) {
        Err(error) if error.is_gone() => {
            target.phase = Phase::Ended;
            Ok(())
        }
        other => other,
    }
}
