//! One run from a script, and the comparison of masu's report with the world.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use hugepages::attach::{self, Until};
use hugepages::report::Report;
use hugepages::target::{Phase, Target};
use linux::Pid;
use units::cast::fits;
use units::{Bytes, Pages};

use super::control::ModelControl;
use super::program::ModelProgram;
use super::script::Script;
use super::source::ModelSource;
use super::space::cost;
use super::world::{COLLAPSE, Coming, Shared, World};

/// A finished run.
pub struct Run {
    /// Settings and events of the run.
    pub script: Script,
    /// The programs after the run.
    pub world: Shared,
    /// masu's state.
    pub targets: Vec<Target>,
}

/// The world at the start of a script.
pub fn world(script: &Script) -> Shared {
    let world = World {
        now: Duration::ZERO,
        spaces: script.spaces.clone(),
        events: script.events.clone(),
        stop: None,
        horizon: script.horizon,
        returns_zero_pages: script.returns_zero_pages,
        policy: script.policy,
        dry_run: script.settings.dry_run,
        urgent: false,
        preallocation: script.preallocation,
        undoing: false,
        moving: false,
        looks_for_torn: false,
        looked_for_torn: false,
        calls: 0,
        to_wake: false,
        to_come: script.come_at.iter().zip(0..script.spaces.len()).map(coming).collect(),
        turns: Vec::new(),
        broken: Vec::new(),
    };
    Rc::new(RefCell::new(world))
}

/// Carries out a script: attaches to all its programs and runs the loop to its end.
pub fn run(script: Script) -> Run {
    let world = world(&script);
    let mut targets = Vec::new();
    for index in script.come_at.len()..script.spaces.len() {
        targets.extend(target(&world, index));
    }
    let mut control = ModelControl(world.clone(), Vec::new());
    attach::attach(&mut targets, script.settings, &mut control);
    targets.extend(control.1);
    targets.sort_by_key(|target| target.pid);
    Run { script, world, targets }
}

/// Target of the program with this index; `None` when it ended before masu came.
pub fn target(world: &Shared, index: usize) -> Option<Target> {
    let pid = Pid(fits::<usize, i32>(index) + 1);
    let policy = world.borrow().policy;
    let (program, source) = (ModelProgram::new(world, index), ModelSource::new(world, index));
    Target::new(pid, "model".to_owned(), Box::new(program), Box::new(source), policy).ok()
}

fn coming((at, program): (&Duration, usize)) -> Coming {
    Coming { at: *at, program, woken: false }
}

impl Run {
    /// Violations of the guarantees that hold after any script.
    pub fn broken(&mut self) -> Vec<String> {
        let failures: Vec<String> =
            self.targets.iter().filter_map(|t| t.failure.as_ref()).map(ToString::to_string).collect();
        for failure in failures {
            self.blame(format!("the loop gave up on a program: {failure}"));
        }
        self.check_end();
        self.check_stop();
        self.world.borrow_mut().events.clear();
        for index in 0..self.targets.len() {
            self.check_counts(index);
            self.look_once_more(index);
            self.check_what_is_huge(index);
        }
        if !self.script.settings.dry_run {
            self.undo();
        }
        std::mem::take(&mut self.world.borrow_mut().broken)
    }

    fn blame(&self, what: String) {
        self.world.borrow_mut().blame(|| what);
    }

    /// Program of a target: programs that ended before masu came have none.
    fn program(&self, index: usize) -> usize {
        fits(self.targets[index].pid.0 - 1)
    }

