//! One run: programs on a machine, under one condition. Pure.
//!
//! Each program has a clock of its own. The program with the earliest clock goes next, so a program that waits for
//! memory makes fewer accesses; or the programs take turns. A run has a warm-up and a measured part. Fixed masks apply
//! from the beginning. A policy decides first after a quarter of the warm-up, without a partition up to then and with
//! stalls measured, and then once per interval, if there is one. The daemon also starts after a quarter of the warm-up:
//! programs start before their pages are merged. The warm-up does not end before the daemon has filled each shared
//! partition once. Duration of an access:
//!
//! ```text
//! instructions · cycles_per_instruction + the cycles of the level where it was found
//! ```
//!
//! Nothing overlaps, nothing is prefetched, memory bandwidth is unlimited, and write-back takes no time.

use units::cast::fits;
use units::{Bytes, WayMask};

use super::counts::Counts;
use super::evenness::Evenness;
use super::fit;
use super::machine::{Found, Machine};
use super::refill::Refill;
use super::scenario::{Amount, Condition, Interleave, Open, Partition, Running, Scenario, Setup, Unfit, lines};
use super::set_associative::{Filler, Line};
use super::trace::BadTrace;
use llc::policy::sharing::{self, Refiner};
use llc::policy::{Class, Plan, Policy, SharedPartition, Situation};

/// Counters of the daemon for a shared partition, from the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionCounts {
    /// Shared partition.
    pub region: SharedPartition,
    /// Bytes filled at the end.
    pub occupancy: Bytes,
    /// Number of passes over the set.
    pub passes: u64,
    /// Lines fetched from memory.
    pub fetched: u64,
    /// CPU cycles.
    pub busy_cycles: f64,
    /// Fraction of a CPU since the warm-up.
    pub duty: f64,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Counters of each program.
    pub programs: Vec<Counts>,
    /// Bytes that each program filled and that are cached at the end.
    pub occupancy: Vec<Bytes>,
    /// Pages of each program that were shared until it wrote to them.
    pub unmerged: Vec<u64>,
    /// Plan at the end.
    pub plan: Plan,
    /// Number of changes of the plan after the first one.
    pub changes: u64,
    /// Passes from the first plan on until the programs' access times were within 5 % and stayed so; `None` if they
    /// never did.
    pub passes_until_even: Option<u64>,
    /// Shared partitions at the end.
    pub regions: Vec<RegionCounts>,
}

/// Reason that a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The watch stopped it.
    #[error("stopped")]
    Stopped,
    /// A trace cannot be continued.
    #[error(transparent)]
    Trace(#[from] BadTrace),
    /// The scenario cannot be run.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

/// Callback with the number of accesses since the last call; returns whether to continue.
pub type Watch<'w> = &'w (dyn Fn(u64) -> bool + Sync);

/// Number of warm-ups after which the filling of partitions is given up.
const FILLING_WARM_UPS_MAX: u64 = 8;

/// Accesses between two calls of the watch.
const WATCH_EVERY: u64 = 1 << 20;

/// One program.
struct Core {
    running: Running,
    mask: WayMask,
    filler: Filler,
    /// Cycles of an access found in each private level, in the last-level cache and in memory, without its
    /// instructions.
    memory_cycles: f64,
    counts: Counts,
    /// Counters at the last plan.
    planned: Counts,
    /// Counters at the end of the warm-up.
    warm: Counts,
    /// Accesses per turn.
    turn: u64,
}

/// Run in progress.
struct Run<'s> {
    scenario: &'s Scenario,
    condition: &'s Condition,
    situation: Option<&'s Situation>,
    machine: Machine,
    cores: Vec<Core>,
    /// Clock of each core, in cycles.
    clocks: Vec<f64>,
    sets: Vec<Vec<Line>>,
    level_cycles: Vec<f64>,
    plan: Plan,
    /// State that masu's own policy learned from earlier plans.
    refiner: Refiner,
    changes: u64,
    refills: Vec<(SharedPartition, Refill)>,
    refill_next: f64,
    evenness: Evenness,
    /// Latest clock at the end of the warm-up.
    warm_clock: f64,
    /// Program with the current turn, and its remaining accesses.
    turn: (usize, u64),
}

