//! Huge windows of a program: those that masu promoted and those that it found huge.

use std::collections::BTreeMap;
use std::time::Duration;

use access::residency::WindowState;
use linux::Error;
use units::{Address, Bytes, PAGES_PER_WINDOW, Pages, Rate, Window};

use super::columns::Ends;
use super::extra::{ExtraMemory, MovedPage};
use super::mapping_splits::MappingSplits;
use super::moved::{self, Lost, Place};
use crate::Refusal;
use crate::act::{self, Demoted, End};
use crate::observe::{Before, HugeWindow};
use crate::policy::repeat::Repeats;
use crate::policy::{self, Observation, Promotion, Settings, WindowView};
use crate::program::Program;

/// Rounds after which a window that did not split is asked again.
const ASK_AGAIN_AFTER: u32 = 64;

/// Huge windows, and windows that masu split.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HugeWindows {
    windows: BTreeMap<Window, HugeWindow>,
    extra: ExtraMemory,
    /// Number of splits by masu, for each window.
    splits: BTreeMap<Window, u32>,
    mapping_splits: MappingSplits,
    /// Promotions by masu, for each window.
    repeats: BTreeMap<Window, Repeats>,
    /// Time after the start of the caller's clock.
    now: Duration,
    /// Ends of the promotions that did not last.
    ends: Ends,
    /// Windows that masu did not promote are never split: the program has an arena.
    own_only: bool,
}

impl HugeWindows {
    /// State of each.
    pub fn states(&self) -> &BTreeMap<Window, HugeWindow> {
        &self.windows
    }

    /// Memory that promotion added.
    pub fn extra(&self) -> Bytes {
        self.extra.total()
    }

    /// Ends of the promotions that did not last.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// Windows promoted by masu, with their states before.
    pub fn promoted(&self) -> impl Iterator<Item = (Window, Before, &HugeWindow)> {
        self.windows.iter().filter_map(|(window, huge)| Some((*window, huge.before?, huge)))
    }

    /// Sets the time of what is recorded from now on.
    pub fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    /// Whether a window may be promoted now: others did not just split it.
    pub fn may_promote(&self, window: Window) -> bool {
        self.repeats.get(&window).is_none_or(|repeats| repeats.may_promote(self.now))
    }

