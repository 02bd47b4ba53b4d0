//! The freezer: control groups whose processes are frozen until they are thawed.
//!
//! A frozen thread does not reach a stop, and a call that waits for the stop waits until the thaw: PTRACE_SEIZE of a
//! stopped thread in a frozen group sleeps in the kernel. So the state is read first.
//!
//! Cost: three files. Side effects: none.
//!
//! Since: version 1 (`freezer.state`) Linux 2.6.28, version 2 (`cgroup.events`, `frozen`) Linux 5.2.
//!
//! Truth: Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst.

use super::{Mount, Version, own_group};
use crate::key_lines::lines;
use crate::untrusted::text_of;
use crate::{KernelFiles, Pid};

/// Directory of the group of `pid` if it is frozen, by itself or by an ancestor. `None` also if the state cannot be
/// read.
pub fn frozen_group(files: &impl KernelFiles, pid: Pid) -> Option<String> {
    let groups = files.bytes(&pid.file("cgroup")).ok()?;
    let mounts = files.read("proc/self/mountinfo").ok()?;
    // A host may have both versions: the tree of version 2 can be frozen beside the freezer of version 1.
    [("freezer", Version::V1), ("", Version::V2)].into_iter().find_map(|(controller, version)| {
        let group = match version {
            Version::V1 => own_group(&groups, controller).filter(|(found, _)| *found == version)?.1,
            Version::V2 => lines(&groups).find_map(|line| line.strip_prefix(b"0::"))?,
        };
        let group = &*text_of(group.to_vec());
        mounts.lines().filter_map(|line| Mount::of(line, version, controller)).find_map(|mount| {
            let directory = mount.directory_of(mount.levels_to(group)?.first()?);
            is_frozen(files, version, &directory).then(|| format!("/{directory}"))
        })
    })
}

fn is_frozen(files: &impl KernelFiles, version: Version, directory: &str) -> bool {
    let says = |file: &str, frozen: &[&str]| {
        let text = files.read(&format!("{directory}/{file}"));
        text.is_ok_and(|text| text.lines().any(|line| frozen.contains(&line)))
    };
    match version {
        Version::V1 => says("freezer.state", &["FROZEN", "FREEZING"]),
        Version::V2 => says("cgroup.events", &["frozen 1"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    const MOUNTS: &str = "35 31 0:32 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
                          36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw\n";

    fn host(groups: &str) -> FakeKernel {
        FakeKernel::new().file("proc/self/mountinfo", MOUNTS).file("proc/42/cgroup", groups)
    }

    #[test]
    fn a_group_of_either_version_is_frozen_or_not() {
        let kernel = host("7:freezer:/web\n0::/app\n")
            .file("sys/fs/cgroup/freezer/web/freezer.state", "THAWED\n")
            .file("sys/fs/cgroup/unified/app/cgroup.events", "populated 1\nfrozen 0\n");
        assert_eq!(frozen_group(&kernel, Pid(42)), None);
        let kernel = host("7:freezer:/web\n0::/app\n").file("sys/fs/cgroup/freezer/web/freezer.state", "FREEZING\n");
        assert_eq!(frozen_group(&kernel, Pid(42)), Some("/sys/fs/cgroup/freezer/web".to_owned()));
        let kernel = host("7:freezer:/\n0::/app\n")
            .file("sys/fs/cgroup/freezer/cgroup.procs", "1\n")
            .file("sys/fs/cgroup/unified/app/cgroup.events", "populated 1\nfrozen 1\n");
        assert_eq!(frozen_group(&kernel, Pid(42)), Some("/sys/fs/cgroup/unified/app".to_owned()));
    }

    #[test]
    fn without_a_freezer_nothing_is_frozen() {
        let kernel = FakeKernel::new().file("proc/self/mountinfo", "").file("proc/42/cgroup", "3:memory:/web\n");
        assert_eq!(frozen_group(&kernel, Pid(42)), None);
        assert_eq!(frozen_group(&FakeKernel::new(), Pid(42)), None);
    }
}