/// Runs all programs under a condition. `situation` is the input of its policy; fixed masks need none.
///
/// # Errors
/// When the watch stops it, or a file is no trace.
pub fn beside_each_other(
    scenario: &Scenario,
    array: Bytes,
    condition: &Condition,
    situation: Option<&Situation>,
    open: Open<'_>,
    watch: Watch<'_>,
) -> Result<Outcome, Broken> {
    let setup = scenario.setup(array, condition.sharing, open)?;
    let warm_up = scenario.accesses(scenario.warm_up, array);
    let measured = scenario.accesses(scenario.measured, array).max(1);
    let mut run = Run::new(scenario, array, condition, situation, setup);
    let begin = match (&condition.partition, situation) {
        (Partition::Fixed(fixed), _) => Some(fixed.plan()),
        (Partition::Fit(part), Some(situation)) => Some(fit::plan(situation, *part)),
        _ => None,
    };
    if let Some(plan) = begin {
        run.put_in_place(Plan { partitions: Vec::new(), ..plan });
    }
    run.advance(warm_up / 4, watch)?;
    run.decide(true);
    run.evenness.begin(run.cores.iter().map(|core| core.counts));
    run.advance_by_intervals(warm_up - warm_up / 4, watch)?;
    run.fill_regions(warm_up, watch)?;
    run.is_warm();
    run.advance_by_intervals(measured, watch)?;
    Ok(run.outcome())
}

/// Runs one program alone with the whole cache, for its share of the accesses.
///
/// # Errors
/// When the watch stops it, or a file is no trace.
pub fn alone(
    scenario: &Scenario,
    array: Bytes,
    program: usize,
    open: Open<'_>,
    watch: Watch<'_>,
) -> Result<Counts, Broken> {
    let mut setup = scenario.setup(array, true, open)?;
    let running = setup.programs.swap_remove(program);
    setup.programs = vec![running];
    let condition = Condition {
        name: String::new(),
        sharing: true,
        partition: Partition::Policy(Policy::None),
        refined: true,
        refill: scenario.conditions[0].refill,
    };
    let (warm_up, measured) = share(scenario, array, program);
    let mut run = Run::new(scenario, array, &condition, None, setup);
    run.cores[0].memory_cycles = f64::from(scenario.programs[program].memory_cycles);
    run.advance(warm_up, watch)?;
    run.is_warm();
    run.advance(measured, watch)?;
    Ok(run.cores[0].counts.since(&run.cores[0].warm))
}

/// Share of a program in the warm-up and in the measured part: by lines if both are counted in passes, else equal.
pub fn share(scenario: &Scenario, array: Bytes, program: usize) -> (u64, u64) {
    let of = |amount| {
        let all = scenario.accesses(amount, array);
        let part = match amount {
            Amount::Accesses(_) => all / scenario.programs.len() as u64,
            Amount::Passes(_) => {
                let lines: u64 = scenario.programs.iter().map(|program| scenario.lines_of(program, array)).sum();
                let own = scenario.lines_of(&scenario.programs[program], array);
                fits(u128::from(all) * u128::from(own) / u128::from(lines))
            }
        };
        part.max(1)
    };
    (of(scenario.warm_up), of(scenario.measured))
}

