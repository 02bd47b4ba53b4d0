//! `/proc/PID/map_files`: the very file that a process has mapped, also when its name is gone or means another file by now.
//!
//! What is mapped where is in `maps.rs`.
//!
//! Cost: three system calls. Side effects: the file is open for as long as we hold it, so it cannot be unmounted, and a deleted
//! one keeps its space. Only regular files are opened: to open a device may do something.
//!
//! Since: Linux 3.3, for all programs 4.3. Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
//!
//! Truth: proc_pid_map_files(5); fs/proc/base.c.

use std::fs::File;
use std::os::fd::AsRawFd;

use quantities::AddressRange;
use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, open as open_path};
use rustix::io::Errno;

use crate::{Error, Pid};

/// A file that a process has mapped.
#[derive(Debug)]
pub struct MappedFile {
    /// Open for reading.
    pub file: File,
    /// Memory that is home in no file system: tmpfs, SysV segments, memfd. It needs swap to go.
    pub is_swap_backed: bool,
    /// Home with a server, or with a program (FUSE): whoever asks for its length, or for a page that is gone, may wait for ever.
    pub is_served: bool,
}

/// `TMPFS_MAGIC`, which is that of all shared memory.
const TMPFS: u64 = 0x0102_1994;
/// `HUGETLBFS_MAGIC`.
const HUGETLBFS: u64 = 0x9584_58f6;
/// `RAMFS_MAGIC`.
const RAMFS: u64 = 0x8584_58f6;

/// `NFS_SUPER_MAGIC`, `SMB_SUPER_MAGIC`, those of CIFS and SMB 2, `V9FS_MAGIC`, `FUSE_SUPER_MAGIC`, `CEPH_SUPER_MAGIC`,
/// `AFS_FS_MAGIC`, `CODA_SUPER_MAGIC`: statfs(2).
const SERVED: [u64; 9] =
    [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x6573_5546, 0x00c3_6400, 0x6b41_4653, 0x7375_7245];

/// Opens the file behind the mapping of `pid` at `range`, which must be as `maps` has it.
///
/// # Errors
/// `Gone` when there is no such mapping any more; `Denied` without the privilege; `Unsupported` for what is no regular file,
/// or lies in memory that the kernel never takes (huge pages, ramfs).
pub fn open(pid: Pid, range: AddressRange) -> Result<MappedFile, Error> {
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", range.start().0, range.end().0);
    let of_process = |errno| Error::of_process("open", &path, errno);
    let of_host = |errno| Error::of_host("open", &path, errno);
    let found = open_path(path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(of_process)?;
    if FileType::from_raw_mode(fstat(&found).map_err(of_process)?.st_mode) != FileType::RegularFile {
        return Err(of_host(Errno::OPNOTSUPP));
    }
    let kind = u64::try_from(fstatfs(&found).map_err(of_process)?.f_type).unwrap_or(0);
    if matches!(kind, HUGETLBFS | RAMFS) {
        return Err(of_host(Errno::OPNOTSUPP));
    }
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOATIME;
    let file = open_path(again.as_str(), flags, Mode::empty()).map_err(of_process)?;
    Ok(MappedFile { file: File::from(file), is_swap_backed: kind == TMPFS, is_served: SERVED.contains(&kind) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rooted;
    use crate::maps::maps;

    #[test]
    fn our_own_program_is_opened_whatever_its_name_or_it_is_said_why_not() {
        let ours = maps(&Rooted::host(), Pid::own()).unwrap();
        let mapping = ours.iter().find(|mapping| mapping.inode != 0 && mapping.permissions.execute).unwrap();
        match open(Pid::own(), mapping.range) {
            Ok(found) => {
                assert_eq!((fstat(&found.file).unwrap().st_ino, found.is_swap_backed), (mapping.inode, false));
            }
            Err(error) => assert!(matches!(error, Error::Denied(_)), "{error}"),
        }
        let nothing = AddressRange::new(4096, 8192).unwrap();
        let error = open(Pid::own(), nothing).unwrap_err();
        assert!(error.is_gone() || matches!(error, Error::Denied(_)), "{error}");
    }
}
