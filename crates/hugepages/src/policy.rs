//! HPS's rule: promotion and split of 2 MiB windows, and end of scanning.
//!
//! Shimizu and Yamada, "アプリケーションレベルのメモリ管理を考慮した HugePage 割り当て機構", sections 3.2 and 5.2.2:
//! for each 2 MiB window (512 pages), when at least a quarter of its pages are accessed frequently, make the window
//! huge; when fewer are, but some, ask the program to compact them onto a huge page elsewhere; when none, leave it.
//!
//! | paper                       | here              | unit                          | paper's value  |
//! | アクティブページ数           | `hot`             | pages of a window, 0..=512    |                |
//! | 4 分の 1 (3.2, the example) | `hot_fraction`    | fraction of 512, above 0      | 1/4            |
//! | 閾値 of `acscount` (5.1.2)  | `hot_rate`        | page walks per second         | not given      |
//! | 自身を監視対象から外す (4.1) | [`Settling`]      | rounds without a change       | by the program |
//! | 公平な割り当て (3.2)         | [`share_turns`]   | saved walks per second a byte | left open      |
//!
//! We differ:
//! - **A budget.** A promotion costs `(512 − resident) · 4 KiB`; windows are taken by saved walks per byte until
//!   `max_extra_rss` of the resident memory is spent. Windows that are fully resident cost nothing and go first.
//! - **Demotion.** A huge window without an access for `idle_rounds` is split if that returns memory. This comes
//!   sooner (`idle_rounds_thin`) when most of it was never touched before its promotion. It comes later when it was
//!   split before and deserved a huge page again: the number of rounds doubles each time. Its translation may
//!   just have stayed in the TLB, so it is first *probed*: its accessed bit is cleared with a flush, and one more
//!   round must pass idle.
//! - The program is asked to compact if it announced that it can (`track`); otherwise such windows are counted
//!   (`Verdict::Compact`).
//!
//! No I/O, no clock, no randomness.

pub mod repeat;

use std::collections::BTreeSet;

use units::cast::fits;
use units::{Bytes, Fraction, NonZeroFraction, PAGES_PER_WINDOW, PageSize, Pages, Rate, Window};

/// Settings of the policy. No defaults: the paper's values are [`PAPER`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Fraction of a window's 512 pages that must be hot.
    pub hot_fraction: NonZeroFraction,
    /// Rate of page walks from which a page is hot.
    pub hot_rate: Rate,
    /// Memory that promotion may add, as a fraction of the memory resident without it.
    pub max_extra_rss: Fraction,
    /// Rounds without an access before a huge window is probed, then split.
    pub idle_rounds: u32,
    /// The same for a window with less than half of its pages resident before promotion.
    pub idle_rounds_thin: u32,
    /// Rounds without a change after which a program has settled.
    pub settle_rounds: u32,
    /// Largest fraction of the windows whose changes count as noise: a page at the threshold falls on either side of
    /// it.
    pub settle_noise: Fraction,
}

/// The paper's quarter, and our values where it gives none.
pub const PAPER: Settings = Settings {
    hot_fraction: NonZeroFraction::ratio(1, 4),
    hot_rate: HOT_RATE,
    max_extra_rss: Fraction::ZERO,
    idle_rounds: 3,
    idle_rounds_thin: 1,
    settle_rounds: 2,
    settle_noise: Fraction::ZERO,
};

/// Touched at least about every ten seconds: the longest observation can tell this from never.
pub const HOT_RATE: Rate = Rate::TENTH;

/// State of one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowView {
    /// Address of the window.
    pub window: Window,
    /// Pages walked to at `hot_rate` or more.
    pub hot: Pages,
    /// Pages in memory.
    pub resident: Pages,
    /// Page walks per second of all its pages: a huge page would save these.
    pub walks: Rate,
    /// State of a window that is already mapped by one entry.
    pub huge: Option<HugeView>,
    /// Decision of the program itself; `None` where the rule decides.
    pub preference: Option<Preference>,
}

/// Preference of a cooperating program for a window (section 3.2: the kernel gives material for the decision, and
/// takes no part in it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Make it huge, if memory and limits allow it.
    Promote,
    /// Leave it: the program may move its hot pages elsewhere.
    Leave,
}

/// A window that is huge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HugeView {
    /// Pages resident before masu promoted it; `None` when it was huge already.
    pub resident_before: Option<Pages>,
    /// Rounds without an access, up to this one.
    pub idle_rounds: u32,
    /// Its accessed bit was cleared with a flush at the end of the last round.
    pub probed: bool,
    /// Number of splits by masu after which it deserved a huge page again.
    pub times_split: u32,
}

