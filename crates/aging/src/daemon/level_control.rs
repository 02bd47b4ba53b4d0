//! Protection levels, the clock of reclaim, and the controller state of each class.

use std::time::Duration;

use linux::cgroup::group::Group;
use linux::{Error, KernelFiles};
use units::Fraction;

use crate::class::Class;
use crate::controller::{self, Measured, Why};
use crate::headroom::{Clock, Stall};
use crate::levels::{ByClass, Level, Levels, Preferences};
use crate::report::Refaults;

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

    /// Moves the level of a class at the end of its round; returns the old level, the new one and the reason.
    pub fn moved(&mut self, class: Class, stalled: Fraction) -> Option<(Level, Level, Why)> {
        let (bounds, level) = (self.preferences.get(class)?, self.levels.get(class)?);
        let mut state = self.classes.get(class);
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let refaults_per_s = state.refaults as f64 / controller::EVERY.as_secs_f64();
        state.refaults = 0;
        let quiet = self.reclaim_time.saturating_sub(state.quiet_since);
        let moved = controller::moved(level, bounds, Measured { refaults_per_s, quiet, stalled });
        if let Some((to, _)) = moved {
            state.quiet_since = self.reclaim_time;
            self.levels.set(class, Some(to));
        }
        self.classes.set(class, state);
        moved.map(|(to, why)| (level, to, why))
    }

    /// All refaults of the classes with a level.
    pub fn refaults(&self) -> Vec<Refaults> {
        let with_level = self.classes.iter().filter(|(class, _)| self.levels.get(*class).is_some());
        with_level.map(|(class, state)| Refaults { class, refaults: state.all_refaults }).collect()
    }
}
