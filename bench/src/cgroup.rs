//! A private memory cgroup, version 1 or 2: the memory of a benchmark's program is charged to it, and limited.
//!
//! A program joins before it starts, through a shell that replaces itself. Dropping the value removes the cgroup; its
//! remaining charges (pages of files) go to its parent.
//!
//! The kernel decides on reclaim from counters that are updated every two seconds, or when they are read. In a cgroup
//! of some MiB a program swaps all of it several times in between. The kernel then finds nothing to reclaim, several
//! times in a row, and kills the program (seen on 6.18: no page is scanned although all can be swapped). So the
//! counters are read all the time ([`MemoryCgroup::refresh`]), and under version 1 a program that finds no memory waits
//! instead of being killed.
//!
//! Truth: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use units::Bytes;

use crate::launch::Program;

/// Number of cgroups made by this process, for unique names.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Version of the kernel's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A cgroup that was made here. Dropped, it is removed.
#[derive(Debug)]
pub struct MemoryCgroup {
    folder: PathBuf,
    version: Version,
}

/// Charges of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// All of it.
    pub usage: Bytes,
    /// Pages of files that no program has mapped: the kernel takes them back when it needs them.
    pub unmapped_files: Bytes,
}

/// Time limit for the last processes of a cgroup to leave it.
const GRACE: Duration = Duration::from_secs(5);

