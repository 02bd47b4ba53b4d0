//! Changes of groups, masks, modes and tasks: one process at a time, each change recorded in the journal first.
//!
//! This order leaves no way unguarded: shrink the default group, make the group, write its masks, make it exclusive,
//! move the tasks. The journal undoes in reverse.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use rustix::io::Errno;

use super::undo::{How, Origin, UNDO, Undo};
use super::{Failed, Group, Mode, Resctrl, Schemata, Why};
use crate::journal::HostSettings;
use crate::{At, Error, KernelFiles, Lock, Locked, Pid};

/// Called with the wait before another attempt; false to give up. The caller has the clock and decides when to stop.
pub type Patience<'p> = dyn FnMut(Duration) -> bool + 'p;

/// First wait; each further one is twice as long, up to [`WAIT_MAX`].
const WAIT_FIRST: Duration = Duration::from_millis(10);
/// Longest wait: the kernel checks RMIDs in limbo from time to time.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Maximum number of passes over the threads of a process; a process that still makes threads outside of the group then
/// is reported.
const ROUNDS_MAX: u32 = 64;

/// The right to change something: the lock on the file system, and the journal. Others wait until it is dropped.
#[derive(Debug)]
pub struct Changes<'c, 'f, F: KernelFiles> {
    resctrl: &'c Resctrl<'f, F>,
    settings: &'c mut HostSettings<'f, F>,
    /// `None` only when the lock was released to wait for an RMID and patience ended before it was free again.
    lock: Option<Locked>,
}

/// A group that we have made. While this value lives, no other masu takes the group for a leftover. Dropping it does
/// not remove the group ([`Changes::remove`] and the journal do).
#[derive(Debug)]
#[must_use = "without it, the group counts as left behind"]
pub struct OwnGroup {
    group: Group,
    _alive: Locked,
}

impl Deref for OwnGroup {
    type Target = Group;
    fn deref(&self) -> &Group {
        &self.group
    }
}

/// Result of moving a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Number of threads moved.
    pub threads: usize,
    /// Number of threads that ended before they could be moved.
    pub ended: usize,
    /// Number of passes over the list of threads.
    pub rounds: u32,
    /// True if all threads were in the group at the end. If not, the process makes threads faster than they can be
    /// moved.
    pub settled: bool,
}

impl<'f, F: KernelFiles> Resctrl<'f, F> {
    /// Takes the lock for changes. Hold it briefly: others wait.
    ///
    /// # Errors
    /// `Locked` when patience ended before the others released the lock.
    pub fn change<'c>(
        &'c self,
        settings: &'c mut HostSettings<'f, F>,
        patience: &mut Patience<'_>,
    ) -> Result<Changes<'c, 'f, F>, Failed> {
        let lock = retrying(Errno::AGAIN, patience, || self.lock(Lock::Exclusive))?;
        Ok(Changes { resctrl: self, settings, lock: Some(lock) })
    }
}

/// Retries while the call fails with this error.
fn retrying<T>(
    errno: Errno,
    patience: &mut Patience<'_>,
    mut attempt: impl FnMut() -> Result<T, Failed>,
) -> Result<T, Failed> {
    let mut wait = WAIT_FIRST;
    loop {
        match attempt() {
            Err(failed) if failed.errno() == Some(errno) && patience(wait) => wait = (wait * 2).min(WAIT_MAX),
            answer => return answer,
        }
    }
}

