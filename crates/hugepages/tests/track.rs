//! Tracked programs over the model: masu keeps its guarantees for any behaviour and any session parameters.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use contract::track::terms::{Terms, USUAL};
use hugepages::attach::Until;
use hugepages::policy::Preference;
use hugepages::rate_limiter;
use hugepages::track::admission::Account;
use hugepages::track::schedule;
use hugepages::track::watched::{Act, Outcome, Watched};
use proptest::collection::vec;
use proptest::prelude::*;
use units::{NonZeroFraction, Window};

#[path = "model/mod.rs"]
mod model;

use model::cell::{Cell, OFTEN};
use model::check::{Run, target};
use model::script::{EVENT, HEADER, Script, WINDOW};
use model::space::{Space, window};
use model::world::{Shared, Stop, World};

const S: schedule::Settings =
    schedule::Settings { cpu_fraction: NonZeroFraction::ratio(1, 10), rate: rate_limiter::MEASURED };

fn world(script: &Script) -> Shared {
    Rc::new(RefCell::new(World {
        now: Duration::ZERO,
        spaces: script.spaces.clone(),
        events: script.events.clone(),
        stop: None,
        horizon: script.horizon,
        returns_zero_pages: script.returns_zero_pages,
        policy: script.policy,
        dry_run: false,
        urgent: false,
        preallocation: script.preallocation,
        undoing: false,
        moving: false,
        looks_for_torn: false,
        looked_for_torn: false,
        calls: 0,
        to_wake: false,
        to_come: Vec::new(),
        turns: Vec::new(),
        broken: Vec::new(),
    }))
}

/// Record of one tracked program.
#[derive(Default)]
struct Seen {
    lists: Vec<Vec<(Window, u32)>>,
    demoted: u64,
    ended: bool,
}

/// Tracks the first program of a world until `end`; `decide` is its answer to each list.
fn track(
    world: &Shared,
    terms: Terms,
    end: Duration,
    mut decide: impl FnMut(&[Window]) -> Option<BTreeMap<Window, Preference>>,
) -> Option<(Watched, Seen)> {
    let mut watched = Watched::new(target(world, 0)?, 0, Account::User(0), terms, Duration::ZERO);
    let mut seen = Seen::default();
    let now = || world.borrow().now;
    while now() < end && !seen.ended && world.borrow().stop.is_none() {
        let left = watched.due.saturating_sub(now());
        world.borrow_mut().wait(left);
        if now() < watched.due {
            continue;
        }
        let outcome = watched.step(now(), S);
        match outcome {
            Ok(Outcome::ToShare(plan)) => watched.act_on(plan.into_iter().map(|promotion| (promotion, None))),
            Ok(Outcome::ToDo(act)) => {
                let begun = now();
                world.borrow_mut().urgent = true;
                let done = watched.carry_out(act);
                world.borrow_mut().urgent = false;
                watched.spent += now() - begun;
                seen.demoted += u64::from(matches!(act, Act::Demote(_)));
                seen.ended = done.is_err();
                watched.pause(now(), now() - begun, S);
                watched.preallocate();
            }
            Ok(Outcome::Nothing | Outcome::Rested) => {}
            Err(_) => seen.ended = true,
        }
        if watched.notice.is_due(now()) {
            watched.notice.notified(now());
            if let Some(list) = watched.take_list() {
                let places = list.ordered_windows();
                seen.lists.push(places.iter().copied().zip(list.windows.iter().map(|window| window.hot)).collect());
                if let Some(preferences) = decide(&places) {
                    watched.decided(preferences, now());
                }
            }
        }
    }
    Some((watched, seen))
}

fn of_cells(cells: Vec<Cell>) -> Shared {
    world(&Script::of(vec![Space::of(cells)]))
}

#[test]
fn a_program_without_an_opinion_gets_its_dense_windows_promoted_and_is_told_of_the_sparse_ones() {
    let world = of_cells(vec![Cell::hot(512, 512, OFTEN), Cell::hot(512, 20, OFTEN), Cell::used(512)]);
    let (watched, seen) = track(&world, USUAL, Duration::from_secs(60), |_| None).unwrap();
    assert_eq!(watched.target.totals.promoted, 1);
    assert_eq!(seen.lists[0], [(window(0), 512), (window(1), 20)]);
    assert_eq!(seen.lists.last().unwrap(), &[(window(1), 20)], "what is huge is not to be decided");
}

