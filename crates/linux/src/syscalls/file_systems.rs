//! openat2(2) and `/proc/PID/{root,cwd,fd}`: opens a file by device and inode, through any way to its file system.
//!
//! One device can have many mounts. The first may be covered by another, may be a bind mount of a single file, or the
//! device may be mounted in another mount namespace only, or in none any more (umount(8) `-l`). So all ways are tried,
//! in this order: the mounts of our own namespace; those of the readers' namespaces; files that the readers have open;
//! the mounts of all other namespaces.
//!
//! Another namespace belongs to a stranger, who may mount a file system of its own (FUSE) anywhere in it. So the path to
//! a mount is walked with `RESOLVE_CACHED`: from memory alone, without links, and without a request to a server. The
//! descriptor (`O_PATH`) counts only if its mount is the one of the table, and the table's mount is local
//! (`mounts.rs`). A device is local if all that lies below it is (`block_device.rs`, `loop_device.rs`).
//!
//! Cost: some 30 µs per file; tables of other namespaces once per [`FileSystems::refresh`]. Side effects: while a file
//! is open its file system cannot be unmounted.
//!
//! Since: `RESOLVE_CACHED` Linux 5.12. Needs CAP_DAC_READ_SEARCH, and ptrace access to the readers.
//!
//! `unmounted.rs` has the end of a file system.
//!
//! Truth: openat2(2), open_by_handle_at(2), proc_pid_root(5), proc_pid_fd(5).

mod unmounted;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, fstatfs, major, minor, open, openat2, statx,
};
use rustix::io::Errno;

use crate::block_device::{self, Below};
use crate::file_handle::Entry;
use crate::loop_device::{self, BackingFile};
use crate::mounts::{Mount, Table, mount_of, namespace};
use crate::proxy::{self, Call};
use crate::untrusted::bytes_of;
use crate::{Error, KernelFiles, Pid, describe, processes};

/// Depth of devices below devices.
const DEPTH_MAX: u32 = 6;
/// Number of other namespaces whose tables are read.
const NAMESPACES_MAX: usize = 256;
/// Number of open files of a reader that are looked at.
const DESCRIPTORS_MAX: usize = 256;
/// Magic numbers of local file systems whose mount is in no table: ext2 to ext4, xfs, btrfs, f2fs, squashfs, isofs, erofs.
const LOCAL_MAGICS: [u64; 7] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x7371_7368, 0x9660, 0xe0f5_e1e2];

/// A file, by the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Device of the file system.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
    /// Generation of the inode.
    pub generation: u32,
}

/// Reason that no way leads to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoWay {
    /// The device is mounted nowhere that we see.
    NotMounted,
    /// A server answers for the file system; its kind.
    Served(String),
    /// The device lies on this one, which a server supplies, or in a file that we do not see; its kind, if known.
    ServedBelow((u32, u32), Option<String>),
    /// The file system has handles of its own kind, and no reader has the file open; its kind.
    Handles(String),
    /// Files of several subvolumes of btrfs have these numbers, or there are too many subvolumes to look, and no reader
    /// has the file open.
    Subvolumes,
    /// Each mount is covered by another one.
    Covered,
    /// The kernel's answer.
    Refused(Errno),
}

impl fmt::Display for NoWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoWay::NotMounted => f.write_str("no mount of it is visible to masu in any namespace"),
            NoWay::Served(kind) => write!(f, "{kind} is served by a program or a server, which may not answer"),
            NoWay::ServedBelow((major, minor), Some(kind)) => {
                write!(f, "it lies on device {major}:{minor} ({kind}), which a program or a server supplies")
            }
            NoWay::ServedBelow((major, minor), None) => {
                write!(f, "its data comes from device {major}:{minor}, and masu does not see from where beyond that")
            }
            NoWay::Handles(kind) => {
                write!(f, "{kind} has file handles of its own kind, and no reader has the file open now")
            }
            NoWay::Subvolumes => f.write_str(
                "files of several btrfs subvolumes have its inode number (as snapshots do), or there are more than 16 \
                 subvolumes, and no reader has the file open now",
            ),
            NoWay::Covered => f.write_str("each mount of it is covered by another mount"),
            NoWay::Refused(errno) => f.write_str(&describe(*errno)),
        }
    }
}

