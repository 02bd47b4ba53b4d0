//! Memory control groups: how much memory a process may have, with whom it shares that, and how much is taken.
//!
//! What the host as a whole has is in `meminfo.rs`.
//!
//! Each group above the process's own may have a limit too; the one that leaves the least room is the one that counts,
//! and the one reported. In version 2 the lower of `memory.max` (the kernel kills) and `memory.high` (the kernel makes
//! the programs wait) is the limit. Where both versions are mounted, the memory controller is in one of them: version 1,
//! if `/proc/PID/cgroup` has a line for it. Where the groups are mounted is read from our own `mountinfo`, because the
//! paths are opened by us; a process whose group lies outside of what we have mounted (another container's) cannot be
//! looked at, and that is said.
//!
//! Cost: two files and then two to four per level. Side effects: none. Usage is kept per CPU and may lag by some MiB.
//!
//! Since: version 1 Linux 2.6.25, version 2 Linux 4.5; needs CONFIG_MEMCG.
//!
//! Truth: cgroups(7); Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; proc_pid_mountinfo(5).

pub mod freezer;
pub mod group;
mod group_memory;
pub mod limited;

use rustix::io::Errno;
use serde::Serialize;
use units::Bytes;

use crate::key_lines::lines;
use crate::untrusted::text_of;
use crate::{Error, KernelFiles, Pid, Untrusted};

/// The memory controller, as version 1 names it.
const MEMORY: &str = "memory";

/// The most memory that a group may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// As much as there is.
    Unlimited,
    /// So much.
    Bytes(Bytes),
}

/// The group that leaves a process the least room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Its limit.
    pub limit: Limit,
    /// The memory that all of its processes have now, page cache included.
    #[serde(rename = "usage_bytes")]
    pub usage: Bytes,
    /// The part of that which is page cache nobody used lately: the kernel takes it back before it refuses anything.
    #[serde(rename = "idle_cache_bytes")]
    pub idle_cache: Bytes,
    /// Its directory: `/sys/fs/cgroup/web.slice`.
    pub path: String,
}

impl Memory {
    /// What is left up to the limit, idle page cache included; `None` without one.
    pub fn room(&self) -> Option<Bytes> {
        match self.limit {
            Limit::Unlimited => None,
            Limit::Bytes(limit) => Some(limit.saturating_sub(self.usage.saturating_sub(self.idle_cache))),
        }
    }
}

/// Which of the two interfaces the memory controller is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes`, each controller mounted for itself.
    V1,
    /// `memory.max`, all controllers in one tree.
    V2,
}

/// The group that leaves `pid` the least room; its own if none has a limit. `None` when this host does not account
/// memory by groups, or not for this process.
///
/// # Errors
/// `Gone` if the process ended; `Unsupported` if its group lies outside of what is mounted here.
pub fn memory(files: &impl KernelFiles, pid: Pid) -> Result<Option<Memory>, Error> {
    let file = pid.file("cgroup");
    let text = files.bytes(&file).map_err(|errno| match errno {
        Errno::NOENT if files.list(&pid.file("")).is_ok() => Error::of_host("read", format_args!("/{file}"), errno),
        _ => Error::of_process("read", format_args!("/{file}"), errno),
    });
    let text = match text {
        Err(Error::Unsupported(_)) => return Ok(None), // a kernel without control groups
        other => other?,
    };
    let Some((version, group)) = own_group(&text, MEMORY) else { return Ok(None) };
    let group = &*text_of(group.to_vec());
    let mounts =
        files.read("proc/self/mountinfo").map_err(|errno| Error::of_host("read", "/proc/self/mountinfo", errno))?;
    let mounts: Vec<Mount> = mounts.lines().filter_map(|line| Mount::of(line, version, MEMORY)).collect();
    if mounts.is_empty() {
        return Ok(None);
    }
    let Some((mount, levels)) = mounts.iter().find_map(|mount| Some((mount, mount.levels_to(group)?))) else {
        let object = format!("control group {group} of process {pid} in what is mounted here");
        return Err(Error::of_host("find", object, Errno::NOENT));
    };
    tightest(files, version, levels.into_iter().map(|level| mount.directory_of(level)))
}

/// The group of `pid`, by its path from the top of the hierarchy that has the memory controller, as `/proc/PID/cgroup` has it: `/web`.
/// `None` when this host has no groups, or none that this process is in.
///
/// # Errors
/// `Gone` if the process ended.
pub fn path_of(files: &impl KernelFiles, pid: Pid) -> Result<Option<Untrusted>, Error> {
    let file = pid.file("cgroup");
    match files.bytes(&file) {
        Ok(text) => Ok(own_group(&text, MEMORY).map(|(_, path)| Untrusted::new(path))),
        Err(Errno::NOENT) if files.list(&pid.file("")).is_ok() => Ok(None), // a kernel without control groups
        Err(errno) => Err(Error::of_process("read", format_args!("/{file}"), errno)),
    }
}

/// Of these groups, innermost first, the one that leaves the least room; the first if none has a limit.
fn tightest(
    files: &impl KernelFiles,
    version: Version,
    directories: impl Iterator<Item = String>,
) -> Result<Option<Memory>, Error> {
    let mut tightest: Option<Memory> = None;
    for directory in directories {
        let Some(here) = read_level(files, version, &directory)? else { continue };
        let tighter = match &tightest {
            None => true,
            Some(inner) => here.room().is_some_and(|room| inner.room().is_none_or(|least| room < least)),
        };
        if tighter {
            tightest = Some(here);
        }
    }
    Ok(tightest)
}

