//! The kernel's resctrl file system without the hardware: its rules, errno and status text included.
//!
//! Programs that partition the last-level cache write to files under /sys/fs/resctrl, which are there only where the
//! processor can do it. This is a file system (FUSE) with the same files that refuses what the kernel refuses, in the
//! same words. No cache is partitioned.
//!
//! `machine` is all of it as data, without system calls: `hardware` says what the machine has, `node` what there may be
//! to be found, `group`, `cpus`, `members`, `counters`, `schema` and `status` what is kept. `rules` says what may be done
//! with it, a file of the file system each. `mount` shows it to programs, `processes` tells it who is there, `control`
//! lets a test say what is counted, `guard` takes the mount down when the program is killed, `arguments` says what the
//! program is told.
//!
//! The rules are facts from the kernel's document and sources, each named where it is used; nothing is copied from
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
