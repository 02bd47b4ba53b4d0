//! Requests ahead of a stream.

use super::super::stream::{self, Step, Stream};
use super::super::{MAX_UNIT_LOG2, Run, pages_between, unit_around};
use super::Sites;
use super::fetch_plan::{Fault, FetchPlan, Kind, Limits, SERIES, Series};
use crate::cast::fits;

/// Pages fetched at once when the rest of the unit can come in the background: 2^n.
pub(super) const FIRST_PIECE_LOG2: u8 = 4;

/// The largest window ahead of a stream: 2^n pages (4 MiB).
pub(super) const MAX_WINDOW_LOG2: u8 = 10;

/// First window of a stream found to be in order: at least 2^n pages.
const FIRST_WINDOW_LOG2: u8 = 3;

/// The longest series of steps: 2^n.
pub(super) const MAX_STEPS_LOG2: u8 = 5;

/// The largest unit for pages never touched before: 2^n pages (64 KiB).
const MAX_FRESH_LOG2: u8 = 4;

/// Largest number of pages skipped because they were present already.
const MOST_PASSED_OVER: u32 = 256;

/// One fault, with its context.
pub(super) struct Asked<'a, Here> {
    pub(super) fault: &'a Fault,
    pub(super) limits: &'a Limits,
    /// Limit of the fetch plan.
    pub(super) area: Run,
    /// The unit of the site: 2^n pages.
    pub(super) unit: u8,
    /// Index of the site in the table.
    pub(super) at: usize,
    pub(super) here: &'a Here,
}

impl<Here: Fn(u64) -> bool> Asked<'_, Here> {
    fn background(&self) -> bool {
        self.limits.ahead_page_ns != 0
    }
}

impl Sites {
    /// Finds the fault's stream and requests pages ahead of it.
    pub(super) fn go_on(&mut self, asked: &Asked<'_, impl Fn(u64) -> bool>, plan: &mut FetchPlan) {
        let page = asked.fault.page;
        let clock = self.clock;
        let streams = &mut self.sites[asked.at].streams;
        let (n, step) = streams.follow(page, clock, asked.here);
        let before = streams.stream[n];
        let in_steps = before.way == stream::STEPS;
        let steps = if step == Step::Stride { before.steps.saturating_add(1) } else { 0 };
        match step {
            Step::Trigger => streams.judge(true),
            Step::Stride => streams.goes_on(steps),
            Step::New | Step::Near => {
                streams.end_of_line(&before);
                if before.trigger != 0 {
                    streams.judge(false);
                    streams.depth = streams.depth.saturating_sub(u8::from(in_steps));
                }
            }
            Step::Up | Step::Down => {}
        }
        let limit = if step == Step::Up && !asked.background() { self.stream_limit(n, asked) } else { 0 };
        plan.fetch = fetch(asked, plan.fetch, step, &before, limit);
        let streams = &mut self.sites[asked.at].streams;
        let fetched = plan.fetch;
        let hits = before.hits.saturating_add(1);
        let deeper = before.depth.saturating_add(1);
        let first_window = asked.unit.max(FIRST_WINDOW_LOG2);
        let next = match (step, before.way) {
            (Step::Trigger, stream::STEPS) => {
                streams.depth = deeper.min(MAX_STEPS_LOG2);
                Stream { hits, depth: deeper.min(MAX_STEPS_LOG2), ..before }
            }
            (Step::Trigger, _) => Stream { hits, depth: deeper.min(MAX_WINDOW_LOG2), ..before },
            (Step::Up, stream::UP) => Stream { hits, depth: deeper, high: fetched.end_page(), ..before },
            (Step::Down, stream::DOWN) => Stream { hits, depth: deeper, low: fetched.first_page, ..before },
            (Step::Up | Step::Down, _) => Stream {
                hits: 1,
                depth: first_window,
                way: if step == Step::Up { stream::UP } else { stream::DOWN },
                low: fetched.first_page,
                high: fetched.end_page(),
                ..before
            },
            (Step::Stride | Step::Near | Step::New, _) => Stream {
                low: fetched.first_page,
                high: fetched.end_page(),
                trigger: 0,
                next: 0,
                hits: if step == Step::Stride { hits } else { 0 },
                depth: streams.depth,
                steps,
                requested: 0,
                way: if streams.trust >= stream::TRUSTED { stream::STEPS } else { stream::UNKNOWN },
                ..before
            },
        };
        streams.stream[n] = Stream { last: page, touched: clock, ..next };
        if asked.fault.kind == Kind::FirstTouch {
            return;
        }
        let deserved = streams.deserves(next.hits);
        plan.probation = next.hits >= 2 && self.probation(asked.at);
        if asked.background() && deserved {
            match next.way {
                stream::UP | stream::DOWN => self.window(n, asked, plan),
                stream::STEPS => self.steps(n, asked, plan),
                _ => {}
            }
        }
    }

