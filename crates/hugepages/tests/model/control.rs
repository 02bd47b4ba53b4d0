//! Waiting, stopping and progress in the model's time.

use std::time::Duration;

use hugepages::attach::{Control, Doing};
use hugepages::target::Target;

use super::world::Shared;

/// The loop's surroundings in the model.
pub struct ModelControl(pub Shared);

impl Control for ModelControl {
    fn now(&self) -> Duration {
        self.0.borrow().now
    }

    fn wait(&mut self, time: Duration) {
        self.0.borrow_mut().wait(time);
    }

    fn stop(&self) -> bool {
        self.0.borrow().stop.is_some()
    }

    fn cpu_time(&self) -> Duration {
        let calls = u32::try_from(self.0.borrow().calls).unwrap_or(u32::MAX);
        Duration::from_micros(5).saturating_mul(calls)
    }

    fn in_haste(&mut self, haste: bool) {
        let mut world = self.0.borrow_mut();
        if world.haste == haste {
            world.blame(|| format!("haste {haste} twice"));
        }
        world.haste = haste;
    }

    fn progress(&mut self, _: Doing, targets: &[Target]) {
        // What is asked for at any moment must make sense at any moment.
        for target in targets {
            let _ = (target.refused(), target.what_if(), target.extra_rss());
            let promoted = target.promoted_now();
            if promoted > target.promoted {
                self.0.borrow_mut().blame(|| format!("{promoted} windows are huge by masu, which promoted fewer"));
            }
        }
    }
}
