//! `/sys/fs/resctrl`: who may allocate in which ways of a cache, and how much of it each has.
//!
//! A *group* is a directory: its tasks may allocate in the ways of its `schemata`, and hit anywhere. The topmost directory is the default
//! group, which has all tasks that are in no other. In `mon_groups` of each group there may be groups that only count. `info` says what
//! the hardware can do. Which processors use a cache is in `caches.rs`; who gets which ways is decided elsewhere.
//!
//! [`Resctrl`] reads. All changes go through [`Changes`], which holds the lock that the kernel's document asks for, and promises each
//! change to a journal (`knobs.rs`) before it makes it; the journal undoes them under the same lock (`undo.rs`). Only groups whose names begin with [`PREFIX`] are changed, and the default
//! group, whose values are put back; those of others are left alone.
//!
//! * One write is one command and ends with a line's end. What was written is read back: some processors move neighbouring ways together.
//! * The file system is mounted at most once, and unmounting it throws away all groups: so it is found ([`Resctrl::find`]), and neither
//!   mounted nor unmounted.
//! * `info/last_cmd_status` explains the last command of anybody. It is shown, and nothing is decided by it.
//!
//! Cost: some µs for each file; a group or a mask changes registers on all processors of a cache. A task that runs feels its new group at
//! once, others when they run next. Side effects: lines stay where they are until somebody else needs their place.
//!
//! Since: Linux 4.10 (Intel); needs CONFIG_X86_CPU_RESCTRL (CONFIG_PROC_CPU_RESCTRL for the groups of a task) and hardware that can do it.
//! What is newer is asked for by its file: `mode`, `info/L3/bit_usage`, `info/L3/sparse_masks`.
//!
//! Truth: Documentation/filesystems/resctrl.rst; fs/resctrl/ (before 6.16: arch/x86/kernel/cpu/resctrl/).

mod changes;
pub mod info;
pub mod monitoring;
pub mod schemata;
mod tasks;
mod undo;

use std::collections::BTreeMap;
use std::fmt;

use rustix::io::Errno;
use serde::Serialize;
use units::Bytes;

pub use self::changes::{Changes, Moved, OwnGroup, Patience};
pub use self::info::{CacheInfo, Info, MaskFault, MaskRules};
pub use self::monitoring::Reading;
pub use self::schemata::{Resource, Schemata, Values};
pub(crate) use self::undo::{Locks, Undo, When};
pub use crate::caches::{CacheId, Cpus};
use crate::cgroup::unescape;
use crate::untrusted::visible;
use crate::{At, Error, KernelFiles, Lock, Locked};

/// What the names of our groups begin with.
pub const PREFIX: &str = "masu-";

/// Directories of the topmost directory that are no groups.
const NO_GROUPS: [&str; 3] = ["info", "mon_groups", "mon_data"];

/// Where it is mounted, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// The directory, relative to the root: `sys/fs/resctrl`.
    #[serde(skip)]
    pub directory: String,
    /// Code and data have masks of their own in the last-level cache (`cdp`). Not shown of an emulator: [`Info::l3_resources`] tells.
    pub cdp: bool,
    /// The same in the caches of cores (`cdpl2`).
    pub cdpl2: bool,
    /// Bandwidth is in MiB/s, kept by the kernel (`mba_MBps`).
    pub mba_mbps: bool,
    /// Files for debugging are there (`debug`).
    pub debug: bool,
    /// Not the kernel's, but an emulator's (a FUSE file system of the type `fuse.resctrl`).
    pub emulated: bool,
}

impl Mount {
    /// `resctrl /sys/fs/resctrl resctrl rw,relatime,cdp 0 0`
    fn of(line: &str) -> Option<Mount> {
        let mut words = line.split(' ').skip(1);
        let (directory, kind, options) = (unescape(words.next()?), words.next()?, words.next()?);
        let has = |wanted: &str| options.split(',').any(|option| option == wanted);
        let mount = Mount {
            directory: directory.trim_matches('/').to_owned(),
            cdp: has("cdp"),
            cdpl2: has("cdpl2"),
            mba_mbps: has("mba_MBps"),
            debug: has("debug"),
            emulated: kind == "fuse.resctrl",
        };
        matches!(kind, "resctrl" | "fuse.resctrl").then_some(mount)
    }

