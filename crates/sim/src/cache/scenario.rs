//! Scenarios: the cache, its programs, their shared memory, and the conditions.
//!
//! `file` reads them, and its head shows one. This file defines their meaning: amounts may depend on the size of a
//! varied array, and [`Scenario::setup`] assigns frames to every program and shared set.

use std::path::PathBuf;

use units::cast::index;
use units::spread::Random;
use units::{Bytes, Fraction, Pages, WayMask, Ways};

use super::frames::{Frame, Memory};
use super::machine::Build;
use super::program::{Area, Part, Pattern, Phase, Quantiles, Synthetic};
use super::refill::Settings;
use super::set_associative::{LINE, Line};
use super::trace::Traced;
use llc::policy::{self, Class, Plan, Policy, SharedPartition};

mod file;

pub use file::BadScenario;

/// Valid scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Title.
    pub title: String,
    /// Random seed.
    pub seed: u64,
    /// Length of the measured part.
    pub measured: Amount,
    /// Length of the warm-up before it.
    pub warm_up: Amount,
    /// Accesses of all programs between two decisions of a policy; `None` for no further decision.
    pub interval: Option<u64>,
    /// Order of the programs.
    pub interleave: Interleave,
    /// Frames are handed out in random order.
    pub scattered: bool,
    /// Memory for frames.
    pub memory: Pages,
    /// Machine.
    pub build: Build,
    /// Cycles of a miss.
    pub memory_cycles: u32,
    /// Cycles of an instruction that does not wait for memory.
    pub cycles_per_instruction: f64,
    /// Least number of ways of a class.
    pub ways_min: Ways,
    /// Largest number of classes.
    pub classes_max: usize,
    /// Shared sets.
    pub sets: Vec<Set>,
    /// Programs: 1 to 64.
    pub programs: Vec<Program>,
    /// Conditions: at least one.
    pub conditions: Vec<Condition>,
    /// Sizes of the varied array; empty for none.
    pub arrays: Vec<Bytes>,
}

/// Number of accesses of all programs together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Number of accesses.
    Accesses(u64),
    /// Multiple of the number of lines of all programs.
    Passes(f64),
}

/// Choice of the next program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interleave {
    /// The program with the fewest cycles: they run side by side, each on a CPU of its own.
    Time,
    /// In turn, each for this number of accesses; a pass is as many as the program has lines.
    Turns(Amount),
}

/// Amount of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// Fixed amount.
    Bytes(Bytes),
    /// Fraction of the varied array.
    OfArray(f64),
}

impl Size {
    /// Whole pages, rounded up, for this size of the array.
    pub fn pages(self, array: Bytes) -> Pages {
        let bytes = match self {
            Size::Bytes(bytes) => bytes,
            Size::OfArray(part) => array.scaled(part),
        };
        Pages(bytes.0.div_ceil(Pages(1).bytes().0))
    }
}

/// Pages shared by programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// Name.
    pub name: String,
    /// Size.
    pub size: Size,
}

/// Program.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Name.
    pub name: String,
    /// Private memory.
    pub private: Size,
    /// Shared sets: indices in [`Scenario::sets`].
    pub shared: Vec<usize>,
    /// Instructions per access; counted in a trace.
    pub instructions_per_access: f64,
    /// Cycles of a miss of this program: with early knowledge of the next addresses, a program waits less.
    pub memory_cycles: u32,
    /// Source of its accesses.
    pub source: Source,
}

/// Source of accesses.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Patterns.
    Synthetic(Vec<PhaseOf>),
    /// Recorded trace.
    Trace {
        /// File.
        file: PathBuf,
        /// Start address of each set of `shared` in its address space.
        starts: Vec<u64>,
    },
}

/// Phase of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseOf {
    /// Length in accesses.
    pub accesses: u64,
    /// Parts.
    pub parts: Vec<PartOf>,
}

/// Part of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PartOf {
    /// Pattern.
    pub pattern: PatternOf,
    /// Area: these sets first, in this order, and then the private memory if `private`. For streams, neither.
    pub sets: Vec<usize>,
    /// Private memory included.
    pub private: bool,
    /// Limit of the area from its beginning; for a stream, its length.
    pub size: Option<Size>,
    /// Weight beside other parts.
    pub weight: f64,
    /// Start position as a fraction of the area, for patterns with an order.
    pub begin: f64,
}