    fn check_end(&self) {
        let world = self.world.borrow();
        let stopped = world.stop.is_some();
        let ended = self.targets.iter().all(|target| target.phase == Phase::Ended);
        let as_asked = match self.script.settings.until {
            Until::Settled => {
                let settled = self.targets.iter().all(|target| target.phase != Phase::Watching);
                settled || world.now >= attach::settle_within(&self.targets)
            }
            // One call may be under way when the time is over, and the host may sleep in it.
            Until::For(time) => world.now >= time,
            Until::Stopped => false,
        };
        let dry = self.script.settings.dry_run && !matches!(self.script.settings.until, Until::For(_));
        let urgent = world.urgent;
        drop(world);
        if self.world.borrow().spaces.iter().any(|space| space.has_preallocated) {
            self.blame("a huge page was preallocated and kept".to_owned());
        }
        if urgent {
            self.blame("the loop ended with a raised priority".to_owned());
        }
        if !(stopped || ended || as_asked || dry) {
            self.blame("the loop ended without a reason".to_owned());
        }
    }

    /// After Ctrl-C only the call under way is finished.
    fn check_stop(&self) {
        let Some(stop) = self.world.borrow().stop else { return };
        if stop.advice > 1 {
            self.blame(format!("{} calls for advice after Ctrl-C", stop.advice));
        }
        let slept: Duration = self.world.borrow().now.saturating_sub(stop.at);
        // Without waits, only the calls under way take time, unless the host sleeps.
        let sleeps = self.script.events.iter().any(|event| matches!(event.change, super::script::Change::Sleep(_)));
        if slept > COLLAPSE * 10 && !sleeps {
            self.blame(format!("the loop went on for {slept:?} after Ctrl-C"));
        }
    }

    fn check_counts(&self, index: usize) {
        let target = &self.targets[index];
        let (promoted, demoted, returned, ended) = {
            let world = self.world.borrow();
            let space = &world.spaces[self.program(index)];
            (space.promoted, space.demoted, Pages(space.returned).bytes(), space.ended)
        };
        if target.totals.promoted != promoted {
            self.blame(format!("{} windows reported as promoted, {promoted} were", target.totals.promoted));
        }
        if target.totals.demoted != demoted {
            self.blame(format!("{} windows reported as demoted, {demoted} were", target.totals.demoted));
        }
        let torn = self.world.borrow().spaces[self.program(index)].torn_split;
        if target.torn().0 != torn {
            self.blame(format!("{} torn windows reported as split, {torn} were", target.torn().0));
        }
        let generation = self.world.borrow().spaces[self.program(index)].generation;
        if u64::from(target.totals.execs) > generation {
            self.blame(format!("{} execs reported, {generation} were", target.totals.execs));
        }
        // Between a split and the measurement after it the program may touch the returned pages, or lose more.
        let quiet = self.script.events.is_empty();
        if quiet && target.totals.returned != returned {
            self.blame(format!("{} reported as returned, {returned} was", target.totals.returned));
        }
        if !ended && target.phase == Phase::Ended {
            self.blame("a program reported as ended that lives".to_owned());
        }
        let report = Report::of(target, Duration::ZERO, self.script.settings.dry_run);
        self.check_sums(&report);
        if !report.extra_rss_fraction.is_finite() {
            self.blame(format!("an extra fraction of {}", report.extra_rss_fraction));
        }
    }

    /// Each window is in one column, and each promotion has one end.
    fn check_sums(&self, report: &Report) {
        let refused: u64 = report.windows_refused.values().sum();
        if !report.windows_refused.keys().eq(report.refused_resident_bytes.keys()) {
            self.blame(format!("refused {:?}, resident {:?}", report.windows_refused, report.refused_resident_bytes));
        }
        let columns =
            [report.windows_huge, report.windows_compactable, report.windows_cold, report.windows_waiting, refused];
        if report.windows_seen != columns.iter().sum::<u64>() {
            self.blame(format!("{} windows seen, in columns {columns:?}", report.windows_seen));
        }
        if report.dry_run {
            if report.windows_promoted != report.windows_waiting {
                self.blame(format!("{} to be promoted, {} wait", report.windows_promoted, report.windows_waiting));
            }
            return;
        }
        let demoted = report.windows_demoted.saturating_sub(report.windows_demoted_found);
        let others = [report.windows_torn, report.windows_unmapped, report.windows_split_by_others];
        let ends = report.windows_still_huge + demoted + others.iter().sum::<u64>();
        if report.windows_promoted != ends || report.windows_still_huge > report.windows_huge {
            let (promoted, huge) = (report.windows_promoted, report.windows_still_huge);
            self.blame(format!("{promoted} promoted: {huge} still huge, {demoted} demoted, others {others:?}"));
        }
    }

