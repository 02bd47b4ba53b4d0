//! Refused windows of a program, and their retries.

use std::collections::{BTreeMap, BTreeSet};

use units::Window;

use crate::Refusal;
use crate::policy::{self, Settings, WindowView};
use crate::program::Program;
use crate::refusal::Traits;

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

/// All refused windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    windows: BTreeMap<Window, Refused>,
    /// Windows with MADV_NOHUGEPAGE, cached: the answer takes a reading of smaps, which is slow.
    forbidden: BTreeSet<Window>,
}

impl Refusals {
    /// Whether a window may be promoted in this round.
    pub fn may_try(&self, window: Window, round: u32) -> bool {
        self.windows.get(&window).is_none_or(|refused| refused.may_try_in(round))
    }

    /// Reason of a hot window that waits for another try. A window due for another try is judged by the plan.
    pub fn why_waiting(&self, window: Window, round: u32) -> Option<Refusal> {
        self.windows.get(&window).filter(|refused| refused.hot && !refused.may_try_in(round)).map(|one| one.why)
    }

    /// Last reason of a hot window that is due for another try.
    pub fn why_due(&self, window: Window) -> Option<Refusal> {
        self.windows.get(&window).filter(|refused| refused.hot).map(|one| one.why)
    }

    /// Records the refusal of a window in a round.
    pub fn record(&mut self, window: Window, why: Refusal, round: u32, program: &dyn Program) {
        let times = self.windows.get(&window).map_or(0, |refused| refused.times) + 1;
        let is_vague = matches!(why, Refusal::Invalid | Refusal::Busy | Refusal::Shared);
        let why = why.refined(if is_vague { self.traits(window, program) } else { Traits::default() }, times);
        // Not in this round, for any reason: the plan works around refused windows.
        let again_in_round = why.retry_after_rounds(times).map(|rounds| round.saturating_add(rounds.max(1)));
        self.windows.insert(window, Refused { why, times, again_in_round, hot: true });
    }

    fn traits(&mut self, window: Window, program: &dyn Program) -> Traits {
        if self.forbidden.contains(&window) {
            return Traits { forbidden: true, ..Traits::default() };
        }
        let traits = program.traits(window);
        if traits.forbidden {
            self.forbidden.insert(window);
        }
        traits
    }

    /// Hot windows without a huge page for a reason that may pass.
    pub fn may_pass(&self) -> impl Iterator<Item = (Window, Refusal)> + '_ {
        self.windows.iter().filter(|(_, one)| one.hot && one.why.may_pass()).map(|(window, one)| (*window, one.why))
    }

    /// Removes a window that is huge now.
    pub fn remove(&mut self, window: Window) {
        self.windows.remove(&window);
    }

    /// Keeps the windows that a scan shows mapped and not huge. `views` in order of address.
    pub fn update(&mut self, views: &[WindowView], s: Settings) {
        self.windows.retain(|window, refused| {
            let Ok(at) = views.binary_search_by_key(window, |view| view.window) else { return false };
            refused.hot = policy::is_hot(&views[at], s);
            views[at].huge.is_none()
        });
    }
}
