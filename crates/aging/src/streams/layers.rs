//! Work done for a stream by others: the kernel's workers of loop devices, FUSE servers, and servers of any kind.
//!
//! A file system on a loop device is read for the stream by a worker of the kernel, which fills the page cache of the
//! backing file. A FUSE server reads its own files for the stream. Both can be told: from the device of each file that
//! the stream reads follow the devices below it (`linux::block_device`, `linux::loop_device`) and the process that
//! holds the connection (`linux::fuse_server`). Their insertions count as the stream's, down through all layers.
//!
//! A server that is merely talked to may have work of its own. It is named, with the amount, if that is large and one of
//! its processes is connected to one of the stream's (`linux::connections`). The other programs that read the same
//! devices are one amount without names.
//!
//! Insertions of the others count from at most a second before the stream's first page on that device: the events of
//! both come in batches.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use access::insertions::{FileId, Inserter, Insertion};
use linux::block_device::Below;
use linux::connections::Ends;
use linux::file_systems::FileSystems;
use linux::loop_device::{self, BackingFile};
use linux::{KernelFiles, Pid, Untrusted, children, fuse_server, stat, status};
use units::Pages;

/// Least amount of a process that is named: 16 MiB.
pub const NAMED_MIN: Pages = Pages(4096);
/// Least amount of a process whose connections are looked at: 1 MiB.
const LARGE: Pages = Pages(256);
/// Number of processes whose connections are looked at in one step.
const LOOKED_AT_MOST: usize = 4;
/// Number of processes of the streams, and of a server, whose connections are looked at.
const CONNECTED_MOST: usize = 64;
/// Number of servers that are named.
const NAMED_MOST: usize = 8;
/// Number of processes in one step whose server is looked up.
const SERVERS_MOST: usize = 64;
/// Age up to which an insertion can still be told to be of a layer.
const RECENT: Duration = Duration::from_secs(1);
/// Number of insertions that wait for that.
const RECENT_MOST: usize = 1 << 14;
/// Number of other processes with a count.
const OTHERS_MOST: usize = 1024;
/// Number of devices that are followed.
const DEVICES_MOST: usize = 1024;
/// Time after which the layers below a device are looked up again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// First such time for a device in no mount table, which may be in the middle of its mount(2). Doubled each time.
const LOOK_SOON: Duration = Duration::from_millis(10);
/// Depth of devices below devices.
const DEPTH_MAX: u32 = 6;

/// Layers below the files of the streams, and the other processes with insertions.
#[derive(Debug, Default)]
pub struct Layers {
    /// Devices that the streams read from, with the time of the last look below them.
    devices: BTreeMap<(u32, u32), Device>,
    backing: BTreeSet<BackingFile>,
    others: BTreeMap<Pid, Other>,
    recent: VecDeque<(Duration, Insertion)>,
    /// Processes that inserted pages for the streams lately, the latest last.
    readers: VecDeque<Pid>,
    /// Devices whose servers were looked for.
    served: BTreeSet<(u32, u32)>,
    /// Processes that the streams are connected to by the address that they listen at, and whose children are programs of
    /// another name; with their own names.
    listeners: BTreeMap<Pid, Untrusted>,
}

#[derive(Debug)]
struct Device {
    looked_at: Duration,
    /// Time until the next look.
    wait: Duration,
    /// A program serves its file system, or may do so.
    is_of_program: bool,
    /// A server of files in a kernel, perhaps this one, serves its file system.
    is_of_kernel_server: bool,
}

/// Process that is not followed.
#[derive(Debug)]
struct Other {
    inserter: Inserter,
    /// Insertions that are not of a layer.
    pages: u64,
    /// It serves a layer of the streams.
    is_layer: bool,
    looked_at: Option<Duration>,
    /// First process of the server, as for a server that forks.
    first: Option<Pid>,
    /// Insertions on the devices of the streams that are not of a layer.
    same_devices: u64,
    /// One of its server's processes is, or was, connected to one of the streams'.
    is_connected: bool,
    connections_at: Option<Duration>,
    /// Set if the process, or the first one of its server, ran when the connections were looked at.
    is_seen: bool,
}

/// Process with insertions at the same time, for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Pid.
    pub pid: Pid,
    /// Name.
    pub name: Untrusted,
    /// True for a kernel thread.
    pub of_kernel: bool,
    /// Amount.
    pub pages: Pages,
    /// First process of the server: the one to follow.
    pub first: Option<Pid>,
}

