//! Programs larger than their machine: masu's side.
//!
//! The library inside the program is `crates/farmem/agent`; what both decide by is `crates/farmem/engine`.

mod background;
pub mod history;
pub mod profile;
pub mod report;
pub mod serve;
pub mod sites;
pub mod store;
