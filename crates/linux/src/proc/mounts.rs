//! `/proc/PID/mountinfo`: mounts, and their locality; `/proc/self/fdinfo`: the mount of an open file. The kernel alone
//! answers, without a server.
//!
//! A file of a server (NFS, CIFS, 9p) or of a program (FUSE) cannot be opened, asked for its length or read without
//! waiting for that server. The wait is in the kernel, also against SIGKILL. Every user can run such a server. So a
//! file chosen by another process is first held without asking its server (`path_descriptor.rs`), and touched only if its mount
//! is local.
//!
//! Local file systems are a list; unknown kinds are not local. An overlay is local only if its layers are. Layers are
//! paths in the mount namespace of their mounter, so an overlay is local only if this process sees it mounted, too. A
//! file system on a loop device or a network block device is not local. Limit: a device-mapper or ublk device over
//! served storage looks like a disk; mounting one takes root.
//!
//! Cost: some 30 µs a table, read once for many files. Side effects: none; no server is asked for its options.
//!
//! Since: Linux 2.6.26, `mnt_id` 3.15. Truth: proc_pid_mountinfo(5), proc_pid_fdinfo(5); `seq_show` in fs/proc/fd.c;
//! Documentation/filesystems/overlayfs.rst.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::{Error, KernelFiles, Pid, error};

/// File systems that the kernel serves by itself, from memory or from a disk.
const LOCAL: [&str; 26] = [
    "bcachefs",
    "btrfs",
    "cramfs",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hfsplus",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "minix",
    "msdos",
    "nilfs2",
    "ntfs3",
    "ramfs",
    "reiserfs",
    "rootfs",
    "squashfs",
    "tmpfs",
    "vfat",
    "xfs",
    "zfs",
];
/// Majors of devices that may be backed by a file of any file system, or by a server: loop and nbd.
const SERVED_DEVICES: [u32; 2] = [7, 43];
/// Names of such devices begin with these.
const SERVED_NAMES: [&str; 2] = ["loop", "nbd"];
/// Maximum depth of overlays on overlays. Deeper ones are not local.
const MOST_LAYERS: u32 = 3;
/// Maximum number of tables read per namespace, each of up to 100,000 mounts (`fs.mount-max`).
const MOST_TABLES: usize = 8;
/// Kind for a mount in no table that was read. No real kind has this name.
pub const UNKNOWN: &str = "a file system in no mount table";

/// File system of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Kind as in mount(8): `ext4`, `fuse.sshfs`.
    pub kind: String,
    /// True if the kernel alone answers for it.
    pub is_local: bool,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Id, unique among all present mounts.
    pub id: u64,
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// Mount point.
    pub point: String,
    kind: String,
    /// Device or other text that the mounter gave.
    source: String,
    options: String,
}

/// Mounts of one namespace, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(Vec<Mount>);

/// Tables already read.
#[derive(Debug)]
pub struct Mounts {
    own: Table,
    /// The kernel's own mounts for unnamed memory, which are in no table; by id.
    internal: BTreeMap<u64, &'static str>,
    /// Other namespaces, by the kernel's name of each.
    others: BTreeMap<String, Namespace>,
}

/// Mounts of another namespace. The kernel leaves out of a process's table any mount outside its root (chroot(2)), so
/// one table may be incomplete.
#[derive(Debug, Default)]
struct Namespace {
    table: Table,
    /// Processes whose tables were read.
    read: BTreeSet<Pid>,
}

impl Table {
    /// Reads the table of `whose`: `self`, or a process id.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn read(files: &impl KernelFiles, whose: &str) -> Result<Table, Error> {
        let path = format!("proc/{whose}/mountinfo");
        let text = files.read(&path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
        Ok(Table(text.lines().filter_map(parse).collect()))
    }

    /// Whether the device's file system keeps its files in memory (tmpfs, ramfs).
    pub fn is_in_memory(&self, device: (u32, u32)) -> bool {
        self.of_device(device).is_some_and(|mount| matches!(mount.kind.as_str(), "tmpfs" | "ramfs"))
    }

    /// All mounts, in the kernel's order.
    pub fn all(&self) -> &[Mount] {
        &self.0
    }

