//! Groups of other tools: owner, processes, and whether they could be removed.
//!
//! Each takes a class of service (CLOSID). When the classes run out, programs share one, and the reader needs to know
//! which groups have the others. [`used_up`] and [`SharedClasses`] are pure; [`other_groups`] reads the file system.

use std::collections::BTreeMap;
use std::fmt;

use linux::resctrl::{Group, Mode, Resctrl};
use linux::{KernelFiles, Lock, Pid, Untrusted, status};
use serde::Serialize;

use super::layout::{Desired, Purpose};
use super::number::counted;

/// Most processes of a group that are named.
const NAMED: usize = 8;
/// Most threads of a group whose processes are looked up: another user may have put any number into it.
const LOOKED_AT: usize = 256;
/// Most processes of a group in a line of text.
const IN_TEXT: usize = 3;

/// A process in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InGroup {
    /// Its number.
    pub pid: Pid,
    /// Its name, which it chose itself.
    pub name: Untrusted,
}

/// A group of another tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OtherGroup {
    /// Name of its directory, with unusual characters escaped.
    pub group: String,
    /// Path of its directory, for a shell; `None` if the name has unusual characters.
    pub path: Option<String>,
    /// Owner of the directory; `None` if unknown.
    pub owner_uid: Option<u32>,
    /// No thread, no CPU, no locked part of the cache, and no monitoring group of another tool.
    pub empty: bool,
    /// Number of its threads.
    pub threads: usize,
    /// The first of its processes.
    pub processes: Vec<InGroup>,
    /// There are threads beyond those processes.
    pub more: bool,
    /// A use other than threads, in words: its CPUs, its monitoring groups, a locked part of the cache, a lock on it.
    pub also: Vec<String>,
    /// Reason why it could not be looked at.
    pub unread: Option<String>,
}

/// All groups of other tools with these names.
pub fn other_groups<F: KernelFiles>(files: &F, resctrl: &Resctrl<'_, F>, names: &[String]) -> Vec<OtherGroup> {
    let present = resctrl.groups().unwrap_or_default();
    // A group that was removed meanwhile is left out.
    present.iter().filter(|group| names.contains(&group.to_string())).map(|group| look(files, resctrl, group)).collect()
}

fn look<F: KernelFiles>(files: &F, resctrl: &Resctrl<'_, F>, group: &Group) -> OtherGroup {
    let directory = resctrl.directory(group);
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_' | '/' | ':' | '@');
    let mut found = OtherGroup {
        group: group.to_string(),
        path: directory.chars().all(plain).then(|| format!("/{directory}")),
        owner_uid: files.owner(&directory).ok(),
        ..OtherGroup::default()
    };
    if let Ok(Mode::PseudoLocked | Mode::PseudoLocksetup) = resctrl.mode(group) {
        found.also.push("a locked part of the cache".to_owned());
        return found;
    }
    match resctrl.tasks(group) {
        Ok(threads) => {
            let mut processes = BTreeMap::new();
            let mut known = 0;
            for thread in threads.iter().take(LOOKED_AT) {
                // A thread that ended meanwhile has no process.
                let Ok(status) = status::status(files, *thread) else { continue };
                if processes.len() == NAMED && !processes.contains_key(&status.thread_group) {
                    break;
                }
                known += 1;
                // A thread may have another name than its process.
                let name = || match status.thread_group == *thread {
                    true => status.name.clone(),
                    false => status::status(files, status.thread_group).map_or(status.name.clone(), |of| of.name),
                };
                processes.entry(status.thread_group).or_insert_with(name);
            }
            found.threads = threads.len();
            found.more = known < threads.len();
            found.processes = processes.into_iter().map(|(pid, name)| InGroup { pid, name }).collect();
        }
        Err(failed) => found.unread = Some(failed.to_string()),
    }
    if let Some(cpus) = resctrl.cpus(group).ok().filter(|cpus| !cpus.0.is_empty()) {
        found.also.push(counted(cpus.0.len(), "CPU"));
    }
    let monitors = resctrl.monitors(group).unwrap_or_default().iter().filter(|monitor| !monitor.is_ours()).count();
    if monitors > 0 {
        found.also.push(counted(monitors, "monitoring group"));
    }
    // A masu holds its groups by a lock, also those without a thread.
    let held = group.is_ours() && files.lock(&directory, Lock::Exclusive).is_err();
    if held {
        found.also.push("held by another masu".to_owned());
    }
    found.empty = !held && resctrl.is_empty(group).unwrap_or(false);
    found
}