    /// A scan in a world without events, to compare masu's state with the world.
    fn look_once_more(&mut self, index: usize) {
        let program = self.program(index);
        self.world.borrow_mut().spaces[program].cells.iter_mut().for_each(|cell| cell.hidden = 0);
        let target = &mut self.targets[index];
        if target.phase == Phase::Ended {
            return;
        }
        let scans = 1 + u32::from(target.begin_round().and_then(|()| target.scan()).is_ok());
        // The first scan after an exec only finds the exec.
        let again = if scans == 2 { target.scan() } else { Ok(()) };
        let gone = scans == 1 || again.is_err_and(|error| error.is_gone());
        let ended = self.world.borrow().spaces[program].ended;
        if gone != ended {
            self.blame(format!("a program that has ended ({ended}) looked at as gone ({gone})"));
        }
        if gone {
            self.targets[index].phase = Phase::Ended;
        }
    }

    fn check_what_is_huge(&self, index: usize) {
        let target = &self.targets[index];
        if target.phase == Phase::Ended {
            return;
        }
        let program = self.program(index);
        let (ours, added, small, least) = {
            let world = self.world.borrow();
            let cells = &world.spaces[program].cells;
            let ours = cells.iter().filter(|cell| cell.huge && cell.ours.is_some()).count() as u64;
            let small = cells.iter().filter(|cell| !cell.huge).count() as u64;
            let least: Bytes = cells.iter().filter(|c| c.huge).filter_map(|c| c.ours).map(cost).sum();
            let space = &world.spaces[program];
            let added = if space.raced { Bytes(0) } else { space.added() };
            (ours, added, small, least)
        };
        if target.promoted_now() != ours {
            self.blame(format!("{} windows reported as huge by masu, {ours} are", target.promoted_now()));
        }
        if target.extra_rss() < added {
            self.blame(format!("{} reported as added, {added} was", target.extra_rss()));
        }
        if self.script.events.is_empty() && self.script.returns_zero_pages && target.extra_rss() != least {
            self.blame(format!("{} reported as added, {least} by what was measured", target.extra_rss()));
        }
        let refused: u64 = target.refused().values().sum();
        if refused > small {
            self.blame(format!("{refused} windows without a huge page by reason, only {small} are small"));
        }
    }

    /// `--undo`: windows that masu made huge are small again, unless they are held; nothing else is touched.
    fn undo(&mut self) {
        self.world.borrow_mut().undoing = true;
        for index in 0..self.targets.len() {
            if self.targets[index].phase == Phase::Ended {
                continue;
            }
            let program = self.program(index);
            let held = |world: &World| {
                let cells = &world.spaces[program].cells;
                let ours = cells.iter().filter(|cell| cell.huge && cell.ours.is_some());
                let (held, free): (Vec<_>, Vec<_>) = ours.partition(|cell| cell.pinned > 0 || cell.refuses_cold());
                (held.len() as u64, free.len() as u64)
            };
            let (held, free) = held(&self.world.borrow());
            let demoted = self.targets[index].totals.demoted;
            let stayed: u64 = self.targets[index].undo().into_values().sum();
            if stayed != held {
                self.blame(format!("undoing says {stayed} windows stayed huge, and {held} did"));
            }
            let (split, left) = (self.targets[index].totals.demoted - demoted, self.targets[index].promoted_now());
            if (split, left) != (free, held) {
                self.blame(format!("undoing split {split} of {free} and left {left} of {held}"));
            }
        }
    }
}
