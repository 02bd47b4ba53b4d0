//! `memory.stat` of one control group, with its usage and limit: the kernel's own count of its memory.
//!
//! Descendants are included. Limits above the group and swap settings are in `group_memory.rs`.
//!
//! | here           | version 1                         | version 2                         |
//! | usage          | `memory.usage_in_bytes`           | `memory.current`                  |
//! | limit          | `hierarchical_memory_limit`       | `memory.max`, of the group itself |
//! | anonymous      | `total_rss`                       | `anon`                            |
//! | files          | `total_cache` less `total_shmem`  | `file` less `shmem`               |
//! | shared         | `total_shmem`                     | `shmem`                           |
//! | kernel         | `memory.kmem.usage_in_bytes`      | `kernel`, 5.18; before: its parts |
//! | inactive files | `total_inactive_file`             | `inactive_file`                   |
//! | swap           | `total_swap`                      | `memory.swap.current`             |
//! | huge           | `total_rss_huge`                  | `anon_thp`                        |
//! | refaults       | `total_workingset_refault_*`      | `workingset_refault_*`            |
//! | huge pool      | another hierarchy: not read       | `hugetlb.*.current`               |
//!
//! Cost: some files a group; the kernel sums up `memory.stat` over the descendants. Side effects: none.
//!
//! Since: version 1 Linux 2.6.25, version 2 Linux 4.5.
//!
//! Truth: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; `memcg_stat_format` in mm/memcontrol.c.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use units::Bytes;

use super::{Limit, Version, read_number};
use crate::{Error, KernelFiles};

/// Memory of a group by the kernel's own count, descendants included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Charges {
    /// All that is charged.
    pub usage_bytes: Bytes,
    /// Limit; `None` without one.
    pub limit_bytes: Option<Bytes>,
    /// Anonymous memory.
    pub anonymous_bytes: Bytes,
    /// Page cache of files, without shared memory.
    pub file_bytes: Bytes,
    /// Shared memory and tmpfs.
    pub shared_bytes: Bytes,
    /// Kernel memory: slab, page tables, stacks; `None` where it is not counted.
    pub kernel_bytes: Option<Bytes>,
    /// Inactive page cache.
    pub inactive_file_bytes: Bytes,
    /// Memory in swap; `None` where swap is not accounted.
    pub swap_bytes: Option<Bytes>,
    /// Part of the usage in no class above, a moment's difference of the counters included: pages of torn huge pages that
    /// no process maps. The swap cache is counted in two classes, which hides as much.
    #[serde(default)]
    pub unclassified_bytes: Bytes,
    /// Huge pages of the pool in use, which are not part of the usage; `None` without the controller.
    pub huge_pool_bytes: Option<Bytes>,
    /// Part of the anonymous memory on huge pages; `None` where it is not counted.
    #[serde(default)]
    pub huge_bytes: Option<Bytes>,
    /// Refaults of file pages, since the group was made; `None` where they are not counted.
    #[serde(default)]
    pub file_refaults: Option<u64>,
    /// Refaults of anonymous pages, since Linux 5.9.
    #[serde(default)]
    pub anonymous_refaults: Option<u64>,
    /// Kubelet's working set: the usage less the inactive page cache.
    pub working_set_bytes: Bytes,
}

