//! Programs that fork again and again: whole runs over model programs.

use std::time::Duration;

use hugepages::Refusal;
use hugepages::attach::Until;
use hugepages::target::Target;
use units::Bytes;

#[path = "model/mod.rs"]
mod model;

use model::cell::{Cell, OFTEN, PAGES};
use model::check::run;
use model::script::{Change, Event, Script, When};
use model::space::Space;

/// A program with windows that are hot and full, whose children live this long.
fn forking(
    windows: usize,
    until: Until,
    horizon: Duration,
    life: Duration,
    forks: impl Iterator<Item = Duration>,
) -> Target {
    let cells = vec![Cell::hot(PAGES, PAGES, OFTEN); windows];
    let mut script = Script::of(vec![Space { other_rss: Bytes::gib(1).pages().0, ..Space::of(cells) }]);
    (script.settings.until, script.horizon) = (until, horizon);
    let event = |at, window, change| Event { when: When::Time(at), program: 0, window, change };
    script.events = forks
        .flat_map(|at| (0..windows).map(move |window| (at, window)))
        .flat_map(|(at, window)| {
            [
                event(at, window, Change::Split),
                event(at, window, Change::Share(PAGES)),
                event(at + life, window, Change::Share(0)),
            ]
        })
        .collect();
    script.events.sort_by_key(|event| match event.when {
        When::Time(at) => at,
        _ => Duration::ZERO,
    });
    let broken = run(script.clone()).broken();
    assert!(broken.is_empty(), "{broken:#?}\n{script:?}");
    run(script).targets.remove(0)
}

fn every(period: Duration, until: Duration) -> impl Iterator<Item = Duration> {
    (1..).map(move |n| period * n).take_while(move |at| *at < until)
}

#[test]
fn a_run_until_settled_ends_with_huge_pages_in_a_pause_between_forks() {
    let horizon = Duration::from_secs(400);
    for (period_ms, first_ms) in
        [1200, 1500, 3000, 5000].into_iter().flat_map(|ms| (100..ms).step_by(100).map(move |at| (ms, at)))
    {
        let forks = every(Duration::from_millis(period_ms), horizon).map(|at| at + Duration::from_millis(first_ms));
        let target = forking(32, Until::Settled, horizon, Duration::from_secs(1), forks);
        let (promoted, now) = (target.totals.promoted, target.promoted_now());
        assert!(now > 0, "every {period_ms} ms, first {first_ms}: {:?}", target.refused());
        assert!(promoted <= 32 * 25, "every {period_ms} ms, first {first_ms}: {promoted} promotions");
    }
}

#[test]
fn a_window_that_forks_split_soon_is_promoted_ever_later_and_another_at_once() {
    let split_every = |ms, seconds| {
        let horizon = Duration::from_secs(seconds);
        let target = forking(1, Until::Stopped, horizon, Duration::ZERO, every(Duration::from_millis(ms), horizon));
        let refused: Vec<_> = target.refused().into_iter().collect();
        (target.totals.promoted, refused)
    };
    let (promoted, refused) = split_every(200, 60);
    assert!((2..=8).contains(&promoted) && refused.iter().all(|(why, _)| *why == Refusal::SplitAgain), "{refused:?}");
    assert_eq!(split_every(60_000, 600), (10, vec![]));
}

#[test]
fn a_run_without_an_end_promotes_in_the_short_pauses_between_forks_too() {
    let horizon = Duration::from_secs(20);
    for (period_ms, life_ms) in [(1500, 1350), (2000, 1800)] {
        for first_ms in (100..period_ms).step_by(100) {
            let forks = (0..).map(|n| Duration::from_millis(first_ms + n * period_ms)).take_while(|at| *at < horizon);
            let target = forking(32, Until::Stopped, horizon, Duration::from_millis(life_ms), forks);
            let promoted = target.totals.promoted;
            assert!(promoted >= 32, "every {period_ms} ms, first {first_ms}: {promoted}, {:?}", target.refused());
        }
    }
}
