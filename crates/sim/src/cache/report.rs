//! Report of a scenario. Pure.

use serde::{Deserialize, Serialize};
use units::{Bytes, WayMask};

use super::counts::Counts;
use super::run::Outcome;
use super::scenario::Scenario;
use llc::policy::metrics::Metrics;

/// Description of the model, printed with every report.
pub const MODEL: &str = "a model: one access at a time, in order; nothing is fetched ahead, memory has no limit of bandwidth, \
                         writing back takes no time, and which way a real cache chooses under a mask is not published";

/// Complete report.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Report {
    /// Title.
    pub title: String,
    /// Description of the model, [`MODEL`].
    pub model: String,
    /// Random seed.
    pub seed: u64,
    /// Size of the last-level cache.
    pub cache_bytes: Bytes,
    /// Ways of the last-level cache.
    pub cache_ways: u32,
    /// All runs were made.
    pub complete: bool,
    /// Results for each size of the array; one if nothing is varied.
    pub points: Vec<Point>,
}

/// Results at one size of the array.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Point {
    /// Size of the varied array.
    pub array_bytes: Option<Bytes>,
    /// Results of each condition that was run.
    pub conditions: Vec<OfCondition>,
}

/// Results under one condition.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct OfCondition {
    /// Name.
    pub name: String,
    /// Metrics; `None` if a program made no accesses.
    pub metrics: Option<Metrics>,
    /// Longest mean access time of a program over the shortest.
    pub access_time_ratio: f64,
    /// Programs.
    pub programs: Vec<OfProgram>,
    /// Shared partitions.
    pub regions: Vec<OfRegion>,
    /// Number of changes of the plan after the first one.
    pub plan_changes: u64,
    /// Passes of the programs over their memory from the first plan on, until the ratio was 1.05 or less and stayed so;
    /// `None` if it never did.
    pub passes_until_even: Option<u64>,
}

/// Results of one program.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct OfProgram {
    /// Name.
    pub name: String,
    /// Ways of its class at the end.
    pub mask: WayMask,
    /// Cycles per instruction, over the same value alone with the whole cache.
    pub slowdown: f64,
    /// Mean time of an access, its instructions included.
    pub access_cycles: f64,
    /// Number of accesses.
    pub accesses: u64,
    /// Fraction of the accesses that missed all caches.
    pub miss_fraction: f64,
    /// Misses per thousand instructions.
    pub mpki: f64,
    /// Fraction of the accesses that hit a line in the last-level cache fetched by another program.
    pub free_ride_fraction: f64,
    /// Fraction of the accesses that hit a line fetched by the daemon.
    pub region_hit_fraction: f64,
    /// Fraction of its time spent waiting for memory.
    pub stalled_fraction: f64,
    /// Bytes that it filled and that are cached at the end.
    pub occupancy_bytes: Bytes,
    /// Pages of a trace that were shared until the program wrote to them.
    pub unmerged_pages: u64,
}

/// Results of one shared partition.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct OfRegion {
    /// Shared set.
    pub set: String,
    /// Ways.
    pub mask: WayMask,
    /// Bytes that the daemon filled and that are cached at the end.
    pub occupancy_bytes: Bytes,
    /// Number of passes over the set.
    pub passes: u64,
    /// Bytes fetched from memory.
    pub fetched_bytes: Bytes,
    /// CPU cycles of all passes.
    pub busy_cycles: f64,
    /// Fraction of a CPU for passes since the warm-up.
    pub duty_fraction: f64,
}

#[expect(clippy::cast_precision_loss, reason = "counts of a simulation")]
fn part(of: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { of as f64 / all as f64 }
}

impl OfCondition {
    /// Results of condition number `condition` of the scenario; `alone`: counters of each program alone, if that was
    /// run.
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
            set: scenario.sets[counts.region.group].name.clone(),
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
    /// Report of these points.
    pub fn new(scenario: &Scenario, points: Vec<Point>, complete: bool) -> Report {
        Report {
            title: scenario.title.clone(),
            model: MODEL.to_owned(),
            seed: scenario.seed,
            cache_bytes: scenario.build.llc.bytes(),
            cache_ways: scenario.build.llc.ways.0,
            complete,
            points,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let program = OfProgram {
            name: "a".to_owned(),
            mask: WayMask(0xff0),
            slowdown: 1.5,
            access_cycles: 40.25,
            accesses: 9,
            miss_fraction: 0.125,
            mpki: 2.0,
            free_ride_fraction: 0.5,
            region_hit_fraction: 0.25,
            stalled_fraction: 0.75,
            occupancy_bytes: Bytes::mib(1),
            unmerged_pages: 3,
        };
        let region = OfRegion {
            set: "s".to_owned(),
            mask: WayMask(3),
            occupancy_bytes: Bytes::kib(4),
            passes: 5,
            fetched_bytes: Bytes(6),
            busy_cycles: 7.5,
            duty_fraction: 0.01,
        };
        let condition = OfCondition {
            name: "c".to_owned(),
            metrics: Metrics::of(&[1.0, 2.0]),
            access_time_ratio: 1.25,
            programs: vec![program],
            regions: vec![region],
            plan_changes: 2,
            passes_until_even: Some(8),
        };
        let report = Report {
            title: "t".to_owned(),
            model: MODEL.to_owned(),
            seed: 1,
            cache_bytes: Bytes::mib(8),
            cache_ways: 16,
            complete: false,
            points: vec![Point { array_bytes: Some(Bytes::mib(2)), conditions: vec![condition] }],
        };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
