//! A file on a disk, and a program that reads it in a memory cgroup.

use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use units::cast::index;
use units::{AddressRange, Bytes, Pages};

use super::programs::Running;
use super::run::Folder;
use crate::group::Group;

const TMPFS_MAGIC: u32 = 0x0102_1994;
const RAMFS_MAGIC: u32 = 0x8584_58f6;

/// True when temporary files lie on a disk, so that the page cache has something to lose.
pub(crate) fn is_possible() -> std::io::Result<bool> {
    let kind = rustix::fs::statfs(std::env::temp_dir())?.f_type;
    Ok(![TMPFS_MAGIC, RAMFS_MAGIC].map(rustix::fs::FsWord::from).contains(&kind))
}

/// A file of our own, all of it on the disk and nothing of it in memory. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct DiskFile {
    pub(crate) file: File,
    folder: Folder,
}

impl DiskFile {
    /// Each page holds its number, over and over.
    pub(crate) fn make(name: &str, length: Pages) -> std::io::Result<DiskFile> {
        let folder = Folder::make(name)?;
        let mut file = File::options().read(true).write(true).create_new(true).open(folder.0.join("file"))?;
        for page in 0..length.0 {
            file.write_all(&content_of(page))?;
        }
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(DiskFile { file, folder })
    }

    /// Reads these pages one by one, and compares them with the written content. Read-ahead may bring in more.
    pub(crate) fn read(&self, pages: Range<u64>) -> Result<(), libtest_mimic::Failed> {
        for page in pages {
            let mut found = vec![0; content_of(page).len()];
            self.file.read_exact_at(&mut found, page * 4096)?;
            assert!(found == content_of(page), "page {page} holds something else");
        }
        Ok(())
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.0.join("file")
    }

    /// Has programs in `group` read all of it, `times` times, and waits for their end. Each part of 8 MiB is read twice
    /// in a row, so that its pages are active: a stream that is read once does not displace earlier pages.
    pub(crate) fn stream_through(&self, group: &Group, times: u32) -> Result<(), libtest_mimic::Failed> {
        let parts = self.file.metadata()?.len().div_ceil(Bytes::mib(8).0);
        let (procs, path) = (group.procs(), self.path());
        let script = format!(
            "echo 0 > {} || exit 1; for round in $(seq {times}); do for part in $(seq 0 8 {}); do for again in 1 2; do \
             dd if={} bs=1M skip=$part count=8 of=/dev/null 2>/dev/null || exit 1; done; done; done",
            procs.display(),
            (parts.saturating_sub(1)) * 8,
            path.display()
        );
        let said = Running::start(Command::new("/bin/sh").args(["-c", &script]))?.said()?;
        if said.code() == 0 { Ok(()) } else { Err(format!("the reader failed: {said:?}").into()) }
    }
}

/// The first pages of a file, mapped by these tests, brought in and then left alone.
///
/// # Safety
/// `start` and `length` describe a mapping made in [`MappedFile::map`], to which nothing ever points.
#[derive(Debug)]
pub(crate) struct MappedFile {
    start: NonNull<c_void>,
    length: usize,
}

impl MappedFile {
    pub(crate) fn map(file: &File, pages: Pages) -> std::io::Result<MappedFile> {
        MappedFile::map_for(file, pages, ProtFlags::READ)
    }

    /// Maps the file as a program's code is mapped.
    pub(crate) fn map_to_run(file: &File, pages: Pages) -> std::io::Result<MappedFile> {
        MappedFile::map_for(file, pages, ProtFlags::READ | ProtFlags::EXEC)
    }

    fn map_for(file: &File, pages: Pages, protection: ProtFlags) -> std::io::Result<MappedFile> {
        let length = usize::try_from(pages.bytes().0).map_err(std::io::Error::other)?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe { mmap(null_mut(), length, protection, flags, file, 0)? };
        Ok(MappedFile { start: NonNull::new(start).ok_or(std::io::ErrorKind::OutOfMemory)?, length })
    }

    pub(crate) fn range(&self) -> AddressRange {
        let start = self.start.addr().get() as u64;
        AddressRange::new(start, start + self.length as u64).expect("the kernel maps whole pages")
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map` (see the type).
        if let Err(errno) = unsafe { munmap(self.start.as_ptr(), self.length) } {
            eprintln!("cannot unmap a file: {errno}");
        }
    }
}

/// Content of a page.
pub(crate) fn content_of(page: u64) -> Vec<u8> {
    page.to_le_bytes().repeat(index(Bytes::kib(4).0) / 8)
}
