//! A file on a disk, and a program that reads it in a memory control group.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use quantities::{Bytes, Pages};

use super::group::Group;
use super::programs::Running;
use super::run::Folder;

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
        Ok(DiskFile { folder })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.0.join("file")
    }

    /// Has a program in `group` read all of it, `times` times, and waits for its end.
    pub(crate) fn stream_through(&self, group: &Group, times: u32) -> Result<(), libtest_mimic::Failed> {
        let (procs, path) = (group.procs(), self.path());
        let script = format!(
            "echo 0 > {} && for i in $(seq {times}); do cat {} > /dev/null; done",
            procs.display(),
            path.display()
        );
        let said = Running::start(Command::new("/bin/sh").args(["-c", &script]))?.said()?;
        if said.code() == 0 { Ok(()) } else { Err(format!("the reader failed: {said:?}").into()) }
    }
}

/// What stands in a page.
pub(crate) fn content_of(page: u64) -> Vec<u8> {
    page.to_le_bytes().repeat(usize::try_from(Bytes::kib(4).0).unwrap_or(0) / 8)
}
