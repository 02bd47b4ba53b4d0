//! Settings of the host: each one that masu sets is restored when masu ends, also after SIGTERM and after a crash.
//!
//! Before a setting is changed, its value is written to `/run/masu/private/<pid>-<start>.journal`, the journal of
//! this process, and to disk. A normal end restores the settings in reverse order and removes the journal. After any
//! other end the next start finds the journal of a dead process and restores then ([`replay`]). The caller decides
//! which ends are normal, SIGTERM included: dropping [`HostSettings`] is one. A process holds flock(2) on its journal while
//! it lives, which also shows in another PID namespace. A journal of an earlier version is judged by process id and
//! start alone.
//!
//! Two processes may change the same setting. The second takes the first value from the first one's journal instead
//! of reading the setting, and the last to end restores it. One lock file in the directory orders all this.
//!
//! An undo need not be the write of a value: a module may undo its own records (`client.rs`), as `resctrl.rs` removes
//! groups and restores lines and tasks. The locks of such a client are taken before the journal's. A record of a client
//! that this masu does not know is by a newer version: it stays, and the journal with it, for that version.
//!
//! After a change the value read back follows in the journal. A setting that has another value at the end, and not the
//! first either, was changed by another program: it stays, and is named (`left_alone.rs`).
//!
//! A journal is a list of lines in JSON. A line without its end was being written when the process died, before the
//! setting was changed, and is ignored. A journal of an earlier boot, if the directory outlived it, is removed unread.
//! Earlier versions kept journals in `/run/masu` itself: those are read as well. A journal with another owner is
//! skipped.
//!
//! Cost: a change reads the other journals and waits for the disk twice; `/run` is in memory.
//!
//! Truth: this file; each setting is described in the file that reads it.

mod client;
mod file;
mod left_alone;
mod replay;
pub mod runtime_directory;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::errno;
use crate::{Error, KernelFiles, Pid, bracketed, stat};
pub use client::{Client, ClientLocks, Record, When};
use client::{Locks, Tagged};
use file::{Journal, Line, Writer, append_line, journals_in, new_journal};
pub use left_alone::LeftAlone;
pub use replay::{NewerJournal, Replay, Restored, Undone, replay};

/// Settings that this process has changed. Dropping restores them.
#[derive(Debug)]
pub struct HostSettings<'f, F: KernelFiles> {
    files: &'f F,
    directory: PathBuf,
    writer: Writer,
    journal: Option<File>,
    /// In order of the first change.
    records: Vec<UndoRecord>,
    /// Lines in the journal.
    lines: usize,
    /// Number of records from which expired ones are searched for.
    expiry_check_at: usize,
    /// Clients of the records, and those of other processes that are to be understood.
    clients: Vec<&'static dyn Client>,
    /// Settings after the last write, as read back, by path.
    written: BTreeMap<String, String>,
    /// Settings that the last [`HostSettings::restore`] did not write.
    left_alone: Vec<LeftAlone>,
}

/// Number of records or lines from which the journal is compacted, and again at each doubling of the remainder.
/// Bounds the journal of a process that runs for months.
const COMPACTED_FROM: usize = 64;

/// Mark that identifies an object as masu's at the time of the undo: the content of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// File, relative to the root.
    pub path: String,
    /// Its content, without the line's end.
    pub value: String,
}

/// Changed setting, and the value to restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UndoRecord {
    path: String,
    old: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    only_if: Option<Mark>,
    /// Part of the file to restore, if others stay: a line, or the tasks of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<String>,
    /// Data of the client that undoes this, if the undo is not a write of the old value.
    #[serde(flatten)]
    tagged: Tagged,
}

impl UndoRecord {
    fn of_setting(path: &str, old: &str, only_if: Option<Mark>) -> UndoRecord {
        UndoRecord { path: path.to_owned(), old: old.to_owned(), only_if, part: None, tagged: Tagged::default() }
    }

    /// Key of the record: path and part.
    fn key(&self) -> String {
        key(&self.path, self.part.as_deref())
    }

