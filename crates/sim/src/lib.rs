//! Simulators: the decision code of a feature, run on a trace instead of a kernel.
//!
//! `reclaim` replays a trace of page accesses on the kernel's page lists, with the protection that `aging` adds.
//! `cache` runs the policies of `llc` on a simulated last-level cache. The example `transfer` runs the fetch policy of
//! far memory. `plot` draws their results, and those of `bench`.

#![forbid(unsafe_code)]

pub mod cache;
pub mod plot;
pub mod reclaim;
