//! The clock, the events, and the record of masu's violations.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use hugepages::policy::Settings;
use units::Bytes;

use super::script::{Change, Event, When};
use super::space::Space;

/// Model programs, the observers and the clock share one world.
pub type Shared = Rc<RefCell<World>>;

/// Duration of a call into the kernel.
pub const CALL: Duration = Duration::from_micros(20);

/// Duration of a collapse.
pub const COLLAPSE: Duration = Duration::from_micros(500);

/// A run that makes more calls than this does not end.
const CALLS_MAX: u64 = 3_000_000;

/// State of the model.
#[derive(Debug)]
pub struct World {
    /// Time since masu came.
    pub now: Duration,
    /// The programs.
    pub spaces: Vec<Space>,
    /// Future events.
    pub events: Vec<Event>,
    /// Ctrl-C: its time, and the number of calls for advice after it.
    pub stop: Option<Stop>,
    /// Ctrl-C is pressed at this time at the latest.
    pub horizon: Duration,
    /// Splits return the pages that hold only zeros (Linux 6.12).
    pub returns_zero_pages: bool,
    /// masu's policy for each program.
    pub policy: Settings,
    /// No advice is to be given.
    pub dry_run: bool,
    /// masu announced that the program may have to wait for it.
    pub urgent: bool,
    /// Time to preallocate a huge page.
    pub preallocation: Duration,
    /// masu is undoing its work.
    pub undoing: bool,
    /// The programs move their huge windows between masu's scan and each look at one of them.
    pub moving: bool,
    /// The next advice is for a torn huge page: masu has just read the kernel's counters.
    pub looks_for_torn: bool,
    /// That advice was given, and masu has not read the counters again yet.
    pub looked_for_torn: bool,
    /// Number of calls.
    pub calls: u64,
    /// A program ended, and the waiting loop has not been woken yet.
    pub to_wake: bool,
    /// Programs that have not been added yet.
    pub to_come: Vec<Coming>,
    /// Every promotion in order: the program's index and the window's.
    pub turns: Vec<(usize, usize)>,
    /// Violations.
    pub broken: Vec<String>,
}

/// Record of Ctrl-C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stop {
    /// Time.
    pub at: Duration,
    /// Calls for advice after it.
    pub advice: u32,
}

/// A program that arrives while masu runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coming {
    /// Time of its arrival.
    pub at: Duration,
    /// Its index.
    pub program: usize,
    /// The waiting loop was woken for it.
    pub woken: bool,
}

impl World {
    /// Whether a program has arrived and was not added yet.
    pub fn has_arrivals(&self) -> bool {
        self.to_come.iter().any(|coming| coming.at <= self.now)
    }

    /// Marks the first arrival for which the waiting loop is to be woken.
    fn wake_for_one_who_came(&mut self) -> bool {
        let now = self.now;
        let coming = self.to_come.iter_mut().find(|coming| coming.at <= now && !coming.woken);
        coming.map(|coming| coming.woken = true).is_some()
    }

    /// Begins a call: time passes, and due events happen.
    pub fn call(&mut self) {
        self.calls += 1;
        assert!(self.calls < CALLS_MAX, "the loop does not end");
        self.pass(CALL);
    }

    /// Time passes inside a call.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        self.fire();
    }

    /// Waits until `time` has passed, a program ends or comes, or Ctrl-C is pressed.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while !std::mem::take(&mut self.to_wake) && !self.wake_for_one_who_came() && self.stop.is_none() {
            let due = self.events.iter().filter_map(|event| match event.when {
                When::Time(at) if at <= end => Some(at),
                _ => None,
            });
            let coming = self.to_come.iter().filter(|coming| !coming.woken).map(|coming| coming.at);
            let next = due.chain(coming).chain([self.horizon]).min().filter(|at| *at <= end);
            self.now = self.now.max(next.unwrap_or(end));
            self.fire();
            if next.is_none() {
                return;
            }
        }
    }

    fn fire(&mut self) {
        let (now, calls) = (self.now, self.calls);
        while let Some(index) = self.events.iter().position(|event| event.when.is_due(now, calls)) {
            let event = self.events.remove(index);
            self.happen(event);
        }
        if self.now >= self.horizon {
            self.press_ctrl_c();
        }
    }

    fn press_ctrl_c(&mut self) {
        self.stop.get_or_insert(Stop { at: self.now, advice: 0 });
    }

    fn happen(&mut self, event: Event) {
        match event.change {
            Change::CtrlC => return self.press_ctrl_c(),
            Change::Sleep(time) => {
                self.now += time;
                return;
            }
            _ => {}
        }
        let now = self.now;
        let programs = self.spaces.len().max(1);
        let Some(space) = self.spaces.get_mut(event.program % programs).filter(|space| !space.ended) else { return };
        space.version += 1;
        match event.change {
            Change::Exit => {
                space.ended = true;
                self.to_wake = true;
            }
            Change::Exec => {
                (space.generation, space.raced) = (space.generation + 1, false);
                for cell in &mut space.cells {
                    cell.empty();
                    (cell.ours, cell.forbidden, cell.split) = (None, false, None); // the loop is told
                    cell.version += 1;
                }
            }
            Change::Room(room) => space.room = room,
            _ => {
                let cells = space.cells.len().max(1);
                if let Some(cell) = space.cells.get_mut(event.window % cells) {
                    cell.version += 1;
                    space.raced |= matches!(event.change, Change::Swap(_)) && cell.added > 0;
                    event.change.apply(cell, now);
                }
            }
        }
    }

    /// A call for advice, which should not come after Ctrl-C.
    pub fn count_advice_after_stop(&mut self) {
        let undoing = self.undoing;
        if let Some(stop) = self.stop.as_mut().filter(|_| !undoing) {
            stop.advice += 1;
        }
    }

    /// Records a violation.
    pub fn blame(&mut self, what: impl FnOnce() -> String) {
        if self.broken.len() < 20 {
            let at = format!("at {:?}, call {}: {}", self.now, self.calls, what());
            self.broken.push(at);
        }
    }

    /// Memory that masu may have added to a program, now.
    pub fn allowance(&self, program: usize) -> Bytes {
        let space = &self.spaces[program];
        space.resident().saturating_sub(space.added()).scaled(self.policy.max_extra_rss.get())
    }
}
