//! Phases of the classes in their duty cycles.

use std::time::Duration;

use crate::levels::{ByClass, Levels};
use crate::report::Event;
use crate::{mlocks, policy};

/// Classes in the protected phase; `None` before the first update.
#[derive(Debug, Default)]
pub struct DutyCycle(Option<ByClass<bool>>);

impl DutyCycle {
    /// Classes in the protected phase.
    pub fn protected(&self) -> ByClass<bool> {
        self.0.unwrap_or_default()
    }

    /// Sets the phases for this time under reclaim; returns true if one changed. The first phase is no change.
    pub fn update(&mut self, levels: &Levels, reclaim_time: Duration, events: &mut Vec<Event>) -> bool {
        let mut now = ByClass::default();
        for class in mlocks::CLASSES {
            now.set(class, levels.get(class).is_some_and(|level| policy::is_protected(level, reclaim_time)));
        }
        let before = self.0.replace(now).unwrap_or(now);
        for class in mlocks::CLASSES {
            let protected = now.get(class);
            if let Some(level) = levels.get(class).filter(|_| protected != before.get(class)) {
                events.push(Event::Phase { class, level, protected });
            }
        }
        now != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Class;
    use crate::levels::Level;

    #[test]
    fn each_phase_but_the_first_is_reported() {
        let mut levels = Levels::default();
        levels.set(Class::Code, Some(Level::clamped(50)));
        let (mut cycle, mut events) = (DutyCycle::default(), Vec::new());
        let mut changed = |seconds| cycle.update(&levels, Duration::from_secs(seconds), &mut events);
        assert_eq!([0, 59, 60, 119, 120].map(&mut changed), [false, false, true, false, true]);
        let phases: Vec<bool> = events
            .iter()
            .map(|event| matches!(event, Event::Phase { class: Class::Code, protected: true, .. }))
            .collect();
        assert_eq!(phases, [false, true]);
        assert!(cycle.protected().get(Class::Code) && !cycle.protected().get(Class::ReadOnly));
    }
}