/// Reads the figures of the group in `directory`, relative to the root. `None` where its memory is not accounted, as at
/// the top of version 2, or when it was removed.
///
/// # Errors
/// `Malformed` for text that is no number of bytes; the kernel's error for one of the files.
pub(super) fn of(files: &impl KernelFiles, version: Version, directory: &str) -> Result<Option<Charges>, Error> {
    let number = |name: &str| {
        Ok::<_, Error>(match read_number(files, &format!("{directory}/{name}"))? {
            Some(Limit::Bytes(bytes)) => Some(bytes),
            Some(Limit::Unlimited) | None => None,
        })
    };
    let path = format!("{directory}/memory.stat");
    let text = match files.read(&path) {
        Ok(text) => text,
        Err(Errno::NOENT | Errno::NODEV) => return Ok(None),
        Err(errno) => return Err(Error::of_host("read", format_args!("/{path}"), errno)),
    };
    let stat = |name: &str| -> Result<Option<Bytes>, Error> {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let bad = |digits: &str| {
            Error::malformed(format_args!("/{path}"), format_args!("{name} {digits:?}, expected a number of bytes"))
        };
        value.map(|digits| digits.parse().map(Bytes).map_err(|_| bad(digits))).transpose()
    };
    let count = |name: &str| Ok::<_, Error>(stat(name)?.map(|Bytes(count)| count));
    let usage = match version {
        Version::V1 => number("memory.usage_in_bytes")?,
        Version::V2 => number("memory.current")?,
    };
    let Some(usage_bytes) = usage else { return Ok(None) };
    let of = |name: &str| Ok::<_, Error>(stat(name)?.unwrap_or_default());
    let mut others = Bytes(0);
    let charges = match version {
        Version::V1 => Charges {
            limit_bytes: stat("hierarchical_memory_limit")?.filter(|limit| limit.0 < UNLIMITED_V1),
            anonymous_bytes: of("total_rss")?,
            file_bytes: of("total_cache")?.saturating_sub(of("total_shmem")?),
            shared_bytes: of("total_shmem")?,
            kernel_bytes: number("memory.kmem.usage_in_bytes")?,
            inactive_file_bytes: of("total_inactive_file")?,
            swap_bytes: stat("total_swap")?,
            huge_pool_bytes: None,
            huge_bytes: stat("total_rss_huge")?,
            file_refaults: count("total_workingset_refault_file")?,
            anonymous_refaults: count("total_workingset_refault_anon")?,
            ..Charges::default()
        },
        Version::V2 => {
            // Not part of `kernel`.
            others = stat("kernel")?.map_or(Ok(Bytes(0)), |_| of("sock"))? + of("hugetlb")?;
            let kernel = match stat("kernel")? {
                None => ["kernel_stack", "pagetables", "percpu", "sock", "slab"].into_iter().map(stat).sum::<Result<
                    Option<Bytes>,
                    Error,
                >>(
                )?,
                kernel => kernel,
            };
            Charges {
                limit_bytes: number("memory.max")?,
                anonymous_bytes: of("anon")?,
                file_bytes: of("file")?.saturating_sub(of("shmem")?),
                shared_bytes: of("shmem")?,
                kernel_bytes: kernel,
                inactive_file_bytes: of("inactive_file")?,
                swap_bytes: number("memory.swap.current")?,
                huge_pool_bytes: huge_pool(files, directory)?,
                huge_bytes: stat("anon_thp")?,
                file_refaults: count("workingset_refault_file")?,
                anonymous_refaults: count("workingset_refault_anon")?,
                ..Charges::default()
            }
        }
    };
    let working_set_bytes = usage_bytes.saturating_sub(charges.inactive_file_bytes);
    let Charges { anonymous_bytes, file_bytes, shared_bytes, kernel_bytes, .. } = &charges;
    let classes = *anonymous_bytes + *file_bytes + *shared_bytes + kernel_bytes.unwrap_or_default() + others;
    let unclassified_bytes = usage_bytes.saturating_sub(classes);
    Ok(Some(Charges { usage_bytes, working_set_bytes, unclassified_bytes, ..charges }))
}

/// Version 1 prints "no limit" as the largest number of pages, in bytes.
const UNLIMITED_V1: u64 = i64::MAX as u64 / 4096 * 4096;