    /// Pages that the stream may be ahead of its site now.
    fn stream_limit(&mut self, n: usize, asked: &Asked<'_, impl Fn(u64) -> bool>) -> u32 {
        self.activate(n, asked);
        self.window_limit(asked.limits) >> self.sites[asked.at].streams.cut.min(31)
    }

    /// Counts a stream as active once an epoch when it requests pages ahead.
    fn activate(&mut self, n: usize, asked: &Asked<'_, impl Fn(u64) -> bool>) {
        if self.clock.wrapping_sub(self.epoch_began) >= asked.limits.budget_pages / 2 {
            self.epoch_began = self.clock;
            self.epoch = self.epoch.wrapping_add(1);
            self.active_before = self.active_now;
            self.active_now = 0;
        }
        let epoch = fits::<_, u8>(self.epoch % 255) + 1;
        let stream = &mut self.sites[asked.at].streams.stream[n];
        if stream.epoch != epoch {
            stream.epoch = epoch;
            self.active_now = self.active_now.saturating_add(1);
        }
    }

    /// Requests the next window of a stream in order: behind the pages that are present. Its first page in the
    /// direction of the stream is left unmapped.
    fn window(&mut self, n: usize, asked: &Asked<'_, impl Fn(u64) -> bool>, plan: &mut FetchPlan) {
        let limit = self.stream_limit(n, asked);
        let stream = &mut self.sites[asked.at].streams.stream[n];
        stream.trigger = 0;
        let Some(most) = limit.checked_ilog2() else { return };
        stream.depth = stream.depth.min(fits(most));
        let up = stream.way == stream::UP;
        let mut edge = if up { stream.high } else { stream.low };
        let mut looked = 0;
        // The page that would be next: at the edge, or before it.
        let at_edge = |edge: u64| if up { Some(edge) } else { edge.checked_sub(1) };
        while let Some(page) = at_edge(edge).filter(|page| asked.area.contains(*page)) {
            if looked == MOST_PASSED_OVER || !(asked.here)(page) {
                break;
            }
            edge = if up { edge + 1 } else { edge - 1 };
            looked += 1;
        }
        let pages = 1u32 << stream.depth.max(asked.limits.base_log2.min(MAX_UNIT_LOG2));
        let first = if up { edge } else { edge.saturating_sub(u64::from(pages)) };
        let window = Run { first_page: first, pages: if up { pages } else { pages_between(first, edge) } };
        let window = window.within(asked.area);
        if window.pages == 0 {
            return;
        }
        let run_pages = window.pages.min(1 << MAX_UNIT_LOG2);
        let runs = fits(window.pages.div_ceil(run_pages));
        let marker = if up { window.first_page } else { window.end_page() - 1 };
        let (first_page, stride) = if up {
            stream.high = window.end_page();
            (window.first_page, i64::from(run_pages))
        } else {
            stream.low = window.first_page;
            (window.end_page() - u64::from(run_pages), -i64::from(run_pages))
        };
        stream.trigger = marker.saturating_add(1);
        plan.add_marker(marker);
        plan.add(Series { first_page, stride, run_pages, runs, align_log2: u16::from(asked.limits.base_log2) });
    }

