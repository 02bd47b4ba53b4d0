//! Standard output and error, tables, clock and signals, and repeated reports.

pub mod clock;
pub mod events;
pub mod log;
pub mod output_file;
pub mod print;
pub mod repeat;
pub mod table;
pub mod unwritten;