/// Decision on a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Make it huge.
    Promote,
    /// Some pages are hot, too few: the program could compact them.
    Compact,
    /// No hot page.
    Leave,
    /// Huge, and it stays so.
    Keep,
    /// Huge and idle: clear its accessed bit with a flush, to be sure.
    Probe,
    /// Split it.
    Demote,
}

/// A window to be promoted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promotion {
    /// Address of the window.
    pub window: Window,
    /// Expected addition to the resident memory.
    pub cost: Bytes,
    /// Expected saving: page walks per second.
    pub walks: Rate,
    /// Hot pages.
    pub hot: Pages,
    /// Resident pages.
    pub resident: Pages,
}

/// Actions of this round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Windows to promote, the most worthwhile first.
    pub promote: Vec<Promotion>,
    /// Windows to probe.
    pub probe: Vec<Window>,
    /// Windows to demote.
    pub demote: Vec<Window>,
    /// Windows that deserve a huge page, but the budget is spent.
    pub over_budget: BTreeSet<Window>,
    /// Number of windows with each verdict.
    pub verdicts: Tally,
}

/// Windows by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All windows scanned.
    pub scanned: u64,
    /// With at least `hot_fraction` of their pages hot, including huge ones in use.
    pub hot: u64,
    /// Deserve a huge page, but the budget is spent.
    pub over_budget: u64,
    /// [`Verdict::Compact`].
    pub compact: u64,
    /// Hot pages of those: while they grow, a longer observation may yet find enough.
    pub compact_pages: u64,
}

/// Memory that promotion may still add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Resident memory of the program, without the memory that promotion added.
    pub base: Bytes,
    /// Memory that promotion has added.
    pub spent: Bytes,
}

impl Budget {
    /// Remainder of `max_extra_rss` of the base.
    pub fn left(&self, max_extra_rss: Fraction) -> Bytes {
        self.base.scaled(max_extra_rss.get()).saturating_sub(self.spent)
    }
}

/// Pages of a window that must be hot: `hot_fraction · 512`, rounded up, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a product of (0, 1] and 512")]
pub fn hot_pages_needed(hot_fraction: NonZeroFraction) -> Pages {
    Pages(((hot_fraction.get() * PAGES_PER_WINDOW as f64).ceil() as u64).clamp(1, PAGES_PER_WINDOW as u64))
}

/// Memory added by promoting a window with `resident` pages: `(512 − resident) · 4 KiB`.
pub fn cost(resident: Pages) -> Bytes {
    PageSize::Huge.bytes().saturating_sub(resident.bytes())
}

/// Plan for one program in this round. `windows` in any order; the same input always gives the same plan.
pub fn decide(windows: &[WindowView], budget: Budget, s: Settings) -> Plan {
    let mut plan = Plan::default();
    let mut deserving: Vec<Promotion> = Vec::new();
    for view in windows {
        plan.verdicts.scanned += 1;
        plan.verdicts.hot += u64::from(is_hot(view, s));
        match judge(view, s) {
            Verdict::Promote => deserving.push(Promotion {
                window: view.window,
                cost: cost(view.resident),
                walks: view.walks,
                hot: view.hot,
                resident: view.resident,
            }),
            Verdict::Compact => {
                plan.verdicts.compact += 1;
                plan.verdicts.compact_pages += view.hot.0;
            }
            Verdict::Probe => plan.probe.push(view.window),
            Verdict::Demote => plan.demote.push(view.window),
            Verdict::Leave | Verdict::Keep => {}
        }
    }
    deserving.sort_by(by_saved_walks_per_byte);
    let mut left = budget.left(s.max_extra_rss);
    for promotion in deserving {
        if promotion.cost <= left {
            left = left - promotion.cost;
            plan.promote.push(promotion);
        } else {
            plan.over_budget.insert(promotion.window);
            plan.verdicts.over_budget += 1;
        }
    }
    plan
}

/// Whether enough of its pages are hot; for a huge window, which has one accessed bit, whether it is in use.
pub fn is_hot(view: &WindowView, s: Settings) -> bool {
    match view.huge {
        Some(_) => view.walks > Rate::ZERO,
        None => view.resident > Pages(0) && view.hot >= hot_pages_needed(s.hot_fraction),
    }
}

/// The rule for one window, before the budget.
pub fn judge(view: &WindowView, s: Settings) -> Verdict {
    match view.huge {
        Some(huge) => judge_huge(huge, s),
        None if view.resident > Pages(0) && view.preference == Some(Preference::Promote) => Verdict::Promote,
        None if view.preference.is_some() => Verdict::Leave,
        None if is_hot(view, s) => Verdict::Promote,
        None if view.resident > Pages(0) && view.hot > Pages(0) => Verdict::Compact,
        None => Verdict::Leave,
    }
}

