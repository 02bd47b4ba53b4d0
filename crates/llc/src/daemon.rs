//! The daemon: creates the classes, keeps the shared partition warm, and restores everything.

pub mod act;
pub mod allocatable_ways;
pub mod by_size;
pub mod config;
pub mod control_loop;
pub mod curve;
pub mod decide;
pub mod host;
pub mod host_ops;
pub mod layout;
pub mod members;
pub mod number;
pub mod observe;
pub mod others;
pub mod rate_limiter;
pub mod report;
pub mod sharing_groups;
pub mod steps;
pub mod warm_up;
