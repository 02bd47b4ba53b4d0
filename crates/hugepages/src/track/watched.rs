//! One tracked program: its rounds, its list, and the pending actions on its windows.
//!
//! Each call does one step, none of which takes longer than one scan or one promotion; [`Watched::due`] is the time
//! of the next one. So one thread serves all programs, and none waits for another's round.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use contract::track::terms::Terms;
use contract::track::wire::Totals;
use linux::Error;
use units::{Fraction, NonZeroFraction, Rate, Window};

use super::admission::Account;
use super::list::List;
use super::notice::Notice;
use super::schedule;
use super::share::{Candidate, Owner};
use crate::policy::{self, Promotion, Wish};
use crate::rate_limiter::RateLimiter;
use crate::target::{Phase, Target};

/// Action on a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// Make it huge; before that, at a limit, split another program's window.
    Promote(Promotion, Option<(Owner, Window)>),
    /// Give it back.
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
    Looking { last: Option<Duration>, length: Duration, listed: bool },
    /// Waiting for the program's verdicts.
    Deciding,
    /// Carrying out the decisions.
    Acting { queue: VecDeque<Act>, giving_back: bool },
}

/// Result of a step, for the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Came {
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
    /// Signals sent to it.
    pub signals: u64,
    terms: Terms,
    policy: policy::Settings,
    list: Option<List>,
    stage: Stage,
    pace: RateLimiter,
    began: Duration,
    spent_before: Duration,
    /// Cost of the last round up to its last scan.
    spent_looking: Duration,
    debt: schedule::Debt,
    /// End of the last round.
    ended: Duration,
    /// The last round was long enough to find idle windows; the time of the next such one.
    was_long: bool,
    long_again: Duration,
    rounds: u64,
}

