//! Input of policies: each program alone, in one pass for all numbers of ways. Pure.
//!
//! LRU contains the content of every smaller cache (Mattson et al., IBM Systems Journal 1970). An access that finds its
//! line at place d of its set's stack, with the last use at place 0, hits with more than d ways and misses otherwise.
//! One pass over the accesses behind the private levels therefore counts the misses for all ways. There are stacks of
//! all accesses and of accesses to private pages. A shared set has no stack: a shared partition is kept warm and not
//! replaced, so only lines that do not fit miss. In each set of the cache, the lines of the shared set that the daemon
//! touches last stay; an access to a line with r lines behind it misses with r ways or fewer.
//!
//! For other replacements than LRU these curves are an approximation. Evictions from private levels by an inclusive
//! cache are ignored.

use std::collections::HashMap;

use units::Bytes;

use super::frames::Frame;
use super::private::Private;
use super::run::{Broken, Watch, share};
use super::scenario::{Open, Running, Scenario, Setup};
use super::set_associative::{Line, Shape};
use llc::policy::{Curve, Program, Sharer, SharingGroup, Situation};

/// Largest number of accesses of a program to analyse.
pub(super) const ACCESSES_MAX: u64 = 20_000_000;

/// LRU stacks of the sets of a cache, with the number of hits at each place.
#[derive(Clone, Debug)]
pub struct Stacks {
    shape: Shape,
    /// Lines of a set, the last used first.
    tags: Vec<u32>,
    /// Hits by place; the last entry counts misses.
    hits: Vec<u64>,
}

const EMPTY: u32 = u32::MAX;

impl Stacks {
    /// Empty stacks for a cache of this shape; its replacement does not matter.
    pub fn new(shape: Shape) -> Stacks {
        let ways = shape.ways.0 as usize;
        Stacks { shape, tags: vec![EMPTY; shape.sets as usize * ways], hits: vec![0; ways + 1] }
    }

    /// Records an access.
    pub fn access(&mut self, line: Line) {
        let ways = self.shape.ways.0 as usize;
        let first = self.shape.set_of(line) as usize * ways;
        let stack = &mut self.tags[first..first + ways];
        let place = stack.iter().position(|tag| *tag == line.0).unwrap_or(ways);
        stack.copy_within(0..place.min(ways - 1), 1);
        stack[0] = line.0;
        self.hits[place] += 1;
    }

    /// Clears the counters, and keeps the lines.
    pub fn forget(&mut self) {
        self.hits.fill(0);
    }

    /// Misses with 0, 1, 2 … ways.
    pub fn misses(&self) -> Vec<u64> {
        misses_of(&self.hits)
    }
}

/// Misses by ways, from the accesses that need more than each number of ways.
fn misses_of(needs_more_than: &[u64]) -> Vec<u64> {
    let mut misses: Vec<u64> = needs_more_than.to_vec();
    for ways in (0..misses.len() - 1).rev() {
        misses[ways] += misses[ways + 1];
    }
    misses
}

/// Lines of shared sets: the shared set of each, and the number of its lines after it in the same set of the cache.
#[derive(Clone, Debug)]
struct Ranks {
    pages: HashMap<Frame, (usize, Box<[u8; 64]>)>,
}

impl Ranks {
    fn new(sets: &[Vec<Frame>], shape: Shape) -> Ranks {
        let mut pages = HashMap::new();
        for (nth, frames) in sets.iter().enumerate() {
            let mut behind = vec![0u8; shape.sets as usize];
            for (frame, in_page) in frames.iter().rev().flat_map(|frame| (0..64u32).rev().map(move |nth| (frame, nth)))
            {
                let place = &mut behind[shape.set_of(frame.line(in_page)) as usize];
                let (_, ranks) = pages.entry(*frame).or_insert_with(|| (nth, Box::new([0u8; 64])));
                ranks[in_page as usize] = *place;
                *place = place.saturating_add(1);
            }
        }
        Ranks { pages }
    }

    /// Shared set and rank; `None` for private lines.
    fn of(&self, line: Line) -> Option<(usize, u8)> {
        let (set, ranks) = self.pages.get(&Frame::of(line))?;
        Some((*set, ranks[(line.0 % 64) as usize]))
    }
}

/// Counters of one program.
struct Profile {
    instructions: f64,
    base_cycles: f64,
    all: Vec<u64>,
    private: Vec<u64>,
    /// Counters of each shared set.
    shared: Vec<Vec<u64>>,
}

/// Situation of the programs at one size of the array, before any of them ran beside another.
///
/// # Errors
/// When the watch stops it, or a file is no trace.
pub fn situation(scenario: &Scenario, array: Bytes, open: Open<'_>, watch: Watch<'_>) -> Result<Situation, Broken> {
    let Setup { programs: mut running, sets } = scenario.setup(array, true, open)?;
    let ranks = Ranks::new(&sets, scenario.build.llc);
    let mut profiles = Vec::with_capacity(running.len());
    for (nth, program) in running.iter_mut().enumerate() {
        let (warm_up, measured) = share(scenario, array, nth);
        let amounts = (warm_up.min(ACCESSES_MAX / 2), measured.min(ACCESSES_MAX));
        profiles.push(profile(scenario, program, &ranks, amounts, watch)?);
    }
    let programs = profiles.iter().zip(&scenario.programs).map(|(profile, program)| Program {
        misses: per_kilo_instruction(&profile.all, profile),
        private_misses: per_kilo_instruction(&profile.private, profile),
        base_cycles: 1000.0 * profile.base_cycles / profile.instructions,
        miss_cycles: (f64::from(program.memory_cycles) - f64::from(scenario.build.llc_cycles)).max(0.0),
        stalled_fraction: 0.0,
    });
    let programs = programs.collect();
    let shared = sets.iter().enumerate().map(|(set, frames)| {
        let sharers = scenario.programs.iter().enumerate().filter(|(_, program)| program.shared.contains(&set));
        let sharers = sharers.map(|(program, _)| Sharer {
            program,
            misses: per_kilo_instruction(&profiles[program].shared[set], &profiles[program]),
        });
        SharingGroup { sharers: sharers.collect(), bytes: Bytes(frames.len() as u64 * 4096) }
    });
    Ok(Situation { cache: scenario.cache(), programs, shared: shared.collect() })
}

