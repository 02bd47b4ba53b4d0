//! Machine: private caches of the cores, the shared last-level cache, and the cost of an access. Pure.

use units::WayMask;

use super::private::Private;
use super::set_associative::{Access, Cache, Filler, Line, Shape, Slot};

/// Private cache of one program, in front of the shared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Geometry.
    pub shape: Shape,
    /// Cycles of a hit.
    pub cycles: u32,
}

/// Structure of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Build {
    /// Partitioned last-level cache.
    pub llc: Shape,
    /// An eviction from the last-level cache evicts from the private ones.
    pub inclusive: bool,
    /// Private levels, nearest first.
    pub levels: Vec<Level>,
    /// Cycles of a hit in the last-level cache.
    pub llc_cycles: u32,
}

/// Place of the accessed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Private level, by its index.
    Private(usize),
    /// Last-level cache, with the line's filler.
    Shared(Filler),
    /// Memory.
    Nowhere,
}

/// Machine: each program has its own private levels; all share one last-level cache.
#[derive(Clone, Debug)]
pub struct Machine {
    llc: Cache,
    inclusive: bool,
    /// Private levels of each core.
    private: Vec<Vec<Private>>,
    /// Possible holders of each slot of an inclusive cache: bit n for core n.
    holders: Vec<u64>,
}

impl Machine {
    /// Machine with this number of cores, at most 64.
    pub fn new(build: &Build, cores: usize) -> Machine {
        let llc = Cache::new(build.llc);
        let levels: Vec<Private> = build.levels.iter().map(|level| Private::new(level.shape)).collect();
        let inclusive = build.inclusive && !levels.is_empty();
        let holders = if inclusive { vec![0; llc.slots()] } else { Vec::new() };
        Machine { llc, inclusive, private: vec![levels; cores], holders }
    }

    /// Shared cache.
    pub fn llc(&self) -> &Cache {
        &self.llc
    }

    /// Access of a core.
    #[inline]
    pub fn access(&mut self, core: usize, line: Line, mask: WayMask, by: Filler) -> Found {
        for (nth, level) in self.private[core].iter_mut().enumerate() {
            if level.access(line) {
                return Found::Private(nth);
            }
        }
        match self.llc.access(line, mask, by) {
            Access::Hit { slot, filler } => {
                if self.inclusive {
                    self.holders[slot.0] |= 1 << core;
                }
                Found::Shared(filler)
            }
            Access::Miss { slot, evicted } => {
                if self.inclusive {
                    self.replaced(slot, evicted, 1 << core);
                }
                Found::Nowhere
            }
            Access::Bypass => {
                if self.inclusive {
                    self.private[core].iter_mut().for_each(|level| level.flush(line));
                }
                Found::Nowhere
            }
        }
    }

    /// Access of the daemon, which has no private levels here. True if the line was cached.
    pub fn touch(&mut self, line: Line, mask: WayMask, by: Filler) -> bool {
        match self.llc.access(line, mask, by) {
            Access::Hit { .. } => true,
            Access::Miss { slot, evicted } => {
                if self.inclusive {
                    self.replaced(slot, evicted, 0);
                }
                false
            }
            Access::Bypass => false,
        }
    }

    /// `clflush`: removes a line from all caches.
    pub fn flush(&mut self, line: Line) {
        let holders = match self.llc.flush(line) {
            Some(slot) if self.inclusive => self.holders[slot.0],
            None if self.inclusive => 0,
            _ => u64::MAX >> (64 - self.private.len().clamp(1, 64)),
        };
        self.flush_private(line, holders);
    }

    #[inline]
    fn replaced(&mut self, slot: Slot, evicted: Option<Line>, holders: u64) {
        let before = std::mem::replace(&mut self.holders[slot.0], holders);
        if let Some(line) = evicted {
            self.flush_private(line, before);
        }
    }

    #[inline]
    fn flush_private(&mut self, line: Line, mut holders: u64) {
        while holders != 0 {
            let core = holders.trailing_zeros() as usize;
            self.private[core].iter_mut().for_each(|level| level.flush(line));
            holders &= holders - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Ways;

    use super::super::set_associative::Replacement;
    use super::*;

    fn shape(sets: u32, ways: u32) -> Shape {
        Shape { sets, ways: Ways(ways), slices: 1, replacement: Replacement::Lru }
    }

    fn machine(inclusive: bool) -> Machine {
        let level = Level { shape: shape(1, 8), cycles: 4 };
        Machine::new(&Build { llc: shape(1, 4), inclusive, levels: vec![level], llc_cycles: 40 }, 2)
    }

    const BY: Filler = Filler { class: 0, monitor: 1 };
    const ALL: WayMask = WayMask(0xf);

    #[test]
    fn an_inclusive_cache_takes_lines_out_of_private_levels_and_another_does_not() {
        for (inclusive, expected) in [(true, Found::Nowhere), (false, Found::Private(0))] {
            let mut machine = machine(inclusive);
            assert_eq!(machine.access(0, Line(0), ALL, BY), Found::Nowhere);
            assert_eq!(machine.access(0, Line(0), ALL, BY), Found::Private(0));
            // The other core evicts it from the shared cache.
            (1..=4).for_each(|line| _ = machine.access(1, Line(line), ALL, BY));
            assert_eq!(machine.access(0, Line(0), ALL, BY), expected);
        }
    }

    #[test]
    fn a_flushed_line_is_in_no_cache() {
        for inclusive in [true, false] {
            let mut machine = machine(inclusive);
            machine.access(0, Line(0), ALL, BY);
            assert_eq!(machine.access(1, Line(0), ALL, BY), Found::Shared(BY));
            machine.flush(Line(0));
            assert_eq!(machine.llc().slot_of(Line(0)), None);
            assert_eq!(machine.access(1, Line(0), ALL, BY), Found::Nowhere);
            assert_eq!(machine.access(0, Line(0), ALL, BY), Found::Shared(BY), "not in its private level either");
        }
    }

    #[test]
    fn a_touched_line_is_not_kept_in_a_private_level() {
        let mut machine = machine(true);
        assert!(!machine.touch(Line(3), ALL, BY));
        assert!(machine.touch(Line(3), ALL, BY));
        assert_eq!(machine.access(0, Line(3), ALL, BY), Found::Shared(BY));
    }
}