impl MemoryCgroup {
    /// Makes one.
    ///
    /// # Errors
    /// When this host offers no memory cgroups, or we may not make one.
    pub fn make() -> Result<MemoryCgroup> {
        let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
        let Some((version, root)) = hierarchies(&mounts).into_iter().find(|(version, root)| offers(*version, root))
        else {
            bail!(
                "no memory cgroups here\n    Mount the controller `memory` of version 1, or add it to \
                 /sys/fs/cgroup/cgroup.subtree_control."
            );
        };
        let nth = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("masu-bench-{}-{nth}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {} (this needs root)", folder.display()))?;
        Ok(MemoryCgroup { folder, version })
    }

    /// Value for masu's `--cgroup`: the path below the root of the hierarchy.
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Limits memory in the usual way; pages in swap do not count. When no page of the cgroup can be reclaimed any
    /// more, the kernel kills one of its programs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn limit_plainly(&self, limit: Bytes) -> Result<()> {
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        self.write(file, &limit.0.to_string())
    }

    /// As [`MemoryCgroup::limit_plainly`], but under version 1 a program that finds no memory waits for
    /// [`MemoryCgroup::refresh`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn limit(&self, limit: Bytes) -> Result<()> {
        self.limit_plainly(limit)?;
        if self.version == Version::One { self.write("memory.oom_control", "1") } else { Ok(()) }
    }

    /// Brings the kernel's counters up to date, and wakes a program that waits for memory so that it tries again: true when one
    /// did.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn refresh(&self) -> Result<bool> {
        self.read("memory.stat")?;
        let waits =
            self.version == Version::One && self.read("memory.oom_control")?.lines().any(|line| line == "under_oom 1");
        if waits {
            let limit = self.read("memory.limit_in_bytes")?;
            self.write("memory.limit_in_bytes", limit.trim())?;
        }
        Ok(waits)
    }

    /// Current charges.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn charged(&self) -> Result<Charged> {
        let usage = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        let usage = self.read(usage)?.trim().parse().context("the usage of a cgroup is not a number")?;
        Ok(Charged { usage: Bytes(usage), unmapped_files: unmapped_files(&self.read("memory.stat")?, self.version)? })
    }

    /// The processes in it.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn processes(&self) -> Result<Vec<u32>> {
        Ok(self.read("cgroup.procs")?.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }

    /// `program`, started in it.
    pub fn start(&self, program: &Program) -> Command {
        let mut command = Command::new("/bin/sh");
        // The shell moves itself (0 means the writing process), and then becomes the program.
        command.args(["-c", "echo 0 > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        command.arg(&program.path).args(&program.arguments);
        command
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.folder.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let end = Instant::now() + GRACE;
        while let Err(error) = fs::remove_dir(&self.folder) {
            if Instant::now() >= end {
                let folder = self.folder.display();
                eprintln!("masu-bench: cannot remove {folder}: {error}\n    rmdir {folder}");
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Mount points of hierarchies that could count memory, from the text of `/proc/mounts`. Version 1 comes first: where
/// both are mounted, it has the controller for itself.
fn hierarchies(mounts: &str) -> Vec<(Version, PathBuf)> {
    let mut found: Vec<(Version, PathBuf)> = mounts
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, place, kind, options, ..] = words[..] else { return None };
            match kind {
                "cgroup" if options.split(',').any(|option| option == "memory") => Some((Version::One, place.into())),
                "cgroup2" => Some((Version::Two, place.into())),
                _ => None,
            }
        })
        .collect();
    found.sort_by_key(|(version, _)| *version == Version::Two);
    found
}

/// Whether a cgroup below `root` can limit memory.
fn offers(version: Version, root: &Path) -> bool {
    version == Version::One
        || fs::read_to_string(root.join("cgroup.subtree_control"))
            .is_ok_and(|text| text.split_whitespace().any(|controller| controller == "memory"))
}

/// Reads the text of `memory.stat`.
fn unmapped_files(stat: &str, version: Version) -> Result<Bytes> {
    let (all, mapped) = match version {
        Version::One => ("total_cache", "total_mapped_file"),
        Version::Two => ("file", "file_mapped"),
    };
    let number = |name: &str| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        let line = lines.find(|(key, _)| *key == name).with_context(|| format!("memory.stat has no {name}"))?;
        Ok::<_, anyhow::Error>(Bytes(line.1.trim().parse().with_context(|| format!("memory.stat: {name}"))?))
    };
    Ok(number(all)?.saturating_sub(number(mapped)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_has_the_controller_comes_first() {
        let mounts = "proc /proc proc rw 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let wanted = [(Version::One, "/sys/fs/cgroup/memory".into()), (Version::Two, "/sys/fs/cgroup/unified".into())];
        assert_eq!(hierarchies(mounts), wanted);
        assert_eq!(hierarchies("nonsense\n"), []);
    }

    #[test]
    fn version_two_needs_the_controller_handed_down() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!offers(Version::Two, folder.path()) && offers(Version::One, folder.path()));
        fs::write(folder.path().join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        assert!(offers(Version::Two, folder.path()));
    }

    #[test]
    fn pages_of_files_that_nobody_maps_are_told_apart() {
        let one = "cache 9\ntotal_cache 8192\ntotal_rss 5\ntotal_mapped_file 4096\n";
        assert_eq!(unmapped_files(one, Version::One).unwrap(), Bytes(4096));
        let two = "anon 5\nfile 12288\nkernel 3\nfile_mapped 4096\n";
        assert_eq!(unmapped_files(two, Version::Two).unwrap(), Bytes(8192));
        assert_eq!(unmapped_files("", Version::Two).unwrap_err().to_string(), "memory.stat has no file");
    }

    #[test]
    fn a_program_that_waits_for_memory_is_woken_by_its_own_limit() {
        let folder = tempfile::tempdir().unwrap();
        let cgroup = MemoryCgroup { folder: folder.path().join("ours"), version: Version::One };
        fs::create_dir(&cgroup.folder).unwrap();
        fs::write(cgroup.folder.join("memory.stat"), "").unwrap();
        cgroup.limit(Bytes(8192)).unwrap();
        assert_eq!(cgroup.read("memory.oom_control").unwrap(), "1");
        for (state, wanted) in [("under_oom 0", "8192\n"), ("under_oom 1", "8192")] {
            fs::write(cgroup.folder.join("memory.limit_in_bytes"), "8192\n").unwrap();
            fs::write(cgroup.folder.join("memory.oom_control"), format!("oom_kill_disable 1\n{state}\n")).unwrap();
            assert_eq!(cgroup.refresh().unwrap(), state == "under_oom 1");
            assert_eq!(cgroup.read("memory.limit_in_bytes").unwrap(), wanted);
        }
        fs::remove_dir_all(&cgroup.folder).unwrap();
        fs::create_dir(&cgroup.folder).unwrap(); // the kernel's files go by themselves
    }

    #[test]
    fn a_program_joins_through_a_shell_that_becomes_it() {
        let folder = tempfile::tempdir().unwrap();
        let cgroup = MemoryCgroup { folder: folder.path().join("ours"), version: Version::Two };
        fs::create_dir(&cgroup.folder).unwrap();
        let mut command = cgroup.start(&Program::at("/bin/echo", ["a b", "$HOME"]));
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "a b $HOME\n");
        assert_eq!(cgroup.processes().unwrap(), [0]);
        fs::remove_file(cgroup.folder.join("cgroup.procs")).unwrap(); // the kernel's files go by themselves
    }
}
