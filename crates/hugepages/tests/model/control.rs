//! Waiting, stopping and progress in the model's time.

use std::time::Duration;

use hugepages::attach::{Control, Doing};
use hugepages::target::{Phase, Target};

use super::check::target;
use super::world::{Coming, Shared};

/// Caller's side of the loop in the model: the world, and the targets of programs that ended, where others come and
/// go.
pub struct ModelControl(pub Shared, pub Vec<Target>);

impl Control for ModelControl {
    fn now(&self) -> Duration {
        self.0.borrow().now
    }

    fn wait(&mut self, time: Duration) {
        self.0.borrow_mut().wait(time);
    }

    fn arrivals(&mut self) -> Vec<Target> {
        let now = self.now();
        let mut world = self.0.borrow_mut();
        let (come, to_come) = std::mem::take(&mut world.to_come).into_iter().partition(|coming| coming.at <= now);
        world.to_come = to_come;
        drop(world);
        let come: Vec<Coming> = come;
        come.into_iter().filter_map(|coming| target(&self.0, coming.program)).collect()
    }

    fn has_arrivals(&self) -> bool {
        self.0.borrow().has_arrivals()
    }

    fn expects_arrivals(&self) -> bool {
        !self.0.borrow().to_come.is_empty()
    }

    fn remove(&mut self, target: Target) -> Option<Target> {
        if target.phase != Phase::Ended {
            self.0.borrow_mut().blame(|| format!("program {} was let go alive", target.pid));
        }
        self.1.push(target);
        None
    }

    fn stop(&self) -> bool {
        self.0.borrow().stop.is_some()
    }

    fn cpu_time(&self) -> Duration {
        Duration::from_micros(5 * self.0.borrow().calls)
    }

    fn set_urgent(&mut self, urgent: bool) {
        let mut world = self.0.borrow_mut();
        if world.urgent == urgent {
            world.blame(|| format!("urgent {urgent} twice"));
        }
        world.urgent = urgent;
    }

    fn progress(&mut self, _: Doing, targets: &[Target]) {
        // Every query must be valid at any moment.
        for target in targets {
            let _ = (target.refused(), target.what_if(), target.extra_rss());
            let promoted = target.promoted_now();
            if promoted > target.totals.promoted {
                self.0.borrow_mut().blame(|| format!("{promoted} windows are huge by masu, which promoted fewer"));
            }
        }
    }
}
