//! `masu serve`: rules, and the members of each rule.
//!
//! `config` parses the rules. `rules` chooses the rule of a process, from its facts. `facts` reads these from the kernel.
//! `members` follows processes from their start to their end. `groups` measures control groups. `snapshot` is the state
//! that `masu status` shows, and `metrics` makes OpenMetrics of it. `series` has the course of groups in memory, `history`
//! on disk. `page` answers HTTP, in a process without privileges. This crate knows no feature: the command passes members
//! to features.

#![forbid(unsafe_code)]

pub mod config;
pub mod facts;
pub mod groups;
pub mod history;
pub mod members;
pub mod metrics;
pub mod page;
pub mod rules;
pub mod series;
pub mod snapshot;
