//! Synthetic programs: the sequence of accessed lines. Pure.
//!
//! | name | next line | similar to |
//! |---|---|---|
//! | `cyclic` | the one after the last, wrapping around at the end | loops over an array |
//! | `chase` | the same, but the lines have a fixed random order | linked lists, latency benchmarks |
//! | `random` | any, with equal probability | hash tables |
//! | `zipf` | any; the n-th line has a weight of 1/n^skew | caches of objects |
//! | `stream` | the one after the last, in more memory than any cache holds | copying, scanning |
//!
//! A program has phases, one after the other and then from the first again. A phase has parts, each a pattern over an
//! area; each access draws a part by weight. A pattern continues at its position, also in the next round of phases.

use units::cast::fits;
use units::spread::Random;

use super::frames::{Frame, PAGE_LINES};
use super::set_associative::Line;

/// Area of a part: a list of pages, or consecutive pages.
#[derive(Clone, Debug)]
pub enum Area {
    /// Pages in this order.
    Pages(Vec<Frame>),
    /// Consecutive lines from the first line of this frame on.
    Row {
        /// First frame.
        first: Frame,
        /// Number of lines.
        lines: u32,
    },
}

impl Area {
    /// Number of lines.
    pub fn lines(&self) -> u32 {
        match self {
            Area::Pages(frames) => fits::<_, u32>(frames.len()) * PAGE_LINES,
            Area::Row { lines, .. } => *lines,
        }
    }

    #[inline]
    fn line(&self, nth: u32) -> Line {
        match self {
            Area::Pages(frames) => frames[(nth / PAGE_LINES) as usize].line(nth % PAGE_LINES),
            Area::Row { first, .. } => Line(first.line(0).0 + nth),
        }
    }
}

/// Choice of the next line in an area, by number.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Next line in order. `stream` uses it as well, with another area.
    Cyclic,
    /// Next line of this order.
    Chase(Vec<u32>),
    /// Any line.
    Random,
    /// Any line, the first ones more often.
    Zipf(Quantiles),
}

impl Pattern {
    /// Random cyclic order of this number of lines.
    pub fn chase(lines: u32, seed: u64) -> Pattern {
        let mut order: Vec<u32> = (0..lines).collect();
        Random::for_purpose(seed, 1).shuffle(&mut order);
        Pattern::Chase(order)
    }
}

/// Zipf's law in 4096 pieces of equal probability, uniform within each piece.
#[derive(Clone, Debug)]
pub struct Quantiles(Vec<f32>);

const PIECES: usize = 4096;

impl Quantiles {
    /// Distribution over `lines` lines; the n-th line has a weight of 1/n^`skew`.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "line numbers; a sample is clamped"
    )]
    /// Quantiles of a Zipf distribution over `lines` with exponent `skew`.
    pub fn new(lines: u32, skew: f64) -> Quantiles {
        let weight = |nth: u32| f64::from(nth + 1).powf(-skew);
        let total: f64 = (0..lines).map(weight).sum();
        let mut bounds = Vec::with_capacity(PIECES + 1);
        let (mut sum, mut nth) = (0.0, 0);
        for piece in 0..PIECES {
            let wanted = total * piece as f64 / PIECES as f64;
            while nth + 1 < lines && sum + weight(nth) <= wanted {
                sum += weight(nth);
                nth += 1;
            }
            bounds.push((f64::from(nth) + ((wanted - sum) / weight(nth)).clamp(0.0, 1.0)) as f32);
        }
        bounds.push(lines as f32);
        Quantiles(bounds)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and clamped")]
    fn pick(&self, random: &mut Random, lines: u32) -> u32 {
        let draw = random.number();
        let piece = (draw >> 52) as usize;
        let within = (draw & 0xff_ffff) as f32 / (1 << 24) as f32;
        let (low, high) = (self.0[piece], self.0[piece + 1]);
        ((low + (high - low) * within) as u32).min(lines - 1)
    }
}

/// Pattern over an area.
#[derive(Clone, Debug)]
pub struct Part {
    pattern: Pattern,
    area: Area,
    lines: u32,
    cursor: u32,
}

impl Part {
    /// Part with its first access at `begin`, from 0 to below 1, for patterns with an order.
    ///
    /// # Panics
    /// Without a line in the area: parsers of input have to check that.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a line number, and clamped")]
    pub fn new(pattern: Pattern, area: Area, begin: f64) -> Part {
        let lines = area.lines();
        assert!(lines > 0, "an area has a line at least");
        let cursor = (f64::from(lines) * begin) as u32;
        Part { pattern, area, lines, cursor: cursor.min(lines - 1) }
    }

    #[inline]
    fn next(&mut self, random: &mut Random) -> Line {
        let nth = match &self.pattern {
            Pattern::Cyclic => self.advance(),
            Pattern::Chase(_) => {
                let place = self.advance() as usize;
                let Pattern::Chase(order) = &self.pattern else { return self.area.line(0) };
                order[place]
            }
            Pattern::Random => random.below_u32(self.lines),
            Pattern::Zipf(quantiles) => quantiles.pick(random, self.lines),
        };
        self.area.line(nth)
    }

    #[inline]
    fn advance(&mut self) -> u32 {
        let now = self.cursor;
        self.cursor = if now + 1 == self.lines { 0 } else { now + 1 };
        now
    }
}

