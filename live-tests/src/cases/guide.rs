//! Examples of the guide that need no privilege and have exact results: the commands say what the guide shows.

use std::process::Command;

use super::Outcome;
use super::command::masu;
use super::programs::Running;
use super::run::{Folder, Result};
use crate::host::{Host, LiveTest, tests};

/// Tests of this file, and their requirements.
pub(crate) const TESTS: &[LiveTest] = tests! {
    guide requires [MasuCommand];
    the_replays_of_the_guide_say_what_it_shows;
};

const AGING: &str = include_str!("../../../docs/guide/aging.md");

/// Consoles of a document: lines that follow "```console".
fn consoles(document: &str) -> Vec<&str> {
    document.split("```console\n").skip(1).filter_map(|rest| rest.split_once("```").map(|(block, _)| block)).collect()
}

fn replayed(folder: &Folder, words: &str) -> Result<String> {
    let mut command: Command = masu()?;
    let said = Running::start(command.current_dir(&folder.0).args(words.split_whitespace()))?.said()?;
    assert_eq!((said.code(), said.err.as_str()), (0, ""), "{words}");
    Ok(said.out)
}

/// Each `masu aging … --replay`, with the trace that stands there.
fn the_replays_of_the_guide_say_what_it_shows(_: &Host) -> Outcome {
    let folder = Folder::make("guide")?;
    let mut shown = Vec::new();
    for block in consoles(AGING) {
        let mut rest = block;
        if let Some((text, after)) =
            block.strip_prefix("$ cat > day.trace <<'END'\n").and_then(|of| of.split_once("END\n"))
        {
            std::fs::write(folder.0.join("day.trace"), text)?;
            rest = after;
        }
        let Some((words, table)) = rest.strip_prefix("$ masu ").and_then(|of| of.split_once('\n')) else { continue };
        if words.contains("--replay") {
            assert_eq!(replayed(&folder, words)?, table, "{words}");
            shown.push(table);
        }
    }
    assert_eq!(shown.len(), 2, "the examples of the guide");
    // The guide says so of the second.
    assert!(AGING.contains("`--cache 0` without `--mapped` prints the same table for this trace"));
    assert_eq!(replayed(&folder, "aging --cache 0 --replay day.trace --memory 100MiB")?, shown[1]);
    Ok(())
}
