//! Files that hold the page cache.
//!
//! A frame does not tell its file, so the files are asked (`cachestat(2)`): all below some folders, or all on local file
//! systems. Memory of deleted files, and of a file system itself (directories, journal), stays without a name.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Instant;

use linux::cachestat::cachestat;
use linux::file_walk::{self, Found};
use linux::mounts::Table;
use linux::{Error, KernelFiles, Untrusted, vmstat};
use serde::{Deserialize, Serialize};
use units::{Bytes, Pages, cast};

/// Result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Files {
    /// Page cache of the host, shared memory left out.
    pub cached_bytes: Bytes,
    /// Part of it in the files found.
    pub found_bytes: Bytes,
    /// Files with the most memory, largest first.
    pub files: Vec<OfFile>,
    /// Files with memory that are not in the list.
    pub more_files: u64,
    /// Files asked.
    pub files_asked: u64,
    /// Files and folders that could not be opened.
    pub not_opened: u64,
    /// Folders searched.
    pub folders: Vec<Untrusted>,
    /// Ended early, by Ctrl-C.
    pub is_cut_short: bool,
    /// Duration.
    pub cost_us: u64,
}

/// Memory of one file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct OfFile {
    /// Page cache of it.
    pub cached_bytes: Bytes,
    /// Part of it that is to be written.
    pub dirty_bytes: Bytes,
    /// Size of the file.
    pub size_bytes: Bytes,
    /// Its path, by the first name found.
    pub path: Untrusted,
}

/// Mount points of local file systems on disks, each device once.
///
/// # Errors
/// The kernel's answer for the mount table.
pub fn local_folders(files: &impl KernelFiles) -> Result<Vec<Untrusted>, Error> {
    /// File systems of several devices have a number of no driver.
    const OF_SEVERAL: [&str; 3] = ["btrfs", "bcachefs", "zfs"];
    let table = Table::read(files, "self")?;
    let mut devices = BTreeSet::new();
    let on_disk = table.all().iter().filter(|mount| {
        let has_disk = mount.device.0 != 0 || OF_SEVERAL.contains(&mount.kind());
        has_disk && table.is_local(mount) && devices.insert(mount.device)
    });
    Ok(on_disk.map(|mount| mount.point.as_str().into()).collect())
}

/// Asks the files below these folders, and keeps the largest `most`. `goes_on` is called after each file with the number
/// of files asked.
///
/// # Errors
/// `Unsupported` before Linux 6.5; the kernel's answer for one of the folders.
pub fn of_folders(
    files: &impl KernelFiles,
    folders: Vec<Untrusted>,
    most: usize,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Result<Files, Error> {
    let begin = Instant::now();
    let counted = vmstat::vmstat(files)?;
    let pages = |name: &str| Pages(counted.get(name).unwrap_or(0)).bytes();
    let elsewhere = pages("nr_shmem") + pages("nr_swapcached");
    let cached_bytes = pages("nr_file_pages").saturating_sub(elsewhere);
    let mut report = Files { cached_bytes, ..Files::default() };
    let mut largest: BinaryHeap<Reverse<OfFile>> = BinaryHeap::new();
    let mut known = BTreeSet::new();
    for folder in &folders {
        let mut failed = None;
        let skipped = file_walk::walk(folder.path(), |found| {
            report.files_asked += 1;
            match asked(found, folder, &mut known) {
                Ok(Some(of)) => {
                    report.found_bytes += of.cached_bytes;
                    largest.push(Reverse(of));
                    if largest.len() > most {
                        report.more_files += 1;
                        largest.pop();
                    }
                }
                Ok(None) => {}
                Err(error @ Error::Unsupported(_)) => failed = Some(error),
                Err(_) => report.not_opened += 1,
            }
            report.is_cut_short = !goes_on(report.files_asked);
            if report.is_cut_short || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        report.not_opened += skipped.not_opened + skipped.too_deep;
        if let Some(error) = failed {
            return Err(error);
        }
        if report.is_cut_short {
            break;
        }
    }
    report.files = largest.into_sorted_vec().into_iter().map(|Reverse(of)| of).collect();
    Ok(Files { folders, cost_us: cast::saturated(begin.elapsed().as_micros()), ..report })
}

/// Memory of a file; `None` if it has none, or was asked by another name.
fn asked(found: Found, folder: &Untrusted, known: &mut BTreeSet<(u64, u64)>) -> Result<Option<OfFile>, Error> {
    if found.stat.st_nlink > 1 && !known.insert((found.stat.st_dev, found.stat.st_ino)) {
        return Ok(None);
    }
    let counts = cachestat(found.file.as_fd(), Bytes(0), Bytes(0))?;
    if counts.cached.0 == 0 {
        return Ok(None);
    }
    let path = folder.path().join(found.path.path());
    Ok(Some(OfFile {
        cached_bytes: counts.cached.bytes(),
        dirty_bytes: counts.dirty.bytes(),
        size_bytes: Bytes(found.stat.st_size.cast_unsigned()),
        path: Untrusted::new(path.into_os_string().into_vec()),
    }))
}

#[cfg(test)]
mod tests {
    use linux::Rooted;
    use linux::fake::FakeKernel;

    use super::*;

    #[test]
    fn disks_are_searched_and_nothing_that_a_server_answers_for() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            22 21 0:5 / /proc rw - proc proc rw\n\
            23 21 0:30 / /tmp rw - tmpfs tmpfs rw\n\
            24 21 0:40 / /home rw - fuse.sshfs host: rw\n\
            25 21 0:41 / /nfs rw - nfs4 host:/ rw\n\
            26 21 8:1 /a /bind rw - ext4 /dev/sda1 rw\n\
            27 21 0:42 / /pool rw - btrfs /dev/sdb rw\n";
        let found = local_folders(&FakeKernel::new().file("proc/self/mountinfo", mounts)).unwrap();
        assert_eq!(found, ["/", "/pool"].map(Untrusted::from));
    }

    #[test]
    fn the_largest_files_are_named_and_the_others_counted() {
        let folder = tempfile::tempdir().unwrap();
        for (name, pages) in [("a", 3), ("b", 9), ("c", 1)] {
            std::fs::write(folder.path().join(name), vec![1; pages * 4096]).unwrap();
        }
        std::fs::hard_link(folder.path().join("b"), folder.path().join("b again")).unwrap();
        let of = |most| of_folders(&Rooted::host(), vec![folder.path().to_str().unwrap().into()], most, |_| true);
        let report = match of(2) {
            Err(Error::Unsupported(_)) => return println!("SKIP: this kernel has no cachestat"),
            report => report.unwrap(),
        };
        let sizes: Vec<u64> = report.files.iter().map(|of| of.cached_bytes.pages().0).collect();
        assert_eq!((sizes, report.more_files, report.files_asked), (vec![9, 3], 1, 4));
        assert_eq!(report.found_bytes.pages().0, 13);
        let cut = of_folders(&Rooted::host(), vec![folder.path().to_str().unwrap().into()], 2, |_| false).unwrap();
        assert!(cut.is_cut_short && cut.files_asked == 1);
    }
}
