//! Fake trees: what is sent, in order, and what is made of what is read.

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

/// Nobody waits.
fn impatient() -> impl FnMut(Duration) -> bool {
    |_| false
}

fn own(label: &str) -> Group {
    Group::own(label).unwrap()
}

fn masks(resource: Resource, masks: &[(u32, u64)]) -> Schemata {
    Schemata::of_masks(resource, masks.iter().map(|(domain, mask)| (CacheId(*domain), units::WayMask(*mask))))
}
