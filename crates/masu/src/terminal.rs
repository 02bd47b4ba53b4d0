//! Standard output and error, clock and signals, and repeated reports.

pub mod clock;
pub mod events;
pub mod log;
pub mod print;
pub mod repeat;
