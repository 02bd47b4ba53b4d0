//! Programs larger than their machine: masu's side.
//!
//! The library inside the program is `crates/libmasu/pager`; what both decide by is `crates/paging`.

mod background;
pub mod history;
pub mod profile;
pub mod report;
pub mod serve;
pub mod sites;
pub mod store;