/// `db of user 0 (redis-server 4121, redis-server 4122)`
impl fmt::Display for OtherGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.group)?;
        if let Some(uid) = self.owner_uid {
            write!(f, " of user {uid}")?;
        }
        if self.empty {
            return Ok(());
        }
        let mut has: Vec<String> = Vec::new();
        for process in self.processes.iter().take(IN_TEXT) {
            has.push(format!("{} {}", process.name, process.pid));
        }
        if self.more || self.processes.len() > IN_TEXT {
            has.push(format!("{} in all", counted(self.threads, "thread")));
        }
        has.extend(self.also.iter().cloned());
        has.extend(self.unread.iter().map(|why| format!("not looked at: {why}")));
        write!(f, " ({})", has.join(", "))
    }
}

/// Programs that share a class of service because the classes are used up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedClasses {
    /// Names of the programs that share a class, for each such class.
    pub together: Vec<Vec<String>>,
    /// Number of classes, including that of the default group.
    pub classes: usize,
    /// Groups of other tools.
    pub others: Vec<OtherGroup>,
}

/// `web and db share a class of service: …`
impl fmt::Display for SharedClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |names: &Vec<String>| match names.split_last() {
            Some((last, first)) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            _ => names.concat(),
        };
        let together: Vec<String> = self.together.iter().map(share).collect();
        write!(f, "{} share a class of service: {}", together.join("; "), classes(self.classes, &self.others))
    }
}

/// `16 classes, the default group has one, other groups 13: empty: a of user 0, …; in use: …`
pub fn classes(classes: usize, others: &[OtherGroup]) -> String {
    let head = format!("{}, the default group has one, other groups {}", counted(classes, "class"), others.len());
    [vec![head], used_up(others)].concat().join("; ")
}

/// The groups, those that could be removed first with the command, then those in use.
pub fn used_up(others: &[OtherGroup]) -> Vec<String> {
    let list = |groups: &[&OtherGroup]| groups.iter().map(|group| group.to_string()).collect::<Vec<_>>().join(", ");
    let (empty, in_use): (Vec<_>, Vec<_>) = others.iter().partition(|group| group.empty);
    let mut said = Vec::new();
    if !empty.is_empty() {
        let paths: Vec<&str> = empty.iter().filter_map(|group| group.path.as_deref()).collect();
        let command = if paths.is_empty() { String::new() } else { format!("; `rmdir {}` removes", paths.join(" ")) };
        let command = match (paths.len(), empty.len()) {
            (0, _) => command,
            (1, 1) => format!("{command} it"),
            (some, all) if some < all => format!("{command} {some} of them"),
            _ => format!("{command} them"),
        };
        said.push(format!("empty (no thread, no CPU): {}{command}", list(&empty)));
    }
    if !in_use.is_empty() {
        said.push(format!("in use: {}", list(&in_use)));
    }
    said
}

