//! Scenarios, and the simulated cache. Any text is read or refused; a small scenario is run to its end, and every
//! access of it is accounted for. The same bytes, four each, are accesses under masks and flushes: hits, fills and
//! evictions are those of a list of ways in the order of their use.

use std::io;
use std::path::Path;

use crate::input::Input;
use sim::cache::compare::{accesses, compare};
use sim::cache::scenario::Scenario;
use sim::cache::set_associative::{Access, Cache, Filler, Line, Replacement, Shape};
use units::{Bytes, WayMask, Ways};

/// A scenario with more accesses is only read.
const ACCESSES_MAX: u64 = 20_000;
const BYTES_MAX: Bytes = Bytes::mib(4);

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    cache(Input(bytes));
    scenario(&String::from_utf8_lossy(bytes))
}

fn scenario(text: &str) -> bool {
    let Ok(scenario) = Scenario::parse(Path::new("s.toml"), text) else { return false };
    let array = |array: Option<Bytes>| array.unwrap_or_default();
    let wide = |array: Bytes| {
        let privates = scenario.programs.iter().map(|program| program.private.pages(array).0);
        privates.chain(scenario.sets.iter().map(|set| set.size.pages(array).0)).fold(0u64, u64::saturating_add)
    };
    let small = scenario.build.llc.bytes() <= BYTES_MAX
        && scenario.build.levels.iter().all(|level| level.shape.bytes() <= BYTES_MAX)
        && scenario.memory.bytes() <= Bytes::gib(4)
        && scenario.points().len() <= 4
        && scenario.points().into_iter().all(|point| wide(array(point)) <= 1 << 10)
        && accesses(&scenario) <= ACCESSES_MAX;
    if !small {
        return false;
    }
    let open = |_: &Path| -> io::Result<_> { Err(io::Error::from(io::ErrorKind::NotFound)) };
    let Ok(report) = compare(&scenario, 1, &open, &|_| true) else { return false };
    assert!(report.complete && report.points.len() == scenario.points().len());
    for (point, found) in scenario.points().into_iter().zip(&report.points) {
        assert_eq!(found.conditions.len(), scenario.conditions.len());
        let measured = scenario.accesses(scenario.measured, array(point)).max(1);
        for condition in &found.conditions {
            assert_eq!(condition.programs.iter().map(|program| program.accesses).sum::<u64>(), measured);
            assert!(condition.access_time_ratio >= 1.0, "{condition:?}");
            assert!(condition.programs.iter().all(|program| (0.0..=1.0).contains(&program.miss_fraction)));
        }
    }
    true
}

/// Reference model of a cache set: the lines by way, and the ways in the order of their last use and of their filling.
#[derive(Clone, Default)]
struct Naive {
    lines: Vec<Option<Line>>,
    used: Vec<usize>,
    filled: Vec<usize>,
}

fn cache(mut input: Input<'_>) {
    let (ways, sets) = (1 + u32::from(input.byte()) % 40, 1 + u32::from(input.byte()) % 5);
    let replacement = if input.byte().is_multiple_of(2) { Replacement::Lru } else { Replacement::Fifo };
    let shape = Shape { sets, ways: Ways(ways), slices: 1, replacement };
    let mut cache = Cache::new(shape);
    let mut naive = vec![Naive { lines: vec![None; ways as usize], ..Naive::default() }; sets as usize];
    while !input.0.is_empty() {
        let (what, line, mask) = (input.byte(), Line(u32::from(input.byte())), u64::from(input.half()));
        // Masks of 40 ways, too: 16 bits at any offset.
        let mask = WayMask(mask << (what % 25));
        let set = &mut naive[shape.set_of(line) as usize];
        let there = set.lines.iter().position(|other| *other == Some(line));
        if what >= 240 {
            assert_eq!(cache.flush(line).map(|slot| cache.way_of(slot) as usize), there);
            there.into_iter().for_each(|way| set.lines[way] = None);
            continue;
        }
        let access = cache.access(line, mask, Filler { class: what % 4, monitor: what % 4 });
        let to_the_end = |list: &mut Vec<usize>, way: usize| {
            list.retain(|other| *other != way);
            list.push(way);
        };
        if let Some(way) = there {
            assert!(matches!(access, Access::Hit { slot, .. } if cache.way_of(slot) as usize == way), "{access:?}");
            to_the_end(&mut set.used, way);
            continue;
        }
        let may = |way: &usize| mask.0 >> way & 1 != 0;
        let order = if replacement == Replacement::Lru { &set.used } else { &set.filled };
        let empty = (0..ways as usize).filter(may).find(|way| set.lines[*way].is_none());
        let Some(way) = empty.or_else(|| order.iter().copied().find(may)) else {
            assert_eq!(access, Access::Bypass);
            continue;
        };
        let before = set.lines[way].replace(line);
        let Access::Miss { slot, evicted } = access else { panic!("{access:?}") };
        assert_eq!((cache.way_of(slot) as usize, evicted), (way, before));
        to_the_end(&mut set.used, way);
        to_the_end(&mut set.filled, way);
    }
    let held: usize = naive.iter().map(|set| set.lines.iter().flatten().count()).sum();
    assert_eq!((cache.lines().count(), (0..4).map(|id| cache.occupancy(id).0).sum::<u64>()), (held, held as u64 * 64));
}
