//! `/proc/kpageflags`: what the kernel keeps about a page frame.
//!
//! Needed only where `PAGEMAP_SCAN` is missing (before Linux 6.7), to tell huge pages and the zero page apart from the
//! rest. Frame numbers come from `pagemap.rs`.
//!
//! Cost: one `pread` of 8 bytes a frame. Side effect: none.
//! Since: Linux 2.6.25, `ZeroPage` 4.0; needs CONFIG_PROC_PAGE_MONITOR and CAP_SYS_ADMIN.
//! Truth: Documentation/admin-guide/mm/pagemap.rst; include/uapi/linux/kernel-page-flags.h.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::{Error, files};

/// The flags of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFlags(u64);

impl FrameFlags {
    /// Part of a transparent huge page (KPF_THP), mapped huge or not.
    pub const fn is_transparent_huge(self) -> bool {
        self.0 & (1 << 22) != 0
    }

    /// The zero page, small or huge (KPF_ZERO_PAGE).
    pub const fn is_zero_page(self) -> bool {
        self.0 & (1 << 24) != 0
    }
}

/// The open file.
#[derive(Debug)]
pub struct FrameTable(File);

impl FrameTable {
    /// Opens it.
    ///
    /// # Errors
    /// `Denied` without CAP_SYS_ADMIN, `Unsupported` where the kernel lacks it.
    pub fn open() -> Result<FrameTable, Error> {
        File::open("/proc/kpageflags")
            .map(FrameTable)
            .map_err(|e| Error::of_host("open", "/proc/kpageflags", files::errno(e)))
    }

    /// The flags of frame `number`.
    ///
    /// # Errors
    /// `Other` for a frame that does not exist.
    pub fn flags(&self, number: u64) -> Result<FrameFlags, Error> {
        let mut bytes = [0; 8];
        self.0
            .read_exact_at(&mut bytes, number * 8)
            .map_err(|e| Error::of_host("read", format!("/proc/kpageflags at frame {number:#x}"), files::errno(e)))?;
        Ok(FrameFlags(u64::from_ne_bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_told_apart_by_their_documented_bits() {
        assert!(FrameFlags(1 << 22).is_transparent_huge());
        assert!(FrameFlags(1 << 24).is_zero_page());
        assert!(!FrameFlags(!(1 << 22)).is_transparent_huge());
    }
}
