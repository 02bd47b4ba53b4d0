//! Whole runs of the loop over random model programs: masu keeps its guarantees in each.

use std::time::Duration;

use hugepages::attach::Until;
use hugepages::target::Phase;
use proptest::collection::vec;
use proptest::prelude::*;

#[path = "model/mod.rs"]
mod model;

use model::cell::{IN_USE, OFTEN};
use model::check::{Run, run};
use model::script::{Change, EVENT, Event, HEADER, Script, WINDOW, When};

fn scripts() -> impl Strategy<Value = Script> {
    let windows = vec(any::<[u8; WINDOW]>(), 0..16);
    let events = vec(any::<[u8; EVENT]>(), 0..24);
    (any::<[u8; HEADER]>(), windows, events)
        .prop_map(|(header, windows, events)| Script::from_parts(header, &windows, &events))
}

/// Programs without events: they touch their pages often.
fn stationary_scripts() -> impl Strategy<Value = Script> {
    scripts().prop_map(|mut script| {
        script.events.clear();
        script.horizon = Duration::from_secs(100_000);
        for cell in script.spaces.iter_mut().flat_map(|space| &mut space.cells) {
            cell.period = if cell.period > IN_USE { OFTEN } else { cell.period };
        }
        script
    })
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_programs_do_masu_keeps_its_word(script in scripts()) {
        let broken = run(script).broken();
        prop_assert!(broken.is_empty(), "{broken:#?}");
    }

    #[test]
    fn programs_that_go_on_as_they_are_settle_within_a_dozen_rounds(script in stationary_scripts()) {
        let mut script = script;
        script.settings.until = Until::Settled;
        script.settings.dry_run = false;
        let mut run = run(script);
        let rounds = run.world.borrow().spaces.iter().map(|space| space.rounds).max();
        prop_assert!(rounds <= Some(12), "{rounds:?} rounds");
        prop_assert!(run.targets.iter().all(|target| target.phase == Phase::Settled && target.totals.settled_at.is_some()));
        let broken = run.broken();
        prop_assert!(broken.is_empty(), "{broken:#?}");
    }

    #[test]
    fn a_settled_program_is_left_as_it_is_while_it_goes_on_as_it_is(script in stationary_scripts()) {
        let mut script = script;
        (script.settings.until, script.settings.dry_run) = (Until::Settled, false);
        script.policy.settle_noise = units::Fraction::ZERO;
        for cell in script.spaces.iter_mut().flat_map(|space| &mut space.cells) {
            // Seen in every round, even a short one; and a temporary refusal would be a change.
            (cell.period, cell.failing) = (cell.period.min(OFTEN), None);
        }
        let counts = |run: &Run| -> Vec<(u64, u64)> {
            run.targets.iter().map(|target| (target.totals.promoted, target.totals.demoted)).collect()
        };
        let settled = run(script.clone());
        let at = settled.world.borrow().now;
        (script.settings.until, script.horizon) = (Until::Stopped, at + Duration::from_secs(600));
        prop_assert_eq!(counts(&run(script)), counts(&settled));
    }

    #[test]
    fn no_window_goes_back_and_forth_for_ever(script in stationary_scripts(), period_ms in 100u64..60_000) {
        let mut script = script;
        (script.settings.until, script.settings.dry_run) = (Until::Stopped, false);
        script.horizon = Duration::from_secs(1000);
        let cells = script.spaces.iter_mut().flat_map(|space| &mut space.cells);
        cells.for_each(|cell| cell.period = Duration::from_millis(period_ms));
        let run = run(script);
        let world = run.world.borrow();
        let often = world.spaces.iter().flat_map(|space| &space.cells).map(|cell| cell.promotions).max();
        prop_assert!(often <= Some(8), "one window was promoted {often:?} times");
    }

    #[test]
    fn whoever_comes_and_whenever_masu_keeps_its_word(
        script in scripts(),
        come_at_ms in vec(0u64..60_000, 0..4),
    ) {
        let mut script = script;
        (script.settings.until, script.settings.dry_run) = (Until::Stopped, false);
        script.come_at = come_at_ms.into_iter().map(Duration::from_millis).collect();
        let mut run = run(script);
        let broken = run.broken();
        prop_assert!(broken.is_empty(), "{broken:#?}");
        let world = run.world.borrow();
        let over = world.stop.is_some() || world.to_come.is_empty();
        prop_assert!(over, "the loop ended before all had come: {:?}", world.to_come);
    }

    #[test]
    fn a_dry_run_looks_for_one_round_and_gives_no_advice(script in scripts()) {
        let mut script = script;
        (script.settings.dry_run, script.settings.until) = (true, Until::Settled);
        let mut run = run(script);
        prop_assert!(run.targets.iter().all(|target| (target.totals.promoted, target.totals.demoted) == (0, 0)));
        let execs = |space: &model::space::Space| u32::try_from(space.generation).unwrap();
        prop_assert!(run.world.borrow().spaces.iter().all(|space| space.rounds <= 1 + execs(space)));
        let broken = run.broken();
        prop_assert!(broken.is_empty(), "{broken:#?}");
    }

    #[test]
    fn ctrl_c_at_any_call_ends_the_run_at_once_with_counts_that_hold(script in scripts(), call in 0u64..600) {
        let mut script = script;
        script.settings.until = Until::Stopped;
        script.events.push(Event { when: When::Call(call), program: 0, window: 0, change: Change::CtrlC });
        let broken = run(script).broken(); // reports calls after the stop, except the one under way
        prop_assert!(broken.is_empty(), "{broken:#?}");
    }

    #[test]
    fn a_run_for_some_time_ends_then(script in stationary_scripts(), time_ms in 0u64..30_000) {
        let time = Duration::from_millis(time_ms);
        let mut script = script;
        (script.settings.until, script.settings.dry_run) = (Until::For(time), false);
        let mut run = run(script);
        let late = run.world.borrow().now.saturating_sub(time);
        prop_assert!(late < Duration::from_millis(10), "{late:?} late");
        let broken = run.broken();
        prop_assert!(broken.is_empty(), "{broken:#?}");
    }
}
