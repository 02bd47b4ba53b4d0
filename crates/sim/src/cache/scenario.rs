//! Scenarios: what cache there is, which programs run on it, what they share, and under which conditions.
//!
//! `file` reads them; its head shows one. Here is what they mean: amounts may depend on the size of an array that is varied, and
//! [`Scenario::setup`] gives every program and shared set its frames.

use std::path::PathBuf;

use units::{Bytes, Fraction, Pages, WayMask, Ways};

use super::frames::{Frame, Memory};
use super::machine::Build;
use super::program::{Area, Part, Pattern, Phase, Quantiles, Synthetic};
use super::random::Random;
use super::refill::Settings;
use super::set_associative::{LINE, Line};
use super::trace::Traced;
use llc::policy::{self, Class, Plan, Policy, Region};

mod file;

pub use file::BadScenario;

/// A scenario that makes sense.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What it shows.
    pub title: String,
    /// Of all that is drawn.
    pub seed: u64,
    /// How long it is measured.
    pub measured: Amount,
    /// How long it runs before.
    pub warm_up: Amount,
    /// Accesses of all programs after which policies decide anew; `None` for never.
    pub interval: Option<u64>,
    /// Who goes next.
    pub interleave: Interleave,
    /// Frames are given away in no order.
    pub scattered: bool,
    /// Memory that frames come from.
    pub memory: Pages,
    /// The machine.
    pub build: Build,
    /// What a miss takes.
    pub memory_cycles: u32,
    /// What an instruction takes that waits for no memory.
    pub cycles_per_instruction: f64,
    /// The fewest ways that a class may have.
    pub ways_min: Ways,
    /// The most classes.
    pub classes_max: usize,
    /// What is shared.
    pub sets: Vec<Set>,
    /// Who runs; one at least, 64 at most.
    pub programs: Vec<Program>,
    /// Under which conditions; one at least.
    pub conditions: Vec<Condition>,
    /// Sizes of the array that is varied; empty for none.
    pub arrays: Vec<Bytes>,
}

/// How many accesses, of all programs together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// So many.
    Accesses(u64),
    /// As many as all programs have lines, so often.
    Passes(f64),
}

/// Which program goes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interleave {
    /// The one that has spent the fewest cycles: they run side by side, each on a CPU of its own.
    Time,
    /// One after the other, each for so many accesses; a pass is as many as it has lines.
    Turns(Amount),
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// This.
    Bytes(Bytes),
    /// This part of the array that is varied.
    OfArray(f64),
}

impl Size {
    /// In whole pages, rounded up, for such an array.
    pub fn pages(self, array: Bytes) -> Pages {
        let bytes = match self {
            Size::Bytes(bytes) => bytes,
            Size::OfArray(part) => array.scaled(part),
        };
        Pages(bytes.0.div_ceil(Pages(1).bytes().0))
    }
}

/// Pages that programs share.
#[derive(Clone, Debug, PartialEq)]
pub struct Set {
    /// What it is called.
    pub name: String,
    /// How large it is.
    pub size: Size,
}

/// A program.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What it is called.
    pub name: String,
    /// Memory of its own.
    pub private: Size,
    /// What it shares: places in [`Scenario::sets`].
    pub shared: Vec<usize>,
    /// Instructions for each access; of a trace they are counted.
    pub instructions_per_access: f64,
    /// What a miss takes it, where that differs: whoever knows early what is next waits for less.
    pub memory_cycles: u32,
    /// Where its accesses come from.
    pub source: Source,
}

/// Where accesses come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Patterns.
    Synthetic(Vec<PhaseOf>),
    /// A trace.
    Trace {
        /// The file.
        file: PathBuf,
        /// Where each set of `shared` begins in its address space.
        starts: Vec<u64>,
    },
}

/// One phase of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseOf {
    /// How long.
    pub accesses: u64,
    /// What it does.
    pub parts: Vec<PartOf>,
}

/// One thing that a program does.
#[derive(Clone, Debug, PartialEq)]
pub struct PartOf {
    /// In which order.
    pub pattern: PatternOf,
    /// Over what: sets first, in this order, and then its own memory if `private`. For streams, neither.
    pub sets: Vec<usize>,
    /// Its own memory as well.
    pub private: bool,
    /// Only so much from the beginning of that; how much a stream goes over.
    pub size: Option<Size>,
    /// How often, beside other parts.
    pub weight: f64,
    /// Where in it the first access is, as a part of it; of those patterns that have an order.
    pub begin: f64,
}

