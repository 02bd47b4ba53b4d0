//! Whole runs of the loop over model programs, worked out by hand.

use std::time::Duration;

use hugepages::Refusal;
use hugepages::attach::Until;
use hugepages::policy::Settings;
use hugepages::target::{Phase, Target};
use rustix::io::Errno;
use units::{Bytes, Fraction, Pages};

#[path = "model/mod.rs"]
mod model;

use model::cell::{Answer, Cell, Mapped, OFTEN, PAGES};
use model::check::{Run, run};
use model::script::{Change, Event, Script, When};
use model::space::{Space, cost};

const ALL: u64 = PAGES;

fn dense() -> Cell {
    Cell::hot(ALL, ALL, OFTEN)
}

/// A hundred pages short of full: cheap, not free.
fn sparse() -> Cell {
    Cell::hot(ALL - 100, 200, OFTEN)
}

/// One program with these windows and a GiB elsewhere, so that a percent of it is five windows.
fn program(cells: Vec<Cell>) -> Space {
    Space { other_rss: Bytes::gib(1).pages().0, ..Space::of(cells) }
}

fn script(cells: Vec<Cell>) -> Script {
    let mut script = Script::of(vec![program(cells)]);
    script.policy = Settings { max_extra_rss: Fraction::clamped(0.01), ..script.policy };
    script
}

/// Watched for `seconds`, then Ctrl-C.
fn watched(cells: Vec<Cell>, seconds: u64) -> Script {
    let mut script = script(cells);
    script.settings.until = Until::Stopped;
    script.horizon = Duration::from_secs(seconds);
    script
}

fn after(milliseconds: u64, window: usize, change: Change) -> Event {
    Event { when: When::Time(Duration::from_millis(milliseconds)), program: 0, window, change }
}

/// Carries it out; masu must have kept its guarantees in any case.
fn carry_out(script: Script) -> Run {
    let mut sound = run(script.clone());
    let broken = sound.broken();
    assert!(broken.is_empty(), "{broken:#?}\n{script:?}");
    run(script)
}

fn counts(target: &Target) -> (u64, u64, u64) {
    (target.totals.promoted, target.promoted_now(), target.totals.demoted)
}

fn refused(target: &Target) -> Vec<(Refusal, u64)> {
    target.refused().into_iter().collect()
}

/// Rounds with a request of masu for a window.
fn asked(run: &Run, window: usize) -> Vec<u32> {
    let world = run.world.borrow();
    world.spaces[0].collapses.iter().filter(|(_, index)| *index == window).map(|(round, _)| *round).collect()
}

#[test]
fn a_program_settles_after_one_round_of_promotions_and_two_quiet_ones() {
    let run = carry_out(script(vec![dense(), dense(), Cell::used(ALL)]));
    assert_eq!(counts(&run.targets[0]), (2, 2, 0));
    assert_eq!(run.targets[0].phase, Phase::Settled);
    assert_eq!(run.world.borrow().spaces[0].rounds, 3);
}

#[test]
fn what_is_full_is_free_and_what_is_not_is_paid_from_the_budget() {
    // 1 % of a GiB and four windows is 2,638 pages: room for three times a hundred.
    let run = carry_out(script(vec![dense(), sparse(), sparse(), sparse()]));
    assert_eq!(counts(&run.targets[0]), (4, 4, 0));
    assert_eq!(run.targets[0].extra_rss(), Pages(300).bytes());
}

#[test]
fn beyond_the_budget_the_windows_that_save_most_walks_per_byte_are_promoted() {
    let mut tight = script(vec![Cell::hot(400, 150, OFTEN), Cell::hot(400, 300, OFTEN), dense()]);
    // 10 % of 1,312 pages is 131: room for one window of 112.
    tight.spaces[0].other_rss = 0;
    tight.policy.max_extra_rss = Fraction::clamped(0.1);
    let run = carry_out(tight);
    assert_eq!(run.world.borrow().turns, [(0, 2), (0, 1)]);
    assert_eq!(refused(&run.targets[0]), [(Refusal::OverBudget, 1)]);
}

#[test]
fn two_programs_take_turns_by_what_a_byte_saves() {
    let first = program(vec![Cell::hot(400, 150, OFTEN), dense()]);
    let second = program(vec![Cell::hot(400, 300, OFTEN), Cell::hot(400, 200, OFTEN)]);
    let mut both = Script::of(vec![first, second]);
    both.policy.max_extra_rss = Fraction::clamped(0.01);
    let run = carry_out(both);
    assert_eq!(run.world.borrow().turns, [(0, 1), (1, 0), (1, 1), (0, 0)]);
}

