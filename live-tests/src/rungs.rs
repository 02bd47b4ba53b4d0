//! What a kernel offers and which rungs masu stands on there, as one line of JSON, which `cargo xtask boot-test`
//! collects into `docs/rungs.md`.

use access::probe::probe;
use hugepages::standing::standings;
use linux::Rooted;
use linux::facts::HostFacts;
use serde_json::{Map, Value, json};

use crate::need::{Need, Offer};
use crate::probe as needs;

/// The argument that makes the test program print this line and nothing else.
pub(crate) const FLAG: &str = "--rungs";

/// How the line begins.
pub const LINE: &str = "RUNGS ";

/// The facts of the running kernel.
pub fn of_this_host() -> Value {
    let files = Rooted::host();
    let facts = HostFacts::gather(&files);
    let rungs = probe(&files).rungs;
    let needs: Map<String, Value> =
        needs::all().iter().map(|(need, offer)| (need.name().to_owned(), in_words(*need, offer))).collect();
    let paging = json!([{ "part": "faults", "rung": needs::paging_rungs().first() }]);
    json!({ "facts": facts, "hugepages": standings(&facts, &rungs), "larger": paging, "needs": needs })
}

fn in_words(need: Need, offer: &Offer) -> Value {
    match offer {
        // Who runs the tests, and what is installed, is no property of the kernel.
        _ if !need.is_of_the_kernel() => Value::Null,
        Offer::Yes => "yes".into(),
        Offer::NotInThisKernel(why) | Offer::NotOnThisMachine(why) => format!("no: {why}").into(),
        Offer::Withheld(why) => format!("withheld: {why}").into(),
    }
}
