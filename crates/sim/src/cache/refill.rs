//! The daemon of the simulation: it keeps a region filled. Pure.
//!
//! A touch that hits moves nothing, so a line stays in the ways of whoever missed on it. `touch` reads the set again and again, and gets
//! those lines that happen to be nowhere. `flush-and-touch` throws each line out and reads it at once, so that it comes into the region;
//! then it looks at the occupancy of its monitoring group, and works again only when much was lost since its last pass. Of a set that
//! does not fit, the lines that were touched last stay.
//!
//! Between two passes it rests for so long that it takes no more of its CPU than `duty`.

use serde::Deserialize;
use units::{Bytes, Fraction, WayMask};

use super::machine::Machine;
use super::set_associative::{Filler, Line};

/// How a region is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Not at all.
    Off,
    /// By reading.
    Touch,
    /// By throwing out and reading.
    FlushAndTouch,
}

/// What the daemon may do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How.
    pub mode: Mode,
    /// How often it looks, in cycles.
    pub every_cycles: u64,
    /// The most of one CPU that passes may take, after the first.
    pub duty: Fraction,
}

/// Of what a pass had brought into the region, this much must be there, or there is another pass.
const KEPT: f64 = 0.98;

/// Is there to be another pass over a region? `now` is in it, `after_pass` was when the last pass had ended; `None` before the first.
pub fn is_due(mode: Mode, now: Bytes, after_pass: Option<Bytes>) -> bool {
    match (mode, after_pass) {
        (Mode::Off, _) => false,
        (_, None) | (Mode::Touch, _) => true,
        (Mode::FlushAndTouch, Some(filled)) => now < filled.scaled(KEPT),
    }
}

/// When the next pass may begin at the earliest, in cycles: a pass that began at `begin` took `busy`.
pub fn not_before(begin: f64, busy: f64, settings: &Settings) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "cycles of a simulation")]
    let every = settings.every_cycles as f64;
    begin + f64::max(every, busy / settings.duty.get().max(1e-9))
}

/// One region, and the thread that fills it.
#[derive(Clone, Debug)]
pub struct Refill {
    lines: Vec<Line>,
    mask: WayMask,
    by: Filler,
    settings: Settings,
    /// The next line of the pass under way.
    place: Option<usize>,
    begun: f64,
    /// When it does something next, in cycles.
    next: f64,
    after_pass: Option<Bytes>,
    /// Passes that were begun.
    pub passes: u64,
    /// Lines that came from memory.
    pub fetched: u64,
    /// Cycles of its CPU.
    pub busy_cycles: f64,
    /// The same, at the end of the warm-up.
    pub warm_cycles: f64,
}

/// What `clflush` takes beside the read that follows, in cycles.
const FLUSH_CYCLES: f64 = 40.0;

impl Refill {
    /// Of these lines, in this order, from `begin` on.
    pub fn new(lines: Vec<Line>, mask: WayMask, by: Filler, settings: Settings, begin: f64) -> Refill {
        let next = if settings.mode == Mode::Off || lines.is_empty() { f64::INFINITY } else { begin };
        Refill {
            lines,
            mask,
            by,
            settings,
            place: None,
            begun: begin,
            next,
            after_pass: None,
            passes: 0,
            fetched: 0,
            busy_cycles: 0.0,
            warm_cycles: 0.0,
        }
    }

    /// It takes the place of another, whose ways were other ones: what that had done counts on.
    pub fn goes_on_counting(&mut self, old: &Refill) {
        (self.passes, self.fetched) = (old.passes, old.fetched);
        (self.busy_cycles, self.warm_cycles) = (old.busy_cycles, old.warm_cycles);
    }

    /// Its ways.
    pub fn mask(&self) -> WayMask {
        self.mask
    }

    /// When it does something next, in cycles; never, where it is off.
    #[inline]
    pub fn next(&self) -> f64 {
        self.next
    }

    /// Its first pass is still to come, or under way.
    pub fn is_filling(&self) -> bool {
        self.after_pass.is_none() && self.next < f64::INFINITY
    }

    /// Does what is next: a look, or a line.
    pub fn step(&mut self, machine: &mut Machine, llc_cycles: f64, memory_cycles: f64) {
        let Some(place) = self.place else {
            if is_due(self.settings.mode, machine.llc().occupancy(self.by.monitor), self.after_pass) {
                (self.place, self.begun) = (Some(0), self.next);
                self.passes += 1;
            } else {
                self.next = not_before(self.next, 0.0, &self.settings);
            }
            return;
        };
        let line = self.lines[place];
        let mut cycles = 0.0;
        if self.settings.mode == Mode::FlushAndTouch {
            machine.flush(line);
            cycles += FLUSH_CYCLES;
        }
        let found = machine.touch(line, self.mask, self.by);
        cycles += if found { llc_cycles } else { memory_cycles };
        self.fetched += u64::from(!found);
        self.busy_cycles += cycles;
        self.next += cycles;
        self.place = Some(place + 1).filter(|place| *place < self.lines.len());
        if self.place.is_none() {
            self.after_pass = Some(machine.llc().occupancy(self.by.monitor));
            self.next = f64::max(self.next, not_before(self.begun, self.next - self.begun, &self.settings));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_region_is_left_alone_until_two_percent_are_lost() {
        let due = |now, filled| is_due(Mode::FlushAndTouch, Bytes(now), filled);
        assert!(due(0, None) && due(979, Some(Bytes(1000))));
        assert!(!due(980, Some(Bytes(1000))) && !due(1000, Some(Bytes(1000))));
        assert!(is_due(Mode::Touch, Bytes(1000), Some(Bytes(1000))), "touching cannot know");
        assert!(!is_due(Mode::Off, Bytes(0), None));
    }

    #[test]
    fn a_pass_is_followed_by_rest() {
        let settings = Settings { mode: Mode::Touch, every_cycles: 1000, duty: Fraction::clamped(0.01) };
        assert!((not_before(5.0, 100.0, &settings) - 10_005.0).abs() < 1e-6);
        assert!((not_before(5.0, 1.0, &settings) - 1005.0).abs() < 1e-6);
    }
}