/// The mounted file systems.
#[derive(Debug)]
pub struct FileSystems {
    own: Table,
    /// Tables of other namespaces, each with a process that sees it.
    others: BTreeMap<String, (Pid, Table)>,
    /// Mount that led to a device's files the last time, with the root that it is seen from.
    last: BTreeMap<(u32, u32), (String, Mount)>,
    /// Devices with what answers for them: `None` for the kernel alone.
    served: BTreeMap<(u32, u32), Option<NoWay>>,
    /// Kind of each device that files were opened on.
    kinds: BTreeMap<(u32, u32), String>,
    /// All namespaces were read.
    is_complete: bool,
}

impl FileSystems {
    /// Reads the file systems that are mounted now in our mount namespace.
    ///
    /// # Errors
    /// The kernel's answer for `/proc/self/mountinfo`.
    pub fn read(files: &impl KernelFiles) -> Result<FileSystems, Error> {
        let own = Table::read(files, "self")?;
        let (others, last, served, kinds) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(FileSystems { own, others, last, served, kinds, is_complete: false })
    }

    /// Forgets all but the devices' last mounts and kinds: mounts and namespaces may have changed.
    ///
    /// # Errors
    /// As [`FileSystems::read`].
    pub fn refresh(&mut self, files: &impl KernelFiles) -> Result<(), Error> {
        let (last, kinds) = (std::mem::take(&mut self.last), std::mem::take(&mut self.kinds));
        *self = FileSystems { last, kinds, ..FileSystems::read(files)? };
        Ok(())
    }

    /// First mount of a device that we know, in our namespace or another.
    pub fn mount_of_device(&self, device: (u32, u32)) -> Option<&Mount> {
        let others = self.others.values().filter_map(|(_, table)| table.of_device(device));
        self.own.of_device(device).or_else(|| others.into_iter().next())
    }

    /// First mount of a device, also of one that was mounted meanwhile; `pid` is a process that reads it.
    pub fn mount_seen_by(&mut self, files: &impl KernelFiles, pid: Pid, device: (u32, u32)) -> Option<&Mount> {
        if self.mount_of_device(device).is_none() && self.refresh(files).is_ok() {
            self.look_at_namespace(files, pid);
        }
        self.mount_of_device(device)
    }

    /// Supply of a device's data, also for a file system with a device number of its own.
    pub fn below(&self, files: &impl KernelFiles, device: (u32, u32)) -> Below {
        if device.0 != 0 {
            return block_device::below(files, device);
        }
        match self.mount_of_device(device).and_then(Mount::named_device) {
            Some(name) => Below::Devices(block_device::of_btrfs(files, &name)),
            None => Below::Nothing,
        }
    }

    /// Mount of the file in which a loop device lies. btrfs gives its files other device numbers than its mounts.
    pub fn mount_of_backing(
        &self,
        files: &impl KernelFiles,
        loop_device: (u32, u32),
        file: &BackingFile,
    ) -> Option<&Mount> {
        let by_path = || self.own.of_path(&block_device::backing_path(files, loop_device)?);
        self.mount_of_device(file.device).or_else(|| by_path().filter(|mount| mount.kind() == "btrfs"))
    }

