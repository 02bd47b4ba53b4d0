//! Scenario files. The length of the run, `cache`, a program and a condition are required, everything else is optional;
//! unknown keys are refused.
//!
//! ```toml
//! title = "two programs, half of their array shared"
//! seed = 1
//! passes = 12                      # or accesses = 40_000_000: of all programs together
//! warm_up_passes = 8               # or warm_up_accesses
//! interval_accesses = 1_000_000    # between two decisions of a policy
//! interleave = "turns"             # one after the other, or by "time", side by side
//! turn_passes = 1                  # or turn_accesses = 1: in lockstep
//! pages = "scattered"              # or "contiguous"
//! memory = "4 GiB"
//! cycles_per_instruction = 0.5
//! policies = ["none", "equal"]     # conditions named after policies
//!
//! [cache]
//! size = "10 MiB"
//! ways = 20
//! slices = 1
//! replacement = "lru"              # fifo, tree-plru, qlru
//! inclusive = true
//! cycles = 40
//! memory_cycles = 200
//! ways_min = 1
//! classes_max = 16
//!
//! [[level]]                        # private, the nearest first
//! size = "32 KiB"
//! ways = 8
//! cycles = 4
//!
//! [refill]                         # of shared partitions
//! mode = "flush-and-touch"         # touch, off
//! every_cycles = 1_000_000
//! duty_fraction = 0.01
//!
//! [sweep]
//! array = ["16 KiB", "4 MiB"]      # then sizes below may say "array", "array/2" or "array*3/4"
//!
//! [[shared]]
//! name = "half"
//! size = "array/2"
//!
//! [[program]]
//! name = "first"
//! private = "array/2"
//! shared = ["half"]
//! pattern = "cyclic"               # chase, random, zipf (with skew), stream; over the shared sets, then private
//! begin_fraction = 0.5             # cyclic and chase: where in it
//! instructions_per_access = 4
//!
//! [[program]]
//! name = "mixed"
//! private = "2 MiB"
//! part = [{ pattern = "zipf", skew = 0.8, over = ["private"], weight = 3 }, { pattern = "stream", weight = 1 }]
//! # or phase = [{ accesses = 1_000_000, part = […] }, …]
//!
//! [[program]]
//! name = "real"
//! trace = "solver.trace"
//! private = "256 MiB"              # the most that it uses
//! shared = ["half"]
//! shared_at = ["0x4025000"]        # where each set begins in its address space
//!
//! [[condition]]
//! name = "shared, CAT"
//! masks = { first = "ff", mixed = "ff00", real = "ff00" }
//! sharing = true                   # false: each has a copy
//! region = [{ set = "half", mask = "f0000" }]
//! refill = { mode = "touch" }      # else that of above
//! # or policy = "none"
//! # or policy = "sharing" and refined = false: plans from curves alone, as without counters of the processor
//! # or fit_fraction = 0.98: shared partitions with this fraction of their sets, and the same of the rest per program
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use units::cast::fits;
use units::{Bytes, Fraction, WayMask, Ways};

use llc::policy::Policy;

use super::{Amount, Condition, Fixed, Interleave, Partition, Scenario, Set, Size};
use crate::cache::machine::{Build, Level};
use crate::cache::refill::{Mode, Settings};
use crate::cache::set_associative::{LINE, Replacement, Shape};
use llc::policy::SharedPartition;

mod programs;
mod raw;

use raw::{RawCache, RawInterleave, RawPages, RawRefill, RawRegion, RawScenario};

/// Invalid content of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} line {line}: {what}")]
pub struct BadScenario {
    /// File name.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// Found text, and expected text.
    pub what: String,
}

/// Largest count of anything, so that sums stay within their types.
const ACCESSES_MAX: u64 = 1 << 48;
const PASSES_MAX: f64 = 1e6;
const PROGRAMS_MAX: usize = 64;
const SETS_MAX: usize = 16;
const SWEEP_MAX: usize = 1000;
const BYTES_MAX: Bytes = Bytes::gib(64);
const CACHE_MAX: Bytes = Bytes::gib(1);

impl Scenario {
    /// Parses `text`; `file` is its name, for messages and to find traces beside it.
    ///
    /// # Errors
    /// The first error, with its line.
    pub fn parse(file: &Path, text: &str) -> Result<Scenario, BadScenario> {
        let reader = Reader { file, text };
        let raw: RawScenario = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            reader.bad(start, llc::unparsed(text, error.span(), error.message()))
        })?;
        reader.scenario(raw)
    }
}

