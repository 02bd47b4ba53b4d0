//! Windows that deserve a huge page and have none, measured between two scans.

use std::collections::{BTreeMap, BTreeSet};

use linux::Error;
use units::{Pages, Rate, Window};

use super::Target;
use crate::Refusal;
use crate::act;
use crate::policy::{self, Plan, Promotion};

/// Windows that should be huge and are not, at the moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Missing {
    /// Windows that can be promoted now.
    pub plan: Plan,
    /// Hot windows that never were huge, beyond noise.
    pub never: u64,
    /// Windows that were huge and were split by others (a fork), beyond noise.
    pub torn: u64,
}

impl Target {
    /// Measures the windows that wait for a reason that may pass, and those of masu that others may have split. A
    /// shared window is free for a promotion when its sharing has ended; other reasons are tried if `all`. The wait of
    /// windows that others split soon (`policy::repeat`) does not count: the caller's time is bounded.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn missing(&mut self, all: bool) -> Result<Missing, Error> {
        let waiting: BTreeMap<Window, Refusal> = self.refusals.may_pass().collect();
        let is_hot = |window: &Window| {
            let view = self.windows().binary_search_by_key(window, |view| view.window).ok();
            view.is_some_and(|at| policy::is_hot(&self.windows()[at], self.settings))
        };
        let split_by_others = self.huge.split_by_others().filter(is_hot);
        let torn = self.huge.promoted().map(|(window, ..)| window).chain(split_by_others);
        let all_windows: BTreeSet<Window> = waiting.keys().copied().chain(torn).collect();
        let (mut missing, mut never, mut split) = (Missing::default(), 0_u64, 0_u64);
        for window in all_windows {
            let Some(state) = self.process.program().state(window)? else { return Ok(Missing::default()) };
            if state.huge {
                self.refusals.remove(window);
                self.huge.record_found(window);
                continue;
            }
            if act::held(state) == 0 {
                continue; // given back or moved: the next scan tells
            }
            self.huge.record_state(window, state, self.process.program())?;
            if self.served.contains(&window) {
                split += 1
            } else {
                never += 1
            }
            let is_shared = waiting.get(&window).is_none_or(|why| *why == Refusal::Shared);
            if state.shared > Pages(0) {
                self.refusals.record(window, Refusal::Shared, self.round.number, self.process.program());
            } else if is_shared || all {
                let view = self.windows().binary_search_by_key(&window, |view| view.window).ok();
                let (hot, walks) =
                    view.map_or((Pages(0), Rate::ZERO), |at| (self.windows()[at].hot, self.windows()[at].walks));
                let cost = policy::cost(state.resident);
                missing.plan.promote.push(Promotion { window, cost, walks, hot, resident: state.resident });
            }
        }
        let noise = policy::noise(self.windows().len() as u64, self.settings);
        missing.never = if policy::is_noise(never, noise) { 0 } else { never };
        missing.torn = if policy::is_noise(split, noise) { 0 } else { split };
        Ok(missing)
    }
}