#[test]
fn full_windows_are_promoted_while_looking_goes_on_and_some_tell_what_the_others_would_have_shown() {
    // The last forty come in sight between 0.64 and 1.28 s: the round goes on to 2.56 s.
    let slow = Cell::hot(ALL, 300, Duration::from_millis(1100));
    let run = carry_out(script([vec![dense(); 80], vec![slow; 40]].concat()));
    assert_eq!(counts(&run.targets[0]), (120, 120, 0));
    let ages = run.world.borrow().spaces[0].ages.clone();
    let (at_once, at_the_end): (Vec<Duration>, Vec<Duration>) =
        ages.into_iter().partition(|age| *age < Duration::from_millis(1600));
    assert!((100..120).contains(&at_once.len()), "{}", at_once.len());
    assert!(at_the_end.iter().all(|age| *age >= Duration::from_millis(1600)));
    let windows = run.targets[0].what_if().map(|answer| answer.windows);
    assert_eq!(windows[..3], [120, 120, 120]);
    assert!((60..120).contains(&windows[3]), "eighty have all their pages hot: {windows:?}");
}

#[test]
fn a_huge_page_that_has_to_be_compacted_for_is_asked_for_ever_more_seldom() {
    let mut slow = script(vec![dense(); 5]);
    slow.preallocation = Duration::from_millis(30);
    let run = carry_out(slow);
    let ages = run.world.borrow().spaces[0].ages.clone();
    let distances: Vec<Duration> = ages.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(distances.len(), 4);
    assert!(distances.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2), "{distances:?}");
}

#[test]
fn a_dry_run_takes_out_of_the_plan_what_would_be_refused() {
    let mut dry = script(vec![Cell { forbidden: true, ..Cell::hot(400, 300, OFTEN) }, Cell::hot(400, 200, OFTEN)]);
    dry.spaces[0].other_rss = 0;
    dry.policy.max_extra_rss = Fraction::clamped(0.15); // room for one of them
    dry.settings.dry_run = true;
    let run = carry_out(dry);
    let planned: Vec<u64> = run.targets[0].plan().promote.iter().map(|promotion| promotion.hot.0).collect();
    assert_eq!(planned, [200]);
    assert_eq!(refused(&run.targets[0]), [(Refusal::Forbidden, 1)]);
}

#[test]
fn a_refused_window_leaves_its_part_of_the_budget_to_the_next() {
    let mut tight = script(vec![
        Cell { forbidden: true, ..Cell::hot(400, 300, OFTEN) },
        Cell { swapped: 1, ..Cell::hot(400, 200, OFTEN) },
        Cell::hot(400, 150, OFTEN),
    ]);
    tight.spaces[0].other_rss = 0;
    tight.policy.max_extra_rss = Fraction::clamped(0.1); // room for one of them
    let run = carry_out(tight);
    assert_eq!(run.world.borrow().turns, [(0, 2)]);
    assert_eq!(refused(&run.targets[0]), [(Refusal::Forbidden, 1), (Refusal::OverBudget, 1)]);
    assert_eq!(asked(&run, 0), [1], "and the window in swap was never asked for");
}

#[test]
fn a_window_that_others_split_every_second_does_not_keep_a_program_from_settling() {
    let settles = |windows: usize| {
        let mut noisy = script(vec![dense(); windows]);
        noisy.policy.settle_noise = Fraction::clamped(0.1);
        noisy.horizon = Duration::from_secs(60);
        // An event splits it every 600 ms, so that there is one to promote in every round.
        noisy.events = (0..100).map(|n| after(n * 600, 0, Change::Split)).collect();
        carry_out(noisy).targets[0].phase == Phase::Settled
    };
    assert!(settles(20) && settles(5));
}

#[test]
fn a_window_refused_for_a_moment_is_tried_again_at_growing_distances() {
    let busy = Cell { failing: Some((Answer::Refused(Errno::AGAIN), u32::MAX)), ..dense() };
    let run = carry_out(watched(vec![busy], 1000));
    assert_eq!(asked(&run, 0)[..6], [1, 3, 7, 15, 31, 63]);
    assert_eq!(refused(&run.targets[0]), [(Refusal::Pinned, 1)]);
}

