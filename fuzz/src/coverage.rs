//! libFuzzer over one target, named by the variable `FUZZ_TARGET`: guided by coverage, with the compiler's
//! instrumentation.
#![no_main]

use std::sync::LazyLock;

use fuzz::{Target, named};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    named(&name).unwrap_or_else(|| panic!("FUZZ_TARGET names no target: {name:?}"))
});

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() <= TARGET.bytes_max {
        let _ = (TARGET.run)(bytes);
    }
});
