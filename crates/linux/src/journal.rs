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
//! groups and puts lines and tasks back. The locks of such a client are taken before the journal's.
//!
//! A journal is a list of lines in JSON. A line without its end was being written when the process died, before the
//! setting was changed, and is ignored. A journal of an earlier boot, if the directory outlived it, is only removed.
//! Earlier versions kept journals in `/run/masu` itself: those are read as well. A journal with another owner is
//! skipped.
//!
//! Cost: a change reads the other journals and waits for the disk once; `/run` is in memory. Side effects: a setting
//! is restored even if another process changed it meanwhile.
//!
//! Truth: this file; each setting is described in the file that reads it.

mod client;
mod file;
pub mod runtime_directory;

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

/// Settings that this process has changed. Dropping restores them.
#[derive(Debug)]
pub struct HostSettings<'f, F: KernelFiles> {
    files: &'f F,
    directory: PathBuf,
    writer: Writer,
    journal: Option<File>,
    /// In order of the first change.
    held: Vec<Held>,
    /// Lines in the journal.
    lines: usize,
    /// Number of records from which expired ones are searched for.
    tidied_at: usize,
    /// Clients of the records, and those of other processes that are to be understood.
    clients: Vec<&'static dyn Client>,
}

/// Number of records or lines from which the journal is compacted, and again at each doubling of the remainder.
/// Bounds the journal of a process that runs for months.
const TIDIED_FROM: usize = 64;

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
struct Held {
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

impl Held {
    fn knob(path: &str, old: &str, only_if: Option<Mark>) -> Held {
        Held { path: path.to_owned(), old: old.to_owned(), only_if, part: None, tagged: Tagged::default() }
    }

    /// Key of the record: path and part.
    fn key(&self) -> String {
        key(&self.path, self.part.as_deref())
    }

    /// True if a journal may hold this record. A replay writes only files of the kernel, and of its stand-ins.
    fn is_sound(&self, clients: &[&'static dyn Client]) -> bool {
        if self.tagged.is_empty() {
            return is_knob(&self.path);
        }
        self.of_client(clients).is_some_and(|(client, record)| client.is_sound(record))
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
        let (journal, held, lines, clients) = (None, Vec::new(), 0, Vec::new());
        HostSettings {
            files,
            directory: directory.to_owned(),
            writer,
            journal,
            held,
            lines,
            tidied_at: TIDIED_FROM,
            clients,
        }
    }

    /// Sets `path` (relative to the root) to `value`, after its present value is safe in the journal.
    ///
    /// # Errors
    /// `Unsupported` for a setting that this kernel lacks, `Denied` without the privilege to change it or to write
    /// the journal. The setting is unchanged.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), Error> {
        let _lock = self.lock()?;
        let first_time = !self.holds(path);
        if first_time {
            let inherited = self.others().into_iter().find_map(|other| other.value_of(path));
            let old = match inherited {
                Some(old) => old,
                None => read_knob(self.files, path)?,
            };
            self.hold(Held::knob(path, &old, None))?;
        }
        let turned = write_knob(self.files, path, value);
        tracing::debug!(path, value, error = ?turned.as_ref().err(), "host setting set");
        if turned.is_err() && first_time {
            self.let_go(path)?;
        }
        turned
    }

    /// Records that `value` is to be written to `path` at the end, without reading or writing it now: for objects
    /// that are about to be made and must be undone. A file that is missing at the end is skipped.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn record_undo(&mut self, path: &str, value: &str) -> Result<(), Error> {
        self.record(Held::knob(path, value, None))
    }