    /// First mount of a device.
    pub fn of_device(&self, device: (u32, u32)) -> Option<&Mount> {
        self.all_of_device(device).next()
    }

    /// All mounts of a device.
    pub fn all_of_device(&self, device: (u32, u32)) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.device == device)
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.id == id)
    }

    /// Mount of a path without links; the last mount at one point covers the others.
    pub(crate) fn of_path(&self, path: &str) -> Option<&Mount> {
        let holds = |mount: &&Mount| {
            let rest = path.strip_prefix(mount.point.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.0.iter().filter(holds).max_by_key(|mount| mount.point.len())
    }

    /// True if the kernel alone answers for this mount, by this table, which is our own.
    pub fn is_local(&self, mount: &Mount) -> bool {
        self.is_local_at(mount, MOST_LAYERS)
    }

    fn is_local_at(&self, mount: &Mount, depth: u32) -> bool {
        if mount.kind != "overlay" {
            let is_served = SERVED_DEVICES.contains(&mount.device.0) || mount.is_on_served_device();
            return LOCAL.contains(&mount.kind.as_str()) && !is_served;
        }
        let Some(ours) = self.of_device(mount.device).filter(|_| depth > 0) else { return false };
        // File system of our own root: masu itself runs from it, and its layers have no paths in this namespace.
        let is_root = self.0.iter().any(|mount| mount.device == ours.device && mount.point == "/");
        is_root
            || layers(&ours.options).is_some_and(|layers| {
                let local = |path: &&str| self.of_path(path).is_some_and(|of| self.is_local_at(of, depth - 1));
                !layers.is_empty() && layers.iter().all(local)
            })
    }
}

impl Mount {
    /// Kind of its file system as in mount(8).
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// True if a program serves the file system (FUSE).
    pub fn is_of_program(&self) -> bool {
        self.kind.starts_with("fuse")
    }

    /// Kernel's name of the block device of a file system that has a device number of its own (btrfs); of one of them
    /// if there are several.
    pub fn named_device(&self) -> Option<String> {
        (self.device.0 == 0 && self.kind == "btrfs").then_some(())?;
        Some(self.source.strip_prefix("/dev/")?.replace('/', "!"))
    }

    fn is_on_served_device(&self) -> bool {
        self.named_device().is_some_and(|name| SERVED_NAMES.iter().any(|served| name.starts_with(served)))
    }

    /// True if the kernel serves this kind by itself, whatever device it lies on.
    pub(crate) fn is_of_local_kind(&self) -> bool {
        LOCAL.contains(&self.kind.as_str())
    }
}

/// Layers of an overlay; `None` if they are not certain.
fn layers(options: &str) -> Option<Vec<&str>> {
    if options.contains('\\') {
        return None;
    }
    let of = |option| match str::split_once(option, '=') {
        Some(("lowerdir" | "lowerdir+" | "datadir+" | "upperdir", paths)) => Some(paths),
        _ => None,
    };
    let paths = options.split(',').filter_map(of).flat_map(|paths| paths.split(':'));
    let paths: Vec<&str> = paths.filter(|path| !path.is_empty()).collect();
    let is_plain = |path: &&str| path.starts_with('/') && !path.split('/').any(|part| part == "..");
    paths.iter().all(is_plain).then_some(paths)
}

/// Parses `36 35 98:0 / /mnt rw shared:1 - ext4 /dev/root rw`.
fn parse(line: &str) -> Option<Mount> {
    let (place, what) = line.split_once(" - ")?;
    let mut place = place.split(' ');
    let id = place.next()?.parse().ok()?;
    let (major, minor) = place.nth(1)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let point = crate::cgroup::unescape(place.nth(1)?);
    let mut what = what.split(' ');
    // A user chooses the text behind `fuse.`, and it is printed.
    let kind = what.next()?.chars().map(|letter| if letter.is_ascii_graphic() { letter } else { '?' }).collect();
    let source = crate::cgroup::unescape(what.next().unwrap_or_default());
    let options = what.next().unwrap_or_default().to_owned();
    Some(Mount { id, device, point, kind, source, options })
}

impl Mounts {
    /// Reads our own table; others are read when needed.
    ///
    /// The table is valid for each mount that was held (`path_descriptor.rs`) before this call, and stays so.
    ///
    /// # Errors
    /// The kernel's answer for `/proc/self/mountinfo`.
    pub fn read(files: &impl KernelFiles) -> Result<Mounts, Error> {
        Ok(Mounts { own: Table::read(files, "self")?, internal: internal(), others: BTreeMap::new() })
    }

    /// File system of a mount that a process sees, or of one of the kernel's own. Unknown is not local.
    pub fn of_mount(&mut self, files: &impl KernelFiles, pid: Pid, id: u64) -> FileSystem {
        if let Some(kind) = self.internal.get(&id) {
            return FileSystem { kind: (*kind).to_owned(), is_local: true };
        }
        let unknown = || FileSystem { kind: UNKNOWN.to_owned(), is_local: false };
        self.found(files, pid, MOST_TABLES, |table| table.by_id(id)).unwrap_or_else(unknown)
    }

    /// File system with a device number, as `maps` gives it: a first check before anything is held. `None` if no
    /// table has it: unnamed memory, and file systems that give files other numbers than their mounts (btrfs,
    /// overlayfs).
    pub fn of_device(&mut self, files: &impl KernelFiles, pid: Pid, device: (u32, u32)) -> Option<FileSystem> {
        self.found(files, pid, 1, |table| table.of_device(device))
    }

    fn found(
        &mut self,
        files: &impl KernelFiles,
        pid: Pid,
        most: usize,
        find: impl Fn(&Table) -> Option<&Mount>,
    ) -> Option<FileSystem> {
        let mount = match find(&self.own) {
            Some(mount) => mount,
            None => {
                let name = namespace(pid)?;
                // The root of pid 1 reaches all of its namespace.
                let first = Some(Pid(1)).filter(|first| namespace(*first).as_ref() == Some(&name));
                let pids = first.into_iter().chain([pid]);
                self.others.entry(name).or_default().find(files, pids, most, find)?
            }
        };
        Some(FileSystem { kind: mount.kind.clone(), is_local: self.own.is_local(mount) })
    }
}

impl Namespace {
    /// Finds a mount in the tables already read. On a miss the tables of these processes are read, too, up to `most`.
    fn find(
        &mut self,
        files: &impl KernelFiles,
        pids: impl Iterator<Item = Pid>,
        most: usize,
        find: impl Fn(&Table) -> Option<&Mount>,
    ) -> Option<&Mount> {
        for pid in pids {
            if self.read.len() >= most || find(&self.table).is_some() {
                break;
            }
            if !self.read.contains(&pid)
                && let Ok(table) = Table::read(files, &pid.to_string())
            {
                self.read.insert(pid);
                let known: BTreeSet<u64> = self.table.0.iter().map(|mount| mount.id).collect();
                self.table.0.extend(table.0.into_iter().filter(|mount| !known.contains(&mount.id)));
            }
        }
        find(&self.table)
    }
}

/// The kernel's name of a process's mount namespace.
pub(crate) fn namespace(pid: Pid) -> Option<String> {
    let link = std::fs::read_link(format!("/{}", pid.file("ns/mnt"))).ok()?;
    Some(link.to_string_lossy().into_owned())
}

/// Number of the mount of a descriptor's file, without a request to the file system.
pub(crate) fn mount_of(descriptor: &OwnedFd) -> Result<u64, Errno> {
    let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    let text = std::fs::read_to_string(path).map_err(error::errno)?;
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line.and_then(|id| id.trim().parse().ok()).ok_or(Errno::OPNOTSUPP)
}

/// Mounts of unnamed shared memory and huge pages, found through some of our own.
fn internal() -> BTreeMap<u64, &'static str> {
    let huge = MemfdFlags::HUGETLB;
    let kinds = [
        (MemfdFlags::empty(), "tmpfs"),
        (huge | MemfdFlags::HUGE_2MB, "hugetlbfs"),
        (huge | MemfdFlags::HUGE_1GB, "hugetlbfs"),
    ];
    let mount = |(flags, kind)| {
        let memory = memfd_create("masu-mount", flags | MemfdFlags::CLOEXEC).ok()?;
        Some((mount_of(&memory).ok()?, kind))
    };
    kinds.into_iter().filter_map(mount).collect()
}

#[cfg(test)]
mod tests;