impl<F: KernelFiles> Changes<'_, '_, F> {
    /// The file system, for reading.
    pub fn resctrl(&self) -> &Resctrl<'_, F> {
        self.resctrl
    }

    /// Makes a group of ours. It begins with free or shared ways ([`Changes::write`] gives it others), and without
    /// tasks. Other programs may change something while this waits for an RMID.
    ///
    /// # Errors
    /// `NameTaken`, `Full`, and `Busy` when patience ended before an RMID was free; `NotOurs` for another name.
    /// `Locked` when patience ended while another process had the lock: then no further change is possible through this
    /// value.
    pub fn make(&mut self, group: &Group, patience: &mut Patience<'_>) -> Result<OwnGroup, Failed> {
        self.must_be_ours(group, "make")?;
        let path = self.resctrl.directory(group);
        if self.resctrl.exists(group) {
            return Err(Failed::of("make", &path, Errno::EXIST));
        }
        self.record_undo(&path, None, How::Remove, || Ok(String::new()))?;
        match self.make_directory(&path, patience) {
            Ok(alive) => Ok(OwnGroup { group: group.clone(), _alive: alive }),
            Err(failed) => {
                let _ = self.settings.release(&path); // the error of `make_directory` matters more
                Err(failed)
            }
        }
    }

    /// Makes the directory, and locks it as a sign that its maker lives. If locking fails, the directory is removed.
    fn make_directory(&mut self, path: &str, patience: &mut Patience<'_>) -> Result<Locked, Failed> {
        let mut wait = WAIT_FIRST;
        loop {
            self.must_be_locked()?;
            match self.resctrl.files.make_directory(path).map_err(|errno| self.failed("make", path, errno)) {
                Err(failed) if failed.errno() == Some(Errno::BUSY) => {
                    self.lock = None;
                    let goes_on = patience(wait);
                    self.lock = Some(retrying(Errno::AGAIN, patience, || self.resctrl.lock(Lock::Exclusive))?);
                    if !goes_on {
                        return Err(failed);
                    }
                    wait = (wait * 2).min(WAIT_MAX);
                }
                made => break made?,
            }
        }
        // A search for leftover groups runs under the lock on the file system, but not every program takes that lock.
        let alive = retrying(Errno::AGAIN, patience, || {
            self.resctrl.files.lock(path, Lock::Shared).map_err(|errno| Failed::of("lock", path, errno))
        });
        alive.inspect_err(|_| {
            let _ = self.resctrl.files.remove_directory(path);
        })
    }

    /// Removes a group of ours: its tasks and processors go to the default group, or to the parent of a monitoring
    /// group.
    ///
    /// # Errors
    /// The kernel's answer. A group that is gone already is no error.
    pub fn remove(&mut self, own: OwnGroup) -> Result<(), Failed> {
        self.must_be_locked()?;
        let path = self.remove_directory(&own)?;
        Ok(self.settings.release(&path)?)
    }

    fn remove_directory(&self, group: &Group) -> Result<String, Failed> {
        let path = self.resctrl.directory(group);
        match self.resctrl.files.remove_directory(&path) {
            Ok(()) | Err(Errno::NOENT) => Ok(path),
            Err(errno) => Err(self.failed("remove", &path, errno)),
        }
    }

    /// Removes empty groups with our prefix that no living masu has made, and returns them. A group with tasks may
    /// belong to another program, whatever its name: groups in use by a dead masu are undone by its journal.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn collect(&mut self) -> Result<Vec<Group>, Failed> {
        self.must_be_locked()?;
        let mut collected = Vec::new();
        for group in self.resctrl.all_groups()?.into_iter().filter(Group::is_ours) {
            let path = self.resctrl.directory(&group);
            match self.resctrl.files.lock(&path, Lock::Exclusive) {
                Ok(_nobody) if !self.resctrl.is_empty(&group).unwrap_or(false) => continue,
                Ok(_nobody) => drop(self.remove_directory(&group)?),
                // Its maker lives, or it was removed with its parent.
                Err(Errno::AGAIN | Errno::NOENT) => continue,
                Err(errno) => return Err(Failed::of("lock", &path, errno)),
            }
            collected.push(group);
        }
        Ok(collected)
    }

    /// Writes these lines and leaves all others. Returns them as read back, which may differ from the request. The
    /// default group's old lines are restored at the end.
    ///
    /// # Errors
    /// `Refused` for an invalid mask, an overlap with an exclusive group, an unknown domain or resource: then nothing
    /// was written. `NotOurs` for an unmanaged group.
    pub fn write(&mut self, group: &Group, lines: &Schemata) -> Result<Schemata, Failed> {
        self.may_change(group, "write")?;
        let path = self.resctrl.file(group, "schemata");
        if group.is_default() {
            let resctrl = self.resctrl;
            for (resource, values) in lines.as_in(&resctrl.schemata(group)?).0 {
                let line = Schemata([(resource.clone(), values)].into());
                let old = || Ok(line.as_in(&resctrl.schemata(group)?).command().trim().to_owned());
                self.record_undo(&path, Some(&resource.to_string()), How::Line, old)?;
            }
        }
        let command = lines.command();
        if !command.is_empty() {
            self.command(&path, &command)?;
        }
        Ok(lines.as_in(&self.resctrl.schemata(group)?))
    }

    /// Makes a group's ways shareable or exclusive.
    ///
    /// # Errors
    /// `Refused` when it overlaps another group, or ways of devices (`shareable_bits`). `NotOurs` for an unmanaged
    /// group.
    pub fn set_mode(&mut self, group: &Group, mode: Mode) -> Result<(), Failed> {
        self.may_change(group, "change")?;
        let path = self.resctrl.file(group, "mode");
        if group.is_default() {
            let resctrl = self.resctrl;
            self.record_undo(&path, None, How::Value, || Ok(resctrl.mode(group)?.word().to_owned()))?;
        }
        self.command(&path, &format!("{}\n", mode.word()))
    }

    /// Moves one thread, which may be our own. Threads that it makes later start in the same group.
    ///
    /// # Errors
    /// `Gone` when it ended, `Denied` when it belongs to another user and we are not root. `NotOurs` for an unmanaged
    /// group.
    pub fn move_thread(&mut self, thread: Pid, group: &Group) -> Result<(), Failed> {
        self.may_change(group, "move tasks to")?;
        let path = self.resctrl.file(group, "tasks");
        self.resctrl
            .files
            .write(&path, &format!("{thread}\n"))
            .map_err(|errno| self.failed(&format!("move task {thread} to"), &path, errno))
    }

    /// Moves all threads of a process, new ones included, until all are in the group. Threads from an unmanaged group
    /// are moved back at the end, together with the threads and children born since. Not moved back are children of a
    /// child that has ended by then: their parent is unknown.
    ///
    /// # Errors
    /// `Gone` when the process ended, `Denied` when it belongs to another user and we are not root. `NotOurs` for an
    /// unmanaged group.
    pub fn move_process(&mut self, pid: Pid, group: &Group) -> Result<Moved, Failed> {
        self.may_change(group, "move tasks to")?;
        self.record_origins(pid)?;
        let mut moved = Moved::default();
        let mut ended: BTreeSet<Pid> = BTreeSet::new();
        while moved.rounds < ROUNDS_MAX {
            moved.rounds += 1;
            let outside = self.resctrl.threads_outside(pid, group)?;
            let missing: Vec<Pid> = outside.into_iter().filter(|thread| !ended.contains(thread)).collect();
            if missing.is_empty() {
                moved.settled = true;
                break;
            }
            for thread in missing {
                match self.move_thread(thread, group) {
                    Ok(()) => moved.threads += 1,
                    Err(failed) if failed.errno() == Some(Errno::SRCH) => drop(ended.insert(thread)),
                    Err(failed) => return Err(failed),
                }
            }
        }
        moved.ended = ended.len();
        Ok(moved)
    }

    /// Records the threads of a process that are in unmanaged groups.
    fn record_origins(&mut self, pid: Pid) -> Result<(), Failed> {
        let others: Vec<Group> = self.resctrl.all_groups()?.into_iter().filter(|group| !group.is_ours()).collect();
        let taken = self.resctrl.groups_of_tasks(&others)?;
        if taken.is_empty() {
            return Ok(());
        }
        for (group, origin) in Origin::all(self.resctrl.files, pid, &taken)? {
            let path = self.resctrl.file(&group, "tasks");
            self.record_undo(&path, Some(&origin.part()), How::Tasks, || Ok(origin.old()))?;
        }
        Ok(())
    }

    fn record_undo(
        &mut self,
        path: &str,
        part: Option<&str>,
        how: How,
        old: impl FnOnce() -> Result<String, Failed>,
    ) -> Result<(), Failed> {
        let undo = Undo { mount: self.resctrl.mount.directory.clone(), how };
        self.settings.record_client_undo(UNDO, path, part, undo.data()?, old)
    }

    /// One write, ended with a newline.
    fn command(&self, path: &str, command: &str) -> Result<(), Failed> {
        let written = self.resctrl.files.write(path, command);
        written.map_err(|errno| self.failed(&format!("write {:?} to", command.trim()), path, errno))
    }

    /// Adds the kernel's text about the last command. We hold the lock, but not every program takes it.
    fn failed(&self, operation: &str, path: &str, errno: Errno) -> Failed {
        Failed { status: self.resctrl.last_command(), ..Failed::of(operation, path, errno) }
    }

    fn must_be_locked(&self) -> Result<(), Failed> {
        let directory = &self.resctrl.mount.directory;
        self.lock.as_ref().map(drop).ok_or_else(|| Failed::of("lock", directory, Errno::AGAIN))
    }

    fn may_change(&self, group: &Group, operation: &str) -> Result<(), Failed> {
        if group.is_default() { Ok(()) } else { self.must_be_ours(group, operation) }
    }

    fn must_be_ours(&self, group: &Group, operation: &str) -> Result<(), Failed> {
        self.must_be_locked()?;
        if group.is_ours() {
            return Ok(());
        }
        let object = format!("/{}, which is not masu's", self.resctrl.directory(group));
        let error = Error::Denied(At { operation: operation.to_owned(), object, errno: Errno::PERM });
        Err(Failed { why: Why::NotOurs, error, status: None })
    }
}
