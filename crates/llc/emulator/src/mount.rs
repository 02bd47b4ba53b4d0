//! The machine as a file system: translation of system calls, and the other answers of the kernel's kernfs.
//!
//! Files are read and written past the page cache, so that one write(2) is one command; they have no size. The kernel
//! caches nothing: names and rights change with commands. flock(2) on the root, the lock between programs
//! (Documentation/filesystems/resctrl.rst, "Locking in resctrl"), is done by the kernel itself.
//!
//! Truth: fs/kernfs/file.c (`kernfs_fop_open`, `kernfs_fop_write_iter`), fs/kernfs/dir.c; libfuse's documentation of
//! FUSE.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use units::cast::{fits, index, saturated};

use crate::group::GroupId;
use crate::machine::Machine;
use crate::members::Writer;
use crate::node::Node;

/// Cache time: the kernel asks again each time.
const AT_ONCE: Duration = Duration::ZERO;

/// Mounts a file system at a directory, for its owner or for all users. Its users wait until `serve` is called with
/// the returned descriptor.
///
/// # Errors
/// When it cannot be mounted: ENOENT, EACCES, EPERM without /dev/fuse or root.
pub fn mount(at: &Path, for_all_users: bool) -> std::io::Result<OwnedFd> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let others = if for_all_users { ",allow_other" } else { "" };
    let fd = device.as_raw_fd();
    let data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions{others}");
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
    // Not by fuser, which answers with a text in place of the kernel's errno.
    rustix::mount::mount("resctrl", at, "fuse.resctrl", flags, CString::new(data)?.as_c_str())?;
    Ok(device)
}

/// Serves the machine at the mount, in threads of its own.
///
/// # Errors
/// When the kernel and FUSE do not agree on how.
pub fn serve(
    device: OwnedFd,
    machine: &Arc<Mutex<Machine>>,
    for_all_users: bool,
) -> std::io::Result<BackgroundSession> {
    let emulated = Emulated {
        machine: Arc::clone(machine),
        inodes: Mutex::new(Inodes::new()),
        open: Mutex::new(HashMap::new()),
        last_handle: AtomicU64::new(0),
        given: Mutex::new(HashMap::new()),
        began: Instant::now(),
    };
    let access = if for_all_users { SessionACL::All } else { SessionACL::Owner };
    Session::from_fd(emulated, device, access, Config::default())?.spawn()
}

/// Numbers for nodes.
#[derive(Debug)]
struct Inodes {
    nodes: HashMap<u64, (Node, SystemTime)>,
    numbers: HashMap<Node, u64>,
    last: u64,
}

impl Inodes {
    fn new() -> Inodes {
        let root = Node::Group(GroupId::ROOT);
        Inodes {
            nodes: HashMap::from([(INodeNo::ROOT.0, (root, SystemTime::now()))]),
            numbers: HashMap::from([(root, INodeNo::ROOT.0)]),
            last: INodeNo::ROOT.0,
        }
    }

    fn number(&mut self, node: Node) -> u64 {
        *self.numbers.entry(node).or_insert_with(|| {
            self.last += 1;
            self.nodes.insert(self.last, (node, SystemTime::now()));
            self.last
        })
    }

    fn forget(&mut self, number: u64) {
        if let Some((node, _)) = self.nodes.remove(&number) {
            self.numbers.remove(&node);
        }
    }
}

struct Emulated {
    machine: Arc<Mutex<Machine>>,
    inodes: Mutex<Inodes>,
    /// Content of each open file at its first read.
    open: Mutex<HashMap<u64, Vec<u8>>>,
    last_handle: AtomicU64,
    /// Changes by chmod(1) and chown(1).
    given: Mutex<HashMap<Node, Given>>,
    began: Instant,
}

/// Rights and owners set on a node, in place of its own.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    rights: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn said(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

/// Name as text; a name that is no text belongs to no existing file.
fn text(name: &OsStr) -> Result<&str, Errno> {
    name.to_str().ok_or(Errno::INVAL)
}

