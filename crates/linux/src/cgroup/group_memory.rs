//! `memory.*` of one control group: limit, usage, swap settings and pressure.
//!
//! The group is found by `group.rs`; its settings are written by `journal.rs`, and its pressure is read by `pressure.rs`.
//! All paths here are relative to the root, as those files expect them.
//!
//! | to keep data in memory | version 1                          | version 2                                      |
//! | its file               | `memory.swappiness`                | `memory.swap.max`                              |
//! | never                  | `0`                                | `0`                                            |
//! | as the kernel likes    | old value: inherited when made     | `max`                                          |
//! | counts for             | this group alone, not those below  | this group and those below together            |
//! | the topmost group      | has it, but means `vm.swappiness`  | has no such file                               |
//!
//! Cost: one file each, as in `cgroup.rs`. Side effects of writing: they apply from then on; swapped-out data stays in
//! swap.
//!
//! Since: `memory.swappiness` Linux 2.6.25 (CONFIG_MEMCG_V1 since 6.11), `memory.swap.max` 4.5, `memory.pressure` 4.20.
//! Without CONFIG_SWAP, or with `swapaccount=0` before 6.2, there is no `memory.swap.max`.
//!
//! Truth: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; mm/memcontrol.c, mm/memcontrol-v1.c.

use rustix::io::Errno;

use super::charges::{self, Charges};
use super::group::Group;
use super::{Limit, Memory, Version, least_headroom, read_level, read_number};
use crate::{Error, KernelFiles, pressure};

impl Group {
    /// Directory of the group, relative to the root: `sys/fs/cgroup/web.slice`.
    pub fn directory(&self) -> &str {
        self.path.trim_start_matches('/')
    }

    /// Limit and usage of the group, descendants included. `None` where its memory is not accounted, as at the top of
    /// version 2, or when it was removed.
    ///
    /// # Errors
    /// `Malformed` for text that is no number of bytes.
    pub fn memory(&self, files: &impl KernelFiles) -> Result<Option<Memory>, Error> {
        read_level(files, self.version, self.directory())
    }

    /// The kernel's own count of its memory. `None` as for `memory`.
    ///
    /// # Errors
    /// `Malformed` for text that is no number of bytes.
    pub fn charges(&self, files: &impl KernelFiles) -> Result<Option<Charges>, Error> {
        charges::of(files, self.version, self.directory())
    }

    /// Limit and usage of the group or its ancestor with the least headroom. `None` as for `memory`.
    ///
    /// # Errors
    /// `Malformed` for text that is no number of bytes.
    pub fn least_headroom(&self, files: &impl KernelFiles) -> Result<Option<Memory>, Error> {
        let below = self.directory().strip_prefix(self.mounted_at.as_str()).unwrap_or_default();
        let ends = below.rmatch_indices('/').map(|(end, _)| self.mounted_at.len() + end);
        let above = ends.map(|end| self.directory()[..end].to_owned());
        least_headroom(files, self.version, std::iter::once(self.directory().to_owned()).chain(above))
    }

    /// File of version 1's swappiness.
    pub fn swappiness_path(&self) -> Option<String> {
        (self.version == Version::V1).then(|| format!("{}/memory.swappiness", self.directory()))
    }

    /// Swappiness of the group: 0 (no swap while there is page cache) to 200, or to 100 before Linux 5.8.
    ///
    /// # Errors
    /// `Unsupported` in version 2, which has no such file; `Malformed` for text that is no such number.
    pub fn swappiness(&self, files: &impl KernelFiles) -> Result<u32, Error> {
        let (path, object) = self.named(self.swappiness_path(), "memory.swappiness")?;
        let text = files.read(&path).map_err(|errno| self.unread(files, &object, errno))?;
        let number = text.trim().parse().ok().filter(|number| *number <= 200);
        number.ok_or_else(|| Error::malformed(&object, format_args!("{:?}, expected a number up to 200", text.trim())))
    }

    /// File of version 2's swap limit.
    pub fn swap_limit_path(&self) -> Option<String> {
        (self.version == Version::V2).then(|| format!("{}/memory.swap.max", self.directory()))
    }

    /// Swap limit of the group.
    ///
    /// # Errors
    /// `Unsupported` in version 1, for the topmost group, and where swap is not accounted; `Malformed` for text that is
    /// no number of bytes.
    pub fn swap_limit(&self, files: &impl KernelFiles) -> Result<Limit, Error> {
        let (path, object) = self.named(self.swap_limit_path(), "memory.swap.max")?;
        read_number(files, &path)?.ok_or_else(|| self.unread(files, &object, Errno::NOENT))
    }

    /// File of version 2's memory pressure.
    pub fn pressure_path(&self) -> Option<String> {
        (self.version == Version::V2).then(|| format!("{}/{}", self.directory(), pressure::FILE_OF_GROUP))
    }

    /// Path, and its name in messages.
    fn named(&self, path: Option<String>, name: &str) -> Result<(String, String), Error> {
        let object = format!("{}/{name}", self.path);
        path.map(|path| (path, object.clone())).ok_or_else(|| Error::of_host("find", object, Errno::NOENT))
    }

