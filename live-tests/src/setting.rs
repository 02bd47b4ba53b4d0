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

/// The argument that makes the test program the restoring process.
pub(crate) const FLAG: &str = "--restore-settings";

/// A changed setting. Dropping it restores the old value.
#[derive(Debug)]
pub struct Setting {
    path: PathBuf,
    before: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Note {
    Changed { path: PathBuf, before: String },
    Restored { path: PathBuf },
}

impl Setting {
    /// Writes `value` to the file at `path`, which must be one that reads as it is written, or as a choice with the
    /// chosen word in brackets.
    ///
    /// # Errors
    /// When it cannot be read or written, or the restoring process cannot be started.
    pub fn set(path: impl AsRef<Path>, value: &str) -> io::Result<Setting> {
        let path = path.as_ref().to_owned();
        let before = chosen(&fs::read_to_string(&path)?).to_owned();
        tell(&Note::Changed { path: path.clone(), before: before.clone() })?;
        let setting = Setting { path, before };
        write(&setting.path, value)?;
        Ok(setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        match write(&self.path, &self.before) {
            Ok(()) => drop(tell(&Note::Restored { path: self.path.clone() })),
            Err(error) => eprintln!("cannot restore {} to {}: {error}", self.path.display(), self.before),
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

static RESTORER: OnceLock<Mutex<ChildStdin>> = OnceLock::new();

fn tell(note: &Note) -> io::Result<()> {
    if RESTORER.get().is_none() {
        let _ = RESTORER.set(Mutex::new(start_restorer()?));
    }
    let restorer =
        RESTORER.get().ok_or_else(|| io::Error::other("the process that restores settings did not start"))?;
    let line = serde_json::to_string(note)?;
    writeln!(restorer.lock().unwrap_or_else(PoisonError::into_inner), "{line}")
}

fn start_restorer() -> io::Result<ChildStdin> {
    // A process group of its own, so that Ctrl-C at the terminal reaches the tests and not the restorer.
    let mut restorer = Command::new("/proc/self/exe");
    let child = restorer.arg(FLAG).process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    child.stdin.ok_or_else(|| io::Error::other("the process that restores settings has no pipe"))
}

/// Settings still changed after these notes, the latest first.
fn still_changed(notes: impl Iterator<Item = Note>) -> Vec<(PathBuf, String)> {
    let mut changed: Vec<(PathBuf, String)> = Vec::new();
    for note in notes {
        match note {
            Note::Changed { path, before } => changed.insert(0, (path, before)),
            Note::Restored { path } => {
                if let Some(place) = changed.iter().position(|(other, _)| *other == path) {
                    changed.remove(place);
                }
            }
        }
    }
    changed
}

/// The restorer's side: listens until the tests are gone.
pub(crate) fn restore() -> ExitCode {
    let lines = io::stdin().lock().lines().map_while(Result::ok);
    let mut code = ExitCode::SUCCESS;
    for (path, before) in still_changed(lines.filter_map(|line| serde_json::from_str(&line).ok())) {
        if let Err(error) = write(&path, &before) {
            eprintln!("cannot restore {} to {before}: {error}", path.display());
            code = ExitCode::FAILURE;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(path: &str, before: &str) -> Note {
        Note::Changed { path: path.into(), before: before.to_owned() }
    }

    #[test]
    fn the_chosen_word_of_a_choice_and_the_whole_of_a_number() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("10000\n"), "10000");
    }

    #[test]
    fn settings_that_were_not_restored_are_left_with_the_latest_first() {
        let notes = [changed("/a", "1"), changed("/b", "2"), changed("/a", "3"), Note::Restored { path: "/b".into() }];
        let left = still_changed(notes.into_iter());
        assert_eq!(left, [("/a".into(), "3".to_owned()), ("/a".into(), "1".to_owned())]);
    }

    #[test]
    fn nothing_is_left_after_every_setting_was_restored() {
        let notes = [changed("/a", "1"), Note::Restored { path: "/a".into() }];
        assert!(still_changed(notes.into_iter()).is_empty());
    }
}
