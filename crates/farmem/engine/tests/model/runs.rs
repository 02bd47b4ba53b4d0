//! Lengths of the runs that leave.

use super::*;

/// The model counts the pages of each run. More than fit in the shared memory of one transfer would be refused by masu,
/// and the program ended.
#[test]
fn pages_that_leave_one_behind_the_other_are_written_in_runs_of_a_unit_at_most() {
    // Enough for units of 256 pages.
    const FRAMES: usize = 4096;
    const ALL: u64 = 24_576;
    let memory = Memory::new(6 * CHUNK, FRAMES);
    let (mut learned, mut ghosts) = (Box::new(Learned::default()), vec![0; 800]);
    let mut world = World::new(&memory, &mut learned, &mut ghosts, FRAMES as u64);
    world.pager.space.mark(address(0), ALL * PAGE_BYTES);
    world.model.mapped.extend((0..ALL).map(address));
    world.units.costs = Costs::SERVER.alone();
    for round in 1..3 {
        for page in 0..ALL {
            // A small one takes the spare frames at the tail, and the next one needs all of its own.
            world.units.fixed_log2 = if page % 1024 < 16 { 4 } else { 8 };
            world.access(page, Some(round * ALL + page), 7).expect("as it was written");
        }
    }
    assert!(world.pager.counters.get(Counter::PagesOut) > ALL);
}
