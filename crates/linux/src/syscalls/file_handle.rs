//! open_by_handle_at(2): opens a file by the kernel's numbers for it, without a path.
//!
//! Events of the page cache name a file by device, inode and generation. File systems with handles made of the last two
//! (ext2, ext3, ext4, f2fs and xfs) open the file by them; the form of their handles is read from the handle of the
//! root. Others (btrfs, overlayfs, network file systems) have handles of their own kind; a file on them must be found
//! in another way.
//!
//! Cost: some 5 µs per file. Side effects: an open file prevents unmounting, and its space is not freed: close it soon.
//! Opening a file breaks a lease on it (fcntl(2), `F_SETLEASE`) as any open does; we do not wait for that. A file
//! system that is not local (`mounts.rs`) is not asked: its server may not answer.
//!
//! Since: Linux 2.6.39. Needs CAP_DAC_READ_SEARCH.
//!
//! Truth: open_by_handle_at(2); `enum fid_type` in include/linux/exportfs.h.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::mounts::{Table, mount_of};
use crate::{Error, KernelFiles};

/// The kernel's handle types that we can make: inode (32 bits) and generation; inode (64 bits) and generation.
const FILEID_INO32_GEN: i32 = 1;
const FILEID_INO64_GEN: i32 = 0x81;

/// The largest handle (`MAX_HANDLE_SZ`).
const MOST_BYTES: usize = 128;
const MOST_BYTES_U32: u32 = 128;

/// `struct file_handle` with its bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; MOST_BYTES],
}

/// The mounted file systems.
#[derive(Debug)]
pub struct FileSystems(Table);

impl FileSystems {
    /// Reads the file systems that are mounted now in our mount namespace.
    ///
    /// # Errors
    /// The kernel's answer for `/proc/self/mountinfo`.
    pub fn read(files: &impl KernelFiles) -> Result<FileSystems, Error> {
        Table::read(files, "self").map(FileSystems)
    }

    /// Opens the file for reading.
    ///
    /// # Errors
    /// `Gone` when the file no longer exists; `Unsupported` for a file system that is not mounted here, or not local,
    /// or has handles of another kind; `Denied` without CAP_DAC_READ_SEARCH.
    pub fn open(&self, device: (u32, u32), inode: u64, generation: u32) -> Result<File, Error> {
        let object = || format!("inode {inode} of device {}:{}", device.0, device.1);
        let failed = |errno| Error::of_host("open", object(), errno);
        let unfit = || failed(Errno::OPNOTSUPP);
        let mount = self.0.of_device(device).filter(|mount| self.0.is_local(mount)).ok_or_else(unfit)?;
        // A server's file system may be mounted over it: O_PATH opens it without a request to the server, until that is
        // known.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held = open(mount.point.as_str(), flags, Mode::empty()).map_err(failed)?;
        if mount_of(&held).map_err(failed)? != mount.id {
            return Err(unfit());
        }
        let path = format!("/proc/self/fd/{}", held.as_raw_fd());
        let at = open(path.as_str(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let at = at.map_err(failed)?;
        let handle = encode(kind_of(&at).map_err(failed)?, inode, generation).ok_or_else(unfit)?;
        open_handle(&at, &handle).map_err(|errno| match errno {
            // A file system's errors for an inode that does not exist, or is another file now.
            Errno::STALE | Errno::NOENT => Error::of_process("open", object(), Errno::SRCH),
            errno => failed(errno),
        })
    }
}

/// Handle type of the file system with this directory.
fn kind_of(at: &OwnedFd) -> Result<i32, Errno> {
    let mut handle = Handle { bytes: MOST_BYTES_U32, kind: 0, handle: [0; MOST_BYTES] };
    let mut mount_id = 0;
    // SAFETY: `at` is open and the path an empty C string; `handle` holds as many bytes as it says, and `mount_id` is
    // an int; the kernel writes no more than these.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            at.as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if answer == 0 { Ok(handle.kind) } else { Err(last_errno()) }
}

/// Handle of a file; `None` for a kind that is not made of inode and generation.
fn encode(kind: i32, inode: u64, generation: u32) -> Option<Handle> {
    let mut bytes = match kind {
        FILEID_INO32_GEN => u32::try_from(inode).ok()?.to_ne_bytes().to_vec(),
        FILEID_INO64_GEN => inode.to_ne_bytes().to_vec(),
        _ => return None,
    };
    bytes.extend_from_slice(&generation.to_ne_bytes());
    let mut handle = Handle { bytes: u32::try_from(bytes.len()).ok()?, kind, handle: [0; MOST_BYTES] };
    handle.handle.get_mut(..bytes.len())?.copy_from_slice(&bytes);
    Some(handle)
}

fn open_handle(at: &OwnedFd, handle: &Handle) -> Result<File, Errno> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_LARGEFILE;
    // SAFETY: `at` is open, and `handle` is a whole struct that the kernel only reads.
    let answer = unsafe { libc::syscall(libc::SYS_open_by_handle_at, at.as_raw_fd(), handle, flags) };
    match i32::try_from(answer) {
        // SAFETY: a new descriptor with no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeKernel;

    #[test]
    fn a_handle_is_inode_and_generation() {
        let short = encode(FILEID_INO32_GEN, 7, 9).unwrap();
        assert_eq!((short.bytes, &short.handle[..8]), (8, &[7, 0, 0, 0, 9, 0, 0, 0][..]));
        assert_eq!(encode(FILEID_INO64_GEN, 1 << 40, 9).unwrap().bytes, 12);
        assert!(encode(FILEID_INO32_GEN, 1 << 40, 9).is_none(), "it does not fit");
        assert!(encode(0x4d, 7, 9).is_none(), "another kind");
    }

    #[test]
    fn what_is_not_mounted_cannot_be_opened_and_without_proc_nothing_is_known() {
        let none = FileSystems::read(&FakeKernel::new().file("proc/self/mountinfo", "")).unwrap();
        assert!(matches!(none.open((8, 1), 7, 9), Err(Error::Unsupported(_))));
        assert!(FileSystems::read(&FakeKernel::new()).is_err());
    }
}
