//! Windows of a program by their state at the last look, and promotions by their end. Each window is in one column,
//! and each promotion has one end, so both sums hold: the report prints them.

use std::collections::BTreeMap;

use units::{Bytes, Pages};

use super::Target;
use crate::Refusal;
use crate::act::End;
use crate::policy::{self, Verdict, WindowView};

/// Windows by their state at the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Huge, by masu or not.
    pub huge: u64,
    /// Some pages hot, too few.
    pub too_few: u64,
    /// No page hot, or left to the program.
    pub cold: u64,
    /// To be promoted, and not promoted yet.
    pub waiting: u64,
    /// Hot and not huge, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Memory resident in those.
    pub refused_resident: BTreeMap<Refusal, Bytes>,
}

/// State of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Huge,
    TooFew,
    Cold,
    Waiting,
    Refused(Refusal),
}

impl Columns {
    /// Sum of all columns.
    pub fn seen(&self) -> u64 {
        let others = self.huge + self.too_few + self.cold + self.waiting;
        others + self.refused.values().sum::<u64>()
    }

    fn add(&mut self, column: Column, resident: Pages) {
        match column {
            Column::Huge => self.huge += 1,
            Column::TooFew => self.too_few += 1,
            Column::Cold => self.cold += 1,
            Column::Waiting => self.waiting += 1,
            Column::Refused(why) => {
                *self.refused.entry(why).or_insert(0) += 1;
                *self.refused_resident.entry(why).or_default() += resident.bytes();
            }
        }
    }
}

/// Ends of the promotions that did not last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Split by masu.
    pub demoted: u64,
    /// A part was given back by the program.
    pub torn: u64,
    /// Given back whole by the program, or gone with an exec.
    pub unmapped: u64,
    /// Small again with all of its pages: a fork, reclaim, a change of protection.
    pub split_by_others: u64,
}

impl Ends {
    /// Sum of all ends.
    pub fn sum(self) -> u64 {
        self.demoted + self.torn + self.unmapped + self.split_by_others
    }

    /// Counts one.
    pub(super) fn add(&mut self, end: End) {
        match end {
            End::Torn => self.torn += 1,
            End::Unmapped | End::GivenBackAndFilled => self.unmapped += 1,
            End::SplitByOthers => self.split_by_others += 1,
        }
    }
}

impl Target {
    /// The windows of the last look, with what was done since.
    pub fn columns(&self) -> Columns {
        let mut columns = Columns::default();
        let left = self.budget().map_or(Bytes(0), |budget| budget.left(self.settings.max_extra_rss));
        for view in self.windows() {
            columns.add(self.column(view, left), view.resident);
        }
        let huge = self.huge.states();
        let is_in_view =
            |window: &_| self.windows().binary_search_by_key(window, |view: &WindowView| view.window).is_ok();
        let ineligible = self.scan.observed.ineligible.iter().filter(|(window, _)| !huge.contains_key(window));
        for (_, (why, resident)) in ineligible.filter(|(window, _)| !is_in_view(window)) {
            columns.add(Column::Refused(*why), *resident);
        }
        // Huge, though the scan did not show it: inaccessible for the moment.
        huge.keys().filter(|window| !is_in_view(window)).for_each(|_| columns.add(Column::Huge, Pages(0)));
        columns
    }

    fn column(&self, view: &WindowView, budget_left: Bytes) -> Column {
        if self.huge.states().contains_key(&view.window) {
            return Column::Huge;
        }
        if let Some(why) = self.refusals.why_waiting(view.window, self.round.number) {
            return Column::Refused(why);
        }
        if view.huge.is_some() {
            // Split since the scan: by masu, because it was idle, or by others.
            return match self.served.contains(&view.window) {
                true if !self.huge.may_promote(view.window) => Column::Refused(Refusal::SplitAgain),
                true => Column::Waiting,
                false => Column::Cold,
            };
        }
        if self.scan.plan.over_budget.contains(&view.window) {
            return Column::Refused(self.why_over_budget(view, budget_left));
        }
        if !self.huge.may_promote(view.window) && policy::is_hot(view, self.settings) {
            return Column::Refused(Refusal::SplitAgain);
        }
        let view = WindowView { preference: self.preference(view.window), ..*view };
        match policy::judge(&view, self.settings) {
            // Refused before, planned again, and not tried yet: the run ended before.
            Verdict::Promote => self.refusals.why_due(view.window).map_or(Column::Waiting, Column::Refused),
            Verdict::Compact => Column::TooFew,
            Verdict::Leave | Verdict::Keep | Verdict::Probe | Verdict::Demote => Column::Cold,
        }
    }

    /// Lazily freed pages are the reason if the budget would do without them.
    fn why_over_budget(&self, view: &WindowView, budget_left: Bytes) -> Refusal {
        let freed = self.round.lazily_freed.get(&view.window).copied().unwrap_or_default();
        let without = policy::cost(Pages(view.resident.0 + freed.0));
        if freed > Pages(0) && without <= budget_left { Refusal::LazilyFreed } else { Refusal::OverBudget }
    }

    /// Hot windows without a huge page, by reason, now.
    pub fn refused(&self) -> BTreeMap<Refusal, u64> {
        self.columns().refused
    }

    /// Ends of the promotions that did not last.
    pub fn ends(&self) -> Ends {
        self.huge.ends()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_count_and_all_are_in_the_sum() {
        let mut ends = Ends { demoted: 1, ..Ends::default() };
        [End::Torn, End::SplitByOthers, End::Unmapped, End::Torn].into_iter().for_each(|end| ends.add(end));
        assert_eq!(ends, Ends { demoted: 1, torn: 2, unmapped: 1, split_by_others: 1 });
        assert_eq!(ends.sum(), 5);
    }
}