#[test]
fn a_window_is_promoted_when_what_stood_against_it_has_passed() {
    let mut twice = watched(vec![Cell { failing: Some((Answer::Refused(Errno::NOMEM), 2)), ..dense() }], 1000);
    let run = carry_out(twice.clone());
    assert_eq!((asked(&run, 0), counts(&run.targets[0])), (vec![1, 3, 7], (1, 1, 0)));
    // A fork shares pages for 20 seconds: masu sees that by itself and does not ask the kernel.
    twice.spaces[0].cells[0] = Cell { shared: 3, ..dense() };
    twice.events = vec![after(20_000, 0, Change::Share(0))];
    let run = carry_out(twice);
    assert_eq!(asked(&run, 0).len(), 1);
    assert_eq!(counts(&run.targets[0]), (1, 1, 0));
}

#[test]
fn a_window_that_became_huge_by_itself_is_no_longer_counted_as_refused() {
    let mut busy = watched(vec![Cell { failing: Some((Answer::Refused(Errno::AGAIN), u32::MAX)), ..dense() }], 40);
    // Refused in rounds 1 and 3, and not due again before the seventh, which begins after 42 seconds.
    assert_eq!(refused(&carry_out(busy.clone()).targets[0]), [(Refusal::TryAgain, 1)]);
    busy.events = vec![after(20_000, 0, Change::Khugepaged)];
    let run = carry_out(busy.clone());
    assert_eq!((refused(&run.targets[0]), counts(&run.targets[0])), (vec![], (0, 0, 0)));
    // Nor is a window without touches.
    busy.events = vec![after(20_000, 0, Change::Heat(0, OFTEN))];
    assert_eq!(refused(&carry_out(busy).targets[0]), []);
}

#[test]
fn a_window_that_the_program_forbids_is_asked_for_once() {
    let run = carry_out(watched(vec![Cell { forbidden: true, ..dense() }], 300));
    assert_eq!(asked(&run, 0), [1]);
    assert_eq!(refused(&run.targets[0]), [(Refusal::Forbidden, 1)]);
}

#[test]
fn a_yes_after_which_the_window_is_not_huge_is_no_promotion() {
    let run = carry_out(script(vec![Cell { failing: Some((Answer::YesAndNothing, u32::MAX)), ..dense() }]));
    assert_eq!(counts(&run.targets[0]), (0, 0, 0));
    assert_eq!(refused(&run.targets[0]), [(Refusal::NotHugeAfterwards, 1)]);
}

#[test]
fn what_must_not_be_collapsed_is_not_asked_for() {
    let cells = vec![
        Cell { shared: 1, ..dense() },
        Cell { swapped: 12, ..sparse() },
        Cell { guards: 1, ..sparse() },
        Cell { mapped: Mapped::File, ..dense() },
        Cell { mapped: Mapped::SharedMemory, ..dense() },
        Cell { mapped: Mapped::CutInTwo, ..dense() },
    ];
    let run = carry_out(script(cells));
    assert_eq!(run.world.borrow().spaces[0].collapses, []);
    let reasons =
        [Refusal::NotAnonymous, Refusal::CrossesMappings, Refusal::Shared, Refusal::Swapped, Refusal::GuardPages];
    assert_eq!(run.targets[0].refused().keys().copied().collect::<Vec<_>>(), reasons);
    assert_eq!(run.targets[0].verdicts().scanned, 3, "the rest can never be huge");
}

/// Runs with the event on the last window at every call in turn, until the run ends before that call.
fn at_every_call(before: &Script, change: Change, check: impl Fn(&Run)) {
    let window = before.spaces[0].cells.len() - 1;
    for call in 0.. {
        let mut disturbed = before.clone();
        disturbed.events = vec![Event { when: When::Call(call), program: 0, window, change }];
        let run = carry_out(disturbed);
        if !run.world.borrow().events.is_empty() {
            assert!(call > 20, "the run is too short to say anything");
            return;
        }
        check(&run);
    }
}

#[test]
fn a_file_that_is_mapped_at_any_moment_is_left_alone() {
    for mapped in [Mapped::File, Mapped::SharedMemory] {
        // The model checks that no collapse is requested where a file was measured.
        at_every_call(&script(vec![dense(), dense(), dense()]), Change::Map(mapped), |run| {
            assert!(run.targets[0].totals.promoted >= 2 && run.targets[0].phase == Phase::Settled);
        });
    }
}

