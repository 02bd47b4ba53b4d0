//! Counters of a simulated program. Pure.

/// Counters of a program since the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Accessed lines.
    pub accesses: u64,
    /// Executed instructions.
    pub instructions: f64,
    /// Cycles.
    pub cycles: f64,
    /// Cycles waiting for memory.
    pub stalled_cycles: f64,
    /// Hits in a private level.
    pub private_hits: u64,
    /// Hits in the last-level cache.
    pub llc_hits: u64,
    /// Part of `llc_hits` on lines filled by another program.
    pub free_rides: u64,
    /// Part of `llc_hits` on lines filled by the daemon.
    pub region_hits: u64,
    /// Misses in all caches.
    pub misses: u64,
}

impl Counts {
    /// Difference to `before`.
    pub(super) fn since(&self, before: &Counts) -> Counts {
        Counts {
            accesses: self.accesses - before.accesses,
            instructions: self.instructions - before.instructions,
            cycles: self.cycles - before.cycles,
            stalled_cycles: self.stalled_cycles - before.stalled_cycles,
            private_hits: self.private_hits - before.private_hits,
            llc_hits: self.llc_hits - before.llc_hits,
            free_rides: self.free_rides - before.free_rides,
            region_hits: self.region_hits - before.region_hits,
            misses: self.misses - before.misses,
        }
    }

    /// Cycles per access; `None` without one.
    #[expect(clippy::cast_precision_loss, reason = "a count of accesses")]
    pub fn access_cycles(&self) -> Option<f64> {
        (self.accesses > 0).then(|| self.cycles / self.accesses as f64)
    }

    /// Cycles per instruction.
    pub fn cycles_per_instruction(&self) -> f64 {
        if self.instructions > 0.0 { self.cycles / self.instructions } else { 0.0 }
    }

    /// Fraction of its time spent waiting for memory.
    pub fn stalled_fraction(&self) -> f64 {
        if self.cycles > 0.0 { self.stalled_cycles / self.cycles } else { 0.0 }
    }
}