impl Emulated {
    /// The machine, with its time advanced.
    fn machine(&self) -> MutexGuard<'_, Machine> {
        let mut machine = held(&self.machine);
        machine.pass_time(saturated(self.began.elapsed().as_millis()));
        machine
    }

    fn node(&self, number: INodeNo) -> Result<Node, Errno> {
        held(&self.inodes).nodes.get(&number.0).map(|(node, _)| *node).ok_or(Errno::NOENT)
    }

    /// Rights made by commands override rights set on the node.
    fn rights(&self, machine: &Machine, node: Node) -> u16 {
        let own = machine.rights(node);
        let given = held(&self.given).get(&node).and_then(|given| given.rights);
        if own == 0 { own } else { given.unwrap_or(own) }
    }

    fn give(
        &self,
        number: INodeNo,
        rights: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        if rights.is_some() || uid.is_some() || gid.is_some() {
            let mut all = held(&self.given);
            let given = all.entry(node).or_default();
            given.rights = rights.and_then(|rights| u16::try_from(rights & 0o7777).ok()).or(given.rights);
            (given.uid, given.gid) = (uid.or(given.uid), gid.or(given.gid));
        }
        self.attributes(&self.machine(), node)
    }

    fn attributes(&self, machine: &Machine, node: Node) -> Result<FileAttr, Errno> {
        let group = node.group().unwrap_or(GroupId::ROOT);
        let owners = machine.groups().find(|(id, _)| *id == group).map(|(_, group)| group.owner);
        let (uid, gid) = owners.ok_or(Errno::NOENT)?;
        let given = held(&self.given).get(&node).copied().unwrap_or_default();
        let mut inodes = held(&self.inodes);
        let ino = inodes.number(node);
        let made = inodes.nodes.get(&ino).map_or(SystemTime::UNIX_EPOCH, |(_, made)| *made);
        Ok(FileAttr {
            ino: INodeNo(ino),
            size: 0,
            blocks: 0,
            atime: made,
            mtime: made,
            ctime: made,
            crtime: made,
            kind: if node.is_directory() { FileType::Directory } else { FileType::RegularFile },
            perm: self.rights(machine, node),
            nlink: if node.is_directory() { 2 } else { 1 },
            uid: given.uid.unwrap_or(uid),
            gid: given.gid.unwrap_or(gid),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn found(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let machine = self.machine();
        let node = machine.lookup(self.node(parent)?, text(name)?)?;
        self.attributes(&machine, node)
    }

    /// A file without any right cannot be opened, even by root: kernfs checks the file's rights itself.
    fn opened(&self, number: INodeNo, mode: OpenAccMode) -> Result<u64, Errno> {
        let node = self.node(number)?;
        let machine = self.machine();
        if node.group().is_some_and(|id| !machine.groups().any(|(other, _)| other == id)) {
            return Err(Errno::NODEV);
        }
        let rights = self.rights(&machine, node);
        let reads = mode != OpenAccMode::O_WRONLY && rights & 0o444 == 0;
        let writes = mode != OpenAccMode::O_RDONLY && rights & 0o222 == 0;
        if reads || writes {
            return Err(Errno::ACCESS);
        }
        Ok(self.last_handle.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Piece of a file. The content is made at the first read, or when its beginning is read, and stays the same to
    /// its end.
    fn piece(&self, number: INodeNo, handle: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let node = self.node(number)?;
        if offset == 0 || !held(&self.open).contains_key(&handle) {
            let whole = self.machine().read(node)?.into_bytes();
            held(&self.open).insert(handle, whole);
        }
        let open = held(&self.open);
        let whole = open.get(&handle).map_or(&[][..], Vec::as_slice);
        let rest = whole.get(index(offset)..).unwrap_or_default();
        let size = index(size.into()).min(rest.len());
        Ok(rest[..size].to_vec())
    }

    fn made(&self, request: &Request, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let mut machine = self.machine();
        let node = machine.mkdir(self.node(parent)?, text(name)?, (request.uid(), request.gid()))?;
        self.attributes(&machine, node)
    }

    fn moved(
        &self,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        if !flags.is_empty() {
            return Err(Errno::INVAL);
        }
        self.machine().rename(self.node(parent)?, text(name)?, self.node(to)?, text(new_name)?)
    }
}

fn entry(attributes: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match attributes {
        Ok(attributes) => reply.entry(&AT_ONCE, &attributes, Generation(0)),
        Err(errno) => reply.error(said(errno)),
    }
}

fn empty(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(said(errno)),
    }
}

fn attributes(outcome: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match outcome {
        Ok(attributes) => reply.attr(&AT_ONCE, &attributes),
        Err(errno) => reply.error(said(errno)),
    }
}

impl Filesystem for Emulated {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.found(parent, name), reply);
    }

    fn forget(&self, _: &Request, number: INodeNo, _: u64) {
        let Ok(node) = self.node(number) else { return };
        let is_gone = node.group().is_some_and(|id| !held(&self.machine).groups().any(|(other, _)| other == id));
        if is_gone {
            held(&self.inodes).forget(number.0);
            held(&self.given).remove(&node);
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attributes(self.node(number).and_then(|node| self.attributes(&self.machine(), node)), reply);
    }

    /// O_TRUNC has no effect.
    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        attributes(self.give(number, mode, uid, gid), reply);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.opened(number, flags.acc_mode()) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(said(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.piece(number, handle.0, offset, size) {
            Ok(piece) => reply.data(&piece),
            Err(errno) => reply.error(said(errno)),
        }
    }

    /// The offset in the file does not matter.
    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        _: FileHandle,
        _: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let writer = Writer { tid: request.pid(), uid: request.uid() };
        let outcome = self.node(number).and_then(|node| self.machine().write(node, bytes, writer));
        match outcome {
            Ok(()) => reply.written(fits(bytes.len())),
            Err(errno) => reply.error(said(errno)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        held(&self.open).remove(&handle.0);
        reply.ok();
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.node(number).and_then(|node| self.machine().list(node));
        let all = match listed {
            Ok(all) => all,
            Err(errno) => return reply.error(said(errno)),
        };
        let dots = [".", ".."].map(|name| (name.to_owned(), None));
        let names = dots.into_iter().chain(all.into_iter().map(|(name, node)| (name, Some(node))));
        for (next, (name, node)) in (1..).zip(names).skip(index(offset)) {
            let number = node.map_or(number.0, |node| held(&self.inodes).number(node));
            let is_directory = node.is_none_or(Node::is_directory);
            let kind = if is_directory { FileType::Directory } else { FileType::RegularFile };
            if reply.add(INodeNo(number), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        entry(self.made(request, parent, name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let outcome = self.node(parent).and_then(|parent| self.machine().rmdir(parent, text(name)?));
        empty(outcome, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        empty(self.moved(parent, name, to, new_name, flags), reply);
    }

    // Files are created and removed only with their groups.

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(said(Errno::ACCESS));
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(said(Errno::PERM));
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(said(Errno::PERM));
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(said(Errno::PERM));
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(said(Errno::PERM));
    }
}
