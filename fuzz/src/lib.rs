//! Fuzz targets, and a driver that runs them with a stable compiler and no further tool.
//!
//! `targets` take any bytes, panic when a property does not hold, and return whether they understood the bytes.
//! `corpus` has the seeds, a folder for each target. `mutate` makes inputs from seeds: input N of a target is a
//! function of the seeds and a number, so that each can be made again. `worker` runs inputs in a process of its own;
//! `campaign` starts workers, and learns from a worker's status about failures that a process cannot report itself (an
//! abort, a stack overflow). `record` keeps results in docs/results/fuzz.
//!
//! Tried and dropped: bolero. Its engines beside its own random one need tools that are installed separately, and it
//! keeps neither the number of an input nor the count of executions.

pub mod campaign;
pub mod corpus;
pub mod input;
pub mod memory_files;
pub mod mutate;
pub mod record;
pub mod scribble;
pub mod targets;
pub mod worker;

use targets::{
    arguments, attach_loop, calls, damon, field_files, handshake, host_files, journal, llc_config, llc_policies,
    llc_shared, llc_simulate, pager, planted, policies, preload, process_files, profile, program_file, redis, resctrl,
    resctrl_emulator, seccomp_filter, serve_rules, shared_segment, store_url, streams, trace, track,
};

/// Code that is tried with any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target's module.
    pub name: &'static str,
    /// Runs one input; true when it was understood.
    pub run: fn(&[u8]) -> bool,
    /// Longest input in bytes.
    pub bytes_max: usize,
    /// Executions in continuous integration: about two seconds as tests are built.
    pub executions: u64,
    /// The first byte of an input, modulo this number, selects the parser; 1 where it does not.
    pub variants: u8,
}

const fn target(name: &'static str, run: fn(&[u8]) -> bool, bytes_max: usize, executions: u64) -> Target {
    Target { name, run, bytes_max, executions, variants: 1 }
}

const fn by_first_byte(variants: u8, of: Target) -> Target {
    Target { variants, ..of }
}

/// All targets.
pub const TARGETS: [Target; 28] = [
    target("arguments", arguments::run, 64, 600_000),
    target("attach_loop", attach_loop::run, 300, 10_000),
    target("calls", calls::run, 400, 8_000),
    by_first_byte(8, target("damon", damon::run, 600, 60_000)),
    by_first_byte(field_files::VARIANTS, target("field_files", field_files::run, 2000, 100_000)),
    target("handshake", handshake::run, 128, 600_000),
    by_first_byte(host_files::VARIANTS, target("host_files", host_files::run, 4000, 100_000)),
    target("journal", journal::run, 1000, 5_000),
    target("llc_config", llc_config::run, 2000, 25_000),
    target("llc_policies", llc_policies::run, 500, 300),
    target("llc_shared", llc_shared::run, 400, 50_000),
    target("llc_simulate", llc_simulate::run, 2000, 8_000),
    target("pager", pager::run, 160, 2_500),
    target("policies", policies::run, 400, 1_500),
    target("preload", preload::run, 400, 15_000),
    by_first_byte(process_files::VARIANTS, target("process_files", process_files::run, 4000, 100_000)),
    target("profile", profile::run, 1000, 300_000),
    target("program_file", program_file::run, 2000, 200_000),
    by_first_byte(redis::VARIANTS, target("redis", redis::run, 1000, 300_000)),
    by_first_byte(resctrl::VARIANTS, target("resctrl", resctrl::run, 2000, 60_000)),
    target("resctrl_emulator", resctrl_emulator::run, 500, 8_000),
    target("seccomp_filter", seccomp_filter::run, 1000, 300_000),
    target("serve_rules", serve_rules::run, 800, 30_000),
    target("shared_segment", shared_segment::run, 400, 3_000),
    target("store_url", store_url::run, 300, 200_000),
    target("streams", streams::run, 400, 30_000),
    target("trace", trace::run, 600, 300_000),
    target("track", track::run, 600, 600_000),
];

/// Bugs on purpose, which only the driver's own tests run.
pub const PLANTED: [Target; 3] = [
    target("planted_panic", planted::panics, 64, 100_000),
    target("planted_hang", planted::hangs, 64, 100_000),
    target("planted_overflow", planted::overflows, 64, 100_000),
];

/// The target with this name.
pub fn named(name: &str) -> Option<Target> {
    TARGETS.iter().chain(&PLANTED).find(|target| target.name == name).copied()
}
