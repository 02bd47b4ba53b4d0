//! Settings of the whole machine: set, and restored at the end of the test, also when the test program is killed in the
//! middle of one.
//!
//! A second process of this program restores them after a kill: it is told over a pipe which settings were changed.
//! When the pipe closes, by a clean exit or by a kill, it writes back every setting that is still changed, the latest
//! first.

use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

/// The argument that makes the test program a keeper.
pub(crate) const FLAG: &str = "--keep-knobs";

/// A changed setting. Dropping it restores the old value.
#[derive(Debug)]
pub struct Knob {
    path: PathBuf,
    before: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Note {
    Turned { path: PathBuf, before: String },
    TurnedBack { path: PathBuf },
}

impl Knob {
    /// Writes `value` to the file at `path`, which must be one that reads as it is written, or as a choice with the
    /// chosen word in brackets.
    ///
    /// # Errors
    /// When it cannot be read or written, or no keeper can be started.
    pub fn turn(path: impl AsRef<Path>, value: &str) -> io::Result<Knob> {
        let path = path.as_ref().to_owned();
        let before = chosen(&fs::read_to_string(&path)?).to_owned();
        tell(&Note::Turned { path: path.clone(), before: before.clone() })?;
        let knob = Knob { path, before };
        write(&knob.path, value)?;
        Ok(knob)
    }
}

impl Drop for Knob {
    fn drop(&mut self) {
        match write(&self.path, &self.before) {
            Ok(()) => drop(tell(&Note::TurnedBack { path: self.path.clone() })),
            Err(error) => eprintln!("cannot turn back {} to {}: {error}", self.path.display(), self.before),
        }
    }
}

/// No file is created: a missing setting is an error.
fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// `madvise` in `always [madvise] never`; the whole of anything else.
fn chosen(text: &str) -> &str {
    let text = text.trim();
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text, |(word, _)| word)
}

static KEEPER: OnceLock<Mutex<ChildStdin>> = OnceLock::new();

fn tell(note: &Note) -> io::Result<()> {
    if KEEPER.get().is_none() {
        let _ = KEEPER.set(Mutex::new(start_keeper()?));
    }
    let keeper = KEEPER.get().ok_or_else(|| io::Error::other("the keeper of the knobs did not start"))?;
    let line = serde_json::to_string(note)?;
    writeln!(keeper.lock().unwrap_or_else(PoisonError::into_inner), "{line}")
}

fn start_keeper() -> io::Result<ChildStdin> {
    // A process group of its own, so that Ctrl-C at the terminal reaches the tests and not the keeper.
    let mut keeper = Command::new("/proc/self/exe");
    let child = keeper.arg(FLAG).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    child.stdin.ok_or_else(|| io::Error::other("the keeper of the knobs has no pipe"))
}

/// Settings still changed after these notes, the latest first.
fn still_turned(notes: impl Iterator<Item = Note>) -> Vec<(PathBuf, String)> {
    let mut turned: Vec<(PathBuf, String)> = Vec::new();
    for note in notes {
        match note {
            Note::Turned { path, before } => turned.insert(0, (path, before)),
            Note::TurnedBack { path } => {
                if let Some(place) = turned.iter().position(|(other, _)| *other == path) {
                    turned.remove(place);
                }
            }
        }
    }
    turned
}

/// The keeper's side: listens until the tests are gone.
pub(crate) fn keep() -> ExitCode {
    let lines = io::stdin().lock().lines().map_while(Result::ok);
    let mut code = ExitCode::SUCCESS;
    for (path, before) in still_turned(lines.filter_map(|line| serde_json::from_str(&line).ok())) {
        if let Err(error) = write(&path, &before) {
            eprintln!("cannot turn back {} to {before}: {error}", path.display());
            code = ExitCode::FAILURE;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(path: &str, before: &str) -> Note {
        Note::Turned { path: path.into(), before: before.to_owned() }
    }

    #[test]
    fn the_chosen_word_of_a_choice_and_the_whole_of_a_number() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("10000\n"), "10000");
    }

    #[test]
    fn what_was_not_turned_back_is_left_with_the_latest_first() {
        let notes = [turned("/a", "1"), turned("/b", "2"), turned("/a", "3"), Note::TurnedBack { path: "/b".into() }];
        let left = still_turned(notes.into_iter());
        assert_eq!(left, [("/a".into(), "3".to_owned()), ("/a".into(), "1".to_owned())]);
    }

    #[test]
    fn after_everything_was_turned_back_nothing_is_left() {
        let notes = [turned("/a", "1"), Note::TurnedBack { path: "/a".into() }];
        assert!(still_turned(notes.into_iter()).is_empty());
    }
}
