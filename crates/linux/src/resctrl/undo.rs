//! Undo of resctrl changes, as a client of the journal (`journal.rs`), after a normal end and after a crash.
//!
//! Nothing is done where no such file system is mounted any more: unmounting has undone everything. Each kind first
//! checks for something to undo, since other programs may have made changes meanwhile. All is done under the lock on
//! the file system ([`Locks`]), which is taken before the journal's, in the same order as in `write.rs`.
//!
//! A remount cannot be detected for sure: the next mount gets the numbers of the last one (mount, device, inode), and
//! the same mount has other numbers in another namespace. But a remount gives the default group all ways. So after a
//! crash, a default group that has all ways of a cache is not shrunk.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use units::WayMask;

use super::{Failed, Group, Mount, PREFIX, Resctrl, Resource, Schemata, Values, tasks};
use crate::journal::{Client, ClientLocks, Record, Undone, When, is_plain};
use crate::{Error, KernelFiles, Lock, Locked, Pid, children, stat};

/// Mount point of the file system, and the kind of undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Undo {
    /// Mount point, relative to the root.
    pub(super) mount: String,
    /// Kind of undo.
    pub(super) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    /// The path is a group's directory, which is removed: its tasks and processors go back to the default group.
    Remove,
    /// The path is a `schemata` file. The old line is written, restricted to domains that still exist.
    Line,
    /// The old value is written.
    Value,
    /// The path is a `tasks` file of an unmanaged group; part and old value are an [`Origin`].
    Tasks,
}

/// Undo of the records that [`Changes`](super::Changes) leaves in a journal, for [`replay`](crate::journal::replay).
pub const UNDO: &dyn Client = &Undos;

/// The client, under the tag `resctrl`.
#[derive(Debug)]
struct Undos;

impl Client for Undos {
    fn tag(&self) -> &'static str {
        "resctrl"
    }

    fn is_sound(&self, record: Record<'_>) -> bool {
        Undo::of(record).is_some_and(|undo| undo.is_sound(record.path))
    }

    fn is_over(&self, files: &dyn KernelFiles, record: Record<'_>) -> bool {
        Undo::of(record).is_some_and(|undo| undo.is_over(&files, record))
    }

    fn undone(&self, record: Record<'_>) -> Undone {
        Undo::of(record).map_or(Undone::Written, |undo| undo.undone())
    }

    fn lock(&self, files: &dyn KernelFiles, records: &[Record<'_>]) -> Box<dyn ClientLocks> {
        Box::new(Locks::take(&files, records.iter().filter_map(|record| Undo::of(*record))))
    }
}

/// Locks on the file systems of the undos.
#[derive(Debug)]
struct Locks(BTreeMap<String, Result<Locked, Failed>>);

impl Locks {
    /// Takes the locks that these undos need. Waits for other holders, but not for long: changes are short.
    fn take(files: &impl KernelFiles, undos: impl Iterator<Item = Undo>) -> Locks {
        const WAIT: Duration = Duration::from_millis(10);
        const WAITS_MAX: u32 = 500;
        let mounted: BTreeSet<String> =
            Mount::all(files).unwrap_or_default().into_iter().map(|mount| mount.directory).collect();
        let wanted: BTreeSet<String> = undos.map(|undo| undo.mount).filter(|at| mounted.contains(at)).collect();
        let lock = |at: &str| {
            let mut waits = 0;
            loop {
                match files.lock(at, Lock::Exclusive) {
                    Err(Errno::AGAIN) if waits < WAITS_MAX => sleep(WAIT),
                    locked => return locked.map_err(|errno| Failed::of("lock", at, errno)),
                }
                waits += 1;
            }
        };
        Locks(wanted.into_iter().map(|at| (at.clone(), lock(&at))).collect())
    }

    fn must_have(&self, mount: &str) -> Result<(), Failed> {
        match self.0.get(mount) {
            Some(Ok(_)) => Ok(()),
            Some(Err(failed)) => Err(failed.clone()),
            None => Err(Failed::of("lock", mount, Errno::AGAIN)), // mounted since
        }
    }
}

impl ClientLocks for Locks {
    fn undo(&self, files: &dyn KernelFiles, when: When, record: Record<'_>) -> Result<bool, Error> {
        Undo::of(record).map_or(Ok(false), |undo| undo.run(&files, self, when, record))
    }
}