/// Converter from the written form to a scenario.
struct Reader<'t> {
    file: &'t Path,
    text: &'t str,
}

impl Reader<'_> {
    fn bad(&self, offset: usize, what: impl Into<String>) -> BadScenario {
        let line = self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
        BadScenario { file: self.file.display().to_string(), line, what: what.into() }
    }

    /// Checked number: the value if `holds`; `or` if it is missing.
    fn number<T: Copy + std::fmt::Display>(
        &self,
        name: &str,
        value: Option<&Spanned<T>>,
        or: T,
        holds: impl Fn(T) -> bool,
        expected: &str,
    ) -> Result<T, BadScenario> {
        let Some(value) = value else { return Ok(or) };
        let found = *value.get_ref();
        if holds(found) {
            return Ok(found);
        }
        Err(self.bad(value.span().start, format!("{name} = {found}: expected {expected}")))
    }

    fn bytes(&self, name: &str, value: &Spanned<String>, most: Bytes) -> Result<Bytes, BadScenario> {
        let parsed = value.get_ref().parse::<Bytes>();
        let bytes = parsed.map_err(|bad| self.bad(value.span().start, format!("{name} = {bad}")))?;
        if bytes.0 == 0 || bytes > most {
            let what = format!("{name} = {}: expected an amount above 0 and up to {most}", value.get_ref());
            return Err(self.bad(value.span().start, what));
        }
        Ok(bytes)
    }

    /// Amount, or fraction of the varied array.
    fn size(&self, name: &str, value: &Spanned<String>, arrays: &[Bytes]) -> Result<Size, BadScenario> {
        let text = value.get_ref();
        let Some(part) = text.strip_prefix("array") else { return self.bytes(name, value, BYTES_MAX).map(Size::Bytes) };
        let (times, over) = part.split_once('/').unwrap_or((part, "1"));
        let times = if times.is_empty() { "1" } else { times.strip_prefix('*').unwrap_or("") };
        let number = |digits: &str| digits.parse::<u32>().ok().filter(|n| (1..=1024).contains(n)).map(f64::from);
        let (Some(times), Some(over)) = (number(times), number(over)) else {
            let what = format!("{name} = {text}: expected an amount such as 4 MiB, or array, array/2 or array*3/4");
            return Err(self.bad(value.span().start, what));
        };
        if arrays.is_empty() {
            return Err(
                self.bad(value.span().start, format!("{name} = {text}: expected [sweep] with sizes of the array"))
            );
        }
        let largest = arrays.iter().max().map_or(Bytes(0), |array| array.scaled(times / over));
        if largest > BYTES_MAX {
            let what = format!("{name} = {text}: expected up to {BYTES_MAX}, and it is {largest} at the largest array");
            return Err(self.bad(value.span().start, what));
        }
        Ok(Size::OfArray(times / over))
    }

    fn mask(&self, value: &Spanned<String>, ways: Ways) -> Result<WayMask, BadScenario> {
        let parsed = value.get_ref().parse::<WayMask>();
        let mask = parsed.map_err(|bad| self.bad(value.span().start, format!("mask = {bad}")))?;
        if mask.is_empty() || !WayMask::lowest(ways).covers(mask) {
            let what =
                format!("mask = {mask}: expected some of the {ways} ways of the cache, {}", WayMask::lowest(ways));
            return Err(self.bad(value.span().start, what));
        }
        Ok(mask)
    }

    fn scenario(&self, raw: RawScenario) -> Result<Scenario, BadScenario> {
        let (measured, warm_up) = self.amounts(&raw)?;
        let (build, cache) = self.build(&raw)?;
        let arrays = raw.sweep.as_ref().map_or(&[][..], |sweep| &sweep.array);
        if raw.sweep.is_some() && !(1..=SWEEP_MAX).contains(&arrays.len()) {
            return Err(self.bad(0, format!("[sweep] array has {} sizes: expected 1 to {SWEEP_MAX}", arrays.len())));
        }
        let arrays = arrays.iter().map(|array| self.bytes("array", array, BYTES_MAX)).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<&Spanned<String>> = raw.shared.iter().map(|set| &set.name).collect();
        self.distinct("shared", &names)?;
        if let Some(set) = raw.shared.get(SETS_MAX) {
            return Err(self.bad(set.name.span().start, format!("expected {SETS_MAX} shared sets at most")));
        }
        let mut sets = Vec::with_capacity(raw.shared.len());
        for set in &raw.shared {
            sets.push(Set { name: set.name.get_ref().clone(), size: self.size("size", &set.size, &arrays)? });
        }
        let names: Vec<&Spanned<String>> = raw.program.iter().map(|program| &program.get_ref().name).collect();
        self.distinct("program", &names)?;
        if !(1..=PROGRAMS_MAX).contains(&raw.program.len()) {
            return Err(
                self.bad(self.text.len(), format!("{} programs: expected 1 to {PROGRAMS_MAX}", raw.program.len()))
            );
        }
        let memory_cycles = cache.memory_cycles.unwrap_or(200);
        let mut programs = Vec::with_capacity(raw.program.len());
        for program in &raw.program {
            programs.push(self.program(program, &sets, &arrays, memory_cycles)?);
        }
        for (nth, set) in raw.shared.iter().enumerate() {
            if programs.iter().filter(|program| program.shared.contains(&nth)).count() < 2 {
                let what = format!("{} is shared by less than two programs: expected two at least", set.name.get_ref());
                return Err(self.bad(set.name.span().start, what));
            }
        }
        let turns = self.amount("turn_", raw.turn_accesses.as_ref(), raw.turn_passes.as_ref())?;
        let cpi = raw.cycles_per_instruction.as_ref();
        let mut scenario = Scenario {
            title: raw.title.clone().unwrap_or_default(),
            seed: raw.seed.unwrap_or(1),
            measured,
            warm_up,
            interval: match &raw.interval_accesses {
                None => None,
                given => Some(self.number("interval_accesses", given.as_ref(), 1, |n| n >= 1000, "1000 at least")?),
            },
            interleave: match raw.interleave {
                Some(RawInterleave::Turns) => Interleave::Turns(turns.unwrap_or(Amount::Passes(1.0))),
                _ => Interleave::Time,
            },
            scattered: !matches!(raw.pages, Some(RawPages::Contiguous)),
            memory: raw
                .memory
                .as_ref()
                .map_or(Ok(Bytes::gib(4)), |size| self.bytes("memory", size, Bytes::gib(128)))?
                .pages(),
            memory_cycles,
            cycles_per_instruction: self.number(
                "cycles_per_instruction",
                cpi,
                0.5,
                |n| (0.0..=100.0).contains(&n),
                "0 to 100",
            )?,
            ways_min: Ways(self.number(
                "ways_min",
                cache.ways_min.as_ref(),
                1,
                |n| (1..=build.llc.ways.0).contains(&n),
                "1 to all ways",
            )?),
            classes_max: self.number(
                "classes_max",
                cache.classes_max.as_ref(),
                16,
                |n| (1..=128).contains(&n),
                "1 to 128",
            )?,
            build,
            sets,
            programs,
            conditions: Vec::new(),
            arrays,
        };
        scenario.conditions = self.conditions(&raw, &scenario)?;
        Ok(scenario)
    }

    fn distinct(&self, what: &str, names: &[&Spanned<String>]) -> Result<(), BadScenario> {
        for (nth, name) in names.iter().enumerate() {
            let text = name.get_ref();
            if text.is_empty() || text == "private" {
                return Err(self.bad(name.span().start, format!("name = \"{text}\": expected another name")));
            }
            if names[..nth].iter().any(|other| other.get_ref() == text) {
                return Err(self.bad(name.span().start, format!("name = \"{text}\": there is such a {what} already")));
            }
        }
        Ok(())
    }

    /// Value of `NAMEaccesses` or `NAMEpasses`; `None` if neither is present.
    fn amount(
        &self,
        name: &str,
        accesses: Option<&Spanned<u64>>,
        passes: Option<&Spanned<f64>>,
    ) -> Result<Option<Amount>, BadScenario> {
        match (accesses, passes) {
            (Some(_), Some(passes)) => {
                Err(self.bad(passes.span().start, format!("expected {name}accesses or {name}passes, and not both")))
            }
            (None, None) => Ok(None),
            (accesses @ Some(_), None) => {
                let holds = |n| (1..=ACCESSES_MAX).contains(&n);
                let expected = "1 at least, and at most 2^48";
                self.number(&format!("{name}accesses"), accesses, 1, holds, expected).map(|n| Some(Amount::Accesses(n)))
            }
            (None, passes) => {
                let holds = |n| n > 0.0 && n <= PASSES_MAX;
                let expected = "a number above 0 and up to 1000000";
                self.number(&format!("{name}passes"), passes, 1.0, holds, expected).map(|n| Some(Amount::Passes(n)))
            }
        }
    }

    fn amounts(&self, raw: &RawScenario) -> Result<(Amount, Amount), BadScenario> {
        let measured = self.amount("", raw.accesses.as_ref(), raw.passes.as_ref())?;
        let measured = measured.ok_or_else(|| self.bad(0, "expected accesses or passes: how long to run"))?;
        let warm_up = self.amount("warm_up_", raw.warm_up_accesses.as_ref(), raw.warm_up_passes.as_ref())?;
        let half = match measured {
            Amount::Accesses(accesses) => Amount::Accesses(accesses / 2),
            Amount::Passes(passes) => Amount::Passes(passes / 2.0),
        };
        Ok((measured, warm_up.unwrap_or(half)))
    }

    fn build<'r>(&self, raw: &'r RawScenario) -> Result<(Build, &'r RawCache), BadScenario> {
        let cache = raw.cache.get_ref();
        let slices = self.number("slices", cache.slices.as_ref(), 1, |n| (1..=128).contains(&n), "1 to 128")?;
        let llc = self.shape(&cache.size, &cache.ways, slices, cache.replacement)?;
        let mut levels = Vec::with_capacity(raw.level.len());
        for level in &raw.level {
            let level = level.get_ref();
            let shape = self.shape(&level.size, &level.ways, 1, level.replacement)?;
            levels.push(Level { shape, cycles: level.cycles });
        }
        if let Some(level) = raw.level.get(4) {
            return Err(self.bad(level.span().start, "expected 4 private levels at most"));
        }
        let llc_cycles = cache.cycles.unwrap_or(40);
        let costs = [llc_cycles, cache.memory_cycles.unwrap_or(200)];
        if costs.iter().all(|cycles| *cycles == 0) {
            return Err(
                self.bad(raw.cache.span().start, "cycles = 0 and memory_cycles = 0: expected accesses that take time")
            );
        }
        Ok((Build { llc, inclusive: cache.inclusive.unwrap_or(false), levels, llc_cycles }, cache))
    }

    fn shape(
        &self,
        size: &Spanned<String>,
        ways: &Spanned<u32>,
        slices: u32,
        replacement: Option<Replacement>,
    ) -> Result<Shape, BadScenario> {
        let bytes = self.bytes("size", size, CACHE_MAX)?;
        let count = self.number("ways", Some(ways), 1, |n| (1..=64).contains(&n), "1 to 64")?;
        let set_bytes = u64::from(count) * u64::from(slices) * LINE.0;
        if bytes.0 % set_bytes != 0 {
            let what = format!(
                "size = {}: expected a multiple of {} (a line for each of {count} ways in {slices} slices)",
                size.get_ref(),
                Bytes(set_bytes)
            );
            return Err(self.bad(size.span().start, what));
        }
        // At most 1 GiB of lines.
        let sets = fits(bytes.0 / (u64::from(count) * LINE.0));
        Ok(Shape { sets, ways: Ways(count), slices, replacement: replacement.unwrap_or(Replacement::Lru) })
    }

    fn refill(&self, raw: Option<&RawRefill>, or: Settings) -> Result<Settings, BadScenario> {
        let Some(raw) = raw else { return Ok(or) };
        let duty = raw.duty_fraction.as_ref();
        let duty = self.number(
            "duty_fraction",
            duty,
            or.duty.get(),
            |n| n > 0.0 && n <= 1.0,
            "a part of one CPU above 0 and up to 1",
        )?;
        let every = raw.every_cycles.as_ref();
        let every_cycles = self.number("every_cycles", every, or.every_cycles, |n| n >= 100, "100 at least")?;
        Ok(Settings { mode: raw.mode.unwrap_or(or.mode), every_cycles, duty: Fraction::clamped(duty) })
    }

    fn conditions(&self, raw: &RawScenario, scenario: &Scenario) -> Result<Vec<Condition>, BadScenario> {
        let usual = Settings { mode: Mode::FlushAndTouch, every_cycles: 1_000_000, duty: Fraction::clamped(0.01) };
        let usual = self.refill(raw.refill.as_ref(), usual)?;
        let mut conditions: Vec<Condition> = Vec::new();
        for policy in &raw.policies {
            if conditions.iter().any(|other| other.name == policy.name()) {
                return Err(self.bad(0, format!("policies: {policy} stands there twice")));
            }
            let partition = Partition::Policy(*policy);
            let name = policy.name().to_owned();
            conditions.push(Condition { name, sharing: true, partition, refined: true, refill: usual });
        }
        for condition in &raw.condition {
            let start = condition.span().start;
            let condition = condition.get_ref();
            let fit = condition.fit_fraction.as_ref();
            let partition = match (condition.policy, &condition.masks, fit) {
                (Some(policy), None, None) if condition.region.is_empty() => Partition::Policy(policy),
                (None, Some(masks), None) => Partition::Fixed(self.fixed(start, masks, &condition.region, scenario)?),
                (None, None, Some(_)) if condition.region.is_empty() => {
                    let expected = "a part of the set above 0 and up to 1";
                    let part = self.number("fit_fraction", fit, 1.0, |n| n > 0.0 && n <= 1.0, expected)?;
                    Partition::Fit(Fraction::clamped(part))
                }
                _ => return Err(self.bad(start, "expected masks (and regions), or a policy, or fit_fraction")),
            };
            let name = match (&condition.name, condition.policy) {
                (Some(name), _) => name.clone(),
                (None, Some(policy)) => policy.name().to_owned(),
                (None, None) => return Err(self.bad(start, "expected a name for this condition")),
            };
            if conditions.iter().any(|other| other.name == name) {
                return Err(self.bad(start, format!("name = \"{name}\": there is such a condition already")));
            }
            let refill = self.refill(condition.refill.as_ref(), usual)?;
            if let Some(region) = condition.region.first().filter(|_| condition.sharing == Some(false)) {
                return Err(self
                    .bad(region.span().start, "region: expected none with sharing = false, where nothing is shared"));
            }
            if condition.refined.is_some() && condition.policy != Some(Policy::Sharing) {
                return Err(
                    self.bad(start, "refined: expected policy = \"sharing\" with it: no other goes on by measuring")
                );
            }
            let (sharing, refined) = (condition.sharing.unwrap_or(true), condition.refined.unwrap_or(true));
            conditions.push(Condition { name, sharing, partition, refined, refill });
        }
        if conditions.is_empty() {
            return Err(self.bad(0, "expected policies = [\"none\", \"equal\"] or a [[condition]]: what to compare"));
        }
        Ok(conditions)
    }

    fn fixed(
        &self,
        start: usize,
        masks: &BTreeMap<String, Spanned<String>>,
        regions: &[Spanned<RawRegion>],
        scenario: &Scenario,
    ) -> Result<Fixed, BadScenario> {
        let ways = scenario.build.llc.ways;
        for (name, mask) in masks {
            if !scenario.programs.iter().any(|program| program.name == *name) {
                return Err(self.bad(mask.span().start, format!("{name}: there is no such program")));
            }
        }
        let mut fixed = Fixed { masks: Vec::new(), regions: Vec::new() };
        for program in &scenario.programs {
            let mask = masks.get(&program.name);
            let mask = mask.ok_or_else(|| self.bad(start, format!("expected a mask for {} as well", program.name)))?;
            fixed.masks.push(self.mask(mask, ways)?);
        }
        for region in regions {
            let (at, region) = (region.span().start, region.get_ref());
            let (mask, set) = (self.mask(&region.mask, ways)?, self.set(&region.set, &scenario.sets)?);
            if fixed.masks.iter().any(|other| other.overlaps(mask)) {
                return Err(self.bad(at, format!("mask = {mask}: expected ways for the region that no program has")));
            }
            if fixed.regions.iter().any(|other| other.mask.overlaps(mask) || other.group == set) {
                return Err(
                    self.bad(at, format!("mask = {mask}: expected one region for each set, and ways of its own"))
                );
            }
            fixed.regions.push(SharedPartition { mask, group: set });
        }
        let classes = fixed.plan().classes.len() + fixed.regions.len();
        if classes > scenario.classes_max {
            let what = format!("{classes} classes: expected {} at most (classes_max)", scenario.classes_max);
            return Err(self.bad(start, what));
        }
        Ok(fixed)
    }

    fn set(&self, name: &Spanned<String>, sets: &[Set]) -> Result<usize, BadScenario> {
        let found = sets.iter().position(|set| set.name == *name.get_ref());
        found.ok_or_else(|| self.bad(name.span().start, format!("{}: there is no such [[shared]]", name.get_ref())))
    }
}