fn judge_huge(huge: HugeView, s: Settings) -> Verdict {
    if is_full(huge) {
        return Verdict::Keep; // splitting it would return nothing
    }
    match huge {
        HugeView { idle_rounds: 0, .. } => Verdict::Keep,
        HugeView { probed: true, .. } => Verdict::Demote,
        HugeView { idle_rounds, .. } if idle_rounds >= idle_rounds_needed(huge, s) => Verdict::Probe,
        _ => Verdict::Keep,
    }
}

/// All of it was resident before: a split would return nothing.
pub fn is_full(huge: HugeView) -> bool {
    huge.resident_before == Some(Pages(PAGES_PER_WINDOW as u64))
}

/// Idle rounds before a window is probed. A window swept every few seconds is idle in most rounds. It would be
/// promoted and split without end: each split was too early, so the next one comes twice as late.
fn idle_rounds_needed(huge: HugeView, s: Settings) -> u32 {
    let thin = huge.resident_before.is_some_and(|before| before.0 < PAGES_PER_WINDOW as u64 / 2);
    let first = if thin { s.idle_rounds_thin } else { s.idle_rounds };
    first.saturating_mul(1 << huge.times_split.min(6))
}

/// Whether a huge window is a candidate for a split: from the second idle round on, later when it was
/// split too early before. A window swept every few seconds is idle in some rounds, and must not keep the program from
/// settling.
pub fn is_split_candidate(huge: HugeView, s: Settings) -> bool {
    let half = idle_rounds_needed(huge, s).div_ceil(2);
    let from = if huge.times_split == 0 { half.min(2) } else { half + 1 };
    !is_full(huge) && (huge.probed || huge.idle_rounds >= from.max(1))
}

/// Most saved walks per byte first; windows without cost before all others, by walks; equal ones by address.
fn by_saved_walks_per_byte(a: &Promotion, b: &Promotion) -> std::cmp::Ordering {
    let free_first = (b.cost == Bytes(0)).cmp(&(a.cost == Bytes(0)));
    free_first.then_with(|| worth(b).total_cmp(&worth(a))).then_with(|| a.window.cmp(&b.window))
}

#[expect(clippy::cast_precision_loss, reason = "a ratio to sort by")]
fn worth(promotion: &Promotion) -> f64 {
    promotion.walks.get() / promotion.cost.0.max(1) as f64
}

/// Order of promotion: the plans of several programs as one list, each entry with its program's index in `plans`.
///
/// The paper asks for this fairness (3.2), and Ingens does not give it. Neither first come, first served, nor equal
/// numbers: the byte that saves most walks is first.
pub fn share_turns(plans: &[Plan]) -> Vec<(usize, Promotion)> {
    let mut all: Vec<(usize, Promotion)> = plans
        .iter()
        .enumerate()
        .flat_map(|(program, plan)| plan.promote.iter().map(move |promotion| (program, *promotion)))
        .collect();
    all.sort_by(|a, b| by_saved_walks_per_byte(&a.1, &b.1).then(a.0.cmp(&b.0)));
    all
}

/// Windows of a plan that need not wait for the end of the round: they cost nothing, so there is no choice to make
/// between them. Empty for a plan short enough to be carried out in no time: then all windows are evidence for
/// [`what_if`].
pub fn at_once(plan: &Plan) -> Vec<Promotion> {
    let free: Vec<Promotion> = plan.promote.iter().filter(|promotion| promotion.cost == Bytes(0)).copied().collect();
    if free.len() < AT_ONCE_FROM { Vec::new() } else { free }
}

/// A tenth of a second's work, and four controls on average.
const AT_ONCE_FROM: usize = 64;

/// One window in sixteen, spread without a pattern. It is promoted only when its round ends. Until then it tells how
/// hot the others, which were promoted at once, would have turned out to be ([`what_if`]).
pub fn is_control(window: Window) -> bool {
    // The golden ratio's multiplier: consecutive windows fall evenly, and no stride of a program hits one rest only.
    window.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0
}

/// Windows that deserve a huge page per undecided window allowed: a program always has some undecided ones, where its
/// mappings begin and end.
const UNDECIDED_OF_WANTED: u64 = 32;

/// Whether a longer observation would not change a verdict. The last scan has shown no other window that deserves a
/// huge page. In addition, hardly a window is undecided, or the hot pages of those did not grow by a tenth in twice
/// the time. Where pages are touched at random, all of them are seen in time, a few at each scan: then a verdict
/// on the first of them would depend on the length of the observation.
pub fn is_steady(before: Option<Growth>, now: Growth) -> bool {
    let same_pages = |before: Growth| now.undecided_pages * 10 <= before.undecided_pages * 11;
    before.is_some_and(|before| are_as_many_wanted(before, now) && (is_decided(now) || same_pages(before)))
}

/// Whether hardly a window has some hot pages and too few.
pub fn is_decided(now: Growth) -> bool {
    now.wanted > 0 && now.undecided <= now.wanted / UNDECIDED_OF_WANTED
}

