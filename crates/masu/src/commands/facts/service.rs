//! Backend of `masu serve` on this host, and why no better one.

use hugepages::backends::{Missing, PartBackend};

use crate::commands::serve::discovery::{EVENTS, LISTS, events};

/// The one part that depends on the host. Loads a BPF program, some 0.1 s.
pub fn backends() -> Vec<PartBackend> {
    let (backend, meaning, missing) = match events() {
        Ok(_) => (EVENTS, "the kernel tells of processes that start, execute, enter a group or end (BPF)", None),
        Err(why) => (LISTS, "all processes are listed twice a second", Some(why)),
    };
    let missing =
        missing.into_iter().map(|why| Missing { backend: EVENTS, reason: why.reason, remedy: why.remedy }).collect();
    vec![PartBackend { part: "discovering", backend: Some(backend), meaning: meaning.to_owned(), missing }]
}