/// Threads of a process that were in an unmanaged group before the move.
///
/// They are moved back. If the first thread was in it, so are threads born since, in this process or in a child born
/// since: without us they would have been born there. A child whose parent has ended cannot be attributed, and stays in
/// the default group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pid: Pid,
    start_ticks: u64,
    /// Time of the record, in ticks.
    since_ticks: u64,
    threads: BTreeSet<Pid>,
}

impl Origin {
    /// Origins of a process, one per group. `taken` are the tasks in unmanaged groups.
    pub(super) fn all(
        files: &impl KernelFiles,
        pid: Pid,
        taken: &BTreeMap<Pid, Group>,
    ) -> Result<BTreeMap<Group, Origin>, Failed> {
        let mut threads: BTreeMap<Group, BTreeSet<Pid>> = BTreeMap::new();
        for thread in tasks::threads(files, pid)? {
            if let Some(group) = taken.get(&thread) {
                threads.entry(group.clone()).or_default().insert(thread);
            }
        }
        if threads.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (start_ticks, since_ticks) = (stat::stat(files, pid)?.start_ticks, stat::now_ticks(files)?);
        let origin = |threads| Origin { pid, start_ticks, since_ticks, threads };
        Ok(threads.into_iter().map(|(group, threads)| (group, origin(threads))).collect())
    }

    /// `40-500`: process id and start time, which tell it from a later process with the same id.
    pub(super) fn part(&self) -> String {
        format!("{}-{}", self.pid, self.start_ticks)
    }

    /// `800 40 41`: time in ticks, and thread ids.
    pub(super) fn old(&self) -> String {
        self.threads.iter().fold(self.since_ticks.to_string(), |text, thread| format!("{text} {thread}"))
    }

    fn parse(part: &str, old: &str) -> Option<Origin> {
        let (pid, start_ticks) = part.split_once('-')?;
        let (since_ticks, threads) = old.split_once(' ')?;
        let threads = threads.split(' ').map(|thread| thread.parse().ok()).collect::<Option<_>>()?;
        let (pid, start_ticks, since_ticks) = (pid.parse().ok()?, start_ticks.parse().ok()?, since_ticks.parse().ok()?);
        Some(Origin { pid, start_ticks, since_ticks, threads })
    }

    fn is_alive(&self, files: &impl KernelFiles) -> bool {
        stat::stat(files, self.pid).is_ok_and(|stat| stat.start_ticks == self.start_ticks)
    }

    /// Threads that belong to the group, regardless of their groups now.
    fn belonging(&self, files: &impl KernelFiles) -> Result<Vec<Pid>, Failed> {
        let since =
            |pid, thread| stat::of_thread(files, pid, thread).is_ok_and(|stat| stat.start_ticks >= self.since_ticks);
        let all = self.threads.contains(&self.pid);
        let threads = tasks::threads(files, self.pid)?;
        let mut belonging: Vec<Pid> =
            threads.into_iter().filter(|one| self.threads.contains(one) || all && since(self.pid, *one)).collect();
        if !all {
            return Ok(belonging);
        }
        let mut parents = BTreeSet::from([self.pid]);
        for child in children::descendants(files, self.pid)? {
            let Ok(stat) = stat::stat(files, child) else { continue }; // it ended
            if stat.start_ticks >= self.since_ticks && parents.contains(&stat.parent) {
                parents.insert(child);
                belonging.extend(tasks::threads(files, child).into_iter().flatten());
            }
        }
        Ok(belonging)
    }
}

impl Undo {
    fn of(record: Record<'_>) -> Option<Undo> {
        serde_json::from_str(record.data).ok()
    }

    /// Data of the record, from which [`Undo::of`] makes this again.
    pub(super) fn data(&self) -> Result<String, Error> {
        serde_json::to_string(self)
            .map_err(|error| Error::of_host("record", "an undo of resctrl", crate::error::errno(error.into())))
    }

    /// True if a journal may hold this: it names a file below the mount, and removes only groups of ours.
    pub(super) fn is_sound(&self, path: &str) -> bool {
        let below = path.strip_prefix(&self.mount).and_then(|rest| rest.strip_prefix('/'));
        let name = path.rsplit('/').next().unwrap_or_default();
        let right = match self.how {
            How::Remove => name.starts_with(PREFIX),
            How::Line => name == "schemata",
            How::Value => name == "mode",
            How::Tasks => name == "tasks",
        };
        is_plain(&self.mount) && below.is_some_and(is_plain) && right
    }

    /// Description of the undo for the report.
    fn undone(&self) -> Undone {
        match self.how {
            How::Remove => Undone::Removed,
            How::Line | How::Value => Undone::Written,
            How::Tasks => Undone::Joined,
        }
    }

