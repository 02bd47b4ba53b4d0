//! Programs of a scenario.

use toml::Spanned;
use units::Bytes;

use super::raw::{RawPart, RawPattern, RawProgram};
use super::{ACCESSES_MAX, BadScenario, Reader};
use crate::cache::scenario::{PartOf, PatternOf, PhaseOf, Program, Set, Size, Source};

const WEIGHT: &str = "a number above 0 and up to 1000000";
const SKEW: &str = "0 to 10";
const SOURCES: &str = "expected one of pattern, part, phase and trace";

impl Reader<'_> {
    pub(super) fn program(
        &self,
        raw: &Spanned<RawProgram>,
        sets: &[Set],
        arrays: &[Bytes],
        memory_cycles: u32,
    ) -> Result<Program, BadScenario> {
        let start = raw.span().start;
        let raw = raw.get_ref();
        let private = raw.private.as_ref().map(|size| self.size("private", size, arrays)).transpose()?;
        let mut shared = Vec::with_capacity(raw.shared.len());
        for name in &raw.shared {
            let set = self.set(name, sets)?;
            if shared.contains(&set) {
                return Err(self.bad(name.span().start, format!("{}: stands there twice", name.get_ref())));
            }
            shared.push(set);
        }
        let own = Own { sets, arrays, shared: &shared, private: private.is_some() };
        let given = [raw.pattern.is_some(), raw.part.is_some(), raw.phase.is_some(), raw.trace.is_some()];
        if given.into_iter().filter(|given| *given).count() != 1 {
            return Err(self.bad(start, SOURCES));
        }
        let source = if let Some(trace) = &raw.trace {
            let directory = self.file.parent().unwrap_or(self.file);
            Source::Trace { file: directory.join(trace), starts: self.starts(raw)? }
        } else {
            Source::Synthetic(self.phases(start, raw, &own)?)
        };
        if let (Source::Synthetic(_), Some(at)) = (&source, raw.shared_at.first()) {
            return Err(self.bad(at.span().start, "shared_at: expected with trace only"));
        }
        let per_access = raw.instructions_per_access.as_ref();
        if let (Source::Trace { .. }, Some(given)) = (&source, per_access) {
            return Err(self.bad(given.span().start, "instructions_per_access: those of a trace are counted"));
        }
        let holds = |n: f64| (0.001..=1e6).contains(&n);
        let traced = matches!(source, Source::Trace { .. });
        Ok(Program {
            name: raw.name.get_ref().clone(),
            private: private.filter(|_| !alone_a_stream(raw)).unwrap_or(Size::Bytes(if traced {
                TRACED
            } else {
                Bytes(0)
            })),
            shared,
            instructions_per_access: self.number(
                "instructions_per_access",
                per_access,
                4.0,
                holds,
                "0.001 to 1000000",
            )?,
            memory_cycles: raw.memory_cycles.unwrap_or(memory_cycles),
            source,
        })
    }

    fn starts(&self, raw: &RawProgram) -> Result<Vec<u64>, BadScenario> {
        let mut starts = Vec::with_capacity(raw.shared_at.len());
        for at in &raw.shared_at {
            let digits = at.get_ref().strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
            let start = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let start = start.filter(|start| start % 4096 == 0 && *start < 1 << 56).ok_or_else(|| {
                let what = format!("shared_at = {}: expected the address of a page, such as 0x4025000", at.get_ref());
                self.bad(at.span().start, what)
            })?;
            starts.push(start);
        }
        for (nth, start) in starts.iter().enumerate() {
            // Their lengths depend on the array; only the starts can be checked to differ.
            if starts[..nth].contains(start) {
                let at = raw.shared_at[nth].span().start;
                return Err(
                    self.bad(at, format!("shared_at = {start:#x}: expected an address of its own for each set"))
                );
            }
        }
        if starts.len() != raw.shared.len() {
            let what =
                format!("{} addresses in shared_at for {} sets: expected one for each", starts.len(), raw.shared.len());
            return Err(self.bad(raw.name.span().start, what));
        }
        Ok(starts)
    }

    fn phases(&self, start: usize, raw: &RawProgram, own: &Own<'_>) -> Result<Vec<PhaseOf>, BadScenario> {
        let of = |accesses, parts: &[Spanned<RawPart>]| {
            let parts: Vec<PartOf> = parts.iter().map(|part| self.part(part, own)).collect::<Result<_, _>>()?;
            Ok(PhaseOf { accesses, parts })
        };
        let phases = if let Some(phases) = &raw.phase {
            let mut all = Vec::with_capacity(phases.len());
            for phase in phases {
                let phase = phase.get_ref();
                let holds = |n| (1..=ACCESSES_MAX).contains(&n);
                let accesses = self.number("accesses", Some(&phase.accesses), 1, holds, "1 at least")?;
                all.push(of(accesses, &phase.part)?);
            }
            all
        } else if let Some(parts) = &raw.part {
            vec![of(u64::MAX, parts)?]
        } else {
            let pattern = self.pattern(raw.pattern.unwrap_or(RawPattern::Cyclic), raw.skew.as_ref())?;
            let begin = self.begin(pattern, raw.begin_fraction.as_ref())?;
            let stream = pattern == PatternOf::Stream;
            let (sets, private) = if stream { (Vec::new(), false) } else { (own.shared.to_vec(), own.private) };
            if !stream && !private && sets.is_empty() {
                return Err(self.bad(start, "no memory: expected private or shared"));
            }
            // For a stream, `private` is the length of the stream.
            let size = raw.private.as_ref().filter(|_| stream).map(|size| self.size("private", size, own.arrays));
            vec![PhaseOf {
                accesses: u64::MAX,
                parts: vec![PartOf { pattern, sets, private, size: size.transpose()?, weight: 1.0, begin }],
            }]
        };
        if phases.is_empty() || phases.iter().any(|phase| phase.parts.is_empty()) {
            return Err(self.bad(start, "expected a phase and a part at least"));
        }
        Ok(phases)
    }

    fn pattern(&self, raw: RawPattern, skew: Option<&Spanned<f64>>) -> Result<PatternOf, BadScenario> {
        let pattern = match raw {
            RawPattern::Cyclic => PatternOf::Cyclic,
            RawPattern::Chase => PatternOf::Chase,
            RawPattern::Random => PatternOf::Random,
            RawPattern::Stream => PatternOf::Stream,
            RawPattern::Zipf => PatternOf::Zipf(self.number("skew", skew, 0.9, |n| (0.0..=10.0).contains(&n), SKEW)?),
        };
        match skew {
            Some(skew) if raw != RawPattern::Zipf => Err(self.bad(skew.span().start, "skew: expected with zipf only")),
            _ => Ok(pattern),
        }
    }

    fn begin(&self, pattern: PatternOf, begin: Option<&Spanned<f64>>) -> Result<f64, BadScenario> {
        match begin {
            Some(begin) if !matches!(pattern, PatternOf::Cyclic | PatternOf::Chase) => {
                Err(self.bad(begin.span().start, "begin_fraction: expected with cyclic and chase only"))
            }
            begin => self.number("begin_fraction", begin, 0.0, |n| (0.0..1.0).contains(&n), "0 to below 1"),
        }
    }

    fn part(&self, raw: &Spanned<RawPart>, own: &Own<'_>) -> Result<PartOf, BadScenario> {
        let start = raw.span().start;
        let raw = raw.get_ref();
        let pattern = self.pattern(raw.pattern, raw.skew.as_ref())?;
        let weight = self.number("weight", raw.weight.as_ref(), 1.0, |n| n > 0.0 && n <= 1e6, WEIGHT)?;
        let size = raw.size.as_ref().map(|size| self.size("size", size, own.arrays)).transpose()?;
        let (mut sets, mut private) = (Vec::new(), false);
        match &raw.over {
            Some(over) if pattern == PatternOf::Stream => {
                let at = over.first().map_or(start, |name| name.span().start);
                return Err(self.bad(at, "over: a stream goes over memory of its own"));
            }
            Some(over) => {
                for name in over {
                    if name.get_ref() == "private" && own.private {
                        private = true;
                        continue;
                    }
                    let set = own.shared.iter().copied().find(|set| own.sets[*set].name == *name.get_ref());
                    sets.push(set.ok_or_else(|| {
                        let what = format!("over = {}: expected private or what the program shares", name.get_ref());
                        self.bad(name.span().start, what)
                    })?);
                }
            }
            None if pattern == PatternOf::Stream => {}
            None => (sets, private) = (own.shared.to_vec(), own.private),
        }
        if pattern != PatternOf::Stream && !private && sets.is_empty() {
            return Err(self.bad(start, "no memory: expected private or shared memory to go over"));
        }
        let begin = self.begin(pattern, raw.begin_fraction.as_ref())?;
        Ok(PartOf { pattern, sets, private, size, weight, begin })
    }
}

/// True if the private memory is the length of a stream only.
fn alone_a_stream(raw: &RawProgram) -> bool {
    raw.pattern == Some(RawPattern::Stream)
}

/// Memory of a program.
struct Own<'r> {
    sets: &'r [Set],
    arrays: &'r [Bytes],
    shared: &'r [usize],
    private: bool,
}

/// Default limit of a traced program's memory.
const TRACED: Bytes = Bytes::mib(256);
