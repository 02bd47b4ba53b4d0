//! Redis: a real server, loaded with gigabytes, asked by a client of ours.

pub mod client;
pub mod command;
pub mod keys;
pub mod latency;
pub mod server;

pub use command::{Options, run};
