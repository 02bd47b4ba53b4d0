//! Answers of a Redis server, which may be any process: replies, pages, error lines, the text of INFO, the map of a
//! Cluster. A byte selects one. Each is understood or refused, takes no more memory than the answer has bytes for, and
//! ends.

use std::convert::Infallible;
use std::io::Cursor;
use std::sync::Arc;

use farmem::store::redis::answers::{self, Verdict};
use farmem::store::redis::node::Node;
use farmem::store::redis::resp::{self, Field, Reply, Requests};
use farmem::store::redis::topology::{SLOTS, Topology};
use farmem::store::url::Host;

use crate::input::Input;

/// Parsers that the first byte selects, by its remainder.
pub const VARIANTS: u8 = 5;

/// Small pages: the same code reads them.
const PAGE_BYTES: usize = 16;

/// Runs one input; true when it was understood.
pub fn run(bytes: &[u8]) -> bool {
    let Some((which, rest)) = bytes.split_first() else { return false };
    match which % VARIANTS {
        0 => replies(rest),
        1 => pages(rest),
        2 => texts(&String::from_utf8_lossy(rest)),
        3 => map(rest),
        _ => requests(rest),
    }
}

/// Replies one after the other, until the connection ends. Each is no larger than the bytes received.
fn replies(bytes: &[u8]) -> bool {
    let (mut input, mut understood) = (bytes, false);
    while !input.is_empty() {
        let before = input.len();
        let Ok(reply) = resp::reply(&mut input) else { break };
        assert!(input.len() < before, "{reply:?} of nothing");
        assert!(parts_of(&reply) <= before - input.len(), "{reply:?}");
        understood = true;
    }
    understood
}

/// Values and bytes of a reply. A value takes at least three bytes on the wire; a byte on the wire is one byte of the
/// value, or three in a text that is not UTF-8.
fn parts_of(reply: &Reply) -> usize {
    match reply {
        Reply::Simple(text) | Reply::Error(text) => 1 + text.len() / 3,
        Reply::Bulk(bytes) => 1 + bytes.len(),
        Reply::Integer(_) | Reply::Nil => 1,
        Reply::Array(all) => 1 + all.iter().map(parts_of).sum::<usize>(),
    }
}

/// The answer to a request for some pages: each page is reported once, and a whole one is in its place.
fn pages(bytes: &[u8]) -> bool {
    let Some((count, mut input)) = bytes.split_first() else { return false };
    let mut places = vec![[0xa5; PAGE_BYTES]; usize::from(count % 17)];
    let mut seen = vec![None; places.len()];
    let each = |index: usize, field: Field| assert!(seen[index].replace(field).is_none(), "page {index} twice");
    let answer = resp::pages(&mut input, places.iter_mut().map(|page| &mut page[..]), each);
    let all = matches!(answer, Ok(Ok(())));
    assert!(!all || seen.iter().all(Option::is_some));
    all
}

/// Texts of a server about itself, and its reasons for refusing.
fn texts(text: &str) -> bool {
    let verdict = answers::verdict(text);
    if let Verdict::Ask(host) = &verdict {
        assert!(!host.name.is_empty());
    }
    let info = answers::info(text);
    let _ = answers::epoch(text);
    if let Some(id) = answers::client_id(text) {
        // Used in a later command.
        assert!(!id.id.contains(char::is_whitespace) && !id.address.contains(char::is_whitespace));
    }
    verdict != Verdict::Unfit || info != answers::Info::default()
}

/// The answer to CLUSTER SLOTS: each slot has one master of the answer, or none.
fn map(bytes: &[u8]) -> bool {
    let asked = Host { name: "asked".to_owned(), port: 6379 };
    let mut input = bytes;
    let Ok(reply) = resp::reply(&mut input) else { return false };
    let Some(ranges) = answers::slots(&reply, &asked) else { return false };
    let topology = Topology::cluster::<Infallible>(&ranges, |host| Ok(Arc::new(Node::new(host.clone()))));
    let Ok(topology) = topology;
    for range in &ranges {
        assert!(range.first < SLOTS && range.last < SLOTS && !range.master.name.is_empty());
    }
    for slot in [0, SLOTS / 2, SLOTS - 1] {
        let covered = ranges.iter().rfind(|range| (range.first..=range.last).contains(&slot));
        assert_eq!(topology.of_slot(slot).map(|node| &node.host), covered.map(|range| &range.master));
    }
    let _ = topology.uncovered();
    !topology.masters().is_empty()
}

/// Requests of masu, read by a server as intended: arrays of strings with any content.
fn requests(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let mut out = Requests::default();
    let mut meant = Vec::new();
    while !input.0.is_empty() && meant.len() < 16 {
        let count = usize::from(1 + input.byte() % 6);
        let mut arguments = Vec::new();
        for _ in 0..count {
            // Pages are never empty.
            let length = usize::from(input.byte()).max(1).min(input.0.len());
            if length == 0 {
                break;
            }
            let (argument, rest) = input.0.split_at(length);
            input.0 = rest;
            arguments.push(argument);
        }
        if arguments.is_empty() {
            break;
        }
        if input.byte().is_multiple_of(2) {
            out.request(&arguments);
        } else {
            out.head(arguments.len());
            arguments.iter().for_each(|argument| out.page(argument));
        }
        meant.push(Reply::Array(arguments.into_iter().map(|argument| Reply::Bulk(argument.to_vec())).collect()));
    }
    if meant.is_empty() {
        return false;
    }
    let mut sent = Cursor::new(Vec::new());
    out.write_to(&mut sent).expect("memory takes it");
    let sent = sent.into_inner();
    let mut sent = &sent[..];
    for request in &meant {
        assert_eq!(&resp::reply(&mut sent).expect("it is as it was written"), request);
    }
    assert!(sent.is_empty());
    true
}