    /// Opens the file for reading. `readers` are processes that have read it. `None` when it no longer exists.
    ///
    /// # Errors
    /// Reason that no way leads to it.
    pub fn open(&mut self, files: &impl KernelFiles, readers: &[Pid], of: Numbers) -> Result<Option<File>, NoWay> {
        let mut why = NoWay::NotMounted;
        if let Some((root, mount)) = self.last.get(&of.device).cloned() {
            match self.through_mount(files, readers, &root, &mount, of) {
                Ok(file) => return Ok(file),
                Err(_) => self.last.remove(&of.device),
            };
        }
        let own = self.own.clone();
        if let Some(file) = self.through_table(files, readers, "/", &own, of, &mut why) {
            return Ok(file);
        }
        for reader in readers {
            self.look_at_namespace(files, *reader);
        }
        if let Some(file) = self.through_others(files, readers, of, &mut why) {
            return Ok(file);
        }
        for reader in readers {
            if let Some(file) = self.through_open_files(files, *reader, of) {
                return Ok(Some(file));
            }
        }
        // A mount that is there and fit leaves nothing to look for elsewhere.
        if !matches!(why, NoWay::Served(_) | NoWay::ServedBelow(..) | NoWay::Handles(_) | NoWay::Subvolumes)
            && !self.is_complete
        {
            self.look_at_all_namespaces(files);
            if let Some(file) = self.through_others(files, readers, of, &mut why) {
                return Ok(file);
            }
        }
        if self.is_unmounted(files, of.device) { Ok(None) } else { Err(why) }
    }

    fn look_at_all_namespaces(&mut self, files: &impl KernelFiles) {
        self.is_complete = true;
        for pid in processes::processes(files).unwrap_or_default() {
            self.look_at_namespace(files, pid);
        }
    }

    /// Reads the mounts that a process sees, if its namespace is new.
    fn look_at_namespace(&mut self, files: &impl KernelFiles, pid: Pid) {
        let Some(name) = namespace(pid) else { return };
        if self.others.len() >= NAMESPACES_MAX || namespace(Pid::own()).as_ref() == Some(&name) {
            return;
        }
        let is_there = |pid: &Pid| namespace(*pid).as_ref() == Some(&name);
        if self.others.get(&name).is_some_and(|(seen_by, _)| is_there(seen_by)) {
            return;
        }
        if let Ok(table) = Table::read(files, &pid.to_string()) {
            self.others.insert(name, (pid, table));
        }
    }

    fn through_others(
        &mut self,
        files: &impl KernelFiles,
        readers: &[Pid],
        of: Numbers,
        why: &mut NoWay,
    ) -> Option<Option<File>> {
        let has = |(_, table): &&(Pid, Table)| table.of_device(of.device).is_some();
        let tables: Vec<(Pid, Table)> = self.others.values().filter(has).cloned().collect();
        tables.iter().find_map(|(pid, table)| {
            self.through_table(files, readers, &format!("/{}", pid.file("root")), table, of, why)
        })
    }

    fn through_table(
        &mut self,
        files: &impl KernelFiles,
        readers: &[Pid],
        root: &str,
        table: &Table,
        of: Numbers,
        why: &mut NoWay,
    ) -> Option<Option<File>> {
        for mount in table.all_of_device(of.device) {
            match self.through_mount(files, readers, root, mount, of) {
                Ok(file) => {
                    self.last.insert(of.device, (root.to_owned(), mount.clone()));
                    self.kinds.insert(of.device, mount.kind().to_owned());
                    return Some(file);
                }
                Err(reason) => *why = reason,
            }
        }
        None
    }

    fn through_mount(
        &mut self,
        files: &impl KernelFiles,
        readers: &[Pid],
        root: &str,
        mount: &Mount,
        of: Numbers,
    ) -> Result<Option<File>, NoWay> {
        if !(mount.is_of_local_kind() || self.own.is_local(mount)) {
            return Err(NoWay::Served(mount.kind().to_owned()));
        }
        if let Some(why) = self.server_below(files, readers, of.device) {
            return Err(why);
        }
        let held = walk(root, mount)?;
        through_entry(held, of).map_err(|errno| match errno {
            Errno::NOTUNIQ => NoWay::Subvolumes,
            Errno::OPNOTSUPP => NoWay::Handles(mount.kind().to_owned()),
            errno => NoWay::Refused(errno),
        })
    }

    /// Server that answers for a device besides the kernel; `readers` are processes that have read it.
    pub fn server_below(&mut self, files: &impl KernelFiles, readers: &[Pid], device: (u32, u32)) -> Option<NoWay> {
        self.server_below_at(files, readers, device, DEPTH_MAX)
    }

