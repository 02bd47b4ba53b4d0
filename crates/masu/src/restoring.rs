//! Settings that a killed masu left changed: each start restores them.

use std::path::Path;

use linux::journal;
use linux::runtime_directory::DIRECTORY;
use serde::Serialize;

use crate::HOST;
use crate::terminal::print;

/// Number of settings, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// As before the change, or gone.
    pub restored: usize,
    /// Still changed: the kernel refused.
    pub failed: usize,
    /// Another program has changed them since; they stay.
    pub left_alone: usize,
    /// Journals that only a newer masu understands.
    pub newer_journals: usize,
}

/// Restores settings that an earlier masu changed and did not restore, because it was killed, and says so. A setting that
/// is gone, or belongs to another program by now, is left as it is.
///
/// # Errors
/// When the journals cannot be read.
pub fn restore() -> Result<Restored, linux::Error> {
    let journal::Replay { restored, left_alone, newer } =
        journal::replay(&*HOST, Path::new(DIRECTORY), &[linux::resctrl::UNDO])?;
    let mut found = Restored { left_alone: left_alone.len(), newer_journals: newer.len(), ..Restored::default() };
    for one in restored {
        let journal::Restored { path, value, undone, writer, failure } = one;
        let (done, not_done) = match undone {
            journal::Undone::Written => (
                format!("/{path} is {value} again, unless it belongs to another program now"),
                format!("/{path} cannot be restored"),
            ),
            journal::Undone::Removed => {
                (format!("its group /{path} is removed"), format!("its group /{path} cannot be removed"))
            }
            journal::Undone::Joined => {
                (format!("its tasks are moved back to /{path}"), format!("its tasks cannot be moved back to /{path}"))
            }
        };
        match failure {
            None => {
                found.restored += 1;
                print::note(format_args!("process {writer} was killed: {done}"));
            }
            Some(error) => {
                found.failed += 1;
                print::note(format_args!("process {writer} was killed, and {not_done}: {error}"));
            }
        }
    }
    for (writer, left) in left_alone {
        print::note(format_args!("process {writer} was killed, and its change is not undone: {left}"));
    }
    for journal::NewerJournal { path, writer } in newer {
        print::note(format_args!(
            "process {writer} was killed, and only a newer masu can restore all of its changes: it wrote {}",
            path.display()
        ));
    }
    Ok(found)
}

/// Tells of an error, for a command that goes on without.
pub fn tell_of(error: &linux::Error) {
    // A user who may not read the journals may not restore settings either; root's next start will.
    if !matches!(error, linux::Error::Denied(_)) {
        print::note(format_args!(
            "cannot search for settings that a killed masu left changed: {error}; if there are any, the next start of a masu \
             that can restores them"
        ));
    }
}
