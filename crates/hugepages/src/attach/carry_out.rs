//! Carries out the plans of all programs: promotes at a limited rate, then probes and splits idle windows.

use std::collections::BTreeSet;
use std::time::Duration;

use access::estimate;

use super::{Doing, Loop, Until};
use crate::policy::{self, Plan};
use crate::rate_limiter::RateLimiter;
use crate::target::{Missing, Phase, Target};

/// Time in each round for windows that never were huge and are shared with a forked child.
const WAIT_IN_A_ROUND: Duration = Duration::from_secs(2);
/// Longest last wait for windows that never were huge, and for those that a fork split.
const WAIT_FOR_THE_FIRST_TIME: Duration = Duration::from_secs(20);
const WAIT_FOR_A_PAUSE: Duration = Duration::from_secs(5);
/// Further time for a pause between two children, so that the run does not end with all windows split by a fork.
const WAIT_FOR_THE_END: Duration = Duration::from_secs(10);
/// Windows promoted in the last pause: the run ends before the next fork.
const PROMOTED_AT_THE_END: usize = 16;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Longest time of promotions while a program waits to be taken in; the rest is for the next round.
const BESIDE_ARRIVALS: Duration = Duration::from_secs(2);

/// Windows of all programs that wait for a huge page.
#[derive(Debug, Default)]
struct AllMissing {
    /// Windows that never were huge.
    never: u64,
    /// Windows that were, before a fork split them.
    torn: u64,
    /// A plan for each program: the windows that can be promoted now.
    plans: Vec<Plan>,
}

