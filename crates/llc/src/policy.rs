//! Who gets which ways of the cache: what all policies are told, and what they answer.
//!
//! A policy is a pure function from a [`Situation`] to a [`Plan`]. Each is a file of its own that cites its paper: `ucp`, `dunn`,
//! `lfoc`, `kpart` as references, and `sharing`, masu's own, which knows shared pages. The simulator (`simulate`) and the daemon
//! (`keep`) call the same functions; they differ in where the figures of a situation come from.
//!
//! Figures are per thousand instructions, so that they do not depend on how fast the program happens to run:
//! misses per kilo-instruction (MPKI) and cycles per kilo-instruction.

pub mod equal;
pub mod metrics;

use std::fmt;

use quantities::{Bytes, WayMask, Ways};
use serde::{Deserialize, Serialize};

/// A figure for each number of ways from 0 to all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<f64>);

impl Curve {
    /// `values[w]` is the figure with `w` ways. What is negative or undefined counts as 0.
    ///
    /// # Panics
    /// Without a value: that is our own mistake.
    pub fn new(values: Vec<f64>) -> Curve {
        assert!(!values.is_empty(), "a curve has a value for 0 ways at least");
        Curve(values.into_iter().map(|value| if value > 0.0 { value } else { 0.0 }).collect())
    }

    /// The figure with `ways` ways; beyond the last, the last.
    pub fn at(&self, ways: Ways) -> f64 {
        let last = self.0.len() - 1;
        self.0[usize::try_from(ways.0).map_or(last, |ways| ways.min(last))]
    }

    /// All values, from 0 ways on.
    pub fn values(&self) -> &[f64] {
        &self.0
    }
}

/// The cache that is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The ways that may be given away, in a row: all of the cache but what is kept for programs that no plan names.
    pub usable: WayMask,
    /// The fewest ways that a class may have (`min_cbm_bits`), at least 1.
    pub ways_min: Ways,
    /// The most classes that a plan may have, regions included.
    pub classes_max: usize,
    /// What one way holds.
    pub way_bytes: Bytes,
}

/// One program (or control group) that takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// MPKI by ways, when it has them to itself; all of its accesses, also those to shared pages.
    pub misses: Curve,
    /// MPKI by ways of its accesses to pages of its own alone. The same as `misses` where nothing is shared.
    pub private_misses: Curve,
    /// Cycles per kilo-instruction without any miss.
    pub base_cycles: f64,
    /// Cycles that each miss adds.
    pub miss_cycles: f64,
    /// The part of its cycles in which it waited for memory, measured under the plan in force, 0 to 1. Dunn's metric.
    pub stalled_fraction: f64,
}

/// Pages that several programs share, of one trust domain: what one region can be made for.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSet {
    /// Who reads them: at least two.
    pub sharers: Vec<Sharer>,
    /// How much there is of it.
    pub bytes: Bytes,
}

/// What one program has of a shared set.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharer {
    /// Its place in [`Situation::programs`].
    pub program: usize,
    /// MPKI of its accesses to this set, by the ways of a region that holds the set and nothing else.
    pub misses: Curve,
}

/// What a policy is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Situation {
    /// The cache.
    pub cache: Cache,
    /// Who takes part.
    pub programs: Vec<Program>,
    /// What they share; empty where nothing is shared.
    pub shared: Vec<SharedSet>,
}

/// Programs that may allocate in the same ways: a class of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Their ways, in a row.
    pub mask: WayMask,
    /// Who: places in [`Situation::programs`].
    pub programs: Vec<usize>,
}

/// Ways in which only the daemon allocates, for the lines of one shared set: one more class of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its ways, in a row; of no class.
    pub mask: WayMask,
    /// Which set: its place in [`Situation::shared`].
    pub set: usize,
}

/// What a policy answers. Every program is in one class; classes may overlap (Dunn's do), regions overlap nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// At least one, unless there is no program.
    pub classes: Vec<Class>,
    /// None where nothing is shared, or for policies that do not know of sharing.
    pub regions: Vec<Region>,
}

/// A policy, by its name in configurations and scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// No partition: one class with all ways.
    None,
    /// As many ways for each.
    Equal,
}

impl Policy {
    /// All of them, in the order of tables.
    pub const ALL: [Policy; 2] = [Policy::None, Policy::Equal];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Equal => "equal",
        }
    }

    /// What it decides. `before` is the plan in force, under which the situation was measured, if there is one.
    pub fn plan(self, situation: &Situation, _before: Option<&Plan>) -> Plan {
        match self {
            Policy::None => equal::unpartitioned(situation),
            Policy::Equal => equal::equal(situation),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
