//! `/sys/dev/block/MAJOR:MINOR`: name of a block device, and the devices and files below it.
//!
//! A partition lies on its disk. A device of the device mapper or of md lies on its slaves. A loop device lies in a file
//! (`loop_device.rs` says which one), and a network block device is served by a process.
//!
//! Pages read from a block device itself are in the page cache of the device: an inode of the kernel's own file system,
//! with the device's number.
//!
//! Cost: some small files. Side effects: none here. Opening a device and closing it again writes its dirty pages and
//! forgets its page cache, if no file system or other process has it open.
//!
//! Since: Linux 2.6.27. Truth: Documentation/ABI/stable/sysfs-block; `bd_type` in block/bdev.c.

use std::fs::File;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;

use crate::untrusted::bytes_of;
use crate::{Error, KernelFiles};

/// Major numbers of loop devices and of network block devices.
const LOOP: u32 = 7;
const NBD: u32 = 43;

/// Supply of a block device's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Below {
    /// Hardware, memory or a hypervisor: nothing below it has pages in our page cache.
    Nothing,
    /// Other block devices.
    Devices(Vec<(u32, u32)>),
    /// A file.
    File,
    /// A server.
    Server,
}

/// Supply of a device's data.
pub fn below(files: &impl KernelFiles, device: (u32, u32)) -> Below {
    let folder = folder(device);
    let has = |name: &str| files.read(&format!("{folder}/{name}")).is_ok();
    if has("partition") {
        // A link leads to the partition's folder, which lies in the disk's.
        return Below::Devices(number(files, &format!("{folder}/../dev")).into_iter().collect());
    }
    if has("loop/backing_file") {
        return Below::File;
    }
    match device.0 {
        LOOP => return Below::File,
        NBD => return Below::Server,
        _ => {}
    }
    let slaves = files.list(&format!("{folder}/slaves")).unwrap_or_default();
    let slaves: Vec<(u32, u32)> =
        slaves.iter().filter_map(|name| number(files, &format!("{folder}/slaves/{name}/dev"))).collect();
    if slaves.is_empty() { Below::Nothing } else { Below::Devices(slaves) }
}

/// All block devices of the btrfs file system that has the device with this name: `/sys/fs/btrfs/UUID/devices`.
pub fn of_btrfs(files: &impl KernelFiles, name: &str) -> Vec<(u32, u32)> {
    for uuid in files.list("sys/fs/btrfs").unwrap_or_default() {
        let folder = format!("sys/fs/btrfs/{uuid}/devices");
        let names = files.list(&folder).unwrap_or_default();
        let is_mapped = |known: &String| {
            let mapped = name.strip_prefix("mapper!").zip(files.read(&format!("{folder}/{known}/dm/name")).ok());
            mapped.is_some_and(|(name, of)| of.trim_end() == name)
        };
        if names.iter().any(|known| known == name || is_mapped(known)) {
            return names.iter().filter_map(|name| number(files, &format!("{folder}/{name}/dev"))).collect();
        }
    }
    Vec::new()
}

