//! `/proc/PID/mountinfo`: what is mounted, and which of it is local: answered by the kernel alone, without a server.
//!
//! A file of a server (NFS, CIFS, 9p) or of a program (FUSE) cannot be opened, asked for its length or read without waiting for
//! whoever serves it; who waits does so in the kernel, also against SIGKILL. Every user can be such a server. So a file that
//! another process chose is held first without asking anybody (`place.rs`), and touched only if its mount is local.
//!
//! Local is what a list says: unknown kinds are not. An overlay is as local as its layers, which are names in the namespace of
//! whoever mounted it: it is local only where this process sees it mounted, too. What lies on a loop device or a network block
//! device is not. Limit: a device-mapper or ublk device over something served cannot be told from a disk; to mount one takes root.
//!
//! Cost: some 30 µs a table, read once for many files. Side effects: none; no server is asked for its options.
//!
//! Since: Linux 2.6.26. Truth: proc_pid_mountinfo(5); Documentation/filesystems/overlayfs.rst.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::place::mount_of;
use crate::{Error, KernelFiles, Pid};

/// File systems that the kernel answers for by itself, from memory or from a disk.
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
/// Majors of devices behind which a file of any file system, or a server, may be: loop and nbd.
const SERVED_DEVICES: [u32; 2] = [7, 43];
/// Overlays on overlays beyond this depth are not local.
const MOST_LAYERS: u32 = 3;
/// Tables that are read of one namespace, each of up to 100,000 mounts (`fs.mount-max`).
const MOST_TABLES: usize = 8;
/// The kind of a file system whose mount is in no table that was read; no table has one of this name.
pub const UNKNOWN: &str = "a file system in no mount table";

/// The file system behind a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// As mount(8) names it: `ext4`, `fuse.sshfs`.
    pub kind: String,
    /// Answered by the kernel alone.
    pub is_local: bool,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Unique among all that is mounted now.
    pub id: u64,
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// Its place.
    pub point: String,
    kind: String,
    options: String,
}

/// The mounts of one namespace, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(Vec<Mount>);

/// All tables that were needed, read at one time.
#[derive(Debug)]
pub struct Mounts {
    own: Table,
    /// The kernel's own mounts for memory without a name, which are in no table; by their ids.
    internal: BTreeMap<u64, &'static str>,
    /// Of other namespaces, by the kernel's name of each.
    others: BTreeMap<String, Namespace>,
}

/// The mounts of another namespace. The kernel leaves out of a process's table what its root does not reach (chroot(2)), so one
/// table may be a part.
#[derive(Debug, Default)]
struct Namespace {
    table: Table,
    /// The processes whose tables these are.
    read: BTreeSet<Pid>,
}

impl Table {
    /// Reads the table that `whose` (`self`, or a process id) sees.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn read(files: &impl KernelFiles, whose: &str) -> Result<Table, Error> {
        let path = format!("proc/{whose}/mountinfo");
        let text = files.read(&path).map_err(|errno| Error::of_host("read", format_args!("/{path}"), errno))?;
        Ok(Table(text.lines().filter_map(parse).collect()))
    }

    /// The first mount of a device.
    pub fn of_device(&self, device: (u32, u32)) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.device == device)
    }

    fn by_id(&self, id: u64) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.id == id)
    }

    /// The mount in which a path without links lies; the last of those at one point covers the others.
    fn of_path(&self, path: &str) -> Option<&Mount> {
        let holds = |mount: &&Mount| {
            let rest = path.strip_prefix(mount.point.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.0.iter().filter(holds).max_by_key(|mount| mount.point.len())
    }

    /// Does the kernel alone answer for what is mounted there, by what this table, which is our own, says of it?
    pub fn is_local(&self, mount: &Mount) -> bool {
        self.is_local_at(mount, MOST_LAYERS)
    }

    fn is_local_at(&self, mount: &Mount, depth: u32) -> bool {
        if mount.kind != "overlay" {
            return LOCAL.contains(&mount.kind.as_str()) && !SERVED_DEVICES.contains(&mount.device.0);
        }
        let Some(ours) = self.of_device(mount.device).filter(|_| depth > 0) else { return false };
        // Whatever our own root lies on: without it there would be no masu, and its layers have no names in here.
        let is_root = self.0.iter().any(|mount| mount.device == ours.device && mount.point == "/");
        is_root
            || layers(&ours.options).is_some_and(|layers| {
                let local = |path: &&str| self.of_path(path).is_some_and(|of| self.is_local_at(of, depth - 1));
                !layers.is_empty() && layers.iter().all(local)
            })
    }
}

/// The layers of an overlay; `None` where they cannot be told for sure.
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

/// `36 35 98:0 / /mnt rw shared:1 - ext4 /dev/root rw`.
fn parse(line: &str) -> Option<Mount> {
    let (place, what) = line.split_once(" - ")?;
    let mut place = place.split(' ');
    let id = place.next()?.parse().ok()?;
    let (major, minor) = place.nth(1)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let point = crate::cgroup::unescape(place.nth(1)?);
    let mut what = what.split(' ');
    // A user chooses what follows `fuse.`, and it is printed.
    let kind = what.next()?.chars().map(|letter| if letter.is_ascii_graphic() { letter } else { '?' }).collect();
    let options = what.nth(1).unwrap_or_default().to_owned();
    Some(Mount { id, device, point, kind, options })
}

impl Mounts {
    /// Reads our own table; others when they are needed.
    ///
    /// A mount that is held (`place.rs`) before this is called is what the table says, and stays so.
    ///
    /// # Errors
    /// The kernel's answer for `/proc/self/mountinfo`.
    pub fn read(files: &impl KernelFiles) -> Result<Mounts, Error> {
        Ok(Mounts { own: Table::read(files, "self")?, internal: internal(), others: BTreeMap::new() })
    }

    /// The file system of a mount that a process sees, or that is the kernel's own. Unknown is not local.
    pub fn of_mount(&mut self, files: &impl KernelFiles, pid: Pid, id: u64) -> FileSystem {
        if let Some(kind) = self.internal.get(&id) {
            return FileSystem { kind: (*kind).to_owned(), is_local: true };
        }
        let unknown = || FileSystem { kind: UNKNOWN.to_owned(), is_local: false };
        self.found(files, pid, MOST_TABLES, |table| table.by_id(id)).unwrap_or_else(unknown)
    }

    /// The file system with a device number, as `maps` names it: a first look before anything is held. `None` if no table has it:
    /// memory without a name, and file systems that give files other numbers than their mounts (btrfs, overlayfs).
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
    /// A mount of what was read; on a miss the tables of these processes are read, too, until there are `most`.
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
fn namespace(pid: Pid) -> Option<String> {
    let link = std::fs::read_link(format!("/{}", pid.file("ns/mnt"))).ok()?;
    Some(link.to_string_lossy().into_owned())
}

/// Shared memory and huge pages without a name, by the mounts of some of our own.
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