impl Loop<'_> {
    /// Promotes windows that need not wait for the end of the round, until the scan after the one at the age of `last`
    /// is due. True if there were any.
    pub(super) fn promote_at_once(&mut self, last: Duration) -> bool {
        let plans = self.plans(Target::plan_at_once);
        self.promote_planned(&plans, Some(estimate::next_scan(Some(last))));
        plans.iter().any(|plan| !plan.promote.is_empty())
    }

    /// Carries out the plans; a refused window leaves its part of the budget to the next in line.
    pub(super) fn promote(&mut self) {
        let refused = |targets: &[Target]| targets.iter().map(|target| target.totals.refused).sum::<u64>();
        loop {
            let before = refused(self.targets);
            let plans = self.plans(|target| target.plan().clone());
            self.promote_planned(&plans, None);
            if refused(self.targets) == before || self.is_cut_short() {
                return;
            }
            self.for_each(Target::plan_again);
        }
    }

    /// Last step of a round that does not end the run: first promotions in the pauses between the children of a program.
    /// In a run until settled also those of windows with other reasons that pass; else these keep their distances.
    pub(super) fn serve_pauses(&mut self) {
        let end = self.control.now() + WAIT_IN_A_ROUND;
        let until_settled = self.s.until == Until::Settled;
        for look in 1_u32.. {
            if self.control.has_arrivals() || !(until_settled || self.targets.iter().any(Target::has_shared)) {
                return;
            }
            let at = self.control.now();
            let mut missing = self.missing(until_settled && look.is_power_of_two());
            let cost = self.control.now().saturating_sub(at);
            if missing.never == 0 || self.is_cut_short() {
                return;
            }
            for (plan, target) in missing.plans.iter_mut().zip(self.targets.iter()) {
                plan.promote.retain(|promotion| !target.was_served(promotion.window));
            }
            self.promote_planned(&missing.plans, None);
            if self.control.now() >= end {
                return;
            }
            self.pause(LOOK_AGAIN_AFTER.max(cost * 20)); // looks take a twentieth of the time at most
        }
    }

    /// Last step of a run until settled: promotes windows whose reason passes (a forked child ends), in the pauses
    /// between the children of a program that forks again and again. Looks often, for a limited time, and ends in a
    /// pause if there is one.
    pub(super) fn serve_waiting(&mut self) {
        let begun = self.control.now();
        let mut was_shared = false;
        for look in 0_u32.. {
            let at = self.control.now();
            let mut missing = self.missing(look.is_power_of_two());
            let cost = self.control.now().saturating_sub(at);
            let wait = if missing.never > 0 { WAIT_FOR_THE_FIRST_TIME } else { WAIT_FOR_A_PAUSE };
            if self.is_cut_short() || missing.never + missing.torn == 0 {
                return;
            }
            let is_pause = missing.plans.iter().any(|plan| !plan.promote.is_empty());
            let spent = at.saturating_sub(begun);
            let is_last = spent >= wait + WAIT_FOR_THE_END || (spent >= wait && was_shared && is_pause);
            if is_last {
                missing.plans.iter_mut().for_each(|plan| plan.promote.truncate(PROMOTED_AT_THE_END));
            }
            self.promote_planned(&missing.plans, None);
            if is_last {
                return;
            }
            was_shared = !is_pause;
            self.pause(LOOK_AGAIN_AFTER.max(cost * 20)); // looks take a twentieth of the time at most
        }
    }

    /// Windows of all programs that deserve a huge page and have none for a reason that may pass.
    fn missing(&mut self, all: bool) -> AllMissing {
        let mut sum = AllMissing::default();
        for index in 0..self.targets.len() {
            let mut missing = Missing::default();
            self.with(index, |target| {
                missing = target.missing(all)?;
                Ok(())
            });
            (sum.never, sum.torn) = (sum.never + missing.never, sum.torn + missing.torn);
            sum.plans.push(missing.plan);
        }
        sum
    }

    /// Last step of a dry run: checks the plans for obstacles, and plans again with the budget that those leave.
    pub(super) fn foresee(&mut self) {
        for index in 0..self.targets.len() {
            let mut foreseen = BTreeSet::new();
            while self.targets[index].phase != Phase::Ended {
                let mut new = self.targets[index].plan().promote.clone();
                new.retain(|promotion| foreseen.insert(promotion.window));
                if new.is_empty() {
                    break;
                }
                for promotion in new {
                    if self.is_cut_short() {
                        return;
                    }
                    self.with(index, |target| target.foresee(&promotion));
                }
                self.with(index, Target::plan_again);
            }
        }
    }

    /// A plan for each program, empty for one that ended or cannot run.
    fn plans(&mut self, mut plan: impl FnMut(&mut Target) -> Plan) -> Vec<Plan> {
        let is_live = |target: &Target| target.phase != Phase::Ended && target.halted().is_none();
        self.targets.iter_mut().map(|target| if is_live(target) { plan(target) } else { Plan::default() }).collect()
    }

    /// Promotes window after window, until all are done or the observation has reached the age `until`, and the next
    /// scan is due.
    fn promote_planned(&mut self, plans: &[Plan], until: Option<Duration>) {
        let mut turns = policy::share_turns(plans);
        // A window that a fork has split may soon be split again.
        turns.sort_by_key(|(index, promotion)| self.targets[*index].was_served(promotion.window));
        let planned = turns.len() as u64;
        let started = self.control.now();
        let mut rest = Duration::ZERO;
        for (done, (index, promotion)) in (1..).zip(turns) {
            if self.targets[index].phase == Phase::Ended {
                continue;
            }
            let begun = self.control.now();
            self.targets[index].preallocate();
            let preallocated = self.control.now().saturating_sub(begun);
            self.pause(rest.saturating_sub(preallocated));
            let is_awaited = self.control.has_arrivals() && begun.saturating_sub(started) >= BESIDE_ARRIVALS;
            if is_awaited || self.is_cut_short() || until.is_some_and(|age| self.oldest() >= age) {
                rest = Duration::ZERO;
                break;
            }
            let took = self.urgently(index, |target| target.promote(&promotion, until.is_some()));
            // Compaction affects all programs with memory, whichever asks for it.
            let felt = if preallocated > self.s.rate.compacting_window { preallocated.max(took) } else { took };
            rest = self.limiter.pause_after(felt, self.s.rate);
            self.control.progress(Doing::Promoting { done, planned }, self.targets);
        }
        self.targets.iter().for_each(Target::free_preallocated);
        self.pause(rest);
    }

    /// Demotes windows found idle twice, and probes windows found idle once. No program waits for these windows, so
    /// their rate does not depend on the promotions before.
    pub(super) fn split_idle(&mut self) {
        let mut limiter = RateLimiter::default();
        for index in 0..self.targets.len() {
            // Beside programs that come, rounds are short: memory with rare use would look idle.
            let enough = estimate::LAST_SCAN.min(self.s.rate.watch_every.0);
            let is_short = self.targets[index].phase == Phase::Settled && self.oldest() < enough;
            let mut plan = Plan::default();
            if !is_short {
                self.with(index, |target| {
                    plan = target.plan_splits()?;
                    Ok(())
                });
            }
            let demote = plan.demote.iter().map(|window| (true, *window));
            for (is_demotion, window) in demote.chain(plan.probe.iter().map(|window| (false, *window))) {
                if self.is_cut_short() {
                    return;
                }
                let work = |target: &mut Target| if is_demotion { target.demote(window) } else { target.probe(window) };
                let took = self.urgently(index, work);
                self.pause(limiter.pause_after(took, self.s.rate));
            }
            self.split_torn(index);
        }
    }

    /// Splits what the program tore or moved itself. It waits for none of these windows.
    fn split_torn(&mut self, index: usize) {
        self.with(index, |target| target.split_moved(false));
        let mut windows = Vec::new();
        self.with(index, |target| {
            windows = target.maybe_torn();
            Ok(())
        });
        for window in windows {
            if self.is_cut_short() {
                return;
            }
            self.with(index, |target| target.split_torn(window));
        }
    }

    /// Makes a call that may make a program wait. Returns its duration.
    fn urgently(&mut self, index: usize, work: impl FnOnce(&mut Target) -> Result<(), linux::Error>) -> Duration {
        let begun = self.control.now();
        self.control.set_urgent(true);
        self.with(index, work);
        self.control.set_urgent(false);
        self.control.now().saturating_sub(begun)
    }
}
