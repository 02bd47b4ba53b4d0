//! `/sys/fs/resctrl`: cache ways of each group of tasks, and its occupancy.
//!
//! A *group* is a directory: its tasks may allocate in the ways of its `schemata`, and hit anywhere. The topmost
//! directory is the default group; it has all tasks that are in no other. `mon_groups` of each group may hold
//! monitoring groups, which only count. `info` describes the hardware. Processors of each cache are in `caches.rs`; the
//! choice of ways is made elsewhere.
//!
//! [`Resctrl`] reads. All changes go through [`Changes`], which holds the lock that the kernel's document asks for and
//! records each change in a journal (`journal.rs`) before making it; the journal undoes them under the same lock
//! (`undo.rs`). Only groups whose names begin with [`PREFIX`] are changed, and the default group, whose values are
//! restored. Groups of other programs are left alone.
//!
//! * One write is one command and ends with a newline. Written values are read back: some processors move neighbouring
//!   ways together.
//! * The file system is mounted at most once, and unmounting it discards all groups. So it is found
//!   ([`Resctrl::find`]), and neither mounted nor unmounted.
//! * `info/last_cmd_status` explains the last command of any program. It is shown only; no decision depends on it.
//!
//! Cost: some µs for each file; a group or a mask changes registers on all processors of a cache. A running task
//! changes its group at once, others when they run next. Side effects: cache lines stay where they are until they are
//! evicted.
//!
//! Since: Linux 4.10 (Intel); needs CONFIG_X86_CPU_RESCTRL (CONFIG_PROC_CPU_RESCTRL for the groups of a task) and
//! hardware support. Newer features are detected by their files: `mode`, `info/L3/bit_usage`, `info/L3/sparse_masks`.
//!
//! Truth: Documentation/filesystems/resctrl.rst; fs/resctrl/ (before 6.16: arch/x86/kernel/cpu/resctrl/).

pub mod info;
pub mod monitoring;
pub mod schemata;
mod tasks;
mod undo;
mod write;

use std::collections::BTreeMap;
use std::fmt;

use rustix::io::Errno;
use serde::Serialize;
use units::Bytes;

pub use self::info::{CacheInfo, Info, MaskFault, MaskRules};
pub use self::monitoring::Reading;
pub use self::schemata::{Resource, Schemata, Values};
pub use self::undo::UNDO;
pub use self::write::{Changes, Moved, OwnGroup, Patience};
pub use crate::caches::{CacheId, Cpus};
use crate::cgroup::unescape;
use crate::untrusted::visible;
use crate::{At, Error, KernelFiles, Lock, Locked};

/// Prefix of the names of our groups.
pub const PREFIX: &str = "masu-";

/// Directories of the topmost directory that are no groups.
const NO_GROUPS: [&str; 3] = ["info", "mon_groups", "mon_data"];

/// Mount point and mount options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Mount point, relative to the root: `sys/fs/resctrl`.
    #[serde(skip)]
    pub directory: String,
    /// Code and data have separate masks in the last-level cache (`cdp`). Not shown of an emulator: see
    /// [`Info::l3_resources`].
    pub cdp: bool,
    /// Code and data have separate masks in the caches of cores (`cdpl2`).
    pub cdpl2: bool,
    /// Bandwidth is in MiB/s, controlled by the kernel (`mba_MBps`).
    pub mba_mbps: bool,
    /// Files for debugging are present (`debug`).
    pub debug: bool,
    /// Mounted by an emulator, not the kernel (a FUSE file system of the type `fuse.resctrl`).
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

    /// All resctrl mounts, the kernel's first.
    fn all(files: &impl KernelFiles) -> Result<Vec<Mount>, Error> {
        let text = files.read("proc/mounts").map_err(|errno| Error::of_host("read", "/proc/mounts", errno))?;
        let mut mounts: Vec<Mount> = text.lines().filter_map(Mount::of).collect();
        mounts.sort_by_key(|mount| mount.emulated);
        Ok(mounts)
    }
}

/// State of resctrl on a host (`probe.rs`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// The kernel does not offer it.
    NotInKernel {
        /// As in [`Absent::NotInKernel`].
        processors_could: bool,
    },
    /// The kernel offers it, but it is not mounted.
    NotMounted,
    /// Mounted.
    Mounted {
        /// Mount point: `/sys/fs/resctrl`.
        directory: String,
        /// Mount options.
        #[serde(flatten)]
        mount: Mount,
        /// Hardware capabilities.
        #[serde(flatten)]
        info: Info,
    },
}

/// State of resctrl on this host. An emulator is not looked for.
///
/// # Errors
/// Read failures.
pub fn state(files: &impl KernelFiles) -> Result<State, Error> {
    match Resctrl::find(files) {
        Ok(resctrl) => {
            let (mount, info) = (resctrl.mount.clone(), resctrl.info().map_err(|failed| failed.error)?);
            Ok(State::Mounted { directory: format!("/{}", mount.directory), mount, info })
        }
        Err(Absent::NotInKernel { processors_could }) => Ok(State::NotInKernel { processors_could }),
        Err(Absent::NotMounted | Absent::NotThere(_)) => Ok(State::NotMounted),
        Err(Absent::Unknown(error)) => Err(error),
    }
}