impl Layers {
    /// Notes that a stream has inserted pages of a file on this device.
    pub fn note(
        &mut self,
        files: &impl KernelFiles,
        systems: &mut FileSystems,
        device: (u32, u32),
        by: Pid,
        now: Duration,
    ) {
        if self.readers.back() != Some(&by) {
            self.readers.retain(|known| *known != by);
            self.readers.push_back(by);
            let many = self.readers.len().saturating_sub(CONNECTED_MOST);
            self.readers.drain(..many);
        }
        let is_new = !self.devices.contains_key(&device);
        let is_old = |known: &Device| now >= known.looked_at + known.wait;
        if (is_new && self.devices.len() >= DEVICES_MOST) || !(is_new || self.devices.get(&device).is_some_and(is_old))
        {
            return;
        }
        let mount = systems.mount_seen_by(files, by, device);
        // A file system that is mounted in another namespace only may be of any kind.
        let is_of_program = mount.map_or(device.0 == 0, linux::mounts::Mount::is_of_program);
        let is_of_kernel_server = mount.is_some_and(|mount| ["nfs", "nfs4", "cifs", "smb3"].contains(&mount.kind()));
        let wait = match self.devices.get(&device) {
            _ if mount.is_some() || device.0 != 0 => LOOK_AGAIN,
            Some(known) => LOOK_AGAIN.min(known.wait.saturating_mul(2)),
            None => LOOK_SOON,
        };
        self.devices.insert(device, Device { looked_at: now, wait, is_of_program, is_of_kernel_server });
        self.look_below(files, systems, device, by, DEPTH_MAX);
    }

    fn look_below(&mut self, files: &impl KernelFiles, systems: &FileSystems, device: (u32, u32), by: Pid, depth: u32) {
        if depth == 0 {
            return;
        }
        match systems.below(files, device) {
            Below::Nothing | Below::Server => {}
            Below::Devices(all) => all.into_iter().for_each(|one| self.look_below(files, systems, one, by, depth - 1)),
            Below::File => {
                if let Ok(file) = loop_device::backing_file(files, by, device)
                    && self.backing.len() < DEVICES_MOST
                {
                    self.backing.insert(file);
                    let of_file = || systems.mount_of_backing(files, device, &file).map(|mount| mount.device);
                    let below = file.block_device.or_else(of_file).unwrap_or(file.device);
                    self.look_below(files, systems, below, by, depth - 1);
                }
            }
        }
    }

    /// Adds insertions of processes that are not followed.
    pub fn add(&mut self, now: Duration, insertions: Vec<Insertion>, inserter: impl Fn(Pid) -> Option<Inserter>) {
        for pid in insertions.iter().map(|insertion| insertion.process).collect::<BTreeSet<Pid>>() {
            let Some(found) = inserter(pid) else { continue };
            // Pids are reused.
            if self.others.get(&pid).is_none_or(|known| known.inserter.start_ns != found.start_ns) {
                self.forget_small();
                self.others.insert(pid, Other::new(found));
            }
        }
        for insertion in insertions {
            if let Some(other) = self.others.get_mut(&insertion.process) {
                other.pages += count(&insertion);
                if self.devices.contains_key(&insertion.file.device) {
                    other.same_devices += count(&insertion);
                }
            }
            if self.recent.len() >= RECENT_MOST {
                self.recent.pop_front();
            }
            self.recent.push_back((now, insertion));
        }
    }

    /// Recent insertions that were made for the streams.
    pub fn claimed(&mut self, files: &impl KernelFiles, systems: &FileSystems, now: Duration) -> Vec<Insertion> {
        self.look_at_servers(files, systems, now);
        let (mut claimed, mut left) = (Vec::new(), VecDeque::new());
        for (at, insertion) in std::mem::take(&mut self.recent) {
            let other = self.others.get(&insertion.process);
            let is_ours =
                other.is_some_and(|of| of.is_layer || (of.inserter.of_kernel && self.is_backing(insertion.file)));
            if is_ours {
                if let Some(other) = self.others.get_mut(&insertion.process) {
                    other.pages = other.pages.saturating_sub(count(&insertion));
                    other.same_devices = other.same_devices.saturating_sub(count(&insertion));
                }
                claimed.push(insertion);
            } else if now < at + RECENT {
                left.push_back((at, insertion));
            }
        }
        self.recent = left;
        claimed
    }

    /// True if a device of the streams lies in this file.
    pub fn is_backing(&self, file: FileId) -> bool {
        self.backing.iter().any(|backing| is_same(backing, file))
    }

