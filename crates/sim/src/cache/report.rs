//! What is reported of a scenario. Pure.

use serde::Serialize;
use units::{Bytes, WayMask};

use super::run::{Counts, Outcome};
use super::scenario::Scenario;
use llc::policy::metrics::Metrics;

/// What kind of model it is: printed with every report.
pub const MODEL: &str = "a model: one access at a time, in order; nothing is fetched ahead, memory has no limit of bandwidth, \
                         writing back takes no time, and which way a real cache chooses under a mask is not published";

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What it shows.
    pub title: String,
    /// [`MODEL`].
    pub model: &'static str,
    /// Of all that was drawn.
    pub seed: u64,
    /// Of the last-level cache.
    pub cache_bytes: Bytes,
    /// The same.
    pub cache_ways: u32,
    /// All runs were made.
    pub complete: bool,
    /// One for each size of the array; one if nothing is varied.
    pub points: Vec<Point>,
}

/// What was found at one size of the array.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Of the array that is varied.
    pub array_bytes: Option<Bytes>,
    /// One for each condition that was run.
    pub conditions: Vec<OfCondition>,
}

/// What was found under one condition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfCondition {
    /// Its name.
    pub name: String,
    /// How it is judged; `None` where a program did nothing.
    pub metrics: Option<Metrics>,
    /// The longest of the programs' mean times of an access, over the shortest.
    pub access_time_ratio: f64,
    /// Each program.
    pub programs: Vec<OfProgram>,
    /// Each region.
    pub regions: Vec<OfRegion>,
    /// How often the plan changed after the first.
    pub plan_changes: u64,
    /// Passes of the programs over their memory from the first plan on, until the ratio was 1.05 or less and stayed so; `None` if it never
    /// did.
    pub passes_until_even: Option<u64>,
}

/// What was found of one program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfProgram {
    /// Its name.
    pub name: String,
    /// The ways of its class in the end.
    pub mask: WayMask,
    /// Cycles for each instruction, over the same alone with the whole cache.
    pub slowdown: f64,
    /// The mean time of an access, its instructions included.
    pub access_cycles: f64,
    /// Accesses that were made.
    pub accesses: u64,
    /// Of these, found in no cache.
    pub miss_fraction: f64,
    /// Misses for each thousand instructions.
    pub mpki: f64,
    /// Of the accesses, those that found a line in the last-level cache that another program had filled.
    pub free_ride_fraction: f64,
    /// Of the accesses, those that found a line that the daemon had filled.
    pub region_hit_fraction: f64,
    /// Of its time, waiting for memory.
    pub stalled_fraction: f64,
    /// What it has filled and is still there in the end.
    pub occupancy_bytes: Bytes,
    /// Pages of a trace that were shared until it wrote to them.
    pub unmerged_pages: u64,
}

/// What was found of one region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfRegion {
    /// Whose lines it is for.
    pub set: String,
    /// Its ways.
    pub mask: WayMask,
    /// What the daemon has filled and is still there in the end.
    pub occupancy_bytes: Bytes,
    /// Passes over the set.
    pub passes: u64,
    /// What came from memory.
    pub fetched_bytes: Bytes,
    /// Cycles of a CPU that all passes took.
    pub busy_cycles: f64,
    /// The part of a CPU that passes took since the warm-up.
    pub duty_fraction: f64,
}

#[expect(clippy::cast_precision_loss, reason = "counts of a simulation")]
fn part(of: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { of as f64 / all as f64 }
}

impl OfCondition {
    /// Of condition number `condition` of the scenario; `alone` is each program by itself, where that was run.
    pub fn new(scenario: &Scenario, condition: usize, outcome: &Outcome, alone: &[Option<Counts>]) -> OfCondition {
        let programs: Vec<OfProgram> = (0..scenario.programs.len())
            .map(|nth| OfProgram::new(scenario, nth, outcome, alone[nth].as_ref()))
            .collect();
        let slowdowns: Vec<f64> = programs.iter().map(|program| program.slowdown).collect();
        let usable = slowdowns.iter().all(|slowdown| *slowdown > 0.0);
        let times = || programs.iter().map(|program| program.access_cycles);
        let (longest, shortest) = (times().fold(0.0, f64::max), times().fold(f64::INFINITY, f64::min));
        OfCondition {
            name: scenario.conditions[condition].name.clone(),
            metrics: Metrics::of(&slowdowns).filter(|_| usable),
            access_time_ratio: if shortest > 0.0 { longest / shortest } else { 1.0 },
            programs,
            regions: outcome.regions.iter().map(|region| OfRegion::new(scenario, region)).collect(),
            plan_changes: outcome.changes,
            passes_until_even: outcome.passes_until_even,
        }
    }
}

impl OfProgram {
    #[expect(clippy::cast_precision_loss, reason = "counts of a simulation")]
    fn new(scenario: &Scenario, nth: usize, outcome: &Outcome, alone: Option<&Counts>) -> OfProgram {
        let counts = &outcome.programs[nth];
        let class = outcome.plan.classes.iter().find(|class| class.programs.contains(&nth));
        let alone = alone.map_or(0.0, Counts::cycles_per_instruction);
        OfProgram {
            name: scenario.programs[nth].name.clone(),
            mask: class.map_or(WayMask::NONE, |class| class.mask),
            slowdown: if alone > 0.0 { counts.cycles_per_instruction() / alone } else { 0.0 },
            access_cycles: counts.access_cycles().unwrap_or(0.0),
            accesses: counts.accesses,
            miss_fraction: part(counts.misses, counts.accesses),
            mpki: if counts.instructions > 0.0 { 1000.0 * counts.misses as f64 / counts.instructions } else { 0.0 },
            free_ride_fraction: part(counts.free_rides, counts.accesses),
            region_hit_fraction: part(counts.region_hits, counts.accesses),
            stalled_fraction: counts.stalled_fraction(),
            occupancy_bytes: outcome.occupancy[nth],
            unmerged_pages: outcome.unmerged[nth],
        }
    }
}

impl OfRegion {
    fn new(scenario: &Scenario, counts: &super::run::RegionCounts) -> OfRegion {
        OfRegion {
            set: scenario.sets[counts.region.set].name.clone(),
            mask: counts.region.mask,
            occupancy_bytes: counts.occupancy,
            passes: counts.passes,
            fetched_bytes: Bytes(counts.fetched * super::set_associative::LINE.0),
            busy_cycles: counts.busy_cycles,
            duty_fraction: counts.duty,
        }
    }
}

impl Report {
    /// Of these points.
    pub fn new(scenario: &Scenario, points: Vec<Point>, complete: bool) -> Report {
        Report {
            title: scenario.title.clone(),
            model: MODEL,
            seed: scenario.seed,
            cache_bytes: scenario.build.llc.bytes(),
            cache_ways: scenario.build.llc.ways.0,
            complete,
            points,
        }
    }
}
