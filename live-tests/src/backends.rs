//! A kernel's features and masu's backends there, as one line of JSON, collected by `cargo xtask boot-test` into
//! `docs/kernels.md`.

use std::process::Command;

use access::probe::probe;
use hugepages::standing::standings;
use linux::Rooted;
use linux::probe::HostFacts;
use serde_json::{Map, Value, json};

use crate::cases::programs;
use crate::need::{Need, Offer};
use crate::probe as needs;

/// The argument that makes the test program print this line and nothing else.
pub(crate) const FLAG: &str = "--backends";

/// Prefix of the line.
pub const LINE: &str = "BACKENDS ";

/// The facts of the running kernel.
pub fn of_this_host() -> Value {
    let files = Rooted::host();
    let facts = HostFacts::gather(&files);
    let backends = probe(&files).backends;
    let needs: Map<String, Value> =
        needs::all().iter().map(|(need, offer)| (need.name().to_owned(), in_words(*need, offer))).collect();
    json!({ "facts": facts, "hugepages": standings(&facts, &backends), "larger": larger_than_memory(), "needs": needs })
}

/// Asks the command itself, whose rule it is. Null where it is not built.
fn larger_than_memory() -> Value {
    let said = programs::masu().and_then(|masu| Command::new(masu).args(["facts", "--json"]).output().ok());
    let report: Value = said.and_then(|said| serde_json::from_slice(&said.stdout).ok()).unwrap_or_default();
    let mut features = report["features"].as_array().into_iter().flatten();
    features.find(|feature| feature["feature"] == "larger than memory").map_or(Value::Null, |it| it["parts"].clone())
}

fn in_words(need: Need, offer: &Offer) -> Value {
    match offer {
        // Users and installed programs are no property of the kernel.
        _ if !need.is_of_the_kernel() => Value::Null,
        Offer::Yes => "yes".into(),
        Offer::NotInThisKernel(why) | Offer::NotOnThisMachine(why) => format!("no: {why}").into(),
        Offer::Withheld(why) => format!("withheld: {why}").into(),
    }
}