    /// True if a process inserts pages of this file for the streams.
    pub fn is_of_layer(&self, file: FileId, process: Pid) -> bool {
        self.is_backing(file) || self.others.get(&process).is_some_and(|other| other.is_layer)
    }

    /// Finds the servers of the streams' file systems.
    fn look_at_servers(&mut self, files: &impl KernelFiles, systems: &FileSystems, now: Duration) {
        let served: BTreeSet<(u32, u32)> =
            self.devices.iter().filter(|(_, of)| of.is_of_program).map(|(device, _)| *device).collect();
        // A server may be known, whose own files are served by another one.
        let is_new = !served.is_subset(&self.served);
        self.served.clone_from(&served);
        if served.is_empty() {
            return;
        }
        let recent: BTreeSet<Pid> = self.recent.iter().map(|(_, insertion)| insertion.process).collect();
        for pid in recent {
            let Some(other) = self.others.get_mut(&pid) else { continue };
            let is_due = is_new || other.looked_at.is_none_or(|at| now >= at + LOOK_AGAIN);
            if other.is_layer || other.inserter.of_kernel || !is_due {
                continue;
            }
            other.looked_at = Some(now);
            let found = fuse_server::served_by(files, pid);
            let points = served.iter().filter_map(|device| systems.mount_of_device(*device)).map(|mount| &mount.point);
            other.is_layer = found.devices.iter().any(|device| served.contains(device))
                || (found.others && names_one(files, pid, points));
        }
    }

    /// Looks up the servers of large processes while they run, and their connections to the streams' processes: `members`
    /// and those that inserted pages.
    pub fn look_at_large(&mut self, files: &impl KernelFiles, members: impl Fn() -> Vec<Pid>, now: Duration) {
        // Early, since a server may have a process for each request.
        let unknown = self.others.iter_mut().filter(|(_, of)| of.first.is_none() && !of.inserter.of_kernel);
        for (pid, other) in unknown.take(SERVERS_MOST) {
            other.first = Some(first_of_same_name(files, *pid, &other.inserter));
        }
        let is_due = |of: &Other| of.connections_at.is_none_or(|at| now >= at + LOOK_AGAIN);
        let large = self.others.iter_mut().filter(|(_, of)| {
            of.pages >= LARGE.0 && !of.inserter.of_kernel && !of.is_layer && !of.is_connected && is_due(of)
        });
        let readers = &self.readers;
        let ours = OnceCell::new();
        for (pid, other) in large.take(LOOKED_AT_MOST) {
            other.connections_at = Some(now);
            let first = other.first.unwrap_or(*pid);
            let (followed, ends) = ours.get_or_init(|| {
                let own = Pid::own();
                let mut all: Vec<Pid> = members().into_iter().filter(|pid| *pid != own).take(CONNECTED_MOST).collect();
                all.extend(readers);
                let mut ends = ends_of(files, all.iter().copied());
                ends.remove_shared(&Ends::of(files, own));
                (all, ends)
            });
            let server = children::descendants(files, first).unwrap_or_default();
            let server =
                [*pid, first].into_iter().chain(server).filter(|pid| !followed.contains(pid) && *pid != Pid::own());
            let server = ends_of(files, server.take(CONNECTED_MOST));
            other.is_connected = ends.meet(&server) || ends.meet_listener(&server);
            // A listener such as inetd runs another program for each connection, which may have ended.
            let is_stranger = |pid: &Pid| pid.0 > 1 && *pid != Pid::own() && !followed.contains(pid);
            if first == *pid
                && let Some(parent) = other.inserter.parent.filter(is_stranger)
                && ends.meet_listener(&Ends::of(files, parent))
            {
                let name = status::status(files, parent).map_or_else(|_| "ended".into(), |of| of.name);
                self.listeners.insert(parent, name);
            }
            other.is_seen |= first != *pid || stat::stat(files, first).is_ok();
        }
        let of_listeners = self.others.values_mut().filter(|of| !of.is_layer);
        for other in of_listeners {
            if let Some(parent) = other.inserter.parent.filter(|parent| self.listeners.contains_key(parent)) {
                (other.is_connected, other.first) = (true, Some(parent));
            }
        }
        // One connected process of a server counts for the others, also for those that have ended.
        let connected: BTreeSet<Pid> =
            self.others.values().filter(|of| of.is_connected).filter_map(|of| of.first).collect();
        let same = |of: &&mut Other| of.first.is_some_and(|first| connected.contains(&first));
        self.others.values_mut().filter(same).for_each(|of| of.is_connected = true);
    }