/// Order of accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PatternOf {
    /// In order, cyclic.
    Cyclic,
    /// In a fixed random order, cyclic.
    Chase,
    /// At random.
    Random,
    /// At random, with this skew.
    Zipf(f64),
    /// New memory.
    Stream,
}

/// Compared condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Name.
    pub name: String,
    /// False: each program has a copy of its shared sets.
    pub sharing: bool,
    /// Partition of the ways.
    pub partition: Partition,
    /// masu's own policy refines its plan by measurements, as on a processor with counters; else it plans from curves
    /// alone.
    pub refined: bool,
    /// Warming of the policies' shared partitions.
    pub refill: Settings,
}

/// Partition of the ways.
#[derive(Clone, Debug, PartialEq)]
pub enum Partition {
    /// Decided by a policy.
    Policy(Policy),
    /// Fixed ways.
    Fixed(Fixed),
    /// Shared partitions that hold this fraction of their sets, and the same fraction of the rest for each program
    /// (`fit`).
    Fit(Fraction),
}

/// Ways given by the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Ways of each program.
    pub masks: Vec<WayMask>,
    /// Shared partitions.
    pub regions: Vec<SharedPartition>,
}

impl Fixed {
    /// Plan with programs of the same ways in one class.
    pub fn plan(&self) -> Plan {
        let mut classes: Vec<Class> = Vec::new();
        for (program, mask) in self.masks.iter().enumerate() {
            match classes.iter_mut().find(|class| class.mask == *mask) {
                Some(class) => class.programs.push(program),
                None => classes.push(Class { mask: *mask, programs: vec![program] }),
            }
        }
        Plan { classes, partitions: self.regions.clone() }
    }
}

/// Programs with their frames at one size of the array, with or without sharing.
pub struct Setup {
    /// Programs.
    pub programs: Vec<Running>,
    /// Frames of each set.
    pub sets: Vec<Vec<Frame>>,
}

/// Source of a program's accesses, ready to run.
pub enum Running {
    /// Patterns, and instructions per access.
    Synthetic(Box<Synthetic>, f64),
    /// Trace.
    Traced(Box<Traced>),
}

/// Opens the file of a trace.
pub type Open<'o> = &'o (dyn Fn(&std::path::Path) -> std::io::Result<Box<dyn super::trace::Source>> + Sync);

/// Reason that a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// The file of a trace cannot be opened.
    #[error("cannot open the trace {file}: {why}")]
    Trace {
        /// File name.
        file: String,
        /// Error of the system.
        why: std::io::Error,
    },
    /// Memory is too small for the programs.
    #[error("program {program} does not fit into the memory of the scenario: expected a larger `memory`")]
    Memory {
        /// First program that does not fit.
        program: String,
    },
}

impl Scenario {
    /// Cache as seen by policies.
    pub fn cache(&self) -> policy::Cache {
        policy::Cache {
            usable: WayMask::lowest(self.build.llc.ways),
            ways_min: self.ways_min,
            classes_max: self.classes_max,
            way_bytes: Bytes(u64::from(self.build.llc.sets) * LINE.0),
        }
    }

    /// Sizes to run at: those of the array, or the only one.
    pub fn points(&self) -> Vec<Option<Bytes>> {
        if self.arrays.is_empty() { vec![None] } else { self.arrays.iter().copied().map(Some).collect() }
    }

    /// Lines of a program, private and shared; without streams.
    pub fn lines_of(&self, program: &Program, array: Bytes) -> u64 {
        let shared: u64 = program.shared.iter().map(|set| self.sets[*set].size.pages(array).0).sum();
        (shared + program.private.pages(array).0).max(1) * 64
    }

