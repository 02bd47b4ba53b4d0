//! Programs that come and go while the loop works on others.

use std::time::Duration;

use hugepages::attach::{Control, Doing, Until, attach};
use hugepages::target::{Phase, Target};
use units::Bytes;

#[path = "model/mod.rs"]
mod model;

use model::cell::{Cell, Mapped, OFTEN, PAGES};
use model::check::{run, target, world};
use model::control::ModelControl;
use model::script::{Change, Event, Script, When};
use model::space::Space;

fn program(cells: Vec<Cell>) -> Space {
    Space { other_rss: Bytes::gib(1).pages().0, ..Space::of(cells) }
}

fn dense() -> Cell {
    Cell::hot(PAGES, PAGES, OFTEN)
}

/// Watched to the horizon; the first programs come at these times.
fn script(spaces: Vec<Space>, come_at: Vec<Duration>, horizon: Duration) -> Script {
    let mut script = Script::of(spaces);
    script.settings.until = Until::Stopped;
    (script.come_at, script.horizon) = (come_at, horizon);
    script
}

#[test]
fn a_program_that_comes_does_not_wait_for_all_windows_of_a_large_one() {
    // The newcomer is hotter. Of the large one's windows some sixty become huge in a second.
    let large = program(vec![Cell::hot(PAGES, PAGES, Duration::from_secs(1)); 1000]);
    let spaces = vec![program(vec![dense(); 2]), large];
    let mut script = script(spaces, vec![Duration::from_secs(3)], Duration::from_secs(120));
    script.preallocation = Duration::from_millis(15);
    let run = run(script);
    let world = run.world.borrow();
    let turns = |program: usize| world.turns.iter().filter(move |of| of.0 == program).count();
    let before = world.turns.iter().take_while(|of| of.0 == 1).count();
    assert_eq!((turns(0), turns(1)), (2, 1000));
    assert!(before < 500, "{before} of 1,000 windows of the large one came first");
    assert_eq!(world.broken, Vec::<String>::new());
}

#[test]
fn programs_that_come_all_the_time_do_not_make_rare_use_look_idle() {
    let rare = program(vec![Cell::hot(100, 100, OFTEN).huge(), dense()]);
    let mut spaces = vec![program(vec![dense()]); 60];
    spaces.push(rare);
    // The others come when it has settled.
    let come_at = (0..60).map(|n| Duration::from_millis(60_000 + n * 600)).collect();
    let mut script = script(spaces, come_at, Duration::from_secs(110));
    let change = Change::Heat(100, Duration::from_secs(15));
    script.events = vec![Event { when: When::Time(Duration::from_secs(50)), program: 60, window: 0, change }];
    let run = run(script);
    let rare = run.targets.iter().find(|target| target.pid.0 == 61).unwrap();
    assert!(rare.totals.settled_at.is_some_and(|at| at < Duration::from_secs(60)), "{:?}", rare.totals);
    assert_eq!(rare.totals.demoted, 0);
}

/// Leaves the first program after this time.
struct Leaving {
    model: ModelControl,
    at: Duration,
    left: Vec<Target>,
}

impl Control for Leaving {
    fn now(&self) -> Duration {
        self.model.now()
    }

    fn wait(&mut self, time: Duration) {
        let until_then = self.at.saturating_sub(self.now());
        self.model.wait(if until_then.is_zero() { time } else { time.min(until_then) });
    }

    fn stop(&self) -> bool {
        self.model.stop()
    }

    fn cpu_time(&self) -> Duration {
        self.model.cpu_time()
    }

    fn has_arrivals(&self) -> bool {
        self.now() >= self.at && self.left.is_empty()
    }

    fn expects_arrivals(&self) -> bool {
        !self.stop()
    }

    fn keeps(&mut self, target: &Target) -> bool {
        self.now() < self.at || target.pid.0 != 1
    }

    fn remove(&mut self, target: Target) -> Option<Target> {
        self.left.push(target);
        None
    }

    fn set_urgent(&mut self, urgent: bool) {
        self.model.set_urgent(urgent);
    }

    fn progress(&mut self, doing: Doing, targets: &[Target]) {
        self.model.progress(doing, targets);
    }
}

/// Both have settled, and are watched for ten minutes at a time.
#[test]
fn a_program_that_is_left_keeps_its_huge_pages_and_the_others_are_served_on() {
    let mut script = script(vec![program(vec![dense(); 3]); 2], Vec::new(), Duration::from_secs(100));
    script.settings.rate.watch_every = (Duration::from_secs(600), Duration::from_secs(600));
    let world = world(&script);
    let mut targets: Vec<Target> = (0..2).filter_map(|index| target(&world, index)).collect();
    let model = ModelControl(world.clone(), Vec::new());
    let mut control = Leaving { model, at: Duration::from_secs(60), left: Vec::new() };
    attach(&mut targets, script.settings, &mut control);
    let pids = |targets: &[Target]| targets.iter().map(|target| target.pid.0).collect::<Vec<_>>();
    assert_eq!((pids(&control.left), pids(&targets)), (vec![1], vec![2]));
    let left = &control.left[0];
    assert_eq!((left.phase, left.promoted_now(), left.totals.demoted), (Phase::Settled, 3, 0));
    assert_eq!((targets[0].phase, targets[0].promoted_now()), (Phase::Settled, 3));
}

#[test]
fn a_program_that_ends_in_the_middle_of_a_look_loses_no_window() {
    // Both windows are huge and have no access rights: scans do not show them, and they are measured one by one.
    for call in 150..400 {
        let mut script = script(vec![program(vec![dense(); 2])], Vec::new(), Duration::from_secs(20));
        let no_access = |window| {
            let change = Change::Map(Mapped::NoAccess);
            Event { when: When::Time(Duration::from_secs(6)), program: 0, window, change }
        };
        let exit = Event { when: When::Call(call), program: 0, window: 0, change: Change::Exit };
        script.events = vec![no_access(0), no_access(1), exit];
        let mut run = run(script);
        let broken = run.broken();
        assert!(broken.is_empty(), "at call {call}: {broken:#?}");
    }
}
