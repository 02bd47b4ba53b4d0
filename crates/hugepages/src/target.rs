//! One program under attach: its source, its actions, and the state of its windows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use access::{Backend, Observer};
use linux::{Error, Pid, Untrusted};
use units::{Bytes, Pages, Rate, Window};

use crate::Refusal;
use crate::act::{self, Demoted, Promoted};
use crate::observe::{self, Before, Known, Observed};
use crate::policy::{self, Budget, Plan, Promotion, Seen, Settings, Settling, WhatIf, WindowView, Wish};
use crate::program::{Forbidden, Program};

/// Whether the program is still being worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Rounds follow each other.
    Watching,
    /// Nothing changed for some rounds; scanned from time to time.
    Settled,
    /// The process ended.
    Ended,
}

/// A refused window and the round of its next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused {
    why: Refusal,
    times: u32,
    again_in_round: Option<u32>,
    /// It still deserved a huge page at the last scan.
    hot: bool,
}

impl Refused {
    fn may_try_in(&self, round: u32) -> bool {
        self.again_in_round.is_some_and(|again| again <= round)
    }
}

/// A window that was split, by masu or by others, and keeps pages that were not resident before its promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeftBehind {
    before: Pages,
    now: Pages,
}

/// Whether an exec was found before the source reported it: the source reports each at the scan after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecKnown {
    No,
    /// The source has not reported it yet.
    Untold,
    /// The source reports it.
    Told,
}

/// One program.
pub struct Target {
    /// Its process id.
    pub pid: Pid,
    /// Name, as the kernel keeps it.
    pub name: Untrusted,
    /// State.
    pub phase: Phase,
    /// Resident memory when masu came.
    pub rss_before: Bytes,
    /// Windows that masu made huge, counted once per promotion.
    pub promoted: u64,
    /// Windows that masu split.
    pub demoted: u64,
    /// Memory that demotion returned.
    pub returned: Bytes,
    /// Promotions that were tried and refused.
    pub refusals: u64,
    /// Time of settling, after the start.
    pub settled_at: Option<Duration>,
    /// Number of execs meanwhile.
    pub execs: u32,
    /// Reason for which it cannot be worked on any more, other than its end.
    pub failure: Option<Error>,
    /// Plan of the last scan.
    pub plan: Plan,
    program: Box<dyn Program>,
    source: Box<dyn Observer>,
    known: BTreeMap<Window, Known>,
    /// Memory left of masu's promotions in windows that are small again.
    left_behind: BTreeMap<Window, LeftBehind>,
    /// Sum over `known` and `left_behind`, kept incrementally: a program may have a million windows.
    extra_rss: Bytes,
    refused: BTreeMap<Window, Refused>,
    /// Windows that masu split, and the number of times.
    given_back: BTreeMap<Window, u32>,
    forbidden: Forbidden,
    /// Windows that could have been promoted during the round, and were kept back as controls.
    controls: BTreeSet<Window>,
    observed: Observed,
    exec_known: ExecKnown,
    /// Preferences of the program for its windows; `None` when the rule decides.
    wishes: Option<BTreeMap<Window, Wish>>,
    /// Leave windows alone that masu did not make huge: the program has an arena.
    leaves_others: bool,
    settling: Settling,
    round: u32,
    changed_in_round: u64,
}

impl Target {
    /// A program to work on.
    ///
    /// # Errors
    /// `Gone` when it has ended already.
    pub fn new(
        pid: Pid,
        name: impl Into<Untrusted>,
        program: Box<dyn Program>,
        source: Box<dyn Observer>,
    ) -> Result<Target, Error> {
        let rss_before = program.resident_exact()?;
        Ok(Target {
            pid,
            name: name.into(),
            phase: Phase::Watching,
            rss_before,
            promoted: 0,
            demoted: 0,
            returned: Bytes(0),
            refusals: 0,
            settled_at: None,
            execs: 0,
            failure: None,
            plan: Plan::default(),
            program,
            source,
            known: BTreeMap::new(),
            left_behind: BTreeMap::new(),
            extra_rss: Bytes(0),
            refused: BTreeMap::new(),
            given_back: BTreeMap::new(),
            forbidden: Forbidden::default(),
            controls: BTreeSet::new(),
            observed: Observed::default(),
            exec_known: ExecKnown::No,
            wishes: None,
            leaves_others: false,
            settling: Settling::default(),
            round: 0,
            changed_in_round: 0,
        })
    }