#[test]
fn ctrl_c_at_any_moment_leaves_the_rest_of_the_plan_undone() {
    // `carry_out` checks that only the call under way comes after.
    let idle = || Cell::used(100).huge();
    at_every_call(&script(vec![idle(); 10]), Change::CtrlC, |run| assert!(run.targets[0].totals.demoted <= 10));
    at_every_call(&script(vec![dense(); 10]), Change::CtrlC, |run| assert!(run.targets[0].totals.promoted <= 10));
}

#[test]
fn what_others_do_to_a_window_at_any_moment_is_not_counted_as_masus_work() {
    let idle = || Cell::used(100).huge();
    for change in [Change::Split, Change::Free, Change::Map(Mapped::Nothing), Change::Touch(ALL)] {
        // Whether masu demotes the last window depends on the order; `carry_out` compares the counts.
        at_every_call(&script(vec![idle(), idle()]), change, |run| assert!(run.targets[0].totals.demoted >= 1));
    }
    for change in [Change::Split, Change::Khugepaged, Change::Share(1), Change::Swap(1), Change::Forbid] {
        at_every_call(&script(vec![sparse(), sparse()]), change, |run| assert!(run.targets[0].totals.promoted >= 1));
    }
}

#[test]
fn a_cgroup_without_room_for_the_copy_is_respected_until_it_has_room() {
    let mut full = watched(vec![dense()], 300);
    full.spaces[0].room = Some(Bytes::mib(1));
    full.events = vec![after(30_000, 0, Change::Room(Some(Bytes::mib(3))))];
    let run = carry_out(full);
    assert_eq!((asked(&run, 0).len(), counts(&run.targets[0])), (1, (1, 1, 0)));
}

#[test]
fn an_idle_huge_window_is_probed_and_given_back_and_one_in_use_is_kept() {
    let idle = Cell::used(100).huge();
    let in_use = Cell::hot(100, 1, Duration::from_secs(1)).huge();
    let run = carry_out(script(vec![idle, in_use]));
    assert_eq!(counts(&run.targets[0]), (0, 0, 1));
    assert_eq!(run.targets[0].totals.returned, cost(100));
    assert!(run.world.borrow().spaces[0].cells[1].huge);
}

#[test]
fn windows_that_are_swept_every_few_seconds_are_given_back_twice_at_most() {
    for period in [2, 3, 5, 8, 12, 20].map(Duration::from_secs) {
        let mut swept = watched(vec![Cell::hot(200, 200, period); 4], 1000);
        swept.policy.max_extra_rss = Fraction::clamped(0.1);
        let run = carry_out(swept);
        assert!(run.targets[0].totals.demoted <= 2 * 4, "{period:?}: {:?}", counts(&run.targets[0]));
        assert!(run.targets[0].totals.settled_at.is_some(), "{period:?}");
    }
}

#[test]
fn a_window_that_went_cold_returns_what_its_promotion_added_and_a_full_one_stays() {
    let mut cooling = watched(vec![sparse(), dense()], 200);
    cooling.events = vec![after(20_000, 0, Change::Heat(0, OFTEN)), after(20_000, 1, Change::Heat(0, OFTEN))];
    let run = carry_out(cooling);
    assert_eq!(counts(&run.targets[0]), (2, 1, 1));
    assert_eq!(run.targets[0].totals.returned, Pages(100).bytes());
    assert_eq!(run.targets[0].extra_rss(), Bytes(0));
}

#[test]
fn a_window_that_somebody_holds_is_not_asked_to_split_again_and_still_counts() {
    let mut held = watched(vec![Cell { pinned: u32::MAX, ..sparse() }], 300);
    held.events = vec![after(20_000, 0, Change::Heat(0, OFTEN))];
    let run = carry_out(held);
    assert_eq!(counts(&run.targets[0]), (1, 1, 0));
    assert_eq!(run.targets[0].extra_rss(), Pages(100).bytes());
    assert_eq!(run.world.borrow().spaces[0].cells[0].pinned, u32::MAX - 1);
}

