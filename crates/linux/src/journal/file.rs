//! `/run/masu/private/<pid>-<start>.journal`: files of the journals that `journal.rs` describes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Client, UndoRecord, boot, is_setting};
use crate::error::errno;
use crate::{Error, KernelFiles, Pid, runtime_directory, stat};

/// One line of a journal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// Boot of the following lines.
    Boot(String),
    /// This setting is about to be changed.
    #[serde(rename = "turned")]
    Changed(UndoRecord),
    /// Setting that was changed before and is about to be changed again.
    Writing(String),
    /// Setting, and its value after the write, read back.
    Written(String, String),
    /// This setting (or the part of it behind a `#`) is restored.
    #[serde(rename = "kept")]
    Restored(String),
}

/// A process, distinct from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) pid: Pid,
    pub(super) start_ticks: u64,
}

impl Writer {
    pub(super) fn file_name(self) -> String {
        format!("{}-{}.journal", self.pid, self.start_ticks)
    }

    fn of_file_name(name: &str) -> Option<Writer> {
        let (pid, start_ticks) = name.strip_suffix(".journal")?.split_once('-')?;
        Some(Writer { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
    }

    /// Judges by the process id. A process that cannot be read, for want of a privilege, counts as alive.
    pub(super) fn is_alive(self, files: &impl KernelFiles) -> bool {
        match stat::stat(files, self.pid) {
            Ok(stat) => stat.start_ticks == self.start_ticks && !matches!(stat.state, 'Z' | 'X'),
            Err(error) => !error.is_gone(),
        }
    }
}

/// A parsed journal.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) path: PathBuf,
    pub(super) writer: Writer,
    pub(super) boot: Option<String>,
    pub(super) records: Vec<UndoRecord>,
    /// Settings after their last write, by path. One whose write may not have ended is missing.
    pub(super) written: BTreeMap<String, String>,
    /// Keys of records of clients that this masu does not know.
    pub(super) unknown: BTreeSet<String>,
    /// Length without a torn last line.
    whole_bytes: u64,
}

impl Journal {
    /// Parses lines. Records of clients are not judged yet.
    pub(super) fn parse(writer: Writer, text: &str) -> Journal {
        let (path, written, unknown) = (PathBuf::new(), BTreeMap::new(), BTreeSet::new());
        let mut journal = Journal { path, writer, boot: None, records: Vec::new(), written, unknown, whole_bytes: 0 };
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            match serde_json::from_str(line) {
                Ok(Line::Boot(id)) => journal.boot = Some(id),
                Ok(Line::Changed(record)) if !record.tagged.is_empty() || is_setting(&record.path) => {
                    journal.records.push(record);
                }
                Ok(Line::Writing(path)) => drop(journal.written.remove(&path)),
                Ok(Line::Written(path, value)) => drop(journal.written.insert(path, value)),
                Ok(Line::Restored(key)) => {
                    journal.written.remove(&key);
                    journal.records.retain(|record| record.key() != key);
                }
                Ok(Line::Changed(_)) | Err(_) => {} // damaged
            }
        }
        journal
    }

    pub(super) fn value_of(&self, key: &str) -> Option<String> {
        self.records.iter().find(|record| record.key() == key).map(|record| record.old.clone())
    }

    /// Called under the lock of the directory, so the lock tried here never collides with a process that makes a
    /// journal.
    pub(super) fn is_alive(&self, files: &impl KernelFiles) -> bool {
        self.is_of_boot(&boot(files)) && (self.writer.is_alive(files) || is_locked(&self.path))
    }

    pub(super) fn is_of_boot(&self, boot: &str) -> bool {
        self.boot.as_deref().is_none_or(|of| of == boot)
    }

    /// Appends lines that name these records as restored, for the next replay of this journal.
    pub(super) fn append_restored<'k>(&self, keys: impl Iterator<Item = &'k String>) -> Result<(), Error> {
        let failed = |error| Error::of_host("write", self.path.display(), errno(error));
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(open(&self.path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?);
        file.set_len(self.whole_bytes).map_err(failed)?;
        keys.try_for_each(|key| append_line(&mut file, &Line::Restored(key.clone()))).map_err(failed)
    }
}

/// All journals, including old ones in `/run/masu` itself, with the records that are sound.
pub(super) fn journals_in(directory: &Path, clients: &[&'static dyn Client]) -> Result<Vec<Journal>, Error> {
    let mut journals = Vec::new();
    for folder in [directory, &runtime_directory::private_path(directory)] {
        let failed = |path: &Path, error| Error::of_host("read", path.display(), errno(error));
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| failed(folder, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| failed(folder, error))?;
            let Some(writer) = entry.file_name().to_str().and_then(Writer::of_file_name) else { continue };
            let path = entry.path();
            if let Some(bytes) = read_own(&path).map_err(|error| failed(&path, error))? {
                let mut journal = Journal { path, ..Journal::parse(writer, &String::from_utf8_lossy(&bytes)) };
                journal.whole_bytes = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
                let unknown = journal.records.iter().filter(|record| record.is_of_unknown(clients));
                journal.unknown = unknown.map(UndoRecord::key).collect();
                journal.records.retain(|record| record.is_sound(clients));
                journals.push(journal);
            }
        }
    }
    journals.sort_by_key(|journal| journal.writer.start_ticks);
    Ok(journals)
}

/// Creates a file that is locked while it is open.
pub(super) fn new_journal(path: &Path) -> Result<File, std::io::Error> {
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// True if the journal's writer has it locked. The file is known to be ours.
fn is_locked(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::AGAIN))
}

/// Content of a file that is ours; `None` if it is gone because its writer has just ended, or is not ours.
fn read_own(path: &Path) -> Result<Option<Vec<u8>>, std::io::Error> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = match open(path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
        file => File::from(file?),
    };
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Appends one whole line and waits until it is on disk; on failure the journal is as it was.
pub(super) fn append_line(journal: &mut File, line: &Line) -> Result<(), std::io::Error> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    let length = journal.metadata()?.len();
    let written = journal.write_all(text.as_bytes()).and_then(|()| journal.sync_data());
    if written.is_err() {
        let _ = journal.set_len(length); // the first error is reported
    }
    written
}
