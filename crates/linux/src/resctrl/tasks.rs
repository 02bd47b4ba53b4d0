//! `tasks`, `cpus_list`, and `/proc/PID/cpu_resctrl_groups`: tasks and processors of a group.
//!
//! A task is a thread. A new task is in the group of its maker. A task's own group takes precedence over that of its
//! processor, and that over the default group.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use super::{Cpus, Failed, Group, Resctrl};
use crate::{Error, KernelFiles, Pid};

impl<F: KernelFiles> Resctrl<'_, F> {
    /// Thread ids of this group, its monitoring groups included. Threads of other PID namespaces are missing.
    ///
    /// # Errors
    /// `Gone` when the group no longer exists, `Malformed` for text of another form.
    pub fn tasks(&self, group: &Group) -> Result<BTreeSet<Pid>, Failed> {
        let (path, text) = self.read(group, "tasks")?;
        let parse = |word: &str| {
            word.parse().map_err(|_| Error::malformed(&path, format_args!("{word:?}, expected the number of a task")))
        };
        Ok(text.split_whitespace().map(parse).collect::<Result<_, Error>>()?)
    }

    /// Processors of this group: their tasks belong to it, unless a task has a group of its own.
    ///
    /// # Errors
    /// As [`Resctrl::tasks`].
    pub fn cpus(&self, group: &Group) -> Result<Cpus, Failed> {
        let (path, text) = self.read(group, "cpus_list")?;
        let malformed = || Error::malformed(path, format_args!("{:?}, expected processors such as 0-3,8", text.trim()));
        Ok(Cpus::parse(&text).ok_or_else(malformed)?)
    }

    /// True if the group is empty: no thread, no processor, and no unmanaged group within it.
    ///
    /// # Errors
    /// As [`Resctrl::tasks`].
    pub fn is_empty(&self, group: &Group) -> Result<bool, Failed> {
        let has_processors = match self.cpus(group) {
            Err(failed) if failed.is_gone() && self.exists(group) => false,
            cpus => !cpus?.0.is_empty(),
        };
        Ok(!has_processors
            && self.tasks(group)?.is_empty()
            && (group.is_monitor() || self.monitors(group)?.iter().all(Group::is_ours)))
    }

    /// The group of a process's first thread. Reads one file where the kernel has it (CONFIG_PROC_CPU_RESCTRL), else
    /// the tasks of all groups. An emulator does not have that file.
    ///
    /// # Errors
    /// `Gone` when the process ended.
    pub fn group_of(&self, pid: Pid) -> Result<Group, Failed> {
        let path = pid.file("cpu_resctrl_groups");
        let text = if self.mount.emulated { Err(Errno::NOENT) } else { self.files.read(&path) };
        match text {
            Ok(text) => {
                let malformed =
                    || Error::malformed(format_args!("/{path}"), format_args!("{text:?}, expected res: and mon:"));
                Ok(parse_groups(&text).ok_or_else(malformed)?)
            }
            Err(Errno::NOENT) => {
                let groups = self.groups_of_tasks(&self.all_groups()?)?;
                if let Some(group) = groups.get(&pid) {
                    return Ok(group.clone());
                }
                let own = pid.file("stat");
                let alive = self.files.read(&own).map_err(|errno| Failed::of("read", &own, errno));
                alive.map(|_| Group::DEFAULT)
            }
            Err(errno) => Err(Failed::of("read", &path, errno)),
        }
    }

    /// Innermost group of each task in these groups; tasks of the default group itself are left out.
    pub(super) fn groups_of_tasks(&self, groups: &[Group]) -> Result<BTreeMap<Pid, Group>, Failed> {
        let mut found = BTreeMap::new();
        // A monitoring group comes after its parent, so its entry overrides the parent's.
        for group in groups.iter().filter(|group| !group.is_default()) {
            match self.tasks(group) {
                Ok(tasks) => found.extend(tasks.into_iter().map(|task| (task, group.clone()))),
                Err(failed) if failed.is_gone() => {} // removed meanwhile, or pseudo-locked
                Err(failed) => return Err(failed),
            }
        }
        Ok(found)
    }

    /// Threads of a process in groups other than this one. The process's threads are listed before and after those of
    /// the groups: a thread that starts or ends in between is in one of the lists, and a thread born in this group is
    /// in no other group's list.
    pub(super) fn threads_outside(&self, pid: Pid, group: &Group) -> Result<BTreeSet<Pid>, Failed> {
        let mut threads = self.threads(pid)?;
        let classes = [vec![Group::DEFAULT], self.groups()?].concat();
        let mut others = BTreeSet::new();
        for class in classes.iter().filter(|class| **class != *group) {
            match self.tasks(class) {
                Ok(tasks) => others.extend(tasks),
                Err(failed) if failed.is_gone() => {} // removed meanwhile, or pseudo-locked
                Err(failed) => return Err(failed),
            }
        }
        // A monitoring group's threads are in its control group's list, too.
        let there = self.tasks(group)?;
        others.retain(|thread| !there.contains(thread));
        threads.append(&mut self.threads(pid)?);
        Ok(threads.intersection(&others).copied().collect())
    }

    /// The threads of a process now.
    pub(super) fn threads(&self, pid: Pid) -> Result<BTreeSet<Pid>, Failed> {
        threads(self.files, pid)
    }
}

/// The threads of a process now.
pub(super) fn threads(files: &impl KernelFiles, pid: Pid) -> Result<BTreeSet<Pid>, Failed> {
    let directory = pid.file("task");
    let names = files.list(&directory).map_err(|errno| Failed::of("list", &directory, errno))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Parses `res:/masu-web` and `mon:a`, each on a line of its own; `res:/` is the default group. `None` for other text,
/// also where nothing is mounted (`res:`).
pub(super) fn parse_groups(text: &str) -> Option<Group> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let (class, monitor) = (value("res:")?, value("mon:")?);
    if class.is_empty() {
        return None;
    }
    let named = |name: &str| Some(name.trim_matches('/').to_owned()).filter(|name| !name.is_empty());
    Some(Group { class: named(class), monitor: named(monitor) })
}
