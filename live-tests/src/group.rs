//! A memory cgroup for one test, of the version with the memory controller on this host.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use linux::Pid;

/// A private cgroup. Dropping it removes it: its processes must have ended by then, so make it before the target
/// process.
#[derive(Debug)]
pub(crate) struct Group {
    directory: PathBuf,
    limit: &'static str,
    /// The controller had to be turned on for the groups under the topmost one.
    turned_on: Option<PathBuf>,
}

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

impl Group {
    /// A group without a limit yet.
    pub(crate) fn make(name: &str) -> io::Result<Group> {
        let name = format!("masu-live-{name}-{}", std::process::id());
        if Path::new(V1).join("memory.limit_in_bytes").exists() {
            let directory = Path::new(V1).join(name);
            fs::create_dir(&directory)?;
            return Ok(Group { directory, limit: "memory.limit_in_bytes", turned_on: None });
        }
        let control = Path::new(V2).join("cgroup.subtree_control");
        let already = fs::read_to_string(&control)?.split_ascii_whitespace().any(|name| name == "memory");
        if !already {
            fs::write(&control, "+memory")?;
        }
        let turned_on = (!already).then_some(control);
        let group = Group { directory: Path::new(V2).join(name), limit: "memory.max", turned_on };
        fs::create_dir(&group.directory)?;
        Ok(group)
    }

    /// The file to which a process writes itself (as 0) to be in it.
    pub(crate) fn procs(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Name below the mount point of the memory controller.
    pub(crate) fn name(&self) -> String {
        self.directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Number of its processes that the kernel has killed for lack of memory.
    pub(crate) fn killed(&self) -> io::Result<u64> {
        let v1 = self.limit == "memory.limit_in_bytes";
        let text = fs::read_to_string(self.directory.join(if v1 { "memory.oom_control" } else { "memory.events" }))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|number| number.trim().parse().ok()).ok_or_else(|| io::Error::other("no oom_kill"))
    }

    /// Path from the controller's mount point.
    pub(crate) fn path(&self) -> String {
        self.directory.file_name().map(|name| format!("/{}", name.to_string_lossy())).unwrap_or_default()
    }

    /// Puts a process in it. Memory that is already resident stays charged to the former cgroup.
    pub(crate) fn take_in(&self, pid: Pid) -> io::Result<()> {
        fs::write(self.procs(), pid.to_string())
    }

    /// The most memory that it may have.
    pub(crate) fn limit(&self, bytes: u64) -> io::Result<()> {
        fs::write(self.directory.join(self.limit), bytes.to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was just killed leaves its group a moment after it was waited for.
        for _ in 0..200 {
            match fs::remove_dir(&self.directory) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    eprintln!("cannot remove {}: {error}", self.directory.display());
                    break;
                }
                _ => break,
            }
        }
        if let Some(control) = &self.turned_on
            && let Err(error) = fs::write(control, "-memory")
        {
            eprintln!("cannot turn off the memory controller again: {error}");
        }
    }
}
