//! Programs larger than their machine: what masu and the library inside such a program share, and what they decide by.
//!
//! A paged program has a fixed budget of local memory. The rest of its pages is home in a store. `crates/farmem/server` is
//! masu's side of it, `crates/farmem/agent` the program's. Both use what is here: `policy/` decides how much is fetched
//! at a fault and in advance, and `calls` knows which memory a system call touches.
//!
//! Nothing here allocates, does I/O, knows a clock or can fail. What lies in memory that both sides see is made of fixed
//! sizes, and memory full of zeros is a valid start of it.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod backend;
pub mod calls;
pub mod entry;
pub mod field;
pub mod greeting;
pub mod lock;
pub mod pager;
pub mod policy;
pub mod space;
pub mod units;

/// A page is 4 KiB, whatever is fetched at a time.
pub const PAGE_BYTES: u64 = 4096;

/// The largest unit is 1 MiB, as in the paper.
pub const MAX_UNIT_PAGES: u32 = 256;