/// Parts drawn by weight, for a number of accesses.
#[derive(Clone, Debug)]
pub struct Phase {
    accesses: u64,
    /// Cumulative weights: a random number below the first draws the first part, below the second the second part, …
    parts: Vec<(u32, Part)>,
}

impl Phase {
    /// Phase of `accesses` accesses, not 0. Weights are above 0.
    ///
    /// # Panics
    /// Without a part.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of 1 · u32::MAX")]
    pub fn new(accesses: u64, parts: Vec<(f64, Part)>) -> Phase {
        assert!(!parts.is_empty() && accesses > 0, "a phase has a part and an access at least");
        let total: f64 = parts.iter().map(|(weight, _)| weight).sum();
        let mut sum = 0.0;
        let bounded = parts.into_iter().map(|(weight, part)| {
            sum += weight / total;
            ((sum * f64::from(u32::MAX)) as u32, part)
        });
        Phase { accesses, parts: bounded.collect() }
    }

    #[inline]
    fn next(&mut self, random: &mut Random) -> Line {
        if let [(_, part)] = &mut self.parts[..] {
            return part.next(random);
        }
        let draw = (random.number() >> 32) as u32;
        let last = self.parts.len() - 1;
        let chosen = self.parts.iter().position(|(bound, _)| draw < *bound).unwrap_or(last);
        self.parts[chosen].1.next(random)
    }
}

/// Endless sequence of line accesses.
#[derive(Clone, Debug)]
pub struct Synthetic {
    phases: Vec<Phase>,
    now: usize,
    left: u64,
    random: Random,
}

impl Synthetic {
    /// # Panics
    /// Without a phase.
    pub fn new(phases: Vec<Phase>, random: Random) -> Synthetic {
        assert!(!phases.is_empty(), "a program has a phase at least");
        let left = phases[0].accesses;
        Synthetic { phases, now: 0, left, random }
    }

    /// Line of the next access.
    #[inline]
    pub fn next_line(&mut self) -> Line {
        if self.left == 0 {
            self.now = (self.now + 1) % self.phases.len();
            self.left = self.phases[self.now].accesses;
        }
        self.left -= 1;
        self.phases[self.now].next(&mut self.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lines: u32) -> Area {
        Area::Row { first: Frame(0), lines }
    }

    fn taken(parts: Vec<(f64, Part)>, count: usize) -> Vec<u32> {
        let mut program = Synthetic::new(vec![Phase::new(u64::MAX, parts)], Random::for_purpose(1, 2));
        (0..count).map(|_| program.next_line().0).collect()
    }

    #[test]
    fn a_cycle_is_in_order_and_a_chase_is_the_same_in_every_round() {
        let pages = Area::Pages(vec![Frame(9), Frame(4)]);
        let lines = taken(vec![(1.0, Part::new(Pattern::Cyclic, pages, 0.0))], 129);
        assert_eq!((lines[0], lines[63], lines[64], lines[127], lines[128]), (576, 639, 256, 319, 576));
        let lines = taken(vec![(1.0, Part::new(Pattern::chase(100, 5), row(100), 0.0))], 200);
        assert_eq!(lines[..100], lines[100..]);
        let mut sorted = lines[..100].to_vec();
        assert_ne!(sorted, (0..100).collect::<Vec<_>>());
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn weights_decide_how_often_a_part_is_drawn() {
        let far = Area::Row { first: Frame(1000), lines: 10 };
        let parts = vec![(3.0, Part::new(Pattern::Random, row(10), 0.0)), (1.0, Part::new(Pattern::Cyclic, far, 0.5))];
        let near = taken(parts, 100_000).iter().filter(|line| **line < 64_000).count();
        assert!((74_000..76_000).contains(&near), "{near}");
    }

    #[test]
    fn phases_follow_each_other_and_patterns_go_on_where_they_were() {
        let phase = |first: u32, accesses| {
            let area = Area::Row { first: Frame(first), lines: 64 };
            Phase::new(accesses, vec![(1.0, Part::new(Pattern::Cyclic, area, 0.0))])
        };
        let mut program = Synthetic::new(vec![phase(0, 2), phase(1, 1)], Random::for_purpose(1, 2));
        let lines: Vec<u32> = (0..7).map(|_| program.next_line().0).collect();
        assert_eq!(lines, [0, 1, 64, 2, 3, 65, 4]);
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "a count of accesses")]
    fn zipf_gives_each_line_its_weight() {
        const COUNT: usize = 400_000;
        let pattern = Pattern::Zipf(Quantiles::new(1000, 0.9));
        let lines = taken(vec![(1.0, Part::new(pattern, row(1000), 0.0))], COUNT);
        let total: f64 = (1..=1000).map(|nth| f64::from(nth).powf(-0.9)).sum();
        for range in [0..1u32, 1..2, 2..10, 10..100, 100..1000] {
            let expected: f64 = range.clone().map(|nth| f64::from(nth + 1).powf(-0.9)).sum::<f64>() / total;
            let found = lines.iter().filter(|line| range.contains(line)).count() as f64 / COUNT as f64;
            assert!((found - expected).abs() < 0.003, "{range:?}: {found:.4} for {expected:.4}");
        }
    }
}
