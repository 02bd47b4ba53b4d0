//! `openat2(2)` and `getdents64(2)`: the regular files below a folder, on one file system.
//!
//! The files and their names are anyone's choice. Nothing is followed: no symbolic link, no mount, no automount. A file
//! is opened only after its descriptor was found to be regular, so that no device or pipe is opened.
//!
//! Cost: five system calls a file, some 10 µs. Side effects: inodes and directory entries come into the kernel's caches;
//! no access time changes (`O_NOATIME`).
//!
//! Since: Linux 5.6. Truth: openat2(2), open(2).

use std::ffi::CString;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};
use rustix::io::Errno;

use crate::{Error, Untrusted};

/// Deepest folder: a chain of folders has no bound of its own.
const DEEPEST: usize = 256;

/// A regular file.
#[derive(Debug)]
pub struct Found {
    /// Path below the folder.
    pub path: Untrusted,
    /// Its record.
    pub stat: Stat,
    /// The file, open for reading.
    pub file: File,
}

/// Files and folders that a walk passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Files and folders that could not be opened.
    pub not_opened: u64,
    /// Folders deeper than 256 levels.
    pub too_deep: u64,
}

/// Calls `visit` for each file with content below `folder`, until it breaks. A file that vanishes meanwhile is left out.
///
/// # Errors
/// The kernel's answer for the folder itself.
pub fn walk(folder: &Path, mut visit: impl FnMut(Found) -> ControlFlow<()>) -> Result<Skipped, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(folder, flags, Mode::empty())
        // A folder of the user's: its absence says nothing of the kernel.
        .map_err(|errno| Error::of_process("open", Untrusted::new(folder.as_os_str().as_bytes()), errno))?;
    let mut skipped = Skipped::default();
    let mut folders: Vec<(Vec<u8>, usize)> = vec![(b".".to_vec(), 0)];
    while let Some((path, depth)) = folders.pop() {
        let Ok(entries) = below(&root, &path, flags).and_then(Dir::new) else {
            skipped.not_opened += 1;
            continue;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let path = if path == b"." { name.to_vec() } else { [&path[..], b"/", name].concat() };
            match entry.file_type() {
                FileType::Directory if depth >= DEEPEST => skipped.too_deep += 1,
                FileType::Directory => folders.push((path, depth + 1)),
                // A file system may not tell the kind.
                FileType::RegularFile | FileType::Unknown => match regular(&root, &path) {
                    Ok(Some((file, stat))) => {
                        if visit(Found { path: Untrusted::new(path), stat, file }).is_break() {
                            return Ok(skipped);
                        }
                    }
                    Ok(None) | Err(Errno::NOENT) => {}
                    Err(_) => skipped.not_opened += 1,
                },
                _ => {}
            }
        }
    }
    Ok(skipped)
}

/// Opens a path below the root: by its own folders alone, on the same mount.
fn below(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags | OFlags::NOFOLLOW, Mode::empty(), resolve)
}

/// Opens a regular file with content; `None` for others.
fn regular(root: &OwnedFd, path: &[u8]) -> Result<Option<(File, Stat)>, Errno> {
    let descriptor = below(root, path, OFlags::PATH | OFlags::CLOEXEC)?;
    let stat = fstat(&descriptor)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size == 0 {
        return Ok(None);
    }
    let again = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // Only the owner and root may leave the access time as it is.
    let opened = match open(again.as_str(), flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => open(again.as_str(), flags, Mode::empty()),
        opened => opened,
    };
    Ok(Some((File::from(opened?), stat)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(folder: &std::path::Path) -> (BTreeSet<String>, Skipped) {
        let mut found = BTreeSet::new();
        let skipped = walk(folder, |file| {
            found.insert(file.path.to_string());
            ControlFlow::Continue(())
        });
        (found, skipped.unwrap())
    }

    #[test]
    fn files_with_content_are_found_and_nothing_is_followed() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/deep"), "x").unwrap();
        std::fs::write(at("top"), "x").unwrap();
        std::fs::write(at("empty"), "").unwrap();
        std::fs::write(other.path().join("elsewhere"), "x").unwrap();
        std::os::unix::fs::symlink(other.path(), at("a/link")).unwrap();
        std::os::unix::fs::symlink(at("top"), at("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let expected = ["a/b/deep", "top"].map(str::to_owned).into();
        assert_eq!(names(folder.path()), (expected, Skipped::default()));
        assert!(walk(Path::new("/no/such/folder"), |_| ControlFlow::Continue(())).is_err());
    }

    #[test]
    fn a_chain_of_folders_ends() {
        let folder = tempfile::tempdir().unwrap();
        let deep = std::iter::repeat_n("d", DEEPEST + 2).collect::<std::path::PathBuf>();
        std::fs::create_dir_all(folder.path().join(&deep)).unwrap();
        std::fs::write(folder.path().join(&deep).join("file"), "x").unwrap();
        assert_eq!(names(folder.path()), (BTreeSet::new(), Skipped { not_opened: 0, too_deep: 1 }));
    }

    #[test]
    fn the_visitor_ends_the_walk() {
        let folder = tempfile::tempdir().unwrap();
        (0..9).for_each(|number| std::fs::write(folder.path().join(number.to_string()), "x").unwrap());
        let mut seen = 0;
        walk(folder.path(), |_| {
            seen += 1;
            if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(seen, 3);
    }
}