impl<'s> Run<'s> {
    fn new(
        scenario: &'s Scenario,
        array: Bytes,
        condition: &'s Condition,
        situation: Option<&'s Situation>,
        setup: Setup,
    ) -> Run<'s> {
        let machine = Machine::new(&scenario.build, setup.programs.len());
        let all = scenario.cache().usable;
        let turn = |program| match scenario.interleave {
            Interleave::Turns(Amount::Accesses(accesses)) => accesses,
            Interleave::Turns(Amount::Passes(passes)) => {
                Bytes(scenario.lines_of(program, array)).scaled(passes).0.max(1)
            }
            Interleave::Time => 1,
        };
        let cores =
            setup.programs.into_iter().zip(&scenario.programs).enumerate().map(|(nth, (running, program))| Core {
                running,
                mask: all,
                filler: Filler { class: 0, monitor: monitor(nth) },
                memory_cycles: f64::from(program.memory_cycles),
                counts: Counts::default(),
                planned: Counts::default(),
                warm: Counts::default(),
                turn: turn(program),
            });
        let cores: Vec<Core> = cores.collect();
        let plan =
            Plan { classes: vec![Class { mask: all, programs: (0..cores.len()).collect() }], partitions: Vec::new() };
        let pass = scenario.accesses(Amount::Passes(1.0), array).max(1);
        let accesses = scenario.accesses(scenario.measured, array);
        Run {
            scenario,
            condition,
            situation,
            machine,
            turn: (0, cores[0].turn),
            clocks: vec![0.0; cores.len()],
            cores,
            sets: setup.sets.iter().map(|frames| lines(frames).collect()).collect(),
            level_cycles: scenario.build.levels.iter().map(|level| f64::from(level.cycles)).collect(),
            plan,
            refiner: Refiner::new(sharing::MEASURED),
            changes: 0,
            refills: Vec::new(),
            refill_next: f64::INFINITY,
            evenness: Evenness::new(pass, accesses),
            warm_clock: 0.0,
        }
    }

    /// Asks the policy, and applies its plan.
    fn decide(&mut self, first: bool) {
        let plan = match (&self.condition.partition, self.situation) {
            (Partition::Fixed(fixed), _) => fixed.plan(),
            (Partition::Policy(_) | Partition::Fit(_), None) => return,
            (Partition::Fit(part), Some(situation)) => fit::plan(situation, *part),
            (Partition::Policy(policy), Some(situation)) => {
                let mut situation = situation.clone();
                let mut slowdowns = Vec::with_capacity(self.cores.len());
                for (program, core) in situation.programs.iter_mut().zip(&mut self.cores) {
                    let counts = core.counts.since(&core.planned);
                    program.stalled_fraction = counts.stalled_fraction();
                    let alone = program.cycles(program.misses.last()) / 1000.0;
                    slowdowns.push(counts.cycles_per_instruction() / alone);
                    core.planned = core.counts;
                }
                let refined = *policy == Policy::Sharing && self.condition.refined;
                match (refined, first) {
                    (true, true) => self.refiner.first(&situation, &self.plan, &slowdowns),
                    (true, false) => self.refiner.next(&situation, &self.plan, &slowdowns),
                    (false, _) => policy.plan(&situation, Some(&self.plan)),
                }
            }
        };
        if plan != self.plan {
            self.changes += u64::from(!first);
            self.put_in_place(plan);
        }
    }

    fn put_in_place(&mut self, plan: Plan) {
        for (nth, class) in plan.classes.iter().enumerate() {
            for program in &class.programs {
                let core = &mut self.cores[*program];
                core.mask = class.mask;
                core.filler.class = fits(nth);
            }
        }
        let now = self.clock();
        let mut before = std::mem::take(&mut self.refills);
        for (nth, region) in plan.partitions.iter().enumerate().filter(|_| self.condition.sharing) {
            if let Some(same) = before.iter().position(|(other, _)| other == region) {
                self.refills.push(before.swap_remove(same));
                continue;
            }
            let class = fits(plan.classes.len() + nth);
            let by = Filler { class, monitor: region_monitor(region.group) };
            let lines = self.sets[region.group].clone();
            let mut refill = Refill::new(lines, region.mask, by, self.condition.refill, now);
            if let Some((_, old)) = before.iter().find(|(other, _)| other.group == region.group) {
                refill.goes_on_counting(old);
            }
            self.refills.push((*region, refill));
        }
        self.plan = plan;
        self.look_at_refills();
    }

    fn look_at_refills(&mut self) {
        self.refill_next = self.refills.iter().map(|(_, refill)| refill.next()).fold(f64::INFINITY, f64::min);
    }

    /// Latest of all clocks.
    fn clock(&self) -> f64 {
        self.clocks.iter().copied().fold(0.0, f64::max)
    }

    /// Continues until each shared partition was filled once, for a limited number of warm-ups.
    fn fill_regions(&mut self, warm_up: u64, watch: Watch<'_>) -> Result<(), Broken> {
        let every = self.evenness.every();
        let mut left = warm_up.saturating_mul(FILLING_WARM_UPS_MAX) / every;
        while left > 0 && self.refills.iter().any(|(_, refill)| refill.is_filling()) {
            self.advance(every, watch)?;
            left -= 1;
        }
        Ok(())
    }

    /// Starts the measured part.
    fn is_warm(&mut self) {
        self.cores.iter_mut().for_each(|core| core.warm = core.counts);
        self.refills.iter_mut().for_each(|(_, refill)| refill.warm_cycles = refill.busy_cycles);
        self.warm_clock = self.clock();
    }

    fn advance_by_intervals(&mut self, accesses: u64, watch: Watch<'_>) -> Result<(), Broken> {
        let Some(interval) = self.scenario.interval else { return self.advance(accesses, watch) };
        let mut left = accesses;
        while left > 0 {
            let now = left.min(interval);
            self.advance(now, watch)?;
            left -= now;
            if now == interval {
                self.decide(false);
            }
        }
        Ok(())
    }

    /// Makes this number of accesses in all.
    fn advance(&mut self, accesses: u64, watch: Watch<'_>) -> Result<(), Broken> {
        let mut left = accesses;
        while left > 0 {
            let now = left.min(WATCH_EVERY).min(self.evenness.next().unwrap_or(u64::MAX));
            match self.scenario.interleave {
                Interleave::Time => self.by_time(now)?,
                Interleave::Turns(_) => self.by_turns(now)?,
            }
            left -= now;
            self.evenness.ran(now, self.cores.iter().map(|core| core.counts));
            if !watch(now) {
                return Err(Broken::Stopped);
            }
        }
        Ok(())
    }

    fn by_time(&mut self, accesses: u64) -> Result<(), BadTrace> {
        let mut left = accesses;
        while left > 0 {
            let (who, until) = self.behind();
            while left > 0 && self.clocks[who] <= until {
                self.access(who)?;
                left -= 1;
            }
        }
        Ok(())
    }

    /// Program with the earliest clock (the first of several), and the time up to which it stays the earliest.
    fn behind(&self) -> (usize, f64) {
        let (mut who, mut least, mut until) = (0, f64::INFINITY, f64::INFINITY);
        for (nth, clock) in self.clocks.iter().copied().enumerate() {
            if clock < least {
                (who, until, least) = (nth, least, clock);
            } else if clock < until {
                until = clock;
            }
        }
        (who, until)
    }

    fn by_turns(&mut self, accesses: u64) -> Result<(), BadTrace> {
        for _ in 0..accesses {
            let (who, left) = self.turn;
            self.access(who)?;
            self.turn = (who, left - 1);
            if left == 1 {
                let next = if who + 1 == self.cores.len() { 0 } else { who + 1 };
                self.clocks[next] = self.clocks[who];
                self.turn = (next, self.cores[next].turn);
            }
        }
        Ok(())
    }

    #[inline]
    fn access(&mut self, who: usize) -> Result<(), BadTrace> {
        let now = self.clocks[who];
        if now >= self.refill_next {
            self.refill(now);
        }
        let core = &mut self.cores[who];
        let (line, instructions) = match &mut core.running {
            Running::Synthetic(synthetic, instructions) => (synthetic.next_line(), *instructions),
            Running::Traced(traced) => {
                let (line, instructions) = traced.next_access()?;
                (line, f64::from(instructions))
            }
        };
        let counts = &mut core.counts;
        let waited = match self.machine.access(who, line, core.mask, core.filler) {
            Found::Private(level) => {
                counts.private_hits += 1;
                self.level_cycles[level]
            }
            Found::Shared(filler) => {
                counts.llc_hits += 1;
                let anothers = filler.monitor != core.filler.monitor;
                let daemons = filler.monitor > LAST_PROGRAM;
                counts.free_rides += u64::from(anothers && !daemons);
                counts.region_hits += u64::from(daemons);
                f64::from(self.scenario.build.llc_cycles)
            }
            Found::Nowhere => {
                counts.misses += 1;
                counts.stalled_cycles += core.memory_cycles;
                core.memory_cycles
            }
        };
        let cycles = instructions * self.scenario.cycles_per_instruction + waited;
        counts.accesses += 1;
        counts.instructions += instructions;
        counts.cycles += cycles;
        self.clocks[who] = now + cycles;
        Ok(())
    }

    /// Executes the daemon's actions up to `now`.
    #[cold]
    fn refill(&mut self, now: f64) {
        let llc_cycles = f64::from(self.scenario.build.llc_cycles);
        let memory_cycles = f64::from(self.scenario.memory_cycles);
        for (_, refill) in &mut self.refills {
            while refill.next() <= now {
                refill.step(&mut self.machine, llc_cycles, memory_cycles);
            }
        }
        self.look_at_refills();
    }

    fn outcome(self) -> Outcome {
        let measured = (self.clock() - self.warm_clock).max(1.0);
        let llc = self.machine.llc();
        let regions = self.refills.iter().map(|(region, refill)| RegionCounts {
            region: *region,
            occupancy: llc.occupancy(region_monitor(region.group)),
            passes: refill.passes,
            fetched: refill.fetched,
            busy_cycles: refill.busy_cycles,
            duty: (refill.busy_cycles - refill.warm_cycles) / measured,
        });
        let unmerged = |core: &Core| if let Running::Traced(traced) = &core.running { traced.unmerged() } else { 0 };
        Outcome {
            programs: self.cores.iter().map(|core| core.counts.since(&core.warm)).collect(),
            occupancy: (0..self.cores.len()).map(|nth| llc.occupancy(monitor(nth))).collect(),
            unmerged: self.cores.iter().map(unmerged).collect(),
            passes_until_even: self.evenness.passes_until_even(),
            regions: regions.collect(),
            plan: self.plan,
            changes: self.changes,
        }
    }
}

/// Monitoring id of a program. There are at most 64 programs, and 16 sets.
fn monitor(program: usize) -> u8 {
    fits(program + 1)
}

const LAST_PROGRAM: u8 = 100;

/// Monitoring id of the daemon's thread for a set.
fn region_monitor(set: usize) -> u8 {
    LAST_PROGRAM + 1 + fits::<_, u8>(set)
}