/// Whether as many windows deserve a huge page as at the last scan, except for noise.
pub fn are_as_many_wanted(before: Growth, now: Growth) -> bool {
    is_noise(before.wanted.abs_diff(now.wanted), now.noise)
}

/// Values compared between one scan and the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Growth {
    /// Number of windows whose changes count as noise: [`noise`].
    pub noise: f64,
    /// Windows that are huge by masu or deserve to be.
    pub wanted: u64,
    /// Windows with some hot pages, too few.
    pub undecided: u64,
    /// Hot pages of those.
    pub undecided_pages: u64,
}

impl std::iter::Sum for Growth {
    fn sum<I: Iterator<Item = Growth>>(all: I) -> Growth {
        all.fold(Growth::default(), |sum, one| Growth {
            noise: sum.noise + one.noise,
            wanted: sum.wanted + one.wanted,
            undecided: sum.undecided + one.undecided,
            undecided_pages: sum.undecided_pages + one.undecided_pages,
        })
    }
}

/// Result of another hot fraction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WhatIf {
    /// The hot fraction.
    pub hot_fraction: NonZeroFraction,
    /// Huge windows at that fraction.
    pub windows: u64,
    /// Memory that they would add, without a budget.
    pub extra_rss: Bytes,
}

/// Fractions that every report compares.
pub const WHAT_IF: [NonZeroFraction; 4] = [
    NonZeroFraction::ratio(1, 8),
    NonZeroFraction::ratio(1, 4),
    NonZeroFraction::ratio(1, 2),
    NonZeroFraction::ratio(1, 1),
];

/// Length of a window's observation before its promotion, if it was promoted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Observation {
    /// For the whole round.
    #[default]
    Whole,
    /// Until it deserved a huge page; its later accesses are unknown.
    CutShort,
    /// For the whole round, though it deserved a huge page before: [`is_control`].
    Control,
}

/// A window before promotion: the input of [`what_if`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// The window.
    pub view: WindowView,
    /// Length of its observation.
    pub observation: Observation,
}

/// For each of [`WHAT_IF`], the huge windows and the added memory, from the same observation. A window that was huge
/// before masu came stays so and adds nothing. Windows with an observation cut short count in the proportion of their
/// controls; where there are no controls, they count as observed.
pub fn what_if(evidence: &[Evidence]) -> [WhatIf; 4] {
    let controls = evidence.iter().filter(|one| one.observation == Observation::Control).count() as u64;
    WHAT_IF.map(|hot_fraction| {
        let needed = hot_pages_needed(hot_fraction);
        let huge_already = |view: &WindowView| view.huge.is_some_and(|huge| huge.resident_before.is_none());
        let would = |view: &WindowView| view.resident > Pages(0) && view.hot >= needed;
        let (mut sure, mut cut_short) = ([0, 0], [0, 0]);
        let mut controls_that_would = 0;
        for Evidence { view, observation } in evidence {
            let (sum, added) = match observation {
                _ if huge_already(view) => (&mut sure, Bytes(0)),
                Observation::CutShort if controls > 0 => (&mut cut_short, cost(view.resident)),
                _ if !would(view) => continue,
                _ => (&mut sure, cost(view.resident)),
            };
            controls_that_would += u64::from(*observation == Observation::Control);
            sum[0] += 1;
            sum[1] += added.0;
        }
        let [windows, extra] = cut_short.map(|sum| rounded_ratio(sum, controls_that_would, controls.max(1)));
        WhatIf { hot_fraction, windows: sure[0] + windows, extra_rss: Bytes(sure[1] + extra) }
    })
}

/// `n · of / parts`, rounded.
fn rounded_ratio(n: u64, of: u64, parts: u64) -> u64 {
    let exact = (u128::from(n) * u128::from(of) + u128::from(parts / 2)) / u128::from(parts);
    fits(exact)
}

/// Number of windows, out of `scanned`, whose changes count as noise.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub fn noise(scanned: u64, s: Settings) -> f64 {
    scanned as f64 * s.settle_noise.get()
}

/// Whether so few changes are noise.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
pub fn is_noise(changed: u64, noise: f64) -> bool {
    changed as f64 <= noise
}

/// Counter of rounds without a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settling {
    quiet_rounds: u32,
}

impl Settling {
    /// Adds one round with `changed` of `scanned` windows changed; true when the program has settled.
    pub fn after_round(&mut self, changed: u64, scanned: u64, s: Settings) -> bool {
        self.quiet_rounds = if is_noise(changed, noise(scanned, s)) { self.quiet_rounds.saturating_add(1) } else { 0 };
        self.quiet_rounds >= s.settle_rounds
    }
}

#[cfg(test)]
mod tests;
