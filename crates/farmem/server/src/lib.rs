//! Far memory for programs larger than their machine: masu's side.
//!
//! The library inside the program is `crates/farmem/agent`; the policies of both are in `crates/farmem/engine`.

mod background;
pub mod history;
pub mod profile;
pub mod report;
pub mod serve;
pub mod sites;
pub mod store;
