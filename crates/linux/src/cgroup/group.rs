//! One memory control group, those below it, and who is in them.
//!
//! `/proc/kpagecgroup` names a group by the inode of its directory; so do we. What it may have, and the files by which that is
//! changed, are in `group_memory.rs`.

use std::collections::BTreeSet;

use rustix::io::Errno;

use super::{Mount, Version};
use crate::{Error, KernelFiles, Pid};

/// A group with all those below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its directory: `/sys/fs/cgroup/backup.slice`.
    pub path: String,
    /// The inodes of its directory and of those below.
    pub inodes: BTreeSet<u64>,
    /// The processes in them.
    pub processes: BTreeSet<Pid>,
    /// Pages of files, and others, that came back soon after they had gone, of all these groups since they were made; `None`
    /// where the kernel does not count them.
    pub refaults: [Option<u64>; 2],
    /// The interface that its files belong to.
    pub version: Version,
    /// Where its hierarchy is mounted, relative to the root of the file system.
    pub(super) mounted_at: String,
}

/// The group of this name: a directory, or a path below the place where the memory controller is mounted, as
/// `/proc/PID/cgroup` has it.
///
/// # Errors
/// `Unsupported` when there is no such group, or no memory controller.
pub fn find(files: &impl KernelFiles, name: &str) -> Result<Group, Error> {
    let text =
        files.read("proc/self/mountinfo").map_err(|errno| Error::of_host("read", "/proc/self/mountinfo", errno))?;
    let mounted = |version| text.lines().find_map(move |line| Some((Mount::of(line, version)?, version)));
    let Some((mount, version)) = mounted(Version::V1).or_else(|| mounted(Version::V2)) else {
        return Err(Error::of_host("find", "a mounted memory controller (cgroup)", Errno::NOENT));
    };
    let no_such = || Error::of_host("find", format_args!("control group {name} in /{}", mount.point), Errno::NOENT);
    let from_mount = name.strip_prefix('/').and_then(|path| path.strip_prefix(mount.point.as_str()));
    let level = from_mount.filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(name).trim_matches('/');
    if level.split('/').any(|part| part == "..") {
        return Err(no_such());
    }
    let directory = mount.directory_of(level);
    if files.list(&directory).is_err() {
        return Err(no_such());
    }
    let mut group = Group {
        path: format!("/{directory}"),
        inodes: BTreeSet::new(),
        processes: BTreeSet::new(),
        refaults: refaults(files, &directory, version),
        version,
        mounted_at: mount.point.clone(),
    };
    add(files, &directory, &mut group)?;
    Ok(group)
}

/// Adds the group in `directory` and those below it.
fn add(files: &impl KernelFiles, directory: &str, group: &mut Group) -> Result<(), Error> {
    let failed = |errno| Error::of_host("look at", format_args!("/{directory}"), errno);
    let names = match files.list(directory) {
        Err(Errno::NOTDIR) => return Ok(()),               // a file of the group above
        Err(Errno::NOENT | Errno::NODEV) => return Ok(()), // removed meanwhile
        names => names.map_err(failed)?,
    };
    group.inodes.insert(files.inode(directory).map_err(failed)?);
    for name in names {
        if name == "cgroup.procs" {
            // A group of threads (version 2) refuses: its processes are in the one above.
            let text = files.read(&format!("{directory}/{name}")).unwrap_or_default();
            group.processes.extend(text.lines().filter_map(|line| line.parse::<Pid>().ok()));
        } else if !is_file_of_the_kernel(&name) {
            add(files, &format!("{directory}/{name}"), group)?;
        }
    }
    Ok(())
}

/// Files of the kernel begin with the name of their controller; asking each whether it is a group would take long.
pub(super) fn is_file_of_the_kernel(name: &str) -> bool {
    ["cgroup.", "memory.", "cpu.", "io.", "pids.", "cpuset.", "hugetlb.", "misc.", "rdma.", "irq.", "dmem."]
        .iter()
        .any(|controller| name.starts_with(controller))
}

fn refaults(files: &impl KernelFiles, directory: &str, version: Version) -> [Option<u64>; 2] {
    let text = files.read(&format!("{directory}/memory.stat")).unwrap_or_default();
    let below = match version {
        Version::V1 => "total_", // version 1 counts each group apart, and all below it with this in front
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
