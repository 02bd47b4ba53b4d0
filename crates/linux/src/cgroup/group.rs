//! One memory control group with its descendants and their processes.
//!
//! A group is identified by the inode of its directory, as in `/proc/kpagecgroup`. Limits and settings are in
//! `group_memory.rs`.
//!
//! Cost: one directory listing and one file for each group. Side effects: none. Not a snapshot: groups made or removed
//! meanwhile may be missing.
//!
//! Since: version 1 Linux 2.6.25, version 2 Linux 4.5; the refaults of anonymous pages 5.9.
//!
//! Truth: cgroups(7); Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.

use std::collections::BTreeSet;

use rustix::io::Errno;

use super::{MEMORY, Mount, Version};
use crate::{Error, KernelFiles, Pid};

/// A group with all its descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Directory of the group: `/sys/fs/cgroup/backup.slice`.
    pub path: String,
    /// Inodes of the directory and of its descendants.
    pub inodes: BTreeSet<u64>,
    /// Processes of the group and its descendants.
    pub processes: BTreeSet<Pid>,
    /// Refaults of file pages and of anonymous pages, over all these groups since they were made; `None` where the
    /// kernel does not count them.
    pub refaults: [Option<u64>; 2],
    /// Control-group version of its files.
    pub version: Version,
    /// Mount point of its hierarchy, relative to the root of the file system.
    pub(super) mounted_at: String,
}

/// Finds a group by a directory, or by a path below the memory controller's mount point, as in `/proc/PID/cgroup`.
///
/// # Errors
/// `Unsupported` when there is no such group, or no memory controller.
pub fn find(files: &impl KernelFiles, name: &str) -> Result<Group, Error> {
    let text =
        files.read("proc/self/mountinfo").map_err(|errno| Error::of_host("read", "/proc/self/mountinfo", errno))?;
    let mounted = |version| {
        let mounts: Vec<Mount> = text.lines().filter_map(|line| Mount::of(line, version, MEMORY)).collect();
        (!mounts.is_empty()).then_some((mounts, version))
    };
    let Some((mounts, version)) = mounted(Version::V1).or_else(|| mounted(Version::V2)) else {
        return Err(Error::of_host("find", "a mounted memory controller (cgroup)", Errno::NOENT));
    };
    let no_such = || {
        // Quotes make an empty name visible in the message.
        let shown = if name.is_empty() { "\"\"" } else { name };
        Error::of_host("find", format_args!("control group {shown} in /{}", mounts[0].point), Errno::NOENT)
    };
    let found = mounts.iter().find_map(|mount| {
        let mut levels = levels_of(mount, name).into_iter().filter(|level| !level.split('/').any(|part| part == ".."));
        let directory = levels.find_map(|level| {
            let directory = mount.directory_of(level);
            files.list(&directory).is_ok().then_some(directory)
        })?;
        Some((mount, directory))
    });
    let Some((mount, directory)) = found else { return Err(no_such()) };
    let mut group = Group {
        path: format!("/{directory}"),
        inodes: BTreeSet::new(),
        processes: BTreeSet::new(),
        refaults: refaults(files, &directory, version),
        version,
        mounted_at: mount.point.clone(),
    };
    add(files, &directory, &mut group)?;
    if group.inodes.is_empty() {
        return Err(no_such()); // removed meanwhile
    }
    Ok(group)
}

/// Levels that a name may mean below this mount, the likeliest first: a directory; a path from the top of the
/// hierarchy, as in `/proc/PID/cgroup` (a container has only a part of it mounted); a path below the mount. An empty
/// name means none: an unset variable must not mean all groups.
fn levels_of<'n>(mount: &Mount, name: &'n str) -> Vec<&'n str> {
    if name.is_empty() {
        return Vec::new();
    }
    let directory = name.strip_prefix('/').and_then(|path| path.strip_prefix(mount.point.as_str()));
    if let Some(level) = directory.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        return vec![level.trim_matches('/')];
    }
    let from_top = if mount.root == "/" { None } else { mount.levels_to(name) };
    from_top.and_then(|levels| levels.first().copied()).into_iter().chain([name.trim_matches('/')]).collect()
}

