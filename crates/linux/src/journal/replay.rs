//! Settings that a dead process has left changed: restored at the next start.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::client::{Client, Locks, When};
use super::file::journals_in;
use super::left_alone::{LeftAlone, of_another_program};
use super::{Outcome, UndoRecord, boot, lock, remove, restore, runtime_directory};
use crate::{Error, KernelFiles, Pid};

/// Result of [`replay`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Settings that dead processes had left changed.
    pub restored: Vec<Restored>,
    /// Settings that another program has changed since, and their dead writers. They stay.
    pub left_alone: Vec<(Pid, LeftAlone)>,
    /// Journals with records that only a newer masu can undo. They stay.
    pub newer: Vec<NewerJournal>,
}

/// Journal of a dead process with a record of an unknown client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewerJournal {
    /// Path of the journal.
    pub path: PathBuf,
    /// Process that wrote it.
    pub writer: Pid,
}

/// Result of [`replay`] for one setting that a dead process had left changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Path of the setting: `sys/kernel/mm/…`.
    pub path: String,
    /// Value before the change, and again now.
    pub value: String,
    /// Kind of undo.
    pub undone: Undone,
    /// Process that had changed it.
    pub writer: Pid,
    /// Reason why it could not be restored; `None` if it was. The journal stays for another attempt.
    pub failure: Option<Error>,
}

/// Kind of undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// The old value was written.
    Written,
    /// The group was removed.
    Removed,
    /// Tasks were moved back to the group.
    Joined,
}

/// Restores settings that dead processes have left changed, and removes their journals. Journals of living processes
/// are not touched, nor are settings that one of them, or another program, has changed as well. `clients` undo their own
/// records. A journal stays while a restore fails, or it has a record of another client; lines in it then name the
/// records that are done.
///
/// # Errors
/// `Denied` if the directory is not ours alone. A missing directory means that there is nothing to do.
pub fn replay(files: &impl KernelFiles, directory: &Path, clients: &[&'static dyn Client]) -> Result<Replay, Error> {
    let mut replay = Replay::default();
    if !directory.exists() {
        return Ok(replay);
    }
    runtime_directory::private(directory)?;
    let ended = journals_in(directory, clients)?.into_iter().filter(|journal| !journal.writer.is_alive(files));
    let to_undo: Vec<UndoRecord> = ended.flat_map(|journal| journal.records).collect();
    let locks = Locks::take(files, clients, &to_undo);
    let lock = lock(directory)?;
    let (living, dead): (Vec<_>, Vec<_>) =
        journals_in(directory, clients)?.into_iter().partition(|journal| journal.is_alive(files));
    let this_boot = boot(files);
    let mut unwritten = Vec::new();
    for journal in dead {
        if !journal.is_of_boot(&this_boot) {
            remove(&journal.path)?;
            continue;
        }
        let (mut done, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for record in journal.records.iter().rev().filter(|record| !journal.unknown.contains(&record.key())) {
            let key = record.key();
            let of_living = living.iter().any(|other| other.value_of(&key).is_some());
            let of_another = || of_another_program(files, directory, record, &journal.written);
            let left_alone = if of_living { None } else { of_another() };
            let outcome = match of_living || left_alone.is_some() {
                true => Ok(Outcome::Nothing),
                false => restore(files, &locks, When::AfterACrash, record),
            };
            replay.left_alone.extend(left_alone.map(|left| (journal.writer.pid, left)));
            if outcome != Ok(Outcome::Nothing) {
                replay.restored.push(Restored {
                    path: record.path.clone(),
                    value: record.old.clone(),
                    undone: record.undone(clients),
                    writer: journal.writer.pid,
                    failure: outcome.as_ref().err().cloned(),
                });
            }
            let ended = if outcome.is_ok() { &mut done } else { &mut failed };
            ended.insert(key);
        }
        if !journal.unknown.is_empty() {
            replay.newer.push(NewerJournal { path: journal.path.clone(), writer: journal.writer.pid });
        }
        if failed.is_empty() && journal.unknown.is_empty() {
            remove(&journal.path)?;
        } else if let Err(error) = journal.append_restored(done.difference(&failed)) {
            // No other journal waits for it. The next replay restores these records once more.
            unwritten.push(error);
        }
    }
    drop((lock, locks));
    for error in unwritten {
        tracing::debug!(%error, "restored settings not recorded");
    }
    Ok(replay)
}
