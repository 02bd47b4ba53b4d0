//! Simulated last-level cache: programs, real or synthetic, on a simulated machine, under the policies of the daemon.
//!
//! `scenario` is the input, `compare` makes all its runs, `report` has their results and `figure` draws them. A run
//! (`run`) has a `machine` with `cache`s, programs (`program`, `trace`) on `frames` of memory, and the daemon that
//! keeps a shared partition warm (`refill`). `situation` is the input of policies: each program alone, for all numbers
//! of ways at once. `fit` is the upper bound for a shared partition. Only `files` reads files.

pub mod compare;
pub mod counts;
mod evenness;
pub mod figure;
pub mod files;
pub mod fit;
pub mod frames;
pub mod machine;
mod private;
pub mod program;
pub mod refill;
pub mod report;
pub mod run;
pub mod scenario;
pub mod set_associative;
pub mod situation;
pub mod trace;
