//! One program under attach: its settings, its plan, and the actions on its windows.

mod columns;
mod extra;
mod halt;
mod huge;
mod mapping_splits;
mod missing;
pub(crate) mod moved;
mod process;
mod refusals;
mod torn;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use access::{Backend, Observer};
use linux::{Error, Pid, Untrusted};
use units::{Bytes, PAGES_PER_WINDOW, Pages, Rate, Window};

pub use self::columns::{Columns, Ends};
use self::halt::Halt;
use self::huge::HugeWindows;
pub use self::missing::Missing;
use self::process::{AddressSpace, Process};
use self::refusals::Refusals;
use crate::Refusal;
use crate::act::{self, Demoted, Promoted};
use crate::observe::{self, Observed};
use crate::policy::{self, Budget, Growth, Observation, Plan, Preference, Promotion, Settings, Settling, WhatIf};
use crate::policy::{Tally, WindowView};
use crate::program::Program;
use crate::torn::Torn;

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

/// Counters of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Resident memory when masu came.
    pub rss_before: Bytes,
    /// Windows that masu made huge, counted once per promotion.
    pub promoted: u64,
    /// Windows that masu split.
    pub demoted: u64,
    /// Memory that demotion returned.
    pub returned: Bytes,
    /// Promotions that were tried and refused.
    pub refused: u64,
    /// Time of settling, after the start.
    pub settled_at: Option<Duration>,
    /// Number of execs meanwhile.
    pub execs: u32,
}

/// State of the present round, and the rounds without a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Round {
    number: u32,
    /// Windows promoted or split in it.
    changed: u64,
    /// Windows that could have been promoted during the round, and were kept back as controls.
    controls: BTreeSet<Window>,
    /// Pages of hot windows that reclaim may take (MADV_FREE), as first seen in the round.
    lazily_freed: BTreeMap<Window, Pages>,
    settling: Settling,
}

/// Result of the last scan.
#[derive(Clone, Debug, Default, PartialEq)]
struct Scan {
    observed: Observed,
    plan: Plan,
}