    /// Windows that are not huge and wait, because they were small again soon after their last promotion.
    pub fn split_by_others(&self) -> impl Iterator<Item = Window> + '_ {
        let waits = |(window, repeats): &(&Window, &Repeats)| {
            !repeats.may_promote(self.now) && !self.windows.contains_key(*window)
        };
        self.repeats.iter().filter(waits).map(|(window, _)| *window)
    }

    /// Forbids splits of windows that masu did not promote, or allows them.
    pub fn split_own_only(&mut self, own_only: bool) {
        self.own_only = own_only;
    }

    fn may_split(&self, huge: &HugeWindow) -> bool {
        !huge.left_alone && (huge.before.is_some() || !self.own_only)
    }

    /// Whether there are windows that would be split if they were idle.
    pub fn may_be_split(&self) -> bool {
        self.windows.values().any(|huge| self.may_split(huge) && !policy::is_full(huge.view()))
    }

    /// Number of idle windows without a verdict on their split.
    pub fn split_candidates(&self, s: Settings) -> u64 {
        let is_open = |huge: &&HugeWindow| {
            huge.kept.is_none() && self.may_split(huge) && policy::is_split_candidate(huge.view(), s)
        };
        self.windows.values().filter(is_open).count() as u64
    }

    /// Idle windows that stay huge, by reason.
    pub fn kept(&self) -> BTreeMap<Refusal, u64> {
        let mut by_reason = BTreeMap::new();
        for why in self.windows.values().filter_map(|huge| huge.kept) {
            *by_reason.entry(why).or_insert(0) += 1;
        }
        by_reason
    }

    /// Records the reason for which a window could not be probed or did not split. It is asked again much later.
    pub fn record_kept(&mut self, window: Window, why: Refusal) {
        if let Some(huge) = self.windows.get_mut(&window) {
            (huge.left_alone, huge.kept, huge.kept_rounds) = (true, Some(why), 0);
        }
    }

    /// Records the contents of a window as measured outside a scan: it may have been split by others.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn record_state(&mut self, window: Window, state: WindowState, program: &dyn Program) -> Result<(), Error> {
        let before = self.windows.get(&window).and_then(|huge| huge.before);
        if let Some(before) = before.filter(|_| !state.huge) {
            self.record_end(window, before, state, program)?;
            self.windows.remove(&window);
            self.sum_up();
        }
        Ok(())
    }

    /// Records a window of masu's that others split, or that is gone.
    fn record_end(
        &mut self,
        window: Window,
        before: Before,
        state: WindowState,
        program: &dyn Program,
    ) -> Result<(), Error> {
        let end = self.mapping_splits.explain(act::end(program, window, state)?, || program.mapping_splits_of_host());
        self.ends.add(end);
        match end {
            // For a window that is filled again and again, each promotion is a copy that does not last, too.
            End::SplitByOthers | End::GivenBackAndFilled => {
                self.repeats.entry(window).or_default().split_by_others(self.now);
            }
            End::Torn | End::Unmapped => {
                self.repeats.remove(&window);
            }
        }
        if end == End::GivenBackAndFilled {
            return Ok(()); // all pages are the program's
        }
        // The kernel keeps a torn block whole until it is split.
        let held = if act::is_torn(state) { Pages(PAGES_PER_WINDOW as u64) } else { state.resident };
        self.extra.record_leftover(window, before.resident, held);
        Ok(())
    }

    /// Records a window that became huge without masu.
    pub fn record_found(&mut self, window: Window) {
        // khugepaged or the program made a window huge again that masu had split: masu does not work against them.
        let new = HugeWindow { left_alone: self.splits.contains_key(&window), ..HugeWindow::default() };
        self.windows.entry(window).or_insert(new);
        self.extra.remove_leftover(window);
        self.sum_up();
    }

    /// Views of the windows that may be split.
    pub fn splittable(&self, views: &[WindowView]) -> Vec<WindowView> {
        let with_state = |view: &WindowView| {
            let huge = self.windows.get(&view.window).filter(|huge| self.may_split(huge))?.view();
            Some(WindowView { huge: view.huge.map(|_| huge), ..*view })
        };
        views.iter().filter(|view| view.huge.is_some()).filter_map(with_state).collect()
    }

    /// Removes all of the address space before an exec.
    pub fn clear(&mut self) {
        self.ends.unmapped += self.promoted().count() as u64;
        *self = HugeWindows { own_only: self.own_only, ends: self.ends, now: self.now, ..HugeWindows::default() };
    }

    /// Measures the memory in windows that were split.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn measure_extra(&mut self, program: &dyn Program) -> Result<(), Error> {
        self.extra.measure(program)?;
        for (window, huge) in &mut self.windows {
            // The kernel moves huge pages, too: to other frames (migration).
            let now = if huge.frame.is_some() { program.first_frame(*window)? } else { None };
            huge.frame = now.filter(|frame| frame.is_multiple_of(PAGES_PER_WINDOW as u64)).or(huge.frame);
        }
        self.sum_up();
        Ok(())
    }

    /// Measures a window whose torn block was split.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn measure_torn(&mut self, window: Window, program: &dyn Program) -> Result<(), Error> {
        self.extra.measure_one(window, program)?;
        self.sum_up();
        Ok(())
    }

    /// Moved huge pages with memory to return ([`ExtraMemory::moved_to_split`]).
    pub fn moved_to_split(&self, again: bool) -> Vec<MovedPage> {
        self.extra.moved_to_split(again)
    }

    /// Measures a moved huge page that was advised to split.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn measure_moved(&mut self, first: Address, program: &dyn Program) -> Result<(), Error> {
        self.extra.measure_moved(first, program)?;
        self.sum_up();
        Ok(())
    }

    fn sum_up(&mut self) {
        let costs = self.promoted().map(|(_, before, _)| policy::cost(before.resident));
        self.extra.sum_up(costs.sum());
    }

    /// Begins a scan. Of a program without a window of masu's nothing is read: a service has thousands of them.
    pub fn begin_scan(&mut self, program: &dyn Program) {
        let counts = self.promoted().next().is_some();
        self.mapping_splits.begin_scan(if counts { program.mapping_splits_of_host() } else { None });
    }

    /// Keeps the windows that a scan shows huge. A window of masu's that the scan does not show is measured, since a
    /// scan is a hint: the window may be inaccessible for the moment, or on its way to another place in memory. Returns
    /// the windows that the program moved, with their old places first.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn update(&mut self, views: &[WindowView], program: &dyn Program) -> Result<Vec<(Window, Window)>, Error> {
        let mut known = std::mem::take(&mut self.windows);
        if self.repeats.len() > views.len() {
            self.repeats.retain(|window, _| views.binary_search_by_key(window, |view| view.window).is_ok());
        }
        let mut new = Vec::new();
        for view in views.iter().filter(|view| view.huge.is_some()) {
            let huge = known.remove(&view.window).unwrap_or_else(|| {
                new.push(view.window);
                // khugepaged or the program made a window huge again that masu had split: masu does not work against them.
                HugeWindow { left_alone: self.splits.contains_key(&view.window), ..HugeWindow::default() }
            });
            self.windows.insert(view.window, huge);
            self.extra.remove_leftover(view.window);
        }
        known.retain(|_, huge| huge.before.is_some());
        let moved = self.settle(&mut known, &new, program);
        // The program ended in the middle: they were huge to the end, as far as is known.
        self.windows.append(&mut known);
        self.sum_up();
        moved
    }

    /// Finds out about windows of masu's that a scan does not show huge, and removes them from `missing`.
    fn settle(
        &mut self,
        missing: &mut BTreeMap<Window, HugeWindow>,
        new: &[Window],
        program: &dyn Program,
    ) -> Result<Vec<(Window, Window)>, Error> {
        let mut lost = Vec::new();
        for (window, huge) in missing.clone() {
            let Some(before) = huge.before else { continue };
            let state = program.state(window)?.unwrap_or_default();
            if state.huge {
                self.windows.insert(window, huge);
            } else if moved::may_be_elsewhere(program, window, state, huge.frame)? {
                lost.push(Lost { window, huge, before, state });
                continue;
            } else {
                self.record_end(window, before, state, program)?;
            }
            missing.remove(&window);
        }
        self.find_moved(&lost, missing, new, program)
    }

    /// Finds the lost windows at their new places, and records the end of the others.
    fn find_moved(
        &mut self,
        lost: &[Lost],
        missing: &mut BTreeMap<Window, HugeWindow>,
        new: &[Window],
        program: &dyn Program,
    ) -> Result<Vec<(Window, Window)>, Error> {
        let mut moved = Vec::new();
        for (one, place) in lost.iter().zip(moved::places(lost, new, program)?) {
            match place {
                Place::Window(to) => {
                    self.windows.insert(to, one.huge);
                    self.extra.remove_leftover(to);
                    if let Some(repeats) = self.repeats.remove(&one.window) {
                        self.repeats.insert(to, repeats);
                    }
                    moved.push((one.window, to));
                }
                Place::Pages { frame, first } => {
                    self.ends.split_by_others += 1;
                    self.repeats.remove(&one.window);
                    self.extra.record_moved(frame, first, one.before.resident);
                }
                Place::Nowhere => self.record_end(one.window, one.before, one.state, program)?,
            }
            missing.remove(&one.window);
        }
        Ok(moved)
    }

    /// Records a promotion that found `resident` pages in the window; its huge page begins at `frame`.
    pub fn record_promotion(
        &mut self,
        promotion: &Promotion,
        resident: Pages,
        observation: Observation,
        frame: Option<u64>,
    ) {
        let window = promotion.window;
        self.extra.add(policy::cost(resident));
        // Memory that an earlier promotion left there is not the program's own, nor are pages that it gave back since.
        let resident = self.extra.remove_leftover(window).map_or(resident, |before| before.min(resident));
        let before = Before { hot: promotion.hot, resident, walks: promotion.walks, observation };
        let times_split = self.splits.get(&window).copied().unwrap_or(0);
        let huge = HugeWindow { before: Some(before), frame, times_split, ..HugeWindow::default() };
        let earlier = self.windows.insert(window, huge).and_then(|huge| huge.before);
        let repeats = self.repeats.entry(window).or_default();
        if earlier.is_some() {
            self.ends.split_by_others += 1;
            repeats.split_by_others(self.now);
        }
        repeats.promoted(self.now);
    }

    /// Records a collapse that hit the program's next address space, and its split. The memory resident before is
    /// unknown: all of it may be masu's, unless the kernel returned the zero-filled pages.
    pub fn record_astray(&mut self, window: Window, split: Demoted) {
        match split {
            Demoted::Already { .. } => {}
            Demoted::Yes { returned, resident } => {
                self.ends.demoted += 1;
                if returned == Bytes(0) {
                    self.extra.record_leftover(window, Pages(0), resident);
                }
            }
            Demoted::No => {
                let observation = Observation::CutShort;
                let before = Before { hot: Pages(0), resident: Pages(0), walks: Rate::ZERO, observation };
                let huge = HugeWindow { before: Some(before), left_alone: true, ..HugeWindow::default() };
                self.windows.insert(window, huge);
            }
        }
        self.sum_up();
    }

    /// Records the result of a split.
    pub fn record_split(&mut self, window: Window, outcome: Demoted) {
        let huge = self.windows.remove(&window).unwrap_or_default();
        let is_ours = huge.before.is_some();
        let resident = match outcome {
            Demoted::No => {
                self.windows.insert(window, HugeWindow { left_alone: true, ..huge });
                return;
            }
            Demoted::Already { resident, end } => {
                if is_ours {
                    self.ends.add(end);
                }
                resident
            }
            Demoted::Yes { resident, .. } => {
                *self.splits.entry(window).or_insert(0) += 1;
                self.ends.demoted += u64::from(is_ours);
                resident
            }
        };
        if let Some(before) = huge.before {
            self.extra.record_split(window, before.resident, resident, policy::cost(before.resident));
        }
    }

    /// Records whether the accessed bit of a window was cleared with a flush.
    pub fn record_probe(&mut self, window: Window, probed: bool) {
        if let Some(huge) = self.windows.get_mut(&window) {
            huge.probed = probed;
        }
    }

    /// Counts the rounds without an access, at the end of one.
    pub fn count_idle_rounds(&mut self, views: &[WindowView]) {
        for view in views.iter().filter(|view| view.huge.is_some()) {
            let Some(huge) = self.windows.get_mut(&view.window) else { continue };
            huge.kept_rounds = huge.kept_rounds.saturating_add(1);
            if huge.kept.is_some() && huge.kept_rounds >= ASK_AGAIN_AFTER {
                huge.left_alone = false; // the program may have unlocked it
            }
            if view.walks > Rate::ZERO {
                (huge.idle_rounds, huge.probed) = (0, false);
            } else {
                huge.idle_rounds = huge.idle_rounds.saturating_add(1);
            }
        }
    }
}