/// Adds the group in `directory` and its descendants.
fn add(files: &impl KernelFiles, directory: &str, group: &mut Group) -> Result<(), Error> {
    let failed = |errno| Error::of_host("list", format_args!("/{directory}"), errno);
    let names = match files.directories(directory) {
        Err(Errno::NOTDIR) => return Ok(()),               // a file of the parent group
        Err(Errno::NOENT | Errno::NODEV) => return Ok(()), // removed meanwhile
        names => names.map_err(failed)?,
    };
    let inode = match files.inode(directory) {
        Err(Errno::NOENT | Errno::NODEV) => return Ok(()), // removed since it was listed
        inode => inode.map_err(failed)?,
    };
    group.inodes.insert(inode);
    // A group of threads (version 2) refuses: its processes are in the parent.
    let text = files.read(&format!("{directory}/cgroup.procs")).unwrap_or_default();
    group.processes.extend(text.lines().filter_map(|line| line.parse::<Pid>().ok()));
    names.iter().try_for_each(|name| add(files, &format!("{directory}/{name}"), group))
}

fn refaults(files: &impl KernelFiles, directory: &str, version: Version) -> [Option<u64>; 2] {
    let text = files.read(&format!("{directory}/memory.stat")).unwrap_or_default();
    let below = match version {
        Version::V1 => "total_", // version 1 counts each group by itself; this prefix includes the descendants
        Version::V2 => "",
    };
    ["workingset_refault_file ", "workingset_refault_anon "].map(|name| {
        let wanted = format!("{below}{name}");
        text.lines().find_map(|line| line.strip_prefix(&wanted)?.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;
    use crate::untrusted::text_of;
    use crate::{Lock, Locked};

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2: &str = "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    fn v2() -> FakeKernel {
        FakeKernel::new()
            .file("proc/self/mountinfo", V2)
            .file("sys/fs/cgroup/backup/cgroup.procs", "7\n4121\n")
            .file("sys/fs/cgroup/backup/memory.stat", "workingset_refault_anon 3\nworkingset_refault_file 14\n")
            .file("sys/fs/cgroup/backup/tar.scope/cgroup.procs", "9\n")
    }

    #[test]
    fn a_group_has_those_below_it_and_their_processes() {
        let kernel = v2();
        let group = find(&kernel, "backup").unwrap();
        assert_eq!(group.path, "/sys/fs/cgroup/backup");
        assert_eq!(group.processes, [Pid(7), Pid(9), Pid(4121)].into());
        assert_eq!(group.inodes.len(), 2);
        assert!(group.inodes.contains(&kernel.inode("sys/fs/cgroup/backup/tar.scope").unwrap()));
        assert_eq!(group.refaults, [Some(14), Some(3)]);
    }

    #[test]
    fn it_is_found_by_its_directory_and_by_what_a_process_says_of_itself() {
        let kernel = v2();
        let by_name = find(&kernel, "backup");
        for name in ["/backup", "backup/", "/sys/fs/cgroup/backup"] {
            assert_eq!(find(&kernel, name), by_name, "{name}");
        }
        assert_eq!(find(&kernel, "/").unwrap().inodes.len(), 3);
    }

    #[test]
    fn version_1_counts_what_is_below_with_a_name_of_its_own() {
        let kernel = FakeKernel::new()
            .file("proc/self/mountinfo", V1)
            .file("sys/fs/cgroup/memory/a/memory.stat", "workingset_refault_file 1\ntotal_workingset_refault_file 5\n");
        let group = find(&kernel, "a").unwrap();
        assert_eq!((group.path.as_str(), group.refaults), ("/sys/fs/cgroup/memory/a", [Some(5), None]));
    }

    /// A container's part of version 1, mounted without a namespace of its own.
    fn docker() -> FakeKernel {
        let mounts = "40 31 0:32 /docker/4f1e /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        FakeKernel::new()
            .file("proc/self/mountinfo", mounts)
            .file("sys/fs/cgroup/memory/cgroup.procs", "1\n")
            .file("sys/fs/cgroup/memory/web/cgroup.procs", "7\n")
    }

    #[test]
    fn in_a_container_a_group_is_found_by_what_its_process_says_although_less_is_mounted() {
        let kernel = docker();
        assert_eq!(find(&kernel, "/docker/4f1e").unwrap().path, "/sys/fs/cgroup/memory");
        for name in ["/docker/4f1e/web", "web", "/web", "/sys/fs/cgroup/memory/web"] {
            assert_eq!(find(&kernel, name).unwrap().processes, [Pid(7)].into(), "{name}");
        }
        assert!(find(&kernel, "/docker/4f1").is_err() && find(&kernel, "/docker/4f1e/../web").is_err());
    }

    #[test]
    fn a_group_that_is_removed_between_two_looks_is_no_reason_to_give_up() {
        /// Groups; one is removed as soon as it was listed.
        struct Going(FakeKernel);
        impl KernelFiles for Going {
            fn read(&self, path: &str) -> Result<String, Errno> {
                self.0.read(path)
            }
            fn write(&self, path: &str, value: &str) -> Result<(), Errno> {
                self.0.write(path, value)
            }
            fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
                self.0.list(path)
            }
            fn inode(&self, path: &str) -> Result<u64, Errno> {
                if path.ends_with("/tar.scope") { Err(Errno::NOENT) } else { self.0.inode(path) }
            }
            fn make_directory(&self, path: &str) -> Result<(), Errno> {
                self.0.make_directory(path)
            }
            fn remove_directory(&self, path: &str) -> Result<(), Errno> {
                self.0.remove_directory(path)
            }
            fn lock(&self, path: &str, lock: Lock) -> Result<Locked, Errno> {
                self.0.lock(path, lock)
            }
        }
        let kernel = Going(v2());
        let group = find(&kernel, "backup").unwrap();
        assert_eq!((group.inodes.len(), group.processes), (1, [Pid(7), Pid(4121)].into()));
        assert!(matches!(find(&kernel, "backup/tar.scope"), Err(Error::Unsupported(_))));
    }

    #[test]
    fn a_group_is_found_whatever_it_is_called() {
        let mut kernel = v2();
        let names = [
            "memory.x",
            "cgroup.procs.d",
            "a:b",
            "c (deleted)",
            "\u{1b}[2J",
            &text_of(b"\xff".to_vec()),
            &text_of("\u{10ffff}".into()),
        ];
        for (nth, name) in names.iter().enumerate() {
            kernel = kernel.file(&format!("sys/fs/cgroup/web/{name}/cgroup.procs"), &format!("{}\n", 100 + nth));
        }
        let web = find(&kernel, "web").unwrap();
        let expected = (100..100 + i32::try_from(names.len()).unwrap()).map(Pid);
        assert!(expected.clone().all(|pid| web.processes.contains(&pid)), "{web:?}");
        for (name, pid) in names.iter().zip(expected) {
            assert_eq!(find(&kernel, &format!("/web/{name}")).unwrap().processes, [pid].into(), "{name:?}");
        }
    }

    #[test]
    fn nothing_is_no_name_of_a_group() {
        let error = find(&v2(), "").unwrap_err();
        let expected = "cannot find control group \"\" in /sys/fs/cgroup: no such file or directory (ENOENT)";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn what_is_no_group_is_named() {
        let error = find(&v2(), "restore").unwrap_err();
        let expected = "cannot find control group restore in /sys/fs/cgroup: no such file or directory (ENOENT)";
        assert_eq!(error.to_string(), expected);
        assert!(find(&v2(), "../../etc").is_err());
        assert!(find(&v2(), "backup/cgroup.procs").is_err());
        let without = FakeKernel::new().file("proc/self/mountinfo", "22 1 0:21 / /proc rw - proc proc rw\n");
        assert!(matches!(find(&without, "backup"), Err(Error::Unsupported(_))));
    }
}
