//! `inotify(7)`: a file that other processes open to be counted.
//!
//! A process that may make no other call than openat(2) and close(2) can tell its existence by them. The kernel merges
//! an event with an equal one directly before it, so simultaneous openings may count once.
//!
//! Cost: one inotify instance (`fs.inotify.max_user_instances`), and an event for each opening. Side effects: the file.
//!
//! Since: Linux 2.6.13.
//!
//! Truth: inotify(7); `fsnotify_add_event` in fs/notify/notification.c on merged events.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::error;

/// Watched file.
#[derive(Debug)]
pub struct OpenWatch(OwnedFd);

impl OpenWatch {
    /// Creates an empty file with this mode, and watches it.
    ///
    /// # Errors
    /// The kernel's answer: the file exists, or there is no instance left.
    pub fn create(path: &Path, mode: u32) -> Result<OpenWatch, Errno> {
        let file = std::fs::File::options().write(true).create_new(true).mode(mode).open(path).map_err(error::errno)?;
        // The umask removed bits.
        file.set_permissions(std::fs::Permissions::from_mode(mode)).map_err(error::errno)?;
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&watch, path, WatchFlags::OPEN | WatchFlags::CLOSE)?;
        Ok(OpenWatch(watch))
    }

    /// Number of openings since the last call.
    pub fn opened(&self) -> u64 {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut space);
        let mut opened = 0;
        // The end is an empty queue.
        while let Ok(event) = events.next() {
            opened += u64::from(event.events().contains(ReadFlags::OPEN));
        }
        opened
    }
}

impl AsFd for OpenWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn each_opening_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watched");
        let watch = OpenWatch::create(&path, 0o600).unwrap();
        assert_eq!(watch.opened(), 0);
        for _ in 0..3 {
            drop(File::open(&path).unwrap());
        }
        assert_eq!((watch.opened(), watch.opened()), (3, 0));
        assert_eq!(OpenWatch::create(&path, 0o600).unwrap_err(), Errno::EXIST);
    }
}
