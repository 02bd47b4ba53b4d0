//! Memory control groups: limit and usage of a process's group.
//!
//! The memory of the whole host is in `meminfo.rs`.
//!
//! Each ancestor group may have a limit too; the group with the least headroom is the one reported. In version 2 the
//! limit is the lower of `memory.max` (the kernel kills) and `memory.high` (the kernel throttles). Where both versions
//! are mounted, the memory controller is in one of them: version 1, if `/proc/PID/cgroup` has a line for it. Mount
//! points are read from our own `mountinfo`, because we open the paths. A process whose group lies outside our mounts
//! (another container's) cannot be read; this is reported as an error.
//!
//! Cost: two files and then two to four per level. Side effects: none. Usage is kept per CPU and may lag by some MiB.
//!
//! Since: version 1 Linux 2.6.25, version 2 Linux 4.5; needs CONFIG_MEMCG.
//!
//! Truth: cgroups(7); Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; proc_pid_mountinfo(5).

pub mod charges;
pub mod freezer;
pub mod group;
mod group_memory;
pub mod limited;
pub mod tree;

use rustix::io::Errno;
use serde::Serialize;
use units::Bytes;

use crate::key_lines::lines;
use crate::untrusted::text_of;
use crate::{Error, KernelFiles, Pid, Untrusted};

/// Version 1's name of the memory controller.
const MEMORY: &str = "memory";

/// Memory limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// No limit.
    Unlimited,
    /// Limit in bytes.
    Bytes(Bytes),
}

/// Limit and usage of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Limit of the group.
    pub limit: Limit,
    /// Memory charged to the group now, page cache included.
    #[serde(rename = "usage_bytes")]
    pub usage: Bytes,
    /// Inactive page cache within `usage`; the kernel reclaims it before it refuses an allocation.
    #[serde(rename = "idle_cache_bytes")]
    pub idle_cache: Bytes,
    /// Directory of the group: `/sys/fs/cgroup/web.slice`.
    pub path: String,
}

impl Memory {
    /// Bytes left up to the limit, idle page cache included; `None` without a limit.
    pub fn headroom(&self) -> Option<Bytes> {
        match self.limit {
            Limit::Unlimited => None,
            Limit::Bytes(limit) => Some(limit.saturating_sub(self.usage.saturating_sub(self.idle_cache))),
        }
    }
}

/// Control-group version of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes`; one hierarchy per controller.
    V1,
    /// `memory.max`; one hierarchy for all controllers.
    V2,
}

/// The group of `pid` or its ancestor with the least headroom; its own group if none has a limit. `None` when this host
/// does not account memory by groups, or not for this process.
///
/// # Errors
/// `Gone` if the process ended; `Unsupported` if its group lies outside our mounts.
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
    least_headroom(files, version, levels.into_iter().map(|level| mount.directory_of(level)))
}

/// Group of `pid` as a path from the top of the memory controller's hierarchy, from `/proc/PID/cgroup`: `/web`. `None`
/// when this host has no groups, or none has this process.
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

/// Groups of `pid` in all hierarchies, each as a path from the top of its own: `/web`. Bytes that are no text are kept
/// (`text_of`). Empty when this host has no groups.
///
/// # Errors
/// `Gone` if the process ended.
pub fn paths_of(files: &impl KernelFiles, pid: Pid) -> Result<Vec<String>, Error> {
    let file = pid.file("cgroup");
    let text = match files.bytes(&file) {
        Ok(text) => text,
        Err(Errno::NOENT) if files.list(&pid.file("")).is_ok() => return Ok(Vec::new()), // a kernel without control groups
        Err(errno) => return Err(Error::of_process("read", format_args!("/{file}"), errno)),
    };
    let mut paths: Vec<String> = Vec::new();
    for path in lines(&text).filter_map(|line| line.splitn(3, |byte| *byte == b':').nth(2)) {
        let path = text_of(path.to_vec());
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Directory of the group of `pid`, and the number of its processes that the kernel has killed for lack of memory.
/// `None` where that is not counted, or the group is outside of our mounts.
pub fn oom_kills(files: &impl KernelFiles, pid: Pid) -> Option<(String, u64)> {
    let text = files.bytes(&pid.file("cgroup")).ok()?;
    let (version, group) = own_group(&text, MEMORY)?;
    let (group, mounts) = (text_of(group.to_vec()), files.read("proc/self/mountinfo").ok()?);
    let mut mounts = mounts.lines().filter_map(|line| Mount::of(line, version, MEMORY));
    let directory = mounts.find_map(|mount| Some(mount.directory_of(mount.levels_to(&group)?.first()?)))?;
    let kills = oom_kills_in(files, &directory)?;
    Some((directory, kills))
}

/// The same of the group in a directory, from the file of either version.
pub fn oom_kills_in(files: &impl KernelFiles, directory: &str) -> Option<u64> {
    let names = ["memory.oom_control", "memory.events"];
    let text = names.iter().find_map(|name| files.read(&format!("{directory}/{name}")).ok())?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Group with the least headroom, of groups given innermost first; the first if none has a limit.
fn least_headroom(
    files: &impl KernelFiles,
    version: Version,
    directories: impl Iterator<Item = String>,
) -> Result<Option<Memory>, Error> {
    let mut least: Option<Memory> = None;
    for directory in directories {
        let Some(here) = read_level(files, version, &directory)? else { continue };
        let is_less = match &least {
            None => true,
            Some(inner) => here.headroom().is_some_and(|here| inner.headroom().is_none_or(|least| here < least)),
        };
        if is_less {
            least = Some(here);
        }
    }
    Ok(least)
}

/// The process's group in the hierarchy of a controller, from `/proc/PID/cgroup`: lines of `number:controllers:path`.
/// Version 2 has number 0 and no controllers.
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

/// Mount point of the wanted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Group at the mount point; in a container often not the topmost one.
    root: String,
    /// Mount point without the leading slash.
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

    /// The group and its ancestors within this mount, innermost first, each relative to the mount: `a/b`, `a` and the
    /// empty string. `None` when the group is not below this mount.
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

    /// Directory of a level, relative to the root of the file system.
    fn directory_of(&self, level: &str) -> String {
        if level.is_empty() { self.point.clone() } else { format!("{}/{level}", self.point) }
    }
}

/// Unescapes a path of mountinfo: `\040` is a space; tab, newline and backslash are escaped too.
pub(crate) fn unescape(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (escaped, plain)| path.replace(escaped, plain))
}

/// Limit and usage of one group; `None` when memory is not accounted at this level, as in the topmost group of version
/// 2.
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
        Limit::Unlimited => Bytes(0), // not needed, and the kernel sums it up over all groups below
        Limit::Bytes(_) => idle_cache(files, &format!("{directory}/memory.stat"), cache)?,
    };
    Ok(Some(Memory { limit, usage, idle_cache, path: format!("/{directory}") }))
}

/// The line `name number` of memory.stat; 0 when there is none.
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

/// A number of bytes; the word `max` or version 1's huge number means no limit. `None` when there is no such file.
fn read_number(files: &impl KernelFiles, path: &str) -> Result<Option<Limit>, Error> {
    /// "No limit" in version 1: the kernel keeps the limit in pages and prints the largest signed number of bytes.
    const V1_UNLIMITED: u64 = i64::MAX as u64 / 4096 * 4096;
    let object = format!("/{path}");
    let text = match files.read(path) {
        Ok(text) => text,
        Err(Errno::NOENT | Errno::NODEV) => return Ok(None), // NODEV: the group was removed during the read
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