    /// In its first round.
    pub fn is_new(&self) -> bool {
        self.round <= 1
    }

    /// Its observer.
    pub fn source(&self) -> &dyn Observer {
        self.source.as_ref()
    }

    /// Backend of the observation.
    pub fn backend(&self) -> Backend {
        self.source.backend()
    }

    /// Its resident memory now, exactly; `None` once it ended.
    pub fn rss_now(&self) -> Option<Bytes> {
        self.program.resident_exact().ok()
    }

    /// Memory that the windows masu promoted hold beyond the memory resident in them before. A split returns it only
    /// if the kernel does so; until then it counts.
    pub fn extra_rss(&self) -> Bytes {
        self.extra_rss
    }

    fn sum_extra_rss(&mut self) {
        let huge = self.known.values().filter_map(|known| known.before).map(|before| policy::cost(before.resident));
        let small = self.left_behind.values().map(|left| left.now.bytes().saturating_sub(left.before.bytes()));
        self.extra_rss = huge.chain(small).sum();
    }

    /// Windows that masu promoted and that are huge still.
    pub fn promoted_now(&self) -> u64 {
        self.known.values().filter(|known| known.before.is_some()).count() as u64
    }

    /// Hot windows without a huge page, by reason, now.
    pub fn refused(&self) -> BTreeMap<Refusal, u64> {
        let mut by_reason = BTreeMap::new();
        // A window due for another try was judged again: the plan counts it.
        let acted = self.refused.values().filter(|refused| refused.hot && !refused.may_try_in(self.round));
        let acted = acted.map(|refused| refused.why);
        for why in acted.chain(self.observed.ineligible.values().copied()) {
            *by_reason.entry(why).or_insert(0) += 1;
        }
        if self.plan.verdicts.over_budget > 0 {
            *by_reason.entry(Refusal::OverBudget).or_insert(0) += self.plan.verdicts.over_budget;
        }
        by_reason
    }

    /// Results of other hot fractions, from the last observation.
    pub fn what_if(&self) -> [WhatIf; 4] {
        policy::what_if(&observe::before_promotion(&self.observed.windows, &self.known))
    }