/// Longest wait for a deciding program; four periods if that is longer.
const PATIENCE: Duration = Duration::from_secs(5);

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
            signals: 0,
            terms,
            policy: policy::PAPER,
            list: None,
            stage: Stage::Begin,
            pace: RateLimiter::default(),
            began: now,
            spent_before: Duration::ZERO,
            spent_looking: Duration::ZERO,
            debt: schedule::Debt::default(),
            ended: now,
            was_long: false,
            long_again: now,
            rounds: 0,
        };
        watched.change(terms);
        watched
    }

    /// Replaces the session parameters from now on. The round goes on, so frequent changes do not cause more scans.
    pub fn change(&mut self, terms: Terms) {
        self.terms = terms;
        self.policy = policy::Settings {
            hot_fraction: NonZeroFraction::new(terms.hot_fraction).unwrap_or(policy::PAPER.hot_fraction),
            hot_rate: Rate::per_second(terms.hot_rate),
            max_extra_rss: Fraction::clamped(terms.max_extra_rss),
            settle_noise: Fraction::clamped(0.005),
            ..policy::PAPER
        };
        self.target.set_wishes(terms.decides.then(BTreeMap::new));
    }

    /// Session parameters.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Policy settings for its windows.
    pub fn policy(&self) -> policy::Settings {
        self.policy
    }

    /// Totals so far.
    pub fn totals(&self) -> Totals {
        Totals {
            rounds: self.rounds,
            signals: self.signals,
            promoted: self.target.promoted,
            demoted: self.target.demoted,
            refused: self.target.refusals,
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
    pub fn decided(&mut self, wishes: BTreeMap<Window, Wish>, now: Duration) {
        if !self.terms.decides {
            return;
        }
        self.target.set_wishes(Some(wishes));
        match self.stage {
            Stage::Deciding => self.due = now,
            // A longer round is cut short, if it was long enough to find idle windows.
            Stage::Looking { listed: true, .. } if self.target.source().age() >= schedule::LONG => {
                self.rounds += 1;
                (self.stage, self.was_long, self.due) = (Stage::Deciding, true, now);
            }
            _ => {}
        }
    }

    /// Does the due step.
    ///
    /// # Errors
    /// `Gone` when the program ended.
    pub fn step(&mut self, now: Duration, s: schedule::Settings) -> Result<Came, Error> {
        match &mut self.stage {
            Stage::Begin => {
                self.begin(now, s)?;
                Ok(Came::Nothing)
            }
            Stage::Looking { last, length, listed } => {
                let (last, length, listed) = (*last, *length, *listed);
                self.look(now, last, length, listed)
            }
            Stage::Deciding => self.plan(),
            Stage::Acting { queue, .. } => match queue.pop_front() {
                Some(act) => Ok(Came::ToDo(act)),
                None => self.end_acting(now, s),
            },
        }
    }

    fn begin(&mut self, now: Duration, s: schedule::Settings) -> Result<(), Error> {
        self.target.begin_round()?;
        (self.began, self.spent_before) = (now, self.spent);
        let settled = self.target.phase == Phase::Settled;
        self.target.leave_others(self.arena > 0);
        let is_long_due = now >= self.long_again && self.target.may_give_back();
        let length = schedule::length(self.terms, settled, self.spent_looking, is_long_due, s);
        self.next_look(now, None, length, false);
        Ok(())
    }

    /// Sets the time of the next scan; at once where scanning took longer than that.
    fn next_look(&mut self, now: Duration, last: Option<Duration>, length: Duration, listed: bool) {
        self.stage = Stage::Looking { last, length, listed };
        let age = schedule::next_look(last, schedule::period(self.terms), length).unwrap_or(length);
        self.due = now + age.saturating_sub(self.target.source().age());
    }

    fn look(&mut self, now: Duration, last: Option<Duration>, length: Duration, listed: bool) -> Result<Came, Error> {
        self.target.look(self.policy)?;
        let period = schedule::period(self.terms);
        let due = schedule::next_look(last, period, length).unwrap_or(length);
        let listed = listed || due >= period && self.list_what_was_seen();
        if due < length {
            // Scans that are already too late are skipped, except those at the ends.
            let (age, end) = (self.target.source().age(), if due < period { period } else { length });
            let mut seen = due;
            while let Some(next) = schedule::next_look(Some(seen), period, length).filter(|next| *next < age.min(end)) {
                seen = next;
            }
            self.next_look(now, Some(seen), length, listed);
            return Ok(Came::Nothing);
        }
        self.rounds += 1;
        self.was_long = length >= schedule::LONG;
        self.stage = Stage::Deciding;
        let is_asked = self.terms.decides && self.list.is_some();
        self.due = if is_asked { now + PATIENCE.max(period * 4) } else { now };
        Ok(Came::Nothing)
    }

    /// Prepares a list if it has as many pages as the program asked for. Always returns true: done.
    fn list_what_was_seen(&mut self) -> bool {
        let list = List::of(self.target.source().map(), self.target.windows(), self.policy);
        let ready = self.notice.after_round(list.pages.len() as u64, self.terms.threshold_pages);
        self.list = ready.then_some(list);
        true
    }

    /// Windows to promote, by the program's preference or by the rule.
    fn plan(&mut self) -> Result<Came, Error> {
        self.spent_looking = self.spent.saturating_sub(self.spent_before);
        self.target.plan_again(self.policy)?;
        self.stage = Stage::Acting { queue: VecDeque::new(), giving_back: false };
        Ok(Came::ToShare(self.target.plan.promote.clone()))
    }

    /// Takes the part of the plan that is to be carried out now.
    pub fn act_on(&mut self, promotions: impl IntoIterator<Item = (Promotion, Option<(Owner, Window)>)>) {
        let queue = promotions.into_iter().map(|(promotion, instead)| Act::Promote(promotion, instead)).collect();
        self.stage = Stage::Acting { queue, giving_back: false };
    }

    /// Carries out an action on one of its windows.
    ///
    /// # Errors
    /// `Gone` when the program ended.
    pub fn carry_out(&mut self, act: Act) -> Result<(), Error> {
        match act {
            Act::Promote(promotion, _) => self.target.promote(&promotion, false, self.policy),
            Act::Demote(window) => self.target.demote(window),
            Act::Probe(window) => self.target.probe(window),
        }
    }

    /// Prepares the next promotion, if there is one, during the pause.
    pub fn make_ready(&self) {
        match &self.stage {
            Stage::Acting { queue, .. } if matches!(queue.front(), Some(Act::Promote(..))) => self.target.make_ready(),
            _ => self.target.rest(),
        }
    }

    /// Pause after an action that took `took`.
    pub fn pause(&mut self, now: Duration, took: Duration, s: schedule::Settings) {
        self.due = now + self.pace.pause_after(took, s.pace);
    }

    fn end_acting(&mut self, now: Duration, s: schedule::Settings) -> Result<Came, Error> {
        self.target.rest();
        if let Stage::Acting { queue, giving_back: giving_back @ false } = &mut self.stage {
            *giving_back = true;
            // A shorter round does not find idle windows.
            if self.was_long {
                self.long_again = now + schedule::LONG_EVERY;
                let plan = self.target.plan_giving_back(self.policy)?;
                queue.extend(plan.demote.into_iter().map(Act::Demote));
                queue.extend(plan.probe.into_iter().map(Act::Probe));
            }
            return Ok(Came::Nothing);
        }
        // The program's preferences were for this round's list. By the next round the window may hold other data.
        if self.terms.decides {
            self.target.set_wishes(Some(BTreeMap::new()));
        }
        let settled = self.target.settle(self.policy);
        self.target.phase = if settled { Phase::Settled } else { Phase::Watching };
        if settled {
            self.target.settled_at.get_or_insert(now);
        }
        let took = now.saturating_sub(self.began);
        let spent = self.spent.saturating_sub(self.spent_before);
        let passed = now.saturating_sub(std::mem::replace(&mut self.ended, now));
        let owed = self.debt.rest(spent, passed, self.target.source().map().present(), s);
        self.stage = Stage::Begin;
        self.due = now + schedule::rest(self.terms, took, self.spent_looking, s).max(owed);
        Ok(Came::Rested)
    }
}

/// A promotion as a candidate for the sharing.
pub fn candidate(promotion: &Promotion, owner: Owner) -> Candidate {
    Candidate { owner, window: promotion.window, walks: promotion.walks }
}
