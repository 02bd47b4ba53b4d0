//! The kernel's resctrl file system without the hardware: its rules, errno and status text included.
//!
//! Programs that partition the last-level cache write to files under /sys/fs/resctrl, which exist only on processors
//! with the feature. This is a file system (FUSE) with the same files; it refuses the same writes as the kernel, in
//! the same words. No cache is partitioned.
//!
//! `machine` is all of it as data, without system calls: `hardware` describes the machine, `node` the possible files,
//! and `group`, `cpus`, `members`, `counters`, `schema` and `status` hold the state. `rules` implements the
//! operations, one file for each file of the file system. `mount` serves it to programs, `processes` lists the
//! threads of this machine, `control` lets a test set the counters, `guard` unmounts when the program is killed,
//! `arguments` defines the command line.
//!
//! The rules are facts from the kernel's document and sources, each named beside its rule; nothing is copied from
//! there.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod control;
pub mod counters;
pub mod cpus;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod group;
pub mod guard;
pub mod hardware;
pub mod machine;
pub mod members;
pub mod mount;
pub mod node;
pub mod processes;
pub mod rules;
pub mod schema;
pub mod status;
pub mod text;