/// Reason for the lack of a usable file system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Absent {
    /// The kernel offers none: it is not in `/proc/filesystems`.
    #[error("cannot use resctrl: this kernel does not offer it")]
    NotInKernel {
        /// The processors report support (`/proc/cpuinfo`): then the kernel was built or started without. Only x86
        /// processors report it.
        processors_could: bool,
    },
    /// It is not mounted.
    #[error("cannot use resctrl: it is not mounted")]
    NotMounted,
    /// No resctrl file system is mounted at this directory.
    #[error("cannot use {0}: no resctrl file system is mounted there")]
    NotThere(String),
    /// The state could not be read.
    #[error(transparent)]
    Unknown(#[from] Error),
}

/// Kind of failure, by the caller's possible reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The group, the task or the whole file system no longer exists.
    Gone,
    /// A group of this name exists already.
    NameTaken,
    /// No more groups: out of CLOSIDs or RMIDs, or exclusive groups leave no ways for another (`ENOSPC`).
    Full,
    /// Try again later (`EBUSY`): no RMID is free, because lines of removed groups are still in the cache.
    Busy,
    /// The kernel refuses this value (`EINVAL`): an invalid mask, an overlap with an exclusive group, an unknown
    /// domain.
    Refused,
    /// A privilege is missing, or the task belongs to another user.
    Denied,
    /// Another process holds the lock on the file system, and the caller gave up waiting.
    Locked,
    /// Not one of our groups.
    NotOurs,
    /// Any other error; see the error itself.
    Other,
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Kind of failure.
    pub why: Why,
    /// Operation, object, and the kernel's answer.
    pub error: Error,
    /// Text of `info/last_cmd_status`, about the last command of any program.
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

/// Failure outside of the file system, such as the journal.
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
    /// Failure of a call about `path`, which is relative to the root.
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

    /// The kernel's error number, if it gave one.
    pub fn errno(&self) -> Option<Errno> {
        self.error.errno()
    }

    /// True when the group or the task ended meanwhile.
    pub fn is_gone(&self) -> bool {
        self.why == Why::Gone
    }
}

/// Invalid group name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected a name of 1 to 200 letters, digits, dots, dashes and underscores")]
pub struct BadName(String);

/// A group, by its path. It need not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    class: Option<String>,
    monitor: Option<String>,
}

impl Group {
    /// The default group, which has all tasks that are in no other.
    pub const DEFAULT: Group = Group { class: None, monitor: None };

    /// Our group of this name; [`PREFIX`] is put before the name.
    ///
    /// # Errors
    /// Names that cannot be a directory's, or would not print well.
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

    /// True for the default group itself.
    pub fn is_default(&self) -> bool {
        *self == Group::DEFAULT
    }

    /// True for a monitoring group.
    pub fn is_monitor(&self) -> bool {
        self.monitor.is_some()
    }

    /// The group whose ways it uses: itself, or the parent of a monitoring group.
    #[must_use]
    pub fn class(&self) -> Group {
        Group { class: self.class.clone(), monitor: None }
    }

    /// True for a group that masu has made.
    pub fn is_ours(&self) -> bool {
        self.monitor.as_ref().or(self.class.as_ref()).is_some_and(|name| name.starts_with(PREFIX))
    }

    /// Name without [`PREFIX`]: `web`; `None` for a group that is not ours.
    pub fn label(&self) -> Option<&str> {
        self.monitor.as_ref().or(self.class.as_ref())?.strip_prefix(PREFIX)
    }

