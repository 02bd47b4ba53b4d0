//! Memory control groups with a limit, and the memory left to each.
//!
//! The group of one process is in `cgroup.rs`, one named group in `group.rs`.
//!
//! Cost: one directory listing for each group of the host, and two or three files for each [`Limited::charge`]. Side
//! effects: none.
//!
//! Since: version 1 Linux 2.6.25, version 2 Linux 4.5.
//!
//! Truth: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.

use std::collections::BTreeSet;

use rustix::io::Errno;
use units::Bytes;

use super::charges::{self, Charges};
use super::{Limit, MEMORY, Mount, Version, own_group, read_number};
use crate::untrusted::text_of;
use crate::{Error, KernelFiles, Pid};

/// A group, which may have a limit or be given one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Directory of the group, relative to the root: `sys/fs/cgroup/memory/web`.
    pub directory: String,
    /// Inodes of the directory and of its descendants: memory charged to any of them counts against the limit.
    pub inodes: BTreeSet<u64>,
    version: Version,
}

/// Limit and usage of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Limit of the group.
    pub limit: Bytes,
    /// Memory charged to the group.
    pub usage: Bytes,
    /// Part of `usage` that the kernel can reclaim without swap: file pages, unless they are locked.
    pub evictable: Bytes,
}

/// All groups.
///
/// # Errors
/// The kernel's error for one of these files. A host without the memory controller has no groups.
pub fn groups(files: &impl KernelFiles) -> Result<Vec<Limited>, Error> {
    const MOUNTS: &str = "proc/self/mountinfo";
    let text = files.read(MOUNTS).map_err(|errno| Error::of_host("read", format_args!("/{MOUNTS}"), errno))?;
    let mounted = |version| text.lines().find_map(move |line| Some((Mount::of(line, version, MEMORY)?, version)));
    let Some((mount, version)) = mounted(Version::V1).or_else(|| mounted(Version::V2)) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    add(files, &mount.point, version, &mut found)?;
    Ok(found)
}

/// Lowest free memory up to a limit, of the group of `pid` and the groups above it; with that limit. Unlike
/// [`Charge::left`], memory that the kernel could reclaim is not free. `None` without a limit.
///
/// # Errors
/// `Gone` if the process ended; `Malformed`; the kernel's error for the mounts.
pub fn free_of(files: &impl KernelFiles, pid: Pid) -> Result<Option<(Bytes, Bytes)>, Error> {
    const MOUNTS: &str = "proc/self/mountinfo";
    let file = pid.file("cgroup");
    let text = files.bytes(&file).map_err(|errno| Error::of_process("read", format_args!("/{file}"), errno))?;
    let Some((version, group)) = own_group(&text, MEMORY) else { return Ok(None) };
    let group = &*text_of(group.to_vec());
    let text = files.read(MOUNTS).map_err(|errno| Error::of_host("read", format_args!("/{MOUNTS}"), errno))?;
    let mounts: Vec<Mount> = text.lines().filter_map(|line| Mount::of(line, version, MEMORY)).collect();
    let found = mounts.iter().find_map(|mount| Some((mount, mount.levels_to(group)?)));
    let Some((mount, levels)) = found else { return Ok(None) };
    let usage = match version {
        Version::V1 => "memory.usage_in_bytes",
        Version::V2 => "memory.current",
    };
    let mut least: Option<(Bytes, Bytes)> = None;
    for directory in levels.into_iter().map(|level| mount.directory_of(level)) {
        let Some(limit) = limit(files, &directory, version)? else { continue };
        let Some(Limit::Bytes(usage)) = read_number(files, &format!("{directory}/{usage}"))? else { continue };
        let free = limit.saturating_sub(usage);
        if least.is_none_or(|(least, _)| free < least) {
            least = Some((free, limit));
        }
    }
    Ok(least)
}

