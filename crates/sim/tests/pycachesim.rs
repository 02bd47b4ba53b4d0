//! Comparison of the cache with pycachesim (J. Hammer, RRZE), which has neither masks nor classes: with all ways, LRU
//! and FIFO give the same number of hits and misses on the same walks. `recorded/pycachesim/record.py` recorded the
//! counts, and describes how to repeat it.

use sim::cache::set_associative::{Access, Cache, Filler, Line, Replacement, Shape};
use units::{WayMask, Ways};

/// Same sequence as `walk` in `record.py`.
fn walk(seed: u64, lines: u64, accesses: usize) -> impl Iterator<Item = Line> {
    let (mut state, mut near) = (seed, 0);
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let draw = state >> 33;
        near = if draw & 3 == 0 { (draw >> 2) % lines } else { (near + (draw >> 2) % 64) % lines };
        Line(u32::try_from(near).expect("a small number"))
    })
    .take(accesses)
}

#[test]
fn hits_and_misses_are_those_that_pycachesim_counts() {
    let counts = include_str!("recorded/pycachesim/counts.txt");
    let rows = counts.lines().filter(|line| !line.starts_with('#'));
    let mut compared = 0;
    for row in rows {
        let cells: Vec<&str> = row.split(' ').collect();
        let [policy, sets, ways, seed, lines, accesses, hits, misses] = cells[..] else { panic!("{row}") };
        let replacement = match policy {
            "LRU" => Replacement::Lru,
            "FIFO" => Replacement::Fifo,
            other => panic!("{other}"),
        };
        let shape = Shape {
            sets: sets.parse().expect("sets"),
            ways: Ways(ways.parse().expect("ways")),
            slices: 1,
            replacement,
        };
        let mut cache = Cache::new(shape);
        let walk =
            walk(seed.parse().expect("a seed"), lines.parse().expect("lines"), accesses.parse().expect("accesses"));
        let (mut hit, mut missed) = (0u64, 0u64);
        for line in walk {
            match cache.access(line, WayMask(u64::MAX), Filler::default()) {
                Access::Hit { .. } => hit += 1,
                Access::Miss { .. } | Access::Bypass => missed += 1,
            }
        }
        assert_eq!(format!("{hit} {missed}"), format!("{hits} {misses}"), "{row}");
        compared += 1;
    }
    assert_eq!(compared, 2 * 7 * 3 * 3);
}
