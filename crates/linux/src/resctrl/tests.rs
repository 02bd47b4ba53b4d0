//! Fake trees: writes in order, and results of reads.

mod changing;
mod crashes;
mod machines;
mod parsing;
mod reading;
mod ruled;
mod threads;

use std::time::Duration;

use super::*;
use crate::Pid;
use crate::fake::FakeKernel;

const ROOT: &str = "sys/fs/resctrl";

/// Patience that gives up at once.
fn impatient() -> impl FnMut(Duration) -> bool {
    |_| false
}

fn own(label: &str) -> Group {
    Group::own(label).unwrap()
}

fn masks(resource: Resource, masks: &[(u32, u64)]) -> Schemata {
    Schemata::of_masks(resource, masks.iter().map(|(domain, mask)| (CacheId(*domain), units::WayMask(*mask))))
}