/// In which order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PatternOf {
    /// Around.
    Cyclic,
    /// Around, in another order.
    Chase,
    /// Any.
    Random,
    /// Any, with this skew.
    Zipf(f64),
    /// New memory.
    Stream,
}

/// What is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// What it is called.
    pub name: String,
    /// False: each has a copy of what it would share.
    pub sharing: bool,
    /// Who gets which ways.
    pub partition: Partition,
    /// masu's own policy goes on by what is measured, as it does where the processor counts; else it plans from curves alone.
    pub refined: bool,
    /// How the regions of policies are filled.
    pub refill: Settings,
}

/// Who gets which ways.
#[derive(Clone, Debug, PartialEq)]
pub enum Partition {
    /// As a policy decides.
    Policy(Policy),
    /// These.
    Fixed(Fixed),
    /// Regions that hold such a part of their sets, and the same of the rest for each program (`fit`).
    Fit(Fraction),
}

/// Ways that the scenario gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Of each program.
    pub masks: Vec<WayMask>,
    /// Of regions.
    pub regions: Vec<Region>,
}

impl Fixed {
    /// As a plan: programs with the same ways are in one class.
    pub fn plan(&self) -> Plan {
        let mut classes: Vec<Class> = Vec::new();
        for (program, mask) in self.masks.iter().enumerate() {
            match classes.iter_mut().find(|class| class.mask == *mask) {
                Some(class) => class.programs.push(program),
                None => classes.push(Class { mask: *mask, programs: vec![program] }),
            }
        }
        Plan { classes, regions: self.regions.clone() }
    }
}

/// What runs at one size of the array, with or without sharing: programs with their frames.
pub struct Setup {
    /// Of each program.
    pub programs: Vec<Running>,
    /// Frames of each set.
    pub sets: Vec<Vec<Frame>>,
}

/// Where a program's accesses come from, ready to run.
pub enum Running {
    /// Patterns, and instructions for each access.
    Synthetic(Box<Synthetic>, f64),
    /// A trace.
    Traced(Box<Traced>),
}

/// Opens the file of a trace.
pub type Open<'o> = &'o (dyn Fn(&std::path::Path) -> std::io::Result<Box<dyn super::trace::Source>> + Sync);

/// A scenario cannot be run as it stands.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// The file of a trace cannot be opened.
    #[error("cannot open the trace {file}: {why}")]
    Trace {
        /// Which.
        file: String,
        /// The system's answer.
        why: std::io::Error,
    },
    /// There is not as much memory as the programs have.
    #[error("program {program} does not fit into the memory of the scenario: expected a larger `memory`")]
    Memory {
        /// The first that does not.
        program: String,
    },
}

impl Scenario {
    /// The cache as policies see it.
    pub fn cache(&self) -> policy::Cache {
        policy::Cache {
            usable: WayMask::lowest(self.build.llc.ways),
            ways_min: self.ways_min,
            classes_max: self.classes_max,
            way_bytes: Bytes(u64::from(self.build.llc.sets) * LINE.0),
        }
    }

    /// Sizes to run at: those of the array, or the only one there is.
    pub fn points(&self) -> Vec<Option<Bytes>> {
        if self.arrays.is_empty() { vec![None] } else { self.arrays.iter().copied().map(Some).collect() }
    }

    /// Lines that a program has, its own and shared ones; those of streams are not counted.
    pub fn lines_of(&self, program: &Program, array: Bytes) -> u64 {
        let shared: u64 = program.shared.iter().map(|set| self.sets[*set].size.pages(array).0).sum();
        (shared + program.private.pages(array).0).max(1) * 64
    }

    /// How many accesses that is.
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

    /// Gives everybody frames and opens traces. The same frames, whatever else differs between conditions.
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

/// A program with its frames.
struct Own<'s> {
    program: &'s Program,
    private: Vec<Frame>,
    /// Of each set that it shares.
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
                let synthetic = Synthetic::new(ready, Random::new(self.seed, 2));
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

    /// `None` when there is no memory left for a stream.
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
                frames.truncate(usize::try_from(size.pages(self.array).0).unwrap_or(usize::MAX));
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

/// What a stream goes over before it begins again.
const STREAM: Bytes = Bytes::gib(1);

/// All lines of these frames, in order.
pub fn lines(frames: &[Frame]) -> impl Iterator<Item = Line> + '_ {
    frames.iter().flat_map(|frame| (0..super::frames::PAGE_LINES).map(|nth| frame.line(nth)))
}
