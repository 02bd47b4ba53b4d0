//! `/proc/kpagecgroup`: memory control group that each page frame is charged to.
//!
//! A group is identified by the inode of its directory. The use of a frame is in `kpageflags.rs`; the groups of
//! processes are in `cgroup.rs`.
//!
//! Cost: as `kpageflags.rs`. Side effect: none. Racy by nature: the owner of a frame may have changed before the
//! answer arrives.
//!
//! Since: Linux 4.3; needs CONFIG_MEMCG and CAP_SYS_ADMIN.
//!
//! Truth: Documentation/admin-guide/mm/pagemap.rst; `page_cgroup_ino` in mm/memcontrol.c.

use crate::Error;
use crate::frame_file::FrameFile;

/// The open file.
#[derive(Debug)]
pub struct GroupTable(FrameFile);

impl GroupTable {
    /// Opens it.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN, `Unsupported` where the kernel lacks it.
    pub fn open() -> Result<GroupTable, Error> {
        FrameFile::open("/proc/kpagecgroup").map(GroupTable)
    }

    /// Appends to `groups`, for each of `count` frames from `first` on, the inode of its group's directory; 0 for an
    /// uncharged frame.
    ///
    /// # Errors
    /// `Other` for frames beyond the last.
    pub fn read_into(&self, first: u64, count: usize, groups: &mut Vec<u64>) -> Result<(), Error> {
        self.0.each(first, count, |group| groups.push(group))
    }
}
