//! The attach loop over model programs. The bytes are a script: settings, windows, and a list of events, such as
//! failing advice, races between two calls and a jumping clock. masu's guarantees hold throughout.

#[path = "../../../crates/hugepages/tests/model/mod.rs"]
mod model;

use model::script::Script;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let script = Script::from_bytes(bytes);
    let broken = model::check::run(script.clone()).broken();
    assert!(broken.is_empty(), "{broken:#?}\n{script:?}");
    !script.spaces.iter().all(|space| space.cells.is_empty())
}
