//! Facts of a process, from `/proc/PID`: unit, groups, file, user and command.
//!
//! Strangers choose the names of their processes, groups and user units. A unit is the system's own: the first name in a
//! control group's path without the ending `.slice`. A user's unit lies below `user@UID.service`, and counts as that one.
//! Files are compared by inode, not by the path in the process's namespace (`linux::executable`).

use std::path::PathBuf;

use linux::executable::Executable;
use linux::{Error, KernelFiles, Pid, cgroup, status};

/// Facts of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its system unit.
    pub unit: Option<String>,
    /// Its control groups, each from the top of its hierarchy.
    pub groups: Vec<String>,
    /// Its program, if a rule names the file.
    pub executables: Vec<PathBuf>,
    /// Real, effective, saved and file-system user.
    pub users: [u32; 4],
    /// Command name.
    pub command: String,
    /// masu itself, the first process, a thread of the kernel, or an ended process.
    pub is_untouchable: bool,
}

/// Program files of the rules.
#[derive(Clone, Debug, Default)]
pub struct Executables(Vec<(PathBuf, Executable)>);

impl Executables {
    /// Finds the files at these paths. Nobody runs a missing one.
    pub fn find(paths: impl IntoIterator<Item = PathBuf>) -> Executables {
        let found = paths.into_iter().filter_map(|path| Executable::at(&path).ok().map(|file| (path, file)));
        Executables(found.collect())
    }

    fn run_by(&self, pid: Pid) -> Vec<PathBuf> {
        self.0.iter().filter(|(_, file)| file.is_run_by(pid)).map(|(path, _)| path.clone()).collect()
    }
}

/// Reads the facts of a process.
///
/// # Errors
/// `Gone` if it ended.
pub fn read(files: &impl KernelFiles, pid: Pid, executables: &Executables) -> Result<Facts, Error> {
    let status = status::status(files, pid)?;
    let is_untouchable =
        pid == Pid::own() || pid == Pid(1) || status.kernel_thread || (status.zombie && !status.first_thread_ended());
    if is_untouchable {
        return Ok(Facts { is_untouchable, ..Facts::default() });
    }
    let groups = cgroup::paths_of(files, pid)?;
    Ok(Facts {
        unit: groups.iter().find_map(|group| unit_of(group)).map(str::to_owned),
        groups,
        executables: executables.run_by(pid),
        users: status.uids,
        command: status.name.text().into_owned(),
        is_untouchable,
    })
}

/// System unit of a group: the first name without the ending `.slice`, if it has another of systemd's.
fn unit_of(group: &str) -> Option<&str> {
    const KINDS: [&str; 5] = [".service", ".scope", ".socket", ".mount", ".swap"];
    let name = group.split('/').find(|name| !name.is_empty() && !name.ends_with(".slice"))?;
    KINDS.iter().any(|kind| name.len() > kind.len() && name.ends_with(kind)).then_some(name)
}

#[cfg(test)]
mod tests {
    use linux::fake::FakeKernel;

    use super::*;

    #[test]
    fn a_users_unit_has_no_name_of_the_system() {
        for (group, unit) in [
            ("/system.slice/redis-server.service", Some("redis-server.service")),
            ("/system.slice/system-redis.slice/redis@6379.service/child", Some("redis@6379.service")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/redis-server.service", Some("user@1000.service")),
            ("/user.slice/user-1000.slice/session-3.scope", Some("session-3.scope")),
            ("/kubepods.slice/pod1/redis-server.service", None),
            ("/.service", None),
            ("/system.slice", None),
            ("/", None),
        ] {
            assert_eq!(unit_of(group), unit, "{group}");
        }
    }

    #[test]
    fn facts_are_those_of_status_and_groups() {
        let status = "Name:\tredis\\nx\nState:\tS\nTgid:\t7\nUid:\t106\t106\t106\t106\nVmRSS:\t 4 kB\nVmSize:\t 4 kB\nThreads:\t1\nCapEff:\t0\n";
        let kernel = FakeKernel::new()
            .file("proc/7/status", status)
            .file("proc/7/cgroup", "3:memory:/web\n1:name=systemd:/system.slice/web.service\n0::/\n");
        let facts = read(&kernel, Pid(7), &Executables::default()).unwrap();
        assert_eq!((facts.unit.as_deref(), facts.users), (Some("web.service"), [106; 4]));
        assert_eq!(facts.groups, ["/web", "/system.slice/web.service", "/"]);
        assert!(!facts.is_untouchable);
        assert!(read(&kernel, Pid(8), &Executables::default()).unwrap_err().is_gone());
    }
}
