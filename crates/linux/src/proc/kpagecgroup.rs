//! `/proc/kpagecgroup`: which memory control group each page frame is charged to.
//!
//! A group is named by the inode of its directory. What the frame is used for is in `kpageflags.rs`; who has which group, in
//! `cgroup.rs`.
//!
//! Cost: as `kpageflags.rs`. Side effect: none. Racy by nature: a frame may have another owner by the time it is told.
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

    /// Adds, for each of `count` frames from `first` on, the inode of its group's directory to `groups`; 0 for a frame that is
    /// charged to nobody.
    ///
    /// # Errors
    /// `Other` for frames beyond the last.
    pub fn read_into(&self, first: u64, count: usize, groups: &mut Vec<u64>) -> Result<(), Error> {
        self.0.each(first, count, |group| groups.push(group))
    }
}