    /// Tells a file that is missing with its whole group from a file that this kernel does not have.
    fn unread(&self, files: &impl KernelFiles, object: &str, errno: Errno) -> Error {
        match errno {
            Errno::NODEV => Error::of_process("read", object, Errno::NOENT),
            Errno::NOENT if files.list(self.directory()).is_err() => Error::of_process("read", object, errno),
            _ => Error::of_host("read", object, errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use units::Bytes;

    use super::super::group::find;
    use super::*;
    use crate::fake::FakeKernel;

    fn v1() -> FakeKernel {
        FakeKernel::new()
            .file("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
            .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
            .file("sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n")
            .file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "100000\n")
            .file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "90000\n")
            .file("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "50000\n")
            .file("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "10000\n")
            .file("sys/fs/cgroup/memory/a/b/memory.swappiness", "60\n")
    }

    fn v2() -> FakeKernel {
        FakeKernel::new()
            .file("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
            .file("sys/fs/cgroup/cgroup.procs", "1\n")
            .file("sys/fs/cgroup/web/memory.max", "max\n")
            .file("sys/fs/cgroup/web/memory.high", "8192\n")
            .file("sys/fs/cgroup/web/memory.current", "4096\n")
            .file("sys/fs/cgroup/web/memory.swap.max", "max\n")
    }

    #[test]
    fn limit_and_usage_are_the_groups_own_and_the_tightest_may_be_above() {
        let kernel = v1();
        let group = find(&kernel, "a/b").unwrap();
        assert_eq!((group.version, group.directory()), (Version::V1, "sys/fs/cgroup/memory/a/b"));
        let own = group.memory(&kernel).unwrap().unwrap();
        assert_eq!((own.limit, own.usage), (Limit::Bytes(Bytes(50_000)), Bytes(10_000)));
        let least = group.least_headroom(&kernel).unwrap().unwrap();
        assert_eq!((least.path.as_str(), least.headroom()), ("/sys/fs/cgroup/memory/a", Some(Bytes(10_000))));
        let top = find(&kernel, "/").unwrap();
        assert_eq!(top.least_headroom(&kernel).unwrap().unwrap().limit, Limit::Unlimited);
    }

    #[test]
    fn of_version_2_the_lower_limit_counts_and_the_topmost_group_has_none() {
        let kernel = v2();
        let group = find(&kernel, "web").unwrap();
        assert_eq!(group.version, Version::V2);
        assert_eq!(group.memory(&kernel).unwrap().unwrap().limit, Limit::Bytes(Bytes(8192)));
        assert_eq!(group.least_headroom(&kernel).unwrap().unwrap().path, "/sys/fs/cgroup/web");
        assert_eq!(find(&kernel, "/").unwrap().memory(&kernel).unwrap(), None);
    }

    #[test]
    fn each_version_has_files_of_its_own() {
        let kernel = v1();
        let group = find(&kernel, "a/b").unwrap();
        assert_eq!(group.swappiness_path().as_deref(), Some("sys/fs/cgroup/memory/a/b/memory.swappiness"));
        assert_eq!((group.swap_limit_path(), group.pressure_path()), (None, None));
        assert_eq!(group.swappiness(&kernel), Ok(60));
        assert!(matches!(group.swap_limit(&kernel), Err(Error::Unsupported(_))));
        let kernel = v2();
        let group = find(&kernel, "web").unwrap();
        assert_eq!(group.swappiness_path(), None);
        assert_eq!(group.swap_limit_path().as_deref(), Some("sys/fs/cgroup/web/memory.swap.max"));
        assert_eq!(group.pressure_path().as_deref(), Some("sys/fs/cgroup/web/memory.pressure"));
        assert_eq!(group.swap_limit(&kernel), Ok(Limit::Unlimited));
        let error = group.swappiness(&kernel).unwrap_err();
        let expected = "cannot find /sys/fs/cgroup/web/memory.swappiness: no such file or directory (ENOENT)";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_missing_file_is_unsupported_and_a_missing_group_is_gone() {
        let kernel = v1();
        let group = find(&kernel, "a").unwrap();
        assert!(matches!(group.swappiness(&kernel), Err(Error::Unsupported(_))), "there is none in this tree");
        let removed = FakeKernel::new();
        assert!(group.swappiness(&removed).unwrap_err().is_gone());
        assert_eq!(group.memory(&removed), Ok(None));
        let web = find(&v2(), "web").unwrap();
        assert!(web.swap_limit(&removed).unwrap_err().is_gone());
        let without_swap = FakeKernel::new().file("sys/fs/cgroup/web/memory.max", "max\n");
        assert!(matches!(web.swap_limit(&without_swap), Err(Error::Unsupported(_))));
    }

    #[test]
    fn a_malformed_value_is_named() {
        for bad in ["lots", "201", "-1", ""] {
            let kernel = v1().file("sys/fs/cgroup/memory/a/b/memory.swappiness", bad);
            let error = find(&kernel, "a/b").unwrap().swappiness(&kernel).unwrap_err();
            let expected = format!(
                "cannot understand /sys/fs/cgroup/memory/a/b/memory.swappiness: {bad:?}, expected a number up to 200"
            );
            assert_eq!(error.to_string(), expected);
        }
        let kernel = v2().file("sys/fs/cgroup/web/memory.swap.max", "some\n");
        assert!(matches!(find(&kernel, "web").unwrap().swap_limit(&kernel), Err(Error::Malformed { .. })));
    }

    #[test]
    fn files_of_a_newer_kernel_are_left_alone() {
        let kernel = v2().file("sys/fs/cgroup/web/memory.swap.newer", "7\n");
        assert_eq!(find(&kernel, "web").unwrap().swap_limit(&kernel), Ok(Limit::Unlimited));
    }

    #[test]
    fn the_paths_are_those_that_knobs_can_turn() {
        let kernel = v2();
        let path = find(&kernel, "web").unwrap().swap_limit_path().unwrap();
        kernel.write(&path, "0").unwrap();
        assert_eq!(kernel.writes(), ["sys/fs/cgroup/web/memory.swap.max <- 0"]);
        assert_eq!(find(&kernel, "web").unwrap().swap_limit(&kernel), Ok(Limit::Bytes(Bytes(0))));
    }
}