/// One program.
pub struct Target {
    /// Its process id.
    pub pid: Pid,
    /// Name, as the kernel keeps it.
    pub name: Untrusted,
    /// State.
    pub phase: Phase,
    /// Reason for which it cannot be worked on any more, other than its end.
    pub failure: Option<Error>,
    /// Counters of the report.
    pub totals: Totals,
    settings: Settings,
    /// Preferences of the program for its windows; `None` when the rule decides.
    preferences: Option<BTreeMap<Window, Preference>>,
    process: Process,
    scan: Scan,
    huge: HugeWindows,
    torn: Torn,
    refusals: Refusals,
    /// Windows that masu made huge at some time, and did not split since.
    served: BTreeSet<Window>,
    round: Round,
    halt: Halt,
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
        settings: Settings,
    ) -> Result<Target, Error> {
        let totals = Totals { rss_before: program.resident_exact()?, ..Totals::default() };
        Ok(Target {
            pid,
            name: name.into(),
            phase: Phase::Watching,
            failure: None,
            totals,
            settings,
            preferences: None,
            process: Process::new(program, source),
            scan: Scan::default(),
            huge: HugeWindows::default(),
            torn: Torn::default(),
            refusals: Refusals::default(),
            served: BTreeSet::new(),
            round: Round::default(),
            halt: Halt::default(),
        })
    }

    /// Sets the time, after the start of the caller's clock.
    pub fn set_now(&mut self, now: Duration) {
        self.huge.set_now(now);
    }

    /// Replaces the settings from the next plan on.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Lets the program decide: windows without a preference are left alone. `None` returns the decision to the rule.
    pub fn set_preferences(&mut self, preferences: Option<BTreeMap<Window, Preference>>) {
        self.preferences = preferences;
    }

    /// Leaves windows alone that masu did not make huge, even idle ones: a program with an arena put them there.
    pub fn split_own_only(&mut self, own_only: bool) {
        self.huge.split_own_only(own_only);
    }

    /// Settings of its policy.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// In its first round.
    pub fn is_new(&self) -> bool {
        self.round.number <= 1
    }

    /// Its observer.
    pub fn source(&self) -> &dyn Observer {
        self.process.source()
    }

    /// Backend of the observation.
    pub fn backend(&self) -> Backend {
        self.source().backend()
    }

    /// Plan of the last scan.
    pub fn plan(&self) -> &Plan {
        &self.scan.plan
    }

    /// Numbers of windows by verdict, of the last scan.
    pub fn verdicts(&self) -> Tally {
        self.scan.plan.verdicts
    }

    /// Windows of the last scan.
    pub fn windows(&self) -> &[WindowView] {
        &self.scan.observed.windows
    }

    /// Its resident memory now, exactly; `None` once it ended.
    pub fn rss_now(&self) -> Option<Bytes> {
        self.process.program().resident_exact().ok()
    }

    /// Memory that the windows masu promoted hold beyond the memory resident in them before. A split returns it only
    /// if the kernel does so; until then it counts.
    pub fn extra_rss(&self) -> Bytes {
        self.huge.extra()
    }

    /// Windows that masu promoted and that are huge still.
    pub fn promoted_now(&self) -> u64 {
        self.huge.promoted().count() as u64
    }

    /// Windows that masu promoted and that are still huge: address, saving, and whether it was idle in the last
    /// round.
    pub fn savings(&self) -> impl Iterator<Item = (Window, Rate, bool)> + '_ {
        self.huge.promoted().map(|(window, before, huge)| (window, before.walks, huge.idle_rounds > 0))
    }

    /// Idle huge windows that did not split or could not be probed, by reason.
    pub fn kept(&self) -> BTreeMap<Refusal, u64> {
        self.huge.kept()
    }

    /// Memory in mappings without a window.
    pub fn pieces(&self) -> observe::Pieces {
        self.scan.observed.pieces
    }

    /// Whether masu made this window huge at some time, and did not split it since.
    pub fn was_served(&self, window: Window) -> bool {
        self.served.contains(&window)
    }

    /// Windows changed in the last round.
    pub fn changed(&self) -> u64 {
        self.round.changed
    }

    /// Whether hot windows wait for the end of a forked child.
    pub fn has_shared(&self) -> bool {
        self.refusals.may_pass().any(|(_, why)| why == Refusal::Shared)
    }

    /// Results of other hot fractions, from the last observation.
    pub fn what_if(&self) -> [WhatIf; 4] {
        policy::what_if(&observe::before_promotion(self.windows(), self.huge.states()))
    }

    /// Counts that tell whether a longer observation could change a verdict.
    pub fn growth(&self) -> Growth {
        let verdicts = self.verdicts();
        Growth {
            noise: policy::noise(verdicts.scanned, self.settings),
            wanted: self.promoted_now() + self.plan().promote.len() as u64 + verdicts.over_budget,
            undecided: verdicts.compact,
            undecided_pages: verdicts.compact_pages,
        }
    }

    /// Whether there are huge windows that would be split if they were idle.
    pub fn may_be_split(&self) -> bool {
        self.huge.may_be_split()
    }

    /// Number of idle huge windows without a verdict on their split.
    pub fn split_candidates(&self) -> u64 {
        self.huge.split_candidates(self.settings)
    }

    fn budget(&self) -> Result<Budget, Error> {
        let (program, spent) = (self.process.program(), self.extra_rss());
        // Lazily freed memory is resident, and the program has given it back.
        let freed = program.lazily_freed_bytes()?;
        Ok(Budget { base: program.resident()?.saturating_sub(freed).saturating_sub(spent), spent })
    }

    /// Starts a round: clears the accessed bits.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn begin_round(&mut self) -> Result<(), Error> {
        self.round.number += 1;
        self.round.changed = 0;
        self.halt.begin_round();
        let views = &self.scan.observed.windows;
        if self.served.len() > views.len() {
            self.served.retain(|window| views.binary_search_by_key(window, |view| view.window).is_ok());
        }
        self.round.controls.clear();
        self.round.lazily_freed.clear();
        self.huge.measure_extra(self.process.program())?;
        self.process.begin()
    }

    /// Scans, and plans from all observations of this round.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn scan(&mut self) -> Result<(), Error> {
        self.huge.begin_scan(self.process.program());
        if self.process.scan()? == AddressSpace::New {
            self.forget_address_space();
            return self.process.begin();
        }
        let mappings = self.process.program().mappings()?;
        self.scan.observed = observe::observe(self.source().map(), &mappings, self.huge.states(), self.settings);
        self.leave_out_zero_pages()?;
        self.leave_out_lazily_freed()?;
        let views = &self.scan.observed.windows;
        let moved = self.huge.update(views, self.process.program())?;
        for (from, to) in moved {
            if self.served.remove(&from) {
                self.served.insert(to);
            }
        }
        self.refusals.update(views, self.settings);
        self.plan_again()
    }

    /// Takes out the windows that map the kernel's huge page of zeros: the program read memory that it never wrote, or
    /// gave back. Before Linux 6.17 page tables do not tell them from huge windows.
    fn leave_out_zero_pages(&mut self) -> Result<(), Error> {
        let (program, known) = (self.process.program(), self.huge.states());
        let mut zero = BTreeSet::new();
        for view in self.scan.observed.windows.iter().filter(|view| view.huge.is_some()) {
            // The program may have exchanged the page while it was in use: then it is asked about once it is idle.
            let may_be_zero = known.get(&view.window).is_none_or(|huge| huge.idle_rounds == 1);
            if may_be_zero
                && program.state(view.window)?.is_some_and(|state| state.zero == Pages(PAGES_PER_WINDOW as u64))
            {
                zero.insert(view.window);
            }
        }
        self.scan.observed.windows.retain(|view| !zero.contains(&view.window));
        Ok(())
    }

    /// Takes lazily freed pages out of the residents of the hot windows: a promotion would add them.
    fn leave_out_lazily_freed(&mut self) -> Result<(), Error> {
        let (program, source) = (self.process.program(), self.process.source());
        let written = |window| source.written(window).ok().flatten();
        let settings = self.settings;
        let may_be_promoted = |view: &WindowView, preference| {
            view.huge.is_none() && (policy::is_hot(view, settings) || preference == Some(Preference::Promote))
        };
        for view in &mut self.scan.observed.windows {
            let preference = self.preferences.as_ref().and_then(|preferences| preferences.get(&view.window).copied());
            if !may_be_promoted(view, preference) {
                continue;
            }
            let known = self.round.lazily_freed.get(&view.window).copied();
            let freed = known.map_or_else(|| act::lazily_freed(program, view.window, &written), Ok)?;
            if freed > Pages(0) {
                self.round.lazily_freed.insert(view.window, freed);
                view.resident.0 = view.resident.0.saturating_sub(freed.0);
            }
        }
        Ok(())
    }

    /// Forgets everything: nothing known is valid after exec.
    fn forget_address_space(&mut self) {
        self.totals.execs += 1;
        self.totals.settled_at = None;
        self.phase = Phase::Watching;
        self.huge.clear();
        self.torn.clear();
        self.refusals = Refusals::default();
        self.served.clear();
        self.scan = Scan::default();
        self.round.controls.clear();
        self.round.lazily_freed.clear();
        self.round.settling = Settling::default();
    }

    /// Plans from the last scan. Called again after a refusal: the refused window's cost goes to the next one.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn plan_again(&mut self) -> Result<(), Error> {
        let budget = self.budget()?;
        let promoted_since = |view: &WindowView| view.huge.is_none() && self.huge.states().contains_key(&view.window);
        let is_due = |view: &&WindowView| {
            let may_try = self.refusals.may_try(view.window, self.round.number) && self.huge.may_promote(view.window);
            may_try && !promoted_since(view)
        };
        let preferred = |view: &WindowView| WindowView { preference: self.preference(view.window), ..*view };
        let candidates: Vec<WindowView> = self.windows().iter().filter(is_due).map(preferred).collect();
        let mut plan = policy::decide(&candidates, budget, self.settings);
        // Windows that are not due for another try still count as scanned and hot.
        plan.verdicts.scanned = self.windows().len() as u64;
        plan.verdicts.hot = self.windows().iter().filter(|view| policy::is_hot(view, self.settings)).count() as u64;
        self.scan.plan = plan;
        Ok(())
    }

    fn preference(&self, window: Window) -> Option<Preference> {
        let preferences = self.preferences.as_ref()?;
        Some(preferences.get(&window).copied().unwrap_or(Preference::Leave))
    }

    /// Windows of the plan that need not wait for the end of the round. Their controls are kept back from now on.
    pub fn plan_at_once(&mut self) -> Plan {
        let at_once = policy::at_once(&self.scan.plan).into_iter();
        let (controls, others): (Vec<Promotion>, _) =
            at_once.partition(|promotion| policy::is_control(promotion.window));
        self.round.controls.extend(controls.iter().map(|promotion| promotion.window));
        Plan { promote: others, ..Plan::default() }
    }

    /// Preallocates the next promotion's huge page ([`Program::preallocate`]).
    pub fn preallocate(&self) {
        self.process.program().preallocate();
    }

    /// Frees a preallocated page, when no promotion follows.
    pub fn free_preallocated(&self) {
        self.process.program().free_preallocated();
    }

    /// Carries out one promotion, and counts its result. `cut_short` when the observation goes on.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn promote(&mut self, promotion: &Promotion, cut_short: bool) -> Result<(), Error> {
        let window = promotion.window;
        if self.windows().is_empty() {
            return Ok(()); // planned for a program that is gone
        }
        if self.huge.states().contains_key(&window) {
            let program = self.process.program();
            let state = program.state(window)?.unwrap_or_default();
            if act::held(state) > 0 {
                self.huge.record_state(window, state, program)?; // split since the scan
            }
        }
        // The plan's budget was estimated without a lock; the binding one is the present remainder.
        let left = self.budget()?.left(self.settings.max_extra_rss);
        let source = self.process.source();
        let written = |window| source.written(window).ok().flatten();
        let outcome = act::promote(self.process.program(), window, left, &written)?;
        tracing::trace!(pid = %self.pid, ?window, ?outcome, "window");
        match outcome {
            Promoted::Yes { resident_before } => {
                let observation = match self.round.controls.contains(&window) {
                    true => Observation::Control,
                    false if cut_short => Observation::CutShort,
                    false => Observation::Whole,
                };
                let frame = self.process.program().first_frame(window).ok().flatten();
                self.huge.record_promotion(promotion, resident_before, observation, frame);
                self.refusals.remove(window);
                self.totals.promoted += 1;
                // A window that a fork split and that is huge again is no change: it would go on for ever.
                self.round.changed += u64::from(self.served.insert(window));
            }
            Promoted::Already => {
                self.refusals.remove(window);
                self.huge.record_found(window);
            }
            Promoted::No(why) => self.refuse(window, why),
            Promoted::Astray(split) => self.count_astray(window, split),
        }
        Ok(())
    }

    /// Counts a collapse that hit the program's next address space, and its split.
    fn count_astray(&mut self, window: Window, split: Demoted) {
        self.forget_address_space();
        self.process.expect_exec_report();
        self.huge.record_astray(window, split);
        if matches!(split, Demoted::Already { .. }) {
            return;
        }
        self.totals.promoted += 1;
        self.count_split(split);
        self.round.changed += 1;
    }

    /// For a dry run: counts a promotion that would be refused. Planning again takes it out of the plan.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn foresee(&mut self, promotion: &Promotion) -> Result<(), Error> {
        if let Some(why) = act::foresee(self.process.program(), promotion.window)? {
            self.refuse(promotion.window, why);
        }
        Ok(())
    }

    /// Counts a window of the plan as refused for a limit shared with other programs.
    pub fn refuse_over_limit(&mut self, window: Window) {
        self.refuse(window, Refusal::OverLimit);
    }

    fn refuse(&mut self, window: Window, why: Refusal) {
        if why == Refusal::OverBudget {
            // As if the plan had known; judged again at the next scan.
            let is_new = self.scan.plan.over_budget.insert(window);
            self.scan.plan.verdicts.over_budget += u64::from(is_new);
            return;
        }
        self.totals.refused += 1;
        self.refusals.record(window, why, self.round.number, self.process.program());
    }

    /// Ends the scanning of a round: counts idle rounds of the huge windows, and plans the probes and demotions.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn plan_splits(&mut self) -> Result<Plan, Error> {
        if self.was_halted() {
            return Ok(Plan::default());
        }
        let views = &self.scan.observed.windows;
        self.huge.count_idle_rounds(views);
        Ok(policy::decide(&self.huge.splittable(views), self.budget()?, self.settings))
    }

    /// Ends the round at `now`. The program has settled when nothing changed for some rounds, and no huge window is a
    /// candidate for a split.
    pub fn settle(&mut self, now: Duration) {
        if self.was_halted() {
            return;
        }
        let unsettled = self.round.changed + self.split_candidates();
        let scanned = self.windows().len() as u64;
        if self.round.settling.after_round(unsettled, scanned, self.settings) {
            self.phase = Phase::Settled;
            self.totals.settled_at.get_or_insert(now);
        } else {
            self.phase = Phase::Watching;
        }
    }

    /// Clears the accessed bit of a huge window with a flush; the next round tells whether it is in use.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn probe(&mut self, window: Window) -> Result<(), Error> {
        if self.huge.states().contains_key(&window) {
            let probed = act::probe(self.process.program(), window)?;
            self.huge.record_probe(window, probed);
            if !probed {
                let locked = self.process.program().traits(window).locked;
                self.huge.record_kept(window, if locked { Refusal::Locked } else { Refusal::Busy });
            }
        }
        Ok(())
    }

    /// Splits a huge window, and counts the returned memory.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn demote(&mut self, window: Window) -> Result<(), Error> {
        let outcome = act::demote(self.process.program(), window)?;
        if matches!(outcome, Demoted::Already { resident: Pages(0), .. }) {
            return Ok(()); // given back or moved: the next scan tells
        }
        self.huge.record_split(window, outcome);
        if outcome == Demoted::No {
            let why = act::why_not_split(self.process.program(), window)?;
            self.huge.record_kept(window, why);
        }
        if self.count_split(outcome) {
            self.served.remove(&window);
            self.round.changed += 1;
        }
        if matches!(outcome, Demoted::Already { .. }) { self.split_torn(window) } else { Ok(()) }
    }

    /// Adds a split to the totals; true if there was one.
    fn count_split(&mut self, outcome: Demoted) -> bool {
        let Demoted::Yes { returned, .. } = outcome else { return false };
        self.totals.demoted += 1;
        self.totals.returned += returned;
        true
    }
}
