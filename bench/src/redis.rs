//! Redis: a real server, loaded with gigabytes, and our own client.

pub mod client;
pub mod command;
pub mod keys;
pub mod latency;
pub mod server;

pub use command::{Options, run};