/// Adds a group and its descendants, and returns the inodes of all of them.
fn add(
    files: &impl KernelFiles,
    directory: &str,
    version: Version,
    found: &mut Vec<Limited>,
) -> Result<BTreeSet<u64>, Error> {
    let failed = |errno| Error::of_host("list", format_args!("/{directory}"), errno);
    let gone = |errno| matches!(errno, Errno::NOENT | Errno::NODEV);
    let names = match files.directories(directory) {
        Err(Errno::NOTDIR) => return Ok(BTreeSet::new()), // a file of the parent group
        Err(errno) if gone(errno) => return Ok(BTreeSet::new()),
        names => names.map_err(failed)?,
    };
    let mut inodes = match files.inode(directory) {
        Err(errno) if gone(errno) => return Ok(BTreeSet::new()),
        inode => BTreeSet::from([inode.map_err(failed)?]),
    };
    for name in names {
        inodes.extend(add(files, &format!("{directory}/{name}"), version, found)?);
    }
    found.push(Limited { directory: directory.to_owned(), inodes: inodes.clone(), version });
    Ok(inodes)
}

/// Lowest limit of the group itself.
fn limit(files: &impl KernelFiles, directory: &str, version: Version) -> Result<Option<Bytes>, Error> {
    let names: &[&str] = match version {
        Version::V1 => &["memory.limit_in_bytes"],
        Version::V2 => &["memory.max", "memory.high"],
    };
    let mut lowest: Option<Bytes> = None;
    for name in names {
        if let Some(Limit::Bytes(bytes)) = read_number(files, &format!("{directory}/{name}"))? {
            lowest = Some(lowest.map_or(bytes, |lowest| lowest.min(bytes)));
        }
    }
    Ok(lowest)
}

impl Limited {
    /// The kernel's own count of its memory. `None` where it is not accounted, or when the group is gone.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn charges(&self, files: &impl KernelFiles) -> Result<Option<Charges>, Error> {
        charges::of(files, self.version, &self.directory)
    }

    /// Limit and usage now; `None` when the group is gone or no longer has a limit.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn charge(&self, files: &impl KernelFiles) -> Result<Option<Charge>, Error> {
        let (usage, names) = match self.version {
            Version::V1 => ("memory.usage_in_bytes", ["total_inactive_file", "total_active_file"]),
            Version::V2 => ("memory.current", ["inactive_file", "active_file"]),
        };
        let Some(limit) = limit(files, &self.directory, self.version)? else { return Ok(None) };
        let Some(Limit::Bytes(usage)) = read_number(files, &format!("{}/{usage}", self.directory))? else {
            return Ok(None);
        };
        let stat = format!("{}/memory.stat", self.directory);
        let text = match files.read(&stat) {
            Ok(text) => text,
            Err(Errno::NOENT | Errno::NODEV) => return Ok(None),
            Err(errno) => return Err(Error::of_host("read", format_args!("/{stat}"), errno)),
        };
        let mut evictable = Bytes(0);
        for line in text.lines() {
            let Some((name, digits)) = line.split_once(' ').filter(|(name, _)| names.contains(name)) else { continue };
            let bad = |_| {
                Error::malformed(format_args!("/{stat}"), format_args!("{name} {digits:?}, expected a number of bytes"))
            };
            evictable += Bytes(digits.parse().map_err(bad)?);
        }
        Ok(Some(Charge { limit, usage, evictable }))
    }
}