    /// All of them, the kernel's first.
    fn all(files: &impl KernelFiles) -> Result<Vec<Mount>, Error> {
        let text = files.read("proc/mounts").map_err(|errno| Error::of_host("read", "/proc/mounts", errno))?;
        let mut mounts: Vec<Mount> = text.lines().filter_map(Mount::of).collect();
        mounts.sort_by_key(|mount| mount.emulated);
        Ok(mounts)
    }
}

/// What a host has of it (`facts.rs`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Standing {
    /// The kernel does not offer it.
    NotInKernel {
        /// As in [`Absent::NotInKernel`].
        processors_could: bool,
    },
    /// It does, and nobody has mounted it.
    NotMounted,
    /// It is mounted, and can do this.
    Mounted {
        /// Where: `/sys/fs/resctrl`.
        directory: String,
        /// How.
        #[serde(flatten)]
        mount: Mount,
        /// What the hardware can do.
        #[serde(flatten)]
        info: Info,
    },
}

/// What this host has of it. An emulator is not looked for.
///
/// # Errors
/// When it cannot be read.
pub fn standing(files: &impl KernelFiles) -> Result<Standing, Error> {
    match Resctrl::find(files) {
        Ok(resctrl) => {
            let (mount, info) = (resctrl.mount.clone(), resctrl.info().map_err(|failed| failed.error)?);
            Ok(Standing::Mounted { directory: format!("/{}", mount.directory), mount, info })
        }
        Err(Absent::NotInKernel { processors_could }) => Ok(Standing::NotInKernel { processors_could }),
        Err(Absent::NotMounted | Absent::NotThere(_)) => Ok(Standing::NotMounted),
        Err(Absent::Unknown(error)) => Err(error),
    }
}

/// Why there is no file system to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// The kernel offers none: `/proc/filesystems` does not have it.
    #[error("cannot use resctrl: this kernel does not offer it")]
    NotInKernel {
        /// The processors say that they could do it (`/proc/cpuinfo`): then the kernel was built or started without. Processors that are
        /// not x86 do not say.
        processors_could: bool,
    },
    /// Nobody has mounted it.
    #[error("cannot use resctrl: it is not mounted")]
    NotMounted,
    /// This directory is not where one is mounted.
    #[error("cannot use {0}: no resctrl file system is mounted there")]
    NotThere(String),
    /// It could not be found out.
    #[error(transparent)]
    Unknown(#[from] Error),
}

/// Why a call failed, by what the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The group, the task or the whole file system is not there any more.
    Gone,
    /// A group of this name is there already.
    NameTaken,
    /// No more groups: out of classes, or of numbers for counting, or exclusive groups leave no ways for another (`ENOSPC`).
    Full,
    /// Try again later (`EBUSY`): the numbers of removed groups are still in the cache, and none is free.
    Busy,
    /// The kernel does not take this value (`EINVAL`): a mask against the rules, an overlap with an exclusive group, an unknown domain.
    Refused,
    /// A privilege is missing, or the task is somebody else's.
    Denied,
    /// Somebody else holds the lock on the file system, and the caller's patience ended.
    Locked,
    /// Not one of our groups.
    NotOurs,
    /// Anything else; what the error says.
    Other,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// What the caller can do.
    pub why: Why,
    /// What was tried, and the kernel's answer.
    pub error: Error,
    /// What `info/last_cmd_status` had to say. It is about the last command of anybody.
    pub status: Option<String>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        self.status.as_ref().map_or(Ok(()), |status| write!(f, "; the kernel says: {}", visible(status)))
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// What failed outside of the file system, such as the journal.
impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        let why = match error {
            Error::Gone(_) => Why::Gone,
            Error::Denied(_) => Why::Denied,
            Error::Unsupported(_) | Error::Malformed { .. } | Error::Other(_) => Why::Other,
        };
        Failed { why, error, status: None }
    }
}

