//! Observation of the pages that a program touches, and of their access rates.
//!
//! An [`Observer`] observes one process: `begin` clears the accessed bits, each `scan` reads the accesses since, and the
//! [`AccessMap`] has the rate of every page. Three backends implement it, best first: the page-table walk
//! (`walk`), DAMON (`damon`), and residency alone (`residency`). [`choose_backend`] picks from the host's facts;
//! nothing falls back silently.
//!
//! The idea is HPS's (clear the accessed bits, read them back); the cost is not. Reading is some forty times cheaper
//! than clearing, so one clear is followed by many reads at growing delays, and the delay after which a page is first
//! seen gives its rate (`estimate`).
//!
//! [`insertions`] and [`refaults`] observe whole processes and control groups: page-cache insertions, and pages of
//! files that return soon after their eviction. [`process_events`] tells which processes start, change and end.

#![deny(unsafe_code)]

pub mod backend;
pub mod damon;
pub mod estimate;
pub mod frames;
pub mod insertions;
pub mod map;
pub mod observer;
pub mod probe;
pub mod process_events;
pub mod refaults;
pub mod residency;
pub mod walk;

mod bpf_object;

pub use backend::{Backend, Backends, choose_backend};
pub use map::{AccessMap, Class, PageSet, WindowHeat};
pub use observer::{Cost, Observer};