    /// True if there will never be anything to undo: the process has ended.
    fn is_over(&self, files: &impl KernelFiles, Record { part, old, .. }: Record<'_>) -> bool {
        let origin = part.filter(|_| self.how == How::Tasks).and_then(|part| Origin::parse(part, old));
        origin.is_some_and(|origin| !origin.is_alive(files))
    }

    /// Performs the undo. False when there was nothing to undo.
    ///
    /// # Errors
    /// The kernel's answer: an exclusive unmanaged group may block a line. `EAGAIN` when the lock could not be taken.
    fn run(
        &self,
        files: &impl KernelFiles,
        locks: &Locks,
        when: When,
        Record { path, part, old, .. }: Record<'_>,
    ) -> Result<bool, Error> {
        let mounts = Mount::all(files)?;
        let Some(mount) = mounts.into_iter().find(|mount| mount.directory == self.mount) else { return Ok(false) };
        let resctrl = Resctrl { files, mount };
        let done = || match self.how {
            How::Remove => remove(files, path),
            How::Line => write_line(&resctrl, path, old, when),
            How::Value => write_value(files, path, old),
            How::Tasks => {
                let origin = part.and_then(|part| Origin::parse(part, old));
                origin.map_or(Ok(false), |origin| move_back(&resctrl, path, &origin))
            }
        };
        match locks.must_have(&self.mount).and_then(|()| done()) {
            Err(failed) if failed.is_gone() => Ok(false),
            done => done.map_err(|failed| failed.error),
        }
    }
}

fn remove(files: &impl KernelFiles, path: &str) -> Result<bool, Failed> {
    files.remove_directory(path).map(|()| true).map_err(|errno| Failed::of("remove", path, errno))
}

fn write_line<F: KernelFiles>(resctrl: &Resctrl<'_, F>, path: &str, old: &str, when: When) -> Result<bool, Failed> {
    let present = resctrl.files.read(path).map_err(|errno| Failed::of("read", path, errno))?;
    let present = Schemata::parse(&format!("/{path}"), &present)?;
    let mut lines = Schemata::parse("the journal", old)?.still_to_write(&present);
    if when == When::AfterACrash {
        for (resource, values) in &mut lines.0 {
            if let (Values::Masks(masks), Some(there), Some(full)) =
                (values, present.masks(resource), full(resctrl, resource))
            {
                masks.retain(|cache, _| there.get(cache) != Some(&full));
            }
        }
    }
    let command = lines.command();
    if command.is_empty() {
        return Ok(false);
    }
    write(resctrl.files, path, &command).map(|()| true)
}

/// All ways of a cache; `None` for other resources.
fn full<F: KernelFiles>(resctrl: &Resctrl<'_, F>, resource: &Resource) -> Option<WayMask> {
    resctrl.files.read(&resctrl.path_of(&format!("info/{resource}/cbm_mask"))).ok()?.trim().parse().ok()
}

fn write_value(files: &impl KernelFiles, path: &str, old: &str) -> Result<bool, Failed> {
    let present = files.read(path).map_err(|errno| Failed::of("read", path, errno))?;
    if present.trim() == old {
        return Ok(false);
    }
    write(files, path, &format!("{old}\n")).map(|()| true)
}

/// Moves back the threads that are now in no unmanaged group.
fn move_back<F: KernelFiles>(resctrl: &Resctrl<'_, F>, path: &str, origin: &Origin) -> Result<bool, Failed> {
    if !origin.is_alive(resctrl.files) {
        return Ok(false);
    }
    let others: Vec<Group> = resctrl.all_groups()?.into_iter().filter(|group| !group.is_ours()).collect();
    let taken = resctrl.groups_of_tasks(&others)?;
    let mut moved = false;
    for thread in origin.belonging(resctrl.files)?.into_iter().filter(|thread| !taken.contains_key(thread)) {
        // A monitoring group takes only tasks of its parent group.
        let class = path.rsplit_once("mon_groups/").map(|(class, _)| format!("{class}tasks"));
        for file in class.iter().map(String::as_str).chain([path]) {
            match resctrl.files.write(file, &format!("{thread}\n")) {
                Ok(()) => moved = true,
                Err(Errno::SRCH) => break, // it ended
                Err(errno) => return Err(Failed::of(format!("move task {thread} to"), file, errno)),
            }
        }
    }
    Ok(moved)
}

fn write(files: &impl KernelFiles, path: &str, command: &str) -> Result<(), Failed> {
    files.write(path, command).map_err(|errno| Failed::of(format!("write {:?} to", command.trim()), path, errno))
}
