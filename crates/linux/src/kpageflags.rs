//! `/proc/kpageflags`: what the kernel keeps about a page frame.
//!
//! Needed where `PAGEMAP_SCAN` is missing (before Linux 6.7), to tell huge pages and the zero page apart from the rest,
//! and to find out of how many pages a block of memory is that the kernel handles as one (a compound page, a folio).
//! Frame numbers come from `pagemap.rs`.
//!
//! Cost: one `pread` of 8 bytes a frame; some 2 µs and 10 ns a frame for frames in a row. Side effect: none.
//! Since: Linux 2.6.25, `ZeroPage` 4.0; needs CONFIG_PROC_PAGE_MONITOR and CAP_SYS_ADMIN.
//! Truth: Documentation/admin-guide/mm/pagemap.rst; include/uapi/linux/kernel-page-flags.h.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::{Error, files};

/// The bits that are looked at, as `linux/kernel-page-flags.h` numbers them.
pub mod bits {
    /// The first frame of a block.
    pub const COMPOUND_HEAD: u32 = 15;
    /// A later one.
    pub const COMPOUND_TAIL: u32 = 16;
    /// Part of a transparent huge page.
    pub const THP: u32 = 22;
    /// The zero page.
    pub const ZERO_PAGE: u32 = 24;
}

/// The flags of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFlags(u64);

impl FrameFlags {
    /// The first frame of a block that the kernel handles as one (KPF_COMPOUND_HEAD).
    pub const fn is_head(self) -> bool {
        self.0 & (1 << bits::COMPOUND_HEAD) != 0
    }

    /// A later frame of such a block (KPF_COMPOUND_TAIL).
    pub const fn is_tail(self) -> bool {
        self.0 & (1 << bits::COMPOUND_TAIL) != 0
    }

    /// Flags as the file serves them, for tests of the crates above.
    #[cfg(any(test, feature = "fake"))]
    pub const fn of(flags: u64) -> FrameFlags {
        FrameFlags(flags)
    }

    /// Part of a transparent huge page (KPF_THP), mapped huge or not.
    pub const fn is_transparent_huge(self) -> bool {
        self.0 & (1 << bits::THP) != 0
    }

    /// The zero page, small or huge (KPF_ZERO_PAGE).
    pub const fn is_zero_page(self) -> bool {
        self.0 & (1 << bits::ZERO_PAGE) != 0
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

    /// The flags of `count` frames in a row, from `first` on.
    ///
    /// # Errors
    /// `Other` for frames that do not exist.
    pub fn flags_of(&self, first: u64, count: usize) -> Result<Vec<FrameFlags>, Error> {
        let mut bytes = vec![0; count * 8];
        let object = || format!("/proc/kpageflags at frame {first:#x}");
        self.0
            .read_exact_at(&mut bytes, first.saturating_mul(8))
            .map_err(|e| Error::of_host("read", object(), files::errno(e)))?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| FrameFlags(u64::from_ne_bytes(*word))).collect())
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
        assert!(FrameFlags(1 << 15).is_head() && !FrameFlags(1 << 15).is_tail());
        assert!(FrameFlags(1 << 16).is_tail() && !FrameFlags(1 << 16).is_head());
    }
}
