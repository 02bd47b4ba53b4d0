//! Assignment of cache ways: input and output of all policies.
//!
//! A policy is a pure function from a [`Situation`] to a [`Plan`]. Each has a file of its own that cites its paper:
//! `ucp`, `dunn`, `lfoc`, `kpart` as references, and `sharing`, masu's own, which knows shared pages. The simulator
//! (`simulate`) and the daemon (`daemon`) call the same functions; they differ in the source of the figures.
//!
//! Figures are per thousand instructions, so they do not depend on the current speed of the program: misses per
//! kilo-instruction (MPKI) and cycles per kilo-instruction.

pub mod attribution;
pub mod dunn;
pub mod equal;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod kpart;
pub mod lfoc;
pub mod lookahead;
pub mod masks;
pub mod merged_curve;
pub mod metrics;
pub mod predict;
pub mod shared_occupancy;
pub mod sharing;
pub mod ucp;

use std::fmt;

use serde::{Deserialize, Serialize};
use units::cast::index;
use units::{Bytes, WayMask, Ways};

/// Value for each number of ways from 0 to all.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<f64>);

impl Curve {
    /// `values[w]` is the value with `w` ways. Negative, infinite and undefined values count as 0.
    ///
    /// # Panics
    /// Without a value: a bug in the caller.
    pub fn new(values: Vec<f64>) -> Curve {
        assert!(!values.is_empty(), "a curve has a value for 0 ways at least");
        Curve(values.into_iter().map(|value| if value > 0.0 && value.is_finite() { value } else { 0.0 }).collect())
    }

    /// Value with `ways` ways; beyond the last, the last.
    pub fn at(&self, ways: Ways) -> f64 {
        let last = self.0.len() - 1;
        self.0[index(ways.0.into()).min(last)]
    }

    /// Value with a fraction of a way, linear between its neighbours.
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

    /// Fall over the way that contains this point or begins there.
    pub fn fall(&self, ways: f64) -> f64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "negative and undefined are 0, as is meant"
        )]
        let below = ways as usize;
        if below + 1 < self.0.len() { self.0[below] - self.0[below + 1] } else { 0.0 }
    }

    /// Value with all ways.
    pub fn last(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// All values, from 0 ways on.
    pub fn values(&self) -> &[f64] {
        &self.0
    }
}

/// The cache to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The allocatable ways, contiguous: the whole cache except the ways of programs that no plan names.
    pub usable: WayMask,
    /// Least number of ways in a class (`min_cbm_bits`), at least 1.
    pub ways_min: Ways,
    /// Greatest number of classes in a plan, shared partitions included.
    pub classes_max: usize,
    /// Capacity of one way.
    pub way_bytes: Bytes,
}

/// A program (or control group) of the situation.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// MPKI by ways when running alone in them; over all accesses, including those to shared pages.
    pub misses: Curve,
    /// MPKI by ways of its accesses to private pages only. Equal to `misses` for a program without shared pages.
    pub private_misses: Curve,
    /// Cycles per kilo-instruction without any miss.
    pub base_cycles: f64,
    /// Cycles that each miss adds.
    pub miss_cycles: f64,
    /// Fraction of cycles stalled on memory, measured under the current plan, 0 to 1. Dunn's metric.
    pub stalled_fraction: f64,
}

impl Program {
    /// Cycles per kilo-instruction at this MPKI: above 0 for every measurement.
    pub fn cycles(&self, misses: f64) -> f64 {
        (self.base_cycles.max(0.0) + self.miss_cycles.max(0.0) * misses.max(0.0)).clamp(1e-3, 1e15)
    }

    /// Slowdown at this MPKI, relative to all ways for itself.
    pub fn slowdown(&self, misses: f64) -> f64 {
        self.cycles(misses) / self.cycles(self.misses.last())
    }

    /// Slowdown by ways when running alone in them.
    pub fn slowdowns(&self) -> Curve {
        Curve::new(self.misses.values().iter().map(|misses| self.slowdown(*misses)).collect())
    }
}

/// Sharing group: pages that several programs of one trust domain share; a shared partition can be made for it.
#[derive(Clone, Debug, PartialEq)]
pub struct SharingGroup {
    /// Readers: at least two.
    pub sharers: Vec<Sharer>,
    /// Size of the group.
    pub bytes: Bytes,
}

/// Share of one program in a sharing group.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharer {
    /// Index in [`Situation::programs`].
    pub program: usize,
    /// MPKI of its accesses to this group, by the ways of a partition that holds only the group.
    pub misses: Curve,
}

/// Input of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Situation {
    /// The cache.
    pub cache: Cache,
    /// Programs to place.
    pub programs: Vec<Program>,
    /// Sharing groups; empty if nothing is shared.
    pub shared: Vec<SharingGroup>,
}

/// Programs that may allocate in the same ways: a class of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Ways of the class, contiguous.
    pub mask: WayMask,
    /// Members, as indices in [`Situation::programs`].
    pub programs: Vec<usize>,
}

/// Shared partition: ways where only the daemon allocates, for the lines of one sharing group; one more class of
/// service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPartition {
    /// Ways of the partition, contiguous; in no class.
    pub mask: WayMask,
    /// Index in [`Situation::shared`].
    pub group: usize,
}

/// Output of a policy. Every program is in one class; classes may overlap (Dunn's do), shared partitions overlap
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// At least one, unless there is no program.
    pub classes: Vec<Class>,
    /// Empty if nothing is shared, or for policies that ignore sharing.
    pub partitions: Vec<SharedPartition>,
}

/// Policy, by its name in configurations and scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// No partition: one class with all ways.
    None,
    /// Equal ways for each program.
    Equal,
    /// Clusters of programs with similar memory stalls (Selfa et al.).
    Dunn,
    /// Streaming programs isolated, fair shares for cache-sensitive ones (Garcia-Garcia, Saez et al.).
    Lfoc,
    /// Clusters of programs that do not hurt each other (El-Sayed et al.).
    Kpart,
    /// Fewest misses (Qureshi and Patt).
    Ucp,
    /// masu's own, with knowledge of shared pages.
    Sharing,
}

impl Policy {
    /// All policies, in the order of tables.
    pub const ALL: [Policy; 7] =
        [Policy::None, Policy::Equal, Policy::Dunn, Policy::Lfoc, Policy::Kpart, Policy::Ucp, Policy::Sharing];

    /// Name of the policy.
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

    /// Plan of this policy; [`Plan::check`] finds no fault in it. `before` is the current plan, if any, under which
    /// the situation was measured: masu's own policy keeps it unless another is clearly better.
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

/// Unknown name of a policy.
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