    /// As [`HostSettings::record_undo`], but skipped at the end unless the object carries our `mark`: for paths where other
    /// programs may make objects too.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn record_undo_if_marked(&mut self, path: &str, value: &str, mark: Mark) -> Result<(), Error> {
        self.record(Held::knob(path, value, Some(mark)))
    }

    fn record(&mut self, held: Held) -> Result<(), Error> {
        let _lock = self.lock()?;
        if self.holds(&held.key()) { Ok(()) } else { self.hold(held) }
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
        if self.holds(&key) {
            return Ok(());
        }
        if !self.clients.iter().any(|known| known.tag() == client.tag()) {
            self.clients.push(client);
        }
        let _lock = self.lock()?;
        let inherited = self.others().into_iter().find_map(|other| other.value_of(&key));
        let old = inherited.map_or_else(old, Ok)?;
        let (path, part) = (path.to_owned(), part.map(str::to_owned));
        self.hold(Held { path, old, only_if: None, part, tagged: Tagged::new(client.tag(), data) })?;
        Ok(self.tidy()?)
    }

    /// Drops records that have nothing left to undo, once there are many.
    fn tidy(&mut self) -> Result<(), Error> {
        if self.held.len() < self.tidied_at {
            return Ok(());
        }
        let over: Vec<String> =
            self.held.iter().filter(|held| held.is_over(self.files, &self.clients)).map(Held::key).collect();
        over.iter().try_for_each(|key| self.let_go(key))?;
        self.tidied_at = TIDIED_FROM.max(2 * self.held.len());
        Ok(())
    }

    /// Drops a record that the caller has undone, or a setting that is to stay changed.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn release(&mut self, path: &str) -> Result<(), Error> {
        if !self.holds(path) {
            return Ok(());
        }
        let _lock = self.lock()?;
        self.let_go(path)?;
        self.remove_if_done()
    }

    /// Restores all settings, the last change first, and removes the journal. A setting that another living process
    /// has changed as well is left to that process.
    ///
    /// # Errors
    /// The first failure. The other settings are restored all the same; failed ones stay in the journal.
    pub fn restore(&mut self) -> Result<(), Error> {
        if self.held.is_empty() {
            return Ok(());
        }
        let locks = Locks::take(self.files, &self.clients, &self.held);
        // Without the directory there is no other process to respect, and the settings are still to be restored.
        let lock = self.lock();
        let others = self.others();
        let living: Vec<&Journal> = others.iter().filter(|other| other.is_alive(self.files)).collect();
        let mut first_failure = lock.as_ref().err().cloned();
        for held in self.held.clone().into_iter().rev() {
            let left_to_another = living.iter().any(|other| other.value_of(&held.key()).is_some());
            let done =
                if left_to_another { Ok(()) } else { restore(self.files, &locks, When::AtTheEnd, &held).map(drop) };
            tracing::debug!(key = held.key(), left_to_another, error = ?done.as_ref().err(), "host setting restored");
            if let Err(error) = done.and_then(|()| self.let_go(&held.key())) {
                first_failure.get_or_insert(error);
            }
        }
        let removed = self.remove_if_done();
        first_failure.map_or(removed, Err)
    }

    fn holds(&self, key: &str) -> bool {
        self.held.iter().any(|held| held.key() == key)
    }

    fn hold(&mut self, held: Held) -> Result<(), Error> {
        assert!(held.is_sound(&self.clients), "{}: not a file of the kernel, relative to the root", held.path);
        self.append(&Line::Turned(held.clone()))?;
        self.held.push(held);
        Ok(())
    }

    fn let_go(&mut self, key: &str) -> Result<(), Error> {
        self.held.retain(|held| held.key() != key);
        self.append(&Line::Kept(key.to_owned()))?;
        if self.lines < TIDIED_FROM.max(4 * self.held.len()) { Ok(()) } else { self.write_anew() }
    }

    /// Replaces the journal by one with the held records only.
    fn write_anew(&mut self) -> Result<(), Error> {
        let (path, new) = (self.journal_path(), self.journal_path().with_extension("new"));
        let failed = |error| Error::of_host("write", new.display(), errno(error));
        remove(&new)?; // left by a process that died in this step
        let mut file = new_journal(&new).map_err(failed)?;
        let lines = [Line::Boot(boot(self.files))].into_iter().chain(self.held.iter().cloned().map(Line::Turned));
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
        if self.held.is_empty() && self.journal.take().is_some() {
            remove(&self.journal_path())?;
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

/// Restores settings that dead processes have left changed, and removes their journals. Journals of living processes
/// are not touched, nor are settings that one of them has changed as well. `clients` undo their own records.
///
/// # Errors
/// `Denied` if the directory is not ours alone. A missing directory means that there is nothing to do.
pub fn replay(
    files: &impl KernelFiles,
    directory: &Path,
    clients: &[&'static dyn Client],
) -> Result<Vec<Restored>, Error> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    runtime_directory::private(directory)?;
    let ended = journals_in(directory, clients)?.into_iter().filter(|journal| !journal.writer.is_alive(files));
    let to_undo: Vec<Held> = ended.flat_map(|journal| journal.held).collect();
    let locks = Locks::take(files, clients, &to_undo);
    let _lock = lock(directory)?;
    let (living, dead): (Vec<_>, Vec<_>) =
        journals_in(directory, clients)?.into_iter().partition(|journal| journal.is_alive(files));
    let this_boot = boot(files);
    let mut restored: Vec<Restored> = Vec::new();
    for journal in dead {
        let mut complete = true;
        for held in journal.held.iter().rev().filter(|_| journal.is_of_boot(&this_boot)) {
            if living.iter().any(|other| other.value_of(&held.key()).is_some()) {
                continue;
            }
            let failure = match restore(files, &locks, When::AfterACrash, held) {
                Ok(Outcome::Nothing) => continue,
                Ok(Outcome::Tried) => None,
                Err(error) => Some(error),
            };
            complete &= failure.is_none();
            let (undone, writer) = (held.undone(clients), journal.writer.pid);
            restored.push(Restored { path: held.path.clone(), value: held.old.clone(), undone, writer, failure });
        }
        if complete {
            remove(&journal.path)?;
        }
    }
    Ok(restored)
}

/// True for paths that a journal may hold: the kernel's files, so a replay never writes anything else.
fn is_knob(path: &str) -> bool {
    let of_kernel = path.starts_with("sys/") || path.starts_with("proc/");
    of_kernel && is_plain(path)
}

/// True for a relative path without `..`.
pub(crate) fn is_plain(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Present value, in the form to write: the bracketed word of a list of words, or the text without the line's end.
fn read_knob(files: &impl KernelFiles, path: &str) -> Result<String, Error> {
    let text = files.read(path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
    Ok(bracketed::chosen(&text).unwrap_or(text.trim()).to_owned())
}

fn write_knob(files: &impl KernelFiles, path: &str, value: &str) -> Result<(), Error> {
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
fn restore(files: &impl KernelFiles, locks: &Locks<'_>, when: When, held: &Held) -> Result<Outcome, Error> {
    if let Some(done) = locks.carry_out(files, when, held) {
        return Ok(if done? { Outcome::Tried } else { Outcome::Nothing });
    }
    let carries = |mark: &Mark| files.read(&mark.path).is_ok_and(|text| text.trim() == mark.value);
    if !held.only_if.as_ref().is_none_or(carries) {
        return Ok(Outcome::Tried);
    }
    match write_knob(files, &held.path, &held.old) {
        Err(error) if matches!(error.errno(), Some(Errno::NOENT | Errno::SRCH | Errno::NODEV)) => Ok(Outcome::Tried),
        // Restored already, or never changed: DAMON refuses "off" for a kdamond that was never on.
        Err(_) if read_knob(files, &held.path).as_ref() == Ok(&held.old) => Ok(Outcome::Tried),
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