    fn server_below_at(
        &mut self,
        files: &impl KernelFiles,
        readers: &[Pid],
        device: (u32, u32),
        depth: u32,
    ) -> Option<NoWay> {
        if let Some(known) = self.served.get(&device) {
            return known.clone();
        }
        let found = match self.below(files, device) {
            _ if depth == 0 => Some(NoWay::ServedBelow(device, None)),
            Below::Nothing => None,
            Below::Server => Some(NoWay::ServedBelow(device, Some("a network block device".to_owned()))),
            Below::Devices(all) => all.into_iter().find_map(|one| self.server_below_at(files, readers, one, depth - 1)),
            Below::File => self.server_below_loop(files, readers, device, depth - 1),
        };
        self.served.insert(device, found.clone());
        found
    }

    fn server_below_loop(
        &mut self,
        files: &impl KernelFiles,
        readers: &[Pid],
        device: (u32, u32),
        depth: u32,
    ) -> Option<NoWay> {
        let reader = readers.last().copied().unwrap_or(Pid(1));
        let Ok(file) = loop_device::backing_file(files, reader, device) else {
            return Some(NoWay::ServedBelow(device, None));
        };
        if let Some(below) = file.block_device {
            return self.server_below_at(files, readers, below, depth);
        }
        match self.mount_of_backing(files, device, &file).cloned() {
            Some(mount) if self.own.is_local(&mount) => None,
            Some(mount) if mount.is_of_local_kind() => self.server_below_at(files, readers, mount.device, depth),
            Some(mount) => Some(NoWay::ServedBelow(mount.device, Some(mount.kind().to_owned()))),
            None => Some(NoWay::ServedBelow(file.device, None)),
        }
    }

    /// A file that the reader has open, or its current folder, in the same file system.
    fn through_open_files(&mut self, files: &impl KernelFiles, reader: Pid, of: Numbers) -> Option<File> {
        if of.device.0 != 0 && self.server_below(files, &[reader], of.device).is_some() {
            return None;
        }
        let folder = reader.file("fd");
        let numbers = files.list(&folder).unwrap_or_default().into_iter().take(DESCRIPTORS_MAX);
        let paths = numbers.map(|number| format!("/{folder}/{number}"));
        let paths = ["cwd", "root"].into_iter().map(|name| format!("/{}", reader.file(name))).chain(paths);
        let mut found: Option<(u64, OwnedFd)> = None;
        for path in paths {
            let Some(held) = self.held_on(reader, &path, of.device) else { continue };
            match fstat(&held) {
                Ok(about) if about.st_ino == of.inode => match &found {
                    // Several files of btrfs have these numbers. The reader has read one of them, and may have closed it.
                    _ if is_of_subvolume(&about, of.device) && !is_read(files, reader, &path) => {}
                    Some((device, _)) if *device != about.st_dev => return None,
                    Some(_) => {}
                    None => found = Some((about.st_dev, held)),
                },
                _ => {
                    if let Ok(Some(file)) = through_entry(held, of) {
                        return Some(file);
                    }
                }
            }
        }
        found.and_then(|(_, held)| reopen(&held).ok()).map(File::from)
    }

    /// File or folder of a process, if it lies on this device, and the kernel alone answers for it.
    fn held_on(&self, reader: Pid, path: &str, device: (u32, u32)) -> Option<OwnedFd> {
        let held = proxy::open(reader, path, OFlags::PATH).ok()?;
        let id = mount_of(&held).ok()?;
        let tables = std::iter::once(&self.own).chain(self.others.values().map(|(_, table)| table));
        let is_fit = match tables.into_iter().find_map(|table| table.by_id(id)) {
            Some(mount) => mount.device == device && mount.is_of_local_kind(),
            None => device.0 != 0 && is_on(&held, device) && is_local_magic(reader, &held),
        };
        is_fit.then_some(held)
    }
}