impl Charge {
    /// Bytes left up to the limit, reclaimable memory included.
    pub fn left(&self) -> Bytes {
        self.limit.saturating_sub(self.usage.saturating_sub(self.evictable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    const V1: &str = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const V2: &str = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const UNLIMITED: &str = "9223372036854771712\n";

    fn v1() -> FakeKernel {
        let group = "sys/fs/cgroup/memory/web";
        FakeKernel::new()
            .file("proc/self/mountinfo", V1)
            .file("sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED)
            .file(&format!("{group}/memory.limit_in_bytes"), "1000000\n")
            .file(&format!("{group}/memory.usage_in_bytes"), "900000\n")
            .file(
                &format!("{group}/memory.stat"),
                "inactive_file 1\ntotal_inactive_file 300000\ntotal_active_file 200000\nnew 1\n",
            )
            .file(&format!("{group}/inner/memory.limit_in_bytes"), UNLIMITED)
    }

    fn web(kernel: &FakeKernel) -> Limited {
        groups(kernel).unwrap().into_iter().find(|group| group.directory.ends_with("web")).unwrap()
    }

    #[test]
    fn the_least_free_memory_of_the_groups_of_a_process_is_found() {
        let kernel = v1()
            .file("proc/7/cgroup", "5:memory:/web\n0::/\n")
            .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
        let (free, limit) = free_of(&kernel, Pid(7)).unwrap().unwrap();
        assert_eq!((free, limit), (Bytes(100_000), Bytes(1_000_000)), "its cache is not free");
        assert!(free_of(&kernel, Pid(8)).unwrap_err().is_gone());
    }

    #[test]
    fn a_limit_holds_for_what_is_charged_to_the_groups_below() {
        let kernel = v1();
        let all = groups(&kernel).unwrap();
        let limited: Vec<&Limited> = all.iter().filter(|group| group.charge(&kernel).unwrap().is_some()).collect();
        let [web] = limited[..] else { panic!("one group has a limit") };
        assert_eq!((web.directory.as_str(), web.inodes.len()), ("sys/fs/cgroup/memory/web", 2));
        let charge = web.charge(&kernel).unwrap().unwrap();
        let expected = Charge { limit: Bytes(1_000_000), usage: Bytes(900_000), evictable: Bytes(500_000) };
        assert_eq!((charge, charge.left()), (expected, Bytes(600_000)));
    }

    #[test]
    fn a_group_below_counts_whatever_it_is_called() {
        let below = "sys/fs/cgroup/memory/web/memory.hidden";
        let kernel = v1().file(&format!("{below}/memory.limit_in_bytes"), "1000\n");
        let kernel = kernel.file(&format!("{below}/{}/tasks", crate::untrusted::text_of(b"\xff\xfe".to_vec())), "");
        assert_eq!(web(&kernel).inodes.len(), 4);
        assert!(groups(&kernel).unwrap().iter().any(|group| group.directory == below));
    }

    #[test]
    fn version_2_has_two_limits_and_the_lower_one_counts() {
        let kernel = FakeKernel::new()
            .file("proc/self/mountinfo", V2)
            .file("sys/fs/cgroup/a/memory.max", "max\n")
            .file("sys/fs/cgroup/a/memory.high", "5000\n")
            .file("sys/fs/cgroup/a/memory.current", "4000\n")
            .file("sys/fs/cgroup/a/memory.stat", "anon 3000\ninactive_file 500\nactive_file 250\n");
        let group = &groups(&kernel).unwrap()[0];
        let charge = group.charge(&kernel).unwrap().unwrap();
        assert_eq!((charge.limit, charge.left()), (Bytes(5000), Bytes(1750)));
    }

    #[test]
    fn a_group_that_is_gone_or_free_again_has_no_charge() {
        let group = web(&v1());
        assert_eq!(group.charge(&FakeKernel::new()).unwrap(), None);
        let free = FakeKernel::new().file("sys/fs/cgroup/memory/web/memory.limit_in_bytes", UNLIMITED);
        assert_eq!(group.charge(&free).unwrap(), None);
    }

    #[test]
    fn without_a_memory_controller_there_is_no_limit_and_nonsense_is_said() {
        let without = FakeKernel::new().file("proc/self/mountinfo", "22 1 0:21 / /proc rw - proc proc rw\n");
        assert_eq!(groups(&without).unwrap(), []);
        let torn = v1().file("sys/fs/cgroup/memory/web/memory.stat", "total_inactive_file x\n");
        let group = web(&torn);
        assert!(matches!(group.charge(&torn), Err(Error::Malformed { .. })));
    }
}
