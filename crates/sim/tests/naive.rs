//! Comparison of the simulator's cache with a naive one, access by access: hits, their place, the filler, evictions,
//! and the final content. The naive cache follows the rules alone, with lists instead of stamps, trees of structures
//! instead of bits, and linear loops.

#![expect(clippy::unwrap_used, reason = "test support")]

use proptest::prelude::*;
use sim::cache::set_associative::{Access, Cache, Filler, Line, Replacement, Shape};
use units::{WayMask, Ways};

#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    line: Line,
    filler: Filler,
    age: u8,
}

/// One half of ways, or one way.
#[derive(Clone, Debug)]
enum Tree {
    Way(usize),
    Halves { victim_is_right: bool, left: Box<Tree>, right: Box<Tree> },
}

impl Tree {
    fn over(first: usize, count: usize) -> Tree {
        if count == 1 {
            return Tree::Way(first);
        }
        let half = |first| Box::new(Tree::over(first, count / 2));
        Tree::Halves { victim_is_right: false, left: half(first), right: half(first + count / 2) }
    }

    fn has(&self, of: &[usize]) -> bool {
        match self {
            Tree::Way(way) => of.contains(way),
            Tree::Halves { left, right, .. } => left.has(of) || right.has(of),
        }
    }

    fn used(&mut self, way: usize) {
        if let Tree::Halves { victim_is_right, left, right } = self {
            *victim_is_right = left.has(&[way]);
            let half = if *victim_is_right { left } else { right };
            half.used(way);
        }
    }