#[test]
fn memory_that_a_split_does_not_return_stays_paid_for() {
    let mut older = watched(vec![Cell::hot(200, 150, OFTEN), Cell::hot(200, 150, OFTEN)], 300);
    // Room for one of them; when the first one cools down, its memory stays where it is.
    older.spaces[0].other_rss = 4000;
    older.policy.max_extra_rss = Fraction::clamped(0.1);
    older.returns_zero_pages = false;
    older.events = vec![after(20_000, 0, Change::Heat(0, OFTEN))];
    let run = carry_out(older.clone());
    assert_eq!(counts(&run.targets[0]), (1, 0, 1));
    assert_eq!(run.targets[0].extra_rss(), cost(200));
    assert_eq!(refused(&run.targets[0]), [(Refusal::OverBudget, 1)]);
    // Where the kernel returns it, the second one takes its place.
    older.returns_zero_pages = true;
    assert_eq!(counts(&carry_out(older).targets[0]), (2, 1, 1));
}

#[test]
fn a_window_that_is_out_of_sight_for_a_moment_is_still_masus() {
    let mut moments = watched(vec![sparse(), sparse()], 100);
    moments.events = vec![
        after(15_000, 0, Change::Hide(5)),
        after(15_000, 1, Change::Map(Mapped::NoAccess)),
        after(40_000, 1, Change::Map(Mapped::Anonymous)),
    ];
    let run = carry_out(moments);
    assert_eq!(counts(&run.targets[0]), (2, 2, 0));
    assert_eq!(run.targets[0].extra_rss(), Pages(200).bytes());
}

#[test]
fn a_program_that_ends_is_left_out_and_the_others_go_on() {
    for call in [0, 3, 10, 20, 30, 31, 32, 33, 34, 35, 40, 50] {
        let mut two = Script::of(vec![program(vec![dense(); 3]), program(vec![dense(); 3])]);
        two.events = vec![Event { when: When::Call(call), program: 0, window: 0, change: Change::Exit }];
        let run = carry_out(two);
        let (ended, lives) = match &run.targets[..] {
            [ended, lives] => (Some(ended), lives),
            // It ended before masu could attach to it.
            [lives] => (None, lives),
            _ => panic!("two programs at most"),
        };
        assert!(ended.is_none_or(|target| target.phase == Phase::Ended), "call {call}");
        assert_eq!((lives.phase, counts(lives)), (Phase::Settled, (3, 3, 0)), "call {call}");
    }
}

#[test]
fn programs_that_end_one_after_the_other_do_not_cut_short_what_is_seen_of_the_rest() {
    // Each end wakes the loop, and a window that is used every second is not used between two of them.
    let lasting = program(vec![Cell::hot(100, 50, Duration::from_secs(1)).huge()]);
    let mut ending = Script::of(vec![program(vec![dense()]); 60]);
    ending.spaces.insert(0, lasting);
    ending.policy.idle_rounds = 1;
    ending.settings.until = Until::For(Duration::from_secs(20));
    let end = |number: usize| Event { program: number, ..after(3000 + 15 * number as u64, 0, Change::Exit) };
    ending.events = (1..=60).map(end).collect();
    let run = carry_out(ending);
    assert_eq!(counts(&run.targets[0]), (0, 0, 0));
}

/// First promotion of this program, after its arrival: rounds, and time since that round's clear.
fn first_promotion_of(run: &Run, program: usize) -> Option<(u32, Duration)> {
    let world = run.world.borrow();
    let space = &world.spaces[program];
    Some((space.collapses.first()?.0, *space.ages.first()?))
}

#[test]
fn a_program_that_comes_while_the_others_are_watched_is_served_at_once() {
    // Settled after a few seconds, and then watched in rounds of ten minutes.
    let mut one = watched(vec![dense()], 0);
    one.settings.rate.watch_every = (Duration::from_secs(600), Duration::from_secs(600));
    one.spaces.insert(0, program(vec![dense(); 3]));
    one.come_at = vec![Duration::from_secs(60)];
    for (horizon, promoted) in [(60, 0), (62, 3)] {
        one.horizon = Duration::from_secs(horizon);
        let run = carry_out(one.clone());
        let of_newcomer =
            run.targets.iter().find(|target| target.pid.0 == 1).map_or(0, |target| target.totals.promoted);
        assert_eq!(of_newcomer, promoted, "after {horizon} s");
    }
    one.horizon = Duration::from_secs(100);
    let run = carry_out(one);
    assert_eq!(run.targets[0].phase, Phase::Settled);
    assert_eq!(first_promotion_of(&run, 0).map(|(round, _)| round), Some(1));
}

