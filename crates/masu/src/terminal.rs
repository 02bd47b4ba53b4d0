//! Standard output and error, signals, and repeated reports.

pub mod control;
pub mod events;
pub mod print;
pub mod repeat;