    fn victim(&self, of: &[usize]) -> usize {
        match self {
            Tree::Way(way) => *way,
            Tree::Halves { victim_is_right, left, right } => {
                let (first, second) = if *victim_is_right { (right, left) } else { (left, right) };
                if first.has(of) { first.victim(of) } else { second.victim(of) }
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Set {
    ways: Vec<Option<Entry>>,
    /// Least recently used way first.
    used: Vec<usize>,
    /// Least recently filled way first.
    filled: Vec<usize>,
    tree: Tree,
}

fn to_the_end(list: &mut Vec<usize>, way: usize) {
    list.retain(|other| *other != way);
    list.push(way);
}

struct Naive {
    shape: Shape,
    sets: Vec<Set>,
}

impl Naive {
    fn new(shape: Shape) -> Naive {
        let ways = shape.ways.0 as usize;
        let tree = Tree::over(0, ways.next_power_of_two());
        let set = Set { ways: vec![None; ways], used: Vec::new(), filled: Vec::new(), tree };
        Naive { shape, sets: vec![set; shape.sets as usize] }
    }

    /// Hit: the way and its filler. Miss: the way and the evicted line.
    fn access(&mut self, line: Line, mask: WayMask, by: Filler) -> Seen {
        let set = &mut self.sets[self.shape.set_of(line) as usize];
        if let Some(way) = set.ways.iter().position(|entry| entry.is_some_and(|entry| entry.line == line)) {
            to_the_end(&mut set.used, way);
            set.tree.used(way);
            let entry = set.ways[way].as_mut().unwrap();
            entry.age = if entry.age >= 2 { 1 } else { 0 };
            return Seen::Hit(way, entry.filler);
        }
        let of: Vec<usize> = (0..set.ways.len()).filter(|way| mask.contains(u32::try_from(*way).unwrap())).collect();
        if of.is_empty() {
            return Seen::Bypass;
        }
        let empty = of.iter().copied().find(|way| set.ways[*way].is_none());
        let way = empty.unwrap_or_else(|| match self.shape.replacement {
            Replacement::Lru => *set.used.iter().find(|way| of.contains(way)).unwrap(),
            Replacement::Fifo => *set.filled.iter().find(|way| of.contains(way)).unwrap(),
            Replacement::TreePlru => set.tree.victim(&of),
            Replacement::Qlru => {
                while of.iter().all(|way| set.ways[*way].unwrap().age < 3) {
                    of.iter().for_each(|way| set.ways[*way].as_mut().unwrap().age += 1);
                }
                of.iter().copied().find(|way| set.ways[*way].unwrap().age == 3).unwrap()
            }
        });
        let before = set.ways[way].replace(Entry { line, filler: by, age: 1 });
        to_the_end(&mut set.used, way);
        to_the_end(&mut set.filled, way);
        set.tree.used(way);
        Seen::Miss(way, before.map(|entry| entry.line))
    }

    fn flush(&mut self, line: Line) -> Option<usize> {
        let set = &mut self.sets[self.shape.set_of(line) as usize];
        let way = set.ways.iter().position(|entry| entry.is_some_and(|entry| entry.line == line))?;
        set.ways[way] = None;
        Some(way)
    }

    fn lines(&self) -> Vec<(Line, usize, Filler)> {
        let ways = self.sets.iter().flat_map(|set| set.ways.iter().enumerate());
        ways.filter_map(|(way, entry)| entry.map(|entry| (entry.line, way, entry.filler))).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Hit(usize, Filler),
    Miss(usize, Option<Line>),
    Bypass,
}

fn seen(cache: &Cache, access: Access) -> Seen {
    match access {
        Access::Hit { slot, filler } => Seen::Hit(cache.way_of(slot) as usize, filler),
        Access::Miss { slot, evicted } => Seen::Miss(cache.way_of(slot) as usize, evicted),
        Access::Bypass => Seen::Bypass,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Access { line: u32, mask: usize, filler: Filler },
    Flush(u32),
}

fn steps(lines: u32) -> impl Strategy<Value = Vec<Step>> {
    let access = (0..lines, 0usize..6, 0u8..6, 0u8..6);
    let access =
        access.prop_map(|(line, mask, class, monitor)| Step::Access { line, mask, filler: Filler { class, monitor } });
    let step = prop_oneof![9 => access, 1 => (0..lines).prop_map(Step::Flush)];
    prop::collection::vec(step, 1..800)
}

fn shapes() -> impl Strategy<Value = Shape> {
    let ways = prop_oneof![1u32..=8, Just(11), Just(12), Just(16), Just(20), 21u32..=64];
    (1u32..=5, 1u32..=3, ways, prop::sample::select(Replacement::ALL.to_vec())).prop_map(
        |(sets, slices, ways, replacement)| Shape { sets: sets * slices, ways: Ways(ways), slices, replacement },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn the_cache_agrees_with_a_naive_one_access_by_access(
        shape in shapes(),
        masks in prop::collection::vec(prop_oneof![any::<u64>(), (0u32..64, 1u32..64).prop_map(|(first, ways)| WayMask::run(first, Ways(ways)).0), Just(u64::MAX)], 6),
        steps in (20u32..400).prop_flat_map(steps),
    ) {
        let (mut cache, mut naive) = (Cache::new(shape), Naive::new(shape));
        for step in steps {
            match step {
                Step::Access { line, mask, filler } => {
                    let (line, mask) = (Line(line), WayMask(masks[mask]));
                    let access = cache.access(line, mask, filler);
                    prop_assert_eq!(seen(&cache, access), naive.access(line, mask, filler));
                }
                Step::Flush(line) => {
                    let flushed = cache.flush(Line(line)).map(|slot| cache.way_of(slot) as usize);
                    prop_assert_eq!(flushed, naive.flush(Line(line)));
                }
            }
        }
        let lines: Vec<_> = cache.lines().map(|(line, slot)| (line, cache.way_of(slot) as usize, cache.filler_of(slot))).collect();
        prop_assert_eq!(&lines, &naive.lines());
        for monitor in 0..6u8 {
            let held = lines.iter().filter(|(_, _, filler)| filler.monitor == monitor).count() as u64;
            prop_assert_eq!(cache.occupancy(monitor).0, held * 64);
        }
    }
}

/// Misses of a second pass over `lines` lines in consecutive sets.
fn misses_of_a_second_walk(shape: Shape, lines: u32, mask: WayMask) -> usize {
    let mut cache = Cache::new(shape);
    let filler = Filler::default();
    (0..lines).for_each(|line| _ = cache.access(Line(line), mask, filler));
    (0..lines).filter(|line| !matches!(cache.access(Line(*line), mask, filler), Access::Hit { .. })).count()
}

#[test]
fn a_cycle_that_fits_never_misses_and_with_one_line_more_in_each_set_it_always_does() {
    for (sets, ways) in [(8192, 20), (16384, 20), (1000, 11), (1, 64)] {
        let shape = Shape { sets, ways: Ways(ways), slices: 1, replacement: Replacement::Lru };
        for wide in [ways, ways.div_ceil(2), 1] {
            let mask = WayMask::run(ways - wide, Ways(wide));
            assert_eq!(misses_of_a_second_walk(shape, sets * wide, mask), 0, "{sets} sets, {wide} of {ways} ways");
            let lines = sets * (wide + 1);
            assert_eq!(
                misses_of_a_second_walk(shape, lines, mask),
                lines as usize,
                "{sets} sets, {wide} of {ways} ways"
            );
        }
    }
}

#[test]
fn slices_share_lines_evenly() {
    let shape = Shape { sets: 6 * 1024, ways: Ways(12), slices: 6, replacement: Replacement::Lru };
    let mut in_slice = [0u32; 6];
    (0..60_000).for_each(|line| in_slice[(shape.set_of(Line(line)) / 1024) as usize] += 1);
    assert!(in_slice.iter().all(|lines| (9_600..10_400).contains(lines)), "{in_slice:?}");
}