#[test]
fn a_program_that_comes_while_a_round_waits_for_more_evidence_is_taken_in_soon() {
    // New windows come in sight at every scan: the round would go on to 10.24 s.
    let slow = |ms| Cell::hot(ALL, 300, Duration::from_millis(ms));
    let seen_late = vec![slow(900), slow(1_900), slow(3_900), slow(7_900), slow(9_900)];
    let mut one = watched(seen_late, 4);
    one.spaces.insert(0, program(vec![dense(); 3]));
    one.come_at = vec![Duration::from_millis(1_500)];
    let run = carry_out(one);
    let newcomer = &run.targets[0];
    assert_eq!((newcomer.pid.0, newcomer.totals.promoted), (1, 3));
}

#[test]
fn programs_that_come_all_the_time_do_not_keep_the_others_from_being_seen() {
    // One every 120 ms; the window is used every 600 ms, and a round is never shorter than 640.
    let lasting = program(vec![Cell::hot(100, 50, Duration::from_millis(600)).huge(), dense()]);
    let mut coming = Script::of(vec![program(vec![dense()]); 40]);
    coming.spaces.push(lasting);
    coming.policy.idle_rounds = 1;
    coming.settings.until = Until::Stopped;
    coming.horizon = Duration::from_secs(20);
    coming.come_at = (1..=40).map(|n| Duration::from_millis(n * 120)).collect();
    let run = carry_out(coming);
    assert_eq!(run.targets.len(), 41);
    assert!(run.targets.iter().all(|target| (target.totals.promoted, target.totals.demoted) == (1, 0)));
}

#[test]
fn the_loop_outlives_its_programs_while_others_may_come() {
    let mut gap = watched(vec![dense(); 2], 1000);
    gap.spaces.push(program(vec![dense(); 3]));
    gap.come_at = vec![Duration::from_secs(100)];
    gap.events = vec![
        Event { program: 1, ..after(5_000, 0, Change::Exit) },
        Event { program: 0, ..after(200_000, 0, Change::Exit) },
    ];
    let run = carry_out(gap);
    assert!(run.targets.iter().all(|target| target.phase == Phase::Ended));
    assert_eq!(run.targets.iter().map(|target| target.totals.promoted).collect::<Vec<_>>(), [2, 3]);
    let (ended, waits) = (run.world.borrow().now, run.world.borrow().calls);
    assert!(ended < Duration::from_secs(201), "the last one ended after 200 s: {ended:?}");
    assert!(waits < 1000, "{waits} calls: nobody is there for 95 s");
}

#[test]
fn nobody_is_there_at_first_and_the_loop_waits() {
    let mut late = script(vec![dense(); 2]);
    late.come_at = vec![Duration::from_secs(30)];
    let run = carry_out(late);
    assert_eq!((run.targets[0].phase, counts(&run.targets[0])), (Phase::Settled, (2, 2, 0)));
}

fn halted_from(mut script: Script, from: u64, to: u64) -> Script {
    script.spaces[0].halted = Some((Duration::from_secs(from), Duration::from_secs(to)));
    script
}

#[test]
fn a_program_that_cannot_run_has_no_idle_windows_and_has_not_settled() {
    let stopped = halted_from(watched(vec![Cell::used(100).huge(), dense()], 100), 0, 200);
    let run = carry_out(stopped);
    assert_eq!(counts(&run.targets[0]), (0, 0, 0), "neither promoted nor split");
    assert_eq!((run.targets[0].phase, run.targets[0].totals.settled_at), (Phase::Watching, None));
    assert!(run.targets[0].halted().is_some());
}

#[test]
fn a_program_that_can_run_again_is_served_as_any_other() {
    for (from, to) in [(0, 7), (1, 30), (2, 4)] {
        let run = carry_out(halted_from(script(vec![dense(), dense(), Cell::used(ALL)]), from, to));
        assert_eq!(counts(&run.targets[0]), (2, 2, 0), "{from} {to}");
        assert_eq!(run.targets[0].phase, Phase::Settled, "{from} {to}");
        assert!(run.targets[0].totals.settled_at >= Some(Duration::from_secs(to)), "{from} {to}");
    }
}

#[test]
fn a_settled_program_that_stops_for_an_hour_keeps_its_huge_windows() {
    let run = carry_out(halted_from(watched(vec![sparse(), dense()], 4000), 30, 3630));
    assert_eq!(counts(&run.targets[0]), (2, 2, 0));
}

