//! What the journal (`knobs.rs`) undoes of this file system, after a normal end and after a crash.
//!
//! Nothing is done where no such file system is mounted any more: unmounting has undone everything. Each kind asks first whether there is
//! still something to undo, since others may have been at work meanwhile. All is done under the lock on the file system ([`Locks`]), which
//! is taken before the journal's, in the order in which `changes.rs` takes both.
//!
//! That it was unmounted and mounted again nothing tells for sure: the next mount gets the numbers of the last one (mount, device, inode),
//! and the same mount has other numbers in another namespace. But then the default group has all ways again. So after a crash, from a
//! default group that has all ways of a cache, none is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use units::WayMask;

use super::{Failed, Group, Mount, PREFIX, Resctrl, Resource, Schemata, Values, tasks};
use crate::journal::{Undone, is_plain};
use crate::{Error, KernelFiles, Lock, Locked, Pid, children, stat};

/// Where the file system was mounted, and how something in it is undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Undo {
    /// The directory, relative to the root.
    pub(super) mount: String,
    /// How.
    pub(super) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    /// The path is a group's directory, which is removed: its tasks and processors go back to the default group.
    Remove,
    /// The path is a `schemata` file, of which the old line is written, as far as it has domains that are still there.
    Line,
    /// The old value is written.
    Value,
    /// The path is a `tasks` file of somebody else's group; part and old value are an [`Origin`].
    Tasks,
}

/// When something is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// By the process that did it, at its end.
    AtTheEnd,
    /// By another, after that process was killed, however long ago.
    AfterACrash,
}

/// The locks on the file systems in which something is to be undone.
#[derive(Debug)]
pub(crate) struct Locks(BTreeMap<String, Result<Locked, Failed>>);

impl Locks {
    /// Takes those that these need, and waits for others, but not for long: whoever changes something is soon done.
    pub(crate) fn take<'u>(files: &impl KernelFiles, undos: impl Iterator<Item = &'u Undo>) -> Locks {
        const WAIT: Duration = Duration::from_millis(10);
        const WAITS_MAX: u32 = 500;
        let mounted: BTreeSet<String> =
            Mount::all(files).unwrap_or_default().into_iter().map(|mount| mount.directory).collect();
        let wanted: BTreeSet<&str> = undos.map(|undo| undo.mount.as_str()).filter(|at| mounted.contains(*at)).collect();
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
        Locks(wanted.into_iter().map(|at| (at.to_owned(), lock(at))).collect())
    }

    fn must_have(&self, mount: &str) -> Result<(), Failed> {
        match self.0.get(mount) {
            Some(Ok(_)) => Ok(()),
            Some(Err(failed)) => Err(failed.clone()),
            None => Err(Failed::of("lock", mount, Errno::AGAIN)), // mounted since
        }
    }
}

/// What a process had in a group of somebody else's before its threads were moved.
///
/// Back go the threads that were in it. If the first was, so do those that were born since then, here or in a child that was born since
/// then: without us they would have been born there. A child whose parent has ended is nobody's, and stays in the default group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pid: Pid,
    start_ticks: u64,
    /// When they were looked at.
    since_ticks: u64,
    threads: BTreeSet<Pid>,
}

impl Origin {
    /// All of a process, by groups. `taken` are the tasks in groups of others.
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

    /// `40-500`: the process, told apart from a later one with the same number.
    pub(super) fn part(&self) -> String {
        format!("{}-{}", self.pid, self.start_ticks)
    }

    /// `800 40 41`: when, and which threads.
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

    /// Those that belong there, whoever is in which group now.
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
    /// May a journal hold this? It names a file below the mount, and removes nothing but groups of ours.
    pub(crate) fn is_sound(&self, path: &str) -> bool {
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

    /// What is said of it.
    pub(crate) fn undone(&self) -> Undone {
        match self.how {
            How::Remove => Undone::Removed,
            How::Line | How::Value => Undone::Written,
            How::Tasks => Undone::Joined,
        }
    }

    /// Will there never be anything to undo? So it is with a process that has ended.
    pub(crate) fn is_over(&self, files: &impl KernelFiles, part: Option<&str>, old: &str) -> bool {
        let origin = part.filter(|_| self.how == How::Tasks).and_then(|part| Origin::parse(part, old));
        origin.is_some_and(|origin| !origin.is_alive(files))
    }

    /// Undoes it. False when there was nothing to undo.
    ///
    /// # Errors
    /// The kernel's answer: an exclusive group of somebody else's may stand in the way of a line. `EAGAIN` when the lock was not to be had.
    pub(crate) fn carry_out(
        &self,
        files: &impl KernelFiles,
        locks: &Locks,
        when: When,
        path: &str,
        part: Option<&str>,
        old: &str,
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

/// All ways of a cache; `None` for what is none.
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

/// Moves back those that are in no group of somebody else's by now.
fn move_back<F: KernelFiles>(resctrl: &Resctrl<'_, F>, path: &str, origin: &Origin) -> Result<bool, Failed> {
    if !origin.is_alive(resctrl.files) {
        return Ok(false);
    }
    let others: Vec<Group> = resctrl.all_groups()?.into_iter().filter(|group| !group.is_ours()).collect();
    let taken = resctrl.groups_of_tasks(&others)?;
    let mut moved = false;
    for thread in origin.belonging(resctrl.files)?.into_iter().filter(|thread| !taken.contains_key(thread)) {
        // A group that only counts takes none but the tasks of the group that it is in.
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
