//! `/proc/PID/map_files`: the file behind a mapping, also if its name is gone or now means another file.
//!
//! The list of mappings is in `maps.rs`. A file whose server may not answer is not touched: see
//! `path_descriptor.rs` and `mounts.rs`.
//!
//! Cost: seven system calls. Side effects: the file is open, so its file system cannot be
//! unmounted, and a deleted one keeps its space. Only regular files are opened: opening a device may have an effect.
//!
//! Since: Linux 3.3, for all programs 4.3. Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
//!
//! Truth: proc_pid_map_files(5); fs/proc/base.c.

use std::fs::File;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use crate::mounts::Mounts;
use crate::path_descriptor::{Locality, PathDescriptor};
use crate::{Error, KernelFiles};

/// File that a process has mapped.
#[derive(Debug)]
pub enum MappedFile {
    /// Open for reading.
    Open {
        /// Open file.
        file: File,
        /// True if the backing store is swap: tmpfs, SysV segments, memfd.
        is_swap_backed: bool,
    },
    /// Neither opened nor asked for anything: its file system, of this kind, is not local.
    NotLocal(String),
}

/// `TMPFS_MAGIC`, used by all shared memory.
const TMPFS: u64 = 0x0102_1994;
/// `HUGETLBFS_MAGIC`.
const HUGETLBFS: u64 = 0x9584_58f6;
/// `RAMFS_MAGIC`.
const RAMFS: u64 = 0x8584_58f6;

/// Opens the file behind a mapping ([`PathDescriptor::of_mapping`]); the mount tables must have been read since then.
///
/// # Errors
/// `Unsupported` for anything but a regular file, and for memory that the kernel never reclaims (huge pages, ramfs).
pub fn open(files: &impl KernelFiles, descriptor: PathDescriptor, mounts: &mut Mounts) -> Result<MappedFile, Error> {
    let found = match descriptor.locality(files, mounts)? {
        Locality::Local(found) => found,
        Locality::NotLocal(kind) => return Ok(MappedFile::NotLocal(kind)),
    };
    let magic = found.magic()?;
    if FileType::from_raw_mode(found.stat()?.st_mode) != FileType::RegularFile || matches!(magic, HUGETLBFS | RAMFS) {
        return Err(found.failed(Errno::OPNOTSUPP));
    }
    let file = found.open(OFlags::RDONLY | OFlags::NOATIME)?;
    Ok(MappedFile::Open { file, is_swap_backed: magic == TMPFS })
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;
    use units::AddressRange;

    use super::*;
    use crate::maps::maps;
    use crate::{Pid, Rooted};

    #[test]
    fn our_own_program_is_opened_whatever_its_name_or_it_is_said_why_not() {
        let files = Rooted::host();
        let ours = maps(&files, Pid::own()).unwrap();
        let mapping = ours.iter().find(|mapping| mapping.inode != 0 && mapping.permissions.execute).unwrap();
        match PathDescriptor::of_mapping(Pid::own(), mapping.range) {
            Ok(place) => match open(&files, place, &mut Mounts::read(&files).unwrap()).unwrap() {
                MappedFile::Open { file, is_swap_backed } => {
                    assert_eq!((fstat(&file).unwrap().st_ino, is_swap_backed), (mapping.inode, false));
                }
                MappedFile::NotLocal(kind) => assert!(!kind.is_empty()),
            },
            Err(error) => assert!(matches!(error, Error::Denied(_)), "{error}"),
        }
        let nothing = AddressRange::new(4096, 8192).unwrap();
        let error = PathDescriptor::of_mapping(Pid::own(), nothing).unwrap_err();
        assert!(error.is_gone() || matches!(error, Error::Denied(_)), "{error}");
    }
}