impl Failed {
    /// The answer to a call about `path`, which is relative to the root.
    fn of(operation: impl Into<String>, path: &str, errno: Errno) -> Failed {
        let at = At { operation: operation.into(), object: format!("/{path}"), errno };
        let (why, error) = match errno {
            Errno::NOENT | Errno::NODEV | Errno::SRCH => (Why::Gone, Error::Gone(at)),
            // An emulator that has ended leaves its mount.
            Errno::NOTCONN | Errno::CONNABORTED => (Why::Gone, Error::Gone(at)),
            Errno::EXIST => (Why::NameTaken, Error::Other(at)),
            Errno::NOSPC => (Why::Full, Error::Other(at)),
            Errno::BUSY => (Why::Busy, Error::Other(at)),
            Errno::INVAL => (Why::Refused, Error::Other(at)),
            Errno::PERM | Errno::ACCESS => (Why::Denied, Error::Denied(at)),
            Errno::AGAIN => (Why::Locked, Error::Other(at)),
            _ => (Why::Other, Error::Other(at)),
        };
        Failed { why, error, status: None }
    }

    /// The kernel's answer, when it gave one.
    pub fn errno(&self) -> Option<Errno> {
        self.error.errno()
    }

    /// True when the group or the task ended meanwhile.
    pub fn is_gone(&self) -> bool {
        self.why == Why::Gone
    }
}

/// A name that no group can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected a name of 1 to 200 letters, digits, dots, dashes and underscores")]
pub struct BadName(String);

/// A group, by its place: nothing is known yet of whether it exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    class: Option<String>,
    monitor: Option<String>,
}

impl Group {
    /// The default group, which has all tasks that are in no other.
    pub const DEFAULT: Group = Group { class: None, monitor: None };

    /// The group of ours that is called so; [`PREFIX`] is put before the name.
    ///
    /// # Errors
    /// For a name that cannot be a directory's, or would not print well.
    pub fn own(label: &str) -> Result<Group, BadName> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
        let good = (1..=200).contains(&label.len()) && label.chars().all(plain);
        if good { Ok(Group::of_class(&format!("{PREFIX}{label}"))) } else { Err(BadName(label.to_owned())) }
    }

    fn of_class(name: &str) -> Group {
        Group { class: Some(name.to_owned()), monitor: None }
    }

    fn with_monitor(&self, name: &str) -> Group {
        Group { class: self.class.clone(), monitor: Some(name.to_owned()) }
    }

    /// Is it the default group itself?
    pub fn is_default(&self) -> bool {
        *self == Group::DEFAULT
    }

    /// Does it only count?
    pub fn is_monitor(&self) -> bool {
        self.monitor.is_some()
    }

    /// The group whose ways it uses: itself, unless it only counts.
    #[must_use]
    pub fn class(&self) -> Group {
        Group { class: self.class.clone(), monitor: None }
    }

    /// Is it one that masu has made?
    pub fn is_ours(&self) -> bool {
        self.monitor.as_ref().or(self.class.as_ref()).is_some_and(|name| name.starts_with(PREFIX))
    }

    /// Its name without [`PREFIX`]: `web`; `None` for one that is not ours.
    pub fn label(&self) -> Option<&str> {
        self.monitor.as_ref().or(self.class.as_ref())?.strip_prefix(PREFIX)
    }

    /// Below the mount: `masu-web/mon_groups/masu-a`; nothing for the default group.
    fn path(&self) -> String {
        let class = self.class.as_deref().unwrap_or_default();
        match (&self.class, &self.monitor) {
            (_, None) => class.to_owned(),
            (None, Some(monitor)) => format!("mon_groups/{monitor}"),
            (Some(_), Some(monitor)) => format!("{class}/mon_groups/{monitor}"),
        }
    }
}

/// `masu-web`, or `the default group`.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_default() { f.pad("the default group") } else { f.pad(&visible(&self.path())) }
    }
}

/// Whether a group shares its ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Other groups may have the same ways.
    Shareable,
    /// No other group may.
    Exclusive,
    /// Its ways are to be locked.
    PseudoLocksetup,
    /// They are: no group has them.
    PseudoLocked,
}

