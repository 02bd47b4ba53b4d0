//! memcached: the paper's experiment (section 6.4), and the case where only compaction helps.

mod client;
mod command;
mod condition;
mod findings;
mod keys;
mod one_run;
mod sampler;
mod server;
mod settling;

pub use command::{Options, run};
