//! The cache without the hardware: programs, real or synthetic, on a simulated machine, under the policies that the daemon uses.
//!
//! `scenario` is what is read, `compare` makes all its runs, `report` is what comes of them and `figure` draws it. A run (`run`) has a
//! `machine` with `cache`s, programs (`program`, `trace`) on `frames` of memory, and the daemon that keeps a region filled (`refill`).
//! `situation` is what policies are told: each program alone, for all numbers of ways at once; `fit` is what a region could be at best.
//! `files` alone reads files.

pub mod compare;
mod evenness;
pub mod figure;
pub mod files;
pub mod fit;
pub mod frames;
pub mod machine;
mod private;
pub mod program;
pub mod random;
pub mod refill;
pub mod report;
pub mod run;
pub mod scenario;
pub mod set_associative;
pub mod situation;
pub mod trace;
