//! What a kernel offers, as one line of JSON that `cargo xtask boot-test` collects into `docs/rungs.md`.

use std::fs;

use serde_json::{Map, Value, json};

use crate::need::{Need, Offer};
use crate::probe;

/// How the line begins.
pub const LINE: &str = "RUNGS ";

/// The facts of the running kernel.
pub fn of_this_host() -> Value {
    let offers: Map<String, Value> =
        probe::all().iter().map(|(need, offer)| (need.name().to_owned(), in_words(*need, offer))).collect();
    json!({
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "page_table_levels": page_table_levels(),
        "offers": offers,
    })
}

fn in_words(need: Need, offer: &Offer) -> Value {
    match offer {
        // Who runs the tests is no property of the kernel.
        _ if need == Need::Root => Value::Null,
        Offer::Yes => "yes".into(),
        Offer::NotInThisKernel(why) => format!("no: {why}").into(),
        Offer::Withheld(why) => format!("withheld: {why}").into(),
    }
}

/// The kernel drops `la57` from the processor's flags when it runs with four levels.
fn page_table_levels() -> Option<u8> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    Some(if flags.split_ascii_whitespace().any(|flag| flag == "la57") { 5 } else { 4 })
}