#[test]
fn the_word_of_a_program_counts_and_its_silence_is_no() {
    let decides = Terms { decides: true, max_extra_rss: 1.0, ..USUAL };
    let cells = || vec![Cell::hot(512, 512, OFTEN), Cell::hot(512, 20, OFTEN), Cell::hot(512, 512, OFTEN)];
    let sparse =
        |_: &[Window]| Some(BTreeMap::from([(window(1), Preference::Promote), (window(0), Preference::Leave)]));
    let (watched, _) = track(&of_cells(cells()), decides, Duration::from_secs(60), sparse).unwrap();
    assert_eq!(watched.target.savings().map(|(window, ..)| window).collect::<Vec<_>>(), [window(1)]);
    let (watched, seen) = track(&of_cells(cells()), decides, Duration::from_secs(60), |_| None).unwrap();
    assert_eq!(watched.target.totals.promoted, 0);
    assert!(seen.lists.len() > 2, "it is asked again");
}

#[test]
fn fewer_pages_than_the_threshold_are_not_told() {
    let world = of_cells(vec![Cell::hot(512, 20, OFTEN)]);
    let (_, seen) = track(&world, Terms { threshold_pages: 21, ..USUAL }, Duration::from_secs(30), |_| None).unwrap();
    assert!(seen.lists.is_empty());
    let world = of_cells(vec![Cell::hot(512, 20, OFTEN)]);
    let (_, seen) = track(&world, Terms { threshold_pages: 20, ..USUAL }, Duration::from_secs(30), |_| None).unwrap();
    assert!(!seen.lists.is_empty());
}

#[test]
fn making_all_of_a_large_program_huge_is_no_reason_to_look_away_from_it() {
    let lists_of = |dense: usize| {
        let cells = [vec![Cell::hot(512, 20, OFTEN)], vec![Cell::hot(512, 512, OFTEN); dense]].concat();
        let (watched, seen) =
            track(&of_cells(cells), Terms { every_ms: 1, ..USUAL }, Duration::from_secs(30), |_| None).unwrap();
        assert_eq!(watched.target.totals.promoted, dense as u64);
        seen.lists.len()
    };
    let (small, large) = (lists_of(1), lists_of(2000));
    assert!(large + 6 >= small && small > 20, "{small} lists, and {large} of one with 2000 windows");
}

/// Rounds of 10 ms see a window that is touched ten times a second in one round of ten.
#[test]
fn short_rounds_do_not_take_a_window_for_idle_that_is_touched_ten_times_a_second() {
    let terms = Terms { period_ms: 10, max_extra_rss: 1.0, hot_rate: 0.0, ..USUAL };
    let world = of_cells(vec![Cell::hot(400, 400, Duration::from_millis(100)); 8]);
    let (watched, seen) = track(&world, terms, Duration::from_secs(120), |_| None).unwrap();
    assert_eq!((watched.target.promoted_now(), seen.demoted), (8, 0));
}

fn scripts() -> impl Strategy<Value = Script> {
    let (windows, events) = (vec(any::<[u8; WINDOW]>(), 0..12), vec(any::<[u8; EVENT]>(), 0..16));
    (any::<[u8; HEADER]>(), windows, events)
        .prop_map(|(header, windows, events)| Script::from_parts(header, &windows, &events))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_program_does_and_asks_for_masu_keeps_its_word(
        script in scripts(),
        period_ms in prop_oneof![Just(10u32), Just(100), Just(1280), 10u32..5000],
        every_ms in prop_oneof![Just(0u32), 0u32..4000],
        threshold_pages in 1u64..600,
        decides: bool,
        word in any::<u64>(),
    ) {
        let mut script = script;
        // One program, there from the beginning; as much memory as the model allows masu.
        script.spaces.truncate(1);
        script.come_at.clear();
        script.settings.dry_run = false;
        let max_extra_rss = script.policy.max_extra_rss.get();
        let terms = Terms { period_ms, every_ms, threshold_pages, decides, max_extra_rss, ..USUAL };
        prop_assume!(!script.spaces.is_empty() && terms.are_sound());
        let world = world(&script);
        let end = script.horizon.min(Duration::from_secs(300));
        let answer = |places: &[Window]| {
            let preference = |bit: usize| if word >> (bit % 64) & 1 == 1 { Preference::Promote } else { Preference::Leave };
            decides.then(|| places.iter().enumerate().map(|(bit, window)| (*window, preference(bit))).collect())
        };
        if let Some((watched, seen)) = track(&world, terms, end, answer) {
            prop_assert!(seen.lists.iter().flatten().all(|(_, hot)| *hot > 0));
            for list in &seen.lists {
                prop_assert!(list.is_sorted_by(|a, b| a.0 < b.0));
                prop_assert!(list.iter().map(|(_, hot)| u64::from(*hot)).sum::<u64>() >= threshold_pages);
            }
            let at = world.borrow().now;
            world.borrow_mut().stop = Some(Stop { at, advice: 0 });
            script.settings.until = Until::Stopped;
            let mut run = Run { script, world, targets: vec![watched.target] };
            let broken = run.broken();
            prop_assert!(broken.is_empty(), "{broken:#?}");
        }
    }
}
