//! `/run/masu/private/<pid>-<start>.journal`: files of the journals that `journal.rs` describes.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{Client, Held, boot, is_knob};
use crate::error::errno;
use crate::{Error, KernelFiles, Pid, runtime_directory, stat};

/// One line of a journal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// Boot of the following lines.
    Boot(String),
    /// This setting is about to be changed.
    Turned(Held),
    /// This setting (or the part of it behind a `#`) is restored.
    Kept(String),
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
    pub(super) held: Vec<Held>,
}

impl Journal {
    /// Parses lines. Records of clients are not judged yet.
    pub(super) fn parse(writer: Writer, text: &str) -> Journal {
        let mut journal = Journal { path: PathBuf::new(), writer, boot: None, held: Vec::new() };
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            match serde_json::from_str(line) {
                Ok(Line::Boot(id)) => journal.boot = Some(id),
                Ok(Line::Turned(held)) if !held.tagged.is_empty() || is_knob(&held.path) => journal.held.push(held),
                Ok(Line::Kept(key)) => journal.held.retain(|held| held.key() != key),
                Ok(Line::Turned(_)) | Err(_) => {} // not written by us
            }
        }
        journal
    }

    pub(super) fn value_of(&self, key: &str) -> Option<String> {
        self.held.iter().find(|held| held.key() == key).map(|held| held.old.clone())
    }

    /// Called under the lock of the directory, so the lock tried here never collides with a process that makes a
    /// journal.
    pub(super) fn is_alive(&self, files: &impl KernelFiles) -> bool {
        self.is_of_boot(&boot(files)) && (self.writer.is_alive(files) || is_held(&self.path))
    }

    pub(super) fn is_of_boot(&self, boot: &str) -> bool {
        self.boot.as_deref().is_none_or(|of| of == boot)
    }
}

/// All journals, including old ones in `/run/masu` itself, with the records that are sound.
pub(super) fn journals_in(directory: &Path, clients: &[&'static dyn Client]) -> Result<Vec<Journal>, Error> {
    let mut journals = Vec::new();
    for place in [directory, &runtime_directory::private_path(directory)] {
        let failed = |path: &Path, error| Error::of_host("read", path.display(), errno(error));
        let entries = match fs::read_dir(place) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| failed(place, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| failed(place, error))?;
            let Some(writer) = entry.file_name().to_str().and_then(Writer::of_file_name) else { continue };
            let path = entry.path();
            if let Some(text) = read_own(&path).map_err(|error| failed(&path, error))? {
                let mut journal = Journal { path, ..Journal::parse(writer, &text) };
                journal.held.retain(|held| held.is_sound(clients));
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

/// True if the journal's writer holds it. The file is known to be ours.
fn is_held(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
        .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::AGAIN))
}

/// Text of a file that is ours; `None` if it is gone because its writer has just ended, or is not ours.
fn read_own(path: &Path) -> Result<Option<String>, std::io::Error> {
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
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
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
