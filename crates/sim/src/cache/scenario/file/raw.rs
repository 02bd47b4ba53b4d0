//! Scenarios as written, before conversion.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use crate::cache::refill::Mode;
use crate::cache::set_associative::Replacement;
use llc::policy::Policy;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScenario {
    pub title: Option<String>,
    pub seed: Option<u64>,
    pub accesses: Option<Spanned<u64>>,
    pub passes: Option<Spanned<f64>>,
    pub warm_up_accesses: Option<Spanned<u64>>,
    pub warm_up_passes: Option<Spanned<f64>>,
    pub interval_accesses: Option<Spanned<u64>>,
    pub interleave: Option<RawInterleave>,
    pub turn_passes: Option<Spanned<f64>>,
    pub turn_accesses: Option<Spanned<u64>>,
    pub pages: Option<RawPages>,
    pub memory: Option<Spanned<String>>,
    pub cycles_per_instruction: Option<Spanned<f64>>,
    #[serde(default)]
    pub policies: Vec<Policy>,
    pub cache: Spanned<RawCache>,
    #[serde(default)]
    pub level: Vec<Spanned<RawLevel>>,
    pub refill: Option<RawRefill>,
    pub sweep: Option<RawSweep>,
    #[serde(default)]
    pub shared: Vec<RawShared>,
    pub program: Vec<Spanned<RawProgram>>,
    #[serde(default)]
    pub condition: Vec<Spanned<RawCondition>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawInterleave {
    Time,
    Turns,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawPages {
    Scattered,
    Contiguous,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCache {
    pub size: Spanned<String>,
    pub ways: Spanned<u32>,
    pub slices: Option<Spanned<u32>>,
    pub replacement: Option<Replacement>,
    pub inclusive: Option<bool>,
    pub cycles: Option<u32>,
    pub memory_cycles: Option<u32>,
    pub ways_min: Option<Spanned<u32>>,
    pub classes_max: Option<Spanned<usize>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLevel {
    pub size: Spanned<String>,
    pub ways: Spanned<u32>,
    pub replacement: Option<Replacement>,
    pub cycles: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRefill {
    pub mode: Option<Mode>,
    pub every_cycles: Option<Spanned<u64>>,
    pub duty_fraction: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSweep {
    pub array: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawShared {
    pub name: Spanned<String>,
    pub size: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawProgram {
    pub name: Spanned<String>,
    pub private: Option<Spanned<String>>,
    #[serde(default)]
    pub shared: Vec<Spanned<String>>,
    #[serde(default)]
    pub shared_at: Vec<Spanned<String>>,
    pub instructions_per_access: Option<Spanned<f64>>,
    pub memory_cycles: Option<u32>,
    pub pattern: Option<RawPattern>,
    pub begin_fraction: Option<Spanned<f64>>,
    pub skew: Option<Spanned<f64>>,
    pub part: Option<Vec<Spanned<RawPart>>>,
    pub phase: Option<Vec<Spanned<RawPhase>>>,
    pub trace: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawPattern {
    Cyclic,
    Chase,
    Random,
    Zipf,
    Stream,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPart {
    pub pattern: RawPattern,
    pub begin_fraction: Option<Spanned<f64>>,
    pub skew: Option<Spanned<f64>>,
    pub over: Option<Vec<Spanned<String>>>,
    pub size: Option<Spanned<String>>,
    pub weight: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPhase {
    pub accesses: Spanned<u64>,
    pub part: Vec<Spanned<RawPart>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCondition {
    pub name: Option<String>,
    pub policy: Option<Policy>,
    pub fit_fraction: Option<Spanned<f64>>,
    pub masks: Option<BTreeMap<String, Spanned<String>>>,
    pub sharing: Option<bool>,
    pub refined: Option<bool>,
    #[serde(default)]
    pub region: Vec<Spanned<RawRegion>>,
    pub refill: Option<RawRefill>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRegion {
    pub set: Spanned<String>,
    pub mask: Spanned<String>,
}