impl Mode {
    const WORDS: [(&'static str, Mode); 4] = [
        ("shareable", Mode::Shareable),
        ("exclusive", Mode::Exclusive),
        ("pseudo-locksetup", Mode::PseudoLocksetup),
        ("pseudo-locked", Mode::PseudoLocked),
    ];

    /// The kernel's word.
    pub fn word(self) -> &'static str {
        Mode::WORDS.iter().find(|(_, mode)| *mode == self).map_or("", |(word, _)| word)
    }
}

/// The file system, for reading.
#[derive(Debug)]
pub struct Resctrl<'f, F: KernelFiles> {
    files: &'f F,
    mount: Mount,
}

impl<F: KernelFiles> Clone for Resctrl<'_, F> {
    fn clone(&self) -> Self {
        Resctrl { files: self.files, mount: self.mount.clone() }
    }
}

impl<'f, F: KernelFiles> Resctrl<'f, F> {
    /// The kernel's file system, wherever somebody has mounted it.
    ///
    /// # Errors
    /// Why there is none. An emulator's is not found so, but by its directory ([`Resctrl::at`]).
    pub fn find(files: &'f F) -> Result<Resctrl<'f, F>, Absent> {
        let mount = Mount::all(files)?.into_iter().find(|mount| !mount.emulated);
        match mount {
            Some(mount) => Ok(Resctrl { files, mount }),
            None => Err(why_absent(files)),
        }
    }

    /// The file system that is mounted at this directory, the kernel's or an emulator's. The path is absolute, without links.
    ///
    /// # Errors
    /// `NotThere` for any other directory.
    pub fn at(files: &'f F, directory: &str) -> Result<Resctrl<'f, F>, Absent> {
        let wanted = directory.trim_matches('/');
        let mount = Mount::all(files)?.into_iter().find(|mount| mount.directory == wanted);
        mount.map(|mount| Resctrl { files, mount }).ok_or_else(|| Absent::NotThere(directory.to_owned()))
    }

    /// Where it is mounted, and how.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// A file of a group, relative to the root: `sys/fs/resctrl/masu-web/schemata`.
    pub fn file(&self, group: &Group, name: &str) -> String {
        let directory = self.directory(group);
        format!("{directory}/{name}")
    }

    /// A group's directory, relative to the root.
    pub fn directory(&self, group: &Group) -> String {
        if group.is_default() { self.mount.directory.clone() } else { self.path_of(&group.path()) }
    }

    fn path_of(&self, below: &str) -> String {
        format!("{}/{below}", self.mount.directory)
    }

    fn read(&self, group: &Group, name: &str) -> Result<(String, String), Failed> {
        let path = self.file(group, name);
        let text = self.files.read(&path).map_err(|errno| Failed::of("read", &path, errno))?;
        Ok((format!("/{path}"), text))
    }

    /// Groups with ways of their own, by name; without the default group. Those of others are among them.
    ///
    /// # Errors
    /// `Gone` when the file system is no longer mounted.
    pub fn groups(&self) -> Result<Vec<Group>, Failed> {
        let names = self.directories_in(&self.mount.directory)?;
        Ok(names.iter().filter(|name| !NO_GROUPS.contains(&name.as_str())).map(|name| Group::of_class(name)).collect())
    }

    /// Groups within this one that only count; none where nothing can be counted.
    ///
    /// # Errors
    /// `Gone` when the group is.
    pub fn monitors(&self, group: &Group) -> Result<Vec<Group>, Failed> {
        let class = group.class();
        match self.directories_in(&self.file(&class, "mon_groups")) {
            Ok(names) => Ok(names.iter().map(|name| class.with_monitor(name)).collect()),
            Err(failed) if failed.is_gone() && self.exists(&class) => Ok(Vec::new()),
            Err(failed) => Err(failed),
        }
    }

    /// All groups of both kinds, the default group first.
    ///
    /// # Errors
    /// `Gone` when the file system is no longer mounted. A group that is removed meanwhile is left out.
    pub fn all_groups(&self) -> Result<Vec<Group>, Failed> {
        let mut all = Vec::new();
        for class in [vec![Group::DEFAULT], self.groups()?].concat() {
            let monitors = match self.monitors(&class) {
                Err(failed) if failed.is_gone() => continue,
                monitors => monitors?,
            };
            all.push(class);
            all.extend(monitors);
        }
        Ok(all)
    }

    /// Is there such a group now?
    pub fn exists(&self, group: &Group) -> bool {
        self.files.list(&self.directory(group)).is_ok()
    }

    fn directories_in(&self, directory: &str) -> Result<Vec<String>, Failed> {
        self.files.directories(directory).map_err(|errno| Failed::of("list", directory, errno))
    }

    /// What the group may use. A group that only counts has no such file.
    ///
    /// # Errors
    /// `Gone` when the group is, `Malformed` for text of another form.
    pub fn schemata(&self, group: &Group) -> Result<Schemata, Failed> {
        let (path, text) = self.read(group, "schemata")?;
        Ok(Schemata::parse(&path, &text)?)
    }

    /// What the masks of each cache amount to.
    ///
    /// # Errors
    /// As [`Resctrl::schemata`].
    pub fn size(&self, group: &Group) -> Result<BTreeMap<Resource, BTreeMap<CacheId, Bytes>>, Failed> {
        let (path, text) = self.read(group, "size")?;
        Ok(schemata::parse_size(&path, &text)?)
    }

    /// Whether the group shares its ways.
    ///
    /// # Errors
    /// `Gone` when the group is; also on kernels where all groups share, and there is no such file.
    pub fn mode(&self, group: &Group) -> Result<Mode, Failed> {
        let (path, text) = self.read(group, "mode")?;
        let found = Mode::WORDS.iter().find(|(word, _)| *word == text.trim()).map(|(_, mode)| *mode);
        let words = Mode::WORDS.map(|(word, _)| word).join(", ");
        found.ok_or_else(|| Error::malformed(path, format_args!("{:?}, expected one of {words}", text.trim())).into())
    }

    /// The domains of the last-level cache, by the default group's masks.
    ///
    /// # Errors
    /// As [`Resctrl::schemata`].
    pub fn domains(&self) -> Result<Vec<CacheId>, Failed> {
        let schemata = self.schemata(&Group::DEFAULT)?;
        let l3 = schemata.0.keys().find(|resource| resource.is_l3());
        let masks = l3.and_then(|resource| schemata.masks(resource));
        Ok(masks.map(|masks| masks.keys().copied().collect()).unwrap_or_default())
    }

    /// Keeps out those who change something while several files are read, without waiting.
    ///
    /// # Errors
    /// `Locked` while somebody does.
    pub fn lock_for_reading(&self) -> Result<Locked, Failed> {
        self.lock(Lock::Shared)
    }

    fn lock(&self, lock: Lock) -> Result<Locked, Failed> {
        let directory = &self.mount.directory;
        self.files.lock(directory, lock).map_err(|errno| Failed::of("lock", directory, errno))
    }

    /// What the kernel says of the last command, unless it went well or says nothing.
    fn last_command(&self) -> Option<String> {
        let text = self.files.read(&self.path_of("info/last_cmd_status")).ok()?;
        let text = text.trim();
        (!text.is_empty() && text != "ok").then(|| text.replace('\n', ", "))
    }
}

/// Why nothing is mounted.
fn why_absent(files: &impl KernelFiles) -> Absent {
    let offered = match files.read("proc/filesystems") {
        Ok(text) => text.lines().any(|line| line.split_whitespace().last() == Some("resctrl")),
        Err(errno) => return Error::of_host("read", "/proc/filesystems", errno).into(),
    };
    if offered {
        return Absent::NotMounted;
    }
    // Flags of processors that can divide or count (Documentation/filesystems/resctrl.rst).
    const FLAGS: [&str; 5] = ["rdt_a", "cat_l3", "cat_l2", "cqm_llc", "mba"];
    let cpuinfo = files.read("proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':')).map(|(_, flags)| flags);
    let processors_could = flags.is_some_and(|flags| flags.split_whitespace().any(|flag| FLAGS.contains(&flag)));
    Absent::NotInKernel { processors_could }
}

#[cfg(test)]
mod tests;
