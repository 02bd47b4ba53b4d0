//! Protection levels, the clock of reclaim, and the controller state of each class.

use std::time::Duration;

use linux::cgroup::group::Group;
use linux::{Error, KernelFiles};
use units::Fraction;

use crate::class::Class;
use crate::controller::{self, Measured, Why};
use crate::headroom::{Clock, Stall};
use crate::levels::{Bounds, ByClass, Level, Levels, Preferences};
use crate::report::{Event, Refaults};

/// Current levels, and the state that moves them within their bounds.
#[derive(Debug)]
pub struct LevelControl {
    preferences: Preferences,
    levels: Levels,
    classes: ByClass<ClassState>,
    clock: Clock,
    stall: Stall,
    reclaim_time: Duration,
    next: Duration,
}

/// Controller state of a class.
#[derive(Clone, Copy, Debug, Default)]
struct ClassState {
    /// Refaults since the last round, and in all.
    refaults: u64,
    all_refaults: u64,
    /// Time under reclaim at the last refault, or at the last move.
    quiet_since: Duration,
}

impl LevelControl {
    /// Levels at their lower bounds. `group`: control group of the scope.
    pub fn new(preferences: Preferences, group: Option<&Group>) -> LevelControl {
        LevelControl {
            levels: preferences.at_first(),
            preferences,
            classes: ByClass::default(),
            clock: Clock::of(group),
            stall: Stall::of(group),
            reclaim_time: Duration::ZERO,
            next: controller::EVERY,
        }
    }

    /// Current levels.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// Event for levels that depend on the time under reclaim where that cannot be seen: those with bounds to move in,
    /// and those between 0 and 100, whose phases never change.
    pub fn stands_still(&self, files: &impl KernelFiles) -> Option<Event> {
        let depends = |bounds: Bounds| bounds.low != bounds.high || !matches!(bounds.low.get(), 0 | 100);
        let depends =
            self.preferences.iter().any(|(class, bounds)| class != Class::Cache && bounds.is_some_and(depends));
        let why = self.clock.stands_still(files).filter(|_| depends)?;
        Some(Event::Skipped { what: "moves of levels and of phases".to_owned(), why })
    }

    /// Time under reclaim until the last tick.
    pub fn reclaim_time(&self) -> Duration {
        self.reclaim_time
    }

    /// Reads the clock of reclaim.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn tick(&mut self, files: &impl KernelFiles, now: Duration) -> Result<(), Error> {
        self.reclaim_time = self.clock.tick(files, now)?;
        Ok(())
    }

    /// Adds refaults of a class.
    pub fn add(&mut self, class: Class, refaults: u64) {
        let mut state = self.classes.get(class);
        state.refaults += refaults;
        state.all_refaults += refaults;
        if refaults > 0 {
            state.quiet_since = self.reclaim_time;
        }
        self.classes.set(class, state);
    }

    /// Begins a round if one is due, and returns the share of time with all tasks stalled.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn round(&mut self, files: &impl KernelFiles, now: Duration) -> Result<Option<Fraction>, Error> {
        if now < self.next {
            return Ok(None);
        }
        self.next = now + controller::EVERY;
        self.stall.tick(files, now).map(Some)
    }

    /// Move of a class that is due at the end of its round: the level, the new one and the reason. The caller carries it
    /// out, and then ends the round.
    pub fn due_move(&self, class: Class, stalled: Fraction) -> Option<(Level, Level, Why)> {
        let (bounds, level) = (self.preferences.get(class)?, self.levels.get(class)?);
        let state = self.classes.get(class);
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let refaults_per_s = state.refaults as f64 / controller::EVERY.as_secs_f64();
        let quiet = self.reclaim_time.saturating_sub(state.quiet_since);
        let (to, why) = controller::moved(level, bounds, Measured { refaults_per_s, quiet, stalled })?;
        Some((level, to, why))
    }

    /// Ends the round of a class; `moved_to`: its new level. A class whose move failed keeps its round, and the move is
    /// due again in the next one.
    pub fn end_round(&mut self, class: Class, moved_to: Option<Level>) {
        let mut state = self.classes.get(class);
        state.refaults = 0;
        if moved_to.is_some() {
            state.quiet_since = self.reclaim_time;
            self.levels.set(class, moved_to);
        }
        self.classes.set(class, state);
    }

    /// All refaults of the classes with a level.
    pub fn refaults(&self) -> Vec<Refaults> {
        let with_level = self.classes.iter().filter(|(class, _)| self.levels.get(*class).is_some());
        with_level.map(|(class, state)| Refaults { class, refaults: state.all_refaults }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_move_is_due_again_and_an_ended_round_keeps_no_refaults() {
        let mut preferences = Preferences::default();
        preferences.set(Class::Data, Some(Bounds { low: Level::clamped(40), high: Level::clamped(90) }));
        let mut control = LevelControl::new(preferences, None);
        control.add(Class::Data, 10_000);
        let due = |control: &LevelControl| control.due_move(Class::Data, Fraction::ZERO).map(|(_, to, _)| to);
        let to = due(&control);
        assert_eq!((to, due(&control)), (Some(Level::clamped(60)), to), "until the round ends");
        assert_eq!(control.levels().get(Class::Data), Some(Level::clamped(40)));
        control.end_round(Class::Data, to);
        assert_eq!((control.levels().get(Class::Data), due(&control)), (to, None));
    }
}