/// Names of the programs in each class that holds more than one.
pub fn together(desired: &Desired, name: impl Fn(usize) -> String) -> Vec<Vec<String>> {
    let names = desired.groups.iter().filter_map(|group| match &group.purpose {
        Purpose::Programs(programs) if programs.len() > 1 => Some(programs.iter().map(|nth| name(*nth)).collect()),
        _ => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    const ROOT: &str = "sys/fs/resctrl";

    fn group(kernel: FakeKernel, name: &str, tasks: &str, cpus: &str, mode: &str) -> FakeKernel {
        kernel
            .file(&format!("{ROOT}/{name}/tasks"), tasks)
            .file(&format!("{ROOT}/{name}/cpus_list"), cpus)
            .file(&format!("{ROOT}/{name}/mode"), mode)
    }

    fn thread(kernel: FakeKernel, thread: i32, process: i32, name: &str) -> FakeKernel {
        let status = format!("Name:\t{name}\nState:\tS\nTgid:\t{process}\nUid:\t0\t0\t0\t0\nThreads:\t1\nCapEff:\t0\n");
        kernel.file(&format!("proc/{thread}/status"), &status)
    }

    #[test]
    fn each_use_of_a_group_is_told_and_only_an_empty_one_could_be_removed() {
        let kernel = FakeKernel::new().file("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n");
        let kernel = group(kernel, "empty", "\n", "\n", "shareable\n");
        let kernel = group(kernel, "two words", "", "\n", "shareable\n");
        let kernel = group(kernel, "cpus", "", "0-2\n", "shareable\n");
        let kernel = group(kernel, "db", "41\n42\n50\n", "\n", "shareable\n");
        let kernel = group(kernel, "counted", "", "\n", "shareable\n")
            .file(&format!("{ROOT}/counted/mon_groups/prometheus/tasks"), "");
        let kernel = kernel.file(&format!("{ROOT}/locked/mode"), "pseudo-locked\n");
        let kernel = thread(thread(kernel, 41, 41, "redis-server"), 42, 41, "bio_aof");
        let kernel = thread(kernel, 50, 50, "a\x1b[2Jb");
        let resctrl = Resctrl::find(&kernel).unwrap();
        let names = ["empty", "two words", "cpus", "db", "counted", "locked", "removed"].map(str::to_owned);
        let found = other_groups(&kernel, &resctrl, &names);
        let shown = |name: &str| {
            let of = found.iter().find(|of| of.group.starts_with(name)).unwrap();
            OtherGroup { owner_uid: None, ..of.clone() }.to_string()
        };
        assert_eq!(found.len(), 6, "a removed group is left out");
        assert_eq!(shown("cpus"), "cpus (3 CPUs)");
        assert_eq!(shown("db"), "db (redis-server 41, a\\x1b[2Jb 50)");
        assert_eq!(shown("counted"), "counted (1 monitoring group)");
        assert_eq!(shown("locked"), "locked (a locked part of the cache)");
        let empty: Vec<(&str, Option<&str>)> =
            found.iter().filter(|of| of.empty).map(|of| (of.group.as_str(), of.path.as_deref())).collect();
        assert_eq!(empty, [("empty", Some("/sys/fs/resctrl/empty")), ("two words", None)]);
        assert_eq!(found[0].owner_uid, found[1].owner_uid);
        assert!(found[0].owner_uid.is_some());
    }

    #[test]
    fn a_group_with_many_threads_is_not_looked_through() {
        let tasks: String = (1..2000).map(|nth| format!("{nth}\n")).collect();
        let kernel = FakeKernel::new().file("proc/mounts", "resctrl /sys/fs/resctrl resctrl rw 0 0\n");
        let kernel = group(kernel, "many", &tasks, "\n", "shareable\n");
        let kernel = (1..20).fold(kernel, |kernel, nth| thread(kernel, nth, nth, "w"));
        let found = &other_groups(&kernel, &Resctrl::find(&kernel).unwrap(), &["many".to_owned()])[0];
        assert_eq!((found.processes.len(), found.threads, found.more, found.empty), (NAMED, 1999, true, false));
        assert!(found.to_string().ends_with("(w 1, w 2, w 3, 1999 threads in all)"), "{found}");
    }

    #[test]
    fn groups_whose_names_a_shell_would_misread_are_in_no_command() {
        let group = |name: &str, path: Option<&str>| OtherGroup {
            group: name.to_owned(),
            path: path.map(str::to_owned),
            empty: true,
            ..OtherGroup::default()
        };
        let (plain, odd) = (group("a", Some("/r/a")), group("b c", None));
        assert_eq!(used_up(std::slice::from_ref(&odd)), ["empty (no thread, no CPU): b c"]);
        let both = ["empty (no thread, no CPU): a, b c; `rmdir /r/a` removes 1 of them"];
        assert_eq!(used_up(&[plain.clone(), odd]), both);
        assert_eq!(used_up(&[plain]), ["empty (no thread, no CPU): a; `rmdir /r/a` removes it"]);
        assert_eq!(used_up(&[]), [""; 0]);
    }
}