/// Huge pages of the pool that a group of version 2 uses, of all sizes.
fn huge_pool(files: &impl KernelFiles, directory: &str) -> Result<Option<Bytes>, Error> {
    let names = files.list(directory).unwrap_or_default();
    let is_usage = |name: &&String| {
        name.strip_prefix("hugetlb.")
            .and_then(|rest| rest.strip_suffix(".current"))
            .is_some_and(|size| !size.contains('.'))
    };
    let mut sum = None;
    for name in names.iter().filter(is_usage) {
        if let Some(Limit::Bytes(bytes)) = read_number(files, &format!("{directory}/{name}"))? {
            sum = Some(sum.unwrap_or_default() + bytes);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn version_1_counts_what_is_below_in_total() {
        let stat = "cache 1\nrss 2\nhierarchical_memory_limit 1048576\ntotal_cache 700\ntotal_rss 200\n\
                    total_shmem 100\ntotal_inactive_file 300\ntotal_swap 7\n\
                    total_rss_huge 20\ntotal_workingset_refault_anon 3\n";
        let kernel = FakeKernel::new()
            .file("sys/fs/cgroup/memory/a/memory.stat", stat)
            .file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000\n")
            .file("sys/fs/cgroup/memory/a/memory.kmem.usage_in_bytes", "50\n");
        let found = of(&kernel, Version::V1, "sys/fs/cgroup/memory/a").unwrap().unwrap();
        let expected = Charges {
            usage_bytes: Bytes(1000),
            limit_bytes: Some(Bytes(1 << 20)),
            anonymous_bytes: Bytes(200),
            file_bytes: Bytes(600),
            shared_bytes: Bytes(100),
            kernel_bytes: Some(Bytes(50)),
            inactive_file_bytes: Bytes(300),
            swap_bytes: Some(Bytes(7)),
            huge_pool_bytes: None,
            huge_bytes: Some(Bytes(20)),
            file_refaults: None,
            anonymous_refaults: Some(3),
            unclassified_bytes: Bytes(50),
            working_set_bytes: Bytes(700),
        };
        assert_eq!(found, expected);
        let unlimited = stat.replace("1048576", "9223372036854771712");
        let kernel = kernel.file("sys/fs/cgroup/memory/a/memory.stat", &unlimited);
        assert_eq!(of(&kernel, Version::V1, "sys/fs/cgroup/memory/a").unwrap().unwrap().limit_bytes, None);
    }

    #[test]
    fn version_2_has_the_pool_of_huge_pages_beside_the_usage() {
        let kernel = FakeKernel::new()
            .file("sys/fs/cgroup/a/memory.stat", "anon 10\nfile 30\nkernel 5\nshmem 10\ninactive_file 15\n")
            .file("sys/fs/cgroup/a/memory.current", "45\n")
            .file("sys/fs/cgroup/a/memory.max", "max\n")
            .file("sys/fs/cgroup/a/hugetlb.2MB.current", "4194304\n")
            .file("sys/fs/cgroup/a/hugetlb.1GB.current", "0\n")
            .file("sys/fs/cgroup/a/hugetlb.2MB.rsvd.current", "8388608\n");
        let found = of(&kernel, Version::V2, "sys/fs/cgroup/a").unwrap().unwrap();
        assert_eq!((found.limit_bytes, found.kernel_bytes, found.swap_bytes), (None, Some(Bytes(5)), None));
        assert_eq!((found.file_bytes, found.working_set_bytes), (Bytes(20), Bytes(30)));
        assert_eq!(found.huge_pool_bytes, Some(Bytes::mib(4)));
        assert_eq!(found.unclassified_bytes, Bytes(0));
        let unclassified = |stat: &str| {
            let kernel = FakeKernel::new()
                .file("sys/fs/cgroup/a/memory.stat", stat)
                .file("sys/fs/cgroup/a/memory.current", "45\n");
            of(&kernel, Version::V2, "sys/fs/cgroup/a").unwrap().unwrap().unclassified_bytes
        };
        assert_eq!(unclassified("anon 10\nfile 20\nkernel 5\nshmem 10\n"), Bytes(10));
        assert_eq!(unclassified("anon 10\nfile 20\nkernel 5\nsock 3\nhugetlb 4\n"), Bytes(3));
        // Before Linux 5.18 its parts are there alone.
        let kernel = kernel
            .file("sys/fs/cgroup/a/memory.stat", "anon 10\nkernel_stack 1\npagetables 2\npercpu 0\nsock 0\nslab 4\n");
        assert_eq!(of(&kernel, Version::V2, "sys/fs/cgroup/a").unwrap().unwrap().kernel_bytes, Some(Bytes(7)));
    }

    #[test]
    fn what_is_not_accounted_is_none_and_what_is_no_number_is_named() {
        assert_eq!(of(&FakeKernel::new(), Version::V2, "sys/fs/cgroup").unwrap(), None);
        let kernel = FakeKernel::new()
            .file("sys/fs/cgroup/a/memory.stat", "anon ten\n")
            .file("sys/fs/cgroup/a/memory.current", "45\n");
        let error = of(&kernel, Version::V2, "sys/fs/cgroup/a").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot understand /sys/fs/cgroup/a/memory.stat: anon \"ten\", expected a number of bytes"
        );
    }
}
