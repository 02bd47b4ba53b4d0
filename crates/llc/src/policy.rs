//! Who gets which ways of the cache: what all policies are told, and what they answer.
//!
//! A policy is a pure function from a [`Situation`] to a [`Plan`]. Each is a file of its own that cites its paper: `ucp`, `dunn`,
//! `lfoc`, `kpart` as references, and `sharing`, masu's own, which knows shared pages. The simulator (`simulate`) and the daemon
//! (`daemon`) call the same functions; they differ in where the figures of a situation come from.
//!
//! Figures are per thousand instructions, so that they do not depend on how fast the program happens to run:
//! misses per kilo-instruction (MPKI) and cycles per kilo-instruction.

pub mod charge;
pub mod combine;
pub mod contend;
pub mod dunn;
pub mod equal;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod kpart;
pub mod lfoc;
pub mod lookahead;
pub mod masks;
pub mod metrics;
pub mod predict;
pub mod sharing;
pub mod ucp;

use std::fmt;

use serde::{Deserialize, Serialize};
use units::{Bytes, WayMask, Ways};

/// A figure for each number of ways from 0 to all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<f64>);

impl Curve {
    /// `values[w]` is the figure with `w` ways. What is negative, infinite or undefined counts as 0.
    ///
    /// # Panics
    /// Without a value: that is our own mistake.
    pub fn new(values: Vec<f64>) -> Curve {
        assert!(!values.is_empty(), "a curve has a value for 0 ways at least");
        Curve(values.into_iter().map(|value| if value > 0.0 && value.is_finite() { value } else { 0.0 }).collect())
    }

    /// The figure with `ways` ways; beyond the last, the last.
    pub fn at(&self, ways: Ways) -> f64 {
        let last = self.0.len() - 1;
        self.0[usize::try_from(ways.0).map_or(last, |ways| ways.min(last))]
    }

    /// The figure with a part of a way, by a straight line between its neighbours.
    pub fn between(&self, ways: f64) -> f64 {
        let last = self.0.len() - 1;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "negative and undefined are 0, as is meant"
        )]
        let below = ways as usize;
        if below >= last {
            return self.0[last];
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of ways")]
        let part = (ways - below as f64).max(0.0);
        self.0[below] + (self.0[below + 1] - self.0[below]) * part
    }

    /// How much it falls over the way that begins or goes on there.
    pub fn fall(&self, ways: f64) -> f64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "negative and undefined are 0, as is meant"
        )]
        let below = ways as usize;
        if below + 1 < self.0.len() { self.0[below] - self.0[below + 1] } else { 0.0 }
    }

    /// The figure with all ways.
    pub fn last(&self) -> f64 {
        self.0[self.0.len() - 1]
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

impl Program {
    /// Cycles per kilo-instruction when so much is missed (MPKI): a number above 0, whatever was measured.
    pub fn cycles(&self, misses: f64) -> f64 {
        (self.base_cycles.max(0.0) + self.miss_cycles.max(0.0) * misses.max(0.0)).clamp(1e-3, 1e15)
    }

    /// Its slowdown when so much is missed (MPKI): against all ways to itself.
    pub fn slowdown(&self, misses: f64) -> f64 {
        self.cycles(misses) / self.cycles(self.misses.last())
    }

    /// Its slowdown by ways, when it has them to itself.
    pub fn slowdowns(&self) -> Curve {
        Curve::new(self.misses.values().iter().map(|misses| self.slowdown(*misses)).collect())
    }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// No partition: one class with all ways.
    None,
    /// As many ways for each.
    Equal,
    /// Clusters of programs that wait for memory about as much (Selfa et al.).
    Dunn,
    /// Streams apart, fair shares for whoever gains from them (Garcia-Garcia, Saez et al.).
    Lfoc,
    /// Clusters of programs that do not hurt each other (El-Sayed et al.).
    Kpart,
    /// Fewest misses (Qureshi and Patt).
    Ucp,
    /// masu's own: it knows what is shared.
    Sharing,
}

impl Policy {
    /// All of them, in the order of tables.
    pub const ALL: [Policy; 7] =
        [Policy::None, Policy::Equal, Policy::Dunn, Policy::Lfoc, Policy::Kpart, Policy::Ucp, Policy::Sharing];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Equal => "equal",
            Policy::Dunn => "dunn",
            Policy::Lfoc => "lfoc",
            Policy::Kpart => "kpart",
            Policy::Ucp => "ucp",
            Policy::Sharing => "sharing",
        }
    }

    /// What it decides; [`Plan::check`] finds nothing wrong with it. `before` is the plan in force, under which the situation was
    /// measured, if there is one: masu's own policy stays with it unless another is clearly better.
    pub fn plan(self, situation: &Situation, before: Option<&Plan>) -> Plan {
        if situation.programs.is_empty() {
            return equal::unpartitioned(situation);
        }
        match self {
            Policy::None => equal::unpartitioned(situation),
            Policy::Equal => equal::equal(situation),
            Policy::Dunn => dunn::plan(situation, dunn::PAPER),
            Policy::Lfoc => lfoc::plan(situation, lfoc::PAPER),
            Policy::Kpart => kpart::plan(situation),
            Policy::Ucp => ucp::plan(situation),
            Policy::Sharing => sharing::plan(situation, before, sharing::USUAL),
        }
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: expected one of none, equal, dunn, lfoc, kpart, ucp and sharing")]
pub struct NoSuchPolicy(String);

impl std::str::FromStr for Policy {
    type Err = NoSuchPolicy;

    fn from_str(text: &str) -> Result<Policy, NoSuchPolicy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| NoSuchPolicy(text.to_owned()))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
            assert_eq!(serde_json::to_string(&policy).unwrap(), format!("\"{policy}\""));
        }
        let refused = "LFOC".parse::<Policy>().unwrap_err().to_string();
        assert_eq!(refused, "LFOC: expected one of none, equal, dunn, lfoc, kpart, ucp and sharing");
    }

    #[test]
    fn between_two_ways_a_curve_is_a_straight_line() {
        let curve = Curve::new(vec![8.0, 4.0, f64::NAN]);
        assert_eq!(
            [curve.between(-1.0), curve.between(0.5), curve.between(1.75), curve.between(9.0)],
            [8.0, 6.0, 1.0, 0.0]
        );
        assert_eq!(curve.between(f64::NAN), 8.0);
    }

    proptest! {
        #[test]
        fn every_policy_makes_sound_plans_and_the_same_ones_again(situation in examples::any_situation()) {
            for policy in Policy::ALL {
                let plan = policy.plan(&situation, None);
                prop_assert_eq!(plan.check(&situation), Ok(()), "{}: {:?}", policy, plan);
                prop_assert_eq!(policy.plan(&situation, None), plan);
            }
        }
    }
}
