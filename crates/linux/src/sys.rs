//! Files below `/sys`, one file per interface. Control groups, DAMON and resctrl have folders of their own.

pub mod block_device;
pub mod bracketed;
pub mod caches;
pub mod ksm;
pub mod lru_gen;
pub mod read_ahead;
pub mod thp;
pub mod thp_stats;
