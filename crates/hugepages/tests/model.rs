//! Whole runs of the loop over model programs: whatever they do, masu keeps its word; and worked examples.

use proptest::collection::vec;
use proptest::prelude::*;

#[path = "model/mod.rs"]
mod model;

use model::check::run;
use model::script::{EVENT, HEADER, Script, WINDOW};

fn scripts() -> impl Strategy<Value = Script> {
    let windows = vec(any::<[u8; WINDOW]>(), 0..16);
    let events = vec(any::<[u8; EVENT]>(), 0..24);
    (any::<[u8; HEADER]>(), windows, events).prop_map(|(header, windows, events)| {
        Script::from_parts(header, &windows, &events)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_programs_do_masu_keeps_its_word(script in scripts()) {
        let broken = run(script).broken();
        prop_assert!(broken.is_empty(), "{broken:#?}");
    }
}