/// Descriptor of the mount point, if the mount is not covered by another.
fn walk(root: &str, mount: &Mount) -> Result<OwnedFd, NoWay> {
    /// The kernel gives up when a name changes meanwhile.
    const TRIES: u32 = 4;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = open(root, flags | OFlags::DIRECTORY, Mode::empty()).map_err(NoWay::Refused)?;
    let resolve =
        ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::IN_ROOT;
    let path = bytes_of(&mount.point);
    let mut answer = Err(Errno::AGAIN);
    for _ in 0..TRIES {
        answer = openat2(&root, &*path, flags | OFlags::NOFOLLOW, Mode::empty(), resolve);
        if !matches!(answer, Err(Errno::AGAIN)) {
            break;
        }
    }
    match answer {
        Ok(held) if mount_of(&held) == Ok(mount.id) => Ok(held),
        // Below a mount that covers it the path leads elsewhere, or nowhere.
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::AGAIN) => Err(NoWay::Covered),
        Err(errno) => Err(NoWay::Refused(errno)),
    }
}

/// Opens a file of the same local file system.
fn through_entry(held: OwnedFd, of: Numbers) -> Result<Option<File>, Errno> {
    let entry = Entry(reopen(&held)?);
    let Some(file) = entry.open(of.inode, of.generation)? else { return Ok(None) };
    let about = fstat(&file)?;
    let is_data = matches!(FileType::from_raw_mode(about.st_mode), FileType::RegularFile | FileType::Directory);
    if about.st_ino == of.inode && is_data { Ok(Some(file)) } else { Err(Errno::OPNOTSUPP) }
}

