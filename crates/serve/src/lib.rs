//! `masu serve`: rules, and the members of each rule.
//!
//! `config` parses the rules. `rules` chooses the rule of a process, from its facts. `facts` reads these from the kernel.
//! `members` follows processes from their start to their end. `snapshot` is the state that `masu status` shows, with the
//! metrics. This crate knows no feature: the command passes members to features.

#![forbid(unsafe_code)]

pub mod config;
pub mod facts;
pub mod members;
pub mod rules;
pub mod snapshot;