    /// Starts a round: clears the accessed bits.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn begin_round(&mut self) -> Result<(), Error> {
        self.round += 1;
        self.changed_in_round = 0;
        self.controls.clear();
        for window in self.left_behind.keys().copied().collect::<Vec<_>>() {
            self.measure_left_behind(window)?;
        }
        self.sum_extra_rss();
        if self.exec_known == ExecKnown::Told {
            self.exec_known = ExecKnown::No;
        }
        self.source.begin()
    }

    /// Scans, and plans from all observations of this round.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn look(&mut self, s: Settings) -> Result<(), Error> {
        self.source.scan()?;
        // Not every source reports an exec, and one may fall between its scan and this.
        let (replaced, told) = (self.program.renew()?, self.source.address_space_changed());
        let is_told_of = told && self.exec_known == ExecKnown::No;
        if replaced || is_told_of {
            self.forget_address_space();
            self.exec_known = if is_told_of { ExecKnown::No } else { ExecKnown::Untold };
            self.source.begin()?;
            return Ok(());
        }
        if told {
            self.exec_known = ExecKnown::Told; // and reports it until it begins again
        }
        let mappings = self.program.mappings()?;
        self.observed = observe::observe(self.source.map(), &mappings, &self.known, s);
        self.keep_known_of_huge_windows()?;
        self.keep_refused(s);
        self.plan_again(s)
    }

    /// Plans from the last scan. Called again after a refusal: the refused window's cost goes to the next one.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn plan_again(&mut self, s: Settings) -> Result<(), Error> {
        let budget = self.budget()?;
        let promoted_since = |view: &WindowView| view.huge.is_none() && self.known.contains_key(&view.window);
        let to_judge = |view: &&WindowView| self.may_try(view.window) && !promoted_since(view);
        let wished = |view: &WindowView| WindowView { wish: self.wish(view.window), ..*view };
        let candidates: Vec<WindowView> = self.observed.windows.iter().filter(to_judge).map(wished).collect();
        self.plan = policy::decide(&candidates, budget, s);
        // Windows that are not due for another try still count as seen and hot.
        self.plan.verdicts.seen = self.observed.windows.len() as u64;
        self.plan.verdicts.hot = self.observed.windows.iter().filter(|view| policy::is_hot(view, s)).count() as u64;
        Ok(())
    }

    /// Lets the program decide: windows without a preference are left alone. `None` returns the decision to the rule.
    pub fn set_wishes(&mut self, wishes: Option<BTreeMap<Window, Wish>>) {
        self.wishes = wishes;
    }

    fn wish(&self, window: Window) -> Option<Wish> {
        let wishes = self.wishes.as_ref()?;
        Some(wishes.get(&window).copied().unwrap_or(Wish::Leave))
    }

    /// Windows of the last scan.
    pub fn windows(&self) -> &[WindowView] {
        &self.observed.windows
    }

    /// Windows that masu promoted and that are still huge: address, saving, and whether it was idle in the last
    /// round.
    pub fn held(&self) -> impl Iterator<Item = (Window, Rate, bool)> + '_ {
        let ours = |(window, known): (&Window, &Known)| Some((*window, known.before?.walks, known.idle_rounds > 0));
        self.known.iter().filter_map(ours)
    }

    /// Leaves windows alone that masu did not make huge, even idle ones: a program with an arena put them there.
    pub fn leave_others(&mut self, leave: bool) {
        self.leaves_others = leave;
    }

    /// Whether this huge window may be split again.
    fn is_ours_to_split(&self, known: &Known) -> bool {
        !known.left_alone && (known.before.is_some() || !self.leaves_others)
    }

    /// Whether there are huge windows that would be given back if they were idle.
    pub fn may_give_back(&self) -> bool {
        self.known.values().any(|known| self.is_ours_to_split(known) && !policy::is_full(known.view()))
    }

    /// Counts a window of the plan as refused for a limit shared with other programs.
    pub fn refuse_over_limit(&mut self, window: Window) {
        self.refuse(window, Refusal::OverLimit);
    }

    fn budget(&self) -> Result<Budget, Error> {
        let spent = self.extra_rss();
        Ok(Budget { base: self.program.resident()?.saturating_sub(spent), spent })
    }

    /// Forgets everything: nothing known is valid after exec.
    fn forget_address_space(&mut self) {
        self.execs += 1;
        self.known.clear();
        self.left_behind.clear();
        self.extra_rss = Bytes(0);
        self.refused.clear();
        self.given_back.clear();
        self.controls.clear();
        self.forbidden = Forbidden::default();
        self.observed = Observed::default();
        self.plan = Plan::default();
        self.settling = Settling::default();
        (self.phase, self.settled_at) = (Phase::Watching, None);
    }

    /// Keeps the state of windows that are huge. Windows of masu's that this scan does not show as huge are measured,
    /// since a scan is a hint: a window may be inaccessible for the moment, or on its way to another place in memory.
    fn keep_known_of_huge_windows(&mut self) -> Result<(), Error> {
        let mut known = std::mem::take(&mut self.known);
        for view in self.observed.windows.iter().filter(|view| view.huge.is_some()) {
            // A window that masu gave back and that is huge again was requested by khugepaged or the program: masu
            // does not work against them.
            let new = Known { left_alone: self.given_back.contains_key(&view.window), ..Known::default() };
            self.known.insert(view.window, known.remove(&view.window).unwrap_or(new));
            self.left_behind.remove(&view.window);
        }
        for (window, known) in known {
            let Some(before) = known.before else { continue };
            let state = self.program.state(window)?.unwrap_or_default();
            if state.huge {
                self.known.insert(window, known);
            } else {
                self.note_left_behind(window, before.resident, state.resident);
            }
        }
        self.sum_extra_rss();
        Ok(())
    }

    /// Keeps the refusals of windows that are still mapped and not huge meanwhile.
    fn keep_refused(&mut self, s: Settings) {
        let views = &self.observed.windows;
        self.refused.retain(|window, refused| {
            let Ok(at) = views.binary_search_by_key(window, |view| view.window) else { return false };
            refused.hot = policy::is_hot(&views[at], s);
            views[at].huge.is_none()
        });
    }

    fn measure_left_behind(&mut self, window: Window) -> Result<(), Error> {
        if let Some(left) = self.left_behind.remove(&window) {
            let now = self.program.state(window)?.unwrap_or_default().resident;
            self.note_left_behind(window, left.before, now);
        }
        Ok(())
    }

    fn note_left_behind(&mut self, window: Window, before: Pages, now: Pages) {
        if now > before {
            self.left_behind.insert(window, LeftBehind { before, now });
        }
    }

    fn may_try(&self, window: Window) -> bool {
        self.refused.get(&window).is_none_or(|refused| refused.may_try_in(self.round))
    }

    /// Windows of the plan that need not wait for the end of the round. Their controls are kept back from now on.
    pub fn plan_at_once(&mut self) -> Plan {
        let at_once = policy::at_once(&self.plan).into_iter();
        let (controls, others): (Vec<Promotion>, _) =
            at_once.partition(|promotion| policy::is_control(promotion.window));
        self.controls.extend(controls.iter().map(|promotion| promotion.window));
        Plan { promote: others, ..Plan::default() }
    }

    /// Preallocates the next promotion's huge page ([`Program::make_ready`]).
    pub fn make_ready(&self) {
        self.program.make_ready();
    }

    /// Gives back a preallocated page, when no promotion follows.
    pub fn rest(&self) {
        self.program.rest();
    }

    /// Carries out one promotion, and counts its result. `cut_short` when the observation goes on.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn promote(&mut self, promotion: &Promotion, cut_short: bool, s: Settings) -> Result<(), Error> {
        let window = promotion.window;
        if self.observed.windows.is_empty() {
            return Ok(()); // planned for a program that is gone
        }
        // The plan's budget was estimated without a lock; the binding one is the present remainder.
        let left = self.budget()?.left(s.max_extra_rss);
        let outcome = act::promote(self.program.as_ref(), window, left)?;
        tracing::trace!(pid = %self.pid, ?window, ?outcome, "window");
        match outcome {
            Promoted::Yes { resident_before } => {
                // Memory that an earlier promotion left there is not the program's own.
                let resident = self.left_behind.remove(&window).map_or(resident_before, |left| left.before);
                let seen = match self.controls.contains(&window) {
                    true => Seen::Control,
                    false if cut_short => Seen::CutShort,
                    false => Seen::Whole,
                };
                let before = Before { hot: promotion.hot, resident, walks: promotion.walks, seen };
                let given_back = self.given_back.get(&window).copied().unwrap_or(0);
                self.known.insert(window, Known { before: Some(before), given_back, ..Known::default() });
                self.extra_rss += policy::cost(resident_before);
                self.refused.remove(&window);
                self.promoted += 1;
                self.changed_in_round += 1;
            }
            Promoted::Already => {
                self.refused.remove(&window);
            }
            Promoted::No(why) => self.refuse(window, why),
            Promoted::Astray(split) => self.count_astray(window, split),
        }
        Ok(())
    }

    /// Counts the memory left by a collapse that hit the program's next address space. The memory resident before is
    /// unknown: all of it may be masu's, unless the kernel returned the zero-filled pages.
    fn count_astray(&mut self, window: Window, split: Demoted) {
        self.forget_address_space();
        self.exec_known = ExecKnown::Untold;
        match split {
            Demoted::Already { .. } => return,
            Demoted::Yes { returned, resident } => {
                self.demoted += 1;
                self.returned += returned;
                if returned == Bytes(0) {
                    self.note_left_behind(window, Pages(0), resident);
                }
            }
            Demoted::No => {
                let before = Before { hot: Pages(0), resident: Pages(0), walks: Rate::ZERO, seen: Seen::CutShort };
                self.known.insert(window, Known { before: Some(before), left_alone: true, ..Known::default() });
            }
        }
        self.promoted += 1;
        self.changed_in_round += 1;
        self.sum_extra_rss();
    }

    /// For a dry run: counts a promotion that would be refused. Planning again takes it out of the plan.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn foresee(&mut self, promotion: &Promotion) -> Result<(), Error> {
        if let Some(why) = act::foresee(self.program.as_ref(), promotion.window)? {
            self.refuse(promotion.window, why);
        }
        Ok(())
    }

    fn refuse(&mut self, window: Window, why: Refusal) {
        if why == Refusal::OverBudget {
            self.plan.verdicts.over_budget += 1; // as if the plan had known; judged again at the next scan
            return;
        }
        self.refusals += 1;
        let forbidden = why == Refusal::Invalid && self.forbidden.asks(self.program.as_ref(), window);
        let why = if forbidden { Refusal::Forbidden } else { why };
        let times = self.refused.get(&window).map_or(0, |refused| refused.times) + 1;
        // Not in this round, for any reason: the plan works around refused windows.
        let again_in_round = why.retry_after_rounds(times).map(|rounds| self.round.saturating_add(rounds.max(1)));
        self.refused.insert(window, Refused { why, times, again_in_round, hot: true });
    }

    /// Ends the scanning of a round: counts idle rounds of the huge windows, and plans the probes and demotions.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn plan_giving_back(&mut self, s: Settings) -> Result<Plan, Error> {
        self.count_idle_rounds();
        Ok(policy::decide(&self.huge_views(), self.budget()?, s))
    }

    /// Ends the round. True when the program has settled: nothing changed, and no huge window is a candidate for
    /// being given back.
    pub fn settle(&mut self, s: Settings) -> bool {
        let unsettled = self.changed_in_round + self.under_suspicion(s);
        self.settling.after_round(unsettled, self.observed.windows.len() as u64, s)
    }

    /// Huge windows with an open verdict: idle, and candidates for being given back.
    pub fn under_suspicion(&self, s: Settings) -> u64 {
        let is_open = |known: &&Known| self.is_ours_to_split(known) && policy::is_suspect(known.view(), s);
        self.known.values().filter(is_open).count() as u64
    }

    fn count_idle_rounds(&mut self) {
        for view in self.observed.windows.iter().filter(|view| view.huge.is_some()) {
            let Some(known) = self.known.get_mut(&view.window) else { continue };
            if view.walks > Rate::ZERO {
                (known.idle_rounds, known.probed) = (0, false);
            } else {
                known.idle_rounds = known.idle_rounds.saturating_add(1);
            }
        }
    }

    fn huge_views(&self) -> Vec<WindowView> {
        let with_known = |view: &WindowView| {
            let known = self.known.get(&view.window).filter(|known| self.is_ours_to_split(known))?;
            let huge = known.view();
            Some(WindowView { huge: view.huge.map(|_| huge), ..*view })
        };
        self.observed.windows.iter().filter(|view| view.huge.is_some()).filter_map(with_known).collect()
    }

    /// Clears the accessed bit of a huge window with a flush; the next round tells whether it is in use.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn probe(&mut self, window: Window) -> Result<(), Error> {
        if let Some(known) = self.known.get_mut(&window) {
            known.probed = act::probe(self.program.as_ref(), window)?;
        }
        Ok(())
    }

    /// Splits a huge window, and counts the returned memory.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn demote(&mut self, window: Window) -> Result<(), Error> {
        let known = self.known.get(&window).copied().unwrap_or_default();
        let outcome = act::demote(self.program.as_ref(), window)?;
        self.known.remove(&window);
        let resident = match outcome {
            Demoted::No => {
                self.known.insert(window, Known { left_alone: true, ..known });
                return Ok(());
            }
            Demoted::Already { resident } => resident,
            Demoted::Yes { returned, resident } => {
                *self.given_back.entry(window).or_insert(0) += 1;
                self.demoted += 1;
                self.returned += returned;
                self.changed_in_round += 1;
                resident
            }
        };
        if let Some(before) = known.before {
            self.note_left_behind(window, before.resident, resident);
            let left = resident.bytes().saturating_sub(before.resident.bytes());
            self.extra_rss = (self.extra_rss + left).saturating_sub(policy::cost(before.resident));
        }
        Ok(())
    }

    /// Splits every window that masu promoted (`--undo`) and returns the number that stayed huge all the same. A
    /// program that has ended has nothing to undo.
    pub fn undo(&mut self) -> u64 {
        let ours: Vec<Window> =
            self.known.iter().filter(|(_, known)| known.before.is_some()).map(|(window, _)| *window).collect();
        for window in ours {
            match self.demote(window) {
                Err(error) if error.is_gone() => return 0,
                // Windows that were not split are still known, and counted below.
                Ok(()) | Err(_) => {}
            }
        }
        self.promoted_now()
    }
}