    /// Servers with much that was inserted meanwhile and is not a layer's, the largest first: connected ones, with the
    /// sum of their processes, and threads of the kernel if a server of files may be among them.
    pub fn largest(&self) -> Vec<Named> {
        let mut servers = BTreeMap::<Pid, Named>::new();
        for (pid, of) in self.others.iter().filter(|(_, of)| !of.is_layer && self.may_serve(of)) {
            let name = of.first.and_then(|first| self.listeners.get(&first)).unwrap_or(&of.inserter.name);
            let (name, of_kernel) = (name.clone(), of.inserter.of_kernel);
            let new = Named { pid: *pid, name, of_kernel, pages: Pages(0), first: of.first };
            let server = servers.entry(of.first.unwrap_or(*pid)).or_insert(new);
            if server.pid != *pid {
                server.pid = of.first.unwrap_or(*pid);
            }
            server.pages.0 += of.pages;
        }
        let mut all: Vec<Named> = servers.into_values().filter(|of| of.pages >= NAMED_MIN).collect();
        all.sort_by_key(|of| std::cmp::Reverse(of.pages));
        all.truncate(NAMED_MOST);
        all
    }

    /// Pages that processes without a connection inserted on the devices of the streams, and the number of those
    /// processes that ended before their connections could be looked at.
    pub fn unconnected(&self) -> (Pages, usize) {
        let others = || self.others.values().filter(|of| !of.is_layer && !self.may_serve(of) && of.same_devices > 0);
        let unseen = others().filter(|of| of.same_devices >= LARGE.0 && !of.is_seen).count();
        (Pages(others().map(|of| of.same_devices).sum()), unseen)
    }

    fn may_serve(&self, of: &Other) -> bool {
        of.is_connected || (of.inserter.of_kernel && self.devices.values().any(|device| device.is_of_kernel_server))
    }

    /// Forgets the half with the smallest amounts when there are too many.
    fn forget_small(&mut self) {
        if self.others.len() < OTHERS_MOST {
            return;
        }
        let mut amounts: Vec<u64> = self.others.values().map(|of| of.pages).collect();
        amounts.sort_unstable();
        let little = amounts[amounts.len() / 2];
        self.others.retain(|_, of| of.is_layer || of.pages > little);
    }
}

impl Other {
    fn new(inserter: Inserter) -> Other {
        Other {
            inserter,
            pages: 0,
            is_layer: false,
            looked_at: None,
            first: None,
            same_devices: 0,
            is_connected: false,
            connections_at: None,
            is_seen: false,
        }
    }
}

fn ends_of(files: &impl KernelFiles, pids: impl Iterator<Item = Pid>) -> Ends {
    let mut all = Ends::default();
    pids.for_each(|pid| all.extend(Ends::of(files, pid)));
    all
}

/// btrfs and overlayfs give their files other device numbers than the page cache has.
fn is_same(backing: &BackingFile, file: FileId) -> bool {
    match backing.block_device {
        Some((major, minor)) => file.device.0 == 0 && file.inode == (u64::from(major) << 20 | u64::from(minor)),
        None => backing.inode == file.inode && (backing.device == file.device || backing.device.0 == 0),
    }
}

/// True if the command line of a process has one of these paths as an argument.
fn names_one<'p>(files: &impl KernelFiles, pid: Pid, mut paths: impl Iterator<Item = &'p String>) -> bool {
    let Ok(line) = files.read(&pid.file("cmdline")) else { return false };
    paths.any(|path| line.split('\0').any(|argument| argument.trim_end_matches('/') == path))
}

/// Farthest ancestor in an unbroken line of processes with one name: the first process of a server that forks. The
/// process itself may have ended.
fn first_of_same_name(files: &impl KernelFiles, pid: Pid, of: &Inserter) -> Pid {
    const MOST: usize = 16;
    let mut first = pid;
    for _ in 0..MOST {
        let parent = match stat::stat(files, first) {
            Ok(stat) => Some(stat.parent),
            Err(_) if first == pid => of.parent,
            Err(_) => None,
        };
        let has_name = |pid: &Pid| status::status(files, *pid).is_ok_and(|status| status.name == of.name);
        let Some(parent) = parent.filter(|parent| parent.0 > 1).filter(has_name) else { break };
        first = parent;
    }
    first
}

fn count(insertion: &Insertion) -> u64 {
    insertion.pages.end.saturating_sub(insertion.pages.start)
}

#[cfg(test)]
mod tests;
