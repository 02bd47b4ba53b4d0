//! Far memory for programs larger than their machine: masu's side.
//!
//! The library inside the program is `crates/farmem/agent`; the policies of both are in `crates/farmem/engine`.

pub mod at_once;
mod background;
pub mod copies;
pub mod history;
pub mod observation;
pub mod profile;
pub mod report;
pub mod serve;
pub mod sites;
pub mod store;
pub mod thrash;
pub mod unpaged;
