//! Simulated daemon that keeps a shared partition warm. Pure.
//!
//! A touch that hits moves nothing, so a line stays in the ways of the program that fetched it. Mode `touch` reads the
//! set again and again, and fetches only lines that are uncached at that moment. Mode `flush-and-touch` flushes and
//! reads each line, so that it enters the partition. It then reads the occupancy of its monitoring group, and starts
//! another pass only after a large loss since the last pass. Of a set that does not fit, the lines touched last stay.
//!
//! Between two passes the daemon rests, so that it uses at most `duty` of its CPU.

use serde::Deserialize;
use units::{Bytes, Fraction, WayMask};

use super::machine::Machine;
use super::set_associative::{Filler, Line};

/// Mode of warming a shared partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// No warming.
    Off,
    /// Reads.
    Touch,
    /// Flushes and reads.
    FlushAndTouch,
}

/// Settings of the daemon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Mode.
    pub mode: Mode,
    /// Interval of the checks, in cycles.
    pub every_cycles: u64,
    /// Largest fraction of one CPU for passes after the first.
    pub duty: Fraction,
}

/// Fraction of the bytes fetched by the last pass that must remain; below it another pass starts.
const KEPT: f64 = 0.98;

/// Is another pass due? `now`: current occupancy; `after_pass`: occupancy at the end of the last pass, `None` before
/// the first.
pub fn is_due(mode: Mode, now: Bytes, after_pass: Option<Bytes>) -> bool {
    match (mode, after_pass) {
        (Mode::Off, _) => false,
        (_, None) | (Mode::Touch, _) => true,
        (Mode::FlushAndTouch, Some(filled)) => now < filled.scaled(KEPT),
    }
}

/// Earliest start of the next pass, in cycles, after a pass of `busy` cycles that started at `begin`.
pub fn not_before(begin: f64, busy: f64, settings: &Settings) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "cycles of a simulation")]
    let every = settings.every_cycles as f64;
    begin + f64::max(every, busy / settings.duty.get().max(1e-9))
}

/// One shared partition, and its daemon thread.
#[derive(Clone, Debug)]
pub struct Refill {
    lines: Vec<Line>,
    mask: WayMask,
    by: Filler,
    settings: Settings,
    /// Next line of the current pass.
    place: Option<usize>,
    begun: f64,
    /// Time of the next action, in cycles.
    next: f64,
    after_pass: Option<Bytes>,
    /// Number of started passes.
    pub passes: u64,
    /// Lines fetched from memory.
    pub fetched: u64,
    /// Cycles of its CPU.
    pub busy_cycles: f64,
    /// The same, at the end of the warm-up.
    pub warm_cycles: f64,
}

/// Cycles of a `clflush` without the following read.
const FLUSH_CYCLES: f64 = 40.0;

impl Refill {
    /// Daemon for these lines, in this order, from time `begin` on.
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

    /// Takes over the counters of a daemon for other ways.
    pub fn goes_on_counting(&mut self, old: &Refill) {
        (self.passes, self.fetched) = (old.passes, old.fetched);
        (self.busy_cycles, self.warm_cycles) = (old.busy_cycles, old.warm_cycles);
    }

    /// Ways of the partition.
    pub fn mask(&self) -> WayMask {
        self.mask
    }

    /// Time of the next action, in cycles; infinity for mode `off`.
    #[inline]
    pub fn next(&self) -> f64 {
        self.next
    }

    /// True until the end of the first pass.
    pub fn is_filling(&self) -> bool {
        self.after_pass.is_none() && self.next < f64::INFINITY
    }

    /// Executes the next action: a check, or a line.
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
