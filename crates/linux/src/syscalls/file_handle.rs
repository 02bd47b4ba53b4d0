//! open_by_handle_at(2): opens a file by the kernel's numbers for it, without a path.
//!
//! Events of the page cache name a file by device, inode and generation. File systems with handles made of the last two
//! (ext2, ext3, ext4, f2fs and xfs) open the file by them; the form of their handles is read from the handle of the
//! root, and it counts only if that has the root's inode number. EROFS has the high half of the number first in its
//! handles. Handles of btrfs have the subvolume, too: a file is opened if only one subvolume has these numbers
//! (`btrfs_subvolumes.rs`). Others (overlayfs, network file systems) have handles of their own kind; a file on them must
//! be found in another way. `file_systems.rs` finds the file system, and refuses one that is not local.
//!
//! Cost: some 5 µs per file. Side effects: an open file prevents unmounting, and its space is not freed: close it soon.
//! Opening a file breaks a lease on it (fcntl(2), `F_SETLEASE`) as any open does; we do not wait for that.
//!
//! Since: Linux 2.6.39. Needs CAP_DAC_READ_SEARCH.
//!
//! Truth: open_by_handle_at(2); `enum fid_type` in include/linux/exportfs.h.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::fstat;
use rustix::io::Errno;

use super::btrfs_subvolumes::subvolumes;

/// The kernel's handle types that we can make: inode (32 bits) and generation; inode (64 bits) and generation.
const FILEID_INO32_GEN: i32 = 1;
const FILEID_INO64_GEN: i32 = 0x81;
/// Handle type of btrfs: inode (64 bits), subvolume (64 bits) and generation.
const FILEID_BTRFS_WITHOUT_PARENT: i32 = 0x4d;
/// First inode of a file on btrfs; lower ones hold metadata.
const BTRFS_FIRST_FILE: u64 = 256;
/// Number of subvolumes that are looked at: each may cost reads of the disk.
const SUBVOLUMES_MAX: usize = 16;

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

/// An open file or directory of a file system: the file system of handles.
#[derive(Debug)]
pub(crate) struct Entry(pub(crate) OwnedFd);

impl Entry {
    /// Opens the file with these numbers for reading. `None` when it no longer exists.
    ///
    /// # Errors
    /// `OPNOTSUPP` for handles of another kind or with other numbers, `NOTUNIQ` for numbers of files of several
    /// subvolumes, or more subvolumes than are looked at; `PERM` without CAP_DAC_READ_SEARCH, `AGAIN` for a file with a
    /// lease.
    pub(crate) fn open(&self, inode: u64, generation: u32) -> Result<Option<File>, Errno> {
        let own = handle_to(&self.0)?;
        let kind = own.kind;
        if kind == FILEID_BTRFS_WITHOUT_PARENT {
            return self.open_on_btrfs(inode, generation);
        }
        let of_entry = fstat(&self.0)?.st_ino;
        if own.has_inode(of_entry.rotate_left(32)) && kind == FILEID_INO64_GEN {
            let handle = encode(kind, inode.rotate_left(32), generation).ok_or(Errno::OPNOTSUPP)?;
            // It is never written: a number that leads nowhere is of another form, and no deleted file.
            return self.open_by(&handle)?.ok_or(Errno::OPNOTSUPP).map(Some);
        }
        if !own.has_inode(of_entry) {
            return Err(Errno::OPNOTSUPP);
        }
        self.open_by(&encode(kind, inode, generation).ok_or(Errno::OPNOTSUPP)?)
    }