/// The same, with a copy of the shared sets for each program.
pub fn without_sharing(situation: &Situation) -> Situation {
    let mut apart = situation.clone();
    apart.shared.clear();
    apart.programs.iter_mut().for_each(|program| program.private_misses = program.misses.clone());
    apart
}

#[expect(clippy::cast_precision_loss, reason = "counts of a simulation")]
fn per_kilo_instruction(misses: &[u64], profile: &Profile) -> Curve {
    Curve::new(misses.iter().map(|misses| 1000.0 * *misses as f64 / profile.instructions).collect())
}

fn profile(
    scenario: &Scenario,
    program: &mut Running,
    ranks: &Ranks,
    (warm_up, measured): (u64, u64),
    watch: Watch<'_>,
) -> Result<Profile, Broken> {
    let shape = scenario.build.llc;
    let mut levels: Vec<Private> = scenario.build.levels.iter().map(|level| Private::new(level.shape)).collect();
    let ways = shape.ways.0 as usize;
    let (mut all, mut private) = (Stacks::new(shape), Stacks::new(shape));
    let mut shared = vec![vec![0u64; ways + 1]; scenario.sets.len()];
    let (mut instructions, mut base_cycles) = (0.0, 0.0);
    for nth in 0..warm_up + measured {
        if nth == warm_up {
            all.forget();
            private.forget();
            shared.iter_mut().for_each(|needs| needs.fill(0));
            (instructions, base_cycles) = (0.0, 0.0);
        }
        if nth % (1 << 20) == (1 << 20) - 1 && !watch(1 << 20) {
            return Err(Broken::Stopped);
        }
        let (line, executed) = match program {
            Running::Synthetic(synthetic, instructions) => (synthetic.next_line(), *instructions),
            Running::Traced(traced) => traced.next_access().map(|(line, count)| (line, f64::from(count)))?,
        };
        instructions += executed;
        base_cycles += executed * scenario.cycles_per_instruction;
        if let Some(level) = levels.iter_mut().position(|level| level.access(line)) {
            base_cycles += f64::from(scenario.build.levels[level].cycles);
            continue;
        }
        base_cycles += f64::from(scenario.build.llc_cycles);
        all.access(line);
        match ranks.of(line) {
            None => private.access(line),
            Some((set, rank)) => shared[set][usize::from(rank).min(ways)] += 1,
        }
    }
    // A trace may begin with accesses before its first instruction; avoids a division by zero.
    let instructions = f64::max(instructions, 1.0);
    let shared = shared.iter().map(|needs| misses_of(needs)).collect();
    Ok(Profile { instructions, base_cycles, all: all.misses(), private: private.misses(), shared })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use units::{WayMask, Ways};

    use super::super::scenario::lines;
    use super::super::set_associative::{Access, Cache, Filler, Replacement};
    use super::*;

    fn shape(sets: u32, ways: u32) -> Shape {
        Shape { sets, ways: Ways(ways), slices: 1, replacement: Replacement::Lru }
    }

    proptest! {
        #[test]
        fn one_pass_counts_the_misses_of_a_cache_with_each_number_of_ways(
            sets in 1u32..6,
            ways in 1u32..9,
            walk in prop::collection::vec(0u32..60, 1..400),
        ) {
            let mut stacks = Stacks::new(shape(sets, ways));
            walk.iter().for_each(|line| stacks.access(Line(*line)));
            let mut expected = vec![walk.len() as u64];
            for some in 1..=ways {
                let mut cache = Cache::new(shape(sets, ways));
                let misses = walk.iter().filter(|line| {
                    let access = cache.access(Line(**line), WayMask::lowest(Ways(some)), Filler::default());
                    !matches!(access, Access::Hit { .. })
                });
                expected.push(misses.count() as u64);
            }
            prop_assert_eq!(stacks.misses(), expected);
        }

        #[test]
        fn a_pass_of_touches_leaves_those_lines_that_have_few_behind_them(
            frames in prop::collection::hash_set(0u32..500, 1..40),
            sets in 1u32..300,
            ways in 1u32..12,
        ) {
            let shape = shape(sets, ways);
            let frames: Vec<Frame> = frames.into_iter().map(Frame).collect();
            let ranks = Ranks::new(std::slice::from_ref(&frames), shape);
            let mut cache = Cache::new(shape);
            for line in lines(&frames) {
                cache.access(line, WayMask::lowest(Ways(ways)), Filler::default());
            }
            for line in lines(&frames) {
                let (_, rank) = ranks.of(line).unwrap();
                prop_assert_eq!(cache.slot_of(line).is_some(), u32::from(rank) < ways);
            }
        }
    }
}