    /// Path below the mount: `masu-web/mon_groups/masu-a`; empty for the default group.
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

/// Sharing mode of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Other groups may have the same ways.
    Shareable,
    /// No other group may have the same ways.
    Exclusive,
    /// Set up for pseudo-locking.
    PseudoLocksetup,
    /// Pseudo-locked: no group has these ways.
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
    /// Finds the kernel's file system at any mount point.
    ///
    /// # Errors
    /// [`Absent`]. An emulator's is found only by its directory ([`Resctrl::at`]).
    pub fn find(files: &'f F) -> Result<Resctrl<'f, F>, Absent> {
        let mount = Mount::all(files)?.into_iter().find(|mount| !mount.emulated);
        match mount {
            Some(mount) => Ok(Resctrl { files, mount }),
            None => Err(why_absent(files)),
        }
    }

    /// Opens the file system mounted at this directory, the kernel's or an emulator's. The path is absolute, without
    /// links.
    ///
    /// # Errors
    /// `NotThere` for any other directory.
    pub fn at(files: &'f F, directory: &str) -> Result<Resctrl<'f, F>, Absent> {
        let wanted = directory.trim_matches('/');
        let mount = Mount::all(files)?.into_iter().find(|mount| mount.directory == wanted);
        mount.map(|mount| Resctrl { files, mount }).ok_or_else(|| Absent::NotThere(directory.to_owned()))
    }

    /// Mount point and mount options.
    pub fn mount(&self) -> &Mount {
        &self.mount
    }

    /// Path of a group's file, relative to the root: `sys/fs/resctrl/masu-web/schemata`.
    pub fn file(&self, group: &Group, name: &str) -> String {
        let directory = self.directory(group);
        format!("{directory}/{name}")
    }

    /// Path of a group's directory, relative to the root.
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

    /// Control groups by name, without the default group; unmanaged groups are included.
    ///
    /// # Errors
    /// `Gone` when the file system is no longer mounted.
    pub fn groups(&self) -> Result<Vec<Group>, Failed> {
        let names = self.directories_in(&self.mount.directory)?;
        Ok(names.iter().filter(|name| !NO_GROUPS.contains(&name.as_str())).map(|name| Group::of_class(name)).collect())
    }

    /// Monitoring groups within this group; none where the hardware cannot count.
    ///
    /// # Errors
    /// `Gone` when the group no longer exists.
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

    /// True if the group exists now.
    pub fn exists(&self, group: &Group) -> bool {
        self.files.list(&self.directory(group)).is_ok()
    }

    fn directories_in(&self, directory: &str) -> Result<Vec<String>, Failed> {
        self.files.directories(directory).map_err(|errno| Failed::of("list", directory, errno))
    }

    /// Ways and bandwidth of the group. A monitoring group has no such file.
    ///
    /// # Errors
    /// `Gone` when the group no longer exists, `Malformed` for text of another form.
    pub fn schemata(&self, group: &Group) -> Result<Schemata, Failed> {
        let (path, text) = self.read(group, "schemata")?;
        Ok(Schemata::parse(&path, &text)?)
    }

    /// Bytes that the masks of each cache cover.
    ///
    /// # Errors
    /// As [`Resctrl::schemata`].
    pub fn size(&self, group: &Group) -> Result<BTreeMap<Resource, BTreeMap<CacheId, Bytes>>, Failed> {
        let (path, text) = self.read(group, "size")?;
        Ok(schemata::parse_size(&path, &text)?)
    }

    /// Sharing mode of the group.
    ///
    /// # Errors
    /// `Gone` when the group no longer exists, and on kernels without the file, where all groups share.
    pub fn mode(&self, group: &Group) -> Result<Mode, Failed> {
        let (path, text) = self.read(group, "mode")?;
        let found = Mode::WORDS.iter().find(|(word, _)| *word == text.trim()).map(|(_, mode)| *mode);
        let words = Mode::WORDS.map(|(word, _)| word).join(", ");
        found.ok_or_else(|| Error::malformed(path, format_args!("{:?}, expected one of {words}", text.trim())).into())
    }

    /// Domains of the last-level cache, from the default group's masks.
    ///
    /// # Errors
    /// As [`Resctrl::schemata`].
    pub fn domains(&self) -> Result<Vec<CacheId>, Failed> {
        let schemata = self.schemata(&Group::DEFAULT)?;
        let l3 = schemata.0.keys().find(|resource| resource.is_l3());
        let masks = l3.and_then(|resource| schemata.masks(resource));
        Ok(masks.map(|masks| masks.keys().copied().collect()).unwrap_or_default())
    }

    /// Takes the shared lock, without waiting: no cooperating program changes anything while several files are read.
    ///
    /// # Errors
    /// `Locked` while another process changes something.
    pub fn lock_for_reading(&self) -> Result<Locked, Failed> {
        self.lock(Lock::Shared)
    }

    fn lock(&self, lock: Lock) -> Result<Locked, Failed> {
        let directory = &self.mount.directory;
        self.files.lock(directory, lock).map_err(|errno| Failed::of("lock", directory, errno))
    }

    /// The kernel's text about the last command; `None` if it succeeded or the text is empty.
    fn last_command(&self) -> Option<String> {
        let text = self.files.read(&self.path_of("info/last_cmd_status")).ok()?;
        let text = text.trim();
        (!text.is_empty() && text != "ok").then(|| text.replace('\n', ", "))
    }
}

/// Reason why nothing is mounted.
fn why_absent(files: &impl KernelFiles) -> Absent {
    let offered = match files.read("proc/filesystems") {
        Ok(text) => text.lines().any(|line| line.split_whitespace().last() == Some("resctrl")),
        Err(errno) => return Error::of_host("read", "/proc/filesystems", errno).into(),
    };
    if offered {
        return Absent::NotMounted;
    }
    // Processor flags of allocation and monitoring (Documentation/filesystems/resctrl.rst).
    const FLAGS: [&str; 5] = ["rdt_a", "cat_l3", "cat_l2", "cqm_llc", "mba"];
    let cpuinfo = files.read("proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':')).map(|(_, flags)| flags);
    let processors_could = flags.is_some_and(|flags| flags.split_whitespace().any(|flag| FLAGS.contains(&flag)));
    Absent::NotInKernel { processors_could }
}

#[cfg(test)]
mod tests;