    /// True if a journal may hold this record. A replay writes only files of the kernel, and of its stand-ins.
    fn is_sound(&self, clients: &[&'static dyn Client]) -> bool {
        if self.tagged.is_empty() {
            return is_setting(&self.path);
        }
        self.of_client(clients).is_some_and(|(client, record)| client.is_sound(record))
    }

    /// True for a record of a client that is not among these.
    fn is_of_unknown(&self, clients: &[&'static dyn Client]) -> bool {
        !self.tagged.is_empty() && self.of_client(clients).is_none()
    }

    fn is_over(&self, files: &impl KernelFiles, clients: &[&'static dyn Client]) -> bool {
        self.of_client(clients).is_some_and(|(client, record)| client.is_over(files, record))
    }

    fn undone(&self, clients: &[&'static dyn Client]) -> Undone {
        self.of_client(clients).map_or(Undone::Written, |(client, record)| client.undone(record))
    }
}

fn key(path: &str, part: Option<&str>) -> String {
    part.map_or_else(|| path.to_owned(), |part| format!("{path}#{part}"))
}

impl<'f, F: KernelFiles> HostSettings<'f, F> {
    /// Opens the settings with their journal below `directory`, by convention `/run/masu`. Nothing is written before
    /// the first change.
    ///
    /// # Errors
    /// If the start of this process cannot be read.
    pub fn open(files: &'f F, directory: &Path) -> Result<HostSettings<'f, F>, Error> {
        let pid = Pid::own();
        let writer = Writer { pid, start_ticks: stat::stat(files, pid)?.start_ticks };
        Ok(HostSettings::of_writer(files, directory, writer))
    }

    fn of_writer(files: &'f F, directory: &Path, writer: Writer) -> HostSettings<'f, F> {
        let (journal, records, lines, clients) = (None, Vec::new(), 0, Vec::new());
        HostSettings {
            files,
            directory: directory.to_owned(),
            writer,
            journal,
            records,
            lines,
            expiry_check_at: COMPACTED_FROM,
            clients,
            written: BTreeMap::new(),
            left_alone: Vec::new(),
        }
    }

    /// Sets `path` (relative to the root) to `value`, after its present value is safe in the journal.
    ///
    /// # Errors
    /// `Unsupported` for a setting that this kernel lacks, `Denied` without the privilege to change it or to write
    /// the journal. The setting is unchanged.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), Error> {
        let set = self.set_locked(path, value);
        tracing::debug!(path, value, error = ?set.as_ref().err(), "host setting set");
        set
    }

    /// [`HostSettings::set`], without the event: standard error may be a pipe that is not read, and others wait for the
    /// lock.
    fn set_locked(&mut self, path: &str, value: &str) -> Result<(), Error> {
        let _lock = self.lock()?;
        let first_time = !self.has(path);
        if first_time {
            let inherited = self.others().into_iter().find_map(|other| other.value_of(path));
            if inherited.is_some() {
                self.mark_several(path)?;
            }
            let old = match inherited {
                Some(old) => old,
                None => read_setting(self.files, path)?,
            };
            self.add(UndoRecord::of_setting(path, &old, None))?;
        }
        let before = self.written.remove(path);
        if before.is_some() {
            self.append(&Line::Writing(path.to_owned()))?;
        }
        let set = write_setting(self.files, path, value);
        match &set {
            // The kernel may have rounded it.
            Ok(()) => self.know_written(path, read_setting(self.files, path).ok()),
            Err(_) if first_time => self.drop_record(path)?,
            Err(_) => self.know_written(path, before),
        }
        self.compact()?;
        set
    }

    /// Records that `value` is to be written to `path` at the end, without reading or writing it now: for objects
    /// that are about to be made and must be undone. A file that is missing at the end is skipped.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn record_undo(&mut self, path: &str, value: &str) -> Result<(), Error> {
        self.record(UndoRecord::of_setting(path, value, None))
    }

    /// As [`HostSettings::record_undo`], but skipped at the end unless the object carries our `mark`: for paths where other
    /// programs may make objects too.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn record_undo_if_marked(&mut self, path: &str, value: &str, mark: Mark) -> Result<(), Error> {
        self.record(UndoRecord::of_setting(path, value, Some(mark)))
    }

    fn record(&mut self, record: UndoRecord) -> Result<(), Error> {
        let _lock = self.lock()?;
        if self.has(&record.key()) { Ok(()) } else { self.add(record) }
    }

    /// As [`HostSettings::record_undo`], for an undo by a client, with its data in JSON. A record of another process is taken over;
    /// otherwise `old` is called.
    pub(crate) fn record_client_undo<E: From<Error>>(
        &mut self,
        client: &'static dyn Client,
        path: &str,
        part: Option<&str>,
        data: String,
        old: impl FnOnce() -> Result<String, E>,
    ) -> Result<(), E> {
        let key = key(path, part);
        if self.has(&key) {
            return Ok(());
        }
        if !self.clients.iter().any(|known| known.tag() == client.tag()) {
            self.clients.push(client);
        }
        let _lock = self.lock()?;
        let inherited = self.others().into_iter().find_map(|other| other.value_of(&key));
        let old = inherited.map_or_else(old, Ok)?;
        let (path, part) = (path.to_owned(), part.map(str::to_owned));
        self.add(UndoRecord { path, old, only_if: None, part, tagged: Tagged::new(client.tag(), data) })?;
        Ok(self.drop_expired()?)
    }

    /// Drops records that have nothing left to undo, once there are many.
    fn drop_expired(&mut self) -> Result<(), Error> {
        if self.records.len() < self.expiry_check_at {
            return Ok(());
        }
        let over: Vec<String> = self
            .records
            .iter()
            .filter(|record| record.is_over(self.files, &self.clients))
            .map(UndoRecord::key)
            .collect();
        over.iter().try_for_each(|key| self.drop_record(key))?;
        self.expiry_check_at = COMPACTED_FROM.max(2 * self.records.len());
        Ok(())
    }

    /// Drops a record that the caller has undone, or a setting that is to stay changed.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn release(&mut self, path: &str) -> Result<(), Error> {
        if !self.has(path) {
            return Ok(());
        }
        let _lock = self.lock()?;
        self.drop_record(path)?;
        self.remove_if_done()
    }

    /// Restores all settings, the last change first, and removes the journal. A setting that another living process
    /// has changed as well is left to that process, and one that has another value than was written stays: both are in
    /// [`HostSettings::left_alone`].
    ///
    /// # Errors
    /// The first failure. The other settings are restored all the same; failed ones stay in the journal.
    pub fn restore(&mut self) -> Result<(), Error> {
        if self.records.is_empty() {
            return Ok(());
        }
        self.left_alone.clear();
        let locks = Locks::take(self.files, &self.clients, &self.records);
        // Without the directory there is no other process to respect, and the settings are still to be restored.
        let lock = self.lock();
        let others = self.others();
        let living: Vec<&Journal> = others.iter().filter(|other| other.is_alive(self.files)).collect();
        let mut first_failure = lock.as_ref().err().cloned();
        let mut events = Vec::with_capacity(self.records.len());
        for record in self.records.clone().into_iter().rev() {
            let key = record.key();
            let left_alone = self.is_others(&record, &living);
            let left_to_another = left_alone.is_some();
            let done =
                if left_to_another { Ok(()) } else { restore(self.files, &locks, When::AtTheEnd, &record).map(drop) };
            self.left_alone.extend(left_alone);
            let dropped = done.as_ref().map_err(Error::clone).and_then(|()| self.drop_record(&key));
            if let Err(error) = dropped {
                first_failure.get_or_insert(error);
            }
            events.push((key, left_to_another, done.err()));
        }
        let removed = self.remove_if_done();
        drop((lock, locks));
        for (key, left_to_another, error) in events {
            tracing::debug!(key, left_to_another, ?error, "host setting restored");
        }
        first_failure.map_or(removed, Err)
    }

    /// Settings that the last [`HostSettings::restore`] left to others.
    pub fn left_alone(&self) -> &[LeftAlone] {
        &self.left_alone
    }

    fn has(&self, key: &str) -> bool {
        self.records.iter().any(|record| record.key() == key)
    }

    fn add(&mut self, record: UndoRecord) -> Result<(), Error> {
        assert!(record.is_sound(&self.clients), "{}: not a file of the kernel, relative to the root", record.path);
        self.append(&Line::Changed(record.clone()))?;
        self.records.push(record);
        Ok(())
    }

    /// Notes the value of a setting after our write. Without it, or its line, the setting is restored whatever its
    /// value is.
    fn know_written(&mut self, path: &str, value: Option<String>) {
        let Some(value) = value else { return };
        let line = Line::Written(path.to_owned(), value.clone());
        if self.append(&line).is_ok() {
            self.written.insert(path.to_owned(), value);
        }
    }

    fn drop_record(&mut self, key: &str) -> Result<(), Error> {
        self.records.retain(|record| record.key() != key);
        self.written.remove(key);
        self.append(&Line::Restored(key.to_owned()))?;
        self.compact()
    }

    fn compact(&mut self) -> Result<(), Error> {
        if self.lines < COMPACTED_FROM.max(4 * self.records.len()) { Ok(()) } else { self.rewrite() }
    }

    /// Replaces the journal by one without the lines of dropped records.
    fn rewrite(&mut self) -> Result<(), Error> {
        let (path, new) = (self.journal_path(), self.journal_path().with_extension("new"));
        let failed = |error| Error::of_host("write", new.display(), errno(error));
        remove(&new)?; // left by a process that died in this step
        let mut file = new_journal(&new).map_err(failed)?;
        let written = self.written.iter().map(|(path, value)| Line::Written(path.clone(), value.clone()));
        let records = self.records.iter().cloned().map(Line::Changed);
        let lines = [Line::Boot(boot(self.files))].into_iter().chain(records).chain(written);
        self.lines = 0;
        for line in lines {
            append_line(&mut file, &line).map_err(failed)?;
            self.lines += 1;
        }
        fs::rename(&new, &path).map_err(failed)?;
        self.journal = Some(file);
        Ok(())
    }

    fn journal_path(&self) -> PathBuf {
        runtime_directory::private_path(&self.directory).join(self.writer.file_name())
    }

    fn append(&mut self, line: &Line) -> Result<(), Error> {
        let path = self.journal_path();
        let failed = |error| Error::of_host("write", path.display(), errno(error));
        if self.journal.is_none() {
            let mut file = new_journal(&path).map_err(failed)?;
            append_line(&mut file, &Line::Boot(boot(self.files))).map_err(failed)?;
            (self.journal, self.lines) = (Some(file), 1);
        }
        let Some(journal) = &mut self.journal else { return Ok(()) };
        append_line(journal, line).map_err(failed)?;
        self.lines += 1;
        Ok(())
    }

    fn remove_if_done(&mut self) -> Result<(), Error> {
        if self.records.is_empty() && self.journal.take().is_some() {
            remove(&self.journal_path())?;
            if self.others().is_empty() {
                self.remove_marks();
            }
        }
        Ok(())
    }

    /// Journals of all other processes, living and dead.
    fn others(&self) -> Vec<Journal> {
        let mut journals = journals_in(&self.directory, &self.clients).unwrap_or_default();
        journals.retain(|journal| journal.writer != self.writer && journal.is_of_boot(&boot(self.files)));
        journals
    }

    fn lock(&self) -> Result<File, Error> {
        lock(&self.directory)
    }
}

impl<F: KernelFiles> Drop for HostSettings<'_, F> {
    fn drop(&mut self) {
        // Settings that could not be restored are in the journal, for the next start.
        let _ = self.restore();
    }
}

/// True for paths that a journal may hold: the kernel's files, so a replay never writes anything else.
fn is_setting(path: &str) -> bool {
    let of_kernel = path.starts_with("sys/") || path.starts_with("proc/");
    of_kernel && is_plain(path)
}

/// True for a relative path without `..`.
pub(crate) fn is_plain(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Present value, in the form to write: the bracketed word of a list of words, or the text without the line's end.
fn read_setting(files: &impl KernelFiles, path: &str) -> Result<String, Error> {
    let text = files.read(path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
    Ok(bracketed::chosen(&text).unwrap_or(text.trim()).to_owned())
}

fn write_setting(files: &impl KernelFiles, path: &str, value: &str) -> Result<(), Error> {
    let operation = format!("write {value:?} to");
    files.write(path, value).map_err(|errno| Error::of_host(operation, format_args!("/{path}"), errno))
}

/// Outcome of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Done, or unnecessary.
    Tried,
    /// Nothing left to undo, and nothing to report.
    Nothing,
}

/// Writes the old value, or has the client undo its record. A setting that is gone (of a process, a control group, a
/// monitor) needs no restore, nor does one that belongs to another program by now.
fn restore(files: &impl KernelFiles, locks: &Locks<'_>, when: When, record: &UndoRecord) -> Result<Outcome, Error> {
    if let Some(done) = locks.undo(files, when, record) {
        return Ok(if done? { Outcome::Tried } else { Outcome::Nothing });
    }
    let carries = |mark: &Mark| files.read(&mark.path).is_ok_and(|text| text.trim() == mark.value);
    if !record.only_if.as_ref().is_none_or(carries) {
        return Ok(Outcome::Tried);
    }
    match write_setting(files, &record.path, &record.old) {
        Err(error) if matches!(error.errno(), Some(Errno::NOENT | Errno::SRCH | Errno::NODEV)) => Ok(Outcome::Tried),
        // Restored already, or never changed: DAMON refuses "off" for a kdamond that was never on.
        Err(_) if read_setting(files, &record.path).as_ref() == Ok(&record.old) => Ok(Outcome::Tried),
        answer => answer.map(|()| Outcome::Tried),
    }
}

fn boot(files: &impl KernelFiles) -> String {
    files.read("proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Takes the lock. Waits briefly: the holder is soon done, unless it was stopped.
fn lock(directory: &Path) -> Result<File, Error> {
    const WAIT: Duration = Duration::from_millis(10);
    const WAITS_MAX: u32 = 500;
    runtime_directory::private(directory)?;
    let path = runtime_directory::private_path(directory).join("lock");
    let failed = |operation: &str, errno| Error::of_host(operation, path.display(), errno);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed("open", errno))?;
    let mut waits = 0;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) if waits < WAITS_MAX => sleep(WAIT),
            Err(Errno::INTR) => {}
            locked => return locked.map(|()| File::from(file)).map_err(|errno| failed("lock", errno)),
        }
        waits += 1;
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path).map_err(errno) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Error::of_host("remove", path.display(), errno)),
    }
}

#[cfg(test)]
pub(crate) mod tests;