    /// Requests the next series of a stream in steps. The page of its first step is left unmapped.
    fn steps(&mut self, n: usize, asked: &Asked<'_, impl Fn(u64) -> bool>, plan: &mut FetchPlan) {
        self.activate(n, asked);
        let limit = self.window_limit(asked.limits) >> asked.unit;
        let (stride, line) = (self.sites[asked.at].streams.stride, self.sites[asked.at].streams.line);
        let stream = &mut self.sites[asked.at].streams.stream[n];
        let from = if stream.trigger != 0 && stream.next != 0 { Some(stream.next) } else { None };
        stream.trigger = 0;
        let Some(most) = limit.checked_ilog2() else { return };
        stream.depth = stream.depth.min(fits(most)).min(MAX_STEPS_LOG2);
        let Some(mut first) = from.or(stream.last.checked_add_signed(stride)) else { return };
        let rest_of_line = if line == 0 { u16::MAX } else { line.saturating_sub(stream.steps) };
        let wanted = (1u16 << stream.depth).min(rest_of_line);
        let mut passed_over = 0;
        while passed_over < wanted && asked.area.contains(first) && (asked.here)(first) {
            let Some(further) = first.checked_add_signed(stride) else { return };
            first = further;
            passed_over += 1;
        }
        let mut runs = 0;
        let mut next = first;
        while runs < wanted && asked.area.contains(next) && !(asked.here)(next) {
            runs += 1;
            let Some(further) = next.checked_add_signed(stride) else { break };
            next = further;
        }
        if runs == 0 {
            return;
        }
        stream.steps = stream.steps.saturating_add(passed_over).saturating_add(runs);
        stream.requested = runs;
        stream.next = next;
        stream.trigger = first.saturating_add(1);
        plan.add_marker(first);
        let align_log2 = u16::from(asked.unit);
        plan.add(Series { first_page: first, stride, run_pages: 1 << asked.unit, runs, align_log2 });
    }
}

/// Pages fetched at once: the unit; or more, at most `limit` pages, where a stream goes up in order and nothing comes
/// in the background.
fn fetch(asked: &Asked<'_, impl Fn(u64) -> bool>, unit: Run, step: Step, before: &Stream, limit: u32) -> Run {
    let page = asked.fault.page;
    // Only aligned runs that begin with this page: the pages before it were passed.
    let aligned = fits(page.trailing_zeros());
    let going_up = step == Step::Up && before.way == stream::UP;
    match asked.fault.kind {
        Kind::FirstTouch => {
            let log2 = if step == Step::Up { before.hits.saturating_add(1).min(MAX_FRESH_LOG2) } else { 0 };
            unit_around(page, log2.min(aligned).max(asked.limits.base_log2)).within(asked.area)
        }
        Kind::Stored if going_up && !asked.background() => {
            let fits = fits(limit.max(1).ilog2());
            let largest = asked.limits.max_unit_log2.min(fits);
            unit_around(page, before.depth.saturating_add(1).min(aligned).min(largest).max(asked.unit))
                .within(asked.area)
        }
        _ => unit,
    }
}

/// Moves the rest of a large unit to the background.
pub(super) fn split(asked: &Asked<'_, impl Fn(u64) -> bool>, plan: &mut FetchPlan) {
    let piece_log2 = FIRST_PIECE_LOG2.max(asked.limits.base_log2);
    let whole = plan.fetch;
    if !asked.background() || whole.pages <= 1 << piece_log2.min(MAX_UNIT_LOG2) {
        return;
    }
    let piece = unit_around(asked.fault.page, piece_log2).within(whole);
    plan.fetch = piece;
    let rest = |first: u64, end: u64| {
        let pages = pages_between(first, end);
        Series { first_page: first, stride: 0, run_pages: pages, runs: u16::from(pages > 0), align_log2: 0 }
    };
    let behind = rest(piece.end_page(), whole.end_page());
    let before = rest(whole.first_page, piece.first_page);
    // The rest of the unit first, then the pages ahead.
    let ahead = plan.ahead[0];
    plan.ahead = [Series::NOTHING; SERIES];
    for series in [behind, before, ahead] {
        if series.runs > 0 {
            plan.add(series);
        }
    }
}
