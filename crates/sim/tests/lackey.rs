//! Trace of a real program, as recorded by valgrind: `recorded/lackey/README.md` has the command.

use std::path::Path;

use sim::cache::files;
use sim::cache::frames::Frame;
use sim::cache::trace::{Record, Traced, record};

fn file() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/lackey/true.trace")
}

#[test]
fn every_line_of_a_recorded_trace_is_read() {
    let text = std::fs::read_to_string(file()).expect("the recorded trace");
    let records: Vec<Record> = text.lines().filter_map(|line| record(line).expect("a line of a trace")).collect();
    let count = |of: &dyn Fn(&Record) -> bool| records.iter().filter(|record| of(record)).count();
    let starts = |prefix: &str| text.lines().filter(|line| line.starts_with(prefix)).count();
    assert_eq!(count(&|record| matches!(record, Record::Instruction)), starts("I "));
    assert_eq!(count(&|record| matches!(record, Record::Data { store: false, .. })), starts(" L "));
    assert_eq!(count(&|record| matches!(record, Record::Data { store: true, .. })), starts(" S ") + starts(" M "));
    assert!(records.len() > 15_900);
}

#[test]
fn a_traced_program_goes_on_from_the_beginning_and_keeps_its_frames() {
    let frames = || (0..1000).map(Frame).collect();
    let mut traced = Traced::new("true".into(), files::trace(&file()).expect("the file"), Vec::new(), frames());
    let mut first = Vec::new();
    let mut instructions = 0;
    while traced.rounds() == 0 {
        let (line, executed) = traced.next_access().expect("an access");
        first.push(line);
        instructions += u64::from(executed);
    }
    // The end is known only at the first access of the next round.
    let text = std::fs::read_to_string(file()).expect("the recorded trace");
    let executed = text.lines().filter(|line| line.starts_with("I ")).count() as u64;
    assert!((executed..executed + 10).contains(&instructions), "{instructions} of {executed}");
    assert_eq!(first.pop(), Some(first[0]));
    let second: Vec<_> = (1..first.len()).map(|_| traced.next_access().expect("an access").0).collect();
    assert_eq!(second, first[1..]);
}

#[test]
fn pages_that_the_program_writes_to_are_shared_no_more() {
    let text = std::fs::read_to_string(file()).expect("the recorded trace");
    let mut pages = std::collections::BTreeSet::new();
    let mut written = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(Record::Data { address, bytes, store }) = record(line).expect("a line") {
            for page in address / 4096..=(address + u64::from(bytes) - 1) / 4096 {
                pages.insert(page);
                if store {
                    written.insert(page);
                }
            }
        }
    }
    let shared = pages.iter().zip(5000..).map(|(page, frame)| (*page, Frame(frame)));
    let free = (0..1000).map(Frame).collect();
    let mut traced = Traced::new("true".into(), files::trace(&file()).expect("the file"), shared, free);
    while traced.rounds() < 2 {
        traced.next_access().expect("an access");
    }
    assert_eq!(traced.unmerged(), written.len() as u64);
}
