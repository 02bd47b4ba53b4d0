//! The attach loop over model programs. The bytes are a script: settings, windows, and a list of what happens, with
//! failing advice, races between two calls and a jumping clock among it. Whatever happens, masu keeps its word.
#![no_main]

#[path = "../../crates/hugepages/tests/model/mod.rs"]
mod model;

use libfuzzer_sys::fuzz_target;
use model::check::run;
use model::script::Script;

fuzz_target!(|bytes: &[u8]| {
    let script = Script::from_bytes(bytes);
    let broken = run(script.clone()).broken();
    assert!(broken.is_empty(), "{broken:#?}\n{script:?}");
});
