//! A kernel's features and masu's backends there, as one line of JSON, collected by `cargo xtask boot-test` into
//! `docs/kernels.md`.

use std::process::Command;

use access::probe::probe;
use hugepages::backends::part_backends;
use linux::Rooted;
use linux::probe::HostFacts;
use serde_json::{Map, Value, json};

use crate::cases::programs;
use crate::probe as requirement_probe;
use crate::requirement::{Capability, Requirement};

/// The argument that makes the test program print this line and nothing else.
pub(crate) const FLAG: &str = "--backends";

/// Prefix of the line.
pub const LINE: &str = "BACKENDS ";

/// The facts of the running kernel.
pub fn of_this_host() -> Value {
    let files = Rooted::host();
    let facts = HostFacts::gather(&files);
    let backends = probe(&files).backends;
    let requirements: Map<String, Value> = requirement_probe::all()
        .iter()
        .map(|(requirement, capability)| (requirement.name().to_owned(), in_words(*requirement, capability)))
        .collect();
    json!({ "facts": facts, "hugepages": part_backends(&facts, &backends), "larger": larger_than_memory(), "requirements": requirements })
}

/// Asks the command itself, whose rule it is. Null where it is not built.
fn larger_than_memory() -> Value {
    let said = programs::masu().and_then(|masu| Command::new(masu).args(["facts", "--json"]).output().ok());
    let report: Value = said.and_then(|said| serde_json::from_slice(&said.stdout).ok()).unwrap_or_default();
    let mut features = report["features"].as_array().into_iter().flatten();
    features.find(|feature| feature["feature"] == "larger than memory").map_or(Value::Null, |it| it["parts"].clone())
}

fn in_words(requirement: Requirement, capability: &Capability) -> Value {
    match capability {
        // Users and installed programs are no property of the kernel.
        _ if !requirement.is_of_the_kernel() => Value::Null,
        Capability::Available => "yes".into(),
        Capability::NotInThisKernel(why) | Capability::NotOnThisMachine(why) => format!("no: {why}").into(),
        Capability::Unavailable(why) => format!("withheld: {why}").into(),
    }
}
