//! One tracked program: its rounds, its list, and the pending actions on its windows.
//!
//! Each call does one step, none of which takes longer than one scan or one promotion; [`Watched::due`] is the time
//! of the next one. So one thread serves all programs, and none waits for another's round.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use contract::track::terms::Terms;
use contract::track::wire::Totals;
use linux::Error;
use units::{Bytes, Fraction, NonZeroFraction, Rate, Window};

use super::admission::Account;
use super::list::List;
use super::notice::Notice;
use super::schedule;
use super::share::{Candidate, Owner};
use crate::policy::{self, Preference, Promotion};
use crate::rate_limiter::RateLimiter;
use crate::target::{Phase, Target};

/// Action on a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// Make it huge; before that, at a limit, split another program's window.
    Promote(Promotion, Option<(Owner, Window)>),
    /// Split it.
    Demote(Window),
    /// Clear its accessed bit with a flush.
    Probe(Window),
}

/// Stage of a program's round.
#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// Start of a round.
    Begin,
    /// Scanning.
    Scanning { last: Option<Duration>, length: Duration, listed: bool },
    /// Waiting for the program's verdicts.
    Deciding,
    /// Carrying out the decisions.
    Acting { queue: VecDeque<Act>, splitting: bool },
}

/// Result of a step, for the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Nothing to report.
    Nothing,
    /// Promotions to be shared out with other programs; the loop answers with [`Watched::act_on`].
    ToShare(Vec<Promotion>),
    /// Action to be done now.
    ToDo(Act),
    /// End of the round.
    Rested,
}

/// A program under watch.
pub struct Watched {
    /// The program and its state.
    pub target: Target,
    /// Its user.
    pub user: u32,
    /// Account that it counts against.
    pub account: Account,
    /// Time of the next step.
    pub due: Duration,
    /// Processor time spent on it.
    pub spent: Duration,
    /// Windows of its arenas.
    pub arena: u64,
    /// Notification state.
    pub notice: Notice,
    terms: Terms,
    list: Option<List>,
    stage: Stage,
    limiter: RateLimiter,
    rounds: Rounds,
}

/// Times and costs of a program's rounds.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    number: u64,
    began: Duration,
    /// Processor time spent on the program before this round.
    spent_before: Duration,
    /// Cost of the last round up to its last scan.
    spent_scanning: Duration,
    /// The last round was long enough to find idle windows.
    was_long: bool,
    /// Time of the next such round.
    long_again: Duration,
    /// End of the last round.
    ended: Duration,
    debt: schedule::Debt,
}

impl Rounds {
    fn begin(&mut self, now: Duration, spent: Duration) {
        (self.began, self.spent_before) = (now, spent);
    }

    fn end_scanning(&mut self, was_long: bool) {
        self.number += 1;
        self.was_long = was_long;
    }

    /// Ends the round. Returns the rest until the next one.
    fn end(&mut self, now: Duration, spent: Duration, memory: Bytes, terms: Terms, s: schedule::Settings) -> Duration {
        let took = now.saturating_sub(self.began);
        let passed = now.saturating_sub(std::mem::replace(&mut self.ended, now));
        let owed = self.debt.rest(spent.saturating_sub(self.spent_before), passed, memory, s);
        schedule::rest(terms, took, self.spent_scanning, s).max(owed)
    }
}

/// Longest wait for a deciding program; four periods if that is longer.
const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

impl Watched {
    /// Watches `target` from now on, with these session parameters.
    pub fn new(target: Target, user: u32, account: Account, terms: Terms, now: Duration) -> Watched {
        let mut watched = Watched {
            target,
            user,
            account,
            due: now,
            spent: Duration::ZERO,
            arena: 0,
            notice: Notice::default(),
            terms,
            list: None,
            stage: Stage::Begin,
            limiter: RateLimiter::default(),
            rounds: Rounds { began: now, ended: now, long_again: now, ..Rounds::default() },
        };
        watched.change(terms);
        watched
    }