#[test]
fn after_exec_everything_starts_anew() {
    let mut changing = watched(vec![sparse(), Cell::used(0)], 200);
    changing.events = vec![after(20_000, 0, Change::Exec), after(40_000, 1, Change::Heat(ALL, OFTEN))];
    let run = carry_out(changing);
    assert_eq!(run.targets[0].totals.execs, 1);
    assert_eq!(counts(&run.targets[0]), (2, 1, 0));
    assert_eq!(run.targets[0].extra_rss(), Bytes(0));
}

/// The next program has little in the same window: memory added there by a collapse for the first one is in no
/// budget.
#[test]
fn a_huge_page_meant_for_a_program_before_exec_does_not_stay_in_the_next_one() {
    let mut astray = 0;
    for (call, returns_zero_pages) in (0..200).flat_map(|call| [(call, true), (call, false)]) {
        let mut changing = watched(vec![dense()], 3);
        changing.returns_zero_pages = returns_zero_pages;
        let happens = |change| Event { when: When::Call(call), program: 0, window: 0, change };
        changing.events = vec![happens(Change::Exec), happens(Change::Touch(100))];
        let run = carry_out(changing);
        let (target, world) = (&run.targets[0], run.world.borrow());
        if world.spaces[0].generation == 0 {
            continue; // the run was over
        }
        assert!(
            !world.spaces[0].cells[0].huge,
            "exec at call {call}: nobody used that window after the exec, and it is huge"
        );
        if target.totals.demoted == 1 {
            astray += 1;
            let (returned, left) = if returns_zero_pages { (ALL - 100, 0) } else { (0, ALL) };
            assert_eq!(counts(target), (1, 0, 1), "exec at call {call}");
            assert_eq!((target.totals.returned, target.extra_rss()), (Pages(returned).bytes(), Pages(left).bytes()));
        }
    }
    assert_eq!(astray, 4, "between the measuring and the collapse lies the reading of the cgroup's room, each time");
}

#[test]
fn what_a_program_forbade_is_not_held_against_the_one_that_follows_by_exec() {
    let mut changing = watched(vec![Cell { forbidden: true, ..dense() }], 200);
    changing.events = vec![after(20_000, 0, Change::Exec), after(25_000, 0, Change::Heat(ALL, OFTEN))];
    // No scan falls between the two: the window is there before and after.
    changing.settings.rate.watch_every = (Duration::from_secs(30), Duration::from_secs(30));
    let run = carry_out(changing);
    assert_eq!(counts(&run.targets[0]), (1, 1, 0));
    assert!(run.targets[0].totals.settled_at > Some(Duration::from_secs(30)), "settled anew");
}

#[test]
fn undoing_splits_what_masu_promoted_and_leaves_what_was_huge_before() {
    let mut run = run(script(vec![sparse(), dense(), Cell::hot(100, 50, OFTEN).huge()]));
    run.world.borrow_mut().undoing = true;
    assert!(run.targets[0].undo().is_empty());
    assert_eq!(counts(&run.targets[0]), (2, 0, 2));
    assert_eq!((run.targets[0].totals.returned, run.targets[0].extra_rss()), (Pages(100).bytes(), Bytes(0)));
    let world = run.world.borrow();
    assert_eq!(world.spaces[0].cells.iter().map(|cell| cell.huge).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(world.broken, Vec::<String>::new());
}

#[test]
fn undoing_counts_what_moves_before_each_look() {
    let mut run = run(script(vec![dense(), dense()]));
    assert_eq!(run.targets[0].promoted_now(), 2);
    (run.world.borrow_mut().undoing, run.world.borrow_mut().moving) = (true, true);
    assert_eq!(run.targets[0].undo().into_iter().collect::<Vec<_>>(), [(Refusal::Moved, 2)]);
    assert_eq!(run.world.borrow().broken, Vec::<String>::new());
}

#[test]
fn a_clock_that_jumps_by_an_hour_harms_nothing() {
    let mut sleeping = watched(vec![sparse(), Cell::hot(100, 50, OFTEN).huge()], 200_000);
    sleeping.events = (0..40)
        .map(|n| Event {
            when: When::Call(n * 7),
            program: 0,
            window: 0,
            change: Change::Sleep(Duration::from_secs(3600)),
        })
        .collect();
    let run = carry_out(sleeping);
    assert_eq!(run.targets[0].totals.demoted, 0);
}
