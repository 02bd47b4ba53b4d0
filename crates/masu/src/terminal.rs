//! Standard output and error, signals, and repeated reports.

pub mod control;
pub mod events;
pub mod log;
pub mod print;
pub mod repeat;