    fn open_by(&self, handle: &Handle) -> Result<Option<File>, Errno> {
        match open_handle(&self.0, handle) {
            Ok(file) => Ok(Some(file)),
            // A file system's errors for an inode that does not exist, or is another file now.
            Err(Errno::STALE | Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn open_on_btrfs(&self, inode: u64, generation: u32) -> Result<Option<File>, Errno> {
        if inode < BTRFS_FIRST_FILE {
            return Err(Errno::OPNOTSUPP);
        }
        let subvolumes = subvolumes(&self.0, SUBVOLUMES_MAX)?.ok_or(Errno::NOTUNIQ)?;
        let mut found = None;
        for subvolume in subvolumes {
            let file = self.open_by(&encode_for_btrfs(inode, subvolume, generation).ok_or(Errno::OPNOTSUPP)?)?;
            if file.is_some() && found.is_some() {
                // A snapshot has a file with these numbers, and pages of its own.
                return Err(Errno::NOTUNIQ);
            }
            found = found.or(file);
        }
        Ok(found)
    }
}

impl Handle {
    /// True if a handle of inode and generation names this inode.
    fn has_inode(&self, inode: u64) -> bool {
        let generation = |at: usize| self.handle.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        let at = if self.kind == FILEID_INO32_GEN { 4 } else { 8 };
        let same = generation(at).and_then(|bytes| encode(self.kind, inode, u32::from_ne_bytes(bytes)));
        same.is_some_and(|same| (same.bytes, same.handle) == (self.bytes, self.handle))
    }
}

/// Handle of this file or directory.
fn handle_to(at: &OwnedFd) -> Result<Handle, Errno> {
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
    if answer == 0 { Ok(handle) } else { Err(last_errno()) }
}

/// Handle of a file; `None` for a kind that is not made of inode and generation.
fn encode(kind: i32, inode: u64, generation: u32) -> Option<Handle> {
    let mut bytes = match kind {
        FILEID_INO32_GEN => u32::try_from(inode).ok()?.to_ne_bytes().to_vec(),
        FILEID_INO64_GEN => inode.to_ne_bytes().to_vec(),
        _ => return None,
    };
    bytes.extend_from_slice(&generation.to_ne_bytes());
    handle_of(kind, &bytes)
}

fn encode_for_btrfs(inode: u64, subvolume: u64, generation: u32) -> Option<Handle> {
    let mut bytes = [inode, subvolume].map(u64::to_ne_bytes).concat();
    bytes.extend_from_slice(&generation.to_ne_bytes());
    handle_of(FILEID_BTRFS_WITHOUT_PARENT, &bytes)
}

fn handle_of(kind: i32, bytes: &[u8]) -> Option<Handle> {
    let mut handle = Handle { bytes: u32::try_from(bytes.len()).ok()?, kind, handle: [0; MOST_BYTES] };
    handle.handle.get_mut(..bytes.len())?.copy_from_slice(bytes);
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

    #[test]
    fn a_handle_with_another_number_than_the_inode_is_not_trusted() {
        for kind in [FILEID_INO32_GEN, FILEID_INO64_GEN] {
            let root = encode(kind, 2, 9).unwrap();
            assert!(root.has_inode(2) && !root.has_inode(36));
        }
        assert!(!encode_for_btrfs(256, 5, 9).unwrap().has_inode(256), "a handle of its own kind");
    }

    #[test]
    fn a_handle_is_inode_and_generation() {
        let short = encode(FILEID_INO32_GEN, 7, 9).unwrap();
        assert_eq!((short.bytes, &short.handle[..8]), (8, &[7, 0, 0, 0, 9, 0, 0, 0][..]));
        assert_eq!(encode(FILEID_INO64_GEN, 1 << 40, 9).unwrap().bytes, 12);
        assert!(encode(FILEID_INO32_GEN, 1 << 40, 9).is_none(), "it does not fit");
        assert!(encode(0x4d, 7, 9).is_none(), "another kind");
        let on_btrfs = encode_for_btrfs(257, 5, 9).unwrap();
        let words = [257u64, 5].map(u64::to_ne_bytes).concat();
        assert_eq!((on_btrfs.bytes, on_btrfs.kind, &on_btrfs.handle[..16]), (20, 0x4d, &words[..]));
        assert_eq!(on_btrfs.handle[16..20], 9u32.to_ne_bytes());
    }
}
