//! The end of a file system: it is in no mount table, and nothing holds it. Its page cache is gone with it.
//!
//! A file system that was unmounted with `umount -l` lives on while a process has one of its files open or mapped, or its
//! current or root folder there. Some kinds show each of theirs in `/sys/fs`. For the others all processes are looked
//! at.
//!
//! Cost: some 10 µs a descriptor of the host, for a device in no table. Side effects: none.
//!
//! Truth: umount(2); proc_pid_fdinfo(5); `generic_shutdown_super` in fs/super.c.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::{FileSystems, NAMESPACES_MAX, is_on};
use crate::block_device::{self, Below};
use crate::mounts::{Table, mount_of};
use crate::{KernelFiles, Pid, maps, processes, proxy};

/// Longest time for the look at all processes. What was not seen by then may hold the file system.
const LOOK_MAX: Duration = Duration::from_secs(1);

impl FileSystems {
    /// True if the file system of this device is gone, by the mount tables of all namespaces and by what processes hold.
    pub fn is_gone(&mut self, files: &impl KernelFiles, device: (u32, u32)) -> bool {
        if self.refresh(files).is_err() {
            return false;
        }
        self.look_at_all_namespaces(files);
        if self.others.len() >= NAMESPACES_MAX || self.mount_of_device(device).is_some() {
            return false;
        }
        // A loop device without a file has no data.
        let has_no_file =
            block_device::below(files, device) == Below::File && block_device::backing_path(files, device).is_none();
        has_no_file || !(is_shown(files, device) || self.is_held(files, device))
    }

    /// True if the file system of this device is known to be gone from `/sys/fs` alone.
    pub(super) fn is_unmounted(&self, files: &impl KernelFiles, device: (u32, u32)) -> bool {
        let kind = self.kinds.get(&device).map(String::as_str);
        let Some((_, folder)) = SHOWN.iter().find(|(kinds, _)| kind.is_some_and(|kind| kinds.contains(&kind))) else {
            return false;
        };
        let shown = files.list(folder);
        !name_of(files, device).is_empty() && shown.is_ok_and(|names| !names.contains(&name_of(files, device)))
    }

    /// True if a process holds the file system, or may do so.
    fn is_held(&self, files: &impl KernelFiles, device: (u32, u32)) -> bool {
        let end = Instant::now() + LOOK_MAX;
        let tables = std::iter::once(&self.own).chain(self.others.values().map(|(_, table)| table));
        let known: BTreeSet<u64> = tables.flat_map(Table::all).map(|mount| mount.id).collect();
        let mut seen = BTreeMap::new();
        let pids = processes::processes(files).unwrap_or_default().into_iter().filter(|pid| *pid != Pid::own());
        for pid in pids {
            if Instant::now() > end || holds(files, pid, device, &known, &mut seen) {
                return true;
            }
        }
        false
    }
}

/// Kinds that show each of their file systems in a folder, by the name of its device.
const SHOWN: [(&[&str], &str); 3] =
    [(&["ext2", "ext3", "ext4"], "sys/fs/ext4"), (&["xfs"], "sys/fs/xfs"), (&["f2fs"], "sys/fs/f2fs")];

/// True if `/sys/fs` shows a file system on this device.
fn is_shown(files: &impl KernelFiles, device: (u32, u32)) -> bool {
    let has = |folder: &str, name: &str| files.list(folder).is_ok_and(|names| names.iter().any(|of| of == name));
    if device.0 == 0 {
        return has("sys/fs/fuse/connections", &device.1.to_string());
    }
    let name = name_of(files, device);
    SHOWN.iter().any(|(_, folder)| has(folder, &name)) || !block_device::of_btrfs(files, &name).is_empty()
}

fn name_of(files: &impl KernelFiles, device: (u32, u32)) -> String {
    block_device::name(files, device).unwrap_or_default().replace('/', "!")
}

/// True if the process has a file of the device open or mapped, or a folder of it as its current one or its root.
/// `known` are mounts in tables; `seen` has the others that were looked at.
fn holds(
    files: &impl KernelFiles,
    pid: Pid,
    device: (u32, u32),
    known: &BTreeSet<u64>,
    seen: &mut BTreeMap<u64, bool>,
) -> bool {
    let folder = pid.file("fdinfo");
    let mut unknown: Vec<String> = ["cwd", "root"].iter().map(|name| pid.file(name)).collect();
    for number in files.list(&folder).unwrap_or_default() {
        let text = files.read(&format!("{folder}/{number}")).unwrap_or_default();
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        if id.is_some_and(|id| !known.contains(&id) && !seen.contains_key(&id)) {
            unknown.push(pid.file(&format!("fd/{number}")));
        }
    }
    let by_descriptor = unknown.into_iter().any(|path| {
        let answer = proxy::open(pid, &format!("/{path}"), OFlags::PATH);
        // A process that has ended holds nothing.
        let Ok(held) = answer else { return false };
        let Ok(id) = mount_of(&held) else { return true };
        *seen.entry(id).or_insert_with(|| is_on(&held, device))
    });
    by_descriptor || maps::maps(files, pid).is_ok_and(|all| all.iter().any(|mapping| mapping.device == device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;
    use crate::file_systems::{NoWay, Numbers};

    const OF: Numbers = Numbers { device: (8, 1), inode: 7, generation: 9 };

    fn table(lines: &str) -> FakeKernel {
        FakeKernel::new().file("proc/self/mountinfo", lines)
    }

    #[test]
    fn the_files_of_a_file_system_that_is_gone_are_gone_and_those_of_a_hidden_one_are_not() {
        let kernel = table("").file("sys/dev/block/8:1/uevent", "DEVNAME=sda1\n").file("sys/fs/ext4/features/x", "");
        let mut all = FileSystems::read(&kernel).unwrap();
        all.kinds.insert(OF.device, "ext3".to_owned());
        assert!(matches!(all.open(&kernel, &[], OF), Ok(None)));
        kernel.add("sys/fs/ext4/sda1/errors_count", "0\n");
        assert!(matches!(all.open(&kernel, &[], OF), Err(NoWay::NotMounted)), "mounted, and not seen");
    }

    #[test]
    fn a_file_system_in_no_table_is_gone_unless_sys_shows_it_or_a_process_maps_its_files() {
        let is_gone = |kernel: &FakeKernel, device| FileSystems::read(kernel).unwrap().is_gone(kernel, device);
        let mounted = table("41 22 7:3 / /snap/x ro - squashfs /dev/loop3 ro\n");
        assert!(!is_gone(&mounted, (7, 3)));
        let kernel = table("").file("sys/dev/block/7:3/loop/backing_file", "/srv/image\n");
        assert!(is_gone(&kernel, (7, 3)));
        assert!(is_gone(&kernel, (7, 4)), "it has no file any more");
        assert!(is_gone(&kernel, (0, 45)));
        kernel.add("sys/fs/fuse/connections/45/waiting", "0\n");
        assert!(!is_gone(&kernel, (0, 45)), "the server lives, and so does the file system");
        kernel.add("proc/2147483647/maps", "7f0000000000-7f0000400000 r--s 00100000 07:03 12 /data\n");
        assert!(!is_gone(&kernel, (7, 3)), "umount -l");
    }
}