    /// Replaces the session parameters from now on. The round goes on, so frequent changes do not cause more scans.
    pub fn change(&mut self, terms: Terms) {
        self.terms = terms;
        self.target.set_settings(policy::Settings {
            hot_fraction: NonZeroFraction::new(terms.hot_fraction).unwrap_or(policy::PAPER.hot_fraction),
            hot_rate: Rate::per_second(terms.hot_rate),
            max_extra_rss: Fraction::clamped(terms.max_extra_rss),
            settle_noise: Fraction::clamped(0.005),
            ..policy::PAPER
        });
        self.target.set_preferences(terms.decides.then(BTreeMap::new));
    }

    /// Session parameters.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Totals so far.
    pub fn totals(&self) -> Totals {
        Totals {
            rounds: self.rounds.number,
            signals: self.notice.signals(),
            promoted: self.target.totals.promoted,
            demoted: self.target.totals.demoted,
            refused: self.target.totals.refused,
            extra_rss_bytes: self.target.extra_rss().0,
        }
    }

    /// List of the last round, if unfetched.
    pub fn list(&self) -> Option<&List> {
        self.list.as_ref()
    }

    /// Takes the list for a fetch.
    pub fn take_list(&mut self) -> Option<List> {
        if self.notice.fetched() { self.list.take() } else { None }
    }

    /// Receives the program's preferences.
    pub fn decided(&mut self, preferences: BTreeMap<Window, Preference>, now: Duration) {
        if !self.terms.decides {
            return;
        }
        self.target.set_preferences(Some(preferences));
        match self.stage {
            Stage::Deciding => self.due = now,
            // A longer round is cut short, if it was long enough to find idle windows.
            Stage::Scanning { listed: true, .. } if self.target.source().age() >= schedule::LONG => {
                self.rounds.end_scanning(true);
                (self.stage, self.due) = (Stage::Deciding, now);
            }
            _ => {}
        }
    }

    /// Does the due step.
    ///
    /// # Errors
    /// `Gone` when the program ended.
    pub fn step(&mut self, now: Duration, s: schedule::Settings) -> Result<Outcome, Error> {
        self.target.set_now(now);
        match &mut self.stage {
            Stage::Begin => {
                self.begin(now, s)?;
                Ok(Outcome::Nothing)
            }
            Stage::Scanning { last, length, listed } => {
                let (last, length, listed) = (*last, *length, *listed);
                self.scan(now, last, length, listed)
            }
            Stage::Deciding => self.plan(),
            Stage::Acting { queue, .. } => match queue.pop_front() {
                Some(act) => Ok(Outcome::ToDo(act)),
                None => self.end_acting(now, s),
            },
        }
    }

    fn begin(&mut self, now: Duration, s: schedule::Settings) -> Result<(), Error> {
        self.target.begin_round()?;
        self.rounds.begin(now, self.spent);
        let settled = self.target.phase == Phase::Settled;
        self.target.split_own_only(self.arena > 0);
        let is_long_due = now >= self.rounds.long_again && self.target.may_be_split();
        let length = schedule::length(self.terms, settled, self.rounds.spent_scanning, is_long_due, s);
        self.set_next_scan(now, None, length, false);
        Ok(())
    }

    /// Sets the time of the next scan; at once where scanning took longer than that.
    fn set_next_scan(&mut self, now: Duration, last: Option<Duration>, length: Duration, listed: bool) {
        self.stage = Stage::Scanning { last, length, listed };
        let age = schedule::next_scan(last, schedule::period(self.terms), length).unwrap_or(length);
        self.due = now + age.saturating_sub(self.target.source().age());
    }

