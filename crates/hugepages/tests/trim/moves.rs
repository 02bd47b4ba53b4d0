//! Runs of trimming over a model program that moves its windows.

use super::*;

/// Rounds until the given end, with a move before each: the windows lie in one half, and go to the other.
fn run_moving(model: &Model, trimmer: &mut Trimmer, end: Duration, change: impl Fn(&mut [Cell])) {
    while model.0.borrow().now < end {
        let now = model.0.borrow().now;
        let round = trimmer.round(now, &|| false).unwrap();
        model.pass(round.next_scan);
        change(&mut model.0.borrow_mut().cells);
    }
    assert_eq!(model.0.borrow().broken, Vec::<String>::new());
}

/// Cells, and as many empty places.
fn with_room(cells: Vec<Cell>) -> Model {
    let room = vec![Cell { huge: false, ..Cell::huge(0) }; cells.len()];
    Model::of([cells, room].concat())
}

#[test]
fn windows_that_move_before_each_scan_are_split_like_those_that_stay() {
    let filled = [20, 84, 148, 212, 276, 340, 404, 468];
    for reversed in [false, true] {
        let model = with_room(filled.map(Cell::huge).to_vec());
        let mut trimmer = model.trimmer(settings(0.0));
        let change = if reversed { <[Cell]>::reverse } else { to_the_other_half };
        run_moving(&model, &mut trimmer, seconds(6), change);
        let returned: u64 = filled.iter().map(|filled| ALL - filled).sum();
        assert_eq!((trimmer.totals.demoted, trimmer.totals.returned), (8, Pages(returned).bytes()));
        assert_eq!(trimmer.totals.counted, 16, "two counts each, as of windows that stay");
    }
}

#[test]
fn a_window_that_moves_between_a_scan_and_its_count_keeps_its_age() {
    let model = with_room(vec![Cell::huge(64)]);
    let mut trimmer = model.trimmer(settings(0.0));
    trimmer.round(seconds(0), &|| false).unwrap();
    model.0.borrow_mut().moves_after_scan = true;
    let demoted: Vec<u64> = (1..4).map(|second| trimmer.round(seconds(second), &|| false).unwrap().demoted).collect();
    assert_eq!(demoted, [0, 0, 1], "one count later than a window that stays");
}

#[test]
fn new_windows_that_hold_something_else_are_new() {
    let model = with_room(vec![Cell::huge(64); 4]);
    let mut trimmer = model.trimmer(settings(0.0));
    run_moving(&model, &mut trimmer, seconds(60), |cells| {
        to_the_other_half(cells);
        let next = |filled| if filled == 128 { 64 } else { 128 };
        cells.iter_mut().filter(|cell| cell.huge).for_each(|cell| cell.filled = next(cell.filled));
    });
    assert_eq!((trimmer.totals.demoted, trimmer.totals.counted), (0, 0));
}

#[test]
fn a_window_that_was_promoted_again_is_still_huge_after_a_move() {
    let model = with_room(vec![Cell::huge(64)]);
    let mut trimmer = model.trimmer(settings(0.0));
    model.run_until(&mut trimmer, seconds(10));
    model.change(0, |cell| cell.filled = ALL);
    model.run_until(&mut trimmer, seconds(500));
    assert_eq!((trimmer.totals.promoted_again, trimmer.promoted_still_huge()), (1, 1));
    run_moving(&model, &mut trimmer, seconds(520), to_the_other_half);
    assert_eq!(trimmer.promoted_still_huge(), 1);
}

#[test]
fn a_window_that_was_split_and_moved_is_promoted_again_when_it_is_full() {
    let model = with_room(vec![Cell::huge(64)]);
    model.0.borrow_mut().maps = Some((0, 1));
    let mut trimmer = model.trimmer(settings(0.0));
    model.run_until(&mut trimmer, seconds(10));
    assert_eq!(trimmer.totals.demoted, 1);
    to_the_other_half(&mut model.0.borrow_mut().cells);
    model.0.borrow_mut().maps = Some((1, 2));
    let now = model.0.borrow().now;
    model.run_until(&mut trimmer, now + seconds(20));
    model.change(1, |cell| cell.filled = ALL);
    model.run_until(&mut trimmer, now + seconds(500));
    assert_eq!(trimmer.totals.promoted_again, 1);
}

#[test]
fn moved_windows_that_a_fork_shares_keep_the_waste_that_was_sampled() {
    let model = with_room(vec![Cell::huge(64), Cell::huge(448)]);
    let mut trimmer = model.trimmer(settings(100.0));
    trimmer.round(Duration::ZERO, &|| false).unwrap();
    (0..2).for_each(|index| model.change(index, |cell| cell.shared = true));
    trimmer.round(seconds(1), &|| false).unwrap();
    assert_eq!(trimmer.totals.shared_left, (2, Pages(448 + 64).bytes()));
    run_moving(&model, &mut trimmer, seconds(60), to_the_other_half);
    assert_eq!(trimmer.totals.shared_left, (2, Pages(448 + 64).bytes()));
}