/// Path of the backing file of a loop device, as seen from our root when it is in our mount namespace.
pub fn backing_path(files: &impl KernelFiles, device: (u32, u32)) -> Option<String> {
    let text = files.read(&format!("{}/loop/backing_file", folder(device))).ok()?;
    Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// Device of an inode in the kernel's file system of block devices (`bdev`): the file system has major 0, and the
/// inode is the device's number.
pub fn of_inode(files: &impl KernelFiles, file_system: (u32, u32), inode: u64) -> Option<(u32, u32)> {
    if file_system.0 != 0 {
        return None;
    }
    let device = (u32::try_from(inode >> 20).ok()?, u32::try_from(inode & 0xf_ffff).ok()?);
    (device.0 != 0 && files.read(&format!("{}/dev", folder(device))).is_ok()).then_some(device)
}

/// Kernel's name of a device: `loop0`, `vda`, `dm-1`.
///
/// # Errors
/// `Unsupported` without such a device, `Malformed`.
pub fn name(files: &impl KernelFiles, device: (u32, u32)) -> Result<String, Error> {
    let path = format!("{}/uevent", folder(device));
    let object = format!("/{path}");
    let text = files.read(&path).map_err(|errno| Error::of_host("read", &object, errno))?;
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let is_plain =
        |name: &&str| !name.is_empty() && !name.starts_with('/') && !name.split('/').any(|part| part == "..");
    let name = name.filter(is_plain).ok_or_else(|| Error::malformed(&object, "no DEVNAME=, expected one"))?;
    Ok(name.to_owned())
}

/// Opens a device for reading, to ask for its page cache. Only for a device in use: see the head of this file.
///
/// # Errors
/// The kernel's answer; `Unsupported` when `/dev` has another device under its name.
pub fn open_device(files: &impl KernelFiles, device: (u32, u32)) -> Result<File, Error> {
    let path = format!("/dev/{}", name(files, device)?);
    let failed = |errno| Error::of_host("open", &path, errno);
    let name = bytes_of(&path);
    let open_with = |flags| open(&*name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    let is_it = |of: &std::os::fd::OwnedFd| {
        let about = fstat(of).map_err(failed)?;
        let number = (rustix::fs::major(about.st_rdev), rustix::fs::minor(about.st_rdev));
        Ok(FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice && number == device)
    };
    if !is_it(&open_with(OFlags::PATH).map_err(failed)?)? {
        return Err(failed(Errno::NXIO));
    }
    let opened = open_with(OFlags::RDONLY | OFlags::NONBLOCK).map_err(failed)?;
    if is_it(&opened)? { Ok(File::from(opened)) } else { Err(failed(Errno::NXIO)) }
}

fn folder((major, minor): (u32, u32)) -> String {
    format!("sys/dev/block/{major}:{minor}")
}

fn number(files: &impl KernelFiles, path: &str) -> Option<(u32, u32)> {
    let text = files.read(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn each_kind_of_device_has_its_supply() {
        let kernel = FakeKernel::new()
            .file("sys/dev/block/8:0/dev", "8:0\n")
            .file("sys/dev/block/7:3/loop/backing_file", "/srv/image (deleted)\n")
            .file("sys/dev/block/253:0/slaves/loop3/dev", "7:3\n")
            .file("sys/dev/block/253:0/slaves/sda/dev", "8:0\n")
            .file("sys/dev/block/259:1/partition", "1\n")
            .file("sys/dev/block/dev", "7:3\n");
        assert_eq!(below(&kernel, (8, 0)), Below::Nothing);
        assert_eq!(below(&kernel, (7, 3)), Below::File);
        assert_eq!(below(&kernel, (253, 0)), Below::Devices(vec![(7, 3), (8, 0)]));
        assert_eq!(below(&kernel, (259, 1)), Below::Devices(vec![(7, 3)]), "a partition lies on its disk");
        assert_eq!(below(&kernel, (43, 0)), Below::Server);
        assert_eq!(below(&FakeKernel::new(), (7, 0)), Below::File, "without sysfs it is still a loop device");
        assert_eq!(backing_path(&kernel, (7, 3)).as_deref(), Some("/srv/image (deleted)"));
    }

    #[test]
    fn pages_of_a_block_device_are_recognized_by_its_number() {
        let kernel = FakeKernel::new().file("sys/dev/block/254:0/dev", "254:0\n");
        assert_eq!(of_inode(&kernel, (0, 3), 254 << 20), Some((254, 0)));
        assert_eq!(of_inode(&kernel, (0, 3), 254 << 20 | 1), None, "no such device");
        assert_eq!(of_inode(&kernel, (254, 0), 254 << 20), None, "a file on it");
        assert_eq!(of_inode(&kernel, (0, 3), u64::MAX), None);
    }

    #[test]
    fn all_devices_of_a_btrfs_are_found_by_the_name_of_one() {
        let kernel = FakeKernel::new()
            .file("sys/fs/btrfs/features/raid56", "0\n")
            .file("sys/fs/btrfs/0a-1/devices/sda/dev", "8:0\n")
            .file("sys/fs/btrfs/0b-2/devices/loop1/dev", "7:1\n")
            .file("sys/fs/btrfs/0b-2/devices/loop2/dev", "7:2\n")
            .file("sys/fs/btrfs/0c-3/devices/dm-0/dev", "253:0\n")
            .file("sys/fs/btrfs/0c-3/devices/dm-0/dm/name", "disks-home\n");
        assert_eq!(of_btrfs(&kernel, "loop2"), [(7, 1), (7, 2)]);
        assert_eq!(of_btrfs(&kernel, "mapper!disks-home"), [(253, 0)]);
        assert_eq!(of_btrfs(&kernel, "loop3"), []);
        assert_eq!(of_btrfs(&FakeKernel::new(), "loop3"), []);
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        let named = |text| name(&FakeKernel::new().file("sys/dev/block/8:1/uevent", text), (8, 1));
        assert_eq!(named("MAJOR=8\nDEVNAME=mapper/a\nDEVTYPE=disk\n").as_deref(), Ok("mapper/a"));
        for text in ["", "DEVNAME=\n", "DEVNAME=/etc/passwd\n", "DEVNAME=../etc\n"] {
            assert!(matches!(named(text), Err(Error::Malformed { .. })), "{text:?}");
        }
        assert!(matches!(name(&FakeKernel::new(), (8, 1)), Err(Error::Unsupported(_))));
    }
}