    fn scan(
        &mut self,
        now: Duration,
        last: Option<Duration>,
        length: Duration,
        listed: bool,
    ) -> Result<Outcome, Error> {
        self.target.scan()?;
        let period = schedule::period(self.terms);
        let due = schedule::next_scan(last, period, length).unwrap_or(length);
        let listed = listed || due >= period && self.make_list();
        if due < length {
            // Scans that are already too late are skipped, except those at the ends.
            let (age, end) = (self.target.source().age(), if due < period { period } else { length });
            let mut seen = due;
            while let Some(next) = schedule::next_scan(Some(seen), period, length).filter(|next| *next < age.min(end)) {
                seen = next;
            }
            self.set_next_scan(now, Some(seen), length, listed);
            return Ok(Outcome::Nothing);
        }
        self.rounds.end_scanning(length >= schedule::LONG);
        self.stage = Stage::Deciding;
        let is_asked = self.terms.decides && self.list.is_some();
        self.due = if is_asked { now + DECISION_TIMEOUT.max(period * 4) } else { now };
        Ok(Outcome::Nothing)
    }

    /// Prepares a list if it has as many pages as the program asked for. Always returns true: done.
    fn make_list(&mut self) -> bool {
        let list = List::of(self.target.source().map(), self.target.windows(), self.target.settings());
        let ready = self.notice.after_round(list.pages.len() as u64, self.terms.threshold_pages);
        self.list = ready.then_some(list);
        true
    }

    /// Windows to promote, by the program's preference or by the rule.
    fn plan(&mut self) -> Result<Outcome, Error> {
        self.rounds.spent_scanning = self.spent.saturating_sub(self.rounds.spent_before);
        self.target.plan_again()?;
        self.stage = Stage::Acting { queue: VecDeque::new(), splitting: false };
        let can_run = self.target.halted().is_none();
        Ok(Outcome::ToShare(if can_run { self.target.plan().promote.clone() } else { Vec::new() }))
    }

    /// Takes the part of the plan that is to be carried out now.
    pub fn act_on(&mut self, promotions: impl IntoIterator<Item = (Promotion, Option<(Owner, Window)>)>) {
        let queue = promotions.into_iter().map(|(promotion, instead)| Act::Promote(promotion, instead)).collect();
        self.stage = Stage::Acting { queue, splitting: false };
    }

    /// Carries out an action on one of its windows.
    ///
    /// # Errors
    /// `Gone` when the program ended.
    pub fn carry_out(&mut self, act: Act) -> Result<(), Error> {
        match act {
            Act::Promote(promotion, _) => self.target.promote(&promotion, false),
            Act::Demote(window) => self.target.demote(window),
            Act::Probe(window) => self.target.probe(window),
        }
    }

    /// Prepares the next promotion, if there is one, during the pause.
    pub fn preallocate(&self) {
        match &self.stage {
            Stage::Acting { queue, .. } if matches!(queue.front(), Some(Act::Promote(..))) => self.target.preallocate(),
            _ => self.target.free_preallocated(),
        }
    }

    /// Pause after an action that took `took`.
    pub fn pause(&mut self, now: Duration, took: Duration, s: schedule::Settings) {
        self.due = now + self.limiter.pause_after(took, s.rate);
    }

    fn end_acting(&mut self, now: Duration, s: schedule::Settings) -> Result<Outcome, Error> {
        self.target.free_preallocated();
        if let Stage::Acting { queue, splitting: splitting @ false } = &mut self.stage {
            *splitting = true;
            // A shorter round does not find idle windows.
            if self.rounds.was_long {
                self.rounds.long_again = now + schedule::LONG_EVERY;
                let plan = self.target.plan_splits()?;
                queue.extend(plan.demote.into_iter().map(Act::Demote));
                queue.extend(plan.probe.into_iter().map(Act::Probe));
            }
            return Ok(Outcome::Nothing);
        }
        // The program's preferences were for this round's list. By the next round the window may have other contents.
        if self.terms.decides {
            self.target.set_preferences(Some(BTreeMap::new()));
        }
        self.target.settle(now);
        let memory = self.target.source().map().present();
        let rest = self.rounds.end(now, self.spent, memory, self.terms, s);
        self.stage = Stage::Begin;
        self.due = now + rest;
        Ok(Outcome::Rested)
    }
}

/// A promotion as a candidate for the sharing.
pub fn candidate(promotion: &Promotion, owner: Owner) -> Candidate {
    Candidate { owner, window: promotion.window, walks: promotion.walks }
}