    /// Number of accesses of an amount.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of accesses: not negative, and saturated"
    )]
    pub fn accesses(&self, amount: Amount, array: Bytes) -> u64 {
        match amount {
            Amount::Accesses(accesses) => accesses,
            Amount::Passes(passes) => {
                let lines: u64 = self.programs.iter().map(|program| self.lines_of(program, array)).sum();
                (lines as f64 * passes) as u64
            }
        }
    }

    /// Assigns frames to all programs and opens traces. The frames are the same under all conditions.
    ///
    /// # Errors
    /// When a trace cannot be opened or memory is too small.
    pub fn setup(&self, array: Bytes, sharing: bool, open: Open<'_>) -> Result<Setup, Unfit> {
        let mut memory = Memory::new(self.memory, self.scattered, self.seed);
        let sets: Vec<Vec<Frame>> = self.sets.iter().map(|set| memory.take(set.size.pages(array))).collect();
        let privates: Vec<Vec<Frame>> =
            self.programs.iter().map(|program| memory.take(program.private.pages(array))).collect();
        let mut programs = Vec::with_capacity(self.programs.len());
        for (nth, (program, private)) in self.programs.iter().zip(privates).enumerate() {
            let unfit = || Unfit::Memory { program: program.name.clone() };
            let copies: Vec<Vec<Frame>> = program
                .shared
                .iter()
                .map(|set| if sharing { sets[*set].clone() } else { memory.take(self.sets[*set].size.pages(array)) })
                .collect();
            let whole = |frames: &[Frame], size: Size| frames.len() as u64 == size.pages(array).0;
            let all_there = program.shared.iter().zip(&copies).all(|(set, copy)| whole(copy, self.sets[*set].size));
            if !all_there || !whole(&private, program.private) {
                return Err(unfit());
            }
            let own = Own { program, private, copies, array, seed: self.seed ^ (nth as u64 + 1) << 32 };
            programs.push(own.running(&mut memory, open)?);
        }
        Ok(Setup { programs, sets })
    }
}

/// Program with its frames.
struct Own<'s> {
    program: &'s Program,
    private: Vec<Frame>,
    /// Frames of each shared set.
    copies: Vec<Vec<Frame>>,
    array: Bytes,
    seed: u64,
}

impl Own<'_> {
    fn running(self, memory: &mut Memory, open: Open<'_>) -> Result<Running, Unfit> {
        match &self.program.source {
            Source::Synthetic(phases) => {
                let mut ready = Vec::with_capacity(phases.len());
                for phase in phases {
                    let mut parts = Vec::with_capacity(phase.parts.len());
                    for part in &phase.parts {
                        let unfit = || Unfit::Memory { program: self.program.name.clone() };
                        parts.push((part.weight, self.part(part, memory).ok_or_else(unfit)?));
                    }
                    ready.push(Phase::new(phase.accesses, parts));
                }
                let synthetic = Synthetic::new(ready, Random::for_purpose(self.seed, 2));
                Ok(Running::Synthetic(Box::new(synthetic), self.program.instructions_per_access))
            }
            Source::Trace { file, starts } => {
                let name = file.display().to_string();
                let source = open(file).map_err(|why| Unfit::Trace { file: name.clone(), why })?;
                let pages = self.copies.iter().zip(starts).flat_map(|(frames, start)| {
                    let first = start / Pages(1).bytes().0;
                    frames.iter().enumerate().map(move |(nth, frame)| (first + nth as u64, *frame))
                });
                Ok(Running::Traced(Box::new(Traced::new(name, source, pages, self.private))))
            }
        }
    }

    /// Part with its frames; `None` without memory for a stream.
    fn part(&self, part: &PartOf, memory: &mut Memory) -> Option<Part> {
        let area = if part.pattern == PatternOf::Stream {
            let pages = part.size.unwrap_or(Size::Bytes(STREAM)).pages(self.array);
            let first = memory.take_row(pages)?;
            Area::Row { first, lines: u32::try_from(pages.0 * 64).ok()? }
        } else {
            let of_set = |set: &usize| self.program.shared.iter().position(|own| own == set);
            let mut frames: Vec<Frame> =
                part.sets.iter().filter_map(of_set).flat_map(|nth| self.copies[nth].iter().copied()).collect();
            if part.private {
                frames.extend(&self.private);
            }
            if let Some(size) = part.size {
                frames.truncate(index(size.pages(self.array).0));
            }
            Area::Pages(frames)
        };
        let lines = area.lines();
        let pattern = match part.pattern {
            PatternOf::Cyclic | PatternOf::Stream => Pattern::Cyclic,
            PatternOf::Chase => Pattern::chase(lines, self.seed),
            PatternOf::Random => Pattern::Random,
            PatternOf::Zipf(skew) => Pattern::Zipf(Quantiles::new(lines, skew)),
        };
        (lines > 0).then(|| Part::new(pattern, area, part.begin))
    }
}

/// Memory that a stream passes before it begins again.
const STREAM: Bytes = Bytes::gib(1);

/// All lines of these frames, in order.
pub fn lines(frames: &[Frame]) -> impl Iterator<Item = Line> + '_ {
    frames.iter().flat_map(|frame| (0..super::frames::PAGE_LINES).map(|nth| frame.line(nth)))
}
