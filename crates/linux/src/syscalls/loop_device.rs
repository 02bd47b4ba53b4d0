//! `LOOP_GET_STATUS64`: the file in which a loop device lies.
//!
//! The kernel asks the file system of that file, which may be one of a server that does not answer. So a proxy makes
//! the call (`proxy.rs`), with a deadline. The path in sysfs (`block_device.rs`) names no file of another mount
//! namespace and no deleted one; the numbers here do.
//!
//! Cost: some 50 µs. Side effects: the device is open for a moment; one that detaches itself when its last user closes
//! it does so a moment later.
//!
//! Since: Linux 2.6. Needs the right to open the device. Truth: loop(4); `loop_get_status` in drivers/block/loop.c.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;

use crate::proxy::{self, Call};
use crate::{Error, KernelFiles, Pid, block_device};

const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
/// `struct loop_info64`, in words.
const WORDS: usize = 29;

/// A file, or a block device, below a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackingFile {
    /// Device of its file system, as stat(2) has it.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
    /// The device itself, if the file is a block device.
    pub block_device: Option<(u32, u32)>,
}

/// Backing file of a loop device; `reader` is a process that reads from it, for the deadline.
///
/// # Errors
/// `Gone` for a device without a file; `Denied`; `Other` with `ETIMEDOUT` when a server does not answer.
pub fn backing_file(files: &impl KernelFiles, reader: Pid, device: (u32, u32)) -> Result<BackingFile, Error> {
    let path = format!("/dev/{}", block_device::name(files, device)?);
    let failed = |errno| Error::of_host("ask for the file of", &path, errno);
    let answer = proxy::about(reader, |proxy| {
        let [name, flags, ..] = proxy.name(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW)?;
        let number = u64::from(device.0) << 32 | u64::from(device.1);
        proxy.call(ask, [name, flags, number, 0], None)?;
        let words = proxy.bytes().get(..WORDS * 8).ok_or(Errno::IO)?.to_vec();
        Ok(words)
    });
    decode(&answer.map_err(failed)?).ok_or_else(|| failed(Errno::IO))
}

/// Puts `struct loop_info64` into the bytes.
fn ask(call: &mut Call<'_>) -> Result<u64, Errno> {
    let device: OwnedFd = proxy::opened(call)?;
    let about = fstat(&device)?;
    let number = u64::from(rustix::fs::major(about.st_rdev)) << 32 | u64::from(rustix::fs::minor(about.st_rdev));
    if FileType::from_raw_mode(about.st_mode) != FileType::BlockDevice || number != call.numbers[2] {
        return Err(Errno::NXIO);
    }
    let mut info = [0u64; WORDS];
    // SAFETY: the kernel writes one `struct loop_info64`, which is as long as `info` and has its alignment; the device
    // is open.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) } != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).collect();
    call.bytes.get_mut(..bytes.len()).ok_or(Errno::TOOBIG)?.copy_from_slice(&bytes);
    Ok(0)
}

fn decode(info: &[u8]) -> Option<BackingFile> {
    let mut words = info.chunks_exact(8).filter_map(|word| word.first_chunk()).map(|word| u64::from_ne_bytes(*word));
    let mut word = || words.next();
    let (device, inode, itself) = (word()?, word()?, word()?);
    let number = |device| (rustix::fs::major(device), rustix::fs::minor(device));
    let block_device = (itself != 0).then(|| number(itself));
    Some(BackingFile { device: number(device), inode, block_device })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn the_first_words_are_device_inode_and_the_device_itself() {
        let bytes = |words: [u64; 3]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let disk = rustix::fs::makedev(254, 0);
        let file = BackingFile { device: (254, 0), inode: 77, block_device: None };
        assert_eq!(decode(&bytes([disk, 77, 0])), Some(file));
        let device = decode(&bytes([5, 9, disk])).unwrap();
        assert_eq!(device.block_device, Some((254, 0)));
        assert_eq!(decode(&[0; 23]), None);
    }

    #[test]
    fn a_device_without_a_name_is_refused() {
        assert!(backing_file(&FakeKernel::new(), Pid::own(), (7, 0)).is_err());
    }
}