/// The process's group in the hierarchy of a controller, from `/proc/PID/cgroup`: lines of
/// `number:controllers:path`, where version 2 has number 0 and no controllers.
fn own_group<'t>(text: &'t [u8], controller: &str) -> Option<(Version, &'t [u8])> {
    let lines = lines(text).filter_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let mut word = || str::from_utf8(fields.next()?).ok();
        Some((word()?, word()?, fields.next()?))
    });
    let of_v1 = lines.clone().find(|(_, controllers, _)| controllers.split(',').any(|name| name == controller));
    let of_v2 = || lines.clone().find(|(number, controllers, _)| *number == "0" && controllers.is_empty());
    match of_v1 {
        Some((_, _, path)) => Some((Version::V1, path)),
        None => of_v2().map(|(_, _, path)| (Version::V2, path)),
    }
}

/// A place where groups of the wanted hierarchy are mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The group that is mounted; in a container often not the topmost one.
    root: String,
    /// Where, without the slash in front.
    point: String,
}

impl Mount {
    /// `35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory`
    fn of(line: &str, version: Version, controller: &str) -> Option<Mount> {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (filesystem, _source, options) = (kind.next()?, kind.next()?, kind.next()?);
        let wanted = match version {
            Version::V1 => filesystem == "cgroup" && options.split(',').any(|option| option == controller),
            Version::V2 => filesystem == "cgroup2",
        };
        let mut place = place.split(' ').skip(3);
        let (root, point) = (unescape(place.next()?), unescape(place.next()?));
        wanted.then(|| Mount { root, point: point.trim_start_matches('/').to_owned() })
    }

    /// The group and those above it, innermost first, as far as they are mounted here, each relative to the mount:
    /// `a/b`, `a` and the empty string. `None` when the group is not below this mount.
    fn levels_to<'g>(&self, group: &'g str) -> Option<Vec<&'g str>> {
        let below = match self.root.as_str() {
            "/" => group,
            root => group.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))?,
        };
        if below.split('/').any(|part| part == "..") {
            return None; // above the top of our namespace
        }
        let innermost = below.trim_matches('/');
        let outer = innermost.rmatch_indices('/').map(|(end, _)| &innermost[..end]);
        let top = (!innermost.is_empty()).then_some("");
        Some(std::iter::once(innermost).chain(outer).chain(top).collect())
    }

    /// The directory of a level, relative to the root of the file system.
    fn directory_of(&self, level: &str) -> String {
        if level.is_empty() { self.point.clone() } else { format!("{}/{level}", self.point) }
    }
}

/// `\040` in a path of mountinfo is a space; so are tab, newline and backslash escaped.
pub(crate) fn unescape(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (escaped, plain)| path.replace(escaped, plain))
}

/// One group's limit and usage; `None` when memory is not accounted at this level, as in the topmost group of
/// version 2.
fn read_level(files: &impl KernelFiles, version: Version, directory: &str) -> Result<Option<Memory>, Error> {
    let number = |name: &str| read_number(files, &format!("{directory}/{name}"));
    let (usage, limits, cache) = match version {
        Version::V1 => {
            (number("memory.usage_in_bytes")?, [number("memory.limit_in_bytes")?, None], "total_inactive_file")
        }
        Version::V2 => (number("memory.current")?, [number("memory.max")?, number("memory.high")?], "inactive_file"),
    };
    let Some(Limit::Bytes(usage)) = usage else { return Ok(None) };
    let lowest = limits.into_iter().flatten().filter_map(|limit| match limit {
        Limit::Unlimited => None,
        Limit::Bytes(bytes) => Some(bytes),
    });
    let limit = lowest.min().map_or(Limit::Unlimited, Limit::Bytes);
    let idle_cache = match limit {
        Limit::Unlimited => Bytes(0), // asked for by nobody, and the kernel sums it up over all groups below
        Limit::Bytes(_) => idle_cache(files, &format!("{directory}/memory.stat"), cache)?,
    };
    Ok(Some(Memory { limit, usage, idle_cache, path: format!("/{directory}") }))
}

/// The line `name number` of memory.stat; nothing when there is none.
fn idle_cache(files: &impl KernelFiles, path: &str, name: &str) -> Result<Bytes, Error> {
    let text = match files.read(path) {
        Ok(text) => text,
        Err(Errno::NOENT | Errno::NODEV) => return Ok(Bytes(0)),
        Err(errno) => return Err(Error::of_host("read", format_args!("/{path}"), errno)),
    };
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(Ok(Bytes(0)), |digits| {
        let bad = || Error::malformed(format_args!("/{path}"), format_args!("{digits:?}, expected a number of bytes"));
        digits.parse().map(Bytes).map_err(|_| bad())
    })
}

/// A number of bytes, or the word or huge number that means no limit. `None` when there is no such file.
fn read_number(files: &impl KernelFiles, path: &str) -> Result<Option<Limit>, Error> {
    /// Version 1 keeps the limit in pages and prints "no limit" as the most that a signed number of bytes can hold.
    const V1_UNLIMITED: u64 = i64::MAX as u64 / 4096 * 4096;
    let object = format!("/{path}");
    let text = match files.read(path) {
        Ok(text) => text,
        Err(Errno::NOENT | Errno::NODEV) => return Ok(None), // NODEV: the group was removed while we looked
        Err(errno) => return Err(Error::of_host("read", &object, errno)),
    };
    match text.trim() {
        "max" => Ok(Some(Limit::Unlimited)),
        digits => match digits.parse::<u64>() {
            Ok(V1_UNLIMITED..) => Ok(Some(Limit::Unlimited)),
            Ok(bytes) => Ok(Some(Limit::Bytes(Bytes(bytes)))),
            Err(_) => Err(Error::malformed(&object, format_args!("{digits:?}, expected a number of bytes or max"))),
        },
    }
}

#[cfg(test)]
mod tests;
