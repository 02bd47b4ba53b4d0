//! The daemon: creates the classes, keeps the shared partition warm, and restores everything.

pub mod act;
pub mod arrange;
pub mod attend;
pub mod config;
pub mod curve;
pub mod decide;
pub mod host;
pub mod members;
pub mod number;
pub mod observe;
pub mod policy;
pub mod refill;
pub mod report;
pub mod room;
pub mod sets;
pub mod steps;
pub mod world;
