//! Memory control groups that have processes.
//!
//! One named group with its descendants is in `group.rs`, the groups with limits in `limited.rs`.
//!
//! Cost: one directory listing and one file for each group of the host. Side effects: none. Not a snapshot: groups made
//! or removed meanwhile may be missing.
//!
//! Since: version 1 Linux 2.6.25, version 2 Linux 4.5.
//!
//! Truth: cgroups(7); Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.

use std::collections::VecDeque;

use super::charges::{self, Charges};
use super::{MEMORY, Mount, Version};
use crate::pressure::{self, Pressure};
use crate::{Error, KernelFiles, Pid, Untrusted};

/// Group with processes of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Populated {
    /// Path from the mount point of its hierarchy: `/system.slice/redis.service`.
    pub path: Untrusted,
    /// Its processes, without those of its descendants.
    pub processes: Vec<Pid>,
    directory: String,
    version: Version,
}

/// Groups of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Groups with processes, the outer ones first.
    pub groups: Vec<Populated>,
    /// Groups beyond the bound: not looked at, nor their descendants.
    pub left_out: usize,
}

/// Lists the groups with processes, of at most `most` groups. A host without the memory controller has none.
///
/// # Errors
/// The kernel's error for the mounts, or for the directory of the topmost group.
pub fn tree(files: &impl KernelFiles, most: usize) -> Result<Tree, Error> {
    const MOUNTS: &str = "proc/self/mountinfo";
    let text = files.read(MOUNTS).map_err(|errno| Error::of_host("read", format_args!("/{MOUNTS}"), errno))?;
    let mounted = |version| text.lines().find_map(move |line| Some((Mount::of(line, version, MEMORY)?, version)));
    let Some((mount, version)) = mounted(Version::V1).or_else(|| mounted(Version::V2)) else {
        return Ok(Tree::default());
    };
    let mut found = Tree::default();
    let mut levels = VecDeque::from([String::new()]);
    let mut looked_at = 0;
    while let Some(level) = levels.pop_front() {
        if looked_at == most {
            found.left_out = levels.len() + 1;
            break;
        }
        looked_at += 1;
        let directory = mount.directory_of(level.trim_start_matches('/'));
        match files.directories(&directory) {
            Ok(names) => levels.extend(names.into_iter().map(|name| format!("{level}/{name}"))),
            Err(errno) if level.is_empty() => {
                return Err(Error::of_host("list", format_args!("/{directory}"), errno));
            }
            // A file of the parent group, or removed meanwhile.
            Err(_) => continue,
        }
        // A group of threads (version 2) refuses: its processes are in the parent.
        let text = files.read(&format!("{directory}/cgroup.procs")).unwrap_or_default();
        let processes: Vec<Pid> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if !processes.is_empty() {
            let path = if level.is_empty() { "/" } else { &*level };
            found.groups.push(Populated { path: path.into(), processes, directory, version });
        }
    }
    Ok(found)
}

impl Populated {
    /// The kernel's own count of its memory. `None` where it is not accounted, or when the group is gone.
    ///
    /// # Errors
    /// `Malformed`; the kernel's error for one of the files.
    pub fn charges(&self, files: &impl KernelFiles) -> Result<Option<Charges>, Error> {
        charges::of(files, self.version, &self.directory)
    }

    /// Its memory pressure. `None` where the kernel does not count it by group, or when the group is gone.
    ///
    /// # Errors
    /// `Malformed`; the kernel's error for the file.
    pub fn pressure(&self, files: &impl KernelFiles) -> Result<Option<Pressure>, Error> {
        match pressure::of_group(files, &self.directory) {
            Ok(pressure) => Ok(Some(pressure)),
            Err(error) if error.is_gone() || matches!(error, Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    const V2: &str = "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    fn kernel() -> FakeKernel {
        FakeKernel::new()
            .file("proc/self/mountinfo", V2)
            .file("sys/fs/cgroup/cgroup.procs", "")
            .file("sys/fs/cgroup/web.slice/cgroup.procs", "")
            .file("sys/fs/cgroup/web.slice/a.service/cgroup.procs", "7\n4121\n")
            .file("sys/fs/cgroup/web.slice/a.service/memory.current", "4096\n")
            .file("sys/fs/cgroup/web.slice/a.service/memory.stat", "anon 4096\n")
            .file("sys/fs/cgroup/b.service/cgroup.procs", "9\n")
    }

    fn paths(tree: &Tree) -> Vec<String> {
        tree.groups.iter().map(|group| group.path.to_string()).collect()
    }

    #[test]
    fn groups_without_processes_are_left_out() {
        let kernel = kernel();
        let tree = tree(&kernel, 100).unwrap();
        assert_eq!(paths(&tree), ["/b.service", "/web.slice/a.service"]);
        assert_eq!((tree.groups[1].processes.as_slice(), tree.left_out), ([Pid(7), Pid(4121)].as_slice(), 0));
        let charges = tree.groups[1].charges(&kernel).unwrap().unwrap();
        assert_eq!(charges.anonymous_bytes.0, 4096);
        assert_eq!(tree.groups[0].charges(&kernel), Ok(None), "not accounted");
        assert_eq!(tree.groups[0].pressure(&kernel), Ok(None));
    }

    #[test]
    fn beyond_the_bound_groups_are_counted() {
        let tree = tree(&kernel(), 2).unwrap();
        assert_eq!((paths(&tree), tree.left_out), (vec!["/b.service".to_owned()], 1));
    }

    #[test]
    fn a_host_without_the_controller_has_no_groups() {
        let kernel = FakeKernel::new().file("proc/self/mountinfo", "20 1 0:5 / /proc rw - proc proc rw\n");
        assert_eq!(tree(&kernel, 100), Ok(Tree::default()));
    }

    #[test]
    fn version_1_has_the_memory_hierarchy() {
        let kernel = FakeKernel::new()
            .file("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
            .file("sys/fs/cgroup/memory/cgroup.procs", "1\n")
            .file("sys/fs/cgroup/memory/web/cgroup.procs", "7\n");
        assert_eq!(paths(&tree(&kernel, 100).unwrap()), ["/", "/web"]);
    }
}
