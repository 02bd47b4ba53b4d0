//! Every published claim as a command, side by side with its baseline.
//!
//! `masu-bench NAME` starts a program, measures it under each condition in interleaved pairs, and prints the ratio, its
//! interval and its cost. The programs are in `workloads/`; `redis-server` is the real one. Shared by the benchmarks:
//!
//! - `harness`: conditions, measurement in turns, metrics; its head shows a whole benchmark;
//! - `pairs`, `report`: from samples to a verdict, without I/O until the last step;
//! - `host`, `warm_up`, `setting`, `thp`, `place`, `stop`: the machine, and restoring its state;
//! - `children`, `workload`, `masu`, `tracker`, `process`, `tools`: the programs that are run and watched;
//! - `launch`, `side_by_side`: one program with its huge pages got in several ways;
//! - `llc`: shared lines in the cache, and the simulator's cache;
//! - `cgroup`, `file_mapping`, `aging`: a cgroup with little memory, and the residency of files in it.

pub mod aging;
pub mod census;
pub mod cgroup;
pub mod children;
pub mod demo;
pub mod demo_service;
pub mod field;
pub mod file_mapping;
pub mod hammer;
pub mod harness;
pub mod host;
pub mod hot_pages;
pub mod idle_cost;
pub mod known_hot_set;
pub mod latency;
pub mod launch;
pub mod llc;
pub mod mapping;
pub mod masu;
pub mod memcached;
pub mod page;
pub mod pairs;
pub mod paper;
pub mod place;
pub mod process;
pub mod progress;
pub mod random;
pub mod redis;
pub mod remote;
pub mod report;
pub mod scan;
pub mod service;
pub mod session;
pub mod setting;
pub mod side_by_side;
pub mod soak;
pub mod sparse;
pub mod stacks;
pub mod startup;
pub mod stop;
pub mod superpages;
pub mod thp;
pub mod tools;
pub mod torture;
pub mod track;
pub mod tracker;
pub mod transpose;
pub mod warm_up;
pub mod workload;

pub use ::masu::table;
