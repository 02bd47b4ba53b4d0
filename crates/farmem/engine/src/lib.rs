//! Far memory for programs larger than their machine: data and policies shared by masu and the library inside such a
//! program.
//!
//! A paged program has a fixed budget of local memory. The rest of its pages is in a store. `crates/farmem/server` is
//! masu's side, `crates/farmem/agent` the program's. Both use this crate: `policy/` decides the transfer size and the
//! prefetch, and `calls` names the memory that a system call touches.
//!
//! Nothing here allocates, does I/O, reads a clock or can fail. Data in shared memory has a fixed size, and memory full
//! of zeros is a valid start of it.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod backend;
pub mod budget;
pub mod calls;
pub mod cast;
pub mod counters;
pub mod entry;
pub mod handshake;
pub mod left_out;
pub mod lock;
pub mod pager;
pub mod policy;
pub mod program_file;
pub mod segment;
pub mod space;
pub mod units;

/// A page is 4 KiB, with every transfer size.
pub const PAGE_BYTES: u64 = 4096;

/// The largest transfer size is 1 MiB, as in the paper.
pub const MAX_UNIT_PAGES: u32 = 256;