/// Opens a regular file or a directory of a local file system, and nothing whose opening has an effect.
fn reopen(held: &OwnedFd) -> Result<OwnedFd, Errno> {
    let kind = match FileType::from_raw_mode(fstat(held)?.st_mode) {
        FileType::Directory => OFlags::DIRECTORY,
        FileType::RegularFile => OFlags::empty(),
        _ => return Err(Errno::NOTDIR),
    };
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    open(path.as_str(), kind | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

/// True for a file of btrfs: each subvolume has a device number of its own.
fn is_of_subvolume(about: &Stat, device: (u32, u32)) -> bool {
    (major(about.st_dev), minor(about.st_dev)) != device
}

/// True if the descriptor of a process at this path below `fd` has been read or written: its position is not the
/// beginning.
fn is_read(files: &impl KernelFiles, pid: Pid, path: &str) -> bool {
    let number = path.rsplit('/').next().unwrap_or_default();
    let about = files.read(&pid.file(&format!("fdinfo/{number}"))).unwrap_or_default();
    let position = about.lines().find_map(|line| line.strip_prefix("pos:"));
    position.is_some_and(|position| position.trim().parse::<u64>().is_ok_and(|position| position > 0))
}

/// True if the file lies on the device; its server is not asked.
fn is_on(held: &OwnedFd, device: (u32, u32)) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(AT_STATX_DONT_SYNC);
    statx(held, c"", flags, StatxFlags::INO).is_ok_and(|about| (about.stx_dev_major, about.stx_dev_minor) == device)
}

const AT_STATX_DONT_SYNC: u32 = 0x4000;

/// True if the file system of a mount in no table is local. A server may have to answer: asked by a proxy.
fn is_local_magic(reader: Pid, held: &OwnedFd) -> bool {
    fn ask(call: &mut Call<'_>) -> Result<u64, Errno> {
        Ok(fstatfs(call.file.ok_or(Errno::BADF)?)?.f_type.cast_unsigned())
    }
    let answer = proxy::about(reader, |proxy| proxy.call(ask, [0; 4], Some(held.as_fd())));
    answer.is_ok_and(|answer| LOCAL_MAGICS.contains(&answer.value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    const OF: Numbers = Numbers { device: (8, 1), inode: 7, generation: 9 };

    fn table(lines: &str) -> FakeKernel {
        FakeKernel::new().file("proc/self/mountinfo", lines)
    }

    #[test]
    fn what_is_not_mounted_cannot_be_opened_and_without_proc_nothing_is_known() {
        let kernel = table("");
        let none = FileSystems::read(&kernel).unwrap().open(&kernel, &[], OF);
        assert_eq!(none.unwrap_err(), NoWay::NotMounted);
        assert!(FileSystems::read(&FakeKernel::new()).is_err());
    }

    #[test]
    fn a_mount_that_is_not_there_is_covered_and_a_served_one_is_named() {
        let kernel = table("2000000001 1 8:1 / /nowhere/at/all rw - ext4 /dev/sda1 rw\n");
        let covered = FileSystems::read(&kernel).unwrap().open(&kernel, &[], OF);
        assert_eq!(covered.unwrap_err(), NoWay::Covered);
        let root = table("2000000001 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        let another = FileSystems::read(&root).unwrap().open(&root, &[], OF);
        assert_eq!(another.unwrap_err(), NoWay::Covered, "another mount is there");
        let served = table("30 1 8:1 / /mnt rw - fuseblk /dev/sda1 rw\n");
        let answer = FileSystems::read(&served).unwrap().open(&served, &[], OF);
        assert_eq!(answer.unwrap_err(), NoWay::Served("fuseblk".to_owned()));
    }

    #[test]
    fn a_loop_device_without_a_known_file_is_served_and_so_is_all_above_it() {
        let kernel = table("").file("sys/dev/block/253:0/slaves/loop3/dev", "7:3\n");
        let mut all = FileSystems::read(&kernel).unwrap();
        assert_eq!(all.server_below(&kernel, &[], (253, 0)), Some(NoWay::ServedBelow((7, 3), None)));
        assert_eq!(all.server_below(&kernel, &[], (8, 0)), None);
        let network = Some("a network block device".to_owned());
        assert_eq!(all.server_below(&kernel, &[], (43, 0)), Some(NoWay::ServedBelow((43, 0), network)));
        let below = NoWay::ServedBelow((0, 39), Some("fuse.bindfs".to_owned()));
        let words = "it lies on device 0:39 (fuse.bindfs), which a program or a server supplies";
        assert_eq!(below.to_string(), words);
    }

    #[test]
    fn a_btrfs_lies_on_the_devices_that_its_mount_names() {
        let kernel = table(
            "44 27 0:39 / /mnt rw - btrfs /dev/loop3 rw\n45 27 0:40 / /lies rw - tmpfs /dev/loop3 rw\n\
             46 27 0:41 / /home rw - btrfs /dev/sda1 rw\n",
        )
        .file("sys/fs/btrfs/0a-1/devices/loop3/dev", "7:3\n")
        .file("sys/fs/btrfs/0a-1/devices/sdb/dev", "8:16\n")
        .file("sys/fs/btrfs/0b-2/devices/sda1/dev", "8:1\n");
        let mut all = FileSystems::read(&kernel).unwrap();
        assert_eq!(all.below(&kernel, (0, 39)), Below::Devices(vec![(7, 3), (8, 16)]));
        assert_eq!(all.below(&kernel, (0, 40)), Below::Nothing, "a name that any user may give");
        assert_eq!(all.server_below(&kernel, &[], (0, 39)), Some(NoWay::ServedBelow((7, 3), None)));
        assert_eq!(all.server_below(&kernel, &[], (0, 41)), None);
        let is_local = |device| all.own.of_device(device).is_some_and(|mount| all.own.is_local(mount));
        assert_eq!((is_local((0, 39)), is_local((0, 41))), (false, true));
        assert_eq!(all.mount_seen_by(&kernel, Pid(i32::MAX), (0, 42)), None);
        kernel.add("proc/self/mountinfo", "47 27 0:42 / /new rw - btrfs /dev/sdc rw\n");
        assert!(all.mount_seen_by(&kernel, Pid(i32::MAX), (0, 42)).is_some(), "mounted meanwhile");
    }

    #[test]
    fn a_file_of_our_own_is_opened_through_its_mount_and_through_a_reader() {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        let about = fstat(&file).unwrap();
        let device = (rustix::fs::major(about.st_dev), rustix::fs::minor(about.st_dev));
        let kernel = crate::Rooted::host();
        let mut all = FileSystems::read(&kernel).unwrap();
        let of = Numbers { device, inode: about.st_ino, generation: 0 };
        if all.mount_of_device(device).is_some_and(Mount::is_of_local_kind)
            && let Some(found) = all.through_open_files(&kernel, Pid::own(), of)
        {
            assert_eq!(fstat(&found).unwrap().st_ino, about.st_ino);
        }
    }
}
